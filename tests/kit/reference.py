"""The attribution rules once more, in loops over rows: slow, plain, and what the fast core must equal.

Nothing here is shared with the package: rows come from sqlite3, every question is asked of every row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field

PROCESS = -16777216  # globalTid & this = globalPid
OP_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
KINDS = {59: "push_pop", 70: "push_pop", 60: "start_end", 71: "start_end"}
OUTCOMES = (
    *("own thread", "followed", "start/end window", "outside every range", "ambiguous"),
    *("no launch row", "unified memory"),
)


@dataclass(frozen=True)
class Span:
    """A range or a host call: when, and on which thread."""

    start: int
    end: int
    thread: int

    @property
    def process(self) -> int:
        return self.thread & PROCESS

    def holds(self, other: Span) -> bool:
        """Whether the other one lies wholly inside, ends included."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class RangeRow(Span):
    """An NVTX range."""

    name: str
    domain: int
    kind: str
    unclosed: bool


@dataclass(frozen=True)
class Op:
    """A piece of GPU work; `gpu` is what its device is called, `in_graph` says that a CUDA graph launched it.

    A copy of kind 11 to 13, which is unified memory that the driver moved, has no launch and `migrates`.
    """

    start: int
    end: int
    process: int
    gpu: object
    correlation: int
    name: str
    table: str
    in_graph: bool
    migrates: bool


@dataclass
class Totals:
    """What lies inside one range; `calls` are the keys of its launches."""

    launches: int = 0
    kernels: int = 0
    memops: int = 0
    graph_launches: int = 0
    first_op_ns: int = 0
    last_op_ns: int = 0
    busy_ns: int = 0
    sum_ns: int = 0
    followed_sum_ns: int = 0
    devices: int = 0
    calls: frozenset[tuple[int, int]] = frozenset()

    @property
    def span_ns(self) -> int:
        return self.last_op_ns - self.first_op_ns


@dataclass
class Reference:
    """Ranges and ops in the order of the core's tables; `owner` and `outcome` are of each op."""

    ranges: list[RangeRow]
    ops: list[Op]
    owner: list[int] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)

    @property
    def paths(self) -> list[tuple[tuple[str, int, str], ...]]:
        """(name, domain, kind) from the outermost range to each range."""
        out: list[tuple[tuple[str, int, str], ...]] = []
        for row, up in zip(self.ranges, self.parent, strict=True):
            out.append((*(out[up] if up >= 0 else ()), (row.name, row.domain, row.kind)))
        return out

    def ledger(self) -> list[tuple[str, int, int]]:
        """(outcome, ops, ns) of each outcome."""
        return [
            (outcome, len(mine), sum(op.end - op.start for op in mine))
            for outcome in OUTCOMES
            for mine in [[op for op, met in zip(self.ops, self.outcome, strict=True) if met == outcome]]
        ]


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if end > start and (reach is None or end > reach):
            total += end - (start if reach is None else max(start, reach))
            reach = end
    return total


def refer(path: str | os.PathLike[str], threads: str = "follow") -> Reference:
    """Attribute every op of a report."""
    with closing(sqlite3.connect(path)) as connection:
        ops = _ops(connection)
        asked = {(op.process, op.correlation) for op in ops}
        launch = {key: call for key, call in _calls(connection).items() if key in asked}
        ranges = _ranges(connection, [*(op.end for op in ops), *(call.end for call in launch.values())])
    met = {key: _owner(ranges, call, threads) for key, call in launch.items()}
    out = Reference(ranges, ops)
    for op in ops:
        lost = "unified memory" if op.migrates else "no launch row", -1
        outcome, owner = met.get((op.process, op.correlation), lost)
        out.outcome.append(outcome)
        out.owner.append(owner)
    out.parent = [_parent(ranges, at) for at in range(len(ranges))]
    ops_of: dict[tuple[int, int], list[Op]] = {}
    for op in ops:
        ops_of.setdefault((op.process, op.correlation), []).append(op)
    out.totals = [_totals(out, at, launch, ops_of, met, threads) for at in range(len(ranges))]
    return out


def gpus_of(path: str | os.PathLike[str]) -> int:
    """How many GPUs have work in a report."""
    with closing(sqlite3.connect(path)) as connection:
        return len({op.gpu for op in _ops(connection)})


