"""Collect the facts about a trace that explain waits: dependencies and names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import FOUND_NUMBER, merged_names
from nsysprof.core.arrays import AnyInts, Array, Bytes, Ints, Ints32, Line, Mask
from nsysprof.core.columns import distinct, marked
from nsysprof.kernels.classify import Kinds
from nsysprof.trace.details import Collectives, Dependencies, HostActivity
from nsysprof.trace.trace import FOUND, MEMCPY, MEMORY_KINDS, Trace, tid_of
from nsysprof.waits.awaited import OpsOfCalls, bucket, ops_of_calls
from nsysprof.waits.peers import Peers, find_peers
from nsysprof.waits.replay import fitting
from nsysprof.waits.walk import Reasons, lacking, reasons

CAUSES = ("compute", "communication", "copy", "kernel", "host", "latency", "profiler", "unknown")
COMPUTE, COMMUNICATION, COPY, OTHER_KERNEL, LATE_HOST, QUEUED, OVERHEAD, NOBODY = range(len(CAUSES))
CLAIMS = ("dependency", "order", "abstain", "counted")
BY_EDGE, BY_ORDER, ABSTAINS, COUNTED = range(len(CLAIMS))
BETWEEN = "between steps"  # the name of the pause before a step, as if it were a range
MEMORY = ("", " pageable", " pinned")  # the host's memory of a copy, where it is recorded


class Texts:
    """Texts as codes: equal texts are created once and share a code."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        """The code of a text."""
        return self._codes.setdefault(text, len(self._codes))

    def each(self, make: Callable[..., str], *columns: Array) -> Ints:
        """Return the codes of the texts that ``make`` returns for rows of columns; equal rows call it only once."""
        if len(columns[0]) == 0:
            return np.empty(0, np.int64)
        first, inverse = distinct(*columns)
        rows = (np.asarray(column, np.int64)[first].tolist() for column in columns)
        return np.array([self.code(make(*row)) for row in zip(*rows, strict=True)], np.int64)[inverse]

    def most(self, codes: AnyInts, ns: Ints) -> int:
        """The code with the largest sum of ``ns``; ties go to the alphabetically first text."""
        total, words = np.bincount(codes, ns), self.words
        return min(np.flatnonzero(total == total.max()).tolist(), key=words.__getitem__)

    @property
    def words(self) -> list[str]:
        """The texts, by code."""
        return list(self._codes)


@dataclass(frozen=True)
class Facts:
    """Known facts about a trace; ``communication``: whether each op name is a collective.

    ``op_owner``: the range after which each GPU op is named (None: its owner); ``names``: the merged names of ranges;
    ``name_code``: a code of ``names`` for each entry of `Trace.range_names`; ``threads``: labels of `Trace.threads`;
    ``copy_memory``: a code of `MEMORY` per op; ``collectives``: the collectives that the trace names; ``texts``: all
    texts that pieces refer to; ``whole``: for the trace of a stretch, the facts about the whole trace, and the rows
    that the ops have in the whole trace.
    """

    attribution: Attribution
    kinds: Kinds
    communication: Mask
    dependencies: Dependencies
    host: Callable[[Trace, Line | None], HostActivity]
    copy_memory: Bytes
    collectives: Collectives
    op_owner: Ints32 | None
    names: list[str]
    name_code: Ints
    threads: list[str]
    texts: Texts
    near: Line | None = None
    whole: tuple["Facts", AnyInts] | None = None

    @cached_property
    def copy_sizes(self) -> AnyInts:
        """Return the bytes of each GPU op, see `Trace.copy_sizes`; int32 if they fit."""
        sizes = self.attribution.trace.copy_sizes()
        return sizes.astype(fitting(sizes), copy=False)

    @cached_property
    def told_sizes(self) -> AnyInts:
        """Return the size of each copy as printed (bytes). It is the exact size if all copies of this direction and
        about this size are equal, otherwise the negative median of their sizes; 0 if it is unknown.
        """
        if self.whole is not None:
            facts, some = self.whole
            return facts.told_sizes[some]
        trace = self.attribution.trace
        some = np.flatnonzero(trace.copies.size_bytes > 0)
        rows, size = trace.copy_ops[some], trace.copies.size_bytes[some]
        first, group = distinct(trace.ops.name[rows], bucket(size))
        alike = np.ones(len(first), bool)
        alike[group[size != size[first][group]]] = False
        count, in_order = np.bincount(group), np.lexsort((size, group))
        middle = size[in_order][np.cumsum(count) - count + count // 2]
        of_group = np.where(alike, middle, -middle)
        out = np.zeros(len(trace.ops), fitting(of_group))
        out[rows] = of_group[group]
        return out

    @cached_property
    def activity(self) -> HostActivity:
        """Return the host's activity, complete or only near the intervals ``near``; see `Reader.host_activity`."""
        return self.host(self.attribution.trace, self.near)

    @cached_property
    def reasons(self) -> Reasons:
        """Return the dependency for which each GPU op waited. In large recordings, only ops in the replayed stretches
        have one.
        """
        return reasons(self.attribution.trace, self.dependencies)

    @cached_property
    def peers(self) -> Peers | None:
        """Find the rank that arrived last at each collective; returns None if ranks share no collective."""
        return find_peers(self.attribution.trace, self.communication, self.collectives)

    @cached_property
    def ops_of_calls(self) -> OpsOfCalls:
        """Find the GPU ops that host calls launched, and the GPU ops for which host calls waited."""
        return ops_of_calls(self.attribution.trace, self.activity, self.reasons, self.copy_sizes, self.copy_memory)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Name the data that the recording lacks, each with the option that records it."""
        return lacking(self.dependencies, self.activity)

    @property
    def words(self) -> dict[str, Sequence[str]]:
        """Return the texts behind the codes of columns."""
        texts = dict.fromkeys(("activity", "culprit", "range", "exposed_by"), self.texts.words)
        return {**texts, "cause": CAUSES, "claim": CLAIMS}


def read_facts(
    attribution: Attribution, kinds: Kinds, merge_names: Sequence[str] | None, op_owner: Ints32 | None = None
) -> Facts:
    """Read the `Facts` of a trace; ``kinds`` are the kinds of op names, ``merge_names`` is as in `merged_names`.

    ``op_owner`` is the range after which each GPU op is named, if another range launched the op.
    """
    trace = attribution.trace
    reader = trace.report.reader
    merged = merged_names([name.text for name in trace.range_names], merge_names)
    if merge_names is not None:  # as paths of iterations that were found
        found = marked(trace.ranges.name[trace.ranges.kind == FOUND], len(merged)).tolist()
        merged = [FOUND_NUMBER.sub("*", name) if mine else name for name, mine in zip(merged, found, strict=True)]
    place = {name: number for number, name in enumerate(dict.fromkeys(merged))}
    return Facts(
        attribution=attribution,
        kinds=kinds,
        communication=kinds.communication,
        dependencies=reader.dependencies(trace),
        host=reader.host_activity,
        copy_memory=_copy_memory(trace),
        collectives=reader.collectives(trace),
        op_owner=op_owner,
        names=list(place),
        name_code=np.array([place[name] for name in merged], np.int64),
        threads=[trace.thread_names.get(tid) or str(tid_of(tid)) for tid in trace.threads.tolist()],
        texts=Texts(),
    )


def facts_of(attribution: Attribution, kinds: Kinds, merge_names: Sequence[str] | None) -> Facts:
    """Read the `Facts` of the real launches. If CUDA graphs are attributed as captured, their ops are named after the
    range that captured them.
    """
    named = attribution.op_owner if attribution.replay is not None else None
    return read_facts(attribution.launched, kinds, merge_names, named)


def _copy_memory(trace: Trace) -> Bytes:
    """The memory of the host that each GPU op copies from or to, as a code of `MEMORY`."""
    out, ops = np.zeros(len(trace.ops), np.uint8), trace.copy_ops
    host = [
        (trace.copies.source == kind) | (trace.copies.destination == kind)
        for kind in map(MEMORY_KINDS.index, ("pageable", "pinned"))
    ]
    out[ops] = np.select([host[0] & (trace.ops.kind[ops] == MEMCPY), host[1]], [1, 2], 0)
    return out
