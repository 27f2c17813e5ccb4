"""Build the `Network` of a trace: the dependencies between host moments and GPU ops."""

from dataclasses import fields, replace

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import AnyInts, Index, Ints32, slices
from nsysprof.core.columns import pick
from nsysprof.trace.details import Dependencies, HostActivity
from nsysprof.trace.trace import Trace
from nsysprof.waits.items import Items, Parts, edges_of, items_of, no_edges
from nsysprof.waits.joins import Joins, copy_joins, distinct_joins, first_joins, handover_joins, queue_joins, sync_joins
from nsysprof.waits.moments import Host, Moments, host_of, launched_behind
from nsysprof.waits.peers import Peers
from nsysprof.waits.replay import BLOCK, LONG_AGO, NEVER, ZERO, Edges, Lags, Network, clock_of, delays, fitting
from nsysprof.waits.streams import measure_lags, stream_edges
from nsysprof.waits.walk import lanes_of

_HOST, _ITEM, _MARK, _LATE = range(4)  # of nodes with equal keys which come first


def network_of(
    attribution: Attribution,
    activity: HostActivity,
    dependencies: Dependencies,
    asked: Moments,
    peers: Peers | None = None,
    lags: Lags | None = None,
) -> Network:
    """Build the `Network` of a trace with the requested moments; ``lags`` are measured if not given.

    ``attribution`` must attribute GPU ops to their launches. Takes near-linear time, with a Python loop only for
    events.
    """
    attribution = attribution.launched
    trace = attribution.trace
    trace.give_back()
    lanes = lanes_of(trace)
    host = host_of(trace, activity, asked)
    trace.give_back()
    launched = launched_behind(trace, host)
    called = pick(host.time, launched, LONG_AGO)
    items = items_of(trace, lanes, dependencies, called, peers)
    del called
    parts = Parts(len(items.op))
    done, length = _ends(trace, items, peers, parts)
    known = lags or measure_lags(trace, host, items, launched)
    stream_edges(trace, dependencies, lanes, host, items, launched, done, known, parts)
    del vars(items)["op"], vars(items)["before"], vars(items)["record"]
    joins = [
        sync_joins(trace, activity, host, lanes, items, done, known, parts),
        copy_joins(trace, host, done, known),
        queue_joins(trace, host, lanes, items, known),
        *handover_joins(attribution, host),
        *first_joins(trace, host),
    ]
    joined = distinct_joins(joins, host)
    del joins, lanes, launched
    trace.give_back()
    network = _assembled(host, items, joined, parts, done, length, known)
    del items, joined, parts
    network = _with_extras(network)
    return replace(network, part=_parts(trace, network)).copy()  # edits copy ns as int64


def _parts(trace: Trace, network: Network) -> AnyInts:
    """The process of each node: of its thread, its GPU op, or its dependency."""
    out = np.full(len(network.recorded), -1, np.min_scalar_type(-1 - len(trace.processes)))
    moments = np.flatnonzero(network.node >= 0)
    out[network.node[moments]] = trace.thread_process[network.thread[moments]]
    out[network.start] = trace.op_process
    rows = np.flatnonzero(out < 0)
    while len(rows):
        found = np.maximum(*(out[each.to[rows]] for each in network.edges))
        if (found < 0).all():
            break
        out[rows] = found
        rows = rows[found < 0]
    return out


def _ends(trace: Trace, items: Items, peers: Peers | None, parts: Parts) -> tuple[Ints32, AnyInts]:
    """The node after which each op ends, and how long after: its start, or that of a collective's last rank."""
    ops = trace.ops
    done, length = items.of_op + np.int32(2), ops.end - ops.start
    if peers is None:
        return done, length.astype(fitting(length), copy=False)
    member = np.flatnonzero(peers.last >= 0)
    member = member[np.argsort(peers.last[member], kind="stable")]
    first = np.flatnonzero(np.append(True, np.diff(peers.last[member]) != 0)[: len(member)])
    size = np.diff(np.append(first, len(member)))
    at = member[first]
    node, time, key = done[at], ops.start[at], items.key[items.of_op[at]]
    for number in range(1, int(size.max(initial=0))):
        some = np.flatnonzero(size > number)
        each = member[first[some] + number]
        time[some] = np.maximum(time[some], ops.start[each])
        key[some] = np.maximum(key[some], items.key[items.of_op[each]])
        node[some] = parts.add(edges_of(node[some]), edges_of(items.of_op[each] + 2), time[some], key[some])
    whole = np.repeat(np.arange(len(first)), size)
    done[member], length[member] = node[whole], ops.end[member] - time[whole]
    return done, length.astype(fitting(length), copy=False)


