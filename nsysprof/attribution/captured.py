"""The second reading of CUDA graphs: what a graph replays, as if it had been launched where it was captured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nsysprof.trace.details import Captures
from nsysprof.trace.trace import Launches, Ops, Trace


def as_captured(trace: Trace, captures: Captures) -> Trace:
    """The trace with a launch for each captured node, on the thread and at the moment that made it.

    All replays of a node are ops of that one launch; a launch of a graph whose nodes are all known launches nothing any
    more and goes. Ops of nodes that were made outside the recording, or on a thread without ranges, stay as they are.
    """
    ops, launches = trace.ops, trace.launches
    thread = np.searchsorted(trace.threads, captures.thread)
    known = (captures.thread != 0) & (np.append(trace.threads, 0)[thread] == captures.thread)
    rows = np.flatnonzero(known)
    made = np.stack([thread[rows], captures.time[rows]])
    nodes, node = np.unique(made, axis=1, return_inverse=True)
    launch = ops.launch.copy()
    launch[rows] = -1
    used = np.zeros(len(launches), bool)
    used[launch[launch >= 0]] = True
    emptied = np.zeros(len(launches), bool)
    emptied[ops.launch[rows][ops.launch[rows] >= 0]] = True
    kept = np.flatnonzero(used | ~emptied)
    place = np.full(len(launches), -1, np.int64)
    place[kept] = np.arange(len(kept))
    launch = np.where(launch >= 0, np.append(place, -1)[launch], -1)
    launch[rows] = len(kept) + node.reshape(-1)
    column = {
        "thread": np.concatenate([launches.thread[kept], nodes[0]]),
        "start": np.concatenate([launches.start[kept], nodes[1]]),
        "end": np.concatenate([launches.end[kept], nodes[1]]),
    }
    order = np.lexsort((column["end"], column["start"], column["thread"]))
    moved = np.empty(len(order) + 1, np.int64)
    moved[order], moved[-1] = np.arange(len(order)), -1
    return replace(
        trace,
        launches=Launches(
            column["thread"][order].astype(launches.thread.dtype),
            column["start"][order],
            column["end"][order],
        ),
        ops=Ops(**{**ops.__dict__, "launch": moved[launch].astype(np.int32)}),
    )
