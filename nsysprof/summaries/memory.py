"""Summarize GPU memory: allocations and releases of each range, the owner of the peak, and growth from step to step."""

from dataclasses import replace

import numpy as np

from nsysprof.attribution.attribute import Attribution, ranges_around
from nsysprof.attribution.split import device_labels
from nsysprof.core.arrays import AnyInts, Floats, Index, Ints, Ints32
from nsysprof.core.columns import ColumnTable, Texts, stack_tables, sums
from nsysprof.core.intervals import slice_reduce
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bytes
from nsysprof.results.table import Column, table
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.details import KEPT, MemoryEvents
from nsysprof.trace.trace import Trace, pid_of
from nsysprof.trace.variants import with_threads

# Memory of the GPU itself; managed memory may be anywhere, and what pools hold is counted where it is used.
ON_GPU = ("device", "device static", "array")
# What is live at the end of an instance grows steadily where it never shrinks, and grows in at least this part of the
# steps from one to the next; there are so many of them behind one in so many instances, which may fill caches.
_GROWS_IN, _MIN_STEPS, _WARM_UP = 0.5, 4, 4
_PATH = 48  # characters of a range


def _path(text: str) -> str:
    return one_line(text, _PATH) or "(all)"


MEMORY = table(
    "memory.csv",
    "a row per merged path, GPU and kind of memory, inner ranges included; the row without a "
    "path is the whole recording",
    {
        "merged_path": Column("", "merged path of the range", "range", _path),
        "gpu": Column("", "GPU on which the memory was allocated", "GPU"),
        "kind": "kind of memory: device, managed, pinned …, or pool (reserved by memory pools)",
        "instances": "number of instances of the range",
        "allocations": "number of allocations inside the range",
        "allocated_bytes": Column("", "number of bytes allocated inside the range", "allocated"),
        "releases": "number of releases inside the range",
        "freed_bytes": Column("", "number of bytes released inside the range", "freed"),
        "live_at_end_bytes": Column(
            "", "live bytes on the GPU when the last instance of the range ends", "live at end"
        ),
        "peak_bytes": Column("", "peak of live bytes on the GPU while an instance was open", "peak"),
        "owned_at_peak_bytes": Column(
            "",
            "number of bytes that the range itself allocated and that were live at the overall peak; 0 for pools",
            "owned",
        ),
        "kept_bytes": (
            "number of bytes that the range itself allocated and that were still live at the end of the last instance"
        ),
        "kept_in": "number of instances that allocated kept_bytes",
        "growth_bytes": Column("", "steady growth of live bytes per instance; empty without such growth", "grows by"),
    },
    made_in="summaries/memory.py",
)


def gpu_memory(trace: Trace) -> dict[str, tuple[int, Ints, Ints]]:
    """Return the recorded memory of each GPU, by GPU label. The values are a process that used the GPU (an index into
    ``trace.processes``), the times (ns) at which the live bytes changed, and the live bytes (of kinds `ON_GPU`) after
    each change.
    """
    events, gpus = trace.memory, _gpus(trace)
    used: dict[str, list[int]] = {}
    for code, (_, _, kind) in enumerate(events.uses):
        if kind in ON_GPU:
            used.setdefault(gpus[code], []).append(code)
    place = {process: code for code, process in enumerate(trace.processes.tolist())}
    return {
        label: (place.get(events.uses[codes[0]][0], 0), *events.over_time(np.isin(events.use, codes)))
        for label, codes in sorted(used.items())
    }


def live_at(time: Ints, size: Ints, moment: Ints) -> Ints:
    """Return the live bytes at each moment; the live bytes change to ``size`` at each ``time``."""
    return np.append(size, 0)[np.searchsorted(time, moment, side="right") - 1]


def most_live(time: Ints, size: Ints, start: Ints, end: Ints) -> Ints:
    """Return the maximum of live bytes in each interval."""
    low, high = (np.searchsorted(time, edge, side="right") for edge in (start, end))
    order, out = np.argsort(low, kind="stable"), np.zeros(len(low), np.int64)
    out[order] = slice_reduce(np.maximum, size, low[order], high[order], 0)
    return np.maximum(out, live_at(time, size, start))


