"""Format a history as text: each change with its first run and the changed parts of a step, then the newest runs."""

from collections.abc import Sequence
from pathlib import Path

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import command_line, join_words, next_line, one_line, plural, quote_glob, visible
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.history.history import CLOCK, MACHINE, Change, History, Series
from nsysprof.history.tables import RUNS, run_rows
from nsysprof.results.one_screen import Rows, answer_lines
from nsysprof.results.table import TextTable, wrap

_CHANGES, _PARTS, _LEAST_PART, _MACHINE, _PATH = 4, 3, 0.05, 3, 48
_SHOWN = (
    *("run", "file", "commit", "started", "step_ns", "n", "busy_ns", "waits_ns", "launches", "memory_bytes", "level"),
)
_SPARE = ("n", "launches", "started", "memory", "busy")


def history_text(answer: History, top: int = 12, *, full: bool = False, markdown: bool = False) -> str:
    """Format one screen for a terminal, or Markdown, or the ``full`` result, with the newest ``top`` runs of each
    series.

    Ends with a newline.
    """
    found = answer.changes
    shown = found if full else found[:_CHANGES]
    left = [plural(more, "more change")] if (more := len(found) - len(shown)) > 0 else []
    parts: list[str | Rows] = [wrap(visible(headline(answer)), "", "  "), changes_text(answer, shown)]
    for series in answer.series if full else answer.series[:1]:
        table = runs_table(answer, series, len(series.runs) if full else top)
        parts.append(Rows(table, "run", len(series.runs)))
    if not full and len(answer.series) > 1:
        left.append(f"{len(answer.series) - 1:,} more series")
    skipped = [f"{file} is left out: {reason}" for file, reason in answer.skipped]
    if skipped and not full:
        others = f" and {plural(len(skipped) - 1, 'more report')}" * (len(skipped) > 1)
        (file, reason), *_ = answer.skipped
        parts[0] = f"{parts[0]}\n{wrap(visible(f'skipped: {file}{others} ({reason})'), '', '  ')}"
    return answer_lines(parts, [*answer.notes, *skipped], more=left, full=full, markdown=markdown)


def headline(answer: History) -> str:
    """Compare the newest level with the previous one in words."""
    first = answer.series[0]
    runs = f"{plural(len(answer.runs), 'run')}" + (f" in {len(answer.series)} series" if len(answer.series) > 1 else "")
    newest = [each for each in answer.series if each.changes and each.runs[-1] == answer.newest]
    worst = max(newest, key=lambda each: each.changes[-1].ratio, default=None)
    if worst is not None:
        change = worst.changes[-1]
        times = f"{format_ns(change.before_ns)} → {format_ns(change.after_ns)} per {unit_of(worst)}"
        return f"{ratio_text(change)} since {run_name(answer, change.run)}: {times} ({runs})"
    if len(first.runs) < 3:
        return f"{runs}, {len(first.runs)} with {path_name(first)}: a level needs three or more runs"
    if first.levels.slope:
        way = "longer" if first.drift > 0 else "shorter"
        return f"{runs}: no sudden change, but {path_name(first)} gradually got {format_share(abs(first.drift))} {way}"
    least = format_share(first.levels.detectable(len(first.runs)))
    return f"{runs}: no change of {path_name(first)} (smallest detectable change with three runs: {least})"


def changes_text(answer: History, shown: Sequence[tuple[Series, Change]]) -> str:
    """List the changes; the first has the command that shows more."""
    lines = []
    for number, (series, change) in enumerate(shown, 1):
        lines.append(wrap(f"{number}. {change_text(answer, series, change)}.", "", "   "))
        if number == 1:
            lines.append(next_line(next_command(answer, change)))
    if not lines:
        command = command_line("why", Path(answer.runs[-1].file), *_same_steps(answer))
        lines = [f"No change in step time found.\n{next_line(command)}"]
    return "\n".join(lines)


def change_text(answer: History, series: Series, change: Change) -> str:
    """Format `since run 15 (775afb0): +175 ms (1.37x): copies +98 ms, CPU time in postprocess +71 ms`."""
    delta = change.after_ns - change.before_ns
    low, high = (format_ratio(each) for each in (change.low, change.high))
    several = len({each.path for each in answer.series if each.path != WHOLE}) > 1
    unit = path_name(series) if several and series.path != WHOLE else unit_of(series)
    text = f"since {run_name(answer, change.run)}: {_signed(delta)} per {unit} ({format_ratio(change.ratio)}, 95 % CI"
    text += f" {low}–{high})"
    if parts := parts_text(change):
        text += f": {parts}"
    if change.cause == CLOCK:
        text += "; all kernels changed by the same factor: check the GPU clock first"
    if change.cause == MACHINE:
        text += f"; {_machine_text(change)}"
    return text


def parts_text(change: Change, most: int = _PARTS) -> str:
    """Name the parts of a step that contributed most to its change."""
    delta = change.after_ns - change.before_ns
    rows = [(name, after - before) for name, before, after in change.ledger]
    large = [row for row in rows if row[1] * delta > 0 and abs(row[1]) >= _LEAST_PART * abs(delta)]
    return ", ".join(f"{name} {_signed(ns)}" for name, ns in large[:most])


def _machine_text(change: Change) -> str:
    if not change.machine:
        return "the commit is the same on both sides, so the program is not the cause"
    some = [f"{name} {one_line(old, 30)} → {one_line(new, 30)}" for name, (old, new) in change.machine.items()]
    more = [f"{len(some) - _MACHINE} more"] if len(some) > _MACHINE else []
    return f"the machine changed too ({join_words([*some[:_MACHINE], *more])}), so the machine may be the cause"


def next_command(answer: History, change: Change) -> str:
    """Return the command that compares the reports before and after a change."""
    before, after = (Path(answer.runs[row].file) for row in (change.before, change.run))
    return command_line("compare", before, after, *_same_steps(answer))


def _same_steps(answer: History) -> tuple[str, ...]:
    """The options of commands about the same steps."""
    select = answer.options.get("range")
    return (*([f"--range {quote_glob(select)}"] if select else []), *answer.options.get("reading", ()))


def run_name(answer: History, row: int) -> str:
    """`run 15 (775afb0)`."""
    run = answer.runs[row]
    return f"run {row + 1} ({run.commit[:7] or one_line(run.name, 30)})"


def unit_of(series: Series) -> str:
    """Name the unit of work that the times of a series measure: `step` or `recording`."""
    return "recording" if series.path == WHOLE else "step"


def path_name(series: Series) -> str:
    """The name of a series' steps."""
    return "whole recordings" if series.path == WHOLE else one_line(series.path, _PATH)


def runs_table(answer: History, series: Series, most: int) -> TextTable:
    """Make a table of the newest ``most`` runs of a series, newest first."""
    rows = [*run_rows(answer, series, 1)][-most:][::-1]
    shown = [name for name in _SHOWN if any(row[name] not in (None, "") for row in rows)]
    names = [one_line(answer.runs[row["run"] - 1].name, 40) for row in rows]
    rows = [row | {"file": name} for row, name in zip(rows, names, strict=True)]
    noise = f"runs at the same level vary by {format_share(series.levels.noise)} (standard deviation)"
    note = f"{path_name(series)}; {noise}{'' if series.levels.known else ', estimated from other series or a default'}"
    return RUNS.show(rows, shown, note=note, spare=_SPARE)


def ratio_text(change: Change) -> str:
    """`1.37x slower`."""
    return f"{format_ratio(max(change.ratio, 1 / change.ratio))} {'slower' if change.ratio > 1 else 'faster'}"


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"
