"""Baselines: the calls of an earlier report or analysis, and whether ranges have become slower since then."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.check.budget import TIMES, Budget
from nsysprof.check.measure import (
    OF_GPU_WORK,
    STEP,
    CallSamples,
    call_samples,
    needs_of_kernels,
    samples_of_frame,
    steps_of_calls,
    with_whole_trace,
)
from nsysprof.core.arrays import Floats
from nsysprof.core.files import read_table, undo_spreadsheet_safe
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.answers import AnalysisRange, read_analysis_document
from nsysprof.statistics.contrast import (
    DEFAULT_RULES,
    NO_CLEAR_CHANGE,
    SLOWER,
    TOO_FEW_SAMPLES,
    Contrast,
    contrast,
    holm,
    judge,
)
from nsysprof.statistics.levels import newest_level
from nsysprof.statistics.runs import HOST_NOISE, HOST_PACED, OverRuns, over_runs, rounding_of

ANALYSIS = "analysis.json"
_INSTANCES, _RANGES = "instances.csv", "ranges.csv"
_AGAIN = "write it again: nsysprof analyze REPORT"
_READING = {"graphs": "launched", "ranges": "auto"}
_KEY = ["merged_path", "kind"]
_TOTALS = ["instances", "unclosed", "span_ns", "busy_ns", "cpu_ns"]


@dataclass(frozen=True)
class Baseline:
    """Earlier calls.

    ``label`` is the file. ``gpus``: the names of the GPUs of the file, empty if not recorded. ``samples``: the `TIMES`
    of each call. ``without_samples``: the ranges, by merged path and kind, whose sums and medians are known, but not
    their individual calls. ``needs``: the `needs_of_kernels` of ranges, by merged path and kind.
    """

    label: str
    gpus: frozenset[str]
    samples: CallSamples
    without_samples: frozenset[tuple[str, str]]
    warnings: tuple[str, ...] = ()
    needs: Mapping[tuple[str, str], Mapping[str, Mapping[str, int]]] = field(default_factory=dict)


def baseline_of(breakdown: Breakdown, steps: Sequence[int] = (), kernels: Sequence[int] = ()) -> Baseline:
    """Return the calls of a report, which must be broken down with the same options as the report to check.

    ``steps``: the rows timed as steps; ``kernels``: the rows with limits on kernel resources.
    """
    report = breakdown.attribution.trace.report
    samples = call_samples(breakdown, steps_of_calls(breakdown, steps) if steps else None)
    samples = with_whole_trace(samples, breakdown)
    keys = list(samples.keys)
    needs = {keys[row]: need for row, need in needs_of_kernels(breakdown, kernels).items()}
    return Baseline(str(report.path), gpu_names(breakdown), samples, frozenset(), needs=needs)


def gpu_names(breakdown: Breakdown) -> frozenset[str]:
    """Return the names of the GPUs that CUDA could use, according to a report."""
    return frozenset(gpu.name for gpu in breakdown.attribution.trace.report.about.cuda_gpus)


def read_analysis(path: Path, budget: Budget, reading: Mapping[str, str] = _READING) -> Baseline:
    """Return the calls of an ``analysis.json``, from ``instances.csv`` beside it or from ranges with a single instance.

    Raises `NsysprofError` if the file is not an analysis, or if it was written with options other than the budget's, or
    with another ``reading`` (the options ``graphs`` and ``ranges``).
    """
    analysis = read_analysis_document(path)
    _check_options(path, {**_READING, **analysis.options}, budget, reading)
    names = {gpu.name for gpu in analysis.report.gpus}
    rows = [msgspec.structs.astuple(row) for row in analysis.ranges]
    ranges = pd.DataFrame(rows, columns=list(AnalysisRange.__struct_fields__))
    if left_out := analysis.left_out.get("ranges"):
        ranges = _all_ranges(_beside(path, _RANGES), len(ranges) + left_out.rows)
    ranges = ranges.astype({**dict.fromkeys(_KEY, object), **dict.fromkeys(_TOTALS, np.int64)})
    calls, warnings = _instances(_beside(path, _INSTANCES), ranges)
    if calls is None:
        single = ranges.groupby(_KEY)["instances"].transform("max") == 1
        calls = ranges[single]
    cpu = calls["cpu_ns"].where(calls["unclosed"] == 0).astype(float)
    frame = calls[_KEY].assign(span=calls["span_ns"], busy=calls["busy_ns"], cpu=cpu)
    samples = samples_of_frame(frame, TIMES)
    known = {(str(name), str(kind)) for name, kind in ranges[_KEY].to_numpy().tolist()}
    return Baseline(str(path), frozenset(names), samples, frozenset(known - samples.keys.keys()), tuple(warnings))


def _check_options(path: Path, options: Mapping[str, Any], budget: Budget, reading: Mapping[str, str]) -> None:
    """Refuse an analysis whose calls were chosen or merged differently from the budget's."""
    merge = None if budget.merge is None else list(budget.merge)
    instances = None if budget.instances is None else list(budget.instances)
    wanted: dict[str, Any] = {"threads": "follow", **reading, "by": None}
    wanted |= {"skip": budget.skip, "merge": merge, "instances": instances}
    for name, value in wanted.items():
        if options.get(name) != value:
            flags = [f"--skip {budget.skip}"] * (budget.skip > 0)
            flags += [f"--merge {glob!r}" for glob in merge or ()] * (name == "merge")
            flags += ["--no-merge"] * (merge is None)
            flags += [f"--{name} {value}"] * (name in reading)
            raise NsysprofError(
                f"{path} was written with {name} = {options.get(name)!r}, but the budget needs {value!r}",
                " ".join(["give the report itself, or: nsysprof analyze REPORT", *flags]),
            )


