"""Read the output of ``ncu --csv --page raw``: a row per kernel, with its ranges and metrics.

ncu doubles its own quotes, but not quotes in names, and names may contain newlines. So rows are parsed from both ends,
which are regular.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from nsysprof.core.text import path_part
from nsysprof.counters.metrics import Terms
from nsysprof.errors import NsysprofError

_HEAD = '"ID",'
_ROW = re.compile(r'\n(?="\d+","\d+",)')
_BETWEEN = '","'
_PUSHED, _STARTED, _KERNEL = "Push/Pop_Range", "Start/Stop_Range", "Kernel Name"
_DEFAULT = "<default domain>"
# What stands for one range, in ncu's own quotes; the thread that pushed it stands before the first of its ranges.
_THREAD = re.compile(r'\s*(\d+)  (?="")')
_RANGE = re.compile(r'\s*""(.*?)""(?=  ""|\s+\d+  ""|\s*$)', re.DOTALL)
_STARTED_AFTER = re.compile(r'"," ""(?=\d+:)')
# Domain, name, type and value of the payload, type and value of the colour, type of the message: the name once more.
_DETAILS = r":[^:]*:[^:]*:[^:]*:[^:]*:"
_NAMED = re.compile(rf"(?P<domain>.*?):(?P<name>.*){_DETAILS}(?!none:)[^:]*:(?P=name)", re.DOTALL)
_UNNAMED = re.compile(rf"(?P<domain>{_DEFAULT}|[^:]*):(?P<name>.*){_DETAILS}none:none", re.DOTALL)
_SCALES = {
    **{"nsecond": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9},
    **{"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12},
}


@dataclass(frozen=True)
class NcuRow:
    """A profiled kernel: ``ranges`` are the names of its ranges, outermost first, as far as recorded.

    ``clear`` is False if several threads had ranges open, or if ncu's text is unreadable; the row then has no ranges.
    ``values`` are the requested columns, None if ncu has no number.
    """

    pid: int
    ranges: tuple[str, ...]
    clear: bool
    kernel: str
    grid: str
    block: str
    values: Mapping[str, float | None]

    @property
    def path(self) -> str:
        """Return the range path, empty if there is none."""
        return "/".join(map(path_part, self.ranges))


def read_ncu_csv(text: str, columns: Mapping[str, Terms]) -> list[NcuRow]:
    """Read the rows, in launch order per process; ``columns`` maps columns to metrics.

    Raises `NsysprofError` if the text is not ncu output, or is truncated.
    """
    begin = 0 if text.startswith(_HEAD) else text.find(f"\n{_HEAD}") + 1
    if not text.startswith(_HEAD, begin):
        raise NsysprofError("ncu printed no table of kernels", None)
    head, units, *rows = _lines(text[begin:])
    names = head[1:-1].split(_BETWEEN)
    if _KERNEL not in names:
        raise NsysprofError("ncu's table has no column for kernels", None)
    table = _Table(names, dict(zip(names, units[1:-1].split(_BETWEEN), strict=False)), columns)
    return [table.row(each) for each in rows]


def _lines(text: str) -> Iterator[str]:
    """Yield head, units, and each row; a row may be several lines."""
    head, _, rest = text.partition("\n")
    yield head.rstrip("\r")
    units, *rows = _ROW.split(f"\n{rest.rstrip()}".replace("\r\n", "\n"))
    yield units.strip("\n")
    yield from rows


class _Table:
    """The columns of a table, and how to read its rows."""

    def __init__(self, names: Sequence[str], units: Mapping[str, str], columns: Mapping[str, Terms]) -> None:
        self._names, self._columns = names, columns
        self._scale = {name: _SCALES.get(unit, 1.0) for name, unit in units.items()}
        self._kernel = names.index(_KERNEL)
        self._nvtx = [at for at, name in enumerate(names) if _PUSHED in name or _STARTED in name]
        self._before = min([*self._nvtx, self._kernel])

    def row(self, line: str) -> NcuRow:
        """Read a row of the table."""
        before = line[1:].split(_BETWEEN, self._before)
        after = before[-1].removesuffix('"').rsplit(_BETWEEN, len(self._names) - self._kernel - 1)
        if len(before) != self._before + 1 or len(after) != len(self._names) - self._kernel:
            raise NsysprofError(f"ncu's table is cut off or damaged: {line[:60]!r}", None)
        cells = dict(zip(self._names[: self._before], before[:-1], strict=True))
        cells.update(zip(self._names[self._kernel + 1 :], after[1:], strict=True))
        pushed, started, kernel = _middle(after[0], len(self._nvtx))
        ranges = _ranges(pushed, started)
        return NcuRow(
            pid=int(cells["Process ID"]),
            ranges=ranges or (),
            clear=ranges is not None,
            kernel=kernel.replace('""', '"'),
            grid=_dimensions(cells.get("Grid Size", "")),
            block=_dimensions(cells.get("Block Size", "")),
            values={column: self._value(terms, cells) for column, terms in self._columns.items()},
        )

    def _value(self, terms: Terms, cells: Mapping[str, str]) -> float | None:
        """Add up the terms; None where one of them is no number."""
        total = 0.0
        for metric, factor in terms.items():
            number = _number(cells.get(metric, ""))
            if number is None:
                return None
            total += factor * number * self._scale.get(metric, 1.0)
        return max(total, 0.0)


def _middle(text: str, nvtx: int) -> tuple[str, str, str]:
    """Part the cells that may hold anything: the ranges pushed, the ranges started and the kernel's name."""
    if not nvtx:
        return "", "", text
    ranges, _, kernel = text.rpartition(_BETWEEN)
    if nvtx == 1 or ranges.endswith(_BETWEEN):
        return ranges.removesuffix(_BETWEEN), "", kernel
    borders = list(_STARTED_AFTER.finditer(ranges))
    if borders:
        return ranges[: borders[-1].start()], ranges[borders[-1].end() - 2 :], kernel
    return "", ranges.removeprefix(_BETWEEN), kernel


