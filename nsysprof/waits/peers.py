"""Match the collectives of several ranks, to find the rank that arrived last and how long the others waited.

A collective ends on all ranks together, so the last rank to arrive spends the shortest time in the collective. The
additional time of the other ranks is waiting.
"""

import re
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask
from nsysprof.trace.details import Collectives
from nsysprof.trace.trace import KERNEL, Trace
from nsysprof.waits.walk import RUNS, Pieces

# All ranks take part in these and leave them together.
_COLLECTIVE = re.compile(r"(?i)all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce|(?:one|two)shot_ar")


def collective_ops(trace: Trace, communication: Mask, found: Collectives) -> Index:
    """Select the kernels that all ranks enter and leave together, by kernel name or, if collectives were ``found``, by
    the name of the collective; ``communication``: whether each op name is a collective.
    """
    named = [
        talks and bool(_COLLECTIVE.search(name)) for talks, name in zip(communication, trace.op_names, strict=True)
    ]
    known = np.array([bool(_COLLECTIVE.search(name)) for name in found.kinds], bool)
    collective = np.array(named, bool).take(trace.ops.name)
    collective[found.op] = known[found.kind]
    return np.flatnonzero((trace.ops.kind == KERNEL) & collective)


def wait_for_last(one: AnyInts, length: Ints) -> tuple[Ints, Index]:
    """For each member of a collective, return how long it waited (ns), and which member arrived last.

    ``one`` is the collective of each member, ``length`` the time that the member spent in it. If several members have
    the shortest time, the first of these counts as the last to arrive.
    """
    order = np.lexsort((length, one))
    first = np.flatnonzero(np.append(True, np.diff(one[order]) != 0)[: len(order)])
    last = np.empty(len(order), np.intp)
    last[order] = np.repeat(order[first], np.diff(np.append(first, len(order))))
    return length - length[last], last


@dataclass(frozen=True)
class Peers:
    """Per GPU op, in the order of `Trace.ops`: ``last`` int32: for a collective, the op of the last rank to arrive
    (possibly the op itself), -1 if the collective has no other rank.
    """

    last: Ints32


def find_peers(trace: Trace, communication: Mask, collectives: Collectives) -> Peers | None:
    """Match the collectives of all ranks in a trace; each rank is a process on a GPU. Returns None if no two ranks have
    a collective in common.

    Ops of the same name on different ranks are one collective if their ends differ by at most half of the shortest
    duration. This holds because no rank can end the next collective before all ranks have left the first one.
    """
    ops = trace.ops
    rows = collective_ops(trace, communication, collectives)
    rows = rows[(trace.op_gpu[rows] >= 0) & (ops.end[rows] > ops.start[rows])]
    rows = rows[np.lexsort((ops.end[rows], ops.name[rows]))]
    rows = trace.settled(rows, ops.name[rows], ops.end[rows])
    rank = trace.op_process[rows].astype(np.int64) * (1 + int(trace.op_gpu.max(initial=0))) + trace.op_gpu[rows]
    if len(np.unique(rank)) < 2:
        return None
    columns = (ops.name[rows], rank, ops.end[rows], ops.end[rows] - ops.start[rows])
    numbers, members = list[int](), set[int]()
    number = this = until = shortest = -1
    for name, who, end, length in zip(*(each.tolist() for each in columns), strict=True):
        if name != this or who in members or 2 * (end - until) > (shortest if shortest < length else length):
            number, this, until, shortest, members = number + 1, name, end, length, set()
        members.add(who)
        shortest = shortest if shortest < length else length
        numbers.append(number)
    one = np.array(numbers, np.int64)
    some = np.bincount(one)[one] > 1
    _, last = wait_for_last(one, ops.end[rows] - ops.start[rows])
    found = Peers(np.full(len(ops), -1, np.int32))
    found.last[rows[some]] = rows[last[some]]
    return found


def split_late(trace: Trace, pieces: Pieces, peers: Peers | None) -> tuple[Pieces, Ints32]:
    """Split pieces at the arrival of the last rank; also return this rank's op per piece, -1 if no rank was late."""
    none = np.full(len(pieces.gap), -1, np.int32)
    if peers is None:
        return pieces, none
    ops, last = trace.ops, peers.last[pieces.op]
    until = ops.end[pieces.op] - (ops.end[last] - ops.start[last])  # the arrival of that rank
    late = (pieces.kind == RUNS) & (last >= 0) & (pieces.start < until)
    cut = np.where(late, np.minimum(until, pieces.end), pieces.start)
    before, behind = np.flatnonzero(late), np.flatnonzero(cut < pieces.end)
    rows = np.concatenate([before, behind])
    start = np.concatenate([pieces.start[before], cut[behind]])
    end = np.concatenate([cut[before], pieces.end[behind]])
    whose = np.where(np.arange(len(rows)) < len(before), peers.last[pieces.op[rows]], np.int32(-1))
    order = np.lexsort((start, pieces.gap[rows]))
    rows = rows[order]
    return Pieces(pieces.gap[rows], start[order], end[order], pieces.kind[rows], pieces.op[rows]), whose[order]
