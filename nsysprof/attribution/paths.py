"""Make range paths as codes (names from the outermost range inwards), merged paths, and warm-up masks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import first_appearances, mixed
from nsysprof.core.nesting import ancestors_or_self, depths, sum_ancestors
from nsysprof.core.text import path_part
from nsysprof.errors import NsysprofError
from nsysprof.trace.trace import FOUND, RANGE_KINDS

# PyTorch's autograd profiler appends what changes from call to call: `aten::mm, op_id = 17, sizes = [[2, 3]]`.
_PER_CALL = re.compile(r", (?:op_id|seq|sizes|stashed seq|input_op_ids|in_size) = .*", re.DOTALL)
# What may stand for the star of a default glob: a number, and what separates it from the word.
_NUMBERED = r"[ _:#=.\-]*\d+"
# Text of all paths beyond which long ones are cut, and how much of either end is then kept.
_MAX_CHARACTERS, _CUT = 1 << 26, 900
# The same for paths of more names than anybody writes: there may be as many of them as there are ranges.
_DEEP, _CUT_DEEP = 100, 60
FOUND_NUMBER = re.compile(r" \d+$")  # of an iteration
DEFAULT_MERGE = ("iter*", "step*")
# With both of these, other names of steps merge, too (`Iteration 7`, `train_step_12`, `ProfilerStep#3`), and words that
# may also stand for sizes (`batch 4`) where their numbers follow one another.
_STEP = re.compile(rf"((?:[^\W\d]|[ .-])*(?:iter|step|iteration)){_NUMBERED}", re.IGNORECASE)
_COUNTED = re.compile(r"((?:(?:micro|mini)[ _-]?)?batch|epoch|token|frame)[ _:#=.\-]*\d{1,18}", re.IGNORECASE)
_LEAST_COUNTED = 3
# What stands for a path where all of a trace is meant.
WHOLE_TRACE = "whole trace"


@dataclass(frozen=True)
class Paths:
    """A tree of paths as columns, parents before children, in order of first appearance.

    ``of`` is the path of each row. For each path, ``parent`` is the parent (-1 at the top), and ``depth`` is 0 at the
    top; ``name`` and ``kind`` describe the last part. ``name`` is an index into ``names``.
    """

    of: Ints32
    parent: Ints32
    name: Ints32
    kind: Bytes
    depth: Ints32
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.parent)

    def texts(self) -> list[str]:
        r"""Return the paths as text: names joined by ``/``; a ``/`` in a name is written ``\/``.

        If a program never closes its ranges, paths become very long. If all texts would take more than
        `_MAX_CHARACTERS`, long paths are cut in the middle and show the number of omitted names.
        """
        parts = [path_part(name) for name in self.names]
        if self.too_long:
            return _cut_texts(self, parts)
        out: list[str] = []
        for parent, name in zip(self.parent.tolist(), self.name.tolist(), strict=True):
            out.append(f"{out[parent]}/{parts[name]}" if parent >= 0 else parts[name])
        return out

    @property
    def too_long(self) -> bool:
        """Return whether the full texts of all rows would be so long that `texts` cuts them."""
        if len(self) == 0:
            return False
        length = np.array([len(name) + 1 for name in self.names], np.int64)[self.name]
        used = np.bincount(self.of, minlength=len(self)) + 1
        return int((sum_ancestors(length, self.parent) * used).sum()) > _MAX_CHARACTERS


def _cut_texts(paths: Paths, parts: list[str]) -> list[str]:
    """The texts of the paths, with at most `_CUT` characters at either end (`_CUT_DEEP` for very deep paths)."""
    out: list[str] = []
    ends: list[tuple[str, str, int]] = []  # the first characters, the last ones, and the length of the whole
    for parent, name, depth in zip(paths.parent.tolist(), paths.name.tolist(), paths.depth.tolist(), strict=True):
        part = f"/{parts[name]}" if parent >= 0 else parts[name]
        head, tail, size = ends[parent] if parent >= 0 else ("", "", 0)
        cut = _CUT if depth < _DEEP else _CUT_DEEP
        if (longer := size + len(part)) <= cut:  # and so are the outer ones
            out.append(tail + part)
            ends.append((out[-1], out[-1], longer))
            continue
        head = head[:cut] if len(head) >= cut else (head + part)[:cut]
        tail, size = (tail + part)[-cut:], longer
        ends.append((head, tail, size))
        if size <= 2 * cut:
            out.append(head + tail[2 * cut - size :])
        else:
            out.append(f"{head}…[{depth + 1:,} names deep]…{tail}")
    return out


def range_paths(attribution: Attribution) -> Paths:
    """Return the path of every range instance. Paths are equal if their parts have equal names, domains and kinds;
    start/end ranges have one part.
    """
    return attribution.once(_paths)


def _paths(attribution: Attribution) -> Paths:
    ranges, names = attribution.trace.ranges, attribution.trace.range_names
    return _group(attribution.parent, ranges.name, ranges.kind, [name.text for name in names])


def merged_paths(paths: Paths, merge: Sequence[str] | None = DEFAULT_MERGE) -> Paths:
    """Merge paths: remove call ids from names, and replace each name that matches a glob by this glob.

    In the default globs, a star matches only a number (``iter7``, ``step 12``), and other names of steps also merge
    (``train_step_3``, ``batch 0`` … ``batch 9``). In other globs, a star matches any text. Detected iterations always
    merge. If ``merge`` is None, nothing merges.
    """
    codes: dict[str, int] = {}
    names = merged_names(paths.names, merge)
    if merge is not None:
        for code in np.unique(paths.name[paths.kind == FOUND]).tolist():
            names[code] = FOUND_NUMBER.sub("*", paths.names[code])
    recode = [codes.setdefault(name, len(codes)) for name in names]
    return _group(paths.parent, np.array(recode, np.int32)[paths.name], paths.kind, list(codes))


def merged_names(names: Sequence[str], merge: Sequence[str] | None = DEFAULT_MERGE) -> list[str]:
    """The merged form of each name."""
    return list(names) if merge is None else list(_merged_names(tuple(names), tuple(merge)))


@lru_cache(maxsize=4)
def _merged_names(names: tuple[str, ...], merge: tuple[str, ...]) -> list[str]:
    numbered = [(g, re.compile(re.escape(g).replace(r"\*", _NUMBERED))) for g in merge if g in DEFAULT_MERGE]
    if len({glob for glob, _ in numbered}) == len(DEFAULT_MERGE):
        numbered += [("", _STEP), *(("", pattern) for pattern in _counted(names))]
    anything = [g for g in merge if g not in DEFAULT_MERGE]
    return [_merged_name(name, numbered, anything) for name in names]


def split_path(path: str) -> list[str]:
    r"""Split a range path into its parts, but not at ``\/``."""
    parts, escapes = [""], 0
    for character in path:
        if character == "/" and escapes % 2 == 0:
            parts.append("")
        else:
            parts[-1] += character
        escapes = escapes + 1 if character == "\\" else 0
    return parts


def _merged_name(name: str, numbered: list[tuple[str, re.Pattern[str]]], anything: list[str]) -> str:
    name = _PER_CALL.sub("", name)
    for glob in anything:
        if fnmatchcase(name, glob):
            return glob.encode(errors="replace").decode()
    for glob, pattern in numbered:
        if match := pattern.fullmatch(name):
            return glob or f"{match[1]}*"
    return name


def _counted(names: Sequence[str]) -> Iterator[re.Pattern[str]]:
    """Patterns of the words in `_COUNTED` whose numbers in these names are consecutive."""
    numbers: dict[str, set[int]] = {}
    for match in filter(None, map(_COUNTED.fullmatch, names)):
        numbers.setdefault(match[1], set()).add(int(match[0][len(match[1]) :].lstrip(" _:#=.-")))
    for word, found in numbers.items():
        if len(found) >= _LEAST_COUNTED and max(found) - min(found) == len(found) - 1:
            yield re.compile(f"({re.escape(word)}){_NUMBERED}")


def names_step(merged: str) -> bool:
    """Return whether a merged path is named like steps, numbered or not: `iter*`, `train_step`, `batch*`."""
    word = f"{merged.removesuffix('*')}0"
    return (_STEP.fullmatch(word) or _COUNTED.fullmatch(word)) is not None


def _group(parent: Ints32, name: Ints32, kind: Bytes, names: Sequence[str]) -> Paths:
    """Group rows with equal chains of (name, kind) up to the top into one path; parents come before children.

    A row's chain is hashed in logarithmically many rounds: each round doubles the number of hashed ancestors. Then a
    check proves that no hashes collided: the rows of a path must have equal names, and parents with one path.
    """
    for seed in range(8):
        of, first = first_appearances(_chain_hash(parent, name, kind, len(names), seed))
        example = first.take(of)
        above = np.append(of, np.int32(-1))
        if (
            np.array_equal(name, name.take(example))
            and np.array_equal(kind, kind.take(example))
            and np.array_equal(above.take(parent), above.take(parent.take(example)))
        ):
            break
    else:
        raise AssertionError("two different range paths have the same hash under all eight hash functions")
    up: Ints32 = above[parent[first]] if len(parent) else np.empty(0, np.int32)
    return Paths(of, up, name[first], kind[first], depths(up), names)


def _chain_hash(parent: Ints32, name: Ints32, kind: Bytes, names: int, seed: int) -> NDArray[np.uint64]:
    count = len(parent)
    words = mixed(np.arange(len(RANGE_KINDS) * names + 1, dtype=np.uint64) + np.uint64(seed << 40))
    out = np.append(words[len(RANGE_KINDS) * name.astype(np.int64) + kind], np.uint64(0))
    up = np.append(np.where(parent < 0, count, parent), count).astype(np.int32)
    factor = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        while (up[:-1] < count).any():
            out += factor * out.take(up)
            factor *= factor
            up = up.take(up)
    return out[:-1]


# The first and the last of some instances of a range, counted from 0 in the order in which they begin.
Instances: TypeAlias = tuple[int, int]
# Stand for the one that takes longest, and for one that takes as long as the median.
SLOWEST: Instances = (-1, -1)
TYPICAL: Instances = (-2, -2)


def read_instances(text: str) -> Instances:
    """Parse `--instance 3` or `--instance 20-39`. Raises `NsysprofError` for any other text."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise NsysprofError(
            f"{text!r} is not an instance number or a span of instance numbers",
            "--instance 3, or --instance 20-39; instances are counted from 0",
        )
    return first, last


