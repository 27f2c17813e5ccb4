"""An answer as text for a terminal, a log or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from nsysprof.breakdown import LAUNCH_BOUND_IDLE, Breakdown
from nsysprof.highlights import kernels_inside, top_rows
from nsysprof.kernels import short_name
from nsysprof.report import Report
from nsysprof.units import format_bandwidth, format_bytes, format_count, format_ns, format_share
from nsysprof.verify import Verification

_NAME_WIDTH = 48
_TOP_RANGES, _TOP_KERNELS = 4, 5
_MOST_DIFFERENCES = 20


def summary(breakdown: Breakdown, top: int = 20) -> str:
    """The whole answer: report, warnings, ledger, range tree (``top`` rows) and the top kernels of the top ranges."""
    parts = [
        *_report(breakdown.attribution.tables.report),
        *_warnings(breakdown),
        "",
        *_ledger(breakdown),
        "",
        *_ranges(breakdown, top),
        *_kernels(breakdown),
    ]
    return "\n".join(parts) + "\n"


def _report(report: Report) -> Iterator[str]:
    about = report.about
    made = f"nsys {about.nsys_version}" if about.nsys_version else "an nsys that does not state its version"
    lasted = f", {format_ns(about.duration_ns)} of recording" if about.duration_ns else ""
    yield f"{report.path}: report of {made}{lasted}"
    cuda = [gpu for gpu in about.gpus if gpu.is_cuda]
    for gpu in dict.fromkeys(_gpu(gpu) for gpu in cuda):
        count = sum(_gpu(other) == gpu for other in cuda)
        yield f"  GPU      {f'{count} x ' if count > 1 else ''}{gpu}"
    versions = [("driver", about.driver_version), ("CUDA", about.cuda_version), ("", about.os)]
    system = ", ".join(f"{label} {value}".strip() for label, value in versions if value)
    if system:
        yield f"  system   {system}"
    if about.command:
        yield f"  command  {_one_line(about.command, 100)}"


def _gpu(gpu: Any) -> str:
    facts = [
        f"{gpu.sm_count} SMs" if gpu.sm_count else None,
        format_bytes(gpu.memory_bytes) if gpu.memory_bytes else None,
        format_bandwidth(gpu.bandwidth_bytes_per_s) if gpu.bandwidth_bytes_per_s else None,
    ]
    known = ", ".join(fact for fact in facts if fact)
    return f"{gpu.name} ({known})" if known else str(gpu.name)


def _warnings(breakdown: Breakdown) -> Iterator[str]:
    for found in breakdown.attribution.tables.report.about.diagnostics:
        times = f" ({found.count} times)" if found.count > 1 else ""
        yield f"  nsys {found.severity}: {_one_line(found.text, 160)}{times}"
    for warning in breakdown.warnings:
        yield f"  warning  {warning}"


def _ledger(breakdown: Breakdown) -> Iterator[str]:
    totals, ledger = breakdown.totals, breakdown.ledger
    yield (
        f"{format_count(totals['kernels'])} kernels, {format_count(totals['memops'])} memory operations"
        + (
            f", {format_count(totals['graph_traces'])} CUDA graphs traced whole"
            if totals["graph_traces"]
            else ""
        )
        + f": {format_ns(totals['sum_ns'])} of GPU work; GPUs busy {format_ns(totals['busy_ns'])}"
        f" within a span of {format_ns(totals['span_ns'])}"
    )
    rows = [
        [row.fate, format_count(row.ops), format_ns(row.sum_ns), format_share(row.share)]
        for row in _rows(ledger)
        if row.ops
    ]
    rows.append(["total", format_count(totals["ops"]), format_ns(totals["sum_ns"]), format_share(1.0)])
    yield ""
    yield _table(["launched from", "ops", "sum", "share"], rows)


def _ranges(breakdown: Breakdown, top: int) -> Iterator[str]:
    merged = breakdown.merged
    if merged.empty:
        return
    shown = merged.iloc[top_rows(breakdown, top)]
    total = breakdown.totals["sum_ns"]
    rows, marked = [], False
    for row in _rows(shown):
        idle = 1 - row.busy_ns / row.span_ns if row.span_ns > 0 else 0.0
        mark = " *" if idle > LAUNCH_BOUND_IDLE and row.launches > row.instances else ""
        marked |= bool(mark)
        rows.append(
            [
                *([str(getattr(row, breakdown.by))] if breakdown.by else []),
                _one_line("  " * min(row.depth, 12) + row.name, _NAME_WIDTH),
                format_count(row.instances),
                format_count(row.launches),
                format_count(row.kernels),
                format_ns(row.cpu_ns),
                format_ns(row.span_ns),
                format_ns(row.busy_ns),
                format_share(row.busy_ns / row.span_ns) + mark if row.span_ns > 0 else "",
                format_share(row.sum_ns / total) if total else "",
                _spread(row),
            ]
        )
    head = [
        "range",
        "instances",
        "launches",
        "kernels",
        "CPU",
        "span",
        "busy",
        "busy/span",
        "share",
        "busy each",
    ]
    yield _table([*([breakdown.by] if breakdown.by else []), *head], rows, texts=2 if breakdown.by else 1)
    yield "All inclusive; share: of the report's op time; busy each: median ± half the IQR over n instances."
    if marked:
        yield f"* launch-bound: the GPU idles for more than {format_share(LAUNCH_BOUND_IDLE)} of the span, waiting."
    if len(merged) > len(shown):
        yield f"{len(merged) - len(shown):,} more ranges: --top {len(merged)}, or see ranges.csv"


def _spread(row: Any) -> str:
    if row.instances < 2:
        return ""
    return f"{format_ns(row.busy_median_ns)} ± {format_ns(row.busy_iqr_ns // 2)}"


def _kernels(breakdown: Breakdown) -> Iterator[str]:
    """The longest kernels of the longest outermost ranges, or of the report when it has no ranges."""
    merged = breakdown.merged
    roots = merged[(merged["parent"] < 0) & (merged["sum_ns"] > 0)]
    for row in roots.sort_values("busy_ns", ascending=False, kind="stable").index[:_TOP_RANGES].tolist():
        label = _one_line(merged["merged_path"][row], 80)
        yield from _top_kernels(f"Kernels in {label}", kernels_inside(breakdown, row))
    if roots.empty and len(breakdown.merged_kernels):
        rows = breakdown.merged_kernels.sort_values("sum_ns", ascending=False, kind="stable")
        yield from _top_kernels("Kernels", rows)


def _top_kernels(title: str, kernels: pd.DataFrame) -> Iterator[str]:
    total = int(kernels["sum_ns"].sum())
    rows = [
        [
            short_name(row.kernel, 70),
            row.family if row.math_unit == "unknown" else f"{row.family}, {row.math_unit}",
            format_count(row.ops),
            format_ns(row.sum_ns),
            format_share(row.sum_ns / total) if total else "",
        ]
        for row in _rows(kernels.head(_TOP_KERNELS).rename(columns={"count": "ops"}))
    ]
    yield ""
    yield f"{title}: {format_ns(total)} in {len(kernels)} kinds"
    yield _table(["kernel", "family", "count", "sum", "share"], rows, texts=2)


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows as named tuples; only for the few that are printed."""
    return frame.itertuples(index=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Columns of text, the first ``texts`` flush left and the others right, without trailing blanks."""
    align = ["left"] * texts + ["right"] * (len(head) - texts)
    body = tabulate(
        rows, headers=head, tablefmt="simple", colalign=align, disable_numparse=True, preserve_whitespace=True
    )
    return "\n".join(line.rstrip() for line in body.splitlines())


def _one_line(text: str, width: int) -> str:
    """The text on one line, shortened in the middle."""
    lead = len(text) - len(text.lstrip(" "))
    text = " " * lead + " ".join(text.split())
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def verification(result: Verification) -> str:
    """The result as lines of text: what was compared, the explained differences by reason, and the others."""
    lines = [
        f"Verified with nsys {result.nsys}: {result.equal:,} of {result.compared:,} ranges with GPU work are equal"
        " in span, first op and launches"
    ]
    lines += [f"  {count:,} differ as known ({reason})" for reason, count in sorted(result.explained.items())]
    lines += [f"  differs: {difference}" for difference in result.differences[:_MOST_DIFFERENCES]]
    if len(result.differences) > _MOST_DIFFERENCES:
        lines.append(f"  and {len(result.differences) - _MOST_DIFFERENCES:,} more")
    return "\n".join(lines) + "\n"
