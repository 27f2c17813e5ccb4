"""What is said of steps, from made-up answers: shares, classes, places, and which steps a chart draws."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.statistics.judge import CLASSES, PERIODIC, SECOND, SLOW, TYPICAL, WARM_UP, Judgement
from nsysprof.steps.charts import MAX_PANELS, _colours, _names, _thinned, plan_steps
from nsysprof.steps.findings import _growth, _most_of, _slow, _who, headline
from nsysprof.steps.steps import Chain, _without_numbers
from nsysprof.steps.text import _ledger_cells, ledger_table, place_of, slow_table

MS = 1_000_000


def chain(of: dict[int, int], count: int = 20, limit: float = 1.5, period: int = 0, **place: Any) -> Chain:
    """Steps of 1 ms of which those in ``of`` are of another class, and take 2 ms."""
    classes = np.full(count, TYPICAL, np.uint8)
    classes[[*of]] = [*of.values()]
    span = np.where(classes == TYPICAL, MS, 2 * MS).astype(np.int64)
    judged = Judgement(classes, np.full(count, float(MS)), limit=limit, period=period)
    made: Any = {"path": "step", "gpu": 0, "pid": 1, "excess": None, **place}
    return Chain(rows=np.arange(count), span=span, judgement=judged, fit=None, **made)


def answer(*chains: Chain, ledger: Any = (), **columns: Any) -> Any:
    """An answer with rows of steps for the last chain, whose slow steps have one culprit."""
    frame = pd.DataFrame()
    if chains:
        of, span = chains[-1].judgement.of, chains[-1].span
        odd = of != TYPICAL
        excess = np.where(odd, float(MS), np.nan)
        frame = pd.DataFrame({"step": np.arange(len(of)), "class": [CLASSES[code] for code in of], "span_ns": span})
        frame = frame.assign(name="s", path="step", start_ns=0, excess_ns=excess, culprit_ns=excess, typical_ns=MS)
        frame = frame.assign(activity="code", clock_hz=np.nan)
        frame["cause"], frame["culprit"] = (pd.Series(text, frame.index).where(odd) for text in ("host", "code in x"))
        frame = frame.assign(**columns)
    report = SimpleNamespace(path=SimpleNamespace(name="r.sqlite"))
    made = SimpleNamespace(
        chains=chains, steps=frame, attribution=SimpleNamespace(trace=SimpleNamespace(report=report))
    )
    made.ranked = sorted(chains, key=lambda each: -int(each.span.sum()))
    made.ledger = pd.DataFrame(ledger, columns=["step", "cause", "culprit", "slow_ns", "typical_ns", "delta_ns"])
    made.ledger = made.ledger.assign(path="step", gpu=0, pid=1)
    return made


def test_shares_are_of_steps_behind_warm_up() -> None:
    """Of none judged nothing is slow."""
    assert chain({0: WARM_UP, 3: SLOW, 4: SECOND, 5: PERIODIC}).slow_share == 3 / 19
    assert chain({0: SLOW}, 1).slow_share == 1
    assert chain({0: WARM_UP}, 1).slow_share == 0


@pytest.mark.parametrize(
    ("chains", "numbers"),
    [
        ([chain({3: SLOW})], ["1", "20"]),
        ([chain({3: SLOW, 0: WARM_UP}), chain({2: SECOND})], ["2", "39"]),
        ([chain({}), chain({}, 9)], ["29"]),
        ([chain({}, 7, np.inf)], ["7", "8"]),  # at least 8 are needed
        ([chain({}, 9, np.inf)], ["9"]),  # too spread
        ([chain({}, 7, np.inf), chain({}, 9, np.inf)], ["9"]),
        ([chain({1: SLOW}), chain({}, 9, np.inf), chain({}, 7, np.inf)], ["1", "20", "9"]),
        ([], []),
    ],
)
def test_a_headline_counts_the_steps_that_are_judged(chains: list[Chain], numbers: list[str]) -> None:
    """How many are slow, and how many vary too much."""
    said = headline(answer(*chains))
    assert [word.strip(",;") for word in said.split() if word.strip(",;").isdigit()] == numbers


@pytest.mark.parametrize(
    ("code", "count", "of", "numbers"),
    [
        (PERIODIC, 2, {4: PERIODIC, 9: PERIODIC}, ["5"]),
        (PERIODIC, 1, {4: PERIODIC, 9: PERIODIC}, ["1", "2", "5"]),
        (SECOND, 1, {0: WARM_UP, 4: SECOND}, ["1", "19"]),
        (SLOW, 1, {6: SLOW}, ["6"]),
        (SLOW, 2, {6: SLOW, 7: SLOW}, ["2"]),
        (SLOW, 1, {6: SLOW, 7: SLOW}, ["1", "2"]),
    ],
)
def test_a_class_of_steps_is_counted(code: int, count: int, of: dict[int, int], numbers: list[str]) -> None:
    """Of all of the class, by its period, or of all that are judged; one alone is named by its number."""
    made = chain(of, period=5)
    assert [word for word in _who(code, count, len(made.of(code)), made).split() if word.isdigit()] == numbers


@pytest.mark.parametrize(("part", "words"), [(105, ""), (106, "with"), (95, ""), (94, "of which")])
@pytest.mark.parametrize("several", [False, True])
def test_one_culprit_stands_for_nearly_all_of_the_excess(part: int, words: str, several: bool) -> None:
    """To within a twentieth of it; else its own part is told, of several steps for each."""
    made = chain({3: SLOW, 4: SLOW} if several else {3: SLOW})
    [found] = _slow(answer(made, excess_ns=100.0, culprit_ns=float(part)), made)
    amount = f"+100 ns{' each' * (several and bool(words))}" + f", {words} +{part} ns" * bool(words)
    assert f": {amount} " in found.text
    assert (found.excess_ns, found.steps) == (200 if several else 100, [3, 4] if several else [3])
    assert ("(steps " in found.text) == several


def test_growth_is_a_share_up_to_twice() -> None:
    """Then times; and what gets shorter does so by a share."""
    assert [_growth(part, "take") for part in (0.5, 0.99, 1.0, -0.25)] == [
        "take 50 % longer",
        "take 99 % longer",
        "take 2.00 times as long",
        "take 25 % shorter",
    ]


def test_what_changes_most_is_per_step() -> None:
    """What grows, or what shrinks, by cause and culprit."""
    rows = [(1, "host", "a", 30), (2, "host", "a", 30), (1, "copy", "b", 50), (2, "host", "c", -80)]
    ledger = pd.DataFrame(rows, columns=["step", "cause", "culprit", "delta_ns"])
    assert _most_of(ledger) == ("host", "a", 30.0)
    assert _most_of(ledger, longer=False) == ("host", "c", -40.0)
    assert _most_of(ledger[:0]) == ("", "", 0.0)


def test_paths_that_differ_in_numbers_are_one() -> None:
    """In those of the last name alone; one by itself keeps its number."""
    texts = ["a 1/x 1", "a 1/x 2", "a 2/x 1", "a 1/y"]
    path, merged = _without_numbers(np.array([0, 1, 2, 3, 1], np.int32), texts)
    assert [merged[code] for code in path.tolist()] == ["a 1/x *", "a 1/x *", "a 2/x 1", "a 1/y", "a 1/x *"]


def test_a_place_names_what_tells_paths_apart() -> None:
    """The GPU or the process, only where a path has several."""
    chains = [chain({}), chain({}, gpu=1), chain({}, path="b", pid=1), chain({}, path="b", pid=2), chain({}, path="c")]
    said = [place_of(answer(*chains), each.path, each.gpu, each.pid) for each in chains]
    assert said == ["step (GPU 0)", "step (GPU 1)", "b (pid 1)", "b (pid 2)", "c"]


def test_a_ledger_is_the_mean_of_its_class() -> None:
    """The largest changes first, the rest in one row, and a sum; other steps do not count."""
    rows = [(3, "host", "a", 30, 10, 20), (4, "host", "a", 50, 10, 40), (3, "copy", "b", 8, 88, -80),
            (4, "copy", "c", 6, 4, 2), (4, "copy", "d", 4, 4, 0), (9, "copy", "d", 4, 1_000, -996)]  # fmt: skip
    made = answer(chain({3: SLOW, 4: SLOW}), ledger=rows)
    table = ledger_table(made, 2)
    assert table is not None
    assert [row[1:] for row in table.rows] == [
        ["4 ns", "44 ns", "-40 ns"],
        ["40 ns", "10 ns", "+30 ns"],
        ["5 ns", "4 ns", "+1 ns"],
        ["49 ns", "58 ns", "-9 ns"],
    ]
    every = ledger_table(made, 4)
    assert every is not None
    assert len(every.rows) == 5
    assert _ledger_cells("x", {"slow_ns": 4, "typical_ns": 4, "delta_ns": 0}, 1)[3] == "0 ns"
    assert ledger_table(answer(chain({})), 2) is None
    assert slow_table(answer(chain({})), 2) is None


def test_of_many_steps_a_chart_draws_the_extremes_and_all_odd_ones() -> None:
    """Of few all."""
    span = np.arange(4_801)[::-1].copy()
    colour = np.zeros(4_801, np.uint8)
    colour[[1_777, 2_000]] = 1
    assert _thinned(span[:4_800], colour).tolist() == list(range(4_800))
    shown = _thinned(span, colour)
    edges = np.linspace(0, 4_801, 1_201).astype(int)
    assert shown.tolist() == sorted({1_777, 2_000, *edges[:-1].tolist(), *(edges[1:] - 1).tolist()})
    assert len(_thinned(span, np.ones(4_801, np.uint8))) < 2 * 1_200 + 1_200


def test_a_chart_draws_the_paths_with_most_slow_time() -> None:
    """Else the longest; slow steps have the colour of their cause and a name, four of each at most."""
    chains = [chain({}), chain({1: SLOW}, path="a"), *(chain({1: SLOW, 2: SLOW, 3: SLOW}, path=c) for c in "bcd")]
    plan: Any = plan_steps(answer(*chains))
    assert [panel.title[0] for panel in plan.panels] == [*"bcd"][:MAX_PANELS]
    alone: Any = plan_steps(answer(chain({}), chain({}, 30)))
    assert ([len(panel.y) for panel in alone.panels], len(alone.heading.notes)) == ([30], 1)
    made = chain(dict.fromkeys(range(2, 9), SLOW) | {0: WARM_UP})
    colours, names = _colours(answer(made), made)
    assert names == ["typical", "warm-up", "slow: code"]
    rows = answer(made).steps
    rows.loc[8, "excess_ns"] = 9.0 * MS
    named = [*_names(rows, made, np.full(20, 2, np.uint8), colours)]
    assert [(x, y, colour) for x, y, _, colour in named] == [(x, 2 * MS, colours[2]) for x in (8, 2, 3, 4)]
    unjudged: Any = plan_steps(answer(chain({}, 7, np.inf)))
    assert "too few" in unjudged.panels[0].title
    assert "none slow" in alone.panels[0].title
