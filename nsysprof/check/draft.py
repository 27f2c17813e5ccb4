"""Draft budgets from a good report."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

import numpy as np
import pandas as pd

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.paths import WHOLE_TRACE, names_step
from nsysprof.attribution.sources import annotated
from nsysprof.check.baseline import gpu_names
from nsysprof.check.measure import (
    COUNTS,
    STEP,
    CallSamples,
    RangeFinder,
    backends_seen,
    call_samples,
    slow_steps,
    steps_of_calls,
    with_whole_trace,
)
from nsysprof.core.arrays import Index, Ints32, Mask
from nsysprof.core.nesting import ancestors_or_self, outermost
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.backends import NO_ATTENTION, NONE, UNKNOWN
from nsysprof.kernels.classify import Rules
from nsysprof.statistics.runs import HOST_PACED
from nsysprof.statistics.summary import LEAST_SAMPLES
from nsysprof.trace.trace import MEMCPY

_SLACK = Decimal("1.2")
_MAX_RANGES = 200  # those with the most busy time
LEAST_STEPS = 5  # behind warm-up, for a limit on their time
_SLOW_SHARE, _JUDGED_STEPS = 5, 50  # per cent of slow steps that are allowed anyway, and of how many calls
_MIN_COVERED = 0.5  # of the launches of a range, for what repeats in it to stand for it
_RUN = "RUN::"
_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_HEAD = """\
# Limits for every report of this program; the exit code is 3 if a report breaks a limit:
#     nsysprof check REPORT budget.toml
# Drafted {of}: counts as in that report, times 20 % longer. The limits do
# not depend on the number of iterations. The time of a step is from the end of the previous step to its own end;
# warm-up is left out. Ranges that are not steps and have fewer than {least} calls get no time limit, because their
# variation is unknown.
#
# All limits are per call (instance of the range) and include inner ranges. `path` is a glob for the paths that
# `nsysprof analyze` prints. Adapt the limits; a [[range]] may also have:
#     stat = "p95"                  # of the calls, instead of the median; or "max"
#     optional = true               # no failure if the range is missing
#     min_instances = 10
#     max_cpu = "1 ms"              # time on the host
#     max_idle = "20 %"             # of the span
#     max_launch_bound_share = "10 %"
#     max_exposed_communication = "1 ms"
#     max_syncs = 1                 # calls that wait for the GPU
#     max_slow_step_share = "5 %"   # of the calls: nsysprof steps says which are slow
#     forbid_causes = ["cast*"]
#     forbid_kernels = ['regular expression']
#     math_unit = {{ family = "gemm", unit = "tensor core", min_share = "95 %" }}
#     max_growth = {{ busy = "5 %" }} # against earlier reports: nsysprof check ... --baseline RUN1 --baseline RUN2 ...

