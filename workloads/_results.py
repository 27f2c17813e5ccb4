"""What a workload found: the file and the table."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = "nsysprof-workload/1"
_TIME = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (10**9, "s"))
_FEW = 10  # samples below which their spread says nothing
_BYTES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))


class WorkloadError(Exception):
    """What stops a workload: one line, and a hint."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def check_target(path: Path, *, force: bool) -> None:
    """Raises `WorkloadError` when results could not be written to ``path`` later, or would replace something."""
    try:
        if path.exists() and not path.is_file():
            raise WorkloadError(f"{path} is not a regular file", "name a new file with --results")
        if path.exists() and path.stat().st_size and not force:
            raise WorkloadError(f"{path} exists", "--force replaces it")
        part = _part(path)
        part.touch()
        part.unlink()
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror}", "name another file with --results") from None


def write(path: Path, results: Mapping[str, Any]) -> None:
    """Writes the results as JSON: all of them under ``path``, or nothing. Raises `WorkloadError`."""
    part = _part(path)
    try:
        try:
            part.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            part.replace(path.resolve())
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror}", "df -h") from None


def _part(path: Path) -> Path:
    """Where the file is until it is whole: beside the target, of this process alone."""
    target = path.resolve()
    return target.with_name(f".{target.name}.{os.getpid()}.part")


def table(results: Mapping[str, Any], title: str) -> str:
    """All runs, a line each, under a title, with the reasons of those that have no numbers below."""
    runs = results["runs"]
    columns = [(name, [cell(run) for run in runs]) for name, cell in _COLUMNS]
    shown = [(name, cells) for name, cells in columns if any(cells)]
    environment = results["environment"]
    head = f"{title}; {environment['device']}, torch {environment['torch']}"
    lines = [head, "", *_aligned(shown), ""]
    lines += _reasons(runs)
    if any(run["status"] == "measured" for run in runs):
        lines.append(_legend(results))
    return "\n".join(lines)


def progress(run: Mapping[str, Any]) -> str:
    """One line about a run that has just ended."""
    said = [run["status"], run["reason"] or _latency(run), _error(run)]
    return f"{run['range']}: " + ", ".join(part for part in said if part)


def format_ns(ns: float) -> str:
    """A duration in three digits: `830 ns`, `2.42 µs`, `1.20 s`."""
    return _scaled(ns, _TIME)


def format_bytes(size: float) -> str:
    """A size in three digits and powers of 1,024: `512 B`, `1.50 KiB`."""
    return _scaled(size, _BYTES)


def _scaled(value: float, units: Sequence[tuple[int, str]]) -> str:
    # 999.6 µs would print as 1000 µs: what rounds up to the next unit is in that unit.
    divisor, unit = next((each for each in reversed(units) if value >= each[0] * 0.9995), units[0])
    scaled = value / divisor
    digits = 0 if divisor == 1 or scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:,.{digits}f} {unit}"


def _latency(run: Mapping[str, Any]) -> str:
    samples = run["latency_ns"]
    if not samples:
        return ""
    middle = statistics.median(samples)
    if len(samples) == 1 or not middle:
        return format_ns(middle)
    if len(samples) < _FEW:
        return f"{format_ns(middle)} ({format_ns(min(samples))}–{format_ns(max(samples))})"
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    share = (third - first) / 2 / middle * 100
    return f"{format_ns(middle)} ± " + ("<0.1 %" if share < 0.1 else f"{share:.{1 if share < 9.95 else 0}f} %")


def _worst(run: Mapping[str, Any]) -> str | None:
    """The name of the error that is nearest to its tolerance, or furthest above."""

    def of_tolerance(name: str) -> float:
        error = run["errors"][name]
        return float("inf") if error is None else float(error / run["tolerances"][name])

    return max(run["errors"], key=of_tolerance, default=None)


def _error(run: Mapping[str, Any]) -> str:
    name = _worst(run)
    if name is None:
        return ""
    error = run["errors"][name]
    return f"{name} {'NaN or infinity' if error is None else format(error, '.1e')}"


def _allowed(run: Mapping[str, Any]) -> str:
    name = _worst(run)
    return "" if name is None else format(run["tolerances"][name], ".1e")


def _tokens(run: Mapping[str, Any]) -> str:
    return f"{run['tokens_per_s']:,.0f}" if "tokens_per_s" in run else ""


def _memory(part: str) -> Callable[[Mapping[str, Any]], str]:
    def cell(run: Mapping[str, Any]) -> str:
        size = run["memory"][f"{part}_bytes"]
        return "" if size is None else format_bytes(size)

    return cell


# The title of a column and what it says of a run. A column that says nothing of any run is left out.
_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("range", lambda run: str(run["range"])),
    ("status", lambda run: str(run["status"])),
    ("latency", _latency),
    ("tokens/s", _tokens),
    ("error", _error),
    ("allowed", _allowed),
    ("before", _memory("before")),
    ("inputs", _memory("inputs")),
    ("outputs", _memory("outputs")),
    ("temporary", _memory("temporary")),
)


def _aligned(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Lines of a table: text to the left, the rest to the right."""
    widths = [max(map(len, (name, *cells))) for name, cells in columns]
    rows = [[name for name, _ in columns], ["-" * width for width in widths]]
    rows += [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _reasons(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why some runs have no numbers; ranges for the same reason share a line."""
    ranges: dict[str, list[str]] = {}
    for run in runs:
        if run["reason"]:
            ranges.setdefault(f"{run['status']}: {run['reason']}", []).append(run["range"])
    return [f"{', '.join(names)}: {reason}" for reason, names in ranges.items()]


def _legend(results: Mapping[str, Any]) -> str:
    options = results["options"]
    clock = next(run["latency_clock"] for run in results["runs"])
    few = options["iterations"] < _FEW
    spread = "(in brackets: minimum and maximum)" if few else "± half the interquartile range"
    lines = [
        f"latency: median of {options['iterations']} calls {spread} ({clock}).",
        "error: relative norm of the difference from float64, for the result that is closest to its tolerance.",
    ]
    if options["device"] == "cuda":
        lines += [
            "before: memory in use after a first call (such as workspaces), without the inputs; temporary: peak memory",
            "of one call, without this memory, the inputs and the outputs.",
        ]
    return "\n".join(lines)
