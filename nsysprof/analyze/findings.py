"""Show the diagnosis of the steps in an analysis: the parts of a step, and the top bottlenecks."""

from typing import Any

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import one_line, plural
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.text import next_command
from nsysprof.results.table import Column, TextTable, show_columns

MOST = 5  # findings that are shown
MAX_STEPS = 3  # paths in the table of steps
_PATH = 60
_PARTS = ("compute", "communication", "copies", "idle")
_STEPS = (
    Column("path", "", "where a step's time goes"),
    Column("steps", ""),
    Column("step_ns", "", "median step"),
    *(Column(f"{name}_share", "", name) for name in _PARTS),
)


def steps_table(diagnosis: Diagnosis, most: int = MAX_STEPS) -> TextTable | None:
    """Make a table of the parts of the median step, for the paths with the most time, or None if no step repeats."""
    if not diagnosis.repeats or not diagnosis.times:
        return None
    by_path: dict[str, dict[str, Any]] = {}
    for path in dict.fromkeys(each.path for each in diagnosis.times):  # of all GPUs together
        mine = [each for each in diagnosis.times if each.path == path]
        # GPUs share steps or have their own: how many of a path are different is known if it is the only one
        steps = diagnosis.steps if len(mine) == len(diagnosis.times) else max(each.steps for each in mine)
        row = {"path": one_line(path, _PATH), "steps": steps, "step_ns": mine[0].step_ns}
        total = max(sum(each.total_ns for each in mine), 1)
        row |= {f"{name}_share": sum(getattr(each, f"{name}_ns") for each in mine) / total for name in _PARTS}
        by_path[path] = row
    rows = [*by_path.values()][:most]
    empty = {f"{name}_share" for name in _PARTS[1:3] if not any(row[f"{name}_share"] for row in rows)}
    columns = [column for column in _STEPS if column.name not in empty]
    clause = diagnosis.chosen.level.clause
    notes = [f"{clause[:1].upper()}{clause[1:]}."]
    if diagnosis.left_out:
        notes.append(f"{plural(diagnosis.left_out, 'step')} left out as warm-up.")
    if more := len(by_path) - len(rows):
        notes.append(f"{plural(more, 'more path')}.")
    return show_columns(columns, rows, note=" ".join(notes))


def listed(breakdown: Breakdown) -> list[dict[str, Any]]:
    """Return the first `MOST` findings, as entries of the list ``findings`` in ``analysis.json``."""
    diagnosis = breakdown.diagnosis
    file = breakdown.attribution.trace.report.path
    seen = {"instances": diagnosis.steps, "of_instances": diagnosis.steps + diagnosis.left_out}
    names = ("kind", "path", "cause", "culprit", "text", "gain_ns", "ns", "share", "claim", "hint")
    out = []
    for each in diagnosis.findings[:MOST]:
        values = each.listed() | {"path": "" if each.path == WHOLE else each.path}
        command = {"command": next_command(each, file, "analyze", diagnosis.chosen.level)}
        out.append({name: values[name] for name in names} | command | seen)
    return out
