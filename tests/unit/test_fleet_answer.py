"""What is said over all ranks: who is slow, who waits for whom, in frames, words and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.errors import NsysprofError
from nsysprof.fleet.answer import Fleet, fleet_answer
from nsysprof.fleet.examine import ReportFailure
from nsysprof.fleet.stragglers import outlier_rows, robust_z, straggler_rows
from nsysprof.render.fleet.charts import FLEET_CHARTS, save_fleet_charts
from nsysprof.render.fleet.data import FLEET_FILES, check_fleet_folder, write_fleet
from nsysprof.render.fleet.heatmap import fleet_heatmap
from nsysprof.render.fleet.text import fleet_text
from nsysprof.render.fleet.timeline import fleet_timeline
from tests.conftest import Trace
from tests.unit.test_fleet_parts import examined, ranked, step, steps

SLOW, COUNT = 2, 24


@pytest.fixture
def fleet(trace: Trace) -> Fleet:
    """Six ranks of 24 steps: rank 2 computes for 300 ns, the others for 200 ns and wait 100 ns for it."""
    answers = []
    for rank in range(6):
        slow = rank == SLOW
        items = steps(COUNT, compute=300 if slow else 200, waits=50 if slow else 150)
        answers.append(
            ranked(f"job/rank_{rank}.sqlite", rank, examined(trace(*items, name=f"rank_{rank}.sqlite")))
        )
    return fleet_answer([*answers, ReportFailure("job/rank_6.sqlite", "job/rank_6.sqlite: empty file", "ls")])


def test_the_rank_with_the_least_time_in_collectives_is_the_one_that_is_waited_for(fleet: Fleet) -> None:
    """It comes last and is in them for the shortest time; the others' time beyond that is waiting."""
    ranks = fleet.ranks.set_index("rank")
    assert ranks.loc[SLOW, "collective_ns"] == COUNT * 50
    assert ranks.loc[SLOW, "waiting_ns"] == 0
    assert ranks.loc[SLOW, "caused_ns"] == 5 * COUNT * 100
    assert (ranks["waiting_ns"].drop(SLOW) == COUNT * 100).all()
    assert ranks["times_awaited"].tolist() == [0, 0, COUNT, 0, 0, 0]
    [said] = [text for text in fleet.findings if "the others wait for" in text]
    assert said.startswith(
        "rank 2 is the one the others wait for: 67 % of the time that rank 0 is in collectives is waiting"
    )
    assert "It is in them for the shortest time, 1.20 µs against 3.60 µs of rank 0" in said


def test_the_straggler_is_named_with_how_much(fleet: Fleet) -> None:
    """By its own time, which leaves out the communication that nothing hides: spans hardly differ."""
    ranks = fleet.ranks.set_index("rank")
    assert ranks["straggler"].tolist() == [False, False, True, False, False, False]
    assert ranks.loc[SLOW, "ratio"] == pytest.approx(330 / 230)
    assert ranks["span_median_ns"].nunique() == 1
    assert any(
        text.startswith("rank 2 is a straggler: its own time per iteration is 1.43x")
        for text in fleet.findings
    )
    [spread] = fleet.spread[fleet.spread["path"] == "step*"].to_dict("records")
    assert (spread["slowest_rank"], spread["times_slowest"], spread["compared"]) == (SLOW, COUNT, COUNT)
    said = (
        "per iteration rank 2, the slowest, takes 100 ns more of its own than rank 3, the median one: +100 ns"
    )
    assert any(text.startswith(said) for text in fleet.findings)


def test_the_frames_hold_each_rank_and_iteration(fleet: Fleet) -> None:
    """Distributions over ranks per iteration, and a row per path and rank."""
    rows = fleet.iterations[fleet.iterations["path"] == "step*"]
    assert rows["iteration"].tolist() == [f"step{at}" for at in range(COUNT)]
    first = rows.iloc[0]
    assert (first["own_min_ns"], first["own_median_ns"], first["own_max_ns"], first["ranks"]) == (
        230,
        230,
        330,
        6,
    )
    assert first["own_mean_ns"] == (5 * 230 + 330) // 6
    assert (first["slowest_rank"], first["fastest_rank"]) == (SLOW, 0)
    mine = fleet.paths[(fleet.paths["path"] == "step*/forward")].set_index("rank")
    assert mine["relative"].tolist() == [1, 1, 1.5, 1, 1, 1]
    assert mine["times_slowest"].tolist() == [0, 0, COUNT, 0, 0, 0]


