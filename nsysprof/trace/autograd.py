"""Operators that autograd numbers: those of forward, and those of backward that answer them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints
from nsysprof.trace.trace import PUSH_POP, Trace

# `emit_nvtx`: `aten::addmm, seq = 7`, and `autograd::engine::evaluate_function: AddmmBackward0, seq = 7`
_NUMBERED = re.compile(r"(.*?), (?:stashed )?seq = (\d{1,18})\b", re.DOTALL)
_BACKWARD = re.compile(r"autograd::engine::evaluate_function: .*|(?:.*::)?\w*Backward\d*", re.DOTALL)


@dataclass(frozen=True)
class AutogradOps:
    """Operators with a sequence number, in any order.

    ``thread`` globalTids; ``start``, ``end`` int64 ns; ``sequence`` the number, which counts per thread of forward;
    ``backward`` bool; ``forward_thread`` the globalTid whose numbers an operator of backward has, 0 where that is not
    recorded.
    """

    thread: Ints
    start: Ints
    end: Ints
    sequence: Ints
    backward: NDArray[np.bool_]
    forward_thread: Ints


def autograd_of_names(trace: Trace) -> AutogradOps:
    """The operators that `emit_nvtx` made ranges of, by the names of these."""
    found = [_NUMBERED.match(name.text) for name in trace.range_names]
    number = np.array([int(match[2]) if match else -1 for match in found], np.int64)
    back = np.array(
        [match is not None and _BACKWARD.fullmatch(match[1]) is not None for match in found], bool
    )
    ranges = trace.ranges
    rows = np.flatnonzero((ranges.kind == PUSH_POP) & (np.append(number, -1)[ranges.name] >= 0))
    name = ranges.name[rows]
    return AutogradOps(
        trace.threads[ranges.thread[rows]],
        ranges.start[rows],
        ranges.end[rows],
        number[name],
        back[name],
        np.zeros(len(rows), np.int64),
    )
