"""Bar charts, ``kernel_counts.png`` and ``kernel_breakdown.png``: GPU ops and time per range, by kernel family."""

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import ChartRows, grouped
from nsysprof.analyze.range_text import outermost_cpu
from nsysprof.analyze.subject import group_colours, group_legend, group_notes, outside_share, subtitle
from nsysprof.charts.marks import BarPanel, Bars, Column, Heading, Part
from nsysprof.charts.palette import IDLE, INK, WHOLE, text_on
from nsysprof.core.arrays import Array, Ints
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import plural, printable, shorten, shorten_all
from nsysprof.core.units import format_count, format_ns, format_share, scale_ns
from nsysprof.kernels.classify import OTHER, OpGroups

_LAUNCHES = "launches (host calls)"
_IDLE_LABEL = "idle (span − busy): no GPU op of the range runs"
_LONGEST_CUT = 3.0  # times the longest bar of a single range
_MIN_SHARE_FOR_TEXT = 0.1  # of the share panel: narrower parts have no text


def plan_kernel_counts(breakdown: Breakdown, rows: ChartRows) -> Bars:
    """Plan a bar per row with the number of GPU ops by family, and a mark at the number of launches.

    Numbers are per instance if instances repeat.

    Rows that run the same ops share a bar (see `grouped`).
    """
    rows = grouped(rows) if rows.of == "ranges" else rows
    calls = rows.calls[:, None]
    launches = np.where(rows.launches >= 0, rows.launches / rows.calls, np.nan)
    legend = group_legend(rows.groups, (rows.ops.sum(axis=0) > 0).tolist())
    known = np.isfinite(launches).any()
    if known:
        legend.append((_LAUNCHES, INK))
    repeated = bool((rows.calls > 1).any())
    parts, ends = stack(rows.ops / calls, rows.groups)
    ends = np.fmax(ends, launches)
    cut, end = _cut(rows, ends)
    if cut is not None:
        launches = np.where(np.arange(len(rows)) == cut, np.nan, launches)
    panel = BarPanel(
        label=f"GPU ops per {rows.unit}" if repeated else "GPU ops",
        share=1.0,
        end=end * 1.03 or 1,
        parts=parts,
        marks=(_LAUNCHES, launches) if known else None,
        whole=True,
        cut=cut,
    )
    notes = _count_notes(breakdown, rows, repeated)
    return Bars(
        heading=Heading(counts_title(rows), subtitle(breakdown), legend, notes),
        labels=rows.labels,
        rest=rows.rest,
        panels=[panel],
        columns=_count_columns(rows, launches),
    )


def _count_columns(rows: ChartRows, launches: Array) -> list[Column]:
    """Make the columns of numbers per instance, without columns that are zero or one in all rows."""
    if rows.of == "kernels":
        return [Column("count", list(map(format_count, rows.ops.sum(axis=1).tolist()))), *_medians(rows)]
    out = [Column("kernels", [_number(count) for count in (rows.kernels / rows.calls).tolist()])]
    for heading, families in (("copies, sets", ("memcpy", "memset")), ("graphs", ("graph",))):
        values = rows.ops[:, [rows.groups.place(family) for family in families]].sum(axis=1) / rows.calls
        if values.any():
            out.append(Column(heading, [_number(value) for value in values.tolist()]))
    if np.isfinite(launches).any():
        out.append(Column("launches", [_number(value) for value in launches.tolist()]))
    if (rows.calls > 1).any():
        out.append(Column(f"{rows.unit.split()[0]}s", [f"× {count:,}" for count in rows.calls.tolist()]))
    return out


def _number(value: float) -> str:
    if not np.isfinite(value):
        return ""
    return format_count(round(value)) if abs(value - round(value)) < 0.05 or value >= 100 else f"{value:.1f}"


def _count_notes(breakdown: Breakdown, rows: ChartRows, repeated: bool) -> list[str]:
    notes = group_notes(rows.groups)
    if rows.of == "kernels":
        notes.append("no range contains GPU work, so the bars show the kernels of the whole report, longest first")
    elif outside_share(breakdown) > 0:
        notes.append("the bars exclude GPU work outside ranges")
    if repeated and rows.rest is not None:
        notes.append("the last row averages the other ranges' instances")
    if rows.ops[:, rows.groups.place("graph")].any():
        notes.append("a CUDA graph recorded as a whole counts as one GPU op")
    return notes


