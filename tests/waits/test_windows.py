"""The clock of steps: pauses between them, what outlasts them, lines of threads and processes, and warm-up."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nsysprof.diagnosis.text import headline
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.statistics.judge import LOST
from nsysprof.steps.steps import steps as judged_steps
from nsysprof.waits.facts import read_facts
from nsysprof.waits.windows import blocking_communication
from nsysprof.why.text import why_text
from tests.conftest import MakeTrace
from tests.kit.program import MS, US, Program
from tests.kit.reports import attributed
from tests.kit.trace import Diagnostic, Items, Kernel, OsCall, Range, launch_kernel
from tests.why.test_why import check_sums, why_of

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 6


def nothing(program: Program) -> None:
    """No work."""


def loader(program: Program) -> None:
    """The host gets the next batch."""
    program.wait()
    program.os("poll", 3 * MS)


def validation(program: Program) -> None:
    """The GPU computes all the while."""
    program.launch("evaluate", 3 * MS)
    program.wait()


def prefetch(program: Program) -> None:
    """A copy in a separate stream that takes longer than the step's compute."""
    program.copy(1, 1 << 24, 2 * MS, stream=20)


def collective(program: Program) -> None:
    """The last collective of a step, which the next one waits for."""
    program.stream_waits(program.record(7), 20)
    program.launch(NCCL, 2 * MS, stream=20)
    program.stream_waits(program.record(20), 7)


CASES = [
    # in the step, between two steps, span of a step behind the first, of which between
    (nothing, nothing, 1 * MS, 0),
    (nothing, loader, 4 * MS, 3 * MS),
    (nothing, validation, 1 * MS, 0),
    (prefetch, nothing, 1 * MS, 0),
    (collective, nothing, 3 * MS, 0),
]


def steps(act: Callable[[Program], None], between: Callable[[Program], None], wait: bool) -> Program:
    """Steps whose kernel takes a millisecond; ``wait``: the host waits for it."""
    made = Program()
    for number in range(STEPS):
        with made.range(f"step {number}"):
            made.launch("gemm", MS)
            done = made.free[7]
            act(made)
            if wait:
                made.wait("cudaEventSynchronize", done)
        between(made)
    made.launch("gemm", MS)
    return made


@pytest.mark.parametrize(
    ("act", "between", "span", "paused"), CASES, ids=[f"{case[0].__name__}-{case[1].__name__}" for case in CASES]
)
def test_a_step_goes_from_the_end_of_the_one_before_to_its_own(
    trace: MakeTrace, act: Callable[[Program], None], between: Callable[[Program], None], span: int, paused: int
) -> None:
    """A loader is a part of the step behind it, a validation of none; copies ahead move no end, collectives do."""
    answer = why_of(trace(*steps(act, between, wait=act is not collective).items), "step*", skip=0)
    check_sums(answer)
    windows = answer.windows.sort_values("start_ns")
    behind = windows.iloc[1:-1]
    assert len(windows) == STEPS
    assert (behind["end_ns"] - behind["start_ns"]).tolist() == [pytest.approx(span, rel=0.05)] * len(behind)
    assert behind["between_ns"].tolist() == [pytest.approx(paused, rel=0.05)] * len(behind)
    rows = answer.rows[answer.rows["range"] == "between steps"]
    assert rows["waited_ns"].sum() == windows["between_ns"].sum()
    assert set(rows["culprit"]) <= {f"{what} between steps" for what in ("poll", "code", "cudaStreamSynchronize")}


@pytest.mark.parametrize("times", [(0,), (0, 450), (0, 450, 900)])
def test_lines_of_threads_and_processes_are_apart(trace: MakeTrace, times: tuple[int, ...]) -> None:
    """Threads in turn have one line of steps; threads at a time, and processes, one each: none is cut by another."""
    for key in ("thread", "process"):
        items: list[Items] = []
        for number in range(4):
            for place, later in enumerate(times):
                at = 10_000 * number + later
                where: dict[str, Any] = {key: place + 1}
                id = 10 * number + place + 1
                items.append(Range("step", at, at + 1_000, **where))
                items.append(launch_kernel("k", (at + 10, at + 20), (at + 30, at + 900), id=id, stream=place, **where))
        windows = why_of(trace(*items), "step", skip=0).windows
        assert len(windows) == 4 * len(times)
        spans = windows["end_ns"] - windows["start_ns"] - windows["between_ns"]
        assert (spans == 1_000).all()


