"""List what streams process, in order: GPU ops, event records and waits, and the edges between them."""

from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, Mask
from nsysprof.trace.details import Dependencies
from nsysprof.trace.trace import Trace
from nsysprof.waits.peers import Peers
from nsysprof.waits.replay import LONG_AGO, NEVER, Edges, fitting
from nsysprof.waits.walk import Lanes, event_calls

EARLY_NS = 5_000  # so long before the one before it is through an op may start, as programmatic launches do
_LOOK_BACK = 16  # ops of a stream that overlap, as nodes of a graph do


@dataclass(frozen=True)
class Items:
    """The items that streams process, in order: ops, event records, and waits for events (``op`` -1).

    ``of_op`` is the item of each op; ``before``: the previous item in the same stream, -1 for none; ``record``: for a
    wait, the item that records the event, -1 for none; ``time``: the time of the item; ``key``: a sort key (twice a
    time) that is not below the key of any dependency of the item; ``marks``: the items that are not ops, sorted by the
    time of their calls.
    """

    op: Ints32
    of_op: Ints32
    before: Ints32
    record: Ints32
    time: Ints
    key: Ints
    marks: Ints


def items_of(trace: Trace, lanes: Lanes, dependencies: Dependencies, launched: Ints, peers: Peers | None) -> Items:
    """Find the `Items` of a trace; ``launched`` is the time at which the host finished launching each op."""
    ops = trace.ops
    stream, time, event = event_calls(dependencies)
    is_wait = np.arange(len(stream)) >= len(dependencies.records)
    at = lanes.before(stream, time) if len(stream) else np.empty(0, np.intp)
    place = np.where(at >= 0, at + 1, np.searchsorted(lanes.stream, stream))
    order = np.lexsort((is_wait, time, stream, place))
    of_mark = np.empty(len(order), np.int64)
    of_mark[order] = place[order] + np.arange(len(order))
    of_lane = np.arange(len(lanes.order)) + np.searchsorted(place[order], np.arange(len(lanes.order)), side="right")
    count = len(of_lane) + len(of_mark)
    op, lane = np.full(count, -1, np.int32), np.empty(count, np.int64)
    op[of_lane], lane[of_lane], lane[of_mark] = lanes.order, lanes.stream, stream
    of_op = np.empty(len(ops), np.int32)
    of_op[lanes.order] = of_lane
    same = np.append(False, lane[1:] == lane[:-1])[:count]
    before = np.where(same, np.arange(count) - 1, -1).astype(np.int32)
    record = np.full(count, -1, np.int32)
    record[of_mark] = _recorded(event, time, is_wait, of_mark)
    times, key = np.full(count, LONG_AGO), np.full(count, LONG_AGO)
    times[of_lane] = ops.start[lanes.order]
    # before what the host does at that moment, behind the launch
    key[of_lane] = np.where(ops.start > launched, 2 * ops.start - 1, 2 * launched + 1)[lanes.order]
    begins = np.append(np.flatnonzero(~same), count)
    bounds = list(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True))
    for low, high in bounds:
        np.maximum.accumulate(key[low:high], out=key[low:high])
    marks = of_mark[np.lexsort((is_wait, time))]
    through = key[of_op]  # what is behind a collective is behind all its ranks
    if peers is not None:
        member = np.flatnonzero(peers.last >= 0)
        whole = np.full(len(ops), LONG_AGO)
        np.maximum.at(whole, peers.last[member], through[member])
        through[member] = whole[peers.last[member]] + 1
    _time_marks(marks, op, lane, before, record, ops.end, through, times, key)
    for low, high in bounds if len(of_mark) else ():
        np.maximum.accumulate(key[low:high], out=key[low:high])
    return Items(op, of_op, _free_of_overlap(lanes, op, of_lane, before, ops.end), record, times, key, marks)


