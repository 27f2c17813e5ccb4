"""Compute totals of many ranges at once from sorted slices. Totals are counts, sums, first and last GPU op, and busy
time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.core.arrays import AnyInts, Array, Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import marked
from nsysprof.core.intervals import contained_slices, contained_sums, layers, overlaps, slice_reduce, union_length
from nsysprof.trace.trace import GRAPH, KERNEL

# Devices from this one on share the last bit of a mask.
DEVICE_BITS = 62
_EARLY, _LATE = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Totals:
    """Totals of the GPU work inside each range; columns with a row per range.

    The counts are ``launches`` (distinct host calls that caused GPU work), ``kernels``, ``memops`` and
    ``graph_launches``. ``first_op_ns`` is the start of the first GPU op, and ``last_op_ns`` is the end of the last (0
    if there is none). ``busy_ns`` is the length of the union of the ops' intervals, summed over devices; ``sum_ns`` is
    the sum of the ops' durations, and ``followed_sum_ns`` is the part of ``sum_ns`` launched by worker threads.
    ``devices`` has a bit per device.
    """

    launches: Ints32
    kernels: Ints32
    memops: Ints32
    graph_launches: Ints32
    first_op_ns: Ints
    last_op_ns: Ints
    busy_ns: Ints
    sum_ns: Ints
    followed_sum_ns: Ints
    devices: AnyInts

    @classmethod
    def zeros(cls, count: int, arena: ColumnArena = IN_MEMORY, devices: int = DEVICE_BITS + 1) -> Totals:
        """Empty totals of ``count`` ranges; their masks hold at least ``devices`` bits."""
        types = dict.fromkeys(("launches", "kernels", "memops", "graph_launches"), np.dtype(np.int32))
        types["devices"] = np.min_scalar_type(-1 << min(devices, DEVICE_BITS + 1))
        return cls(**{f.name: arena.zeros(count, types.get(f.name, np.int64)) for f in fields(cls)})

    def fill(self, rows: slice | Index, part: Totals) -> None:
        """Write the totals of the given ranges into their rows."""
        for field in fields(self):
            values = getattr(part, field.name)
            if values.any():  # a column that stays all zeros never takes memory
                getattr(self, field.name)[rows] = values

    @property
    def span_ns(self) -> Ints:
        """Return the time from the start of the first GPU op to the end of the last."""
        return self.last_op_ns - self.first_op_ns


@dataclass(frozen=True)
class LaunchWork:
    """Launches sorted by start, with the GPU ops that each launch caused, in launch order.

    The columns of launches are ``start``, ``end``, ``sum_ns``, ``negative_ns`` (the sum of negative durations, as a
    positive number; None if there are none), ``first_ns``, ``last_ns``, ``kernels``, ``memops``, ``graph`` (1 for a
    CUDA graph launch) and ``followed`` (marks launches by worker threads, or None). The columns of ops are ``call``
    (the position of the launch, never decreasing), ``op_start``, ``op_end`` and ``device``.
    """

    start: Ints
    end: Ints
    sum_ns: Ints
    first_ns: Ints
    last_ns: Ints
    kernels: Ints32
    memops: Ints32
    graph: Ints32
    call: Ints32
    op_start: Ints
    op_end: Ints
    device: AnyInts
    followed: Mask | None = None
    negative_ns: Ints | None = None

    @classmethod
    def build(
        cls,
        start: Ints,
        end: Ints,
        *,
        call: Ints32,
        op_start: Ints,
        op_end: Ints,
        device: AnyInts,
        kind: Bytes,
        from_graph: Mask,
        arena: ColumnArena = IN_MEMORY,
    ) -> LaunchWork:
        """Add up the GPU ops of each launch. Every launch must have at least one GPU op."""
        length = arena.empty(len(op_start), np.int64)
        np.subtract(op_end, op_start, out=length)
        kernel, graph = kind == KERNEL, kind == GRAPH
        columns = {
            "sum_ns": (np.add, length),
            "first_ns": (np.minimum, op_start),
            "last_ns": (np.maximum, op_end),
            "kernels": (np.add, arena.cast(kernel, np.int32)),
            "memops": (np.add, arena.cast(~kernel & ~graph, np.int32)),
            "graph": (np.maximum, arena.cast(graph | from_graph, np.int32)),
        }
        if (length < 0).any():
            columns["negative_ns"] = (np.add, np.maximum(-length, 0))
        if len(call) > len(start):  # several ops of one launch: the nodes of a CUDA graph
            first = np.searchsorted(call, np.arange(len(start)))
            columns = {name: (ufunc, ufunc.reduceat(values, first)) for name, (ufunc, values) in columns.items()}
        return cls(
            start,
            end,
            call=call,
            op_start=op_start,
            op_end=op_end,
            device=device,
            **{name: values for name, (_, values) in columns.items()},
        )


_PER_LAUNCH = ("start", "end", "sum_ns", "first_ns", "last_ns", "kernels", "memops", "graph")
_PER_OP = ("op_start", "op_end", "device")


def slice_calls(calls: LaunchWork, first: int, last: int) -> LaunchWork:
    """Return the launches ``[first, last)``, sorted by start, with their GPU ops, as views."""
    low, high = np.searchsorted(calls.call, [first, last]).tolist()
    return LaunchWork(
        **{name: getattr(calls, name)[first:last] for name in _PER_LAUNCH},
        **{name: getattr(calls, name)[low:high] for name in _PER_OP},
        call=calls.call[low:high] - np.int32(first),
        negative_ns=None if calls.negative_ns is None else calls.negative_ns[first:last],
    )


def take_calls(
    calls: LaunchWork, rows: Index, followed: Mask | None = None, arena: ColumnArena = IN_MEMORY
) -> LaunchWork:
    """Return the launches ``rows`` in order, with their GPU ops; ``followed`` marks launches by worker threads."""
    start = calls.start[rows]
    if (start[1:] < start[:-1]).any():
        order = np.lexsort((calls.end[rows], start))
        rows = rows[order]
        followed = None if followed is None else followed[order]
    call = np.arange(len(rows), dtype=np.int32)
    ops = rows
    if len(calls.call) > len(calls.start):  # launches with several ops
        first = np.searchsorted(calls.call, rows)
        size = np.searchsorted(calls.call, rows, side="right") - first
        call = np.repeat(call, size)
        ops = np.arange(len(call)) + np.repeat(first - (np.cumsum(size) - size), size)
    return LaunchWork(
        **{name: arena.take(getattr(calls, name), rows) for name in _PER_LAUNCH},
        **{name: arena.take(getattr(calls, name), ops) for name in _PER_OP},
        call=call,
        followed=followed,
        negative_ns=None if calls.negative_ns is None else calls.negative_ns[rows],
    )


def project(calls: LaunchWork, start: Ints, end: Ints, arena: ColumnArena = IN_MEMORY) -> Totals:
    """For ranges sorted by start, compute the `Totals` of the launches that are entirely inside each range."""
    out = Totals.zeros(len(start), arena)
    if len(start) == 0 or len(calls.start) == 0:
        return out
    first, last = np.full(len(start), _LATE), np.full(len(start), _EARLY)
    final = np.zeros(len(start), np.intp)  # one past the last launch inside
    followed = None if calls.followed is None else np.where(calls.followed, calls.sum_ns, 0)
    parts = layers(calls.end)
    for layer in parts:
        low, high = contained_slices(_pick(calls.start, layer), _pick(calls.end, layer), start, end)
        out.launches[:] += (high - low).astype(np.int32)
        for total, values in (
            (out.kernels, calls.kernels),
            (out.memops, calls.memops),
            (out.graph_launches, calls.graph),
            (out.sum_ns, calls.sum_ns),
            (out.followed_sum_ns, followed),
        ):
            if values is not None and values.any():
                _add_slices(total, _pick(values, layer), low, high)
        np.minimum(first, slice_reduce(np.minimum, _pick(calls.first_ns, layer), low, high, _LATE), out=first)
        np.maximum(last, slice_reduce(np.maximum, _pick(calls.last_ns, layer), low, high, _EARLY), out=last)
        if layer is not None:
            np.maximum(final, np.where(high > low, layer[high - 1] + 1, 0), out=final)
        if len(calls.device):
            _note_devices(out, calls, layer, low, high)
    some = out.launches > 0
    np.copyto(out.first_op_ns, first, where=some)
    np.copyto(out.last_op_ns, last, where=some)
    out.busy_ns[:] = out.sum_ns
    if calls.negative_ns is not None:
        for layer in parts:
            low, high = contained_slices(_pick(calls.start, layer), _pick(calls.end, layer), start, end)
            _add_slices(out.busy_ns, _pick(calls.negative_ns, layer), low, high)
    _take_overlaps_off(out.busy_ns, calls, start, end)
    if len(parts) > 1:
        # Where a call sticks out of the range in the middle of its launches, neighbours in time are not pairs.
        begin = np.searchsorted(calls.start, start, side="left")
        for odd in np.flatnonzero(some & (final - begin != out.launches)).tolist():
            inside = np.arange(begin[odd], final[odd])
            out.busy_ns[odd] = _busy(calls, inside[calls.end[inside] <= end[odd]])
    return out


def _pick(values: Array, layer: Index | None) -> Array:
    return values if layer is None else values[layer]


def _note_devices(out: Totals, calls: LaunchWork, layer: Index | None, low: Index, high: Index) -> None:
    bits = np.int64(1) << np.minimum(calls.device, DEVICE_BITS).astype(np.int64)
    if (bits == bits[0]).all():
        out.devices[high > low] |= bits[0]
        return
    masks = np.zeros(len(calls.start), np.int64)
    np.bitwise_or.at(masks, calls.call, bits)
    out.devices[:] |= slice_reduce(np.bitwise_or, _pick(masks, layer), low, high, 0)


def _add_slices(total: Array, values: Array, low: Index, high: Index) -> None:
    """Add the sum of ``values[low:high]`` to each total."""
    before = np.zeros(len(values) + 1, total.dtype)
    np.cumsum(values, out=before[1:])
    total += before[high]
    total -= before[low]


def _take_overlaps_off(busy: Ints, calls: LaunchWork, start: Ints, end: Ints) -> None:
    """Turn sums into unions: for each range, subtract the time in which its GPU ops overlap."""
    devices = np.flatnonzero(np.bincount(calls.device))
    for device in devices.tolist():
        ops = np.flatnonzero(calls.device == device) if len(devices) > 1 else np.arange(len(calls.device))
        pairs = overlaps(calls.op_start[ops], calls.op_end[ops])
        if len(pairs.ns) == 0:
            continue
        earlier, later = calls.call[ops[pairs.first]], calls.call[ops[pairs.second]]
        hull_start, hull_end = calls.start[earlier], np.maximum(calls.end[earlier], calls.end[later])
        order = np.lexsort((hull_end, hull_start))
        hull_start, hull_end, ns = hull_start[order], hull_end[order], pairs.ns[order]
        busy -= contained_sums(hull_start, hull_end, ns, start, end)


def _busy(calls: LaunchWork, inside: Index) -> int:
    """The busy time of the GPU ops of some launches, summed over devices."""
    ops = np.flatnonzero(marked(inside, len(calls.start))[calls.call])
    return sum(
        union_length(calls.op_start[ran], calls.op_end[ran])
        for device in np.flatnonzero(np.bincount(calls.device[ops])).tolist()
        for ran in [ops[calls.device[ops] == device]]
    )