def _rows(connection: sqlite3.Connection, table: str) -> list[dict[str, object]]:
    """All rows of a table in the order of the file, none where there is no such table."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.row_factory = sqlite3.Row
    if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]:
        return []
    return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY rowid')]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _ranges(connection: sqlite3.Connection, others: list[int]) -> list[RangeRow]:
    """By process and thread, push/pop before start/end, then by start, the longest first.

    A range without an end ends with the session: its recorded duration, or whatever ends last of it and of `others`.
    """
    strings = {_number(row["id"]): str(row["value"]) for row in _rows(connection, "StringIds")}
    details = _rows(connection, "ANALYSIS_DETAILS")
    duration = _number(details[0]["duration"]) if details else 0
    events = [row for row in _rows(connection, "NVTX_EVENTS") if row["eventType"] in KINDS]
    ends = [_number(row["start" if row["end"] is None else "end"]) for row in events]
    session_end = max([duration, *others, *ends])
    out = []
    for event in events:
        kind, start, is_open = (KINDS[_number(event["eventType"])], _number(event["start"]), event["end"] is None)
        end = max(start, session_end) if is_open else _number(event["end"])
        text = strings.get(_number(event["textId"])) if event["textId"] is not None else None
        name = text if text is not None else "[unnamed]" if event["text"] is None else str(event["text"])
        forgotten = kind == "push_pop" and duration != 0 and end == duration
        thread, domain = _number(event["globalTid"]), _number(event["domainId"])
        out.append(RangeRow(start, end, thread, name, domain, kind, is_open or forgotten))
    return sorted(out, key=lambda row: (row.thread, row.kind, row.start, -row.end, row.name, row.domain, row.unclosed))


def _ops(connection: sqlite3.Connection) -> list[Op]:
    strings = {_number(row["id"]): str(row["value"]) for row in _rows(connection, "StringIds")}
    gpus = {row.get("id", row.get("deviceId")) for row in _rows(connection, "TARGET_INFO_GPU")}
    listed = {(row["pid"], row["cudaId"]): row["gpuId"] for row in _rows(connection, "TARGET_INFO_CUDA_DEVICE")}
    out = []
    for table in OP_TABLES:
        for row in _rows(connection, f"CUPTI_ACTIVITY_KIND_{table}"):
            process, device = _number(row["globalPid"]), row["deviceId"]
            migrates = table == "MEMCPY" and row["copyKind"] in (11, 12, 13)
            gpu: object = listed.get((process >> 24 & 0xFFFFFF, device), device)
            op = Op(
                start=_number(row["start"]),
                end=_number(row["end"]),
                process=process,
                gpu=gpu if gpu in gpus else ("unknown", process, device),
                correlation=0 if migrates else _number(row["correlationId"]),
                name=strings.get(_number(row.get("demangledName")), table) if table == "KERNEL" else table,
                table=table,
                in_graph=table == "GRAPH_TRACE" or bool(row.get("graphNodeId")),
                migrates=migrates,
            )
            out.append(op)
    return out


def _calls(connection: sqlite3.Connection) -> dict[tuple[int, int], Span]:
    """The host call of each (process, correlation id), the shortest where there are several."""
    out: dict[tuple[int, int], Span] = {}
    for row in _rows(connection, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        call = Span(_number(row["start"]), _number(row["end"]), _number(row["globalTid"]))
        key = call.process, _number(row["correlationId"])
        if key[1] and (key not in out or _length(call) < _length(out[key])):
            out[key] = call
    return out


def _length(call: Span) -> tuple[int, int, int]:
    return call.end - call.start, call.start, call.thread


def _innermost(ranges: list[RangeRow], call: Span, kind: str, thread: int) -> int:
    """The last-started range of a thread that is open during the whole call, -1 without one."""
    start, end = call.start, call.end
    return max(
        (
            at
            for at, r in enumerate(ranges)
            if r.start <= start and end <= r.end and r.thread == thread and r.kind == kind
        ),
        default=-1,
    )


def _owner(ranges: list[RangeRow], call: Span, threads: str) -> tuple[str, int]:
    """Rules 2, 3 and 4: the outcome and the owner of what a call launched."""
    own = _innermost(ranges, call, "push_pop", call.thread)
    if own >= 0:
        return "own thread", own
    if threads == "follow":
        others = {r.thread for r in ranges if r.process == call.process and r.thread != call.thread}
        elsewhere = [_innermost(ranges, call, "push_pop", thread) for thread in others]
        candidates = [at for at in elsewhere if at >= 0]
        if len(candidates) > 1:
            return "ambiguous", -1
        if candidates:
            return "followed", candidates[0]
    windows = [
        at for at, r in enumerate(ranges) if r.kind == "start_end" and r.holds(call) and _window_sees(r, call, threads)
    ]
    if windows:
        return "start/end window", max(windows, key=lambda at: (ranges[at].start, -ranges[at].end, at))
    return "outside every range", -1


def _window_sees(window: RangeRow, call: Span, threads: str) -> bool:
    return window.thread == call.thread if threads == "strict" else window.process == call.process


def _parent(ranges: list[RangeRow], at: int) -> int:
    """The innermost push/pop range of the thread that holds this one; start/end ranges have none."""
    mine = ranges[at]
    if mine.kind == "start_end":
        return -1
    return max(
        (i for i, r in enumerate(ranges[:at]) if r.kind == mine.kind and r.thread == mine.thread and r.holds(mine)),
        default=-1,
    )


def _totals(
    out: Reference,
    at: int,
    launch: dict[tuple[int, int], Span],
    ops_of: dict[tuple[int, int], list[Op]],
    met: dict[tuple[int, int], tuple[str, int]],
    threads: str,
) -> Totals:
    """Everything launched inside a range: on its thread or followed there; for a window in its process."""
    mine = out.ranges[at]

    def sees(key: tuple[int, int], call: Span) -> bool:
        outcome, owner = met[key]
        if mine.kind == "start_end":
            return _window_sees(mine, call, threads)
        return outcome in ("own thread", "followed") and out.ranges[owner].thread == mine.thread

    start, end = mine.start, mine.end
    inside = {key for key, call in launch.items() if start <= call.start and call.end <= end and sees(key, call)}
    ops = [op for key in inside for op in ops_of[key]]
    if not ops:
        return Totals()
    followed = {key for key in inside if met[key][0] == "followed" and mine.kind == "push_pop"}
    gpus = {op.gpu for op in ops}
    return Totals(
        launches=len(inside),
        kernels=sum(op.table == "KERNEL" for op in ops),
        memops=sum(op.table in ("MEMCPY", "MEMSET") for op in ops),
        graph_launches=len({(op.process, op.correlation) for op in ops if op.in_graph}),
        first_op_ns=min(op.start for op in ops),
        last_op_ns=max(op.end for op in ops),
        busy_ns=sum(union((op.start, op.end) for op in ops if op.gpu == gpu) for gpu in gpus),
        sum_ns=sum(op.end - op.start for op in ops),
        followed_sum_ns=sum(op.end - op.start for op in ops if (op.process, op.correlation) in followed),
        devices=len(gpus),
        calls=frozenset(inside),
    )
