"""The typical call of a side, op by op: the one whose span is the median of its samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.compare.sides import Side
from nsysprof.core.intervals import Ints
from nsysprof.kernels.classify import FAMILIES
from nsysprof.trace.tables import KERNEL


@dataclass(frozen=True)
class MedianCall:
    """One call of a side; all times are int64 ns after its first op.

    ``length_ns`` is its span, to the first op of the next call; ``of`` the number of calls it was chosen from;
    ``kernels`` how many it runs. Per op, by start: ``start``, ``end``, ``family`` uint8 into `FAMILIES`, ``cause``
    int32 into ``causes``, ``name`` int32 into ``names``, ``stream`` into ``streams``, codes of
    `Tables.streams`. ``gap_start``, ``gap_end``,
    ``gap_kind`` (of `waiting`): where none of its ops runs. ``launch_start``, ``launch_end``: its host calls, which
    may lie long before 0.
    """

    length_ns: int
    of: int
    kernels: int
    start: Ints
    end: Ints
    family: NDArray[np.uint8]
    cause: NDArray[np.int32]
    name: NDArray[np.int32]
    stream: NDArray[np.intp]
    causes: list[str]
    names: list[str]
    streams: list[int]
    gap_start: Ints
    gap_end: Ints
    gap_kind: NDArray[np.uint8]
    launch_start: Ints
    launch_end: Ints

    @property
    def idle_ns(self) -> int:
        """The part of ``length_ns`` in which none of its ops runs."""
        return int((self.gap_end - self.gap_start).sum())


def median_call(side: Side) -> MedianCall:
    """The `MedianCall` of a side with GPU work; of an even number of calls the shorter one in the middle.

    The last of several calls in a window has no next one, so its span is no sample, as in `Side.samples`.
    """
    work, gaps = side.work, side.gaps
    tables = side.examined.attribution.tables
    of_op, number, begin, end, count = _chosen(side)
    mine = np.flatnonzero(of_op == number)
    op = tables.ops.name[work.op[mine]]
    family = np.array([FAMILIES.index(name) for name in side.examined.kinds.family], np.uint8)
    idle = np.flatnonzero(of_op[gaps.behind - 1] == number)
    calls = np.unique(tables.ops.launch[work.op[mine]])
    calls = calls[calls >= 0]
    streams, stream = np.unique(tables.ops.stream[work.op[mine]], return_inverse=True)
    return MedianCall(
        length_ns=end - begin,
        of=count,
        kernels=int(np.count_nonzero(tables.ops.kind[work.op[mine]] == KERNEL)),
        start=work.start[mine] - begin,
        end=work.end[mine] - begin,
        family=family[op],
        cause=side.causes.of[mine],
        name=op,
        stream=stream.reshape(-1),
        causes=side.causes.texts,
        names=tables.op_names,
        streams=streams.tolist(),
        gap_start=gaps.start[idle] - begin,
        gap_end=gaps.end[idle] - begin,
        gap_kind=gaps.kind[idle],
        launch_start=tables.launches.start[calls] - begin,
        launch_end=tables.launches.end[calls] - begin,
    )


def _chosen(side: Side) -> tuple[NDArray[np.int64], int, int, int, int]:
    """The stretch of each op, the number of the median one, where it begins and ends, and of how many it is that.

    A stretch is a call; where no call holds any of the work, the whole range is.
    """
    work, pieces = side.work, side.pieces
    if not len(pieces.start):
        stretch, start, end = np.searchsorted(work.windows, work.window), work.first_ns, work.last_ns
        sampled = np.ones(len(start), bool)
    else:
        stretch, start, end = pieces.of_op, pieces.start, pieces.end
        last = np.append(pieces.window[1:] != pieces.window[:-1], True)
        sampled = ~last | np.append(True, last[:-1])
    rows = np.flatnonzero(sampled)
    by_span = rows[np.argsort((end - start)[rows], kind="stable")]
    number = int(by_span[(len(by_span) - 1) // 2])
    return stretch, number, int(start[number]), int(end[number]), len(rows)
