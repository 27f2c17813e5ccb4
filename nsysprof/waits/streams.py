"""Find the dependencies of GPU ops other than their launch: stream, events, the legacy default stream, the copy engine.

Also measure the usual delays before GPU ops start.
"""

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, Mask, slices
from nsysprof.core.columns import marked, pick
from nsysprof.trace.details import Dependencies
from nsysprof.trace.trace import KERNEL, MEMCPY, Trace
from nsysprof.waits.identity import mean_latency
from nsysprof.waits.items import EARLY_NS, Items, Parts, edges_of
from nsysprof.waits.moments import Host
from nsysprof.waits.replay import LONG_AGO, NEVER, ZERO, Lags
from nsysprof.waits.walk import Lanes, barriers

UNEXPLAINED_NS = 20_000  # before an op starts that could: no latency is that long
_PREPARED_NS = 2_000  # before a copy starts behind another op: no GPU needs so long
_ENGINE_NS = 10_000  # so soon behind another copy in its direction a copy starts that waited for it


def measure_lags(trace: Trace, host: Host, items: Items, launched: Ints32) -> Lags:
    """The `Lags` of a trace."""
    ops, turns = trace.ops, marked(_in_turn(trace)[0], len(trace.ops))
    found = [[np.empty(0, np.int64)] for _ in range(3)]
    for rows in slices(len(ops)):
        row, ready, called = _before(trace, host, items, launched, rows)
        came = np.maximum(ready, called)
        lag = ops.start[rows] - came
        known = ~_carried(trace, came, called, rows) & ~turns[rows] & (lag >= 0)  # what never came is behind, not soon
        behind = known & (ready >= called)
        soon = behind & (lag <= UNEXPLAINED_NS)
        for lags, some in zip(found, (soon & (row >= 0), soon & (row < 0), known & ~behind), strict=True):
            lags.append(lag[some])
    op = mean_latency(np.concatenate(found.pop(0)), 0)
    kernels = marked(ops.launch[(ops.kind == KERNEL) & (ops.launch >= 0)], len(trace.launches))
    lengths = (trace.launches.end - trace.launches.start)[kernels if kernels.any() else slice(None)]
    last = np.sort(ops.end)
    ends = host.time[host.sync[1]]
    place = np.searchsorted(last, ends, side="right") - 1
    after = ends - last[place] if len(last) else ends
    blocked = (place >= 0) & (len(last) > 0) & (after < ends - host.time[host.sync[0]])
    return Lags(
        behind_op=op,
        behind_event=mean_latency(np.concatenate(found[0]), op),
        behind_launch=mean_latency(np.concatenate(found[1]), 0),
        returning=mean_latency(after[blocked], 0),
        launch=min(int(np.median(lengths)), 1 << 62) if len(lengths) else 0,  # as a float it may be beyond int64
        in_graph=op,
    )


def _before(trace: Trace, host: Host, items: Items, launched: Ints32, rows: slice) -> tuple[Ints, Ints, Ints]:
    """The op before each of some ops in its stream (-1: none), when the item before it was done, and when the host had
    launched it.
    """
    before = items.before[items.of_op[rows]]
    op = pick(items.op, before)
    ready = pick(trace.ops.end, op, pick(items.time, before, LONG_AGO))
    return op, ready, pick(host.time, launched[rows], LONG_AGO)


def _carried(trace: Trace, came: Ints, called: Ints, rows: slice) -> Mask:
    """Copies that start during their call, and not right when they ``came``, because the host prepares them.

    This is not a GPU latency, and each copy has its own.
    """
    start, launch = trace.ops.start[rows], trace.ops.launch[rows]
    found: Mask = (trace.ops.kind[rows] == MEMCPY) & (launch >= 0) & (start <= pick(trace.launches.end, launch, 0))
    found &= (came == called) | (start - came > _PREPARED_NS)
    return found


