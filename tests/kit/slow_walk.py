"""Why GPUs wait, once more in loops over rows: slow, plain, and what `nsysprof.waits` and `nsysprof.why` must equal.

Written from the rules (design.md, docs/why.md), with lists and dictionaries of what the SQLite file holds. Who owns
what comes from `tests.kit.reference`. Where several things happen in the same ns, `Walk.order` decides.
"""

import math
import os
import re
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from statistics import median, quantiles
from typing import Any, NamedTuple

from tests.kit.reference import OP_TABLES, PROCESS, Op, Reference, Span, refer

NEVER = -(1 << 63)
SLACK_NS = 20_000
ITEM_BYTES = 64
WHOLE = -1
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
Lane = tuple[int, int, int]  # process, device, stream


class Window(NamedTuple):
    """What a GPU had to do with a range instance (its row), or with the whole trace; a pause ends at ``begin``."""

    gpu: object
    range: int
    start: int
    begin: int
    done: int
    end: int
    last: int


class Piece(NamedTuple):
    """A piece of a wait; ``op`` the row of the op that ran or came late, ``thread`` 0 where the host did nothing."""

    gpu: object
    range: int
    start: int
    end: int
    cause: str
    activity: str
    op: int
    culprit: str
    where: str
    exposed_by: str
    thread: int


class Call(NamedTuple):
    """A call of a host thread, with what kind it is."""

    start: int
    end: int
    name: str
    kind: str


@dataclass
class Event:
    """A record of an event, or a wait for one."""

    time: int
    waits: bool
    lane: Lane
    key: tuple[int, ...]


