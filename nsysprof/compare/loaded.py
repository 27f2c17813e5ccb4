"""Prepare a report for selecting ranges: merged paths, kinds of kernels, run record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import WHOLE_TRACE, Paths, merged_paths, range_paths, warm_up
from nsysprof.attribution.sources import annotated
from nsysprof.core.arrays import Floats, Index, Ints, Ints32, Mask
from nsysprof.formats.run_record import RecordedRun
from nsysprof.kernels.classify import Kinds, Rules, classify
from nsysprof.kernels.shapes import op_work
from nsysprof.trace.details import OpDetails
from nsysprof.trace.trace import KERNEL, START_END, Report, Trace
from nsysprof.waits.causes import WaitFacts, wait_facts

WHOLE = -1  # stands for the code of a merged path where the whole trace is meant


@dataclass(frozen=True)
class LoadedReport:
    """An attributed report, ready for selecting ranges: ``texts``: the merged paths; ``kinds``: the kinds of the op
    names; ``runs``: the entries of the run record by range name. ``left_out`` are warm-up instances, None if there are
    none.
    """

    attribution: Attribution
    merged: Paths
    texts: list[str]
    kinds: Kinds
    runs: dict[str, RecordedRun]
    left_out: Mask | None
    code_of: Ints32  # the merged path of each range instance

    @property
    def path(self) -> Path:
        """Return the report's file as the user named it."""
        return self.report.path

    @property
    def report(self) -> Report:
        """The report itself."""
        return self.trace.report

    @property
    def trace(self) -> Trace:
        """The trace of the report."""
        return self.attribution.trace

    @cached_property
    def wait_facts(self) -> WaitFacts:
        """Return the facts that explain why the GPU waits."""
        return wait_facts(self.attribution.launched.trace, self.kinds.communication)

    @cached_property
    def grids(self) -> Ints:
        """Return the grid of each kernel, in the order of the GPU ops; empty if not recorded."""
        grids = self.report.reader.grids()
        # kernels are the first ops, in the order of their table
        return grids if len(grids) == int((self.trace.ops.kind == KERNEL).sum()) else grids[:0]

    @cached_property
    def op_details(self) -> OpDetails:
        """Return the launch parameters of each GPU op."""
        return self.report.reader.op_details(self.trace)

    @cached_property
    def flops(self) -> Floats:
        """Return the FLOPs of each GPU op by the shapes of its operator, NaN if not recorded."""
        return op_work(self.trace).flops

    @cached_property
    def _by_code(self) -> tuple[Index, Index]:
        """The range instances in the order of their merged paths, and the first instance of each path."""
        order = np.argsort(self.code_of, kind="stable")
        return order, np.searchsorted(self.code_of, np.arange(len(self.merged) + 1), sorter=order)

    def instances(self, codes: Sequence[int]) -> Index:
        """Return the range instances of the given merged paths, sorted."""
        order, begin = self._by_code
        rows = [order[begin[code] : begin[code + 1]] for code in codes]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.intp)

    @cached_property
    def annotated(self) -> bool:
        """Whether the report has NVTX ranges."""
        return annotated(self.trace)

    def covered(self, code: int) -> float:
        """Return the share of all GPU op time that is in a merged path, including its inner ranges."""
        if code == WHOLE:
            return 1.0
        mine = self.attribution.inclusive.sum_ns[self.instances([code])].sum()
        return float(mine / max(int((self.trace.ops.end - self.trace.ops.start).sum()), 1))

    def among(self, attribution: Attribution, merge: Sequence[str] | None) -> LoadedReport:
        """Return the report with other ranges."""
        if attribution is self.attribution.launched:
            return self
        return load_report(attribution, self.kinds, merge, self.runs)

    def title(self, code: int) -> str:
        """Return the text of a merged path. If a push/pop range has the same text as a start/end range, the latter is
        marked.
        """
        if code == WHOLE:
            return WHOLE_TRACE
        twin = self.merged.kind[code] == START_END and self.texts.count(self.texts[code]) > 1
        return f"{self.texts[code]} (start/end)" if twin else self.texts[code]


def load_report(
    attribution: Attribution,
    rules: Rules | Kinds,
    merge: Sequence[str] | None,
    runs: dict[str, RecordedRun],
    skip: int = 0,
) -> LoadedReport:
    """Prepare a report for selecting ranges, without the first ``skip`` instances of repeated ranges.

    ``rules`` may be the kinds of the op names, if already known.
    """
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge)
    code_of = merged.of[paths.of]
    kinds = classify(rules, attribution.trace.op_names) if isinstance(rules, Rules) else rules
    left_out = warm_up(attribution, code_of, skip) if skip else None
    return LoadedReport(attribution, merged, merged.texts(), kinds, runs, left_out, code_of)
