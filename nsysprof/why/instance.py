"""Find the critical path of windows, piece by piece. Choose the window for pictures: the median window of a path."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32
from nsysprof.core.columns import ColumnTable, Texts, distinct, ranked, sums
from nsysprof.core.intervals import clip
from nsysprof.core.nesting import levels_inside
from nsysprof.diagnosis.finding import Finding
from nsysprof.why.why import Why

SECTIONS = ("compute", "exposed communication", "exposed copies", "idle")
MORE = "others"
_TIMES = ["compute_ns", "communication_ns", "copies_ns", "idle_ns"]
_MIN_SHARE = 0.005  # of the window: smaller parts are one
_MAX_PARTS = 6  # of a section
_TRIED = 60  # windows around the median that are asked for the largest wait


@dataclass(frozen=True)
class PathPieces:
    """The critical path of windows: the GPU's compute and waits, piece by piece, sorted by window and time.

    ``window`` row of `Why.windows`, on GPU ``gpu``; ``start``, ``end`` int64 ns; ``group``: a code of ``groups``
    (compute, or the cause of a wait, or the activity of the host); ``text``: a code of ``texts`` (the responsible code
    and the call that exposed the wait; empty for compute); ``wait``: a row of ``waits`` (see `Why.waits`), -1 for
    compute. The pieces of a window cover it without gaps or overlap.
    """

    window: Ints
    gpu: Ints32
    start: Ints
    end: Ints
    group: Ints
    text: Ints
    wait: Ints
    groups: list[str]
    texts: list[str]
    waits: ColumnTable


def critical_path(answer: Why, windows: AnyInts | None = None, *, compute: bool = True) -> PathPieces:
    """Find the `PathPieces` of all windows, or of the given rows of `Why.windows`; without ``compute``, only waits."""
    table = answer.columns("windows")
    which = np.arange(len(table)) if windows is None else np.sort(windows)
    waits = answer.pieces if windows is None else answer.pieces_of(which)
    window, start, end = (waits[name] for name in ("window", "start_ns", "end_ns"))
    rows = np.lexsort((start, window))
    window, start, end = window[rows], start[rows], end[rows]
    group, groups = _pairs(waits, rows, ("cause", "activity"), _group)
    text, texts = _pairs(waits, rows, ("culprit", "exposed_by"), _text)
    parts = [(window, start, end, group, text, rows)]
    # what no wait is: from the end of each wait, or the window's start, to the next one, or its end
    if compute:
        begins, ends = (table[name][which] for name in ("start_ns", "end_ns"))
        whose = np.concatenate([which, window])
        since, until = np.concatenate([begins, end]), np.concatenate([start, ends])
        since = since[np.lexsort((since, whose))]
        until = until[np.lexsort((until, np.concatenate([window, which])))]
        some = since < until
        none = np.zeros(int(some.sum()), np.int64)
        parts.append((np.sort(whose)[some], since[some], until[some], none, none, none - 1))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    window, start, end, group, text, rows = (column[order] for column in columns)
    gpu = table["gpu"].astype(np.int32)[window]
    return PathPieces(window, gpu, start, end, group, text, rows, groups, texts, waits)


def _pairs(
    waits: ColumnTable, rows: Index, names: tuple[str, str], make: Callable[[str, str], str]
) -> tuple[Ints, list[str]]:
    """Codes of the texts that ``make`` makes of two columns of waits, and the texts; the first is that of compute."""
    first, second = (waits.texts(name) for name in names)
    size = len(second.words)
    key = first.codes[rows] * size + second.codes[rows]
    distinct, place = np.unique(key, return_inverse=True)
    made = [make(first.words[code // size], second.words[code % size]) for code in distinct.tolist()]
    texts = list(dict.fromkeys([make("compute" if make is _group else "", ""), *made]))
    code = {text: at for at, text in enumerate(texts)}
    return np.array([code[text] for text in made], np.int64)[place.reshape(-1)], texts


def _group(cause: str, activity: str) -> str:
    return activity if cause == "host" else cause


def _text(culprit: str, exposing: str) -> str:
    return f"{culprit} ← {exposing}" if exposing not in ("", culprit) else culprit


@dataclass(frozen=True)
class WindowPart:
    """A part of a window, ``ns`` long: section, ``group`` as in `PathPieces`, and ``text``, which may be empty."""

    section: str
    group: str
    text: str
    ns: int


@dataclass(frozen=True)
class Instance:
    """One window of a path, for pictures, and the number of windows (``count``) on its GPU.

    ``number``: a row of `Why.windows`; ``median``: True for a median window, False for a nearby window that contains
    more of the largest finding; ``parts`` add up to the window; ``mean_ns``: the mean length of all windows of the path
    on the GPU.
    """

    answer: Why
    number: int
    median: bool
    path: str
    gpu: int
    count: int
    mean_ns: float
    start_ns: int
    end_ns: int
    pieces: PathPieces
    parts: list[WindowPart]

    @property
    def findings(self) -> list[Finding]:
        """The findings on its path."""
        return self.answer.findings[self.path]

    def inside(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Clip intervals to the window, and return them in ns from its start."""
        return clip(start, end, self.start_ns, self.end_ns)

    @cached_property
    def ops(self) -> Index:
        """Return the rows of the GPU ops that run on the window's GPU during the window."""
        ops, on_gpu = self.answer.attribution.trace.ops, self.answer.attribution.trace.op_gpu == self.gpu
        return np.flatnonzero(on_gpu & (ops.start < self.end_ns) & (ops.end > self.start_ns))

    def ranges(self) -> Iterator[Index]:
        """Yield the rows of ranges, level by level: the window's range, the ranges directly inside it, and so on."""
        ranges, number = self.answer.attribution.trace.ranges, int(self.answer.columns("windows")["range"][self.number])
        rows, extent = np.array([number] if number >= 0 else [], np.int64), (self.start_ns, self.end_ns)
        return levels_inside(self.answer.attribution.parent, rows, ranges.start, ranges.end, extent)


