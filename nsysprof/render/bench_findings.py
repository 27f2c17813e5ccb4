"""What the results of a benchmark say, sentence by sentence; the same for terminal, report and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import AUTO
from nsysprof.bench.results import BenchResults
from nsysprof.render.bench_words import base_backend, in_words, known_text, largest, ratio_cell, shape_parts
from nsysprof.units import format_ratio, format_share

__all__ = ["bench_findings", "crossover_words", "exponent_words", "mixed_rows"]

_MOST_PLACES = 4
_MUCH_LAUNCHING = 0.1


def bench_findings(results: BenchResults) -> Iterator[str]:
    """Who is faster from where on, what grows how, what `auto` does, what mixed dtypes and launches hide, and A/A."""
    yield from crossover_lines(results)
    yield from memory_lines(results)
    yield from auto_lines(results)
    yield from mixed_lines(results)
    yield from launch_lines(results)
    if results.aa_compared:
        yield (
            f"A/A: held against themselves, {results.aa_different} of {results.aa_compared} differ; chance allows"
            " 1 in 20"
        )


def crossover_lines(results: BenchResults) -> Iterator[str]:
    """Every backend against the one that speed-ups are held against, along S."""
    base = base_backend(results.results)
    found = results.crossovers[results.crossovers["kind"] == "eager"]
    found = found[((found["loser"] == base) | (found["winner"] == base))]
    found = found[
        (found["winner"] != AUTO) & (found["loser"] != AUTO) & (found["first_seq"] < found["last_seq"])
    ]
    many = {name: found[name].nunique() > 1 for name in ("sweep", "dtype")}
    for row in found.to_dict("records"):
        where = " ".join(str(row[name]) for name, several in many.items() if several)
        yield crossover_words(row) + (f" [{where}]" if where else "")


def crossover_words(row: Any) -> str:
    """`flash beats math from S=512 on (1.1x at S=128, 30x at S=4096)`."""
    ends = (
        f"({format_ratio(row['first_speedup'])} at S={row['first_seq']},"
        f" {format_ratio(row['last_speedup'])} at S={row['last_seq']})"
    )
    if row["status"] == "no clear difference":
        return f"{row['winner']} and {row['loser']}: no clear difference at S={row['last_seq']} {ends}"
    who = f"{row['winner']} beats {row['loser']}"
    if row["status"] == "everywhere":
        return f"{who} at every S {ends}"
    crossing = (
        "" if math.isnan(row["crossing_seq"]) else f", the lines cross near S={row['crossing_seq']:.0f}"
    )
    return f"{who} from S={row['from_seq']:.0f} on {ends}{crossing}"


def memory_lines(results: BenchResults) -> Iterator[str]:
    """How the memory that a call needs beyond inputs and outputs grows with S."""
    memory = results.exponents[results.exponents["metric"] == "temporary memory"]
    many = memory["sweep"].nunique() > 1
    for (sweep, growth), group in memory.groupby(["sweep", "growth"], sort=False):
        several = memory["dtype"].nunique() > 1
        who = [
            f"{row['backend']}{' ' + row['dtype'] if several else ''} S^{row['exponent']:.2f}"
            for row in group.to_dict("records")
        ]
        yield f"temporary memory grows {growth}: {', '.join(who)}" + (f" [{sweep}]" if many else "")


def exponent_words(row: Any) -> str:
    """`S^1.98 (1.96–2.00)`."""
    held = f" ({row['low']:.2f}–{row['high']:.2f})" if math.isfinite(row["low"]) else ""
    return f"S^{row['exponent']:.2f}{held}"


def auto_lines(results: BenchResults) -> Iterator[str]:
    """Whether what PyTorch picks by itself is the best there is, and where it is not."""
    auto = results.auto[results.auto["best"].notna()]
    if auto.empty:
        return
    slower = auto[auto["verdict"] == "faster"]
    _, labels = shape_parts(results)
    if slower.empty:
        yield f"auto is as fast as the best of the others at {'all ' * (len(auto) > 1)}{shapes(len(auto))}"
    else:
        worst = slower.sort_values("speedup").iloc[-1]
        places = [labels[name] for name in slower["configuration"]]
        more = [f"{len(places) - _MOST_PLACES + 1} more"] if len(places) > _MOST_PLACES else []
        places = [*places[: _MOST_PLACES - len(more)], *more]
        yield (
            f"auto is slower than the best of the others at {len(slower)} of {shapes(len(auto))} ({in_words(places)});"
            f" at worst {worst['best']} is {ratio_cell(worst)} faster, at {labels[worst['configuration']]}"
        )
    if not auto["equivalent"].all():
        yield f"auto's output is outside the tolerance at {shapes(int((~auto['equivalent']).sum()))}"


def shapes(count: int) -> str:
    """`1 shape`, `6 shapes`."""
    return f"{count} shape{'s' * (count != 1)}"


def mixed_rows(results: BenchResults) -> pd.DataFrame:
    """What a comparison across dtypes is made of: per shape, the baseline in one dtype against a backend in another.

    Columns: seq, configuration, base, base_dtype, new, new_dtype, total (speed-up across both), precision (of the
    baseline by the dtype alone), algorithm (of the backend in one dtype); total = precision × algorithm.
    """
    base = base_backend(results.results)
    eager = results.comparisons[results.comparisons["kind"] == "eager"]
    across = eager[eager["mixed"] & (eager["base"] == base) & (eager["new"] != base) & (eager["new"] != AUTO)]
    medians = results.results.set_index(["configuration", "backend"])["median_ns"].to_dict()
    rows = []
    for row in across.to_dict("records"):
        same = medians.get((row["configuration"], base), math.nan)
        rows.append(
            {
                **{
                    name: row[name]
                    for name in ("seq", "configuration", "base", "base_dtype", "new", "new_dtype")
                },
                "total": row["speedup"],
                "precision": row["base_ns"] / same,
                "algorithm": same / row["new_ns"],
            }
        )
    names = [
        "seq",
        "configuration",
        "base",
        "base_dtype",
        "new",
        "new_dtype",
        "total",
        "precision",
        "algorithm",
    ]
    return pd.DataFrame(rows, columns=names)


def mixed_lines(results: BenchResults) -> Iterator[str]:
    """What a comparison across dtypes hides, at the largest S."""
    rows = mixed_rows(results)
    if rows.empty:
        return
    row = rows.sort_values("seq", kind="stable").iloc[-1]
    line = (
        f"mixed dtypes: {row['new']} {row['new_dtype']} is {format_ratio(row['total'])} as fast as {row['base']}"
        f" {row['base_dtype']} at S={row['seq']}"
    )
    if math.isfinite(row["algorithm"]):
        parts = [format_ratio(row[name]) for name in ("precision", "algorithm")]
        line += f": {parts[0]} from the dtype, {parts[1]} from the algorithm"
    yield line


def launch_lines(results: BenchResults) -> Iterator[str]:
    """How much of a call is launching at the smallest S, and what the speed-up is without it."""
    frame = results.results[results.results["graph_median_ns"].notna()]
    base = base_backend(results.results)
    if frame.empty:
        return
    worst = largest(frame.assign(hidden=1 - frame["graph_median_ns"] / frame["median_ns"]), "hidden")
    _, labels = shape_parts(results)
    if worst["hidden"] < _MUCH_LAUNCHING:
        yield f"launches hide nothing: at most {format_share(max(worst['hidden'], 0))} of a call is launching"
        return
    line = (
        f"launches: {format_share(worst['hidden'])} of {worst['backend']} at {labels[worst['configuration']]}"
        " is launching"
    )
    both = results.comparisons[results.comparisons["base"] == base]
    both = both[(both["new"] != AUTO) & ~both["mixed"]]
    eager, graph = (both[both["kind"] == kind] for kind in ("eager", "graph"))
    pairs = eager.merge(graph, on=["configuration", "new"], suffixes=("", "_graph"), validate="one_to_one")
    if len(pairs):
        pair = largest(pairs.assign(moved=np.abs(np.log(pairs["speedup"] / pairs["speedup_graph"]))), "moved")
        line += (
            f"; {pair['new']} over {base} is {format_ratio(pair['speedup'])} with launches and"
            f" {format_ratio(pair['speedup_graph'])} without, at {labels[pair['configuration']]}"
        )
    yield line


def picked_words(results: BenchResults, configuration: str) -> str:
    """Which backend `auto` came to; nothing where it was not measured."""
    rows = results.auto[results.auto["configuration"] == configuration]
    return (known_text(rows["picked"].iloc[0]) or "not seen") if len(rows) else ""
