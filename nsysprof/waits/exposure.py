"""Which call let the GPU run dry: the synchronization after which the host never got ahead of the GPU again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints, slice_reduce
from nsysprof.trace.details import SYNCHRONIZING, HostActivity
from nsysprof.trace.trace import Trace
from nsysprof.waits.walk import Reasons

SLACK_NS = 20_000  # a lead of the host that is no lead
_NEVER = np.iinfo(np.int64).min


def exposed_by(
    trace: Trace,
    why: Reasons,
    activity: HostActivity,
    launch: NDArray[np.integer],
    start: Ints,
    end: Ints,
    thread: NDArray[np.integer],
    since: Ints,
) -> NDArray[np.int64]:
    """For each wait from ``start`` to ``end`` for a ``launch`` the call of ``activity`` that exposed it; -1 for none.

    That is the last synchronizing call of the launching thread (of ``thread`` where ``launch`` is -1) before it, unless
    the host got ahead of the GPU again by `SLACK_NS` and a tenth of the wait at some launch in between: then something
    else let the GPU run dry. Nor does a call count that ended before ``since``.
    """
    launches, calls = trace.launches, activity.calls
    lead = np.full(len(launches), _NEVER)  # how long the GPU still had to do when each launch returned
    known = np.flatnonzero((trace.ops.launch >= 0) & (why.ready > _NEVER))
    np.maximum.at(lead, trace.ops.launch[known], why.ready[known] - why.launched[known])
    out = np.full(len(launch), -1, np.int64)
    by = np.where(launch >= 0, np.append(launches.thread, 0)[launch], thread)
    called = np.where(launch >= 0, np.append(launches.start, 0)[launch], end)
    for code in np.flatnonzero(np.bincount(by)).tolist():
        mine = np.flatnonzero(by == code)
        rows = calls.of_thread(int(trace.threads[code]))
        syncs = rows.start + np.flatnonzero(activity.kind[rows] == SYNCHRONIZING)
        if len(syncs) == 0:
            continue
        syncs = syncs[np.argsort(calls.end[syncs], kind="stable")]
        place = np.searchsorted(calls.end[syncs], called[mine], side="right") - 1
        late = (place >= 0) & (calls.end[syncs[place]] >= since[mine])
        mine, place = mine[late], place[late]
        first, last = np.searchsorted(launches.thread, [code, code + 1]).tolist()
        behind = first + np.searchsorted(launches.start[first:last], calls.end[syncs[place]])
        until = first + np.searchsorted(launches.start[first:last], called[mine])
        ahead = slice_reduce(np.maximum, lead, behind, np.maximum(until, behind), _NEVER)
        hit = ahead <= SLACK_NS + (end - start)[mine] // 10
        out[mine[hit]] = syncs[place[hit]]
    return out
