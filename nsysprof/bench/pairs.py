"""Find which backend is faster: all pairs of backends on every configuration are judged together as one family."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.tables import COMPARISONS, DECISIONS, frame_of
from nsysprof.core.arrays import Mask
from nsysprof.formats.samples import BenchPoint, BenchSamples, Kind
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, Contrast, Rules, contrasts_over_runs, noise_of
from nsysprof.statistics.runs import scope_of

AUTO = "auto"  # no backend of its own: whatever PyTorch picks
COMPARED: tuple[Kind, ...] = ("eager", "graph")

Speedups = Mapping[tuple[str, str, str, str], dict[str, Any]]
"""Speed-up of new over base, with interval and verdict, keyed by kind, configuration, base and new."""
_KEY = ("kind", "configuration", "base", "new")
_SPEEDUP = ("speedup", "speedup_low", "speedup_high")
_OF_SPEEDUP = (*_SPEEDUP, "verdict", "detectable", "delta")
_OF_CONTRAST = (
    *("base_n", "new_n", "delta", "delta_word", "p", "adjusted_p", "family", "test", "verdict", "reason"),
    "detectable",
)
_TURNED = {FASTER: SLOWER, SLOWER: FASTER}


def comparison_frame(samples: BenchSamples, results: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """Make a row of `COMPARISONS` per pair of backends, configuration and ``kind`` ("eager", "graph").

    All pairs of a kind are one family. ``least_effect`` is the value in the rules or, for eager calls, an A/A
    difference of the two backends if that is larger. A pair is any two measured points of one shape. If the shape ran
    in several dtypes, the two points may differ in dtype (``mixed``).
    """
    places = list(zip(results["configuration"], results["backend"], strict=True))
    aa = dict(zip(places, results["aa_verdict"], strict=True))
    noise = dict(zip(places, results["aa_ratio"].map(noise_of), strict=True))
    rows = []
    for kind in COMPARED:
        pairs = [pair for pair in _pairs(samples) if all(len(point.samples(kind)) for point in pair)]
        widened = [
            rules.widened(noise[base.place], noise[new.place]) if kind == "eager" else rules for base, new in pairs
        ]
        contrasts = contrasts_over_runs(
            [(base.by_run(kind), new.by_run(kind)) for base, new in pairs],
            widened,
            names=[(base.name, new.name) for base, new in pairs],
            roundings=[(samples.rounding(base, kind), samples.rounding(new, kind)) for base, new in pairs],
        )
        rows += [
            {
                **_row(base, new, one),
                **{"kind": kind, "least_effect": its_rules.least_effect},
                **{"base_aa": aa[base.place], "new_aa": aa[new.place]},
            }
            for (base, new), one, its_rules in zip(pairs, contrasts, widened, strict=True)
        ]
    return frame_of(COMPARISONS, rows, samples.described)


def _pairs(samples: BenchSamples) -> Iterator[tuple[BenchPoint, BenchPoint]]:
    """Pairs of points of the same shape, in the order of the file."""
    shapes: dict[tuple[object, ...], list[BenchPoint]] = {}
    for point in samples.measured:
        shapes.setdefault((*point.shape.sizes.values(), *point.shape.flags.values()), []).append(point)
    for points in shapes.values():
        yield from combinations(points, 2)


def _row(base: BenchPoint, new: BenchPoint, one: Contrast) -> dict[str, Any]:
    before, after = base.memory_bytes("peak"), new.memory_bytes("peak")
    return {
        "configuration": new.shape.id,
        **new.shape.sizes,
        **new.shape.flags,
        "base": base.backend,
        "base_dtype": base.shape.dtype,
        "new": new.backend,
        "new_dtype": new.shape.dtype,
        "mixed": base.shape.dtype != new.shape.dtype,
        **{name: getattr(one, name) for name in _OF_CONTRAST},
        "base_ns": one.base_median,
        "new_ns": one.new_median,
        "speedup": 1 / one.ratio,
        "speedup_low": 1 / one.ratio_interval.high if one.sure else float("nan"),
        "speedup_high": 1 / one.ratio_interval.low if one.sure else float("nan"),
        "shift_ns": one.shift,
        "shift_low_ns": one.shift_interval.low,
        "shift_high_ns": one.shift_interval.high,
        "delta_low": one.delta_interval.low,
        "delta_high": one.delta_interval.high,
        "memory_ratio": before / after if before and after else float("nan"),
        "scope": scope_of(one.runs),
    }


def speedups_of(comparisons: pd.DataFrame) -> Speedups:
    """Return the comparisons within one dtype, each in both directions."""
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    same = comparisons[~comparisons["mixed"].astype(bool)].reindex(columns=[*_KEY, *_OF_SPEEDUP])
    for row in same.to_dict("records"):
        kind, configuration, base, new = (row[name] for name in _KEY)
        one = {name: row[name] for name in _OF_SPEEDUP}
        found[kind, configuration, base, new] = one
        found[kind, configuration, new, base] = {
            **one,
            "speedup": 1 / one["speedup"],
            "speedup_low": 1 / one["speedup_high"],
            "speedup_high": 1 / one["speedup_low"],
            "verdict": _TURNED.get(one["verdict"], one["verdict"]),
            "delta": -one["delta"],
        }
    return found


def repeating(samples: BenchSamples, results: pd.DataFrame) -> Mask:
    """Mark rows that repeat another row: `auto`, if its choice was also measured by name."""
    known = results[results["median_ns"].notna()]
    named = set(zip(known["configuration"], known["backend"], strict=True))
    places = zip(results["configuration"], results["backend"], strict=True)
    return np.array([name == AUTO and (at, samples.auto.get(at)) in named for at, name in places], np.bool_)


def decision_frame(samples: BenchSamples, results: pd.DataFrame, speedups: Speedups) -> pd.DataFrame:
    """Find the backend to choose at each shape: a row of `DECISIONS` per configuration and kind ("eager", "graph").

    `auto` is left out if its choice was also measured by name.
    """
    rows, about = [], samples.described
    shape = ["configuration", *about.sizes, "dtype", *about.flag_names]
    counts = ~repeating(samples, results)
    for kind, column in (("eager", "median_ns"), ("graph", "graph_median_ns")):
        able = results[results[column].notna() & counts]
        for _, group in able.groupby("configuration", sort=False):
            first = group.sort_values(column)
            rows.append({**first[shape].iloc[0], "kind": kind, **_decision(kind, first, speedups)})
    return frame_of(DECISIONS, rows, about)


def _decision(kind: str, ordered: pd.DataFrame, speedups: Speedups) -> dict[str, Any]:
    """The decision for a configuration, whose backends are ``ordered`` by median."""
    best, *others = ordered["backend"]
    configuration = ordered["configuration"].iloc[0]
    over = {other: speedups.get((kind, configuration, other, best)) for other in others}
    as_good = [name for name, row in over.items() if row and row["verdict"] == NO_CLEAR_CHANGE]
    behind = [name for name, row in over.items() if row and row["verdict"] == FASTER]
    margin = (over[behind[0]] if behind else None) or dict.fromkeys(_SPEEDUP, float("nan"))
    peaks = ordered[ordered["peak_bytes"].notna()].sort_values("peak_bytes", kind="stable")
    return {
        "best": best,
        "as_good": " ".join(as_good),
        "unsure": " ".join(name for name in others if name not in as_good and name not in behind),
        "decision": " or ".join([best, *as_good]),
        "runner_up": behind[0] if behind else None,
        **{name.replace("speedup", "margin"): margin[name] for name in _SPEEDUP},
        "least_memory": peaks["backend"].iloc[0] if len(peaks) else None,
    }


def auto_frame(samples: BenchSamples, results: pd.DataFrame, speedups: Speedups) -> pd.DataFrame:
    """Find PyTorch's own choice and its cost: a row per configuration with a measurement of `auto`.

    ``picked``: the backend that ran, None if not observed. ``best``: the fastest backend that was measured by name;
    ``speedup``: speed-up of best over auto, with its interval; ``verdict``: the verdict on best, None if only auto was
    measured. Columns with ``graph_`` exclude launches. ``error``, ``equivalent``: the error of auto's output against
    float64, and whether this error is within the tolerance.
    """
    kept = ["configuration", samples.described.size, "dtype", "median_ns", "graph_median_ns", "error"]
    rows = [
        {
            **{name: row[name] for name in kept},
            "picked": samples.auto.get(row["configuration"]),
            **_best_other(row, results, speedups, "eager", ""),
            **_best_other(row, results, speedups, "graph", "graph_"),
            "equivalent": bool(row["error_of_tolerance"] <= 1),
        }
        for row in results[(results["backend"] == AUTO) & results["median_ns"].notna()].to_dict("records")
    ]
    best = ["best", "best_ns", *_SPEEDUP, "verdict"]
    return pd.DataFrame(rows, columns=[*kept, "picked", *best, *(f"graph_{name}" for name in best), "equivalent"])


def _best_other(
    row: Mapping[Any, Any], results: pd.DataFrame, speedups: Speedups, kind: str, prefix: str
) -> dict[str, Any]:
    """The fastest backend requested by name, compared with `auto` in this row; column names begin with ``prefix``."""
    column, configuration = f"{prefix}median_ns", row["configuration"]
    same = results[(results["configuration"] == configuration) & (results["backend"] != AUTO)]
    named = same[same[column].notna()].sort_values(column)
    best = str(named["backend"].iloc[0]) if len(named) and not np.isnan(row[column]) else None
    over = (speedups.get((kind, configuration, AUTO, best)) if best else None) or {}
    return {
        f"{prefix}best": best,
        f"{prefix}best_ns": float(named[column].iloc[0]) if best else float("nan"),
        **{f"{prefix}{name}": over.get(name, float("nan")) for name in _SPEEDUP},
        f"{prefix}verdict": over.get("verdict"),
    }
