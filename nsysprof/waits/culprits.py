"""Find what is responsible for each piece of a wait: a host call, host code, a copy or a collective."""

import re
from functools import partial

import numpy as np

from nsysprof.core.arrays import AnyInts, Array, Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import pick
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.kernels.classify import short_name
from nsysprof.trace.details import PROFILER
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET, pid_of
from nsysprof.waits import walk
from nsysprof.waits.awaited import ITEM_BYTES, bucket, copies_of, examples
from nsysprof.waits.facts import (
    ABSTAINS,
    BETWEEN,
    BY_EDGE,
    BY_ORDER,
    COMMUNICATION,
    COPY,
    LATE_HOST,
    MEMORY,
    NOBODY,
    OTHER_KERNEL,
    OVERHEAD,
    QUEUED,
    Facts,
)
from nsysprof.waits.host import ACTIVITIES, exposed_by, host_time, ranges_around, threads_to_blame
from nsysprof.waits.peers import split_late
from nsysprof.waits.windows import Windows

# The columns of a piece of a wait: when, why in words (codes of `Facts.words`), and as rows, -1 for none. ``op``: the
# GPU op that ran, or was launched late; ``thread`` (a code) of the host that was in ``call``, a row of
# `HostActivity.calls` as ``exposing`` is, the call that had drained the GPU queue; ``copied``: the copy that ``call``
# made or waited for; ``on``: the GPU op that it waited for, where it synchronizes.
PIECE = (
    *("window", "start_ns", "end_ns", "cause", "activity", "culprit", "range", "exposed_by", "claim"),
    *("op", "thread", "call", "exposing", "copied", "on"),
)
LATE_PEER, TRANSFER = "late peer", "transfer"
# the activities of GPU ops: of a collective whose other ranks are recorded
_OF_RANKS = ("", LATE_PEER, TRANSFER)
ALONE, LATE, MOVES = range(len(_OF_RANKS))
_PAUSE = -2  # in place of the name of a range: in the pause before a step
_LONG_NS = 1_000_000  # of gaps without a reason: how long those are is said, to one digit


def account(facts: Facts, pieces: walk.Pieces, window: Index, windows: Windows) -> dict[str, Array]:
    """Return the columns `PIECE` for the pieces of gaps; host time is split by activity."""
    trace = facts.attribution.trace
    pieces, peer = split_late(trace, pieces, facts.peers)
    rest = np.flatnonzero(pieces.kind != walk.HOST)
    op, kind = pieces.op[rest].astype(np.int64), pieces.kind[rest]
    runs, op_kind = kind == walk.RUNS, trace.ops.kind[op]
    cause = np.select(
        [
            kind == walk.LATENCY,
            np.isin(kind, (walk.UNKNOWN, walk.CUT, walk.HOLE)),
            (op_kind == MEMCPY) | (op_kind == MEMSET),
            facts.communication[trace.ops.name[op]],
        ],
        [QUEUED, NOBODY, COPY, COMMUNICATION],
        OTHER_KERNEL,
    )
    culprit, range_name = np.zeros(len(rest), np.int64), np.zeros(len(rest), np.int64)
    late, ranks = peer[rest] >= 0, pick(facts.peers.last, op) >= 0 if facts.peers else runs & False
    activity = np.select([late, runs & ranks], [LATE, MOVES], ALONE)
    culprit[runs], range_name[runs] = _op_texts(facts, op[runs], activity[runs], peer[rest][runs])
    unknown = ~runs & (kind != walk.LATENCY)
    length = (pieces.end - pieces.start)[rest][unknown]
    culprit[unknown] = _missing(facts, op[unknown], kind[unknown], length)
    none = np.zeros(len(rest), np.int64)
    parts = [
        {
            "window": window[pieces.gap[rest]],
            "start_ns": pieces.start[rest],
            "end_ns": pieces.end[rest],
            "cause": cause,
            "activity": np.array([facts.texts.code(name) for name in _OF_RANKS], np.int64)[activity],
            "culprit": culprit,
            "range": range_name,
            "exposed_by": none,
            "claim": np.select([runs & ~late, unknown], [BY_EDGE, ABSTAINS], BY_ORDER),
            "op": op,
            **dict.fromkeys(("thread", "call", "exposing", "copied", "on"), none - 1),
        },
        _host_parts(facts, pieces, window, windows),
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in PIECE}


