"""The source of every export: a breakdown, and the parts of the report that analysis does without."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof import __version__
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.formats.answers import EXPORT_SCHEMA
from nsysprof.trace.details import CallList, OpDetails
from nsysprof.trace.trace import Progress, Trace
from nsysprof.why.instance import PathPieces


@dataclass(frozen=True)
class RecordSource:
    """A breakdown with the details of its report.

    ``details`` has a row per op; ``calls`` all host calls, ``call`` int32 the row in it of each launch (-1 where it
    is not known); ``path`` int32 the path, into ``breakdown.path_texts``, of the owner of each launch (-1 for none).
    ``waits`` are those on the critical path of windows, None if
    there are none or they are not requested.
    """

    breakdown: Breakdown
    details: OpDetails
    calls: CallList
    call: NDArray[np.int32]
    path: NDArray[np.int32]
    waits: PathPieces | None = None

    @property
    def trace(self) -> Trace:
        """The recording."""
        return self.breakdown.attribution.trace

    @property
    def about(self) -> dict[str, str]:
        """The facts that every export carries: schema, version, report, and how threads and graphs were read."""
        return {
            "nsysprof.schema": EXPORT_SCHEMA,
            "nsysprof.version": __version__,
            "nsysprof.report": self.trace.report.path.name,
            "nsysprof.threads": self.breakdown.attribution.threads,
            "nsysprof.graphs": self.breakdown.attribution.graphs,
        }

    def of_ops(self, per_launch: NDArray[np.int32]) -> NDArray[np.int32]:
        """Turn a column of launches into one of GPU ops; -1 for those without a launch."""
        taken: NDArray[np.int32] = np.append(per_launch, np.int32(-1))[self.trace.ops.launch]
        return taken


def record_source(breakdown: Breakdown, progress: Progress | None = None) -> RecordSource:
    """Read what exports need of the report that was broken down whole; it must still be open.

    Raises `NsysprofError` where the file turns out to be damaged.
    """
    attribution = breakdown.attribution
    trace = attribution.trace
    reader = trace.report.reader
    details, calls = reader.op_details(trace), reader.call_list(progress)
    launches = trace.launches
    path = np.append(breakdown.paths.of, np.int32(-1))[attribution.owner]
    call = calls.find(trace.threads[launches.thread], launches.start, launches.end)
    return RecordSource(breakdown, details, calls, call, path)
