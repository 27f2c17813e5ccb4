"""One side of a comparison: a merged range of a report with its calls, its ops and what stands behind its span."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import near_names
from nsysprof.attribution.paths import (
    DEFAULT_MERGE,
    Instances,
    Paths,
    merged_names,
    merged_paths,
    range_paths,
    warm_up,
)
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.attribution.range_work import Pieces, RangeWork, WorkIndex, cut, index_work, range_work
from nsysprof.compare.gap_ledger import SideLedger, evidence_rows, side_ledger
from nsysprof.compare.op_causes import Causes, op_causes
from nsysprof.core.intervals import Ints
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import RecordedRun
from nsysprof.kernels.classify import UNMATCHED, Kinds, Rules, classify, short_name
from nsysprof.trace.details import Waits
from nsysprof.trace.report import Gpu
from nsysprof.trace.trace import GRAPH, START_END
from nsysprof.waits.causes import Gaps, find_gaps

# A part of the span whose cause nobody knows is told from this share on.
_UNKNOWN_SHARE = 0.01
_MOST_NAMED = 3


@dataclass(frozen=True)
class Examined:
    """An attributed report with its merged paths, ready to have ranges picked: ``texts`` of the paths, ``kinds`` of the
    op names, and what the run record says, by the names of ranges. ``left_out`` are range instances that are warm-up,
    None for none.
    """

    attribution: Attribution
    merged: Paths
    texts: list[str]
    kinds: Kinds
    runs: dict[str, RecordedRun]
    left_out: NDArray[np.bool_] | None
    _order: NDArray[np.intp] = field(repr=False)
    _begin: NDArray[np.intp] = field(repr=False)

    @property
    def path(self) -> Path:
        """The report's file as it was named."""
        return self.attribution.trace.report.path

    @cached_property
    def waits(self) -> Waits:
        """The host calls that wait for the GPU."""
        return self.attribution.trace.report.reader.waits()

    @cached_property
    def grids(self) -> NDArray[np.int64]:
        """The grid of each kernel."""
        return self.attribution.trace.report.reader.grids()

    @cached_property
    def code_of(self) -> NDArray[np.int64]:
        """The merged path of each range instance."""
        codes = np.empty(len(self._order), np.int64)
        codes[self._order] = np.repeat(np.arange(len(self.merged)), np.diff(self._begin))
        return codes

    def instances(self, codes: Sequence[int]) -> NDArray[np.intp]:
        """The range instances of some merged paths, sorted."""
        rows = [self._order[self._begin[code] : self._begin[code + 1]] for code in codes]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.intp)

    def title(self, code: int) -> str:
        """The text of a merged path; that of a start/end range says so where a push/pop range has the same one."""
        twin = self.merged.kind[code] == START_END and self._uses[self.texts[code]] > 1
        return f"{self.texts[code]} (start/end)" if twin else self.texts[code]

    @cached_property
    def _uses(self) -> Counter[str]:
        return Counter(self.texts)


def examine(
    attribution: Attribution,
    rules: Rules,
    merge: Sequence[str] | None,
    runs: dict[str, RecordedRun],
    skip: int = 0,
) -> Examined:
    """Prepare a report for picking ranges, without the first ``skip`` instances of what repeats."""
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge)
    of = merged.of[paths.of]
    order = np.argsort(of, kind="stable")
    begin = np.searchsorted(of, np.arange(len(merged) + 1), sorter=order)
    kinds = classify(rules, attribution.trace.op_names)
    left_out = warm_up(attribution, merged, of, skip) if skip else None
    return Examined(attribution, merged, merged.texts(), kinds, runs, left_out, order, begin)


@dataclass(frozen=True)
class Pick:
    """A merged path to be a side: its instances, and the calls inside them (None: each instance is one).

    ``per`` is what the calls are called. ``since``: from when on the work of each window counts, None for all of it;
    ``counted``: which of all calls there are count, None for all.
    """

    code: int
    windows: NDArray[np.intp]
    calls: NDArray[np.intp] | None
    per: str
    since: Ints | None = None
    counted: NDArray[np.bool_] | None = None


def pick(examined: Examined, code: int, per: str | None, instances: Instances | None = None) -> Pick:
    """The `Pick` of a merged path; ``per`` is a glob of names, None stands for numbered ``iter*`` and ``step*``.

    ``instances``: only these of the merged path, which may be none. Raises `NsysprofError` where nothing inside matches
    ``per``.
    """
    merged = examined.merged
    inside = np.zeros(len(merged), bool)
    inside[code] = True
    inside = ancestors_or_self(merged.parent, inside)
    inside[code] = False
    if per is None:
        hits = np.isin(np.array(merged_names(merged.names), object), DEFAULT_MERGE)
    else:
        hits = np.array([fnmatchcase(name, per) for name in merged.names], bool)
    hit = inside & hits[merged.name] if len(merged) else inside
    hit &= ~np.append(ancestors_or_self(merged.parent, hit), False)[merged.parent]
    codes = np.flatnonzero(hit).tolist()
    windows = examined.instances([code])
    own = merged.names[merged.name[code]]
    if not codes:
        if per is not None and not fnmatchcase(own, per):
            names = near_names([merged.names[name] for name in merged.name[inside].tolist()], per)
            known = f"inside are {', '.join(map(repr, names))}" if names else "it has no ranges inside"
            raise NsysprofError(
                f"{examined.texts[code]}: nothing inside matches --per {per!r}: {known}",
                "leave --per out, and each instance of the range is one call",
            )
        return _counted(examined, Pick(code, windows, None, own), instances)
    names = list(dict.fromkeys(merged.names[merged.name[each]] for each in codes))
    found = Pick(code, windows, examined.instances(codes), ", ".join(names[:_MOST_NAMED]))
    return _counted(examined, found, instances)


