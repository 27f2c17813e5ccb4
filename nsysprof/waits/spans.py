"""Lengths of steps in a replay, and whether they are reliable."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work
from nsysprof.core.arrays import Floats, Index, Ints, Mask
from nsysprof.core.intervals import merge
from nsysprof.core.units import format_share
from nsysprof.trace.trace import FOUND, Trace
from nsysprof.waits.moments import Moments
from nsysprof.waits.replay import Network, Times, as_usual, replay
from nsysprof.waits.streams import UNEXPLAINED_NS
from nsysprof.waits.windows import Windows, compute_ops

MAX_RESIDUAL = 0.03  # of a window: replayed without what each GPU op has of its own
MAX_UNRESOLVED = 0.02  # of the time of gaps
MIN_UNRESOLVED = 0.005  # of the windows: less does not matter
NO_TIME = 1 << 62  # later than all


def moments_of(trace: Trace, rows: Index) -> Moments:
    """Return the moments of ranges for a `Network`: begins (twice, for edits that insert time), and ends."""
    ranges = trace.ranges
    times = np.concatenate([ranges.start[rows], ranges.start[rows], ranges.end[rows]])
    return Moments(np.tile(ranges.thread[rows], 3), times, np.repeat([True, True, False], len(rows)))


def asked_moments(network: Network) -> tuple[Index, Index, Index]:
    """Return the begins, repeated begins and ends of ranges in a network built with their `moments_of`."""
    begin, inside, stop = network.asked.reshape(3, -1).astype(np.intp)
    return begin, inside, stop


@dataclass(frozen=True)
class Spans:
    """The windows of steps in a network: the ops that count for each window, and the order of these ops.

    ``windows``: rows sorted by GPU, path and start; ``begin`` and ``stop``: the moments of the windows; ``ops`` of each
    window, from position ``first`` on; ``computes`` marks the ops that compute; ``heads``: the first window of each GPU
    and path; ``until``: the op at which each window ends if this op belongs to another step, otherwise -1 (the other
    step may have no window); ``by_end``: for each path and GPU (head), whether its windows end one after another,
    regardless of which step ends.
    """

    windows: Windows
    begin: Index
    stop: Index
    ops: Index
    first: Index
    heads: Index
    computes: Mask
    until: Index
    by_end: Mask

    def bounds(self, times: Times) -> tuple[Ints, Ints]:
        """Return the start and end of each window in a replay, by the rule of `step_windows`."""
        begun, ended = times.of(self.ops)
        done = np.maximum.reduceat(ended, self.first)
        if (self.windows.range < 0).all():
            return np.minimum.reduceat(begun, self.first), done
        computed = np.maximum.reduceat(np.where(self.computes, ended, -NO_TIME), self.first)
        follows = np.append(np.minimum.reduceat(np.where(self.computes, begun, NO_TIME), self.first)[1:], NO_TIME)
        follows[self.heads[1:] - 1] = NO_TIME
        follows = np.minimum(follows, np.where(self.until < 0, NO_TIME, times.of(self.until)[0]))
        done = np.maximum(computed, np.minimum(done, follows))
        start, end = times.at(self.begin), np.maximum(done, times.at(self.stop))
        joined = self.windows.start < self.windows.begin  # to the one before, by the pause in between
        for rows, sorts in zip(np.split(np.arange(len(done)), self.heads[1:]), self.by_end.tolist(), strict=True):
            end[rows] = np.sort(end[rows]) if sorts else end[rows]
            before = np.maximum.accumulate(end[rows])[:-1]
            start[rows[1:]] = np.where(joined[rows[1:]], before, np.maximum(start[rows[1:]], before))
        return start, np.maximum(start, end)

    def lengths(self, network: Network) -> Ints:
        """Return the length of each window in the replay of a network."""
        start, end = self.bounds(replay(network))
        return end - start

    def residual(self, network: Network) -> Floats:
        """Return the relative error of each window in a replay that keeps only the lengths of GPU ops."""
        length = self.windows.end - self.windows.start
        return np.abs(self.lengths(as_usual(network)) - length) / np.maximum(length, 1)


def spans_of(attribution: Attribution, windows: Windows, rows: Index, network: Network, communication: Mask) -> Spans:
    """Find the `Spans` of sorted windows in a network. The network must contain the `moments_of` ``rows``."""
    trace = attribution.trace
    if (windows.range < 0).all():
        parts = [np.flatnonzero(trace.op_gpu == gpu) for gpu in windows.gpu.tolist()]
        place = np.repeat(np.arange(len(windows)), [len(part) for part in parts])
        ops = np.concatenate(parts)
        begin = stop = np.zeros(len(windows), np.intp)
    else:
        own_rows = np.unique(windows.range).astype(np.intp)
        ops, of = index_work(attribution, own_rows).ops_of(own_rows)
        gpus = int(windows.gpu.max()) + 1
        key = of * gpus + trace.op_gpu[ops]
        own = np.searchsorted(own_rows, windows.range) * gpus + windows.gpu
        order = np.argsort(own)
        at = np.minimum(np.searchsorted(own[order], key), len(own) - 1)
        place = np.where((own[order][at] == key) & (trace.op_gpu[ops] >= 0), order[at], -1)
        ops, place = ops[place >= 0], place[place >= 0]
        by = np.argsort(place, kind="stable")
        ops, place = ops[by], place[by]
        where = np.searchsorted(rows, windows.range)
        begin, _, stop = (moments[where] for moments in asked_moments(network))
    first = np.searchsorted(place, np.arange(len(windows)))
    new = np.append(True, (windows.gpu[1:] != windows.gpu[:-1]) | (windows.path[1:] != windows.path[:-1]))
    computes = compute_ops(trace, communication)[ops]
    of_op = np.full(len(trace.ops) + 1, -1, np.int64)
    of_op[ops] = place
    heads = np.flatnonzero(new[: len(windows)])
    found = np.append(trace.ranges.kind, 0)[windows.range] == FOUND
    by_end = np.logical_and.reduceat(found, heads)
    own = (of_op[windows.last] == np.arange(len(windows))) | (found & (trace.ops.end[windows.last] == windows.done))
    until = np.where(own, -1, windows.last).astype(np.intp)
    return Spans(windows, begin, stop, ops, first, heads, computes, until, by_end)


def doubt_of(trace: Trace, network: Network, lacks: Sequence[str], spans: Spans) -> tuple[str, str | None] | None:
    """Return the reason why dependencies of GPU ops in windows are unknown, with a hint, or None if they are known."""
    streams = np.unique(trace.ops.stream[spans.ops])
    if lacks and len(streams) > len(np.unique(spans.windows.gpu)):
        return f"dependencies between streams are not recorded: {lacks[0]}", "record it again, then forecast"
    gap_ns = unknown_ns = 0
    windows = spans.windows
    for gpu in np.unique(windows.gpu).tolist():
        rows = np.flatnonzero(trace.op_gpu == gpu)
        mine = np.unique(trace.op_process[spans.ops[trace.op_gpu[spans.ops] == gpu]])
        others = np.setdiff1d(trace.op_process[rows], mine)
        if len(others) or len(mine) > 1:
            count = len(others) + len(mine)
            return f"{count} processes share GPU {gpu}, and the model ignores that they slow each other down", None
        rows = trace.in_order(rows, trace.ops.start)
        start = trace.ops.start[rows]
        reach = np.append(start[:1], np.maximum.accumulate(trace.ops.end[rows])[:-1])
        gap = np.maximum(start - reach, 0)
        begin, end = merge(windows.start[windows.gpu == gpu], windows.end[windows.gpu == gpu])  # of several paths
        at = np.searchsorted(begin, start, side="right") - 1
        inside = (at >= 0) & (start <= end[at])
        node = network.start[rows]
        extra = network.extra[node]
        alone = (network.edges[0].to[node] == 0) & (network.edges[0].moment[node] < 0)
        unknown = np.where(alone, gap, np.where(extra > UNEXPLAINED_NS, np.minimum(extra, gap), 0))
        gap_ns += int(gap[inside].sum())
        unknown_ns += int(unknown[inside].sum())
    whole = int((windows.end - windows.start).sum())
    if unknown_ns > MAX_UNRESOLVED * gap_ns and unknown_ns > MIN_UNRESOLVED * whole:
        return (
            f"the cause of waits is unknown for {format_share(unknown_ns / gap_ns)} of the GPU idle time "
            f"(limit: {format_share(MAX_UNRESOLVED)})"
        ), f"nsysprof why {trace.report.path} shows where"
    return None
