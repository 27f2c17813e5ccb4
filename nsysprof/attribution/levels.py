"""Choose the steps of a recording: one level of repeated ranges, annotated or found, without warm-up."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.globs import find_matches
from nsysprof.attribution.iterations import find_iterations
from nsysprof.attribution.paths import Paths, merged_paths, names_step, range_paths, split_path
from nsysprof.attribution.range_work import launches_inside
from nsysprof.attribution.sources import AUTO
from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.columns import marked
from nsysprof.core.intervals import held, merge, union_length
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.text import join_first, one_line
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.trace.trace import FOUND, GRAPH, KERNEL, MODULE, PUSH_POP, START_END, Trace
from nsysprof.trace.variants import with_ranges, without_ranges

WHOLE = "the whole trace"  # the path of windows that are of no range
MIN_REPEATS = 3  # instances from which on a range is taken for the step of a program
MIN_SHARE = 0.5  # of the busy time of the GPUs behind warm-up: what covers less is not the program's steps
_SLIVER = 0.05  # of that time, or of the busy time: ranges that cover less are no steps, whatever else is left out
_ALONE = 1.01  # of their union: ops whose durations add up to no more run one after the other
_ANOTHER = 0.25  # of the time of the loop with most work: another one that takes so long has steps of the program, too
_LOOP = re.compile(r"iteration [B-Z]\b")  # as `find_iterations` names them
_SWEEP, _UNEQUAL = 10, 8  # of so few iterations that were found none takes so many times as long as another
_KINDS = (PUSH_POP, START_END, MODULE, FOUND)
_NAME, _FEW = 40, 3
_WARM = re.compile(r"warm(?:ing)?[\s_\-]*up|^warm\b", re.IGNORECASE)
# Ranges that libraries open around their own calls: how often one occurs says nothing about the program's loop.
_LIBRARY = re.compile(
    r"(?:aten|prim|torch|autograd|c10|c10d|nccl|mpi|cuda|cudnn|cublas|triton|inductor)[\w]*::?"
    r"|nccl[A-Z]|MPI_|cu(?:da|dnn|blas|sparse|solver|fft)[A-Z]|Optimizer\.|enumerate\(DataLoader"
)
_COLLECTIVE = re.compile(r"(?:void )?(?:nccl|rccl|mscclpp)")  # kernels
# Outermost ranges by which the workloads name what they measure, and what they do before it.
_MEASURED, _BEFORE = "RUN::", ("CHECK::", "REFERENCE::", "WARMUP::")


@dataclass(frozen=True)
class Level:
    """The ranges that an answer describes: ``rows`` of `Trace.ranges`, with their paths ``of`` (int32 into ``texts``).

    ``rows`` and ``of`` are None if no range was requested and nothing repeats: the answer then describes the whole
    recording. If no annotated level is the program's steps, iterations are detected and added to the ranges of
    ``attribution``. ``share``: the share of GPU busy time (of all GPUs, without warm-up) that these ranges cover; None
    if the GPUs were never busy. ``asked``: whether the user named the ranges, by the glob ``select``. ``options``: the
    options of commands that ask about the same ranges. ``detected``: whether these are iterations that were detected
    although the program has annotated ranges; `analyze` has no paths for these iterations.
    """

    attribution: Attribution
    rows: Index
    of: Ints32
    texts: list[str]
    share: float | None
    asked: bool
    select: str = ""
    options: tuple[str, ...] = ()
    detected: bool = False

    @cached_property
    def paths(self) -> list[str]:
        """Return the paths as text, in order of appearance."""
        return [self.texts[code] for code in np.unique(self.of).tolist()]

    @property
    def found(self) -> bool:
        """Return whether these ranges are detected iterations."""
        return bool(len(self.rows)) and bool((self.attribution.trace.ranges.kind[self.rows] == FOUND).all())

    @cached_property
    def name(self) -> str:
        """Return the common name of the paths, with stars for differences: ``PHASE::*/step*``; empty without paths."""
        parts = [split_path(path) for path in self.paths]
        if len({len(each) for each in parts}) > 1:
            return join_first([one_line(path, _NAME) for path in self.paths], _FEW)
        return one_line("/".join(map(_in_common, zip(*parts, strict=True))), _NAME)

    @property
    def clause(self) -> str:
        """Return a clause with the name of the steps, their number, and their share of the GPU's busy time."""
        if not len(self.rows):
            return "no step repeats: the whole recording"
        found = "found, not annotated; " * self.found
        several = f" in {len(self.paths):,} paths" * (len(self.paths) > 1)
        covered = "" if self.share is None else f", {format_share(self.share)} of GPU busy time"
        return f"steps: {self.name} ({found}{len(self.rows):,}{several}{covered})"

    def record(self, warm_up: int) -> dict[str, Any]:
        """Return the object ``steps`` of JSON documents; ``warm_up`` is the number of steps left out as warm-up."""
        return {
            "level": self.name or None,
            "paths": self.paths,
            "instances": len(self.rows),
            "share": self.share,
            "found": self.found,
            "warm_up": warm_up,
        }