def instances_text(instances: Instances) -> str:
    """`instance 3`, `instances 20-39`."""
    if instances in (SLOWEST, TYPICAL):
        return "the slowest" if instances == SLOWEST else "a typical one"
    first, last = instances
    return f"instance {first}" if first == last else f"instances {first}-{last}"


def pick_instances(span: Ints, instances: Instances) -> Index:
    """Return the rows of the chosen instances, in order of start; ``span`` is the span of each instance."""
    rows = np.arange(len(span))
    if instances == SLOWEST and len(span):
        return rows[[int(span.argmax())]]
    if instances == TYPICAL and len(span):
        return np.argsort(span, kind="stable")[[(len(span) - 1) // 2]]
    return rows[max(instances[0], 0) : instances[1] + 1]


def instance_numbers(path: Ints32, start: Ints) -> Ints:
    """Number the instances of each path from 0, in order of start."""
    order = np.lexsort((start, path))
    size = np.bincount(path) if len(path) else np.empty(0, np.int64)
    first = np.cumsum(size) - size
    out = np.empty(len(path), np.int64)
    out[order] = np.arange(len(path)) - first[path[order]]
    return out


def warm_up(attribution: Attribution, merged_of: Ints32, skip: int) -> Mask:
    """Mark range instances that statistics exclude because the first ``skip`` repetitions are warm-up.

    Instances count as repetitions if more than ``skip`` of them have the same merged path and the same parent instance
    (at the top: the same thread). Only the outermost repetition counts: everything inside a kept instance is kept.
    ``merged_of`` is the merged path of each range instance.
    """
    parent, ranges = attribution.parent, attribution.trace.ranges
    count = len(parent)
    if skip <= 0 or count == 0:
        return np.zeros(count, bool)
    above = np.where(parent >= 0, parent, -1 - ranges.thread.astype(np.int64))
    order = np.lexsort((np.arange(count), merged_of, above))  # rows of a thread are in order of time
    new = np.append(True, (above[order][1:] != above[order][:-1]) | (merged_of[order][1:] != merged_of[order][:-1]))
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    rank, repeated = np.empty(count, np.int64), np.empty(count, bool)
    rank[order] = np.arange(count) - first[group]
    repeated[order] = (np.diff(np.append(first, count)) > skip)[group]
    inside_repetition = np.append(ancestors_or_self(parent, repeated), False)[parent]
    return ancestors_or_self(parent, repeated & ~inside_repetition & (rank < skip))
