"""Accounts for the GPU windows of ranges: compute by kernel, and every wait by cause and culprit; rows add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.core.intervals import Ints, cover_before, expand_ranges, union
from nsysprof.kernels.classify import Kinds, Rules, classify, load_rules, short_name
from nsysprof.trace.trace import pid_of
from nsysprof.waits.walk import walk
from nsysprof.waits.windows import GpuLines, Windows, gpu_lines, stretches
from nsysprof.why.culprits import (
    CAUSES,
    COMMUNICATION,
    COMPUTE,
    COUNTED,
    LATE_HOST,
    PIECE,
    Facts,
    account,
    distinct,
    held_up,
    read_facts,
)
from nsysprof.why.findings import (
    LAUNCH_STEP_NS,
    LAUNCHING_ACTIVITIES,
    Finding,
    findings,
    hint_for,
)
from nsysprof.why.ranges import choose_windows, count_calls
from nsysprof.why.residuals import residual_frame, without_ceilings

MEANWHILE = ("nothing", "copies", "communication", "compute")  # what the GPU ran
MIN_LAUNCHES = 0.05  # of the short waits in a range: with less of it in launches it does not launch
_KEYS = ("cause", "activity", "culprit", "range", "exposed_by", "claim")
_PLACE = ["path", "gpu", "pid"]
_HELD_UP = ["culprit", "waits", "waited_ns", *_PLACE, "per_instance_ns", "share_of_span"]


@dataclass(frozen=True)
class Why:
    """Why the GPUs of a report waited.

    ``windows`` has a row per window: ``path``, ``gpu``, ``pid``, ``range`` (a row of `Trace.ranges`, -1 for the whole
    trace), ``start_ns``, ``end_ns``, and what they add up to: ``compute_ns``, ``communication_ns`` and ``copies_ns``
    (both exposed) and ``idle_ns``; ``blocking_ns`` is the part of the exposed communication that the next compute
    depended on. `waits` has a row per piece of a wait: ``window``, ``start_ns``, ``end_ns``, ``cause``, ``activity``,
    ``culprit``, ``range``, ``exposed_by``, ``claim``, and ``op``, the GPU op that ran or came late. ``rows`` adds them
    up by path and GPU, see `tables.WHY`. ``held_up`` has a row per path, GPU and kernel that another stream had to wait
    for while it computed: the columns of those three and ``waits``, ``waited_ns``, ``per_instance_ns``,
    ``share_of_span``; that time is compute, and in no row of a wait. ``chosen`` says how ranges were chosen where
    nobody named them; ``lacks`` names what the recording does not hold; ``facts`` and ``gpu_windows`` are
    what the rest was made from. ``residuals`` says how well dependencies explain windows, see `residual_frame`.
    ``per`` is what ``per_instance_ns`` is per: `window`, or `call` of an inner range (column ``calls`` of ``windows``).
    """

    attribution: Attribution
    windows: pd.DataFrame
    rows: pd.DataFrame
    held_up: pd.DataFrame
    chosen: str
    lacks: tuple[str, ...]
    facts: Facts
    gpu_windows: Windows
    residuals: pd.DataFrame
    per: str = "window"

    @cached_property
    def waits(self) -> pd.DataFrame:
        """A row per piece of a wait; made when asked for, as there can be millions of them."""
        return self.waits_of(np.arange(len(self.windows)))

    def waits_of(self, rows: NDArray[np.integer]) -> pd.DataFrame:
        """The pieces of waits of some rows of ``windows``, without those of others."""
        chosen = Windows(
            **{field.name: getattr(self.gpu_windows, field.name)[rows] for field in fields(Windows)}
        )
        parts = []
        for gpu in np.unique(chosen.gpu).tolist():
            lines = gpu_lines(self.attribution.trace, self.facts.communication, gpu)
            parts.append(_pieces(self.facts, chosen, gpu, lines))
        names = (*PIECE, "communication_ns", "copies_ns")
        none = np.empty(0, np.int64)
        columns = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}
        columns["window"] = rows[columns["window"]].astype(np.int64)
        waits = pd.DataFrame(columns)
        for name, words in self.facts.words.items():  # a code each, not a text each
            waits[name] = pd.Categorical.from_codes(waits[name].to_numpy(np.int64), pd.Index(words))
        return waits

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about what is doubtful or missing in the trace."""
        trace = self.attribution.trace
        return (*trace.report.about.warnings, *trace.warnings)

    @property
    def kinds(self) -> Kinds:
        """The kinds of the op names."""
        return self.facts.kinds

    @cached_property
    def findings(self) -> dict[str, list[Finding]]:
        """For each path sentences about its largest waits, see `findings.findings`."""
        found = findings(self.rows, self.held_up, self.per)
        return {path: found.get(path, []) for path in map(str, self.windows["path"].unique())}

    @cached_property
    def launch_bound(self) -> NDArray[np.bool_]:
        """Which rows of ``waits`` are steps of a host that launches more slowly than the GPU runs.

        These are pieces below `LAUNCH_STEP_NS` in which the host launched, made other CUDA calls that wait for nothing,
        or ran code between them, whatever let the GPU run dry; of the ranges of a path, process and GPU those in which
        launches take `MIN_LAUNCHES` of that time.
        """
        length = (self.waits["end_ns"] - self.waits["start_ns"]).to_numpy()
        activity = self.waits["activity"]
        short = (self.waits["cause"] == CAUSES[LATE_HOST]) & activity.isin(LAUNCHING_ACTIVITIES)
        short &= length < LAUNCH_STEP_NS
        place = self.windows.groupby(_PLACE).ngroup().to_numpy()[self.waits["window"]]
        _, group = distinct(place, self.waits["range"].cat.codes.to_numpy())
        total, launches = (
            np.bincount(group, weights=np.where(some, length, 0))
            for some in (short, short & (activity == "launch calls"))
        )
        bound: NDArray[np.bool_] = (short & (launches >= MIN_LAUNCHES * total)[group]).to_numpy()
        return bound


