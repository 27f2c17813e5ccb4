"""Plan the chart of steps, ``steps.png``: step times in order and as a distribution, with labels at slow steps."""

from collections.abc import Iterator

import numpy as np

from nsysprof.charts.chart import Chart
from nsysprof.charts.marks import Heading, Message, Plan, Series, SeriesPanel
from nsysprof.charts.notebook import Overview
from nsysprof.charts.palette import FAINT, MEMORY, TINTS, WAITS
from nsysprof.core.arrays import Bytes, Index, Ints
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import shorten
from nsysprof.core.units import format_ns, format_share
from nsysprof.results.table import TextTable
from nsysprof.statistics.judge import CLASSES, CLOCK, FAST, LOST, SLOW_ONES, WARM_UP
from nsysprof.steps.findings import findings, headline, join_words_of
from nsysprof.steps.steps import Chain, Steps
from nsysprof.steps.text import paths_table, place_of, slow_table

MAX_PANELS, _MAX_NAMES, _MAX_TRIED = 3, 4, 60
_COLUMNS = 1200  # of many steps the lowest and the highest of each
_PATH, _NAME, _TITLE = 90, 70, 150
_OTHER_KINDS = {WARM_UP: TINTS[0], FAST: TINTS[2], CLOCK: TINTS[3], LOST: TINTS[7]}


def plan_steps(answer: Steps) -> Plan:
    """Plan the paths with the most time in slow steps or, if no step is slow, the path with the most time."""
    report = answer.attribution.trace.report
    if not answer.chains:
        sentence = "The chosen ranges launched no GPU work, so there are no steps to time."
        return Message(Heading("No step ran on a GPU", str(report.path)), [sentence])

    def excess(chain: Chain) -> float:
        slow = np.isin(chain.judgement.of, SLOW_ONES)
        return float((chain.span - chain.judgement.expected)[slow].sum())

    slow = [*filter(excess, sorted(answer.ranked, key=excess, reverse=True))]
    drawn = slow[:MAX_PANELS] or answer.ranked[:1]
    panels, legend = [], {"typical": MEMORY, "expected": FAINT}
    for chain in drawn:
        colours, names = _colours(answer, chain)
        legend |= dict(zip(names, colours, strict=True))
        panels.append(_panel(answer, chain, colours, names))
    more = len(answer.chains) - len(drawn)
    notes = [f"{more:,} paths more: see steps.csv"] if more else []
    return Series(Heading(title_of(answer), _subtitle(answer, drawn[0]), [*legend.items()], notes), panels)


CHARTS: tuple[Chart[Steps], ...] = (Chart("steps.png", "Step times and their distribution", plan_steps),)


def title_of(answer: Steps) -> str:
    """State the number of slow steps, and the largest finding, in a sentence."""
    text = headline(answer)
    text = f"{text[0].upper()}{text[1:]}"
    first = next(iter(findings(answer)), None)
    if first is None or first.kind not in {CLASSES[code] for code in SLOW_ONES}:
        return text
    every = sum(len(chain.of(*SLOW_ONES)) for chain in answer.chains)
    some = "" if len(first.steps) == every else f" in {len(first.steps):,} of them"
    typical = format_ns(first.excess_ns / len(first.steps))
    most = join_words_of(first.cause, first.culprit)
    return shorten(f"{text}: +{typical}{some}, most of all {most}", _TITLE)


def _subtitle(answer: Steps, chain: Chain) -> str:
    report, judged = answer.attribution.trace.report, chain.judgement
    rule = (
        f"{judged.doubt} to judge" if judged.doubt else f"slow = more than {judged.limit:.2f} times the expected time"
    )
    median = format_ns(float(np.median(chain.whole)))
    return f"{len(chain.whole):,} steps of {shorten(chain.path, 50)}, median {median}, {rule} · {report.path.name}"


