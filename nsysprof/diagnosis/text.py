"""A diagnosis in sentences: which steps, what costs them time, what to do and what that gains, and the next command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Any

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import join_words, one_line, plural, quote_path
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.finding import BOUND, UNTRIED, Finding
from nsysprof.results.table import wrap

_PATH = 60
_MOSTLY = 0.5
_MIN_ONCE_NS = 1_000_000  # less is not worth a line


def overview_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Where no step repeats, what there is instead; and what the program did once."""
    once = [f"{name} {format_ns(ns)}" for name, ns in diagnosis.once if ns >= _MIN_ONCE_NS]
    if diagnosis.repeats:
        if once:
            yield f"Once, outside the steps or in the first of them: {join_words(once)}."
        return
    set_up = f"Set-up {join_words(once)}; " if once else ""
    yield f"No step repeats. {set_up}GPU busy {format_ns(diagnosis.busy_ns)}."


def nothing_text(diagnosis: Diagnosis) -> str:
    """What is known where there is no finding."""
    of = "steps" if diagnosis.repeats else "time from the first GPU operation to the last"
    if not diagnosis.steps:
        return "No GPU work to diagnose: record a run that launches kernels."
    if diagnosis.nothing:
        share = format_share(1 - diagnosis.idle_share)
        kernels = f", most in {diagnosis.busiest}" if diagnosis.busiest else ""
        return f"No wait to fix: the GPU computes for {share} of the {of}{kernels}."
    if diagnosis.early_share >= _MOSTLY:
        share = format_share(diagnosis.early_share)
        return f"Warm-up takes {share} of the {of}, waiting alone: record some steps behind it."
    idle = format_share(diagnosis.idle_share)
    return f"The GPU idles for {idle} of the {of}, and no single cause takes 2 % of the {of}."


def gain_text(finding: Finding) -> str:
    """What the remedy gains, and how that is known."""
    if finding.basis == UNTRIED:
        return "no remedy was tried"
    each = "" if finding.path == WHOLE else " per step"
    gain = format_ns(finding.gain_ns / finding.steps)
    if finding.basis == BOUND:
        return f"saves at most {gain}{each}"
    low, high = (format_ns(ns / finding.steps) for ns in (finding.gain_low_ns, finding.gain_high_ns))
    between = f", {low} to {high}" if low != high else ""
    return f"saves {gain}{each} in a replay{between}"


def sentence(finding: Finding) -> str:
    """Symptom and cause, with the steps that they are about."""
    return finding.text if finding.path == WHOLE else f"{one_line(finding.path, _PATH)}: {finding.text}"


def finding_lines(
    found: Sequence[Finding], file: Any, asked_by: str, width: int | None = None
) -> Iterator[str]:
    """Numbered findings, each with its remedy, what that gains, and the next command."""
    for number, each in enumerate(found, 1):
        yield wrap(f"{number}. {sentence(each)}", "", "   ", width)
        if each.remedy:
            yield wrap(f"→ {each.remedy} ({gain_text(each)})", "   ", "     ", width)
        yield f"   $ {next_command(each, file, asked_by)}"


def next_command(finding: Finding, file: Any, asked_by: str) -> str:
    """The command that tries the change, or else shows more; never the one that was just run."""
    report = quote_path(file)
    path = finding.path.replace("[", "[[]")
    if finding.change:
        return finding.forecast_command(report, WHOLE)
    if finding.kind == "slow-steps" and asked_by != "steps":
        return f"nsysprof steps {report} --per {quote(path)}"
    name = "analyze" if asked_by == "why" else "why"
    return f"nsysprof {name} {report}" + ("" if finding.path == WHOLE else f" --range {quote(path)}")


def records(diagnosis: Diagnosis, file: Any, asked_by: str) -> list[dict[str, Any]]:
    """The findings for the key ``diagnosis`` of a JSON document, best first."""
    return [each.record(next_command(each, file, asked_by)) for each in diagnosis.findings]


def steps_text(diagnosis: Diagnosis) -> str:
    """Which steps, how many are steady, and how many are left out as warm-up."""
    left_out = diagnosis.left_out
    warm = f", without {plural(left_out, 'step')} of warm-up" if left_out else ""
    return f"{diagnosis.chosen.level.clause}; {plural(diagnosis.steps, 'steady step')}{warm}"
