"""What all ranks together say, in sentences with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.fleet.collectives import Waiting
from nsysprof.fleet.gpu_activity import COMPUTE, COPIES, EXPOSED, HOST, QUEUE, SYNC
from nsysprof.fleet.range_iterations import WHOLE

PART_WORDS = {
    COMPUTE: "compute",
    EXPOSED: "communication that no compute hides",
    COPIES: "copies",
    HOST: "waiting for the host",
    SYNC: "idle after a synchronization",
    QUEUE: "idle between queued ops",
}
# How much of all waiting one rank has to cause to be the one that the others wait for: more where ranks are few.
_AWAITED_LEAST, _AWAITED_ALONE = 0.25, 0.75
_MOST_NAMED = 3
_LITTLE = 0.02  # of the time in iterations: not worth a sentence


def fleet_findings(
    path: str,
    ranks: pd.DataFrame,
    iterations: pd.DataFrame,
    spread: pd.DataFrame,
    split: pd.DataFrame,
    outliers: pd.DataFrame,
    waiting: Waiting,
) -> Iterator[str]:
    """The sentences, the most important first; the arguments are what a `Fleet` is made of."""
    mine = iterations[iterations["path"] == path]
    timed = ranks[ranks["span_ns"] > 0]
    if timed.empty:
        return
    yield _where_time_goes(path, timed, mine)
    if len(timed) < 2:
        return
    yield from _stragglers(path, timed, mine, spread)
    yield from _awaited(timed, waiting)
    yield from _imbalance(mine, timed)
    yield from _overlap(timed)
    yield from _slowest(split)
    named: list[Any] = list(outliers.head(_MOST_NAMED).itertuples(index=False))
    for row in named:
        yield (
            f"rank {row.rank} stands out in {row.iteration}: {format_ns(row.own_ns)} of its own, where"
            f" {format_ns(row.expected_ns)} was to be expected (robust z = {row.z:.0f})"
        )


def _where_time_goes(path: str, ranks: pd.DataFrame, iterations: pd.DataFrame) -> str:
    total = sum(int(ranks[f"{part}_ns"].sum()) for part in PART_WORDS)
    parts = {part: int(ranks[f"{part}_ns"].sum()) / max(total, 1) for part in (COMPUTE, EXPOSED, COPIES)}
    idle = int(ranks["idle_ns"].sum()) / max(total, 1)
    what = (
        f"compute {format_share(parts[COMPUTE])}, communication that no compute hides"
        f" {format_share(parts[EXPOSED])}, copies {format_share(parts[COPIES])}, idle {format_share(idle)}"
    )
    count = f"{len(ranks):,} rank{'' if len(ranks) == 1 else 's'}"
    if path == WHOLE or iterations.empty:
        return f"{count}, and nothing that repeats; of the time from first op to last: {what}"
    middle = format_ns(float(ranks["span_median_ns"].median()))
    size = len(iterations)
    many = f"{size:,} iteration{'' if size == 1 else 's'} of {path}, {middle} each (median)"
    return f"{count}, {many}; of that time: {what}"


def _stragglers(
    path: str, ranks: pd.DataFrame, iterations: pd.DataFrame, spread: pd.DataFrame
) -> Iterator[str]:
    found = ranks[ranks["straggler"]].sort_values("ratio", ascending=False, kind="stable")
    rows: list[Any] = list(found.head(_MOST_NAMED).itertuples(index=False))
    for row in rows:
        interval = (
            f"{format_ratio(row.low)} to {format_ratio(row.high)} at 95 % for all ranks together"
            if np.isfinite(row.low)
            else "too few iterations for a test"
        )
        z = f", robust z = {row.z:.1f}" if np.isfinite(row.z) else ""
        yield (
            f"rank {row.rank} is a straggler: its own time per iteration is {format_ratio(row.ratio)} that of the other"
            f" ranks ({interval}{z})"
        )
    if len(found) > _MOST_NAMED:
        yield f"and {len(found) - _MOST_NAMED:,} more stragglers: see ranks.csv"
    shared = iterations[iterations["ranks"] > 1]
    if shared.empty:
        return
    apart = float(shared["max_over_min"].median())
    [slowest] = spread[spread["path"] == path].itertuples(index=False)
    often = (
        f"rank {slowest.slowest_rank} is the slowest most often, in {slowest.times_slowest:,} of"
        f" {slowest.compared:,} iterations"
    )
    how = f"within an iteration the slowest rank takes {format_ratio(apart)} the fastest one's own time (median)"
    if not found.empty:
        yield f"{often}; {how}"
    elif apart >= 1 + 2 * _LITTLE:
        ratio = float(ranks["ratio"].max())
        yield (
            f"no rank is clearly a straggler: the largest ratio to the others is {format_ratio(ratio)}, and {often};"
            f" but {how}"
        )
    elif (awaited := awaited_rank(ranks)) is not None:
        yield (
            "no rank is clearly a straggler: the ranks are alike from the first op of an iteration to the last, but"
            f" rank {awaited} starts later; {how}"
        )
    else:
        yield f"no rank is clearly a straggler, and the ranks are alike: {how}"


def awaited_rank(ranks: pd.DataFrame) -> int | None:
    """The rank that the others wait for, that causes much more of the waiting than its share; None where none does, or
    the ranks hardly wait.
    """
    total = int(ranks["caused_ns"].sum())
    if not total or total < _LITTLE * _gpu_time(ranks):
        return None
    most = ranks.sort_values(["caused_ns", "rank"], ascending=[False, True], kind="stable").iloc[0]
    enough = _AWAITED_LEAST + _AWAITED_ALONE / len(ranks)
    return int(most["rank"]) if most["caused_ns"] >= enough * total else None


def _awaited(ranks: pd.DataFrame, waiting: Waiting) -> Iterator[str]:
    """Who comes last to the collectives. That rank is in them for the shortest time, not for the longest."""
    total = int(ranks["caused_ns"].sum())
    inside = int(ranks["collective_ns"].sum())
    if not total or not inside:
        return
    length = _gpu_time(ranks)
    shares = ranks.assign(
        caused=ranks["caused_ns"] / total,
        waits=ranks["waiting_ns"] / ranks["collective_ns"].where(ranks["collective_ns"] > 0),
    )
    count = len(waiting.each["label"].unique())
    amount = (
        f"{format_share(total / inside)} of the time in collectives, and {format_share(total / length)} of the"
        " iterations, is waiting for the rank that comes last"
    )
    if total / length < _LITTLE:
        yield f"the ranks hardly wait for each other: {amount}"
        return
    awaited = awaited_rank(ranks)
    if awaited is not None:
        most = shares[shares["rank"] == awaited].iloc[0]
        other = (
            shares[shares["rank"] != most["rank"]]
            .sort_values("waits", ascending=False, kind="stable")
            .iloc[0]
        )
        least, longest = format_ns(int(most["collective_ns"])), format_ns(int(other["collective_ns"]))
        yield (
            f"rank {awaited} is the one the others wait for: {format_share(other['waits'])} of the time that rank"
            f" {int(other['rank'])} is in collectives is waiting. It is in them for the shortest time, {least} against"
            f" {longest} of rank {int(other['rank'])}, because it comes last: in {int(most['times_awaited']):,} of"
            f" {count:,} iterations, and {format_share(most['caused'])} of all waiting is for it; {amount}"
        )
        return
    named = shares.sort_values(["caused", "rank"], ascending=[False, True], kind="stable").head(_MOST_NAMED)
    turns = ", ".join(
        f"{format_share(row['caused'])} of the waiting is for rank {int(row['rank'])}, which comes last in"
        f" {int(row['times_awaited']):,} of {count:,} iterations"
        for row in named.to_dict("records")
    )
    yield f"the ranks take turns at being waited for: {turns}; {amount}"


def _gpu_time(ranks: pd.DataFrame) -> int:
    """The time of the iterations, of each GPU of a rank."""
    return int((ranks["own_ns"] + ranks["exposed_ns"]).sum())


def _imbalance(iterations: pd.DataFrame, ranks: pd.DataFrame) -> Iterator[str]:
    """What the same work would save at most if it were spread evenly: only where ranks wait for each other."""
    shared = iterations[iterations["ranks"] == len(ranks)]
    if shared.empty or not int(ranks["collective_ns"].sum()):
        return
    gpus = _gpu_time(ranks) / max(int(ranks["span_ns"].sum()), 1)  # of a rank, whose own time adds them up
    length = float(shared["span_max_ns"].sum())
    slowest, mean = (float(shared[f"own_{name}_ns"].sum()) / gpus for name in ("max", "mean"))
    saved = (slowest - mean) / length if length else 0.0
    if saved >= _LITTLE:
        each = (slowest - mean) / len(shared)
        yield (
            f"spread evenly over the ranks, the same work would save {format_ns(each)} per iteration at most,"
            f" {format_share(saved)}: by so much the slowest rank's own time exceeds the mean of all"
        )


def _overlap(ranks: pd.DataFrame) -> Iterator[str]:
    talking = ranks[ranks["communication_ns"] > 0]
    if talking.empty:
        return
    hidden = 1 - talking["exposed_ns"] / talking["communication_ns"]
    low = talking.iloc[int(hidden.to_numpy().argmin())]
    yield (
        f"compute runs during {format_share(float(hidden.median()))} of the communication of the median rank, least on"
        f" rank {int(low['rank'])}: {format_share(float(hidden.min()))}"
    )


def _slowest(split: pd.DataFrame) -> Iterator[str]:
    """The slowest rank against the median one, part by part."""
    if split.empty:
        return
    rows: list[Any] = list(split.itertuples(index=False))
    own = sum(row.slowest_ns - row.median_ns for row in rows if row.part != EXPOSED)
    whole = sum(row.median_ns for row in rows)
    if own < _LITTLE * whole or rows[0].slowest_rank == rows[0].median_rank:
        return
    parts = sorted(
        (row for row in rows if row.part != EXPOSED), key=lambda row: row.median_ns - row.slowest_ns
    )
    parts = [row for row in parts if abs(row.slowest_ns - row.median_ns) >= 0.05 * own]
    told = ", ".join(f"{_signed(row.slowest_ns - row.median_ns)} {PART_WORDS[row.part]}" for row in parts)
    [exposed] = [row for row in rows if row.part == EXPOSED]
    apart = exposed.slowest_ns - exposed.median_ns
    instead = (
        f"; its communication that nothing hides differs by {_signed(apart)}"
        if abs(apart) >= 0.05 * own
        else ""
    )
    yield (
        f"per iteration rank {rows[0].slowest_rank}, the slowest, takes {format_ns(own)} more of its own than"
        f" rank {rows[0].median_rank}, the median one: {told}{instead}"
    )


def _signed(ns: int) -> str:
    return f"{'+' if ns >= 0 else '-'}{format_ns(abs(ns))}"
