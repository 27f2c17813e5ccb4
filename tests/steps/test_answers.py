"""What is said of steps, from made-up answers: shares, classes, places, and which steps a chart draws."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.charts.marks import Message, Series
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.statistics.judge import CLASSES, PERIODIC, SECOND, SLOW, TYPICAL, WARM_UP, Judgement
from nsysprof.steps import steps
from nsysprof.steps.charts import plan_steps
from nsysprof.steps.findings import _growth, _patterns, _slow, findings_one_by_one
from nsysprof.steps.ledger import Excess
from nsysprof.steps.steps import Chain
from nsysprof.steps.text import _ledger_cells, _sentences, ledger_table, place_of, slow_table

MS = 1_000_000


def chain(of: dict[int, int], count: int = 20, limit: float = 1.5, **place: Any) -> Chain:
    """Steps of 1 ms of which those in ``of`` are of another class, and take 2 ms."""
    classes = np.full(count, TYPICAL, np.uint8)
    classes[[*of]] = [*of.values()]
    span = np.where(classes == TYPICAL, MS, 2 * MS).astype(np.int64)
    judged = Judgement(classes, np.full(count, float(MS)), limit=limit)
    made: Any = {"path": "step", "gpu": 0, "pid": 1, "excess": None, **place}
    return Chain(rows=np.arange(count), span=span, judgement=judged, fit=None, **made)


def answer(*chains: Chain, ledger: Any = (), **columns: Any) -> Any:
    """An answer with rows of steps for the last chain, whose slow steps have one culprit."""
    nothing = np.empty(0, np.int64)
    steps: dict[str, Any] = {"class": Texts(nothing, CLASSES)}
    if chains:
        of, span = chains[-1].judgement.of, chains[-1].span
        odd, count = of != TYPICAL, len(of)
        excess = np.where(odd, float(MS), np.nan)
        steps = {"step": np.arange(count), "class": Texts(of.astype(np.int64), CLASSES), "span_ns": span}
        steps |= {name: Texts(np.zeros(count, np.int64), [text]) for name, text in (("name", "s"), ("path", "step"))}
        steps |= {"start_ns": np.zeros(count, np.int64), "excess_ns": excess, "culprit_ns": excess}
        steps |= {"typical_ns": np.full(count, float(MS)), "clock_hz": np.full(count, np.nan)}
        named = (("activity", "code"), ("cause", "host"), ("culprit", columns.pop("culprit", "code in x")))
        steps |= {name: np.array([text if each else np.nan for each in odd], object) for name, text in named}
        steps |= {name: np.where(odd, value, np.nan) for name, value in columns.items()}
    names = ("step", "cause", "culprit", "slow_ns", "typical_ns", "delta_ns")
    rows: dict[str, Any] = (
        dict(zip(names, zip(*ledger, strict=True), strict=True)) if ledger else dict.fromkeys(names, ())
    )
    texts = {"path": ["step"] * len(ledger), "cause": rows.pop("cause"), "culprit": rows.pop("culprit")}
    parts = {name: Texts(np.arange(len(ledger)), list(each)) for name, each in texts.items()}
    numbers = {name: np.array(each, np.int64) for name, each in rows.items()}
    place = {"gpu": np.zeros(len(ledger), np.int64), "pid": np.ones(len(ledger), np.int64)}
    tables = {"steps": ColumnTable(steps), "ledger": ColumnTable({**parts, **numbers, **place})}
    report = SimpleNamespace(path=SimpleNamespace(name="r.sqlite"))
    attribution = SimpleNamespace(trace=SimpleNamespace(report=report))
    made = SimpleNamespace(chains=chains, columns=tables.__getitem__, attribution=attribution)
    made.ranked = sorted(chains, key=lambda each: -int(each.span.sum()))
    return made


def test_shares_are_of_steps_behind_warm_up() -> None:
    """Of none judged nothing is slow."""
    assert chain({0: WARM_UP, 3: SLOW, 4: SECOND, 5: PERIODIC}).slow_share == 3 / 19
    assert chain({0: SLOW}, 1).slow_share == 1
    assert chain({0: WARM_UP}, 1).slow_share == 0


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


@pytest.mark.parametrize(("paths", "told"), [(3, True), (4, False)])
def test_warm_up_of_few_paths_is_told_one_by_one(paths: int, told: bool) -> None:
    """Without a time or a cause where it lost none."""
    nothing = SimpleNamespace(table=lambda facts: answer().columns("ledger"))
    made = answer(*[chain({0: WARM_UP}, excess=nothing)] * paths, excess_ns=0.0, expected_ns=0.0)
    made.facts = None
    assert [each.text for each in findings_one_by_one(made)] == ["warm-up: 1 step"] * paths * told


def test_warm_up_without_a_ledger_is_what_is_over_the_expected_time() -> None:
    """Added to what ledgers say of the others."""
    nothing = SimpleNamespace(table=lambda facts: answer().columns("ledger"))
    excess = np.append([np.nan, 300.0], np.zeros(18))
    made = answer(chain({0: WARM_UP, 1: WARM_UP}, excess=nothing), excess_ns=excess, expected_ns=2 * MS - 70.0)
    made.facts = None
    assert [each.text for each in findings_one_by_one(made)] == ["warm-up: 2 steps, +370 ns in all"]


@pytest.mark.parametrize(
    ("part", "said"), [(0.12, "take 12 % longer"), (-0.5, "take 50 % shorter"), (1, "take 2.00 times as long")]
)
def test_what_doubles_is_so_many_times_as_long(part: float, said: str) -> None:
    """Else it is so many percent longer."""
    assert _growth(part, "take") == said


@pytest.mark.parametrize(("by", "most"), [(1.5, "+5 ns host, b"), (0.9, "-9 ns copy, c"), (1, "-9 ns copy, c")])
def test_a_change_names_what_changes_most_in_its_direction(by: float, most: str) -> None:
    """The largest sum if steps take longer, else the smallest."""
    rows = [(3, "host", "b", 9, 4, 2), (4, "host", "b", 9, 4, 8), (3, "copy", "c", 0, 9, -18), (4, "os", "d", 9, 4, 5)]
    ledger = answer(ledger=rows).columns("ledger")
    made = chain({}, changed=(SimpleNamespace(table=lambda _: ledger, step=np.empty(0, np.int64)),))
    made = replace(made, judgement=replace(made.judgement, changes=((10, by),)))
    told = answer(made)
    told.facts = None
    [found] = _patterns(told, made)
    assert found.text == f"since step 10, steps take {by:.2f} times as long as before, most of all {most}"


def test_without_findings_the_next_command_is_told() -> None:
    """What nothing stands out of, unless no path can be judged."""
    none = "No slow steps, patterns or level changes found."
    for chains, said in (
        ((chain({}), chain({}, limit=np.inf)), f"{none}\n   $ nsysprof why r.sqlite"),
        ((chain({}, limit=np.inf),), "   $ nsysprof why r.sqlite"),
        ((), "   $ nsysprof ranges r.sqlite"),
    ):
        told = answer(*chains)
        told.attribution.trace.report.path, told.level = Path("r.sqlite"), None
        assert _sentences(told, []) == said


@pytest.mark.parametrize(("longer", "of"), [(1, SLOW), (0, TYPICAL), (-1, TYPICAL), (None, SLOW)])
def test_a_slow_step_takes_longer_than_typical_ones_nearby(
    monkeypatch: pytest.MonkeyPatch, longer: int | None, of: int
) -> None:
    """One that does not is typical, with no ledger; one that was not compared remains."""
    rows = [] if longer is None else [(3, 4, 0, 0, 9, 9 - longer), (5, 4, 0, 0, 8, 1)]
    made = chain({3: SLOW, 5: WARM_UP})
    ledgers = Excess(*np.array(rows, np.int64).reshape(-1, 6).T)
    monkeypatch.setattr(steps, "excess_of", lambda *_: ledgers)
    windows: Any = SimpleNamespace(start=np.zeros(20, np.int64), end=made.span, gpu=np.zeros(20, np.int64))
    facts: Any = None
    done = steps._explained(facts, windows, made.judgement, None, "step", 1, made.rows)
    assert done.judgement.of[3] == of
    assert done.excess.step.tolist() == [3] * (longer == 1) + [5] * len(rows[1:])


def test_of_many_steps_those_furthest_from_expected_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that take longest."""
    made, asked = chain({3: SLOW, 5: SLOW}), list[list[int]]()
    made.judgement.expected[5] = 1.9 * MS

    def no_ledgers(facts: Any, windows: Any, odd: Any, *_: Any) -> Excess:
        asked.append(odd.tolist())
        return Excess(*np.empty((6, 0), np.int64))

    monkeypatch.setattr(steps, "MAX_EXPLAINED", 1)
    monkeypatch.setattr(steps, "excess_of", no_ledgers)
    windows: Any = SimpleNamespace(start=np.zeros(20, np.int64), end=made.span, gpu=np.zeros(20, np.int64))
    facts: Any = None
    steps._explained(facts, windows, made.judgement, None, "step", 1, made.rows)
    assert asked == [[3]]