def _in_common(names: Sequence[str]) -> str:
    """The name if all are equal, otherwise the common beginning and a star."""
    first, last = min(names), max(names)
    alike = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first if first == last else f"{first[:alike].rstrip('*')}*"


def preparation(parent: Ints32, names: Sequence[str]) -> Mask:
    """Mark the paths of warm-up and of checks before a measurement. Their own name, or the name of an outer range,
    shows what they are.

    ``parent`` is the parent of each path, -1 at the top; ``names`` are the last parts of the paths. By the workloads'
    convention, checks are outermost ranges ``CHECK::`` beside ``RUN::``.
    """
    before = np.array([_WARM.search(name) is not None for name in names], bool)
    top = np.flatnonzero(parent < 0).tolist()
    if any(names[row].startswith(_MEASURED) for row in top):
        before[[row for row in top if names[row].startswith(_BEFORE)]] = True
    return ancestors_or_self(parent, before)


def choose_level(attribution: Attribution, select: str | None, merge_names: Sequence[str] | None) -> Level:
    """Choose the ranges that the glob ``select`` matches; by default, the program's steps. All commands make the same
    choice.

    A level is all ranges of one merged name and depth. The steps are the outermost level that meets two conditions. A
    path of the level repeats at least `MIN_REPEATS` times. The level has at least `MIN_SHARE` of GPU busy time after
    warm-up. Copies to the GPU before the first step (weights, data sets) do not count if the level is named like steps
    and has at least a twentieth of GPU busy time. Ranges named like steps are preferred to other ranges, and steps to
    epochs. If no annotated level meets both conditions, iterations are detected. Raises `NsysprofError` if a glob
    matches nothing.
    """
    options = (*attribution.options, *(["--no-merge"] if merge_names is None else []))
    attribution = attribution.launched
    if select is not None:
        level = _asked(attribution, select, merge_names)
    else:
        level = _repeated(attribution, merge_names) or _detected(attribution, merge_names)
    detected = level.attribution is not attribution
    return replace(level, select=select or "", options=options, detected=detected)


def _detected(attribution: Attribution, merge_names: Sequence[str] | None) -> Level:
    """The detected iterations, unless ranges are named like steps or the user has said which ranges count; otherwise
    no ranges.
    """
    if attribution.sources == AUTO and not _names_steps(attribution, merge_names):
        for each in _with_found(attribution):
            if (level := _repeated(each, merge_names)) is not None:
                return level
    none = np.empty(0, np.intp)
    return Level(attribution, none, none.astype(np.int32), [], None, False)


def _asked(attribution: Attribution, select: str, merge_names: Sequence[str] | None) -> Level:
    """The ranges that a glob matches; if there are none, also detected iterations."""
    file = str(attribution.trace.report.path)
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge_names)
    texts = merged.texts()
    try:
        codes = [match.code for match in find_matches(merged, texts, select, file)]
    except NsysprofError as error:
        for each in _with_found(attribution) if "iteration" in select else ():
            level = _repeated(each, merge_names)
            if level is not None:
                return _asked(each, select, merge_names)
        raise error
    of = merged.of[paths.of]
    rows = np.flatnonzero(np.isin(of, codes))
    return Level(attribution, rows, of[rows], texts, _Busy(attribution, merged, of).share(rows), True)


def _with_found(attribution: Attribution) -> Iterator[Attribution]:
    """The trace with its ranges and detected iterations, then with iterations alone, because ranges may cross
    iterations.

    None if its ranges already include iterations, or if none are detected.
    """
    trace = attribution.trace
    if (trace.ranges.kind == FOUND).any():
        return
    found = find_iterations(trace)
    if len(found.start):
        yield attribute(with_ranges(trace, found), attribution.threads)
        yield attribute(with_ranges(without_ranges(trace), found), attribution.threads)


