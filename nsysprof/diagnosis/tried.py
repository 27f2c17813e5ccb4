"""Find the causes of GPU waits in the steps of a program, each with the remedy that saved most in a replay."""

import shlex
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Ints
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.calls import WAITING_FOR_INPUT, source_sleeps
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.catalogue import KINDS
from nsysprof.diagnosis.cpu_code import CPU_CODE
from nsysprof.diagnosis.finding import BOUND, EVERY, ONCE, PACED, Finding
from nsysprof.diagnosis.gpu_waits import NOT_RECORDED
from nsysprof.diagnosis.kinds import HAS, MIN_SHARE, Group, Kind, Remedy, each_step, idling, usual_ns
from nsysprof.diagnosis.launch_bound import RECORDING
from nsysprof.errors import NsysprofError
from nsysprof.waits.changes import Changes
from nsysprof.waits.facts import CLAIMS
from nsysprof.waits.paced import follows_display, paces
from nsysprof.waits.whole import Cause

MIN_NS = 20_000  # in all steps: nobody would notice less
MAX_TRIED = 16  # causes that are replayed, those with most waiting first
MAX_NODES = 4_000_000  # of all replays together
_GPUS = 2  # with a finding about a cause of a path, of those that wait longest for it: one finding is kept
# Of the waits: where the recording explains no more than the rest, what it does explain is no diagnosis.
_UNEXPLAINED = 0.25
_LONG = 0.25  # of a single pass: a wait of this share is a finding even if the replay saves nothing
_OTHERS = 1.5  # times what the cause costs: a change that gains more takes other things out of the program, too
_SEVERAL = 0.035  # of the steps, of several waits for the GPU in each: one, as to log, may cost more
_FILLS = 0.05  # of the steps: a wait of so much for a thread that sleeps sets the pace
_MAY_PACE = ("cpu-code", "sleep", "input-wait", "lock")


@contextmanager
def left_out_if_faulty(kind: str) -> Iterator[None]:
    """Leave out a kind of findings if its code fails; a warning names the line that failed."""
    try:
        yield
    except (NsysprofError, MemoryError):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} (line {last.lineno} of {Path(last.filename).name}: {last.line})"
        warnings.warn(f"{kind} findings are missing, because their detection failed: {why}", stacklevel=3)


def groups(case: Case, least: float = 0.0) -> Iterator[tuple[Kind, Group]]:
    """Yield groups of wait pieces (by kind, place and cause) that take at least the share ``least`` of the steps."""
    pieces, place_of = case.pieces, case.place_of
    for kind in KINDS:
        with left_out_if_faulty(kind.name):
            rows = np.flatnonzero(kind.claims(case) & ~case.prepares)
            codes = kind.codes(case, rows) if len(rows) else rows
            keys = place_of[rows] * (int(codes.max(initial=0)) + 1) + codes
            for key in np.unique(keys).tolist():
                mine = rows[keys == key]
                place = case.places[int(place_of[mine[0]])]
                if int(pieces["ns"][mine].sum()) < least * place.total_ns:
                    continue
                longest = int(mine[np.argmax(pieces["ns"][mine])])
                yield kind, Group(place, kind.words(case, longest), mine, case.waited(place, mine))


def removal_of(case: Case, glob: str) -> Cause | None:
    """Return the calls, GPU ops and code of all causes that a glob matches, or None if it matches no cause."""
    found: Cause | None = None
    for kind, group in groups(case):
        if kind.tried and (group.cause == glob or fnmatchcase(group.cause, glob)):
            cause = kind.whole(case, group)
            found = cause if found is None else found | cause
    return found


def of_waits(case: Case) -> Iterator[Finding]:
    """The findings about waits of the GPU, in no particular order."""
    unsure = _unsure(case)
    some = [
        (kind, group)
        for kind, group in groups(case, MIN_SHARE)
        if enough(case, kind, group) and (kind is NOT_RECORDED or group.place.path not in unsure)
    ]
    some.sort(key=lambda each: (-each[1].waited_ns, each[0].name, each[1].cause))
    paced = {id(group.place): (kind, group) for kind, group in reversed(some) if _paces(case, kind, group)}
    yield from (_paced(kind, group) for kind, group in paced.values())
    tried, nodes, on_gpus = 0, 0, Counter[tuple[str, str, str]]()
    for kind, group in some:
        if id(group.place) in paced:  # whatever gets shorter, the wait gets longer
            continue
        cause = (kind.name, group.cause, group.place.path)
        if on_gpus[cause] >= _GPUS:
            continue
        replays = case.replay and kind.tried and tried < MAX_TRIED and nodes < MAX_NODES
        if replays:
            tried += 1
            nodes += len(case.program.network.extra)
        with left_out_if_faulty(kind.name):
            for finding in _finding(case, kind, group, replays=replays):
                on_gpus[cause] += 1
                yield finding


