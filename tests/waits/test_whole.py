"""A cause is removed as a whole, and what a replay knows makes that count: copies, allocations, streams, threads."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nsysprof.kernels.classify import classify, load_rules
from nsysprof.waits import edits
from nsysprof.waits.facts import CAUSES, read_facts
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import Network, Times, replay
from nsysprof.waits.spans import moments_of
from nsysprof.waits.whole import Cause, Wholes
from tests.conftest import MakeTrace
from tests.kit.program import MS, US, Program
from tests.kit.reports import attributed
from tests.kit.trace import Launch, Memcpy, StreamKind, launch_kernel, launch_memcpy

GEMMS = 6


def edited(path: Path, edit: Callable[[Wholes, Network], None]) -> tuple[Wholes, Times, Times]:
    """What belongs together in a report, and its replay before and after an edit."""
    attribution = attributed(path).launched
    facts = read_facts(attribution, classify(load_rules(None), attribution.trace.op_names), None)
    moments = moments_of(attribution.trace, np.arange(len(attribution.trace.ranges)))
    network = network_of(attribution, facts.activity, facts.dependencies, moments, facts.peers)
    wholes = Wholes(facts)
    changed = network.copy()
    edit(wholes, changed)
    base = replay(network)
    assert (base.of()[0] == attribution.trace.ops.start).all()
    return wholes, base, replay(changed)


def without(path: Path, cause: Callable[[Wholes], Cause]) -> tuple[Wholes, Times, Times]:
    """The same with and without a cause."""
    return edited(path, lambda wholes, network: edits.remove(network, cause(wholes)))


def ops_named(wholes: Wholes, name: str) -> np.ndarray:
    """The GPU ops of that name."""
    codes = [at for at, each in enumerate(wholes.trace.op_names) if name in each]
    return np.flatnonzero(np.isin(wholes.trace.ops.name, codes))


def calls_named(wholes: Wholes, name: str) -> np.ndarray:
    """The host calls of that name."""
    calls = wholes.facts.activity.calls
    return np.flatnonzero(np.isin(calls.name, [at for at, each in enumerate(calls.names) if each == name]))


def loop(copy: Callable[[Program], None]) -> Program:
    """Steps that copy, launch some kernels, and read a value at their end."""
    program = Program()
    for _ in range(4):
        with program.range("step"):
            copy(program)
            program.layers(GEMMS, 60 * US, 10 * US)
            program.copy(2, 4, 2 * US, blocks=True)
            program.wait()
    return program


def late_end(program: Program) -> None:
    """Copy 16 MiB of pageable memory: the call returns while the last part is under way; then wait for the stream."""
    begun, id = program.now, program.call("cudaMemcpyAsync")
    start, end = begun + 200 * US, begun + 3 * MS
    program.items[-1] = Launch(begun, end - 7 * US, id, program.thread, api="cudaMemcpyAsync_v3020")
    program.items.append(Memcpy(start, end, id, bytes=16 << 20, kind=1, stream=7, host=0))
    program.now, program.free[7] = end - 7 * US, end
    program.wait()


@pytest.mark.parametrize("by", ["op", "call", "wait"])
def test_without_a_copy_a_step_is_as_long_as_one_that_never_copied(trace: MakeTrace, by: str) -> None:
    """Its call, the transfer and the wait behind it go, however it is named; the read of a value stays."""

    def cause(wholes: Wholes) -> Cause:
        ops = ops_named(wholes, "HtoD")
        if by == "op":
            return wholes.of_ops(ops)
        if by == "call":
            return wholes.of_calls(wholes.of_launch[wholes.trace.ops.launch[ops]])
        start, end = (each[wholes.of_launch[wholes.trace.ops.launch[ops]]] for each in
                      (wholes.facts.activity.calls.start, wholes.facts.activity.calls.end))  # fmt: skip
        some = np.arange(1)  # the GPU waited for a part of the first copy
        host = np.full(1, CAUSES.index("host"))
        first = wholes.of_waits(host, some - 1, some, start[:1] + 5, end[:1] - 5, some > 0)
        assert len(first.ops) == 1
        return wholes.alike(first)

    _, base, after = without(trace(*loop(late_end).items), cause)
    _, clean, _ = without(trace(*loop(lambda _: None).items), lambda _: Cause())
    assert base.of()[1].max() - clean.of()[1].max() > 11 * MS
    assert after.of()[1].max() == pytest.approx(clean.of()[1].max(), rel=0.02)


def test_an_allocation_goes_with_the_wait_that_it_implies(trace: MakeTrace) -> None:
    """A cudaMalloc that returns right behind the GPU waited for it: a shorter kernel shortens it, too."""
    items = (
        launch_kernel("long", (0, 5 * US), (7 * US, 500 * US), id=1),
        Launch(10 * US, 503 * US, 2, api="cudaMalloc_v3020"),
        launch_kernel("next", (600 * US, 605 * US), (607 * US, 700 * US), id=3),
    )
    wholes, _, after = without(trace(*items), lambda wholes: wholes.of_calls(calls_named(wholes, "cudaMalloc")))
    [following] = ops_named(wholes, "next")
    assert after.of()[0][following] == 500 * US + 0  # right behind the kernel: the host came 493 us earlier
    _, _, after = without(trace(*items), lambda wholes: Cause(ops=ops_named(wholes, "long")))
    assert after.of()[0][following] < 130 * US


def test_without_a_cudafree_the_kernel_that_it_waited_for_still_runs(trace: MakeTrace) -> None:
    """Freeing memory waits for 51 s of a kernel, and so does who reads the result: they are the kernel's."""
    second = 1_000 * MS
    items = (
        launch_kernel("long", (0, 5 * US), (7 * US, 51 * second), id=1),
        Launch(10 * US, 51 * second + 20 * US, 2, api="cudaFree_v3020"),
        launch_memcpy((51 * second + 30 * US, 51 * second + 50 * US), (51 * second + 35 * US, 51 * second + 45 * US),
                      id=3, api="cudaMemcpy", kind=2, host=0),
    )  # fmt: skip
    _, base, after = without(trace(*items), lambda wholes: wholes.of_calls(calls_named(wholes, "cudaFree")))
    assert 0 < base.of()[1].max() - after.of()[1].max() < 40 * US