def counts_title(rows: ChartRows) -> str:
    """State which ranges run the most and the fewest kernels per instance."""
    named = rows.named
    if rows.of == "kernels":
        count = rows.ops[named].sum(axis=1)
        first, times = int(named[np.argmax(count)]), plural(int(count.max()), "time")
        ties = int((count == count.max()).sum())
        lead = f"{ties} kernels run {times} each" if ties > 1 else f"{rows.names[first]} runs {times}"
        return f"{lead}, more often than any other"
    per = f" per {rows.unit.split()[0]}" if (rows.calls[named] > 1).any() else ""
    kernels = rows.kernels[named] / rows.calls[named]
    what = "kernel"
    if not kernels.any():
        kernels, what = rows.ops[named].sum(axis=1) / rows.calls[named], "GPU operation"
    most, least = kernels.max(), kernels.min()
    first, last = int(named[np.argmax(kernels)]), int(named[np.argmin(kernels)])
    ending = "s" if _number(most) != "1" else ""
    if len(named) == 1:
        return f"{rows.names[first]} runs {_number(most)} {what}{ending}{per}"
    if _number(most) == _number(least):
        return f"All {len(named)} ranges run {_number(most)} {what}{ending}{per}"
    where = [
        f"{rows.names[row]}{f' and {many - 1} more' if many > 1 else ''}"
        for row, many in ((first, int((kernels == most).sum())), (last, int((kernels == least).sum())))
    ]
    return f"{_number(most)} {what}{ending}{per} in {where[0]}, {_number(least)} in {where[1]}"


def plan_kernel_breakdown(breakdown: Breakdown, rows: ChartRows) -> Bars:
    """Plan two bars per row. The first shows busy time on a common axis. The second shows busy and idle time as shares
    of the row's span.
    """
    by_family, scaled = _scaled_to_busy(rows)
    legend = group_legend(rows.groups, (rows.sum_ns.sum(axis=0) > 0).tolist())
    if rows.idle_ns.any():
        legend.append((_IDLE_LABEL, IDLE))
    panels = [_totals(rows, by_family)]
    if rows.of == "ranges":
        panels.append(_shares(rows, by_family))
    notes = _time_notes(breakdown, rows, scaled)
    return Bars(
        heading=Heading(breakdown_title(rows), subtitle(breakdown), legend, notes),
        labels=rows.labels,
        rest=rows.rest,
        panels=panels,
        columns=_time_columns(rows),
    )


def _totals(rows: ChartRows, by_family: Array) -> BarPanel:
    divisor, unit = scale_ns(int(rows.busy_ns.max(initial=0)))
    parts, ends = stack(by_family / divisor, rows.groups)
    cut, end = _cut(rows, ends)
    return BarPanel(
        label=f"busy time of all instances ({unit})" if rows.of == "ranges" else f"op time ({unit})",
        share=0.45,
        end=end * 1.02 or 1,
        parts=parts,
        cut=cut,
    )


def _cut(rows: ChartRows, ends: Array) -> tuple[int | None, float]:
    """The end of the axis: after the longest bar. The bar of the row for all others may exceed the axis, and says so.

    So the bars of single ranges stay readable. Returned with the number of the row that exceeds the axis, or None.
    """
    longest = float(ends[rows.named].max())
    if rows.rest is not None and ends[rows.rest] > _LONGEST_CUT * longest > 0:
        return rows.rest, longest
    return None, float(ends.max())


def _shares(rows: ChartRows, by_family: Array) -> BarPanel:
    idle = rows.idle_ns
    whole = np.maximum(rows.busy_ns + idle, 1)
    shares = by_family / whole[:, None]
    parts, ends = stack(shares, rows.groups)
    some = np.flatnonzero(idle)
    if len(some):
        parts.append(Part("idle", IDLE, "#b0b0b0", some, ends[some], np.ones(len(some))))
    middle, colours = np.cumsum(shares, axis=1) - shares / 2, group_colours(rows.groups)
    written = zip(*(at.tolist() for at in np.nonzero(shares >= _MIN_SHARE_FOR_TEXT)), strict=True)
    return BarPanel(
        label=f"share of the range's own {'span' if idle.any() else 'busy time'}",
        share=0.55,
        end=1,
        parts=parts,
        inside=[
            (float(middle[row, part]), row, format_share(shares[row, part]), text_on(colours[part]))
            for row, part in written
        ],
        percent=True,
    )