def median_instance(answer: Why, path: str | None = None) -> Instance | None:
    """Choose a median window of a path, by default of the path with the most time. The window is on the GPU of the
    largest finding or, without findings, on the GPU that waits most.

    Among the middle third of the windows by length, choose the one whose times are closest to the mean. If the largest
    finding takes less than half of its mean time in this window, choose the nearest window in which it takes more.
    Returns None if there are no windows.
    """
    windows = answer.columns("windows")
    if not len(windows):
        return None
    span, compute = windows["end_ns"] - windows["start_ns"], windows["compute_ns"]
    path = path or str(ranked(ColumnTable({**windows.columns, "span": span}), ["path"], "span")[0][0])
    mine = windows.texts("path").equal(path)
    findings = answer.findings[path]
    if findings:
        mine &= windows["gpu"] == findings[0].gpu
    rows = np.flatnonzero(mine)
    _, group = distinct(windows["gpu"][rows], windows["pid"][rows])
    rows = rows[group == np.argmax(sums(group, (span - compute)[rows], int(group.max()) + 1))]
    rows = rows[np.argsort(span[rows], kind="stable")]
    middle = rows[len(rows) // 3 : -(-2 * len(rows) // 3)]
    shares = np.column_stack([windows[name].astype(np.float64) for name in _TIMES])
    number = int(middle[np.abs(shares[middle] - shares[rows].mean(axis=0)).sum(axis=1).argmin()])
    median, mean = number, float(span[rows].mean())
    for finding in findings[:1]:
        number = _with_the_wait(answer, rows, median, finding)
    start, end, gpu = (int(windows[name][number]) for name in ("start_ns", "end_ns", "gpu"))
    pieces = critical_path(answer, np.array([number]))
    parts = _parts(answer, number, pieces)
    return Instance(answer, number, number == median, path, gpu, len(rows), mean, start, end, pieces, parts)


def _with_the_wait(answer: Why, rows: Ints, median: int, finding: Finding) -> int:
    """The window nearest to the median by rank of length that has at least half of a finding's mean time.

    The median itself if none of the nearest has.
    """
    if not finding.culprits:
        return median
    near = np.abs(np.arange(len(rows)) - int(np.flatnonzero(rows == median)[0]))
    near = rows[np.argsort(near, kind="stable")[:_TRIED]]
    pieces = critical_path(answer, near, compute=False)
    has = np.array([text.split(" ← ")[0] in finding.culprits for text in pieces.texts], bool)[pieces.text]
    ns = np.bincount(pieces.window[has], (pieces.end - pieces.start)[has], minlength=len(answer.columns("windows")))
    enough = near[ns[near] >= finding.lost_ns / finding.steps / 2]
    return int(enough[0]) if len(enough) else median


def _parts(answer: Why, number: int, pieces: PathPieces) -> list[WindowPart]:
    """The parts of a window, section by section; in each, the groups with the most time first, small parts together."""
    windows = answer.columns("windows")
    start, end, compute = (int(windows[name][number]) for name in ("start_ns", "end_ns", "compute_ns"))
    least = _MIN_SHARE * (end - start)
    out = [WindowPart("compute", "compute", "", compute)]
    waits = np.flatnonzero(pieces.wait >= 0)
    ran = [pieces.waits[name][pieces.wait[waits]] for name in ("communication_ns", "copies_ns")]
    length = pieces.end[waits] - pieces.start[waits]
    for section, ns in zip(SECTIONS[1:], (*ran, length - sum(ran)), strict=True):
        some = np.flatnonzero(ns > 0)
        of = (Texts(pieces.group[waits][some], pieces.groups), Texts(pieces.text[waits][some], pieces.texts))
        each = ranked(ColumnTable({"group": of[0], "text": of[1], "ns": ns[some]}), ["group", "text"], "ns")
        large = [row for row in each if row[-1] >= least][:_MAX_PARTS]
        if len(each) == len(large) + 1:
            large = each
        total = {group: sum(row[-1] for row in large if row[0] == group) for group, *_ in large}
        large.sort(key=lambda row: (-total[row[0]], row[0]))
        out += [WindowPart(section, *row) for row in large]
        if rest := each[len(large) :]:
            groups = {group for group, *_ in rest}
            group = groups.pop() if len(groups) == 1 else MORE
            out.append(WindowPart(section, group, f"{len(rest):,} more", sum(row[-1] for row in rest)))
    return [part for part in out if part.ns]
