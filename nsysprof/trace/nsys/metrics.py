"""Read samples of GPU metrics (``--gpu-metrics-devices``) from GPU_METRICS, or from GENERIC_EVENTS in exports before
2023.

Metrics are found by name, because ids differ between reports; the low byte of a ``typeId`` is the GPU, as in nsys's
recipes.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import Array, Bytes, Index, Ints
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
_IN_PARTS = "the GPU is partitioned (MIG), and the samples do not identify their MIG instance"
_GAP, _LONG_GAP = 1.5, 4  # times the time between the samples around it; times the usual one
_DIGITS, _END, _FIRST, _MOST_FORMS = b"0123456789", (1 << 63) - 1, 1000, 64
_NO_TOKEN, _SPACED = bytes(sorted({*range(256)} - {*_DIGITS, *b'"'})), bytes.maketrans(b'"', b" ")
_ROUNDED = 2  # percent that a sum of two percentages may be off by
_OVERCLOCKED, _MAX_HZ = 1.5, 4e9  # times the clock that a GPU has at most by its own account; of any GPU


def read_samples(source: Source, about: About) -> dict[int, GpuSamples]:
    """Read the `GpuSamples` of each GPU, by its number in the report; empty if metrics were not sampled.

    A sample covers the time from its timestamp to the next timestamp. On A100 (nsys 2023) and H200 (2025), SM Active
    matches the kernels after the timestamp (correlation above 0.99), not the kernels before it. Impossible values are
    NaN; ``notes`` gives the reason.
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


def _read(source: Source) -> tuple[dict[str, Array], list[int]]:
    """The values of `GPU_METRICS` in file order: time, type (an index into the list), metric (see `_codes`)."""
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


def of_gpu_metrics(source: Source) -> bool:
    """Whether generic events are samples of GPU metrics."""
    return any("SM Active" in str(data) for (data,) in named_rows(source, _TYPES, "data"))


def _codes(names: Sequence[str]) -> list[int]:
    """For each metric name of one GPU, its index in `GPU_METRICS`, and its number among names with the same index.

    Both are in one number: 16 times the index plus the number; `_NONE` for other metrics.
    """
    out: list[int] = []
    for name in names:
        place = next((16 * at for at, each in enumerate(_PATTERNS) if each.match(name)), _NONE)
        out.append(place if place == _NONE else place + min(sum(code & ~15 == place for code in out), 15))
    return out


def _of_events(source: Source, grown: Growing) -> tuple[dict[str, Array], list[int]]:
    """The same from generic events, whose data is JSON: ``{"SM Active": "31", …}``."""
    kinds = [whole(kind) for kind, data in named_rows(source, _TYPES, "typeId", "data") if "SM Active" in str(data)]
    wanted = sorted({kind for kind in kinds if kind is not None})
    stamp = present(source, _EVENTS, ("rawTimestamp", "timestamp"))[:1]
    if not wanted or not stamp or not has_all(source, _EVENTS, ("typeId", "data")):
        return grown.take_rest(), []
    words, forms = _Latest(), _Forms()
    for block in source.blocks(_EVENTS, [*stamp, "typeId"], ["data"], words):
        data, kind, time = (block.values[name] for name in ("data", "typeId", *stamp))
        some = np.flatnonzero(np.isin(kind, wanted) & (data >= 0))
        for rows, metrics, values in forms.read(words.taken(data[some])):
            at = some[rows]
            grown.add(
                values.size,
                time=np.repeat(time[at], len(metrics)),
                type=np.repeat(np.searchsorted(wanted, kind[at]), len(metrics)),
                metric=np.tile(metrics, len(at)),
                value=values.ravel(),
            )
    return grown.take_rest(), wanted


class _Latest(Words):
    """Texts that are dropped after each block, because each occurs once."""

    def __init__(self) -> None:
        super().__init__()
        self._first, self._texts = 0, list[bytes]()

    def add(self, raw: bytes) -> int:
        self._texts.append(raw)
        return self._first + len(self._texts) - 1

    def encode(self, data: Array, starts: Array, lengths: Array) -> Array:
        return np.array(self._add_all(data, starts, lengths), np.int32)

    def taken(self, codes: Array) -> list[bytes]:
        """The texts of a block's rows."""
        texts = [self._texts[code] for code in (codes - self._first).tolist()]
        self._first, self._texts = self._first + len(self._texts), []
        return texts


