"""A replay without a change is the recording, and with one what a simulation of the changed program gives."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.range_work import index_work
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.report import open_report
from nsysprof.waits import edits, joins
from nsysprof.waits.change import steps_of
from nsysprof.waits.changes import AbstainError, Changes
from nsysprof.waits.facts import read_facts
from nsysprof.waits.moments import Moments
from nsysprof.waits.network import network_of
from nsysprof.waits.peers import find_peers
from nsysprof.waits.program import Program
from nsysprof.waits.ranges import choose_windows
from nsysprof.waits.replay import Lags, Network, replay
from tests.conftest import MakeTrace
from tests.kit import simulated
from tests.kit.program import Program as Recorded
from tests.kit.random_waits import random_waits
from tests.kit.reports import TRACES, attributed
from tests.kit.trace import CudaDevice, EventRecord, Gpu, Items, Launch, StreamWait, launch_kernel, launch_memcpy

SHIPPED = sorted(path for at in ("traces", "analysis") for path in (TRACES.parent / at).rglob("*.sqlite"))
MACHINE = Lags(
    simulated.BEHIND_OP,
    simulated.BEHIND_EVENT,
    simulated.BEHIND_LAUNCH,
    simulated.RETURNING,
    simulated.LAUNCH,
    in_graph=simulated.BEHIND_OP,
)


def read(path: Path, lags: Lags | None = None) -> tuple[Attribution, Network]:
    """A report and its network, which knows the beginning, once more, and the end of each range."""
    with open_report(path) as report:
        attribution = attribute(report)
        trace = attribution.launched.trace
        ranges, reader = trace.ranges, report.reader
        times = np.concatenate([ranges.start, ranges.start, ranges.end])
        asked = Moments(np.tile(ranges.thread, 3), times, np.repeat([True, True, False], len(ranges)))
        talks = np.array(["nccl" in name.lower() for name in trace.op_names], bool)
        peers = find_peers(trace, talks, reader.collectives(trace))
        made = network_of(attribution, reader.host_activity(trace), reader.dependencies(trace), asked, peers, lags)
        return attribution, made


def assert_as_recorded(path: Path) -> None:
    """Every op and every moment of the host is where it was."""
    attribution, made = read(path)
    times, ops = replay(made), attribution.launched.trace.ops
    assert (times.of()[0] == ops.start).all()
    assert (times.of()[1] == ops.end).all()
    assert (times.at() == made.time).all()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_without_a_change_a_shipped_report_is_as_recorded(path: Path) -> None:
    """To the ns, host and GPU."""
    assert_as_recorded(path)


@pytest.mark.parametrize("seed", range(40))
def test_without_a_change_any_report_is_as_recorded(trace: MakeTrace, seed: int) -> None:
    """Odd ones too: ops before their launch or before what they waited for, lost launches, graphs, two processes."""
    assert_as_recorded(trace(*random_waits(seed)))


CHANGES = ("scale", "slower", "host", "gpu", "nosync", "graph")


class Programs:
    """Some random programs, a process each of one report, and what changes make of them."""

    def __init__(self, trace: MakeTrace, seed: int, count: int = 12) -> None:
        self.rng = random.Random(seed)
        self.programs = [simulated.random_program(self.rng) for _ in range(count)]
        machines = [simulated.simulate(each, pid) for pid, each in enumerate(self.programs, 1)]
        self.attribution, self.network = read(trace(*(item for machine in machines for item in machine.items)), MACHINE)
        self.trace = self.attribution.trace
        names = [self.trace.range_names[code].text for code in self.trace.ranges.name.tolist()]
        self.steps, self.parts = (
            np.array([at for at, name in enumerate(names) if name == which], np.intp) for which in ("step", "part")
        )
        self.begin, self.inside, self.stop = self.network.asked.reshape(3, -1)

    def edited(self, change: str, ns: int) -> tuple[Network, set[int]]:
        """The network with a change, and the processes in which that is impossible."""
        made, trace = self.network.copy(), self.trace
        ops = trace.ops
        index = index_work(self.attribution, self.parts)
        launch, place = index.launches_of(self.parts)
        waits = made.sync_moment[1]
        within = [(waits > self.begin[part]) & (waits < self.stop[part]) for part in self.parts.tolist()]
        if change in ("scale", "slower"):
            rows = np.flatnonzero(np.array([name == "k1" for name in trace.op_names])[ops.name])
            edits.lengthen(made, rows, np.full(len(rows), ns))
        elif change == "host":
            edits.delay_host(made, self.stop[self.parts], ns)
        elif change == "gpu":
            order = np.lexsort((trace.launches.start[launch], place))
            last = np.append(place[order][1:] != place[order][:-1], True)[: len(order)]
            caused, count = trace.ops_by_launch.of(launch[order[last]])
            edits.delay_gpu(made, caused[np.cumsum(count) - count], ns)
        elif change == "nosync":
            edits.stop_waiting(made, waits[np.any(within, axis=0)])
        else:
            first, stop = [*self.inside[self.parts]], [*self.stop[self.parts]]
            for at, part in enumerate(self.parts.tolist()):
                mine = launch[place == at]
                mine = mine[trace.launches.thread[mine] != trace.ranges.thread[part]]
                if len(mine):
                    first.append(made.launch_moment[0][mine].min())
                    stop.append(made.launch_moment[1][mine].max())
            edits.launch_as_graph(made, self.inside[self.parts], np.array(first), np.array(stop), simulated.GRAPH)
            blocked = self.parts[[bool(each.any()) for each in within]]
            return made, set(trace.thread_process[trace.ranges.thread[blocked]].tolist())
        return made, set()

    def outcomes(self, made: Network, process: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """When the ops and the steps of a process run."""
        times, ranges = replay(made), self.trace.ranges
        rows = np.flatnonzero(self.trace.op_process == process)
        steps = self.steps[self.trace.thread_process[ranges.thread[self.steps]] == process]
        ops = sorted(zip(times.of()[0][rows].tolist(), times.of()[1][rows].tolist(), strict=True))
        moments = zip(times.at()[self.begin[steps]].tolist(), times.at()[self.stop[steps]].tolist(), strict=True)
        return ops, sorted(moments)


@pytest.mark.parametrize("seed", range(8))
def test_a_change_brings_what_a_simulation_gives(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Streams, events, synchronizations, helpers and full queues: every op and step, to the ns."""
    monkeypatch.setattr(joins, "QUEUE", simulated.QUEUE)
    monkeypatch.setattr(joins, "_EVENTS", 0)
    monkeypatch.setattr(joins, "_BLOCKED", 1)
    monkeypatch.setattr(joins, "_EVERY", 1)
    some = Programs(trace, seed)
    compared = 0
    for change in CHANGES:
        ns = {"scale": 1, "slower": 400}.get(change, some.rng.choice([3, 50, 700]))
        made, impossible = some.edited(change, ns)
        for process, program in enumerate(some.programs):
            if process not in impossible:
                what = "scale" if change == "slower" else change
                after = simulated.simulate(simulated.changed(program, what, ns), process + 1)
                ops, steps = some.outcomes(made, process)
                assert ops == sorted(after.ops), (change, process)
                assert steps == after.steps, (change, process)
                compared += ops != []
    assert compared > 50


