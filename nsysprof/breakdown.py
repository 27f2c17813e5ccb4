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

from nsysprof.attribution import AMBIGUOUS, FOLLOWED, NO_LAUNCH, Attribution, attribute
from nsysprof.errors import NsysprofError
from nsysprof.families import family_table
from nsysprof.frames import instance_frame, instance_numbers, kernel_frame, merged_frame, range_frame
from nsysprof.intervals import union_length
from nsysprof.kernel_table import kernel_table
from nsysprof.kernels import Kinds, Rules, classify, load_rules
from nsysprof.paths import DEFAULT_MERGE, Paths, ancestors_or_self, merged_paths, range_paths
from nsysprof.range_table import range_table
from nsysprof.tables import GRAPH, KERNEL, MEMCPY, MEMSET, Tables, only_ops
from nsysprof.units import format_share
from nsysprof.warm_up import warm_up

BY = ("process", "device")
# A range whose GPUs are idle for more than this share of its span waits for launches, or for the host.
LAUNCH_BOUND_IDLE = 0.5


@dataclass(frozen=True)
class Breakdown:
    """The answer of `break_down`; all frames have a default index, times are int64 ns.

    ``ranges``: a row per range path, the columns of ``ranges.csv``. ``merged``: the same per merged path, in place
    of ``path`` with ``merged_path, name`` and ``parent`` (a row number, -1 at the top). ``families``: what lies inside
    each merged path by kernel family, ``row`` (of ``merged``), ``family, ops, kernels, sum_ns``. ``kernels``: the
    columns of ``kernels.csv``, exclusive; ``merged_kernels``: the same with ``row`` (of ``merged``, -1 = unowned) for
    ``path``, and ``cause``. ``ledger``: ``fate, ops, sum_ns, share``. ``totals``: ops, kernels, memops, graph
    launches, launches, ranges, sum_ns, busy_ns and span_ns of the whole report.

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
    by: str | None = None
    path_texts: list[str] = field(default_factory=list, repr=False)
    merged_texts: list[str] = field(default_factory=list, repr=False)  # of each path
    kept: NDArray[np.bool_] | None = field(default=None, repr=False)  # range instances that count

    @property
    def instance_count(self) -> int:
        """How many range instances the answer holds."""
        return len(self.paths.of) if self.kept is None else int(self.kept.sum())

    def instance_frames(self, rows: int = 1 << 62) -> Iterator[pd.DataFrame]:
        """The columns of ``instances.csv``, a row per range instance, some ``rows`` at a time; at least one frame."""
        chosen = np.arange(len(self.paths.of)) if self.kept is None else np.flatnonzero(self.kept)
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


@dataclass(frozen=True)
class _Part:
    """One slice of the report that gets rows of its own: all of it, a process, or a GPU."""

    label: object
    attribution: Attribution
    keep: NDArray[np.bool_]  # per range instance
    ops: NDArray[np.bool_] | None  # per op of the attribution's tables; None: all


def break_down(
    attribution: Attribution,
    *,
    merge: Sequence[str] | None = DEFAULT_MERGE,
    select: str | None = None,
    skip: int = 0,
    by: str | None = None,
    rules: Rules | None = None,
) -> Breakdown:
    """Break an attributed report down by range path and by kernel.

    ``merge`` are globs of names that make one merged path (None: merge nothing); ``select`` keeps the ranges whose
    path, merged path or name it matches as a glob, with all inside them; ``skip`` leaves out the first instances of
    what repeats, as warm-up; ``by`` splits the rows by ``process`` or ``device``. Ledger and totals are always those
    of the whole report.

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
    kinds = classify(rules or load_rules(), tables.op_names)
    kinds = _with_memory_ops(kinds, tables)
    frames: dict[str, list[pd.DataFrame]] = {
        name: [] for name in ("ranges", "merged", "families", "kernels", "rows")
    }
    for part in _parts(attribution, keep, by):
        offset = sum(len(frame) for frame in frames["merged"])
        for name, frame in _frames(
            part, paths, merged, path_texts, merged_texts, kinds, select is None, offset
        ):
            if by is not None:
                frame.insert(0, by, [part.label] * len(frame))
            frames[name].append(frame)
    whole = {
        name: pd.concat(group, ignore_index=True) if len(group) > 1 else group[0]
        for name, group in frames.items()
    }
    ledger, totals = _ledger(attribution), _totals(attribution)
    return Breakdown(
        attribution=attribution,
        paths=paths,
        ranges=whole["ranges"],
        merged=whole["merged"],
        families=whole["families"],
        kernels=whole["kernels"],
        merged_kernels=whole["rows"],
        ledger=ledger,
        totals=totals,
        warnings=(
            *tables.report.about.warnings,
            *tables.warnings,
            *_warnings(attribution, ledger, left_out, skip),
        ),
        by=by,
        path_texts=path_texts,
        merged_texts=[merged_texts[row] for row in merged.of.tolist()],
        kept=keep,
    )


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


