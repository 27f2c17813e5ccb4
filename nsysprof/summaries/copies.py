"""Copies and memsets: how many bytes went where and how fast, whether the host waited, and what ran beside them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.split import device_labels
from nsysprof.core.columns import Column as Values
from nsysprof.core.columns import ColumnTable, Texts, distinct, sums
from nsysprof.core.intervals import Index, Ints, cover_before, merge
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_share
from nsysprof.hardware.peaks import link_bytes_per_s
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import grouped_quartiles
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.trace import GRAPH, KERNEL, MEMORY_KINDS, MIGRATION, Trace

SMALL = 64 << 10  # bytes: below, a copy takes as long as its launch
_BLOCKING = ("", "no", "pageable", "sync")
_WAITS = re.compile(r"(?:cuda|cu)Memcpy(?!\w*(?:Async|Peer))")
_DIRECTIONS = {"HtoD": "host-to-device", "DtoH": "device-to-host", "DtoD": "device-to-device"}

COPIES = table(
    "copies.csv",
    "a row per range, GPU, direction, kinds of memory and host call",
    {
        "merged_path": "merged path of the innermost range that owns them; empty for what none owns",
        "gpu": "GPU that they ran on",
        "operation": "what was done: the direction of a copy, or a memset",
        "source destination": "kind of memory: pageable, pinned, device, managed …; empty where not recorded",
        "call": "host call that made them; empty where not recorded",
        "blocking": "whether the host waited: `sync` in a call that returns when all is copied, `pageable` in an Async"
        " call, as memory of the host was not pinned, or `no`; empty where not recorded",
        "count": "how many ran",
        "size_bytes": Column("", "bytes that they moved or set", head="size"),
        "sum_ns": Column("", "their added durations", head="sum"),
        "bytes_per_s": Column("", "those bytes in that time; empty where no time passed", head="rate"),
        "median_bytes_per_s": "median of the rates of single ones",
        "link_share": Column(
            "", "part of what PCIe or NVLink carries, by the name of the GPU", head="of link"
        ),
        "overlapped_ns": "time of them in which kernels ran on the same GPU",
        "small_count": f"how many moved less than {format_bytes(SMALL)}",
        "small_bytes": "bytes that those moved",
    },
)
_SHOWN = (
    Column("what", "", head="copies"),
    *(column for column in COPIES.columns if column.name in ("count", "size_bytes", "sum_ns", "bytes_per_s")),
    Column("link_share", "", head="of link"),
    Column("overlapped_share", "", head="overlap"),
    Column("waited_share", "", head="waited"),
    Column("small_share", "", head="small"),
    Column("most", "", head="most in range", cell=lambda text: one_line(text, 36)),
)


def copies(attribution: Attribution, asked: Asked) -> Answer | None:
    """Add up copies and memsets, the longest first; None where there are none. Migrations are none."""
    trace = attribution.trace
    some = np.flatnonzero(trace.ops.kind[trace.copy_ops] != MIGRATION)
    if not len(some):
        return None
    rows = _rows(attribution, asked, some)
    shown = _by_direction(rows)
    note = (
        "of link: of what PCIe or NVLink of the GPU carries at most. overlap: the part of the time in which kernels run"
        " on the same GPU. waited: the part of the bytes in calls that return only when all is copied,"
        f" or whose memory of the host is pageable. small: the part of the copies below {format_bytes(SMALL)}."
    )
    return Answer({COPIES.file: rows}, _finding(shown), _SHOWN, shown, note)


def _rows(attribution: Attribution, asked: Asked, some: Index) -> ColumnTable:
    """Make the rows of ``copies.csv`` of ``some`` rows of ``trace.copies``."""
    trace = attribution.trace
    recorded = attribution.recorded or trace  # which has the real launches
    ops, size = trace.copy_ops[some], np.maximum(trace.copies.size_bytes[some], 0)
    length = trace.ops.end[ops] - trace.ops.start[ops]
    call = _of_launch(recorded.launches.name, recorded, ops)
    owner = _of_launch(attribution.owner, trace, ops)
    keys = [
        np.append(asked.merged_of, -1)[owner],
        trace.op_gpu[ops],
        trace.ops.name[ops],
        trace.copies.source[some],
        trace.copies.destination[some],
        call,
        _blocking(recorded, ops, call, trace.copies.source[some], trace.copies.destination[some]),
    ]
    first, row = distinct(*keys)

    def added(values: NDArray[Any]) -> Ints:
        return sums(row, values, len(first))

    timed, small = length > 0, size < SMALL
    each = (size[timed] * 1e9 / length[timed]).astype(np.int64)
    count, sum_ns, size_bytes = np.bincount(row), added(length), added(size)
    rate = _part(size_bytes * 1e9, sum_ns)
    median = grouped_quartiles(row[timed], each, len(first)).median
    path, gpu, name, source, destination, call, blocking = (key[first] for key in keys)
    link = rate / _link(trace, gpu, name)
    labels = device_labels(trace)
    columns: dict[str, Values] = {
        "merged_path": Texts(path, [*asked.merged, ""]),
        "gpu": Texts(gpu, [labels.get(number, "") for number in range(max(labels) + 1)]),
        "operation": Texts(name, trace.op_names),
        "source": Texts(source, MEMORY_KINDS),
        "destination": Texts(destination, MEMORY_KINDS),
        "call": Texts(call, [*trace.call_names, ""]),
        "blocking": Texts(blocking, _BLOCKING),
        "count": count,
        "size_bytes": size_bytes,
        "sum_ns": sum_ns,
        "bytes_per_s": rate,
        "median_bytes_per_s": np.where(np.bincount(row[timed], minlength=len(first)) > 0, median, np.nan),
        "link_share": np.where(link <= 1, link, np.nan),  # more than that, the name says nothing of the link
        "overlapped_ns": added(_beside_kernels(trace, ops)),
        "small_count": added(small),
        "small_bytes": added(np.where(small, size, 0)),
    }
    calls = np.argsort(np.argsort([*trace.call_names, ""], kind="stable"), kind="stable")[call]
    order = np.lexsort((destination, source, calls, trace.op_name_rank[name], gpu, path, -sum_ns))
    return ColumnTable(columns).take(order)


def _of_launch(values: NDArray[np.integer], trace: Trace, ops: Index) -> NDArray[np.integer]:
    """Take a value of the launch of each op; -1 for those without one."""
    launch = trace.ops.launch[ops]
    out = np.full(len(ops), -1, np.int64)
    out[launch >= 0] = values[launch[launch >= 0]]
    return out


def _blocking(
    trace: Trace,
    ops: Index,
    call: NDArray[np.integer],
    source: NDArray[np.uint8],
    destination: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """Say which of `_BLOCKING` each copy or memset is; copies within a GPU and replayed ones block no host."""
    host = [MEMORY_KINDS.index(kind) for kind in ("pageable", "pinned")]
    waits = np.array([*(_WAITS.match(name) is not None for name in trace.call_names), False])[call]
    memory = np.isin(source, host) | np.isin(destination, host)
    pageable = (source == host[0]) | (destination == host[0])
    ways = [call < 0, trace.ops.from_graph[ops] | ~memory, waits, pageable]
    out: NDArray[np.uint8] = np.select(ways, [0, 1, 3, 2], 1).astype(np.uint8)
    return out


def _link(trace: Trace, gpu: NDArray[np.int32], name: NDArray[np.int32]) -> NDArray[np.float64]:
    """Find what the link carries that copies of that GPU and name take, in bytes per second; NaN where not known."""
    out = np.full(len(gpu), np.nan)
    place = {"HtoD": False, "DtoH": False, "HtoA": False, "AtoH": False, "PtoP": True}
    for number, code in set(zip(gpu.tolist(), name.tolist(), strict=True)):
        device = trace.devices[trace.gpu_numbers.index(number)].gpu
        direction = trace.op_names[code].removeprefix("memcpy ")
        if device is not None and direction in place:
            about = trace.report.about.gpus[device]
            speed = link_bytes_per_s(about.name, about.compute_capability, to_gpus=place[direction])
            out[(gpu == number) & (name == code)] = speed
    return out


def _beside_kernels(trace: Trace, ops: Index) -> Ints:
    """Find for how long kernels run beside each of these ops, on its GPU."""
    out = np.zeros(len(ops), np.int64)
    gpu, kind = trace.op_gpu[ops], trace.ops.kind
    computes = np.where((kind == KERNEL) | (kind == GRAPH), trace.op_gpu, -1).astype(np.int16)
    for number in np.unique(gpu).tolist():
        kernels, mine = np.flatnonzero(computes == number), np.flatnonzero(gpu == number)
        line = merge(trace.ops.start[kernels], trace.ops.end[kernels])
        start, end = trace.ops.start[ops[mine]], trace.ops.end[ops[mine]]
        out[mine] = cover_before(*line, np.maximum(end, start)) - cover_before(*line, start)
    return out


def _by_direction(rows: ColumnTable) -> ColumnTable:
    """Add the rows up by what was done and the kinds of memory: what readers see, the longest first."""
    first, group = distinct(*(rows.texts(name).codes for name in ("operation", "source", "destination")))
    waits = rows.texts("blocking").codes >= _BLOCKING.index("pageable")
    numbers = {name: rows[name] for name in ("count", "size_bytes", "sum_ns", "overlapped_ns", "small_count")}
    count, size, sum_ns, overlapped, small, waited = (
        sums(group, values, len(first))
        for values in (*numbers.values(), np.where(waits, rows["size_bytes"], 0))
    )
    _, part = distinct(group, rows.texts("merged_path").codes)
    most = np.lexsort((np.arange(len(rows)), -sums(part, rows["sum_ns"], len(rows))[part], group))
    most = most[np.append(True, group[most][1:] != group[most][:-1])]
    at_peak = np.bincount(
        group, rows["link_share"] * rows["sum_ns"], len(first)
    )  # time of a link at its best
    columns: dict[str, Values] = {
        "what": Texts(np.arange(len(first)), [_what(row) for row in rows.take(first).records()]),
        **{"count": count, "size_bytes": size, "sum_ns": sum_ns},
        "bytes_per_s": _part(size * 1e9, sum_ns),
        "link_share": _part(at_peak, sum_ns),
        "overlapped_share": _part(overlapped, sum_ns),
        "waited_share": _part(waited, size),
        "small_share": _part(small, count),
        "most": rows.texts("merged_path")[most],
    }
    return ColumnTable(columns).take(np.lexsort([-sum_ns]))


def _part(part: NDArray[Any], whole: Ints) -> NDArray[np.float64]:
    """Divide; NaN where the whole is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _what(row: dict[str, Any]) -> str:
    """Say what was done: `HtoD pageable`; that memory of a GPU is the device's goes without saying."""
    kinds = (kind for kind in (row["source"], row["destination"]) if kind not in ("", "device"))
    return " ".join([row["operation"].removeprefix("memcpy "), *kinds])


def _finding(shown: ColumnTable) -> str:
    """Say how much all of them are, and of the kind that takes longest how fast it is."""
    count, size, sum_ns = (int(shown[name].sum()) for name in ("count", "size_bytes", "sum_ns"))
    [most] = shown.take(slice(1)).records()
    direction, _, kinds = most["what"].partition(" ")
    called = f"{kinds} {_DIRECTIONS.get(direction, direction)} {'copies' * (direction != 'memset')}".strip()
    text = f"Copies: {plural(count, 'memory operation')} of {format_bytes(size)} in {format_ns(sum_ns)}"
    if not most["bytes_per_s"] > 0:
        return text
    text += f"; most time: {format_bytes(most['size_bytes'])} of {called} at {format_bandwidth(most['bytes_per_s'])}"
    if most["link_share"] > 0:
        text += f", {format_share(most['link_share'])} of the link's peak"
    return text


SUMMARY = Summary("copies", "Copies", (COPIES,), copies)
