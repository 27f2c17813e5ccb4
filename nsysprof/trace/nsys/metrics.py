"""Reads samples of GPU metrics (``--gpu-metrics-devices``): GPU_METRICS, or GENERIC_EVENTS of exports before 2023.

Metrics are found by name, as ids differ between reports; the low byte of a ``typeId`` is the GPU, as in nsys's recipes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.columns import Words
from nsysprof.core.text import plural
from nsysprof.trace.about import About
from nsysprof.trace.details import GPU_METRICS, GpuSamples
from nsysprof.trace.nsys.blocks import Growing, Source, column, has_all, named_rows, present, read_blocks, whole

_SAMPLES, _NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_EVENTS, _TYPES = "GENERIC_EVENTS", "GENERIC_EVENT_TYPES"
_NEEDS = ("timestamp", "typeId", "metricId", "value")
# What nsys calls each metric of `GPU_METRICS`, in whichever version; several of one name are parts of it.
_CALLED = {
    "clock_hz": r"GPC Clock Frequency",
    "sm_active": r"SMs? Active",
    "sm_issue": r"SM Issue",
    "tensor_active": r"Tensor Active",
    "warps": r"Compute Warps in Flight",
    "dram_read": r"DRAM Read (?:Throughput|Bandwidth)",
    "dram_write": r"DRAM Write (?:Throughput|Bandwidth)",
    "pcie_rx": r"PCIe (?:RX|Read) (?:Throughput|Bandwidth)",
    "pcie_tx": r"PCIe (?:TX|Write) (?:Throughput|Bandwidth)",
    "nvlink_rx": r"NVLink RX\b.*",
    "nvlink_tx": r"NVLink TX\b.*",
}
_PATTERNS = [re.compile(rf"{_CALLED[name]}(?: \[(?:Throughput %|MHz)\])?\Z", re.IGNORECASE) for name in GPU_METRICS]
_NONE = 255  # no metric that is read
_IN_PARTS = "the GPU is split (MIG), and samples do not say which part they are of"
_GAP, _LONG_GAP = 1.5, 4  # times the time between the samples around it; times the usual one
_OVERCLOCKED, _MAX_HZ = 1.5, 4e9  # times the clock that a GPU has at most by its own account; of any GPU


def read_samples(source: Source, about: About) -> dict[int, GpuSamples]:
    """The `GpuSamples` of each GPU, by its number in the report; empty where metrics were not sampled.

    A sample holds from its stamp to the next one: on A100 (nsys 2023) and H200 (2025) SM Active follows the kernels
    that run after a stamp (correlation above 0.99), not before it. A value that cannot be is NaN, see ``notes``.
    """
    rows, types = _read(source)
    if not len(rows["time"]):
        return {}
    gpus = {gpu.id: gpu for gpu in about.gpus}
    by_gpu: dict[int, list[int]] = {}
    for code in np.unique(rows["type"]).tolist():
        by_gpu.setdefault(types[code] & 0xFF, []).append(code)
    out: dict[int, GpuSamples] = {}
    for number, codes in sorted(by_gpu.items()):
        gpu = gpus.get(number)
        if len(codes) > 1 or (gpu is not None and "MIG" in gpu.name.split()):
            out[number] = GpuSamples(np.empty(0, np.int64), np.empty(0, np.int64), {}, (_IN_PARTS,))
            continue
        some = rows["type"] == codes[0] if len(by_gpu) > 1 else slice(None)
        mine = {name: values[some] for name, values in rows.items()}
        out[number] = _of_gpu(mine, (gpu.clock_hz if gpu else None) or 0)
    return out


def _read(source: Source) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """The values of `GPU_METRICS` in the order of the file: time, type (a place in the list), metric (see `_codes`)."""
    grown = Growing(time="int64", type="uint8", metric="uint8", value="float32")
    names: dict[int, dict[int, str]] = {}
    for kind, number, name in named_rows(source, _NAMES, "typeId", "metricId", "metricName"):
        if (kind := whole(kind)) is not None and (number := whole(number)) is not None and 0 <= number < _NONE:
            names.setdefault(kind, {})[number] = str(name)
    if not names:
        return _of_events(source, grown)
    tables = np.full((len(names), _NONE + 1), _NONE, np.uint8)
    for table, called in zip(tables, names.values(), strict=True):
        table[list(called)] = _codes([*called.values()])
    for block in read_blocks(source, _SAMPLES, _NEEDS):
        kind, number = column(block, "typeId"), np.clip(column(block, "metricId", _NONE), -1, _NONE)
        for null in (block.nulls[name] for name in ("timestamp", "value") if name in block.nulls):
            number[null] = -1
        for code, (each, table) in enumerate(zip(names, tables, strict=True)):
            metric = table[number]
            rows = np.flatnonzero((metric < _NONE) & (kind == each) & (number >= 0))
            time, value = column(block, "timestamp")[rows], column(block, "value")[rows]
            grown.add(len(rows), type=code, metric=metric[rows], time=time, value=value)
    return grown.take_rest(), [*names]


def _codes(names: Sequence[str]) -> list[int]:
    """For the names that one GPU's metrics have, the place in `GPU_METRICS` of each, and of several there which it is.

    Both in one number: 16 times the first; `_NONE` for other metrics.
    """
    out: list[int] = []
    for name in names:
        place = next((16 * at for at, each in enumerate(_PATTERNS) if each.match(name)), _NONE)
        out.append(place if place == _NONE else place + min(sum(code & ~15 == place for code in out), 15))
    return out


def _of_events(source: Source, grown: Growing) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """The same of generic events, whose data is JSON: ``{"SM Active": "31", …}``."""
    kinds = [whole(kind) for kind, data in named_rows(source, _TYPES, "typeId", "data") if "SM Active" in str(data)]
    wanted = [kind for kind in kinds if kind is not None]
    stamp = present(source, _EVENTS, ("rawTimestamp", "timestamp"))[:1]
    if not wanted or not stamp or not has_all(source, _EVENTS, ("typeId", "data")):
        return grown.take_rest(), []
    words = Words()
    codes: dict[tuple[str, ...], NDArray[np.uint8]] = {}
    for block in source.blocks(_EVENTS, [*stamp, "typeId"], ["data"], words):
        events = zip(*(block.values[name].tolist() for name in (*stamp, "typeId", "data")), strict=True)
        read = [(time, kind, _fields(words[data])) for time, kind, data in events if kind in wanted and data >= 0]
        for _, _, fields in read:
            codes.setdefault(tuple(fields), np.array(_codes([*fields]), np.uint8))
        size = [len(fields) for _, _, fields in read]
        grown.add(
            sum(size),
            time=np.repeat(np.array([time for time, _, _ in read], np.int64), size),
            type=np.repeat(np.array([wanted.index(kind) for _, kind, _ in read], np.uint8), size),
            metric=np.concatenate([codes[tuple(fields)] for _, _, fields in read] or [np.empty(0, np.uint8)]),
            value=np.array([value for _, _, fields in read for value in fields.values()], np.float32),
        )
    return grown.take_rest(), wanted


def _fields(data: str) -> dict[str, int]:
    """The whole numbers of one event, by name; none of what is no JSON."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    each = found.items() if isinstance(found, dict) else ()
    return {name: number for name, value in each if (number := whole(value)) is not None}


