"""Replay a trace: every moment follows its latest dependency after a delay.

A `Network` contains the moments of the recorded program and their dependencies. Dependencies come from the order of
host calls (with the time between the calls), launches, streams, events, calls that wait for the GPU, and work handed
between threads. Each moment keeps the recorded delay after its latest dependency, so an unchanged replay equals the
recording to the ns. Edits change lengths, gaps and edges of a copy; see `nsysprof.waits.edits`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask, slices
from nsysprof.core.columns import pick

ZERO, NEVER = 0, 1  # the nodes of the moment 0, and of one long ago, for what waits for nothing
LONG_AGO = -(1 << 61)  # to which durations can be added
BLOCK = 1 << 14  # nodes at a time, where several columns or numbers of Python are computed from them


def fitting(values: Ints) -> np.dtype[Any]:
    """Return the type of a column that holds these numbers: int32, or int64 if they are too large."""
    fits = np.iinfo(np.int32).min <= values.min(initial=0) <= values.max(initial=0) <= np.iinfo(np.int32).max
    return np.dtype(np.int32 if fits else np.int64)


@dataclass(frozen=True)
class Edges:
    """The dependencies of each node: the node ``to``, with a delay of ``lag`` ns.

    The delay also includes the time from the last node of the thread to the host ``moment`` (-1: none), and the length
    of the ``op`` (-1: none). ``usual`` is the average lag of edges of the same kind. Lags are int32 if all of them fit.
    """

    to: Ints32
    moment: Ints32
    op: Ints32
    lag: AnyInts
    usual: AnyInts

    def take(self, rows: AnyInts) -> Edges:
        """The given edges."""
        return Edges(**{field.name: getattr(self, field.name)[rows] for field in fields(Edges)})

    def put(self, rows: AnyInts, usual: Ints, lag: Ints) -> None:
        """Set the lags of the given edges; a column that cannot hold these lags becomes int64."""
        for name, values in (("usual", usual), ("lag", lag)):
            column = getattr(self, name)
            vars(self)[name] = column = column.astype(max(column.dtype, fitting(values)), copy=False)
            column[rows] = values

    def drop(self, rows: NDArray[np.generic]) -> None:
        """Remove the dependencies of the given nodes from these edges."""
        for name, nothing in (("to", NEVER), ("moment", -1), ("op", -1), ("lag", 0), ("usual", 0)):
            editable(self, name)[rows] = nothing


@dataclass(frozen=True)
class Network:
    """A trace as nodes. Each node has at most two dependencies, and follows them in the order of the nodes.

    Columns of host moments, sorted by thread and time: ``thread`` (a code of `Trace.threads`); the recorded ``time``;
    ``gaps`` (the edited `gap`, None if not edited); ``anchor`` (the last moment of the thread that is a node: a thread
    start, or a moment with other dependencies); and ``node`` (the node of such a moment, -1 for other moments).

    Columns of GPU ops, in the order of `Trace.ops`: ``start`` (the node at which the op starts); ``done`` and
    ``length`` (the op ends ``length`` ns after the node ``done``); and ``behind`` (the part of ``length`` in which
    inserted kernels run).

    Columns of nodes: ``edges`` (two for each node); ``extra`` (the node's own delay); ``recorded`` (the recorded time);
    ``starts`` (whether an op starts at the node); ``waits`` (whether the node is the return of a call that waits for
    the GPU); and ``part`` (the process of the node, -1 if unknown).

    Other columns: ``launch_moment`` has the moments (start, end) of each row of `Trace.launches`. ``sync_call`` and
    ``sync_moment`` have the row of `HostActivity` and the moments of each call that waits for the GPU. ``asked`` has
    the requested moments.
    """

    thread: AnyInts
    time: Ints
    gaps: Ints | None
    anchor: Ints32
    node: Ints32
    start: Ints32
    done: Ints32
    length: AnyInts
    behind: Ints
    edges: tuple[Edges, Edges]
    extra: Ints
    recorded: Ints
    starts: Mask
    waits: Mask
    launch_moment: Ints32
    sync_call: Ints32
    sync_moment: Ints32
    asked: Ints32
    lags: Lags
    part: AnyInts

    @property
    def gap(self) -> Ints:
        """Return the ns since the previous moment of the thread, for each host moment."""
        if self.gaps is not None:
            return self.gaps
        gap = np.diff(self.time, prepend=self.time[:1])
        gap[1:][self.thread[1:] != self.thread[:-1]] = 0
        return gap

    def copy(self) -> Network:
        """Return a copy of the network that shares all columns until they are changed; see `editable`."""
        one, other = (replace(each, **_shared(each)) for each in self.edges)
        return replace(self, **_shared(self), edges=(one, other))


def _shared(columns: Edges | Network) -> dict[str, Any]:
    views = {name: column.view() for name, column in vars(columns).items() if isinstance(column, np.ndarray)}
    for view in views.values():
        view.flags.writeable = False
    return views


def editable(columns: Edges | Network, name: str) -> Any:
    """Return a writable column of a network (or of its edges); a shared column is copied first, and ns become int64."""
    column = getattr(columns, "gap" if name == "gaps" else name)
    if not column.flags.writeable:
        column = column.astype(np.int64 if name in {"lag", "usual", "length"} else column.dtype)
    vars(columns)[name] = column
    return column


@dataclass(frozen=True)
class Lags:
    """Average delays in ns. ``behind_op``: from the end of the previous op to the start of an op; ``behind_event``:
    like ``behind_op``, with an event in between; ``behind_launch``: from the launch to the start of an op;
    ``returning``: from a dependency to the return of a call; ``launch``: the length of a launch (lower median);
    ``in_graph``: from op to op in a CUDA graph.
    """

    behind_op: int = 0
    behind_event: int = 0
    behind_launch: int = 0
    returning: int = 0
    launch: int = 0
    in_graph: int = 0


@dataclass(frozen=True)
class Times:
    """The times of a replay of a ``network``: of nodes, of host moments (derived from the nodes), and of ops."""

    network: Network
    node: Ints

    def at(self, moments: slice | AnyInts = slice(None)) -> Ints:
        """Return the times of the given host moments (default: all)."""
        clock, anchor = clock_of(self.network), self.network.anchor[moments]
        return self.node[self.network.node[anchor]] + (clock[moments] - clock[anchor])

    def of(self, ops: slice | AnyInts = slice(None)) -> tuple[Ints, Ints]:
        """Return the starts and ends of the given ops (default: all)."""
        network = self.network
        return self.node[network.start[ops]], self.node[network.done[ops]] + network.length[ops]


def replay(network: Network) -> Times:
    """Compute the time of every node.

    One pass over the nodes computes all times that may differ from the recording. The times of other moments follow
    from the nodes of their thread.
    """
    clock = clock_of(network)
    since = _changed(network, clock)
    if since.min() == len(network.recorded):
        return Times(network, network.recorded)
    node = network.recorded.copy()
    times = node.data
    for rows in slices(len(node), BLOCK):  # numbers of Python take four times the memory
        some = rows.start + np.flatnonzero(np.arange(rows.start, rows.stop) >= since[network.part[rows]])
        columns: list[AnyInts] = [some]
        for each in network.edges:
            columns += [each.to[some], delays(network, each, clock, some)]
        for at, one, ahead, other, behind in zip(*(column.tolist() for column in columns), strict=True):
            here, there = times[one] + ahead, times[other] + behind
            times[at] = here if here >= there else there
    return Times(network, node)


def delays(network: Network, edges: Edges, clock: Ints, rows: slice | Index) -> Ints:
    """Return the time from the dependency of each node to the node; ``clock`` as of `clock_of`."""
    lag = edges.lag[rows] + network.extra[rows]
    some = np.flatnonzero(edges.moment[rows] >= 0)
    moment = edges.moment[rows][some]
    lag[some] += clock.take(moment) - clock.take(network.anchor.take(moment))
    return lag + pick(network.length, edges.op[rows], 0)


def clock_of(network: Network) -> Ints:
    """Return a time (ns) for each host moment; only differences between moments of the same thread are meaningful."""
    return network.time if network.gaps is None else np.cumsum(network.gaps)


def _changed(network: Network, clock: Ints) -> Index:
    """For each process (last: unknown) the first node that may differ from the recording, or the number of nodes: the
    first that does, or waits for another process that may.
    """
    found = [np.empty(0, np.intp)]
    part, count = network.part, len(network.recorded)
    for some in slices(count, BLOCK):
        came = (network.recorded.take(each.to[some]) + delays(network, each, clock, some) for each in network.edges)
        found.append(some.start + np.flatnonzero(np.maximum(*came) != network.recorded[some]))
    differs = np.concatenate(found)
    differs = differs[differs > NEVER]
    first = np.full(int(part.max(initial=-1)) + 2, count)
    if not len(differs):
        return first
    np.minimum.at(first, part[differs], differs)
    since, across = first.tolist(), list[list[int]]()
    for each in network.edges:
        rows = np.flatnonzero((part.take(each.to) != part) & (each.to > NEVER))
        across += np.stack([rows, each.to[rows], part[rows], part[each.to[rows]]], axis=1).tolist()
    for node, to, here, there in sorted(across):
        if since[there] <= to and node < since[here]:
            since[here] = node
    return np.array(since)


def as_usual(network: Network) -> Network:
    """Return the network with the average lag on each edge of GPU ops, and without individual delays."""
    edges = tuple(replace(each, lag=each.usual) for each in network.edges)
    known = network.starts & (network.edges[0].to != ZERO)
    return replace(network, edges=edges, extra=np.where(known, 0, network.extra))  # type: ignore[arg-type]