def _recorded(event: Ints32, time: Ints, is_wait: Mask, item: Ints) -> Ints:
    """For each wait the item of the last record of its event before it; -1 for none, and for records."""
    order = np.lexsort((is_wait, time, event))
    newest = np.maximum.accumulate(np.where(is_wait[order], -1, np.arange(len(order)))) if len(order) else order
    found = np.full(len(order), -1, np.int64)
    hit = is_wait[order] & (newest >= 0)
    hit[hit] = event[order[newest[hit]]] == event[order[hit]]
    found[order[hit]] = item[order[newest[hit]]]
    return found


def _time_marks(
    marks: Ints,
    op: Ints32,
    lane: Ints,
    before: Ints32,
    record: Ints32,
    end: Ints,
    through: Ints,
    times: Ints,
    key: Ints,
) -> None:
    """Fill in when each record and wait was done, in the order of the calls."""
    floor: dict[int, int] = {}
    for item in marks.tolist():
        earlier, stream = before[item], int(lane[item])
        done, until = LONG_AGO, floor.get(stream, LONG_AGO)
        if earlier >= 0:
            done = int(end[op[earlier]] if op[earlier] >= 0 else times[earlier])
            until = max(until, int(through[op[earlier]] if op[earlier] >= 0 else key[earlier]))
        if (other := record[item]) >= 0:
            done, until = max(done, int(times[other])), max(until, int(key[other]))
        times[item], key[item], floor[stream] = done, until, until


def _free_of_overlap(lanes: Lanes, op: Ints32, of_lane: Ints, before: Ints32, end: Ints) -> Ints32:
    """The predecessor of each item; in a stream with overlapping ops, the op that ends last before it starts."""
    if len(lanes.order) < 2:
        return before
    ends, starts, same = end[lanes.order], lanes.start[lanes.order], lanes.stream[1:] == lanes.stream[:-1]
    odd = np.append(False, same & (ends[:-1] > starts[1:]))
    recent, early = odd.copy(), np.minimum((ends - starts) // 2, EARLY_NS)
    for back in range(1, _LOOK_BACK):
        recent[back:] |= odd[:-back]
    for place in np.flatnonzero(recent).tolist():
        item = of_lane[place]
        if before[item] < 0 or op[before[item]] < 0:
            continue
        low = max(place - _LOOK_BACK, int(np.searchsorted(lanes.stream, lanes.stream[place])))
        free = [at for at in range(low, place) if ends[at] - early[at] <= starts[place]]
        before[item] = of_lane[max(free, key=lambda at: (ends[at], at))] if free else -1
    return before


class Parts:
    """Edges of stream items and of additional nodes, collected while items are processed; items are nodes from 2 on."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.edges = tuple(no_edges(items) for _ in range(2))
        self.more: list[tuple[Edges, Edges, Ints, Ints]] = []
        self.count = items

    def add(self, one: Edges, other: Edges, time: Ints, key: Ints) -> Ints32:
        """Add nodes that each wait for two other nodes, and return the numbers of the new nodes."""
        self.more.append((one, other, time, key))
        self.count += len(time)
        return np.arange(self.count - len(time), self.count, dtype=np.int32) + 2

    def known(self, items: Items) -> tuple[Ints, Ints]:
        """Return the time and the key of every node so far."""
        never = np.array([0, LONG_AGO])
        times, keys = ([each[at] for each in self.more] for at in (2, 3))
        return np.concatenate([never, items.time, *times]), np.concatenate([never, items.key, *keys])


def edges_of(to: AnyInts, op: AnyInts | int = -1, lag: AnyInts | int = 0) -> Edges:
    """Make edges to the nodes ``to``, with a ``lag`` after these nodes, or after the ``op`` that starts at a node."""
    count = len(to)
    lags = np.broadcast_to(np.asarray(lag, fitting(np.asarray(lag))), count).copy()
    ops = np.broadcast_to(np.asarray(op, np.int32), count).copy()
    return Edges(to.astype(np.int32), np.full(count, -1, np.int32), ops, lags, lags.copy())


def no_edges(count: int) -> Edges:
    """Edges of ``count`` nodes without dependencies."""
    return edges_of(np.full(count, NEVER))