def test_code_goes_from_call_to_call(trace: MakeTrace) -> None:
    """Of code that the GPU waited for in part, and of what runs on another thread of the process."""
    items = (
        launch_kernel("a", (0, 5 * US), (7 * US, 100 * US), id=1),
        launch_kernel("b", (900 * US, 905 * US), (907 * US, 950 * US), id=2),
    )

    def cause(wholes: Wholes) -> Cause:
        host = np.full(1, CAUSES.index("host"))
        zero = np.zeros(1, np.int64)
        return wholes.of_waits(host, zero + 1, zero, zero + 100 * US, zero + 900 * US, zero > 0)

    wholes, _, after = without(trace(*items), cause)
    [b] = ops_named(wholes, "b")
    assert after.of()[0][b] < 110 * US
    assert [cause(wholes).start.tolist(), cause(wholes).end.tolist()] == [[5 * US], [900 * US]]


@pytest.mark.parametrize(
    ("cause", "late", "goes"),
    [("copy", False, True), ("communication", False, True), ("communication", True, False), ("kernel", False, True),
     ("latency", False, False)],
)  # fmt: skip
def test_an_operation_for_which_others_wait_goes_with_the_wait(
    trace: MakeTrace, cause: str, late: bool, goes: bool
) -> None:
    """A kernel, also of another GPU. Without a late rank a collective stays, and so does one behind usual latency."""
    items = (
        launch_kernel("first", (0, 5 * US), (7 * US, 100 * US), id=1),
        launch_kernel("second", (6 * US, 9 * US), (102 * US, 950 * US), id=2),
    )

    def wait(wholes: Wholes) -> Cause:
        op, code = ops_named(wholes, "first"), np.full(1, CAUSES.index(cause))
        return wholes.of_waits(code, op, np.full(1, -1), np.zeros(1, np.int64), np.zeros(1, np.int64), np.full(1, late))

    wholes, base, after = without(trace(*items), wait)
    assert (wait(wholes).ops.tolist() == ops_named(wholes, "first").tolist()) == goes
    assert (base.of()[1].max() - after.of()[1].max() > 90 * US) == goes


