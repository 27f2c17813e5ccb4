"""The answer over all ranks: who is slow, who waits for whom, in frames, words and pictures."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.charts.chart import save_charts
from nsysprof.errors import NsysprofError
from nsysprof.fleet import range_iterations
from nsysprof.fleet.answer import Fleet, fleet_answer
from nsysprof.fleet.charts import FLEET_CHARTS
from nsysprof.fleet.examine import ReportFailure, check_unfinished
from nsysprof.fleet.files import FLEET_FILES, fleet_folder, write_fleet
from nsysprof.fleet.findings import straggler_state
from nsysprof.fleet.page import fleet_page
from nsysprof.fleet.range_iterations import Choice
from nsysprof.fleet.stragglers import outlier_rows, robust_z, straggler_rows
from nsysprof.fleet.text import fleet_text
from tests.conftest import MakeTrace
from tests.fleet.test_parts import ALL_REDUCE, examined, ranked, step, steps
from tests.kit.figures import texts
from tests.kit.kineto import annotation, collective, launch, write_trace
from tests.kit.trace import Items, Launch, Range, launch_kernel, write

SLOW, COUNT = 2, 24


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Six ranks of 24 steps: rank 2 computes for 300 ns, the others for 200 ns and wait 100 ns for it."""
    folder = tmp_path_factory.mktemp("job")
    slow, other = (
        examined(write(folder / f"{name}.sqlite", steps(COUNT, compute=compute, waits=waits)))
        for name, compute, waits in (("slow", 300, 50), ("other", 200, 150))
    )
    answers = [ranked(f"job/rank_{rank}.sqlite", rank, slow if rank == SLOW else other) for rank in range(6)]
    return fleet_answer([*answers, ReportFailure("job/rank_6.sqlite", "job/rank_6.sqlite: empty file", "ls")])


def test_the_rank_with_the_least_time_in_collectives_is_the_one_that_is_waited_for(fleet: Fleet) -> None:
    """It comes last and is in them for the shortest time; the others' time beyond that is waiting."""
    ranks = fleet.ranks.set_index("rank")
    assert ranks.loc[SLOW, "collective_ns"] == COUNT * 50
    assert ranks.loc[SLOW, "waiting_ns"] == 0
    assert ranks.loc[SLOW, "caused_ns"] == 5 * COUNT * 100
    assert (ranks["waiting_ns"].drop(SLOW) == COUNT * 100).all()
    assert ranks["times_awaited"].tolist() == [0, 0, COUNT, 0, 0, 0]
    [finding] = [text for text in fleet.findings if "arrives last" in text]
    assert finding.startswith(f"rank 2 arrives last in {COUNT} of {COUNT} iterations and causes 100 % of all waiting; ")
    assert "in collectives, rank 2 spends 1.20 µs, and rank 0 spends 3.60 µs (67 % of it waiting)" in finding


def test_blocking_communication_is_late_peer_or_transfer(trace: MakeTrace) -> None:
    """Compute waits 140 ns, 90 until the late rank 2 comes (10 more are hidden); the 40 of rank 2 are transfer."""
    slow, other = (
        examined(trace(*steps(COUNT, compute, waits, events=True), name=f"{waits}.sqlite"))
        for compute, waits in ((300, 50), (200, 150))
    )
    answers = [ranked(f"rank_{rank}", rank, slow if rank == SLOW else other) for rank in range(3)]
    fleet = fleet_answer(answers)
    names = ["blocking_ns", "late_peer_ns", "transfer_ns", "late_peer"]
    waiting = [COUNT * 140, COUNT * 90, COUNT * 50, SLOW]
    found = fleet.ranks[names].fillna(-1).to_numpy().tolist()
    assert found == [waiting, waiting, [COUNT * 40, 0, COUNT * 40, -1]]
    [finding] = [text for text in fleet.findings if "delays compute;" in text]
    late = "for 140 ns (90 ns until late rank 2 arrives, 50 ns for the transfer)"
    assert finding == (
        "100 % of the exposed communication delays compute; per iteration,"
        f" rank 0 waits {late}; rank 1 waits {late}; rank 2 waits for 40 ns"
    )
    assert fleet.usual[names].equals(fleet.ranks[names])