def why(
    attribution: Attribution,
    select: str | None = None,
    *,
    per: str | None = None,
    rules: Rules | None = None,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
) -> Why:
    """Account for the GPU windows of the ranges that the glob ``select`` matches; without one of those that repeat.

    Where ``attribution`` reads CUDA graphs as captured, what they replay is named after the range that captured it;
    windows, and what the host did, are those of the real launches all the same.

    Times per instance are per window, or per call of the inner ranges whose names match ``per``. Raises `NsysprofError`
    where no range matches. Near-linear in ops and calls.
    """
    windows, paths, chosen = choose_windows(attribution.launched, select, merge_names)
    kinds = classify(rules or load_rules(None), attribution.trace.op_names)
    answer = account_for(attribution, windows, paths, kinds, merge_names=merge_names, chosen=chosen)
    if per is None:
        return answer
    return _per_call(answer, count_calls(attribution, windows, paths, per, merge_names))


def account_for(
    attribution: Attribution,
    windows: Windows,
    paths: Sequence[str],
    kinds: Kinds,
    *,
    merge_names: Sequence[str] | None = DEFAULT_MERGE,
    chosen: str = "",
) -> Why:
    """Account for windows: ``paths`` are the texts of `Windows.path`, ``kinds`` those of `Trace.op_names`."""
    named = attribution.op_owner if attribution.replay is not None else None
    attribution = attribution.launched
    trace, facts = attribution.trace, read_facts(attribution, kinds, merge_names, named)
    frame = _window_frame(facts, windows, paths)
    group = frame.groupby(_PLACE, sort=False).ngroup().to_numpy(np.int64)
    waited: list[dict[str, NDArray[np.int64]]] = []
    computed: list[dict[str, NDArray[np.int64]]] = []
    for gpu in np.unique(windows.gpu).tolist():  # one after the other: pieces of waits take room
        lines = gpu_lines(trace, facts.communication, gpu)
        pieces = _pieces(facts, windows, gpu, lines)
        _fill_times(frame, windows, gpu, lines, pieces)
        waited += _added(group, pieces)
        computed.append(_computed(facts, windows, gpu, lines))
    rows = _rows(facts, frame, group, [*waited, _compute_part(facts, group, computed)])
    held = _held_up(facts, frame)
    residuals = residual_frame(trace, facts.reasons, windows, frame["path"])
    rows = without_ceilings(rows, residuals)
    return Why(attribution, frame, rows, held, chosen, facts.lacks, facts, windows, residuals)


def _pieces(facts: Facts, windows: Windows, gpu: int, lines: GpuLines) -> dict[str, NDArray[Any]]:
    """The columns of `Why.waits` of one GPU, texts as codes."""
    gaps = stretches(windows, gpu, lines)
    pieces = walk(facts.attribution.trace, facts.reasons, gaps.start, gaps.end, gaps.op)
    found = account(facts, pieces, gaps.window, windows)
    found["communication_ns"], found["copies_ns"] = _meanwhile(lines, found["start_ns"], found["end_ns"])
    return found


