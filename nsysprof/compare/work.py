"""The ledger of work: launches, threads and moved bytes of each side. It complements the ledger of time."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysprof.compare.loaded import LoadedReport
from nsysprof.compare.selection import Selection
from nsysprof.core.arrays import Array, Floats, Index, Ints
from nsysprof.core.columns import marked
from nsysprof.core.text import join_first, join_words, one_line
from nsysprof.core.units import format_count, format_ns, format_ratio, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.statistics.runs import USUAL_NOISE
from nsysprof.trace.details import OpDetails, unpacked
from nsysprof.trace.trace import COPYING, KERNEL, MEMCPY, MEMORY_KINDS, MIGRATION

LESS, SAME, MORE, OTHER, UNKNOWN = "less", "same", "more", "other", "unknown"
MIN_CHANGE = 0.1  # of launches, threads and bytes: less is the same
MIN_FASTER = 0.65  # of the time before, for the same launches: less is another amount of work
MIN_QUICK = 0.2  # of the time of all GPU ops, in kernels of which that is asked
MIN_LOST = 0.05  # of the time of all GPU ops, in threads that kernels no longer run: less may be done elsewhere
MIN_LOST_OF_KNOWN = 0.25  # the same of the kernels whose threads tell their work
MIN_MOVED = 0.1  # of the time that steps save: what runs outside of them instead
_PERSISTENT = {"gemm", "attention", "communication"}  # families whose grids need not grow with the work
_PRODUCTS = {"gemm", "attention"}
_MAX_NAMES, _NAME = 3, 60
_CHECK = "check that the result is correct"
_KEY = ["kind", "name"]
_AMOUNTS = ["launches", "threads", "bytes", "flops", "local_memory", "ns", "launched"]
# The types of elements that names of kernels tell, the narrowest first: sums are kept in wider ones.
_ELEMENTS = {
    "FP8": r"e4m3|e5m2|fp8",
    "BF16": r"bf16|bfloat16|BFloat16|nvjet_t",
    "FP16": r"[^a-z]half|__half|Half|fp16|f16f16|hgemm|[hs](?:884|1688|16816)|nvjet_h",
    "TF32": r"tf32",
    "FP64": r"double|dgemm|f64",
    "FP32": r"float|sgemm|f32|fp32",
}


class Doubt(NamedTuple):
    """A doubt that both sides do the same work: a kind and a sentence."""

    kind: str
    text: str


LESS_WORK, MORE_WORK, OTHER_WORK = "less work", "more work", "other work"
MOVED, SPILLS, UNJUDGED = "moved", "spills", "cannot be judged"


def work_rows(base: Selection, new: Selection) -> pd.DataFrame:
    """Make a row per kernel name, copy direction and collective kind that either side runs.

    The columns of a row are ``kind, name, family, math_unit`` and ``element`` (the element type, empty if the name does
    not show it). For each side, further columns are given per call: ``launches``; ``threads`` (grid × block); ``bytes``
    (of copies and collectives); ``flops`` (from operator shapes); ``ns``; and ``local_memory`` (the most bytes per
    thread), NaN if not recorded.

    ``as_launched`` tells whether both sides launch with the same grids, blocks, registers and shared memory. ``ratio``
    is the threads or bytes of the new side ÷ the threads or bytes of the base. It is the total or the ratio per launch,
    whichever is nearer to 1, because a launch may be split. ``verdict`` describes the work of the new side: `less`,
    `same`, `more`, `other` (if only one side has it) or `unknown`. Rows with the most time come first.
    """
    sides = [_amounts(side) for side in (base, new)]
    of_name = ["family", "math_unit"]
    frames = [
        each.rename(columns={name: f"{side}_{name}" for name in (*_AMOUNTS, *of_name)}).set_index(_KEY)
        for side, each in zip(("base", "new"), sides, strict=True)
    ]
    both = pd.concat(frames, axis=1)
    for side in ("base", "new"):
        both[[f"{side}_launches", f"{side}_ns"]] = both[[f"{side}_launches", f"{side}_ns"]].fillna(0.0)
    for name in of_name:
        both[name] = both[f"base_{name}"].fillna(both[f"new_{name}"])
    both["as_launched"] = both["base_launched"] == both["new_launched"]
    both["ratio"] = [_ratio(row) for row in both.to_dict("records")]
    both["verdict"] = [_verdict(row) for row in both.to_dict("records")]
    both = both.drop(columns=[f"{side}_{name}" for side in ("base", "new") for name in (*of_name, "launched")])
    both = both.reset_index()
    both["element"] = [element_type(name) if kind == "kernel" else "" for kind, name in both[_KEY].to_numpy().tolist()]
    order = np.lexsort((both["name"].to_numpy(str), -both[["base_ns", "new_ns"]].max(axis=1)))
    return both.iloc[order].reset_index(drop=True)


def element_type(name: str) -> str:
    """Return the element type of a kernel, such as `BF16`; empty if the kernel name does not show it."""
    return next((element for element, written in _ELEMENTS.items() if re.search(written, name)), "")


def _amounts(side: Selection) -> pd.DataFrame:
    trace, op = side.loaded.trace, side.work.op
    details, ops, calls = side.loaded.op_details, trace.ops, max(side.ledger.calls, 1)
    threads = _product(details.grid[op]) * _product(details.block[op])
    size = np.full(len(ops), -1, np.int64)
    size[np.isin(ops.kind, COPYING)] = trace.copies.size_bytes
    known = trace.report.reader.collectives(trace)
    size[known.op] = known.size_bytes
    codes, of = np.unique(ops.name[op], return_inverse=True)

    def added(values: Array) -> Floats:
        return np.bincount(of, np.maximum(values, 0), len(codes)) / calls

    local = np.full(len(codes), -1, np.int64)
    np.maximum.at(local, of, details.local_memory[op])
    kinds = side.loaded.kinds
    kernel = np.bincount(of, ops.kind[op] == KERNEL, len(codes)) > 0
    frame = pd.DataFrame(
        {
            "kind": np.where(kernel, "kernel", "copy"),
            "name": pd.Series([trace.op_names[code] for code in codes.tolist()], dtype=object),
            "family": pd.Series([kinds.family[code] for code in codes.tolist()], dtype=object),
            "math_unit": pd.Series([kinds.math_unit[code] for code in codes.tolist()], dtype=object),
            "launches": np.bincount(of, minlength=len(codes)) / calls,
            "threads": added(threads),
            "bytes": added(size[op]),
            "flops": added(side.loaded.flops[op]),
            "local_memory": np.where(local >= 0, local, np.nan),
            "ns": added(ops.end[op] - ops.start[op]),
            "launched": _launched(details, op, of, len(codes)),
        }
    )
    frame.loc[frame["family"] == "communication", "kind"] = "collective"
    amounts = frame[["threads", "bytes", "flops"]]
    return frame.assign(**amounts.where(amounts > 0))


def _launched(details: OpDetails, op: Index, of: Index, count: int) -> pd.Series:
    """The grids, blocks, registers and shared memory with which the GPU ops of each name are launched."""
    how = (details.grid, details.block, details.registers, details.shared)
    rows = np.unique(np.column_stack([of, *(each[op] for each in how)]), axis=0)
    parts = np.split(rows[:, 1:], np.searchsorted(rows[:, 0], np.arange(1, count)))
    return pd.Series([each.tobytes() for each in parts], dtype=object)


def _product(packed: Ints) -> Ints:
    x, y, z = unpacked(packed)
    return x * y * z


def _ratio(row: dict[Any, Any]) -> float:
    name = "threads" if row["base_threads"] > 0 else "bytes"
    base, new = row[f"base_{name}"], row[f"new_{name}"]
    if not min(base, new, row["base_launches"], row["new_launches"]) > 0:
        return float("nan")
    often = row["new_launches"] / row["base_launches"] if name == "threads" else 1.0
    return float(min(new / base, new / base / often, key=lambda each: abs(np.log(each))))


def _verdict(row: dict[Any, Any]) -> str:
    if not row["base_launches"] or not row["new_launches"]:
        return OTHER
    ratio = row["ratio"]
    if row["base_family"] in _PERSISTENT and row["base_threads"] > 0:  # whose blocks may work until all is done
        if not min(row["base_ns"], row["new_ns"]) > 0:
            return UNKNOWN
        time = row["new_ns"] / row["base_ns"] * row["base_launches"] / row["new_launches"]
        if row["as_launched"] and abs(np.log(time)) < MIN_CHANGE:
            return SAME
        if (flops := row["new_flops"] / row["base_flops"]) > 0:
            return LESS if flops < 1 - MIN_CHANGE else MORE if flops > 1 / (1 - MIN_CHANGE) else SAME
        return LESS if max(ratio, time) < 1 - MIN_CHANGE else UNKNOWN
    return LESS if ratio < 1 - MIN_CHANGE else MORE if ratio > 1 / (1 - MIN_CHANGE) else SAME if ratio > 0 else UNKNOWN


def find_doubts(rows: pd.DataFrame, sides: Sequence[Selection], names: tuple[str, str], noun: str) -> Iterator[Doubt]:
    """Yield neutral warnings that the two sides may not do the same work: less, other or moved work."""
    rows = rows.assign(often=rows["new_launches"] / rows["base_launches"])
    if noun == "step":  # of whole recordings one may hold more steps
        yield from _flops(rows, names)
        yield from _fewer_launches(rows, names, noun)
    yield from _threads(rows, names)
    yield from _quicker(rows, sides[0].loaded, names)
    yield from _moved(sides, names)
    yield from _spills(rows, names)
    if sides[0].loaded is not sides[1].loaded:
        yield from _others(rows, names)


def _threads(rows: pd.DataFrame, names: tuple[str, str]) -> Iterator[Doubt]:
    """Kernels of one name run fewer threads, but not fewer launches; or more threads, but not more launches."""
    swapped = {
        f"{one}_{name}": f"{other}_{name}" for name in _AMOUNTS for one, other in (("base", "new"), ("new", "base"))
    }
    more = rows.rename(columns=swapped).assign(often=1 / rows["often"], ratio=1 / rows["ratio"])
    for kind, verdict, frame in ((LESS_WORK, LESS, rows), (MORE_WORK, MORE, more)):
        again = frame[(frame["often"] >= 1 - MIN_CHANGE) & (frame["kind"] == "kernel")]
        fewer = again[again["verdict"] == verdict]
        fewer = fewer[(fewer["new_ns"] < fewer["base_ns"]) & (fewer["ratio"] < 1)]
        # what runs in more launches may be done by other kernels
        instead = frame[frame["verdict"].isin((OTHER, MORE if verdict == LESS else LESS))]
        elsewhere = (instead["new_ns"] - instead["base_ns"]).clip(lower=0).sum()
        if elsewhere >= MIN_CHANGE * (fewer["base_ns"] - fewer["new_ns"]).sum():
            fewer = fewer[_about_one(fewer["often"])]
        lost = (fewer["base_ns"] * (1 - fewer["ratio"])).sum()
        known, every = (each["base_ns"].sum() for each in (again[again["verdict"] != UNKNOWN], frame))
        if lost > 0 and (lost >= MIN_LOST * every or (_one_program(frame) and lost >= MIN_LOST_OF_KNOWN * known)):
            some = [
                f"{_short(row['name'])} runs {format_ratio(row['ratio'])} the threads, in "
                + ("as many launches" if _about_one(row["often"]) else f"{format_ratio(row['often'])} the launches")
                for row in rows.loc[fewer.index].to_dict("records")
            ]
            check = f": {_CHECK}" if verdict == LESS else ""
            yield Doubt(kind, f"{kind} in {names[1]}: {join_first(some, _MAX_NAMES)}{check}")


def _flops(rows: pd.DataFrame, names: tuple[str, str]) -> Iterator[Doubt]:
    """Matrix products compute fewer or more FLOPs by their shapes, if both sides recorded nearly all shapes."""
    products = rows[rows["family"].isin(_PRODUCTS)]
    flops = [products[f"{side}_flops"] for side in ("base", "new")]
    known = [
        products.loc[each > 0, f"{side}_ns"].sum() >= (1 - MIN_CHANGE) * products[f"{side}_ns"].sum() > 0
        for side, each in zip(("base", "new"), flops, strict=True)
    ]
    base, new = (each.sum() for each in flops)
    fused = [bool((each[products["family"] == "attention"] > 0).any()) for each in flops]  # a causal one skips half
    if all(known) and fused[0] == fused[1] and not _about_one(new / base):
        kind, check = (LESS_WORK, f": {_CHECK}") if new < base else (MORE_WORK, "")
        counts = f"{format_count(round(new))} against {format_count(round(base))}"
        text = f"matrix products compute {format_ratio(new / base)} the FLOPs per step ({counts}, from shapes){check}"
        yield Doubt(kind, f"{kind} in {names[1]}: {text}")


def _one_program(rows: pd.DataFrame) -> bool:
    """Whether families with half of the time launch equally often, or move as many bytes, on both sides."""
    amounts = ["launches", "bytes"]
    sums = rows.groupby("family")[
        ["base_ns", *(f"{side}_{each}" for each in amounts for side in ("base", "new"))]
    ].sum()
    alike = [_about_one(sums[f"new_{each}"] / sums[f"base_{each}"]) for each in amounts]
    return bool(sums.loc[alike[0] | alike[1], "base_ns"].sum() >= rows["base_ns"].sum() / 2)


def _about_one(ratio: Any) -> Any:
    return (ratio >= 1 - MIN_CHANGE) & (ratio <= 1 / (1 - MIN_CHANGE))


def _quicker(rows: pd.DataFrame, base: LoadedReport, names: tuple[str, str]) -> Iterator[Doubt]:
    """A kernel takes much less time with equal launches; with unified memory, it may have waited for pages before."""
    alike = rows[_about_one(rows["often"]) & (rows["kind"] == "kernel")]
    quick = alike[alike["as_launched"] & (alike["new_ns"] < MIN_FASTER * alike["base_ns"])]
    quick = quick[quick["base_ns"] >= MIN_QUICK * rows["base_ns"].sum()]
    for row in quick.head(1).to_dict("records"):
        ratio = format_ratio(row["new_ns"] / row["base_ns"])
        text = f"{_short(row['name'])} takes {ratio} as long with the same grid, block and registers: "
        if _managed(base):
            text += f"{names[0]} uses unified memory, so page faults may have stalled the kernel there"
        else:
            text += f"only hardware counters can show whether the work is the same; {_CHECK}"
        yield Doubt(UNJUDGED, text)


def _managed(loaded: LoadedReport) -> bool:
    """Whether a program uses unified memory, judging by its copies, migrations and calls."""
    trace = loaded.trace
    managed = [MEMORY_KINDS.index(name) for name in ("managed", "managed static")]
    copies = trace.copies
    if (trace.ops.kind == MIGRATION).any() or np.isin([copies.source, copies.destination], managed).any():
        return True
    names = trace.report.reader.host_activity(trace).calls.names
    return any("AllocManaged" in name or "MallocManaged" in name for name in names)


def _fewer_launches(rows: pd.DataFrame, names: tuple[str, str], noun: str) -> Iterator[Doubt]:
    """Most kernels run less often, and hardly any other kernels replace them."""
    kernels = rows[rows["kind"] == "kernel"]
    total = kernels["base_ns"].sum()
    ratio = kernels["often"]
    rare = kernels[ratio.between(0, 1 - MIN_CHANGE, inclusive="neither")]
    removed = (rare["base_ns"] * (1 - ratio[rare.index])).sum()
    added = kernels.loc[kernels["base_launches"] == 0, "new_ns"].sum()
    if rare["base_ns"].sum() >= total / 2 > 0 and added < MIN_CHANGE * removed:
        often = float(np.average(ratio[rare.index], weights=rare["base_ns"]))
        text = f"{names[1]} does less work: most kernels run {format_ratio(often)} as often per {noun}"
        yield Doubt(LESS_WORK, f"{text}, and no other kernels replace them: {_CHECK}")


def _spills(rows: pd.DataFrame, names: tuple[str, str]) -> Iterator[Doubt]:
    """Kernels whose threads need more local memory than in the base, and long new kernels with local memory."""
    base = rows["base_local_memory"].where(rows["base_launches"] > 0, 0.0)
    known = (rows["base_launches"] > 0) | (rows["new_ns"] >= MIN_LOST * rows["new_ns"].sum())
    grown = rows[(rows["new_local_memory"] > base) & known]
    if len(grown):
        some = [
            f"{_short(name)} {int(new):,} bytes" + (f" ({int(old):,} in {names[0]})" if often > 0 else "")
            for name, new, old, often in grown[
                ["name", "new_local_memory", "base_local_memory", "base_launches"]
            ].itertuples(index=False)
        ]
        yield Doubt(
            SPILLS, f"threads of {names[1]} use more local memory (spilled registers): {join_words(some[:_MAX_NAMES])}"
        )


def _others(rows: pd.DataFrame, names: tuple[str, str]) -> Iterator[Doubt]:
    """The share of each side's time in kernels that the other side lacks, and in kernels whose work is unknown."""
    kernels = rows[rows["kind"] == "kernel"]
    other, unknown = kernels[kernels["verdict"] == OTHER], kernels[kernels["verdict"] == UNKNOWN]
    total = kernels[["base_ns", "new_ns"]].sum().clip(lower=1)
    shares = (other[["base_ns", "new_ns"]].sum() / total).tolist()
    if min(shares) > 1 - MIN_LOST:
        yield Doubt(
            OTHER_WORK,
            "other work: hardly any kernel runs on both sides, because kernels were rewritten or the programs differ",
        )
    elif min(shares) >= MIN_CHANGE:
        yield Doubt(
            OTHER_WORK,
            f"other work: kernels that run only on one side take {format_share(shares[0])} of kernel time "
            f"in {names[0]} and {format_share(shares[1])} in {names[1]}",
        )
    share = float(unknown["new_ns"].sum() / total["new_ns"])
    if share >= 0.5:
        families = join_words(unknown.groupby("family")["new_ns"].sum().sort_values(ascending=False).index[:2].tolist())
        yield Doubt(
            UNJUDGED,
            f"the work may differ in {families} kernels, which take {format_share(share)} of the kernel time of "
            f"{names[1]}: the grids of these kernels do not always grow with the work",
        )


