"""What a change is about: kernels by name or kind, calls that wait, and pages that came while kernels ran."""

from typing import Any

import numpy as np
import pytest

from nsysprof.core.text import plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.trace import MIGRATION
from nsysprof.waits import edits
from nsysprof.waits.change import steps_of
from nsysprof.waits.changes import AbstainError, Changes
from nsysprof.waits.facts import read_facts
from nsysprof.waits.program import Program
from nsysprof.waits.purposes import _usual
from nsysprof.waits.ranges import choose_windows
from nsysprof.waits.removals import _code_that_faulted, code_of
from nsysprof.waits.replay import Times, replay
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import (
    CudaDevice,
    Gpu,
    Items,
    Kernel,
    Launch,
    Memcpy,
    OsCall,
    PageFault,
    Range,
    launch_kernel,
    launch_memcpy,
)

NAMES = (
    *("void softmax_warp_forward<float>(int)", "ampere_fp16_s16816gemm_fp16_128x64_tn", "void Softmax_kernel(float*)"),
    *("fill_kernel", "softmax"),
)


def program_of(trace: MakeTrace, *items: Items) -> Program:
    """The steps of a report."""
    attribution = attributed(trace(*items))
    facts = read_facts(attribution, kinds_of(attribution.trace), None)
    return Program(facts, choose_windows(attribution, facts.communication, "step", None).windows, None)


def replayed(program: Program, **asked: Any) -> Times:
    """The replay with a change."""
    steps = steps_of(program, Changes(**asked))
    program.know(np.concatenate([step.ranges for step in steps]))
    network = program.network.copy()
    for step in steps:
        step.apply(network)
    return replay(network)


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("softmax", [4]),  # a whole name is that alone
        ("Softmax", [0, 2, 4]),  # what is printed, or a family
        ("FILL", [3]),
        ("gemm, tensor core", [1]),
        ("gemm, fp32", None),
        ("*warp*", [0]),
        ("*gemm*", [1]),
        ("softmax_warp", [0]),  # without a star a part of the full name
        ("s16816", [1]),
        ("VOID", [0, 2]),
        ("void*", None),
        ("memcpy", [5]),
        ("nothing", None),
    ],
)
def test_kernels_are_found_by_name_as_printed_or_by_kind(trace: MakeTrace, glob: str, found: list[int] | None) -> None:
    """Those take half of their time then, and a note counts what of them is in steps."""
    times = [(100 * at + 10, 100 * at + 70) for at in range(6)]
    calls = [(start - 8, start - 6) for start, _ in times]
    items = [launch_kernel(name, calls[at], times[at], id=at + 1) for at, name in enumerate(NAMES)]
    steps = [Range("step", at, at + 100) for at in (0, 100, 200)]
    program = program_of(trace, *steps, *items, launch_memcpy(calls[5], times[5], id=6))
    if found is None:
        with pytest.raises(NsysprofError, match=r"no kernel or family of .* matches"):
            steps_of(program, Changes(scale=[f"{glob}=0.5"]))
        return
    after, start = replayed(program, scale=[f"{glob}=0.5"]), program.attribution.trace.ops.start
    length = dict(zip(start.tolist(), (after.of()[1] - after.of()[0]).tolist(), strict=True))
    assert [length[begin] for begin, _ in times] == [30 if at in found else 60 for at in range(6)]
    inside = len([at for at in found if at < len(steps)])
    said = f"{plural(inside, 'kernel')}, {format_ns(60 * inside)}, {format_share(inside * 60 / 300)} of the steps"
    assert program.notes == [f"{glob}: {said}"]


@pytest.mark.parametrize("first", [False, True])
def test_a_range_is_no_graph_where_it_waits(trace: MakeTrace, first: bool) -> None:
    """The first call that waits in it is named, not one before it or behind it."""
    sync = "cuda{}Synchronize_v3020"
    before = [Launch(1, 4, 90, api=sync.format("Event"))] if first else []
    program = program_of(
        trace,
        launch_kernel("a", (0, 1), (2, 3), id=1),
        *before,
        Range("step", 10, 90),
        launch_kernel("k", (11, 12), (13, 40), id=2),
        Launch(15, 42, 91, api=sync.format("Stream")),
        Launch(50, 52, 92, api=sync.format("Device")),
        Launch(95, 96, 93, api=sync.format("Ctx")),
    )
    with pytest.raises(AbstainError, match=r"it waits for the GPU in cudaStreamSynchronize\n"):
        replayed(program, graph=["step"])


