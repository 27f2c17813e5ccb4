"""The result of an analysis: ranges, kernels and the ledger of one report, as columns and as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysprof.analyze.kernel_tables import family_table, kernel_tables
from nsysprof.analyze.ledger import chosen_totals, ledger_columns, slow_starts, totals
from nsysprof.analyze.tables import (
    LAUNCH,
    InstanceRows,
    KernelRows,
    PathRows,
    instance_columns,
    kernel_columns,
    merged_columns,
    range_columns,
)
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.backward import forward_of_ranges
from nsysprof.attribution.graph_work import GraphCounts, GraphWork, graph_counts
from nsysprof.attribution.paths import Paths, instance_numbers
from nsysprof.attribution.split import Part
from nsysprof.charts.notebook import Shown, view_of
from nsysprof.core.arena import give_back
from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.columns import Column, ColumnTable, Texts, codes_of, first_appearances, frame_of, ranks, stack_tables
from nsysprof.core.parallel import side_by_side
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import MAX_OPS, Diagnosis, case_of, diagnose
from nsysprof.diagnosis.finding import Finding
from nsysprof.kernels.classify import Kinds, OpGroups, op_groups
from nsysprof.kernels.launches import Launches, launches_of, no_launches
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.summary import Answer, Asked
from nsysprof.summaries.unified import UnifiedMemory, unified_memory
from nsysprof.waits.facts import read_facts
from nsysprof.waits.ranges import Chosen, choose_windows
from nsysprof.waits.windows import steady

if TYPE_CHECKING:
    import pandas as pd

    from nsysprof.hotspots.hotspots import Spot


@dataclass(frozen=True, repr=False)
class Breakdown(Shown):
    """The result of `break_down`. Tables are built on first use; times are int64 ns.

    `columns` returns a table as numpy columns; the attribute with the table's name is a pandas DataFrame with a default
    index. ``ranges``: the columns of ``ranges.csv``, a row per range path. ``merged``: a row per merged path, with
    ``merged_path, name`` and ``parent`` (a row number, -1 at the top) instead of ``path``. ``families``: the work in
    each merged path by kernel family, with ``row`` (of ``merged``), ``family, ops, kernels, sum_ns``. ``kernels``: the
    columns of ``kernels.csv``, exclusive; ``merged_kernels``: kernels by ``row`` (of ``merged``, -1 = unowned) instead
    of ``path``, without median launch times; ``whole_kernels``: kernels regardless of ranges, with median launch times;
    ``kernel_sums``: counts and summed times of ``whole_kernels``, longest first, computed without sorting all ops.
    ``ledger``: ``fate, ops, sum_ns, share``.

    With ``by``, all tables except the ledger begin with a column of that name: a pid, GPU, thread or stream.
    ``options``: the arguments of `break_down`. ``kinds``: the kind of each op name. ``merged_paths``: the merged path
    of each path. ``kept``: a mask of the range instances in the result. ``graphs``: the GPU ops of CUDA graphs, by the
    range that captured them; None if no capture is known. ``parts``: the parts of a split result, each with the row in
    ``merged`` of every merged path (-1: none). ``notes``: sentences about omissions and about work that no range owns.
    """

    attribution: Attribution
    paths: Paths
    options: dict[str, Any]
    by: str | None
    merged_paths: Paths = field(repr=False)
    kinds: Kinds = field(repr=False)
    kept: Mask = field(repr=False)
    graphs: GraphWork | None = field(repr=False)
    parts: tuple[tuple[Part, Ints], ...] = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)
    _columns: dict[str, ColumnTable] = field(default_factory=dict, init=False, repr=False, compare=False)

    def columns(self, table: str) -> ColumnTable:
        """Return the table of this name, built on first use."""
        if table not in self._columns:
            self._columns[table] = _TABLES[table](self)
        return self._columns[table]

    def made_ahead(self) -> Breakdown:
        """Return the result itself. Build the summaries of a large report first; for a very large report, build the
        diagnosis and the tables for text and files in parallel.
        """
        trace = self.attribution.trace
        if trace.apart:
            _ = self.forward_path, self.geometry, trace.gpu_busy  # for several tasks
            columns = (column for each in SUMMARIES for table in each.tables for column in table.columns)
            tables = [partial(self._made, name) for name in ("kernels", "ranges", "merged")]
            tasks: list[Callable[[], Any]] = [lambda: self.diagnosis, *tables, lambda: self.summaries]
            keep = (self.path_texts, self._owner_texts, self.merged_texts, *columns)
            _, *made, vars(self)["summaries"] = side_by_side(*tasks, apart=True, keep=keep)
            for each in made:
                self._columns.update(each)
        elif len(trace.ops) > MAX_OPS:
            give_back()
            _ = self.summaries
            give_back()
        return self

    def _made(self, table: str) -> dict[str, ColumnTable]:
        self.columns(table)
        return self._columns

    @cached_property
    def records(self) -> dict[str, pd.DataFrame]:
        """Return the tables ``ops, launches, ranges, instances`` of ``nsysprof export``; see `records`."""
        return view_of(self, "records", "record_frames")

    @property
    def ops(self) -> pd.DataFrame:
        """Return the table ``ops`` of `records`: a row per GPU op, with its owner."""
        return self.records["ops"]

    @property
    def launches(self) -> pd.DataFrame:
        """Return the table ``launches`` of `records`: a row per host call that caused GPU work."""
        return self.records["launches"]

    ranges = frame_of("ranges")
    merged = frame_of("merged")
    families = frame_of("families")
    kernels = frame_of("kernels")
    merged_kernels = frame_of("merged_kernels")
    ledger = frame_of("ledger")

    @cached_property
    def totals(self) -> dict[str, int]:
        """Return the `totals` of the whole report; with ``select``, also the `chosen_totals`."""
        if not self.narrowed:
            return totals(self.attribution)
        return {**totals(self.attribution), **chosen_totals(self.attribution, np.flatnonzero(self.kept))}

    @property
    def work_ns(self) -> int:
        """Return the summed time of all GPU ops except migrations, in ns: the base of all shares."""
        return self.totals["sum_ns"] - self.totals["migrations_ns"]

    @property
    def gpu_count(self) -> int:
        """Return the number of GPUs with streams in the report."""
        return len(set(self.attribution.trace.gpu_numbers))

    @property
    def busy_share(self) -> float:
        """Return the busy share of the time from first to last GPU op, averaged over GPUs; NaN if unknown."""
        span = self.gpu_count * self.totals["span_ns"]
        return self.totals["busy_ns"] / span if span else float("nan")

    @cached_property
    def geometry(self) -> Launches | None:
        """Return the launch parameters of GPU ops, or None if report and trace have different numbers of ops."""
        return launches_of(self.attribution.trace)

    @cached_property
    def unified(self) -> UnifiedMemory | None:
        """The migrations of unified memory, or None if nothing migrated."""
        return unified_memory(self.attribution.trace)

    @cached_property
    def summaries(self) -> dict[str, Answer]:
        """Return the `Answer` of each summary in `SUMMARIES` for which data was recorded, by name."""
        paths = self.merged_paths
        asked = Asked(self.merged_of, paths.texts(), paths.parent, self.options["calls"], self.kinds.family)
        makers = [partial(summary.make, self.attribution, asked) for summary in SUMMARIES]
        answers = side_by_side(*makers, apart=self.attribution.trace.apart)
        return {each.name: answer for each, answer in zip(SUMMARIES, answers, strict=True) if answer is not None}

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The `Diagnosis` of the `case`. If the recording is large, the input of the diagnosis is dropped afterwards,
        because it takes a hundred bytes per GPU op.
        """
        found = diagnose(self.case)
        if len(self.attribution.trace.ops) > MAX_OPS:
            del vars(self)["case"]
            give_back()
        return found

    @cached_property
    def hottest(self) -> Spot | None:
        """Return the kernel with the most time in the steps, found without a replay; None if there is no kernel, or if
        the recording is large.
        """
        if len(self.attribution.trace.ops) > MAX_OPS:
            return None
        from nsysprof.hotspots.hotspots import hottest  # noqa: PLC0415 (large recordings do without)

        return next(iter(hottest(self.case, tried=0, most=1).spots), None)

    @cached_property
    def case(self) -> Case:
        """Return the input of the diagnosis: the program's steps or, without steps, the ranges chosen by ``select``."""
        attribution, kinds, apart = self.attribution, self.kinds, self.attribution.trace.apart
        select, merge = self.options["select"], self.options["merge"]

        def choose() -> tuple[Chosen, Index]:
            chosen = choose_windows(attribution, kinds.communication, None, merge)
            rows = _held(self, chosen)
            if select is not None and not len(rows):
                chosen = choose_windows(attribution, kinds.communication, select, merge)
                rows = _held(self, chosen)
            return chosen, rows

        (chosen, rows), facts, launched = side_by_side(
            choose,
            # of the ranges as recorded: iterations that are found need facts of their own
            lambda: read_facts(attribution.launched, kinds, merge) if apart else None,
            lambda: self.geometry,
            apart=apart,
        )
        known = facts if chosen.attribution is attribution.launched else None
        more: dict[str, Any] = {"facts": known, "launched": launched, "replay": self.options.get("replay", True)}
        return case_of(attribution, select, kinds, merge, chosen=chosen, rows=rows, **more)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of the diagnosis, largest gain first."""
        return self.diagnosis.findings

    @property
    def narrowed(self) -> bool:
        """Return whether the result covers only some ranges, chosen by ``select`` or by time."""
        return self.options["select"] is not None or "from" in self.options

    @cached_property
    def graph_counts(self) -> GraphCounts:
        """The `GraphCounts` of the whole report."""
        return graph_counts(self.attribution.trace, self.attribution.replay, self.graphs)

    @cached_property
    def groups(self) -> OpGroups:
        """Return the groups of GPU ops in charts; ``group`` in ``families`` and ``merged_kernels`` is their index."""
        return op_groups(self.attribution.trace, self.kinds)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the numbers."""
        trace = self.attribution.trace
        slow = slow_starts(self.columns("merged"), self.instances_of, self.by)
        return (*trace.report.about.warnings, *trace.warnings, *self.notes, *slow)

    @cached_property
    def path_texts(self) -> list[str]:
        """The text of each path."""
        return self.paths.texts()

    @cached_property
    def _owner_texts(self) -> list[str]:
        return [*self.path_texts, ""]

    @cached_property
    def _path_rows(self) -> list[PathRows]:
        of = self.paths.of
        return [PathRows(part.attribution, self.paths, of, part.keep, _inside(part.graphs)) for part, _ in self.parts]

    @cached_property
    def merged_texts(self) -> list[str]:
        """Return the text of each path's merged path."""
        texts = self.merged_paths.texts()
        return [texts[code] for code in self.merged_paths.of.tolist()]

    @cached_property
    def merged_of(self) -> Ints32:
        """Return the merged path of each range instance."""
        return self.merged_paths.of[self.paths.of]

    @cached_property
    def forward_path(self) -> Ints32:
        """Return the path of the forward range of each range instance that does backward work, -1 for others."""
        return np.append(self.paths.of, np.int32(-1))[forward_of_ranges(self.attribution)]

    @property
    def instance_count(self) -> int:
        """Return the number of range instances in the result."""
        return int(self.kept.sum())

    def instances_of(self, row: int) -> tuple[Attribution, Index]:
        """Return the attribution from which a row of ``merged`` was computed, and the row's range instances."""
        for part, rows in self.parts:
            [path] = np.flatnonzero(rows[:-1] == row).tolist() or [-1]
            if path >= 0 and row >= 0:
                return part.attribution, np.flatnonzero(part.keep & (self.merged_of == path))
        raise IndexError(row)

    def instance_columns(self, rows: int = 1 << 62) -> Iterator[ColumnTable]:
        """Yield ``instances.csv`` (a row per instance) as one or more tables of at most ``rows`` instances."""
        kept, texts = np.flatnonzero(self.kept), (self.path_texts, self.merged_texts)
        numbers = instance_numbers(self.paths.of, self.attribution.trace.ranges.start)
        for first in range(0, max(len(kept), 1), rows):
            part = kept[first : first + rows]
            path, forward = self.paths.of[part], self.forward_path[part]
            rows_of = InstanceRows(self.attribution, path, part, numbers[part], *texts, _inside(self.graphs), forward)
            yield instance_columns(rows_of)

    @property
    def instances(self) -> pd.DataFrame:
        """All rows of `instance_columns` in one DataFrame."""
        return next(self.instance_columns()).frame()