def _scaled_to_busy(rows: ChartRows) -> tuple[Array, int]:
    """Scale the GPU op time per family to the busy time; with the number of rows in which that makes a difference."""
    total = rows.sum_ns.sum(axis=1)
    factor = np.where(total > 0, rows.busy_ns / np.maximum(total, 1), 0.0)
    return np.maximum(rows.sum_ns * factor[:, None], 0.0), int((rows.busy_ns < total).sum())


def _time_columns(rows: ChartRows) -> list[Column]:
    out = [Column("busy" if rows.of == "ranges" else "time", [format_ns(ns) for ns in rows.busy_ns.tolist()])]
    if rows.of == "kernels":
        shares = (rows.busy_ns / max(rows.owned_ns, 1)).tolist()
        counts = [format_count(count) for count in rows.ops.sum(axis=1).tolist()]
        return [*out, Column("share", list(map(format_share, shares))), Column("count", counts), *_medians(rows)]
    if rows.idle_ns.any():
        pairs = zip(rows.idle_ns.tolist(), rows.span_ns.tolist(), strict=True)
        out.append(Column("idle", [format_ns(ns) if span else "" for ns, span in pairs]))
    if (rows.calls[rows.named] > 1).any():
        pairs = zip(rows.calls.tolist(), rows.call_ns.tolist(), strict=True)
        texts = [f"{count:,} × {format_ns(ns)}" if ns else "" for count, ns in pairs]
        out.append(Column(f"{rows.unit.split()[0]}s × median busy", texts))
    return out


def _medians(rows: ChartRows) -> list[Column]:
    texts = [format_ns(ns) if ns else "" for ns in rows.call_ns.tolist()]
    return [Column("median", texts)] if any(texts) else []


def _time_notes(breakdown: Breakdown, rows: ChartRows, scaled: int) -> list[str]:
    notes = group_notes(rows.groups)
    if rows.of == "kernels":
        return [*notes, "no range contains GPU work, so the bars show kernels; op time: sum of kernel durations"]
    if scaled:
        notes.append(
            f"GPU ops overlap in {scaled:,} of {len(rows):,} rows: the parts of these bars are "
            "scaled to add up to busy time"
        )
    if (rows.busy_ns > rows.span_ns)[rows.span_ns > 0].any():
        notes.append("busy time is summed over GPUs; rows with more busy time than span show no idle time")
    if (rows.span_ns == 0).any():
        notes.append("rows without idle time show shares of busy time")
    if outside_share(breakdown) > 0:
        notes.append("the bars exclude GPU work outside ranges")
    notes += [warning for warning in breakdown.warnings if "--skip 1" in warning][:1]
    return notes


def breakdown_title(rows: ChartRows) -> str:
    """State which range or kernel takes longest, its share of the time, and its largest parts."""
    named = rows.named
    busy = rows.busy_ns[named]
    first = int(named[np.argmax(busy)])
    ties = int((busy == busy.max()).sum())
    total = int(rows.sum_ns[first].sum())
    share = format_share(total / rows.owned_ns if rows.owned_ns > 0 else float("nan"))
    if rows.owned_ns <= 0 or not rows.busy_ns.any():
        none = f"None of the {len(named)} {rows.of} takes GPU time"
        return none if len(named) > 1 else "The GPU work takes no time"
    if rows.of == "kernels":
        text = f"{rows.names[first]} takes {share} of {format_ns(rows.owned_ns)} op time"
        return f"Each of the top {ties} kernels takes {share} of op time" if ties > 1 else text
    parts = _parts(rows.sum_ns[first], total, rows.groups)
    if ties > 1:
        lead = f"Each of the top {ties} ranges keeps the GPU busy for {format_ns(int(busy.max()))}"
        return f"{lead}, first {rows.names[first]}: {parts}"
    whole = "all" if total == rows.owned_ns else share
    return f"{rows.names[first]} takes {whole} of GPU op time in ranges: {parts}"


def _parts(sums: Ints, total: int, groups: OpGroups) -> str:
    """List the at most three largest groups that make up most of the time, groups with their own name first."""
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


