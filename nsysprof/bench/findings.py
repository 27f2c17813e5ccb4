"""The findings of a benchmark as sentences, for terminal and report."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from nsysprof.bench import words
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import CONSTANT, FEW_POINTS, LEVEL, NO_SINGLE_POWER, UNSURE, is_named
from nsysprof.bench.words import Row
from nsysprof.core.text import join_words, plural
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.formats.workload import Described
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES, noise_of

_LEAST_SHARE_OF_LAUNCHING = 0.1
_MUCH = 1.1  # of a dtype alone: what it does beyond is worth a sentence
LAUNCHES = "launches"
_WORDS = {"compute": "compute-bound", "memory": "memory-bound"}
_ENDS = ("", "_low", "_high")
_PARTS = ("total", "precision", "algorithm")


def bench_findings(results: BenchResults) -> Iterator[str]:
    """Yield findings: fastest backends by size, memory growth, `auto`'s choice, effects of dtypes and launches, A/A."""
    yield from _crossovers(results)
    yield from _memory(results)
    yield from _auto(results)
    yield from _mixed(results)
    yield from _launches(results)
    yield from limit_findings(results)
    yield from _aa(results)


def _crossovers(results: BenchResults) -> Iterator[str]:
    base, size = results.base, results.about.size
    rows = results.crossovers[results.crossovers["kind"] == "eager"]
    rows = rows[(rows["loser"] == base) | (rows["winner"] == base)]
    rows = results.own(results.own(rows, "winner"), "loser")
    rows = rows[rows[f"first_{size}"] < rows[f"last_{size}"]]
    several = [name for name in ("sweep", "dtype") if rows[name].nunique() > 1]
    for row in rows.to_dict("records"):
        inside = words.configurations_of(results, row["sweep"], row["dtype"])
        names = {name: results.backend_name(row[name], inside) for name in ("winner", "loser")}
        where = " ".join(str(row[name]) for name in several)
        ends = f" ({words.ends_words(results, row)})"
        yield _crossover_words({**row, **names}, results.about, ends) + (f" [{where}]" if where else "")


def _crossover_words(row: Row, about: Described, ends: str) -> str:
    """`flash beats math from S=512 on (1.1x at S=128, 30x at S=4096)`."""
    s = about.short
    last, start, crossing = (row[f"{place}_{about.size}"] for place in ("last", "from", "crossing"))
    if row["status"] in (LEVEL, UNSURE):
        return f"{row['winner']} and {row['loser']}: {row['status']} at {s}={last}{ends}"
    who = f"{row['winner']} beats {row['loser']}"
    if row["status"] == "everywhere":
        return f"{who} at every {s}{ends}"
    near = "" if math.isnan(crossing) else f", the lines cross near {s}={crossing:.0f}"
    return f"{who} from {s}={start:.0f} on{ends}{near}"


def _memory(results: BenchResults) -> Iterator[str]:
    """State how the memory of a call beyond inputs and outputs grows with S."""
    about = results.about
    memory = results.own(results.exponents[results.exponents["metric"] == "temporary memory"])
    several, sweeps = memory["dtype"].nunique() > 1, memory["sweep"].nunique() > 1
    for sweep in [each for each in results.sweeps if each.axis == about.size]:
        where = f" [{sweep.fixed}]" if sweeps else ""
        part = results.rows_of(sweep)
        for growth, group in memory[memory["sweep"] == sweep.fixed].groupby("growth", sort=False):
            rows = group.to_dict("records")
            names = [f"{row['backend']}{' ' + row['dtype'] if several else ''}" for row in rows]
            yield _growth_words(str(growth), names, rows, part, about) + where


