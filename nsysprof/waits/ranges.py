"""Which windows an account is of: of chosen ranges, of those that repeat, or of the whole trace; and their calls."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import find_matches, near_names
from nsysprof.attribution.paths import (
    Instances,
    Paths,
    instances_text,
    merged_names,
    merged_paths,
    names_step,
    pick_instances,
    range_paths,
)
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import Ints
from nsysprof.core.text import quote_path
from nsysprof.errors import NsysprofError
from nsysprof.trace.trace import FOUND, pid_of
from nsysprof.waits.windows import Windows, gpu_windows, whole_windows

WHOLE = "the whole trace"  # the path of windows that are of no range
MIN_REPEATS = 3  # instances from which on a range is taken for the step of a program


def choose_windows(
    attribution: Attribution, select: str | None, merge_names: Sequence[str] | None
) -> tuple[Windows, list[str], str]:
    """The windows, the texts of their paths, and how they were chosen where nobody said."""
    rows, of, texts, chosen = choose_ranges(attribution, select, merge_names)
    if not len(rows):
        return whole_windows(attribution.trace), [WHOLE], f"{WHOLE}: no range with GPU work repeats"
    return gpu_windows(attribution, rows, of), texts, chosen


def choose_ranges(
    attribution: Attribution, select: str | None, merge_names: Sequence[str] | None
) -> tuple[NDArray[np.intp], NDArray[np.int32], list[str], str]:
    """Range instances, the merged path of each, the texts of all paths, and how they were chosen where nobody said.

    No instances where nobody said, and nothing repeats.
    """
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge_names)
    of = merged.of[paths.of]
    texts = merged.texts()
    if select is not None:
        file = str(attribution.trace.report.path)
        codes, chosen = [match.code for match in find_matches(merged, texts, select, file)], ""
    else:
        codes, chosen = _repeated(attribution, merged, of, texts)
    rows = np.flatnonzero(np.isin(of, codes))
    return rows, of[rows].astype(np.int32), texts, chosen


def pick_windows(
    attribution: Attribution, windows: Windows, instances: Instances | None, skip: int
) -> tuple[NDArray[np.intp], str]:
    """Some windows of each path, GPU and process, by their numbers from 0 or the slowest; and which these are, as text.

    The first ``skip`` are left out. Raises `NsysprofError` where none is left.
    """
    if instances is None and not skip:
        return np.arange(len(windows)), ""
    ranges = attribution.trace.ranges
    thread = np.append(ranges.thread, 0)[windows.range]
    process = np.where(windows.range >= 0, np.append(attribution.trace.thread_process, 0)[thread], -1)
    _, line = distinct(windows.gpu, windows.path, process)
    picked = []
    for number in range(int(line.max(initial=-1)) + 1):
        rows = np.flatnonzero(line == number)[skip:]
        if instances is not None:
            rows = rows[pick_instances((windows.end - windows.start)[rows], instances)]
        picked.append(rows)
    out = np.sort(np.concatenate([np.empty(0, np.intp), *picked]))
    words = [f"without the first {skip:,} of each path"] if skip else []
    words = [instances_text(instances), *words] if instances else words
    if not len(out) and len(windows):
        raise NsysprofError(
            f"no window is left: {', '.join(words)}, of at most {int(np.bincount(line).max()):,}",
            f"nsysprof steps {quote_path(attribution.trace.report.path)} lists them, counted from 0",
        )
    return out, ", ".join(words)


def _repeated(
    attribution: Attribution, merged: Paths, of: NDArray[np.int32], texts: Sequence[str]
) -> tuple[list[int], str]:
    """The outermost merged paths that are named as steps are, of found iterations the loop that launches most; else the
    most repeated of the outermost ranges.
    """
    count = np.bincount(of, minlength=len(merged))
    works = np.zeros(len(merged), bool)
    works[of[attribution.inclusive.span_ns > 0]] = True
    works |= len(attribution.trace.ops) == 0  # of a report without GPU work, steps of the host
    some = np.flatnonzero(works & (count >= MIN_REPEATS)).tolist()
    named = {
        code: merged.names[merged.name[code]] for code in some if names_step(merged.names[merged.name[code]])
    }
    steps = [code for code, name in named.items() if not name.lower().startswith("epoch")] or [*named]
    if found := [code for code in steps if merged.kind[code] == FOUND and texts[code] == "iteration*"]:
        return found, "iterations that are found, not annotated"
    if steps:
        depth = min(merged.depth[code] for code in steps)
        return [code for code in steps if merged.depth[code] == depth], "ranges named as steps"
    top = [code for code in some if merged.depth[code] == 0]
    if not top:
        return [], ""
    best = max(top, key=lambda code: int(count[code]))
    return [best], f"the most repeated of the outermost ranges: {texts[best]}"


def count_calls(
    attribution: Attribution,
    windows: Windows,
    paths: Sequence[str],
    per: str,
    merge_names: Sequence[str] | None,
) -> Ints:
    """How many ranges, int64, whose name matches the glob ``per`` lie in the range of each window.

    Names count as recorded and as merged (`merged_names`); of ranges inside one another the outermost count.
    ``paths`` are the texts of `Windows.path`. `NsysprofError` where a path has none, or none on a GPU or in a process,
    which names some that are near.
    """
    trace = attribution.trace
    ranges = trace.ranges
    names = [name.text for name in trace.range_names]
    both = zip(names, merged_names(names, merge_names), strict=True)
    fits = np.array([fnmatchcase(one, per) or fnmatchcase(other, per) for one, other in both], bool)
    matches = fits[ranges.name]
    parent = attribution.parent.astype(np.int64)
    windowed = np.zeros(len(ranges), bool)
    windowed[windows.range[windows.range >= 0]] = True
    inside, outermost = np.zeros(len(ranges) + 1, np.int64), 0
    up = parent[np.flatnonzero(matches)]
    while len(up):  # one level up at a time: as many rounds as ranges are deep
        outermost += int((up < 0).sum())
        up = up[up >= 0]
        found = windowed[up]
        np.add.at(inside, up[found], 1)
        up = up[~found & ~matches[up]]
        up = parent[up]
    calls = np.where(windows.range >= 0, inside[windows.range], outermost)
    process = trace.op_process[windows.last]
    _, place = distinct(windows.path, windows.gpu, process)
    empty = np.flatnonzero(np.bincount(place, weights=calls)[place] == 0)
    if len(empty):
        at, known = int(empty[0]), ", ".join(map(repr, near_names(names, per)))
        pid = pid_of(trace.processes[process[at]])
        elsewhere = calls[windows.path == windows.path[at]].any()
        where = f" on GPU {windows.gpu[at]} in process {pid}" if elsewhere else ""
        raise NsysprofError(
            f"{paths[windows.path[at]]}{where}: nothing inside matches --per {per!r}; ranges are {known or 'none'}",
            "leave --per out, and times are per window",
        )
    return calls
