"""Summarize copies and memsets: bytes, direction, bandwidth, whether the host waited, and concurrent kernels."""

import re
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.split import device_labels
from nsysprof.core.arrays import Array, Bytes, Floats, Index, Ints
from nsysprof.core.columns import ColumnTable, Texts, distinct, ranks, sums
from nsysprof.core.intervals import covered_by, merge
from nsysprof.core.text import plural, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_share
from nsysprof.hardware.peaks import link_bytes_per_s
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import grouped_quartiles
from nsysprof.summaries.summary import Answer, Asked, Summary, mostly
from nsysprof.trace.trace import GRAPH, KERNEL, MEMORY_KINDS, MIGRATION, Trace

SMALL = 64 << 10  # bytes: below, a copy takes as long as its launch
_BLOCKING = ("", "no", "pageable", "sync")
_WAITS = re.compile(r"(?:cuda|cu)Memcpy(?!\w*(?:Async|Peer))")
_OF_HOST = ("pageable", "pinned")  # of `MEMORY_KINDS`
DIRECTIONS = {"HtoD": "host-to-device", "DtoH": "device-to-host", "DtoD": "device-to-device"}

COPIES = table(
    "copies.csv",
    "a row per range, GPU, direction, kinds of memory and host call",
    {
        "merged_path": "merged path of the innermost range that owns the copies; empty if none",
        "gpu": "GPU that ran the copies",
        "operation": "direction of the copy, or memset",
        "source destination": (
            "kind of memory at the source and at the destination: pageable, pinned, device, managed …; empty if not "
            "recorded"
        ),
        "call": "host call that made the copies; empty if not recorded",
        "blocking": (
            "whether the host waited: `sync` (the call returns after the copy), `pageable` (an Async call with "
            "unpinned host memory), or `no`; empty if not recorded"
        ),
        "count": "number of GPU ops",
        "size_bytes": Column("", "number of bytes copied or set", "size"),
        "sum_ns": Column("", "total duration of the GPU ops", "sum"),
        "bytes_per_s": Column("", "size_bytes ÷ sum_ns, in bytes per second; empty if sum_ns is 0", "rate"),
        "median_bytes_per_s": "median bandwidth of the individual copies",
        "link_share": Column(
            "", "bandwidth in % of the peak of the link (PCIe or NVLink; the peak is looked up by GPU name)", "of link"
        ),
        "overlapped_ns": "part of the copies' time in which kernels ran on the same GPU",
        "small_count": f"number of small copies (less than {format_bytes(SMALL)})",
        "small_bytes": f"total bytes of the small copies (less than {format_bytes(SMALL)})",
    },
    made_in="summaries/copies.py",
)
_OF_BOTH = ("count", "size_bytes", "sum_ns", "bytes_per_s", "link_share")
_SHOWN = (
    Column("what", "", "copies"),
    *(column for column in COPIES.columns if column.name in _OF_BOTH),
    Column("overlapped_share", "", "overlap"),
    Column("waited_share", "", "waited"),
    Column("small_share", "", "small"),
    Column("most", "", "most in range", cell=visible),
)


def copies(attribution: Attribution, asked: Asked) -> Answer | None:
    """Sum copies and memsets, the longest first; returns None if there are none. Migrations do not count."""
    trace = attribution.trace
    some = np.flatnonzero(trace.ops.kind[trace.copy_ops] != MIGRATION)
    if not len(some):
        return None
    rows = _rows(attribution, asked, some)
    shown = _by_direction(rows)
    note = (
        "of link: % of the peak bandwidth of the GPU's PCIe or NVLink. overlap: % of the time in which kernels run"
        " on the same GPU. waited: % of the bytes whose calls return only after the copy"
        f" or use pageable host memory. small: % of the copies with less than {format_bytes(SMALL)}."
    )
    return Answer({COPIES.file: rows}, _finding(shown), _SHOWN, shown, note)


