"""Define a kind of finding: the pieces of waits that it explains, the name of the cause, and the remedies to try."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import AnyInts, Index, Ints, Mask
from nsysprof.core.columns import pick
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.case import SKEWED, Case, Place, made_once
from nsysprof.diagnosis.finding import BOUND, COUNTED, EVERY, NAME, ONCE, REPLAYED, Finding
from nsysprof.trace.details import NO_RANGES, OtherRanges
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MIGRATION
from nsysprof.waits.awaited import ITEM_BYTES
from nsysprof.waits.changes import Changes
from nsysprof.waits.facts import LATE_HOST
from nsysprof.waits.purposes import COPY, EVENT, LAUNCH, LOCK, MEMSET, MPI, QUERY, SYNCHRONIZE, purpose_of
from nsysprof.waits.whole import Cause

_OFTEN = 8  # times in a recording without steps: of less there is no loop
MIN_SHARE = 0.02  # of the steps: less is worth no advice
_MPI = re.compile(r"(?i)(?<![a-z])mpi(?![a-z])")  # a word in the name of a range (without its file)
HAS = 0.1  # of the most that a step waited for a cause: a step with so much has it
_WINDOWS = re.compile("(?i)windows|microsoft")  # the latter: WSL
STARTS_NS = 50_000  # from launch to start: less is usual for launches
_MOSTLY_ONE = 0.8  # of a wait
_A_FEW = 0.2  # of the steps: what more of them wait is no exception
_FAR = 4  # times what the median step waits: such a step waits for something else, too
# What a host does that launches and is not held up: calls that wait for nothing.
LAUNCHING = (LAUNCH, MEMSET, EVENT, QUERY, COPY)


@dataclass(frozen=True)
class Group:
    """The pieces of the waits in a place (``rows``) that have the same cause. ``waited``: the ns in each step."""

    place: Place
    cause: str
    rows: Index
    waited: Ints

    @property
    def waited_ns(self) -> int:
        """Return the GPU's total waiting time (ns) over all steps."""
        return int(self.waited.sum())

    @property
    def often(self) -> str:
        """Return in which steps the GPU waits for the cause."""
        return often(self.place, self.waited)

    def usual_steps(self) -> Index:
        """Return the rows of `Case.windows` without the few steps in which the GPU waits much longer than usual."""
        usual = usual_ns(self.place, self.waited)
        return self.place.windows[self.waited <= _FAR * usual] if usual else self.place.windows

    def usual_rows(self, case: Case) -> Index:
        """Return the pieces in these steps."""
        return self.rows[np.isin(case.pieces["window"][self.rows], self.usual_steps())]


@dataclass(frozen=True)
class Remedy:
    """A change of the program. ``text`` is an imperative; ``changes`` are the replayed changes; ``basis`` is the basis
    of the gain.

    `Changes.remove` of the cause itself removes `Kind.whole`. ``most_ns``: the upper bound of the gain in all steps.
    ``least``: whether to reject a gain that is much larger than the loss.
    """

    text: str
    changes: Changes
    basis: str = REPLAYED
    most_ns: int | None = None
    least: bool = False


def counted(place: Place, kind: str, cause: str, text: str, remedy: str, lost_ns: int, most_ns: int) -> Finding:
    """Make a finding about GPU work in all steps of a place, with a gain of at most ``most_ns`` by arithmetic."""
    return Finding(
        kind, place.path, place.gpu, EVERY, place.steps, text, cause, COUNTED, lost_ns, remedy,
        gain_ns=most_ns, gain_high_ns=most_ns, basis=BOUND, total_ns=place.total_ns, step_ns=place.unit_ns,
    )  # fmt: skip


def usual_ns(place: Place, lost: Ints) -> float:
    """Return the loss of the median step of a place if a few steps make the mean loss more than 1.5 times as large;
    otherwise return 0.
    """
    usual = float(np.median(lost))
    skewed = place.path != WHOLE and lost.sum() > SKEWED * usual * place.steps > 0 and often(place, lost) == EVERY
    return usual if skewed and np.count_nonzero(lost > SKEWED * usual) <= _A_FEW * place.steps else 0.0


def often(place: Place, waited: Ints) -> str:
    """State which steps contain most of the waiting time: every step, some steps, or one step. ``waited`` is the time
    per step.
    """
    some = waited >= HAS * waited.max()
    count = int(some.sum())
    typical = float(np.median(waited)) >= MIN_SHARE * float(np.median(place.length))
    typical |= 2 * int(waited[some].sum()) < int(waited.sum())
    if place.path == WHOLE or 2 * count > place.steps or typical:
        return EVERY
    return ONCE if count == 1 else f"{count:,} of {place.steps:,} steps"