def _beside(path: Path, name: str) -> Path:
    """The table of this name beside a document, which may be compressed."""
    packed = path.with_name(f"{name}.gz")
    return packed if packed.exists() else path.with_name(name)


def _all_ranges(path: Path, count: int) -> pd.DataFrame:
    """The rows of the ``ranges.csv`` beside a document with only some of them."""
    dtypes = {**dict.fromkeys(_KEY, str), **dict.fromkeys(_TOTALS, np.int64)}
    try:
        ranges = _table(path, dtypes)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise NsysprofError(f"{path}, which {ANALYSIS} refers to, cannot be read: {reason}", _AGAIN) from None
    if len(ranges) != count:
        raise NsysprofError(f"{path} and {ANALYSIS} in the same folder are from different analyses", _AGAIN)
    return ranges


def _table(path: Path, dtypes: Mapping[str, Any]) -> pd.DataFrame:
    """The columns of a CSV file, with the report's original names."""
    table = pd.read_csv(read_table(path), usecols=list(dtypes), dtype=dict(dtypes), keep_default_na=False)
    return table.assign(**{name: table[name].map(undo_spreadsheet_safe).astype(object) for name in _KEY})


def _instances(path: Path, ranges: pd.DataFrame) -> tuple[pd.DataFrame | None, list[str]]:
    """The rows of the ``instances.csv`` for these ranges, or None and the reason why it is missing."""
    if not os.path.lexists(path):
        return None, []
    numbers = dict.fromkeys(["start_ns", "end_ns", "unclosed", "span_ns", "busy_ns"], np.int64)
    try:
        calls = _table(path, {**dict.fromkeys(_KEY, str), **numbers})
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return None, [f"{path} is not used: {' '.join(why.split())}"]
    calls["cpu_ns"] = calls["end_ns"] - calls["start_ns"]
    calls["instances"] = 1
    listed, counted = (frame.groupby(_KEY)[_TOTALS].sum() for frame in (ranges, calls))
    if not listed.equals(counted.astype(np.int64)):
        return None, [f"{path} is not used, because {ANALYSIS} in the same folder is from a different analysis"]
    return calls.sort_values("start_ns", kind="stable"), []


@dataclass(frozen=True)
class Growth:
    """The growth of a median time, relative to the baseline, or None if unknown.

    ``slower``: the result of a test, or None if there are too few calls. A test runs only if the growth exceeds the
    tolerance. ``why``: medians, counts and the reason for the verdict.
    """

    by: float | None
    slower: bool | None
    why: str
    warnings: tuple[str, ...] = ()