def _moved(sides: Sequence[Selection], names: tuple[str, str]) -> Iterator[Doubt]:
    """Work that one side runs in its calls, and the other outside its calls: set-up, warm-up, capture, prefetch."""
    base, new = sides
    if base.loaded is new.loaded:
        return
    if base.is_whole:
        yield from _migrated_before(sides, names)
        return
    calls = min(base.ledger.calls, new.ledger.calls)
    saved = (base.ledger.per_call_ns - new.ledger.per_call_ns) * calls
    if saved < USUAL_NOISE * base.ledger.per_call_ns * calls:
        return
    inside, outside = zip(*(_by_kind(side) for side in sides), strict=True)
    moved = []
    for kind in outside[1]:
        grown = outside[1][kind] - outside[0].get(kind, 0)
        fewer = (inside[0].get(kind, 0) / base.ledger.calls - inside[1].get(kind, 0) / new.ledger.calls) * calls
        if fewer > MIN_MOVED * saved and grown > fewer / 2:
            moved.append(f"{kind} ({format_ns(grown)} more)")
    if moved:
        kinds, noun = join_first(moved, _MAX_NAMES), "steps" if base.steps is not None else "calls"
        yield Doubt(MOVED, f"work moved out of the {noun} of {names[1]}; the times exclude this work: {kinds}")


