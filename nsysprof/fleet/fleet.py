"""Find the slow rank among many, and the ranks that wait for it.

Reports are read one after the other, in this process.
"""

import os
from collections.abc import Sequence

from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.fleet.answer import Fleet, fleet_answer
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.identity import rank_pattern
from nsysprof.fleet.inputs import find_reports
from nsysprof.fleet.range_iterations import Choice

File = str | os.PathLike[str]


def fleet(
    reports: File | Sequence[File],
    *,
    per: str | None = None,
    skip: int = 0,
    merge: Sequence[str] = DEFAULT_MERGE,
    rank_from: str | None = None,
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: str | None = None,
) -> Fleet:
    """Compare the ranks of one run; ``reports`` are files, folders or globs, as in the command ``fleet``.

    ``per`` is a glob for the ranges that are iterations. ``skip`` leaves out the first iterations. ``rank_from`` finds
    the rank in a name. Other arguments are the same as in `analyze`. Unreadable reports are in ``failures``. Raises
    `NsysprofError` if no report is named, or if no report can be read. The command uses several processes.
    """
    names = [reports] if isinstance(reports, str | os.PathLike) else reports
    files, _ = find_reports([os.fspath(name) for name in names])
    choice = Choice(per, tuple(merge), skip)
    tasks = (ReportTask(file, choice, threads, rules, None, None, graphs, ranges) for file in files)
    options = choice.options(rank_from, threads=threads, graphs=graphs, ranges=ranges)
    pattern = rank_pattern(rank_from) if rank_from is not None else None
    return fleet_answer([examine_report(task) for task in tasks], rank_from=pattern, options=options)
