"""Explain why one range is slower than another: pairs of ranges of one or two reports, with their gap ledgers."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.charts.notebook import Shown
from nsysprof.compare.attention_model import (
    Expected,
    Models,
    expected,
    read_shape,
    shape_of,
    shape_warnings,
    traffic_rows,
)
from nsysprof.compare.clocks import BUSY, clock_rows, compare_totals
from nsysprof.compare.comparable import Agreement, conditions
from nsysprof.compare.findings import Difference
from nsysprof.compare.gap_ledger import evidence_texts, gap_rows
from nsysprof.compare.loaded import LoadedReport, load_report
from nsysprof.compare.pairs import MIN_COVERED, SIDES, Pair, Paired, find_pairs, pair_warnings
from nsysprof.compare.request import Request
from nsysprof.compare.selection import Selection
from nsysprof.compare.several import OverRecordings, over_recordings
from nsysprof.compare.traffic import COLUMNS, BothMeasured, load_counters, measure_pairs
from nsysprof.compare.work import work_rows
from nsysprof.core.files import unusable_warning
from nsysprof.core.text import printable, shorten
from nsysprof.formats.counters import library_versions
from nsysprof.formats.run_record import RecordedRun, read_environment, read_runs, record_beside, record_name
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.results.table import row_dicts
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER
from nsysprof.waits.causes import CAUSE_BEFORE


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The answer of `compare`; data frames have a default index, times are int64 ns per call.

    ``pairs`` has one row per pair. ``pair``, ``base`` and ``new`` are merged paths; ``base_calls`` and ``new_calls``
    count calls. ``clock`` is the time that the verdict uses (`step`, or `span` if the pair is not a step). The
    following columns use this clock: the numbers of samples ``base_n`` and ``new_n``, the means ``base_mean_ns`` and
    ``new_mean_ns``, their difference ``delta_ns``, and the medians ``base_median_ns`` and ``new_median_ns``.
    ``base_span_ns`` and ``new_span_ns`` are mean spans, ``base_busy_ns`` and ``new_busy_ns`` mean busy times, and
    ``base_busy_median_ns`` and ``new_busy_median_ns`` median busy times. ``verdict`` is about the new side.

    ``gaps`` has the columns of ``gap.csv``; the ``delta_ns`` of a pair's causes add up to the pair's ``delta_ns``.
    ``clocks`` has the columns of `clock_rows`. ``evidence`` lists the kernels of each cause over all calls, in the
    columns ``pair, cause, side, kernel, math_unit, grid, count, sum_ns``. ``models`` has the expected work per call of
    both sides of each pair, if the shape is known. ``traffic`` has ``pair`` and ``cause`` and, for each side, the bytes
    that the model expects, and these bytes per second of the side's time. ``work`` has ``pair`` and the columns of
    `work_rows`.

    ``sides`` contains the pairs as `Pair` objects, with all their GPU ops. ``options`` are the arguments of `compare`.
    ``measured`` has, for each pair, the hardware counter measurement of each side, and is empty without counters. With
    counters, ``gaps`` also has the columns `traffic.COLUMNS` for each side. ``records`` are the run records of the
    reports, None for a report without one. ``conditions`` is the result of `conditions`, and ``totals`` is the result
    of `compare_totals` for whole traces.
    """

    pairs: pd.DataFrame
    gaps: pd.DataFrame
    clocks: pd.DataFrame
    evidence: pd.DataFrame
    warnings: tuple[str, ...]
    options: dict[str, Any]
    models: dict[str, Models]
    traffic: pd.DataFrame
    work: pd.DataFrame
    sides: tuple[Pair, ...] = field(repr=False)
    measured: dict[str, BothMeasured] = field(default_factory=dict, repr=False)
    records: tuple[Path | None, ...] = ()
    agreement: Agreement = field(default_factory=Agreement)
    conditions: dict[str, tuple[str, str]] = field(default_factory=dict)
    totals: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    runs: dict[str, OverRecordings] = field(default_factory=dict)

    @property
    def one_report(self) -> bool:
        """Return whether both sides are from one report."""
        return all(pair.one_report for pair in self.sides)

    @property
    def reports(self) -> tuple[LoadedReport, ...]:
        """Return the one report, or the reports of the base and the new side."""
        base, new = (side.loaded for side in self.sides[0].sides)
        return (base,) if self.one_report else (base, new)

    @cached_property
    def ranked(self) -> list[str]:
        """The pairs in order: program steps, then clear differences, then unchanged pairs; within each group, sorted
        by total time difference.

        The total time difference is the difference of the medians times the smaller number of calls.
        """
        pairs = self.pairs
        certainty = pairs["verdict"].map({FASTER: 0, SLOWER: 0, NO_CLEAR_CHANGE: 2}).fillna(1)
        calls = pairs[["base_calls", "new_calls"]].min(axis=1)
        time = (pairs["new_median_ns"] - pairs["base_median_ns"]).abs() * calls
        steps = np.array([(pair.base.code, pair.new.code) in self.agreement.codes for pair in self.sides], bool)
        if not steps.any():
            steps = np.array([pair.base.is_whole or pair.covered >= MIN_COVERED for pair in self.sides], bool)
        return [str(name) for name in pairs["pair"].iloc[np.lexsort((-time, certainty, ~steps))]]

    @property
    def comparable(self) -> bool:
        """Return whether the two reports seem to run the same work."""
        return not self.agreement.reasons

    @property
    def largest(self) -> str:
        """Return the pair with the largest clear difference."""
        return self.ranked[0]

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """Return each pair with its rows of every table, in the order of `ranked`."""
        rows = {row["pair"]: row for row in row_dicts(self.pairs)}
        pairs, out = {pair.name: pair for pair in self.sides}, {}
        for name in self.ranked:
            every = (self.gaps, self.clocks, self.evidence, self.traffic, self.work)
            gaps, clocks, evidence, traffic, work = (frame[frame["pair"] == name] for frame in every)
            rest = self.models[name], self.measured.get(name, (None, None)), self.runs.get(name)
            out[name] = Difference(pairs[name], rows[name], gaps, clocks, evidence, traffic, work, *rest)
        return out

    @property
    def findings(self) -> dict[str, tuple[str, ...]]:
        """Return the findings of each pair as sentences, headline first."""
        return {name: difference.findings for name, difference in self.differences.items()}