def _migrated_before(sides: Sequence[Selection], names: tuple[str, str]) -> Iterator[Doubt]:
    """Unified-memory migrations before the first GPU op, such as a prefetch, which times of whole traces exclude."""
    leads, spans = [], [side.span_ns for side in sides]
    for side in sides:
        ops, first = side.loaded.trace.ops, int(side.work.start.min())
        leads.append(first - int(ops.start[ops.kind == MIGRATION].min(initial=first)))
    if leads[1] > leads[0] and leads[1] > MIN_MOVED * spans[1]:
        ratio = (spans[0] + leads[0]) / (spans[1] + leads[1])
        how = f"{format_ratio(max(ratio, 1 / ratio))} {'faster' if ratio > 1 else 'slower'}"
        text = f"{names[1]} migrates unified memory before its first GPU operation, where timing starts"
        yield Doubt(MOVED, f"{text} ({format_ns(leads[1])}); including the migrations, {names[1]} is {how}")


def _by_kind(side: Selection) -> tuple[dict[str, int], dict[str, int]]:
    """The time of kernel families, copies by direction and migrations, in the calls and outside them."""
    trace, work = side.loaded.trace, side.work
    ops = trace.ops
    begin, end = (side.steps.start, side.steps.end) if side.steps is not None else (work.first_ns, work.last_ns)
    mine = marked(work.op, len(ops))
    order = np.argsort(begin)
    at = np.searchsorted(begin[order], ops.start, side="right") - 1
    during = (at >= 0) & (ops.start < end[order][np.maximum(at, 0)])
    mine |= (ops.kind == MIGRATION) & during
    label = np.array(side.loaded.kinds.family, object)[ops.name]
    label[ops.kind == MIGRATION] = "unified memory migrations"
    copies = np.flatnonzero(np.isin(ops.kind, COPYING))
    where = ops.kind[copies] == MEMCPY
    label[copies[where]] = [
        f"copies {MEMORY_KINDS[one]} to {MEMORY_KINDS[other]}"
        for one, other in zip(
            trace.copies.source[where].tolist(), trace.copies.destination[where].tolist(), strict=True
        )
    ]
    length = ops.end - ops.start
    both: tuple[dict[str, int], dict[str, int]] = {}, {}
    for text in np.unique(label.astype(str)).tolist():
        same = label == text
        both[0][text], both[1][text] = int(length[same & mine].sum()), int(length[same & ~mine].sum())
    return both


def _short(name: str) -> str:
    return one_line(short_name(name, _NAME), _NAME)
