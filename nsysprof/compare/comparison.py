"""Why one range is slower than another: pairs of ranges of one report, or of two, with their gap ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import DEFAULT_MERGE, Instances, instances_text, read_instances
from nsysprof.compare.attention_model import (
    Expected,
    expected,
    read_shape,
    shape_of,
    shape_warnings,
    traffic_rows,
)
from nsysprof.compare.clocks import BUSY, SPAN, clock_rows
from nsysprof.compare.findings import findings
from nsysprof.compare.gap_ledger import evidence_texts, gap_rows
from nsysprof.compare.pairs import (
    Pair,
    check_request,
    largest_pairs,
    match_ranges,
    pair_sides,
    pair_warnings,
)
from nsysprof.compare.selection import Examined, Side, examine
from nsysprof.compare.traffic import COLUMNS, BothMeasured, Models, load_counters, measured_pairs
from nsysprof.core.files import unusable_warning
from nsysprof.core.text import printable, shorten
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import library_versions
from nsysprof.formats.run_record import RecordedRun, read_environment, read_runs, record_beside
from nsysprof.kernels.classify import Rules, load_rules
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER


@dataclass(frozen=True)
class Comparison:
    """The answer of `compare`; all frames have a default index, times are int64 ns per call.

    ``pairs``: a row per pair, ``pair, base, new`` (merged paths), ``base_calls, new_calls``, ``base_span_ns,
    new_span_ns, delta_ns, base_busy_ns, new_busy_ns`` (means), ``base_n, new_n, base_median_ns, new_median_ns`` of the
    calls by span, ``base_busy_median_ns, new_busy_median_ns``, and the ``verdict`` on new by its span. ``gaps``: the
    columns of ``gap.csv``; the ``delta_ns`` of a pair add up to that of ``pairs``. ``clocks``: the columns of
    `clock_rows`. ``evidence``: ``pair, cause, side, kernel, math_unit, grid, count, sum_ns`` over all calls.
    ``models``: for each pair what a call of either side should do, where its shape is known; ``traffic``: ``pair,
    cause``, of each side its bytes by that model, and per second of its time. ``findings``: for each pair its
    sentences, the headline first. ``sides`` are the pairs as objects, with all ops. ``options``: what `compare` was
    asked for. ``measured``: for each pair what hardware counters say of either side, empty without counters; ``gaps``
    then has, for either side, the columns `measured.COLUMNS`. ``records``: the run record of each report, None where
    there is none.
    """

    pairs: pd.DataFrame
    gaps: pd.DataFrame
    clocks: pd.DataFrame
    evidence: pd.DataFrame
    findings: dict[str, tuple[str, ...]]
    warnings: tuple[str, ...]
    options: dict[str, Any]
    models: dict[str, Models]
    traffic: pd.DataFrame
    sides: tuple[Pair, ...] = field(repr=False)
    measured: dict[str, BothMeasured] = field(default_factory=dict, repr=False)
    records: tuple[Path | None, ...] = ()

    @property
    def one_report(self) -> bool:
        """Whether both sides are of one report."""
        return all(pair.base.examined is pair.new.examined for pair in self.sides)

    @cached_property
    def ranked(self) -> list[str]:
        """The pairs, those with a clear difference first and those with none last, each by the time that it comes to.

        That is the difference of the medians over as many calls as both sides have.
        """
        pairs = self.pairs
        certainty = pairs["verdict"].map({FASTER: 0, SLOWER: 0, NO_CLEAR_CHANGE: 2}).fillna(1)
        calls = pairs[["base_calls", "new_calls"]].min(axis=1)
        time = (pairs["new_median_ns"] - pairs["base_median_ns"]).abs() * calls
        return [str(name) for name in pairs["pair"].iloc[np.lexsort((-time, certainty))]]

    @property
    def largest(self) -> str:
        """The pair with the largest difference that is clear."""
        return self.ranked[0]


def compare(
    report: Attribution,
    other: Attribution | None = None,
    *,
    base: str | None = None,
    new: str | None = None,
    select: str | None = None,
    per: str | None = None,
    merge: Sequence[str] | None = DEFAULT_MERGE,
    skip: int = 0,
    instances: Sequence[str] = (),
    rules: Rules | None = None,
    records: Sequence[Path | None] = (),
    shape: str | None = None,
    counters: Sequence[Path | None] = (),
) -> Comparison:
    """Compare ranges of one attributed report, or of two: ``report`` before, ``other`` after.

    ``base`` and ``new`` are globs of range paths, in ``report`` and in ``other`` (in one report both); ranges are
    paired by what the stars stand for. Of two reports ``select`` pairs equal paths; without any glob the outermost
    ranges. ``per`` is a glob of the inner ranges that count as calls, otherwise numbered ``iter*`` and ``step*``, and
    where there are none each instance is one. ``skip`` leaves out the first instances of what repeats; ``instances``
    takes only these of each range, `"3"` or `"20-39"` counted from 0, or of either side others, so that a range can be
    compared with itself. ``records`` are the run records of the reports; one that lies beside a report is found.
    ``shape`` says for attention what no record does: `B=1,H=8,D=64,fp16,causal`. ``counters`` are the hardware counters
    of the reports, as `nsysprof counters` writes them; those that lie beside a report are found.

    Raises `NsysprofError` where a glob matches nothing or nothing can be compared.
    """
    check_request(base, new, select, one_report=other is None)
    given = read_shape(shape) if shape else None
    rules = rules or load_rules()
    attributions = [report] if other is None else [report, other]
    found = [
        record or record_beside(each.trace.report.path)
        for each, record in zip(attributions, (*records, None, None), strict=False)
    ]
    examined = [
        examine(attribution, rules, merge, read_runs(record) if record else {}, skip)
        for attribution, record in zip(attributions, found, strict=True)
    ]
    versions = [library_versions(read_environment(record)) if record else {} for record in found]
    files, doubts = load_counters(examined, counters, versions)
    asked: list[Instances | None] = [*map(read_instances, instances)] or [None]
    wanted = (asked[0], asked[-1])
    matched, warnings = match_ranges(examined, base, new, select, apart=wanted[0] != wanted[1])
    matched, more = largest_pairs(matched, examined)
    pairs, without_work = pair_sides(examined, matched, per, wanted)
    if not pairs:
        raise NsysprofError(
            without_work[0], f"nsysprof analyze {examined[0].path} --no-charts shows what launched GPU work"
        )
    unread = [
        unusable_warning(each.path.with_suffix(".json"))
        for each, record in zip(examined, found, strict=True)
        if not record
    ]
    every = [
        *filter(None, unread),
        *_report_warnings(examined),
        *warnings,
        *more,
        *without_work,
        *pair_warnings(pairs),
    ]
    every += shape_warnings(given, [side for pair in pairs for side in (pair.base, pair.new)])
    every += [f"left out: the first {skip:,} of what repeats (--skip {skip})"] if skip else []
    every += (
        [f"left out of each range: all but {instances_text(wanted[0])} (--instance)"]
        if wanted[0] and len(instances) == 1
        else []
    )
    options: dict[str, Any] = {"base": base, "new": new, "select": select, "per": per, "shape": shape}
    options |= {"skip": skip} if skip else {}
    options |= {"instances": list(instances)} if instances else {}
    options |= {"merge": list(merge) if merge is not None else None} if merge != DEFAULT_MERGE else {}
    models = {pair.name: (_expected(pair.base, given), _expected(pair.new, given)) for pair in pairs}
    measured, unmeasured = (
        measured_pairs(pairs, files, models, merge, named=any(counters)) if any(files) else ({}, [])
    )
    return _answer(pairs, [*every, *doubts, *unmeasured], options, models, measured, found)


def _expected(side: Side, given: RecordedRun | None) -> Expected | None:
    """The model of a side, where the record, or the shape that was given, tells what it computes."""
    return expected(shape_of(side.name, side.examined.runs.get(side.name, given)), side.ledger)


def _report_warnings(examined: Sequence[Examined]) -> Iterator[str]:
    for side in examined:
        trace = side.attribution.trace
        where = f"{side.path}: " if len(examined) > 1 else ""
        for text in (*trace.report.about.warnings, *trace.warnings):
            yield f"{where}{text}"


def _answer(
    pairs: Sequence[Pair],
    warnings: Sequence[str],
    options: dict[str, Any],
    models: dict[str, Models],
    measured: dict[str, BothMeasured],
    records: Sequence[Path | None],
) -> Comparison:
    gaps = pd.concat([_gaps(pair) for pair in pairs], ignore_index=True)
    if measured:
        gaps = _with_measured(gaps, measured)
    clocks, doubts = clock_rows(
        [(pair.name, pair.titles, pair.base.samples, pair.new.samples) for pair in pairs],
        [max(side.examined.attribution.trace.clock_step for side in (pair.base, pair.new)) for pair in pairs],
    )
    rows = pd.DataFrame([_pair_row(pair) for pair in pairs])
    evidence = pd.concat(
        [
            side.evidence.assign(pair=pair.name, side=name)
            for pair in pairs
            for name, side in (("base", pair.base), ("new", pair.new))
        ],
        ignore_index=True,
    )
    moved = [
        traffic_rows(*models[pair.name], gaps[gaps["pair"] == pair.name]).assign(pair=pair.name)
        for pair in pairs
    ]
    columns = ["pair", "cause", "side", "kernel", "math_unit", "grid", "count", "sum_ns"]
    rows = _with_medians(rows, clocks)
    told = {}
    for row in rows.to_dict("records"):
        name, known = str(row["pair"]), {str(key): value for key, value in row.items()}
        mine = [frame[frame["pair"] == name] for frame in (gaps, clocks, evidence)]
        both = measured.get(name, (None, None))
        told[name] = findings(known, mine[0], mine[1], mine[2], models[name], both)
    return Comparison(
        pairs=rows,
        gaps=gaps,
        clocks=clocks,
        evidence=evidence[columns],
        findings=told,
        warnings=(*warnings, *doubts),
        options=options,
        models=models,
        traffic=pd.concat(moved, ignore_index=True),
        sides=tuple(pairs),
        measured=measured,
        records=tuple(records),
    )


def _with_medians(rows: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """The rows of pairs with what headlines are about: the median call by span and by busy time, and the verdict.

    Where the span of no call is known by itself, the mean stands in for its median.
    """
    rows = rows.copy()
    by_span, by_busy = (clocks[clocks["clock"] == clock].set_index("pair") for clock in (SPAN, BUSY))
    for side in ("base", "new"):
        rows[f"{side}_n"] = rows["pair"].map(by_span[f"{side}_n"])
        for name, found, mean in (("median", by_span, "span"), ("busy_median", by_busy, "busy")):
            median = rows["pair"].map(found[f"{side}_median_ns"])
            rows[f"{side}_{name}_ns"] = median.where(median > 0, rows[f"{side}_{mean}_ns"])
    rows["verdict"] = rows["pair"].map(by_span["verdict"])
    return rows


def _with_measured(gaps: pd.DataFrame, measured: dict[str, BothMeasured]) -> pd.DataFrame:
    """The rows with what was measured of each side, NaN where nothing was."""
    gaps = gaps.copy()
    for at, name in enumerate(("base", "new")):
        for column in COLUMNS:
            known = {
                (pair, cause): value
                for pair, both in measured.items()
                if (side := both[at]) is not None
                for cause, value in side.causes[column].items()
            }
            keys = zip(gaps["pair"], gaps["cause"], strict=True)
            gaps[f"{name}_{column}"] = [known.get(key, np.nan) for key in keys]
    return gaps


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
        "base_span_ns": base.span_per_call,
        "new_span_ns": new.span_per_call,
        "delta_ns": new.span_per_call - base.span_per_call,
        "base_busy_ns": round(base.busy_ns / base.calls),
        "new_busy_ns": round(new.busy_ns / new.calls),
    }


def _gaps(pair: Pair) -> pd.DataFrame:
    """The columns of ``gap.csv`` for one pair."""
    frame = gap_rows(pair.base.ledger, pair.new.ledger)
    texts = [evidence_texts(side.evidence, side.gaps, side.work) for side in (pair.base, pair.new)]
    lines = []
    for cause in frame["cause"].tolist():
        named = zip((pair.base_name, pair.new_name), texts, strict=True)
        lines.append("; ".join(f"{name}: {text[cause]}" for name, text in named if cause in text))
    frame.insert(0, "pair", pair.name)
    frame["evidence"] = pd.Series(lines, dtype=object)
    return frame


def compared_reports(comparison: Comparison) -> list[str]:
    """The files, GPUs and nsys versions behind a comparison, as parts of a subtitle."""
    first = comparison.sides[0]
    reports = [side.examined.attribution.trace.report for side in (first.base, first.new)]
    gpus = [gpu.name or "GPU not recorded" for report in reports for gpu in report.about.cuda_gpus]
    versions = [report.about.nsys_version or "version not recorded" for report in reports]
    names = dict.fromkeys(str(report.path) if len(reports) == 1 else report.path.name for report in reports)
    return [
        " → ".join(shorten(name, 40) for name in names),
        shorten(", ".join(dict.fromkeys(map(str, gpus))) or "GPU not recorded", 50),
        f"nsys {' and '.join(dict.fromkeys(map(printable, versions)))}",
    ]
