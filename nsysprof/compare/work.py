"""The ledger of work beside that of time: what either side launches, in how many threads, and what it moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.compare.selection import Selection
from nsysprof.core.text import join_first, one_line
from nsysprof.core.units import format_ns, format_ratio
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
_MAX_NAMES, _NAME = 3, 60
_KEY = ["kind", "name"]
_AMOUNTS = ["launches", "threads", "bytes", "ns", "launched"]


def work_rows(base: Selection, new: Selection) -> pd.DataFrame:
    """A row per name of kernels, direction of copies and kind of collectives that either side runs.

    ``kind, name, family``, of either side per call ``launches, threads`` (grid × block, NaN where not recorded),
    ``bytes`` (of copies and collectives, NaN where not recorded) and ``ns``; ``as_launched``: whether both sides
    launch with the same grids, blocks, registers and shared memory; ``verdict``: how the work of the new side
    compares, `less`, `same`, `more`, `other` (on one side only) or `unknown`. Most time first.
    """
    sides = [_amounts(side) for side in (base, new)]
    frames = [
        each.rename(columns={name: f"{side}_{name}" for name in (*_AMOUNTS, "family")}).set_index(_KEY)
        for side, each in zip(("base", "new"), sides, strict=True)
    ]
    both = pd.concat(frames, axis=1)
    for side in ("base", "new"):
        both[[f"{side}_launches", f"{side}_ns"]] = both[[f"{side}_launches", f"{side}_ns"]].fillna(0.0)
    both["family"] = both["base_family"].fillna(both["new_family"])
    both["as_launched"] = both["base_launched"] == both["new_launched"]
    both["verdict"] = [_verdict(row) for row in both.to_dict("records")]
    both = both.drop(columns=[f"{side}_{name}" for side in ("base", "new") for name in ("family", "launched")])
    both = both.reset_index()
    order = np.lexsort((both["name"].to_numpy(str), -both[["base_ns", "new_ns"]].max(axis=1)))
    return both.iloc[order].reset_index(drop=True)


def _amounts(side: Selection) -> pd.DataFrame:
    """The amounts of one side, per call."""
    trace, op = side.loaded.trace, side.work.op
    details, ops, calls = side.loaded.op_details, trace.ops, max(side.ledger.calls, 1)
    threads = _product(details.grid[op]) * _product(details.block[op])
    size = np.full(len(ops), -1, np.int64)
    size[np.isin(ops.kind, COPYING)] = trace.copies.size_bytes
    known = trace.report.reader.collectives(trace)
    size[known.op] = known.size_bytes
    codes, of = np.unique(ops.name[op], return_inverse=True)

    def added(values: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.bincount(of, np.maximum(values, 0), len(codes)) / calls

    family = [side.loaded.kinds.family[code] for code in codes.tolist()]
    kernel = np.bincount(of, ops.kind[op] == KERNEL, len(codes)) > 0
    frame = pd.DataFrame(
        {
            "kind": np.where(kernel, "kernel", "copy"),
            "name": pd.Series([trace.op_names[code] for code in codes.tolist()], dtype=object),
            "family": pd.Series(family, dtype=object),
            "launches": np.bincount(of, minlength=len(codes)) / calls,
            "threads": added(threads),
            "bytes": added(size[op]),
            "ns": added(ops.end[op] - ops.start[op]),
            "launched": _launched(details, op, of, len(codes)),
        }
    )
    frame.loc[frame["family"] == "communication", "kind"] = "collective"
    amounts = frame[["threads", "bytes"]]
    return frame.assign(**amounts.where(amounts > 0))


def _launched(details: OpDetails, op: NDArray[np.intp], of: NDArray[np.intp], count: int) -> pd.Series:
    """With what grids, blocks, registers and bytes of shared memory the GPU ops of each name are launched."""
    how = (details.grid, details.block, details.registers, details.static_shared, details.dynamic_shared)
    rows = np.unique(np.column_stack([of, *(each[op] for each in how)]), axis=0)
    parts = np.split(rows[:, 1:], np.searchsorted(rows[:, 0], np.arange(1, count)))
    return pd.Series([each.tobytes() for each in parts], dtype=object)


def _product(packed: NDArray[np.int64]) -> NDArray[np.int64]:
    x, y, z = unpacked(packed)
    threads: NDArray[np.int64] = x * y * z
    return threads


def _verdict(row: dict[Any, Any]) -> str:
    if not row["base_launches"] or not row["new_launches"]:
        return OTHER
    name = "threads" if row["base_threads"] > 0 else "bytes"
    amount = row[f"base_{name}"], row[f"new_{name}"]
    if not min(amount) > 0:
        return UNKNOWN
    ratio = amount[1] / amount[0]
    if name == "threads":  # of one launch: how often they are launched is another question
        ratio *= row["base_launches"] / row["new_launches"]
    if row["family"] in _PERSISTENT and name == "threads":  # whose blocks may work until all is done
        time = row["new_ns"] / row["base_ns"] * row["base_launches"] / row["new_launches"]
        return LESS if max(ratio, time) < 1 - MIN_CHANGE else UNKNOWN
    return LESS if ratio < 1 - MIN_CHANGE else MORE if ratio > 1 / (1 - MIN_CHANGE) else SAME


def work_sentences(rows: pd.DataFrame, names: tuple[str, str], noun: str) -> Iterator[str]:
    """What a reader should check before believing a time: less or other work, never an accusation."""
    base_ns = rows["base_ns"].sum()
    often = rows["new_launches"] / rows["base_launches"]
    rows = rows.assign(threads=rows["new_threads"] / rows["base_threads"] / often)
    alike = rows[often.between(1 - MIN_CHANGE, 1 / (1 - MIN_CHANGE)) & (rows["kind"] == "kernel")]
    fewer = alike[alike["verdict"] == LESS]
    lost = (fewer["base_ns"] * (1 - fewer["threads"])).sum()
    known = alike.loc[alike["verdict"] != UNKNOWN, "base_ns"].sum()
    by_family = rows.groupby("family")[["base_launches", "new_launches", "base_ns"]].sum()
    as_often = (by_family["new_launches"] / by_family["base_launches"]).between(1 - MIN_CHANGE, 1 / (1 - MIN_CHANGE))
    one_program = by_family.loc[as_often, "base_ns"].sum() >= base_ns / 2
    if lost > 0 and (lost >= MIN_LOST * base_ns or (one_program and lost >= MIN_LOST_OF_KNOWN * known)):
        some = [
            f"{_short(name)} runs {format_ratio(threads)} the threads"
            for name, threads in zip(fewer["name"], fewer["threads"], strict=True)
        ]
        yield f"less work in {names[1]}: {join_first(some, _MAX_NAMES)}, in as many launches: check its result"
    quick = alike[alike["as_launched"] & (alike["new_ns"] < MIN_FASTER * alike["base_ns"])]
    quick = quick[quick["base_ns"] >= MIN_QUICK * base_ns]
    for row in quick.head(1).to_dict("records"):
        yield (
            f"{_short(row['name'])} takes {format_ratio(row['new_ns'] / row['base_ns'])} the time, launched alike:"
            " whether it does the same work is not recorded; check its result"
        )
    if noun == "step":  # of whole recordings one may hold more steps
        yield from _fewer_launches(rows, names, noun)


def _fewer_launches(rows: pd.DataFrame, names: tuple[str, str], noun: str) -> Iterator[str]:
    """Most kernels run less often, and hardly any others instead."""
    kernels = rows[rows["kind"] == "kernel"]
    total = kernels["base_ns"].sum()
    ratio = kernels["new_launches"] / kernels["base_launches"].where(kernels["base_launches"] > 0)
    rare = kernels[ratio.between(0, 1 - MIN_CHANGE, inclusive="neither")]
    removed = (rare["base_ns"] * (1 - ratio[rare.index])).sum()
    added = kernels.loc[kernels["base_launches"] == 0, "new_ns"].sum()
    if rare["base_ns"].sum() >= total / 2 > 0 and added < MIN_CHANGE * removed:
        often = float(np.average(ratio[rare.index], weights=rare["base_ns"]))
        yield (
            f"less work in {names[1]}: most of its kernels run {format_ratio(often)} as often per {noun}, and no others"
            " in their place: check its result"
        )


def moved_sentences(sides: Sequence[Selection], names: tuple[str, str]) -> Iterator[str]:
    """What one side runs in its steps, and the other outside of them: set-up, warm-up, capture, prefetch."""
    base, new = sides
    if base.steps is None or new.steps is None or base.loaded is new.loaded:
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
        kinds = join_first(moved, _MAX_NAMES)
        yield f"moved out of the steps of {names[1]}, which no longer count it: {kinds}"


def _by_kind(side: Selection) -> tuple[dict[str, int], dict[str, int]]:
    """For how long families of kernels, copies by direction and migrations run in the steps, and outside of them."""
    trace = side.loaded.trace
    ops, steps = trace.ops, side.steps
    assert steps is not None
    mine = np.zeros(len(ops), bool)
    mine[side.work.op] = True
    order = np.argsort(steps.start)
    at = np.searchsorted(steps.start[order], ops.start, side="right") - 1
    during = (at >= 0) & (ops.start < steps.end[order][np.maximum(at, 0)])
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
