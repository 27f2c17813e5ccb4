"""Forecasts from real and tiny reports: what they say, what they rest on, and when there is none."""

import gzip
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import nsysprof
from nsysprof.core.units import format_ns
from nsysprof.forecast import forecast as forecasts
from nsysprof.forecast import profiler
from nsysprof.forecast.files import write_forecast
from nsysprof.forecast.forecast import Forecast
from nsysprof.forecast.path import PARTS, PathParts, path_parts
from nsysprof.forecast.profiler import _quicker
from nsysprof.forecast.text import forecast_sentence, forecast_text
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.trace import KERNEL, MEMCPY
from nsysprof.waits.facts import read_facts
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import NEVER, ZERO, replay
from nsysprof.waits.spans import moments_of
from tests.conftest import MakeTrace
from tests.kit import simulated
from tests.kit.command_line import Run
from tests.kit.random_reports import random_report
from tests.kit.reports import TRACES, attributed
from tests.kit.trace import Gpu, Items, Launch, Range, launch_kernel, launch_memcpy

BLOCK, STEPS = TRACES / "block.sqlite", "RUN::math::S1024/iter*"
RANK = TRACES.parent / "analysis/two-ranks/rank_0.sqlite"
LOADER = TRACES.parent / "docs/gallery/loader.sqlite"


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of the model: its record widens intervals, and changes with each study."""
    monkeypatch.setattr(forecasts, "PUBLISHED", {})


def ask(path: Path, select: str | None = None, **changes: Any) -> Forecast:
    """The forecast of a report."""
    return nsysprof.forecast(attributed(path), select, **changes)


def refusal(path: Path, select: str | None = None, **changes: Any) -> str:
    """Why there is no forecast; the exit code says that this is an answer."""
    with pytest.raises(nsysprof.NsysprofError) as caught:
        ask(path, select, **changes)
    assert caught.value.exit_code == 3
    return caught.value.message


def test_windows_of_a_replay_are_those_of_the_recording() -> None:
    """A change that changes nothing leaves every step as it was recorded."""
    same = ask(BLOCK, STEPS, as_profiled=True, delay=["backward=0us"])
    windows = nsysprof.why(attributed(BLOCK), STEPS).windows
    length = (windows["end_ns"] - windows["start_ns"]).to_numpy()
    assert (same.base == length).all()
    assert (same.forecast == length).all()


def test_a_forecast_is_of_the_program_without_its_profiler() -> None:
    """The record of the capture says how long steps are then; without it the answer says that it is as profiled."""
    plain, profiled = (ask(BLOCK, STEPS, graph=["backward"]), ask(BLOCK, STEPS, graph=["backward"], as_profiled=True))
    assert plain.unprofiled is not None
    assert abs(plain.unprofiled.residual) < 0.01
    assert plain.base_ns / profiled.base_ns == pytest.approx(1371936 / 1652784, rel=0.01)
    assert profiled.as_profiled
    assert "includes profiling overhead" in forecast_text(profiled)
    assert "scaled to the unprofiled steps of" in forecast_text(plain)


@pytest.mark.parametrize(
    ("profiled", "plain", "says"),
    [
        (1.5, 0.83, ""),
        (1.51, 0.83, "take 2.55 ms according to "),
        (1, 0.3, "the replay misses this time by"),
        (1, 1, ""),
    ],
)
def test_a_record_is_of_the_same_program_and_within_reach_of_the_replay(
    monkeypatch: pytest.MonkeyPatch, profiled: float, plain: float, says: str
) -> None:
    """Steps that took at most 1.5 times as long, and a time without a profiler that some cost of a call explains."""
    recorded = ask(BLOCK, STEPS, delay=["backward=0us"], as_profiled=True).base_ns
    ns = recorded * profiled
    monkeypatch.setattr(profiler, "plain_steps", lambda *_: (ns * plain, ns, "iter"))
    if says:
        assert says in refusal(BLOCK, STEPS, graph=["backward"])
    else:
        assert ask(BLOCK, STEPS, graph=["backward"]).base_ns == pytest.approx(recorded * plain, rel=0.02)


@pytest.mark.parametrize(("pause", "plain"), [(1_500, 800), (900, 300), (200, 200)])
def test_without_the_profiler_ops_follow_one_another_sooner(trace: MakeTrace, pause: int, plain: int) -> None:
    """By 700 ns from op to op of a stream, at most down to 300; what waits for its launch still does."""
    end = 10_000 + pause
    path = trace(
        launch_kernel("a", (0, 1_000), (3_000, 10_000), id=1),
        launch_kernel("b", (1_100, 2_000), (end, end + 5_000), id=2),
        launch_kernel("c", (2_100, 2_500), (end + 5_000 + pause, end + 20_000), id=3),
        launch_kernel("late", (60_000, 61_000), (63_000, 70_000), id=4),
    )
    attribution = attributed(path).launched
    facts = read_facts(attribution, kinds_of(attribution.trace, None), None)
    moments = moments_of(attribution.trace, np.zeros(0, np.intp))
    network = network_of(attribution, facts.activity, facts.dependencies, moments, facts.peers)
    before, after = replay(network), replay(_quicker(network))
    assert (before.of()[0] == attribution.trace.ops.start).all()
    saved = pause - plain
    assert (before.of()[0] - after.of()[0]).tolist() == [0, saved, 2 * saved, 0]


def test_a_graph_takes_the_host_out_of_a_launch_bound_step() -> None:
    """What is left is no shorter than its compute, and the sentence says what makes the difference."""
    answer = ask(BLOCK, STEPS, graph=["iter*"])
    assert answer.forecast_ns < 0.5 * answer.base_ns
    assert answer.after.ns[0] > 0.8 * answer.forecast_ns
    assert sum(answer.before.ns) == pytest.approx(answer.base_ns, rel=0.05)
    sentence = forecast_sentence(answer)
    assert sentence.startswith("iter* as a CUDA graph: step 1.40 → 0.55 ms (")
    assert "because CPU time" in sentence
    assert sentence.endswith("the accuracy of this kind of forecast has not been measured yet")


def test_where_the_host_is_late_a_faster_kernel_brings_nothing() -> None:
    """And where the GPU is busy all the while its gain reaches the step."""
    assert ask(BLOCK, STEPS, scale=["*gemm*=0.5"]).forecast_ns == ask(BLOCK, STEPS, delay=["iter*=0us"]).base_ns
    tiled = ask(TRACES.parent / "analysis/tiled-attention/tiled.sqlite", scale=["*tiled*=0.5"])
    assert tiled.forecast_ns == pytest.approx(tiled.base_ns / 2, rel=0.01)
    assert tiled.gain_ns == tiled.base.sum() - tiled.forecast.sum() > 0


@pytest.mark.parametrize(
    ("lag", "behind", "kind", "ns", "parts"),
    [
        (4, 0, KERNEL, {0: 100, 1: 70}, (170, 0, 4)),  # op 1 begins 4 ns behind the end of op 0
        (-20, 0, KERNEL, {0: 80, 1: 70}, (150, 0, 0)),  # it begins before op 0 is through
        (-20, 30, KERNEL, {0: 80, 1: 70}, (150, 0, 0)),  # also where op 0 takes longer than its own length
        (4, 30, KERNEL, {0: 100, 1: 70}, (170, 0, 4)),
        (4, 30, MEMCPY, {0: 100, 1: 70}, (100, 70, 4)),  # kernels that were put behind a copy compute
        (-20, 30, MEMCPY, {0: 80, 1: 70}, (80, 70, 0)),  # op 1 waits for none of their last 20 ns
    ],
)
def test_a_critical_path_has_each_ns_once(
    lag: int, behind: int, kind: int, ns: dict[int, int], parts: tuple[int, int, int]
) -> None:
    """From the end of the last op back: ops with their own time, latency between them, and the first call's host."""
    first, second, none = 2, 3, [NEVER] * 4
    edges = [
        SimpleNamespace(to=[*none[:2], ZERO, first], lag=[0, 0, 3, lag], moment=[-1, -1, 0, -1], op=[-1, -1, -1, 0]),
        SimpleNamespace(to=none, lag=[0] * 4, moment=[-1] * 4, op=[-1] * 4),
    ]
    network = SimpleNamespace(
        gaps=np.array([5]), anchor=np.array([0]), length=np.array([100, 70]), behind=[behind, 0], edges=edges,
        done=np.array([first, second]), node=[ZERO], starts=[False, False, True, True], waits=[0] * 4, extra=[0] * 4,
    )  # fmt: skip
    begins = 100 + lag
    times = SimpleNamespace(node=np.array([0, -(1 << 61), 0, begins]))
    ops = SimpleNamespace(kind=[kind, KERNEL], name=[0, 0])
    facts = SimpleNamespace(attribution=SimpleNamespace(trace=SimpleNamespace(ops=ops)), communication=[False])
    found = path_parts(facts, network, times, -50, np.array([0, 1]), -1)  # type: ignore[arg-type]
    compute, copies, latency = parts
    assert found == PathParts((compute, 0, copies, 50 - 3, latency + 3), ns)