def each_step(place: Place, ns: int) -> str:
    """Format a total over all steps as time per step (see `Place.unit_ns`) and as share of all step time."""
    per = "" if place.path == WHOLE else " per step on average" if place.uneven else " of each step"
    return f"{format_ns(ns / place.total_ns * place.unit_ns)}{per} ({format_share(ns / place.total_ns)})"


def in_steps(case: Case, group: Group) -> bool:
    """Return whether a cause belongs to the steps; if steps were detected, the cause must occur in most of them."""
    return group.place.path != WHOLE and (group.often == EVERY or not case.chosen.level.found)


def repeats(case: Case, group: Group, alike: AnyInts) -> bool:
    """Return whether a remedy for a loop fits: the cause belongs to the steps, or many pieces have the same code in
    ``alike``.
    """
    return in_steps(case, group) or int(np.unique(alike, return_counts=True)[1].max(initial=0)) >= _OFTEN


def in_one_gap(case: Case, group: Group) -> bool:
    """Return whether a wait is set-up and not a loop: in a recording without steps, nearly all of the wait is between
    two kernels.
    """
    if group.place.path != WHOLE:
        return False
    ops, pieces = case.facts.attribution.trace.ops, case.pieces
    mine = case.facts.attribution.trace.op_gpu == group.place.gpu
    kernels = np.sort(ops.start[((ops.kind == KERNEL) | (ops.kind == GRAPH)) & mine])
    gap = np.searchsorted(kernels, pieces["start_ns"][group.rows], side="right")
    return bool(np.bincount(gap, pieces["ns"][group.rows]).max(initial=0) >= _MOSTLY_ONE * group.waited_ns)


def whole_cause(case: Case, group: Group) -> Cause:
    """Return everything that belongs to the waits of a group, see `Wholes`."""
    cause, op, thread, start, end = (
        case.pieces[name][group.rows] for name in ("cause", "op", "thread", "start_ns", "end_ns")
    )
    return case.program.wholes.of_waits(cause, op, thread, start, end, np.zeros(len(group.rows), bool))


@dataclass(frozen=True)
class Kind:
    """A kind of finding, with a section in the fix guide.

    ``claims`` marks the pieces of waits that may belong to this kind. ``codes`` gives equal numbers to pieces of one
    cause; ``words`` gives the name of the cause. ``symptom`` is a sentence with the placeholders ``{amount}`` and
    ``{cause}``. ``remedies`` are the remedies to try. ``whole`` returns everything that disappears together with the
    cause. ``set_up``: the wait happens once, and is never ranked first. ``tried`` is False if no replay can remove the
    cause. ``least_launches``: a finding needs steps with at least this many launches. ``least_share``: the least loss
    of a finding, as a share of the step time; if a finding ``exposes`` other waits, its wait counts instead.
    ``inflated``: recording makes the wait longer. ``note``: the end of the sentence if there is no remedy. ``where``: a
    sentence about the place of the cause. ``arithmetic``: without a replay, the wait is the upper bound of the gain.
    """

    name: str
    claims: Callable[[Case], Mask]
    codes: Callable[[Case, Index], Ints]
    words: Callable[[Case, int], str]
    symptom: str
    remedies: Callable[[Case, Group], Iterable[Remedy]] = lambda _, __: ()
    whole: Callable[[Case, Group], Cause] = whole_cause
    set_up: bool = False
    tried: bool = True
    least_launches: int = 0
    least_share: float = MIN_SHARE
    exposes: bool = False
    inflated: bool = False
    note: Callable[[Case, Group], str] = lambda _, __: ""
    where: Callable[[Case, Group], str] = lambda _, __: ""
    arithmetic: bool = False


def removal(text: str, group: Group) -> Remedy:
    """Return the remedy that removes the cause."""
    return Remedy(text, Changes(remove=[group.cause]))


def by_culprit(case: Case, rows: Index) -> Ints:
    """Group pieces: pieces with the same culprit have one cause."""
    return case.pieces["culprit"][rows]


def text_of(column: str) -> Callable[[Case, int], str]:
    """Return the text of a piece for one column of `PIECE`."""
    return lambda case, row: one_line(case.facts.texts.words[case.pieces[column][row]], NAME)


