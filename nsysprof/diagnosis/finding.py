"""Define the result of a diagnosis: findings, each with symptom, cause, and a remedy that was tried in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import one_line, path_option, quote_glob

# How a gain is known: by a replay of the recording with the change, as an upper limit by arithmetic, or not at all.
REPLAYED, BOUND, UNTRIED = "replayed", "bound", "unknown"
_SIMPLE = 0.2  # of the gain of another remedy for the same: a simpler one with so much is the one to begin with
# An argument of the optimizer before a CUDA graph, the layout of a model before the fusion of kernels that it changes.
# A wait that a CUDA graph cannot contain comes first if it costs much of the steps.
_BEFORE = {"optimizer": "launch-bound", "channels-last": "pointwise", "stream-dependency": "small-grid"}
_BEFORE["synchronization"] = "launch-bound"
_WAITS = 0.03  # of the steps: recorders lengthen launches, and so steps that are bound by launches, by half or more
_TIMES, _TIMES_ALL = 5, 3  # as much as any remedy of its steps gains: a cause in some steps, and in all
_MUCH = 0.25  # of the steps, by which slow ones are longer than others
_HALF = 0.5  # of an upper limit by arithmetic is what to expect
EVERY, ONCE = "every step", "once"
COUNTED, SLOW = "counted", "slow-steps"  # a claim about what kernels do, and a kind
PACED, COLD, FAILED = "paced", "cold-start", "failed-calls"  # kinds that say what all others are worth
_ALONE = 0.05  # of the steps: less, without a remedy, is no answer even if nothing else is one
_BESIDE = 0.5  # of the largest cause that is told: what costs less, and has no remedy, only distracts from it
OFTEN_SO = 0.1  # of the steps: less of what hardly any program is without is no finding, nor what has no remedy
SHARED = "launched work starts late, as if another process shared the GPU"  # a cause that makes others doubtful
NAME = 60  # characters of a name in a sentence


@dataclass(frozen=True)
class Finding:
    """A cause that costs time in a program's steps.

    ``kind`` is a section of the fix guide; ``path``: the steps; ``gpu``: the GPU that loses most; ``often``: `EVERY`,
    `ONCE` or `3 of 20 steps`; ``steps``: the number of steady steps that the sums cover; ``text``: symptom and cause;
    ``claim``: the evidence for the cause. ``lost_ns``: the time that all steady steps lose together (recorded minus
    replayed without the cause); ``gain_ns`` (from ``gain_low_ns`` to ``gain_high_ns``): the gain of these steps with
    ``change`` (options of ``nsysprof forecast``); 0 if ``basis`` is `UNTRIED`. All are int ns, as profiled. ``remedy``
    is empty if there is none. ``total_ns``: the time of all steady steps; ``step_ns``: the step time that amounts refer
    to, see `Place.unit_ns`; ``culprits``: the culprits of the finding in ``why.csv``; ``recording_ns``: the part of the
    gain that may be profiling overhead; ``where``: the code with the cause, according to CPU samples; ``usual_ns``: the
    loss of the median step, or 0 unless the mean loss is more than 1.5 times as large; ``estimated``: no replay was
    wanted, so the gain is only the time that the GPU waits, and a fix may save more or less.
    """

    kind: str
    path: str
    gpu: int
    often: str
    steps: int
    text: str
    cause: str
    claim: str
    lost_ns: int
    remedy: str = ""
    change: tuple[str, ...] = ()
    gain_ns: int = 0
    gain_low_ns: int = 0
    gain_high_ns: int = 0
    basis: str = UNTRIED
    total_ns: int = 0
    step_ns: float = 0.0
    culprits: tuple[str, ...] = ()
    recording_ns: int = 0
    where: str = ""
    usual_ns: float = 0.0
    estimated: bool = False

    @property
    def likely_ns(self) -> float:
        """Return the gain for ranking: the gain without profiling overhead, or half of an upper bound."""
        bound = self.basis == BOUND and not self.recording_ns
        return max(self.gain_ns - self.recording_ns, 0) * (_HALF if bound else 1.0)

    def of_step(self, ns: float) -> float:
        """Convert a total over all steps to the amount per step."""
        if self.usual_ns:
            return ns / max(self.lost_ns, 1) * self.usual_ns
        return ns / max(self.total_ns, 1) * self.step_ns

    @property
    def id(self) -> str:
        """Return a stable id, equal in every answer: kind, cause and path."""
        return f"{self.kind}:{self.cause}:{'' if self.path == WHOLE else self.path}"

    @property
    def fix(self) -> str:
        """The section of the fix guide."""
        return f"docs/fixes.md#{self.kind}"

    def untried(self, **values: Any) -> Finding:
        """Return the finding with other ``values`` and without a gain."""
        none: dict[str, Any] = {"change": (), "basis": UNTRIED, "gain_ns": 0, "gain_low_ns": 0, "gain_high_ns": 0}
        return replace(self, **none, **values)

    def record(self, command: str) -> dict[str, Any]:
        """Return the finding for JSON, with the next ``command``."""
        names = (
            *("id", "kind", "path", "gpu", "often", "steps", "text", "cause", "claim", "lost_ns", "remedy"),
            *("change", "gain_ns", "gain_low_ns", "gain_high_ns", "basis", "fix"),
        )
        values = {name: getattr(self, name) for name in names}
        path = "" if self.path == WHOLE else self.path
        return {**values, "path": path, "change": list(self.change), "command": command}

    @property
    def steps_option(self) -> str:
        """Return the option that names the steps; empty for the whole recording."""
        return "" if self.path == WHOLE else path_option(self.path)

    @property
    def change_options(self) -> str:
        """Return the options of ``nsysprof forecast`` for the change."""
        return " ".join(each if each.startswith("--") else quote_glob(each) for each in self.change)

    def listed(self) -> dict[str, Any]:
        """Return the finding as an entry of the ``findings`` list in a document."""
        values: dict[str, Any] = {"path": self.path, "cause": self.kind, "culprit": self.cause, "text": self.text}
        values |= {"ns": self.lost_ns / self.steps, "share": min(self.lost_ns / max(self.total_ns, 1), 1.0)}
        return values | {
            "claim": self.claim,
            "hint": self.remedy,
            "gpu": self.gpu,
            "kind": self.kind,
            "gain_ns": self.gain_ns,
        }


def ranked(found: Sequence[Finding]) -> list[Finding]:
    """Rank findings: first tried remedies by likely gain, then all other findings by loss, then one-time work.

    If two remedies fix the same cause of a path, the simpler remedy comes first if it has a good part of the gain (see
    `_BEFORE`). Findings about pacing, a cold start or a shared GPU come first, unless other findings cost much more.
    Next come causes without a remedy, if they cost several times as much as any remedy gains.
    """
    waits = {each.path for each in found if _is_first(each)}
    others, most, lost = {(each.path, each.kind): each for each in found}, dict[str, int](), dict[str, int]()
    for each in found:
        most[each.path] = max(most.get(each.path, 0), each.gain_ns)
        lost[each.path] = max(lost.get(each.path, 0), each.lost_ns)

    def place(each: Finding) -> tuple[bool, bool, bool, bool, float, int, str]:
        gain, other = each.likely_ns, others.get((each.path, _BEFORE.get(each.kind, "")), each)
        if each.gain_ns >= _SIMPLE * other.gain_ns > 0 or _is_first(each):
            gain = max(gain, other.likely_ns + (other is not each))
        untried, some = each.basis == UNTRIED, each.often not in (EVERY, ONCE) and each.kind != SLOW
        often = each.often == EVERY and each.path != WHOLE and each.kind in ("launch-bound", "graph-launch", "unknown")
        often &= each.kind != "launch-bound" or each.path not in waits
        often |= most[each.path] < _ALONE * each.total_ns and each.often == EVERY and each.kind != "launch-latency"
        often |= each.kind == SLOW and each.lost_ns >= _MUCH * each.total_ns
        leads = untried and (some or often) and each.lost_ns > (_TIMES if some else _TIMES_ALL) * most[each.path] > 0
        shared = each.cause == SHARED and each.often == EVERY and each.lost_ns >= OFTEN_SO * each.total_ns
        shared &= each.lost_ns >= _BESIDE * lost[each.path]
        first = each.kind not in (PACED, COLD) and not shared
        return first, each.often == ONCE, not leads, untried, -gain, -each.lost_ns, each.id

    return sorted(found, key=place)


def _is_first(each: Finding) -> bool:
    """Return whether this is a wait of the CPU to remove before anything is captured in a CUDA graph."""
    return each.kind == "synchronization" and each.gain_ns >= _WAITS * each.total_ns


def worth_telling(found: Sequence[Finding]) -> list[Finding]:
    """Return the ranked findings with a remedy or a large loss, and the first finding of a path if its loss is large
    enough.

    Slow steps appear in only one finding: ``slow-steps``, or a finding about some steps that has a remedy.
    """
    kept: dict[str, list[Finding]] = {}
    told = [each for each in found if each.remedy or each.lost_ns >= OFTEN_SO * each.total_ns]
    launching = {each.path for each in told if each.kind == "launch-bound"}
    for each in found:
        mine = kept.setdefault(each.path, [])
        if each.kind == "launch-latency" and (each.path in launching or any(each.kind == other.kind for other in mine)):
            continue
        some = [other for other in mine if other.often not in (EVERY, ONCE)]
        again = any(other.kind == PACED for other in mine)
        again |= each.kind == SLOW and any(other.remedy and _same(other, each) for other in some)
        again |= each.often == ONCE and any(other.kind == SLOW and _same(each, other) for other in some)
        most = max((other.lost_ns for other in mine if other.kind not in (SLOW, COLD)), default=0)
        little = max(OFTEN_SO * each.total_ns, most * _BESIDE * (each.often != ONCE))
        much = each.remedy or each.kind in (SLOW, PACED, COLD) or each.lost_ns >= little
        if not again and (much or (not mine and each.lost_ns >= _ALONE * each.total_ns)):
            mine.append(each)
    every = {id(each) for mine in kept.values() for each in mine}
    return [each for each in found if id(each) in every]


def _same(cause: Finding, slow: Finding) -> bool:
    """Return whether a cause makes steps slow."""
    return slow.cause in [one_line(name, NAME) for name in cause.culprits]


def scaled(finding: Finding, times: float, steps: int) -> Finding:
    """Scale a finding about some of the steps by the factor ``times``, so that it covers all ``steps``."""
    names = ("lost_ns", "gain_ns", "gain_low_ns", "gain_high_ns", "total_ns", "recording_ns")
    values = {name: round(getattr(finding, name) * times) for name in names}
    return replace(finding, steps=steps, **values)
