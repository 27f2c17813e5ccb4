"""Assign the work of CUDA graphs to the ranges in which the graphs were captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.captured import as_captured
from nsysprof.core.arrays import Ints32, Mask
from nsysprof.core.text import plural
from nsysprof.trace.trace import GRAPH, KERNEL, Trace
from nsysprof.trace.variants import only_ops


@dataclass(frozen=True)
class GraphWork:
    """The GPU ops of graphs, attributed to the ranges in which their graphs were captured.

    ``captured``: for each op of the trace, whether its capture is known. ``inside``: an attribution of only these ops;
    the owner of each op is the range that was open at its capture.
    """

    captured: Mask
    inside: Attribution

    @cached_property
    def owner(self) -> Ints32:
        """For each op of the trace, return the range in which the op was captured, -1 for none."""
        out = np.full(len(self.captured), -1, np.int32)
        out[self.captured] = self.inside.op_owner
        return out

    def of(self, chosen: Mask) -> GraphWork:
        """Return the graph work among the ``chosen`` ops."""
        trace = only_ops(self.inside.trace, chosen[self.captured])
        return GraphWork(self.captured[chosen], attribute(trace, self.inside.threads))


def graph_work(attribution: Attribution) -> GraphWork | None:
    """Find the `GraphWork` of an attributed report, which must be open; returns None if no capture of a graph is known.

    Reports without graph nodes are not searched.
    """
    trace, replay = attribution.trace, attribution.replay
    if replay is None:
        if not trace.ops.from_graph.any():
            return None
        trace, replay = as_captured(trace, trace.report.reader.captures(trace))
    captured = replay >= 0
    if not captured.any():
        return None
    return GraphWork(captured, attribute(only_ops(trace, captured), attribution.threads))


@dataclass(frozen=True)
class GraphCounts:
    """Counts of the GPU ops in a report's CUDA graphs, by the place of their capture.

    ``ops`` and ``kernels`` are GPU ops and kernels that are nodes of graphs. ``captured`` and ``captured_kernels``
    count what was captured in a range, ``outside`` what was captured outside every range, and ``unknown`` what has no
    recorded capture. ``whole`` counts graph launches that were traced as a whole.
    """

    ops: int
    kernels: int
    captured: int
    captured_kernels: int
    outside: int
    unknown: int
    whole: int

    def sentences(self, graphs: str) -> Iterator[str]:
        """Describe the counts, and how to record missing captures; ``graphs`` is the mode in use."""
        if self.ops:
            what = plural(self.kernels, "kernel") if self.kernels else plural(self.ops, "GPU op")
            belong = self.captured_kernels if self.kernels else self.captured
            shown = "as shown" if graphs == "captured" else "see --graphs captured"
            yield f"{what} of CUDA graphs: " + (
                f"{belong:,} {'was' if belong == 1 else 'were'} captured inside ranges, {shown}"
                if belong
                else "no GPU op was captured inside a range"
            )
        if self.outside:
            yield (
                f"{plural(self.outside, 'GPU op')} in CUDA graphs that were captured outside every "
                "range: open a range around the capture"
            )
        if self.unknown:
            yield (
                f"{plural(self.unknown, 'GPU op')} in CUDA graphs without a recorded capture "
                "(child graphs, conditional nodes, or a capture before the recording began): record the capture too"
            )
        if self.whole:
            yield (
                f"{plural(self.whole, 'CUDA graph')} recorded as one operation: capture with "
                "--cuda-graph-trace=node to see their kernels and ranges"
            )


def graph_counts(trace: Trace, replay: Ints32 | None, work: GraphWork | None) -> GraphCounts:
    """Count graph ops by their capture; ``replay`` is as in `Attribution`."""
    ops = trace.ops
    nodes = ops.from_graph if replay is None else ops.from_graph | (replay >= 0)
    kernel = ops.kind == KERNEL
    captured = work.captured if work else np.zeros(len(ops), bool)
    owned = work.owner >= 0 if work else captured
    some = (nodes, nodes & kernel, owned, owned & kernel, captured & ~owned, nodes & ~captured, ops.kind == GRAPH)
    return GraphCounts(*map(int, map(np.count_nonzero, some)))
