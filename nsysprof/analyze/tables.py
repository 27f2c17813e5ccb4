"""The tables of an analysis. Each column is declared once, with its name, its description and the function that
computes its values.

Column names are an interface: add columns, but never rename one. A new column is a new entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import Paths
from nsysprof.attribution.range_work import Cover, added_up, cover, overlapping
from nsysprof.core.arrays import Array, Index, Ints, Ints32, Mask
from nsysprof.core.columns import Column, ColumnTable, Texts, marked, sums
from nsysprof.kernels.classify import NO_KERNELS, Kinds
from nsysprof.kernels.launches import COLUMNS as LAUNCH_COLUMNS
from nsysprof.kernels.launches import Launches, launch_columns
from nsysprof.results.table import table
from nsysprof.statistics.distributions import Groups, Quartiles
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MEMSET, RANGE_KINDS, START_END, pid_of, tid_of

_S = TypeVar("_S")  # what the values are made from
Columns = Mapping[str, tuple[str, Callable[[_S], Column]]]  # name -> what it holds, and how it is made


def _make(columns: Columns[_S], source: _S) -> dict[str, Column]:
    return {name: values(source) for name, (_, values) in columns.items()}


_PATH = "names from the outermost range to this range"
_MERGED_PATH = "path without call ids; a merge glob replaces each name that it matches (iter* replaces iter7)"
_KIND = f"{', '.join(RANGE_KINDS[:-1])} or {RANGE_KINDS[-1]}"
_LAUNCHES = "number of host calls that launched GPU work; this and later columns include inner ranges"


@dataclass(frozen=True)
class PathRows:
    """A row for each of ``paths``; ``of`` int32 is the path of each range instance, ``keep`` a mask of the instances to
    include. ``finer``: the rows of the paths that these rows merge.

    All counts and times except the exclusive sum include inner ranges. If start/end ranges of one path overlap, each
    launch and each op counts only once. CPU, span and busy time are still sums over instances.
    """

    attribution: Attribution
    paths: Paths
    of: Ints32
    keep: Mask
    graphs: Attribution | None = None  # of what was captured alone
    finer: PathRows | None = None
    _totals: dict[str, Ints] = field(default_factory=dict, init=False)
    _quartiles: dict[str, Quartiles] = field(default_factory=dict, init=False)

    @cached_property
    def instances(self) -> slice | Index:
        """The included range instances."""
        return slice(None) if self.keep.all() else np.flatnonzero(self.keep)

    @cached_property
    def count(self) -> Ints:
        """Return the number of included instances per path."""
        return np.bincount(self.of[self.instances], minlength=len(self.paths))

    def values(self, name: str) -> Array:
        """Return one number for each included instance, from a column of `Totals` or of the ranges."""
        ranges = self.attribution.trace.ranges
        if name == "cpu_ns":
            return (ranges.end - ranges.start)[self.instances]
        if name == "exclusive_cpu_ns":
            return self.attribution.once(exclusive_cpu)[self.instances]
        home = {"unclosed": ranges, "exclusive_sum_ns": self.attribution}.get(name, self.attribution.inclusive)
        return getattr(home, name)[self.instances]

    def total(self, name: str) -> Ints:
        """Add up `values` per path."""
        if name not in self._totals:
            if self.finer:
                of, values = self.paths.of, self.finer.total(name)
            else:
                of, values = self.of[self.instances], self.values(name)
            out = self._totals[name] = sums(of, values.astype(np.int64, copy=False), len(self.paths))
            if name in _SHARED and self._together is not None:
                paths, together = self._together
                out[paths] = together.sums(_SHARED[name](self.attribution))[paths]
        return self._totals[name]

    @cached_property
    def _groups(self) -> Groups:
        return Groups.of(self.of[self.instances])

    @cached_property
    def _together(self) -> tuple[Index, Cover] | None:
        """The paths whose start/end ranges overlap one another, and their joint totals."""
        rows = np.flatnonzero((self.attribution.trace.ranges.kind == START_END) & self.keep)
        rows = rows[overlapping(self.attribution, self.of, rows)]
        if not len(rows):
            return None
        inside = cover(self.attribution, rows, self.of, len(self.paths))
        return np.flatnonzero(np.bincount(self.of[rows])), inside

    def captured(self, name: str) -> Ints:
        """Add up the CUDA graph work captured in each path; zeros if there is none."""
        if self.graphs is None:
            return np.zeros(len(self.paths), np.int64)
        return PathRows(self.graphs, self.paths, self.of, self.keep).total(name)

    def quartiles(self, name: str) -> Quartiles:
        """Find the `Quartiles` of `values` per path."""
        if name not in self._quartiles:
            self._quartiles[name] = self._groups.quartiles(self.values(name), len(self.paths))
        return self._quartiles[name]

    def processes(self) -> Ints:
        """Count the processes with instances of each path."""
        trace, code = self.attribution.trace, self.of[self.instances]
        process = trace.thread_process.take(trace.ranges.thread[self.instances])
        out = np.zeros(len(self.paths), np.int64)
        for part in np.split(code, np.flatnonzero(np.diff(process)) + 1):
            out += marked(part, len(out))
        return out

    def devices(self) -> Ints:
        """Count the GPUs that ran ops of each path, from the masks of its instances."""
        masks, of = self.values("devices"), self.of[self.instances]
        used = int(np.bitwise_or.reduce(masks)) if len(masks) else 0
        out = np.zeros(len(self.paths), np.int64)
        for bit in range(used.bit_length()):
            if used >> bit & 1:
                out += marked(of[masks & (1 << bit) != 0], len(out))
        return out


# What start/end ranges of one path that overlap share: the number of each launch.
_SHARED: dict[str, Callable[[Attribution], Ints]] = {
    "launches": lambda at: np.ones(len(at.trace.launches), np.int64),
    "kernels": lambda at: added_up(at, at.trace.ops.kind == KERNEL),
    "memops": lambda at: added_up(at, np.isin(at.trace.ops.kind, (MEMCPY, MEMSET))),
    "graph_launches": lambda at: (added_up(at, (at.trace.ops.kind == GRAPH) | at.trace.ops.from_graph) > 0).astype(
        np.int64
    ),
    "sum_ns": lambda at: added_up(at, at.trace.ops.end - at.trace.ops.start),
}


def exclusive_cpu(attribution: Attribution) -> Ints:
    """Return the CPU time of each range instance outside its inner ranges, in ns."""
    ranges, parent = attribution.trace.ranges, attribution.parent
    own: Ints = ranges.end - ranges.start
    inner = np.flatnonzero(parent >= 0)
    around = parent[inner]
    np.subtract.at(own, around, np.minimum(ranges.end[inner], ranges.end[around]) - ranges.start[inner])
    np.maximum(own, 0, out=own)
    return own


def _total(name: str) -> Callable[[PathRows], Column]:
    return lambda rows: rows.total(name)


def _captured(name: str) -> Callable[[PathRows], Column]:
    return lambda rows: rows.captured(name)


CAPTURED = {
    "captured_nodes": (
        "number of CUDA graph nodes that this range or its inner ranges captured, counted at each replay",
        "launches",
    ),
    "captured_kernels": ("number of replayed kernels that this range or its inner ranges captured", "kernels"),
    "captured_memops": ("number of replayed copies and memsets that this range or its inner ranges captured", "memops"),
    "captured_sum_ns": ("total duration of the replayed nodes that this range or its inner ranges captured", "sum_ns"),
}


def _of_instances(statistic: str, name: str) -> Callable[[PathRows], Column]:
    return lambda rows: getattr(rows.quartiles(name), statistic)


_PLACE: Columns[PathRows] = {
    "depth": ("number of outer ranges", lambda rows: rows.paths.depth),
    "kind": (_KIND, lambda rows: Texts(rows.paths.kind, RANGE_KINDS)),
}
_SUMS: Columns[PathRows] = {
    "instances": ("number of range instances with this path", lambda rows: rows.count),
    "launches": (_LAUNCHES, _total("launches")),
    "kernels": ("number of kernels launched inside the range", _total("kernels")),
    "memops": ("number of copies and memsets launched inside the range", _total("memops")),
    "graph_launches": ("number of CUDA graph launches inside the range", _total("graph_launches")),
    "cpu_ns": ("CPU time: total duration of the instances on the host", _total("cpu_ns")),
    "span_ns": ("elapsed time from the first GPU op to the last, summed over instances", _total("span_ns")),
    "busy_ns": ("time in which GPU ops run, summed over instances and GPUs", _total("busy_ns")),
    "sum_ns": ("total duration of the range's GPU ops", _total("sum_ns")),
    "exclusive_sum_ns": ("sum_ns without the GPU ops of inner ranges", _total("exclusive_sum_ns")),
    "followed_sum_ns": (
        "part of sum_ns from GPU ops that worker threads without an open range launched",
        _total("followed_sum_ns"),
    ),
    "busy_median_ns": ("median of the instances' busy_ns", _of_instances("median", "busy_ns")),
    "busy_iqr_ns": ("interquartile range of the instances' busy_ns", _of_instances("iqr", "busy_ns")),
    "span_median_ns": ("median of the instances' span_ns", _of_instances("median", "span_ns")),
    "span_iqr_ns": ("interquartile range of the instances' span_ns", _of_instances("iqr", "span_ns")),
    "processes": ("number of processes that ran instances of the range", PathRows.processes),
    "devices": ("number of GPUs that ran GPU ops of the range", PathRows.devices),
    "cpu_median_ns": ("median of the instances' cpu_ns", _of_instances("median", "cpu_ns")),
    "cpu_iqr_ns": ("interquartile range of the instances' cpu_ns", _of_instances("iqr", "cpu_ns")),
    "unclosed": (
        "number of instances that the program never closed (assumed to end with the recording)",
        _total("unclosed"),
    ),
    "span_min_ns": ("minimum of the instances' span_ns", _of_instances("low", "span_ns")),
    "span_max_ns": ("maximum of the instances' span_ns", _of_instances("high", "span_ns")),
    "busy_min_ns": ("minimum of the instances' busy_ns", _of_instances("low", "busy_ns")),
    "busy_max_ns": ("maximum of the instances' busy_ns", _of_instances("high", "busy_ns")),
    **{name: (about, _captured(of)) for name, (about, of) in CAPTURED.items()},
    "captured_exclusive_sum_ns": (
        "captured_sum_ns without the nodes that inner ranges captured",
        _captured("exclusive_sum_ns"),
    ),
    "exclusive_cpu_ns": ("cpu_ns without the CPU time of inner ranges", _total("exclusive_cpu_ns")),
    "cpu_min_ns": ("minimum of the instances' cpu_ns", _of_instances("low", "cpu_ns")),
    "cpu_max_ns": ("maximum of the instances' cpu_ns", _of_instances("high", "cpu_ns")),
}
_DOMAIN: Columns[PathRows] = {
    "domain": (
        "NVTX domain",
        lambda rows: Texts(rows.paths.name, [name.domain for name in rows.attribution.trace.range_names]),
    )
}
_FORWARD = "path of the matching forward range, found by autograd sequence number"
RANGES = table(
    "ranges.csv",
    "a row per range path",
    {
        "path": _PATH,
        "merged_path": _MERGED_PATH,
        **{name: about for name, (about, _) in {**_PLACE, **_DOMAIN, **_SUMS}.items()},
        "forward_path": (
            f"{_FORWARD}; merged path if the instances have different forward ranges; empty if even "
            "the merged paths differ"
        ),
    },
)


def range_columns(rows: PathRows, path_texts: list[str], merged_texts: list[str], forward: Ints32) -> ColumnTable:
    """Make the columns of ``ranges.csv``, with a row per path that has instances.

    Texts are the paths. ``forward`` is the path of the forward range of each instance that does backward work, -1 for
    other instances.
    """
    number = np.arange(len(rows.paths))
    head = {"path": Texts(number, path_texts), "merged_path": Texts(number, merged_texts)}
    answers = [""] * len(rows.paths)
    known = np.flatnonzero(forward >= 0)
    pairs = np.unique(np.stack([rows.of[known], forward[known]]), axis=1)
    for own in np.split(pairs, np.flatnonzero(np.diff(pairs[0])) + 1, axis=1) if len(known) else ():
        of = own[1].tolist()
        merged = {merged_texts[path] for path in of}
        answers[own[0, 0]] = path_texts[of[0]] if len(of) == 1 else merged.pop() if len(merged) == 1 else ""
    last = {"forward_path": Texts(number, answers)}
    return ColumnTable({**head, **_make({**_PLACE, **_DOMAIN, **_SUMS}, rows), **last}).take(rows.count > 0)


def merged_columns(rows: PathRows, texts: list[str], row: Ints) -> ColumnTable:
    """Make the columns of merged paths, with ``merged_path, name, parent``; ``row``: each path's row, then -1."""
    head: dict[str, Column] = {
        "merged_path": Texts(np.arange(len(rows.paths)), texts),
        "name": Texts(rows.paths.name, rows.paths.names),
        "parent": row[rows.paths.parent],
    }
    return ColumnTable({**head, **_make({**_PLACE, **_SUMS}, rows)}).take(rows.count > 0)


