"""Which backend is faster: every pair of backends on every configuration, judged together as one family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.bench.samples import BenchPoint, BenchSamples
from nsysprof.bench.tables import COMPARISONS, columns_of
from nsysprof.statistics.contrast import (
    FASTER,
    NO_CLEAR_CHANGE,
    SLOWER,
    Contrast,
    Rules,
    contrast,
    judge,
    noise_of,
)
from nsysprof.statistics.distributions import Floats

__all__ = ["AUTO", "auto_frame", "comparison_frame", "decision_frame"]

AUTO = "auto"  # no backend of its own: whatever PyTorch picks

_Place = tuple[str, str]  # configuration and backend


@dataclass(frozen=True)
class _Pair:
    """Two points to compare by one kind of samples."""

    base: BenchPoint
    new: BenchPoint
    kind: str

    @property
    def sides(self) -> tuple[Floats, Floats]:
        return _samples_of(self.base, self.kind), _samples_of(self.new, self.kind)

    @property
    def places(self) -> tuple[_Place, _Place]:
        """Configuration and backend of either side."""
        return (self.base.shape.id, self.base.backend), (self.new.shape.id, self.new.backend)


def comparison_frame(samples: BenchSamples, results: pd.DataFrame, rules: Rules) -> pd.DataFrame:
    """A row per pair of backends, configuration and ``kind`` ("eager", "graph"): `COMPARISONS`.

    ``new`` against ``base``: ``speedup`` is the median of base over that of new, with its 95 % interval;
    ``shift_ns`` the Hodges-Lehmann shift, ``delta`` Cliff's delta, ``p`` and Holm's ``adjusted_p`` over all pairs of
    the kind; ``verdict`` (faster, slower, no clear change, too few samples) is about new. ``base_aa`` and ``new_aa``
    are the verdicts on each against itself. ``memory_ratio``: peak memory of base over that of new. ``least_effect``:
    what a difference must come to, by the rules or, where that is more, by what either side differs from itself (which
    is measured for eager calls alone). Pairs are of one dtype, or, where a shape was run in several, also of two: these
    are ``mixed``, and say nothing of the algorithm alone.
    """
    places = list(zip(results["configuration"], results["backend"], strict=True))
    aa = dict(zip(places, results["aa_verdict"], strict=True))
    noise = dict(zip(places, results["aa_ratio"].map(noise_of), strict=True))
    rows = []
    for kind in ("eager", "graph"):
        pairs = [pair for pair in _pairs(samples, kind) if all(len(side) for side in pair.sides)]
        found = [contrast(*pair.sides, rules, names=(pair.base.name, pair.new.name)) for pair in pairs]
        widened = [
            rules.widened(*(noise[place] for place in pair.places)) if kind == "eager" else rules
            for pair in pairs
        ]
        for pair, one, its_rules in zip(pairs, judge(found, widened), widened, strict=True):
            rows.append({**_row(pair, one, aa), "least_effect": its_rules.least_effect})
    return pd.DataFrame(rows, columns=columns_of(COMPARISONS, samples.described))


def _samples_of(point: BenchPoint, kind: str) -> Floats:
    return point.graph_latency_ns if kind == "graph" else point.latency_ns


def _pairs(samples: BenchSamples, kind: str) -> Iterator[_Pair]:
    """Pairs of points of the same shape, in the order of the file."""
    shapes: dict[tuple[object, ...], list[BenchPoint]] = {}
    for point in samples.measured:
        key = (*point.shape.sizes.values(), *point.shape.flags.values())
        shapes.setdefault(key, []).append(point)
    for points in shapes.values():
        for base, new in combinations(points, 2):
            yield _Pair(base, new, kind)


def _row(pair: _Pair, one: Contrast, aa: Mapping[_Place, str | None]) -> dict[str, Any]:
    base, new = pair.base, pair.new
    before, after = base.memory["peak"], new.memory["peak"]
    return {
        "configuration": new.shape.id,
        **new.shape.sizes,
        **new.shape.flags,
        "base": base.backend,
        "base_dtype": base.shape.dtype,
        "new": new.backend,
        "new_dtype": new.shape.dtype,
        "mixed": base.shape.dtype != new.shape.dtype,
        "kind": pair.kind,
        "base_n": one.base_n,
        "new_n": one.new_n,
        "base_ns": one.base_median,
        "new_ns": one.new_median,
        "speedup": 1 / one.ratio,
        "speedup_low": 1 / one.ratio_interval.high,
        "speedup_high": 1 / one.ratio_interval.low,
        "shift_ns": one.shift,
        "shift_low_ns": one.shift_interval.low,
        "shift_high_ns": one.shift_interval.high,
        "delta": one.delta,
        "delta_low": one.delta_interval.low,
        "delta_high": one.delta_interval.high,
        "delta_word": one.delta_word,
        "p": one.p,
        "adjusted_p": one.adjusted_p,
        "family": one.family,
        "test": one.test,
        "verdict": one.verdict,
        "reason": one.reason,
        **dict(zip(("base_aa", "new_aa"), (aa[place] for place in pair.places), strict=True)),
        "memory_ratio": before / after if before and after else float("nan"),
    }


def between(comparisons: pd.DataFrame, configuration: str, base: str, new: str) -> dict[str, Any] | None:
    """The row of two backends on one configuration, turned round where they were compared the other way.

    Only what turns round without loss is in it: speedup with its interval, verdict and A/A verdicts. ``comparisons``
    are of one kind, mixed ones are not looked at. None where they were not compared.
    """
    same = comparisons[(comparisons["configuration"] == configuration) & ~comparisons["mixed"]]
    for first, second, turned in ((base, new, False), (new, base, True)):
        rows = same[(same["base"] == first) & (same["new"] == second)]
        if len(rows):
            row = rows.iloc[0]
            if not turned:
                return {name: row[name] for name in ("speedup", "speedup_low", "speedup_high", "verdict")}
            return {
                "speedup": 1 / row["speedup"],
                "speedup_low": 1 / row["speedup_high"],
                "speedup_high": 1 / row["speedup_low"],
                "verdict": _TURNED.get(row["verdict"], row["verdict"]),
            }
    return None


_TURNED = {FASTER: SLOWER, SLOWER: FASTER}


def repeating(samples: BenchSamples, results: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows show again what another one shows: `auto`, where what it picked was measured under its own name."""
    known = results[results["median_ns"].notna()]
    named = set(zip(known["configuration"], known["backend"], strict=True))
    found = [
        backend == AUTO and (configuration, samples.auto.get(configuration)) in named
        for configuration, backend in zip(results["configuration"], results["backend"], strict=True)
    ]
    return np.array(found, np.bool_)