def _growth_words(growth: str, names: Sequence[str], rows: Sequence[Row], part: pd.DataFrame, about: Described) -> str:
    """The sentence about the backends whose temporary memory has the same growth; ``part`` has their rows."""
    s = about.short
    exponents = ", ".join(f"{name} {words.exponent_words(row, s)}" for name, row in zip(names, rows, strict=True))
    if growth == CONSTANT:
        return "temporary memory is constant: " + _each(names, [_sizes(part, row, about, 1) for row in rows])
    if growth == FEW_POINTS:
        return f"temporary memory growth, from only two sizes (too few for a fit): {exponents}"
    if is_named(growth):
        return f"temporary memory grows {growth}: {exponents}"
    if growth.startswith(NO_SINGLE_POWER):
        sizes = [f"{_sizes(part, row, about, 2)}, {s}^{row['last_exponent']:.1f} in the last step" for row in rows]
        return f"temporary memory follows {NO_SINGLE_POWER} of {s}: {_each(names, sizes)}"
    return f"temporary memory growth is {growth}: {exponents}"


def _each(names: Sequence[str], details: Sequence[str]) -> str:
    return ", ".join(f"{name} ({detail})" for name, detail in zip(names, details, strict=True))


def _sizes(part: pd.DataFrame, row: Row, about: Described, ends: int) -> str:
    """`272 B`, or `4.09 MiB at S=1024, 64.0 KiB at S=2048 and 1.00 MiB at S=32768`: first, smallest and last."""
    own = words.where(part, backend=row["backend"], dtype=row["dtype"])
    own = own[own["temporary_bytes"].notna()].sort_values(about.size)
    if ends == 1:
        return format_bytes(own["temporary_bytes"].iloc[-1])
    places = sorted({0, int(np.argmin(own["temporary_bytes"].to_numpy(np.int64))), len(own) - 1})
    sizes, at = own["temporary_bytes"].iloc[places], own[about.size].iloc[places]
    pairs = zip(sizes, at, strict=True)
    return join_words([f"{format_bytes(size)} at {about.short}={value}" for size, value in pairs])


def _auto(results: BenchResults) -> Iterator[str]:
    """State whether PyTorch's own choice is the best, with and without launches, and at which shapes it is not."""
    auto = results.auto[results.auto["best"].notna()]
    if auto.empty:
        return
    parts = [_auto_and_best(results, auto, "")]
    if len(known := auto[auto["graph_verdict"].notna()]):
        parts.append(f"excluding launches {_auto_and_best(results, known, 'graph_')}")
    yield f"auto vs. the best other backend: {'; '.join(parts)}"
    if not auto["equivalent"].all():
        yield f"auto's output is outside the tolerance at {plural(int((~auto['equivalent']).sum()), 'shape')}"


def _auto_and_best(results: BenchResults, auto: pd.DataFrame, prefix: str) -> str:
    """Count the shapes at which `auto` is as fast as the best other backend, faster, or slower, and by how much."""
    verdict = auto[f"{prefix}verdict"]
    behind = auto[verdict == FASTER]
    counts = {
        LEVEL: int((verdict == NO_CLEAR_CHANGE).sum()),
        UNSURE: int((verdict == TOO_FEW_SAMPLES).sum()),
        "faster": int((verdict == SLOWER).sum()),
        "slower": len(behind),
    }
    parts = [f"{what} at {_of(count, len(auto))}" for what, count in counts.items() if count]
    if len(behind):
        worst = behind.sort_values(f"{prefix}speedup").iloc[-1]
        parts[-1] += (
            f" (at worst {results.labels[worst['configuration']]}, where {worst[f'{prefix}best']} is"
            f" {words.ratio_cell(worst, f'{prefix}speedup')} as fast)"
        )
    return ", ".join(parts)


def _of(count: int, total: int) -> str:
    """`1 of 3 shapes`, `all 3 shapes`, `the only shape`."""
    if count < total:
        return f"{count} of {plural(total, 'shape')}"
    return f"all {plural(total, 'shape')}" if total > 1 else "the only shape"


