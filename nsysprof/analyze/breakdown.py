"""Where the time went: ranges, kernels and the ledger of one report as pandas frames."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.analyze.family_table import family_table
from nsysprof.analyze.frames import instance_frame, kernel_frame, merged_frame, range_frame
from nsysprof.analyze.kernel_table import kernel_table
from nsysprof.analyze.ledger import ledger_frame, totals, warnings
from nsysprof.analyze.range_table import range_table
from nsysprof.analyze.slow_start import slow_starts
from nsysprof.analyze.unified_memory import UnifiedMemory, unified_memory
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import DEFAULT_MERGE, Paths, merged_paths, range_paths
from nsysprof.attribution.split import Part, parts
from nsysprof.attribution.warm_up import Instances, instance_numbers, instances_text, warm_up
from nsysprof.core.forest import ancestors_or_self
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Kinds, Rules, classify, load_rules
from nsysprof.kernels.groups import OpGroups, op_groups
from nsysprof.trace.tables import GRAPH, MEMCPY, MEMSET, MIGRATION, Tables

BY = ("process", "device")
_CHUNK = 1 << 20  # ops at a time where temporaries would be large
_FRAMES = ("ranges", "merged", "families", "kernels", "merged_kernels")


@dataclass(frozen=True)
class Breakdown:
    """The answer of `break_down`; all frames have a default index, times are int64 ns.

    ``ranges``: a row per range path, the columns of ``ranges.csv``. ``merged``: the same per merged path, in place
    of ``path`` with ``merged_path, name`` and ``parent`` (a row number, -1 at the top). ``families``: what lies inside
    each merged path by kernel family, ``row`` (of ``merged``), ``family, ops, kernels, sum_ns``. ``kernels``: the
    columns of ``kernels.csv``, exclusive; ``merged_kernels``: the same with ``row`` (of ``merged``, -1 = unowned) for
    ``path``. ``ledger``: ``fate, ops, sum_ns, share``. ``totals``: ops, kernels, memops, graph
    launches, launches, ranges, sum_ns, busy_ns and span_ns of the whole report. ``kinds``: what each op name is.
    ``groups``: what charts tell ops apart by, also the ``group`` of ``families`` and ``merged_kernels``.
    ``options``: what `break_down` was asked for. ``unified``: what moved of unified memory, None where nothing did.

    With ``by`` all frames but the ledger begin with a column of that name: a pid, or a GPU.
    """

    attribution: Attribution
    paths: Paths
    ranges: pd.DataFrame
    merged: pd.DataFrame
    families: pd.DataFrame
    kernels: pd.DataFrame
    merged_kernels: pd.DataFrame
    ledger: pd.DataFrame
    totals: dict[str, int]
    warnings: tuple[str, ...]
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

    def instance_frames(self, rows: int = 1 << 62) -> Iterator[pd.DataFrame]:
        """The columns of ``instances.csv``, a row per range instance, some ``rows`` at a time; at least one frame."""
        chosen = np.flatnonzero(self.kept)
        numbers = instance_numbers(self.paths.of, self.attribution.tables.ranges.start)
        for first in range(0, max(len(chosen), 1), rows):
            part = chosen[first : first + rows]
            yield instance_frame(
                self.attribution, self.paths, part, numbers[part], self.path_texts, self.merged_texts
            )

    @property
    def instances(self) -> pd.DataFrame:
        """All rows of `instance_frames` in one frame."""
        return next(self.instance_frames())


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
    tables = attribution.tables
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge)
    path_texts, merged_texts = paths.texts(), merged.texts()
    chosen = _selected(paths, merged, path_texts, merged_texts, select, tables)
    merged_of = merged.of[paths.of]
    left_out = warm_up(attribution, merged, merged_of, skip)
    keep = chosen[paths.of] & ~left_out
    if instances is not None:
        numbers = instance_numbers(merged_of, tables.ranges.start)
        keep &= (numbers >= instances[0]) & (numbers <= instances[1])
    kinds = classify(rules or load_rules(), tables.op_names)
    kinds = _with_memory_ops(kinds, tables)
    groups = op_groups(tables, kinds)
    slices = parts(attribution, keep, by)
    frames, rows = _all_frames(
        slices, paths, merged, path_texts, merged_texts, kinds, groups, select is None, by
    )
    unified = unified_memory(tables)
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
    answer = Breakdown(
        attribution=attribution,
        paths=paths,
        **frames,
        ledger=ledger_frame(attribution),
        totals=totals(attribution),
        warnings=(*tables.report.about.warnings, *tables.warnings, *own),
        options=options,
        unified=unified,
        by=by,
        kinds=kinds,
        groups=groups,
        path_texts=path_texts,
        merged_texts=[merged_texts[code] for code in merged.of.tolist()],
        kept=keep,
        parts=tuple(zip(slices, rows, strict=True)),
        merged_of=merged_of,
    )
    slow = slow_starts(answer.merged, answer.instances_of, by)
    return replace(answer, warnings=(*answer.warnings, *slow))


def _selected(
    paths: Paths,
    merged: Paths,
    path_texts: list[str],
    merged_texts: list[str],
    select: str | None,
    tables: Tables,
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
            f"no range of {tables.report.path} matches {select!r}: {known}",
            f"nsysprof analyze {shlex.quote(str(tables.report.path))} --no-charts",
        )
    return hit


def _with_memory_ops(kinds: Kinds, tables: Tables) -> Kinds:
    """Ops that are no kernels are families of their own, whatever the rules say of their names."""
    family, cause = list(kinds.family), list(kinds.cause)
    kind_of_name = np.zeros(len(family), np.uint8)
    for first in range(0, len(tables.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        kind_of_name[tables.ops.name[part]] = tables.ops.kind[part]
    names = {MEMCPY: "memcpy", MEMSET: "memset", GRAPH: "graph", MIGRATION: "migration"}
    for kind, name in names.items():
        for code in np.flatnonzero(kind_of_name == kind).tolist():
            family[code] = cause[code] = name
    return replace(kinds, family=family, cause=cause)


def _all_frames(
    slices: list[Part],
    paths: Paths,
    merged: Paths,
    path_texts: list[str],
    merged_texts: list[str],
    kinds: Kinds,
    groups: OpGroups,
    unowned: bool,
    by: str | None,
) -> tuple[dict[str, pd.DataFrame], list[NDArray[np.int64]]]:
    """The frames of all parts, one below the other, labelled where split, and each part's rows of ``merged``."""
    frames: dict[str, list[pd.DataFrame]] = {name: [] for name in _FRAMES}
    rows: list[NDArray[np.int64]] = []
    for part in slices:
        offset = sum(len(frame) for frame in frames["merged"])
        found, row = _frames(part, paths, merged, path_texts, merged_texts, kinds, groups, unowned, offset)
        rows.append(row)
        for name, frame in found.items():
            if by is not None:
                frame.insert(0, by, [part.label] * len(frame))
            frames[name].append(frame)
    whole = {
        name: pd.concat(group, ignore_index=True) if len(group) > 1 else group[0]
        for name, group in frames.items()
    }
    return whole, rows