def _ranges(pushed: str, started: str) -> tuple[str, ...] | None:
    """Name the ranges a kernel ran in: those pushed on one thread, else the one started last, or None if unclear.

    ncu lists the pushed ranges of a thread domain by domain, so ranges outside the default domain come last: they
    belong to libraries and are the innermost ranges.
    """
    threads = _threads(pushed)
    if threads is None or len(threads) > 1:
        return None
    if threads:
        parsed = [_name(each) for each in threads[0]]
        if any(each is None for each in parsed):
            return None
        known = [each for each in parsed if each is not None]
        return tuple(name for _, name in sorted(known, key=lambda each: each[0] != _DEFAULT))
    windows = []
    for each in _RANGE.findall(started):
        number, _, rest = each.partition(":")
        named = _name(rest)
        if not number.isdigit() or named is None:
            return None
        windows.append((int(number), named[1]))
    return (max(windows)[1],) if windows else ()


def _threads(pushed: str) -> list[list[str]] | None:
    """List the ranges open on each thread; None where the text is not what ncu writes."""
    threads: list[list[str]] = []
    at, text = 0, pushed.rstrip()
    while at < len(text):
        part = _THREAD.match(text, at)
        if part:
            threads.append([])
        else:
            part = _RANGE.match(text, at)
            if part is None or not threads:
                return None
            threads[-1].append(part[1])
        at = part.end()
    return threads


@lru_cache(maxsize=20_000)
def _name(text: str) -> tuple[str, str] | None:
    """Return domain and name of a range; where its message was not registered, the name stands there once only."""
    named = _NAMED.fullmatch(text) or _UNNAMED.fullmatch(text)
    return (named["domain"], named["name"]) if named else None


def _dimensions(text: str) -> str:
    """Return ``(32, 32, 8)`` as ``32x32x8``."""
    return "x".join(re.findall(r"\d+", text))


def _number(text: str) -> float | None:
    """Read a number with its commas, or None for `n/a`, `nan` and whatever else is no number."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None
