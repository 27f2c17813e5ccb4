"""Account for the time of GPU windows, without pandas: compute time by kernel, waits by cause and responsible code."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import AnyInts, Array, Floats, Index, Ints
from nsysprof.core.columns import Column, ColumnTable, Texts, distinct, sums
from nsysprof.core.intervals import covered, expand_ranges, union
from nsysprof.kernels.classify import Kinds, short_name
from nsysprof.trace.trace import pid_of
from nsysprof.waits.culprits import account, held_up
from nsysprof.waits.facts import CAUSES, COMMUNICATION, COMPUTE, COUNTED, Facts, facts_of
from nsysprof.waits.walk import walk
from nsysprof.waits.windows import GpuLines, Windows, gpu_lines, stretches

MEANWHILE = ("nothing", "copies", "communication", "compute")  # what the GPU ran
PLACE = ("path", "gpu", "pid")
WAIT_KEYS = ("cause", "activity", "culprit", "range", "exposed_by", "claim")
_NO_CEILING = ("compute", "unknown")


@dataclass(frozen=True)
class Account:
    """The columns ``windows``, ``rows`` and ``held_up`` of a `Why`, and the ``facts`` from which they were computed."""

    facts: Facts
    windows: ColumnTable
    rows: ColumnTable
    held_up: ColumnTable


def account_of(
    attribution: Attribution,
    windows: Windows,
    paths: Sequence[str],
    kinds: Kinds,
    merge_names: Sequence[str] | None,
    chosen: AnyInts | None = None,
) -> Account:
    """Account for windows; ``paths`` are the texts of `Windows.path`, ``kinds`` the kinds of `Trace.op_names`.

    ``chosen`` are the ascending rows of the windows to account for (None: all).
    """
    facts, attribution = facts_of(attribution, kinds, merge_names), attribution.launched
    windows = windows if chosen is None else windows.take(chosen)
    table = _window_columns(facts, windows, paths)
    _, group = distinct(table.texts("path").codes, table["gpu"], table["pid"])
    attribution.trace.give_back()
    waited: list[dict[str, Ints]] = []
    computed: list[dict[str, Ints]] = []
    for gpu in np.unique(windows.gpu).tolist():  # one after the other: pieces of waits take room
        lines = gpu_lines(attribution.trace, facts.communication, gpu)
        pieces = wait_pieces(facts, windows, gpu, lines)
        _fill_times(table, windows, gpu, lines, pieces)
        waited += _added(group, pieces)
        del pieces
        computed.append(_computed(facts, windows, gpu, lines))
    rows = _rows(facts, table, group, [*waited, _compute_part(facts, group, computed)])
    return Account(facts, table, rows, _held_up(facts, table, group))


def wait_pieces(facts: Facts, windows: Windows, gpu: int, lines: GpuLines) -> dict[str, Array]:
    """Return the columns of `Why.waits` for one GPU, with texts as codes."""
    gaps = stretches(windows, gpu, lines)
    pieces = walk(facts.attribution.trace, facts.reasons, gaps.start, gaps.end, gaps.op)
    found = account(facts, pieces, gaps.window, windows)
    found["communication_ns"], found["copies_ns"] = _meanwhile(lines, found["start_ns"], found["end_ns"])
    return found


def rows_of_windows(facts: Facts, windows: Windows) -> dict[str, Ints]:
    """Return the account of each window: columns ``group`` (number of the window), codes of `Facts.words`, ``waits``
    and ``ns``.

    A window may have several rows with equal codes.
    """
    each = np.arange(len(windows))
    waited: list[dict[str, Ints]] = []
    computed: list[dict[str, Ints]] = []
    for gpu in np.unique(windows.gpu).tolist():
        lines = gpu_lines(facts.attribution.trace, facts.communication, gpu)
        waited += _added(each, wait_pieces(facts, windows, gpu, lines))
        computed.append(_computed(facts, windows, gpu, lines))
    parts = [*waited, _compute_part(facts, each, computed)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[-1]}


def _meanwhile(lines: GpuLines, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """How long communication ran in each piece, and copies in the rest of it."""
    communication = covered(lines.communication, start, end)
    return communication, covered(union(lines.communication, lines.copies), start, end) - communication


def _computed(facts: Facts, windows: Windows, gpu: int, lines: GpuLines) -> dict[str, Ints]:
    """The compute of each kernel in each window: the overlap of kernels counts for the earlier."""
    ops = facts.attribution.trace.ops
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
    ns, count = sums(place, inside, len(first)), np.bincount(place, minlength=len(first))
    return {"window": window[first], "name": name[at[first]].astype(np.int64), "ns": ns, "waits": count}


def _window_columns(facts: Facts, windows: Windows, paths: Sequence[str]) -> ColumnTable:
    """The columns of `Why.windows`, the times of its parts still 0."""
    trace = facts.attribution.trace
    code = {text: number for number, text in enumerate(dict.fromkeys(paths))}  # equal texts are one path
    columns: dict[str, Column] = {
        "path": Texts(np.array([code[text] for text in paths], np.int64)[windows.path], list(code)),
        "gpu": windows.gpu,
        "pid": pid_of(trace.processes[trace.op_process[windows.last]]),
        "range": windows.range,
        "start_ns": windows.start,
        "end_ns": windows.end,
        "between_ns": windows.begin - windows.start,
    }
    for name in ("compute_ns", "communication_ns", "copies_ns", "blocking_ns", "idle_ns"):
        columns[name] = np.zeros(len(windows), np.int64)
    return ColumnTable(columns)


def _fill_times(table: ColumnTable, windows: Windows, gpu: int, lines: GpuLines, pieces: dict[str, Array]) -> None:
    mine = np.flatnonzero(windows.gpu == gpu)
    start, end = windows.start[mine], windows.end[mine]
    compute = covered(lines.compute, start, end)
    blocks = np.where(pieces["cause"] == COMMUNICATION, pieces["end_ns"] - pieces["start_ns"], 0)
    parts = {"communication_ns": pieces["communication_ns"], "copies_ns": pieces["copies_ns"]}
    added = {
        name: sums(pieces["window"], values, len(windows))[mine]
        for name, values in {**parts, "blocking_ns": blocks}.items()
    }
    idle = end - start - compute - added["communication_ns"] - added["copies_ns"]
    for name, values in {"compute_ns": compute, **added, "idle_ns": idle}.items():
        table[name][mine] = values


def _added(group: Array, pieces: dict[str, Array]) -> list[dict[str, Ints]]:
    """Pieces of waits added up by path, GPU and the `WAIT_KEYS`, for each thing that the GPU ran meanwhile."""
    length = pieces["end_ns"] - pieces["start_ns"]
    communication, copies = pieces["communication_ns"], pieces["copies_ns"]
    out = []
    for number, ns in enumerate((length - communication - copies, copies, communication)):
        some = np.flatnonzero(ns)
        keys = {name: pieces[name][some] for name in WAIT_KEYS}
        keys = {"group": group[pieces["window"][some]], **keys, "meanwhile": np.full(len(some), number)}
        out.append(_sums(keys, np.ones(len(some), np.int64), ns[some]))
    return out


def _sums(keys: dict[str, Array], waits: Ints, ns: Ints) -> dict[str, Ints]:
    """Equal keys as one row, with their ``waits`` and ``ns`` added up."""
    first, place = distinct(*keys.values())
    added = {name: sums(place, values, len(first)) for name, values in (("waits", waits), ("ns", ns))}
    return {name: values[first].astype(np.int64) for name, values in keys.items()} | added


def _rows(facts: Facts, windows: ColumnTable, group: Index, parts: Sequence[dict[str, Ints]]) -> ColumnTable:
    """The rows of why.csv: waits and compute of each path and GPU, added up; they add up to its windows."""
    names = ("group", *WAIT_KEYS, "meanwhile")
    none = np.empty(0, np.int64)
    whole = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in (*names, "waits", "ns")}
    whole = _sums({name: whole[name] for name in names}, whole["waits"], whole["ns"])
    words: dict[str, Sequence[str]] = {**facts.words, "meanwhile": MEANWHILE}
    columns = _places(windows, group, whole["group"])
    columns |= {name: Texts(whole[name], texts) for name, texts in words.items()}
    columns |= {"waits": whole["waits"], "waited_ns": whole["ns"]}
    shares = _shares(windows, group, whole["group"], whole["ns"])
    ceiling = ~np.isin(whole["cause"], [CAUSES.index(cause) for cause in _NO_CEILING])
    columns |= {**shares, "ceiling_ns": np.where(ceiling, shares["per_instance_ns"], np.nan)}
    # of rows with equal time the texts decide, never the order of the file
    by = [*PLACE, "waited_ns", *WAIT_KEYS, "meanwhile"]
    table = ColumnTable(columns)
    keys = [-table[name] if name == "waited_ns" else _rank(columns[name]) for name in by]
    return table.take(np.lexsort(keys[::-1]))


def _rank(column: Column) -> Array:
    if not isinstance(column, Texts):
        return column
    place = {text: number for number, text in enumerate(sorted(set(column.words)))}
    return np.array([place[text] for text in column.words], np.int64)[column.codes]


def _places(windows: ColumnTable, group: Index, asked: Ints) -> dict[str, Column]:
    example = np.unique(group, return_index=True)[1][asked]
    return {name: windows.columns[name][example] for name in PLACE}


def _shares(windows: ColumnTable, group: Index, asked: Ints, ns: Ints) -> dict[str, Floats]:
    """Times per window of their group, and as shares of the time of its windows."""
    count = np.bincount(group)
    span = sums(group, windows["end_ns"] - windows["start_ns"], len(count))
    return {"per_instance_ns": ns / count[asked], "share_of_span": ns / span[asked]}


def _held_up(facts: Facts, windows: ColumnTable, group: Index) -> ColumnTable:
    """The columns of `Why.held_up`: the window of an op is the one that it starts in."""
    trace = facts.attribution.trace
    op, wait, culprit = held_up(facts)
    begun, gpu = trace.ops.start[op], trace.op_gpu[op]
    none = {name: np.empty(0, np.int64) for name in ("culprit", "group")}
    parts = [_sums(none, none["group"], none["group"])]
    for number in range(int(group.max(initial=-1)) + 1) if len(op) else ():
        rows = np.flatnonzero(group == number)
        start, end = windows["start_ns"][rows], windows["end_ns"][rows]
        at = np.searchsorted(start, begun, side="right") - 1
        mine = np.flatnonzero((at >= 0) & (begun < end[at]) & (gpu == windows["gpu"][rows[0]]))
        keys = {"culprit": culprit[mine], "group": np.full(len(mine), number)}
        parts.append(_sums(keys, np.ones(len(mine), np.int64), wait[mine]))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return ColumnTable(
        {
            "culprit": Texts(whole["culprit"], facts.texts.words),
            "waits": whole["waits"],
            "waited_ns": whole["ns"],
            **_places(windows, group, whole["group"]),
            **_shares(windows, group, whole["group"], whole["ns"]),
        }
    )


def _compute_part(facts: Facts, group: Array, parts: Sequence[dict[str, Ints]]) -> dict[str, Ints]:
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
