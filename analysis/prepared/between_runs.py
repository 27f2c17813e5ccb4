"""Counts the intervals of two sweeps of one plan that do not even touch, of 1 run each and of 3 runs each.

    python analysis/prepared/between_runs.py FOLDER

FOLDER holds r1a.bench, r1b.bench, r3a.bench and r3b.bench. Writes pairs.csv, a row per quantity, and counts.csv.
"""

from __future__ import annotations

import sys
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
    rows = []
    for runs in (1, 3):
        both = [quantities(read_bench_results(folder / f"r{runs}{which}.bench")) for which in "ab"]
        key = ["of", "kind", "configuration", "backend", "base", "new"]
        rows.append(both[0].merge(both[1], on=key, suffixes=("_a", "_b"), validate="1:1").assign(runs=runs))
    pairs = pd.concat(rows, ignore_index=True)
    pairs["given"] = pairs["low_a"].notna() & pairs["low_b"].notna()
    apart = (pairs["high_a"] < pairs["low_b"]) | (pairs["high_b"] < pairs["low_a"])
    pairs["disjoint"] = pairs["given"] & apart
    pairs["moved"] = (pairs["value_b"] / pairs["value_a"]).where(
        pairs["value_b"] > pairs["value_a"], pairs["value_a"] / pairs["value_b"]
    ) - 1
    pairs["width"] = (pairs["high_a"] - pairs["low_a"]) / 2 / pairs["value_a"]
    counts = pairs.groupby(["runs", "of", "kind"]).agg(
        pairs=("given", "size"),
        intervals=("given", "sum"),
        disjoint=("disjoint", "sum"),
        median_moved=("moved", "median"),
        most_moved=("moved", "max"),
        median_half_width=("width", "median"),
    )
    order = ["runs", "of", "kind", "configuration", "backend", "base", "new", "value_a", "low_a", "high_a"]
    order += ["value_b", "low_b", "high_b", "disjoint"]
    pairs[order].to_csv("pairs.csv", index=False, float_format="%.6g")
    counts.round(5).to_csv("counts.csv", float_format="%.4g")
    print(counts.to_string(float_format=lambda value: f"{value:.4f}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