def _parts(attribution: Attribution, keep: NDArray[np.bool_], by: str | None) -> list[_Part]:
    tables = attribution.tables
    if by is None:
        return [_Part(None, attribution, keep, None)]
    if by == "process":
        process = tables.thread_process[tables.ranges.thread]
        of_op = tables.stream_process[tables.ops.stream] if len(tables.ops) else np.empty(0, np.int32)
        out = [
            _Part(int(pid) >> 24 & 0xFFFFFF, attribution, keep & (process == code), of_op == code)
            for code, pid in enumerate(tables.processes.tolist())
            if (process == code).any() or (of_op == code).any()
        ]
        return out or [_Part(None, attribution, keep, None)]
    numbers = np.array(tables.gpu_numbers, np.int32)
    of_op = numbers[tables.stream_device][tables.ops.stream] if len(tables.ops) else np.empty(0, np.int32)
    labels = device_labels(tables)
    out = []
    for number in sorted(set(numbers.tolist())):
        part = attribute(only_ops(tables, of_op == number), attribution.threads)
        out.append(_Part(labels[number], part, keep & (part.inclusive.launches > 0), None))
    return out or [_Part(None, attribution, keep, None)]


def device_labels(tables: Tables) -> dict[int, str]:
    """What to call each GPU number of `Tables.gpu_numbers`: ``GPU 0``, or ``device 0 of pid 42`` where unknown."""
    out = {}
    for device, number in zip(tables.devices, tables.gpu_numbers, strict=True):
        pid = int(tables.processes[device.process]) >> 24 & 0xFFFFFF
        unknown = f"device {device.cuda_id} of pid {pid}"
        out[number] = unknown if device.gpu is None else f"GPU {tables.report.about.gpus[device.gpu].id}"
    return out


def _with_memory_ops(kinds: Kinds, tables: Tables) -> Kinds:
    """Ops that are no kernels are families of their own, whatever the rules say of their names."""
    family = list(kinds.family)
    kind_of_name = np.zeros(len(family), np.uint8)
    kind_of_name[tables.ops.name] = tables.ops.kind
    for kind, name in ((MEMCPY, "memcpy"), (MEMSET, "memset"), (GRAPH, "graph")):
        for code in np.flatnonzero(kind_of_name == kind).tolist():
            family[code] = name
    return replace(kinds, family=family)