stat = "median"
"""


def draft_budget(breakdown: Breakdown, rules: Rules, others: Sequence[Breakdown] = ()) -> str:
    """Return a budget (TOML text) that the report meets; the reports ``others`` also meet its limits on counts and
    times. Ranges are sorted by path.

    The budget limits merged repetitions (``iter*``) that have GPU work and a name. They must be inside outermost
    ``RUN::`` ranges or, if there are none, inside any outermost ranges. If an outermost range has no such repetitions,
    the budget limits its repeated parts. If the range has several calls or no repeated parts, the budget limits the
    range itself. If a report has no NVTX ranges, the budget also limits the whole trace. Raises `NsysprofError` if
    there is nothing to limit.
    """
    chosen = _chosen(breakdown)
    rows = chosen[(breakdown.merged["merged_path"] != "").to_numpy()[chosen]]
    whole = [WHOLE_TRACE] * (breakdown.totals["span_ns"] > 0 and not annotated(breakdown.attribution.trace))
    if len(rows) == 0 and not whole:
        report, named = breakdown.attribution.trace.report.path, " and a name" if len(chosen) else ""
        raise NsysprofError(
            f"{report}: no range with GPU work{named}, so there is nothing to limit",
            f"record both: {breakdown.attribution.trace.report.reader.recording}",
        )
    busy = breakdown.merged["busy_ns"].to_numpy()[rows]
    kept = rows[np.argsort(-busy, kind="stable")[:_MAX_RANGES]]
    gpus = _writable_text(" and ".join(sorted(gpu_names(breakdown))), "?")
    reports = f"{1 + len(others)} reports" if others else "a report"
    of = f"from {reports} of {gpus}" if gpus else f"from {reports}"
    parts = [_HEAD.format(of=of, least=LEAST_SAMPLES)]
    if len(kept) < len(rows):
        parts.append(f"# Left out: {len(rows) - len(kept):,} ranges with less busy time than the ranges below.\n")
    nameless = len(chosen) - len(rows)
    if nameless:
        parts.append(f"# Left out: {plural(nameless, 'range')} with an empty name, which no path can match.\n")
    finder = RangeFinder(breakdown)
    globs = {_glob(finder, row): None for row in kept.tolist()}
    return "\n".join([*parts, *_tables([breakdown, *others], rules, finder, [*whole, *sorted(globs)])])


def _chosen(breakdown: Breakdown) -> Index:
    merged = breakdown.merged
    parent = merged["parent"].to_numpy().astype(np.int32)
    works = merged["launches"].to_numpy() > 0
    runs = np.array([name.startswith(_RUN) for name in merged["name"].tolist()], bool)
    tops = outermost(parent, runs) if (runs & works).any() else parent < 0
    tops &= works
    inside = ancestors_or_self(parent, tops) & works
    globs = breakdown.options["merge"] or ()
    numbered = np.array(
        [name in globs or (name.endswith("*") and names_step(name)) for name in merged["name"].tolist()], bool
    )
    chosen = outermost(parent, inside & numbered)
    top = _top_of(parent, tops)
    tops[top[chosen]] = False
    # what is called once and repeats something under names of its own, which does most of the work
    calls, launches = merged["instances"].to_numpy(), merged["launches"].to_numpy()
    single = tops & (calls == 1)
    repeats = inside & ~tops & (calls > 1)
    repeats[repeats] = single[top[repeats]]
    repeats = outermost(parent, repeats)
    covered = np.bincount(top[repeats], launches[repeats], len(merged))
    loops = single & (covered >= _MIN_COVERED * launches)
    repeats[repeats] = loops[top[repeats]]
    return np.flatnonzero((tops & ~loops) | chosen | repeats)


def _top_of(parent: Ints32, tops: Mask) -> Index:
    """For each row, the row of ``tops`` that it is or is inside, otherwise the row itself."""
    out = np.arange(len(parent))
    for row, above in enumerate(parent.tolist()):  # parents stand before children
        if above >= 0 and not tops[row]:
            out[row] = out[above]
    return out


def _glob(finder: RangeFinder, row: int) -> str:
    """A readable glob that matches only this row, and that TOML can contain."""
    text = _writable_text(finder.texts[row], "\0")
    text = re.sub(r"[\[?]", r"[\g<0>]", text).replace("\0", "?")
    if finder.find(text).tolist() == [row]:
        return text
    return text.replace("*", "[*]")


def _writable_text(text: str, other: str) -> str:
    """The text with each unprintable character replaced by ``other``."""
    return "".join(char if char.isprintable() else other for char in text)


def _largest(breakdown: Breakdown, globs: Sequence[str]) -> Callable[[str, str, str], float]:
    """A function for the largest value of a measure's statistic among the ranges of a glob; 0 if there is none."""
    finder = RangeFinder(breakdown)
    spreads = _samples(breakdown, [row for glob in globs for row in finder.find(glob).tolist()]).spreads()

    def largest(glob: str, name: str, stat: str) -> float:
        return float(np.nan_to_num(spreads[name][stat][finder.find(glob)]).max(initial=0))

    return largest


def _samples(breakdown: Breakdown, rows: Sequence[int]) -> CallSamples:
    """The samples of every call, also timed as steps for ``rows``, and of the whole trace."""
    rows = [row for row in rows if row < len(breakdown.merged)]
    return with_whole_trace(call_samples(breakdown, steps_of_calls(breakdown, rows)), breakdown)