def test_text_names_failures_and_marks_the_straggler(fleet: Fleet) -> None:
    """Whole lines of the text; with fewer rows than ranks the slowest are shown."""
    text = fleet_text(fleet, 3)
    assert text.startswith(
        "6 ranks in 6 reports; told apart by the run record beside each report; clocks aligned"
    )
    assert "  unreadable  job/rank_6.sqlite: empty file (ls)\n" in text
    table = text[text.index("rank      span each") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["2", "0", "1"]
    assert "3 faster ranks: --top 6, or see ranks.csv." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 120


def test_files_say_what_the_answer_says(fleet: Fleet, tmp_path: Path) -> None:
    """CSV and JSON hold plain numbers, and the folder is known again by the reports that were asked for."""
    asked = [f"job/rank_{rank}.sqlite" for rank in range(7)]
    written = write_fleet(fleet, asked, tmp_path)
    assert [path.name for path in written] == list(FLEET_FILES)
    document = json.loads((tmp_path / "fleet.json").read_text())
    assert document["schema"] == "nsysprof-fleet/1"
    assert document["ranks"][SLOW]["straggler"] is True
    assert document["failures"] == [
        {"report": "job/rank_6.sqlite", "reason": "job/rank_6.sqlite: empty file", "hint": "ls"}
    ]
    for frame, name in ((fleet.ranks, "ranks"), (fleet.paths, "fleet"), (fleet.iterations, "iterations")):
        read = pd.read_csv(tmp_path / f"{name}.csv")
        assert list(read.columns) == list(frame.columns)
        assert len(read) == len(frame)
    assert pd.read_csv(tmp_path / "ranks.csv")["waiting_ns"].tolist() == fleet.ranks["waiting_ns"].tolist()
    check = {"force": False, "kept": ".answers", "resume": False}
    assert check_fleet_folder(tmp_path, FLEET_FILES, asked[::-1], **check)  # type: ignore[arg-type]
    with pytest.raises(NsysprofError, match="not written about these reports"):
        check_fleet_folder(tmp_path, FLEET_FILES, asked[1:], **check)  # type: ignore[arg-type]
    (tmp_path / ".answers").mkdir()
    (tmp_path / ".answers" / "a.npz").touch()
    with pytest.raises(NsysprofError, match="of 1 report of an unfinished run"):
        check_fleet_folder(tmp_path, FLEET_FILES, asked, **check)  # type: ignore[arg-type]


def test_charts_show_every_rank(fleet: Fleet, tmp_path: Path) -> None:
    """Heat map and timeline have a row per rank; the straggler's is labelled; both are written."""
    heatmap, timeline = fleet_heatmap(fleet), fleet_timeline(fleet)
    heat, bars = heatmap.axes[0], heatmap.axes[-1]
    values = heat.images[0].get_array()
    assert values is not None
    assert values.shape == (6, 2)
    assert np.argmax(values[:, 0]) == SLOW
    assert "rank 2 !" in {text.get_text() for text in heat.texts}
    assert [part.get_label() for part in bars.collections if str(part.get_label()) == "compute"] == [
        "compute"
    ]
    lanes = timeline.axes[0].images[0].get_array()
    assert lanes is not None
    assert lanes.shape[0] == 6
    assert [path.name for path in save_fleet_charts(fleet, tmp_path)] == list(FLEET_CHARTS)


def test_clocks_are_aligned_by_the_ends_of_collectives(trace: Trace) -> None:
    """However far apart the clocks of two reports are."""
    ahead = 5_000_000
    first = [item for at in range(4) for item in step(at, begin=1000 * at, compute=200, waits=60)]
    second = [item for at in range(4) for item in step(at, begin=1000 * at + ahead, compute=200, waits=60)]
    answers = [ranked(f"{at}", at, examined(trace(*items))) for at, items in enumerate((first, second))]
    found = fleet_answer(answers)
    assert dict(found.waiting.offset_ns) == {0: 0, 1: ahead}
    assert [(lane.start_ns, lane.end_ns) for lane in found.lanes] == [(0, 3280), (0, 3280)]
    assert found.clock == "clocks aligned by the ends of collectives"


def test_ranks_with_other_collectives_are_left_out(trace: Trace) -> None:
    """Two of three ranks have the same number in a step: those are compared, and a warning says how many are not."""
    items = [steps(4), steps(4), [*steps(4), *step(9, begin=100, compute=20, waits=20)[3:5]]]
    found = fleet_answer([ranked(f"{at}", at, examined(trace(*each))) for at, each in enumerate(items)])
    assert found.waiting.matched == 11
    assert any(text.startswith("2 of 13 collectives have no counterpart") for text in found.warnings)


def test_nothing_but_failures_is_an_error() -> None:
    """With the reason of the first."""
    with pytest.raises(NsysprofError, match=r"a: empty file \(and 1 reports more\)"):
        fleet_answer([ReportFailure("a", "a: empty file"), ReportFailure("b", "b: empty file")])


# ---- stragglers


def noisy(ranks: int, iterations: int, seed: int = 0) -> pd.DataFrame:
    """Own times whose iterations differ much more than the ranks do."""
    rng = np.random.default_rng(seed)
    length = rng.choice([400.0, 800.0, 1200.0], iterations)
    return pd.DataFrame(length * rng.normal(1, 0.01, (ranks, iterations)))


def test_a_slow_rank_is_found_however_much_iterations_differ() -> None:
    """Ratios of equal iterations are compared, not times of all."""
    own = noisy(8, 30)
    own.iloc[3] *= 1.1
    found = straggler_rows(own)
    assert found["straggler"].tolist() == [False] * 3 + [True] + [False] * 4
    row = found.iloc[3]
    assert row["low"] < row["ratio"] < row["high"]
    assert row["low"] > 1.05


def test_equal_ranks_are_no_stragglers() -> None:
    """Not one in 40 fleets of 16 ranks, though some rank is always the slowest."""
    assert not any(straggler_rows(noisy(16, 20, seed))["straggler"].any() for seed in range(40))


def test_ranks_that_take_turns_are_no_stragglers() -> None:
    """Each is the slow one in half of the iterations."""
    own = pd.DataFrame([[200.0, 100.0] * 12, [100.0, 200.0] * 12])
    assert not straggler_rows(own)["straggler"].any()


def test_few_iterations_need_many_ranks() -> None:
    """With three iterations the spread between ranks decides, and with two ranks nothing can."""
    own = noisy(9, 3)
    own.iloc[4] *= 1.5
    assert straggler_rows(own)["straggler"].tolist() == [at == 4 for at in range(9)]
    assert not straggler_rows(own.iloc[3:5])["straggler"].any()


def test_a_single_slow_iteration_is_an_outlier() -> None:
    """Of one rank alone, against the others and against itself; a rank that is always slow has none."""
    values = noisy(5, 20).to_numpy().copy()
    values[1] *= 2
    values[3, 7] *= 3
    values[:, 9] *= 4
    own = pd.DataFrame(values)
    found = outlier_rows(own)
    assert found[["rank", "iteration"]].to_numpy().tolist() == [[3, 7]]
    assert found["ratio"].iloc[0] == pytest.approx(3, rel=0.1)
    assert outlier_rows(own.iloc[:2]).empty


def test_robust_z_of_equal_values() -> None:
    """Where more than half are equal their mean distance does; where all are, nothing stands out."""
    assert robust_z(np.array([1.0, 1, 1, 1])).tolist() == [0, 0, 0, 0]
    assert robust_z(np.array([1.0, 1, 1, 5]))[3] > 3
