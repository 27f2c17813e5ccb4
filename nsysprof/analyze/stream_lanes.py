"""GPU streams over time, cut into columns: when each was busy, and with what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.zoom import OpNames
from nsysprof.attribution.split import device_labels
from nsysprof.core.intervals import Ints, covered_before, merge
from nsysprof.kernels.classify import FAMILIES
from nsysprof.trace.tables import Tables, pid_of

MOST_LANES = 16
_CHUNK = 1 << 20  # ops at a time where temporaries would be large
NOTHING = 255  # the family of a column in which nothing ran


@dataclass(frozen=True)
class StreamLane:
    """One stream, a value per column of the timeline.

    ``busy_ns`` int64, the time in which at least one op ran; ``family`` uint8, an index into `FAMILIES` of what ran
    longest, `NOTHING` where nothing did; ``process`` an index into ``tables.processes``; ``ops`` and ``total_ns``
    (busy time) are those of the whole stream.
    """

    label: str
    process: int
    busy_ns: Ints
    family: NDArray[np.uint8]
    ops: int
    total_ns: int


def column_edges(start: int, end: int, columns: int) -> Ints:
    """Column edges such that `column` of a time is ``(time - start) * columns // length``."""
    length = max(end - start, 1)
    columns = max(1, min(columns, length))
    # Python integers: the products of a long window do not fit into 64 bits
    return np.array([start - (-k * length // columns) for k in range(columns + 1)], np.int64)


def column(times: Ints, edges: Ints) -> Ints:
    """The column that each time is in; times outside are in the first or the last one."""
    out: Ints = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)
    return out


def choose_streams(tables: Tables) -> tuple[list[int], list[str]]:
    """The streams to draw, in the order of process, GPU and stream; and a note on those left out."""
    count = len(tables.streams)
    total = np.zeros(count, np.int64)
    for first in range(0, len(tables.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        length = np.maximum(tables.ops.end[part] - tables.ops.start[part], 0)
        np.add.at(total, tables.ops.stream[part], length)
    numbers = tables.gpu_numbers
    gpu = [numbers[stream.device] for stream in tables.streams]
    by_time = np.argsort(-total, kind="stable").tolist()
    first_of_gpu = {gpu[stream]: stream for stream in reversed(by_time)}
    best = sorted(first_of_gpu.values(), key=by_time.index)
    chosen = (best + [stream for stream in by_time if stream not in best])[:MOST_LANES]
    rest = sorted(set(range(count)) - set(chosen))
    whole = int(total.sum())
    share = f"{100 * int(total[rest].sum()) / whole:.2g} %" if whole else "0 %"
    notes = [f"{len(rest)} more streams with {share} of op time are not drawn"] if rest else []
    process = tables.stream_process
    return sorted(chosen, key=lambda s: (int(process[s]), gpu[s], tables.streams[s].id or 0)), notes


def stream_lanes(tables: Tables, names: OpNames, chosen: list[int], edges: Ints) -> tuple[StreamLane, ...]:
    """The lanes of the chosen streams over the columns that ``edges`` bound. Near-linear in ops."""
    ops, lanes, columns = tables.ops, len(chosen), len(edges) - 1
    if not lanes:
        return ()
    lane_of = np.full(len(tables.streams), lanes, np.uint8)
    lane_of[chosen] = np.arange(lanes)
    lane = lane_of[ops.stream]
    labels = stream_labels(tables)
    out = []
    for number, stream in enumerate(chosen):
        mine = np.flatnonzero(lane == number)
        start = ops.start[mine]
        end = np.maximum(ops.end[mine], start)
        first, last = merge(start, end)
        busy = np.diff(covered_before(first, last, edges))
        per_family = time_per_family(start, end, names.family[ops.name[mine]], edges)
        longest = per_family.argmax(axis=0).astype(np.uint8)
        out.append(
            StreamLane(
                label=labels[stream],
                process=int(tables.stream_process[stream]),
                busy_ns=busy,
                family=np.where(busy > 0, longest, np.uint8(NOTHING)),
                ops=len(mine),
                total_ns=int((last - first).sum()),
            )
        )
    assert all(len(lane.busy_ns) == columns for lane in out)
    return tuple(out)


def time_per_family(start: Ints, end: Ints, family: NDArray[np.uint8], edges: Ints) -> Ints:
    """Op time in each (family, column), int64 ns of shape (families, columns).

    Most ops lie in one column; of a longer one the whole columns are counted by where they begin and end.
    """
    columns = len(edges) - 1
    first, last = column(start, edges), column(np.maximum(end - 1, start), edges)
    row = family.astype(np.int64) * columns
    out = np.zeros(len(FAMILIES) * columns, np.int64)
    inside = first == last
    np.add.at(out, (row + first)[inside], (end - start)[inside])
    long = np.flatnonzero(~inside)
    if len(long):
        row, first, last = row[long], first[long], last[long]
        np.add.at(out, row + first, edges[first + 1] - start[long])
        np.add.at(out, row + last, end[long] - edges[last])
        cover = np.zeros((len(FAMILIES), columns + 1), np.int64)
        np.add.at(cover, (family[long], first + 1), 1)
        np.add.at(cover, (family[long], last), -1)
        out += (np.cumsum(cover[:, :-1], axis=1) * np.diff(edges)).ravel()
    return out.reshape(len(FAMILIES), columns)


def stream_names(tables: Tables) -> list[tuple[str, str]]:
    """Of each stream its number in words, and its process where several use its GPU, else nothing."""
    numbers = tables.gpu_numbers
    users: dict[int, set[int]] = {}
    for device, number in zip(tables.devices, numbers, strict=True):
        users.setdefault(number, set()).add(device.process)
    out = []
    for stream in tables.streams:
        which = (
            "unified memory"
            if stream.migrates
            else "no stream"
            if stream.id is None
            else f"stream {stream.id}"
        )
        process = tables.devices[stream.device].process
        shared = len(users[numbers[stream.device]]) > 1
        out.append((which, f"pid {pid_of(int(tables.processes[process]))}" if shared else ""))
    return out


def stream_labels(tables: Tables) -> list[str]:
    """What to call each stream: its GPU and number, and its process where several use that GPU."""
    gpus = device_labels(tables)
    out = []
    for stream, (which, whose) in zip(tables.streams, stream_names(tables), strict=True):
        gpu = gpus[tables.gpu_numbers[stream.device]]
        parts = (gpu, "" if "pid" in gpu else whose, which)
        out.append(" · ".join(part for part in parts if part))
    return out


def longest_wait(tables: Tables) -> int:
    """The longest time in ns between two ops of one GPU in which it ran nothing."""
    ops, longest = tables.ops, 0
    if not len(ops):
        return 0
    for number in set(tables.gpu_numbers):
        mine = tables.ops_of_gpu(number)
        start, end = merge(ops.start[mine], ops.end[mine])
        longest = max(longest, int((start[1:] - end[:-1]).max(initial=0)))
    return longest