def _tables(breakdowns: Sequence[Breakdown], rules: Rules, finder: RangeFinder, globs: list[str]) -> Iterator[str]:
    """The ``[[range]]`` tables of globs in the first report, with limits on counts and times that all reports keep."""
    breakdown, others = breakdowns[0], [_largest(other, globs) for other in breakdowns[1:]]
    rows_of = {glob: finder.find(glob) for glob in globs}
    ranges = np.unique(np.concatenate(list(rows_of.values())))
    samples = _samples(breakdown, ranges.tolist())
    spreads = samples.spreads()
    seen = backends_seen(breakdown, ranges[ranges < finder.whole].tolist(), rules)
    families = breakdown.families
    with_copies = families["row"][families["family"] == "memcpy"]
    if (breakdown.attribution.trace.ops.kind == MEMCPY).any():
        with_copies = pd.concat([with_copies, pd.Series([finder.whole])])
    steps = [row for row in ranges.tolist() if row < finder.whole and _are_steps(breakdown, row)]
    slow = slow_steps(breakdown, steps) if steps else {}
    for glob, rows in rows_of.items():
        calls = int(samples.calls[rows].sum())
        counted = "" if glob == WHOLE_TRACE else f" # {plural(calls, 'call')}"
        lines = [f"[[range]]{counted}", f"path = {json.dumps(glob, ensure_ascii=False)}"]
        # what nearly every call keeps to; of few calls, what all do
        stat = "p95" if calls >= LEAST_SAMPLES else "max"
        for name in COUNTS:
            found = [spreads[name][stat][rows].max(), *(largest(glob, name, stat) for largest in others)]
            most = int(np.ceil(max(found)))
            if most or name in ("kernels", "launches"):
                lines.append(f"max_{name} = {most}")
        steady = int(spreads[STEP]["n"][rows].min(initial=calls))
        times = ("span" if steady < LEAST_STEPS else STEP, "busy") if calls >= LEAST_SAMPLES else ()
        for name in times or (STEP,) * (steady >= LEAST_STEPS):
            medians = [spreads[name]["median"][rows].max(), *(largest(glob, name, "median") for largest in others)]
            median = round(float(max(medians)))
            if name == "span" and spreads["idle"]["median"][rows].max() > 1 - HOST_PACED:
                lines.append("# no max_span: the GPU waits for the CPU, so spans vary between runs")
            elif median > 0:
                limit = _duration(int(median * _SLACK) + 1)
                lines.append(f'max_{name} = "{limit}" # {format_ns(median)} found')
        shares = [chain.slow_share for row in rows.tolist() for chain in slow.get(row, [])]
        if shares:
            most_slow = min(max(_SLOW_SHARE, math.ceil(max(shares) * float(_SLACK) * 100)), 100)
            lines.append(f'max_slow_step_share = "{most_slow} %" # {format_share(max(shares))} found')
        observed = seen["observed"][seen["row"].isin(rows)].unique().tolist()
        if len(observed) == 1 and observed[0] not in (NONE, UNKNOWN, NO_ATTENTION):
            lines.append(f"backend = {json.dumps(observed[0], ensure_ascii=False)}")
        if not with_copies.isin(rows).any():
            lines.append('forbid = ["memcpy"]')
        yield "".join(f"{line}\n" for line in lines)


def _are_steps(breakdown: Breakdown, row: int) -> bool:
    """Whether a row of ``merged`` is named like steps and has enough calls for a share of slow steps."""
    name, calls = (breakdown.merged[column].tolist()[row] for column in ("name", "instances"))
    return name.endswith("*") and names_step(name) and calls >= _JUDGED_STEPS


def _duration(ns: int) -> str:
    """A time with three digits, rounded up, in the format of a budget."""
    step = 10 ** max(len(str(ns)) - 3, 0)
    ns = -(-ns // step) * step
    unit, size = next(pair for pair in _UNITS if ns >= pair[1])
    return f"{Decimal(ns) / size:f} {unit}"
