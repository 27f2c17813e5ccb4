"""What each slice of a Perfetto trace is called and what is said of it, as pieces of its first event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import OUTCOMES, OWN_THREAD
from nsysprof.export.columns import OP_KINDS
from nsysprof.export.perfetto_texts import TraceTexts
from nsysprof.export.perfetto_wire import FIXED, Pieces, eights, pieces, tag
from nsysprof.export.source import ExportSource
from nsysprof.export.tracks import Slices, What
from nsysprof.kernels.classify import short_name
from nsysprof.trace.details import grid_text
from nsysprof.trace.trace import DEFAULT_DOMAIN, KERNEL

# The pieces of the slices at some positions of a track.
Content: TypeAlias = Callable[[Slices, NDArray[np.integer]], list[Pieces]]


def slice_content(protos: Any, source: ExportSource, texts: TraceTexts) -> dict[What, Content]:
    """The content of slices by what they are. Every distinct half of an event is encoded here and once.

    An op that a launch caused is the end of a flow that begins at the launch; the number of the flow is that of the op
    plus 1.
    """
    fields = protos.TrackEvent.DESCRIPTOR.fields_by_name
    flow, last_flow = tag(fields["flow_ids"].number, FIXED), tag(fields["terminating_flow_ids"].number, FIXED)
    return {
        "call": _calls(source, texts, flow),
        "range": _ranges(source, texts),
        "projection": _projections(source, texts),
        "op": _ops(source, texts, flow, last_flow),
    }


def _some(found: Pieces, which: NDArray[np.bool_]) -> Pieces:
    """Pieces that only some rows have."""
    return found.spread(np.flatnonzero(which), len(which))


def _calls(source: ExportSource, texts: TraceTexts, flow: bytes) -> Content:
    calls = source.calls
    names = pieces([texts.named(name, "cuda") for name in calls.names])
    launch = np.full(len(calls) + 1, -1, np.int32)
    launch[source.call] = np.arange(
        len(source.call), dtype=np.int32
    )  # what is not found goes into the last entry
    call = source.of_ops(source.call)
    ops = np.argsort(call, kind="stable")
    caused = np.bincount(call[call >= 0], minlength=len(calls))
    before = np.cumsum(caused) - caused + int((call < 0).sum())
    flows = eights(ops + 1, flow)
    width = len(flow) + 8

    def content(slices: Slices, at: NDArray[np.integer]) -> list[Pieces]:
        row = slices.row[at]
        result, caused_by = calls.result[row], launch[row]
        failed, launched = result != 0, caused_by >= 0
        return [
            names.take(calls.name[row]),
            _some(texts.counted("launch", caused_by[launched]), launched),
            _some(texts.counted("result", result[failed]), failed),
            Pieces(flows.data, before[row] * width, caused[row] * width),
        ]

    return content


def _ranges(source: ExportSource, texts: TraceTexts) -> Content:
    trace, breakdown = source.trace, source.breakdown
    ranges, path = trace.ranges, breakdown.paths.of
    names = pieces(
        [
            texts.named(name.text, "nvtx")
            + texts.noted(domain=name.domain if name.domain != DEFAULT_DOMAIN else "")
            for name in trace.range_names
        ]
    )
    paths = pieces([texts.noted(path=text) for text in breakdown.path_texts])
    unclosed = pieces([b"", texts.noted(unclosed="never closed: ends with the session")])

    def content(slices: Slices, at: NDArray[np.integer]) -> list[Pieces]:
        row = slices.row[at]
        return [
            names.take(ranges.name[row]),
            paths.take(path[row]),
            texts.counted("range", row),
            unclosed.take(ranges.unclosed[row].astype(np.intp)),
        ]

    return content


def _projections(source: ExportSource, texts: TraceTexts) -> Content:
    ranges = _ranges(source, texts)

    def content(slices: Slices, at: NDArray[np.integer]) -> list[Pieces]:
        totals = [texts.counted(name, values[at]) for name, values in slices.totals.items()]
        return [*ranges(slices, at), *totals]

    return content


def _ops(source: ExportSource, texts: TraceTexts, flow: bytes, last_flow: bytes) -> Content:
    trace, details, calls = source.trace, source.details, source.calls
    ops, outcome = trace.ops, source.breakdown.attribution.op_outcome
    names = pieces(_op_names(source, texts))
    shapes, shape = _op_shapes(source, texts)
    paths = pieces([*(texts.noted(path=text) for text in source.breakdown.path_texts), b""])
    outcomes = pieces(
        [texts.noted(fate=text if code != OWN_THREAD else "") for code, text in enumerate(OUTCOMES)]
    )
    path, call = source.of_ops(source.path), source.of_ops(source.call)
    called = np.append(calls.start, 0)[call]

    def content(slices: Slices, at: NDArray[np.integer]) -> list[Pieces]:
        row = slices.row[at]
        start, end, size, linked = ops.start[row], ops.end[row], details.size[row], call[row] >= 0
        # Arrows run forwards in time: an op before its launch cannot be the end of one.
        late = linked & (start >= called[row])
        early, backwards, sized = linked & ~late, end < start, size >= 0
        return [
            names.take(ops.name[row]),
            shapes.take(shape[row]),
            paths.take(path[row]),
            outcomes.take(outcome[row]),
            texts.counted("op", row),
            _some(texts.counted("size_bytes", size[sized]), sized),
            _some(texts.counted("duration_ns", (end - start)[backwards]), backwards),
            _some(eights(row[late] + 1, last_flow), late),
            _some(eights(row[early] + 1, flow), early),
        ]

    return content


def _op_names(source: ExportSource, texts: TraceTexts) -> list[bytes]:
    """What is said of an op by its name alone: the short one, unless kernels share it, and then the full one too."""
    trace, kinds = source.trace, source.breakdown.kinds
    kind = np.zeros(len(trace.op_names), np.uint8)
    kind[trace.ops.name] = trace.ops.kind
    short = [
        short_name(name) if code == KERNEL else name
        for name, code in zip(trace.op_names, kind.tolist(), strict=True)
    ]
    shared = Counter(short)
    titles = [own if shared[own] == 1 else name for own, name in zip(short, trace.op_names, strict=True)]
    return [
        texts.named(title, OP_KINDS[code])
        + texts.noted(
            kernel=name if name != title else "",
            family=family,
            math_unit=unit,
            cause=cause if cause != family else "",
        )
        for title, name, code, family, unit, cause in zip(
            titles, trace.op_names, kind.tolist(), kinds.family, kinds.math_unit, kinds.cause, strict=True
        )
    ]


def _op_shapes(source: ExportSource, texts: TraceTexts) -> tuple[Pieces, NDArray[np.intp]]:
    """What is said of each distinct grid and block, and which of them each op has."""
    grid, of_grid = np.unique(source.details.grid, return_inverse=True)
    block, of_block = np.unique(source.details.block, return_inverse=True)
    both, shape = np.unique(of_grid * len(block) + of_block, return_inverse=True)
    said = [
        texts.noted(grid=grid_text(grid[code // len(block)]), block=grid_text(block[code % len(block)]))
        for code in both.tolist()
    ]
    return pieces(said), shape