def of_host(case: Case) -> Mask:
    """Mark pieces in which the GPU waited for the host."""
    return (case.pieces["cause"] == LATE_HOST) & ~in_mpi(case)


def idling(case: Case) -> Mask:
    """Mark pieces in which the GPU runs nothing for more than half of the time: no copies, no communication."""
    pieces = case.pieces
    return 2 * (pieces["communication_ns"] + pieces["copies_ns"]) < pieces["ns"]


def copying(case: Case, rows: Index) -> bool:
    """Return whether the GPU copies for most of the time of the given pieces."""
    pieces = case.pieces
    return 2 * int(pieces["copies_ns"][rows].sum()) > int(pieces["ns"][rows].sum())


def on_windows(case: Case) -> bool:
    """Return whether the program ran on Windows (or WSL), which batches launches and whose GPUs have no page faults."""
    return _WINDOWS.search(case.facts.attribution.trace.report.about.os or "") is not None


@made_once
def stalled(case: Case) -> Mask:
    """Mark pieces in which the host waits for a GPU op that was launched earlier and does not start. The process must
    use one GPU, so that its ops wait for no other GPU.
    """
    trace, pieces, out = case.facts.attribution.trace, case.pieces, np.zeros(len(case.pieces["op"]), bool)
    waits = (case.purpose[pieces["call"]] == SYNCHRONIZE) & (pieces["ns"] >= STARTS_NS) & of_host(case) & idling(case)
    waits &= (copied_op(case) < 0) & ~of_mpi(case)
    used = np.unique(np.stack([trace.stream_process, trace.stream_gpu]), axis=1)
    for number, place in enumerate(case.places):
        rows = np.flatnonzero(waits & (case.place_of == number))
        alone = (np.isin(used[0], used[0][used[1] == place.gpu])).sum() == (used[1] == place.gpu).sum()
        ops = np.flatnonzero(trace.op_gpu == place.gpu) if len(rows) and alone else rows[:0]
        ops = ops[np.argsort(trace.ops.start[ops], kind="stable")]
        at = np.searchsorted(trace.ops.start[ops], pieces["start_ns"][rows])
        rows, op = rows[at < len(ops)], ops[at[at < len(ops)]]
        called = pick(trace.launches.end, trace.ops.launch[op], np.iinfo(np.int64).max)
        until = np.minimum(trace.ops.start[op], pieces["end_ns"][rows])
        late = until - np.maximum(called, pieces["start_ns"][rows])
        out[rows] = (2 * late > pieces["ns"][rows]) & (trace.ops.kind[op] != MEMCPY)
    return out