def _repeated(attribution: Attribution, merge_names: Sequence[str] | None) -> Level | None:
    """The steps among the ranges of a trace, see `choose_level`, or None if no level covers enough."""
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge_names)
    of = merged.of[paths.of]
    names = [merged.names[name] for name in merged.name.tolist()]
    busy = _Busy(attribution, merged, of)
    count = np.bincount(of, minlength=len(merged))
    usable = (count >= MIN_REPEATS) & np.isin(merged.kind, _KINDS) & ~busy.preparation
    if len(attribution.trace.ops):
        usable &= marked(of[attribution.inclusive.span_ns > 0], len(merged))
    levels: dict[tuple[str, int, int], list[int]] = {}
    for code in np.flatnonzero(usable).tolist():
        if not _LIBRARY.match(names[code]):
            key = names[code], int(merged.depth[code]), int(merged.kind[code])
            levels.setdefault(key, []).append(code)
    for key in sorted(levels, key=lambda key: (_rank(key[0]), key[1], -busy.estimate(levels[key]), key)):
        rows = np.flatnonzero(np.isin(of, levels[key]))
        if not len(attribution.trace.ops):  # steps of the host
            return Level(attribution, rows, of[rows], merged.texts(), None, False)
        steps = _rank(key[0]) == 0
        share = busy.share_of_level(rows, levels[key], named=steps and key[2] != FOUND)
        covers = share >= MIN_SHARE or (steps and busy.share_after_upload(rows, share) >= MIN_SHARE)
        if covers and not steps and key[2] != FOUND and busy.computes_nothing(rows):
            continue
        if covers and not (key[2] == FOUND and (busy.set_up(rows) or _ragged(attribution.inclusive.span_ns[rows]))):
            if key[2] == FOUND:
                others = [levels[other] for other in levels if other[1:] == key[1:] and _LOOP.match(other[0])]
                more = [rows, *(also for codes in others if len(also := _also(attribution, rows, of, codes)))]
                rows = np.unique(np.concatenate(more))
                share = busy.share(rows) or share
            return Level(attribution, rows, of[rows], merged.texts(), share, False)
    return None


def _also(attribution: Attribution, rows: Index, of: Ints32, codes: list[int]) -> Index:
    """The iterations of another loop that takes a large part of the first loop's time, or an empty result."""
    ranges, also = attribution.trace.ranges, np.flatnonzero(np.isin(of, codes))
    first, other = (int((ranges.end[each] - ranges.start[each]).sum()) for each in (rows, also))
    much = other >= _ANOTHER * first and not _ragged(attribution.inclusive.span_ns[also])
    return also if much else also[:0]


def _ragged(span: Ints) -> bool:
    """Whether the lengths of a few detected iterations differ too much for steps: a sweep, or a cold start."""
    return len(span) < _SWEEP and span[1:].max() > _UNEQUAL * max(int(span[1:].min()), 1)


def _names_steps(attribution: Attribution, merge_names: Sequence[str] | None) -> bool:
    """Whether ranges are named like steps but too few to repeat: detected loops are then inside these steps."""
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge_names)
    busy = _Busy(attribution, merged, merged.of[paths.of])
    named = [names_step(merged.names[name]) for name in merged.name.tolist()]
    rows = np.flatnonzero(np.array(named, bool)[busy.of] & ~busy.preparation[busy.of])
    return bool(len(rows)) and (busy.share(rows) or 0.0) >= MIN_SHARE


def _rank(name: str) -> int:
    """Rank names of steps before other names, and epochs, which contain steps, last."""
    if name.lower().startswith("epoch"):
        return 2
    return 0 if names_step(name) else 1