def _counted(examined: Examined, picked: Pick, instances: Instances | None) -> Pick:
    """The pick with only the instances that are wanted and no warm-up.

    A window whose first calls are warm-up counts from the first call on that is none.
    """
    if instances is None and examined.left_out is None:
        return picked
    ranges = examined.attribution.trace.ranges
    windows = picked.windows[np.argsort(ranges.start[picked.windows], kind="stable")]
    if instances is not None:
        windows = windows[instances[0] : instances[1] + 1]
    if examined.left_out is not None:
        windows = windows[~examined.left_out[windows]]
    windows = np.sort(windows)
    every = picked.windows if picked.calls is None else picked.calls
    every = every[np.argsort(ranges.start[every], kind="stable")]
    window = _window_of(examined.attribution.parent, windows)[every]
    counted = window >= 0
    since = None
    if examined.left_out is not None:
        counted &= ~examined.left_out[every]
        begin = np.full(len(windows), np.iinfo(np.int64).max)
        np.minimum.at(begin, window[counted], ranges.start[every[counted]])
        late = np.zeros(len(windows), bool)
        late[window[(window >= 0) & ~counted]] = True
        since = np.where(late & (begin < np.iinfo(np.int64).max), begin, np.iinfo(np.int64).min)
    calls = None if picked.calls is None else np.sort(every[counted])
    return replace(picked, windows=windows, calls=calls, since=since, counted=counted)