class _Form(NamedTuple):
    """The form of texts that differ only in values: the ``tokens`` of one text, and which tokens are in ``names`` and
    which are ``values`` of metrics.
    """

    tokens: Ints
    names: Index
    values: Index
    metrics: Bytes

    @classmethod
    def of(cls, raw: bytes) -> _Form:
        """Return the form of a text; the form has no tokens if the digits in the text are not its JSON values."""
        fields, count = _fields(raw), itertools.count(_FIRST)
        numbered = _fields(re.sub(rb"\d+", lambda _: b"%d" % next(count), raw))
        tokens, values = _tokens([raw])[:-1], np.array([*numbered.values()], np.intp) - _FIRST
        plain = len(tokens) == next(count) - _FIRST and ((values >= 0) & (values < len(tokens))).all()
        if not plain or tokens[values].tolist() != [*fields.values()]:
            return cls(tokens[:0], values[:0], values[:0], np.empty(0, np.uint8))
        metrics = np.array(_codes([*fields]), np.uint8)
        read, names = metrics != _NONE, np.setdiff1d(np.arange(len(tokens)), values)
        return cls(tokens, names, values[read], metrics[read])


class _Forms:
    """The numbers of JSON texts, read form by form: a report has one or two forms."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Form] = {}

    def read(self, texts: list[bytes]) -> Iterator[tuple[list[int], Bytes, Array]]:
        """Yield the positions of the texts, their common metrics (see `_codes`), and a row of values per text."""
        for outline, rows in _outlines(texts).items():
            if outline not in self._known and len(self._known) < _MOST_FORMS:
                self._known[outline] = _Form.of(texts[rows[0]])
            form = self._known.get(outline)
            found = _tokens([texts[row] for row in rows])
            wide = len(form.tokens) + 1 if form else 0
            if form and wide > 1 and len(found) == wide * len(rows):
                found = found.reshape(-1, wide)
                fixed = np.append(form.names, wide - 1)
                if (found[:, fixed] == np.append(form.tokens, _END)[fixed]).all():
                    yield rows, form.metrics, found[:, form.values]
                    continue
            for row in rows:
                fields = _fields(texts[row])
                yield [row], np.array(_codes([*fields]), np.uint8), np.array([[*fields.values()]], np.float64)


def _outlines(texts: list[bytes]) -> dict[bytes, list[int]]:
    """The positions of the texts that are equal apart from digits."""
    if not texts:
        return {}
    first = texts[0].translate(None, _DIGITS)
    if b"".join(texts).translate(None, _DIGITS) == first * len(texts):
        return {first: [*range(len(texts))]}
    places: dict[bytes, list[int]] = {}
    for place, text in enumerate(texts):
        places.setdefault(text.translate(None, _DIGITS), []).append(place)
    return places


def _tokens(texts: list[bytes]) -> Ints:
    """The quoted digits of some texts as numbers, with `_END` after each text."""
    end = b'"%d"' % _END
    only = (end.join(texts) + end).translate(_SPACED, _NO_TOKEN)
    return np.fromstring(only.decode("ascii"), np.int64, sep=" ")


def _fields(data: bytes) -> dict[str, int]:
    """The whole numbers of one event, by name; none if it is not JSON."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    each = found.items() if isinstance(found, dict) else ()
    return {name: number for name, value in each if (number := whole(value)) is not None}


def _of_gpu(rows: dict[str, Array], clock_hz: float) -> GpuSamples:
    """The samples of a GPU: a row for each time, a column for each metric, NaN for impossible values."""
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
    if "dram_read" in columns and "dram_write" in columns:  # parts of one bandwidth
        wrong = columns["dram_read"] + columns["dram_write"] > 100 + _ROUNDED
        notes += [f"{plural(int(wrong.sum()), 'sum')} of dram_read and dram_write out of range"] * bool(wrong.any())
        columns["dram_read"][wrong] = columns["dram_write"][wrong] = np.nan
    notes += [f"{plural(int(gap.sum()), 'gap')} in time"] * bool(gap.any())
    end = np.append(np.where(gap[:-1], start[:-1] + usual, start[1:]), start[-1] + usual)
    return GpuSamples(start, end, columns, tuple(notes))


def _highest(clock_hz: float) -> float:
    """The highest plausible clock in samples of such a GPU."""
    return _OVERCLOCKED * clock_hz if clock_hz else _MAX_HZ
