"""Steps of reports: where they begin and end, what slow ones spend more on, and that all of it adds up."""

import json
import random
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsysprof
from nsysprof.charts.marks import Series
from nsysprof.errors import NsysprofError
from nsysprof.statistics.judge import LOST, SLOW, TYPICAL, Judgement
from nsysprof.steps import steps as judged_steps
from nsysprof.steps.charts import plan_steps
from nsysprof.steps.findings import findings
from nsysprof.steps.ledger import NEAR
from nsysprof.steps.steps import NO_GPU, Steps
from nsysprof.steps.text import steps_text
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.program import MS, US, Program
from tests.kit.random_reports import random_report
from tests.kit.reports import BLOCK, RUN, TWO, attributed
from tests.kit.trace import Diagnostic, Item, Items, OsCall, Range, launch_kernel

ROOT = Path(__file__).parents[2]
RANK = ROOT / "analysis" / "two-ranks" / "rank_0.sqlite"


def steps_of(path: Path, per: str | None = None, ranges: str = "auto") -> Steps:
    """The steps of a report."""
    return nsysprof.steps(attributed(path, ranges=ranges), per)


def check(answer: Steps) -> None:
    """Ledgers add up to the excess of each step, steps tile what they span, and classes are those of the chains."""
    frame, ledger = answer.steps, answer.ledger
    place = ["path", "gpu", "pid", "step"]
    explained = frame[frame["excess_ns"].notna()].set_index(place)
    added = ledger.groupby(place)[["slow_ns", "typical_ns", "delta_ns"]].sum().reindex(explained.index)
    assert (added["delta_ns"] == explained["excess_ns"]).all()
    assert (added["slow_ns"] == explained["span_ns"]).all()
    assert (added["typical_ns"] == explained["typical_ns"]).all()
    assert (frame["span_ns"] > 0).all()
    assert (frame["before_ns"] >= 0).all()
    assert (frame["busy_ns"] <= frame["span_ns"]).all()
    for chain in answer.chains:
        rows = frame.iloc[chain.rows]
        ends = (rows["start_ns"] + rows["span_ns"]).to_numpy()
        assert (rows["start_ns"].to_numpy()[1:] >= ends[:-1]).all()
    assert (frame["class"] != "typical").sum() >= len(explained)


@pytest.mark.parametrize("path", [RUN, BLOCK, TWO, RANK], ids=lambda path: path.stem)
def test_shipped_reports_add_up_and_have_few_slow_steps(path: Path) -> None:
    """These are steady programs: at most one step of a hundred is slow."""
    for per in (None, "*"):
        answer = steps_of(path, per)
        check(answer)
    answer = steps_of(path)
    if len(answer.steps) >= 60:
        assert (answer.steps["class"] == "slow").mean() <= 0.01
    assert steps_text(answer)


@pytest.mark.parametrize("seed", range(10))
def test_random_reports_add_up(trace: MakeTrace, seed: int) -> None:
    """Ops before their launches, without launches, in many streams and processes; whichever ranges are steps."""
    path = trace(*random_report(seed))
    for per in ("iter*", "*"):
        with suppress(NsysprofError):  # no range of that name
            answer = steps_of(path, per)
            check(answer)
            assert steps_text(answer)


def program(slow: dict[int, str], count: int = 80) -> Program:
    """Steps that load, run twelve kernels and read back a number; the slow ones as they are said to be."""
    rng, made = random.Random(5), Program()
    for step in range(count):
        way = slow.get(step, "")
        with made.range(f"step {step}"):
            with made.range("data"):
                made.code(round(100 * US * rng.uniform(0.99, 1.01)))
                if way == "sleep":
                    made.os("nanosleep", 2 * MS)
            with made.range("forward"):
                made.copy(1, 1 << 20, (60 if way == "copy" else 1) * 40 * US)
                if way == "allocate":
                    made.call("cudaMalloc", 2 * MS)
                for at in range(12):
                    longer = 40 if way == "kernel" and at == 5 else {"clock": 1.15, "twice": 2}.get(way, 1)
                    made.launch(f"gemm_{at % 4}", round(60 * US * longer * rng.uniform(0.995, 1.005)))
            with made.range("loss"):
                made.copy(2, 4, 2 * US)
                made.wait()
                if way == "wait":
                    made.call("cudaDeviceSynchronize", 2 * MS)
        if way == "before":
            made.os("pthread_cond_timedwait", 3 * MS)
    return made


