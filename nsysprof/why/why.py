"""Accounts for the GPU windows of ranges: compute by kernel, and every wait by cause and culprit; rows add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import find_matches
from nsysprof.attribution.paths import DEFAULT_MERGE, Paths, merged_names, merged_paths, range_paths
from nsysprof.core.intervals import Ints, cover_before, expand_ranges, merge
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bytes
from nsysprof.kernels.classify import Kinds, Rules, classify, load_rules, short_name
from nsysprof.trace.details import PROFILER, Dependencies, HostActivity, OpDetails
from nsysprof.trace.trace import MEMCPY, MEMSET, tid_of
from nsysprof.waits.exposure import exposed_by
from nsysprof.waits.host import ACTIVITIES, host_time, ranges_around, threads_to_blame
from nsysprof.waits.walk import HOST, LATENCY, RUNS, UNKNOWN, Pieces, Reasons, reasons, walk
from nsysprof.waits.windows import GpuLines, Windows, gpu_lines, gpu_windows, stretches, whole_windows
from nsysprof.why.findings import hint_for

CAUSES = ("compute", "communication", "copy", "kernel", "host", "latency", "profiler", "unknown")
DEPENDENCY, ORDER, ABSTAIN, COUNTED = "dependency", "order", "abstain", "counted"
MEANWHILE = ("nothing", "copies", "communication", "compute")  # what the GPU ran
WHOLE = "the whole trace"
_COMPUTE, _COMMUNICATION, _COPY, _KERNEL, _HOST, _LATENCY, _PROFILER, _UNKNOWN = range(len(CAUSES))
_REPEATED = 3  # instances from which on a range is taken for the step of a program
_ITEM_BYTES = 64  # what `.item()` and its kin copy at most
_STEPS = ("step", "iter", "profilerstep")
_KEYS = ("window", "cause", "activity", "culprit", "range", "exposed_by", "claim")


@dataclass(frozen=True)
class Why:
    """Why the GPUs of a report waited.

    ``windows`` has a row per window: ``path``, ``gpu``, ``pid``, ``start_ns``, ``end_ns``, and what they add up to:
    ``compute_ns``, ``communication_ns`` and ``copies_ns`` (both exposed) and ``idle_ns``; ``blocking_ns`` is the part of
    the exposed communication that the next compute depended on. ``waits`` has a row per piece of a wait: ``window``,
    ``start_ns``, ``end_ns``, ``cause``, ``activity``, ``culprit``, ``range``, ``exposed_by``, ``claim``, and ``op``, the
    GPU op that ran or came late. ``rows`` adds them up by path and GPU, see `tables.WHY`. ``chosen`` says how ranges were chosen
    where nobody named them; ``lacks`` names tables that the report does not hold.
    """

    attribution: Attribution
    windows: pd.DataFrame
    waits: pd.DataFrame
    rows: pd.DataFrame
    chosen: str
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class _Facts:
    """What is known of a report."""

    attribution: Attribution
    kinds: Kinds
    communication: NDArray[np.bool_]
    dependencies: Dependencies
    activity: HostActivity
    reasons: Reasons
    details: OpDetails
    texts: _Texts
    names: list[str]
    name_code: NDArray[np.int64]
    threads: list[str]

    @property
    def words(self) -> dict[str, Sequence[str]]:
        """What the codes of columns stand for."""
        texts = self.texts.words
        return {
            **dict.fromkeys(("activity", "culprit", "range", "exposed_by"), texts),
            "cause": CAUSES,
            "claim": _CLAIMS,
        }


def why(
    attribution: Attribution,
    select: str | None = None,
    *,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
) -> Why:
    """Account for the GPU windows of the ranges that the glob ``select`` matches; without one of those that repeat.

    Raises `NsysprofError` where no range matches. Near-linear in ops and calls.
    """
    trace = attribution.trace
    reader = trace.report.reader
    kinds = classify(rules or load_rules(None), trace.op_names)
    dependencies = reader.dependencies(trace)
    thread_names = reader.thread_names()
    merged = merged_names([name.text for name in trace.range_names], merge_names)
    place = {name: number for number, name in enumerate(dict.fromkeys(merged))}
    facts = _Facts(
        attribution,
        kinds,
        np.array([family == "communication" for family in kinds.family], bool),
        dependencies,
        reader.host_activity(),
        reasons(trace, dependencies),
        reader.op_details(trace),
        _Texts(),
        list(place),
        np.array([place[name] for name in merged], np.int64),
        [thread_names.get(tid) or str(tid_of(tid)) for tid in trace.threads.tolist()],
    )
    windows, paths, chosen = _choose(attribution, select, merge_names)
    pieces, computed, sums = [], [], []
    for gpu in np.unique(windows.gpu).tolist():
        lines = gpu_lines(trace, facts.communication, gpu)
        gaps = stretches(windows, gpu, lines)
        found = _account(
            facts, walk(trace, facts.reasons, gaps.start, gaps.end, gaps.op), gaps.window, windows
        )
        found["communication_ns"], found["copies_ns"] = _meanwhile(lines, found["start_ns"], found["end_ns"])
        pieces.append(pd.DataFrame(found))
        computed.append(_computed(facts, windows, gpu, lines))
        sums.append(_sums(windows, gpu, lines))
    waits = (
        pd.concat(pieces, ignore_index=True)
        if pieces
        else pd.DataFrame(columns=[*_PIECE, "communication_ns", "copies_ns"], dtype=np.int64)
    )
    compute = (
        pd.concat(computed, ignore_index=True)
        if computed
        else pd.DataFrame(columns=["window", "name", "ns"], dtype=np.int64)
    )
    frame = _window_frame(facts, windows, paths, waits, sums)
    rows = _rows(facts, frame, waits, compute)
    for name, words in facts.words.items():
        waits[name] = pd.Categorical.from_codes(waits[name].astype(np.int32), words)
    return Why(attribution, frame, waits, rows, chosen, dependencies.lacks)


_PIECE = (
    "window",
    "start_ns",
    "end_ns",
    "cause",
    "activity",
    "culprit",
    "range",
    "exposed_by",
    "claim",
    "op",
)
_CLAIMS = (DEPENDENCY, ORDER, ABSTAIN, COUNTED)


# ---- which windows


def _choose(
    attribution: Attribution, select: str | None, merge_names: Sequence[str] | None
) -> tuple[Windows, list[str], str]:
    """The windows, the texts of their paths, and how they were chosen where nobody said."""
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge_names)
    of = merged.of[paths.of]
    texts = merged.texts()
    if select is not None:
        file = str(attribution.trace.report.path)
        codes, chosen = [match.code for match in find_matches(merged, texts, select, file)], ""
    else:
        codes, chosen = _repeated(attribution, merged, of, texts)
    if not codes:
        return whole_windows(attribution.trace), [WHOLE], f"{WHOLE}: no range with GPU work repeats"
    rows = np.flatnonzero(np.isin(of, codes))
    return gpu_windows(attribution, rows, of[rows].astype(np.int32)), texts, chosen


def _repeated(
    attribution: Attribution, merged: Paths, of: NDArray[np.int32], texts: Sequence[str]
) -> tuple[list[int], str]:
    """The outermost merged paths that are named as steps are; else the most repeated of the outermost ranges."""
    count = np.bincount(of, minlength=len(merged))
    works = np.zeros(len(merged), bool)
    works[of[attribution.inclusive.span_ns > 0]] = True
    some = np.flatnonzero(works & (count >= _REPEATED)).tolist()
    steps = [code for code in some if merged.names[merged.name[code]].lower().startswith(_STEPS)]
    if steps:
        depth = min(merged.depth[code] for code in steps)
        return [code for code in steps if merged.depth[code] == depth], "ranges named as steps"
    top = [code for code in some if merged.depth[code] == 0]
    if not top:
        return [], ""
    best = max(top, key=lambda code: int(count[code]))
    return [best], f"the most repeated of the outermost ranges: {texts[best]}"


# ---- causes and culprits


class _Texts:
    """Texts as codes: each is made once, and equal ones are one."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def each(self, make: Callable[..., str], *columns: NDArray[Any]) -> NDArray[np.int64]:
        """The codes of what ``make`` says of each row of columns; it is asked once for equal rows."""
        if len(columns[0]) == 0:
            return np.empty(0, np.int64)
        first, inverse = _distinct(*columns)
        rows = (np.asarray(column, np.int64)[first].tolist() for column in columns)
        codes = [self.code(make(*row)) for row in zip(*rows, strict=True)]
        return np.array(codes, np.int64)[inverse]

    @property
    def words(self) -> list[str]:
        return list(self._codes)