def _held(answer: Breakdown, chosen: Chosen) -> Index:
    """The steady windows whose ranges are in the result."""
    windows = chosen.windows
    if chosen.attribution is answer.attribution.launched:
        kept = np.append(answer.kept, not answer.narrowed)[windows.range]
    else:  # iterations that were found are in no answer
        kept = np.full(len(windows), not answer.narrowed)
    rows = np.flatnonzero(kept)
    return rows[steady(chosen.attribution.launched.trace, windows.take(rows))]


def _inside(graphs: GraphWork | None) -> Attribution | None:
    return graphs.inside if graphs else None


def _ranges(answer: Breakdown) -> ColumnTable:
    texts, forward = (answer.path_texts, answer.merged_texts), answer.forward_path
    table = _labelled(answer, [range_columns(each, *texts, forward) for each in answer._path_rows])
    vars(answer).pop("_path_rows", None)
    return table


def _merged(answer: Breakdown) -> ColumnTable:
    paths, of = answer.merged_paths, answer.merged_of
    rows = [replace(each, paths=paths, of=of, finer=each) for each in answer._path_rows]
    texts = paths.texts()
    merged = (merged_columns(each, texts, row) for each, (_, row) in zip(rows, answer.parts, strict=True))
    return _labelled(answer, [*merged])


