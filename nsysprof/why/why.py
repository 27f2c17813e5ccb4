"""Account for the time of GPU windows: compute time by kernel, waits by cause and responsible code. The rows add up."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nsysprof.attribution.attribute import Attributed, Attribution, attribute
from nsysprof.attribution.levels import Level
from nsysprof.attribution.paths import DEFAULT_MERGE, Instances
from nsysprof.charts.notebook import Shown
from nsysprof.core.arrays import AnyInts, Ints, Mask
from nsysprof.core.columns import ColumnTable, Texts, distinct, frame_of, sums
from nsysprof.diagnosis.case import NOT_ASKED
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose
from nsysprof.diagnosis.finding import Finding
from nsysprof.kernels.classify import Kinds, Rules, kinds_of
from nsysprof.waits.account import account_of, wait_pieces
from nsysprof.waits.culprits import PIECE
from nsysprof.waits.facts import LATE_HOST, Facts, facts_of
from nsysprof.waits.ranges import choose_windows, count_calls, pick_windows
from nsysprof.waits.windows import Windows, gpu_lines
from nsysprof.why.ceilings import Removals, forecast_ceilings, places_of, removals_of
from nsysprof.why.residuals import residual_columns, without_ceilings

if TYPE_CHECKING:
    import pandas as pd

LAUNCHING_ACTIVITIES = ("launch calls", "code", "other CUDA calls")
LAUNCH_STEP_NS = 20_000  # of a piece of a wait: shorter ones are what launching costs anyway
_PER_INSTANCE = ("per_instance_ns", "ceiling_ns")
MIN_LAUNCHES = 0.05  # of the short waits in a range: with less of it in launches it does not launch


@dataclass(frozen=True, repr=False)
class Why(Attributed, Shown):
    """Why the GPUs of a report waited.

    `columns` returns a table as numpy columns; the attribute with the name of the table is a pandas data frame with a
    default index. ``windows`` has a row per window: ``path``, ``gpu``, ``pid``, ``range`` (a row of `Trace.ranges`, -1
    for the whole trace), ``start_ns``, ``end_ns``, and the parts of the window: ``compute_ns``, ``communication_ns``
    and ``copies_ns`` (both exposed) and ``idle_ns``; ``blocking_ns`` is the exposed communication on which the next
    compute depended. `waits` has a row per piece of a wait: ``window``, ``start_ns``, ``end_ns``, ``cause``,
    ``activity``, ``culprit``, ``range``, ``exposed_by``, ``claim``, ``op`` (the GPU op that ran or was late), and the
    host ``thread`` (a code, -1: none). ``rows`` sums the pieces by path and GPU, see `files.WHY`. ``held_up`` has a row
    per path, GPU and kernel whose execution delayed another stream (columns ``waits``, ``waited_ns``,
    ``per_instance_ns`` and ``share_of_span``). The time in ``held_up`` is compute, so no wait includes it. ``level``
    are the ranges of the windows; ``lacks`` names data that the recording lacks; ``facts`` and ``gpu_windows`` are the
    inputs. ``residuals``: how well dependencies explain windows, see `residual_columns`. ``picked`` describes the
    chosen windows, empty for all windows; ``warm_up`` is the number of windows left out as warm-up. ``bounds``: the
    reason why all ceilings of ``rows`` are bounds; empty if ``removals`` can replay the trace without each cause.
    ``per`` is the base of ``per_instance_ns``: `window`, or `call` of an inner range (column ``calls`` of ``windows``).
    """

    attribution: Attribution
    tables: Mapping[str, ColumnTable]
    level: Level | None
    lacks: tuple[str, ...]
    facts: Facts
    gpu_windows: Windows
    per: str = "window"
    picked: str = ""
    warm_up: int = 0
    bounds: str = ""
    removals: Removals | None = field(default=None, repr=False, compare=False)
    diagnosis: Diagnosis | None = field(default=None, repr=False, compare=False)

    @property
    def chosen(self) -> str:
        """Return a clause that names the steps and the share of time that they cover."""
        return self.level.clause if self.level else ""

    windows = frame_of("windows")
    rows = frame_of("rows")
    held_up = frame_of("held_up")
    residuals = frame_of("residuals")

    def columns(self, table: str) -> ColumnTable:
        """Return the table of this name; ``waits`` is made on demand, because it can have millions of rows."""
        return self.pieces if table == "waits" else self.tables[table]

    @cached_property
    def waits(self) -> pd.DataFrame:
        """Return a row per piece of a wait, with texts as categories."""
        import pandas as pd  # noqa: PLC0415 (slow to import)

        columns = {
            name: pd.Categorical.from_codes(column.codes, pd.Index(column.words))
            if isinstance(column, Texts)
            else column
            for name, column in self.pieces.columns.items()
        }
        return pd.DataFrame(columns)

    @cached_property
    def pieces(self) -> ColumnTable:
        """Return the columns of ``waits``."""
        return self.pieces_of(np.arange(len(self.gpu_windows)))

    def pieces_of(self, rows: AnyInts) -> ColumnTable:
        """Return the pieces of waits in the given rows of ``windows``."""
        chosen = self.gpu_windows.take(rows)
        parts = []
        for gpu in np.unique(chosen.gpu).tolist():
            lines = gpu_lines(self.attribution.trace, self.facts.communication, gpu)
            parts.append(wait_pieces(self.facts, chosen, gpu, lines))
        names = (*PIECE, "communication_ns", "copies_ns")
        none = np.empty(0, np.int64)
        columns = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}
        columns["window"] = rows[columns["window"]].astype(np.int64)
        texts = {name: Texts(columns[name], words) for name, words in self.facts.words.items()}
        return ColumnTable({**columns, **texts})

    @property
    def kinds(self) -> Kinds:
        """The kinds of the op names."""
        return self.facts.kinds

    @property
    def paths(self) -> list[str]:
        """The paths of the windows, in order of appearance."""
        return list(dict.fromkeys(self.columns("windows").texts("path").tolist()))

    @cached_property
    def findings(self) -> dict[str, list[Finding]]:
        """Return the findings of the ``diagnosis`` per path; empty without a diagnosis."""
        found = self.diagnosis.findings if self.diagnosis is not None else ()
        return {path: [each for each in found if each.path == path] for path in self.paths}

    @cached_property
    def launch_bound(self) -> Mask:
        """Mark ``waits`` of a GPU that runs faster than the host launches.

        These waits are shorter than `LAUNCH_STEP_NS`, and the host meanwhile launches, makes other CUDA calls that do
        not wait, or runs code in between. It does not matter what drained the GPU queue. These waits count only in
        ranges (per path, process and GPU) where launch calls take at least `MIN_LAUNCHES` of the time.
        """
        waits = self.pieces
        length, activity = waits["end_ns"] - waits["start_ns"], waits.texts("activity")
        launches = activity.equal("launch calls")
        short = (waits.texts("cause").codes == LATE_HOST) & (length < LAUNCH_STEP_NS)
        short &= np.isin(np.array(activity.words), LAUNCHING_ACTIVITIES)[activity.codes]
        [place] = places_of(self.columns("windows"))
        first, group = distinct(place[waits["window"]], waits.texts("range").codes)
        total, launched = (sums(group, np.where(some, length, 0), len(first)) for some in (short, short & launches))
        return short & (launched >= MIN_LAUNCHES * total)[group]


def why(
    attribution: str | os.PathLike[str] | Attribution,
    select: str | None = None,
    *,
    per: str | None = None,
    instances: Instances | None = None,
    skip: int | None = None,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    replay: bool = True,
) -> Why:
    """Account for the GPU windows of the ranges that the glob ``select`` matches, by default of repeating ranges.

    ``attribution`` is a result of `attribute` or a report file.

    If ``attribution`` assigns CUDA graphs to the capturing range, replayed ops are named after this range; windows and
    host activity still follow the real launches.

    Times per instance are per window, or per call of the inner ranges whose names match ``per``. Warm-up is left out
    (see `steady`), or the first ``skip`` windows of each path and GPU if given. ``instances`` keeps only the windows
    from a first to a last number (counted from 0), or `SLOWEST`. Without ``replay``, no fix is tried, and ceilings are
    bounds. Raises `NsysprofError` if no range matches. Takes near-linear time in ops and calls.
    """
    attribution = attribute(attribution)
    kinds = kinds_of(attribution.trace, rules)
    chosen = choose_windows(attribution, kinds.communication, select, merge_names)
    windows = chosen.windows
    if chosen.attribution is not attribution.launched:  # iterations were found beside annotated ranges
        attribution = chosen.attribution
    rows, picked = pick_windows(attribution.launched, windows, instances, skip)

    def diagnosed(facts: Facts) -> Diagnosis:
        return diagnose(
            case_of(attribution, select, kinds, merge_names, chosen=chosen, rows=rows, facts=facts, replay=replay)
        )

    large = len(attribution.trace.ops) > MAX_OPS  # then the account shares nothing with the diagnosis, and takes memory
    diagnosis = diagnosed(facts_of(attribution, kinds, merge_names)) if large else None
    answer = account_for(
        attribution, windows, chosen.texts, kinds, merge_names=merge_names, level=chosen.level, rows=rows
    )
    removals, bounds = None, NOT_ASKED
    if replay:
        removals, bounds = removals_of(answer.facts, windows, rows, answer.tables, lambda: answer.pieces)
    ceilings = forecast_ceilings(answer.columns("rows"), removals)
    warm_up = len(windows) - len(rows) if instances is None and skip is None else 0
    diagnosis = diagnosis or diagnosed(answer.facts)
    answer = replace(
        answer,
        picked=picked,
        warm_up=warm_up,
        tables={**answer.tables, "rows": _with_hints(ceilings, diagnosis)},
        bounds=bounds,
        removals=removals,
        diagnosis=diagnosis,
    )
    if per is None:
        return answer
    return _per_call(answer, count_calls(attribution, answer.gpu_windows, chosen.texts, per, merge_names))


def account_for(
    attribution: Attribution,
    windows: Windows,
    paths: Sequence[str],
    kinds: Kinds,
    *,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    level: Level | None = None,
    rows: AnyInts | None = None,
) -> Why:
    """Account for windows; ``paths`` are the texts of `Windows.path`, ``kinds`` the kinds of `Trace.op_names`.

    With ``rows`` (ascending), only these windows are accounted for.
    """
    answer = account_of(attribution, windows, paths, kinds, merge_names, rows)
    windows = windows if rows is None else windows.take(rows)
    facts = answer.facts
    residuals = residual_columns(facts.attribution.trace, facts.reasons, windows, answer.windows.texts("path"))
    tables = {
        "windows": answer.windows,
        "rows": without_ceilings(answer.rows, residuals),
        "held_up": answer.held_up,
        "residuals": residuals,
    }
    return Why(facts.attribution, tables, level, facts.lacks, facts, windows)


def _with_hints(rows: ColumnTable, diagnosis: Diagnosis) -> ColumnTable:
    """The rows of why.csv with the remedies that were tried against their culprits, the best of each."""
    hints = {
        (each.path, each.gpu, culprit): each.remedy
        for each in reversed(diagnosis.findings)
        if each.remedy
        for culprit in each.culprits
    }
    keys = zip(*(rows.columns[name].tolist() for name in ("path", "gpu", "culprit")), strict=True)
    words = ["", *dict.fromkeys(hints.values())]
    codes = [words.index(hints.get(key, "")) for key in keys]
    return ColumnTable({**rows.columns, "hint": Texts(np.array(codes, np.int64), words)})


def _per_call(answer: Why, calls: Ints) -> Why:
    """The same answer with times per call; ``calls`` has the number in each window."""
    names = ("windows", "rows", "held_up")
    place, *places = places_of(*(answer.columns(name) for name in names))
    windows_of_call = np.bincount(place) / sums(place, calls, int(place.max(initial=-1)) + 1)
    tables = {**answer.tables, "windows": ColumnTable({**answer.columns("windows").columns, "calls": calls})}
    for name, at in zip(names[1:], places, strict=True):
        table = tables[name]
        scaled = {each: table[each] * windows_of_call[at] for each in _PER_INSTANCE if each in table.columns}
        tables[name] = ColumnTable({**table.columns, **scaled})
    return replace(answer, tables=tables, per="call")
