"""A recorded program in which changes can be tried. Network and steps are built once; each change edits and replays a
copy of the network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import find_matches
from nsysprof.attribution.paths import merged_paths, range_paths
from nsysprof.attribution.range_work import index_work
from nsysprof.core.arrays import Array, Floats, Index, Ints
from nsysprof.waits.account import wait_pieces
from nsysprof.waits.culprits import LATE_PEER
from nsysprof.waits.facts import Facts
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import Network
from nsysprof.waits.spans import Spans, asked_moments, doubt_of, moments_of, spans_of
from nsysprof.waits.whole import Cause, Wholes
from nsysprof.waits.windows import Windows, gpu_lines

Edit = Callable[[Network], None]


@dataclass
class Program:
    """A recorded program that can be changed: its ``facts``, and the ``windows`` of its steps.

    ``rows`` are the ranges whose moments are in the network: ``begin``, ``inside`` and ``stop``; ``inside`` repeats
    ``begin``, so that an edit can insert time between the two. ``notes`` are sentences about assumptions. The network
    and the steps are built on first use and kept; a change is replayed on a copy.
    """

    facts: Facts
    windows: Windows
    merge_names: Sequence[str] | None
    notes: list[str] = field(default_factory=list)
    rows: Index = field(init=False)
    _globs: dict[str, Index] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the ranges of the steps."""
        self.rows = np.unique(self.windows.range[self.windows.range >= 0]).astype(np.intp)

    @property
    def attribution(self) -> Attribution:
        """Return the attribution of GPU ops to their launches."""
        return self.facts.attribution.launched

    @property
    def file(self) -> str:
        """Return the report's name for messages."""
        return str(self.attribution.trace.report.path)

    @cached_property
    def wholes(self) -> Wholes:
        """Return the finder of everything that belongs to calls and GPU ops of this program."""
        return Wholes(self.facts)

    def ranges_of(self, glob: str) -> Index:
        """Find the ranges with a path or name that matches a glob; raises `NsysprofError` if there are none."""
        if glob not in self._globs:
            paths = range_paths(self.attribution)
            merged = merged_paths(paths, self.merge_names)
            codes = [match.code for match in find_matches(merged, merged.texts(), glob, self.file)]
            self._globs[glob] = np.flatnonzero(np.isin(merged.of[paths.of], codes))
        return self._globs[glob]

    def ops_of(self, rows: Index) -> tuple[Index, Index]:
        """Return the GPU ops launched in ranges, and for each op the index of its range in ``rows``."""
        return index_work(self.attribution, rows).ops_of(rows)

    def know(self, rows: Index) -> None:
        """Add the moments of more ranges to the network; rebuilds an existing network."""
        known = np.union1d(self.rows, rows).astype(np.intp)
        if len(known) > len(self.rows):
            self.rows = known
            for name in ("network", "spans", "residual"):
                self.__dict__.pop(name, None)

    @cached_property
    def network(self) -> Network:
        """The network of the recording."""
        moments, facts = moments_of(self.attribution.trace, self.rows), self.facts
        return network_of(self.attribution, facts.activity, facts.dependencies, moments, facts.peers)

    @property
    def begin(self) -> Index:
        """Return the moments at which the ranges of ``rows`` begin."""
        return asked_moments(self.network)[0]

    @property
    def inside(self) -> Index:
        """The moments right after `begin`."""
        return asked_moments(self.network)[1]

    @property
    def stop(self) -> Index:
        """Return the moments at which the ranges of ``rows`` end."""
        return asked_moments(self.network)[2]

    def place(self, rows: Index) -> Index:
        """The positions of ranges in ``rows``."""
        return np.searchsorted(self.rows, rows)

    @cached_property
    def spans(self) -> Spans:
        """The steps in the network."""
        spans = spans_of(self.attribution, self.windows, self.rows, self.network, self.facts.communication)
        self.attribution.trace.give_back()
        return spans

    @property
    def doubt(self) -> tuple[str, str | None] | None:
        """Return the reason why replays of these steps are unreliable, with a hint, or None; see also ``residual``."""
        return doubt_of(self.attribution.trace, self.network, self.facts.lacks, self.spans)

    @cached_property
    def residual(self) -> Floats:
        """Return the relative error of each step in a replay that keeps only the lengths of GPU ops."""
        return self.spans.residual(self.network)

    @property
    def lengths(self) -> Ints:
        """Return the length of each step in ns, as recorded and in an unchanged replay."""
        return self.windows.end - self.windows.start

    def lengths_with(self, *edit: Edit) -> Ints:
        """Return the length of each step in ns, replayed with an edited copy of the network."""
        edited = self.network.copy()
        for each in edit:
            each(edited)
        return self.spans.lengths(edited)

    @cached_property
    def waits(self) -> dict[str, Array]:
        """Return the pieces of the steps' waits, as columns of `Why.waits` with codes of `Facts.words`."""
        parts: list[Mapping[str, Array]] = []
        for gpu in np.unique(self.windows.gpu).tolist():
            lines = gpu_lines(self.attribution.trace, self.facts.communication, gpu)
            parts.append(wait_pieces(self.facts, self.windows, gpu, lines))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def cause_of(self, pieces: NDArray[np.generic]) -> Cause:
        """Find everything that belongs to the given pieces of ``waits`` (rows or a mask)."""
        late = self.waits["activity"] == self.facts.texts.code(LATE_PEER)
        names = ("cause", "op", "thread", "start_ns", "end_ns")
        cause, op, thread, start, end = (self.waits[name][pieces] for name in names)
        return self.wholes.of_waits(cause, op, thread, start, end, late[pieces])
