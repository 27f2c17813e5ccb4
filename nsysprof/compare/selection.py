"""Select a merged range of a report with its calls, and account for the GPU ops and the span of the range."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType

import numpy as np
import pandas as pd

from nsysprof.attribution.globs import near_names
from nsysprof.attribution.paths import WHOLE_TRACE, Instances, merged_names, names_step, pick_instances
from nsysprof.attribution.projection import DEVICE_BITS
from nsysprof.attribution.range_work import Pieces, RangeWork, WorkIndex, cut, index_work, range_work, whole_work
from nsysprof.compare.gap_ledger import Edges, SideLedger, evidence_rows, nearest, side_ledger, step_edges
from nsysprof.compare.loaded import WHOLE, LoadedReport
from nsysprof.compare.op_causes import Causes, op_causes
from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.columns import marked
from nsysprof.core.nesting import ancestors_or_self, innermost_marked, outermost
from nsysprof.core.text import plural
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import UNMATCHED, short_name
from nsysprof.summaries.gpu_metrics import usual_clock
from nsysprof.trace.about import Gpu
from nsysprof.trace.trace import GRAPH
from nsysprof.waits.causes import Gaps, find_gaps, gap_bounds
from nsysprof.waits.ranges import StepTimes, step_times

# From this share of the span on, a part without a known cause gets a warning.
MIN_UNKNOWN_SHARE = 0.01
MAX_NAMES, _MAX_NAME = 3, 120
STEP, SPAN = "step", "span"  # the clocks by which calls are judged: as steps, or what is no step


@dataclass(frozen=True)
class SelectedCalls:
    """A merged path with its instances and its calls; times per call are the time of the path divided by the number of
    calls.

    ``per`` is the name of the calls. If each instance is one call, ``calls`` are the ``windows``. ``since``: the time
    from which the work of each window counts (None: all work). ``counted`` are the chosen calls (None: all).
    """

    code: int
    windows: Index
    calls: Index
    per: str
    since: Ints | None = None
    counted: Mask | None = None


def select_calls(
    loaded: LoadedReport,
    code: int,
    per: str | None,
    instances: Instances | None = None,
    steps: StepTimes | None = None,
    *,
    inner: bool = True,
) -> SelectedCalls:
    """Select the calls of a merged path; ``per`` is a glob of names; None means numbered ``iter*``, ``step*``.

    ``inner``: whether repeated inner ranges may be the calls. ``instances``: use only these instances of the merged
    path (possibly none); ``steps`` are the times by which to find the slowest instance. Raises `NsysprofError` if no
    inner range matches ``per``.
    """
    if code == WHOLE:
        nothing = np.empty(0, np.intp)
        return SelectedCalls(WHOLE, nothing, nothing, WHOLE_TRACE)
    merged = loaded.merged
    inside = marked(code, len(merged))
    inside = ancestors_or_self(merged.parent, inside)
    inside[code] = False
    if per is None:
        hits = [name.endswith("*") and names_step(name) for name in merged_names(merged.names)]
    else:
        hits = [fnmatchcase(name, per) for name in merged.names]
    hit = inside & np.array(hits, bool)[merged.name] & inner
    codes = np.flatnonzero(outermost(merged.parent, hit)).tolist()
    windows = loaded.instances([code])
    name = merged.names[merged.name[code]]
    if not codes and per is not None and not fnmatchcase(name, per):
        names = near_names(sorted(merged.names[name] for name in merged.name[inside].tolist()), per)
        known = f"inside are {', '.join(map(repr, names))}" if names else "the range has no inner ranges"
        raise NsysprofError(
            f"{loaded.texts[code]}: no inner range matches --per {per!r}: {known}",
            "without --per, each instance of the range is one call",
        )
    names = list(dict.fromkeys(merged.names[merged.name[each]] for each in codes)) or [name]
    calls = loaded.instances(codes) if codes else windows
    selected = SelectedCalls(code, windows, calls, ", ".join(names[:MAX_NAMES]))
    return _counted(loaded, selected, instances, steps)


def _counted(
    loaded: LoadedReport, selected: SelectedCalls, instances: Instances | None, steps: StepTimes | None
) -> SelectedCalls:
    """Leave out warm-up, and all instances except the requested ones.

    If the first calls of a window are warm-up, the window counts from its first other call.
    """
    if instances is None and loaded.left_out is None:
        return selected
    ranges = loaded.trace.ranges
    windows = selected.windows[np.argsort(ranges.start[selected.windows], kind="stable")]
    named = instances is not None and min(instances) >= 0  # by its number, which counts warm-up
    if instances is not None and named:
        windows = windows[instances[0] : instances[1] + 1]
    if loaded.left_out is not None:
        windows = windows[~loaded.left_out[windows]]
    if instances is not None and not named:
        length = loaded.attribution.inclusive.span_ns.copy()
        if steps is not None:
            length[steps.range] = steps.length
        windows = windows[pick_instances(length[windows], instances)]
    windows = np.sort(windows)
    every = selected.calls[np.argsort(ranges.start[selected.calls], kind="stable")]
    chosen = marked(windows, len(ranges))
    around = innermost_marked(loaded.attribution.parent, chosen)[every]
    inside, window = chosen[around], np.searchsorted(windows, around)
    counted = inside.copy()
    since = None
    if loaded.left_out is not None:
        counted &= ~loaded.left_out[every]
        begin = np.full(len(windows), np.iinfo(np.int64).max)
        np.minimum.at(begin, window[counted], ranges.start[every[counted]])
        late = marked(window[inside & ~counted], len(windows))
        since = np.where(late & (begin < np.iinfo(np.int64).max), begin, np.iinfo(np.int64).min)
    calls = windows if selected.calls is selected.windows else np.sort(every[counted])
    return replace(selected, windows=windows, calls=calls, since=since, counted=counted)


@dataclass(frozen=True)
class Selection(SelectedCalls):
    """One side of a pair: the selected calls with all their work.

    ``work``: the GPU ops inside; ``causes``: the cause of each op; ``gaps``: the intervals without ops; ``pieces``: the
    span cut into calls; ``ledger``: the rows that add up to the time of the calls. ``evidence``: the rows of
    `evidence_rows`; ``evidence_of``: the row for each GPU op. If the calls are timed as steps, ``steps`` are the steady
    steps. ``samples``, ``span_ns`` and ``busy_ns`` (means per call) then describe the steady steps, and ``edges`` is
    the time of these steps outside the spans. ``clock_hz`` is the median GPU clock during the calls, NaN if it was not
    sampled.
    """

    loaded: LoadedReport = field(kw_only=True)
    work: RangeWork = field(kw_only=True)
    causes: Causes = field(kw_only=True)
    gaps: Gaps = field(kw_only=True)
    pieces: Pieces = field(kw_only=True)
    ledger: SideLedger = field(kw_only=True)
    evidence: pd.DataFrame = field(kw_only=True)
    evidence_of: Index = field(kw_only=True)
    samples: dict[str, Ints] = field(kw_only=True)
    span_ns: int = field(kw_only=True)
    busy_ns: int = field(kw_only=True)
    steps: StepTimes | None = field(kw_only=True)
    edges: Edges | None = field(kw_only=True)
    clock_hz: float = field(default=np.nan, kw_only=True)

    @property
    def text(self) -> str:
        """The merged path."""
        return WHOLE_TRACE if self.is_whole else self.loaded.texts[self.code]

    @property
    def is_whole(self) -> bool:
        """Return whether the selection is the whole trace."""
        return self.code == WHOLE

    @property
    def title(self) -> str:
        """Return the merged path, with its kind if another path has the same text."""
        return self.loaded.title(self.code)

    @property
    def name(self) -> str:
        """Return the name of the range without its parents, as in a run record."""
        if self.is_whole:
            return WHOLE_TRACE
        return str(self.loaded.merged.names[self.loaded.merged.name[self.code]])

    @cached_property
    def complete(self) -> Mask:
        """Mark the `pieces` that are samples of the span of a call, see `complete_pieces`."""
        return complete_pieces(self.pieces)

    @cached_property
    def parts_ns(self) -> dict[str, int]:
        """Return the parts of the mean step time outside the span of the GPU ops; empty if there are no steps.

        ``between`` is the pause before the step's first code runs, ``before`` the remaining time until the first GPU
        op, ``behind`` the time after the last GPU op.
        """
        if self.steps is None or not len(self.steps):
            return {}
        head = np.maximum(self.work.first_ns - self.steps.start, 0)
        between = np.minimum(self.steps.begin - self.steps.start, head)
        tail = np.maximum(self.steps.end - self.work.last_ns, 0)
        parts = {"between": between, "before": head - between, "behind": tail}
        return {name: nearest(int(ns.sum()), len(self.steps)) for name, ns in parts.items()}

    @property
    def gpus(self) -> list[int]:
        """Return the numbers of the GPUs on which the calls ran."""
        together = int(np.bitwise_or.reduce(self.work.gpus)) if len(self.work.gpus) else 0
        return [number for number in range(DEVICE_BITS + 1) if together >> number & 1]

    @property
    def described_gpus(self) -> list[Gpu | None]:
        """Return the description of each GPU on which the calls ran, None if the report has no description."""
        devices = dict(zip(self.loaded.trace.gpu_numbers, self.loaded.trace.devices, strict=True))
        described = [devices[number].gpu for number in self.gpus if number in devices]
        return [None if gpu is None else self.loaded.report.about.gpus[gpu] for gpu in described]

    @property
    def only_gpu(self) -> Gpu | None:
        """Return the GPU on which all calls ran, or None if it is unknown or not unique."""
        gpus = self.described_gpus
        return gpus[0] if len(gpus) == 1 else None


def complete_pieces(pieces: Pieces) -> Mask:
    """Mark the pieces that are samples of the span of a call.

    The last of several calls is not a sample, because no call follows: its piece ends too early, at the end of the
    range.
    """
    window = pieces.window
    last = np.append(window[1:] != window[:-1], True)[: len(window)]
    alone: Mask = last & np.append(True, last[:-1])[: len(window)]
    return ~last | alone


def steps_of_calls(loaded: LoadedReport, wanted: Sequence[SelectedCalls]) -> dict[int, StepTimes]:
    """Return the step times of each merged path over all instances; empty for paths that are not steps."""
    replay = loaded.attribution.replay
    if replay is not None and (replay >= 0).any():  # what a capture replays has no place on the host
        return {}
    asked = [each for each in wanted if each.code != WHOLE]
    rows = [np.sort(loaded.instances(np.unique(loaded.code_of[each.calls]).tolist())) for each in asked]
    several = np.unique(np.concatenate([np.empty(0, np.intp), *rows]))
    times = step_times(loaded.attribution, several, loaded.code_of[several], loaded.kinds.communication)
    out = {}
    for each, mine in zip(asked, rows, strict=True):
        found = times.take(np.isin(times.range, mine))
        if len(np.setdiff1d(np.unique(loaded.code_of[mine]), found.path)) == 0 and len(found):
            out[each.code] = found
    return out


def select_ranges(
    loaded: LoadedReport, wanted: Sequence[SelectedCalls], steps: Mapping[int, StepTimes] = MappingProxyType({})
) -> dict[int, Selection]:
    """The `Selection` of each merged path; ``work`` is empty without GPU work.

    ``steps``: the step times of some of the paths.
    """
    rows = [each for calls in wanted for each in (calls.windows, calls.calls)]
    index = index_work(loaded.attribution, np.unique(np.concatenate(rows)) if rows else np.empty(0, np.intp))
    return {calls.code: _selection(loaded, index, calls, steps.get(calls.code)) for calls in wanted}


def _selection(loaded: LoadedReport, index: WorkIndex, selected: SelectedCalls, steps: StepTimes | None) -> Selection:
    if selected.code == WHOLE:
        work = whole_work(loaded.trace)
    else:
        calls = None if selected.calls is selected.windows else selected.calls
        work = range_work(index, selected.windows, calls, loaded.left_out, selected.since)
    pieces, edges = cut(work), None
    samples, busy = _samples(loaded, selected, work, pieces)
    span = nearest(work.span_ns, max(work.calls, 1))
    if steps is not None:
        mine = steps.take(np.isin(steps.range, selected.calls))
        mine = mine if selected.counted is not None else mine.take(mine.steady)
        mine = mine.take(np.argsort(mine.range))
        samples = {STEP: mine.length[np.argsort(mine.start, kind="stable")], **samples}
        rows = mine.range.astype(np.intp)
        selected = replace(selected, windows=rows, calls=rows, since=None, counted=None)
        work = range_work(index, rows, None, loaded.left_out)
        pieces, steps = cut(work), mine.take(work.windows)
        edges = step_edges(index, work, steps, loaded.wait_facts)
    gaps = find_gaps(index, work, loaded.wait_facts)
    causes = _causes(loaded, work, by_name=selected.code == WHOLE or not loaded.annotated)
    evidence, evidence_of = evidence_rows(index, work, causes, loaded.kinds, loaded.grids)
    return Selection(
        **vars(selected),
        loaded=loaded,
        work=work,
        causes=causes,
        gaps=gaps,
        pieces=pieces,
        ledger=side_ledger(index, work, causes, gaps, edges),
        evidence=evidence,
        evidence_of=evidence_of,
        samples=samples,
        span_ns=span,
        busy_ns=busy,
        steps=steps,
        edges=edges,
        clock_hz=usual_clock(loaded.trace, work.first_ns, work.last_ns),
    )


def _samples(
    loaded: LoadedReport, selected: SelectedCalls, work: RangeWork, pieces: Pieces
) -> tuple[dict[str, Ints], int]:
    """The time of each call in ns: on the host (``CPU``), by ``CUDA events`` if recorded, from its first op to the
    first op of the next call (``span``), and this span without its gaps (``busy``); also the mean busy time.
    """
    ranges = loaded.trace.ranges
    span = pieces.end - pieces.start
    idle = np.zeros(len(span) + 1, np.int64)  # the last one takes what is in no call
    start, behind = gap_bounds(work)
    np.add.at(idle, pieces.of_op[behind - 1], work.start[behind] - start)
    name = "" if selected.code == WHOLE else loaded.merged.names[loaded.merged.name[selected.code]]
    run = loaded.runs.get(name)
    events = np.array(run.latency_ns if run else (), np.int64)
    if selected.counted is not None:
        events = events[selected.counted] if len(events) == len(selected.counted) else events[:0]
    cpu = (ranges.end - ranges.start)[selected.calls]
    replay = loaded.attribution.replay
    if replay is not None and (replay[work.op] >= 0).any():  # the host's time is that of the capture
        cpu = cpu[:0]
    samples = {"CPU": cpu, "CUDA events": events, SPAN: span[complete_pieces(pieces)], "busy": span - idle[:-1]}
    return samples, round((work.span_ns - int(idle.sum())) / max(work.calls, 1))


def _causes(loaded: LoadedReport, work: RangeWork, *, by_name: bool) -> Causes:
    """The causes of the GPU ops of a range, found call by call and stream by stream.

    ``by_name``: a kernel without a rule has its short name as cause, which kernels of equal names share.
    """
    trace = loaded.trace
    stream = trace.ops.stream[work.op].astype(np.int64)
    order = np.lexsort((work.start, stream, work.call, work.window))
    group = (work.window * (work.calls + 1) + work.call + 1) * max(len(trace.streams), 1) + stream
    causes = op_causes(
        trace.op_names,
        loaded.kinds,
        name=trace.ops.name[work.op][order],
        kind=trace.ops.kind[work.op][order],
        group=group[order],
    )
    of = np.empty(len(order), np.int32)
    of[order] = causes.of
    causes = replace(causes, of=of)
    return _named(causes, loaded, trace.ops.name[work.op]) if by_name else causes


def _named(causes: Causes, loaded: LoadedReport, name: Ints32) -> Causes:
    """The same causes, with short names for kernels without a rule; ``name`` is the name of each GPU op."""
    unknown = np.array([rule == UNMATCHED for rule in loaded.kinds.rule], bool)
    codes = {text: code for code, text in enumerate(causes.texts)}
    used = np.unique(name[unknown[name] & (causes.of == codes.get("other", -1))])
    code_of = np.full(len(unknown), -1, np.int32)
    code_of[used] = [
        codes.setdefault(short_name(loaded.trace.op_names[code], _MAX_NAME), len(codes)) for code in used.tolist()
    ]
    return Causes(np.where(code_of[name] >= 0, code_of[name], causes.of), list(codes))


def selection_warnings(selection: Selection) -> Iterator[str]:
    """Yield warnings about one side; the caller names the side."""
    ranges, work = selection.loaded.trace.ranges, selection.work
    open_windows = int(ranges.unclosed[selection.windows].sum())
    if open_windows:
        yield (
            f"the program never closed {open_windows:,} of {len(selection.windows):,} instances: an "
            "unclosed instance ends with the recording and includes all later work"
        )
    calls = f"of {work.calls:,} calls ({selection.per})"
    if selection.calls is not selection.windows:
        open_calls = int(ranges.unclosed[selection.calls].sum())
        if open_calls:
            yield f"the program never closed {open_calls:,} {calls}, which are assumed to end with the recording"
    if work.beside_replays:
        ran = plural(work.beside_replays, "GPU op")
        yield f"left out: {ran} during CUDA graph capture, because each replay of the graph counts as a call"
    if work.idle_calls:
        yield f"{work.idle_calls:,} {calls} launched no GPU work, but are included in the averages"
    most = max((int(mask).bit_count() for mask in np.unique(work.gpus).tolist()), default=0)
    if most > 1:
        yield f"the range ran on {most} GPUs at once; busy: time in which at least one GPU runs a GPU op of the range"
    yield from _unknown(selection)


def _unknown(selection: Selection) -> Iterator[str]:
    """Name work whose kernels are hidden in graphs traced as a whole, or have no rule."""
    trace, span = selection.loaded.trace, selection.ledger.total_ns
    whole = trace.ops.kind[selection.work.op] == GRAPH
    share = int((selection.work.end - selection.work.start)[whole].sum()) / span if span else 0.0
    if share >= MIN_UNKNOWN_SHARE:
        yield (
            f"CUDA graphs recorded as one operation take {format_share(share)} of the span: capture with "
            "--cuda-graph-trace=node to see the kernels"
        )
    codes = [code for code, rule in enumerate(selection.loaded.kinds.rule) if rule == UNMATCHED]
    unmatched = selection.evidence["kernel"].isin([trace.op_names[code] for code in codes])
    rows = selection.evidence[(selection.evidence["cause"] == "other") & unmatched]
    share = int(rows["sum_ns"].sum()) / span if span else 0.0
    if share >= MIN_UNKNOWN_SHARE:
        some = ", ".join(short_name(name) for name in rows["kernel"].unique()[:MAX_NAMES].tolist())
        yield (
            f"kernels of unknown family take {format_share(share)} of the span ({some}): name them "
            "in a rule file (--rules FILE)"
        )