def test_a_published_error_widens_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several kinds of questions the one that was off most counts; without a record for each there is none."""
    before = ask(BLOCK, STEPS, graph=["backward"])
    monkeypatch.setattr(forecasts, "PUBLISHED", {"graph": (0.03, 0.08, 0.06, 27)})
    after = ask(BLOCK, STEPS, graph=["backward"])
    assert after.low_ns == pytest.approx(before.low_ns * 0.94)
    assert after.high_ns == pytest.approx(before.high_ns * 1.06)
    assert after.published == "forecasts of this kind were off by 3.0 % (median), 8.0 % (worst of 27)"
    wider = "from this run's steps; each end is widened by 6.0 % (p90 error of such forecasts)"
    assert wider in " ".join(forecast_text(after).split())
    both = ask(BLOCK, STEPS, graph=["backward"], scale=["*gemm*=0.5"])
    assert "from this run's steps alone" in forecast_text(both)
    assert both.published == "the accuracy of this kind of forecast has not been measured yet"


def steps_with(*inside: simulated.Do, count: int = 4) -> list[simulated.Do]:
    """A program of a few equal steps."""
    return [*simulated.PROLOGUE, *(simulated.Do("range", name="step", body=inside) for _ in range(count))]


def test_steps_that_wait_each_time_shrink_without_the_wait(trace: MakeTrace) -> None:
    """By what lies between the end of a kernel and the next launch, as a simulation has it."""
    do = simulated.Do
    kernels = (do("launch", 900, 7, "k"), do("range", name="part", body=(do("sync", stream=7),)), do("code", 400))
    program = steps_with(*kernels, count=8)
    path = trace(*simulated.simulate(program).items)
    answer = ask(path, "step", drop_sync=["part"])
    after = simulated.simulate(simulated.changed(program, "nosync"))
    ends = np.array([end for start, end in after.ops if end - start == 900])
    assert answer.forecast[-1] == np.diff(ends)[-1]
    assert answer.forecast_ns < answer.base_ns


def test_a_replay_beyond_the_memory_limit_says_so() -> None:
    """The limit bounds reading; a replay needs what it needs."""
    answer = nsysprof.forecast(attributed(BLOCK, memory_limit=1), STEPS, delay=["iter*=5us"])
    assert "more than the limit" in " ".join(answer.notes)


def test_a_removed_culprit_takes_its_time_along(trace: MakeTrace) -> None:
    """Code of 400 ns in each step, which the GPU waits for."""
    do = simulated.Do
    slow = do("range", name="slow", body=(do("code", 400),))
    program = steps_with(slow, do("launch", 100, 7, "k"), do("sync", stream=7))
    answer = ask(trace(*simulated.simulate(program).items), "step", remove=["code in slow"])
    assert answer.base_ns - answer.forecast_ns == 400


def test_copies_that_do_not_block_let_the_host_go_on(trace: MakeTrace) -> None:
    """A copy from pageable memory, whose call returns with it."""
    items: list[Items] = []
    for at in (0, 1_000, 2_000):
        items += [
            Range("step", at, at + 900),
            launch_memcpy((at + 10, at + 330), (at + 20, at + 320), id=at + 1, kind=1, host=0),
            launch_kernel("k", (at + 700, at + 710), (at + 720, at + 880), id=at + 2),
        ]
    answer = ask(trace(*items), "step", async_copies=True)
    assert answer.forecast_ns < answer.base_ns - 150  # such a call takes as long as launches do


@pytest.mark.parametrize(("api", "gone"), [("cudaStreamSynchronize", True), ("cudaDeviceSynchronize", False)])
def test_copies_that_do_not_block_leave_synchronizations_of_the_device(trace: MakeTrace, api: str, gone: bool) -> None:
    """`.to()` waits for its copy with the stream; who waits for the whole device means it."""
    items: list[Items] = []
    for at in range(0, 17_600, 2_200):
        items += [
            Range("step", at, at + 2_100),
            launch_kernel("k", (at + 10, at + 20), (at + 40, at + 1_040), id=at + 1),
            launch_memcpy((at + 30, at + 2_000), (at + 1_050, at + 1_990), id=at + 2, kind=1, host=0),
            Launch(at + 2_010, at + 2_020, at + 3, api=f"{api}_v3020"),
        ]
    answer = ask(trace(*items), "step", async_copies=True)
    assert (answer.forecast_ns < 2_100) == gone  # from one to the next are 2,200; on the GPU 1,950 of these


def test_a_kernel_behind_a_copy_is_compute_for_which_the_call_of_the_copy_does_not_wait(trace: MakeTrace) -> None:
    """As `.item()` at the end of a range: the host is back before the kernel is launched."""
    items: list[Items] = []
    for at in range(0, 13_680, 1_710):
        items += [
            Range("step", at, at + 1_700),
            Range("loss", at + 200, at + 1_550),
            launch_kernel("k", (at + 10, at + 20), (at + 40, at + 1_040), id=at + 1),
            launch_memcpy((at + 300, at + 1_500), (at + 1_050, at + 1_490), id=at + 2, kind=2, host=0),
            Launch(at + 1_510, at + 1_520, at + 3, api="cudaStreamSynchronize_v3020"),
            launch_kernel("next", (at + 1_660, at + 1_670), (at + 1_700, at + 1_710), id=at + 4),
        ]
    answer = ask(trace(*items), "step", gpu_delay=["loss=300ns"])
    before, after = (dict(zip(PARTS, parts.ns, strict=True)) for parts in (answer.before, answer.after))
    assert after["copies"] == before["copies"] == 440
    assert after["compute"] == before["compute"] + 300 + 10  # as long as ops of a stream are apart
    assert 50 < answer.forecast_ns - answer.base_ns < 300  # the host launches what is next meanwhile


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scale": ["*=0.5"]}, "changes of clock, GPU or batch size are not modelled"),
        ({"no_late_peer": True}, "this report has no collective of two or more ranks"),
        ({"remove": ["*"]}, "changes of clock, GPU or batch size are not modelled"),
        ({"graph": ["backward"], "record": TRACES / "run.json"}, "in this report: the program or the range differs"),
        ({"graph": ["RUN::math::S1024"]}, "cannot be captured as a CUDA graph: it waits for the GPU in cuda"),
    ],
)
def test_what_is_not_modelled_has_no_forecast(changes: dict[str, Any], says: str) -> None:
    """One line says so."""
    assert says in refusal(BLOCK, STEPS, **changes)


def test_a_kernel_of_few_blocks_leaves_the_gpu_to_others(trace: MakeTrace) -> None:
    """Beside a kernel of one block others run as before; how they share the GPU with one of many is not modelled."""

    def steps(blocks: int) -> Path:
        items: list[Items] = [Gpu()]
        for at in range(0, 10_000, 1_000):
            items += [
                Range("step", at, at + 60),
                launch_kernel("side", (at + 10, at + 20), (at + 30, at + 130), id=at + 1, stream=8,
                              grid=(blocks, 1, 1)),
                launch_kernel("long", (at + 25, at + 30), (at + 40, at + 900), id=at + 2, grid=(4096, 1, 1)),
            ]  # fmt: skip
        return trace(*items)

    change = {"scale": ["side=3"]}
    assert "kernels would run concurrently" in refusal(steps(1_000), "step", **change)
    answer = ask(steps(1), "step", **change)
    assert answer.forecast_ns == answer.base_ns


def test_processes_that_share_a_gpu_have_no_forecast() -> None:
    """How they slow each other is not modelled."""
    assert "2 processes share GPU 0" in refusal(TRACES / "two-processes.sqlite", delay=["*=5us"])


def test_what_nothing_explains_has_no_forecast(trace: MakeTrace) -> None:
    """Kernels that start long after their launch, for no reason."""
    items: list[Items] = []
    for at in range(0, 5_000_000, 1_000_000):
        items += [
            Range("step", at, at + 500_000),
            launch_kernel("k", (at + 10, at + 20), (at + 400_000, at + 450_000), id=at + 1),
        ]
    items.append(launch_kernel("k", (-900, -890), (-880, -870), id=7))
    assert "the cause of waits is unknown for" in refusal(trace(*items), "step", scale=["k=0.5"])


@pytest.mark.parametrize("order", [1, -1])
def test_of_kernels_that_end_a_gap_together_the_shorter_one_says_what_the_gpu_waited_for(
    trace: MakeTrace, order: int
) -> None:
    """Whichever row of the file comes first: here the one that nothing explains."""
    items: list[Items] = []
    for at in range(0, 5_000_000, 1_000_000):
        both = [
            launch_kernel("k", (at + 10, at + 20), (at + 400_000, at + 450_000), id=at + 1),
            launch_kernel("long", (at + 399_980, at + 399_990), (at + 400_000, at + 460_000), id=at + 2, stream=8),
        ]
        items += [Range("step", at, at + 500_000), *both[::order]]
    assert "the cause of waits is unknown for" in refusal(trace(*items), "step", scale=["k=0.5"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "no change to forecast"),
        ({"scale": ["gemmm=0.5"]}, "no kernel or family of"),
        ({"scale": ["k"]}, "lacks a name or a value"),
        ({"set": ["*gemm*=5 lightyears"]}, "is not a time"),
        ({"scale": ["*gemm*=fast"]}, "is not a factor"),
        ({"delay": ["iter*=99999999999999s"]}, "more than an hour"),
        ({"graph": ["nowhere"]}, "no range of"),
        ({"swap": ["nothing.csv"]}, "nothing.csv: cannot read it"),
        ({"swap": ["forward=nothing.csv"]}, "does not name a row"),
        ({"remove": ["nobody"]}, "no cause of"),
        ({"remove": [""]}, "no cause of"),
        ({"record": Path("nothing.json"), "graph": ["backward"]}, "nothing.json has no unprofiled times"),
        ({"record": TRACES / "run.sqlite", "graph": ["backward"]}, "run.sqlite has no unprofiled times"),
    ],
)
def test_questions_that_make_no_sense_are_known_failures(changes: dict[str, Any], says: str) -> None:
    """One line with what is near, and a hint."""
    with pytest.raises(nsysprof.NsysprofError) as caught:
        ask(BLOCK, STEPS, **changes)
    assert says in caught.value.message
    assert caught.value.exit_code == 1
    assert caught.value.hint


def test_the_reason_is_that_of_one_step_and_in_the_direction_of_the_change() -> None:
    """Parts are of the same step now and then; where medians change and no step does alike, none is given."""
    half = ask(RANK, scale=["*nccl*=0.5"])
    starts = half.base.tolist(), half.forecast.tolist()
    assert (sum(half.before.ns), sum(half.after.ns)) in zip(*starts, strict=True)
    why = "; both times are medians of steps that change by different amounts; the accuracy of this kind"
    assert why in forecast_sentence(half)
    parts = PathParts((0, 0, 0, 500, 100)), PathParts((450, 0, 0, 0, 100))
    assert parts[0].compared_with(parts[1]).startswith("CPU time")
    assert parts[1].compared_with(parts[0]).startswith("CPU time")
    assert parts[0].compared_with(PathParts((400, 0, 0, 100, 100))) == ""
    assert ", a change of less than 0.1 %; " in forecast_sentence(ask(LOADER, delay=["step*=2us"]))
    late = forecast_sentence(ask(BLOCK, STEPS, scale=["*gemm*=0.5"]))
    assert ", because the change is not on the critical path; " in late


def test_short_forecasts_keep_digits_and_paths_without_a_change_are_counted() -> None:
    """4.68 ms to 0.047 ms; of 19 other paths those that change are named, the first eight."""
    tiled = TRACES.parent / "analysis/tiled-attention/tiled.sqlite"
    text = forecast_text(ask(tiled, set=["*tiled*=1us"]))
    assert " → 0.047 ms (" in text
    assert "3 more paths: see other_paths in forecast.json" in text
    assert "steps of 8 other paths do not change" in text


def test_times_can_come_from_a_table_or_report(trace: MakeTrace, tmp_path: Path) -> None:
    """Kernels by name; or one kernel of a row in place of all that a range runs."""
    table = tmp_path / "kernels.csv"
    table.write_text("kernel,median_ns\nnothing,5\n")
    with pytest.raises(nsysprof.NsysprofError, match="no kernel of"):
        ask(BLOCK, STEPS, swap=[str(table)])
    packed = table.with_name("kernels.csv.gz")
    packed.write_bytes(gzip.compress(table.read_bytes()))
    with pytest.raises(nsysprof.NsysprofError, match="no kernel of"):
        ask(BLOCK, STEPS, swap=[str(packed)])
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(nsysprof.NsysprofError, match="cannot read it: damaged gzip data"):
        ask(BLOCK, STEPS, swap=[str(packed)])
    table.write_text("kernel,median_ns\nx,inf\ny,fast\nz,-5\nv,1e30\n")
    for row in "xyzv":
        with pytest.raises(nsysprof.NsysprofError, match="has 0 rows named"):
            ask(BLOCK, STEPS, swap=[f"forward={table}:{row}"])
    with pytest.raises(nsysprof.NsysprofError, match="no kernel of"):
        ask(BLOCK, STEPS, swap=[str(table)])
    results = TRACES.parent / "analysis/baseline/results.csv"
    with pytest.raises(nsysprof.NsysprofError, match="has 10 rows named"):
        ask(BLOCK, STEPS, swap=[f"forward={results}:flash"])
    bench = pd.read_csv(results)
    many = bench[bench["backend"].eq("flash") & bench["graph_median_ns"].notna()].iloc[-1]
    answer = ask(BLOCK, STEPS, swap=[f"forward={results}:{many['configuration']}/flash"])
    assert format_ns(round(many["graph_median_ns"])) in answer.words  # that of a call holds its launches too
    row = "B32.H8.S128.D64.fp16.full/flash"
    one = ask(BLOCK, STEPS, swap=[f"forward={results}:{row}"], graph=["iter*"])
    assert one.forecast_ns < ask(BLOCK, STEPS, graph=["iter*"]).forecast_ns
    assert row in one.words
    one_size = TRACES.parent / "analysis/tiled-attention/tiled.sqlite"
    table.write_text("kernel,median_ns\nk,5000\nk,5100\n")
    program = steps_with(simulated.Do("launch", 900, 7, "k"), simulated.Do("sync", stream=7))
    faster = ask(trace(*simulated.simulate(program).items), "step", swap=[str(table)])
    assert faster.forecast_ns - faster.base_ns == 5050 - 900
    assert "unknown which of these times to use" in refusal(one_size, swap=[str(one_size)])


def test_the_document_holds_the_question_and_its_hash(tmp_path: Path) -> None:
    """And the step one by one."""
    answer = ask(BLOCK, STEPS, graph=["backward"])
    [path] = write_forecast(answer, tmp_path)
    document = json.loads(path.read_text())
    assert document["schema"] == "nsysprof-forecast/1"
    assert document["question"] == {"range": STEPS, "graph": ["backward"]}
    assert len(document["report_sha256"]) == len(document["question_sha256"]) == 64
    assert len(document["steps"]) == 20
    assert document["low_ns"] <= document["forecast_ns"] <= document["high_ns"]


def test_the_command_writes_what_it_says(tmp_path: Path, run: Run) -> None:
    """Sentence on stdout, folder with document and page; 3 for a refusal."""
    run = partial(run, "forecast")
    done = run(BLOCK, "--range", STEPS, "--graph", "backward", "-o", str(tmp_path / "a"), "--html", "--md")
    assert done.code == 0, done.err
    assert "as a CUDA graph" in done.out
    assert {"forecast.json", "forecast.png", "report.html"} == {each.name for each in (tmp_path / "a").iterdir()}
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert page.index("<img") < page.index("model error without the change")  # the chart comes before the method
    refused = run(BLOCK, "--range", STEPS, "--scale", "*=2", "-o", str(tmp_path / "b"))
    assert refused.code == 3
    assert refused.err.count("\n") <= 2


@pytest.mark.parametrize("seed", [37, 42])
def test_reports_without_a_call_are_refused(trace: MakeTrace, seed: int) -> None:
    """GPU ops of which no launch is recorded, and no moment of the host."""
    assert refusal(trace(*random_report(seed)), async_copies=True, as_profiled=True)


def test_a_report_without_gpu_work_or_ranges(trace: MakeTrace) -> None:
    """One line each."""
    with pytest.raises(nsysprof.NsysprofError):
        ask(trace(Range("step", 0, 10), Launch(1, 2, 5, api="cudaMalloc_v3020")), delay=["step=1us"])
    alone = trace(launch_kernel("k", (0, 10), (20, 30), id=1), launch_kernel("k", (11, 20), (32, 40), id=2))
    answer = ask(alone, scale=["k=0.5"])
    assert (answer.base.tolist(), answer.forecast.tolist()) == (
        [20],
        [14],
    )  # the second one was launched at 20, and its launch takes 10
    assert "one step: no interval" in forecast_text(answer)