def stack(values: Array, groups: OpGroups) -> tuple[list[Part], Array]:
    """Make a stacked bar for each row of ``values``, which has a column per group; return the parts and the end of each
    bar.
    """
    right = np.cumsum(values, axis=1)
    left = right - values
    parts = []
    for number, (label, colour) in enumerate(zip(groups.labels, group_colours(groups), strict=True)):
        some = np.flatnonzero(values[:, number] > 0)
        if len(some):
            parts.append(Part(label, colour, "white", some, left[some, number], right[some, number]))
    ends: Array = right[:, -1] if len(values) else np.empty(0)
    return parts, ends


_LABEL = 46  # characters
_MAX_ROWS = 60


def plan_cpu_totals(breakdown: Breakdown, top: int) -> Bars:
    """Plan bars for the ranges with the most CPU time: inclusive and exclusive CPU time."""
    merged, rows = _longest(breakdown, top, "cpu_ns")
    whole, own, total = rows["cpu_ns"], rows["exclusive_cpu_ns"], outermost_cpu(merged)
    most = int(merged["exclusive_cpu_ns"].argmax())
    first = shorten(merged.texts("merged_path").tolist()[most], 2 * _LABEL)
    columns = [
        Column("CPU", list(map(format_ns, whole.tolist()))),
        Column("share", [format_share(ns / total) if total else "" for ns in whole.tolist()]),
        Column("itself", list(map(format_ns, own.tolist()))),
    ]
    share = format_share(merged["exclusive_cpu_ns"][most] / total) if total else "None"
    title = f"{share} of the CPU time in ranges is spent in {first} itself"
    parts = [("itself", WHOLE, np.zeros_like(own), own), ("in inner ranges", IDLE, own, whole)]
    return _bars(breakdown, title, rows, "CPU time of all instances", parts, columns)


def plan_cpu_medians(breakdown: Breakdown, top: int) -> Bars:
    """Plan the median CPU time per instance, with a mark for the longest instance."""
    _, rows = _longest(breakdown, top, "cpu_median_ns")
    median = rows["cpu_median_ns"]
    times = {name: rows[f"cpu_{name}_ns"] for name in ("median", "min", "max")}
    columns = [
        Column("instances", list(map(format_count, rows["instances"].tolist()))),
        *(Column(name, list(map(format_ns, each.tolist()))) for name, each in times.items()),
    ]
    far = int((times["max"] - median).argmax())
    first = shorten(rows.texts("merged_path").tolist()[far], 2 * _LABEL)
    title = f"The longest instance of {first} takes {columns[3].texts[far]}, the median one {columns[1].texts[far]}"
    if not (times["max"] > median).any():
        title = f"One instance of {first} takes {columns[1].texts[far]} of CPU time"
    parts = [("median", WHOLE, np.zeros_like(median), median)]
    label = "CPU time per instance"
    return _bars(breakdown, title, rows, label, parts, columns, times["max"])


def _longest(breakdown: Breakdown, top: int, by: str) -> tuple[ColumnTable, ColumnTable]:
    """The rows of ``merged``, and the rows with the largest values of a column."""
    merged = breakdown.columns("merged")
    return merged, merged.take(np.argsort(-merged[by], kind="stable")[: min(top, _MAX_ROWS)])


def _bars(
    breakdown: Breakdown,
    title: str,
    rows: ColumnTable,
    label: str,
    parts: list[tuple[str, str, Ints, Ints]],
    columns: list[Column],
    most: Ints | None = None,
) -> Bars:
    """Bars with a part per name, colour, left and right end in ns, and marks at ``most``."""
    ends = parts[-1][3] if most is None else most
    divisor, unit = scale_ns(int(ends.max(initial=0)))
    legend = [(name, colour) for name, colour, *_ in parts] + [("longest", INK)] * (most is not None)
    more = len(breakdown.columns("merged")) - len(rows)
    panel = BarPanel(
        label=f"{label} ({unit})",
        share=1.0,
        end=float(ends.max(initial=0)) / divisor * 1.03 or 1,
        parts=[
            Part(name, colour, "white", some, left[some] / divisor, right[some] / divisor)
            for name, colour, left, right in parts
            if len(some := np.flatnonzero(right > left))
        ],
        marks=None if most is None else ("longest", most / divisor),
    )
    notes = ["no range has GPU work"] + [f"{plural(more, 'more range')}: see table ranges"] * (more > 0)
    return Bars(
        heading=Heading(title, subtitle(breakdown), legend, notes),
        labels=shorten_all(rows.texts("merged_path").tolist(), _LABEL),
        rest=None,
        panels=[panel],
        columns=columns,
    )