@pytest.mark.parametrize("seed", range(4))
def test_a_change_in_one_process_leaves_the_others_as_they_are(trace: MakeTrace, seed: int) -> None:
    """Their nodes are not computed, and all times are the same as if they were."""
    programs = Programs(trace, seed)
    made, ops = programs.network.copy(), programs.trace.op_process
    some = np.flatnonzero(ops == ops[seed])
    edits.lengthen(made, some, np.full(len(some), 5_000))
    known, every = replay(made), replay(replace(made, part=np.zeros_like(made.part)))
    assert (known.node == every.node).all()
    moved = np.flatnonzero(known.node != made.recorded)
    assert len(moved)
    assert (made.part[moved] == ops[seed]).all()


def test_a_delay_moves_a_step_by_its_length_only_where_it_is_on_the_path(trace: MakeTrace) -> None:
    """Slope 1 on the critical path, 0 in slack, and a knee where the slack is used up."""
    do = simulated.Do

    def step(*between: simulated.Do) -> list[simulated.Do]:
        kernels = do("launch", 100, 7, "long"), do("launch", 20, 8, "short")
        body = (do("range", name="part", body=kernels), *between, do("sync"))
        return [*simulated.PROLOGUE, do("range", name="step", body=body)]

    machine = simulated.simulate(step())
    attribution, made = read(trace(*machine.items), MACHINE)
    names = [attribution.trace.op_names[code] for code in attribution.trace.ops.name.tolist()]
    stop = int(np.flatnonzero(made.time == machine.steps[0][1])[0])

    def longer(name: str, ns: int) -> int:
        changed = made.copy()
        edits.delay_gpu(changed, np.array([names.index(name)]), ns - simulated.BEHIND_OP)
        return int(replay(changed).at()[stop] - made.time[stop])

    assert [longer("long", ns) for ns in (10, 50, 500)] == [10, 50, 500]
    slack = 100 - 20 - simulated.LAUNCH  # the short one was launched later
    assert [longer("short", ns) for ns in (10, slack, slack + 7, slack + 100)] == [0, 0, 7, 100]


