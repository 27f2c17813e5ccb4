"""Which call let the GPU run dry: the synchronization after which the host never got ahead of the GPU again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints, slice_reduce
from nsysprof.trace.details import SYNCHRONIZING, HostActivity
from nsysprof.trace.trace import Trace
from nsysprof.waits.walk import Reasons

_NEVER = np.iinfo(np.int64).min


def exposed_by(
    trace: Trace, why: Reasons, activity: HostActivity, launch: NDArray[np.integer], length: Ints
) -> NDArray[np.int64]:
    """For each wait for a ``launch``, ``length`` ns long, the call of ``activity`` that exposed it; -1 for none.

    That is the last synchronizing call of the launching thread before the launch, unless the host was ahead of the GPU
    by more than the wait at some launch in between: then it had made up for the synchronization.
    """
    launches, calls = trace.launches, activity.calls
    lead = np.full(len(launches), _NEVER)  # how long the GPU still had to do when each launch returned
    known = np.flatnonzero((trace.ops.launch >= 0) & (why.ready > _NEVER))
    np.maximum.at(lead, trace.ops.launch[known], why.ready[known] - why.launched[known])
    out = np.full(len(launch), -1, np.int64)
    for code in np.unique(launches.thread[launch]).tolist():
        mine = np.flatnonzero(launches.thread[launch] == code)
        rows = calls.of_thread(int(trace.threads[code]))
        syncs = rows.start + np.flatnonzero(activity.kind[rows] == SYNCHRONIZING)
        if len(syncs) == 0:
            continue
        syncs = syncs[np.argsort(calls.end[syncs], kind="stable")]
        place = np.searchsorted(calls.end[syncs], launches.start[launch[mine]], side="right") - 1
        mine, place = mine[place >= 0], place[place >= 0]
        first, last = np.searchsorted(launches.thread, [code, code + 1]).tolist()
        since = first + np.searchsorted(launches.start[first:last], calls.end[syncs[place]])
        ahead = slice_reduce(np.maximum, lead, since, launch[mine].astype(np.intp), _NEVER)
        hit = ahead <= length[mine]
        out[mine[hit]] = syncs[place[hit]]
    return out