def _frames(
    part: Part,
    paths: Paths,
    merged: Paths,
    path_texts: list[str],
    merged_texts: list[str],
    kinds: Kinds,
    groups: OpGroups,
    unowned: bool,
    offset: int,
) -> tuple[dict[str, pd.DataFrame], NDArray[np.int64]]:
    """The frames of one part, and the row of each merged path in the frame of those, counted from ``offset``.

    The row is -1 for a merged path without instances, and for none, which is one entry more.
    """
    tables, merged_of = part.attribution.tables, merged.of[paths.of]
    per_path = range_table(part.attribution, paths, paths.of, part.keep)
    per_merged = range_table(part.attribution, merged, merged_of, part.keep)
    some = per_merged.instances > 0
    row = np.append(np.where(some, np.cumsum(some) - 1 + offset, -1), -1)
    owned = kernel_table(part.attribution, paths.of, part.keep, unowned=unowned, ops=part.ops)
    kernels = kernel_frame(owned, "path", _texts_or_empty(owned.path, path_texts), tables, kinds)
    owned = kernel_table(part.attribution, merged_of, part.keep, unowned=unowned, ops=part.ops)
    merged_kernels = kernel_frame(owned, "row", row[owned.path], tables, kinds)
    merged_kernels["group"] = groups.of[owned.name]
    families = family_table(part.attribution, merged, merged_of, part.keep, kinds, groups)
    families["path"] = row[families["path"]]
    families = families[families["path"] >= 0].reset_index(drop=True)
    found = {
        "ranges": range_frame(per_path, tables, path_texts, merged_texts, merged.of),
        "merged": merged_frame(per_merged, merged_texts, row),
        "families": families.rename(columns={"path": "row"}),
        "kernels": kernels,
        "merged_kernels": merged_kernels,
    }
    return found, row


def _texts_or_empty(codes: NDArray[np.integer], texts: list[str]) -> NDArray[Any]:
    """The text of each code; -1 has the empty text."""
    found: NDArray[Any] = np.array([*texts, ""], object)[codes]
    return found