def _families(answer: Breakdown) -> ColumnTable:
    tables = []
    paths = answer.merged_paths, answer.merged_of
    for part, row in answer.parts:
        inside = family_table(part.attribution, *paths, part.keep, answer.kinds, answer.groups)
        rows = row[inside["path"]]
        columns = {name: column for name, column in inside.columns.items() if name != "path"}
        tables.append(ColumnTable({"row": rows, **columns}).take(rows >= 0))
    return _labelled(answer, tables)


def _kernels(answer: Breakdown) -> ColumnTable:
    """Make both kernel tables from one sort, and keep the table by merged path as well."""
    trace, kinds = answer.attribution.trace, answer.kinds
    if len(trace.ops) > MAX_OPS and not trace.apart:
        give_back()
    paths, texts = (answer.paths.of, answer.merged_paths.of), answer._owner_texts
    tables: list[ColumnTable] = []
    merged: list[ColumnTable] = []
    whole = answer.geometry or no_launches(len(trace.ops))
    for part, row in answer.parts:
        launches = whole if part.rows is None else whole.take(part.rows)
        own, own_merged = kernel_tables(part, paths, unowned=not answer.narrowed, launches=launches)
        owner, captured = (Texts(own[name], texts) for name in ("path", "captured"))
        tables.append(kernel_columns(KernelRows(owner, captured, own, trace.op_names, kinds, launches), "path"))
        merged.append(_by_row(answer, own_merged, row[own_merged["path"]]))
    answer._columns["merged_kernels"] = _labelled(answer, merged)
    return _labelled(answer, tables)