@dataclass(frozen=True)
class InstanceRows:
    """A row per chosen range instance, with its number (see `instance_numbers`); also the texts of all paths."""

    attribution: Attribution
    path: Ints32
    rows: Index
    numbers: Ints
    path_texts: list[str]
    merged_texts: list[str]
    graphs: Attribution | None  # of what was captured alone
    forward: Ints32  # the path that each works backward for, -1 for none

    @cached_property
    def thread(self) -> Ints:
        """The globalTid of each instance."""
        return self.attribution.trace.threads[self.attribution.trace.ranges.thread[self.rows]]


def _recorded(name: str) -> Callable[[InstanceRows], Column]:
    return lambda each: getattr(each.attribution.trace.ranges, name)[each.rows]


def _inside(name: str) -> Callable[[InstanceRows], Column]:
    return lambda each: getattr(each.attribution.inclusive, name)[each.rows]


def _captured_inside(name: str) -> Callable[[InstanceRows], Column]:
    def values(each: InstanceRows) -> Column:
        if each.graphs is None:
            return np.zeros(len(each.path), np.int64)
        return getattr(each.graphs.inclusive, name)[each.rows]

    return values


_OF_INSTANCES: Columns[InstanceRows] = {
    "path": (_PATH, lambda each: Texts(each.path, each.path_texts)),
    "merged_path": (_MERGED_PATH, lambda each: Texts(each.path, each.merged_texts)),
    "instance": ("instance number within its path, from 0", lambda each: each.numbers),
    "pid": ("process id", lambda each: pid_of(each.thread)),
    "tid": ("id of the thread that started the instance", lambda each: tid_of(each.thread)),
    "kind": (_KIND, lambda each: Texts(each.attribution.trace.ranges.kind[each.rows], RANGE_KINDS)),
    "start_ns": ("start time on the host", _recorded("start")),
    "end_ns": ("end time on the host", _recorded("end")),
    "unclosed": (
        "whether the program never closed this instance (assumed to end with the recording)",
        lambda each: each.attribution.trace.ranges.unclosed[each.rows].astype(np.int8),
    ),
    "launches": (_LAUNCHES, _inside("launches")),
    "kernels": (_SUMS["kernels"][0], _inside("kernels")),
    "memops": (_SUMS["memops"][0], _inside("memops")),
    "first_op_ns": ("start time of the first GPU op; empty without GPU ops", _inside("first_op_ns")),
    "last_op_ns": ("end time of the last GPU op; empty without GPU ops", _inside("last_op_ns")),
    "span_ns": ("elapsed time from the first GPU op to the last", _inside("span_ns")),
    "busy_ns": ("time in which GPU ops run, summed over GPUs", _inside("busy_ns")),
    "sum_ns": (_SUMS["sum_ns"][0], _inside("sum_ns")),
    **{name: (about, _captured_inside(of)) for name, (about, of) in CAPTURED.items()},
    "forward_path": (
        f"{_FORWARD}; empty if none",
        lambda each: Texts(np.where(each.forward < 0, len(each.path_texts), each.forward), [*each.path_texts, ""]),
    ),
}
INSTANCES = table(
    "instances.csv", "a row per range instance", {name: about for name, (about, _) in _OF_INSTANCES.items()}
)