def test_each_kind_of_delay_is_named(trace: MakeTrace) -> None:
    """Host, allocator, kernel, copy, and a wait between two steps, which is the next step's; each is its own class."""
    slow = {20: "sleep", 30: "allocate", 40: "kernel", 50: "copy", 60: "before", 70: "wait"}
    answer = steps_of(trace(*program(slow).items))
    check(answer)
    [chain] = answer.chains
    assert chain.judgement.warm_up == 0
    rows = answer.steps[answer.steps["class"] == "slow"].set_index("step")
    assert rows["culprit"].to_dict() == {
        20: "nanosleep in data",
        30: "cudaMalloc in forward",
        40: "gemm_1",
        50: "memcpy HtoD pinned of 1.00 MiB in forward",
        61: "pthread_cond_timedwait between steps",
        70: "cudaDeviceSynchronize in loss",
    }
    assert rows["cause"].to_dict() == {20: "host", 30: "host", 40: "compute", 50: "copy", 61: "host", 70: "host"}
    assert (rows["culprit_ns"] > 0.95 * rows["excess_ns"]).all()
    assert rows.loc[61, "before_ns"] == pytest.approx(3 * MS, rel=0.01)
    found = findings(answer)
    assert [each.kind for each in found] == ["slow"] * 6
    assert found[0].text.startswith("1 of 6 slow steps: +3.00 ms host, pthread_cond_timedwait between steps")
    assert r"pthread\_cond\_timedwait between" in steps_text(answer, markdown=True)
    screen, whole = steps_text(answer), steps_text(answer, full=True)
    assert [each.text in " ".join(screen.split()) for each in found] == [True] * 3 + [False] * 3
    assert "3 more findings" in screen
    assert all(each.text in " ".join(whole.split()) for each in found)
    ledger = steps_text(answer, 2, full=True).partition("slow minus typical")[2]
    assert re.search(r"^\d+ more  ", ledger, re.M)
    assert not re.search(r"^\d+ more  ", steps_text(answer, 99, full=True).partition("slow minus typical")[2], re.M)
    plan = plan_steps(answer)
    assert isinstance(plan, Series)
    [panel] = plan.panels
    names = ["typical", "slow: OS calls", "slow: other CUDA calls", "slow: compute", "slow: copy"]
    shown = dict(plan.heading.legend)
    colours = {step: panel.colours[code] for step, code in enumerate(panel.colour) if code}
    causes = {20: names[1], 30: names[2], 40: names[3], 50: names[4], 61: names[1]}
    assert set(names) <= set(shown)
    assert {step: shown[name] for step, name in causes.items()}.items() <= colours.items()
    assert sorted(colours) == rows.index.tolist()
    by_excess = rows.sort_values("excess_ns", ascending=False, kind="stable")
    assert [each[0] for each in panel.names] == by_excess.index.tolist()
    assert plan.heading.notes == []


