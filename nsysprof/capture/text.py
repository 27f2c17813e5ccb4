"""What a capture made, as text: how much, which backends ran, what the profiler cost, what did not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nsysprof.core.text import one_line, visible
from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio

_MOST_NOT_RUN = 20


def captured_summary(record: Mapping[str, Any]) -> str:
    """The record of a capture (`nsysprof-run/1`) in a few sentences, without the verdict; ends with a newline."""
    lines = [_what(record["report"])]
    if record.get("exit_code"):
        lines.append(f"the program ended with exit code {record['exit_code']}: this may not be all of it")
    lines += [*_overhead(record["overhead"]), *not_run_lines(record["workload"])]
    if record["backends"] and not record["report"]["kernels"]:
        lines.append("no kernels: nothing tells which backend ran")
    return "".join(f"{line}\n" for line in lines)


def _what(report: Mapping[str, Any]) -> str:
    sizes = [format_bytes(report[name]["size_bytes"]) for name in ("nsys_rep", "sqlite")]
    counted = [
        f"{format_count(report[name])} {name.removesuffix('s') if report[name] == 1 else name}"
        for name in ("kernels", "ranges")
    ]
    return (
        f"captured {' and '.join(counted)}:"
        f" .nsys-rep {sizes[0]}, .sqlite {sizes[1]}{', scrubbed' if report['sqlite']['scrubbed'] else ''}"
    )


def _overhead(overhead: Mapping[str, Any] | None) -> Iterator[str]:
    """What nsys costs; a ratio of medians where a workload timed its calls, else of whole runs."""
    if overhead is None:
        return
    walls = f"{format_ns(overhead['plain_wall_ns'])} without nsys, {format_ns(overhead['profiled_wall_ns'])} with it"
    if overhead["median_ratio"] is None:
        yield f"whole run: {walls}"
        return
    ranges = overhead["ranges"]
    samples = min(row["samples"] for row in ranges)
    worst = max(ranges, key=lambda row: row["ratio"] or 0)
    yield (
        f"a call takes {format_ratio(overhead['median_ratio'])} as long under nsys (median of {len(ranges)}"
        f" range{'s' if len(ranges) > 1 else ''}, medians of n = {samples} calls each); most in"
        f" {visible(worst['range'])}: {format_ratio(worst['ratio'])}"
    )
    yield f"whole run: {walls}"


def not_run_lines(workload: Mapping[str, Any] | None) -> Iterator[str]:
    """What could not be measured, each with its reason."""
    missed = [run for run in (workload or {}).get("runs", []) if run["status"] != "measured"]
    for run in missed[:_MOST_NOT_RUN]:
        yield f"{visible(run['range'])}: {run['status']}: {one_line(run.get('reason') or 'no reason given', 160)}"
    if len(missed) > _MOST_NOT_RUN:
        yield f"and {len(missed) - _MOST_NOT_RUN} more that did not run"