def test_no_late_rank_leaves_what_the_collective_takes(trace: MakeTrace) -> None:
    """A rank that comes 60 ns late makes the other wait; without that both take 30 ns."""
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    path = trace(
        Gpu(0),
        Gpu(1),
        *(CudaDevice(0, pid - 1, pid) for pid in (1, 2)),
        launch_kernel(name, (0, 10), (20, 110), id=1, process=1),
        launch_kernel("after", (11, 20), (112, 120), id=2, process=1),
        launch_kernel(name, (60, 70), (80, 110), id=1, process=2),
    )
    _, made = read(path)
    assert replay(made).of()[1].tolist() == [110, 120, 110]
    slower = made.copy()
    edits.delay_gpu(slower, np.array([2]), 5 - made.lags.behind_op)
    assert replay(slower).of()[1].tolist() == [110, 120, 115]
    edits.run_together(made)
    assert replay(made).of()[1].tolist() == [50, 60, 110]


def test_what_comes_behind_a_collective_moves_with_all_its_ranks(trace: MakeTrace) -> None:
    """The event that is recorded behind it, of the rank that came first, is behind the last one too."""
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    path = trace(
        Gpu(0),
        Gpu(1),
        *(CudaDevice(0, pid - 1, pid) for pid in (1, 2)),
        launch_kernel(name, (0, 10), (20, 110), id=1, process=1, stream=8),
        EventRecord(stream=8, at=11, id=2, process=1),
        StreamWait(stream=7, at=13, id=3, process=1),
        launch_kernel("after", (14, 20), (112, 120), id=4, process=1, stream=7),
        launch_kernel(name, (60, 70), (80, 110), id=1, process=2, stream=8),
    )
    attribution, made = read(path)
    [after] = np.flatnonzero(attribution.trace.ops.start == 112).tolist()
    assert replay(made).of()[0][after] == 112
    faster = made.copy()
    edits.lengthen(faster, np.flatnonzero(attribution.trace.ops.start == 20), np.array([20]))
    assert replay(faster).of()[0][after] == 102  # 80, when the last rank comes, and 20


def test_a_call_that_copies_pageable_memory_waits_for_its_copy(trace: MakeTrace) -> None:
    """If the copy takes less, what is launched behind it comes earlier; of pinned memory it does not."""
    for host, earlier in ((0, True), (1, False)):
        copy = launch_memcpy((0, 100), (10, 90), id=1, host=host)
        _, made = read(trace(copy, launch_kernel("k", (110, 120), (130, 140), id=2)))
        edits.lengthen(made, np.array([1]), np.array([20]))
        assert (replay(made).of()[0][0] < 130) == earlier


def test_a_call_that_never_ends_is_replayed(trace: MakeTrace) -> None:
    """A median as long as int64 can say, as a report with odd times has it, is more than a float can."""
    path = trace(launch_memcpy((0, 2**63 - 1), (10, 90), id=1), launch_kernel("k", (0, 2**63 - 1), (95, 99), id=2))
    assert read(path)[1].lags.launch == 1 << 62


def test_a_delay_may_be_longer_than_int32_holds(trace: MakeTrace) -> None:
    """That of a copy which the host prepares for 3 s, and those after changes that insert 5 s; others are int32."""
    second = 10**9
    _, made = read(trace(launch_memcpy((0, 4 * second), (3 * second, 3 * second + 9), id=1)))
    assert (made.edges[0].usual.max(), replay(made).of()[0].tolist()) == (3 * second, [3 * second])
    wait = Launch(30, 120, 9, api="cudaDeviceSynchronize_v3020")
    _, made = read(trace(launch_kernel("k", (0, 10), (20, 100), id=1), wait, Launch(130, 140, 2)))
    assert {each.lag.dtype for each in made.edges} == {np.dtype(np.int32)}
    slower = made.copy()
    edits.delay_gpu(slower, np.array([0]), 5 * second, np.array([200]))
    edits.delay_host(slower, np.array([len(made.time) - 1]), 5 * second)
    times = replay(slower)
    assert times.of()[1].tolist() == [5 * second + 100 + made.lags.behind_op]
    assert (times.at() - made.time).tolist() == [*[0] * (len(made.time) - 1), 5 * second]


