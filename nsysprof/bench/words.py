"""How results of a benchmark are named and put into words: shapes, backends, numbers with their intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import AUTO
from nsysprof.bench.results import BenchResults
from nsysprof.bench.samples import BenchShape
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.statistics.confidence import RANGE
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES, word_by_verdict
from nsysprof.statistics.summary import LEAST_SAMPLES

REFUSED = "refused"


def base_backend(results: BenchResults, part: pd.DataFrame | None = None) -> str:
    """The backend that speed-ups and memory reductions are over: one of the workload's choice, or the first one."""
    backends = [str(name) for name in (results.results if part is None else part)["backend"].unique()]
    return next((name for name in results.about.base if name in backends), backends[0])


def shape_labels(shapes: Sequence[BenchShape]) -> tuple[str, dict[str, str]]:
    """What all shapes have in common (`B1 H8 D64 fp16 causal`), and what tells each from the others (`S1024`).

    The second is a mapping from the shape's id.
    """
    texts = [each.parts for each in shapes]
    same = [len(shapes) > 1 and len(set(column)) == 1 for column in zip(*texts, strict=True)]
    own = {
        each.id: " ".join(part for part, shared in zip(parts, same, strict=True) if not shared)
        for each, parts in zip(shapes, texts, strict=True)
    }
    shared = [part for part, shared in zip(texts[0], same, strict=True) if shared] if texts else []
    return " ".join(shared), own


def shape_parts(results: BenchResults) -> tuple[str, dict[str, str]]:
    """The `shape_labels` of all configurations of a run."""
    return shape_labels(list({point.shape.id: point.shape for point in results.samples.points}.values()))


def about_run(results: BenchResults) -> str:
    """One line: what was measured, on what, and how much of it."""
    samples, frame = results.samples, results.results
    what = results.about.title(training=samples.backward)
    shared, _ = shape_parts(results)
    counts = frame.loc[frame["n"] > 0, "n"]
    some = (
        f"{counts.min()}"
        if len(counts) and counts.min() == counts.max()
        else f"{counts.min()}–{counts.max()}"
    )
    parts = [
        one_line(samples.name, 40),
        f"{what} ({shared})" if shared else what,
        one_line(device_name(results), 40),
        f"{some} samples each" if len(counts) else "no samples",
    ]
    return " · ".join(parts)


def device_name(results: BenchResults) -> str:
    """The GPU, or the CPU, that was measured."""
    samples = results.samples
    if samples.device == "cuda":
        return samples.limits.name or "GPU not recorded"
    return str(samples.environment.get("cpu") or "CPU")


def clock_words(results: BenchResults) -> str:
    """How latencies were taken: `cold L2 cache, CUDA events`."""
    frame = results.results[results.results["n"] > 0]
    if frame.empty:
        return "nothing was measured"
    first = frame.iloc[0]
    cache = "" if results.samples.device != "cuda" else f"{first['cache'] or 'unknown'} L2 cache, "
    return f"{cache}{str(first['clock']).replace('cuda', 'CUDA')}"


def plus_minus(row: Any, *, graph: bool = False) -> str:
    """Half the width of the interval as a share of the median: `± 0.3 %`; of few samples how far they reach."""
    if (graph and row["graph_n"] < LEAST_SAMPLES) or (not graph and row["n"] == 1):
        return ""
    if not graph and row["n"] < LEAST_SAMPLES:
        return f"({format_ns(row['min_ns'])}–{format_ns(row['max_ns'])})"
    if not graph and row["interval"] == RANGE:
        return ""
    median, low, high = _median_and_ends(row, graph=graph)
    return f"± {format_share((high - low) / 2 / median)}"


def interval_words(results: BenchResults) -> str:
    """What `plus_minus` says of the samples that there are."""
    few = bool(results.results["n"].between(1, LEAST_SAMPLES - 1).any())
    return "95 % interval of the median" + (f", or (least–most) of fewer than {LEAST_SAMPLES}" if few else "")


def latency_cell(row: Any, *, graph: bool = False) -> str:
    """`98.2 µs ± 0.3 %`, or the status where there is no latency."""
    median, _, _ = _median_and_ends(row, graph=graph)
    if not math.isfinite(median):
        return "" if graph else str(row["status"])
    return f"{format_ns(median)} {plus_minus(row, graph=graph)}".rstrip()


