"""Describe a capture as text: amount of data, profiling overhead, failed parts, and the backends that ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nsysprof.core.text import cut, one_line, plural, visible
from nsysprof.core.units import format_bytes, format_ns, format_ratio
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import TextTable, warning_lines

if TYPE_CHECKING:
    from nsysprof.kernels.backends import BackendVerdict

_MAX_NOT_RUN = 20
_RANGE_WIDTH, _NAME_WIDTH, _EVIDENCE = 40, 20, 36
_LINE_KERNELS, _LINE_WIDTH = 3, 200


def captured_summary(record: Mapping[str, Any]) -> str:
    """Describe the record of a capture (`nsysprof-run/1`) in a few sentences, without the verdict."""
    lines = [_what(record["report"])]
    if record.get("exit_code"):
        lines.append(f"the program ended with exit code {record['exit_code']}: the recording may be incomplete")
    lines += [*overhead_lines(record["overhead"], "nsys"), *not_run_lines(record["workload"])]
    if record["backends"] and not record["report"]["kernels"]:
        lines.append("no kernels were recorded, so the backend that ran is unknown")
    return "".join(f"{line}\n" for line in lines)


def _what(report: Mapping[str, Any]) -> str:
    sizes = [format_bytes(report[name]["size_bytes"]) for name in ("nsys_rep", "sqlite")]
    counted = [plural(report["kernels"], "kernel"), plural(report["ranges"], "range")]
    return (
        f"captured {' and '.join(counted)}:"
        f" .nsys-rep {sizes[0]}, .sqlite {sizes[1]}{', scrubbed' if report['sqlite']['scrubbed'] else ''}"
    )


def overhead_lines(overhead: Mapping[str, Any] | None, profiler: str) -> Iterator[str]:
    """Describe profiling overhead: the ratio of median call times if a workload timed calls, or of whole runs."""
    if overhead is None:
        return
    plain, profiled = (format_ns(overhead[f"{which}_wall_ns"]) for which in ("plain", "profiled"))
    walls = f"{plain} without {profiler}, {profiled} with it"
    if overhead["median_ratio"] is None:
        yield f"whole run: {walls}"
        return
    ranges = overhead["ranges"]
    samples = min(row["samples"] for row in ranges)
    worst = max(ranges, key=lambda row: row["ratio"] or 0)
    yield (
        f"calls take {format_ratio(overhead['median_ratio'])} as long under {profiler} (median over {len(ranges)}"
        f" range{'s' if len(ranges) > 1 else ''} with at least {samples} calls each); largest slowdown:"
        f" {visible(worst['range'])} ({format_ratio(worst['ratio'])})"
    )
    yield f"whole run: {walls}"


def not_run_lines(workload: Mapping[str, Any] | None) -> Iterator[str]:
    """List unmeasured points, each with its reason."""
    missed = [run for run in (workload or {}).get("runs", []) if run["status"] != "measured"]
    for run in missed[:_MAX_NOT_RUN]:
        yield f"{visible(run['range'])}: {run['status']}: {one_line(run.get('reason') or 'no reason given', 160)}"
    if len(missed) > _MAX_NOT_RUN:
        yield f"and {len(missed) - _MAX_NOT_RUN} more that did not run"


def backend_table(verdict: BackendVerdict) -> str:
    """Show the table ``range | requested | ran | evidence``, then the warnings; empty if no range requests a backend.

    Evidence is the kernel with the most time among the kernels that identify the backend. The text ends with a newline.
    """
    if verdict.ranges.empty:
        return ""
    differ = set(verdict.differences.index)
    ranges: Iterator[Any] = verdict.ranges.itertuples()
    rows = [
        [
            one_line(row.range, _RANGE_WIDTH) + (f" ({part})" if part else ""),
            one_line(row.requested, _NAME_WIDTH),
            one_line(row.observed, _NAME_WIDTH) + (" (differs)" if row.Index in differ else ""),
            _evidence(verdict, number, 1, _EVIDENCE),
        ]
        for number, (row, part) in enumerate(zip(ranges, _parts(verdict), strict=True))
    ]
    table = TextTable(["range", "requested", "ran", "evidence"], rows, "llll", last_cut=True)
    return "".join(f"{line}\n" for line in [*table.lines(), *warning_lines(verdict.warnings, "--json")])


def difference_lines(verdict: BackendVerdict) -> list[str]:
    """Describe each range that ran a different backend than its name requests, with the kernels as evidence."""
    parts = _parts(verdict)
    rows: Iterator[Any] = verdict.differences.itertuples()
    return [
        f"{one_line(row.range, 100)}: requested {one_line(row.requested, 40)}, ran {visible(row.observed)}"
        + (f" in {parts[row.Index]}" if parts[row.Index] else "")
        + f" ({_evidence(verdict, row.Index, _LINE_KERNELS, _LINE_WIDTH)})"
        for row in rows
    ]


def _parts(verdict: BackendVerdict) -> list[str]:
    """Return ``1 of 3`` for each row if other instances of its range ran another backend, otherwise an empty text."""
    all_of_name = verdict.ranges.groupby("range")["instances"].transform("sum").tolist()
    counts = zip(verdict.ranges["instances"].tolist(), all_of_name, strict=True)
    return [f"{count:,} of {total:,}" if count < total else "" for count, total in counts]


def _evidence(verdict: BackendVerdict, row: int, most: int, width: int) -> str:
    """List the first kernels of a row's evidence with their counts, and the number of others, within ``width``."""
    first, last = verdict.kernels["row"].searchsorted([row, row + 1]).tolist()
    kernels = verdict.kernels.iloc[first:last]
    shown = kernels.head(most)
    more = f" and {len(kernels) - len(shown):,} more" if len(kernels) > len(shown) else ""
    each = (width - len(more)) // most - 2 * (most > 1)
    counted = zip(shown["kernel"].tolist(), shown["count"].tolist(), strict=True)
    return ", ".join(_counted(kernel, count, each) for kernel, count in counted) + more


def _counted(kernel: str, count: int, width: int) -> str:
    """Return ``name x count``; the end of a long name is left out, because the start shows the kernel's purpose."""
    tail = f" x {count:,}"
    name, most = visible(short_name(kernel, 200)), max(width - len(tail), 8)
    return cut(name, most) + tail
