"""What the results of a benchmark say, sentence by sentence; the same for terminal, report and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import CONSTANT, LEVEL, NO_SINGLE_POWER, UNSURE, is_named
from nsysprof.bench.words import (
    backend_name,
    base_backend,
    configurations_of,
    known_text,
    largest,
    ratio_cell,
    shape_parts,
)
from nsysprof.core.text import join_words, plural
from nsysprof.core.units import format_bytes, format_ratio, format_share
from nsysprof.formats.workload import Described
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES, noise_of

__all__ = ["bench_findings", "crossover_words", "exponent_words", "mixed_rows"]

_MUCH_LAUNCHING = 0.1
_ENDS = ("", "_low", "_high")
_PARTS = ("total", "precision", "algorithm")


def bench_findings(results: BenchResults) -> Iterator[str]:
    """Who is faster from where on, what grows how, what `auto` does, what mixed dtypes and launches hide, and A/A."""
    yield from crossover_lines(results)
    yield from memory_lines(results)
    yield from auto_lines(results)
    yield from mixed_lines(results)
    yield from launch_lines(results)
    yield from aa_lines(results)


def crossover_lines(results: BenchResults) -> Iterator[str]:
    """Every backend against the one that speed-ups are held against, along S."""
    base = base_backend(results)
    found = results.crossovers[results.crossovers["kind"] == "eager"]
    found = found[((found["loser"] == base) | (found["winner"] == base))]
    found = found[
        ~found["winner"].isin(results.repeats)
        & ~found["loser"].isin(results.repeats)
        & (found[f"first_{results.about.size}"] < found[f"last_{results.about.size}"])
    ]
    many = {name: found[name].nunique() > 1 for name in ("sweep", "dtype")}
    for row in found.to_dict("records"):
        where = " ".join(str(row[name]) for name, several in many.items() if several)
        inside = configurations_of(results, row["sweep"], row["dtype"])
        names = {side: backend_name(results, row[side], inside) for side in ("winner", "loser")}
        yield crossover_words({**row, **names}, results.about) + (f" [{where}]" if where else "")


def crossover_words(row: Any, about: Described) -> str:
    """`flash beats math from S=512 on (1.1x at S=128, 30x at S=4096)`."""
    s, (first, last, start, crossing) = (
        about.short,
        (row[f"{place}_{about.size}"] for place in ("first", "last", "from", "crossing")),
    )
    ends = f"({format_ratio(row['first_speedup'])} at {s}={first}, {format_ratio(row['last_speedup'])} at {s}={last})"
    if row["status"] in (LEVEL, UNSURE):
        return f"{row['winner']} and {row['loser']}: {row['status']} at {s}={last} {ends}"
    who = f"{row['winner']} beats {row['loser']}"
    if row["status"] == "everywhere":
        return f"{who} at every {s} {ends}"
    near = "" if math.isnan(crossing) else f", the lines cross near {s}={crossing:.0f}"
    return f"{who} from {s}={start:.0f} on {ends}{near}"


def memory_lines(results: BenchResults) -> Iterator[str]:
    """How the memory that a call needs beyond inputs and outputs grows with S."""
    memory = results.exponents[results.exponents["metric"] == "temporary memory"]
    memory = memory[~memory["backend"].isin(results.repeats)]
    several, about = memory["dtype"].nunique() > 1, results.about
    for sweep in [each for each in results.sweeps if each.axis == about.size]:
        where = f" [{sweep.fixed}]" if memory["sweep"].nunique() > 1 else ""
        part = results.results.loc[list(sweep.rows)]
        for growth, group in memory[memory["sweep"] == sweep.fixed].groupby("growth", sort=False):
            rows, words = group.to_dict("records"), str(growth)
            names = [f"{row['backend']}{' ' + row['dtype'] if several else ''}" for row in rows]
            exponents = [
                f"{name} {exponent_words(row, about.short)}" for name, row in zip(names, rows, strict=True)
            ]
            if words == CONSTANT:
                sizes = [_sizes(part, row, about, 1) for row in rows]
                yield "temporary memory is constant: " + _listed(names, sizes) + where
            elif is_named(words):
                yield f"temporary memory grows {words}: {', '.join(exponents)}{where}"
            elif words.startswith(NO_SINGLE_POWER):
                sizes = [
                    f"{_sizes(part, row, about, 2)}, {about.short}^{row['last_exponent']:.1f} in the last step"
                    for row in rows
                ]
                yield f"temporary memory grows with {NO_SINGLE_POWER} of {about.short}: {_listed(names, sizes)}{where}"
            else:
                yield f"how temporary memory grows is {words}: {', '.join(exponents)}{where}"


def _listed(names: Sequence[str], said: Sequence[str]) -> str:
    return ", ".join(f"{name} ({words})" for name, words in zip(names, said, strict=True))


def _sizes(part: pd.DataFrame, row: Any, about: Described, ends: int) -> str:
    """`272 B`, or `4.09 MiB at S=1024, 64.0 KiB at S=2048 and 1.00 MiB at S=32768`: first, smallest and last."""
    own = part[(part["backend"] == row["backend"]) & (part["dtype"] == row["dtype"])]
    own = own[own["temporary_bytes"].notna()].sort_values(about.size)
    if ends == 1:
        return format_bytes(own["temporary_bytes"].iloc[-1])
    places = sorted({0, int(np.argmin(own["temporary_bytes"].to_numpy(np.int64))), len(own) - 1})
    return join_words(
        [
            f"{format_bytes(own['temporary_bytes'].iloc[place])} at {about.short}={own[about.size].iloc[place]}"
            for place in places
        ]
    )


def exponent_words(row: Any, short: str) -> str:
    """`S^1.98 (1.96–2.00)`; `S^2.00` where its interval is no wider than that."""
    exponent, low, high = (
        f"{row[name]:.2f}".replace("-0.00", "0.00") for name in ("exponent", "low", "high")
    )
    held = f" ({low}–{high})" if math.isfinite(row["low"]) and {low, high} != {exponent} else ""
    return f"{short}^{exponent}{held}"


def auto_lines(results: BenchResults) -> Iterator[str]:
    """Whether what PyTorch picks by itself is the best there is, with launches and without, and where it is not."""
    auto = results.auto[results.auto["best"].notna()]
    if auto.empty:
        return
    said = [_held_against_best(results, auto, "")]
    if len(known := auto[auto["graph_verdict"].notna()]):
        said.append(f"without launches {_held_against_best(results, known, 'graph_')}")
    yield f"auto against the best of the others: {'; '.join(said)}"
    if not auto["equivalent"].all():
        yield f"auto's output is outside the tolerance at {shapes(int((~auto['equivalent']).sum()))}"


def _held_against_best(results: BenchResults, auto: pd.DataFrame, prefix: str) -> str:
    """At how many shapes it cannot be told apart, is ahead, or is behind, and where and by how much."""
    _, labels = shape_parts(results)
    verdict = auto[f"{prefix}verdict"]
    behind = auto[verdict == FASTER]
    counts = {
        LEVEL: int((verdict == NO_CLEAR_CHANGE).sum()),
        UNSURE: int((verdict == TOO_FEW_SAMPLES).sum()),
        "faster": int((verdict == SLOWER).sum()),
        "slower": len(behind),
    }
    said = [f"{words} at {_of(count, len(auto))}" for words, count in counts.items() if count]
    if len(behind):
        worst = behind.sort_values(f"{prefix}speedup").iloc[-1]
        said[-1] += (
            f" (at worst {labels[worst['configuration']]}, where {worst[f'{prefix}best']} is"
            f" {ratio_cell(worst, f'{prefix}speedup')} as fast)"
        )
    return ", ".join(said)


def _of(count: int, total: int) -> str:
    """`1 of 3 shapes`, `all 3 shapes`, `the only shape`."""
    if count < total:
        return f"{count} of {shapes(total)}"
    return f"all {shapes(total)}" if total > 1 else "the only shape"


def shapes(count: int) -> str:
    """`1 shape`, `6 shapes`."""
    return plural(count, "shape")


def launch_lines(results: BenchResults) -> Iterator[str]:
    """Where most of a call is launching, what the speed-up is without it, and where a graph is slower than the call."""
    frame = results.results[results.results["graph_median_ns"].notna()]
    frame = frame[~frame["backend"].isin(results.repeats)]
    if frame.empty:
        return
    worst = largest(frame.assign(hidden=1 - frame["graph_median_ns"] / frame["median_ns"]), "hidden")
    _, labels = shape_parts(results)
    if worst["hidden"] < _MUCH_LAUNCHING:
        yield f"launches hide nothing: at most {format_share(max(worst['hidden'], 0))} of a call is launching"
    else:
        hidden, where = format_share(worst["hidden"]), labels[worst["configuration"]]
        name = backend_name(results, worst["backend"], [worst["configuration"]])
        yield f"launches: {hidden} of a call of {name} at {where} is launching{_moved(results)}"
    over = frame["graph_median_ns"] / frame["median_ns"] - 1
    slower = frame[(frame["graph_low_ns"] > frame["high_ns"]) & (over >= results.rules.least_effect)]
    if len(slower):
        most = largest(slower.assign(over=over), "over")
        yield (
            f"graphs: at {len(slower)} of {len(frame)} points a replay takes longer than the call; {most['backend']} at"
            f" {labels[most['configuration']]} {format_share(most['over'])} longer"
        )


def _moved(results: BenchResults) -> str:
    """The speed-up that launching changes most: `; flash is 7.6x as fast as math with launches and 11x without`."""
    base = base_backend(results)
    both = results.comparisons[results.comparisons["base"] == base]
    clear = both["verdict"].isin([FASTER, SLOWER])
    both = both[clear & ~both["new"].isin(results.repeats) & ~both["mixed"]]
    eager, graph = (both[both["kind"] == kind] for kind in ("eager", "graph"))
    pairs = eager.merge(graph, on=["configuration", "new"], suffixes=("", "_graph"), validate="one_to_one")
    if pairs.empty:
        return ""
    pair = largest(pairs.assign(moved=np.abs(np.log(pairs["speedup"] / pairs["speedup_graph"]))), "moved")
    _, labels = shape_parts(results)
    name = backend_name(results, pair["new"], [pair["configuration"]])
    return (
        f"; {name} is {format_ratio(pair['speedup'])} as fast as {base} with launches and"
        f" {format_ratio(pair['speedup_graph'])} without, at {labels[pair['configuration']]}"
    )


def aa_lines(results: BenchResults) -> Iterator[str]:
    """How many backends differ from themselves, and the one that does so most."""
    if not results.aa_compared:
        return
    which = ""
    if results.aa_different:
        frame = results.results
        different = frame[frame["aa_verdict"].isin([FASTER, SLOWER])]
        most = largest(different.assign(noise=different["aa_ratio"].map(noise_of)), "noise")
        _, labels = shape_parts(results)
        which = " (at most " if results.aa_different > 1 else " ("
        which += f"{most['backend']} at {labels[most['configuration']]}, by {format_share(most['noise'])})"
    yield (
        f"A/A: held against themselves, {results.aa_different} of {results.aa_compared} differ{which}; chance allows"
        " 1 in 20"
    )


def picked_words(results: BenchResults, configuration: str) -> str:
    """Which backend `auto` came to; nothing where it was not measured."""
    rows = results.auto[results.auto["configuration"] == configuration]
    return (known_text(rows["picked"].iloc[0]) or "not seen") if len(rows) else ""


def mixed_rows(results: BenchResults) -> pd.DataFrame:
    """What a comparison across dtypes is made of: per shape, a backend in one dtype against another one in another.

    Columns: the size, configuration and base_configuration, base, base_dtype, new, new_dtype, total (across both),
    precision (of base by the dtype alone), algorithm (of new over base in one dtype), each with its 95 % interval as
    ``_low`` and ``_high``, NaN where base was not measured in both dtypes; total = precision × algorithm.
    """
    shape, size = results.about.shape, results.about.size
    eager = results.pairs()
    mixed = eager[eager["mixed"].astype(bool)]
    others = ~mixed["new"].isin([*results.repeats, base_backend(results)])
    across = mixed[others & (mixed["base"] != mixed["new"])]
    alone = {
        (row["configuration"], row["base"], row["base_dtype"]): row
        for row in mixed[mixed["base"] == mixed["new"]].to_dict("records")
    }
    of_shape = results.results.set_index([*shape, "dtype"])["configuration"]
    ids = of_shape[~of_shape.index.duplicated()].to_dict()
    rows = []
    for row in across.to_dict("records"):
        place = (row["configuration"], row["base"], row["base_dtype"])
        parts = {
            "total": row,
            "precision": alone.get(place),
            "algorithm": between(eager, row["configuration"], row["base"], row["new"]),
        }
        rows.append(
            {
                **{
                    name: row[name]
                    for name in (size, "configuration", "base", "base_dtype", "new", "new_dtype")
                },
                "base_configuration": ids[(*(row[name] for name in shape), row["base_dtype"])],
                **{f"{part}{end}": _value(found, end) for part, found in parts.items() for end in _ENDS},
            }
        )
    names = [size, "configuration", "base_configuration", "base", "base_dtype", "new", "new_dtype"]
    return pd.DataFrame(rows, columns=[*names, *(f"{part}{end}" for part in _PARTS for end in _ENDS)])


def _value(found: Any, end: str) -> float:
    return float("nan") if found is None else float(found[f"speedup{end}"])


def mixed_lines(results: BenchResults) -> Iterator[str]:
    """For each two backends what their comparison across dtypes hides, at the largest S."""
    rows = mixed_rows(results)
    for _, group in rows.groupby(["base", "new"], sort=False):
        known = group[group["algorithm"].notna() & group["precision"].notna()]
        row = (known if len(known) else group).sort_values(results.about.size, kind="stable").iloc[-1]
        new = backend_name(results, row["new"], [row["configuration"]])
        base = backend_name(results, row["base"], [row["base_configuration"]])
        line = (
            f"mixed dtypes: {new} {row['new_dtype']} is {format_ratio(row['total'])} as fast as {base}"
            f" {row['base_dtype']} at {results.about.short}={row[results.about.size]}"
        )
        if len(known):
            parts = [format_ratio(row[name]) for name in ("precision", "algorithm")]
            line += f": {parts[0]} from the dtype, {parts[1]} from the algorithm"
        yield line