def _assembled(
    host: Host, items: Items, joins: Joins, parts: Parts, done: Ints32, length: AnyInts, lags: Lags
) -> Network:
    """Number the nodes in the order of their keys, resolve moments, and compute the delays beyond the edges."""
    first_of = np.append(True, host.thread[1:] != host.thread[:-1])[: len(host.thread)]
    alone = first_of.copy()
    alone[joins.at] = False
    begins = np.flatnonzero(alone)
    moments = np.concatenate([begins, joins.at]).astype(np.int32)
    count = 2 + parts.count
    node = np.full(len(host.time), -1, np.int32)
    node[moments] = np.arange(count, count + len(moments))
    anchor = np.arange(len(node), dtype=np.int32)
    anchor[node < 0] = 0
    np.maximum.accumulate(anchor, out=anchor)
    own = replace(edges_of(np.full(len(joins.at), ZERO), lag=joins.own), moment=joins.at - np.int32(1))
    own.drop(np.flatnonzero(first_of[joins.at]))
    awaited = replace(edges_of(joins.to, joins.op, joins.lag), moment=joins.moment)
    edges = [
        [
            edges_of(np.full(2, NEVER)),
            parts.edges[at],
            *(each[:2][at] for each in parts.more),
            no_edges(len(begins)),
            last,
        ]
        for at, last in enumerate((own, awaited))
    ]
    time = [np.array([0, LONG_AGO]), vars(items).pop("time"), *(each[2] for each in parts.more), host.time[moments]]
    key = [np.full(2, LONG_AGO), vars(items).pop("key"), *(each[3] for each in parts.more), 2 * host.time[moments]]
    late = count - 2 - parts.items
    kinds = np.repeat(np.array([_HOST, _ITEM, _LATE, _HOST], np.int8), [2, parts.items, late, len(moments)])
    kinds[2 + items.marks] = _MARK
    rank = np.zeros(len(kinds), np.int32)
    rank[2 + items.marks] = np.arange(len(items.marks))
    keys = np.concatenate(key)
    keys[:2] = [np.iinfo(np.int64).min, np.iinfo(np.int64).min + 1]
    order = np.lexsort((rank, kinds, keys)) if len(items.marks) else np.lexsort((kinds, keys))
    recorded, waits = np.concatenate(time)[order], np.zeros(len(order), bool)
    del time, key, keys, kinds, rank
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order))
    waits[number[node[joins.at]]] = joins.waits
    ordered = [_joined(each, order) for each in edges]
    for each in ordered:
        some = np.flatnonzero(each.moment >= 0)
        each.to[some] = node[anchor[each.moment[some]]]
        each.to[:] = number[each.to]
        each.drop(np.flatnonzero(each.to >= np.arange(len(order))))
    starts, start = np.zeros(len(order), bool), number[items.of_op + 2]
    starts[start] = True
    node[moments] = number[node[moments]]
    behind, extra = np.zeros(len(length), np.int64), np.zeros(len(order), np.int64)
    return Network(
        host.thread, host.time, None, anchor, node, start, number[done], length, behind,
        (ordered[0], ordered[1]), extra, recorded, starts, waits,
        host.launch, host.sync_call, host.sync, host.asked, lags, starts,
    )  # fmt: skip


def _joined(parts: list[Edges], order: Index) -> Edges:
    """The edges of all parts, in this order; the parts lose each column as soon as it is joined."""
    columns = {
        name: np.concatenate([vars(part).pop(name) for part in parts])[order]
        for name in (field.name for field in fields(Edges))
    }
    return Edges(**columns)


def _with_extras(network: Network) -> Network:
    """Give each node its delay after its latest dependency, and nodes without dependencies their time."""
    clock, extra = clock_of(network), np.zeros(len(network.recorded), np.int64)
    unknown = [np.empty(0, np.intp)]
    for rows in slices(len(extra), BLOCK):
        recorded, came = network.recorded[rows], np.full(len(extra[rows]), LONG_AGO)
        for each in network.edges:
            arrived = network.recorded[each.to[rows]] + delays(network, each, clock, rows)
            came = np.maximum(came, np.where(each.to[rows] == NEVER, LONG_AGO, arrived))
        known = came > LONG_AGO // 2
        extra[rows] = np.where(known, recorded - came, 0)
        unknown.append(rows.start + np.flatnonzero(~known & (recorded > LONG_AGO // 2)))
    alone = np.concatenate(unknown)[1:]  # the first is the moment 0
    for each in network.edges:
        each.drop(alone)
    network.edges[0].to[alone] = ZERO
    extra[alone] = network.recorded[alone]
    return replace(network, extra=extra)
