"""The titles of a benchmark's charts: each states the finding."""

import math
from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import pandas as pd

from nsysprof.bench import words
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import refused_calls, refused_rates
from nsysprof.bench.scaling import LEVEL, UNSURE, BenchSweep, is_named
from nsysprof.core.text import join_words
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.statistics.contrast import FASTER, SLOWER, TOO_FEW_SAMPLES

_NOTHING, _NONE = "Nothing was measured", "none"


def latency_title(results: BenchResults) -> str:
    """Name the fastest backend along the first sweep, and its lead at the end."""
    winners = _sweep_winners(results)
    if winners is None:
        return _NOTHING
    sweep, spans = winners
    times, short = _over_base(results, _last(results, sweep)), results.about.shorts[sweep.axis]
    values, winner = spans[-1]
    times += _among(results, sweep.fixed)
    if len(spans) == 1:
        return f"{winner} is fastest at {short}={_many(values)}{times}"
    end = f"at {short}={values[0]}" if len(values) == 1 else f"from {short}={values[0]} on"
    places, first = spans[0]
    before = f" ({first} at {short}={_many(places)})" if len(spans) == 2 else ""  # more is too much
    return f"{winner} is fastest {end}{before}{times}"


def memory_title(results: BenchResults) -> str:
    """Name the backends with the most and least memory at the end of the first sweep, and the growth of temporaries."""
    frame = results.results
    first = results.rows_of(results.sweeps[0]) if results.sweeps else frame
    part = results.own(first[first["peak_bytes"].notna()])
    if part.empty:
        return "Memory is unknown, because it is measured on GPUs only" if len(frame) else _NOTHING
    shapes = part.groupby("configuration", sort=False)["backend"].nunique()
    configuration = shapes[shapes == shapes.max()].index[-1]
    there = part[part["configuration"] == configuration]
    # among equals one that is not the baseline
    ordered = there.assign(is_base=there["backend"] == results.base, less=-there["peak_bytes"].astype(float))
    least = words.largest(ordered.sort_values("is_base", kind="stable"), "less")
    most = words.largest(there, "peak_bytes")
    at = _where(results, most)
    if most["backend"] == least["backend"]:
        return f"{most['backend']} needs {format_bytes(most['peak_bytes'])} at {at}"
    times = format_ratio(most["peak_bytes"] / least["peak_bytes"])
    if times == format_ratio(1):
        return f"All backends need about {format_bytes(most['peak_bytes'])} at {at}"
    growth = _growths(results, first, most, least)
    return f"{most['backend']} needs {times} the memory of {results.who(least)} at {at}{growth}"


def throughput_title(results: BenchResults) -> str:
    """Name the backend with the highest throughput, and its throughput (also as % of the peak)."""
    part = _named(results, "tflops")
    if part.empty:
        return _NOTHING
    part = part[~refused_calls(part)]
    if part.empty:
        return "No throughput is shown: all values exceed the peak, so they must be wrong"
    best = words.largest(part, "tflops")
    known = not math.isnan(best["share_of_peak"])
    share = f", {format_share(best['share_of_peak'])} of the peak" if known else ""
    title = f"{results.who(best)} reaches {words.tflops_text(best['tflops'])} TFLOP/s at {_where(results, best)}{share}"
    name = results.base_of(part)
    base = words.where(part, backend=name, configuration=best["configuration"])
    if len(base) and name != best["backend"]:
        title += f"; {name} {words.tflops_text(base['tflops'].iloc[0])} TFLOP/s"
    return title


def speedup_title(results: BenchResults) -> str:
    """Name the largest speed-up over the baseline along the first sweep."""
    base, about = results.base, results.about
    won = results.own(words.where(results.crossovers, kind="eager", loser=base), "winner")
    won = won[~won["status"].isin([LEVEL, UNSURE])]
    if won.empty:
        return _speedup_without_crossover(results)
    best = words.largest(won, "last_speedup")
    who = results.backend_name(best["winner"], words.configurations_of(results, best["sweep"], best["dtype"]))
    last = best[f"last_{about.size}"]
    among = _among(results, best["sweep"])
    if best[f"first_{about.size}"] == last:
        times = format_ratio(best["last_speedup"])
        return f"{who} is {times} as fast as {base} at {about.short}={last}{among}"
    return f"{who} over {base}: {words.ends_words(results, best)}{among}"