def _rows(attribution: Attribution, asked: Asked, some: Index) -> ColumnTable:
    trace = attribution.trace
    recorded = attribution.recorded or trace  # which has the real launches
    ops, recorded_size = trace.copy_ops[some], trace.copies.size_bytes[some]
    size = np.maximum(recorded_size, 0)
    length = trace.ops.end[ops] - trace.ops.start[ops]
    owner, labels = np.append(attribution.owner, -1)[trace.ops.launch[ops]], device_labels(trace)
    once: dict[str, int] = {}  # a name may have two codes: of calls that failed, and of others
    first_code = [*(once.setdefault(name, code) for code, name in enumerate(trace.call_names)), -1]
    call = np.array(first_code)[np.append(recorded.launches.name, -1)[recorded.ops.launch[ops]]]
    source, destination = trace.copies.source[some], trace.copies.destination[some]
    keys = {
        "merged_path": Texts(np.append(asked.merged_of, -1)[owner], [*asked.merged, ""]),
        "gpu": Texts(trace.op_gpu[ops], [labels.get(number, "") for number in range(max(labels) + 1)]),
        "operation": Texts(trace.ops.name[ops], trace.op_names),
        "source": Texts(source, MEMORY_KINDS),
        "destination": Texts(destination, MEMORY_KINDS),
        "call": Texts(call, [*trace.call_names, ""]),
        "blocking": Texts(_blocking(recorded, ops, call, source, destination), _BLOCKING),
    }
    first, row = distinct(*(key.codes for key in keys.values()))
    timed, small = (length > 0) & (size > 0), (recorded_size >= 0) & (size < SMALL)
    count, timed_count = np.bincount(row), np.bincount(row[timed], minlength=len(first))
    sum_ns, size_bytes, overlapped, small_count, small_bytes = (
        sums(row, values, len(first))
        for values in (length, size, _beside_kernels(trace, ops), small, np.where(small, size, 0))
    )
    rate = np.where(size_bytes > 0, _part(size_bytes * 1e9, sum_ns), np.nan)
    # a spoiled size may be any number
    each = np.minimum(size[timed] * 1e9 / length[timed], 1e18).astype(np.int64)
    median = grouped_quartiles(row[timed], each, len(first)).median
    codes = {name: key.codes[first] for name, key in keys.items()}
    link = rate / _link(trace, codes["gpu"], codes["operation"])
    rows = ColumnTable(
        {
            **{name: key[first] for name, key in keys.items()},
            "count": count,
            "size_bytes": size_bytes,
            "sum_ns": sum_ns,
            "bytes_per_s": rate,
            "median_bytes_per_s": np.where(timed_count > 0, median, np.nan),
            # more than that, the name says nothing of the link
            "link_share": np.where(link <= 1, link, np.nan),
            "overlapped_ns": overlapped,
            "small_count": small_count,
            "small_bytes": small_bytes,
        }
    )
    codes["call"] = ranks(keys["call"].words)[codes["call"]]
    codes["operation"] = trace.op_name_rank[codes["operation"]]
    by = ("destination", "source", "call", "operation", "gpu", "merged_path")
    return rows.take(np.lexsort((*(codes[name] for name in by), -sum_ns)))


def _blocking(trace: Trace, ops: Index, call: Array, source: Array, destination: Array) -> Bytes:
    """Classify each copy or memset as one of `_BLOCKING`; copies within a GPU and replayed copies block no host."""
    pageable, host = ((source == kind) | (destination == kind) for kind in map(MEMORY_KINDS.index, _OF_HOST))
    waits = np.array([*(_WAITS.match(name) is not None for name in trace.call_names), False])[call]
    ways = [call < 0, trace.ops.from_graph[ops] | ~(pageable | host), waits, pageable]
    return np.select(ways, [0, 1, 3, 2], 1).astype(np.uint8)


