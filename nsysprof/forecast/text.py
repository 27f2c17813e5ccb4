"""A forecast as text: one sentence, its basis, and the steps as a table."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import command_line, next_line, one_line, path_option, plural, visible
from nsysprof.core.units import format_ns, format_share, scale_ns
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.kinds import HAS
from nsysprof.diagnosis.text import findings_text, headline, same_ranges
from nsysprof.forecast.forecast import REMOVALS, Forecast
from nsysprof.forecast.path import WORDS
from nsysprof.results.one_screen import Rows, answer_lines
from nsysprof.results.table import TextTable, wrap

_NAME = 80
_LITTLE = 0.001  # of a step: of less no cause is named
_ALIKE = 2.0  # times as much as the median step may a step change that stands for all
_MAX_OTHERS, _CHANGES = 8, 5
_HEADS = ["critical path of a median step", "now", "then", "change"]


def forecast_sentence(answer: Forecast) -> str:
    """Format `backward as a CUDA graph: step 16.5 → 8.1 ms (7.7–8.6), because …; forecasts of this kind …`."""
    base, new, low, high = (float(ns) for ns in (answer.base_ns, answer.forecast_ns, answer.low_ns, answer.high_ns))
    divisor, unit = scale_ns(max(base, new))
    least_ns = min(base, new) / divisor  # which is to have two digits that count
    digits = 0 if least_ns >= 100 else 1 if least_ns >= 10 else 2 if least_ns >= 0.1 else 3
    now, then, least, most = (f"{ns / divisor:.{digits}f}" for ns in (base, new, low, high))
    interval = f" ({least}–{most})" if len(answer.base) > 1 else " (one step: no interval)"
    return f"{answer.words}: step {now} → {then} {unit}{interval}{_reason(answer)}; {answer.published}"


def change_words(answer: Forecast) -> str:
    """Format `the step would take 12 % less`, unless the interval of the forecast includes "no change"."""
    change = answer.forecast_ns / answer.base_ns - 1 if answer.base_ns else 0.0
    if answer.low_ns <= answer.base_ns <= answer.high_ns:
        return f"no clear change in {'median ' * bool(_some_steps(answer))}step time"
    return f"the step would take {abs(change) * 100:.0f} % {'less' if change < 0 else 'more'}"


def _reason(answer: Forecast) -> str:
    """Why the step changes, where one step shows it; a part of `forecast_sentence`."""
    change, own = answer.forecast_ns - answer.base_ns, sum(answer.after.ns) - sum(answer.before.ns)
    if some := _some_steps(answer):
        return f". {some}"
    if not change and not own:
        return ", because the change is not on the critical path"
    if abs(change) < _LITTLE * answer.base_ns:
        return f", a change of less than {format_share(_LITTLE)}"
    if not 1 / _ALIKE <= own / change <= _ALIKE:
        return "; both times are medians of steps that change by different amounts"
    return f", because {answer.because}"


def _some_steps(answer: Forecast) -> str:
    """Name the steps that change if the median step is not one of them; otherwise return ""."""
    gains = answer.base - answer.forecast
    mean, some = float(gains.mean()), int((np.abs(gains) >= HAS * np.abs(gains).max()).sum())
    like_median = abs(mean) <= _ALIKE * abs(answer.base_ns - answer.forecast_ns)
    if like_median or abs(mean) < _LITTLE * answer.base.mean() or 2 * some > len(gains):
        return ""
    total = f"{format_ns(abs(mean) * len(gains))} {'less' if mean > 0 else 'more'} in all"
    steps = f"{some:,} of {plural(len(gains), 'step')} do: {total}"
    return f"The median step does not change, but {steps} ({format_ns(abs(mean))} per step on average)"


def parts_table(answer: Forecast) -> TextTable:
    """Make a table of a median step's critical path: its parts, now and with the change."""
    before, after = sum(answer.before.ns), sum(answer.after.ns)
    parts = [*zip(WORDS, answer.before.ns, answer.after.ns, strict=True)]
    rest = round(answer.base_ns) - before, round(answer.forecast_ns) - after
    parts.append(("median step minus this step", *rest))  # no step is the median of both
    rows = [
        [name, _signed(now, ""), _signed(then, ""), _signed(then - now, "+")]
        for name, now, then in (*parts, ("step", round(answer.base_ns), round(answer.forecast_ns)))
        if now or then
    ]
    return TextTable(_HEADS, rows, "lrrr", last_apart=True)


