"""``kernel_breakdown.png``: busy time per range by kernel family, and how long the GPU waited."""

from __future__ import annotations

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows
from nsysprof.analyze.stacks import add_part, stack, texts_inside
from nsysprof.analyze.subject import group_legend, group_notes, outside_share, subtitle
from nsysprof.charts.marks import BarPanel, Bars, Column, Heading, Numbers
from nsysprof.charts.palette import IDLE
from nsysprof.core.intervals import Ints
from nsysprof.core.labels import printable
from nsysprof.core.units import format_count, format_ns, format_share, scale_ns
from nsysprof.kernels.groups import OTHER, OpGroups

_CUT = 3.0  # times the longest bar of a single range
_READABLE = 0.1  # of the share panel: narrower parts have no text
_IDLE_LABEL = "idle (span − busy): none of the range's work runs"


def plan_kernel_breakdown(breakdown: Breakdown, rows: ChartRows) -> Bars:
    """The rows twice: busy time on a common axis, and busy and idle time as shares of each row's own span."""
    by_family, scaled = _scaled_to_busy(rows)
    legend = group_legend(rows.groups, (rows.sum_ns.sum(axis=0) > 0).tolist())
    if rows.idle_ns.any():
        legend.append((_IDLE_LABEL, IDLE))
    panels = [_totals(rows, by_family)]
    if rows.of == "ranges":
        panels.append(_shares(rows, by_family))
    return Bars(
        heading=Heading(title(rows), subtitle(breakdown), legend, _notes(breakdown, rows, scaled)),
        labels=rows.labels,
        rest=rows.rest,
        panels=panels,
        columns=_columns(rows),
    )


def _totals(rows: ChartRows, by_family: Numbers) -> BarPanel:
    """Bars of busy time. The axis ends after the longest one. A last row that stands for many more may run out of it,
    and says so: the bars of single ranges stay readable.
    """
    divisor, unit = scale_ns(int(rows.busy_ns.max(initial=0)))
    parts, ends = stack(by_family, rows.groups, divisor)
    longest = float(ends[rows.named].max())
    cut = rows.rest is not None and bool(ends[rows.rest] > _CUT * longest > 0)
    return BarPanel(
        label=f"busy time of all instances ({unit})" if rows.of == "ranges" else f"op time ({unit})",
        share=0.45,
        end=(longest if cut else float(ends.max())) * 1.02 or 1,
        parts=parts,
        cut=len(rows) - 1 if cut else None,
    )


def _shares(rows: ChartRows, by_family: Numbers) -> BarPanel:
    idle = rows.idle_ns
    whole = np.maximum(rows.busy_ns + idle, 1)
    shares = by_family / whole[:, None]
    parts, ends = stack(shares, rows.groups)
    parts += add_part(ends, np.where(idle > 0, 1.0, ends), IDLE, "idle")
    return BarPanel(
        label=f"share of the range's own {'span' if idle.any() else 'busy time'}",
        share=0.55,
        end=1,
        parts=parts,
        inside=texts_inside(shares, rows.groups, format_share, _READABLE),
        percent=True,
    )


def _scaled_to_busy(rows: ChartRows) -> tuple[Numbers, int]:
    """Op time per family as parts of the busy time, and for how many rows that made a difference."""
    total = rows.sum_ns.sum(axis=1)
    factor = np.where(total > 0, rows.busy_ns / np.maximum(total, 1), 0.0)
    return np.maximum(rows.sum_ns * factor[:, None], 0.0), int((rows.busy_ns < total).sum())


def _columns(rows: ChartRows) -> list[Column]:
    out = [Column("busy" if rows.of == "ranges" else "time", [format_ns(ns) for ns in rows.busy_ns.tolist()])]
    if rows.of == "kernels":
        return [*out, Column("count", [format_count(count) for count in rows.ops.sum(axis=1).tolist()])]
    if rows.idle_ns.any():
        texts = [format_ns(ns) if span else "" for ns, span in _pairs(rows.idle_ns, rows.span_ns)]
        out.append(Column("idle", texts))
    if (rows.calls[rows.named] > 1).any():
        pairs = _pairs(rows.calls, rows.call_ns)
        texts = [f"{count:,} × {format_ns(ns)}" if ns else "" for count, ns in pairs]
        out.append(Column(f"{rows.unit.split()[0]}s × median busy", texts))
    return out


def _pairs(one: Ints, other: Ints) -> list[tuple[int, int]]:
    return list(zip(one.tolist(), other.tolist(), strict=True))


def _notes(breakdown: Breakdown, rows: ChartRows, scaled: int) -> list[str]:
    notes = group_notes(rows.groups)
    if rows.of == "kernels":
        return [*notes, "no range holds GPU work, so the bars are kernels; op time adds up durations"]
    if scaled:
        notes.append(
            f"ops overlap in {scaled:,} of {len(rows):,} rows: what they consist of is scaled to the busy time"
        )
    if (rows.busy_ns > rows.span_ns)[rows.span_ns > 0].any():
        notes.append("busy time is added over GPUs and can exceed the span; no idle time is shown there")
    if (rows.span_ns == 0).any():
        notes.append("a row without idle time has no span of its own: its shares are of its busy time")
    if outside_share(breakdown) > 0:
        notes.append("GPU work outside of ranges is not in the bars")
    notes += [warning for warning in breakdown.warnings if "--skip 1" in warning][:1]
    return notes


def title(rows: ChartRows) -> str:
    """The finding: what takes longest, how much of all that is, and what it consists of."""
    named = rows.named
    busy = rows.busy_ns[named]
    first = int(named[np.argmax(busy)])
    ties = int((busy == busy.max()).sum())
    total = int(rows.sum_ns[first].sum())
    share = format_share(total / rows.owned_ns if rows.owned_ns > 0 else float("nan"))
    if rows.owned_ns <= 0 or not rows.busy_ns.any():
        return (
            f"None of the {len(named)} {rows.of} takes any time"
            if len(named) > 1
            else "The GPU work takes no time"
        )
    if rows.of == "kernels":
        text = f"{rows.names[first]} takes {share} of {format_ns(rows.owned_ns)} op time"
        return f"{ties} kernels lead with {share} of op time each" if ties > 1 else text
    parts = _parts(rows.sum_ns[first], total, rows.groups)
    if ties > 1:
        lead = f"{ties} ranges lead with {format_ns(int(busy.max()))} busy time each"
        return f"{lead}, first {rows.names[first]}: {parts}"
    whole = "all" if total == rows.owned_ns else share
    return f"{rows.names[first]} takes {whole} of the op time in ranges: {parts}"


def _parts(sums: Ints, total: int, groups: OpGroups) -> str:
    """The largest groups, until they make up most of the time; three at most, those with a name of their own first."""
    unnamed = (np.arange(len(sums)) == groups.place(OTHER)) & groups.by_name
    order = np.lexsort((-sums, unnamed))
    out: list[str] = []
    covered = 0
    for number in order[:3].tolist():
        if sums[number] <= 0 or (covered >= 0.8 * total and out):
            break
        share = "all" if sums[number] == total else format_share(int(sums[number]) / total)
        out.append(f"{share} {'' if out else 'of it '}{printable(groups.labels[number])}")
        covered += int(sums[number])
    return ", ".join(out)