def _window_of(parent: NDArray[np.int32], windows: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each range instance the place in ``windows`` of the one that it is or lies in, -1 for none."""
    count = len(parent)
    up = np.append(np.where(parent < 0, count, parent), count)
    out = np.full(count + 1, -1)
    out[windows] = np.arange(len(windows))
    while (up[:-1] < count).any():
        out = np.where(out < 0, out[up], out)
        up = up[up]
    return out[:-1]


@dataclass(frozen=True)
class Side:
    """One side: ``code`` its merged path, ``windows`` its range instances and ``calls`` those that it is divided by.

    ``work`` are the ops inside, ``causes`` what each is there for, ``gaps`` where nothing of it ran, ``pieces`` its
    span cut into calls, ``ledger`` what adds up to the span. ``per`` is what a call is called. ``evidence`` are the
    rows of `evidence_rows`, ``evidence_of`` is the row of each op. ``counted``: which of all its calls these are, None
    for all.
    """

    examined: Examined
    code: int
    per: str
    windows: NDArray[np.intp]
    calls: NDArray[np.intp]
    work: RangeWork
    causes: Causes
    gaps: Gaps
    pieces: Pieces
    ledger: SideLedger
    evidence: pd.DataFrame
    evidence_of: NDArray[np.intp]
    counted: NDArray[np.bool_] | None = None

    @property
    def text(self) -> str:
        """The merged path."""
        return self.examined.texts[self.code]

    @property
    def title(self) -> str:
        """The merged path, with its kind where that tells it from another one."""
        return self.examined.title(self.code)

    @property
    def name(self) -> str:
        """The range's own name, by which a run record knows it."""
        return str(self.examined.merged.names[self.examined.merged.name[self.code]])

    @cached_property
    def samples(self) -> dict[str, Ints]:
        """What each call took, in ns: by the host's clock (``CPU``), by ``CUDA events`` where they were recorded, from
        its first op to that of the next call (``span``), and of that without the gaps (``busy``).

        The last of several calls has no next one: its piece ends with the range, too soon for a sample of the span.
        """
        ranges = self.examined.attribution.trace.ranges
        span = self.pieces.end - self.pieces.start
        idle = np.zeros(len(span) + 1, np.int64)  # the last one takes what is in no call
        np.add.at(idle, self.pieces.of_op[self.gaps.behind - 1], self.gaps.length_ns)
        run = self.examined.runs.get(self.name)
        events = np.array(run.latency_ns if run else (), np.int64)
        if self.counted is not None:
            events = events[self.counted] if len(events) == len(self.counted) else events[:0]
        last = np.append(self.pieces.window[1:] != self.pieces.window[:-1], True)[: len(span)]
        alone = np.append(True, last[:-1])[: len(span)]
        cpu = (ranges.end - ranges.start)[self.calls]
        return {"CPU": cpu, "CUDA events": events, "span": span[~last | alone], "busy": span - idle[:-1]}

    @property
    def gpus(self) -> list[int]:
        """The numbers of the GPUs that it ran on."""
        together = int(np.bitwise_or.reduce(self.work.gpus)) if len(self.work.gpus) else 0
        return [number for number in range(DEVICE_BITS + 1) if together >> number & 1]

    @property
    def only_gpu(self) -> Gpu | None:
        """The GPU that it ran on; None where that is not known, or not one."""
        trace = self.examined.attribution.trace
        devices = dict(zip(trace.gpu_numbers, trace.devices, strict=True))
        found = [devices[number].gpu for number in self.gpus]
        return trace.report.about.gpus[found[0]] if len(found) == 1 and found[0] is not None else None


def sides(examined: Examined, picks: Sequence[Pick]) -> dict[int, Side]:
    """The `Side` of each pick by its merged path; those without GPU work have an empty ``work``."""
    rows = [pick.windows for pick in picks] + [pick.calls for pick in picks if pick.calls is not None]
    index = index_work(
        examined.attribution, np.unique(np.concatenate(rows)) if rows else np.empty(0, np.intp)
    )
    return {pick.code: _side(examined, index, pick) for pick in picks}


def _side(examined: Examined, index: WorkIndex, picked: Pick) -> Side:
    work = range_work(index, picked.windows, picked.calls, examined.left_out, picked.since)
    gaps = find_gaps(index, work, picked.windows, examined.waits)
    causes = _causes(examined, work)
    evidence, evidence_of = evidence_rows(index, work, causes, examined.kinds, examined.grids)
    return Side(
        examined=examined,
        code=picked.code,
        per=picked.per,
        windows=picked.windows,
        calls=picked.windows if picked.calls is None else picked.calls,
        work=work,
        causes=causes,
        gaps=gaps,
        pieces=cut(work),
        ledger=side_ledger(index, work, causes, gaps),
        evidence=evidence,
        evidence_of=evidence_of,
        counted=picked.counted,
    )


def _causes(examined: Examined, work: RangeWork) -> Causes:
    """The causes of the ops of a range, told call by call and stream by stream."""
    trace = examined.attribution.trace
    stream = trace.ops.stream[work.op].astype(np.int64)
    order = np.lexsort((work.start, stream, work.call, work.window))
    group = (work.window * (work.calls + 1) + work.call + 1) * max(len(trace.streams), 1) + stream
    found = op_causes(
        trace.op_names,
        examined.kinds,
        name=trace.ops.name[work.op][order],
        kind=trace.ops.kind[work.op][order],
        group=group[order],
    )
    of = np.empty(len(order), np.int32)
    of[order] = found.of
    return replace(found, of=of)


def side_warnings(side: Side) -> Iterator[str]:
    """What must be known of one side before its numbers are believed; which side is for the caller to say."""
    ranges = side.examined.attribution.trace.ranges
    open_windows, calls = int(ranges.unclosed[side.windows].sum()), side.work.calls
    if open_windows:
        yield (
            f"never closed by the program ({open_windows:,} of {len(side.windows):,} instances):"
            " it ends with the session, and holds whatever came after it"
        )
    open_calls = int(ranges.unclosed[side.calls].sum()) if side.calls is not side.windows else 0
    if open_calls:
        yield f"{open_calls:,} of {calls:,} calls ({side.per}) were never closed: they end with the session"
    if side.work.idle_calls:
        yield f"{side.work.idle_calls:,} of {calls:,} calls ({side.per}) launched no GPU work, and count in the average"
    most = max((int(mask).bit_count() for mask in np.unique(side.work.gpus).tolist()), default=0)
    if most > 1:
        yield f"ran on {most} GPUs at once; busy is when at least one of them ran an op of it"
    yield from _unknown(side)


def _unknown(side: Side) -> Iterator[str]:
    """Work whose kernels cannot be told, or whose names no rule knows."""
    trace, span = side.examined.attribution.trace, side.ledger.span_ns
    whole = trace.ops.kind[side.work.op] == GRAPH
    share = int((side.work.end - side.work.start)[whole].sum()) / span if span else 0.0
    if share >= _UNKNOWN_SHARE:
        yield (
            f"CUDA graphs traced whole take {format_share(share)} of its span, and what runs in them"
            " cannot be told; capture with --cuda-graph-trace=node"
        )
    codes = [code for code, rule in enumerate(side.examined.kinds.rule) if rule == UNMATCHED]
    names = [trace.op_names[code] for code in codes]
    mine = side.evidence[(side.evidence["cause"] == "other") & side.evidence["kernel"].isin(names)]
    share = int(mine["sum_ns"].sum()) / span if span else 0.0
    if share >= _UNKNOWN_SHARE:
        some = ", ".join(short_name(name) for name in mine["kernel"].unique()[:_MOST_NAMED].tolist())
        yield (
            f"{format_share(share)} of its span is kernels that no rule knows ({some});"
            " name them in a rule file: --rules FILE"
        )
