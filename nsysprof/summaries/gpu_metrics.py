"""Summarize sampled GPU metrics (``nsys profile --gpu-metrics-devices``): utilization of SMs, tensor cores, DRAM and
links.

Means cover the recording, ranges, kernels that fill whole samples, and families of shorter kernels (by regression).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.split import device_labels
from nsysprof.core.arrays import Floats, Ints, Mask
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.intervals import covered, merge
from nsysprof.core.text import join_words, one_line
from nsysprof.core.units import format_ns
from nsysprof.kernels.names import short_name
from nsysprof.results.table import Column, table
from nsysprof.statistics.distributions import t_quantile
from nsysprof.summaries.summary import Answer, Asked, Summary
from nsysprof.trace.details import GpuSamples
from nsysprof.trace.trace import Trace

METRICS = table(
    "gpu_metrics.csv",
    "a row per sampled GPU, metric and subject. Subjects: the whole recording, merged range paths, kernels longer "
    "than a sample, and families of shorter kernels",
    {
        "what": "subject of the row: whole, range, kernel or family",
        "name": "merged path, kernel or kernel family; empty for the whole recording",
        "gpu": "GPU that was sampled",
        "time_ns": "time that the row covers: from the first to the last GPU op, or the time in which the kernels run",
        "metric": "clock_hz, or in percent of the maximum: sm_active, sm_issue (instructions issued), "
        "tensor_active, warps (in flight), dram_read, dram_write, pcie_rx, pcie_tx, nvlink_rx, nvlink_tx",
        "mean": "mean of the metric, in Hz or percent; empty if unknown",
        "low": "lower end of the 95 % confidence interval of the mean",
        "high": "upper end of the 95 % confidence interval of the mean",
        "samples": "number of samples from which the mean was computed",
        "basis": (
            "how the mean was computed: samples (mean of the samples in time_ns), regression (of the samples on the "
            "shares of kernels in them), or unknown"
        ),
        "reason": "reason why the mean is unknown",
    },
    made_in="summaries/gpu_metrics.py",
)
_WHOLE, _LEAST = 0.95, 3  # of a sample that counts as one inside; samples that make a mean
_BATCHES, _BLOCK = 10, 16  # into which samples are put for an interval, as neighbours are alike; samples of a block
# Samples that a launch takes: what runs for less than the first number is lost in what runs beside it, always in the
# same order; from the second on, its beginning and end, which are in no whole sample, do not matter.
_BRIEF, _LONG = 0.25, 10
_KERNELS, _RANGES = 12, 40  # at most, those with most time
_WIDE = 10  # points to either side: a wider interval says nothing
_APART_NS, _MOST_FITTED = 2_000, 64_000  # by which stamps of samples and kernels differ; samples of a fit
_LEVEL, _NAME = 0.95, 30
_SAME_CLOCK = 0.02  # part by which a clock changes anyway
_ROUNDED = 0.5  # percent are recorded as whole numbers
_SHOWN = ("sm_active", "sm_issue", "tensor_active", "dram_read", "dram_write", "warps")
STEP_METRICS = ("sm_active", "tensor_active", "dram_read", "dram_write")
_DRAWN = {"SM active": ("sm_active",), "tensor active": ("tensor_active",), "DRAM": ("dram_read", "dram_write")}
_HEADS = dict(zip(_SHOWN, ("SM active", "SM issue", "tensor", "DRAM read", "DRAM write", "warps"), strict=True))


@dataclass(frozen=True)
class Mean:
    """The mean of a metric with its 95 % interval; NaN with a ``reason`` if unknown."""

    mean: float
    low: float
    high: float
    samples: int
    basis: str
    reason: str = ""


def _unknown(reason: str, samples: int = 0) -> Mean:
    return Mean(np.nan, np.nan, np.nan, samples, "unknown", reason)


def mean_of(values: NDArray[np.float32], inside: Mask) -> Mean:
    """The mean of the samples ``inside``."""
    some = values[inside].astype(np.float64)
    known = some[~np.isnan(some)]
    if len(known) < _LEAST:
        short = np.count_nonzero(inside) < _LEAST
        return _unknown("too few samples while the kernel ran" if short else "values out of range", len(known))
    means = np.array([part.mean() for part in np.array_split(known, min(len(known), _BATCHES))])
    wide = t_quantile(_LEVEL, len(means) - 1) * float(means.std(ddof=1)) / np.sqrt(len(means)) + _ROUNDED
    mean = float(known.mean())
    return Mean(mean, max(mean - wide, 0.0), mean + wide, len(known), "samples")


def means(samples: GpuSamples, values: NDArray[np.float32] | Floats, start: Ints, end: Ints) -> Floats:
    """For each interval, return the mean of the known samples that overlap it, or NaN if there are none."""
    known = ~np.isnan(values)
    first = np.searchsorted(samples.end, start, side="right")
    last = np.maximum(first, np.searchsorted(samples.start, end))
    count, total = (np.append(0, np.cumsum(each)) for each in (known, np.where(known, values, 0).astype(np.float64)))
    inside = count[last] - count[first]
    return np.where(inside > 0, (total[last] - total[first]) / np.maximum(inside, 1), np.nan)


def clocks(trace: Trace, gpu: int, start: Ints, end: Ints) -> Floats:
    """Return the mean GPU clock in Hz in each interval, NaN if unknown."""
    samples = trace.samples.get(gpu)
    if samples is None or "clock_hz" not in samples.values:
        return np.full(len(start), np.nan)
    return means(samples, samples.values["clock_hz"], start, end)


def step_metrics(trace: Trace, gpu: int, start: Ints, end: Ints) -> dict[str, Floats]:
    """Return the mean of each of the `STEP_METRICS` over each interval, in percent; NaN if unknown, or if the interval
    is short.
    """
    samples = trace.samples.get(gpu)
    out = dict.fromkeys(STEP_METRICS, np.full(len(start), np.nan))
    for name in STEP_METRICS if samples else ():
        if samples and name in samples.values:
            found = means(samples, samples.values[name], start, end)
            out[name] = np.where(end - start >= _LEAST * samples.step_ns, found, np.nan)
    return out


def drawn_metrics(trace: Trace) -> Iterator[tuple[str, int, GpuSamples, Floats]]:
    """Yield the metrics for timelines: the label, the process that uses the GPU, the samples, and the percentage of
    each sample.
    """
    labels, numbers = device_labels(trace), trace.gpu_numbers
    for gpu, samples in trace.samples.items():
        for name, parts in _DRAWN.items() if gpu in numbers else ():
            values = [samples.values[each] for each in parts if each in samples.values]
            if values:
                user = trace.devices[numbers.index(gpu)].process
                yield f"{labels[gpu]} · {name}", user, samples, np.sum(values, axis=0, dtype=np.float64)


def usual_clock(trace: Trace, start: Ints, end: Ints) -> float:
    """Return the median of `clocks` over intervals and sampled GPUs, NaN if no clock is known."""
    every = [clocks(trace, gpu, start, end) for gpu in trace.samples]
    known = np.concatenate([each[~np.isnan(each)] for each in every]) if every else np.empty(0)
    return float(np.median(known)) if len(known) else np.nan


def clock_change(before: float, after: float) -> str:
    """Format `1.41 → 1.25 GHz` if the clock changed by at least 2 %; empty otherwise, or if unknown."""
    if not abs(after - before) >= _SAME_CLOCK * before:
        return ""
    return f"{before / 1e9:.2f} → {after / 1e9:.2f} GHz"


def gpu_metrics(attribution: Attribution, asked: Asked) -> Answer | None:
    """Return the means of all metrics, or None if no metric was sampled."""
    trace = attribution.trace
    if not trace.samples:
        return None
    labels = device_labels(trace)
    rows = [
        {
            "what": what,
            "name": name,
            "gpu": labels.get(gpu, f"GPU {gpu}"),
            "time_ns": time,
            "metric": metric,
            **vars(mean),
        }
        for gpu, samples in trace.samples.items()
        for what, name, time, means in _of_gpu(attribution, asked, gpu, samples)
        for metric, mean in means.items()
    ]
    columns: dict[str, Any] = {}
    for name in METRICS.names:
        values = [row[name] for row in rows]
        text = name in ("what", "name", "gpu", "metric", "basis", "reason")
        columns[name] = Texts(np.arange(len(values)), values) if text else np.array(values)
    shown, wide = _wide(rows)
    note = (
        "Mean % of the maximum while the kernels run. After ±: half the 95 % interval, if above 1. "
        "Empty: unknown (see table gpu_metrics)"
    )
    return Answer({METRICS.file: ColumnTable(columns)}, _finding(trace, labels, rows), shown, wide, note)


_Rows = Iterator[tuple[str, str, int, Mapping[str, Mean]]]


def _of_gpu(attribution: Attribution, asked: Asked, gpu: int, samples: GpuSamples) -> _Rows:
    """The rows of a GPU: kind, name, time, and the mean of each metric."""
    trace = attribution.trace
    ops = np.flatnonzero(trace.op_gpu == gpu)
    if not samples.values or not len(ops):
        reason = samples.notes[0] if not samples.values else "nothing ran on this GPU"
        yield "whole", "", 0, {"sm_active": _unknown(reason)}
        return
    busy = trace.gpu_busy[gpu]
    yield "whole", "", *_over(samples, busy[0][:1], busy[1][-1:])
    for name, start, end in _ranges(attribution, asked):
        yield "range", name, *_over(samples, start, end)
    yield from _kernels(trace, asked, ops, samples)


def _over(samples: GpuSamples, start: Ints, end: Ints) -> tuple[int, dict[str, Mean]]:
    """The time that disjoint stretches take, and the mean of each metric over samples inside."""
    inside = _shares(samples, (start, end)) >= _WHOLE
    return int((end - start).sum()), {name: mean_of(values, inside) for name, values in samples.values.items()}


def _shares(samples: GpuSamples, line: tuple[Ints, Ints]) -> NDArray[np.float32]:
    """The part of each sample that disjoint, sorted stretches of time cover."""
    length = np.maximum(samples.end - samples.start, 1)
    return (covered(line, samples.start, samples.end) / length).astype(np.float32)


def _ranges(attribution: Attribution, asked: Asked) -> Iterator[tuple[str, Ints, Ints]]:
    """The merged paths with the most time between their first and last GPU ops, and for each path these stretches."""
    inside = attribution.inclusive
    rows = np.flatnonzero((inside.launches > 0) & (asked.merged_of >= 0))
    start, end, path = inside.first_op_ns[rows], inside.last_op_ns[rows], asked.merged_of[rows]
    time = np.bincount(path, (end - start).astype(np.float64), minlength=len(asked.merged))
    for code in np.argsort(-time, kind="stable")[:_RANGES].tolist():
        some = path == code
        if some.any():
            yield asked.merged[code], *merge(start[some], end[some])


def _kernels(trace: Trace, asked: Asked, rows: Ints, samples: GpuSamples) -> _Rows:
    """The kernels that fill samples by themselves, and the others by families."""
    start, end, name = trace.ops.start[rows], np.maximum(trace.ops.end, trace.ops.start)[rows], trace.ops.name[rows]
    families = asked.family or trace.op_names
    words = [*trace.op_names, *dict.fromkeys(families)]
    place = {each: at for at, each in enumerate(dict.fromkeys(families), len(trace.op_names))}
    family = np.array([place[each] for each in families])
    time = np.bincount(name, (end - start).astype(np.float64), minlength=len(trace.op_names))
    alone = np.argsort(-time, kind="stable")[:_KERNELS]
    group = np.where(np.isin(name, alone[time[alone] > 0]), name, family[name])

    codes = np.unique(group).tolist()
    lines = [merge(start[group == code], end[group == code]) for code in codes]
    span = [int((stop - begin).sum()) for begin, stop in lines]
    found = means_of(samples, lines)
    for at in sorted(range(len(codes)), key=lambda at: -span[at]):
        yield "kernel" if codes[at] < len(trace.op_names) else "family", words[codes[at]], span[at], found[at]


def means_of(samples: GpuSamples, lines: Sequence[tuple[Ints, Ints]]) -> list[Mapping[str, Mean]]:
    """Return the mean of each metric while each group of kernels runs; ``lines`` has the disjoint intervals (ns) of
    each group.

    Means come from samples inside the intervals. For shorter kernels, means come from a regression, so the groups must
    cover all GPU work.
    """
    shares = [_shares(samples, line) for line in lines]
    total = np.sum(shares, axis=0)
    inside = [(share >= _WHOLE) & (total - share <= 1 - _WHOLE) for share in shares]
    length = [int((stop - begin).sum()) / max(len(begin), 1) / max(samples.step_ns, 1) for begin, stop in lines]
    direct = [not _BRIEF <= each < _LONG for each in length]
    fitted = {} if all(direct) else _fitted(samples, lines)
    out: list[Mapping[str, Mean]] = []
    for at in range(len(lines)):
        means = {metric: mean_of(values, inside[at]) for metric, values in samples.values.items()}
        if not direct[at]:
            both = ((metric, each[at]) for metric, each in fitted.items())
            means |= {name: fit for name, fit in both if fit.basis == "regression" or np.isnan(means[name].mean)}
        out.append(means)
    return out


def _fitted(samples: GpuSamples, lines: Sequence[tuple[Ints, Ints]]) -> dict[str, list[Mean]]:
    """What each group of kernels adds to the metrics while it runs: least squares over samples, idle time included.

    Timestamps of samples and kernels differ by some µs, so the interval includes fits with either shift. Only evenly
    spread blocks of very many samples are fitted.
    """
    blocks = np.arange(0, len(samples.start), _BLOCK)
    blocks = blocks[:: -(-len(samples.start) // _MOST_FITTED)]
    rows = (blocks[:, None] + np.arange(_BLOCK)).ravel()
    rows = rows[rows < len(samples.start)]
    some = GpuSamples(
        samples.start[rows], samples.end[rows], {name: all_[rows] for name, all_ in samples.values.items()}
    )
    out: dict[str, list[Mean]] = {}
    shifted = [[_shares(some, (start + by, end + by)) for start, end in lines] for by in (0, -_APART_NS, _APART_NS)]
    for metric, values in some.values.items():
        if metric == "clock_hz":  # kernels add nothing to it
            continue
        fits = [_fit(values.astype(np.float64), np.stack(shares)) for shares in shifted]
        out[metric] = [_judged(*each) for each in zip(*fits, strict=True)]
    return out


def _fit(values: Floats, shares: NDArray[np.float32]) -> Floats:
    """For each group (a row of ``shares``): mean, half the interval, time in samples, number of samples with the group.

    Samples in which groups overlap are left out. The interval accounts for correlation between neighbours.
    """
    total = shares.sum(axis=0)
    some = np.flatnonzero(~np.isnan(values) & (total <= 2 - _WHOLE) & (total > 0))
    x, y = np.column_stack([shares[:, some].T, np.maximum(1 - total[some], 0)]).astype(np.float64), values[some]
    first = np.arange(0, len(some), _BLOCK)
    freedom = len(first) - x.shape[1]
    weight, count = x.sum(axis=0), np.count_nonzero(x, axis=0)
    if freedom < 1:
        return np.stack([weight * np.nan, weight * np.nan, weight * 0, count], axis=1)[:-1]
    inverse = np.linalg.pinv(x.T @ x, hermitian=True)
    fit = inverse @ (x.T @ y)
    scores = np.add.reduceat(x * (y - x @ fit)[:, None], first, axis=0)
    wide = t_quantile(_LEVEL, freedom) * np.sqrt(np.diag(inverse @ (scores.T @ scores) @ inverse))
    return np.stack([fit, wide + _ROUNDED, weight, count], axis=1)[:-1]


def _judged(fit: Floats, *shifted: Floats) -> Mean:
    """The mean of a fit, with an interval that includes shifted fits; unknown if the interval is too wide."""
    (mean, wide, weight, count), ends = fit.tolist(), [each[0] for each in shifted]
    if not weight >= _LEAST:
        return _unknown("too short to be sampled at this frequency", int(count))
    low, high = min(mean - wide, *ends), max(mean + wide, *ends)
    if high - low > 2 * _WIDE or high < -1 or low > 101:
        text = (
            f"the interval is {high - low:.0f} percentage points wide: concurrent work varies too little to "
            "tell kernels apart"
        )
        return _unknown(text, int(count))
    mean, low, high = (float(np.clip(each, 0, 100)) for each in (mean, low, high))
    return Mean(mean, low, high, int(count), "regression")


def _short(text: str) -> str:
    return one_line(short_name(text, _NAME), _NAME)


def _wide(rows: list[dict[str, Any]]) -> tuple[tuple[Column, ...], ColumnTable]:
    """A displayed row per kernel and family, the most time first."""
    some = [row for row in rows if row["what"] in ("kernel", "family") and row["metric"] in _SHOWN]
    several = len({row["gpu"] for row in some}) > 1
    by: dict[tuple[str, str, int], dict[str, str]] = {}
    for row in some:
        half = (row["high"] - row["low"]) / 2
        around = f" ± {half:.0f}" if half >= 1 else ""
        text = "" if row["basis"] == "unknown" else f"{row['mean']:.0f}{around}"
        by.setdefault((row["gpu"], row["name"], row["time_ns"]), {})[row["metric"]] = text
    order = sorted(by, key=lambda key: -key[2])
    place = np.arange(len(order))
    metrics = [name for name in _SHOWN if any(by[key].get(name) for key in order)]
    shown = (
        *((Column("gpu", "", "GPU"),) if several else ()),
        Column("name", "", "kernel or family", _short),
        Column("time_ns", "", "time"),
        *(Column(name, "", _HEADS[name], align="r") for name in metrics),
    )
    columns: dict[str, Any] = {name: Texts(place, [by[key].get(name, "") for key in order]) for name in metrics}
    columns |= {"gpu": Texts(place, [key[0] for key in order]), "name": Texts(place, [key[1] for key in order])}
    return shown, ColumnTable({"time_ns": np.array([key[2] for key in order], np.int64), **columns})


def _finding(trace: Trace, labels: Mapping[int, str], rows: list[dict[str, Any]]) -> str:
    """State how busy each GPU is between its first and last op, and what is unknown."""
    texts = []
    for gpu, samples in trace.samples.items():
        label = labels.get(gpu, f"GPU {gpu}")
        whole = {row["metric"]: row for row in rows if row["what"] == "whole" and row["gpu"] == label}
        known = {name: row["mean"] for name, row in whole.items() if row["basis"] != "unknown"}
        parts = [f"{_HEADS[name]} {known[name]:.0f} %" for name in _SHOWN if name in known]
        if "clock_hz" in known:
            parts.append(f"clock {known['clock_hz'] / 1e9:.2f} GHz")
        texts.append(f"{label}: {', '.join(parts)}" if parts else f"{label}: unknown, {whole['sm_active']['reason']}")
        texts += [f"{label}: {join_words(samples.notes)}"] * bool(samples.notes and parts)
    missing = [label for gpu, label in labels.items() if gpu not in trace.samples]
    texts += [f"not sampled: {join_words(missing)}"] * bool(missing)
    every = max((samples.step_ns for samples in trace.samples.values()), default=0)
    return f"GPU metrics{f', a sample every {format_ns(every)}' * (every > 0)}: {'; '.join(texts)}"


SUMMARY = Summary("gpu_metrics", "GPU metrics", (METRICS,), gpu_metrics)