def stream_edges(
    trace: Trace,
    dependencies: Dependencies,
    lanes: Lanes,
    host: Host,
    items: Items,
    launched: Ints32,
    done: Ints32,
    lags: Lags,
    parts: Parts,
) -> None:
    """Fill in the dependencies of items: for ops, the launch and previous items; for waits, the record."""
    ops, of, (one, other) = trace.ops, items.of_op, parts.edges
    for rows in slices(len(items.op)):
        before = items.before[rows]
        earlier = pick(items.op, before)
        other.to[rows] = np.where(before < 0, NEVER, pick(done, earlier, before + 2))
        other.op[rows] = earlier
    awaited = np.flatnonzero(items.record >= 0)
    one.to[awaited] = items.record[awaited] + 2
    null, since, carried = barriers(dependencies, lanes), np.empty(len(ops), np.int64), np.empty(len(ops), bool)
    for rows in slices(len(ops)):
        start = ops.start[rows]
        behind, ready, called = _before(trace, host, items, launched, rows)
        null[rows][(null[rows] == behind) | (pick(ops.end, null[rows], 0) > start)] = -1
        held = pick(ops.end, null[rows], LONG_AGO)
        came = np.maximum(np.maximum(called, held), np.where(ready <= start, ready, LONG_AGO))
        own, alone, slack = start - came, _carried(trace, came, called, rows), start - ready
        usual = np.where(behind >= 0, lags.behind_op, lags.behind_event)
        usual = np.where(alone, own, np.minimum(usual, np.where(slack < 0, slack, usual)))
        at = of[rows]
        other.put(at, usual, np.minimum(slack, usual))
        other.drop(at[slack < -EARLY_NS])
        since[rows] = np.maximum(np.maximum(called, np.where(slack < -EARLY_NS, LONG_AGO, ready)), held)
        carried[rows] = alone
        some = np.flatnonzero(launched[rows] >= 0)
        at = at[some]
        one.to[at], one.moment[at] = ZERO, launched[rows][some]  # the node of the moment's anchor is known later
        late = (start - called)[some]
        soon = np.where(late < 0, late, lags.behind_launch)  # some start before their call returns
        usual = np.where(alone[some], own[some], soon)
        one.put(at, usual, np.minimum(late, usual))
    _behind_null(trace, items, null, done, lags, parts)
    _behind_copies(trace, items, since, carried, done, lags, parts)


def _behind_null(trace: Trace, items: Items, null: Ints32, done: Ints32, lags: Lags, parts: Parts) -> None:
    """Let ops wait also for their dependencies through the legacy default stream."""
    ops = trace.ops
    held = np.flatnonzero(null >= 0)
    lag = np.minimum(ops.start[held] - ops.end[null[held]], lags.behind_event)
    _wait_too(trace, items, held, null[held], lag, done, parts)


def _behind_copies(
    trace: Trace, items: Items, since: Ints, carried: Mask, done: Ints32, lags: Lags, parts: Parts
) -> None:
    """Let copies wait for the previous one in their direction on the GPU if only that explains their start.

    ``since``: when all other dependencies of each op were done.
    """
    op, behind = _in_turn(trace)
    binds = (trace.ops.end[behind] > since[op] + lags.behind_launch) & ~carried[op]
    op, behind = op[binds], behind[binds]
    lag = trace.ops.start[op] - trace.ops.end[behind]
    _wait_too(trace, items, op, behind, np.minimum(lag, lags.behind_op), done, parts)


def _in_turn(trace: Trace) -> tuple[AnyInts, AnyInts]:
    """Copies that start right after one of their direction on the GPU in another stream; and the latter."""
    ops = trace.ops
    rows = np.flatnonzero((ops.kind == MEMCPY) & (trace.op_gpu >= 0))
    rows = trace.in_order(rows, ops.start)
    rows = rows[np.lexsort((ops.name[rows], trace.op_gpu[rows]))]
    same = (trace.op_gpu[rows[1:]] == trace.op_gpu[rows[:-1]]) & (ops.name[rows[1:]] == ops.name[rows[:-1]])
    lag = ops.start[rows[1:]] - ops.end[rows[:-1]]
    same &= (ops.stream[rows[1:]] != ops.stream[rows[:-1]]) & (lag >= 0) & (lag <= _ENGINE_NS)
    return rows[1:][same], rows[:-1][same]


def _wait_too(trace: Trace, items: Items, op: AnyInts, behind: AnyInts, lag: Ints, done: Ints32, parts: Parts) -> None:
    """Let each op wait also for an op ``behind``, after which it starts by a ``lag``, not only for its predecessor."""
    if not len(op):
        return
    ops, other = trace.ops, parts.edges[1]
    at, end = items.of_op[op], trace.ops.end
    parted = other.take(at)
    times, keys = parts.known(items)
    came = np.where(parted.op >= 0, end[parted.op], times[parted.to])
    key = np.maximum(keys[parted.to], items.key[items.of_op[behind]])
    time = np.maximum(np.where(parted.to == NEVER, LONG_AGO, came + parted.lag), end[behind] + lag)
    node = parts.add(parted, edges_of(done[behind], behind, lag), np.minimum(time, ops.start[op]), key)
    other.drop(at)
    other.to[at] = node