def _frames(
    part: _Part,
    paths: Paths,
    merged: Paths,
    path_texts: list[str],
    merged_texts: list[str],
    kinds: Kinds,
    unowned: bool,
    offset: int,
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The frames of one part; rows of ``merged`` are counted from ``offset``."""
    tables, merged_of = part.attribution.tables, merged.of[paths.of]
    table = range_table(part.attribution, paths, paths.of, part.keep)
    yield "ranges", range_frame(table, tables, path_texts, merged_texts, merged.of)
    owned = kernel_table(part.attribution, paths.of, part.keep, unowned=unowned, ops=part.ops)
    yield "kernels", kernel_frame(owned, "path", _texts_or_empty(owned.path, path_texts), tables, kinds)
    table = range_table(part.attribution, merged, merged_of, part.keep)
    some = table.instances > 0
    row = np.append(np.where(some, np.cumsum(some) - 1 + offset, -1), -1)  # of each merged path in the frame
    yield "merged", merged_frame(table, merged_texts, row)
    owned = kernel_table(part.attribution, merged_of, part.keep, unowned=unowned, ops=part.ops)
    rows = kernel_frame(owned, "row", row[owned.path], tables, kinds)
    rows["cause"] = [kinds.cause[name] for name in owned.name.tolist()]
    yield "rows", rows
    families = family_table(part.attribution, merged, merged_of, part.keep, kinds)
    families["path"] = row[families["path"]]
    families = families[families["path"] >= 0].reset_index(drop=True)
    yield "families", families.rename(columns={"path": "row"})


def _texts_or_empty(codes: NDArray[np.integer], texts: list[str]) -> NDArray[Any]:
    """The text of each code; -1 has the empty text."""
    found: NDArray[Any] = np.array([*texts, ""], object)[codes]
    return found


def _ledger(attribution: Attribution) -> pd.DataFrame:
    total = sum(row.sum_ns for row in attribution.ledger)
    return pd.DataFrame(
        {
            "fate": [row.fate for row in attribution.ledger],
            "ops": [row.ops for row in attribution.ledger],
            "sum_ns": [row.sum_ns for row in attribution.ledger],
            "share": [row.sum_ns / total if total else 0.0 for row in attribution.ledger],
        }
    )


def _totals(attribution: Attribution) -> dict[str, int]:
    """Counts and times of the whole report; busy per GPU, added; span from the first op to the last end."""
    tables = attribution.tables
    ops = tables.ops
    gpu = np.array(tables.gpu_numbers, np.int32)[tables.stream_device][ops.stream] if len(ops) else None
    busy = sum(
        union_length(ops.start[mine], ops.end[mine])
        for number in set(tables.gpu_numbers)
        for mine in [gpu == number]
    )
    return {
        "ops": len(ops),
        "kernels": int((ops.kind == KERNEL).sum()),
        "memops": int(((ops.kind == MEMCPY) | (ops.kind == MEMSET)).sum()),
        "graph_traces": int((ops.kind == GRAPH).sum()),
        "launches": len(tables.launches),
        "ranges": len(tables.ranges),
        "sum_ns": int((ops.end - ops.start).sum()),
        "busy_ns": busy,
        "span_ns": int(ops.end.max() - ops.start.min()) if len(ops) else 0,
    }


def _warnings(
    attribution: Attribution, ledger: pd.DataFrame, left_out: NDArray[np.bool_], skip: int
) -> Iterator[str]:
    """What a reader must know before believing the numbers."""

    def ops(fate: int) -> str:
        return f"{attribution.ledger[fate].ops:,} ({format_share(ledger['share'][fate])} of op time)"

    unclosed = int(attribution.tables.ranges.unclosed.sum())
    if unclosed:
        yield f"ranges never closed: {unclosed:,} of {len(left_out):,}; they end with the session"
    if attribution.ledger[NO_LAUNCH].ops:
        yield f"ops without a launch row in the report: {ops(NO_LAUNCH)}; no range owns them"
    if attribution.ledger[AMBIGUOUS].ops:
        yield f"ops of helper threads, with ranges open on several threads: {ops(AMBIGUOUS)}; no range owns them"
    if attribution.ledger[FOLLOWED].ops:
        yield f"ops of helper threads that follow the one range open elsewhere: {ops(FOLLOWED)}; see --threads"
    if left_out.any():
        yield f"warm-up instances left out: {int(left_out.sum()):,} (--skip {skip})"