def most_in(case: Case, rows: Index, found: OtherRanges, *, launching: bool = True) -> Ints:
    """For each of the pieces ``rows``, return the outermost range on its thread that takes at least half of it; -1 for
    none. Ranges that launch are left out unless ``launching``.
    """
    trace, pieces, out = case.facts.attribution.trace, case.pieces, np.full(len(rows), -1, np.int64)
    for code in np.unique(pieces["thread"][rows]).tolist():
        mine = np.flatnonzero(found.thread == trace.threads[code])
        mine = mine[np.lexsort((-found.end[mine], found.start[mine]))]
        outer = found.start[mine][1:] >= np.maximum.accumulate(found.end[mine])[:-1]
        mine = mine[np.append(True, outer)[: len(mine)]]
        if not launching:
            launches = trace.launches.start[trace.launches.thread == code]
            first, last = (np.searchsorted(launches, each[mine]) for each in (found.start, found.end))
            mine = mine[first == last]
        here = np.flatnonzero(pieces["thread"][rows] == code)
        start, end = pieces["start_ns"][rows[here]], pieces["end_ns"][rows[here]]
        at = np.searchsorted(found.start[mine], (start + end) // 2, side="right") - 1
        here, start, end, op = here[at >= 0], start[at >= 0], end[at >= 0], mine[at[at >= 0]]
        most = 2 * (np.minimum(end, found.end[op]) - np.maximum(start, found.start[op])) >= end - start
        out[here[most]] = op[most]
    return out


@made_once
def messages(case: Case) -> Ints:
    """For each piece, return the MPI call that takes most of the piece, as a code of `Facts.texts`; 0 for none."""
    trace, out = case.facts.attribution.trace, np.zeros(len(case.pieces["ns"]), np.int64)
    rows = np.flatnonzero(case.pieces["cause"] == LATE_HOST)
    found = trace.report.reader.other_ranges(trace, {"mpi"}) if len(rows) else NO_RANGES
    if len(found.names):
        names = np.array([*(case.facts.texts.code(name.text) for name in found.names), 0], np.int64)
        out[rows] = names[np.append(found.name, -1)[most_in(case, rows, found)]]
    return out


@made_once
def of_mpi(case: Case) -> Mask:
    """Mark pieces about MPI, including all calls and copies that MPI makes."""
    named = [
        purpose_of(text) == MPI or _MPI.search(text.partition("@")[0]) is not None for text in case.facts.texts.words
    ]
    named_so = np.array(named, bool)[case.pieces["range"]]
    return named_so | (case.purpose[case.pieces["call"]] == MPI) | (messages(case) > 0)


def in_mpi(case: Case) -> Mask:
    """Mark pieces in which the GPU waited for MPI on the host."""
    return of_mpi(case) & (case.pieces["cause"] == LATE_HOST)


def in_calls(case: Case, *purposes: int) -> Mask:
    """Mark pieces in which the host is in a call with one of these purposes, except in one-time calls."""
    call = case.pieces["call"]
    return of_host(case) & np.isin(case.purpose[call], purposes) & ~case.once[call]


@made_once
def copied_op(case: Case) -> Ints:
    """For each piece, return its copy of more than a few bytes: a copy that the host made or waited for, or whose
    blocking call exposed the wait; -1 if there is none.
    """
    pieces, ops = case.pieces, case.facts.ops_of_calls
    call = pieces["call"]
    made = np.where(np.isin(case.purpose[call], (COPY, SYNCHRONIZE)), pieces["copied"], -1)
    exposing = pieces["exposing"]
    behind = np.where(ops.made[exposing] >= 0, ops.made[exposing], ops.on[exposing]).astype(np.int64)
    quick = (pieces["ns"] < case.long_code_ns) & (np.isin(case.purpose[call], LAUNCHING) | (call < 0))
    op = np.where(made >= 0, made, np.where((exposing >= 0) & quick, behind, -1))
    large = pick(case.facts.copy_sizes, op, 0) > ITEM_BYTES
    kind = pick(case.facts.attribution.trace.ops.kind, op, 255)
    return np.where((op >= 0) & large & (kind == MEMCPY), op, -1)


@made_once
def launching(case: Case) -> Mask:
    """Mark pieces in which the host was busy with launches, with other calls that do not wait, or with little code
    between calls.

    Short waits for a lock are included, because autograd uses a lock to pass work between threads.
    """
    pieces = case.pieces
    purpose, short = case.purpose[pieces["call"]], pieces["ns"] < case.long_code_ns
    calls = np.isin(purpose, LAUNCHING) & (copied_op(case) < 0)
    code = (pieces["call"] < 0) | (purpose == LOCK)
    return of_host(case) & ~case.once[pieces["call"]] & (calls | (code & short))


def fetched(case: Case, group: Group) -> Mask:
    """Mark the pieces of a group in which the host reads the GPU's results, so that unified memory pages migrate to the
    host.
    """
    trace, pieces = case.facts.attribution.trace, case.pieces
    named = np.array([*("DtoH" in name for name in trace.op_names), False], bool)
    begins = np.sort(trace.ops.start[named[trace.ops.name] & (trace.ops.kind == MIGRATION)])
    first, last = (np.searchsorted(begins, pieces[name][group.rows]) for name in ("start_ns", "end_ns"))
    return last > first


def glob_of(path: str) -> str:
    """Return a glob that matches only this path."""
    return path.replace("[", "[[]")


DIRECTIVES = ("openacc", "openmp")  # these copy the arrays of each region by default, and back, and wait behind it
BY_ROWS = "if these are rows of one array, allocate the array as one contiguous block, so that one copy moves all of it"
# What OpenMP calls the directives of OpenACC.
_OPENMP = (
    ("an enter data", "a target enter data"),
    ("a data region", "a target data region"),
    ("data regions", "target data regions"),
    ("an async", "a nowait"),
    ("async", "nowait"),
    ("gangs (parallel loop gang vector", "teams (target teams distribute parallel for"),
    (" (-gpu=pinned)", ""),
)


def dialect_text(case: Case, texts: dict[str, str]) -> str:
    """Return the text for the language of the program; if there is none, return the text for ``cuda``."""
    if case.dialect == "openmp" and "openacc" in texts:
        text = texts["openacc"]
        for one, other in _OPENMP:
            text = text.replace(one, other)
        return text
    return texts.get(case.dialect, texts["cuda"])