def _paces(case: Case, kind: Kind, group: Group) -> bool:
    """Whether a wait sets the pace of the steps, whatever else they do."""
    if kind.name not in _MAY_PACE:
        return False
    if kind is CPU_CODE:  # it lengthens steps at a constant rate, too: only a display is believed, and no named code
        unnamed = group.cause.rpartition(" in ")[2] == group.place.path.rpartition("/")[2]
        return unnamed and follows_display(group.place.length, group.waited)
    fills = kind is WAITING_FOR_INPUT and group.waited_ns >= _FILLS * group.place.total_ns
    return paces(group.place.length, group.waited) or (fills and source_sleeps(case, group))


def _unsure(case: Case) -> set[str]:
    """The paths of whose waits the recording leaves too many unexplained."""
    ns, unknown = case.pieces["ns"], NOT_RECORDED.claims(case)
    mine = ((place, case.place_of == number) for number, place in enumerate(case.places))
    return {place.path for place, rows in mine if int(ns[rows & unknown].sum()) > _UNEXPLAINED * int(ns[rows].sum())}


def enough(case: Case, kind: Kind, group: Group) -> bool:
    """Return whether the steps launch often enough for a kind to matter."""
    if not kind.least_launches:
        return True
    launches = case.facts.attribution.trace.launches
    windows = case.windows.take(group.place.windows)
    start = np.sort(launches.start)
    count = np.searchsorted(start, windows.end) - np.searchsorted(start, windows.start)
    return float(np.median(count)) >= kind.least_launches


def _finding(case: Case, kind: Kind, group: Group, *, replays: bool) -> Iterator[Finding]:
    """The finding about a group; none where the steps get no shorter without its cause, whatever the GPU waited."""
    place = group.place
    often = ONCE if kind.set_up and (place.path == WHOLE or group.often != EVERY) else group.often
    lost = case.without(place, kind.whole(case, group)) if replays else None
    if lost is not None:  # kernels that would run at the same time may take longer then: that gain is not known
        lost = np.minimum(lost, _most(case, kind, place))
        alone = int(case.pieces["ns"][group.rows[idling(case)[group.rows]]].sum())
        if place.path == WHOLE and 2 * lost.sum() < alone and alone >= _LONG * place.total_ns:
            lost, replays = None, False  # the replay of a single pass may lack a dependency: the wait itself is known
    lost_ns = group.waited_ns if lost is None else max(int(lost.sum()), 0)
    if lost_ns < max(MIN_SHARE * place.total_ns, MIN_NS):
        return
    least = _SEVERAL if kind.exposes and _waits(case, group) >= 2 * place.steps else kind.least_share
    if max(lost_ns, group.waited_ns if kind.exposes else 0) < least * place.total_ns:
        return
    where = kind.where(case, group)
    finding = Finding(
        kind=kind.name,
        path=place.path,
        gpu=place.gpu,
        often=often,
        steps=place.steps,
        text=_text(case, kind, group, group.waited if lost is None else lost) + f"; {where}" * bool(where),
        cause=group.cause,
        claim=CLAIMS[int(np.bincount(case.pieces["claim"][group.rows], case.pieces["ns"][group.rows]).argmax())],
        lost_ns=lost_ns,
        total_ns=place.total_ns,
        step_ns=place.unit_ns,
        usual_ns=usual_ns(place, group.waited if lost is None else lost) if often == EVERY else 0.0,
        where=where,
        culprits=tuple(case.facts.texts.words[code] for code in np.unique(case.pieces["culprit"][group.rows]).tolist()),
    )
    best = finding
    if often != ONCE and lost is None and kind.arithmetic:
        for remedy in kind.remedies(case, group):
            best = _limited(case, finding, remedy, lost_ns)
    elif often != ONCE and lost is None and kind.tried and (not case.replay or (replays and not case.doubt)):
        # without a replay, or where it is off, the wait is all that is known
        best = next((_bound(case, kind, finding, remedy) for remedy in kind.remedies(case, group)), finding)
    elif often != ONCE and lost is not None:
        for remedy in kind.remedies(case, group):  # the first that gains, each more general than the one before
            best = _tried(case, kind, finding, group, remedy, lost)
            if best.gain_ns:
                break
    yield best if best.remedy else replace(best, text=f"{best.text}{kind.note(case, group)}")


def _most(case: Case, kind: Kind, place: Place) -> Ints:
    """The time that each step can gain at most. Without a dependency between streams (which a synchronization of the
    host replaces, too), a replay would let communication overlap the compute for which it may wait.
    """
    talks = not (case.facts.lacks or kind.exposes) or kind.name.startswith("communication")
    return case.not_computing(place, talks=talks)