class _Busy:
    """The GPUs' busy time, in total and for some ranges, without warm-up; ``of``: the merged path of each range."""

    def __init__(self, attribution: Attribution, merged: Paths, of: Ints32) -> None:
        self.attribution, self.of = attribution, of
        self.preparation = preparation(merged.parent, [merged.names[name] for name in merged.name.tolist()])
        self._sums = np.bincount(of, attribution.inclusive.sum_ns, len(merged))

    def estimate(self, codes: list[int]) -> float:
        """Return the summed duration of all GPU ops in the given merged paths."""
        return float(self._sums[codes].sum())

    @cached_property
    def _one_by_one(self) -> bool:
        ops, gpu = self.attribution.trace.ops, self.attribution.trace.op_gpu
        total = int((ops.end - ops.start)[gpu >= 0].sum())
        return total <= _ALONE * self.attribution.trace.busy_ns

    @cached_property
    def _warm_up(self) -> Index:
        early = np.flatnonzero(self.preparation[self.of])
        return early[
            ~self.preparation[np.append(self.of, 0)[self.attribution.parent[early]]]
            | (self.attribution.parent[early] < 0)
        ]

    @cached_property
    def _whole(self) -> int:
        """The busy time of all GPUs, excluding warm-up."""
        return self.attribution.trace.busy_ns - self._of(self._warm_up)

    def set_up(self, rows: Index) -> bool:
        """Return whether detected iterations are only set-up: they are if almost all other GPU work is in warm-up
        ranges, or if the iterations compute nothing.
        """
        return self._whole < _SLIVER * self.attribution.trace.busy_ns or self.computes_nothing(rows)

    def computes_nothing(self, rows: Index) -> bool:
        """Return whether the given ranges run only copies or collectives (such as an upload, or a broadcast of
        parameters), although the program also computes.
        """
        trace = self.attribution.trace
        compute = np.array([not _COLLECTIVE.match(name) for name in trace.op_names], bool).take(trace.ops.name)
        compute &= (trace.ops.kind == KERNEL) | (trace.ops.kind == GRAPH)
        inside = np.append(launches_inside(self.attribution, rows), False).take(trace.ops.launch)
        return bool(compute.any()) and not bool((compute & inside).any())

    def share(self, rows: Index) -> float | None:
        """Return the share of busy time that the given ranges (not nested) cover, or None if there is no busy time."""
        return min(self._of(rows) / self._whole, 1.0) if self._whole > 0 else None

    def share_after_upload(self, rows: Index, share: float) -> float:
        """Return the share of busy time that a level covers, excluding earlier copies to the GPU; 0 if the share is
        tiny.

        ``share``: the level's share including these copies.
        """
        if share < _SLIVER:
            return 0.0
        trace = self.attribution.trace
        upload = np.array(["HtoD" in name for name in trace.op_names], bool).take(trace.ops.name)
        upload &= trace.ops.end <= trace.ranges.start[rows].min()
        if not upload.any():
            return share
        warm = np.append(launches_inside(self.attribution, self._warm_up), False).take(trace.ops.launch)
        rest = _busy_ns(trace, ~(upload | warm))
        return min(share * self._whole / rest, 1.0) if rest else 0.0

    def share_of_level(self, rows: Index, codes: list[int], *, named: bool) -> float:
        """Return the share of busy time that a level covers.

        If ranges are ``named`` like steps, the share includes launches of other threads while these ranges are open.
        For example, a backward pass on an autograd thread with its own ranges belongs to the step that waits for it.
        """
        if self._whole <= 0:
            return 0.0
        most = self.estimate(codes) / self._whole  # a union is no longer than the durations
        share = (self.share(rows) or 0.0) if most >= MIN_SHARE else most
        if share >= MIN_SHARE or not named:
            return share
        return min(self._launched_within(rows) / self._whole, 1.0)

    def _launched_within(self, rows: Index) -> int:
        """The GPUs' busy time with ops that a process launched while one of its ranges was open."""
        trace = self.attribution.trace
        launches, ranges = trace.launches, trace.ranges
        inside = np.zeros(len(launches) + 1, bool)
        of_range = trace.thread_process[ranges.thread[rows]]
        bounds = np.searchsorted(launches.thread, np.arange(len(trace.threads) + 1))
        for process in np.unique(of_range).tolist():
            mine = rows[of_range == process]
            edges = np.stack(merge(ranges.start[mine], ranges.end[mine]), axis=1).ravel()
            for thread in np.flatnonzero(trace.thread_process == process).tolist():
                first, last = bounds[thread : thread + 2].tolist()
                cuts = np.diff(np.searchsorted(launches.start[first:last], edges), prepend=0, append=last - first)
                inside[first:last] = np.repeat(np.arange(len(cuts)) % 2 == 1, cuts)
        return _busy_ns(trace, inside.take(trace.ops.launch))

    def _of(self, rows: Index) -> int:
        if not len(rows):
            return 0
        if self._one_by_one:
            return int(self.attribution.inclusive.sum_ns[rows].sum())
        inside = np.append(launches_inside(self.attribution, np.unique(rows)), False)
        return _busy_ns(self.attribution.trace, inside[self.attribution.trace.ops.launch])


def _busy_ns(trace: Trace, chosen: Mask) -> int:
    """The GPUs' busy time with the chosen ops; fast if most ops are chosen."""
    total, begun, ended = 0, trace.ops.start, trace.ops.end
    rest = np.flatnonzero(~chosen)
    for gpu, (start, end) in trace.gpu_busy.items():
        others = rest[trace.op_gpu[rest] == gpu]
        mixed = marked(np.searchsorted(start, begun[others], side="right") - 1, len(start) + 1)[:-1]
        total += int((end - start)[~mixed].sum())
        if mixed.any():
            rows = np.flatnonzero(chosen & (trace.op_gpu == gpu))
            rows = rows[held((start[mixed], end[mixed]), begun[rows], ended[rows])]
            total += union_length(begun[rows], ended[rows])
    return total
