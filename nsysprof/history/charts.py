"""Plan the chart of a history, ``history.png``: step times over runs with their levels, and labelled changes."""

from collections.abc import Iterator

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import Heading, Plan, Series, SeriesPanel
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import LESS, MEMORY, MORE, OTHERS, WHOLE
from nsysprof.core.text import one_line, shorten
from nsysprof.core.units import format_share
from nsysprof.history.history import PROGRAM, History
from nsysprof.history.history import Series as RunSeries
from nsysprof.history.text import (
    change_text,
    headline,
    parts_text,
    path_name,
    ratio_text,
    run_name,
    runs_table,
    unit_of,
)
from nsysprof.results.table import TextTable

MAX_PANELS, _NAME, _PART, _TITLE = 3, 70, 44, 150
_COLOURS = {"run": MEMORY, "first run of a slower level": MORE, "first run of a faster level": LESS,
            "change of the machine": WHOLE, "undone by the next runs": OTHERS}  # fmt: skip


def plan_history(answer: History) -> Plan:
    """Plan the series with changes first, longest first; if nothing changed, only the series with the newest run."""
    order = sorted(answer.series, key=lambda each: (-bool(each.changes), -len(each.runs)))
    drawn = order[:MAX_PANELS] if order[0].changes else answer.series[:1]
    drawn = [each for each in drawn if len(each.runs) > 2] or drawn[:1]
    panels = [_panel(answer, each) for each in drawn]
    used = {int(code) for panel in panels for code in panel.colour}
    legend = [entry for code, entry in enumerate(_COLOURS.items()) if code in used]
    more = len(answer.series) - len(drawn)
    notes = [f"{more:,} series more: see history.csv"] if more else []
    title = headline(answer)
    return Series(
        Heading(shorten(title[0].upper() + title[1:], _TITLE), _subtitle(answer, drawn[0]), legend, notes), panels
    )


CHARTS: tuple[Chart[History], ...] = (
    Chart("history.png", "Step times over runs, with levels and changes", plan_history),
)


def _subtitle(answer: History, series: RunSeries) -> str:
    first, last = answer.runs[series.runs[0]], answer.runs[series.runs[-1]]
    noise = f"runs of one level differ by {format_share(series.levels.noise)}"
    gpu = f" · {last.machine['GPU']}" if "GPU" in last.machine else ""
    return f"{one_line(first.name, 34)} to {one_line(last.name, 34)}{gpu} · {noise}"


def _panel(answer: History, series: RunSeries) -> SeriesPanel:
    number = np.array(series.runs) + 1
    times = np.array([each.median_ns for each in series.times], np.int64)
    colour = np.zeros(len(number), np.uint8)
    colour[series.levels.odd] = 4
    names = []
    place = {row: at for at, row in enumerate(series.runs)}
    for change in series.changes:
        at = place[change.run]
        colour[at] = 3 if change.cause != PROGRAM else 1 if change.ratio > 1 else 2
        what = ", ".join(change.machine) or change.cause if change.cause != PROGRAM else parts_text(change, 1)
        what = f", {one_line(what, _PART)}" if what else ""
        text = f"{run_name(answer, change.run)}: {ratio_text(change)}{what}"
        names.append((float(number[at]), float(times[at]), shorten(text, _NAME), [*_COLOURS.values()][colour[at]]))
    title = f"{path_name(series)}: median {unit_of(series)} of each run"
    return SeriesPanel(
        shorten(title, _TITLE), number, times, colour, times, colour, [*_COLOURS.values()], _level(series), names,
        noun="run", marks=[name[0] - 0.5 for name in names],
    )  # fmt: skip


def _level(series: RunSeries) -> tuple[np.ndarray, np.ndarray]:
    """The levels as lines, nan between two of them."""
    of, number = series.levels.of(len(series.runs)), np.array(series.runs) + 1.0
    value = np.exp(series.levels.fitted(len(series.runs)))
    between = np.where(np.diff(of, append=of[-1]) > 0, np.nan, value)
    x = np.column_stack([number - 0.5, number + 0.5, number + 0.5])
    return x.ravel(), np.column_stack([value, value, between]).ravel()


def overview(answer: History) -> Overview:
    """The notebook view: the changes, and the newest runs."""

    def details() -> Iterator[str | TextTable]:
        yield from (change_text(answer, *each) for each in answer.changes)
        yield from (runs_table(answer, each, 20) for each in answer.series[:1])

    return Overview(headline(answer), CHARTS, details)