def instance_columns(rows: InstanceRows) -> ColumnTable:
    """Make the columns of ``instances.csv``."""
    return ColumnTable(_make(_OF_INSTANCES, rows))


@dataclass(frozen=True)
class KernelRows:
    """A row per owner, op name and capture path: ``numbers`` from `kernel_tables`, and the ``kinds`` of op names."""

    owner: Column
    captured: Column
    numbers: ColumnTable
    op_names: list[str]
    kinds: Kinds
    launches: Launches | None = None


def _named(texts: Callable[[KernelRows], list[str]]) -> Callable[[KernelRows], Column]:
    return lambda rows: Texts(rows.numbers["name"], texts(rows))


def _number(name: str) -> Callable[[KernelRows], Column]:
    return lambda rows: rows.numbers[name]


_DURATIONS = "median, minimum or maximum duration of the GPU ops, as the column's name says"
_OF_KERNELS: Columns[KernelRows] = {
    "path": ("path of the range that owns the GPU ops; empty if no range owns them", lambda rows: rows.owner),
    "kernel": ("full name of the kernel, copy or memset", _named(lambda rows: rows.op_names)),
    "family": ("kernel family, by the kernel rules", _named(lambda rows: rows.kinds.family)),
    "math_unit": (
        "math unit that the kernel uses (tensor cores, FP32 …), by the kernel rules",
        _named(lambda rows: rows.kinds.math_unit),
    ),
    "count": ("number of GPU ops", _number("count")),
    "sum_ns": ("total duration of the GPU ops", _number("sum_ns")),
    "median_ns": (_DURATIONS, _number("median_ns")),
    "min_ns": (_DURATIONS, _number("min_ns")),
    "max_ns": (_DURATIONS, _number("max_ns")),
    "cause": (
        "finer kernel family (convolution, FFT, sort …) if the kernel rules name one, else the family",
        _named(lambda rows: rows.kinds.cause),
    ),
    "captured_path": (
        "path of the range that captured the kernels into a CUDA graph; empty outside graphs, and if the graph was "
        "captured outside every range or before the recording",
        lambda rows: rows.captured,
    ),
    "size_bytes": ("number of bytes copied or set; 0 for kernels", _number("size_bytes")),
    "api_median_ns": ("median duration of the launching host calls; -1 if not recorded", _number("api_median_ns")),
    "queue_median_ns": (
        "median queue delay: from the return of the launching call to the start of the GPU op; 0 if "
        "the op starts earlier; -1 if not recorded",
        _number("queue_median_ns"),
    ),
}
LAUNCH = ("api_median_ns", "queue_median_ns")  # in front of the execution of a kernel
KERNELS = table(
    "kernels.csv",
    "a row per range path and kernel; a kernel in CUDA graphs has a row for each range that captured it",
    {**{name: about for name, (about, _) in _OF_KERNELS.items()}, **LAUNCH_COLUMNS},
)


def kernel_columns(rows: KernelRows, owner: str) -> ColumnTable:
    """Make the columns of ``kernels.csv``; ``owner`` is the name of the column with the owner.

    Medians of launches are left out if ``numbers`` lacks them.
    """
    of = {name: each for name, each in _OF_KERNELS.items() if name in rows.numbers.columns or name not in LAUNCH}
    columns = _make(of, rows)
    table = {owner: columns.pop("path"), **columns}
    if rows.launches is None:
        return ColumnTable(table)
    kernel = np.array([family not in NO_KERNELS for family in rows.kinds.family], bool)[rows.numbers["name"]]
    launch = np.where(kernel, rows.numbers["launch"], -1)
    keyed = {("kernel", "family", "math_unit"): rows.numbers["name"], tuple(LAUNCH_COLUMNS): launch}
    return ColumnTable({**table, **launch_columns(rows.launches, launch)}, keyed)
