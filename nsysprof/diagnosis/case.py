"""Collect the facts about a program's steps for a diagnosis: waits, purposes of calls, and a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

from nsysprof.attribution.levels import preparation
from nsysprof.core.arrays import Bytes, Floats, Index, Ints, Mask
from nsysprof.core.columns import distinct, sums
from nsysprof.core.intervals import covered, union
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.launches import Launches, launches_of
from nsysprof.trace.dialect import dialect
from nsysprof.waits import edits
from nsysprof.waits.account import wait_pieces
from nsysprof.waits.change import steps_of
from nsysprof.waits.changes import Changes
from nsysprof.waits.culprits import PIECE
from nsysprof.waits.facts import Facts
from nsysprof.waits.program import Edit, Program
from nsysprof.waits.purposes import happens_once, purposes
from nsysprof.waits.ranges import Chosen
from nsysprof.waits.spans import MAX_RESIDUAL
from nsysprof.waits.whole import Cause
from nsysprof.waits.windows import GpuLines, Windows, gpu_lines

NOT_ASKED = "--no-replay was given"
MAX_LOST = 0.2  # of the durations of GPU ops: what would they do without a cause, if their launches are not known?
SKEWED = 1.5  # times what the median step takes or loses: a share of the mean does not fit it
LONG_CODE_NS = 100_000  # of code between two calls: less is what launching costs anyway
_TIMES_USUAL = 10  # the same, of what code between two calls usually takes
# How many times as long steps that are bound by launches take while they are recorded: of programs on an H200, about.
_NSYS = 1.5
INFLATION = {"PyTorch profiler": 2.0}
Made = TypeVar("Made")


@dataclass(frozen=True)
class Place:
    """The steady steps of a path on a GPU: ``windows`` are rows of `Case.windows`.

    ``partial``: whether amounts are of kernels that some of the steps lack, so that they are means, as in `hotspots`.
    """

    path: str
    gpu: int
    windows: Index
    length: Ints
    partial: bool = False

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.windows)

    @property
    def step_ns(self) -> float:
        """The length of the median step."""
        return float(np.median(self.length))

    @property
    def uneven(self) -> bool:
        """Return whether the mean step is more than 1.5 times as long as the median step, or steps lack kernels."""
        return self.partial or self.total_ns > SKEWED * self.step_ns * self.steps

    @property
    def unit_ns(self) -> float:
        """The step time to which amounts refer: the median or, if steps are uneven, the mean."""
        return self.total_ns / self.steps if self.uneven else self.step_ns

    @property
    def total_ns(self) -> int:
        """The total length of all steps."""
        return int(self.length.sum())


@dataclass(frozen=True)
class Case:
    """The steady steps ``rows`` of the windows ``chosen``, with the ``facts`` about their trace; made by `diagnose`.

    ``merge_names``: the globs that merged the paths. ``part_of``: the larger case that contains this case, and the rows
    that the GPU ops of this case have there. ``launched``: the launches of the case, if already known. Without
    ``replay``, no fix is tried.
    """

    chosen: Chosen
    facts: Facts
    rows: Index
    merge_names: Sequence[str] | None
    part_of: tuple[Case, Index] | None = None
    launched: Launches | None = field(default=None, repr=False, compare=False)
    replay: bool = True
    _made: dict[Callable[[Case], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def windows(self) -> Windows:
        """The steady steps."""
        return self.chosen.windows.take(self.rows)

    @cached_property
    def places(self) -> list[Place]:
        """Return the places (each is a path on a GPU), sorted by time, longest first."""
        windows = self.windows
        code = {text: number for number, text in enumerate(dict.fromkeys(self.chosen.texts))}
        path = np.array([code[text] for text in self.chosen.texts], np.int64)[windows.path]
        first, group = distinct(path, windows.gpu)
        rows = [np.flatnonzero(group == number) for number in range(len(first))]
        found = [
            Place(self.chosen.texts[windows.path[mine[0]]], int(windows.gpu[mine[0]]), mine, windows.length[mine])
            for mine in rows
        ]
        return sorted(found, key=lambda place: (-place.total_ns, place.path, place.gpu))

    @cached_property
    def lines(self) -> dict[int, GpuLines]:
        """Return the activity of each GPU over time."""
        gpus = np.unique(self.windows.gpu).tolist()
        trace = self.facts.attribution.trace
        return {gpu: gpu_lines(trace, self.facts.communication, gpu) for gpu in gpus}

    @cached_property
    def pieces(self) -> dict[str, Ints]:
        """Return the pieces of the waits in the steady steps: columns `PIECE`, and ``ns``."""
        parts = [wait_pieces(self.facts, self.windows, gpu, lines) for gpu, lines in self.lines.items()]
        none = np.empty(0, np.int64)
        names = (*PIECE, "communication_ns", "copies_ns")
        out = {name: np.concatenate([none, *(part[name] for part in parts)]).astype(np.int64) for name in names}
        return {**out, "ns": out["end_ns"] - out["start_ns"]}

    @cached_property
    def prepares(self) -> Mask:
        """Mark the pieces in warm-up, and in checks before a measurement (no piece, if the user chose the steps)."""
        attribution = self.facts.attribution
        out = np.zeros(len(self.pieces["op"]), bool)
        if len(self.chosen.level.rows) or not len(attribution.trace.ranges):
            return out
        names = [name.text for name in attribution.trace.range_names]
        of = attribution.trace.ranges.name.tolist()
        early = preparation(attribution.parent, [names[code] for code in of])
        early = np.append(early, False)
        return np.append(early[attribution.op_owner], False)[self.pieces["op"]]

    @cached_property
    def place_of(self) -> Ints:
        """Return the place of each piece, as an index into `places`."""
        of_window = np.empty(len(self.windows), np.int64)
        for number, place in enumerate(self.places):
            of_window[place.windows] = number
        return of_window[self.pieces["window"]]

    @cached_property
    def purpose(self) -> Bytes:
        """Return the purpose of each host call, with an extra last entry that stands for "no call"; see `purposes`."""
        return purposes(self.facts.attribution.trace, self.facts.activity)

    @cached_property
    def once(self) -> Mask:
        """Mark the set-up host calls, with an extra last entry that stands for "no call"."""
        order = np.argsort(self.windows.start, kind="stable")
        start, end = self.windows.start[order], self.windows.end[order]
        if len(self.chosen.level.rows) == 0:
            start, end = start[:0], end[:0]
        return happens_once(self.facts.activity, self.purpose, start, end)

    @cached_property
    def long_code_ns(self) -> int:
        """Return a length (ns): code between two calls that takes longer is separate work, not part of launching."""
        code = self.pieces["ns"][(self.pieces["thread"] >= 0) & (self.pieces["call"] < 0)]
        code = code[code < LONG_CODE_NS]
        usual = int(np.median(code)) if len(code) else 0
        least = LONG_CODE_NS * INFLATION.get(self.facts.attribution.trace.report.reader.recorder, 1.0)
        return round(max(least, min(_TIMES_USUAL * usual, 5 * LONG_CODE_NS)))

    @property
    def inflation(self) -> float:
        """Return the factor by which recording lengthens launches on the CPU, as measured in a few programs."""
        return INFLATION.get(self.facts.attribution.trace.report.reader.recorder, _NSYS)

    @cached_property
    def launches(self) -> Launches | None:
        """Return the launch parameters of GPU ops, or None if the reader and the trace have different ops."""
        if self.part_of is not None:
            whole, rows = self.part_of
            return None if whole.launches is None else whole.launches.take(rows)
        return self.launched or launches_of(self.facts.attribution.trace)

    @cached_property
    def dialect(self) -> str:
        """Return the language of the program, as the first word of an entry in `DIALECTS`."""
        return dialect(self.facts.attribution.trace).split()[0].split("-")[0]

    def waited(self, place: Place, rows: Index) -> Ints:
        """For each step of a place, return how long the GPU waits in the given pieces."""
        at = np.full(len(self.windows), -1, np.int64)
        at[place.windows] = np.arange(place.steps)
        return sums(at[self.pieces["window"][rows]], self.pieces["ns"][rows], place.steps)

    def not_computing(self, place: Place, *, talks: bool = True) -> Ints:
        """Return how long (ns) the GPU of a place computes nothing in each step. Without ``talks``, communication
        counts as compute.
        """
        windows, lines = self.windows.take(place.windows), self.lines[place.gpu]
        line = lines.compute if talks else union(lines.compute, lines.communication)
        return place.length - covered(line, windows.start, windows.end)

    @cached_property
    def program(self) -> Program:
        """Return the program with all its steps, including warm-up, to replay changes."""
        return Program(self.facts, self.chosen.windows, self.merge_names)

    @cached_property
    def doubt(self) -> str:
        """Return why nothing is replayed; empty if a replay is possible."""
        if not self.replay:
            return NOT_ASKED
        ops = self.facts.attribution.trace.ops
        length = ops.end - ops.start
        lost = int(length[ops.launch < 0].sum()) / max(int(length.sum()), 1)
        if lost > MAX_LOST:
            return f"{format_share(lost)} of the GPU work has no recorded launch"
        return self.program.doubt[0] if self.program.doubt else ""

    @cached_property
    def residual(self) -> Floats:
        """Return the relative error of each steady step in a replay with typical delays instead of recorded delays."""
        return self.program.residual[self.rows]

    def known(self, place: Place) -> bool:
        """Return whether the steps of a place can be replayed."""
        return not self.doubt and float(np.median(self.residual[place.windows])) <= MAX_RESIDUAL

    def shorter(self, place: Place, *edit: Edit) -> Ints | None:
        """Return the time (ns) that edits save in each step of a place, or None if unknown."""
        if not self.known(place):
            return None
        gained = self.program.lengths - self.program.lengths_with(*edit)
        return gained[self.rows][place.windows]

    def without(self, place: Place, cause: Cause) -> Ints | None:
        """Return the time (ns) that each step of a place saves if a cause is removed, or None if unknown."""
        return self.shorter(place, lambda network: edits.remove(network, cause))

    def changed(self, place: Place, changes: Changes) -> Ints | None:
        """Return the time (ns) that changes save in each step of a place, or None if unknown or if the changes do not
        apply.
        """
        if not self.known(place):
            return None
        try:
            steps = steps_of(self.program, changes)
            self.program.know(np.concatenate([step.ranges for step in steps]))
            return self.shorter(place, *(step.apply for step in steps))
        except NsysprofError:
            return None


def made_once(make: Callable[[Case], Made]) -> Callable[[Case], Made]:
    """Decorate a function of a case, so that its result is computed once per case."""

    @wraps(make)
    def made(case: Case) -> Made:
        if make not in case._made:
            case._made[make] = make(case)
        return case._made[make]

    return made