def _among(results: BenchResults, sweep: str) -> str:
    """` [B1 H8 D64 causal]`, the sweep that a title describes, if there are several sweeps."""
    return f" [{sweep}]" if len(results.sweeps) > 1 else ""


def _speedup_without_crossover(results: BenchResults) -> str:
    """The largest speed-up over the baseline, preferring clear speed-ups."""
    base = results.base
    pairs = results.own(words.where(results.comparisons, kind="eager", mixed=False, base=base), "new")
    if pairs.empty:
        return f"Nothing to compare with {base}"
    clear = pairs[pairs["verdict"].isin([FASTER, SLOWER])]
    best = words.largest(clear if len(clear) else pairs, "speedup")
    return f"{results.who(best, 'new')}: {words.speed_words(best, base, f' at {_where(results, best)}')}"


def roofline_title(results: BenchResults) -> str:
    """State the % of the roof that the best backend and the baseline reach (without launches if launch time was
    measured).
    """
    part = _named(results, "peak_tflops")
    if part.empty:
        return "No roofline: the peaks of this device are unknown"
    part = part[~refused_rates(part)]
    if part.empty:
        return "No roofline is shown: all values exceed the peak, so they must be wrong"
    base, several = results.base, part["dtype"].nunique() > 1
    part = words.of_main_dtype(part)
    rate = part["graph_tflops"].fillna(part["tflops"])
    part = part.assign(reached=rate / part["peak_tflops"], moved=rate / part["intensity"] * 1e3 / part["peak_gb_per_s"])
    best = words.largest(part, "reached")
    limit = f"{best['dtype']} FLOP/s" if several else "FLOP/s"
    title = f"{results.who(best)} reaches {format_share(best['reached'])} of the {limit} at {_where(results, best)}"
    other = words.where(part, backend=base, configuration=best["configuration"])
    if len(other) and base != best["backend"]:
        row = other.iloc[0]
        known = not math.isnan(row["share_of_bandwidth"]) and row["moved"] <= 1
        moved = f", and {format_share(row['moved'])} of the bandwidth" if known else ""
        title += f"; {base} {format_share(row['reached'])}{moved}"
    return title


def violin_title(results: BenchResults) -> str:
    """Describe the variation of samples, and whether backends differ from themselves (A/A)."""
    known = results.results["cv"].dropna()
    if known.empty:
        return _NOTHING
    spread = f"Samples of one backend vary by {format_share(float(known.median()))} (median coefficient of variation)"
    return f"{spread}; {words.aa_words(results)}" if results.aa_compared else spread


def selection_title(results: BenchResults, auto: pd.DataFrame, prefix: str) -> str:
    """Count the shapes at which another backend beats PyTorch's choice (``auto``), and name the largest loss."""
    verdicts = auto[f"{prefix}verdict"]
    behind, unsure = auto[verdicts == FASTER], int((verdicts == TOO_FEW_SAMPLES).sum())
    few = f"; too few samples at {unsure} more" if unsure else ""
    if unsure == len(auto):
        return f"PyTorch's choice: too few samples at each of the {unsure} shapes"
    if behind.empty:
        told = f"any of {len(auto)}" if not unsure else f"{len(auto) - unsure} of {len(auto)}"
        return f"No backend is clearly faster than PyTorch's choice at {told} shapes{few}"
    worst = words.largest(behind, f"{prefix}speedup")
    best, times = worst[f"{prefix}best"], format_ratio(worst[f"{prefix}speedup"])
    where = results.labels[worst["configuration"]]
    count = f"{len(behind)} of {len(auto)} shapes"
    return f"PyTorch's choice is not the fastest at {count}: {best} is {times} as fast at {where}{few}"