def test_a_chart_draws_the_paths_that_lose_most_and_counts_the_others(trace: MakeTrace) -> None:
    """Of five processes, four with a slow step, three are drawn."""
    items: list[Items] = []
    for process in range(1, 6):
        for step in range(20):
            at = 1_000_000 * step
            length = 900_000 * process if step == 11 and process < 5 else 100_000
            where = {"process": process, "id": 100 * process + step, "device": process}
            items.append(Range(f"step {step}", at, at + 50_000, process=process))
            items.append(launch_kernel("gemm", (at + 10, at + 20), (at + 100, at + length), **where))
    answer = steps_of(trace(*items))
    plan = plan_steps(answer)
    assert isinstance(plan, Series)
    assert len(answer.chains) == 5
    assert plan.heading.notes == ["2 paths more: see steps.csv"]
    worst = [max(panel.y) for panel in plan.panels]
    assert worst == sorted(worst, reverse=True)
    assert len(worst) == 3
    assert worst[-1] > 1_800_000


def test_like_causes_are_one_class(trace: MakeTrace) -> None:
    """Seven of nine sleep."""
    slow = dict.fromkeys((12, 19, 23, 38, 42, 57, 71), "sleep") | dict.fromkeys((30, 65), "allocate")
    answer = steps_of(trace(*program(slow, 200).items))
    first, second = findings(answer)
    assert first.text.startswith("7 of 9 slow steps: +2.00 ms host, nanosleep in data; ")
    assert first.steps == [12, 19, 23, 38, 42, 57, 71]
    assert second.steps == [30, 65]
    assert "7 of 9 slow steps" in steps_text(answer, markdown=True)


def test_a_slower_clock_is_no_slow_step(trace: MakeTrace) -> None:
    """Eight steps in which all kernels take 15 % longer are one place, and one kernel that does is a slow step."""
    slow = dict.fromkeys(range(30, 38), "clock") | {60: "kernel"}
    answer = steps_of(trace(*program(slow, 120).items))
    by_class = answer.steps.groupby("class")["step"].agg(list)
    assert by_class["clock"] == list(range(30, 38))
    assert by_class["slow"] == [60]
    [chain] = answer.chains
    assert chain.slow_share == 1 / 120
    assert any(
        "8 steps in 1 place are not counted as slow, because all kernels slowed down" in each.text
        for each in findings(answer)
    )


def test_a_sampled_clock_says_by_how_much(trace: MakeTrace) -> None:
    """The clock of each step is a column, and stands where all kernels are slower; without samples it is empty."""
    items = program(dict.fromkeys(range(30, 38), "clock"), 120).items
    plain = steps_of(trace(*items))
    assert plain.steps["clock_hz"].isna().all()
    slower = plain.steps[plain.steps["class"] == "clock"]
    low, high = int(slower["start_ns"].min()), int((slower["start_ns"] + slower["span_ns"]).max())
    last = int((plain.steps["start_ns"] + plain.steps["span_ns"]).max())
    times = range(0, last, STEP_NS)
    hz = [1_250_000_000 if low <= at < high - STEP_NS else 1_410_000_000 for at in times]
    share = [10 if low <= at < high - STEP_NS else 40 for at in times]
    answer = steps_of(trace(*items, gpu_samples({"clock_hz": hz, "dram_read": share})))
    assert answer.steps["dram_read"].median() == 40
    assert answer.steps.loc[33, "dram_read"] == pytest.approx(10)
    assert answer.steps["sm_active"].isna().all()
    assert answer.steps["clock_hz"].median() == 1_410_000_000
    assert answer.steps.loc[33, "clock_hz"] == pytest.approx(1_250_000_000)
    [said] = [each.text for each in findings(answer) if each.kind == "clock"]
    assert "all kernels slowed down together (GPU clock 1.41 → 1.25 GHz); these steps take" in said
    assert not any("GHz" in each.text for each in findings(plain))
    [said] = [each.text for each in findings(plain) if each.kind == "clock"]
    assert "all kernels slowed down together (possibly the GPU clock); these steps take" in said
    for then, said in ((1_410_000_000, " at the same GPU clock"), (1_700_000_000, ""), (1_375_000_000, "")):
        hz = [then if low <= at < high - STEP_NS else 1_410_000_000 for at in times]
        other = findings(steps_of(trace(*items, gpu_samples({"clock_hz": hz}))))
        [text] = [each.text for each in other if each.kind == "clock"]
        assert f"all kernels slowed down together{said}; these steps take" in text


