"""Describe the subject of a chart: its report as subtitle, and its groups of GPU ops as colours and legend."""

from collections.abc import Sequence

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.attribute import MIGRATED
from nsysprof.charts.palette import COLOURS
from nsysprof.core.text import plural, printable, shorten
from nsysprof.core.units import format_share
from nsysprof.kernels.classify import LAST, OpGroups
from nsysprof.trace.trace import recorded_as


def subtitle(breakdown: Breakdown) -> str:
    """Describe the report of a chart: its file, GPUs, nsys version and size."""
    report, totals = breakdown.attribution.trace.report, breakdown.totals
    used = sorted({device.gpu for device in breakdown.attribution.trace.devices if device.gpu is not None})
    names = [report.about.gpus[gpu].name for gpu in used] or [gpu.name for gpu in report.about.cuda_gpus]
    many = {name: f"{names.count(name)} × " if names.count(name) > 1 else "" for name in names}
    gpus = [f"{count}{name}" for name, count in many.items()]
    kernels, ranges = totals["kernels"], totals["ranges"]
    trace = breakdown.attribution.trace
    by = recorded_as(trace, trace.ranges.kind)
    parts = [
        shorten(report.path.name, 60),
        shorten(", ".join(gpus), 60) if gpus else "GPU not recorded",
        f"{report.reader.recorder} {printable(report.about.nsys_version or 'version not recorded')}",
        plural(kernels, "kernel"),
        plural(ranges, "range" if by == report.reader.annotations else f"{by} range"),
    ]
    unowned = outside_share(breakdown)
    if ranges and unowned > 0:
        parts.append(f"{format_share(unowned)} of GPU op time is outside all ranges")
    return " · ".join(parts)


def group_colours(groups: OpGroups) -> list[str]:
    """Choose a colour per group: the colours of the families, or the first colours for kernel names."""
    if not groups.by_name:
        return list(COLOURS.values())
    kernels = [colour for family, colour in COLOURS.items() if family not in LAST]
    return [*kernels[: len(groups.labels) - len(LAST)], *(COLOURS[family] for family in LAST)]


def group_legend(groups: OpGroups, present: Sequence[bool]) -> list[tuple[str, str]]:
    """List the legend entries, ``(label, colour)``, of the ``present`` groups."""
    entries = zip(map(printable, groups.labels), group_colours(groups), present, strict=True)
    return [(label, colour) for label, colour, shown in entries if shown]


def group_notes(groups: OpGroups) -> list[str]:
    """Explain the colours in a footnote if they are not the usual colours of families."""
    return ["each kernel name has its own colour, because most kernel families are unknown"] if groups.by_name else []


def outside_share(breakdown: Breakdown) -> float:
    """Find the share of the report's GPU op time that no range owns, excluding unified-memory migrations."""
    attribution = breakdown.attribution
    total = sum(row.sum_ns for row in attribution.ledger) - attribution.ledger[MIGRATED].sum_ns
    owned = int(attribution.exclusive_sum_ns.sum())
    return (total - owned) / total if total > 0 else 0.0