def compare(
    report: str | os.PathLike[str] | Attribution,
    other: str | os.PathLike[str] | Attribution | None = None,
    *,
    base: str | None = None,
    new: str | None = None,
    select: str | None = None,
    per: str | None = None,
    merge: Sequence[str] | None = DEFAULT_MERGE,
    skip: int = 0,
    instances: Sequence[str] = (),
    slowest: bool = False,
    rules: Rules | None = None,
    records: Sequence[Path | None] = (),
    shape: str | None = None,
    counters: Sequence[Path | None] = (),
    also_base: Sequence[str | os.PathLike[str] | Attribution] = (),
    also_new: Sequence[str | os.PathLike[str] | Attribution] = (),
    noise: Sequence[str | os.PathLike[str] | Attribution] = (),
) -> Comparison:
    """Compare ranges of one or two reports, attributed or given as files: ``report`` before, ``other`` after.

    ``base`` and ``new`` are globs of range paths, in ``report`` and in ``other`` (or both in one report); two ranges
    form a pair if the wildcards match the same text. For two reports, ``select`` pairs equal paths; without any glob,
    the outermost ranges are paired. ``per`` is a glob of the inner ranges that count as calls; by default these are
    numbered ``iter*`` and ``step*`` ranges or, if there are none, whole instances. ``skip`` leaves out the first
    instances of repeated ranges; ``instances`` keeps only some instances of each range (`"3"` or `"20-39"`, counted
    from 0); with two of these texts, a range is compared with itself; ``slowest`` keeps the longest instance of each
    range. With one report and ``select``, the chosen instance is compared with a typical instance (of median time).
    ``records`` are the run records of the reports; a record beside a report is found automatically. ``shape`` is the
    attention shape, if no record has it: `B=1,H=8,D=64,fp16,causal`. ``counters`` are the hardware counters of the
    reports, from `nsysprof counters`; files beside a report are found automatically. ``also_base`` and ``also_new`` are
    more recordings of either side; the verdict on the largest difference then covers several runs; ``noise`` are
    recordings of unchanged code: a change must exceed their differences.

    Raises `NsysprofError` if a glob matches nothing, or if nothing can be compared.
    """
    request = Request(base, new, select, per, skip, tuple(instances), slowest, one_report=other is None)
    given = read_shape(shape) if shape else None
    rules = rules or load_rules()
    attributions = [attribute(each) for each in (report, other) if each is not None]
    found = [
        record or record_beside(each.trace.report.path)
        for each, record in zip(attributions, (*records, None, None), strict=False)
    ]
    reports = [
        load_report(attribution, rules, merge, read_runs(record) if record else {}, skip)
        for attribution, record in zip(attributions, found, strict=True)
    ]
    versions = [library_versions(read_environment(record)) if record else {} for record in found]
    files, doubted = load_counters(reports, counters, versions)
    paired = find_pairs(reports, request, merge)
    models = {pair.name: (_expected(pair.base, given), _expected(pair.new, given)) for pair in paired.pairs}
    measured, unmeasured = measure_pairs(paired.pairs, files, models, merge, named=any(counters))
    warnings = (
        *paired.agreement.notes,
        *_report_warnings(reports, found),
        *paired.notes,
        *pair_warnings(paired.pairs),
        *shape_warnings(given, [side for pair in paired.pairs for side in pair.sides]),
        *request.left_out(reports),
        *doubted,
        *unmeasured,
    )
    answer = _answer(paired, models, measured, warnings)
    answer = replace(answer, options=request.options(merge) | {"shape": shape}, records=tuple(found))
    more = [tuple(map(attribute, each)) for each in (also_base, also_new, noise)]
    return _over_recordings(answer, more, rules, merge) if any(more) else answer