def test_steps_at_a_lower_clock_from_some_step_on(trace: MakeTrace) -> None:
    """All kernels slow down as far as the sampled clock does; else what takes longest is named, as is one kernel."""

    def said(way: str, before: int = 0, after: int = 0) -> str:
        items = program(dict.fromkeys(range(60, 120), way), 120).items
        plain = steps_of(trace(*items)).steps
        at, end = plain["start_ns"].tolist()[60], int(plain["start_ns"].max())
        hz = [before if time < at else after for time in range(0, end, STEP_NS)]
        sampled = [gpu_samples({"clock_hz": hz})] if before else []
        [text] = [each.text for each in findings(steps_of(trace(*items, *sampled))) if each.kind == "change"]
        return text.removeprefix("since step 60, steps take ")

    low, high, little = 1_250_000_000, 1_410_000_000, 1_375_000_000
    assert said("clock", high, low) == (
        "1.12 times as long as before, because all kernels slowed down together (GPU clock 1.41 → 1.25 GHz)"
    )
    assert said("twice", high, little).endswith("; GPU clock 1.41 → 1.38 GHz")
    assert said("clock", low, high).endswith("; GPU clock 1.25 → 1.41 GHz")
    others = said("clock"), said("clock", high, high), said("twice", high, little), said("clock", low, high)
    assert all(", most of all +" in text and "because" not in text for text in others)
    assert said("kernel").endswith("compute, gemm_1")


def test_a_clock_that_falls_and_rises_again_explains_both_changes(trace: MakeTrace) -> None:
    """Each change compares the steps up to the next one: the clock of later steps says nothing of it."""
    items = program(dict.fromkeys(range(60, 120), "clock"), 240).items
    plain = steps_of(trace(*items)).steps
    low, high = plain["start_ns"].tolist()[60], plain["start_ns"].tolist()[120]
    times = range(0, int(plain["start_ns"].max()), STEP_NS)
    samples = gpu_samples({"clock_hz": [1_250_000_000 if low <= at < high else 1_410_000_000 for at in times]})
    fell, rose = (each.text for each in findings(steps_of(trace(*items, samples))) if each.kind == "change")
    assert fell.endswith("because all kernels slowed down together (GPU clock 1.41 → 1.25 GHz)")
    assert rose.endswith("; GPU clock 1.25 → 1.41 GHz")


def test_steps_that_lack_gpu_operations_are_marked_and_not_judged(trace: MakeTrace) -> None:
    """Twenty steps of four kernels and 3 ms of code; nsys lost two kernels of each of the last nine."""
    made = Program()
    for number in range(20):
        with made.range(f"step{number}"):
            for _ in range(4):
                made.launch("gemm", 200 * US)
            if number >= 11:
                del made.items[-4:]  # two launches and their kernels
            made.wait()
            made.code(3 * MS)
    answer = steps_of(trace(*made.items, Diagnostic("Not all CUDA events might have been collected.")))
    [chain] = answer.chains
    assert chain.of(LOST).tolist() == [*range(11, 20)]
    assert (len(chain.whole), chain.judged) == (11, 11 - chain.judgement.warm_up)
    assert answer.columns("steps").texts("class").tolist()[-1] == "lost"
    assert not set(answer.columns("ledger")["step"].tolist()) & {*range(11, 20)}
    text = " ".join(steps_text(answer).split())
    assert "; 9 later steps left out, because nsys lost GPU operations" in text
    assert "since step" not in text
    legend = [label for label, _ in plan_steps(answer).heading.legend]
    assert "lost" in legend


def test_every_so_many_steps(trace: MakeTrace) -> None:
    """A checkpoint every 20th step is a period, not five surprises."""
    answer = steps_of(trace(*program(dict.fromkeys(range(19, 120, 20), "sleep"), 120).items))
    first = findings(answer)[0]
    assert first.kind == "periodic"
    assert first.text.startswith("one step in 20 is slow: +2.00 ms host, nanosleep in data")