def _distinct(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The first of equal rows of whole numbers from -1 on, and for each row the place of its like among them."""
    key, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        column = column.astype(np.int64)
        size = int(column.max(initial=-1)) + 2
        if most * size >= 1 << 62:
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
            most = int(key.max(initial=0)) + 1
        key, most = key * size + column + 1, most * size
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    return first, place.reshape(-1)


def _account(
    facts: _Facts, pieces: Pieces, window: NDArray[np.intp], windows: Windows
) -> dict[str, NDArray[Any]]:
    """The columns `_PIECE` of the pieces of gaps, those of host time cut by what the host did."""
    trace = facts.attribution.trace
    rest = np.flatnonzero(pieces.kind != HOST)
    op, kind = pieces.op[rest].astype(np.int64), pieces.kind[rest]
    runs, op_kind = kind == RUNS, trace.ops.kind[op]
    cause = np.select(
        [
            kind == LATENCY,
            kind == UNKNOWN,
            (op_kind == MEMCPY) | (op_kind == MEMSET),
            facts.communication[trace.ops.name[op]],
        ],
        [_LATENCY, _UNKNOWN, _COPY, _COMMUNICATION],
        _KERNEL,
    )
    culprit, range_name = np.zeros(len(rest), np.int64), np.zeros(len(rest), np.int64)
    culprit[runs], range_name[runs] = _op_texts(facts, op[runs])
    none = np.zeros(len(rest), np.int64)
    parts = [
        {
            "window": window[pieces.gap[rest]],
            "start_ns": pieces.start[rest],
            "end_ns": pieces.end[rest],
            "cause": cause,
            "activity": none,
            "culprit": culprit,
            "range": range_name,
            "exposed_by": none,
            "claim": np.select([runs, kind == UNKNOWN], [0, 2], 1),
            "op": op,
        },
        _host_parts(facts, pieces, window, windows),
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in _PIECE}


def _host_parts(
    facts: _Facts, pieces: Pieces, window: NDArray[np.intp], windows: Windows
) -> dict[str, NDArray[Any]]:
    trace, calls = facts.attribution.trace, facts.activity.calls
    late = np.flatnonzero(pieces.kind == HOST)
    launch = np.append(trace.ops.launch, np.int32(-1))[pieces.op[late]].astype(np.int64)
    start, end = pieces.start[late], pieces.end[late]
    of = windows.range[window[pieces.gap[late]]]
    thread = np.where(of >= 0, np.append(trace.ranges.thread, 0)[of], 0)
    time = host_time(
        facts.attribution, facts.activity, *threads_to_blame(facts.attribution, launch, start, end, thread)
    )
    name = np.append(calls.name, -1)[time.call]
    copies, where = _copies_of(facts, time.call), _merged_name(facts, time.range)
    owner = np.append(facts.attribution.owner, np.int32(-1))[launch]
    own = np.where(launch >= 0, np.append(trace.launches.thread, 0)[launch], thread)
    of_range = np.where(owner >= 0, np.append(trace.ranges.thread, 0)[owner], own)
    helps = np.where((time.thread != of_range[time.piece]) & (time.range < 0), time.thread, -1)

    def describe(call: int, copied: int, row: int, helper: int) -> str:
        what = "code" if call < 0 else calls.names[call]
        if copied >= 0:
            what += f" ({_copy_text(facts, copied)})"
        return f"{what} on thread {facts.threads[helper]}" if helper >= 0 else f"{what} {_where(facts, row)}"

    exposing = exposed_by(trace, facts.reasons, facts.activity, launch, start, end, thread)
    return {
        "window": window[pieces.gap[late]][time.piece],
        "start_ns": time.start,
        "end_ns": time.end,
        "cause": np.where(time.activity == PROFILER, _PROFILER, _HOST),
        "activity": facts.texts.each(lambda number: ACTIVITIES[number], time.activity),
        "culprit": facts.texts.each(describe, name, copies, where, helps),
        "range": facts.texts.each(lambda name: facts.names[name] if name >= 0 else "", where),
        "exposed_by": _exposing(facts, exposing)[time.piece],
        "claim": np.full(len(time.piece), 1),
        "op": pieces.op[late][time.piece].astype(np.int64),
    }


def _op_texts(facts: _Facts, op: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A text for each op: what it is, and in which range it was launched; and the name of that."""
    trace = facts.attribution.trace
    owner = np.append(facts.attribution.owner, np.int32(-1))[trace.ops.launch[op]]
    size = np.where(trace.ops.kind[op] == MEMCPY, _bucket(facts.details.size[op]), -1)

    def describe(name: int, size: int, row: int) -> str:
        text = short_name(trace.op_names[name])
        return f"{text}{f' of {format_bytes(size)}' if size > 0 else ''} {_where(facts, row)}"

    where = _merged_name(facts, owner)
    of = facts.texts.each(lambda name: facts.names[name] if name >= 0 else "", where)
    return facts.texts.each(describe, trace.ops.name[op], size, where), of


def _bucket(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sizes to two binary digits, so that copies of about the same size are one culprit."""
    step = np.maximum(1, 1 << np.maximum(np.log2(np.maximum(size, 1)).astype(np.int64) - 1, 0))
    return np.where(size > 0, (size + step // 2) // step * step, size)


def _copies_of(facts: _Facts, call: NDArray[np.int32]) -> NDArray[np.int64]:
    """For each call the copy that it started, -1 for none; one op for copies of the same kind and about one size."""
    trace, calls = facts.attribution.trace, facts.activity.calls
    out = np.full(len(call), -1, np.int64)
    copies = np.flatnonzero((trace.ops.kind == MEMCPY) & (trace.ops.launch >= 0))
    if len(copies) == 0 or len(call) == 0:
        return out
    launch = trace.ops.launch[copies]
    made = calls.find(
        trace.threads[trace.launches.thread[launch]], trace.launches.start[launch], trace.launches.end[launch]
    )
    of_call = np.full(len(calls) + 1, -1, np.int64)
    first, inverse = _distinct(trace.ops.name[copies], _bucket(facts.details.size[copies]))
    of_call[made] = copies[first][inverse]
    of_call[-1] = -1
    return of_call[call]


def _copy_text(facts: _Facts, op: int) -> str:
    size = int(_bucket(facts.details.size[op : op + 1])[0])
    name = facts.attribution.trace.op_names[facts.attribution.trace.ops.name[op]]
    return (
        f"{name.removeprefix('memcpy ')}, {format_bytes(size)}" if size > 0 else name.removeprefix("memcpy ")
    )


def _where(facts: _Facts, name: int) -> str:
    return f"in {one_line(facts.names[name], 60)}" if name >= 0 else "outside every range"


def _merged_name(facts: _Facts, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """The merged name of each range, as its place in `_Facts.names`; -1 for none."""
    names = facts.attribution.trace.ranges.name
    return np.where(rows >= 0, np.append(facts.name_code[names], -1)[rows], -1)


def _exposing(facts: _Facts, call: NDArray[np.int64]) -> NDArray[np.int64]:
    """The texts of calls that let the GPU run dry: `.item()` where one waits for the copy of a few bytes."""
    trace, calls = facts.attribution.trace, facts.activity.calls
    tid = np.append(calls.threads, 0)[np.append(calls.thread, -1)[call]]
    thread = np.searchsorted(trace.threads, tid)
    known = (call >= 0) & (np.append(trace.threads, -1)[thread] == tid)
    thread = np.where(known, thread, -1)
    start = np.append(calls.start, 0)[call]
    rows = ranges_around(facts.attribution, thread, start, np.append(calls.end, 0)[call])
    small = np.zeros(len(call), bool)
    copies = _small_copies(facts)
    for code in np.unique(thread[known]).tolist():
        mine = np.flatnonzero(thread == code)
        first, last = np.searchsorted(trace.launches.thread, [code, code + 1]).tolist()
        before = first + np.searchsorted(trace.launches.start[first:last], start[mine]) - 1
        small[mine] = (before >= first) & copies[np.maximum(before, 0)]

    def describe(name: int, item: int, row: int) -> str:
        if name < 0:
            return ""
        what = (
            f".item() or the like: a copy of a few bytes and {calls.names[name]}"
            if item
            else calls.names[name]
        )
        return f"{what} {_where(facts, row)}"

    return facts.texts.each(describe, np.append(calls.name, -1)[call], small, _merged_name(facts, rows))


def _small_copies(facts: _Facts) -> NDArray[np.bool_]:
    """Which launches copy a few bytes to the host."""
    trace = facts.attribution.trace
    to_host = np.array(["DtoH" in name for name in trace.op_names], bool)
    small = (
        (trace.ops.kind == MEMCPY)
        & to_host[trace.ops.name]
        & (facts.details.size <= _ITEM_BYTES)
        & (trace.ops.launch >= 0)
    )
    out = np.zeros(max(len(trace.launches), 1), bool)
    out[trace.ops.launch[small]] = True
    return out


# ---- adding up


def _meanwhile(lines: GpuLines, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """How much of each piece communication ran, and how much of the rest copies did."""
    either = merge(*(np.concatenate(pair) for pair in zip(lines.communication, lines.copies, strict=True)))
    talked = cover_before(*lines.communication, end) - cover_before(*lines.communication, start)
    return talked, cover_before(*either, end) - cover_before(*either, start) - talked


def _computed(facts: _Facts, windows: Windows, gpu: int, lines: GpuLines) -> pd.DataFrame:
    """What each kernel adds to the compute of each window: of kernels that overlap, the time counts to the earlier."""
    trace = facts.attribution.trace
    ops = trace.ops
    order = lines.kernels
    reach = np.maximum.accumulate(ops.end[order]) if len(order) else ops.end[order]
    start = np.maximum(ops.start[order], np.append(np.iinfo(np.int64).min, reach)[: len(order)])
    end = reach
    some = start < end
    name, start, end = ops.name[order][some], start[some], end[some]
    mine = np.flatnonzero(windows.gpu == gpu)
    first = np.searchsorted(end, windows.start[mine], side="right")
    count = np.maximum(np.searchsorted(start, windows.end[mine], side="left") - first, 0)
    at, window = expand_ranges(first, count), np.repeat(mine, count)
    inside = np.minimum(end[at], windows.end[window]) - np.maximum(start[at], windows.start[window])
    return pd.DataFrame({"window": window, "name": name[at], "ns": inside})


def _sums(windows: Windows, gpu: int, lines: GpuLines) -> pd.DataFrame:
    mine = np.flatnonzero(windows.gpu == gpu)
    start, end = windows.start[mine], windows.end[mine]
    compute = cover_before(*lines.compute, end) - cover_before(*lines.compute, start)
    return pd.DataFrame({"window": mine, "compute_ns": compute})


def _window_frame(
    facts: _Facts, windows: Windows, paths: Sequence[str], waits: pd.DataFrame, sums: Sequence[pd.DataFrame]
) -> pd.DataFrame:
    trace = facts.attribution.trace
    process = trace.op_process[windows.last]
    frame = pd.DataFrame(
        {
            "path": np.array(paths, object)[windows.path],
            "gpu": windows.gpu,
            "pid": (trace.processes[process] >> 24) & 0xFFFFFF,
            "range": windows.range,
            "start_ns": windows.start,
            "end_ns": windows.end,
            "compute_ns": 0,
        }
    )
    for part in sums:
        frame.loc[part["window"], "compute_ns"] = part["compute_ns"].to_numpy()
    blocking = waits["end_ns"] - waits["start_ns"]
    added = waits.assign(blocking_ns=blocking.where(waits["cause"] == _COMMUNICATION, 0)).groupby("window")
    for name in ("communication_ns", "copies_ns", "blocking_ns"):
        frame[name] = added[name].sum().reindex(frame.index, fill_value=0).astype(np.int64)
    frame["idle_ns"] = (
        frame["end_ns"]
        - frame["start_ns"]
        - frame[["compute_ns", "communication_ns", "copies_ns"]].sum(axis=1)
    )
    return frame


def _rows(facts: _Facts, windows: pd.DataFrame, waits: pd.DataFrame, compute: pd.DataFrame) -> pd.DataFrame:
    """The rows of why.csv: waits and compute of each path and GPU, added up; they add up to its windows."""
    kinds, names = facts.kinds, facts.attribution.trace.op_names
    length = (waits["end_ns"] - waits["start_ns"]).to_numpy()
    talked, copied = waits["communication_ns"].to_numpy(), waits["copies_ns"].to_numpy()
    keys = {name: waits[name].to_numpy() for name in _KEYS}
    parts = [
        {**keys, "meanwhile": np.full(len(waits), number), "ns": ns, "waits": (ns > 0).astype(np.int64)}
        for number, ns in enumerate((length - talked - copied, copied, talked))
    ]
    first, place = _distinct(compute["name"].to_numpy())
    each = compute["name"].to_numpy()[first]
    parts.append(
        {
            "window": compute["window"].to_numpy(),
            "cause": np.full(len(compute), _COMPUTE),
            "activity": np.array([facts.texts.code(kinds.family[name]) for name in each], np.int64)[place],
            "culprit": np.array([facts.texts.code(short_name(names[name])) for name in each], np.int64)[
                place
            ],
            "range": np.zeros(len(compute), np.int64),
            "exposed_by": np.zeros(len(compute), np.int64),
            "claim": np.full(len(compute), _CLAIMS.index(COUNTED)),
            "meanwhile": np.full(len(compute), len(MEANWHILE) - 1),
            "ns": compute["ns"].to_numpy(),
            "waits": np.ones(len(compute), np.int64),
        }
    )
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    some = np.flatnonzero(whole["ns"])
    whole = {name: values[some] for name, values in whole.items()}
    groups = windows.groupby(["path", "gpu", "pid"], sort=False)
    whole["group"] = groups.ngroup().to_numpy()[whole["window"].astype(np.int64)]
    first, place = _distinct(*(whole[name] for name in ("group", *_KEYS[1:], "meanwhile")))
    out = windows.iloc[whole["window"][first].astype(np.int64)][["path", "gpu", "pid"]].reset_index(drop=True)
    for name, words in {**facts.words, "meanwhile": MEANWHILE}.items():
        out[name] = np.array(words, object)[whole[name][first].astype(np.int64)]
    for name, of in (("waits", "waits"), ("waited_ns", "ns")):
        out[name] = np.zeros(len(first), np.int64)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, place, whole[of])
        out[name] = total
    span = (windows["end_ns"] - windows["start_ns"]).groupby(
        [windows[name] for name in ("path", "gpu", "pid")]
    )
    at = span.agg(["sum", "size"]).reindex(pd.MultiIndex.from_frame(out[["path", "gpu", "pid"]]))
    out["per_instance_ns"] = out["waited_ns"].to_numpy() / at["size"].to_numpy()
    out["share_of_span"] = out["waited_ns"].to_numpy() / at["sum"].to_numpy()
    unknown = out["cause"].isin(["compute", "unknown"])
    out["ceiling_ns"] = out["per_instance_ns"].where(~unknown)
    hints = [
        hint_for(cause, activity, culprit, exposed)
        for cause, activity, culprit, exposed in zip(
            *(out[name] for name in ("cause", "activity", "culprit", "exposed_by")), strict=True
        )
    ]
    out["hint"] = hints
    return out.sort_values(
        ["path", "gpu", "pid", "waited_ns"], ascending=[True, True, True, False], ignore_index=True
    )
