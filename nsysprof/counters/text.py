"""What a count found, as text: per range and kernel family the bytes, the FLOPs and how near the limits it came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from shlex import quote
from typing import Any, Protocol

from nsysprof.attribution.paths import merged_names, split_path
from nsysprof.capture.text import not_run_lines
from nsysprof.core.text import plural
from nsysprof.core.units import format_count, format_share
from nsysprof.results.table import Column, show_columns, wrap

_COLUMNS = (
    Column("path", "range, or kernel family of the one above", "range"),
    Column(
        "kernels", "kernels of a call", cell=lambda n: format_count(int(n)) if n.is_integer() else f"{n:.1f}"
    ),
    Column("duration_ns", "their time", "time"),
    Column("dram_bytes", "bytes read from DRAM and written to it", "DRAM"),
    Column("dram_percent", "of what DRAM can move in that time", "of peak"),
    Column("flops", "FLOPs counted", "FLOPs", lambda flops: format_count(round(flops))),
    Column("tensor", "share of the FLOPs that tensor cores did", "tensor cores", align="r"),
)
_FLOPS = ("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops")
_MOST_RANGES, _MOST_FAMILIES = 40, 4
_NO_RANGE = "(no range)"
_UNKNOWN = "-"


class CountedKernel(Protocol):
    """A launch with what was counted of it: ``values`` by the columns of `nsysprof counters`, None for not measured."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def pid(self) -> int: ...  # noqa: D102
    @property
    def kernel(self) -> str: ...  # noqa: D102
    @property
    def values(self) -> Mapping[str, float | None]: ...  # noqa: D102


@dataclass(frozen=True)
class _Range:
    """The kernels of one merged path, by family, and how often it was run."""

    path: str
    calls: int
    families: Mapping[str, list[CountedKernel]]


def counters_summary(
    rows: Sequence[CountedKernel], record: Mapping[str, Any], families: Mapping[str, str]
) -> str:
    """A count in a table, with how it was made; ``families`` by kernel name. Ends with a newline."""
    runs = record["runs"]
    many = [run for run in runs if max(run["passes"], default=1) > 1]
    parts = [
        f"counted {plural(len(rows), 'kernel')}",
        *not_run_lines(record["workload"]),
        "",
    ]
    ranges = list(_ranges(rows, families))
    shown = (line for each in ranges[:_MOST_RANGES] for line in _lines(each))
    parts += show_columns(_COLUMNS, shown, missing=_UNKNOWN).lines()
    if len(ranges) > _MOST_RANGES:
        parts.append(f"and {len(ranges) - _MOST_RANGES:,} more ranges, in the table")
    note = (
        "Per range, and where calls are numbered (iter0, iter1 ...) per call. DRAM: bytes read and written, and their"
        " share of what the memory could move in that time."
        f" {_caches(record)} Times are ncu's, of kernels run one at a time; compare takes those of the report."
    )
    if many:
        note += (
            f" FLOPs are of a second run, where each kernel was replayed (passes: {max(many[-1]['passes'])})."
        )
    parts += [wrap(note, "", ""), ""]
    return "\n".join(parts)


def compare_command(rows: Iterable[CountedKernel], report: str, table: str) -> str:
    """The command that puts the counters beside the times of a report: of the first two kinds of ranges there are."""
    paths = dict.fromkeys(row.path for row in rows if row.path)
    outer = list(dict.fromkeys(merged_names([split_path(path)[0] for path in paths])))
    kinds = list(dict.fromkeys("::".join(name.split("::")[:2]) for name in outer if name.startswith("RUN::")))
    globs = [f"{escape(kind)}::*" for kind in kinds] if len(kinds) > 1 else [escape(name) for name in outer]
    base, new = (*map(quote, globs[:2]), "GLOB", "GLOB")[:2]
    return f"nsysprof compare {report} --base {base} --new {new} --counters {table}"


def _caches(record: Mapping[str, Any]) -> str:
    if record["cache_control"] == "all":
        return "Caches were flushed before every kernel, so that it had to read from DRAM what the last one wrote."
    if max(record["runs"][0]["passes"], default=1) > 1:
        return "Kernels were replayed for them, which empties L2 before each."
    return (
        "They are of a run where every kernel ran once and found in L2 what the one before it had left there."
    )


def _ranges(rows: Iterable[CountedKernel], families: Mapping[str, str]) -> Iterator[_Range]:
    """The ranges in the order of their first kernels."""
    merged: dict[str, str] = {}
    calls: dict[str, set[tuple[int, str]]] = {}
    found: dict[str, dict[str, list[CountedKernel]]] = {}
    for row in rows:
        path = merged.get(row.path)
        if path is None:
            path = merged[row.path] = "/".join(merged_names(split_path(row.path))) or _NO_RANGE
        calls.setdefault(path, set()).add((row.pid, row.path))
        found.setdefault(path, {}).setdefault(families[row.kernel], []).append(row)
    for path, by_family in found.items():
        yield _Range(path, len(calls[path]), by_family)


def _lines(each: _Range) -> Iterator[dict[str, Any]]:
    """A line for the range, and, where it has several families, one for each of the slowest."""
    everything = [row for rows in each.families.values() for row in rows]
    yield {"path": each.path, **_figures(everything, each.calls)}
    if len(each.families) == 1:
        return
    slowest = sorted(each.families, key=lambda name: -(_sum(each.families[name], "duration_ns") or 0))
    for name in slowest[:_MOST_FAMILIES]:
        yield {"path": f"· {name}", **_figures(each.families[name], each.calls)}
    others = [row for name in slowest[_MOST_FAMILIES:] for row in each.families[name]]
    if others:
        yield {"path": f"· {len(slowest) - _MOST_FAMILIES} more", **_figures(others, each.calls)}


def _figures(rows: Sequence[CountedKernel], calls: int) -> dict[str, Any]:
    """The figures of a call by `_COLUMNS`, None for what was not measured."""
    time = _sum(rows, "duration_ns")
    read, written = _sum(rows, "dram_read_bytes"), _sum(rows, "dram_write_bytes")
    flops = [_sum(rows, name) for name in _FLOPS]
    known = [count for count in flops if count is not None]
    return {
        "kernels": len(rows) / calls,
        "duration_ns": None if time is None else time / calls,
        "dram_bytes": None if read is None or written is None else (read + written) / calls,
        "dram_percent": _mean(rows, "dram_percent"),
        "flops": sum(known) / calls if known else None,
        "tensor": _tensor(rows, flops[0], sum(known)),
    }


def _tensor(rows: Sequence[CountedKernel], tensor: float | None, flops: float) -> str | None:
    """The share of the FLOPs that tensor cores did, or, where that was not counted, whether they did anything."""
    if tensor is not None:
        return format_share(tensor / flops) if flops else None
    instructions = _sum(rows, "tensor_instructions")
    return None if instructions is None else "used" if instructions else "not used"


def _sum(rows: Iterable[CountedKernel], column: str) -> float | None:
    """The sum over rows, None where one of them has no value."""
    total = 0.0
    for row in rows:
        value = row.values[column]
        if value is None:
            return None
        total += value
    return total


def _mean(rows: Iterable[CountedKernel], column: str) -> float | None:
    """The mean of a percentage, weighted by time."""
    weight = total = 0.0
    for row in rows:
        value, time = row.values[column], row.values["duration_ns"]
        if value is not None and time is not None:
            weight, total = weight + time, total + value * time
    return total / weight if weight else None