def test_a_change_says_what_changed(trace: MakeTrace) -> None:
    """From step 50 on each step sleeps for 2 ms: one change, no slow step, and the sleep is named."""
    answer = steps_of(trace(*program(dict.fromkeys(range(50, 120), "sleep"), 120).items))
    [found] = findings(answer)
    assert (found.kind, found.steps, found.culprit) == ("change", [50], "nanosleep in data")
    assert found.text.startswith("since step 50, steps take 3.")
    assert found.text.endswith("times as long as before, most of all +2.00 ms host, nanosleep in data")


def test_steps_of_all_lengths_are_not_judged(trace: MakeTrace) -> None:
    """The headline says so, no limit is printed, and no step is slow."""
    made, rng = Program(), random.Random(3)
    for step in range(60):
        with made.range(f"step {step}"):
            made.launch("k", round(10 * US * 10 ** rng.uniform(0, 4)))
            made.wait()
    answer = steps_of(trace(*made.items))
    check(answer)
    assert answer.diagnosis is not None
    text = steps_text(answer)
    assert "the times of 60 steps vary too much to tell which steps are slow" in " ".join(text.split())
    assert re.search(r"\d{3}x|\+-", text) is None
    assert not answer.steps["class"].isin(["slow", "second kind", "periodic"]).any()


def test_side_streams_move_no_end(trace: MakeTrace) -> None:
    """A copy of 2 ms to the host, in a separate stream, begins in step 10 and ends in step 12: all are typical."""
    made = Program()
    for step in range(30):
        with made.range(f"step {step}"):
            made.layers(12, 60 * US)
            if step == 10:
                made.copy(2, 1 << 24, 2 * MS, stream=20)
            until = made.free[7]
            made.wait("cudaEventSynchronize", until)
    answer = steps_of(trace(*made.items))
    check(answer)
    assert len(answer.steps) == 30
    assert set(answer.steps["class"]) <= {"typical"}


def test_a_pause_that_is_other_work_belongs_to_no_step(trace: MakeTrace) -> None:
    """Steps of forward alone, with backward between them: one that is late is none of forward's, nor is validation."""
    made = program({})
    made.items.clear()
    for step in range(40):
        with made.range("forward"):
            made.launch("gemm", 100 * US)
            made.wait()
        with made.range("backward"):
            made.code(3 * MS if step == 20 else 0)
            made.launch("gemm", 200 * US)
            made.wait()
    answer = steps_of(trace(*made.items), "forward")
    assert set(answer.steps["class"]) == {"typical"}
    assert not answer.steps["before_ns"].any()
    for step in range(40):
        with made.range("step"):
            made.launch("gemm", 100 * US)
            made.wait()
        made.code(1 * US)
        if step == 20:
            made.launch("validate", 5 * MS)
            made.wait()
    answer = steps_of(trace(*made.items), "step")
    assert "slow" not in set(answer.steps["class"])


def test_processes_that_share_a_gpu_have_steps_of_their_own(trace: MakeTrace) -> None:
    """So have threads that run steps at the same time; and a thread after another goes on with its steps."""

    def steps(process: int, thread: int, first: int) -> list[Items]:
        out: list[Items] = []
        for step in range(10):
            at = first + step * 1000
            id = process * 1000 + thread * 100 + step
            where = {"process": process, "thread": thread, "id": id, "stream": process * 10 + thread}
            out.append(Range(f"step {step}", at, at + 900, thread=thread, process=process))
            out.append(launch_kernel("gemm", (at + 10, at + 20), (at + 100, at + 800), **where))
        return out

    answer = steps_of(trace(*steps(1, 1, 0), *steps(2, 1, 333)))
    assert [(chain.pid, len(chain.span)) for chain in answer.chains] == [(1, 10), (2, 10)]
    assert len(steps_of(trace(*steps(1, 1, 0), *steps(1, 2, 333))).chains) == 2
    assert [len(chain.span) for chain in steps_of(trace(*steps(1, 1, 0), *steps(1, 2, 10_000))).chains] == [20]