def test_long_names_are_cut_and_of_many_steps_the_first_are_named() -> None:
    """Wherever they stand; a chart names a culprit four times."""
    made = chain(dict.fromkeys(range(3, 12), SLOW), path="P" * 200)
    told = answer(made, culprit="Q" * 200)
    [found] = _slow(told, made)
    assert found.text.count("Q") == 79
    assert found.text.endswith(" (steps 3, 4, 5, 6, 7, 8, 9, 10 and 1 more)")
    plan = plan_steps(told)
    assert isinstance(plan, Series)
    [panel] = plan.panels
    lengths = [len(plan.heading.title), plan.heading.subtitle.count("P"), panel.title.count("P")]
    assert (lengths, [len(each[2]) for each in panel.names]) == ([150, 49, 63], [70] * 4)
    assert len(place_of(told, made.path, 0, 1)) == 64
    assert isinstance(plan_steps(answer()), Message)


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


@pytest.mark.parametrize(
    ("count", "limit", "said"), [(7, np.inf, "too few"), (9, np.inf, "too spread"), (9, 1.5, "none")]
)
def test_a_chart_says_why_no_step_is_slow(count: int, limit: float, said: str) -> None:
    """Too few steps, too spread times, or none."""
    plan: Any = plan_steps(answer(chain({}, count, limit)))
    assert f": {said} " in plan.panels[0].title
