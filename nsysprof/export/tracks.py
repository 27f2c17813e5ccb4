"""A report as tracks over time, slices that nest and counters, for trace viewers.

Below each process stand its threads, with their NVTX ranges and their host CUDA calls, and its start/end ranges; below
each GPU the kernels in flight, allocated memory, and its streams, with the ranges projected on them: from the start of
the first op inside to the end of the last. What overlaps without nesting goes to further tracks of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints
from nsysprof.core.nesting import stack

What: TypeAlias = Literal["call", "range", "projection", "op"]
WINDOWS = "start/end ranges"


@dataclass(frozen=True)
class Slices:
    """Slices that nest, sorted by start and from the outermost to the innermost.

    ``row`` int32: of ``calls``, of ``trace.ranges`` (``range`` and ``projection``) or of ``trace.ops``, as ``what``
    says. ``start``, ``end`` int64 ns, never backwards; ``up`` int32, the slice around each, -1 for none. For
    ``projection``, ``totals`` are what each range has on this stream: columns of `Totals` by name.
    """

    what: What
    row: NDArray[np.int32]
    start: Ints
    end: Ints
    up: NDArray[np.int32]
    totals: Mapping[str, NDArray[np.integer]] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """A counter: from each ``time`` (int64 ns, sorted) on it is ``value`` (int64), in ``unit``."""

    unit: Literal["count", "bytes"]
    time: Ints
    value: Ints


@dataclass(frozen=True)
class Track:
    """A track below the track ``parent``, its position in the list of all; None at the top.

    A process has a ``pid``, a thread also a ``tid``.
    """

    name: str
    parent: int | None
    pid: int | None = None
    tid: int | None = None
    content: Slices | Steps | None = None


def add_lanes(
    tracks: list[Track],
    name: str,
    parent: int,
    what: What,
    row: NDArray[np.int32],
    start: Ints,
    end: Ints,
    up: NDArray[np.int32] | None = None,
    totals: Mapping[str, NDArray[np.integer]] | None = None,
) -> None:
    """Add as many tracks of that name as it takes for slices, sorted by start and from the longest to the shortest.

    ``up`` are the positions of the slices that may be around each; None: nothing nests.
    """
    up = np.full(len(row), -1, np.int32) if up is None else up
    for lane in stack(start, end, up):
        at = lane.members
        mine = {column: values[at] for column, values in (totals or {}).items()}
        tracks.append(Track(name, parent, content=Slices(what, row[at], start[at], end[at], lane.up, mine)))
