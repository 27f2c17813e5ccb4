"""Find the dependencies of GPU ops besides their launch: stream, events, the legacy default stream, the copy engine.

Also measure the usual delays before GPU ops start.
"""

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, Mask
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
    ops = trace.ops
    before = items.before[items.of_op]
    row = pick(items.op, before)
    ready = pick(ops.end, row, pick(items.time, before, LONG_AGO))
    called = pick(host.time, launched, LONG_AGO)
    came = np.maximum(ready, called)
    lag, known = ops.start - came, ~_carried(trace, came, called)  # what never came is behind, and not soon
    known[_in_turn(trace)[0]] = False
    behind = known & (ready >= called) & (lag >= 0)
    soon = behind & (lag <= UNEXPLAINED_NS)
    op = mean_latency(lag[soon & (row >= 0)], 0)
    kernels = marked(ops.launch[(ops.kind == KERNEL) & (ops.launch >= 0)], len(trace.launches))
    lengths = (trace.launches.end - trace.launches.start)[kernels if kernels.any() else slice(None)]
    last = np.sort(ops.end)
    ends = host.time[host.sync[1]]
    place = np.searchsorted(last, ends, side="right") - 1
    after = ends - last[place] if len(last) else ends
    blocked = (place >= 0) & (len(last) > 0) & (after < ends - host.time[host.sync[0]])
    return Lags(
        behind_op=op,
        behind_event=mean_latency(lag[soon & (row < 0)], op),
        behind_launch=mean_latency(lag[known & ~behind & (lag >= 0)], 0),
        returning=mean_latency(after[blocked], 0),
        launch=min(int(np.median(lengths)), 1 << 62) if len(lengths) else 0,  # as a float it may be beyond int64
        in_graph=op,
    )


def _carried(trace: Trace, came: Ints, called: Ints) -> Mask:
    """Copies that start during their call, and not right when they ``came``, because the host prepares them.

    This is not a GPU latency, and each copy has its own.
    """
    ops, launches, launch = trace.ops, trace.launches, trace.ops.launch
    returned = pick(launches.end, launch, 0)
    found: Mask = (ops.kind == MEMCPY) & (launch >= 0) & (ops.start <= returned)
    found &= (came == called) | (ops.start - came > _PREPARED_NS)
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
    ops = trace.ops
    one, other = parts.edges
    before = items.before
    earlier = pick(items.op, before)
    other.to[:] = np.where(before < 0, NEVER, pick(done, earlier, before + 2))
    other.op[:] = earlier
    awaited = np.flatnonzero(items.record >= 0)
    one.to[awaited] = items.record[awaited] + 2
    of = items.of_op
    behind = earlier[of]
    ready = pick(ops.end, behind, pick(items.time, before[of], LONG_AGO))
    null = barriers(dependencies, lanes)
    null[(null == behind) | (pick(ops.end, null, 0) > ops.start)] = -1
    held = pick(ops.end, null, LONG_AGO)
    called = pick(host.time, launched, LONG_AGO)
    came = np.maximum(np.maximum(called, held), np.where(ready <= ops.start, ready, LONG_AGO))
    own, carried = ops.start - came, _carried(trace, came, called)
    slack = ops.start - ready
    usual = np.where(behind >= 0, lags.behind_op, lags.behind_event)
    usual = np.where(carried, own, np.minimum(usual, np.where(slack < 0, slack, usual)))
    other.usual[of], other.lag[of] = usual, np.minimum(slack, usual)
    other.drop(of[slack < -EARLY_NS])
    rows = np.flatnonzero(launched >= 0)
    at = of[rows]
    one.to[at], one.moment[at] = ZERO, launched[rows]  # the node of the moment's anchor is known later
    late = (ops.start - called)[rows]
    soon = np.where(late < 0, late, lags.behind_launch)  # some start before their call returns
    one.usual[at] = np.where(carried[rows], own[rows], soon)
    one.lag[at] = np.minimum(late, one.usual[at])
    since = np.maximum(called, np.where(slack < -EARLY_NS, LONG_AGO, ready))
    _behind_null(trace, items, null, done, lags, parts)
    _behind_copies(trace, items, np.maximum(since, held), carried, done, lags, parts)


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
