"""Plan the chart ``forecast.png``: the critical path of a step, now and with the change, and all steps."""

from collections.abc import Iterator

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import BarPanel, Bars, Heading, Part, Plan
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import COLOURS, INK, OTHERS, WAITS, WHOLE
from nsysprof.core.text import one_line, plural, shorten
from nsysprof.core.units import format_ns, scale_ns
from nsysprof.forecast.forecast import Forecast
from nsysprof.forecast.path import WORDS
from nsysprof.forecast.text import change_words, facts_of, forecast_sentence, parts_table
from nsysprof.results.table import TextTable

_COLOURS = dict(zip(WORDS, (WHOLE, WAITS["communication"], WAITS["copy"], WAITS["code"], COLOURS["fill"]), strict=True))
_TITLE = 110
_LEAST = 0.004  # of the axis: how wide an interval shows at least
_LETTER = 0.0026  # of the axis: half the width of a letter
_INSIDE = 0.06  # of the axis: what a part needs for its time to be written on it


def plan_forecast(answer: Forecast) -> Plan:
    """Plan two bars and the interval of the forecast. The bars show the critical path of a median step, now and with
    the change.

    Each bar ends at the median step time; the forecast bar has an interval.
    """
    longest = max(sum(answer.before.ns), sum(answer.after.ns), answer.high_ns)
    divisor, unit = scale_ns(longest)
    axis = longest / divisor * 1.25
    parts, inside = [], []
    left = np.zeros(2)
    for at, name in enumerate(WORDS):
        ns = np.array([answer.before.ns[at], answer.after.ns[at]]) / divisor
        if not ns.any():
            continue
        parts.append(Part(name, _COLOURS[name], "white", np.arange(2), left.copy(), left + ns))
        light = name in ("compute", "communication", "copies")
        for row in range(2):
            if ns[row] > _INSIDE * axis:
                text = format_ns(ns[row] * divisor)
                inside.append((left[row] + ns[row] / 2, row, text, "white" if light else INK))
        left += ns
    rows = ["now", "then"]
    said = [format_ns(answer.base_ns), format_ns(answer.forecast_ns)]
    if len(answer.base) > 1:
        low, high = answer.low_ns / divisor, answer.high_ns / divisor
        middle, half = (low + high) / 2, max(high - low, _LEAST * axis) / 2
        ends = np.array([middle - half]), np.array([middle + half])
        parts.append(Part("interval", OTHERS, "white", np.array([2]), *ends))
        said[1] += f" ({format_ns(answer.low_ns)} to {format_ns(answer.high_ns)})"
        rows.append("interval")
    for row, text in enumerate(said):
        inside.append((left[row] + (0.01 + _LETTER * len(text)) * axis, row, text, INK))
    panel = BarPanel(f"critical path of a median step [{unit}]", 1, axis, parts, inside)
    legend = [(part.label, part.colour) for part in parts if part.label != "interval"]
    note = f"{answer.basis[:1].upper()}{answer.basis[1:]}. {answer.published[:1].upper()}{answer.published[1:]}"
    heading = Heading(title_of(answer), _subtitle(answer), legend, [note])
    return Bars(heading, rows, None, [panel], strong=[1], row=0.55)


def title_of(answer: Forecast) -> str:
    """State the change, and its effect on the step if the interval supports an effect."""
    return f"{shorten(one_line(answer.words, _TITLE), 70)}: {change_words(answer)}"


def _subtitle(answer: Forecast) -> str:
    interval = f" ({format_ns(answer.low_ns)} to {format_ns(answer.high_ns)})" if len(answer.base) > 1 else ""
    steps = f"{plural(len(answer.base), 'step')} of {shorten(one_line(answer.path, 60), 44)}"
    report = answer.attribution.trace.report.path.name
    return f"{format_ns(answer.base_ns)} → {format_ns(answer.forecast_ns)}{interval} · {steps} · {report}"


CHARTS: tuple[Chart[Forecast], ...] = (
    Chart("forecast.png", "Waits of a step, now and with the change", plan_forecast),
)


def overview(answer: Forecast) -> Overview:
    """Make the notebook view: the sentence, its basis, and the critical path."""

    def details() -> Iterator[str | TextTable]:
        yield forecast_sentence(answer)
        yield from facts_of(answer)[1:]  # the first is the headline
        yield parts_table(answer)

    return Overview(title_of(answer), CHARTS, details)
