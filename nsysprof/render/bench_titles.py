"""The titles of a benchmark's charts: each states the finding."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from nsysprof.bench.pairs import AUTO, between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import AXES, BenchSweep
from nsysprof.render.bench_words import (
    about_run,
    base_backend,
    clock_words,
    decision_words,
    in_words,
    known_text,
    largest,
    tflops_text,
)
from nsysprof.units import format_bytes, format_ns, format_ratio, format_share

__all__ = [
    "chart_subtitle",
    "latency_title",
    "memory_title",
    "roofline_title",
    "speedup_title",
    "throughput_title",
    "violin_title",
]

_NOTHING = "Nothing was measured"


def chart_subtitle(results: BenchResults) -> str:
    """What was measured, on what and how."""
    return f"{about_run(results)} · {clock_words(results)}"


def latency_title(results: BenchResults) -> str:
    """Which backend is fastest where along the first sweep, and by how much at its end."""
    found = _sweep_winners(results)
    if found is None:
        return _NOTHING
    sweep, spans = found
    last = _last(results, sweep)
    times = _over_base(results, last)
    if len(spans) == 1:
        ends = (
            f"{AXES[sweep.axis]}={_many(spans[0][0])}"
            if len(spans[0][0]) > 1
            else _at(sweep, spans[0][0][-1])
        )
        return f"{(spans[0][1])} is fastest at {ends}{times}"
    parts = [f"{spans[0][1]} is fastest up to {_at(sweep, spans[0][0][-1])}"]
    parts += [f"{words} from {_at(sweep, places[0])}" for places, words in spans[1:3]]
    return ", ".join(parts) + times


def memory_title(results: BenchResults) -> str:
    """Which backend needs most and least memory at the end of the first sweep, and how their temporaries grow."""
    frame, base = results.results, base_backend(results.results)
    first = frame.loc[list(results.sweeps[0].rows)] if results.sweeps else frame
    part = first[first["peak_bytes"].notna() & (first["backend"] != AUTO)]
    if part.empty:
        return "Memory is not known: it is counted on GPUs only" if len(frame) else _NOTHING
    shapes = part.groupby("configuration", sort=False)["backend"].nunique()
    configuration = shapes[shapes == shapes.max()].index[-1]
    there = part[part["configuration"] == configuration]
    most, least = largest(there, "peak_bytes"), _least(there, base)
    at = f"S={most['seq']}"
    if most["backend"] == least["backend"]:
        return f"{(most['backend'])} needs {format_bytes(most['peak_bytes'])} at {at}"
    times = format_ratio(most["peak_bytes"] / least["peak_bytes"])
    grown = [_growth(results, str(row["backend"]), str(row["dtype"])) for row in (most, least)]
    growth = (
        f"; its temporaries grow as {grown[0]}, those of {least['backend']} as {grown[1]}"
        if all(grown)
        else ""
    )
    return f"{most['backend']} needs {times} the memory of {least['backend']} at {at}{growth}"


def throughput_title(results: BenchResults) -> str:
    """The highest throughput of a backend, and what share of the peak that is."""
    part = _named(results, "tflops")
    if part.empty:
        return _NOTHING
    best = largest(part, "tflops")
    share = (
        "" if math.isnan(best["share_of_peak"]) else f", {format_share(best['share_of_peak'])} of the peak"
    )
    title = f"{best['backend']} reaches {tflops_text(best['tflops'])} TFLOP/s at S={best['seq']}{share}"
    base = part[(part["backend"] == base_backend(part)) & (part["configuration"] == best["configuration"])]
    if len(base) and base["backend"].iloc[0] != best["backend"]:
        title += f"; {base['backend'].iloc[0]} {tflops_text(base['tflops'].iloc[0])} TFLOP/s"
    return title


def speedup_title(results: BenchResults) -> str:
    """How the largest speed-up over the baseline develops along the first sweep."""
    base = base_backend(results.results)
    found = results.crossovers
    found = found[(found["loser"] == base) & (found["winner"] != AUTO) & (found["kind"] == "eager")]
    found = found[found["status"] != "no clear difference"]
    if found.empty:
        pairs = results.comparisons[(results.comparisons["kind"] == "eager") & ~results.comparisons["mixed"]]
        pairs = pairs[(pairs["base"] == base) & (pairs["new"] != AUTO)]
        if pairs.empty:
            return f"Nothing to hold against {base}"
        best = largest(pairs, "speedup")
        return f"{best['new']} is {format_ratio(best['speedup'])} as fast as {base} at S={best['seq']}"
    best = largest(found, "last_speedup")
    ends = [format_ratio(best[f"{end}_speedup"]) + f" at S={best[f'{end}_seq']}" for end in ("first", "last")]
    if best["first_seq"] == best["last_seq"]:
        return f"{best['winner']} is {ends[1]} as fast as {base}"
    return f"{best['winner']} over {base}: {ends[0]}, {ends[1]}"


def roofline_title(results: BenchResults) -> str:
    """Which share of its ceiling the best and the baseline reach at the largest S."""
    part = _named(results, "share_of_peak")
    if part.empty:
        return "No roofline: the peaks of this device are not known"
    base = base_backend(results.results)
    best = largest(part, "share_of_peak")
    title = (
        f"{best['backend']} reaches {format_share(best['share_of_peak'])} of the FLOP/s at S={best['seq']}"
    )
    other = part[(part["backend"] == base) & (part["configuration"] == best["configuration"])]
    if len(other) and base != best["backend"]:
        row = other.iloc[0]
        known = not math.isnan(row["share_of_bandwidth"])
        moved = f" and {format_share(row['share_of_bandwidth'])} of the bandwidth" if known else ""
        title += f"; {base} {format_share(row['share_of_peak'])} of the FLOP/s{moved}"
    return title


def violin_title(results: BenchResults) -> str:
    """How far samples spread, and whether backends differ from themselves."""
    known = results.results["cv"].dropna()
    if known.empty:
        return _NOTHING
    spread = f"Samples of one backend spread by {format_share(float(known.median()))} (median CV)"
    if not results.aa_compared:
        return spread
    none = "none of" if results.aa_different == 0 else f"{results.aa_different} of"
    return f"{spread}; held against itself, {none} {results.aa_compared} differs"


# ---- words


def _at(sweep: BenchSweep, value: Any) -> str:
    return f"{AXES[sweep.axis]}={value}"


def _many(values: list[Any]) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 2 else in_words([str(value) for value in values])


def _named(results: BenchResults, column: str) -> pd.DataFrame:
    """What is known of backends asked for by name, or of auto where there is nothing else."""
    known = results.results[results.results[column].notna()]
    named = known[known["backend"] != AUTO]
    return named if len(named) else known


def _sweep_winners(results: BenchResults) -> tuple[BenchSweep, list[tuple[list[Any], str]]] | None:
    """The first sweep in which two backends were compared, and who is fastest over which of its values."""
    decided = results.decisions[results.decisions["kind"] == "eager"].set_index("configuration")
    for sweep in results.sweeps:
        part = results.results.loc[list(sweep.rows)]
        dtype = part["dtype"].value_counts().index[0]
        part = part[part["dtype"] == dtype].drop_duplicates("configuration")
        spans: list[tuple[list[Any], str]] = []
        for configuration, value in zip(part["configuration"], part[sweep.axis], strict=True):
            if configuration not in decided.index:
                continue
            words = decision_words(results, configuration, known_text(decided["decision"][configuration]))
            if spans and spans[-1][1] == words:
                spans[-1][0].append(value)
            else:
                spans.append(([value], words))
        if spans:
            return sweep, spans
    return None


def _last(results: BenchResults, sweep: BenchSweep) -> str:
    """The last configuration of a sweep, in its most frequent dtype, at which the baseline was measured, if any."""
    part = results.results.loc[list(sweep.rows)]
    part = part[(part["dtype"] == part["dtype"].value_counts().index[0]) & part["median_ns"].notna()]
    with_base = part[part["backend"] == base_backend(results.results)]
    return str((with_base if len(with_base) else part)["configuration"].iloc[-1])


def _over_base(results: BenchResults, configuration: str) -> str:
    """`: 86x as fast as math at S=8192`, of the fastest backend there."""
    frame, base = results.results, base_backend(results.results)
    eager = results.comparisons[results.comparisons["kind"] == "eager"]
    best = results.decisions[
        (results.decisions["kind"] == "eager") & (results.decisions["configuration"] == configuration)
    ]
    row = frame[frame["configuration"] == configuration].iloc[0]
    if best.empty or best["best"].iloc[0] == base:
        return ""
    found = between(eager, configuration, base, str(best["best"].iloc[0]))
    if found is None:
        return ""
    median = frame[(frame["configuration"] == configuration) & (frame["backend"] == best["best"].iloc[0])]
    took = format_ns(float(median["median_ns"].iloc[0]))
    return f": {format_ratio(found['speedup'])} as fast as {base} at S={row['seq']} ({took})"


def _least(there: pd.DataFrame, base: str) -> dict[str, Any]:
    """The row of what needs least memory; among equals one that is not the baseline."""
    ordered = there.assign(is_base=there["backend"] == base, less=-there["peak_bytes"].astype(float))
    return largest(ordered.sort_values("is_base", kind="stable"), "less")


def _growth(results: BenchResults, backend: str, dtype: str) -> str:
    """`S^2.00 (1.99–2.01)` for the temporary memory of a backend; nothing where it was not fitted."""
    found = results.exponents
    found = found[
        (found["metric"] == "temporary memory") & (found["backend"] == backend) & (found["dtype"] == dtype)
    ]
    found = found[found["points"] >= 3]
    return f"S^{found['exponent'].iloc[0]:.2f}" if len(found) else ""
