"""Provide the source of every export: a breakdown, and report data that no other command needs."""

from dataclasses import dataclass

import numpy as np

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.core.arrays import Ints32
from nsysprof.formats.answers import EXPORT_SCHEMA
from nsysprof.trace.details import CallList, OpDetails
from nsysprof.trace.trace import Progress, Trace
from nsysprof.why.instance import PathPieces


@dataclass(frozen=True)
class RecordSource:
    """A breakdown with the details of its report.

    ``details`` has a row per op; ``calls``: all host calls. ``call`` (int32): the row in ``calls`` of each launch, or
    -1. ``path`` (int32): the path of each launch's owner, into ``breakdown.path_texts``, or -1. ``waits``: the waits on
    the critical path of windows; None if there are no waits, or if they were not requested.
    """

    breakdown: Breakdown
    details: OpDetails
    calls: CallList
    call: Ints32
    path: Ints32
    waits: PathPieces | None = None

    @property
    def trace(self) -> Trace:
        """The recording."""
        return self.breakdown.attribution.trace

    @property
    def about(self) -> dict[str, str]:
        """Return the facts that every export contains: schema, version, report, and the modes of threads and graphs."""
        return {
            "nsysprof.schema": EXPORT_SCHEMA,
            "nsysprof.version": __version__,
            "nsysprof.report": self.trace.report.path.name,
            "nsysprof.threads": self.breakdown.attribution.threads,
            "nsysprof.graphs": self.breakdown.attribution.graphs,
        }

    def of_ops(self, per_launch: Ints32) -> Ints32:
        """Expand a value per launch to a value per GPU op; -1 for ops without a launch."""
        return np.append(per_launch, np.int32(-1))[self.trace.ops.launch]


def record_source(breakdown: Breakdown, progress: Progress | None = None) -> RecordSource:
    """Read the report data that exports need. The breakdown must cover the whole report, which must be open.

    Raises `NsysprofError` if the file is damaged.
    """
    attribution = breakdown.attribution
    trace = attribution.trace
    reader = trace.report.reader
    details, calls = reader.op_details(trace), reader.call_list(progress)
    launches = trace.launches
    path = np.append(breakdown.paths.of, np.int32(-1))[attribution.owner]
    call = calls.find(trace.threads[launches.thread], launches.start, launches.end)
    return RecordSource(breakdown, details, calls, call, path)
