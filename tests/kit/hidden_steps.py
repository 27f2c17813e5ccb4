"""How well iterations are found where a program has annotated its steps: the table of docs/iterations.md.

`python -m tests.kit.hidden_steps REPORT...` takes the ranges of a report away, finds iterations in its launches, and
compares where they begin with where the annotated steps do, in launches of the thread of the steps.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nsysprof.attribution.iterations import find_iterations
from nsysprof.core.arrays import Index
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import PUSH_POP, Trace

STEPS = ("step", "iter")  # how the names of annotated steps begin


@dataclass(frozen=True)
class Agreement:
    """Annotated ``steps`` with launches, how many of them begin ``within`` one launch of a found iteration, how many
    ``exact``ly with one; ``found`` iterations, and how many of these begin inside of an annotated step, ``astray``.
    """

    steps: int
    within: int
    exact: int
    found: int
    astray: int


def agreement(trace: Trace) -> Agreement:
    """Compare the annotated steps of a trace with the iterations that are found without them."""
    found = find_iterations(trace)
    outer = np.array([not name.text.startswith("inner") for name in found.names] + [False])[found.name]
    names = np.array([name.text.lower().startswith(STEPS) for name in trace.range_names] + [False])
    annotated = names[trace.ranges.name] & (trace.ranges.kind == PUSH_POP)
    counts = np.zeros(5, np.int64)
    for thread in np.unique(trace.ranges.thread[annotated]).tolist():
        begins = trace.launches.start[trace.launches.thread == thread]
        steps = annotated & (trace.ranges.thread == thread)
        first, last = (np.searchsorted(begins, times[steps]) for times in (trace.ranges.start, trace.ranges.end))
        first, last = first[last > first], last[last > first]
        mine = outer & (found.thread == trace.threads[thread])
        place = np.sort(np.searchsorted(begins, found.start[mine]))
        off = _distance(first, place)
        inside = np.searchsorted(np.sort(first), place, side="right") > np.searchsorted(
            np.sort(last), place, side="right"
        )
        astray = np.count_nonzero(inside & (_distance(place, np.sort(first)) > 1))
        counts += np.array([len(first), np.count_nonzero(off <= 1), np.count_nonzero(off == 0), len(place), astray])
    return Agreement(*counts.tolist())


def _distance(places: Index, others: Index) -> Index:
    """How far each place is from the next of some others, in ascending order."""
    if not len(others):
        return np.full(len(places), np.iinfo(np.intp).max)
    after = np.searchsorted(others, places)
    near = [others[np.clip(after - back, 0, len(others) - 1)] for back in (0, 1)]
    return np.minimum(np.abs(near[0] - places), np.abs(near[1] - places))


def table(paths: list[Path]) -> Iterator[str]:
    """Make the lines of the table, in Markdown."""
    yield "| report | steps | within one launch | exactly | iterations found | inside a step |"
    yield "|---|---:|---:|---:|---:|---:|"
    for path in paths:
        with open_report(path) as report:
            each = agreement(read_tables(report))
        share = each.within / each.steps if each.steps else 0
        cells = (f"{each.within:,} ({share:.1%})", f"{each.exact:,}", f"{each.found:,}", f"{each.astray:,}")
        yield f"| `{path.parent.name}/{path.name}` | {each.steps:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in table([Path(name) for name in sys.argv[1:]]):
        print(line)  # noqa: T201
