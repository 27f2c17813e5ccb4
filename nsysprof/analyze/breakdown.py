"""Where the time went: ranges, kernels and the ledger of one report, as columns and as pandas frames."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.columns import (
    instance_columns,
    kernel_columns,
    merged_columns,
    range_columns,
)
from nsysprof.analyze.family_table import family_table
from nsysprof.analyze.kernel_table import kernel_tables
from nsysprof.analyze.ledger import ledger_columns, totals, warnings
from nsysprof.analyze.range_table import range_table
from nsysprof.analyze.slow_start import slow_starts
from nsysprof.analyze.unified_memory import UnifiedMemory, unified_memory
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import (
    DEFAULT_MERGE,
    Instances,
    Paths,
    instance_numbers,
    instances_text,
    merged_paths,
    range_paths,
    warm_up,
)
from nsysprof.attribution.split import Part, parts
from nsysprof.core.columns import Column, ColumnTable, Texts, stack_tables
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Kinds, Rules, classify, load_rules
from nsysprof.kernels.groups import OpGroups, op_groups
from nsysprof.trace.trace import GRAPH, MEMCPY, MEMSET, MIGRATION, Trace

if TYPE_CHECKING:
    import pandas as pd

BY = ("process", "device")
_CHUNK = 1 << 20  # ops at a time where temporaries would be large


@dataclass(frozen=True)
class Breakdown:
    """The answer of `break_down`: tables that are made when they are first asked for; times are int64 ns.

    `columns` gives a table as numpy columns; the attribute of its name is the same as a pandas frame with a default
    index. ``ranges``: a row per range path, the columns of ``ranges.csv``. ``merged``: the same per merged path, in
    place of ``path`` with ``merged_path, name`` and ``parent`` (a row number, -1 at the top). ``families``: what lies
    inside each merged path by kernel family, ``row`` (of ``merged``), ``family, ops, kernels, sum_ns``. ``kernels``:
    the columns of ``kernels.csv``, exclusive; ``merged_kernels``: the same with ``row`` (of ``merged``, -1 = unowned)
    for ``path``. ``ledger``: ``fate, ops, sum_ns, share``.

    ``totals``: ops, kernels, memops, graph launches, launches, ranges, sum_ns, busy_ns and span_ns of the whole report.
    ``kinds``: what each op name is. ``groups``: what charts tell ops apart by, also the ``group`` of ``families`` and
    ``merged_kernels``. ``options``: what `break_down` was asked for. ``unified``: what moved of unified memory, None
    where nothing did.

    With ``by`` all tables but the ledger begin with a column of that name: a pid, or a GPU.
    """

    attribution: Attribution
    paths: Paths
    merged_paths: Paths = field(repr=False)  # of each path
    totals: dict[str, int]
    options: dict[str, Any]
    unified: UnifiedMemory | None
    by: str | None
    kinds: Kinds = field(repr=False)
    groups: OpGroups = field(repr=False)
    path_texts: list[str] = field(repr=False)
    merged_texts: list[str] = field(repr=False)  # of each path
    kept: NDArray[np.bool_] = field(repr=False)  # range instances that count
    parts: tuple[tuple[Part, NDArray[np.int64]], ...] = field(repr=False)  # with the row of each merged path
    merged_of: NDArray[np.int32] = field(repr=False)  # the merged path of each range instance
    first_warnings: tuple[str, ...] = field(repr=False)  # all warnings but those of slow starts
    _columns: dict[str, ColumnTable] = field(default_factory=dict, init=False, repr=False, compare=False)

    def columns(self, table: str) -> ColumnTable:
        """A table by the name of its frame."""
        if table not in self._columns:
            self._columns[table] = _TABLES[table](self)
        return self._columns[table]

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """The frame of range paths."""
        return self.columns("ranges").frame()

    @cached_property
    def merged(self) -> pd.DataFrame:
        """The frame of merged paths."""
        return self.columns("merged").frame()

    @cached_property
    def families(self) -> pd.DataFrame:
        """The frame of kernel families inside merged paths."""
        return self.columns("families").frame()

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The frame of kernels per path that owns them."""
        return self.columns("kernels").frame()

    @cached_property
    def merged_kernels(self) -> pd.DataFrame:
        """The frame of kernels per merged path that owns them."""
        return self.columns("merged_kernels").frame()

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """The frame of the ledger."""
        return self.columns("ledger").frame()

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before believing the numbers."""
        return (*self.first_warnings, *slow_starts(self.columns("merged"), self.instances_of, self.by))

    @property
    def work_ns(self) -> int:
        """The sum of all ops but migrations: what shares are of."""
        return self.totals["sum_ns"] - self.totals["migrations_ns"]

    @property
    def instance_count(self) -> int:
        """How many range instances the answer holds."""
        return int(self.kept.sum())

    def instances_of(self, row: int) -> tuple[Attribution, NDArray[np.intp]]:
        """The range instances behind a row of ``merged``, and the attribution that has their totals."""
        for part, rows in self.parts:
            [path] = np.flatnonzero(rows[:-1] == row).tolist() or [-1]
            if path >= 0 and row >= 0:
                return part.attribution, np.flatnonzero(part.keep & (self.merged_of == path))
        raise IndexError(row)

    def instance_columns(self, rows: int = 1 << 62) -> Iterator[ColumnTable]:
        """The columns of ``instances.csv``, a row per range instance, some ``rows`` at a time; at least one table."""
        chosen = np.flatnonzero(self.kept)
        numbers = instance_numbers(self.paths.of, self.attribution.trace.ranges.start)
        for first in range(0, max(len(chosen), 1), rows):
            part = chosen[first : first + rows]
            yield instance_columns(
                self.attribution, self.paths, part, numbers[part], self.path_texts, self.merged_texts
            )

    @property
    def instances(self) -> pd.DataFrame:
        """All rows of `instance_columns` in one frame."""
        return next(self.instance_columns()).frame()


def break_down(
    attribution: Attribution,
    *,
    merge: Sequence[str] | None = DEFAULT_MERGE,
    select: str | None = None,
    skip: int = 0,
    instances: Instances | None = None,
    by: str | None = None,
    rules: Rules | None = None,
) -> Breakdown:
    """Break an attributed report down by range path and by kernel.

    ``merge`` are globs of names that make one merged path (None: merge nothing); ``select`` keeps the ranges whose
    path, merged path or name it matches as a glob, with all inside them; ``skip`` leaves out the first instances of
    what repeats, as warm-up; ``instances`` keeps but these of each merged path, counted from 0; ``by`` splits the rows
    by ``process`` or ``device``. Ledger and totals are always those of the whole report.

    Raises `NsysprofError` where nothing matches ``select`` or ``by`` is unknown.
    """
    if by is not None and by not in BY:
        raise NsysprofError(f"cannot split rows by {by!r}", f"choose {' or '.join(BY)}")
    trace = attribution.trace
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge)
    path_texts, merged_texts = paths.texts(), merged.texts()
    chosen = _selected(paths, merged, path_texts, merged_texts, select, trace)
    merged_of = merged.of[paths.of]
    left_out = warm_up(attribution, merged, merged_of, skip)
    keep = chosen[paths.of] & ~left_out
    if instances is not None:
        numbers = instance_numbers(merged_of, trace.ranges.start)
        keep &= (numbers >= instances[0]) & (numbers <= instances[1])
    kinds = classify(rules or load_rules(), trace.op_names)
    kinds = _with_memory_ops(kinds, trace)
    unified = unified_memory(trace)
    own = [
        *(unified.sentences() if unified else ()),
        *warnings(attribution, paths, left_out, skip, select, int(chosen[paths.of].sum())),
    ]
    options: dict[str, Any] = {
        "select": select,
        "skip": skip,
        "merge": list(merge) if merge is not None else None,
    }
    if instances is not None:
        options["instances"] = list(instances)
        own.append(f"left out of each range: all but {instances_text(instances)} (--instance)")
    return Breakdown(
        attribution=attribution,
        paths=paths,
        merged_paths=merged,
        totals=totals(attribution),
        options=options,
        unified=unified,
        by=by,
        kinds=kinds,
        groups=op_groups(trace, kinds),
        path_texts=path_texts,
        merged_texts=[merged_texts[code] for code in merged.of.tolist()],
        kept=keep,
        parts=tuple(_with_rows(parts(attribution, keep, by), merged_of, len(merged))),
        merged_of=merged_of,
        first_warnings=(*trace.report.about.warnings, *trace.warnings, *own),
    )


def _with_rows(
    slices: list[Part], merged_of: NDArray[np.int32], count: int
) -> Iterator[tuple[Part, NDArray[np.int64]]]:
    """Each part with the row of each merged path in the table of those, whose rows stand part by part.

    The row is -1 for a merged path without instances, and for none, which is one entry more.
    """
    before = 0
    for part in slices:
        some = np.bincount(merged_of[part.keep], minlength=count) > 0
        yield part, np.append(np.where(some, np.cumsum(some) - 1 + before, -1), -1)
        before += int(some.sum())


def _selected(
    paths: Paths,
    merged: Paths,
    path_texts: list[str],
    merged_texts: list[str],
    select: str | None,
    trace: Trace,
) -> NDArray[np.bool_]:
    """Which paths a glob selects: it matches the path, its merged path or its name, or those of an ancestor."""
    if select is None:
        return np.ones(len(paths), bool)
    names = np.array([fnmatchcase(name, select) for name in paths.names], bool)
    of_merged = np.array([fnmatchcase(text, select) for text in merged_texts], bool)
    of_path = np.array([fnmatchcase(text, select) for text in path_texts], bool)
    hit = ancestors_or_self(
        paths.parent, of_path | names[paths.name] | of_merged[merged.of] if len(paths) else of_path
    )
    if not hit.any():
        some = ", ".join(repr(text) for text in dict.fromkeys(merged_texts[:3]))
        known = f"it has, for example, {some}" if some else "it has no ranges at all"
        raise NsysprofError(
            f"no range of {trace.report.path} matches {select!r}: {known}",
            f"nsysprof analyze {shlex.quote(str(trace.report.path))} --no-charts",
        )
    return hit


def _with_memory_ops(kinds: Kinds, trace: Trace) -> Kinds:
    """Ops that are no kernels are families of their own, whatever the rules say of their names."""
    family, cause = list(kinds.family), list(kinds.cause)
    kind_of_name = np.zeros(len(family), np.uint8)
    for first in range(0, len(trace.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        kind_of_name[trace.ops.name[part]] = trace.ops.kind[part]
    names = {MEMCPY: "memcpy", MEMSET: "memset", GRAPH: "graph", MIGRATION: "migration"}
    for kind, name in names.items():
        for code in np.flatnonzero(kind_of_name == kind).tolist():
            family[code] = cause[code] = name
    return replace(kinds, family=family, cause=cause)


def _ranges(answer: Breakdown) -> ColumnTable:
    trace, paths = answer.attribution.trace, answer.paths
    texts = answer.path_texts, answer.merged_texts, np.arange(len(paths), dtype=np.int32)
    found = [range_table(part.attribution, paths, paths.of, part.keep) for part, _ in answer.parts]
    return _labelled(answer, [range_columns(table, trace, *texts) for table in found])


def _merged(answer: Breakdown) -> ColumnTable:
    paths, merged_of = answer.merged_paths, answer.merged_of
    texts = paths.texts()
    found = [(range_table(part.attribution, paths, merged_of, part.keep), row) for part, row in answer.parts]
    return _labelled(answer, [merged_columns(table, texts, row) for table, row in found])


def _families(answer: Breakdown) -> ColumnTable:
    found = []
    for part, row in answer.parts:
        paths, merged_of = answer.merged_paths, answer.merged_of
        inside = family_table(part.attribution, paths, merged_of, part.keep, answer.kinds, answer.groups)
        place = row[inside["path"]]
        columns = {"row": place, **inside.columns}
        del columns["path"]
        found.append(ColumnTable(columns).take(place >= 0))
    return _labelled(answer, found)


def _kernels(answer: Breakdown) -> ColumnTable:
    """Both tables of kernels come from one sort: that of the merged paths is kept as well."""
    trace, kinds = answer.attribution.trace, answer.kinds
    paths = answer.paths.of, answer.merged_paths.of
    texts = [*answer.path_texts, ""]
    found: list[ColumnTable] = []
    merged: list[ColumnTable] = []
    for part, row in answer.parts:
        unowned = answer.options["select"] is None
        own, own_merged = kernel_tables(part.attribution, paths, part.keep, unowned=unowned, ops=part.ops)
        found.append(kernel_columns(own, "path", Texts(own.path, texts), trace, kinds))
        columns = kernel_columns(own_merged, "row", row[own_merged.path], trace, kinds).columns
        merged.append(ColumnTable({**columns, "group": answer.groups.of[own_merged.name]}))
    answer._columns["merged_kernels"] = _labelled(answer, merged)
    return _labelled(answer, found)


def _merged_kernels(answer: Breakdown) -> ColumnTable:
    answer.columns("kernels")
    return answer.columns("merged_kernels")


def _labelled(answer: Breakdown, tables: list[ColumnTable]) -> ColumnTable:
    """The tables of all parts, one below the other, with what each part is called where the answer is split."""
    if answer.by is None:
        return tables[0]
    labels = [part.label for part, _ in answer.parts]
    codes = np.repeat(np.arange(len(labels)), [len(table) for table in tables])
    label: Column = (
        np.array(labels)[codes]
        if isinstance(labels[0], int)
        else Texts(codes, [str(each) for each in labels])
    )
    return ColumnTable({answer.by: label, **stack_tables(tables).columns})


_TABLES: dict[str, Callable[[Breakdown], ColumnTable]] = {
    "ranges": _ranges,
    "merged": _merged,
    "families": _families,
    "kernels": _kernels,
    "merged_kernels": _merged_kernels,
    "ledger": lambda answer: ledger_columns(answer.attribution),
}