def _median_and_ends(row: Any, *, graph: bool) -> list[float]:
    return [row[("graph_" if graph else "") + name] for name in ("median_ns", "low_ns", "high_ns")]


def tflops_cell(row: Any) -> str:
    """TFLOP/s of a call; `-` where more than the peak was refused."""
    return "-" if share_cell(row) == REFUSED else tflops_text(row["tflops"])


def share_cell(row: Any) -> str:
    """The share of the peak; `refused` where it cannot be, empty where the peak is not known."""
    share = row["share_of_peak"]
    if not math.isnan(share):
        return format_share(share)
    return "" if math.isnan(row["peak_tflops"]) else REFUSED


def ratio_cell(row: Any, name: str = "speedup") -> str:
    """`24.2x (24.0–24.4)`; `-` where it is not known."""
    ratio, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if not math.isfinite(ratio):
        return "-"
    return f"{format_ratio(ratio)} ({format_ratio(low)[:-1]}–{format_ratio(high)[:-1]})"


def verdict_cell(found: dict[str, Any] | None) -> str:
    """A speed-up with its interval; in brackets where it is no clear change, marked `?` with too few samples."""
    if found is None:
        return ""
    cell = ratio_cell(found)
    return {NO_CLEAR_CHANGE: f"[{cell}]", TOO_FEW_SAMPLES: f"{cell} ?"}.get(found["verdict"], cell)


def decision_words(results: BenchResults, configuration: str, decision: str) -> str:
    """The decision, with what `auto` came to where it is the one."""
    return " or ".join(backend_name(results, word, [configuration]) for word in decision.split(" or "))


def fastest_words(results: BenchResults, row: Any) -> str:
    """Who is fastest by a row of the decisions, as the table and the titles say: all that may be, the best first."""
    unsure = known_text(row["unsure"]).split()
    return decision_words(results, row["configuration"], " or ".join([known_text(row["decision"]), *unsure]))


def speed_words(found: Any, base: str, where: str) -> str:
    """`24.2x as fast as math at S=4096`, of a row of the comparisons, and no more than its verdict says."""
    clear = f"{format_ratio(found['speedup'])} as fast as {base}{where}"
    return word_by_verdict(clear, f"no clear difference from {base}{where}", found["verdict"])


def backend_name(results: BenchResults, backend: str, configurations: Iterable[str]) -> str:
    """The backend; `auto (cudnn)` for `auto` where it came to the same one on all these configurations."""
    picked = {results.samples.auto.get(name) for name in configurations} if backend == AUTO else set()
    [pick] = picked if len(picked) == 1 else [None]
    return f"{backend} ({pick})" if pick else backend


def configurations_of(results: BenchResults, fixed: str, dtype: str) -> list[str]:
    """The configurations of a dtype in the sweep over S with this title."""
    rows = [
        row
        for sweep in results.sweeps
        if sweep.axis == results.about.size and sweep.fixed == fixed
        for row in sweep.rows
    ]
    part = results.results.loc[rows]
    return [str(name) for name in part.loc[part["dtype"] == dtype, "configuration"].unique()]


def largest(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    """The first row with the largest known value of a column."""
    place = int(np.nanargmax(frame[column].to_numpy(np.float64, na_value=np.nan)))
    return {str(name): frame[name].iloc[place] for name in frame.columns}


def tflops_text(value: float) -> str:
    """`1,071`, `66.9`, `5.71`, `0.0042`."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def known_text(value: object) -> str:
    """The text of a cell; nothing for a missing one, whichever way pandas has it."""
    return value if isinstance(value, str) else ""


# What PyTorch says about memory, of which the rest is advice.
_OUT_OF_MEMORY = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+ \w+)\..*total capacity of (?P<all>[\d.]+ \w+)"
    r" of which (?P<free>[\d.]+ \w+) is free"
)


def reason_words(reason: object) -> str:
    """Why something was not measured; `tried to allocate 256.00 GiB when 134.05 GiB of 139.80 GiB were free`."""
    text = known_text(reason)
    found = _OUT_OF_MEMORY.search(text)
    if not found:
        return text
    return f"tried to allocate {found['asked']} when {found['free']} of {found['all']} were free"