def growths(
    samples: CallSamples,
    baselines: Sequence[Baseline],
    other_gpu: str,
    tolerances: Mapping[tuple[int, str], float],
    clock_step: int = 0,
) -> dict[tuple[int, str], Growth]:
    """Compute the `Growth` of times, by row of ``samples`` and measure.

    ``tolerances``: a time is tested only if it grew by more than its tolerance. Holm's correction covers all limits,
    even limits without a test, so that no limit breaks by chance. ``other_gpu``: the reason that times cannot be
    compared, if any. ``clock_step``: the resolution of the GPU clock, which can make a time seem to grow.

    Several baselines are runs of one program, in order. Each run is one sample: growth must exceed the differences
    between the runs since the last level shift. With one baseline, its calls are compared with the calls of the report,
    and times that depend on the host are not judged, because these times differ between runs.
    """
    out: dict[tuple[int, str], Growth] = {}
    tests: dict[tuple[int, str], Contrast] = {}
    several: dict[tuple[int, str], list[Floats]] = {}
    keys = list(samples.keys)
    for (row, measure), tolerance in tolerances.items():
        bases = [other_gpu or _earlier(each, keys[row], measure) for each in (baselines or (None,))]
        missing = [each for each in bases if isinstance(each, str)]
        new = samples.of(row, measure)
        if missing or not len(new):
            none = "no steps" if measure == STEP else "never closed"
            out[row, measure] = Growth(None, None, missing[0] if missing else none)
            continue
        known = [each for each in bases if not isinstance(each, str)]
        if len(known) > 1:
            several[row, measure] = [*known, new]
            continue
        [base] = known
        before, now = float(np.median(base)), float(np.median(new))
        by = now / before - 1
        counted = f"{format_ns(before)} to {format_ns(now)}, n = {len(base):,} and {len(new):,}"
        out[row, measure] = Growth(by, False, counted)
        certain = measure == STEP and by > HOST_NOISE
        if by > tolerance and not certain and (paced := _paced_by_host(samples, baselines[0], keys[row], row, measure)):
            out[row, measure] = Growth(by, None, f"{counted}: {paced}")
        elif by > tolerance:
            names = f"{measure} of {keys[row][0]} in the baseline", f"{measure} of {keys[row][0]}"
            tests[row, measure] = contrast(base, new, names=names)
    if tests:
        # What was not tested stands in the family as what cannot pass.
        untested = replace(next(iter(tests.values())), p=1.0)
        plain = replace(DEFAULT_RULES, least_effect=0.0)  # the tolerance is the least effect
        rules = [replace(plain, clock_step=clock_step * (measure in OF_GPU_WORK)) for _, measure in tests]
        left = len(tolerances) - len(tests)
        verdicts = judge([*tests.values(), *[untested] * left], [*rules, *[plain] * left])
        for each, verdict in zip(tests, verdicts, strict=False):
            slower = None if verdict.verdict == TOO_FEW_SAMPLES else verdict.verdict == SLOWER
            why = f"{out[each].why}: {verdict.verdict}, {verdict.reason}"
            out[each] = replace(out[each], slower=slower, why=why, warnings=verdict.warnings)
    return out | _over_captures(several, tolerances, clock_step)


def _paced_by_host(samples: CallSamples, baseline: Baseline, key: tuple[str, str], row: int, measure: str) -> str:
    """If the host determines a time, why one baseline cannot show whether it grew; otherwise an empty text."""
    other = "pass --baseline three times (once per capture), or limit busy instead"
    if measure == "cpu":
        return f"a single baseline does not show how much CPU time varies between runs: {other}"
    if measure not in ("span", STEP):
        return ""
    places = ((samples, row), (baseline.samples, baseline.samples.keys[key]))
    shares = [float(np.median(each.of(at, "busy")) / max(np.median(each.of(at, measure)), 1)) for each, at in places]
    if min(shares) >= HOST_PACED:
        return ""
    return (
        f"the GPU is busy for only {format_share(min(shares))} of this time, and one baseline does not show how much"
        f" the rest (host time) varies between runs: {other}"
    )