def memory(attribution: Attribution, asked: Asked) -> Answer | None:
    """Sum the allocations of ranges; returns None if memory was not recorded (``--cuda-memory-usage=true``)."""
    events = attribution.trace.memory
    if not len(events.time):
        return None
    trace = attribution.trace
    owner = _owners(attribution, events)
    lines: dict[tuple[str, str], list[int]] = {}
    for code, (label, (_, _, kind)) in enumerate(zip(_gpus(trace), events.uses, strict=True)):
        lines.setdefault((label, kind), []).append(code)
    whole = stack_tables([_rows(trace, asked, owner, codes) for _, codes in sorted(lines.items())])
    inner = whole.texts("merged_path").codes >= 0
    by_size = -whole["allocated_bytes"], -whole["owned_at_peak_bytes"]
    rows = whole.take(np.lexsort((whole.texts("merged_path").codes, *by_size, inner)))
    several = len(set(rows.texts("gpu").tolist())) > 1
    hidden = {"instances", "allocations", "releases", "kept_bytes", "kept_in", *([] if several else ["gpu"])}
    shown = tuple(column for column in MEMORY.columns if column.name not in hidden)
    note = (
        "Live at end: live bytes when the last instance ends. Peak: most live bytes during an instance. "
        "Owned: bytes that the range itself allocated and that are live at the overall peak. Grows by: steady growth "
        "per instance."
    )
    return Answer({MEMORY.file: rows}, _finding(rows), shown, rows, note)


def _gpus(trace: Trace) -> list[str]:
    """The label of the GPU of each of ``trace.memory.uses``."""
    labels = device_labels(trace)
    known = {device: labels[number] for device, number in trace.gpu_of.items()}
    return [  # on some devices nothing ran
        known.get((process, device), f"device {device} of pid {pid_of(process)}")
        for process, device, _ in trace.memory.uses
    ]


def _owners(attribution: Attribution, events: MemoryEvents) -> Ints32:
    """Find the range that would own a launch at the host call of each change; -1 for none."""
    out, known = np.full(len(events.time), -1, np.int32), np.flatnonzero(events.thread)
    trace = with_threads(attribution.trace, np.unique(events.thread[known]))
    calls = np.searchsorted(trace.threads, events.thread[known]), events.start[known], events.end[known]
    out[known] = ranges_around(replace(attribution, trace=trace), *calls, np.ones(len(known), bool))
    return out


def _rows(trace: Trace, asked: Asked, owner: AnyInts, codes: list[int]) -> ColumnTable:
    """Make the rows of some uses, all of one kind of memory on one GPU; ``owner`` is the range of each change (-1:
    none).
    """
    events, path = trace.memory, np.append(asked.merged_of, -1)
    chosen = np.isin(events.use, codes)
    changes, line = np.flatnonzero(chosen), events.over_time(chosen)
    paths = _with_ancestors(path[owner[changes]], asked.parent)
    count = len(paths) + 1  # the last row is the whole recording
    place = np.full(len(asked.parent) + 1, count - 1)
    place[paths] = np.arange(len(paths))
    change, at = events.change[changes], place[path[owner[changes]]]
    each = (change > 0, np.maximum(change, 0), change < 0, np.maximum(-change, 0))
    inside = np.stack([sums(at, values, count) for values in each], axis=1)
    for row, up in zip(range(len(paths) - 1, -1, -1), place[asked.parent[paths[::-1]]].tolist(), strict=True):
        inside[up] += inside[row]
    top = line[0][np.argmax(line[1])]
    held = np.flatnonzero((change > 0) & (events.time[changes] <= top) & (events.until[changes] > top))
    instances, last, live, peak, growth = _over_instances(
        trace, asked, [events.uses[code][0] for code in codes], line, place, count
    )
    kept = np.flatnonzero((change > 0) & (events.until[changes] > last[at]))
    keepers = np.unique(owner[changes[kept]])
    names = ("allocations", "allocated_bytes", "releases", "freed_bytes")
    return ColumnTable(
        {
            "merged_path": Texts(np.append(paths, -1), [*asked.merged, ""]),
            "gpu": Texts(np.full(count, codes[0]), _gpus(trace)),
            "kind": Texts(np.full(count, codes[0]), [kind for _, _, kind in events.uses]),
            "instances": instances,
            **{name: inside[:, at] for at, name in enumerate(names)},
            "live_at_end_bytes": live,
            "peak_bytes": peak,
            "owned_at_peak_bytes": sums(at[held], change[held], count),
            "kept_bytes": sums(at[kept], change[kept], count),
            "kept_in": np.bincount(place[path[keepers]], minlength=count),
            "growth_bytes": growth,
        }
    )


