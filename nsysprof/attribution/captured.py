"""Treat the ops that a CUDA graph replays as if they were launched where the graph was captured."""

from dataclasses import replace

import numpy as np

from nsysprof.core.arrays import Ints32
from nsysprof.trace.details import Captures
from nsysprof.trace.trace import Launches, Ops, Trace
from nsysprof.trace.variants import with_threads


def as_captured(trace: Trace, captures: Captures) -> tuple[Trace, Ints32]:
    """Return the trace with one launch per captured node. The launch has the thread and the time at which the node was
    created.

    All replays of the node become ops of this launch. If all nodes of a graph launch are known, the launch has no ops
    left and is removed. If the creation of a node was not recorded, its ops are unchanged. Also returns the replay (a
    launch in ``trace``) of each op that was moved, -1 for other ops.
    """
    rows = np.flatnonzero(captures.thread != 0)
    trace = with_threads(trace, captures.thread[rows])
    ops, launches = trace.ops, trace.launches
    thread = np.searchsorted(trace.threads, captures.thread[rows])
    times, time = np.unique(captures.time[rows], return_inverse=True)
    nodes, node = np.unique(thread * max(len(times), 1) + time.reshape(-1), return_inverse=True)
    made_by, made_at = nodes // max(len(times), 1), times[nodes % max(len(times), 1)]
    replay = np.full(len(ops), -1, np.int32)
    replay[rows] = np.where(ops.launch[rows] >= 0, ops.launch[rows], len(launches))
    launch = ops.launch.astype(np.int64)
    launch[rows] = -1
    used, emptied = (np.zeros(len(launches) + 1, bool) for _ in range(2))
    used[launch], emptied[replay[rows]] = True, True
    kept = np.flatnonzero((used | ~emptied)[:-1])
    place = np.full(len(launches) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    launch = place[launch]
    launch[rows] = len(kept) + node.reshape(-1)
    column = {
        "thread": np.concatenate([launches.thread[kept], made_by]),
        "start": np.concatenate([launches.start[kept], made_at]),
        "end": np.concatenate([launches.end[kept], made_at]),
        "name": np.concatenate([launches.name[kept], np.full(len(made_at), -1)]),
    }
    order = np.lexsort((column["end"], column["start"], column["thread"]))
    moved = np.empty(len(order) + 1, np.int64)
    moved[order], moved[-1] = np.arange(len(order)), -1
    read = Launches(**{name: values[order].astype(getattr(launches, name).dtype) for name, values in column.items()})
    columns = {**ops.__dict__, "launch": moved[launch].astype(np.int32)}
    columns["from_graph"] = ops.from_graph & (replay < 0)  # so that no node counts as the launch of a graph
    return replace(trace, launches=read, ops=Ops(**columns), other_calls=None, geometry=None), replay