@dataclass
class Walk:
    """A report, and what its ops depend on: ``ready`` ``(time, op)`` and ``launched`` of each."""

    path: str | os.PathLike[str]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    attribution: Reference = field(init=False)
    lane: list[Lane] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    launch: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read everything."""
        self.attribution = refer(self.path)
        with closing(sqlite3.connect(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in names:
                rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid')
                self.tables[name] = [dict(row) for row in rows]
        for name in OP_TABLES:
            for row in self.rows(f"CUPTI_ACTIVITY_KIND_{name}"):
                stream = row["streamId"]
                migrates = name == "MEMCPY" and row["copyKind"] in (11, 12, 13)
                stream = -2 if migrates else -1 if stream in (None, 0xFFFFFFFF) else stream
                self.lane.append((row["globalPid"], row["deviceId"], stream))
                self.size.append(row.get("bytes", -1) if name == "MEMCPY" else -1)
        keys = {key: number for number, key in enumerate(self.launch_keys)}
        self.launch = [keys.get((op.process, op.correlation), -1) for op in self.ops]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table, none where it is absent."""
        return self.tables.get(table, [])

    @property
    def ops(self) -> list[Op]:
        """All ops in the order of the file."""
        return self.attribution.ops

    @cached_property
    def strings(self) -> dict[int, str]:
        """StringIds."""
        return {row["id"]: row["value"] for row in self.rows("StringIds")}

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """What threads are called."""
        return {row["globalTid"]: self.strings[row["nameId"]] for row in self.rows("ThreadNames")}

    @cached_property
    def shortest(self) -> dict[tuple[int, int], Span]:
        """The host call of each (process, correlation id)."""
        out: dict[tuple[int, int], Span] = {}
        for row in self.rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
            call = Span(row["start"], row["end"], row["globalTid"])
            key = call.process, row["correlationId"] or 0
            mine = call.end - call.start, call.start, call.thread
            if key[1] and (key not in out or mine < (out[key].end - out[key].start, out[key].start, out[key].thread)):
                out[key] = call
        return out

    @cached_property
    def launch_keys(self) -> list[tuple[int, int]]:
        """(process, correlation id) of each launch, by thread and time."""
        asked = {(op.process, op.correlation) for op in self.ops}
        known = [key for key in self.shortest if key in asked]
        first: dict[tuple[int, int], tuple[Any, ...]] = {}
        for at, op in enumerate(self.ops):
            mine = op.start, op.end, self.name(at), self.lane[at]
            first[op.process, op.correlation] = min(mine, first.get((op.process, op.correlation), mine))
        calls = self.shortest
        return sorted(known, key=lambda key: (calls[key].thread, calls[key].start, calls[key].end, first[key]))

    @cached_property
    def launches(self) -> list[Span]:
        """The host calls that launched ops."""
        return [self.shortest[key] for key in self.launch_keys]

    @cached_property
    def owner(self) -> list[tuple[int, str]]:
        """The range that owns each launch, and by which rule."""
        out = [(-1, "")] * len(self.launches)
        for launch, owner, outcome in zip(self.launch, self.attribution.owner, self.attribution.outcome, strict=True):
            if launch >= 0:
                out[launch] = owner, outcome
        return out

    def name(self, op: int) -> str:
        """The name of an op, as the package calls it."""
        table = self.ops[op].table
        if table == "KERNEL":
            return self.ops[op].name
        row = self._raw[op]
        if table == "MEMCPY":
            return f"memcpy {_COPIES.get(row['copyKind'], 'kind ' + str(row['copyKind']))}"
        if table == "MEMSET":
            return "memset"
        return f"CUDA graph {row['graphId']}" if row.get("graphId") else "CUDA graph"

    @cached_property
    def _raw(self) -> list[dict[str, Any]]:
        return [row for name in OP_TABLES for row in self.rows(f"CUPTI_ACTIVITY_KIND_{name}")]

    @cached_property
    def order(self) -> list[tuple[Any, ...]]:
        """What decides between ops that start, or end, in the same ns: start, end, name, launch, stream."""
        return [(op.start, op.end, self.name(at), self.launch[at], self.lane[at], at) for at, op in enumerate(self.ops)]

    def talks(self, op: int) -> bool:
        """Whether an op is a collective."""
        return self.ops[op].table == "KERNEL" and "nccl" in self.ops[op].name.lower()

    def computes(self, op: int) -> bool:
        """Whether an op is compute that takes time."""
        mine = self.ops[op]
        return mine.table in ("KERNEL", "GRAPH_TRACE") and not self.talks(op) and mine.end > mine.start

    @cached_property
    def lanes(self) -> dict[Lane, list[int]]:
        """The ops of each stream in their order."""
        out: dict[Lane, list[int]] = {}
        for op in sorted(range(len(self.ops)), key=lambda op: self.order[op]):
            out.setdefault(self.lane[op], []).append(op)
        return out

    @cached_property
    def called(self) -> dict[int, int]:
        """When the host asked for each op: never before it asked for what runs before it in its stream."""
        out: dict[int, int] = {}
        for ops in self.lanes.values():
            latest = NEVER
            for op in ops:
                launch = self.launch[op]
                latest = max(latest, self.launches[launch].start if launch >= 0 else self.ops[op].start)
                out[op] = latest
        return out

    def before(self, lane: Lane, time: int) -> int:
        """How many ops of a stream the host had asked for before a moment."""
        return bisect_left(self._calls_of_lane.get(lane, []), time)

    @cached_property
    def _calls_of_lane(self) -> dict[Lane, list[int]]:
        return {lane: [self.called[op] for op in ops] for lane, ops in self.lanes.items()}

    def launched(self, op: int) -> int:
        """When the host call of an op had returned; of a copy, when it began."""
        launch = self.launch[op]
        if launch < 0:
            return NEVER
        call = self.launches[launch]
        return call.start if self.ops[op].table == "MEMCPY" and not self.ops[op].migrates else call.end

    @cached_property
    def events(self) -> list[Event]:
        """Records and waits in the order of the host; of one moment records first."""
        waits = self.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
        records = self.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT")
        both = all("eventSyncId" in row for row in (*waits[:1], *records[:1]))
        out = []
        for row, is_wait in (*((row, False) for row in records), *((row, True) for row in waits)):
            context = row["globalPid"] >> 24 & 0xFFFFFF, row["contextId"]
            device = self.contexts.get(context, row["deviceId"]) if is_wait else row["deviceId"]
            lane = row["globalPid"], device, row["streamId"]
            sync = row.get("eventSyncId") or 0
            key = (row["globalPid"], row["eventId"], *((sync,) if both else ()))
            if not is_wait:
                call = self.shortest.get((row["globalPid"], row["correlationId"] or 0))
                if call is not None:
                    out.append(Event(call.start, False, lane, key))
            elif row["syncType"] == 2 and row["eventId"] not in (-1, 0xFFFFFFFF) and row.get("eventSyncId", 1):
                out.append(Event(row["start"], True, lane, key))
        return sorted(out, key=lambda event: (event.time, event.waits, event.lane, event.key))

    @cached_property
    def awaited(self) -> dict[int, int]:
        """For each op that an event made wait the op that it waited for."""
        out: dict[int, int] = {}
        recorded: dict[tuple[int, ...], int] = {}
        pending: dict[Lane, tuple[int, int]] = {}

        def later(one: int, other: int) -> int:
            if one < 0 or other < 0:
                return max(one, other)
            return other if self.ops[other].end > self.ops[one].end else one

        for event in self.events:
            lane = self.lanes.get(event.lane, [])
            place = self.before(event.lane, event.time)
            since, op = pending.get(event.lane, (place, -1))
            op = op if since == place else -1
            if not event.waits:
                recorded[event.key] = later(lane[place - 1] if place else -1, op)
            elif recorded.get(event.key, -1) >= 0:
                op = later(op, recorded[event.key])
                pending[event.lane] = place, op
                if place < len(lane):
                    out[lane[place]] = op
        return out

    @cached_property
    def contexts(self) -> dict[tuple[int, int], int]:
        """The device of each context, by pid and number."""
        rows = self.rows("TARGET_INFO_CUDA_CONTEXT_INFO")
        return {(row["processId"], row["contextId"]): row["deviceId"] for row in rows}

    @cached_property
    def kinds(self) -> dict[Lane, int]:
        """What kind each stream is: 1 blocking, 3 the legacy default stream."""
        device = self.contexts
        flags: dict[tuple[int, int | None, int], int] = {}
        for row in self.rows("TARGET_INFO_CUDA_STREAM"):
            where = device.get((row["processId"], row["contextId"]))
            key = row["processId"], where, row["streamId"]
            flags[key] = max(flags.get(key, 0), row["flag"])
        out = {}
        for process, number, stream in self.lanes:
            pid = process >> 24 & 0xFFFFFF
            out[process, number, stream] = flags.get((pid, number, stream), flags.get((pid, None, stream), 0))
        return out

    @cached_property
    def barriers(self) -> dict[int, int]:
        """For each op that the legacy default stream made wait the one that it waited for."""
        out: dict[int, int] = {}
        for here in {lane[:2] for lane in self.lanes}:
            mine = [(self.kinds[lane], op) for lane, ops in self.lanes.items() if lane[:2] == here for op in ops]
            default = [op for kind, op in mine if kind == 3]
            others = [op for kind, op in mine if kind == 1]
            for waiting, awaited in ((default, others), (others, default)):
                rows = sorted(awaited, key=lambda op: (self.called[op], self.order[op]))
                calls = [self.called[op] for op in rows]
                best: list[int] = []
                for op in rows:
                    last = best[-1] if best else op
                    best.append(op if self.ops[op].end >= self.ops[last].end else last)
                for op in waiting:
                    count = bisect_left(calls, self.called[op])
                    if count:
                        out[op] = best[count - 1]
        return out

    @cached_property
    def reason(self) -> dict[int, int]:
        """Of what each op depends on what ended last, -1 for nothing: its stream, a barrier or an event."""
        out: dict[int, int] = {}
        for ops in self.lanes.values():
            for before, op in zip((-1, *ops), ops, strict=False):
                best = before
                for other in (self.barriers.get(op, -1), self.awaited.get(op, -1)):
                    if other >= 0 and (best < 0 or self.ops[other].end > self.ops[best].end):
                        best = other
                out[op] = best
        return out

    def ready(self, op: int) -> int:
        """When what an op depends on had ended."""
        before = self.reason[op]
        return self.ops[before].end if before >= 0 else NEVER

    def is_copy(self, op: int) -> bool:
        """Whether an op is a memcpy that a call made."""
        return self.ops[op].table == "MEMCPY" and not self.ops[op].migrates

    @cached_property
    def marked(self) -> set[int]:
        """The ops whose stream recorded an event, or waited for one, since their predecessor there."""
        out = set()
        for event in self.events:
            lane, place = self.lanes.get(event.lane, []), self.before(event.lane, event.time)
            out |= set(lane[place : place + 1])
        return out

    def behind(self, op: int) -> str:
        """What an op starts behind: its launch, that of its graph, an op, or an event."""
        if self.launched(op) >= self.ready(op):
            graph = self.ops[op].table == "GRAPH_TRACE" or self._raw[op].get("graphNodeId")
            return "graph" if graph else "launch"
        return "event" if op in self.marked else "op"

    @cached_property
    def latency(self) -> dict[str, int]:
        """How long at most an op that may start usually takes until it does, by what it starts behind."""
        every: dict[str, list[int]] = {"launch": [], "graph": [], "op": [], "event": []}
        for op, mine in enumerate(self.ops):
            came = max(self.ready(op), self.launched(op))
            if self.launch[op] >= 0 and came <= mine.start:
                every[self.behind(op)].append(mine.start - came)
        pooled = [length for some in every.values() for length in some]
        usual = {kind: median(some if len(some) >= 20 else pooled) if pooled else 0 for kind, some in every.items()}
        return {kind: int(min(max(4 * value, 20_000), 1_000_000)) for kind, value in usual.items()}

    def walk(self, start: int, end: int, op: int) -> Iterator[tuple[int, int, str, int]]:
        """The pieces of a gap, backwards: ``(start, end, kind, op)``; ``op`` -1: the host had nothing for the GPU."""
        if op < 0:
            yield start, end, "host", -1
            return
        at = end
        if self.ops[op].start < at:
            first = max(start, self.ops[op].start)
            yield first, at, "runs", op
            at = first
        while at > start:
            ready, launched, before = self.ready(op), self.launched(op), self.reason[op]
            if ready == NEVER and launched == NEVER:
                yield start, at, "unknown", op
                return
            came = min(at, max(ready, launched))
            usual = min(at, came + self.latency[self.behind(op)]) if launched != NEVER else came
            copies = launched != NEVER and self.is_copy(op)
            filled = min(at, max(usual, self.launches[self.launch[op]].end)) if copies else usual
            yield max(start, came), usual, "latency", op
            yield max(start, usual), filled, "host", op
            yield max(start, filled), at, "unknown", op
            if launched >= ready:
                yield start, came, "host", op
                return
            if self.ops[before].start >= at:
                yield start, came, "unknown", op
                return
            yield max(start, self.ops[before].start), came, "runs", before
            at, op = min(came, self.ops[before].start), before

    @cached_property
    def merged(self) -> list[str]:
        """The merged name of each range."""
        out = []
        for row in self.attribution.ranges:
            name = re.sub(r", (?:op_id|seq|sizes|stashed seq|input_op_ids|in_size) = .*", "", row.name)
            number = re.fullmatch(r"(iter|step)[ _:#=.\-]*\d+", name)
            out.append(f"{number[1]}*" if number else name)
        return out

    @cached_property
    def paths(self) -> list[tuple[tuple[str, str], ...]]:
        """The merged path of each range."""
        out: list[tuple[tuple[str, str], ...]] = []
        for at, row in enumerate(self.attribution.ranges):
            up = self.attribution.parent[at]
            out.append((*(out[up] if up >= 0 else ()), (self.merged[at], row.kind)))
        return out

    def outermost(self) -> list[int]:
        """The ranges in no other."""
        return [at for at, path in enumerate(self.paths) if len(path) == 1]

    @cached_property
    def early(self) -> list[bool]:
        """Whether each range lies in warm-up, or in checks beside a measurement."""
        measured = any(len(path) == 1 and path[0][0].startswith("RUN::") for path in self.paths)
        checks = ("CHECK::", "REFERENCE::", "WARMUP::")
        return [
            any(re.search(r"warm(ing)?[ _-]*up|^warm\b", name, re.IGNORECASE) for name, _ in path)
            or (measured and path[0][0].startswith(checks))
            for path in self.paths
        ]

    def busy(self, some: set[int]) -> int:
        """For how long GPUs run these ops, each moment once per GPU."""
        total = 0
        for gpu in {self.ops[at].gpu for at in some}:
            reach = NEVER
            for op in sorted((self.ops[at] for at in some if self.ops[at].gpu == gpu), key=lambda op: op.start):
                total += max(op.end - max(op.start, reach), 0)
                reach = max(reach, op.end)
        return total

    def inside(self, rows: list[int]) -> set[int]:
        """The GPU ops of ranges and of all in them."""
        return {op for row in rows for op in self.own_ops(row)}

    def own_ops(self, row: int) -> list[int]:
        """The GPU ops of a range and of all in it."""
        number = self._number_of_launch
        ops = [op for key in self.attribution.totals[row].calls for op in self._ops_of_launch[number[key]]]
        return [op for op in ops if not self.ops[op].migrates]

    @cached_property
    def _number_of_launch(self) -> dict[tuple[int, int], int]:
        return {key: at for at, key in enumerate(self.launch_keys)}

    @cached_property
    def _ops_of_launch(self) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {}
        for op, launch in enumerate(self.launch):
            out.setdefault(launch, []).append(op)
        return out

    def launched_within(self, rows: list[int]) -> int:
        """For how long GPUs run what a process launched, in whatever thread, while one of the ranges was open."""
        mine = [self.attribution.ranges[row] for row in rows]
        inside = set()
        for number, launch in enumerate(self.launch):
            if launch >= 0 and not self.ops[number].migrates:
                call = self.launches[launch]
                if any(row.process == call.process and row.start <= call.start < row.end for row in mine):
                    inside.add(number)
        return self.busy(inside)

    def repeated(self) -> list[int]:
        """The ranges that are taken for the steps of the program; none where no level covers half of the busy time."""
        rows: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for at, path in enumerate(self.paths):
            rows.setdefault(path, []).append(at)
        levels: dict[tuple[str, int, str], list[int]] = {}
        for path, mine in rows.items():
            works = any(self.attribution.totals[at].span_ns for at in mine)
            library = re.match(r"aten::|nccl[:A-Z]|Optimizer\.", path[-1][0])
            if len(mine) >= 3 and works and not self.early[mine[0]] and not library:
                levels.setdefault((path[-1][0], len(path), path[-1][1]), []).extend(mine)
        warm = self.inside([at for at, early in enumerate(self.early) if early])
        every = {at for at, op in enumerate(self.ops) if not op.migrates}
        whole = self.busy(every) - self.busy(warm)

        def rank(level: tuple[str, int, str]) -> tuple[int, int, int, tuple[str, int, str]]:
            name = level[0].lower()
            step = re.fullmatch(r"[a-z_ .-]*(iter|step|iteration)[ _:#=.-]*\d*\*?", name)
            work = sum(self.ops[op].end - self.ops[op].start for op in self.inside(levels[level]))
            return 2 if name.startswith("epoch") else 0 if step else 1, level[1], -work, level

        def covers(level: tuple[str, int, str], mine: list[int]) -> bool:
            most = self.busy(self.inside(mine))
            if 2 * most < whole and not rank(level)[0]:
                most = self.launched_within(mine)
            return 2 * most >= whole > 0

        covering = [key for key, mine in levels.items() if covers(key, mine)]
        return sorted(levels[min(covering, key=rank)]) if covering else []

    def windows(self, chosen: list[int]) -> list[Window]:
        """The windows of ranges with the pauses before them, or of the whole trace where none are chosen."""
        ops = self.ops
        if not chosen:
            gpus = dict.fromkeys(op.gpu for op in ops if not op.migrates)
            out = []
            for gpu in gpus:
                rows = [at for at, op in enumerate(ops) if op.gpu == gpu and not op.migrates]
                last = max(rows, key=lambda at: (ops[at].end, self.order[at]))
                start, end = min(ops[at].start for at in rows), ops[last].end
                out.append(Window(gpu, WHOLE, start, start, end, end, last))
            return out
        return [window for line in self.lines(chosen) for window in line]

    def steady(self, chosen: list[int]) -> list[Window]:
        """The windows without warm-up."""
        if not chosen:
            return self.windows(chosen)
        lines = [(line, [window.end - window.start for window in line]) for line in self.lines(chosen)]
        return [window for line, times in lines for window in line[warm_up(times) :]]

    def lines(self, chosen: list[int]) -> Iterator[list[Window]]:
        """The windows that follow one another: of one path and process on one GPU, and of one thread if some meet."""
        ranges, ops = self.attribution.ranges, self.ops
        together: dict[tuple[object, ...], list[int]] = {}
        for row in chosen:
            together.setdefault((self.paths[row], ranges[row].process), []).append(row)
        lines: dict[tuple[object, ...], list[int]] = {}
        for key, rows in together.items():
            both = combinations([ranges[row] for row in rows], 2)
            meet = any(
                one.thread != other.thread and one.start < other.end and other.start < one.end for one, other in both
            )
            for row in rows:
                lines.setdefault((*key, ranges[row].thread if meet else 0), []).append(row)
        for rows in lines.values():
            rows.sort(key=lambda row: (ranges[row].start, row))
            own = {row: self.own_ops(row) for row in rows}
            for gpu in dict.fromkeys(ops[op].gpu for row in rows for op in own[row]):
                here = {row: [op for op in own[row] if ops[op].gpu == gpu] for row in rows}
                yield self._with_pauses(self._line(gpu, {row: mine for row, mine in here.items() if mine}))

    def _line(self, gpu: object, own: dict[int, list[int]]) -> list[Window]:
        """The windows of instances, in order, with their ops on a GPU; each ends when its ops do.

        But copies and collectives that run on behind its compute count only until the next one computes.
        """
        ops, out, reach = self.ops, [], NEVER
        for row, following in zip(own, [*list(own)[1:], -1], strict=True):
            last = max(own[row], key=lambda op: (ops[op].end, self.order[op]))
            done = ops[last].end
            computed = max((ops[op].end for op in own[row] if self.computes(op)), default=NEVER)
            next_ones = [op for op in own.get(following, []) if self.computes(op)]
            if next_ones:
                first = min(next_ones, key=lambda op: (ops[op].start, self.order[op]))
                if max(ops[first].start, computed) < done:
                    last, done = first, max(ops[first].start, computed)
            mine = self.attribution.ranges[row]
            start, end = max(mine.start, reach), max(done, mine.end)
            reach = max(reach, end)
            if start < end:
                out.append(Window(gpu, row, start, start, min(max(done, start), end), end, last))
        return out

    def _with_pauses(self, line: list[Window]) -> list[Window]:
        """Windows that begin where the one before ended, if the GPU idles in most such pauses, and in this one."""
        parent, pauses = self.attribution.parent, {}
        for at, (before, window) in enumerate(pairwise(line), 1):
            if parent[before.range] == parent[window.range] and before.end < window.start:
                computed = sum(
                    max(min(end, window.start) - max(start, before.end), 0)
                    for start, end, _ in self.compute.get(window.gpu, [])
                )
                pauses[at] = 10 * computed <= window.start - before.end
        mostly = 2 * sum(pauses.values()) > len(pauses)
        return [
            window._replace(start=line[at - 1].end) if mostly and pauses.get(at) else window
            for at, window in enumerate(line)
        ]

    @cached_property
    def compute(self) -> dict[object, list[tuple[int, int, int]]]:
        """When each GPU computes: start, end, and the op that begins it."""
        out: dict[object, list[tuple[int, int, int]]] = {}
        rows = [at for at in range(len(self.ops)) if self.computes(at)]
        for at in sorted(rows, key=lambda at: (self.ops[at].start, self.order[at])):
            mine, line = self.ops[at], out.setdefault(self.ops[at].gpu, [])
            if line and mine.start <= line[-1][1]:
                line[-1] = line[-1][0], max(line[-1][1], mine.end), line[-1][2]
            else:
                line.append((mine.start, mine.end, at))
        return out

    def gaps(self, window: Window) -> Iterator[tuple[int, int, int]]:
        """The stretches of a window without compute, each with the op that ends it."""
        line = self.compute.get(window.gpu, [])
        for begin, stop, last in ((window.start, window.done, window.last), (window.done, window.end, -1)):
            at = begin
            for start, end, op in line[bisect_right(line, begin, key=lambda each: each[1]) :]:
                if start >= stop:
                    break
                if at < start:
                    yield at, start, op if last >= 0 else -1
                at = max(at, end)
            if at < stop:
                yield at, stop, last

    @cached_property
    def calls(self) -> dict[int, list[Call]]:
        """The calls of each thread: none inside others of its table, and none of the system inside CUDA's."""
        out: dict[int, list[Call]] = {}
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "PROFILER_OVERHEAD"):
            by_thread: dict[int, list[Call]] = {}
            for row in self.rows(table):
                name = self.strings.get(row["nameId"], "CUDA call")
                kind = {"OSRT_API": "OS calls", "PROFILER_OVERHEAD": "profiler"}.get(table) or _kind(name)
                name = re.sub(r"(?:_ptsz|_ptds)?_v\d{4,}$", "", name)
                by_thread.setdefault(row["globalTid"], []).append(Call(row["start"], row["end"], name, kind))
            for thread, calls in by_thread.items():
                cuda = [call for call in out.get(thread, []) if call.kind not in ("OS calls", "profiler")]
                reach = NEVER
                kept: list[Call] = []
                for call in sorted(calls, key=lambda call: (call.start, -call.end, call.name)):
                    if call.end > reach or not kept:
                        kept.append(call)
                    reach = max(reach, call.end)
                if table == "OSRT_API":
                    kept = [call for call in kept if not _inside_any(call, cuda)]
                out.setdefault(thread, []).extend(kept)
        rank = {"OS calls": 1, "profiler": 2}
        for calls in out.values():
            calls.sort(key=lambda call: (call.start, -call.end, rank.get(call.kind, 0), call.name))
        return out

    @cached_property
    def ranges_of(self) -> dict[int, list[int]]:
        """The push/pop ranges of each thread."""
        out: dict[int, list[int]] = {}
        for at, row in enumerate(self.attribution.ranges):
            if row.kind == "push_pop":
                out.setdefault(row.thread, []).append(at)
        return out

    def range_around(self, thread: int, start: int, end: int) -> int:
        """The innermost push/pop range of a thread that is open all the while."""
        best = -1
        for at in self.ranges_of.get(thread, []):
            row = self.attribution.ranges[at]
            if row.start > start:  # they are sorted by start, the longest first
                break
            if end <= row.end:
                best = at
        return best

    def hand_over(self, launch: int, thread: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Whose turn it was: ``(start, end, thread)`` of host time that ends with a launch."""
        if launch < 0:
            yield start, end, thread
            return
        owner, call = self.owner[launch][0], self.launches[launch]
        other, cut = call.thread, start
        if owner >= 0 and self.attribution.ranges[owner].thread != call.thread:
            row = self.attribution.ranges[owner]
            place = bisect_left(self.launches_of[call.thread], launch)
            earlier = self.launches[launch - 1].end if place else NEVER
            if earlier < row.start:
                other, cut = row.thread, min(max(row.start, start), end)
        else:
            helped = [
                number for number in self.followed_by.get(call.thread, []) if self.launches[number].end <= call.start
            ]
            if helped:
                last = max(helped, key=lambda number: (self.launches[number].end, number))
                cut = min(max(self.launches[last].end, start), end)
                other = self.launches[last].thread
            born, mine = self.first_seen.get(call.thread, 0), call.thread & PROCESS
            earlier_ones = enumerate(self.launches) if born > start else ()
            before = [number for number, each in earlier_ones if each.start <= start and each.thread & PROCESS == mine]
            if before:
                last = max(before, key=lambda number: (self.launches[number].start, number))
                other, cut = self.launches[last].thread, min(born, end)
        if start < cut:
            yield start, cut, other
        if cut < end:
            yield cut, end, call.thread

    @cached_property
    def first_seen(self) -> dict[int, int]:
        """When each thread first calls or opens a range."""
        starts = [(thread, call.start) for thread, calls in self.calls.items() for call in calls]
        starts += [(row.thread, row.start) for row in self.attribution.ranges if row.kind == "push_pop"]
        return dict(sorted(starts, reverse=True))  # the first of each is the last

    @cached_property
    def launches_of(self) -> dict[int, list[int]]:
        """The launches of each thread."""
        out: dict[int, list[int]] = {}
        for number, call in enumerate(self.launches):
            out.setdefault(call.thread, []).append(number)
        return out

    @cached_property
    def followed_by(self) -> dict[int, list[int]]:
        """The launches that helpers made for the ranges of each thread."""
        out: dict[int, list[int]] = {}
        for number, (owner, outcome) in enumerate(self.owner):
            if outcome == "followed":
                out.setdefault(self.attribution.ranges[owner].thread, []).append(number)
        return out

    def host_time(self, thread: int, start: int, end: int) -> Iterator[tuple[int, int, str, str, int]]:
        """What a thread did: start, end, activity, what, and the innermost range."""
        calls, rows = self.calls.get(thread, []), self.ranges_of.get(thread, [])
        low = bisect_right(self._reach.get(thread, []), start)
        near = calls[low : bisect_right(calls, end, key=lambda call: call.start)]
        mine = [self.attribution.ranges[at] for at in rows]
        times = [(call.start, call.end) for call in near] + [(row.start, row.end) for row in mine]
        edges = {moment for pair in times for moment in pair if start < moment < end}
        moments = [start, *sorted(edges), end]
        for begin, stop in pairwise(moments):
            inside = [call for call in near if call.start <= begin and stop <= call.end]
            where = self.range_around(thread, begin, stop)
            if inside:
                yield begin, stop, inside[-1].kind, inside[-1].name, where
            else:
                yield begin, stop, "code", "code", where

    @cached_property
    def _reach(self) -> dict[int, list[int]]:
        """Until when the calls of each thread reach, from the first to each."""
        return {thread: list(accumulate((call.end for call in calls), max)) for thread, calls in self.calls.items()}

    @cached_property
    def lead(self) -> list[int]:
        """How long the GPU still had to do when each launch returned."""
        out = [NEVER] * len(self.launches)
        for op, launch in enumerate(self.launch):
            if launch >= 0 and self.ready(op) != NEVER:
                out[launch] = max(out[launch], self.ready(op) - self.launched(op))
        return out

    @cached_property
    def synchronizations(self) -> dict[int, list[Call]]:
        """The synchronizing calls of each thread by their end."""
        return {
            thread: sorted((call for call in calls if call.kind == "synchronizing calls"), key=lambda c: c.end)
            for thread, calls in self.calls.items()
        }

    def exposed_by(self, launch: int, thread: int, start: int, end: int, since_ns: int) -> tuple[str, int]:
        """The call that let the GPU run dry before a launch, as text; empty for none, or one before ``since_ns``.

        And when it began.
        """
        called = self.launches[launch].start if launch >= 0 else end
        thread = self.launches[launch].thread if launch >= 0 else thread
        owner = self.owner[launch][0] if launch >= 0 else -1
        home = self.attribution.ranges[owner].thread if owner >= 0 else thread
        both = list(dict.fromkeys((thread, home)))
        syncs = sorted(
            ((call, each) for each in both for call in self.synchronizations.get(each, [])),
            key=lambda pair: pair[0].end,
        )
        place = bisect_right(syncs, called, key=lambda pair: pair[0].end)
        if not place:
            return "", 0
        sync, of = syncs[place - 1]
        if sync.end < since_ns or self.returned_early(sync, of):
            return "", 0
        for each in both:
            mine = self.launches_of.get(each, [])
            since = bisect_left(mine, sync.end, key=lambda number: self.launches[number].start)
            until = bisect_left(mine, called, key=lambda number: self.launches[number].start)
            ahead = max((self.lead[number] for number in mine[since:until]), default=NEVER)
            if ahead > SLACK_NS + (end - start) // 10:
                return "", 0
        mine = self.launches_of.get(of, [])
        before = bisect_left(mine, sync.start, key=lambda number: self.launches[number].start)
        copies = any(self.launches[number].start == sync.start for number in mine[before : before + 1])
        item = before > 0 and mine[before - 1] in self.items and not copies and "Free" not in sync.name
        row = self.range_around(of, sync.start, sync.end)
        where = self._in(row if row >= 0 else self.if_open(owner, sync.start, sync.end))
        return f"{'.item()' if item else sync.name}{where}", sync.start

    def returned_early(self, sync: Call, thread: int) -> bool:
        """Whether a call waited for no op, and returned before what its thread launched last began."""
        ended = [
            op.end for op in self.ops if not op.migrates and op.process == thread >> 24 << 24 and op.end <= sync.end
        ]
        waited, rest = max(ended, default=sync.start) - sync.start, sync.end - max(ended, default=sync.start)
        before = [number for number in self.launches_of.get(thread, []) if self.launches[number].start < sync.start]
        if not before or (waited > 0 and (rest <= waited or rest <= SLACK_NS)):
            return False
        begins = [op.start for op, launch in zip(self.ops, self.launch, strict=True) if launch == before[-1]]
        return max(begins, default=0) >= sync.end

    @cached_property
    def items(self) -> set[int]:
        """The launches that copy a few bytes to the host."""
        return {
            launch
            for op, launch in enumerate(self.launch)
            if self.ops[op].table == "MEMCPY" and "DtoH" in self.name(op) and self.size[op] <= ITEM_BYTES
        }

    def if_open(self, row: int, start: int, end: int) -> int:
        """The range, -1 where it is not open all the while."""
        rows = self.attribution.ranges
        return row if row >= 0 and rows[row].start <= start and end <= rows[row].end else -1

    def _in(self, row: int) -> str:
        if row < 0:
            return " outside every range" if self.merged else ""
        return f" in {self.merged[row]}"

    def account(self, chosen: list[int], warmed: bool = False) -> list[Piece]:
        """All pieces of the waits of the windows of ranges; of the whole trace where none are chosen.

        Without warm-up, unless ``warmed``.
        """
        out = []
        threads = sorted({row.thread for row in self.attribution.ranges} | {call.thread for call in self.launches})
        for window in self.windows(chosen) if warmed else self.steady(chosen):
            home = self.attribution.ranges[window.range].thread if window.range >= 0 else threads[0] if threads else 0
            earliest = 2 * window.start - window.end  # a window's length before it
            for gap in self.gaps(window):
                for start, end, kind, op in self.walk(*gap):
                    if start >= end:
                        continue
                    head = window.gpu, window.range
                    if kind == "host":
                        out += [Piece(*head, *rest) for rest in self._host(start, end, op, home, earliest, window)]
                        continue
                    cause = kind
                    if kind == "runs":
                        cause = "kernel"
                        if self.ops[op].table in ("MEMCPY", "MEMSET"):
                            cause = "copy"
                        elif self.talks(op):
                            cause = "communication"
                    where = self.merged_owner(op) if kind == "runs" else ""
                    until = min(self.peers.get(op, start), end) if kind == "runs" else start
                    late, transfer = ("late peer", "transfer") if op in self.peers and kind == "runs" else ("", "")
                    for first, last, activity in ((start, until, late), (max(start, until), end, transfer)):
                        if first < last:
                            out.append(Piece(*head, first, last, cause, activity, op, "", where, "", 0))
        return out

    @cached_property
    def peers(self) -> dict[int, int]:
        """When the last rank came to each collective that others have, too: it is in it for the shortest time."""
        some = [at for at in range(len(self.ops)) if self.talks(at) and self.ops[at].end > self.ops[at].start]
        some = [at for at in some if "allreduce" in self.ops[at].name.lower() and self.ops[at].gpu is not None]
        together: list[list[int]] = []
        for at in sorted(some, key=lambda at: (self.ops[at].name, self.ops[at].end, self.order[at])):
            mine = self.ops[at]
            group = [self.ops[other] for other in together[-1]] if together else []
            shortest = min(op.end - op.start for op in [mine, *group])
            if (
                not group
                or mine.name != group[0].name
                or any((op.process, op.gpu) == (mine.process, mine.gpu) for op in group)
                or mine.end - group[0].end > shortest // 2
            ):
                together.append([])
            together[-1].append(at)
        return {
            at: self.ops[at].end - min(self.ops[each].end - self.ops[each].start for each in group)
            for group in together
            if len(group) > 1
            for at in group
        }

    def merged_owner(self, op: int) -> str:
        """The merged name of the range that owns an op."""
        owner = self.attribution.owner[op]
        return self.merged[owner] if owner >= 0 else ""

    def _is_pause(self, window: Window, end: int, row: int) -> bool:
        """Whether host time until then, in this innermost range, lies between two steps."""
        return window.range >= 0 and end <= window.begin and row == self.attribution.parent[window.range]

    def _host(
        self, start: int, end: int, op: int, home: int, earliest: int, window: Window
    ) -> Iterator[tuple[Any, ...]]:
        launch = self.launch[op] if op >= 0 else -1
        exposed, exposing_ns = self.exposed_by(launch, home, start, end, earliest)
        owner = self.owner[launch][0] if launch >= 0 else -1
        own = self.launches[launch].thread if launch >= 0 else home
        responsible = self.attribution.ranges[owner].thread if owner >= 0 else own
        for first, last, thread in self.hand_over(launch, home, start, end):
            for begin, stop, activity, what, row in self.host_time(thread, first, last):
                culprit = f"{what}{self._in(row)}"
                if thread != responsible and row < 0:
                    row = self.if_open(owner, begin, stop)
                    place = self._in(row) if row >= 0 else ""
                    culprit = f"{what}{place} on thread {self.thread_names.get(thread, thread & ~PROCESS)}"
                cause = "profiler" if activity == "profiler" else "host"
                where = self.merged[row] if row >= 0 else ""
                if " on thread " not in culprit and self._is_pause(window, stop, row):
                    culprit, where = f"{what} between steps", "between steps"
                shown = exposed if exposing_ns < stop else ""  # what was over before is exposed by nothing
                yield begin, stop, cause, activity, op, culprit, where, shown, thread


def warm_up(times: list[int]) -> int:
    """How many of the steps at the beginning are warm-up.

    Of fewer than eight the first one is that takes 1.2 times as long as any other. Else the first ones are that are
    slow, or three times as long as the median of the last three quarters, until three in a row are not. Slow is what
    lies above the upper quartile as far as of so many times with exponential tails one in twenty recordings has one.
    """
    count = len(times)
    if count < 8:
        return int(count > 2 and times[0] > 1.2 * max(times[1:]))
    logs = [math.log(time) for time in times]
    rest = sorted(logs[count // 4 :])
    middle = median(rest)
    left = [each - middle for each in rest]
    limit = math.inf
    for _ in range(2):
        left = [each for each in left if each <= limit]
        eighths = quantiles(left, n=8, method="inclusive")
        half = max(eighths[6] - eighths[5], 0.706 * eighths[5]) * (1 + 6 / len(left))
        limit = max(eighths[5] + half * math.log2(max(len(left), 20) / 0.2), math.log(1.03))
    slow = [each - middle > min(limit, math.log(3)) for each in logs]
    return next((first for first in range(count // 4 + 1) if not any(slow[first : first + 3])), 0)


def _inside_any(call: Call, others: list[Call]) -> bool:
    return any(other.start <= call.start and call.end <= other.end for other in others)


def _kind(api: str) -> str:
    """What a CUDA call does to the host: it waits for the GPU, launches, or neither."""
    bare = re.sub(r"(_v\d+|_ptsz|_ptds)+$", "", api)
    copies = bare.startswith(("cudaMemcpy", "cuMemcpy"))
    waits = bare in ("cudaFree", "cudaFreeArray", "cuMemFree") or bare.endswith("Synchronize")
    if waits or (copies and "Async" not in bare and "Peer" not in bare):
        return "synchronizing calls"
    launches = ("cudaGraphLaunch", "cuGraphLaunch", "cudaLaunch", "cuLaunch", "cudaMemset", "cuMemset")
    if copies or (bare.startswith(launches) and not bare.startswith(("cudaLaunchHostFunc", "cuLaunchHostFunc"))):
        return "launch calls"
    return "other CUDA calls"
