"""Simulates small programs on a made-up machine, event by event, and writes down what a profiler would have recorded.

A program is what its threads do, one after the other. The same program with a change is simulated again, so that what a
forecast says of the change can be compared with what would have happened, to the ns. Knows nothing of nsysprof.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.kit.trace import EventRecord, Item, Kernel, Launch, Range, StreamWait

# What the machine takes, in ns: an op starts so long behind the op before it, the same over an event, behind its
# launch; a call returns so long behind what it waited for; launches, and calls that need not wait, take so long.
BEHIND_OP, BEHIND_EVENT, BEHIND_LAUNCH, RETURNING, LAUNCH, SYNC, EVENT, GRAPH = 3, 8, 5, 6, 4, 7, 1, 9
QUEUE = 4  # launches of a stream that have not started
HANDING = 11  # until another thread goes on


@dataclass(frozen=True)
class Do:
    """One thing that a thread does: ``what`` it is, with the numbers and names that it needs."""

    what: str
    ns: int = 0
    stream: int = 0
    name: str = ""
    event: int = 0
    body: tuple[Do, ...] = ()


@dataclass
class Machine:
    """A process in the making: when threads and streams are free, and what was recorded."""

    pid: int
    now: dict[int, int] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)  # until when each stream runs
    marked: dict[int, bool] = field(default_factory=dict)  # whether the last item of it was an event
    started: dict[int, list[int]] = field(default_factory=dict)  # of the launches of each stream
    events: dict[int, int] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    ops: list[tuple[int, int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    ids: int = 0
    syncs: int = 0

    def run(self, program: Sequence[Do], thread: int) -> None:
        """Do one thing after the other on a thread."""
        for each in program:
            getattr(self, each.what)(each, thread)

    def code(self, do: Do, thread: int) -> None:
        """Code of the host."""
        self.now[thread] += do.ns

    def id(self) -> int:
        """A correlation id."""
        self.ids += 1
        return self.ids

    def launch(self, do: Do, thread: int, cost: int = LAUNCH) -> None:
        """A kernel; the call blocks while the stream has too many before it."""
        start = self.now[thread]
        waiting = self.started.setdefault(do.stream, [])
        end = max(start + cost, waiting[-QUEUE] if len(waiting) >= QUEUE else 0)
        begins = self.enqueue(do, end)
        waiting.append(begins)
        id = self.id()
        self.items += [
            Launch(start, end, id, thread, self.pid),
            Kernel(do.name, begins, begins + do.ns, id, process=self.pid, stream=do.stream),
        ]
        self.now[thread] = end

    def enqueue(self, do: Do, launched: int) -> int:
        """When an op starts that a stream is given."""
        lag = BEHIND_EVENT if self.marked.get(do.stream) else BEHIND_OP
        begins = max(launched + BEHIND_LAUNCH, self.free[do.stream] + lag if do.stream in self.free else 0)
        self.free[do.stream], self.marked[do.stream] = begins + do.ns, False
        self.ops.append((begins, begins + do.ns))
        return begins

    def record(self, do: Do, thread: int) -> None:
        """An event that stands for all that a stream was given."""
        self.events[do.event] = self.free.get(do.stream, -(10**9))
        where = {"process": self.pid, "thread": thread, "event": do.event, "sync": do.event}
        self.items.append(EventRecord(do.stream, self.now[thread], self.id(), **where))
        self.now[thread] += EVENT
        self.marked[do.stream] = True

    def wait(self, do: Do, thread: int) -> None:
        """A stream waits for an event."""
        self.free[do.stream] = max(self.free.get(do.stream, -(10**9)), self.events[do.event])
        where = {"process": self.pid, "thread": thread, "event": do.event, "sync": do.event}
        self.items.append(StreamWait(do.stream, self.now[thread], self.id(), **where))
        self.now[thread] += EVENT
        self.marked[do.stream] = True

    def sync(self, do: Do, thread: int) -> None:
        """A call that returns when the GPU is done, with everything or with the stream of the last launch."""
        start = self.now[thread]
        until = max((end for end in self.free.values()), default=0) if not do.stream else self.free[do.stream]
        end = max(start + SYNC, until + RETURNING if do.ns == 0 else 0)
        api = "cudaStreamSynchronize_v3020" if do.stream else "cudaDeviceSynchronize_v3020"
        self.items.append(Launch(start, end, self.id(), thread, self.pid, api=api))
        self.now[thread] = end

    def range(self, do: Do, thread: int) -> None:
        """A range around what is done inside."""
        start = self.now[thread]
        self.run(do.body, thread)
        self.items.append(Range(do.name, start, self.now[thread], thread, self.pid))
        if do.name == "step":
            self.steps.append((start, self.now[thread]))

    def hand(self, do: Do, thread: int) -> None:
        """Let a helper do something, and wait for it."""
        helper = thread + 1
        self.now[helper] = max(self.now.get(helper, 0), self.now[thread] + HANDING)
        self.run(do.body, helper)
        self.now[thread] = self.now[helper] + HANDING

    def graph(self, do: Do, thread: int) -> None:
        """One launch of all that the body gives to streams, in whatever threads; kernels fill the queues."""
        self.now[thread] += GRAPH
        at = self.now[thread]
        for each in _given(do.body):
            if each.what == "launch":
                self.started.setdefault(each.stream, []).append(self.enqueue(each, at))
            else:
                getattr(self, each.what)(each, thread)
        self.now[thread] = at


def _given(body: Sequence[Do]) -> list[Do]:
    """What streams are given in a body."""
    out: list[Do] = []
    for each in body:
        out += [each] if each.what in ("launch", "record", "wait") else _given(each.body)
    return out


def _kernels(body: Sequence[Do]) -> list[Do]:
    out: list[Do] = []
    for each in body:
        out += [each] if each.what == "launch" else _kernels(each.body)
    return out


def simulate(program: Sequence[Do], pid: int = 1) -> Machine:
    """Run a program on a machine that has nothing to do."""
    machine = Machine(pid, {1: 1_000})
    machine.run(program, 1)
    return machine


def changed(program: Sequence[Do], change: str, ns: int = 0) -> list[Do]:
    """The program with one change: ``scale`` of kernel k1, ``host`` or ``gpu`` delay behind ranges named part,
    ``nosync`` in them, or ``graph`` of them.
    """
    out: list[Do] = []
    for each in program:
        part = each.name == "part"
        body = tuple(changed(each.body, change, ns))
        if change == "nosync" and part:
            body = tuple(replace(one, ns=1) if one.what == "sync" else one for one in body)
        each = replace(each, body=body)
        if change == "scale" and each.what == "launch" and each.name == "k1":
            each = replace(each, ns=ns)
        if change == "graph" and part:
            each = replace(each, body=(Do("graph", body=each.body),))
        if change == "host" and part:
            each = replace(each, body=(*each.body, Do("code", ns)))
        if change == "gpu" and part and (kernels := _kernels(each.body)):
            last = kernels[-1]
            each = replace(each, body=tuple(_delayed(each.body, last, ns)))
        out.append(each)
    return out


def _delayed(body: Sequence[Do], last: Do, ns: int) -> list[Do]:
    """The last launch with another kernel behind it, of which nobody sees the launch: it is as if it took longer."""
    out = list(body)
    for at in range(len(out) - 1, -1, -1):
        if out[at] is last:
            out[at] = replace(last, ns=last.ns + BEHIND_OP + ns)
            return out
        if last in _kernels(out[at].body):
            out[at] = replace(out[at], body=tuple(_delayed(out[at].body, last, ns)))
            return out
    return out


# What shows every constant of the machine, far from anything else.
PROLOGUE = (
    Do("launch", 500, 7, "a"), Do("launch", 20, 7, "a"), Do("code", 5_000), Do("sync"), Do("sync", stream=7),
    Do("launch", 500, 7, "a"), Do("record", stream=7, event=999), Do("wait", stream=8, event=999),
    Do("launch", 20, 8, "a"), Do("sync"), Do("code", 5_000),
)  # fmt: skip


def random_program(rng: random.Random) -> list[Do]:
    """Steps with ranges, kernels in some streams, events between them, calls that wait, and work of a helper."""
    count = [0]
    heavy = rng.choice([5, 30, 120])

    def some(depth: int, sync: bool, stream: int) -> list[Do]:
        out: list[Do] = []
        for _ in range(rng.randint(1, 6)):
            what = rng.choices(("launch", "code", "fork", "sync", "hand"), (8, 3, 2, 1 if sync else 0, depth))[0]
            if what == "launch":
                out.append(Do("launch", rng.randint(1, heavy), stream, rng.choice(["k0", "k1"])))
            elif what == "code":
                out.append(Do("code", rng.randint(1, 40)))
            elif what == "fork":
                other = rng.choice([one for one in (7, 8, 9) if one != stream])
                count[0] += 1
                out += [
                    Do("record", stream=stream, event=count[0]),
                    Do("wait", stream=other, event=count[0]),
                    Do("launch", rng.randint(1, heavy), other, "k2"),
                ]
            elif what == "sync":
                out += [Do("launch", rng.randint(1, heavy), stream, "k0"), Do("sync", stream=rng.choice([0, stream]))]
            else:
                inner = [Do("launch", rng.randint(1, heavy), stream, "k1"), *some(0, False, stream)]
                out.append(Do("hand", body=(*inner, Do("code", rng.randint(1, 9)), Do("launch", 3, stream, "k0"))))
        return out

    program = [*PROLOGUE]
    quiet = rng.random() < 0.5  # parts without calls that wait
    for _ in range(rng.randint(2, 4)):
        stream = rng.choice([7, 8])
        part = Do("range", name="part", body=(Do("code", 2), *some(1, not quiet, stream), Do("code", 2)))
        body = [Do("code", 2), *some(0, True, stream), part, *some(0, True, stream), Do("code", 2)]
        program += [Do("range", name="step", body=tuple(body)), Do("code", rng.randint(1, 30))]
    return [*program, Do("sync")]