def _launches(results: BenchResults) -> Iterator[str]:
    """Name calls that mostly launch, the speed-up without launches, and graphs that are slower than the call."""
    frame = results.own(results.results[results.results["graph_median_ns"].notna()])
    if frame.empty:
        return
    worst = words.largest(frame.assign(hidden=1 - frame["graph_median_ns"] / frame["median_ns"]), "hidden")
    if worst["hidden"] < _LEAST_SHARE_OF_LAUNCHING:
        yield f"launch overhead: at most {format_share(max(worst['hidden'], 0))} of call time"
    else:
        name = results.who(worst)
        where = results.labels[worst["configuration"]]
        yield f"launch overhead: {format_share(worst['hidden'])} of a call of {name} at {where}{_moved(results)}"
    over = frame["graph_median_ns"] / frame["median_ns"] - 1
    slower = frame[(frame["graph_low_ns"] > frame["high_ns"]) & (over >= results.rules.least_effect)]
    if len(slower):
        most = words.largest(slower.assign(over=over), "over")
        yield (
            f"CUDA graphs: replay is slower than the eager call at {len(slower)} of {len(frame)} points "
            f"(worst: {most['backend']} at {results.labels[most['configuration']]}, "
            f"{format_share(most['over'])} longer)"
        )


def _moved(results: BenchResults) -> str:
    """The speed-up that launches change most: `; flash is 7.6x as fast as math including launches, …`."""
    base = results.base
    both = results.own(results.comparisons[results.comparisons["base"] == base], "new")
    both = both[both["verdict"].isin([FASTER, SLOWER]) & ~both["mixed"]]
    eager, graph = (both[both["kind"] == kind] for kind in ("eager", "graph"))
    pairs = eager.merge(graph, on=["configuration", "new"], suffixes=("", "_graph"), validate="one_to_one")
    if pairs.empty:
        return ""
    pair = words.largest(pairs.assign(moved=np.abs(np.log(pairs["speedup"] / pairs["speedup_graph"]))), "moved")
    return (
        f"; {results.who(pair, 'new')} is {format_ratio(pair['speedup'])} as fast as"
        f" {base} including launches, {format_ratio(pair['speedup_graph'])} excluding them,"
        f" at {results.labels[pair['configuration']]}"
    )


def _aa(results: BenchResults) -> Iterator[str]:
    """Count the backends that differ from themselves, and name the backend with the largest difference."""
    if not results.aa_compared:
        return
    which = ""
    if results.aa_different:
        different = results.results[results.results["aa_verdict"].isin([FASTER, SLOWER])]
        most = words.largest(different.assign(noise=different["aa_ratio"].map(noise_of)), "noise")
        at_most = "at most " if results.aa_different > 1 else ""
        where = results.labels[most["configuration"]]
        which = f" ({at_most}{most['backend']} at {where}, by {format_share(most['noise'])})"
    yield f"A/A: {words.aa_words(results, which)}; 1 in 20 expected by chance"


def priorities(results: BenchResults) -> pd.DataFrame:
    """Return a row per shape whose limits are known; the shape with the largest potential gain is first.

    ``backend`` is the fastest, ``now_ns`` its latency (without launches if known), ``least_ns`` the lower bound from
    the GPU's peaks (`results.csv`), ``launching_ns`` the launch time of a call. ``first`` is the larger of two gaps
    (`launches`, or the limiting resource), and ``gain_ns`` is the size of this gap.
    """
    known = results.own(results.results[results.results["least_ns"].notna() & (results.results["n"] > 0)])
    now = known["graph_median_ns"].fillna(known["median_ns"])
    known = known.assign(now_ns=now, launching_ns=(known["median_ns"] - now).clip(lower=0))
    best = known.sort_values("now_ns", kind="stable").drop_duplicates("configuration")
    above = (best["now_ns"] - best["least_ns"]).clip(lower=0)
    launching = best["launching_ns"] > above
    best = best.assign(
        first=np.where(launching, LAUNCHES, best["bound"]), gain_ns=np.maximum(above, best["launching_ns"])
    )
    return best.sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)