def _by_row(answer: Breakdown, numbers: ColumnTable, row: Ints) -> ColumnTable:
    """The columns of ``merged_kernels`` from rows of `kernel_tables`."""
    nothing = Texts(np.full(len(numbers), -1), [""])
    rows = KernelRows(row, nothing, numbers, answer.attribution.trace.op_names, answer.kinds)
    columns = {**kernel_columns(rows, "row").columns, "group": answer.groups.of[numbers["name"]]}
    del columns["captured_path"]
    return ColumnTable(columns)


def _whole_kernels(answer: Breakdown) -> ColumnTable:
    """The columns of ``merged_kernels`` by GPU op name alone, longest first, whether or not a range owns the ops."""
    if not len(answer.paths):  # both tables have the same rows
        kernels, merged = answer.columns("kernels"), answer.columns("merged_kernels")
        return ColumnTable({**merged.columns, **{name: kernels[name] for name in LAUNCH}})
    paths = np.full_like(answer.paths.of, -1), answer.merged_paths.of
    unowned = not answer.narrowed
    tables = [kernel_tables(part, paths, unowned=unowned, whole=True)[1] for part, _ in answer.parts]
    return _labelled(answer, [_by_row(answer, table, table["path"]) for table in tables])


def _kernel_sums(answer: Breakdown) -> ColumnTable:
    label = [answer.by] if answer.by else []
    table = answer.columns("kernels").summed([*label, "kernel", "family", "math_unit", "cause"], ["count", "sum_ns"])
    names = table.texts("kernel")
    part = first_appearances(codes_of(table.columns[label[0]]))[0] if label else np.zeros(len(table), np.int64)
    return table.take(np.lexsort((ranks(names.words)[names.codes], part, -table["sum_ns"])))


def _merged_kernels(answer: Breakdown) -> ColumnTable:
    answer.columns("kernels")
    return answer.columns("merged_kernels")


def _labelled(answer: Breakdown, tables: list[ColumnTable]) -> ColumnTable:
    """Concatenate the tables of all parts, with a column for the part's name if the result is split."""
    if answer.by is None:
        return tables[0]
    labels = [part.label for part, _ in answer.parts]
    codes = np.repeat(np.arange(len(labels)), [len(table) for table in tables])
    label: Column = (
        np.array(labels)[codes] if isinstance(labels[0], int) else Texts(codes, [str(each) for each in labels])
    )
    return ColumnTable({answer.by: label, **stack_tables(tables).columns})


_TABLES: dict[str, Callable[[Breakdown], ColumnTable]] = {
    "ranges": _ranges,
    "merged": _merged,
    "families": _families,
    "kernels": _kernels,
    "merged_kernels": _merged_kernels,
    "whole_kernels": _whole_kernels,
    "kernel_sums": _kernel_sums,
    "ledger": lambda answer: ledger_columns(answer.attribution),
}