def test_a_thread_whose_first_launches_become_one_begins_as_it_did(trace: MakeTrace) -> None:
    """Two kernels of a second thread become one, whose launch comes as long after the first moment as before."""
    items = (
        launch_kernel("a", (0, 5 * US), (7 * US, 100 * US), id=1),
        launch_kernel("b", (20 * US, 25 * US), (102 * US, 110 * US), id=2, thread=2),
        launch_kernel("c", (200 * US, 205 * US), (207 * US, 300 * US), id=3, thread=2),
    )

    def merge(wholes: Wholes, network: Network) -> None:
        ops = np.concatenate([ops_named(wholes, name) for name in "bc"])
        edits.merge_ops(network, wholes.trace, ops, np.array([False, True]), np.array([0, 93 * US]))

    wholes, _, after = edited(trace(*items), merge)
    [c] = ops_named(wholes, "c")
    assert after.of()[0][c] == 202 * US  # the launch of b takes no time


def test_what_the_default_stream_holds_up_still_waits_for_its_launch(trace: MakeTrace) -> None:
    """A kernel launched 400 us behind the last one of the legacy default stream comes as much earlier as its launch."""
    items = (
        StreamKind(1, 3),
        StreamKind(7, 1),
        launch_kernel("null", (0, 5 * US), (7 * US, 50 * US), id=1, stream=1),
        launch_kernel("next", (450 * US, 455 * US), (457 * US, 500 * US), id=2, stream=7),
    )
    wholes, base, after = without(
        trace(*items), lambda _: Cause(thread=np.zeros(1, np.int64), start=np.array([5 * US]), end=np.array([405 * US]))
    )
    [following] = ops_named(wholes, "next")
    assert base.of()[0][following] - after.of()[0][following] == 400 * US


def test_copies_of_a_direction_wait_for_one_another(trace: MakeTrace) -> None:
    """A GPU has an engine for each direction: pinned copies of two streams run one after the other."""
    items = (
        launch_memcpy((0, 5 * US), (6 * US, 300 * US), id=1, kind=1, host=1, stream=7),
        launch_memcpy((10 * US, 15 * US), (302 * US, 600 * US), id=2, kind=1, host=1, stream=8),
    )
    _, base, after = without(trace(*items), lambda wholes: Cause(ops=np.flatnonzero(wholes.trace.ops.stream == 0)))
    assert base.of()[0].max() - after.of()[0].max() > 250 * US


def test_a_kernel_that_starts_a_little_before_the_one_before_it_ends_waits_for_that(trace: MakeTrace) -> None:
    """As programmatic dependent launches do."""
    items = (
        launch_kernel("first", (0, 5 * US), (7 * US, 100 * US), id=1),
        launch_kernel("second", (10 * US, 15 * US), (101 * US, 300 * US), id=2),
        launch_kernel("third", (20 * US, 25 * US), (300 * US - 400, 400 * US), id=3),
    )
    wholes, base, after = without(trace(*items), lambda wholes: Cause(ops=ops_named(wholes, "second")))
    [third] = ops_named(wholes, "third")
    assert base.of()[0][third] - after.of()[0][third] == pytest.approx(199 * US, abs=2 * US)


def test_calls_without_ids_of_a_report_without_launches_remain_calls(trace: MakeTrace) -> None:
    """No thread launches anything there, so that no call belongs to one."""
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    path = trace(launch_kernel("gemm", (0, 5), (10, 20), id=1), drop_columns={table: ["correlationId"]})
    wholes, _, _ = without(path, lambda wholes: wholes.of_calls(np.arange(len(wholes.thread))))
    assert (wholes.trace.threads.tolist(), wholes.thread.tolist()) == ([], [-1])


def test_a_thread_that_begins_later_comes_earlier_with_the_first_one(trace: MakeTrace) -> None:
    """Whoever starts it does so that much earlier: else time saved before that would be lost again behind it."""
    items = (
        launch_kernel("a", (0, 500 * US), (507 * US, 510 * US), id=1),
        launch_kernel("b", (600 * US, 605 * US), (607 * US, 700 * US), id=2, thread=2),
    )
    wholes, base, after = without(
        trace(*items), lambda wholes: wholes.of_calls(calls_named(wholes, "cudaLaunchKernel")[:1])
    )
    [b] = ops_named(wholes, "b")
    assert base.of()[0][b] - after.of()[0][b] == 500 * US