def _over_captures(
    several: Mapping[tuple[int, str], Sequence[Floats]], tolerances: Mapping[tuple[int, str], float], clock_step: int
) -> dict[tuple[int, str], Growth]:
    """The growth of times over several captures; each time has the calls of the baselines, then of the report."""
    logs = [[float(np.log(np.median(calls))) for calls in captures] for captures in several.values()]
    roundings = [
        rounding_of(clock_step * (measure in OF_GPU_WORK), float(np.exp(values[-1])))
        for (_, measure), values in zip(several, logs, strict=True)
    ]
    # what is usual of a time on the host is not usual of one on the GPU
    before = [OverRuns(0.0, 0.0, 1.0, 0)] * len(logs)
    for measure in {measure for _, measure in several}:
        places = [place for place, key in enumerate(several) if key[1] == measure]
        found = over_runs([newest_level(logs[place][:-1]) for place in places], [roundings[place] for place in places])
        for place, each in zip(places, found, strict=True):
            before[place] = each
    grown = [each.against_new(values[-1]) for each, values in zip(before, logs, strict=True)]
    # what is within its tolerance stands in the family as what cannot pass
    tested = [each.value - 1 > tolerances[key] for key, each in zip(several, grown, strict=True)]
    untested = [1.0] * (len(tolerances) - len(several))
    adjusted = holm([each.p if test else 1.0 for each, test in zip(grown, tested, strict=True)] + untested)
    out = {}
    for key, base, each, p, test in zip(several, before, grown, adjusted, tested, strict=False):
        least = each.detectable(DEFAULT_RULES.alpha / len(tolerances))
        why = (
            f"from {format_ns(base.value)} (mean of {base.runs} baselines) to {format_ns(base.value * each.value)}; "
            f"standard error of the growth: {format_share(each.error)}; smallest detectable growth: "
            f"{format_share(least)}"
        )
        slower = test and p < DEFAULT_RULES.alpha
        family = plural(len(tolerances), "comparison")
        verdict = f": {SLOWER if slower else NO_CLEAR_CHANGE}, p = {p:.2g} (t-test over runs, corrected for {family})"
        out[key] = Growth(each.value - 1, slower, why + verdict * test)
    return out


def refuse_repeats(baselines: Sequence[Baseline], new: Baseline) -> None:
    """Raise an error if a recording is given twice, because this would hide variation; one baseline may be the report
    itself.
    """
    if len(baselines) < 2:
        return
    given = [*baselines, new]
    for number, each in enumerate(given):
        for other in given[:number]:
            if _same_calls(each.samples, other.samples):
                raise NsysprofError(
                    f"{each.label} and {other.label} are the same recording, so the variation between runs is unknown",
                    "record the program several times, and give --baseline once for each recording",
                )


def _same_calls(one: CallSamples, other: CallSamples) -> bool:
    return one.keys.keys() == other.keys.keys() and all(
        np.array_equal(one.of(one.keys[key], time), other.of(other.keys[key], time))
        for key in one.keys
        for time in TIMES
    )


def _earlier(baseline: Baseline | None, key: tuple[str, str], measure: str) -> Floats | str:
    """The calls of the baseline, or the reason why there are none."""
    if baseline is None:
        return "no --baseline given"
    if key in baseline.without_samples:
        return (
            "the baseline has no per-call times: give the report itself, or write the times with nsysprof analyze "
            "--instances"
        )
    if key not in baseline.samples.keys:
        return "the baseline does not contain this range"
    known = measure in baseline.samples.columns
    earlier = baseline.samples.of(baseline.samples.keys[key], measure) if known else np.empty(0)
    if len(earlier) and np.median(earlier) > 0:
        return earlier
    if measure == STEP:
        return (
            "the baseline has no steps of this range"
            if known
            else "the baseline has no step times: give the report itself"
        )
    return (
        "the range has no GPU work in the baseline"
        if measure in OF_GPU_WORK
        else "the range was never closed in the baseline"
    )


def other_gpu(breakdown: Breakdown, baselines: Sequence[Baseline]) -> str:
    """Return a sentence if report and baseline record different GPUs, otherwise an empty text."""
    own = gpu_names(breakdown)
    for each in baselines:
        if own and each.gpus and own != each.gpus:
            gpus, here = " and ".join(sorted(each.gpus)), " and ".join(sorted(own))
            return f"the baseline was recorded on {gpus}, this report on {here}"
    return ""