def test_without_page_faults_kernels_lose_the_time_in_which_pages_came(trace: MakeTrace) -> None:
    """On demand and to their GPU: what the program asked for, and what comes to another GPU, costs them nothing."""
    program = program_of(
        trace,
        *(Gpu(0), Gpu(1), CudaDevice(0, 0), CudaDevice(1, 1)),
        Range("step", 0, 2_000),
        launch_kernel("k", (1, 2), (100, 300), id=1),
        launch_kernel("other", (3, 4), (100, 300), id=2, device=1),
        Memcpy(110, 120, None, kind=11, cause=2),
        Memcpy(115, 140, None, kind=11, cause=3),
        Memcpy(200, 250, None, kind=11, cause=1),
        PageFault(130, 150, 3),
        PageFault(260, 270, 3, device=1),
        Memcpy(280, 290, None, kind=12, cause=2),
    )
    after, trace_of = replayed(program, no_page_faults=True), program.attribution.trace
    kernels = [trace_of.op_names.index(name) for name in ("k", "other")]
    length = [int((after.of()[1] - after.of()[0])[trace_of.ops.name == code].sum()) for code in kernels]
    assert length == [200 - 40, 200 - 10]


def test_code_of_a_range_is_what_no_call_does(trace: MakeTrace) -> None:
    """And on a thread that works for it what is in no range of its own, until that launches."""
    program = program_of(
        trace,
        Range("step", 0, 1_000, thread=2),
        launch_kernel("k", (200, 210), (220, 900), id=1, thread=2),
        Range("inner", 30, 60, thread=1),
        OsCall("read", 70, 80, thread=1),
        launch_kernel("k", (100, 150), (160, 170), id=2, thread=1, stream=9),
    )
    code = code_of(program, "step")
    found = zip(code.thread.tolist(), code.start.tolist(), code.end.tolist(), strict=True)
    assert sorted(found) == [(0, 0, 30), (0, 60, 70), (0, 80, 100), (1, 0, 200), (1, 210, 1_000)]


def test_pages_come_back_to_code_of_the_thread_that_launches_most(trace: MakeTrace) -> None:
    """Not of the first thread."""
    program = program_of(
        trace,
        Range("step", 0, 1_000),
        *(launch_kernel("k", (at, at + 10), (at + 20, at + 90), id=at, thread=2) for at in (200, 400)),
        Memcpy(320, 340, None, kind=12, cause=2),
    )
    code = _code_that_faulted(program, np.flatnonzero(program.attribution.trace.ops.kind == MIGRATION))
    assert [each.tolist() for each in (code.thread, code.start, code.end)] == [[1], [320], [340]]


def test_what_nobody_knows_cannot_be_removed(trace: MakeTrace) -> None:
    """Nor waits of ranges without one."""
    kernels = [launch_kernel("k", (at, at + 5), (at + 10, at + 90), id=at) for at in (1, 200)]
    program = program_of(trace, Range("step", 0, 300), *kernels, Kernel("lost", 120, 130, 77))
    with pytest.raises(AbstainError, match=r"the causes of GPU waits in no launch\* are unknown"):
        replayed(program, remove=["no launch*"])
    with pytest.raises(NsysprofError, match="nothing in step waits for the GPU"):
        replayed(program, drop_sync=["step"])


def test_a_wait_that_is_the_first_call_of_all_is_spared(trace: MakeTrace) -> None:
    """By as much as lies in the interval."""
    sync = Launch(0, 10, 90, api="cudaDeviceSynchronize_v3020")
    program = program_of(trace, sync, Range("step", 20, 200), launch_kernel("k", (30, 40), (50, 90), id=1))
    network = program.network.copy()
    edits.spare_host(network, *(np.array([each]) for each in (0, 0, 8)))
    times = replay(network).at()[[network.time.tolist().index(each) for each in (10, 30)]]
    assert times.tolist() == [2, 22]


@pytest.mark.parametrize(("length", "usual"), [([], 0), ([5], 0), ([5, 7], 5), ([9, 5, 7], 6), ([1, 1, 8, 3], 1)])
def test_what_is_usual_is_without_the_longest(length: list[int], usual: float) -> None:
    """The median of the others; of one there are none."""
    assert _usual(np.array(length)) == usual


@pytest.mark.parametrize(
    ("unknown", "rest", "whole", "doubt"),
    [(200, 9_800, 30_000, None), (201, 9_799, 30_000, "2.0 %"), (201, 9_799, 40_200, None)],
)
def test_a_replay_is_doubtful_where_the_cause_of_gaps_is_unknown(
    trace: MakeTrace, unknown: int, rest: int, whole: int, doubt: str | None
) -> None:
    """In more than 2 % of their time, and in 0.5 % of the steps; or where processes share a GPU."""
    late = 2_000 + rest
    items: list[Items] = [
        *(Range("step", 0, whole), launch_kernel("k", (0, 1), (10, 1_000), id=1)),
        Kernel("lost", 1_000 + unknown, 2_000, None, stream=9),
        launch_kernel("k", (late - 10, late - 5), (late, whole), id=2),
    ]
    found = program_of(trace, *items).doubt
    assert (found is None) == (doubt is None)
    assert found is None or str(doubt) in found[0]
    one_gpu: list[Items] = [Gpu(0), CudaDevice(0, 0, 1), CudaDevice(0, 0, 2)]
    other = launch_kernel("k", (0, 1), (whole + 10, whole + 20), id=1, process=2)
    shared = program_of(trace, *one_gpu, *items, other).doubt
    assert shared is not None
    assert shared[0].startswith("2 processes share GPU 0")