def _host_parts(facts: Facts, pieces: walk.Pieces, window: Index, windows: Windows) -> dict[str, Array]:
    trace, calls = facts.attribution.trace, facts.activity.calls
    late = np.flatnonzero(pieces.kind == walk.HOST)
    launch = pick(trace.ops.launch, pieces.op[late])
    start, end = pieces.start[late], pieces.end[late]
    at = window[pieces.gap[late]]
    of, since = windows.range[at], 2 * windows.start[at] - windows.end[at]  # a window's length before it
    thread = pick(trace.ranges.thread, of, 0)
    time = host_time(
        facts.attribution,
        facts.activity,
        *threads_to_blame(facts.attribution, facts.activity, launch, start, end, thread),
    )
    name = pick(calls.name, time.call)
    owner = pick(facts.attribution.owner, launch)
    own = pick(trace.launches.thread, launch, thread)
    of_range = pick(trace.ranges.thread, owner, own)
    helps = np.where((time.thread != of_range[time.piece]) & (time.range < 0), time.thread, -1)
    followed = _where_open(facts, owner[time.piece], time.start, time.end)
    where = _merged_name(facts, np.where(helps >= 0, followed, time.range))
    around = pick(facts.attribution.parent, of)[time.piece]
    paused = (time.end <= windows.begin[at][time.piece]) & (of[time.piece] >= 0) & (time.range == around)
    where = np.where(paused & (helps < 0), _PAUSE, where)
    copied, on = copies_of(trace, facts.ops_of_calls, time), facts.ops_of_calls.on[time.call].astype(np.int64)

    def describe(call: int, copied: int, row: int, helper: int) -> str:
        what = "code" if call < 0 else calls.names[call]
        if copied >= 0 and "Free" not in what:
            what += f" ({_copy_text(facts, copied)})"
        place = _where(facts, row) if helper < 0 or row >= 0 else ""
        return f"{what}{place}{f' on thread {facts.threads[helper]}' if helper >= 0 else ''}"

    exposing = exposed_by(trace, facts.reasons, facts.activity, launch, start, end, of_range, since)
    exposing = np.where(_returned_early(facts, exposing), -1, exposing)
    begun = pick(calls.start, exposing, 0)[time.piece] < time.end  # a call exposes nothing that was over before
    return {
        "window": window[pieces.gap[late]][time.piece],
        "start_ns": time.start,
        "end_ns": time.end,
        "cause": np.where(time.activity == PROFILER, OVERHEAD, LATE_HOST),
        "activity": facts.texts.each(lambda number: ACTIVITIES[number], time.activity),
        "culprit": facts.texts.each(describe, name, examples(trace, facts.ops_of_calls, copied), where, helps),
        "range": facts.texts.each(partial(_range_text, facts), where),
        "exposed_by": np.where(begun, _exposing(facts, exposing, owner)[time.piece], 0),
        "claim": np.full(len(time.piece), BY_ORDER),
        "op": pieces.op[late][time.piece].astype(np.int64),
        "thread": time.thread.astype(np.int64),
        "call": time.call.astype(np.int64),
        "exposing": np.where(begun, exposing[time.piece], -1),
        "copied": np.where((copied < 0) & (pick(trace.ops.kind, on, 255) == MEMCPY), on, copied),
        "on": on,
    }


def _returned_early(facts: Facts, call: Ints) -> Mask:
    """Mark calls that waited for nothing and returned before the work that their thread launched last began, as on an
    empty stream.
    """
    trace, calls = facts.attribution.trace, facts.activity.calls
    idle = (call >= 0) & (facts.ops_of_calls.on[call] < 0)
    if not idle.any():
        return idle
    thread = trace.thread_codes(pick(calls.threads, pick(calls.thread, call), 0))
    begins = np.full(len(trace.launches) + 1, -1, np.int64)
    np.maximum.at(begins, trace.ops.launch, trace.ops.start)
    begins[-1] = -1  # no launch
    last, _ = trace.launches.around(thread, pick(calls.start, call, 0))
    early: Mask = idle & (begins[last] >= pick(calls.end, call, 1))
    return early