def test_steps_of_a_report_without_gpu_work(trace: MakeTrace) -> None:
    """They take what their ranges take on the host, and what the host did in them says why."""
    items: list[Items] = []
    at = 0
    for step in range(20):
        end = at + 1_000_000 + 7 * (step * 37 % 100)
        items.append(Range("load", at + 100, at + 400_000))
        if step == 13:
            items.append(OsCall("fsync", end - 1000, end + 1_999_000))
            end += 2_000_000
        items.append(Range(f"step {step}", at, end))
        at = end + 50
    answer = steps_of(trace(*items))
    check(answer)
    [chain] = answer.chains
    assert chain.gpu == NO_GPU
    [row] = answer.steps[answer.steps["class"] == "slow"].to_dict("records")
    assert (row["step"], row["cause"], row["culprit"], row["busy_ns"]) == (13, "host", "fsync in step*", 0)
    assert "1 of 20 steps is slow" in " ".join(steps_text(answer).split())
    assert answer.diagnosis is None


def served() -> list[Item]:
    """Steps whose names tell how many tokens they have, some of them warm-up, and one that is slow."""
    rng, made = random.Random(3), Program()
    for step in range(60):
        tokens = rng.choice([0, 0, 0, 512, 1024, 4096])
        with made.range(f"execute_{tokens}_generation_{step}"):
            made.launch("attention", round((200 * US + tokens * 1000) * rng.uniform(0.99, 1.01)))
            made.wait()
            made.code((2 if step == 31 else 0) * MS)
    return made.items


def test_numbers_in_names_are_one_path(trace: MakeTrace) -> None:
    """Steps of a server, named after what they do: the glob makes them one path, and tokens have their cost."""
    answer = steps_of(trace(*served()), "execute_*")
    check(answer)
    [chain] = answer.chains
    assert chain.path == "execute_*_generation_*"
    assert chain.fit is not None
    [feature] = chain.fit.features
    assert feature.ns == pytest.approx(1000, rel=0.02)
    assert answer.steps.loc[answer.steps["class"] == "slow", "step"].tolist() == [31]
    assert any("per execute" in each.text for each in findings(answer))


@pytest.mark.parametrize(
    "items",
    [
        [Range("step 0", 0, 100), launch_kernel("gemm", (1, 2), (3, 90), id=1)],
        [Range("step 0", 0, 100), Range("step 1", 100, 100), launch_kernel("gemm", (1, 2), (3, 90), id=1)],
        [Range("step 0", 0, None), Range("step 1", 50, None), launch_kernel("gemm", (1, 2), (3, 90), id=1)],
        [Range("step 0", 0, 100), Range("step 1", 0, 100), launch_kernel("gemm", (1, 2), (3, 3), id=1)],
        [Range("step", 0, 100), Range("step", 10, 50), launch_kernel("gemm", (11, 12), (13, 40), id=1)],
    ],
    ids=["one", "no time", "never closed", "work of no time", "nested"],
)
def test_few_and_odd_steps_are_answered(trace: MakeTrace, items: list[Items]) -> None:
    """Whatever is asked for, there is an answer, and nothing is slow."""
    answer = steps_of(trace(*items), "step*")
    check(answer)
    assert "slow" not in set(answer.steps.get("class", ()))
    assert steps_text(answer)