def _with_ancestors(paths: AnyInts, parent: Ints32) -> Index:
    """List these merged paths (-1: none) and their ancestors, parents before children."""
    seen, new = np.zeros(len(parent) + 1, bool), np.unique(paths)
    while len(new):
        seen[new] = True
        new = np.unique(np.append(parent, -1)[new])
        new = new[~seen[new]]
    return np.flatnonzero(seen[:-1])


def _over_instances(
    trace: Trace, asked: Asked, processes: list[int], line: tuple[Ints, Ints], place: Index, count: int
) -> tuple[Ints, Ints, Ints, Ints, Floats]:
    """For each row, count the instances; find the end of the last one, the live bytes then, the peak inside, the
    growth.
    """
    ranges = trace.ranges
    mine = np.isin(trace.processes, processes)[trace.thread_process][ranges.thread]
    rows = np.flatnonzero(mine & (place[asked.merged_of] < count - 1))
    rows = rows[np.lexsort((ranges.start[rows], ranges.end[rows], asked.merged_of[rows]))]
    of, start, end = place[asked.merged_of[rows]], ranges.start[rows], ranges.end[rows]
    instances = np.bincount(of, minlength=count)
    last, live, peak = (np.zeros(count, np.int64) for _ in range(3))
    at_end = live_at(*line, end)
    last[of], live[of] = end, at_end  # the last one counts
    np.maximum.at(peak, of, most_live(*line, start, end))
    instances[-1], last[-1], live[-1], peak[-1] = 1, KEPT - 1, line[1][-1], line[1].max()
    growth, first = np.full(count, np.nan), np.cumsum(instances) - instances
    for row in np.flatnonzero(instances[:-1] > _MIN_STEPS).tolist():
        growth[row] = _growth(at_end[first[row] : first[row] + instances[row]])
    return instances, last, live, peak, growth


def _growth(live: Ints) -> float:
    """Find the mean growth from one instance to the next after a warm-up; NaN if it is not steady."""
    live = live[max(1, len(live) // _WARM_UP) :]
    steps = np.diff(live)
    if len(steps) < _MIN_STEPS or steps.min() < 0 or np.count_nonzero(steps) < _GROWS_IN * len(steps):
        return np.nan
    return float(round(steps.mean()))


def _finding(rows: ColumnTable) -> str:
    """State the peak of live bytes, the range with the largest share, and what grows with each instance."""
    every = list(rows.records())
    on_gpu = [row for row in every if row["kind"] in ON_GPU] or every
    most = max((row for row in on_gpu if not row["merged_path"]), key=lambda row: row["peak_bytes"])
    alike = [row for row in on_gpu if row["merged_path"] and (row["gpu"], row["kind"]) == (most["gpu"], most["kind"])]
    text = f"Memory: peak {format_bytes(most['peak_bytes'])} of {most['kind']} memory on {most['gpu']}"
    owner = max(alike, key=lambda row: row["owned_at_peak_bytes"], default=most)
    if owner["merged_path"] and owner["owned_at_peak_bytes"]:
        text += f", {format_bytes(owner['owned_at_peak_bytes'])} of them allocated in {_path(owner['merged_path'])}"
    growing = [row for row in alike if row["growth_bytes"] > 0]
    if growing:
        worst = max(growing, key=lambda row: (row["growth_bytes"], -len(row["merged_path"])))
        step = worst["merged_path"]
        text += f"; {format_bytes(worst['growth_bytes'])} more with each {_path(step)}"
        inside = [row for row in alike if f"{row['merged_path']}/".startswith(f"{step}/")]
        keeps = [row for row in inside if row["kept_in"] >= _GROWS_IN * row["instances"]]
        keeper = max(keeps, key=lambda row: row["kept_bytes"], default=worst)["merged_path"]
        text += f", which {_path(keeper)} keeps" * (keeper != step)
    return text


SUMMARY = Summary("memory", "Memory", (MEMORY,), memory)
