"""The words of a benchmark: cells and clauses that its tables, sentences and charts share."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import COMPARED
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import NO_INTERVAL
from nsysprof.bench.tables import TABLES
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.results.table import Column, TextTable, without_empty
from nsysprof.statistics.confidence import RANGE
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES, word_by_verdict
from nsysprof.statistics.runs import WITHIN, scope_of
from nsysprof.statistics.summary import LEAST_SAMPLES

REFUSED = "refused"
Row: TypeAlias = Any  # of a frame or of a view of one, by names
Cell: TypeAlias = str | Callable[[Row], str]
"""The text of a row in a column: that of a declared column, by its name, or what a function makes of the row."""
_DECLARED = {column.name: column for table in TABLES for column in table.columns}


def columns(heads: str, **cells: Callable[[Row], str]) -> dict[str, Cell]:
    """Make columns from their heads, such as `shape = label | n`: a column without a name uses its head.

    ``cells`` maps heads to functions that make cells.
    """
    named = (each.partition(" = ") for each in heads.split(" | "))
    return {head: cells.get(name or head, name or head) for head, _, name in named}


def shown(rows: Iterable[Row], table: Mapping[str, Cell], texts: int, spare: Sequence[str] = ()) -> TextTable:
    """Make a table of `columns`: the first ``texts`` columns are left-aligned, and empty columns are left out."""
    cells = [[_text(row, cell) for cell in table.values()] for row in rows]
    return TextTable(*without_empty([*table], cells, ("l" * texts).ljust(len(table), "r")), spare=spare, after_head=0)


def _text(row: Row, cell: Cell) -> str:
    if not isinstance(cell, str):
        return cell(row)
    return "" if pd.isna(row[cell]) else _DECLARED.get(cell, Column(cell, "")).text(row[cell])


def rows_of(results: BenchResults, frame: pd.DataFrame) -> list[Row]:
    """Return the rows of a data frame, with the ``label`` of their shape and their speed relative to the baseline.

    The speed is a comparison for each kind of samples (``eager`` and ``graph``), or None if they were not compared.
    """
    rows: list[Row] = frame.to_dict("records")
    for row in rows:
        at, backend = row["configuration"], row.get("backend", "")
        row |= {kind: results.speedup(at, results.base, backend, kind) for kind in COMPARED}
        row["label"] = results.labels[at]
    return rows


def decided_rows(results: BenchResults) -> list[Row]:
    """The decisions in words: ``fastest``, ``graph`` without launches, and the ``margin``."""
    graph = results.decided("graph").set_index("configuration")["decision"]
    rows = rows_of(results, results.decided())
    for row in rows:
        at = row["configuration"]
        row["fastest"] = decision_words(results, at, row["decision"])
        row["graph"] = decision_words(results, at, graph.get(at, ""))
        row["margin"] = ratio_cell(row, "margin") if known_text(row["runner_up"]) else ""
    return rows


def known_text(value: object) -> str:
    """Return the text in a cell; empty if the value is missing."""
    return value if isinstance(value, str) else ""


def latency_cell(row: Row, graph: str = "") -> str:
    """Format `98.2 µs ± 0.3 %`, or the status if there is no latency; ``graph`` is `graph_` for replays."""
    median = row[f"{graph}median_ns"]
    if not math.isfinite(median):
        return "" if graph else str(row["status"])
    return f"{format_ns(median)} {plus_minus(row, graph)}".rstrip()


def plus_minus(row: Row, graph: str = "") -> str:
    """Format half the interval relative to the median (`± 0.3 %`), or the minimum and maximum if samples are few."""
    if (row["graph_n"] < LEAST_SAMPLES) if graph else (row["n"] == 1):
        return ""
    if not graph and row["n"] < LEAST_SAMPLES:
        return f"({format_ns(row['min_ns'])}–{format_ns(row['max_ns'])})"
    median, low, high = (row[f"{graph}{name}_ns"] for name in ("median", "low", "high"))
    if (not graph and row["interval"] == RANGE) or math.isnan(low):
        return ""
    half = (high - low) / 2 / median
    return "± >100 %" if half > 1 else f"± {format_share(half)}"


def tflops_cell(row: Row) -> str:
    """Format TFLOP/s of a call, or `-` if they exceed the peak."""
    return "" if math.isnan(row["tflops"]) else "-" if share_cell(row) == REFUSED else tflops_text(row["tflops"])


def tflops_text(value: float) -> str:
    """`1,071`, `66.9`, `5.71`, `0.0042`."""
    return f"{value:.2g}" if value < 0.1 else f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}"


def share_cell(row: Row) -> str:
    """Format the share of the peak: `refused` if impossible, empty if the peak is unknown."""
    share = row["share_of_peak"]
    return format_share(share) if not math.isnan(share) else "" if math.isnan(row["peak_tflops"]) else REFUSED


def ratio_cell(row: Row, name: str = "speedup") -> str:
    """`24.2x (24.0–24.4)`; `-` if unknown."""
    ratio, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if not math.isfinite(ratio):
        return "-"
    if math.isnan(low):
        return format_ratio(ratio)
    return f"{format_ratio(ratio)} ({format_ratio(low)[:-1]}–{format_ratio(high)[:-1]})"


# What PyTorch reports about memory, of which the rest is advice.
_OUT_OF_MEMORY = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+ \w+)\..*total capacity of (?P<all>[\d.]+ \w+)"
    r" of which (?P<free>[\d.]+ \w+) is free"
)


def reason_cell(row: Row) -> str:
    """Return the reason why a point was not measured: `tried to allocate 256.00 GiB when 134.05 GiB of 139.80 GiB were
    free`.
    """
    text = known_text(row["reason"])
    memory = _OUT_OF_MEMORY.search(text)
    if not memory:
        return text
    return f"tried to allocate {memory['asked']} when {memory['free']} of {memory['all']} were free"


def subtitle(results: BenchResults) -> str:
    """Name the measured workload, the device and the method."""
    return f"{about_run(results)} · {clock_words(results)}"


def about_run(results: BenchResults) -> str:
    """Return a line with workload, device and number of samples."""
    samples, (shared, _) = results.samples, results.shapes
    what = results.about.title(training=samples.backward)
    counts = [len(point.latency_ns) for point in samples.measured]
    few, many = min(counts, default=0), max(counts, default=0)
    parts = [
        one_line(samples.name, 40),
        f"{what} ({shared})" if shared else what,
        one_line(device_name(results), 40),
        f"{few if few == many else f'{few}–{many}'} samples each" if counts else "no samples",
        *([f"in {samples.runs} runs" if samples.runs > 1 else WITHIN] if counts else []),
    ]
    return " · ".join(parts)


def device_name(results: BenchResults) -> str:
    """Return the GPU or CPU that was measured."""
    samples = results.samples
    if samples.device == "cuda":
        return samples.limits.name or "GPU not recorded"
    return str(samples.environment.get("cpu") or "CPU")


def clock_words(results: BenchResults) -> str:
    """The method of latencies: `cold L2 cache, CUDA events`."""
    measured = results.samples.measured
    if not measured:
        return "nothing was measured"
    cache = "" if results.samples.device != "cuda" else f"{measured[0].cache or 'unknown'} L2 cache, "
    return f"{cache}{str(measured[0].latency_clock).replace('cuda', 'CUDA')}"


def interval_words(results: BenchResults) -> str:
    """Describe the interval that `plus_minus` shows for these samples."""
    words = f"95 % interval of the median {scope_of(results.samples.runs)}"
    if results.results["n"].between(1, LEAST_SAMPLES - 1).any():
        words += f", or (minimum–maximum) of fewer than {LEAST_SAMPLES} samples"
    if NO_INTERVAL in results.results["interval"].to_numpy():
        words += "; no interval if samples are too few or too autocorrelated"
    return words


def speedup_cell(
    pair: dict[str, Any] | None, text: Callable[[Any], str] = ratio_cell, brackets: Sequence[str] = ("[", "]")
) -> str:
    """Format a speed-up with its interval: in brackets if no change is clear, with `?` if samples are too few."""
    if pair is None:
        return ""
    ratio = text(pair)
    marked = {NO_CLEAR_CHANGE: ratio.join(brackets), TOO_FEW_SAMPLES: f"{ratio} ?"}
    return marked.get(pair["verdict"], ratio)


def finds_cell(pair: Mapping[str, Any] | None) -> str:
    """Format the detectable difference of a comparison, such as `1.8 %`; empty if unknown."""
    detectable = math.nan if pair is None else pair["detectable"]
    return "" if math.isnan(detectable) else format_share(detectable)


def speed_words(pair: Any, base: str, where: str) -> str:
    """Format a comparison as `24.2x as fast as math at S=4096`, if its verdict is clear."""
    clear = f"{format_ratio(pair['speedup'])} as fast as {base}{where}"
    return word_by_verdict(clear, f"no clear difference from {base}{where}", pair["verdict"])


def ends_words(results: BenchResults, row: Row) -> str:
    """Format a crossover as `1.1x at S=128, 30x at S=4096`; a speed-up is given only if its verdict is clear."""
    frame, about, words = results.results, results.about, []
    inside = frame["configuration"].isin(configurations_of(results, row["sweep"], row["dtype"]))
    for end in ("first", "last"):
        size = row[f"{end}_{about.size}"]
        there = frame.loc[inside & (frame[about.size] == size), "configuration"]
        pair = results.speedup(str(there.iloc[0]), row["loser"], row["winner"]) or {"verdict": ""}
        clear, where = format_ratio(row[f"{end}_speedup"]), f" at {about.short}={size}"
        words.append(word_by_verdict(clear + where, f"no clear difference{where}", pair["verdict"]))
    return ", ".join(words)


def aa_words(results: BenchResults, which: str = "") -> str:
    """Format the number of backends that differ from themselves (A/A), followed by ``which``."""
    return f"compared with themselves, {results.aa_different} of {results.aa_compared} differ{which}"


def decision_words(results: BenchResults, configuration: str, decision: str) -> str:
    """Name the decision, with the choice of `auto` if `auto` is best."""
    return " or ".join(results.backend_name(name, [configuration]) for name in decision.split(" or "))


def fastest_words(results: BenchResults, row: Row) -> str:
    """Name the fastest backend in a row of the decisions, and all backends that may be as fast, joined by "or"."""
    maybe = [row["decision"], *known_text(row["unsure"]).split()]
    return decision_words(results, row["configuration"], " or ".join(maybe))


def picked_words(results: BenchResults, configuration: str) -> str:
    """The backend that `auto` chose; empty if it was not measured."""
    rows = results.auto[results.auto["configuration"] == configuration]
    return (known_text(rows["picked"].iloc[0]) or "not seen") if len(rows) else ""


def exponent_words(row: Row, short: str) -> str:
    """Format an exponent as `S^1.98 (1.96–2.00)`, or as `S^2.00` if both ends of the interval round to this value."""
    exponent, low, high = (f"{row[name]:.2f}".replace("-0.00", "0.00") for name in ("exponent", "low", "high"))
    interval = f" ({low}–{high})" if math.isfinite(row["low"]) and {low, high} != {exponent} else ""
    return f"{short}^{exponent}{interval}"


def configurations_of(results: BenchResults, fixed: str, dtype: str) -> list[str]:
    """Return the configurations of this dtype in the sweep over S with the title ``fixed``."""
    sweeps = [each for each in results.sweeps if each.axis == results.about.size and each.fixed == fixed]
    part = results.results.loc[[row for sweep in sweeps for row in sweep.rows]]
    return [str(name) for name in part.loc[part["dtype"] == dtype, "configuration"].unique()]


def of_main_dtype(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the most frequent dtype."""
    return frame[frame["dtype"] == frame["dtype"].value_counts().index[0]]


def where(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows of a data frame whose columns have the given values."""
    for name, value in values.items():
        frame = frame[frame[name] == value]
    return frame


def largest(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    """Return the first row with the largest known value of a column."""
    place = int(np.nanargmax(frame[column].to_numpy(np.float64, na_value=np.nan)))
    return {str(name): frame[name].iloc[place] for name in frame.columns}