def _where(results: BenchResults, row: Any) -> str:
    """`S=4096`, or `B=64`: the size that varies in the first sweep that has the configuration of a row."""
    rows = set(results.results.index[results.results["configuration"] == row["configuration"]])
    axis = next(sweep.axis for sweep in results.sweeps if rows.intersection(sweep.rows))
    return f"{results.about.shorts[axis]}={row[axis]}"


def _many(values: list[Any]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 2 else join_words([str(value) for value in values])


def _named(results: BenchResults, column: str) -> pd.DataFrame:
    """The known values of backends requested by name, or of auto if there are no others."""
    known = results.results[results.results[column].notna()]
    named = results.own(known)
    return named if len(named) else known


def _sweep_winners(results: BenchResults) -> tuple[BenchSweep, list[tuple[list[Any], str]]] | None:
    """The first sweep in which two backends were compared, and the fastest backend for each part of its sizes."""
    decided = results.decided().set_index("configuration")
    for sweep in results.sweeps:
        part = words.of_main_dtype(results.rows_of(sweep)).drop_duplicates("configuration")
        part = part[part["configuration"].isin(decided.index)]
        fastest = [
            (value, words.fastest_words(results, {"configuration": name, **decided.loc[name]}))
            for name, value in zip(part["configuration"], part[sweep.axis], strict=True)
        ]
        if fastest:
            return sweep, [([value for value, _ in span], who) for who, span in groupby(fastest, key=itemgetter(1))]
    return None


def _last(results: BenchResults, sweep: BenchSweep) -> str:
    """The last configuration of a sweep, in its most frequent dtype, at which the baseline was measured, if any."""
    part = words.of_main_dtype(results.rows_of(sweep))
    part = part[part["median_ns"].notna()]
    with_base = part[part["backend"] == results.base]
    return str((with_base if len(with_base) else part)["configuration"].iloc[-1])


def _over_base(results: BenchResults, configuration: str) -> str:
    """`: 86x as fast as math at S=8192`, for the fastest backend at this configuration."""
    decided, frame = results.decided().set_index("configuration")["best"], results.results
    best = decided.get(configuration, results.base)
    compared = results.speedup(configuration, results.base, best)
    if compared is None:
        return ""
    rows = frame[frame["configuration"] == configuration]
    took = format_ns(float(rows.loc[rows["backend"] == best, "median_ns"].iloc[0]))
    return f": {words.speed_words(compared, results.base, f' at {_where(results, rows.iloc[0])}')} ({took})"


def _growths(results: BenchResults, frame: pd.DataFrame, most: Mapping[str, Any], least: Mapping[str, Any]) -> str:
    """`; its temporaries grow as S^2.00, not S^1.00`, if the temporaries of both follow a power of S."""
    ends = [_growth(results, frame, str(row["backend"]), str(row["dtype"])) for row in (most, least)]
    if not ends[0].startswith(results.about.short):
        return ""
    text = f"; its temporaries grow as {ends[0]}"
    if ends[1] == _NONE:
        return f"{text}, {least['backend']} has none"
    return f"{text}, not {ends[1]}" if ends[1] not in ("", ends[0]) else text


def _growth(results: BenchResults, frame: pd.DataFrame, backend: str, dtype: str) -> str:
    """`S^2.00` for the temporary memory of a backend, `none`, or empty if it follows no single power."""
    own = words.where(frame, backend=backend, dtype=dtype)
    if (own["temporary_bytes"].dropna() == 0).all():
        return _NONE
    laws = words.where(results.exponents, metric="temporary memory", backend=backend, dtype=dtype)
    laws = laws[laws["growth"].map(is_named).astype(bool)]
    return f"{results.about.short}^{laws['exponent'].iloc[0]:.2f}" if len(laws) else ""
