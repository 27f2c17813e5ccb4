"""GPU streams over time, cut into columns: when each was busy, and with what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.split import device_labels, stream_labels
from nsysprof.core.intervals import NOTHING, Ints, cover_before, merge, time_per_group
from nsysprof.kernels.groups import OpGroups
from nsysprof.trace.trace import Trace

MOST_LANES = 16
MOST_STREAMS = 8  # with a lane each
_CHUNK = 1 << 20  # ops at a time where temporaries would be large


@dataclass(frozen=True)
class StreamLane:
    """One stream, or all that a process has on a GPU, a value per column of the timeline.

    ``busy_ns`` int64, the time in which at least one op ran; ``group`` uint8, which of the `OpGroups` ran longest,
    `NOTHING` where nothing did; ``process`` an index into ``trace.processes``; ``ops`` and ``total_ns`` (busy time)
    are those of the whole lane, which has ``streams``.
    """

    label: str
    process: int
    busy_ns: Ints
    group: NDArray[np.uint8]
    ops: int
    total_ns: int
    streams: int


def choose_streams(trace: Trace) -> tuple[list[int], list[str]]:
    """The streams to draw one by one, and a note on those left out; see `choose_lanes`."""
    lanes, notes = choose_lanes(trace, len(trace.streams))
    return [stream for lane in lanes for stream in lane], notes


def choose_lanes(trace: Trace, most_streams: int = MOST_STREAMS) -> tuple[list[list[int]], list[str]]:
    """The streams that share each lane, in the order of GPUs, their processes and streams; a note on those left out.

    Of more than ``most_streams`` those of one process and GPU share one. Migrations have lanes of their own.
    """
    count = len(trace.streams)
    total = np.zeros(count, np.int64)
    for first in range(0, len(trace.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        length = np.maximum(trace.ops.end[part] - trace.ops.start[part], 0)
        np.add.at(total, trace.ops.stream[part], length)
    numbers, process = trace.gpu_numbers, trace.stream_process.tolist()
    gpu = [numbers[stream.device] for stream in trace.streams]
    together = sum(not stream.migrates for stream in trace.streams) > most_streams
    by_lane: dict[tuple[object, ...], list[int]] = {}
    for number, stream in enumerate(trace.streams):
        key = process[number], gpu[number], stream.migrates, -1 if together else number
        by_lane.setdefault(key, []).append(number)
    lanes = list(by_lane.values())
    time = [int(total[lane].sum()) for lane in lanes]
    by_time = sorted(range(len(lanes)), key=lambda lane: -time[lane])
    first_of_gpu = {gpu[lanes[lane][0]]: lane for lane in reversed(by_time)}
    best = sorted(first_of_gpu.values(), key=by_time.index)
    chosen = (best + [lane for lane in by_time if lane not in best])[:MOST_LANES]
    rest = sorted(stream for lane in set(range(len(lanes))) - set(chosen) for stream in lanes[lane])
    whole = int(total.sum())
    share = f"{100 * int(total[rest].sum()) / whole:.2g} %" if whole else "0 %"
    notes = [f"{len(rest)} more streams with {share} of op time are not drawn"] if rest else []
    order, place = processes_by_gpu(trace), [*device_labels(trace)]

    def rank(lane: list[int]) -> tuple[int, ...]:
        stream = trace.streams[lane[0]]
        where = order.index(process[lane[0]]), place.index(gpu[lane[0]])
        return *where, stream.migrates, stream.id or 0

    return sorted((sorted(lanes[lane]) for lane in chosen), key=rank), notes


def processes_by_gpu(trace: Trace) -> list[int]:
    """All processes in the order of the first GPU that each uses, and then of their ids."""
    place = [*device_labels(trace)]
    first = dict.fromkeys(range(len(trace.processes)), len(place))
    for device, number in zip(trace.devices, trace.gpu_numbers, strict=True):
        first[device.process] = min(first[device.process], place.index(number))
    return sorted(first, key=lambda process: (first[process], process))


def stream_lanes(
    trace: Trace, groups: OpGroups, chosen: list[list[int]], edges: Ints
) -> tuple[StreamLane, ...]:
    """The lanes of the chosen streams over the columns that ``edges`` bound. Near-linear in ops."""
    ops, lanes, columns = trace.ops, len(chosen), len(edges) - 1
    if not lanes:
        return ()
    lane_of = np.full(len(trace.streams), lanes, np.uint8)
    for number, streams in enumerate(chosen):
        lane_of[streams] = number
    lane = lane_of[ops.stream]
    labels = stream_labels(trace)
    out = []
    for number, streams in enumerate(chosen):
        mine = np.flatnonzero(lane == number)
        start = ops.start[mine]
        end = np.maximum(ops.end[mine], start)
        first, last = merge(start, end)
        busy = np.diff(cover_before(first, last, edges))
        per_group = time_per_group(start, end, groups.of[ops.name[mine]], edges)
        longest = per_group.argmax(axis=0).astype(np.uint8)
        label = labels[streams[0]]
        if len(streams) > 1:
            label = f"{label.rsplit(' · ', 1)[0]} · {len(streams)} streams"
        out.append(
            StreamLane(
                label=label,
                process=int(trace.stream_process[streams[0]]),
                busy_ns=busy,
                group=np.where(busy > 0, longest, np.uint8(NOTHING)),
                ops=len(mine),
                total_ns=int((last - first).sum()),
                streams=len(streams),
            )
        )
    assert all(len(lane.busy_ns) == columns for lane in out)
    return tuple(out)


def longest_wait(trace: Trace) -> int:
    """The longest time in ns between two ops of one GPU in which it ran nothing."""
    ops, longest = trace.ops, 0
    if not len(ops):
        return 0
    for number in set(trace.gpu_numbers):
        mine = trace.ops_of_gpu(number)
        start, end = merge(ops.start[mine], ops.end[mine])
        longest = max(longest, int((start[1:] - end[:-1]).max(initial=0)))
    return longest
