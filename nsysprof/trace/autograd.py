"""PyTorch operators with autograd sequence numbers and input shapes, parsed from what nsys recorded."""

import ast
import json
import re
import warnings

import numpy as np

from nsysprof.core.arrays import Ints
from nsysprof.core.nesting import nest
from nsysprof.trace.details import NO_OPERATORS, AutogradOps, OperatorCalls, Shaped
from nsysprof.trace.trace import PUSH_POP, Trace

# `emit_nvtx`: `aten::addmm, seq = 7, op_id = 3`, and `AddmmBackward0, seq = 7` in the engine's own, which has no number
_NUMBERED = re.compile(r"(.*?), (?:stashed )?seq = (\d{1,18})\b", re.DOTALL)
_SIZED = re.compile(r"([^,]+),.*?\bsizes = (\[[\[\]\d, ]*\])", re.DOTALL)
# pyprof: `{'mod': 'torch', 'op': 'mm', 'args': [{'name': '', 'type': 'tensor', 'shape': (8, 8), 'dtype': 'half'}]}`.
# Of these operators, the arguments are in the order of the operator of PyTorch.
_PYPROF, _LONGEST = "{'mod': ", 10_000
_MODULES = ("torch", "torch.nn.functional", "Tensor")
_KNOWN = re.compile(
    r"linear|conv[123]d|matmul|b?mm|addmm|baddbmm|add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|(?:log_)?softmax"
    r"|(?:layer|batch|group|instance)_norm"
)
_CONVOLUTION = {"input": "", "weight": "", "bias": "", "stride": "1", "padding": "0", "dilation": "1", "groups": "1"}
_TYPES = {"float16": "half", "float32": "float", "float64": "double", "int64": "long", "int32": "int", "uint8": "char"}
_UNKNOWN: Shaped = ("", [], [], [])
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
    """Return the operator calls that `emit_nvtx` recorded with ``record_shapes=True``, or pyprof, parsed from range
    names.
    """
    found = [
        (match[1], match[2]) if match else (name.text, "") if name.text.startswith(_PYPROF) else None
        for name in trace.range_names
        for match in (_SIZED.match(name.text),)
    ]
    if not any(found):
        return NO_OPERATORS
    shapes: dict[tuple[str, str], int] = {}
    code = [shapes.setdefault(each, len(shapes)) if each else -1 for each in found]
    known: list[Shaped] = []
    for name, sizes in shapes:
        try:
            known.append((name, json.loads(sizes), [], []) if sizes else _of_pyprof(name))
        except (ValueError, RecursionError):  # a name that was cut, or is hostile
            known.append((name, [], [], []))
    ranges = trace.ranges
    rows = np.flatnonzero(ranges.kind == PUSH_POP)
    shape = np.array(code)[ranges.name[rows]]
    if not all(sizes for _, sizes in shapes):  # inside the calls of pyprof are those that they make, without shapes
        rows, shape = rows[shape >= 0], shape[shape >= 0]
    tid = trace.threads[trace.range_openers[rows]]
    return OperatorCalls(tid, ranges.start[rows], ranges.end[rows], shape, known)


def shape_of_payload(text: str) -> Shaped:
    """Return the operator call in a JSON payload with the keys ``op`` and ``Input Dims``, and ``Input type`` and
    ``Concrete Inputs`` if given; anything else is unknown, with an empty name.
    """
    try:
        call = json.loads(text)
        dims, *others = call["Input Dims"], *(call.get(key, []) for key in ("Input type", "Concrete Inputs"))
        sound = isinstance(call["op"], str) and all(isinstance(each, list) for each in (dims, *dims, *others))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _UNKNOWN
    types, values = ([str(each) for each in other] if sound else [] for other in others)
    return (call["op"], dims, types, values) if sound else _UNKNOWN


def _of_pyprof(text: str) -> Shaped:
    """Return the operator call in a range name of pyprof, unknown if its order of arguments may be another."""
    try:
        with warnings.catch_warnings():  # of strings and numbers in names of others
            warnings.simplefilter("ignore")
            call = ast.literal_eval(text) if len(text) <= _LONGEST else {}
        name, args = call["op"].strip("_").replace("truediv", "div"), call["args"]
        tensors = [arg["type"] == "tensor" for arg in args]
        dims = [list(arg["shape"]) if some else [] for arg, some in zip(args, tensors, strict=True)]
        named = any(some and arg["name"] not in ("", "bias") for arg, some in zip(args, tensors, strict=True))
        types = [_TYPES.get(arg.get("dtype", ""), arg.get("dtype", "")) for arg in args]
        if named or call["mod"] not in _MODULES or not _KNOWN.fullmatch(name):
            return _UNKNOWN
        values = [str(arg.get("value", "")) for arg in args]
        if name.startswith("conv"):
            order = list(_CONVOLUTION)
            given = {arg["name"] or order[at]: value for at, (arg, value) in enumerate(zip(args, values, strict=True))}
            values = [given.get(key, usual) for key, usual in _CONVOLUTION.items()]
    except (ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        return _UNKNOWN
    return f"aten::{name}", dims, types, values


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