def test_streams_that_end_iterations_in_another_order_leave_each_a_window(trace: MakeTrace) -> None:
    """Iterations are launched into two streams, and each second one ends before the one launched ahead of it."""
    items: list[Items] = []
    for number in range(20):
        at, late = 100 * number, 500 * (number % 2 == 0)
        ends = 1_000 * (number + 2) + 3 * late
        for turn, name in enumerate("ab"):
            ran = (ends - 700 + 350 * turn, ends - 350 + 350 * turn)
            called = (at + 10 + 20 * turn, at + 20 + 20 * turn)
            items.append(launch_kernel(name, called, ran, id=2 * number + turn + 1, stream=number % 2))
    windows = why_of(trace(*items), "iteration*", skip=0).windows.sort_values("start_ns")
    assert windows["end_ns"].tolist()[:6] == [3_000, 3_500, 5_000, 5_500, 7_000, 7_500]
    assert len(windows) == 20
    assert windows["start_ns"].tolist()[1:] == windows["end_ns"].tolist()[:-1]


@pytest.mark.parametrize("pool", [2, 3])
def test_threads_that_take_turns_are_one_line(trace: MakeTrace, pool: int) -> None:
    """Steps of a pool of threads follow one another, so the pause before each goes back to another thread's step."""
    items: list[Items] = [OsCall("read", 1, 2, thread) for thread in range(1, pool + 1)]
    for number in range(6):
        at, thread = 2_000 * number, (number + 1) % pool + 1
        items.append(Range("step", at, at + 1_000, thread=thread))
        items.append(launch_kernel("k", (at + 10, at + 20), (at + 30, at + 1_000), id=number + 1, thread=thread))
    answer = why_of(trace(*items), "step", skip=0)
    assert answer.windows.sort_values("start_ns")["between_ns"].tolist() == [0, *[1_000] * 5]
    assert (answer.waits["range"] == "between steps").sum() == 5


@pytest.mark.parametrize(("busy", "paused"), [(100, 1_000), (101, 0)])
def test_a_pause_in_which_the_gpu_computes_is_no_part_of_a_step(trace: MakeTrace, busy: int, paused: int) -> None:
    """For more than a tenth of it; what computes in one pause of many leaves the others as they are."""
    for where in (range(6), [3]):
        items: list[Items] = []
        for number in range(6):
            at = 2_000 * number
            items += [
                Range("step", at, at + 1_000),
                launch_kernel("k", (at, at + 1), (at + 2, at + 1_000), id=number + 1),
            ]
            items += [Kernel("other", at + 1_100, at + 1_100 + busy, None, stream=9)] * (number in where)
        windows = why_of(trace(*items), "step", skip=0).windows.sort_values("start_ns")
        expected = [paused if number - 1 in where else 1_000 for number in range(1, 6)]
        assert windows["between_ns"].tolist() == [0, *expected]


@pytest.mark.parametrize(
    ("slow", "count", "left_out"),
    [({0: 5}, 4, 1), ({0: 5}, 12, 1), ({0: 9, 1: 4}, 12, 2), ({5: 5}, 12, 0), ({}, 12, 0), ({0: 5}, 2, 0)],
)
def test_warm_up_is_left_out(trace: MakeTrace, slow: dict[int, int], count: int, left_out: int) -> None:
    """The first steps that take longer: of why by default, and of nothing else."""
    made = Program()
    for number in range(count):
        with made.range(f"step {number}"):
            made.launch("gemm", 400 * US * slow.get(number, 1))
            made.wait()
    path = trace(*made.items)
    answer = why_of(path, "step*")
    assert (len(answer.windows), answer.warm_up) == (count - left_out, left_out)
    assert ("left out as warm-up" in answer.picked) == (left_out > 0)
    assert f"({count - left_out} steady steps of " in " ".join(why_text(answer).split())
    assert len(why_of(path, "step*", skip=0).windows) == count


@pytest.mark.parametrize("order", [1, -1])
def test_of_collectives_that_end_together_the_last_to_start_is_what_blocks(trace: MakeTrace, order: int) -> None:
    """Whichever row of the file comes first."""
    both = [
        launch_kernel(NCCL, (5, 6), (20, 100), id=1, stream=20),
        launch_kernel(NCCL.replace("AllReduce", "AllGather"), (7, 8), (40, 100), id=2, stream=21),
    ]
    attribution = attributed(trace(*both[::order], launch_kernel("gemm", (0, 5), (10, 20), id=3))).launched
    read = attribution.trace
    facts = read_facts(attribution, classify(load_rules(None), read.op_names), None)
    begun, ended, op = blocking_communication(read, facts.reasons, facts.communication, 0, int(read.op_process[0]))
    assert [(begun.tolist(), ended.tolist()), "AllGather" in read.op_names[read.ops.name[op[0]]]] == [
        ([40], [100]),
        True,
    ]


