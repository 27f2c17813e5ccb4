"""The chart of hot spots, ``hotspots.png``: a roofline if operators have shapes, otherwise the time of each kernel."""

from collections.abc import Iterator

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import BarPanel, Bars, Bubble, Ceiling, Heading, Message, Part, Plan, Roofs
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import COLOURS, INK, LESS, MORE, OTHERS, WHOLE
from nsysprof.core.text import shorten
from nsysprof.core.units import format_bandwidth, format_ns, format_share, scale_ns
from nsysprof.diagnosis.reached import COMPUTE, MEMORY
from nsysprof.hotspots.hotspots import LATENCY, OCCUPANCY, UNKNOWN, Hotspots
from nsysprof.hotspots.text import called, limit_words, spots_table, takes, whole_words
from nsysprof.results.table import TextTable

_MOST, _BARS, _NAMED, _TITLE = 24, 14, 8, 150
_LETTER = 0.0031  # of the axis: half the width of a letter
_LIMITS = {COMPUTE: MORE, MEMORY: LESS, OCCUPANCY: COLOURS["softmax"], LATENCY: WHOLE, UNKNOWN: OTHERS}


def plan_hotspots(answer: Hotspots) -> Plan:
    """Plan a roofline of the GPU with its kernels (area: time); without shapes or peaks, plan kernel times as bars."""
    if not answer.spots:
        return Message(Heading("No kernel runs in the steps", _subtitle(answer)), ["Nothing was launched in them."])
    placed = [each for each in answer.spots[:_MOST] if each.intensity > 0 and each.limit != UNKNOWN]
    if not placed or not answer.limits.bytes_per_s:
        return _bars(answer)
    slope = answer.limits.bytes_per_s / 1e12
    units = dict.fromkeys(each.unit for each in placed if each.unit)
    peaks = {unit: answer.limits.datasheet_flops(unit.split()[0].lower(), None) for unit in units}
    largest = max(each.share for each in placed)
    bubbles = [
        Bubble(
            each.intensity, each.flops_per_s / 1e12, each.share / largest, _LIMITS[each.limit],
            shorten(f"{called(answer, each)}, {format_share(each.share)}", 46) if at < _NAMED else "",
        )
        for at, each in enumerate(placed)
    ]  # fmt: skip
    ceilings = [
        Ceiling(peak / 1e12, f"{unit}: {peak / 1e12:,.4g} TFLOP/s", slope) for unit, peak in peaks.items() if peak
    ]
    seen = dict.fromkeys(each.limit for each in placed)
    notes = ["Area: time in the step. FLOPs and bytes: computed from operator shapes; peaks: from the data sheet"]
    heading = Heading(_title(answer), _subtitle(answer), [(each, _LIMITS[each]) for each in seen], notes)
    memory = f"memory {format_bandwidth(answer.limits.bytes_per_s)}"
    labels = ("FLOP per byte", "TFLOP/s", "", "")
    return Roofs(heading, ceilings, [(slope, memory)], labels, bubbles)


def _bars(answer: Hotspots) -> Bars:
    """The time of each kernel in a step, and the part that a reachable limit would take off, as far as it is known."""
    spots = answer.spots[:_BARS]
    divisor, unit = scale_ns(max(each.step_ns for each in spots))
    time = np.array([each.step_ns for each in spots]) / divisor
    saved = np.minimum(np.nan_to_num([each.gain_ns for each in spots]) / divisor, time)
    parts = [
        Part(limit, _LIMITS[limit], "white", mine, np.zeros(len(mine)), (time - saved)[mine])
        for limit in _LIMITS
        if len(mine := np.flatnonzero([each.limit == limit for each in spots]))
    ]
    some = np.flatnonzero(saved > 0)
    if len(some):
        parts.append(Part("can be saved", COLOURS["fill"], INK, some, (time - saved)[some], time[some]))
    axis = float(time.max()) * 1.35
    beside = [
        f"{format_ns(each.step_ns)}, {format_share(each.share)}" + f", in {each.some}" * bool(each.some)
        for each in spots
    ]
    inside = [(time[at] + (0.01 + _LETTER * len(text)) * axis, at, text, INK) for at, text in enumerate(beside)]
    heading = Heading(_title(answer), _subtitle(answer), [(part.label, part.colour) for part in parts])
    labels = [shorten(called(answer, each), 44) for each in spots]
    return Bars(heading, labels, None, [BarPanel(f"time in a step [{unit}]", 1, axis, parts, inside)])


def _title(answer: Hotspots) -> str:
    best = answer.best
    if best is None:
        return "No kernels"
    mean = " on average" * bool(best.some)
    saves = f"; a step can save {format_ns(best.gain_ns)}{mean}" if best.gain_ns >= 1_000 else ""
    first = f"{shorten(called(answer, best), 36)} {takes(best, whole_words(answer))}, "
    brief = "limit unknown" if best.limit == UNKNOWN else f"limited by {best.limit}"
    text = f"{first}{limit_words(best)}{saves}"
    return text if len(text) <= _TITLE else f"{first}{brief}{saves}"


def _subtitle(answer: Hotspots) -> str:
    place, name = answer.place, answer.attribution.trace.report.path.name
    steps = f"{place.steps:,} steps of {shorten(place.path, 50)} · " if place else ""
    return f"{steps}{f'{answer.gpu.name} · ' if answer.gpu else ''}{name}"


CHARTS: tuple[Chart[Hotspots], ...] = (Chart("hotspots.png", "What limits the longest kernels", plan_hotspots),)


def overview(answer: Hotspots) -> Overview:
    """The notebook view: the kernel to optimize first, and the longest kernels."""

    def details() -> Iterator[str | TextTable]:
        if answer.spots:
            yield spots_table(answer, 20)

    return Overview(_title(answer), CHARTS, details)