def _of_gpu(rows: dict[str, NDArray[Any]], clock_hz: float) -> GpuSamples:
    """The samples of a GPU: a row for each time, a column for each metric, NaN for what cannot be."""
    notes: list[str] = []
    columns: dict[str, NDArray[np.float32]] = {}
    metrics = {code: rows["metric"] == code for code in np.flatnonzero(np.bincount(rows["metric"])[:_NONE]).tolist()}
    times = [rows["time"][some] for some in metrics.values()]
    start = times[0]
    if (np.diff(start) <= 0).any() or not all(np.array_equal(time, start) for time in times):
        start = np.unique(np.concatenate(times))
    step = np.diff(start)
    usual = int(np.median(step)) if len(step) else 0
    around = np.append(0, step)  # the time between samples itself changes with the clock of an idle GPU
    near = np.maximum(around[:-1], np.append(step[1:], 0)) if len(step) > 1 else step
    gap = np.append((step > _GAP * near) | (step > _LONG_GAP * usual), usual == 0)
    for (code, some), time in zip(metrics.items(), times, strict=True):
        name = GPU_METRICS[code >> 4]
        values = np.full(len(start), np.nan, np.float32)
        values[np.searchsorted(start, time)] = rows["value"][some]
        wrong = (values < 0) | (values > 100) if name != "clock_hz" else (values <= 0) | (values > _highest(clock_hz))
        notes += [f"{plural(int(wrong.sum()), 'value')} of {name} out of range"] * bool(wrong.any())
        values[wrong | gap] = np.nan
        columns[name] = columns[name] + values if name in columns else values
    for name in ("nvlink_rx", "nvlink_tx"):  # sums of parts
        if name in columns:
            columns[name][columns[name] > 100] = np.nan
    notes += [f"{plural(int(gap.sum()), 'gap')} in time"] * bool(gap.any())
    end = np.append(np.where(gap[:-1], start[:-1] + usual, start[1:]), start[-1] + usual)
    return GpuSamples(start, end, columns, tuple(notes))


def _highest(clock_hz: float) -> float:
    """The clock above which a sample is no clock of such a GPU."""
    return _OVERCLOCKED * clock_hz if clock_hz else _MAX_HZ