def _answer(
    paired: Paired, models: dict[str, Models], measured: dict[str, BothMeasured], warnings: Sequence[str]
) -> Comparison:
    pairs, reports = paired.pairs, paired.reports
    clocks, doubts = clock_rows(
        [(pair.name, pair.titles, pair.base.samples, pair.new.samples) for pair in pairs],
        [max(side.loaded.trace.clock_step for side in pair.sides) for pair in pairs],
        recordings=len(reports) > 1,
    )
    gaps = pd.concat([_gaps(pair, measured.get(pair.name)) for pair in pairs], ignore_index=True)
    traffic = [
        traffic_rows(*models[pair.name], gaps[gaps["pair"] == pair.name]).assign(pair=pair.name) for pair in pairs
    ]
    return Comparison(
        pairs=_pair_rows(pairs, clocks),
        gaps=gaps,
        clocks=clocks,
        evidence=_evidence(pairs),
        warnings=(*warnings, *doubts),
        options={},
        models=models,
        traffic=pd.concat(traffic, ignore_index=True),
        work=pd.concat([work_rows(*pair.sides).assign(pair=pair.name) for pair in pairs], ignore_index=True),
        sides=tuple(pairs),
        measured=measured,
        agreement=paired.agreement,
        conditions=conditions(reports[0], reports[-1]),
        totals=compare_totals(reports[0], reports[-1]) if any(pair.base.is_whole for pair in pairs) else {},
    )


def _over_recordings(
    answer: Comparison, more: Sequence[Sequence[Attribution]], rules: Rules, merge: Sequence[str] | None
) -> Comparison:
    """The verdict on the first pair over more recordings of either side."""
    name = answer.largest
    found = over_recordings(next(pair for pair in answer.sides if pair.name == name), more, rules, merge)
    verdict = answer.pairs["verdict"].where(answer.pairs["pair"] != name, found.verdict)
    return replace(answer, pairs=answer.pairs.assign(verdict=verdict), runs={name: found})


def _expected(side: Selection, given: RecordedRun | None) -> Expected | None:
    """The model of a side, if its shape is in the record or was given; whole traces have none."""
    if side.is_whole:
        return None
    return expected(shape_of(side.name, side.loaded.runs.get(side.name, given)), side.ledger)


def _report_warnings(reports: Sequence[LoadedReport], records: Sequence[Path | None]) -> Iterator[str]:
    for loaded, record in zip(reports, records, strict=True):
        beside = record_name(loaded.path)
        if not record and beside != loaded.path and (unread := unusable_warning(beside)):
            yield unread
    for loaded in reports:
        where = f"{loaded.path}: " if len(reports) > 1 else ""
        for text in (*loaded.report.about.warnings, *loaded.trace.warnings):
            yield f"{where}{text}"