def test_what_is_left_out_takes_no_time(trace: MakeTrace) -> None:
    """Neither the host's nor the GPU's; what comes behind it comes that much earlier."""
    do = simulated.Do

    def step(*part: simulated.Do) -> list[simulated.Do]:
        body = (do("range", name="part", body=part), do("launch", 30, 7, "k"), do("sync"))
        return [*simulated.PROLOGUE, do("range", name="step", body=body)]

    machine = simulated.simulate(step(do("code", 500), do("launch", 400, 7, "gone")))
    attribution, made = read(trace(*machine.items), MACHINE)
    trace_of = attribution.trace
    names = [trace_of.op_names[code] for code in trace_of.ops.name.tolist()]
    inside = [at for at, name in enumerate(trace_of.ranges.name) if trace_of.range_names[name].text == "part"]
    _, begin, stop = made.asked.reshape(3, -1)
    edits.leave_out(made, begin[inside], stop[inside], np.array([names.index("gone")]))
    [(_, end)] = simulated.simulate(step()).steps
    assert replay(made).at()[np.flatnonzero(made.time == machine.steps[0][1])[0]] == end


def test_a_queue_that_records_of_events_share_is_full_a_little_earlier(trace: MakeTrace) -> None:
    """The host waits in each launch from the 1,021st on, and where kernels are short in none."""
    holds, count, length = 1_020, 1_300, 1_000
    items: list[Items] = []
    begun: list[int] = []
    now = 0
    for at in range(count):
        begins = max(begun[-1] + length if begun else 0, now + 10)
        end = max(now + 10, begun[at - holds]) if at >= holds else now + 10
        items.append(launch_kernel("k", (now, end), (begins, begins + length), id=at + 1))
        begun.append(begins)
        now = end + 5
    _, made = read(trace(*items))
    assert (replay(made).of()[0] == begun).all()
    edits.lengthen(made, np.arange(count), np.full(count, 2))
    last = replay(made).of()[0][-1]
    assert last == pytest.approx(count * 15, rel=0.01)


@pytest.mark.parametrize("first", [0, 1])
def test_what_comes_to_wait_for_another_op_starts_as_soon_as_ops_do(trace: MakeTrace, first: int) -> None:
    """Whichever op that is, also the first of the report: behind an op, not behind an event, and not sooner."""
    ahead = [launch_kernel("early", (0, 5), (10, 12), id=9)] * first
    path = trace(
        *ahead,
        launch_kernel("a", (10, 20), (25, 60), id=1),
        launch_kernel("b", (500, 510), (515, 560), id=2),
        launch_kernel("c", (520, 530), (560 + MACHINE.behind_op, 600), id=3),
    )
    _, made = read(path, MACHINE)
    edits.lengthen(made, np.array([first]), np.array([2_000]))
    start = 25 + 2_000 + MACHINE.behind_op
    assert replay(made).of()[0].tolist()[first:] == [25, start, start + 45 + MACHINE.behind_op]


@pytest.mark.parametrize("before", [0, 5])
def test_a_range_that_waits_for_the_gpu_is_no_graph(trace: MakeTrace, before: int) -> None:
    """Also one that begins with the recording; one that does not wait is."""
    for waits in (False, True):
        program = Recorded()
        for step in range(4):
            program.code(before * (step == 0))
            with program.range("step"):
                program.launch("k", 50_000)
                if waits and step == 0:
                    program.wait()
        attribution = attributed(trace(*program.items))
        facts = read_facts(attribution, kinds_of(attribution.trace), None)
        chosen = choose_windows(attribution, facts.communication, "step", None)
        tried = Program(facts, chosen.windows, None)
        [step_] = steps_of(tried, Changes(graph=["step"]))
        if waits:
            with pytest.raises(AbstainError, match="it waits for the GPU in cudaStreamSynchronize"):
                step_.apply(tried.network.copy())
        else:
            step_.apply(tried.network.copy())
            assert tried.notes[0].startswith("assumed launch time of the graph: 4.00 µs, from kernel launches")