def test_collectives_of_two_communicators_are_matched_each_among_its_own(tmp_path: Path) -> None:
    """Two ranks begin the same two collectives in another order: each waits for the other, by communicator."""
    answers = []
    for rank, order in ((0, "ab"), (1, "ba")):
        events = []
        for number in range(COUNT):
            at = 1000 * number
            events += [annotation(f"step{number}", at, at + 900)]
            events += launch("gemm", (at + 1, at + 2), (at + 10, at + 30), id=10 * number + 1)
            for place, group in enumerate(order):
                end = at + (400 if group == "a" else 500)
                begin, id, stream = at + 100 + 100 * place, 10 * number + 2 + place, 20 + ord(group)
                events += collective(
                    "allreduce", (at + 3 + place, at + 4 + place), (begin, end), id, group=group, stream=stream
                )
        path = write_trace(tmp_path / f"{rank}.pt.trace.json", events, distributedInfo={"rank": rank})
        answers.append(ranked(path.name, rank, examined(path)))
    waiting = fleet_answer(answers).waiting
    assert (waiting.matched, waiting.unmatched) == (4 * COUNT, 0)
    for rank in (0, 1):
        mine = waiting.each[waiting.each["rank"] == rank]
        assert mine[["collectives", "waiting_ns", "caused_ns"]].drop_duplicates().values.tolist() == [[2, 100, 100]]
        assert len(mine) == COUNT


def test_what_blocks_is_empty_where_it_is_not_known(trace: MakeTrace) -> None:
    """One rank was recorded without events: its columns are empty, a warning names it, and the others are answered."""
    known = examined(trace(*steps(COUNT, events=True), name="known.sqlite"))
    call = Launch(30, 31, 999, api="cudaStreamWaitEvent_v3020")
    unknown = examined(trace(*steps(COUNT), call, name="unknown.sqlite"))
    fleet = fleet_answer([ranked("rank_0", 0, known), ranked("rank_1", 1, unknown)])
    assert fleet.ranks["blocking_ns"].isna().tolist() == [False, True]
    assert fleet.ranks["transfer_ns"].isna().tolist() == [False, True]
    [warning] = [text for text in fleet.warnings if "not recorded: " in text]
    assert warning.startswith("rank 1: it is unknown which communication delays compute")
    assert "not recorded: waits for events (nsys profile --cuda-event-trace=true)" in warning
    [finding] = [text for text in fleet.findings if "delays compute;" in text]
    assert finding.endswith("per iteration, rank 0 waits for 50 ns")


def test_the_straggler_is_named_with_how_much(fleet: Fleet) -> None:
    """By its own time, which leaves out the communication that nothing hides: spans hardly differ."""
    ranks = fleet.ranks.set_index("rank")
    assert ranks["straggler"].tolist() == [False, False, True, False, False, False]
    assert ranks.loc[SLOW, "ratio"] == pytest.approx(330 / 230)
    assert ranks["span_median_ns"].nunique() == 1
    assert any(text.startswith("straggler: rank 2 takes 1.43x") for text in fleet.findings)
    [spread] = fleet.spread[fleet.spread["path"] == "step*"].to_dict("records")
    assert (spread["slowest_rank"], spread["times_slowest"], spread["compared"]) == (SLOW, COUNT, COUNT)
    finding = "rank 2 (the slowest) takes 100 ns longer per iteration than rank 3 (median), excluding exposed comm"
    assert any(text.startswith(finding) for text in fleet.findings)


def test_the_frames_hold_each_rank_and_iteration(fleet: Fleet) -> None:
    """Distributions over ranks per iteration, and a row per path and rank."""
    rows = fleet.iterations[fleet.iterations["path"] == "step*"]
    assert rows["iteration"].tolist() == [f"step{at}" for at in range(COUNT)]
    first = rows.iloc[0]
    assert (first["own_min_ns"], first["own_median_ns"], first["own_max_ns"], first["ranks"]) == (230, 230, 330, 6)
    assert first["own_mean_ns"] == (5 * 230 + 330) // 6
    assert (first["slowest_rank"], first["fastest_rank"]) == (SLOW, 0)
    mine = fleet.paths[(fleet.paths["path"] == "step*/forward")].set_index("rank")
    assert mine["relative"].tolist() == [1, 1, 1.5, 1, 1, 1]
    assert mine["times_slowest"].tolist() == [0, 0, COUNT, 0, 0, 0]