def _signed(ns: float, plus: str) -> str:
    return f"{plus if ns > 0 else '−' if ns < 0 else ''}{format_ns(abs(ns))}"


def facts_of(answer: Forecast) -> list[str]:
    """Return the basis of the forecast, as sentences."""
    steps = f"{len(answer.base):,} steps of {one_line(answer.path, _NAME)} on GPU {answer.gpu}"
    basis = (
        "includes profiling overhead (nsysprof capture --overhead measures it)"
        if answer.unprofiled is None
        else answer.basis
    )
    known = f"model error without the change: {format_share(answer.residual)}"
    out = [change_words(answer), *answer.notes, steps, answer.chosen, basis, known]
    if len(answer.base) > 1:
        level = f"at {format_share(answer.level)}" if answer.level else ""
        wider = f"; each end is widened by {format_share(answer.widened)} (p90 error of such forecasts)"
        whence = f"interval {level} for the median step, from this run's steps{'' if answer.widened else ' alone'}"
        if set(REMOVALS) & set(answer.question):
            whence = (
                "the interval covers step variation, the model error without the change, and side effects "
                "of the cause on other work"
            )
        out.append(whence + (wider if answer.widened else ""))
    if answer.per_call_ns is not None:
        out.append(f"gain per call of the range: {_signed(answer.per_call_ns, '')}")
    changed = [each for each in answer.others if each[2] != each[3]]
    out += [
        f"{one_line(path, _NAME)} on GPU {gpu}: {format_ns(base)} → {format_ns(new)}"
        for path, gpu, base, new in changed[:_MAX_OTHERS]
    ]
    if len(changed) > _MAX_OTHERS:
        out.append(f"{plural(len(changed) - _MAX_OTHERS, 'more path')}: see other_paths in forecast.json")
    if same := len(answer.others) - len(changed):
        out.append(f"steps of {plural(same, 'other path')} do not change")
    return out


def forecast_text(answer: Forecast, *, full: bool = False, markdown: bool = False) -> str:
    """Format the forecast for a terminal, or as Markdown; the text ends with a newline."""
    report, steps = answer.attribution.trace.report, "" if answer.path == WHOLE else path_option(answer.path)
    facts = "\n".join(wrap(visible(each), "  ", "    ") for each in facts_of(answer))
    parts: list[str | Rows] = [
        wrap(visible(forecast_sentence(answer)), "", "  "),
        Rows(parts_table(answer), code=True),
        f"{facts}\n{next_line(command_line('why', report.path, steps, *answer.steps.options))}",
    ]
    return answer_lines(parts, answer.warnings, full=full, markdown=markdown)


def changes_text(diagnosis: Diagnosis, file: Path, *, full: bool = False, markdown: bool = False) -> str:
    """List the changes that save the most time in a replay of the steps, each with its forecast command."""
    tried = replace(diagnosis, findings=tuple(each for each in diagnosis.findings if each.change))
    most = len(tried.findings) if full else _CHANGES
    left = [plural(more, "more change")] if (more := len(tried.findings) - most) > 0 else []
    text = findings_text(tried, file, "forecast", most)
    if diagnosis.findings and not tried.findings:
        command = same_ranges("why", diagnosis.chosen.level, file)
        text = f"No bottleneck has a change that forecast can replay.\n{next_line(command)}"
    head = wrap(visible(headline(diagnosis, file)), "", "  ")
    return answer_lines([head, text], more=left, full=full, markdown=markdown)
