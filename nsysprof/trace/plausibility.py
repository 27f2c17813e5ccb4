"""Check a trace for data that is impossible on a GPU, and return warnings about such data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from nsysprof.core.arrays import Ints, Mask, slices
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.trace.about import Diagnostic
from nsysprof.trace.trace import KERNEL, Ops, Trace

CLOCK_ERROR_NS = 1_000  # between the clocks of host and GPU: less is no contradiction
_DROPPED = re.compile(
    r"not all (?:cuda|nvtx) events might have been collected|\b(?:events|records|activit\w+)\b.*\b(?:dropped|lost)\b"
    r"|\b(?:dropped|lost)\b.*\b(?:events|records|activit\w+)\b",
    re.IGNORECASE,
)


def doubts(trace: Trace) -> tuple[str, ...]:
    """Return a sentence per implausible finding, with count and share; empty if there are none."""
    return (*_of_streams(trace), *_of_launches(trace), *_of_recording(trace))


def tells_of_dropped_events(diagnostic: Diagnostic) -> bool:
    """Return whether a diagnostic of nsys reports lost events."""
    return _DROPPED.search(diagnostic.text) is not None


@dataclass(frozen=True)
class _Lanes:
    """Per stream: when its ops ``first`` start and ``last`` end, and the ``sum`` of their durations, int64 ns.

    ``start`` and ``end`` are the times of the op that was read last. ``overlaps`` counts ops that end after the next op
    of their stream starts, ``overlap_ns`` is the largest overlap; ``ops`` counts the ops read.
    """

    first: Ints
    last: Ints
    sum: Ints
    start: Ints
    end: Ints
    overlaps: Ints
    overlap_ns: Ints
    ops: Ints


def _of_streams(trace: Trace) -> Iterator[str]:
    """Ops of a stream run one after the other, except nodes of CUDA graphs and ops without a stream."""
    lanes = _read_lanes(trace)
    overlaps, most_ns = int(lanes.overlaps.sum()), int(lanes.overlap_ns.max(initial=0))
    if overlaps and most_ns > trace.clock_step:
        checked = int(lanes.ops.sum())
        yield (
            f"{overlaps:,} of {checked:,} GPU ops ({format_share(overlaps / checked)}) overlap the next op "
            f"of their stream by up to {format_ns(most_ns)}; the cause is programmatic dependent launch, or wrong "
            "timestamps"
        )
    span = np.where(lanes.ops > 0, lanes.last, 0) - np.where(lanes.ops > 0, lanes.first, 0)
    full = np.flatnonzero((lanes.sum > span) & (span > 0))
    if len(full) and (lanes.sum - span)[full].max() > trace.clock_step:
        most = float((lanes.sum[full] / span[full]).max())
        share = int(lanes.sum[full].sum()) / int(lanes.sum.sum())
        yield (
            f"{len(full):,} of {np.count_nonzero(lanes.ops):,} streams run several GPU ops at once, so sums count "
            f"overlapping time more than once: the op time of a stream is up to {format_share(most)} of elapsed time "
            f"(these streams have {format_share(share)} of GPU op time)"
        )


def _read_lanes(trace: Trace) -> _Lanes:
    """The `_Lanes` of all streams: kernels and other ops each in file order, if that is time order."""
    ops = trace.ops
    ordered = np.array([stream.id is not None and not stream.migrates for stream in trace.streams], bool)
    nothing = np.zeros((8, len(ordered)), np.int64)
    nothing[0], nothing[1] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    lanes = _Lanes(*nothing)
    for kernels in (True, False):
        lanes.start[:] = lanes.end[:] = np.iinfo(np.int64).min
        tried = _Lanes(*(getattr(lanes, field.name).copy() for field in fields(lanes)))
        chosen = (_chosen(ops, part, ordered, kernels) for part in slices(len(ops)))
        if all(_read(tried, ops, rows[np.argsort(ops.stream[rows], kind="stable")]) for rows in chosen):
            lanes = tried
        else:
            rows = _chosen(ops, slice(None), ordered, kernels)
            _read(lanes, ops, rows[np.lexsort((ops.end[rows], ops.start[rows], ops.stream[rows]))])
    return lanes


def _chosen(ops: Ops, part: slice, ordered: Mask, kernels: bool) -> Ints:
    """The rows of a part whose ops run in stream order: only kernels, or only other ops."""
    keep = ((ops.kind[part] == KERNEL) == kernels) & ordered.take(ops.stream[part]) & ~ops.from_graph[part]
    return np.flatnonzero(keep) + (part.start or 0)


def _read(lanes: _Lanes, ops: Ops, rows: Ints) -> bool:
    """Add more ops, sorted by stream; return False if the ops of a stream are not in time order."""
    if not len(rows):
        return True
    stream, start, end = ops.stream[rows], ops.start[rows], ops.end[rows]
    begins = np.flatnonzero(np.append(True, stream[1:] != stream[:-1]))
    of = stream[begins]
    before, ended = np.empty_like(start), np.empty_like(start)
    before[1:], ended[1:] = start[:-1], end[:-1]
    before[begins], ended[begins] = lanes.start[of], lanes.end[of]
    if ((start < before) | ((start == before) & (end < ended))).any():
        return False
    lanes.first[of] = np.minimum(lanes.first[of], start[begins])
    lanes.last[of] = np.maximum(lanes.last[of], np.maximum.reduceat(end, begins))
    lanes.sum[of] += np.add.reduceat(end - start, begins)
    stops = np.append(begins[1:], len(rows)) - 1
    lanes.ops[of] += stops - begins + 1
    lanes.start[of], lanes.end[of] = start[stops], end[stops]
    late = np.flatnonzero(ended > start)
    np.add.at(lanes.overlaps, stream[late], 1)
    np.maximum.at(lanes.overlap_ns, stream[late], ended[late] - start[late])
    return True


def _of_launches(trace: Trace) -> Iterator[str]:
    """No op runs before its launch, except for clock errors."""
    ops, launches = trace.ops, trace.launches
    early = known = most = 0
    for part in slices(len(ops) if len(launches) else 0):
        launch = ops.launch[part]
        ahead = np.where(launch >= 0, launches.start.take(launch) - ops.start[part], 0)
        known += int(np.count_nonzero(launch >= 0))
        early += int(np.count_nonzero(ahead > CLOCK_ERROR_NS))
        most = max(most, int(ahead.max(initial=0)))
    if early:
        yield (
            f"{early:,} of {known:,} GPU ops ({format_share(early / known)}) start before their launching "
            f"call, by up to {format_ns(most)}: the clocks of host and GPU differ"
        )


def _of_recording(trace: Trace) -> Iterator[str]:
    """Data losses that nsys reports, without the amount (which nsys does not report)."""
    told = [each for each in trace.report.about.diagnostics if tells_of_dropped_events(each)]
    if told:
        texts = (one_line(each.text, 160) + (f" ({each.count:,} times)" if each.count > 1 else "") for each in told)
        said = " ".join(sorted(texts))
        left = f"{plural(len(trace.ops), 'GPU op')} and {plural(len(trace.ranges), 'range')}"
        yield f"nsys may have dropped events (number unknown); {left} remain. Message of nsys: {said}"
