"""PyTorch operators with autograd sequence numbers, forward and backward."""

import json
import re

import numpy as np

from nsysprof.core.arrays import Ints
from nsysprof.core.nesting import nest
from nsysprof.trace.details import NO_OPERATORS, AutogradOps, OperatorCalls, Shaped
from nsysprof.trace.trace import PUSH_POP, Trace

# `emit_nvtx`: `aten::addmm, seq = 7, op_id = 3`, and `AddmmBackward0, seq = 7` in the engine's own, which has no number
_NUMBERED = re.compile(r"(.*?), (?:stashed )?seq = (\d{1,18})\b", re.DOTALL)
_SIZED = re.compile(r"([^,]+),.*?\bsizes = (\[[\[\]\d, ]*\])", re.DOTALL)
_ENGINE = re.compile(r"autograd::engine::evaluate_function: .*", re.DOTALL)
_BACKWARD = re.compile(_ENGINE.pattern + r"|(?:.*::)?\w*Backward\d*", re.DOTALL)


def autograd_of_names(trace: Trace) -> AutogradOps:
    """Return the operators that `emit_nvtx` recorded, parsed from range names."""
    found = [_NUMBERED.match(name.text) for name in trace.range_names]
    number = np.array([int(match[2]) if match else -1 for match in found], np.int64)
    back = np.array([match is not None and _BACKWARD.fullmatch(match[1]) is not None for match in found], bool)
    ranges, opener = trace.ranges, trace.range_openers
    rows = np.flatnonzero((ranges.kind == PUSH_POP) & (np.append(number, -1)[ranges.name] >= 0))
    name = ranges.name[rows]
    sequence, backward = number[name], back[name]
    engine = np.array([_ENGINE.match(name.text) is not None for name in trace.range_names], bool)
    engines = np.flatnonzero((ranges.kind == PUSH_POP) & engine.take(ranges.name) & (number < 0).take(ranges.name))
    around, first = _around(trace, engines, rows[backward])
    rows = np.concatenate([rows, around])
    return AutogradOps(
        trace.threads[opener[rows]],
        ranges.start[rows],
        ranges.end[rows],
        np.concatenate([sequence, sequence[backward][first]]),
        np.concatenate([backward, np.ones(len(around), bool)]),
        np.zeros(len(rows), np.int64),
    )


def operators_of_names(trace: Trace) -> OperatorCalls:
    """Return the operator calls that `emit_nvtx` recorded with ``record_shapes=True``, parsed from range names."""
    found = [_SIZED.match(name.text) for name in trace.range_names]
    if not any(found):
        return NO_OPERATORS
    shapes: dict[tuple[str, str], int] = {}
    code = [shapes.setdefault((match[1], match[2]), len(shapes)) if match else -1 for match in found]
    known: list[Shaped] = []
    for name, sizes in shapes:
        try:
            known.append((name, json.loads(sizes), [], []))
        except ValueError:  # a name that was cut
            known.append((name, [], [], []))
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.kind == PUSH_POP)
    tid, shape = trace.threads[trace.range_openers[rows]], np.array(code)[ranges.name[rows]]
    return OperatorCalls(tid, ranges.start[rows], ranges.end[rows], shape, known)


def _around(trace: Trace, engines: Ints, nodes: Ints) -> tuple[Ints, Ints]:
    """Return the engine's ranges that contain a node's range, and the index of the first node in each of them: the
    engine's work before and after this node, such as the sum of a bias, also belongs to the node.
    """
    ranges, opener = trace.ranges, trace.range_openers
    found, place = [engines[:0]], [engines[:0]]
    for code in np.unique(opener[engines]).tolist():
        mine, inside = engines[opener[engines] == code], np.flatnonzero(opener[nodes] == code)
        mine = mine[np.lexsort((-ranges.end[mine], ranges.start[mine]))]
        inside = inside[np.argsort(ranges.start[nodes[inside]], kind="stable")]
        own = nest(ranges.start[mine], ranges.end[mine])
        at = own.innermost(ranges.start[nodes[inside]], ranges.end[nodes[inside]])
        some, first = np.unique(at[at >= 0], return_index=True)
        found.append(mine[some])
        place.append(inside[at >= 0][first])
    return np.concatenate(found), np.concatenate(place)