def held_up(facts: Facts) -> tuple[Ints, Ints, Ints]:
    """Find ops that waited for compute in another stream (through an event or the legacy default stream), as ``(op,
    wait_ns, culprit)``. Each ``op`` was already launched and its stream was free; ``culprit`` is a text code.
    """
    trace, why = facts.attribution.trace, facts.reasons
    op = np.flatnonzero((why.edge == walk.EVENT) | (why.edge == walk.BARRIER))
    behind = why.op[op].astype(np.int64)
    computes = (trace.ops.kind[behind] == KERNEL) & ~facts.communication[trace.ops.name[behind]]
    op, behind = op[computes], behind[computes]
    free = np.maximum(np.maximum(why.in_stream[op], why.launched[op]), trace.ops.start[behind])
    wait = why.ready[op] - free
    some = (wait > 0) & (why.in_stream[op] > np.iinfo(np.int64).min)
    culprit, _ = _op_texts(facts, behind[some])
    return op[some], wait[some], culprit


def _missing(facts: Facts, op: Ints, kind: Bytes, length: Ints) -> Ints:
    """Texts that say why the cause of each op's wait is unknown: no launch, too long a walk, or no reason at all."""
    trace = facts.attribution.trace
    digit = 10 ** np.log10(np.maximum(length, 1)).astype(np.int64)
    about = np.where((kind == walk.HOLE) & (length >= _LONG_NS), (length + digit // 2) // digit * digit, 0)

    def describe(name: int, launched: int, kind: int, about: int) -> str:
        if kind == walk.HOLE:
            long = "of about" if about else "below"
            ms = re.sub(r"\.0+ ", " ", format_ns(about or _LONG_NS))
            return f"a gap {long} {ms} has no recorded cause"
        if kind == walk.CUT:
            return f"the dependency chain exceeds {walk.MAX_STEPS:,} GPU ops and was not followed further back"
        if not len(trace.launches):
            return f"no launches are recorded ({trace.report.reader.recording})"
        text = short_name(trace.op_names[name])
        return f"{text} begins before its dependency ends" if launched else f"no launch of {text} is recorded"

    named = np.where((kind == walk.UNKNOWN) & (len(trace.launches) > 0), trace.ops.name[op], 0)  # others are one text
    launched = (kind == walk.UNKNOWN) & (trace.ops.launch[op] >= 0)
    return facts.texts.each(describe, named, launched, kind, about)


def _op_texts(facts: Facts, op: Ints, activity: Ints | None = None, peer: Ints32 | None = None) -> tuple[Ints, Ints]:
    """A text for each op: its name, and the range that launched or captured it; and that range's name.

    If its ``activity``, a code of `_OF_RANKS`, is LATE, ``peer`` is the op of the late rank.
    """
    trace = facts.attribution.trace
    owner = pick(facts.attribution.owner, trace.ops.launch[op])
    if facts.op_owner is not None:
        owner = facts.op_owner[op].astype(np.int64)
    collective = facts.collectives.of_ops(len(trace.ops))[op]
    size = np.where(trace.ops.kind[op] == MEMCPY, facts.told_sizes[op], 0)
    size = np.where(collective >= 0, np.maximum(bucket(pick(facts.collectives.size_bytes, collective)), 0), size)
    group = pick(facts.collectives.group, collective)
    memory = facts.copy_memory[op]

    activity = np.zeros(len(op), np.int64) if activity is None else activity
    peer = np.full(len(op), -1, np.int32) if peer is None else peer
    gpu, process = (pick(each, peer) for each in (trace.op_gpu, trace.op_process))

    def describe(name: int, size: int, memory: int, group: int, row: int, activity: int, gpu: int, process: int) -> str:
        text = short_name(trace.op_names[name]) + MEMORY[memory]
        if activity:
            rank = f" {_rank(facts, gpu, process)}" if activity == LATE else ""
            text = f"{_OF_RANKS[activity]}{rank}, {text}"
        among = f" among {facts.collectives.groups[group]}" if group >= 0 else ""
        return f"{text}{f' of {size_text(size)}' if size else ''}{among}{_where(facts, row)}"

    where = _merged_name(facts, owner)
    of = facts.texts.each(lambda name: facts.names[name] if name >= 0 else "", where)
    of_op = (trace.ops.name[op], size, memory, group, where, activity, gpu, process)
    return facts.texts.each(describe, *of_op), of


def _rank(facts: Facts, gpu: int, process: int) -> str:
    """The label of a process on a GPU: the GPU, and the process if several share it."""
    trace = facts.attribution.trace
    alone = len(np.unique(trace.stream_process[trace.stream_gpu == gpu])) == 1
    return f"GPU {gpu}" if alone else f"GPU {gpu} (pid {pid_of(int(trace.processes[process]))})"


def _copy_text(facts: Facts, op: int) -> str:
    size = int(facts.told_sizes[op])
    name = facts.attribution.trace.op_names[facts.attribution.trace.ops.name[op]] + MEMORY[facts.copy_memory[op]]
    return f"{name.removeprefix('memcpy ')}, {size_text(size)}" if size else name.removeprefix("memcpy ")


def size_text(told: int) -> str:
    """Format a size from `Facts.told_sizes`; a negative value marks an approximate size, printed with `about`."""
    return f"{'about ' * (told < 0)}{format_bytes(abs(told))}"


def _range_text(facts: Facts, name: int) -> str:
    if name == _PAUSE:
        return BETWEEN
    return facts.names[name] if name >= 0 else ""


def _where(facts: Facts, name: int) -> str:
    if name == _PAUSE:
        return f" {BETWEEN}"
    if name < 0:
        return " outside every range" if facts.names else ""
    return f" in {one_line(facts.names[name], 60)}"


def _where_open(facts: Facts, rows: AnyInts, start: Ints, end: Ints) -> AnyInts:
    """The ranges that are open from ``start`` to ``end``, -1 for the others."""
    ranges = facts.attribution.trace.ranges
    around = (pick(ranges.start, rows, 0) <= start) & (end <= pick(ranges.end, rows, 0))
    return np.where((rows >= 0) & around, rows, -1)


def _merged_name(facts: Facts, rows: AnyInts) -> Ints:
    """The merged name of each range, as its place in `Facts.names`; -1 for none."""
    return pick(facts.name_code, pick(facts.attribution.trace.ranges.name, rows))


def _exposing(facts: Facts, call: Ints, owner: Ints) -> Ints:
    """The texts of calls that drained the GPU queue, with the copy that they made or that was launched right before.

    If the thread of a call has no range open, its range is ``owner``, if open meanwhile. A call that waits for a copy
    of a few bytes is `.item()`, or `nonzero()` if one of the two ops before has that name.
    """
    trace, calls = facts.attribution.trace, facts.activity.calls
    thread = np.where(call >= 0, trace.thread_codes(pick(calls.threads, pick(calls.thread, call), 0)), -1)
    start = pick(calls.start, call, 0)
    end = pick(calls.end, call, 0)
    rows = ranges_around(facts.attribution, thread, start, end)
    rows = np.where(rows < 0, _where_open(facts, owner, start, end), rows)
    before, after = trace.launches.around(thread, start)
    own = (after >= 0) & (pick(trace.launches.start, after, 0) == start)
    copied = pick(facts.ops_of_calls.of_launch, np.where(own, after, before))
    copied = examples(trace, facts.ops_of_calls, copied)

    def describe(name: int, copied: int, own: int, row: int) -> str:
        if name < 0:
            return ""
        what = calls.names[name]
        if copied >= 0 and "Free" not in what and (own or facts.copy_sizes[copied] > ITEM_BYTES):
            what += f" ({_copy_text(facts, copied)})"
        elif copied >= 0 and "Free" not in what and "DtoH" in _copy_text(facts, copied):
            before = [int(facts.reasons.op[copied])]
            before += [int(facts.reasons.op[before[0]])] if before[0] >= 0 else []
            names = (trace.op_names[trace.ops.name[op]].lower() for op in before if op >= 0)
            what = "nonzero()" if any("nonzero" in each for each in names) else ".item()"
        return f"{what}{_where(facts, row)}"

    return facts.texts.each(describe, pick(calls.name, call), copied, own, _merged_name(facts, rows))