def _colours(answer: Steps, chain: Chain) -> tuple[list[str], list[str]]:
    """The colours of the steps of a chain and what they mean: typical, other kinds, and slow ones by their cause."""
    of, rows = chain.judgement.of, answer.columns("steps").take(chain.rows)
    some = [code for code in _OTHER_KINDS if (of == code).any()]
    slow_rows = rows.take(np.isin(of, SLOW_ONES) & ~np.isnan(rows["excess_ns"]))
    causes = zip(slow_rows["cause"].tolist(), slow_rows["activity"].tolist(), strict=True)
    slow = list(dict.fromkeys(_group(*each) for each in causes))
    colours = [MEMORY, *(_OTHER_KINDS[code] for code in some), *(WAITS[name] for name in slow)]
    return colours, ["typical", *(CLASSES[code] for code in some), *(f"slow: {name}" for name in slow)]


def _group(cause: str, activity: str) -> str:
    return activity if cause == "host" else cause


def _panel(answer: Steps, chain: Chain, colours: list[str], names: list[str]) -> SeriesPanel:
    rows = answer.columns("steps").take(chain.rows)
    place = {name: code for code, name in enumerate(names)}
    colour = np.zeros(len(rows), np.uint8)
    each = zip(chain.judgement.of.tolist(), rows["cause"], rows["activity"], strict=True)
    for step, (of, cause, activity) in enumerate(each):
        name = CLASSES[of] if of in _OTHER_KINDS else f"slow: {_group(cause, activity)}"
        colour[step] = place.get(name, 0)
    shown = _thinned(chain.span, colour)
    where = shorten(place_of(answer, chain.path, chain.gpu, chain.pid), _PATH)
    slow = len(chain.of(*SLOW_ONES))
    none = f"{chain.judgement.doubt} to judge" if chain.judgement.doubt else "none slow"
    title = f"{where}: {slow:,} slow, {format_share(chain.slow_share)}" if slow else f"{where}: {none}"
    return SeriesPanel(
        title,
        shown,
        chain.span[shown],
        colour[shown],
        chain.span,
        colour,
        colours,
        (shown, chain.judgement.expected[shown]),
        list(_names(rows, chain, colour, colours)),
    )


def _thinned(span: Ints, colour: Bytes) -> Index:
    """The steps to draw: all of few, of many those that are not typical, and the extremes of equal stretches."""
    if len(span) <= 4 * _COLUMNS:
        return np.arange(len(span))
    edges = np.linspace(0, len(span), _COLUMNS + 1).astype(np.int64)
    parts = [(first, span[first:last]) for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    extremes = [first + at for first, part in parts for at in (int(part.argmin()), int(part.argmax()))]
    return np.unique(np.append(np.flatnonzero(colour)[:_COLUMNS], extremes))


def _names(
    rows: ColumnTable, chain: Chain, colour: Bytes, colours: list[str]
) -> Iterator[tuple[float, float, str, str]]:
    """The names of the slow steps with most excess: what their cause is, and how much."""
    slow = chain.of(*SLOW_ONES)
    excess = rows["excess_ns"][slow]
    named: dict[str, int] = {}
    for step in slow[np.argsort(-np.nan_to_num(excess), kind="stable")[:_MAX_TRIED]].tolist():
        cause, culprit = rows["cause"][step], rows["culprit"][step]
        what = join_words_of(cause, culprit) if isinstance(cause, str) else ""
        named[what] = named.get(what, 0) + 1
        if what and named[what] <= _MAX_NAMES:
            text = f"{step}: +{format_ns(rows['excess_ns'][step])}, {what}"
            yield float(step), float(chain.span[step]), shorten(text, _NAME), colours[colour[step]]


def overview(answer: Steps) -> Overview:
    """The notebook view: the findings, and the slow steps."""

    def details() -> Iterator[str | TextTable]:
        yield from (each.text for each in findings(answer))
        yield from filter(None, (paths_table(answer), slow_table(answer, 16)))

    return Overview(title_of(answer), CHARTS, details)