def decision_frame(samples: BenchSamples, results: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """Which backend to take at which shape: a row per configuration and kind ("eager", "graph").

    ``best`` has the smallest median; ``as_good`` are those that nobody can tell from it ("no clear change"), ``unsure``
    those with too few samples to tell; ``decision`` is best with as_good. ``runner_up`` is the fastest that is clearly
    slower, and ``margin`` how many times faster best is, with its interval. ``least_memory``: whose peak is lowest, of
    all that run. `auto` takes no part where what it picked was measured under its own name.
    """
    rows, about = [], samples.described
    shape = ["configuration", *about.sizes, "dtype", *about.flag_names]
    counts = ~repeating(samples, results)
    for kind, column in (("eager", "median_ns"), ("graph", "graph_median_ns")):
        of_kind = comparisons[comparisons["kind"] == kind]
        able = results[results[column].notna() & counts]
        for _, group in able.groupby("configuration", sort=False):
            rows.append(_decision(shape, kind, group.sort_values(column), of_kind))
    names = [*shape, "kind", "best", "as_good"]
    names += ["unsure", "decision", "runner_up", "margin", "margin_low", "margin_high", "least_memory"]
    return pd.DataFrame(rows, columns=names)


def _decision(shape: list[str], kind: str, group: pd.DataFrame, comparisons: pd.DataFrame) -> dict[str, Any]:
    best, *others = group["backend"]
    first = group.iloc[0]
    found = {other: between(comparisons, first["configuration"], other, best) for other in others}
    as_good = [name for name, row in found.items() if row and row["verdict"] == NO_CLEAR_CHANGE]
    behind = [name for name, row in found.items() if row and row["verdict"] == FASTER]
    margin = (found[behind[0]] if behind else None) or {}
    peaks = group[group["peak_bytes"].notna()].sort_values("peak_bytes", kind="stable")
    return {
        **{name: first[name] for name in shape},
        "kind": kind,
        "best": best,
        "as_good": " ".join(as_good),
        "unsure": " ".join(name for name in others if name not in as_good and name not in behind),
        "decision": " or ".join([best, *as_good]),
        "runner_up": behind[0] if behind else None,
        "margin": margin.get("speedup", float("nan")),
        "margin_low": margin.get("speedup_low", float("nan")),
        "margin_high": margin.get("speedup_high", float("nan")),
        "least_memory": peaks["backend"].iloc[0] if len(peaks) else None,
    }


def auto_frame(samples: BenchSamples, results: pd.DataFrame, comparisons: pd.DataFrame) -> pd.DataFrame:
    """What PyTorch picked by itself, and what it costs: a row per configuration that `auto` was measured on.

    ``picked``: the backend that was seen to run, None where it was not seen. ``best``: the fastest of those asked for
    by name; ``speedup`` of best over auto with its interval, ``verdict`` about best, None where auto is alone. The same
    with ``graph_``: without launches. ``error``, ``equivalent``: of auto's output against float64, and whether it is
    within the tolerance.
    """
    rows, sweep = [], samples.described.size
    for row in results[(results["backend"] == AUTO) & results["median_ns"].notna()].to_dict("records"):
        rows.append(
            {
                **{
                    name: row[name]
                    for name in ("configuration", sweep, "dtype", "median_ns", "graph_median_ns")
                },
                "picked": samples.auto.get(row["configuration"]),
                **_best_other(row, results, comparisons, "eager", ""),
                **_best_other(row, results, comparisons, "graph", "graph_"),
                "error": row["error"],
                "equivalent": bool(row["error_of_tolerance"] <= 1),
            }
        )
    names = ["best", "best_ns", *(f"speedup{end}" for end in ("", "_low", "_high")), "verdict"]
    columns = ["configuration", sweep, "dtype", "picked", "median_ns", "graph_median_ns"]
    columns += [*names, *(f"graph_{name}" for name in names), "error", "equivalent"]
    return pd.DataFrame(rows, columns=columns)


def _best_other(
    row: Mapping[Any, Any], results: pd.DataFrame, comparisons: pd.DataFrame, kind: str, prefix: str
) -> dict[str, Any]:
    """The fastest backend asked for by name where `auto` has this row, held against it; names begin with ``prefix``."""
    column = f"{prefix}median_ns"
    same = results[(results["configuration"] == row["configuration"]) & (results["backend"] != AUTO)]
    named = same[same[column].notna()].sort_values(column)
    best = str(named["backend"].iloc[0]) if len(named) and not np.isnan(row[column]) else None
    of_kind = comparisons[comparisons["kind"] == kind]
    found = (between(of_kind, row["configuration"], AUTO, best) if best else None) or {}
    return {
        f"{prefix}best": best,
        f"{prefix}best_ns": float(named[column].iloc[0]) if best else float("nan"),
        **{
            f"{prefix}{name}": found.get(name, float("nan"))
            for name in ("speedup", "speedup_low", "speedup_high")
        },
        f"{prefix}verdict": found.get("verdict"),
    }
