"""Collect the kernels of steps, and compute how much shorter kernels would save (in a replay, or as an upper bound)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nsysprof.core.arrays import Index, Ints, Ints32, Mask
from nsysprof.core.intervals import covered, merge, union_length
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import EVERY, ONCE, Finding
from nsysprof.diagnosis.kinds import counted, each_step, often
from nsysprof.diagnosis.launch_bound import launching_time
from nsysprof.trace.trace import COPYING
from nsysprof.waits import edits
from nsysprof.waits.facts import LATE_HOST
from nsysprof.waits.windows import compute_ops

LEAST, LEAST_NS = 0.05, 20_000  # of the steps, in all of them: what kernels could gain below is not told
_FULL = 0.75  # of the steps: more than is left where launching takes twice as long as without the recorder


@dataclass(frozen=True)
class Busy:
    """The compute kernels in the steps of a ``place``: rows ``op`` of `Trace.ops`, sorted by start.

    ``alone``: for each kernel, the time (ns) in which no other kernel runs.
    """

    case: Case
    place: Place
    op: Index
    alone: Ints

    @property
    def name(self) -> Ints32:
        """Return the name of each kernel, as a code of `Trace.op_names`."""
        return self.case.facts.attribution.trace.ops.name[self.op]

    @property
    def length(self) -> Ints:
        """The duration of each kernel (ns)."""
        ops = self.case.facts.attribution.trace.ops
        return ops.end[self.op] - ops.start[self.op]

    def matches(self, test: Callable[[int], bool]) -> Mask:
        """Mark the kernels whose name, given as a code, passes a test."""
        codes, inverse = np.unique(self.name, return_inverse=True)
        return np.array([test(code) for code in codes.tolist()], bool)[inverse]

    @cached_property
    def with_copies(self) -> Index:
        """Return the rows of the steps' GPU ops, including copies but not collectives, sorted by stream and start."""
        trace = self.case.facts.attribution.trace
        copies = np.flatnonzero(np.isin(trace.ops.kind, COPYING) & (trace.op_gpu == self.place.gpu))
        rows = np.concatenate([self.op, copies[starts_in(self.case, self.place, trace.ops.start[copies])]])
        rows = trace.in_order(rows, trace.ops.start)
        return rows[np.argsort(trace.ops.stream[rows], kind="stable")]

    def gained(self, op: Index, shorter: Ints, ns: int | None = None) -> int:
        """Return the maximum gain over all steps if each GPU op were shorter by ``shorter`` ns: the sum of ``shorter``,
        or the replayed gain if that is smaller.

        ``ns`` replaces the sum of ``shorter`` if ops run at the same time.
        """
        length = np.maximum(self._length_of(op) - shorter, 0)
        gains = self.case.shorter(self.place, lambda network: edits.lengthen(network, op, length))
        ns = int(shorter.sum()) if ns is None else ns
        return self._least(ns if gains is not None else round(ns * self._felt(op, shorter)), gains)

    def merged(self, op: Index, first: Mask, length: Ints, ns: int | None = None) -> int:
        """Return the maximum gain if one GPU op of ``length`` ns replaced several GPU ops, see `edits.merge_ops`.

        ``ns``: the calculated upper bound of the time saved (default: the time of the replaced ops minus ``length``).
        """
        trace = self.case.facts.attribution.trace
        gains = self.case.shorter(self.place, lambda network: edits.merge_ops(network, trace, op, first, length))
        ns = int(self._length_of(op).sum() - length[first].sum()) if ns is None else ns
        return self._least(ns if gains is not None else round(ns * self._felt(op, self._length_of(op))), gains)

    def _felt(self, op: Index, ns: Ints) -> float:
        """The part of ``ns`` of GPU ops, without a replay, that does not only lengthen the next wait for a late launch.

        Behind a call that waited for the GPU a launch comes the earlier, the earlier the GPU is done.
        """
        if not self.case.replay:  # which the user did not want: an upper limit
            return 1.0
        pieces, ends = self.case.pieces, self.case.facts.attribution.trace.ops.end[op]
        here = (pieces["cause"] == LATE_HOST) & (self.case.place_of == self.case.places.index(self.place))
        rows = np.flatnonzero(here)
        rows = rows[np.argsort(pieces["start_ns"][rows], kind="stable")]
        at = np.searchsorted(pieces["start_ns"][rows], ends)
        waits = np.append(pieces["exposing"][rows] >= 0, True)[at]
        return float(ns[waits].sum() / max(int(ns.sum()), 1))

    def _least(self, ns: int, gains: Ints | None) -> int:
        """The smaller of both. Kernels that fill the steps of a recorder that slows the CPU hide that in a replay."""
        if gains is None:
            return ns
        full = self.alone.sum() >= _FULL * self.place.total_ns
        return max(min(ns, int(gains.sum()) + (self._of_recorder if full else 0)), 0)

    @cached_property
    def _of_recorder(self) -> int:
        """What the recorder adds to launching in the steps, ns: in a replay, launches hide what kernels gain."""
        launching, windows = launching_time(self.case, self.place), self.case.windows.take(self.place.windows)
        line = merge(launching.start, launching.end)
        return round((1 - 1 / self.case.inflation) * int(covered(line, windows.start, windows.end).sum()))

    def _length_of(self, op: Index) -> Ints:
        ops = self.case.facts.attribution.trace.ops
        return ops.end[op] - ops.start[op]

    def finding(
        self, kind: str, cause: str, text: str, remedy: str, gain: int, op: Index, ns: int | None = None
    ) -> Finding:
        """Make a finding about the GPU ops ``op``, with the maximum ``gain`` over all steps. The time ``ns`` (default:
        the gain; at most all step time) replaces ``{amount}`` in ``text``.
        """
        ns = min(gain if ns is None else ns, self.place.total_ns)
        start = self.case.facts.attribution.trace.ops.start[op]
        begins = np.sort(self.case.windows.start[self.place.windows])
        step = np.maximum(np.searchsorted(begins, start, side="right") - 1, 0)
        of_step = np.bincount(step, self._length_of(op), self.place.steps)
        which, place = often(self.place, of_step), self.place
        if not of_step.all():
            place = replace(place, partial=True)
        if self.elapsed < place.total_ns:  # a kernel counts for one of the steps that overlap: in how many is unknown
            which = EVERY
        amount = each_step(place, ns) if which == EVERY else f"{format_ns(ns)} {'in ' * (which != ONCE)}{which}"
        found = counted(place, kind, cause, text.format(amount=amount), remedy, gain, gain)
        return replace(found, often=which)

    @cached_property
    def elapsed(self) -> int:
        """The time of all steps, once where steps of several threads overlap and share kernels."""
        windows = self.case.windows.take(self.place.windows)
        return union_length(windows.start, windows.end)

    def enough(self, ns: int, least: float = LEAST) -> bool:
        """Return whether a gain is large enough to report: at least this share of the steps."""
        return ns >= max(least * self.place.total_ns, LEAST_NS)


def busy_kernels(case: Case, place: Place) -> Busy:
    """Return the `Busy` kernels of the steps of a place."""
    trace = case.facts.attribution.trace
    rows = np.flatnonzero(compute_ops(trace, case.facts.communication) & (trace.op_gpu == place.gpu))
    rows = trace.in_order(rows[starts_in(case, place, trace.ops.start[rows])], trace.ops.start)
    start, end = trace.ops.start[rows], trace.ops.end[rows]
    reach = np.maximum.accumulate(np.append(start[:1], end[:-1])) if len(rows) else start
    follows = np.append(start[1:], np.iinfo(np.int64).max)[: len(rows)]
    alone = np.maximum(np.minimum(end, follows) - np.maximum(start, reach), 0)
    return Busy(case, place, rows, alone)


def starts_in(case: Case, place: Place, start: Ints) -> Mask:
    """Mark the GPU ops, given by their start times, that are in the steady steps of a place."""
    windows = case.windows.take(place.windows)
    windows = windows.take(np.argsort(windows.start, kind="stable"))
    at = np.searchsorted(windows.start, start, side="right") - 1
    return (at >= 0) & (start < windows.end[at])
