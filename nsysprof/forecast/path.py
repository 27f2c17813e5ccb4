"""Find the parts of a step's critical path in a replay, walking from the end of the step back to its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from nsysprof.core.arrays import Index
from nsysprof.core.units import format_ns
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET
from nsysprof.waits.facts import Facts
from nsysprof.waits.replay import NEVER, ZERO, Network, Times, clock_of

PARTS = ("compute", "communication", "copies", "host", "latency")
COMPUTE, COMMUNICATION, COPIES, HOST, LATENCY = range(len(PARTS))
WORDS = ("compute", "communication", "copies", "CPU time", "launch latency")  # the same, as people read them


@dataclass(frozen=True)
class PathParts:
    """The time (ns) of each of `PARTS` on the critical path of one step; the parts add up to the path. ``ops``: the
    time of GPU ops by row.
    """

    ns: tuple[int, ...]
    ops: Mapping[int, int] = field(default_factory=dict)

    def compared_with(self, other: PathParts) -> str:
        """Name the part that changes most; empty if the total does not change."""
        changes = [after - before for before, after in zip(self.ns, other.ns, strict=True)]
        if not sum(changes):
            return ""
        at = max(range(len(changes)), key=lambda each: changes[each] * sum(changes))
        name = f"{'time in ' * (at == COPIES)}{WORDS[at]}"
        return f"{name} on the critical path changes from {format_ns(self.ns[at])} to {format_ns(other.ns[at])}"


def path_parts(facts: Facts, network: Network, times: Times, start: int, ops: Index, stop: int) -> PathParts:
    """Return the parts of a step, which lasts from ``start`` to ``stop``, or to the end of the last op in ``ops``."""
    clock = clock_of(network)
    end = times.node[network.done[ops]] + network.length[ops]
    last = int(ops[np.argmax(end)])
    ns, by_op = [0] * len(PARTS), dict[int, int]()

    def offset(moment: int) -> int:
        return int(clock[moment] - clock[network.anchor[moment]]) if moment >= 0 else 0

    def ran(op: int, now: int, less: int = 0) -> int:
        added = max(int(network.behind[op]) - less, 0)
        begin = _take(ns, COMPUTE, now, added, start)
        begin = _take(ns, _kind(facts, op), begin, max(int(network.length[op]) - less - added, 0), start)
        by_op[op] = by_op.get(op, 0) + now - begin
        return begin

    now = int(end.max())
    stopped = times.node[network.node[network.anchor[stop]]] + offset(stop) if stop >= 0 else now
    if stopped > now:
        now = int(stopped)
        node = int(network.node[network.anchor[stop]])
        now = _take(ns, HOST, now, offset(stop), start)
    else:
        node = int(network.done[last])
        now = ran(last, now)
    while now > start and node > NEVER:
        best, arrived = None, None
        for each in network.edges:
            ahead = int(each.lag[node]) + (int(network.length[each.op[node]]) if each.op[node] >= 0 else 0)
            came = int(times.node[each.to[node]]) + ahead + offset(each.moment[node])
            if each.to[node] != NEVER and (arrived is None or came > arrived):
                best, arrived = each, came
        if best is None or (best.to[node] == ZERO and best.moment[node] < 0):
            break
        rest = LATENCY if network.starts[node] or network.waits[node] else HOST
        passed = int(network.extra[node] + best.lag[node])
        now = _take(ns, rest, now, max(passed, 0), start)
        if best.moment[node] >= 0:
            now = _take(ns, HOST, now, offset(best.moment[node]), start)
        if best.op[node] >= 0:
            now = ran(int(best.op[node]), now, max(-passed, 0))  # it went on before the op was through
        node = int(best.to[node])
    if now > start:  # what came before is not known
        ns[HOST] += now - start
    return PathParts(tuple(ns), by_op)


def _take(ns: list[int], part: int, now: int, length: int, start: int) -> int:
    """Book a stretch that ends ``now``, as far as it lies behind ``start``, and return where it begins."""
    ns[part] += now - max(now - length, start)
    return max(now - length, start)


def _kind(facts: Facts, op: int) -> int:
    ops = facts.attribution.trace.ops
    if ops.kind[op] in (MEMCPY, MEMSET):
        return COPIES
    return COMMUNICATION if ops.kind[op] == KERNEL and facts.communication[ops.name[op]] else COMPUTE