def _pair_rows(pairs: Sequence[Pair], clocks: pd.DataFrame) -> pd.DataFrame:
    """Make the frame ``pairs``; medians are over calls, by the clock of the pair and by busy time.

    If the times of single calls are unknown, the mean replaces the median.
    """
    rows = pd.DataFrame([_pair_row(pair) for pair in pairs])
    of = dict(zip(rows["pair"], rows["clock"], strict=True))
    judged = clocks[clocks["clock"] == clocks["pair"].map(of)].set_index("pair")
    by_busy = clocks[clocks["clock"] == BUSY].set_index("pair")
    for side in SIDES:
        rows[f"{side}_n"] = rows["pair"].map(judged[f"{side}_n"])
        for name, by_clock, mean in (("median", judged, "mean"), ("busy_median", by_busy, "busy")):
            median = rows["pair"].map(by_clock[f"{side}_median_ns"])
            rows[f"{side}_{name}_ns"] = median.where(median > 0, rows[f"{side}_{mean}_ns"])
    rows["verdict"] = rows["pair"].map(judged["verdict"])
    return rows


def _pair_row(pair: Pair) -> dict[str, Any]:
    base, new = pair.base.ledger, pair.new.ledger
    return {
        "pair": pair.name,
        "base": pair.base.text,
        "new": pair.new.text,
        "base_name": pair.base_name,
        "new_name": pair.new_name,
        "place": pair.place,
        "base_per": pair.base.per,
        "new_per": pair.new.per,
        "base_calls": base.calls,
        "new_calls": new.calls,
        "clock": pair.clock,
        "base_mean_ns": base.per_call_ns,
        "new_mean_ns": new.per_call_ns,
        "delta_ns": new.per_call_ns - base.per_call_ns,
        "base_span_ns": pair.base.span_ns,
        "new_span_ns": pair.new.span_ns,
        "base_busy_ns": pair.base.busy_ns,
        "new_busy_ns": pair.new.busy_ns,
        **{
            f"{side}_{name}_ns": ns
            for side, of in zip(SIDES, pair.sides, strict=True)
            for name, ns in of.parts_ns.items()
        },
    }


def _gaps(pair: Pair, measured: BothMeasured | None) -> pd.DataFrame:
    """The columns of ``gap.csv`` for one pair, with the columns of counters if any were read."""
    frame = gap_rows(pair.base.ledger, pair.new.ledger)
    texts = [
        evidence_texts(side.evidence, side.gaps, side.work, side.edges, whole=side.is_whole) for side in pair.sides
    ]
    lines = []
    for cause in frame["cause"].tolist():
        named = zip(pair.names, texts, strict=True)
        lines.append("; ".join(f"{name}: {text[cause]}" for name, text in named if cause in text))
    frame.insert(0, "pair", pair.name)
    frame["evidence"] = pd.Series(lines, dtype=object)
    frame["cause_before"] = [CAUSE_BEFORE.get(cause, cause) for cause in frame["cause"].tolist()]
    for side, counted in zip(SIDES, measured, strict=True) if measured else ():
        causes = counted.causes if counted else pd.DataFrame(columns=list(COLUMNS), dtype=float)
        frame[[f"{side}_{name}" for name in COLUMNS]] = causes.reindex(frame["cause"]).to_numpy()
    return frame


def _evidence(pairs: Sequence[Pair]) -> pd.DataFrame:
    columns = ["pair", "cause", "side", "kernel", "math_unit", "grid", "count", "sum_ns"]
    parts = [
        side.evidence.assign(pair=pair.name, side=name)
        for pair in pairs
        for name, side in zip(SIDES, pair.sides, strict=True)
    ]
    return pd.concat(parts, ignore_index=True)[columns]


def compared_reports(comparison: Comparison) -> list[str]:
    """Return the files, GPUs and nsys versions of a comparison, as parts of a subtitle."""
    reports = [loaded.report for loaded in comparison.reports]
    gpus = [gpu.name or "GPU not recorded" for report in reports for gpu in report.about.cuda_gpus]
    versions = [report.about.nsys_version or "version not recorded" for report in reports]
    return [
        " → ".join(shorten(name, 40) for name in dict.fromkeys(report.path.name for report in reports)),
        shorten(", ".join(dict.fromkeys(map(str, gpus))) or "GPU not recorded", 50),
        f"nsys {' and '.join(dict.fromkeys(map(printable, versions)))}",
    ]