def _waits(case: Case, group: Group) -> int:
    """How many calls wait for the GPU in all steps."""
    exposing, call = (case.pieces[name][group.rows] for name in ("exposing", "call"))
    calls = np.where(exposing >= 0, exposing, call)
    return len(np.unique(calls[calls >= 0]))


def _bound(case: Case, kind: Kind, finding: Finding, remedy: Remedy) -> Finding:
    """The finding with a remedy that gains no more than the GPU waits, if that is more than recording may add."""
    most = finding.lost_ns if remedy.most_ns is None else min(finding.lost_ns, remedy.most_ns)
    if most <= max(MIN_SHARE * finding.total_ns, _of_recorder(case, kind, finding)):
        return finding
    return _limited(case, finding, remedy, most)


def _limited(case: Case, finding: Finding, remedy: Remedy, gain: int) -> Finding:
    """The finding with a remedy that gains at most so much or, if the user wants no replay, about as much."""
    limited = replace(finding, remedy=remedy.text, basis=BOUND, gain_ns=gain, gain_high_ns=gain)
    if case.replay:
        return limited
    return replace(limited, change=tuple(shlex.split(remedy.changes.options)), estimated=True)


def _of_recorder(case: Case, kind: Kind, finding: Finding) -> int:
    """What the recorder itself may add to the steps, ns."""
    return round((1 - 1 / case.inflation) * finding.total_ns) if kind.inflated else 0


def _tried(case: Case, kind: Kind, finding: Finding, group: Group, remedy: Remedy, lost: Ints) -> Finding:
    """The finding with a remedy, if that gains enough."""
    place = group.place
    removes = remedy.changes == Changes(remove=[group.cause])
    gains = lost if removes else case.changed(place, remedy.changes)
    if gains is None:
        return finding
    gain = int(gains.sum()) if remedy.most_ns is None else min(int(gains.sum()), remedy.most_ns)
    off = float(np.median(case.residual[place.windows])) * place.total_ns
    most = int(_most(case, kind, place).sum())
    if most < int(case.not_computing(place).sum()):
        gain = min(gain, most)
    if gain > most + off:
        return finding
    if gain < max(MIN_SHARE * place.total_ns, off) or (remedy.least and gain > _OTHERS * int(lost.sum())):
        return finding
    recording_ns = _of_recorder(case, kind, finding)
    if gain <= recording_ns:
        return replace(finding, text=f"{finding.text}; {RECORDING}, {remedy.text}")
    spread, bound = round(off), remedy.basis == BOUND
    return replace(
        finding,
        remedy=remedy.text,
        change=tuple(shlex.split(remedy.changes.options)),
        basis=remedy.basis,
        recording_ns=recording_ns,
        gain_ns=gain,
        gain_low_ns=0 if bound else max(gain - spread, 0),
        gain_high_ns=gain if bound else min(gain + spread, place.total_ns),
    )


def _paced(kind: Kind, group: Group) -> Finding:
    """The finding that steps take as long as they do because the program makes them."""
    place = group.place
    amount = each_step(place, group.waited_ns)
    waits = f"{group.cause} waits for a timer or another source of input ({amount})"
    if kind is CPU_CODE:  # which no recorded call explains
        rate = f"the steps keep a rate of {1e9 / place.step_ns:,.3g} per second"
        waits = f"{rate}: the CPU seems to wait for a display or a timer ({amount})"
    text = f"{waits}, so faster work does not shorten the step"
    return Finding(
        PACED, place.path, place.gpu, EVERY, place.steps, text, group.cause, "order", group.waited_ns,
        total_ns=place.total_ns, step_ns=place.unit_ns,
    )  # fmt: skip


def _text(case: Case, kind: Kind, group: Group, lost: Ints) -> str:
    """Symptom and cause in one sentence; ``lost`` is what each step loses."""
    place, lost_ns, often = group.place, max(int(lost.sum()), 0), group.often
    share = format_share(lost_ns / place.total_ns)
    if place.path == WHOLE:
        one = "one GPU's time from its first operation to its last"
        of = one if len(case.lines) > 1 else "the time from the first GPU operation to the last"
        amount = f"{format_ns(lost_ns)}, {share} of {of}"
    elif often == EVERY and (usual := usual_ns(place, lost)):
        share, most = format_share(usual / place.step_ns), format_ns(int(lost.max()))
        amount = f"{format_ns(usual)} of a median step ({share}), up to {most} of a step"
    elif often == EVERY:
        amount = each_step(place, lost_ns)
    else:
        of_these = int(lost[group.waited >= HAS * group.waited.max()].sum())
        amount = f"{format_ns(of_these)} {often if often == ONCE else f'in {often}'}"
    return kind.symptom.format(cause=group.cause, amount=amount)