def _link(trace: Trace, gpu: Array, name: Array) -> Floats:
    """Find the bandwidth (bytes/s) of the link that copies with this GPU and name use; NaN if unknown."""
    out = np.full(len(gpu), np.nan)
    for number, code in set(zip(gpu.tolist(), name.tolist(), strict=True)):
        device = trace.devices[trace.gpu_numbers.index(number)].gpu
        direction = trace.op_names[code].removeprefix("memcpy ")
        if device is not None and direction in ("HtoD", "DtoH", "HtoA", "AtoH", "PtoP"):
            about, to_gpus = trace.report.about.gpus[device], direction == "PtoP"
            speed = link_bytes_per_s(about.name, about.compute_capability, to_gpus=to_gpus)
            out[(gpu == number) & (name == code)] = speed
    return out


def _beside_kernels(trace: Trace, ops: Index) -> Ints:
    """Find how long kernels run on the op's GPU during each op."""
    start, end, kind, gpu = trace.ops.start, trace.ops.end, trace.ops.kind, trace.op_gpu[ops]
    computes = np.where((kind == KERNEL) | (kind == GRAPH), trace.op_gpu, -1).astype(np.int16)
    order, lines = np.argsort(computes, kind="stable"), {}  # by radix
    for number in np.unique(gpu).tolist():
        rows = order[slice(*np.searchsorted(computes, np.array([number, number + 1], np.int16), sorter=order))]
        lines[number] = merge(start[rows], end[rows])
    return covered_by(lines, gpu, start[ops], end[ops])


def _by_direction(rows: ColumnTable) -> ColumnTable:
    """Sum the rows by operation and kinds of memory for display, the longest first."""
    first, group = distinct(*(rows.texts(name).codes for name in ("operation", "source", "destination")))
    waits = rows.texts("blocking").codes >= _BLOCKING.index("pageable")
    count, size, sum_ns, overlapped, small, waited = (
        sums(group, values, len(first))
        for values in (
            *(rows[name] for name in ("count", "size_bytes", "sum_ns", "overlapped_ns", "small_count")),
            np.where(waits, rows["size_bytes"], 0),
        )
    )
    at_peak = np.bincount(group, np.where(rows["sum_ns"] > 0, rows["link_share"] * rows["sum_ns"], 0), len(first))
    path = rows.texts("merged_path")
    shown = ColumnTable(
        {
            "what": Texts(np.arange(len(first)), [_what(row) for row in rows.take(first).records()]),
            "count": count,
            "size_bytes": size,
            "sum_ns": sum_ns,
            "bytes_per_s": _part(size * 1e9, sum_ns),
            "link_share": _part(at_peak, sum_ns),  # the time that it would take at its best
            "overlapped_share": _part(overlapped, sum_ns),
            "waited_share": _part(waited, size),
            "small_share": _part(small, count),
            "most": Texts(mostly(group, path.codes, rows["sum_ns"]), path.words),
        }
    )
    return shown.take(np.lexsort((ranks(shown.texts("what").words), -sum_ns)))


def _part(part: Array, whole: Ints) -> Floats:
    """Divide; NaN if the whole is 0."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _what(row: dict[str, Any]) -> str:
    """Name the operation: `HtoD pageable`; device memory is not named."""
    kinds = (kind for kind in (row["source"], row["destination"]) if kind not in ("", "device"))
    return " ".join([row["operation"].removeprefix("memcpy "), *kinds])


def _finding(shown: ColumnTable) -> str:
    """State the total of all copies, and the bandwidth of the kind that takes longest."""
    count, size, sum_ns = (int(shown[name].sum()) for name in ("count", "size_bytes", "sum_ns"))
    [most] = shown.take(slice(1)).records()
    direction, _, kinds = most["what"].partition(" ")
    called = f"{kinds} {DIRECTIONS.get(direction, direction)} {'copies' * (direction != 'memset')}".strip()
    text = f"Copies: {plural(count, 'memory operation')} of {format_bytes(size)} in {format_ns(sum_ns)}"
    if not most["bytes_per_s"] > 0:
        return text
    text += (
        f"; most time is spent on {format_bytes(most['size_bytes'])} of {called} at "
        f"{format_bandwidth(most['bytes_per_s'])}"
    )
    if most["link_share"] > 0:
        text += f", {format_share(most['link_share'])} of the link's peak"
    return text


SUMMARY = Summary("copies", "Copies", (COPIES,), copies)