def test_text_names_failures_and_marks_the_straggler(fleet: Fleet) -> None:
    """Whole lines of the text; with fewer rows than ranks the slowest are shown."""
    text = fleet_text(fleet, 3)
    assert text.startswith(
        "6 ranks, 24 iterations of step*, 370 ns each (median); share of iteration time: compute 67 %"
    )
    assert "\n   $ nsysprof why job/rank_2.sqlite\n" in text
    assert "note: 6 ranks in 6 reports; numbered by the run record beside each" in fleet_text(fleet, full=True)
    assert "\nunreadable: job/rank_6.sqlite: empty file (ls)\n" in text
    table = text[text.index("rank      span each") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["2", "0", "1"]
    assert "3 more ranks" in text
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
    assert fleet_folder(tmp_path, asked[::-1]).check()
    with pytest.raises(NsysprofError, match="not written about these reports"):
        fleet_folder(tmp_path, asked[1:]).check()
    (tmp_path / ".answers").mkdir()
    (tmp_path / ".answers" / "a.npz").touch()
    with pytest.raises(NsysprofError, match="of 1 report from an unfinished run"):
        check_unfinished(tmp_path)


def test_charts_show_every_rank(fleet: Fleet, tmp_path: Path) -> None:
    """Heat map and timeline have a row per rank; the straggler's is labelled; both are written."""
    heatmap, timeline = (chart.figure(fleet) for chart in FLEET_CHARTS)
    heat, bars = heatmap.axes[0], heatmap.axes[-1]
    values = heat.images[0].get_array()
    assert values is not None
    assert values.shape == (6, 2)
    assert np.argmax(values[:, 0]) == SLOW
    assert "rank 2 !" in texts(heatmap)
    assert [part.get_label() for part in bars.collections if str(part.get_label()) == "compute"] == ["compute"]
    lanes = timeline.axes[0].images[0].get_array()
    assert lanes is not None
    assert lanes.shape[0] == 6
    assert [path.name for path in save_charts(FLEET_CHARTS, fleet, tmp_path)] == [
        "fleet_heatmap.png",
        "fleet_timeline.png",
    ]


def test_clocks_are_aligned_by_the_ends_of_collectives(trace: MakeTrace) -> None:
    """However far apart the clocks of two reports are."""
    ahead = 5_000_000
    first = [item for at in range(4) for item in step(at, begin=1000 * at, compute=200, waits=60)]
    second = [item for at in range(4) for item in step(at, begin=1000 * at + ahead, compute=200, waits=60)]
    answers = [ranked(f"{at}", at, examined(trace(*items))) for at, items in enumerate((first, second))]
    found = fleet_answer(answers)
    assert dict(found.waiting.offset_ns) == {0: 0, 1: ahead}
    assert [(lane.start_ns, lane.end_ns) for lane in found.lanes] == [(0, 3280), (0, 3280)]
    assert found.clock == "clocks aligned by the ends of collectives"


def test_ranks_with_other_collectives_are_left_out(trace: MakeTrace) -> None:
    """Two of three ranks have the same number in a step: those are compared, and a warning says how many are not."""
    items = [steps(4), steps(4), [*steps(4), *step(9, begin=100, compute=20, waits=20)[3:5]]]
    found = fleet_answer([ranked(f"{at}", at, examined(trace(*each))) for at, each in enumerate(items)])
    assert found.waiting.matched == 11
    assert any(text.startswith("2 of 13 collectives have no counterpart") for text in found.warnings)


def test_time_before_the_first_op_is_waiting_of_others(trace: MakeTrace) -> None:
    """A rank whose steps begin late is alike in own time, but the ranks are not alike: the others wait for it."""
    answers = []
    for rank in range(4):
        items: list[Items] = []
        for at in range(12):
            begin = 1000 * at
            first, end = begin + (320 if rank == 2 else 20), begin + 540
            items += [
                Range(f"step{at}", begin, begin + 900),
                launch_kernel("gemm_kernel", (first - 10, first - 8), (first, first + 200), id=2 * at + 1),
                launch_kernel(ALL_REDUCE, (first - 7, first - 5), (first + 200, end), id=2 * at + 2, stream=9),
            ]
        answers.append(ranked(f"{rank}", rank, examined(trace(*items))))
    found = fleet_answer(answers)
    finding = (
        "no rank is a straggler: excluding exposed communication, each rank takes less than 1.05x as long as the "
        "others: all ranks take "
        "equally long from first to last op, but rank 2 starts later; excluding exposed communication, the "
        "slowest rank of an iteration takes"
    )
    assert any(text.startswith(finding) for text in found.findings)
    found = fleet_answer([answer for answer in answers if answer.record_rank != 2])
    assert any("and the ranks are alike: excluding exposed" in text for text in found.findings)


def test_the_time_of_several_gpus_is_no_more_than_all_of_it(trace: MakeTrace) -> None:
    """Own and exposed time add up the GPUs of a process, so shares are of the time of all of them."""
    answers = []
    for rank in range(2):
        items: list[Items] = []
        for at in range(12):
            begin = 1000 * at
            items.append(Range(f"step{at}", begin, begin + 900))
            for gpu in range(4):
                first = begin + 20 + (300 * rank if gpu else 0)
                last = begin + 70 + 300 * rank
                id = 100 * at + 2 * gpu + 1
                items += [
                    launch_kernel(
                        "gemm_kernel", (begin + 2 + gpu, begin + 3 + gpu), (first, first + 50), id=id, device=gpu
                    ),
                    launch_kernel(
                        ALL_REDUCE,
                        (begin + 8 + gpu, begin + 9 + gpu),
                        (last, begin + 390),
                        id=id + 1,
                        stream=9,
                        device=gpu,
                    ),
                ]
        answers.append(ranked(f"{rank}", rank, examined(trace(*items))))
    found = fleet_answer(answers)
    text = fleet_text(found, full=True)
    assert "own: summed over the GPUs of the rank" in " ".join(text.split())
    assert max(int(share) for share in re.findall(r"(\d+) %", text)) <= 100
    assert "load imbalance costs up to" in text
    assert found.ranks["own_ns"].max() > found.ranks["span_ns"].max()  # or nothing of this was tested


def test_more_iterations_than_are_kept_are_no_table(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where all ranks have too many there is nothing per iteration, and text and charts do without."""
    monkeypatch.setattr(range_iterations, "MAX_ROWS", 3)
    found = fleet_answer([ranked(f"{at}", at, examined(trace(*steps(4)))) for at in range(2)])
    assert "4 iterations exceed the limit of 3" in fleet_text(found, full=True)
    assert fleet_page(found)
    assert len(save_charts(FLEET_CHARTS, found, tmp_path)) == 2


def test_iterations_that_were_asked_for_must_be_there(trace: MakeTrace) -> None:
    """On one rank at least; where others lack them a warning says which, however many they are."""
    per = Choice(per="train*")
    plain = examined(trace(*steps(3)), per)
    with pytest.raises(NsysprofError, match=r"--per 'train\*' matches no range with GPU work on any rank"):
        fleet_answer([ranked("a", 0, plain)], options={"per": "train*"})
    around = examined(trace(Range("train", 0, 4000), *steps(3)), per)
    answers = [ranked("a", 0, plain), ranked("b", 1, plain), ranked("c", 2, around)]
    found = fleet_answer(answers, options={"per": "train*"})
    assert found.iteration_path == "train"
    assert "the findings do not cover ranks 0, 1, which have no iterations 'train'" in found.warnings


def test_the_slowest_rank_is_the_slowest_per_iteration(trace: MakeTrace) -> None:
    """Not the one that has more iterations than the others."""
    answers = []
    for rank, (count, compute) in enumerate([(30, 200), (12, 210), (12, 300)]):
        items = steps(count, compute=compute, waits=400 - compute)
        answers.append(ranked(f"{rank}", rank, examined(trace(*items))))
    found = fleet_answer(answers)
    assert found.ranks["own_ns"].idxmax() == 0
    assert found.split["slowest_rank"].tolist() == [2] * len(found.split)
    assert found.split["median_rank"].tolist() == [1] * len(found.split)


def test_a_name_that_is_no_utf8_is_written_out(trace: MakeTrace, tmp_path: Path) -> None:
    """In frames and files; the folder is known again by the name itself."""
    names = ["rank_\udcff0.sqlite", "rank_\udcfe0.sqlite"]
    answer = examined(trace(*steps(3)))
    found = fleet_answer([ranked(name, at, answer) for at, name in enumerate(names)])
    assert found.ranks["report"].tolist() == ["rank_\\udcff0.sqlite", "rank_\\udcfe0.sqlite"]
    assert "2 ranks in 2 reports" in fleet_text(found, full=True)
    write_fleet(found, names, tmp_path)
    assert fleet_folder(tmp_path, names).check()


def test_nothing_but_failures_is_an_error() -> None:
    """With the reason of the first."""
    with pytest.raises(NsysprofError, match=r"a: empty file \(and 1 report more\)"):
        fleet_answer([ReportFailure("a", "a: empty file"), ReportFailure("b", "b: empty file")])


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


def test_every_slow_rank_is_tested() -> None:
    """However many they are."""
    own = noisy(128, 40)
    own.iloc[:30] *= 1.3
    assert straggler_rows(own)["straggler"].tolist() == [at < 30 for at in range(128)]


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


def persistent(ranks: int, iterations: int, seed: int, phi: float) -> pd.DataFrame:
    """Own times of equal ranks, off by 3 %, each iteration off as the one before."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((ranks, iterations))
    for at in range(1, iterations):
        noise[:, at] = phi * noise[:, at - 1] + np.sqrt(1 - phi**2) * noise[:, at]
    return pd.DataFrame(1000 * np.exp(0.03 * noise))


@pytest.mark.parametrize("phi", [0, 0.5, 0.8])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_what_every_iteration_says_is_proven(ranks: int, phi: float) -> None:
    """1.27 times slower in 15 of 15 iterations is a straggler, also where these are worth few independent ones."""
    for seed in range(8):
        own = persistent(ranks, 15, seed, phi)
        own.iloc[1] *= 1.27
        found = straggler_rows(own)
        assert found["straggler"].tolist() == [at == 1 for at in range(ranks)]
        row = found.iloc[1]
        assert (row["verdict"], row["slower"], row["compared"]) == ("slower", 15, 15)
        assert 1 < row["low"] <= row["ratio"] <= row["high"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_equal_ranks_that_drift_are_no_stragglers(ranks: int) -> None:
    """Each iteration resembles the one before, and some rank is mostly the slow one."""
    found = [straggler_rows(persistent(ranks, 15, seed, 0.5)) for seed in range(20)]
    assert not any(rows["straggler"].any() for rows in found)


def test_what_is_not_proven_is_not_denied() -> None:
    """Three verdicts: too few iterations, or such that differ too much, say neither yes nor no."""
    equal = straggler_rows(noisy(4, 30))
    assert set(equal["verdict"]) == {"not slower"}
    assert straggler_state(equal).text.startswith("no rank is a straggler: ")
    few = noisy(2, 6)
    few.iloc[1] *= 1.27
    found = straggler_rows(few)
    assert set(found["verdict"]) == {"not proven"}
    state = straggler_state(found)
    assert state.rank == 1
    assert state.text.startswith("possible straggler: rank 1 takes 1.26x")
    assert "longer in 6 of 6 iterations; but 6 iterations of 2 ranks are too few to prove it" in state.text
    turns = straggler_rows(pd.DataFrame([[200.0, 100.0] * 12, [100.0, 200.0] * 12]))
    assert set(turns["verdict"]) == {"not proven"}
    alike = straggler_state(straggler_rows(noisy(2, 6)))
    assert alike.rank is None
    assert alike.text.startswith("no straggler found, but a slowdown of 1.05x cannot be ruled out")
    assert "cannot be ruled out, because 6 iterations are too few; the slowest rank takes" in alike.text


@pytest.fixture
def warmed(trace: MakeTrace) -> Fleet:
    """Two ranks of 15 steps, the second 1.27 times slower; the first step waits for the host, 20 times as long."""
    answers = []
    for rank, compute in enumerate((200, 266)):
        items: list[Items] = [Range("step0", 0, 9000), launch_kernel("copy_kernel", (2, 5), (20, 40), id=8001)]
        items += step(0, begin=8000, compute=compute, waits=326 - compute)[1:]
        items += [
            item
            for at in range(1, 15)
            for item in step(at, begin=9000 + 1000 * at, compute=compute, waits=326 - compute)
        ]
        answers.append(ranked(f"{rank}", rank, examined(trace(*items))))
    return fleet_answer(answers)


def test_a_step_that_warms_up_is_in_no_share(warmed: Fleet, tmp_path: Path) -> None:
    """Beside a median stands what the usual iterations do, and what the others take stands apart."""
    first, second, third = warmed.findings[:3]
    assert first.startswith(
        "2 ranks, 15 iterations of step*, 346 ns each (median); share of iteration time without step0:"
    )
    assert first.endswith("idle 0 %")
    assert second.startswith("step0 takes 8.35 µs (63 % of the time of all iterations); excluded from shares and sums")
    assert second.endswith("; --skip 1 excludes it from the medians too")
    assert third.startswith(
        "straggler: rank 1 takes 1.29x as long per iteration as other ranks, excluding exposed communication"
    )
    assert "longer in 14 of 14 iterations" in third
    assert any("arrives last" in text and "in 14 of 14 iterations" in text for text in warmed.findings)
    assert (warmed.left_out, warmed.usual["iterations"].tolist()) == (("step0",), [14, 14])
    assert (warmed.usual["idle_ns"] == 0).all()
    assert (warmed.ranks["idle_ns"] > 7000).all()  # the columns of ranks.csv are of all
    text = " ".join(fleet_text(warmed, full=True).split())
    assert "Shares, waiting and awaited exclude step0." in text
    assert "1 !" in text
    assert all(lane.end_ns - lane.start_ns < 15_000 for lane in warmed.lanes)
    write_fleet(warmed, ["a", "b"], tmp_path)
    usual = json.loads((tmp_path / "fleet.json").read_text())["usual"]
    assert usual["left_out"] == ["step0"]
    assert usual["ranks"][1]["idle_ns"] == 0
    bars = FLEET_CHARTS[0].figure(warmed).axes[-1]
    assert [len(part.get_paths()) for part in bars.collections if part.get_label() == "idle"] == [2]


def test_two_ranks_have_no_median_rank(warmed: Fleet, fleet: Fleet) -> None:
    """Heat map, page and findings compare with the mean of both, and say so."""
    for answer, middle in ((warmed, "mean of both ranks"), (fleet, "median rank")):
        assert middle in texts(FLEET_CHARTS[0].figure(answer))
        assert f"ratio to the {middle}" in fleet_page(answer)
        assert any(f"of communication overlaps with compute ({middle}" in finding for finding in answer.findings)
    [slowest] = [finding for finding in warmed.findings if "(the slowest) takes" in finding]
    assert "longer per iteration than rank 0, excluding exposed communication: " in slowest
    [relative] = warmed.paths[warmed.paths["path"] == "step*"].groupby("path")["relative"].sum()
    assert relative == pytest.approx(2)


def test_what_may_be_a_straggler_is_marked_so(trace: MakeTrace) -> None:
    """In the table and the chart, whose title says no more than the text."""
    items = [steps(6, compute=compute, waits=326 - compute) for compute in (200, 266)]
    found = fleet_answer([ranked(f"{at}", at, examined(trace(*each))) for at, each in enumerate(items)])
    text = " ".join(fleet_text(found, full=True).split())
    assert "possible straggler: rank 1" in text
    assert "the waiting times of the other ranks support this" in text
    assert "no rank is" not in text
    assert "1 ?" in text
    assert "?: a possible straggler." in text
    heatmap = FLEET_CHARTS[0].figure(found)
    assert "rank 1 ?" in texts(heatmap)
    assert any(each.get_text().startswith("Possible straggler: rank 1 takes 1.29x") for each in heatmap.texts)


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


def test_whole_reports_speak_of_no_iterations(trace: MakeTrace) -> None:
    """Where nothing repeats the reports are compared whole: each rank's own time is that, in sentences and table."""
    paths = [trace(launch_kernel("k", (0, 5), (10, 60 + 40 * at), id=1)) for at in range(2)]
    found = fleet_answer([ranked(f"{at}", at, examined(path)) for at, path in enumerate(paths)])
    text = " ".join(fleet_text(found, full=True).split())
    assert (
        "possible straggler: rank 1 takes 1.80x as long as others, excluding exposed communication; but one report"
        in text
    )
    assert (
        "rank 1 (the slowest) takes 40 ns longer in the whole report than rank 0, excluding exposed "
        "communication: +40 ns compute" in text
    )
    assert "1 ? 90 ns 90 ns 1.80x 100 %" in text
    assert "per iteration" not in text
