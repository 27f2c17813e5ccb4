"""What limits each shape: memory or arithmetic, by how much, and what there is to gain first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.results import BenchResults
from nsysprof.bench.words import largest
from nsysprof.core.text import join_words, plural
from nsysprof.core.units import format_ns, format_ratio, format_share

LAUNCHES = "launches"
_WORDS = {"compute": "compute-bound", "memory": "memory-bound"}


def priorities(results: BenchResults) -> pd.DataFrame:
    """A row per shape whose limits are known, the one with most to gain first.

    ``backend`` is the fastest, ``now_ns`` its latency without launches where that is known, ``least_ns`` what no
    backend can beat by the peaks of the GPU (`results.csv`), ``launching_ns`` the part of a call that is launching.
    ``first`` is the larger of both gaps: `launches`, or what the shape is bound by; ``gain_ns`` is that gap.
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
    """How many shapes are bound by what, and where there is most to gain; nothing where no peak is known."""
    rows = priorities(results)
    if rows.empty:
        return
    parts = []
    for bound, group in rows.groupby("bound", sort=False):
        by = [format_ratio(group["bound_by"].min()), format_ratio(group["bound_by"].max())]
        much = by[0] if by[0] == by[1] else f"{by[0]} to {by[1]}"
        parts.append(f"{plural(len(group), 'shape')} {_WORDS[str(bound)]} by {much}")
    yield f"limits: {join_words(parts)}; first: {first_words(results, largest(rows, 'gain_ns'))}"


def first_words(results: BenchResults, row: dict[Any, Any]) -> str:
    """`launches of cudnn at S=1024, 24.3 µs of a call of 40.4 µs`, or how far a kernel is from its limit."""
    where = f"{row['backend']} at {results.labels[row['configuration']]}"
    if row["first"] == LAUNCHES:
        return f"launches of {where}, {format_ns(row['gain_ns'])} of a call of {format_ns(row['median_ns'])}"
    reached = format_share(row["least_ns"] / row["now_ns"])
    what = "arithmetic" if row["first"] == "compute" else "memory traffic"
    return f"{what} of {where}, at {reached} of its limit, {format_ns(row['gain_ns'])} above it"
