"""Compare two saved runs of a benchmark: the changes and their significance."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from nsysprof.bench.rows import median_of, over_runs_of
from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import BenchPoint, BenchSamples, Kind
from nsysprof.results.files import records
from nsysprof.statistics.contrast import DEFAULT_RULES, NO_CLEAR_CHANGE, SLOWER, Rules, contrasts_over_runs, noise_of
from nsysprof.statistics.runs import WITHIN, scope_of
from nsysprof.statistics.summary import summarize

DIFF_SCHEMA = "nsysprof-bench-diff/1"
MORE, LESS = "more", "less"
# What two runs must have in common to be about the same thing.
_SAME = ("workload", "device", "backward")
MAX_DIFFERENCES = 6
_METRICS = ("latency", "graph latency", "peak memory")
_LISTED = ("differences", "only_before", "only_after", "now_wrong")
_OF_CONTRAST = ("delta", "delta_word", "p", "adjusted_p", "verdict", "reason", "detectable")
_KINDS: Mapping[str, Kind] = {"latency": "eager", "graph latency": "graph"}

_Place = tuple[str, str]  # configuration and backend
_Points = Mapping[_Place, BenchPoint]
_T = TypeVar("_T")
_Both: TypeAlias = tuple[_T, _T]  # before and after


@dataclass(frozen=True)
class BenchDiff:
    """``rows``: a row per configuration, backend and metric in both runs.

    Metrics are "latency" and "graph latency" (ns; verdicts of `statistics.contrast`), and "peak memory" (bytes). The
    verdict on memory is "more", "less" or "no clear change" and depends only on the smallest meaningful effect, because
    memory does not vary. ``change`` is after ÷ before − 1, with its 95 % interval; ``overlap``: whether the intervals
    of before and after overlap; ``delta``: Cliff's delta; ``detectable``: the smallest detectable change; ``scope``:
    whether the intervals apply within one run or over several runs.

    ``differences``: differences between the environments; ``only_before`` and ``only_after``: points in one run only,
    with the status of unmeasured points; ``now_wrong``: points that were measured before and give wrong results after.
    """

    before: BenchSamples
    after: BenchSamples
    rules: Rules
    rows: pd.DataFrame
    differences: tuple[str, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    now_wrong: tuple[str, ...]

    @property
    def runs(self) -> int:
        """The smaller of the numbers of runs before and after the change."""
        return min(self.before.runs, self.after.runs)


def compare_runs(
    before: BenchSamples, after: BenchSamples, rules: Rules = DEFAULT_RULES, *, unlike: bool = False
) -> BenchDiff:
    """The `BenchDiff` of two runs.

    Raises `NsysprofError` if the runs have different settings or no point in common, or (unless ``unlike``
    allows it) if machine, software or method differ; the message names the difference.
    """
    for name in _SAME:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            raise NsysprofError(
                f"{before.path} and {after.path} are not comparable: {name} is {old} and {new}",
                "compare two runs of one command",
            )
    differences = tuple(environment_differences(before, after))
    if differences and not unlike:
        more = len(differences) - MAX_DIFFERENCES
        named = "; ".join(differences[:MAX_DIFFERENCES]) + (f", and {more} more" if more > 0 else "")
        hint = "--unlike compares these runs anyway"
        raise NsysprofError(f"{before.path} and {after.path} are not comparable: {named}", hint)
    old, new = (_by_place(samples) for samples in (before, after))
    common = [place for place in old if place in new]
    if not common:
        raise NsysprofError(
            f"{before.path} and {after.path} have no measured point in common",
            "compare runs of the same shapes and backends",
        )
    return BenchDiff(
        before=before,
        after=after,
        rules=rules,
        rows=pd.DataFrame(_rows((before, after), (old, new), common, rules)),
        differences=differences,
        only_before=tuple(_missing(before, new, after)),
        only_after=tuple(_missing(after, old, before)),
        now_wrong=tuple(each.name for each in after.points if each.status == "wrong" and each.place in old),
    )


def diff_document(diff: BenchDiff) -> dict[str, Any]:
    """Return the diff for JSON: both files, the rows, the differences, and the points in one run only."""
    return {
        "schema": DIFF_SCHEMA,
        "before": str(diff.before.path),
        "after": str(diff.after.path),
        "rows": records(diff.rows),
        **{name: list(getattr(diff, name)) for name in _LISTED},
    }


def regressions(diff: BenchDiff, max_regress: float) -> pd.DataFrame:
    """Return the rows that became significantly worse, by more than ``max_regress`` (0.05: 5 %).

    Times from single runs are ignored, because two runs of unchanged code often differ more than the samples within a
    run.
    """
    worse = diff.rows["verdict"].isin([SLOWER, MORE]) & (diff.rows["scope"] != WITHIN)
    return diff.rows[worse & (diff.rows["change"] > max_regress)]


def environment_differences(before: BenchSamples, after: BenchSamples) -> Iterator[str]:
    """Yield the differences in environment and method: `torch 2.11.0 before, 2.12.0 after`."""
    if before.environment_hash != after.environment_hash:
        yield from _differing("", before.environment, after.environment)
    for name in ("warm_cache", "min_sample_ns", "seed"):
        old, new = before.plan.get(name), after.plan.get(name)
        if old != new:
            yield f"{name} {old} before, {new} after"
    yield from _neighbours(_by_place(before), _by_place(after))


def _neighbours(before: _Points, after: _Points) -> Iterator[str]:
    """Name backends that were interleaved with the others in one run only: launch times depend on the previous call.

    On an H200, this changed the median of short cuDNN calls by a fifth (analysis/call-order).
    """
    only: dict[str, set[str]] = {"before": set(), "after": set()}
    for place in before:
        if place not in after:
            continue
        old, new = (set(points[place].sampled_with or ()) for points in (before, after))
        only["before"] |= old - new
        only["after"] |= new - old
    for when, backends in only.items():
        if backends:
            yield f"interleaved with {', '.join(sorted(backends))} only {when}"


def _differing(where: str, old: Any, new: Any) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in dict.fromkeys([*old, *new]):
            yield from _differing(f"{where}.{name}" if where else str(name), old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _differing(f"{where}[{number}]" if len(old) > 1 else where, *pair)
    elif old != new:
        yield f"{where} {old} before, {new} after"


def _by_place(samples: BenchSamples) -> dict[_Place, BenchPoint]:
    return {point.place: point for point in samples.measured}


def _missing(samples: BenchSamples, others: _Points, other: BenchSamples) -> Iterator[str]:
    """The points that only these samples measured, with their status in the other run."""
    statuses = {point.place: point.status for point in other.points}
    for point in samples.measured:
        if point.place not in others:
            status = statuses.get(point.place)
            yield f"{point.name} ({status} in the other run)" if status else point.name


def _rows(
    samples: _Both[BenchSamples], points: _Both[_Points], common: list[_Place], rules: Rules
) -> list[dict[str, Any]]:
    old, new = points
    rows = {metric: _times(samples, points, common, metric, rules) for metric in _METRICS[:2]}
    rows[_METRICS[2]] = {
        place: _memory(before, after, rules)
        for place in common
        if (before := old[place].memory_bytes("peak")) and (after := new[place].memory_bytes("peak"))
    }
    return [
        {
            "configuration": (shape := old[place].shape).id,
            **shape.sizes,
            "dtype": shape.dtype,
            "backend": old[place].backend,
            "metric": metric,
            "overlap": not (row["before_low"] > row["after_high"] or row["after_low"] > row["before_high"]),
            **row,
        }
        for place in common
        for metric in _METRICS
        if (row := rows[metric].get(place))
    ]


def _times(
    samples: _Both[BenchSamples], points: _Both[_Points], common: list[_Place], metric: str, rules: Rules
) -> dict[_Place, dict[str, Any]]:
    """The rows of one kind of latency, judged as one family, for the points that both runs measured.

    The change of an eager call must exceed its A/A difference within either run.
    """
    names, kind = ("before", "after"), _KINDS[metric]
    pairs = {place: (points[0][place], points[1][place]) for place in common}
    pairs = {place: pair for place, pair in pairs.items() if all(len(each.samples(kind)) for each in pair)}
    widened = [rules.widened(*map(_aa_noise, pair)) if metric == _METRICS[0] else rules for pair in pairs.values()]
    contrasts = contrasts_over_runs(
        [(before.by_run(kind), after.by_run(kind)) for before, after in pairs.values()],
        widened,
        names=[names] * len(pairs),
        roundings=[
            (samples[0].rounding(before, kind), samples[1].rounding(after, kind)) for before, after in pairs.values()
        ],
        paired=False,
    )
    over = [over_runs_of(each, kind) for each in samples]
    rows = {}
    for (place, pair), one in zip(pairs.items(), contrasts, strict=True):
        ends: dict[str, Any] = {}
        for name, point, of, runs in zip(names, pair, samples, over, strict=True):
            values = point.samples(kind)
            found = median_of(summarize(values, name, step=of.step(point, kind)), runs.get(place))
            ends |= _ends(found["median_ns"], found["low_ns"], found["high_ns"], len(values), name)
        rows[place] = {
            **ends,
            "change": one.ratio - 1,
            "change_low": one.ratio_interval.low - 1 if one.sure else np.nan,
            "change_high": one.ratio_interval.high - 1 if one.sure else np.nan,
            "scope": scope_of(one.runs),
            **{name: getattr(one, name) for name in _OF_CONTRAST},
        }
    return rows


def _aa_noise(point: BenchPoint) -> float:
    """The difference between a backend's second and first set of samples; NaN without a second set."""
    if not len(point.samples("aa")):
        return np.nan
    return noise_of(float(np.median(point.samples("aa")) / np.median(point.latency_ns)))


def _ends(median: float, low: float, high: float, n: int, name: str) -> dict[str, Any]:
    return {name: median, f"{name}_low": low, f"{name}_high": high, f"{name}_n": n}


def _memory(before: int, after: int, rules: Rules) -> dict[str, Any]:
    """Memory is counted, not sampled: every change is certain, and counts if it is at least the smallest meaningful
    one.
    """
    change = after / before - 1
    clear = max(after / before, before / after) - 1 >= rules.least_effect
    return {
        **_ends(before, before, before, 1, "before"),
        **_ends(after, after, after, 1, "after"),
        **dict.fromkeys(("change", "change_low", "change_high"), change),
        "delta": float(np.sign(after - before)),
        "delta_word": "large" if after != before else "negligible",
        "p": np.nan,
        "adjusted_p": np.nan,
        "verdict": (MORE if after > before else LESS) if clear else NO_CLEAR_CHANGE,
        "reason": "counted, does not vary",
        "scope": "",
        "detectable": np.nan,
    }
