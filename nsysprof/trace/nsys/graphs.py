"""Read the creation of CUDA graph nodes: its time and thread."""

import numpy as np

from nsysprof.core.arrays import Index, Ints
from nsysprof.trace.details import Captures, no_captures
from nsysprof.trace.nsys.blocks import Growing, Source, column, has_all, read_blocks
from nsysprof.trace.nsys.gpu_work import WORK, WORK_NEEDS
from nsysprof.trace.trace import PROCESS_OF_THREAD, Trace

# the second one until nsys 2024.1, then it holds graphs
_NODES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
_COLUMNS = ("start", "globalTid", "graphNodeId")
_MAX_COPIES = 32  # of a graph inside another, one after the other


def read_captures(source: Source, trace: Trace) -> Captures:
    """Return the `Captures` of the ops of a trace.

    Nodes of instantiated graphs and child graphs refer to original nodes. For these nodes, the creation of the original
    node counts.
    """
    out = no_captures(len(trace.ops))
    if not trace.ops.from_graph.any():
        return out
    process, node, original, thread, time = _nodes(source)
    if len(node) == 0:
        return out
    op = np.flatnonzero(trace.ops.from_graph)
    op_process, op_node = (values[op] for values in _node_of_ops(source))
    order = np.lexsort((time, node, process))  # of an id that was met again the first counts
    key = process[order], node[order]
    known_copy = np.full(len(node), -1, np.int64)
    copies = np.flatnonzero(original >= 0)
    known_copy[copies] = _find(key, process[copies], original[copies], order)
    # a row that names its original before one that does not
    by_copy = order[np.argsort(original[order] < 0, kind="stable")]
    by_copy = by_copy[np.lexsort((node[by_copy], process[by_copy]))]
    at = _find((process[by_copy], node[by_copy]), op_process, op_node, by_copy)
    for _ in range(_MAX_COPIES):
        further = np.where(at >= 0, known_copy[at], -1)
        if (further < 0).all():
            break
        at = np.where(further >= 0, _with_original(further, process, node, by_copy), at)
    found = at >= 0
    out.thread[op[found]], out.time[op[found]] = thread[at[found]], time[at[found]]
    return out


def _nodes(source: Source) -> tuple[Ints, ...]:
    rows = Growing(process="i8", node="i8", original="i8", thread="i8", time="i8")
    for table in _NODES:
        if table in source.tables() and has_all(source, table, _COLUMNS):
            for block in read_blocks(source, table, _COLUMNS, ("originalGraphNodeId",)):
                thread = column(block, "globalTid")
                rows.add(
                    block.rows,
                    process=thread & PROCESS_OF_THREAD,
                    node=column(block, "graphNodeId"),
                    original=column(block, "originalGraphNodeId", missing=-1),
                    thread=thread,
                    time=column(block, "start"),
                )
    found = rows.take_rest()
    return tuple(found[name] for name in ("process", "node", "original", "thread", "time"))


def _node_of_ops(source: Source) -> tuple[Ints, Ints]:
    """The process and the node id of each op, in the order of the file; 0 for other ops."""
    rows = Growing(process="i8", node="i8")
    for table in WORK:
        if has_all(source, table, WORK_NEEDS):
            for block in read_blocks(source, table, WORK_NEEDS[:1], ("globalPid", "graphNodeId")):
                rows.add(block.rows, process=column(block, "globalPid"), node=column(block, "graphNodeId"))
    found = rows.take_rest()
    return found["process"], found["node"]


def _find(key: tuple[Ints, Ints], process: Ints, node: Ints, row: Index) -> Ints:
    """The first row of each process and node in sorted keys; -1 if there is none."""
    out = np.full(len(node), -1, np.int64)
    for pid in np.unique(process).tolist():
        mine = np.flatnonzero(process == pid)
        first, last = np.searchsorted(key[0], [pid, pid + 1]).tolist()
        at = first + np.searchsorted(key[1][first:last], node[mine])
        hit = (at < last) & (np.append(key[1], -1)[np.minimum(at, len(key[1]))] == node[mine])
        out[mine[hit]] = row[at[hit]]
    return out


def _with_original(row: Ints, process: Ints, node: Ints, by_copy: Index) -> Ints:
    """For each node, the row that names its original node, if there is one."""
    some = row >= 0
    out = row.copy()
    out[some] = _find((process[by_copy], node[by_copy]), process[row[some]], node[row[some]], by_copy)
    return out