def limit_findings(results: BenchResults) -> Iterator[str]:
    """Yield the number of shapes per limit, and the shape with the largest potential; empty if no peak is known."""
    rows = priorities(results)
    if rows.empty:
        return
    parts = [
        f"{plural(len(group), 'shape')} {_WORDS[str(bound)]} by {' to '.join(dict.fromkeys(map(format_ratio, by)))}"
        for bound, group in rows.groupby("bound", sort=False)
        if (by := (group["bound_by"].min(), group["bound_by"].max()))
    ]
    yield f"limits: {join_words(parts)}; first: {first_words(results, words.largest(rows, 'gain_ns'))}"


def first_words(results: BenchResults, row: Row) -> str:
    """Name the largest gap: `launches of cudnn at S=1024, 24.3 µs per 40.4 µs call`, or the limiting resource."""
    where = f"{row['backend']} at {results.labels[row['configuration']]}"
    if row["first"] == LAUNCHES:
        return f"launches of {where}, {format_ns(row['gain_ns'])} per {format_ns(row['median_ns'])} call"
    reached = format_share(row["least_ns"] / row["now_ns"])
    what = "arithmetic" if row["first"] == "compute" else "memory traffic"
    return f"{what} of {where} ({reached} of peak, {format_ns(row['gain_ns'])} above the lower bound)"


def mixed_rows(results: BenchResults) -> pd.DataFrame:
    """Split each speed-up between backends of different dtypes into the effects of dtype and algorithm; there is a row
    per shape.

    Columns: the size, base, new, ``from`` and ``to`` (names of base and new with dtypes), and the speed-ups total,
    precision and algorithm, with 95 % intervals (``_low``, ``_high``). Total = precision × algorithm: precision
    compares base in both dtypes, and algorithm compares new with base in one dtype. Unmeasured parts are NaN.
    """
    shape, size = results.about.shape, results.about.size
    mixed = words.where(results.comparisons, kind="eager", mixed=True)
    alike = mixed["base"] == mixed["new"]
    by_dtype = ["configuration", "base", "base_dtype"]
    alone = {tuple(row[name] for name in by_dtype): row for row in mixed[alike].to_dict("records")}
    of_shape = results.results.set_index([*shape, "dtype"])["configuration"]
    ids = of_shape[~of_shape.index.duplicated()].to_dict()
    rows = []
    for row in results.own(mixed[~alike & (mixed["new"] != results.base)], "new").to_dict("records"):
        base_at = ids[(*(row[name] for name in shape), row["base_dtype"])]
        parts: dict[str, Row] = {
            "total": row,
            "precision": alone.get(tuple(row[name] for name in by_dtype), {}),
            "algorithm": results.speedup(row["configuration"], row["base"], row["new"]) or {},
        }
        ratios = {
            f"{part}{end}": float(found.get(f"speedup{end}", math.nan))
            for part, found in parts.items()
            for end in _ENDS
        }
        old = f"{results.backend_name(row['base'], [base_at])} {row['base_dtype']}"
        new = f"{results.who(row, 'new')} {row['new_dtype']}"
        rows.append({size: row[size], "base": row["base"], "new": row["new"], "from": old, "to": new, **ratios})
    columns = [size, "base", "new", "from", "to", *(f"{part}{end}" for part in _PARTS for end in _ENDS)]
    return pd.DataFrame(rows, columns=columns)


def _mixed(results: BenchResults) -> Iterator[str]:
    """For each pair of backends, the part of the speed-up at the largest S that is due to the dtype, if large."""
    about = results.about
    for _, group in mixed_rows(results).groupby(["base", "new"], sort=False):
        known = group[group["algorithm"].notna() & group["precision"].notna()]
        row = (known if len(known) else group).sort_values(about.size, kind="stable").iloc[-1]
        total, precision, algorithm = (format_ratio(row[name]) for name in _PARTS)
        line = f"mixed dtypes: {row['to']} is {total} as fast as {row['from']} at {about.short}={row[about.size]}"
        if not len(known):
            yield line
        elif abs(math.log(row["precision"])) >= math.log(_MUCH):
            yield f"{line}: {precision} from the dtype, {algorithm} from the algorithm"