@pytest.mark.parametrize(
    ("lost", "early", "late"),
    [
        ("CUDA", [*["gemm"] * 6, "check"], ["gemm"] * 6),
        ("CUDA", ["train"] * 10, ["eval"] * 4),
        ("NVTX", ["gemm"] * 10, ["gemm"] * 4),
    ],
    ids=["as long on the GPU", "other kernels", "lost ranges"],
)
def test_later_steps_with_fewer_ops_are_kept(trace: MakeTrace, lost: str, early: list[str], late: list[str]) -> None:
    """Twenty steps of 6 ms of which the later have fewer kernels, in a recording that lost some events."""
    program = Program()
    for number in range(20):
        with program.range(f"step{number}"):
            for name in early if number < 10 else late:
                program.launch(name, 5 * US if name == "check" else 400 * US)
            program.wait()
            program.code((number + 1) * 6 * MS - program.now)
    answer = why_of(trace(*program.items, Diagnostic(f"Not all {lost} events might have been collected.")), None)
    assert len(answer.windows) == 20


@pytest.mark.parametrize(
    ("lost", "said", "shorter", "left_out"),
    [(6, True, False, 6), (2, True, False, 0), (6, False, False, 0), (6, True, True, 0)],
    ids=["lost", "few", "nothing is said of lost events", "shorter steps"],
)
def test_steps_whose_gpu_ops_were_lost_are_left_out(
    trace: MakeTrace, lost: int, said: bool, shorter: bool, left_out: int
) -> None:
    """Twelve steps of four kernels and 3 ms of code; nsys lost two kernels of each of the last steps, or these do less
    work and are shorter.
    """
    program = Program()
    for number in range(12):
        less = number >= 12 - lost
        with program.range(f"step{number}"):
            for _ in range(2 if less and shorter else 4):
                program.launch("gemm", 200 * US)
            if less and not shorter:
                del program.items[-4:]  # two launches and their kernels
            program.wait()
            program.code((1 if less and shorter else 3) * MS)
    message = Diagnostic("Not all CUDA events might have been collected." if said else "Profiling has started.")
    answer = why_of(trace(*program.items, message), None)
    assert len(answer.windows) == 12 - left_out
    found = answer.diagnosis
    assert found is not None
    assert found.left_out == 0
    told = "later steps left out, because nsys lost GPU operations"
    assert (told in headline(found, "r")) == (told[6:] in answer.picked) == (left_out > 0)


@pytest.mark.parametrize("second", ["batch", "step"])
def test_only_the_process_that_lost_operations_is_marked(trace: MakeTrace, second: str) -> None:
    """Two processes have one GPU and twelve steps each; nsys lost two kernels of each of the last six of the second."""
    items: list[Any] = []
    for process, name in ((1, "step"), (2, second)):
        program = Program()
        program.now += process * 100 * US
        for number in range(12):
            with program.range(f"{name}{number}"):
                for _ in range(4):
                    program.launch("gemm", 200 * US, stream=6 + process)
                if process == 2 and number >= 6:
                    del program.items[-4:]
                program.wait()
                program.code(3 * MS)
        own = {"process": process, "thread": process}
        made: list[Any] = [*program.items]
        items += [replace(each, **{name: own[name] for name in own if hasattr(each, name)}) for each in made]
    file = trace(*items, Diagnostic("Not all CUDA events might have been collected."))
    kept = {"step": 12, second: 6} if second == "batch" else {"step": 18}
    assert {name: len(why_of(file, f"{name}*").windows) for name in kept} == kept
    assert sum(len(chain.of(LOST)) for chain in judged_steps(attributed(file), f"{second}*").chains) == 6


@pytest.mark.parametrize(("other", "some"), [(0, "6 later steps on GPU 1"), (6, "6 later steps")])
def test_operations_lost_on_one_of_several_gpus_are_told(trace: MakeTrace, other: int, some: str) -> None:
    """Each of twelve steps runs on two GPUs; nsys lost two kernels of the second in the last six, or of both."""
    program = Program()
    for number in range(12):
        with program.range(f"step{number}"):
            for gpu, lost in ((0, other), (1, 6)):
                for _ in range(4):
                    program.launch("gemm", 200 * US, stream=7 + gpu, device=gpu)
                if number >= 12 - lost:
                    del program.items[-4:]
            program.wait()
            program.code(3 * MS)
    found = why_of(trace(*program.items, Diagnostic("Not all CUDA events might have been collected.")), None).diagnosis
    assert found is not None
    assert found.left_out == 0
    assert f"; {some} left out, because nsys lost GPU operations" in headline(found, "r")
