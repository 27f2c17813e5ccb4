"""Counts the intervals of sweeps of one plan that do not even touch, of one run each and of three runs each.

    python analysis/between-runs/count.py

Takes each pair of the sweeps beside it, such as three-1a and three-2b: the second of three runs on another machine than
the first. Writes counts.csv; with --pairs also pairs.csv, a row per quantity of a pair.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import pandas as pd

from nsysprof.bench.results import BenchResults, read_bench_results

RATIO = ["configuration", "kind", "base", "new"]
MEDIAN = ["configuration", "kind", "backend"]


def quantities(results: BenchResults) -> pd.DataFrame:
    """The median of each point and the speed-up of each pair with their intervals, eager and as a graph."""
    ratios = results.comparisons[[*RATIO, "speedup", "speedup_low", "speedup_high"]]
    ratios = ratios.set_axis([*RATIO, "value", "low", "high"], axis=1)
    medians = []
    for kind, prefix in (("eager", ""), ("graph", "graph_")):
        columns = [f"{prefix}{name}" for name in ("median_ns", "low_ns", "high_ns")]
        found = results.results[["configuration", "backend", *columns]]
        found = found.set_axis(["configuration", "backend", "value", "low", "high"], axis=1)
        medians.append(found.assign(kind=kind))
    every = [ratios.assign(of="ratio"), pd.concat(medians).assign(of="median")]
    return pd.concat(every, ignore_index=True).fillna(dict.fromkeys(("backend", "base", "new"), ""))


def main(folder: Path) -> None:
    """Count, and write the tables."""
    key = ["of", "kind", "configuration", "backend", "base", "new"]
    rows = []
    for runs in ("one", "three"):
        sweeps = {path.name: quantities(read_bench_results(path)) for path in sorted(folder.glob(f"{runs}-*"))}
        for (first, a), (second, b) in combinations(sweeps.items(), 2):
            both = a.merge(b, on=key, suffixes=("_a", "_b"), validate="1:1")
            machine = "same" if first[-2] == second[-2] else "another"
            rows.append(both.assign(runs=runs, machine=machine, a=first, b=second))
    pairs = pd.concat(rows, ignore_index=True)
    pairs["given"] = pairs["low_a"].notna() & pairs["low_b"].notna()
    apart = (pairs["high_a"] < pairs["low_b"]) | (pairs["high_b"] < pairs["low_a"])
    pairs["disjoint"] = pairs["given"] & apart
    ratio = pairs["value_b"] / pairs["value_a"]
    pairs["moved"] = ratio.where(ratio > 1, 1 / ratio) - 1
    pairs["width"] = (pairs["high_a"] - pairs["low_a"]) / 2 / pairs["value_a"]
    counts = pairs.groupby(["runs", "machine", "of", "kind"]).agg(
        pairs=("given", "size"),
        intervals=("given", "sum"),
        disjoint=("disjoint", "sum"),
        median_moved=("moved", "median"),
        most_moved=("moved", "max"),
        median_half_width=("width", "median"),
    )
    order = ["a", "b", *key, "value_a", "low_a", "high_a", "value_b", "low_b", "high_b", "disjoint"]
    if sys.argv[1:] == ["--pairs"]:
        pairs[order].to_csv(folder / "pairs.csv", index=False, float_format="%.6g")
    counts.round(5).to_csv(folder / "counts.csv", float_format="%.4g")
    sys.stdout.write(counts.to_string(float_format=lambda value: f"{value:.4f}") + "\n")


if __name__ == "__main__":
    main(Path(__file__).parent)