def test_steps_of_a_large_recording_are_diagnosed(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are judged."""
    monkeypatch.setattr(judged_steps, "MAX_OPS", 0)
    assert steps_of(trace(*program({}).items)).diagnosis is not None


def test_few_steps_are_called_neither_slow_nor_steady(trace: MakeTrace) -> None:
    """Whether one of six is slow is not known, and neither that nothing stands out; without GPU work there is none."""
    made = Program()
    for step in range(6):
        with made.range(f"step {step}"):
            made.launch("gemm", (9 if step == 4 else 1) * MS)
            made.wait()
    with made.range("idle"):
        made.code(US)
    path = trace(*made.items)
    text = steps_text(steps_of(path, "step*"))
    assert "6 steps, too few to tell which steps are slow: each path needs at least 8" in " ".join(text.split())
    assert "No slow steps, patterns" not in text
    assert "no step ran on a GPU" in steps_text(steps_of(path, "idle"))


def test_a_part_of_the_excess_is_not_taken_for_all_of_it(trace: MakeTrace) -> None:
    """Code and a kernel each make a step longer; warm-up is blamed on what takes most of it in all of its steps."""
    made = Program()
    for step in range(40):
        with made.range(f"step {step}"):
            made.code((3 if step < 3 else 2 if step == 20 else 0) * MS)
            made.launch("first" if step == 0 else "gemm", (5 if step == 0 else 2 if step == 20 else 1) * MS)
            made.wait()
    answer = steps_of(trace(*made.items))
    slow, warm_up = findings(answer)
    assert slow.text.startswith("step 20 is slow: +3.00 ms, of which +2.00 ms host, code in step*; ")
    assert warm_up.text == "warm-up: 3 steps, +13.0 ms in all, most of all host, code in step*"


def test_nothing_that_repeats_is_refused_with_what_helps(trace: MakeTrace) -> None:
    """In one line, with a command."""
    path = trace(Range("train", 0, 100), launch_kernel("gemm", (1, 2), (3, 90), id=1))
    with pytest.raises(NsysprofError, match="no range repeats") as stop:
        steps_of(path)
    assert "--ranges found" in str(stop.value.hint)


def test_the_command_writes_what_the_answer_holds(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """Files, exit code, and a second run in the same folder; an other report is refused there."""
    path = trace(*program({20: "sleep", 21: "clock"}).items)
    done = run("steps", str(path), "--no-charts", "-o", "out")
    assert done.code == 0
    assert "of 80 steps" in done.out
    document = json.loads((tmp_path / "out" / "steps.json").read_text(encoding="utf-8"))
    assert document["schema"] == "nsysprof-steps/1"
    assert document["paths"][0]["classes"]["slow"] == 1
    assert [each["step"] for each in document["steps"] if each["class"] == "slow"] == [20]
    lines = (tmp_path / "out" / "steps.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 81
    assert run("steps", str(path), "--no-charts", "-o", "out", "--md").code == 0
    refused = run("steps", str(RUN), "--no-charts", "-o", "out")
    assert refused.code == 1
    assert f"not written by a run of {RUN}" in refused.err


@pytest.mark.parametrize(
    ("count", "at", "before", "behind"),
    [
        (40, 10, range(10), range(10, 20)),
        (40, 20, range(10, 20), range(20, 30)),
        (40, 30, range(20, 30), range(30, 40)),
        (99, 30, range(20, 30), range(30, 30 + NEAR)),
    ],
)
def test_a_change_compares_the_levels_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, count: int, at: int, before: range, behind: range
) -> None:
    """The nearest typical steps from the change before to it, and from it to the next, and no other step."""
    from nsysprof.steps import steps

    judged = Judgement(np.full(count, TYPICAL, np.uint8), np.ones(count), changes=((10, 2.0), (20, 0.5), (30, 2.0)))
    judged.of[[13, 25]] = SLOW
    monkeypatch.setattr(steps, "excess_of", lambda facts, windows, *levels: levels)
    asked: Any = (None, range(count), judged, at)
    compared: Any = steps._changed(*asked)
    new, old, level = compared
    assert (old.tolist(), level) == ([step for step in before if step not in (13, 25)], None)
    assert new.tolist() == [step for step in behind if step not in (13, 25)]