def _per_call(answer: Why, calls: Ints) -> Why:
    """The same answer with times per call; ``calls`` are those of each window."""
    windows = answer.windows.assign(calls=calls)
    each = windows.groupby(_PLACE)["calls"].agg(["size", "sum"])
    windows_of_call = (each["size"] / each["sum"]).rename("windows_of_call")

    def scaled(frame: pd.DataFrame) -> pd.DataFrame:
        scale = windows_of_call.reindex(pd.MultiIndex.from_frame(frame[_PLACE])).to_numpy()
        names = [name for name in ("per_instance_ns", "ceiling_ns") if name in frame]
        return frame.assign(**{name: frame[name] * scale for name in names})

    return replace(
        answer, windows=windows, rows=scaled(answer.rows), held_up=scaled(answer.held_up), per="call"
    )


# ---- adding up


def _covered(line: tuple[Ints, Ints], start: Ints, end: Ints) -> Ints:
    return cover_before(*line, end) - cover_before(*line, start)


def _meanwhile(lines: GpuLines, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """How much of each piece communication ran, and how much of the rest copies did."""
    communication = _covered(lines.communication, start, end)
    return communication, _covered(union(lines.communication, lines.copies), start, end) - communication


def _computed(facts: Facts, windows: Windows, gpu: int, lines: GpuLines) -> dict[str, NDArray[np.int64]]:
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
    first, place = distinct(window, name[at])  # a row per window and kernel
    ns, count = np.zeros(len(first), np.int64), np.bincount(place, minlength=len(first))
    np.add.at(ns, place, inside)
    return {"window": window[first], "name": name[at[first]].astype(np.int64), "ns": ns, "waits": count}


def _window_frame(facts: Facts, windows: Windows, paths: Sequence[str]) -> pd.DataFrame:
    """The frame `Why.windows`, its parts still 0."""
    trace = facts.attribution.trace
    frame = pd.DataFrame(
        {
            "path": np.array(paths, object)[windows.path],
            "gpu": windows.gpu,
            "pid": pid_of(trace.processes[trace.op_process[windows.last]]),
            "range": windows.range,
            "start_ns": windows.start,
            "end_ns": windows.end,
        }
    )
    for name in ("compute_ns", "communication_ns", "copies_ns", "blocking_ns", "idle_ns"):
        frame[name] = np.zeros(len(frame), np.int64)
    return frame


def _fill_times(
    frame: pd.DataFrame, windows: Windows, gpu: int, lines: GpuLines, pieces: dict[str, NDArray[Any]]
) -> None:
    """Fill in what the windows of one GPU add up to."""
    mine = np.flatnonzero(windows.gpu == gpu)
    start, end = windows.start[mine], windows.end[mine]
    compute = _covered(lines.compute, start, end)
    blocks = np.where(pieces["cause"] == COMMUNICATION, pieces["end_ns"] - pieces["start_ns"], 0)
    parts = {"communication_ns": pieces["communication_ns"], "copies_ns": pieces["copies_ns"]}
    added = {}
    for name, values in {**parts, "blocking_ns": blocks}.items():
        total = np.zeros(len(windows), np.int64)
        np.add.at(total, pieces["window"], values)
        added[name] = total[mine]
    idle = end - start - compute - added["communication_ns"] - added["copies_ns"]
    for name, values in {"compute_ns": compute, **added, "idle_ns": idle}.items():
        frame.loc[mine, name] = values


def _added(group: NDArray[Any], pieces: dict[str, NDArray[Any]]) -> list[dict[str, NDArray[np.int64]]]:
    """Pieces of waits added up by path, GPU and the `_KEYS`, for each thing that the GPU ran meanwhile."""
    length = pieces["end_ns"] - pieces["start_ns"]
    communication, copies = pieces["communication_ns"], pieces["copies_ns"]
    out = []
    for number, ns in enumerate((length - communication - copies, copies, communication)):
        some = np.flatnonzero(ns)
        keys = {name: pieces[name][some] for name in _KEYS}
        keys = {"group": group[pieces["window"][some]], **keys, "meanwhile": np.full(len(some), number)}
        out.append(_sums(keys, np.ones(len(some), np.int64), ns[some]))
    return out


def _sums(
    keys: dict[str, NDArray[Any]], waits: NDArray[np.int64], ns: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Equal keys as one row, with their ``waits`` and ``ns`` added up."""
    first, place = distinct(*keys.values())
    out = {name: values[first].astype(np.int64) for name, values in keys.items()}
    for name, values in (("waits", waits), ("ns", ns)):
        out[name] = np.zeros(len(first), np.int64)
        np.add.at(out[name], place, values)
    return out


def _rows(
    facts: Facts,
    windows: pd.DataFrame,
    group: NDArray[Any],
    parts: Sequence[dict[str, NDArray[np.int64]]],
) -> pd.DataFrame:
    """The rows of why.csv: waits and compute of each path and GPU, added up; they add up to its windows."""
    names = ("group", *_KEYS, "meanwhile")
    none = np.empty(0, np.int64)
    whole = {
        name: np.concatenate([none, *(part[name] for part in parts)]) for name in (*names, "waits", "ns")
    }
    whole = _sums({name: whole[name] for name in names}, whole["waits"], whole["ns"])
    window = np.unique(group, return_index=True)[1]
    out = windows.iloc[window[whole["group"]]][_PLACE].reset_index(drop=True)
    for name, words in {**facts.words, "meanwhile": MEANWHILE}.items():
        out[name] = np.array(words, object)[whole[name]]
    out["waits"], out["waited_ns"] = whole["waits"], whole["ns"]
    spans = (windows["end_ns"] - windows["start_ns"]).groupby([windows[name] for name in _PLACE])
    of_path = spans.agg(["sum", "size"]).reindex(pd.MultiIndex.from_frame(out[_PLACE]))
    out["per_instance_ns"] = out["waited_ns"].to_numpy() / of_path["size"].to_numpy()
    out["share_of_span"] = out["waited_ns"].to_numpy() / of_path["sum"].to_numpy()
    out["ceiling_ns"] = out["per_instance_ns"].where(~out["cause"].isin(["compute", "unknown"]))
    cells = (out[name] for name in ("cause", "activity", "culprit", "exposed_by"))
    out["hint"] = [hint_for(*row) for row in zip(*cells, strict=True)]
    by = [
        *_PLACE,
        "waited_ns",
        *_KEYS,
        "meanwhile",
    ]  # of rows with equal time the texts decide, never the order of the file
    return out.sort_values(by, ascending=[name != "waited_ns" for name in by], ignore_index=True)


def _held_up(facts: Facts, windows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `Why.held_up`: the window of an op is the one that it starts in."""
    trace = facts.attribution.trace
    op, wait, culprit = held_up(facts)
    begun, gpu = trace.ops.start[op], trace.op_gpu[op]
    parts = []
    for place, rows in windows.groupby(_PLACE, sort=False) if len(op) else ():
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        at = np.searchsorted(start, begun, side="right") - 1
        mine = (at >= 0) & (begun < end[at]) & (gpu == rows["gpu"].iloc[0])
        if not mine.any():
            continue
        found = pd.DataFrame({"culprit": culprit[mine], "waits": 1, "waited_ns": wait[mine]})
        found = found.groupby("culprit", as_index=False).sum()
        found["culprit"] = np.array(facts.texts.words, object)[found["culprit"].to_numpy(np.int64)]
        columns: dict[str, Any] = dict(zip(_PLACE, place, strict=True))
        columns["per_instance_ns"] = found["waited_ns"] / len(rows)
        columns["share_of_span"] = found["waited_ns"] / int((end - start).sum())
        parts.append(found.assign(**columns))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_HELD_UP)


def _compute_part(
    facts: Facts, group: NDArray[Any], parts: Sequence[dict[str, NDArray[np.int64]]]
) -> dict[str, NDArray[np.int64]]:
    """What each kernel computed, by path and GPU, in the columns of a wait."""
    none = np.empty(0, np.int64)
    names = ("window", "name", "ns", "waits")
    compute = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}
    first, place = distinct(compute["name"])
    each = compute["name"][first].tolist()
    family = [facts.texts.code(facts.kinds.family[name]) for name in each]
    kernel = [facts.texts.code(short_name(facts.attribution.trace.op_names[name])) for name in each]
    none = np.zeros(len(place), np.int64)
    keys = {
        "group": group[compute["window"]],
        "cause": none + COMPUTE,
        "activity": np.array(family, np.int64)[place],
        "culprit": np.array(kernel, np.int64)[place],
        "range": none,
        "exposed_by": none,
        "claim": none + COUNTED,
        "meanwhile": none + MEANWHILE.index("compute"),
    }
    return _sums(keys, compute["waits"], compute["ns"])
