"""The findings over all ranks: sentences with numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.core.text import plural
from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.fleet.rank_part import FAR_LONGER
from nsysprof.fleet.stragglers import BY_EACH, BY_SPREAD, MIN_SLOWNESS, MIN_Z, NOT_SLOWER, Waiting
from nsysprof.fleet.tables import BLOCKED
from nsysprof.formats.rank_answer import COMPUTE, COPIES, EXPOSED, HOST, QUEUE, SYNC, WHOLE
from nsysprof.statistics.summary import LEAST_SAMPLES

_PART_WORDS = {
    COMPUTE: "compute",
    EXPOSED: "exposed communication",
    COPIES: "copies",
    HOST: "waiting for the host",
    SYNC: "idle after a synchronization",
    QUEUE: "idle between queued GPU ops",
}
# How much of all waiting one rank has to cause to be the one that the others wait for: more where ranks are few.
_MIN_CAUSED, _MIN_CAUSED_MORE = 0.25, 0.75
_MAX_NAMED = 3
_MIN_SHARE = 0.02  # of the time in iterations: less is not worth a sentence


def fleet_findings(
    path: str,
    usual: pd.DataFrame,
    left_out: tuple[str, ...],
    iterations: pd.DataFrame,
    spread: pd.DataFrame,
    split: pd.DataFrame,
    outliers: pd.DataFrame,
    waiting: Waiting,
) -> Iterator[str]:
    """Write the sentences, the most important first; the arguments are fields of a `Fleet`.

    Sums cover only usual iterations, because one warm-up iteration can take longer than all others together.
    """
    iterations = iterations[iterations["path"] == path]
    timed = usual[usual["span_ns"] > 0]
    if timed.empty:
        return
    yield _where_time_goes(path, timed, iterations, left_out)
    if left_out:
        yield _far_longer(iterations, left_out)
    if len(timed) < 2:
        return
    yield from _stragglers(path, timed, iterations, spread)
    yield from _awaited(timed, waiting)
    yield from _blocked(timed)
    yield from _imbalance(iterations[~iterations["iteration"].isin(left_out)], timed)
    yield from _overlap(timed)
    yield from _slowest(split, timed, "in the whole report" if path == WHOLE else "per iteration")
    rows: list[Any] = list(outliers.head(_MAX_NAMED).itertuples(index=False))
    for row in rows:
        yield (
            f"rank {row.rank} is an outlier in {row.iteration}: {format_ns(row.own_ns)} excluding exposed "
            f"communication, instead of the expected {format_ns(row.expected_ns)} (robust z = {row.z:.0f})"
        )


def _where_time_goes(path: str, ranks: pd.DataFrame, iterations: pd.DataFrame, left_out: tuple[str, ...]) -> str:
    what = ", ".join(f"{part} {share}" for part, share in time_shares(ranks).items())
    count = plural(len(ranks), "rank")
    if path == WHOLE or iterations.empty:
        return f"{count}, no iterations found; shares of the time from first op to last: {what}"
    middle = format_ns(float(ranks["span_median_ns"].median()))
    size = len(iterations)
    many = f"{plural(size, 'iteration')} of {path}, {middle} each (median)"
    without = f" without {without_text(left_out)}" if left_out else ""
    return f"{count}, {many}; share of iteration time{without}: {what}"


def time_shares(ranks: pd.DataFrame) -> dict[str, str]:
    """Return the share of each kind of time in the ranks' iterations."""
    total = sum(int(ranks[f"{part}_ns"].sum()) for part in _PART_WORDS)
    parts = {_PART_WORDS[part]: part for part in (COMPUTE, EXPOSED, COPIES)} | {"idle": "idle"}
    return {name: format_share(int(ranks[f"{part}_ns"].sum()) / max(total, 1)) for name, part in parts.items()}


def without_text(left_out: tuple[str, ...]) -> str:
    """Name the iterations left out as unusual, or count them."""
    return left_out[0] if len(left_out) == 1 else f"{len(left_out):,} iterations that take far longer"


def _far_longer(iterations: pd.DataFrame, left_out: tuple[str, ...]) -> str:
    """Describe the iterations that are left out of the usual iterations."""
    far = iterations[iterations["iteration"].isin(left_out)]
    share = format_share(float(far["span_max_ns"].sum() / iterations["span_max_ns"].sum()))
    longest = far.sort_values("span_max_ns", ascending=False, kind="stable").iloc[0]
    first = tuple(iterations["iteration"].head(len(far)).tolist()) == left_out
    hint = f"; --skip {len(far)} excludes {'it' if len(far) == 1 else 'them'} from the medians too" if first else ""
    what = (
        f"{longest['iteration']} takes {format_ns(int(longest['span_max_ns']))}"
        if len(far) == 1
        else f"{len(far):,} iterations take more than {FAR_LONGER} times the median, up to"
        f" {format_ns(int(longest['span_max_ns']))} ({longest['iteration']})"
    )
    return f"{what} ({share} of the time of all iterations); excluded from shares and sums{hint}"


def _stragglers(path: str, ranks: pd.DataFrame, iterations: pd.DataFrame, spread: pd.DataFrame) -> Iterator[str]:
    slow = ranks[ranks["straggler"]].sort_values("ratio", ascending=False, kind="stable")
    rows: list[Any] = list(slow.head(_MAX_NAMED).itertuples(index=False))
    for row in rows:
        interval = "too few iterations for a test"
        if row.basis != BY_SPREAD:
            sure = "in all of them" if row.basis == BY_EACH else "with 95 % confidence for all ranks together"
            often = f"longer in {row.slower:,} of {row.compared:,} iterations"
            interval = f"{often}, {format_ratio(row.low)} to {format_ratio(row.high)} {sure}"
        z = f", robust z = {row.z:.1f}" if np.isfinite(row.z) else ""
        yield (
            f"straggler: rank {row.rank} takes {format_ratio(row.ratio)} as long per iteration as other "
            f"ranks, excluding exposed communication ({interval}{z})"
        )
    if len(slow) > _MAX_NAMED:
        yield f"and {len(slow) - _MAX_NAMED:,} more stragglers: see ranks.csv"
    shared = iterations[iterations["ranks"] > 1]
    if shared.empty:
        if slow.empty:
            yield straggler_state(ranks, whole=path == WHOLE).text
        return
    apart = float(shared["max_over_min"].median())
    [slowest] = spread[spread["path"] == path].itertuples(index=False)
    often = (
        f"rank {slowest.slowest_rank} is the slowest most often, in {slowest.times_slowest:,} of"
        f" {slowest.compared:,} iterations"
    )
    how = (
        f"excluding exposed communication, the slowest rank of an iteration takes {format_ratio(apart)} as long as the"
        " fastest (median over iterations)"
    )
    if not slow.empty:
        yield f"{often}; {how}"
        return
    state = straggler_state(ranks, whole=path == WHOLE)
    awaited = awaited_rank(ranks)
    if state.rank is not None:
        too = "; the waiting times of the other ranks support this" if awaited == state.rank else ""
        yield f"{state.text}{too}; {how}"
    elif apart >= 1 + 2 * _MIN_SHARE:
        yield f"{state.text}; {often}, and {how}"
    elif awaited is not None:
        yield (
            f"{state.text}: all ranks take equally long from first to last op, but rank {awaited} starts later; {how}"
        )
    else:
        yield f"{state.text}, and the ranks are alike: {how}"


@dataclass(frozen=True)
class StragglerState:
    """A sentence about a fleet without a proven straggler, its short form, and the possible straggler's ``rank``."""

    text: str
    short: str
    rank: int | None = None


def straggler_state(ranks: pd.DataFrame, *, whole: bool = False) -> StragglerState:
    """Describe a fleet without a proven straggler: there is no straggler, there may be one, or the data does not
    suffice.

    The sentence says that there is no straggler only if this is proven. ``whole``: whole reports are compared, not
    iterations.
    """
    known = ranks[ranks["ratio"].notna()].sort_values("ratio", ascending=False, kind="stable")
    if known.empty:
        return StragglerState(
            "the ranks have no iteration in common, so it is unknown which rank is slow", "No iterations to compare"
        )
    most = known.iloc[0]
    rank, ratio, limit = int(most["rank"]), format_ratio(most["ratio"]), format_ratio(1 + MIN_SLOWNESS)
    few = most["compared"] < LEAST_SAMPLES
    count = "one report of each rank" if whole else plural(int(most["compared"]), "iteration")
    if most["ratio"] >= 1 + MIN_SLOWNESS:
        if few and np.isfinite(most["z"]):
            why = f"no test is possible with {count}, and the rank is not a clear outlier (robust z = {most['z']:.1f})"
        elif few:
            why = f"{count} {'is' if whole else f'of {len(known)} ranks are'} too few to prove it"
        elif most["low"] > 1 and most["z"] < MIN_Z:
            why = f"the other ranks differ just as much from each other (robust z = {most['z']:.1f})"
        elif most["low"] > 1:
            why = f"iterations are autocorrelated, so {count} are too few for proof"
        else:
            why = (
                "the ratio varies too much between iterations for proof "
                f"({format_ratio(most['low'])} to {format_ratio(most['high'])})"
            )
        often = f", and the rank takes longer in {int(most['slower']):,} of {int(most['compared']):,} iterations"
        often, each = ("", "") if whole else (often, " per iteration")
        return StragglerState(
            f"possible straggler: rank {rank} takes {ratio} as long{each} as others, excluding exposed "
            f"communication{often}; but {why}",
            f"Possible straggler: rank {rank} takes {ratio} as long as the other ranks, excluding exposed "
            "communication",
            rank,
        )
    if (known["verdict"] == NOT_SLOWER).all():
        return StragglerState(
            f"no rank is a straggler: excluding exposed communication, each rank takes less than {limit} as long "
            "as the others",
            "No rank is a straggler",
        )
    why = f"{count} {'is' if whole else 'are'} too few" if few else "iterations differ too much"
    return StragglerState(
        f"no straggler found, but a slowdown of {limit} cannot be ruled out, because {why}; the slowest "
        f"rank takes {ratio} as long as the other ranks",
        "No straggler found",
    )


def awaited_rank(ranks: pd.DataFrame) -> int | None:
    """Find the rank that causes much more than its share of the waiting. The result is None if there is no such rank,
    or if ranks hardly wait.
    """
    total = int(ranks["caused_ns"].sum())
    if not total or total < _MIN_SHARE * _gpu_time(ranks):
        return None
    most = ranks.sort_values(["caused_ns", "rank"], ascending=[False, True], kind="stable").iloc[0]
    enough = _MIN_CAUSED + _MIN_CAUSED_MORE / len(ranks)
    return int(most["rank"]) if most["caused_ns"] >= enough * total else None


def waiting_words(ranks: pd.DataFrame) -> str:
    """Name the rank for which the others wait in collectives, in a few words; empty if no rank causes waits."""
    total, most = int(ranks["caused_ns"].sum()), awaited_rank(ranks)
    if not total or not int(ranks["collective_ns"].sum()):
        return ""
    if total < _MIN_SHARE * _gpu_time(ranks):
        return "the ranks hardly wait for each other"
    return "the ranks take turns at arriving last" if most is None else f"mostly for rank {most}"


def _awaited(ranks: pd.DataFrame, waiting: Waiting) -> Iterator[str]:
    """Name the rank that arrives last at the collectives: it spends the shortest time in them, not the longest."""
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
        f"waiting for the last rank takes {format_share(total / inside)} of the time in collectives "
        f"({format_share(total / length)} of iteration time)"
    )
    awaited = awaited_rank(ranks)
    if awaited is not None:
        most = shares[shares["rank"] == awaited].iloc[0]
        other = shares[shares["rank"] != most["rank"]].sort_values("waits", ascending=False, kind="stable").iloc[0]
        least, longest = format_ns(int(most["collective_ns"])), format_ns(int(other["collective_ns"]))
        yield (
            f"rank {awaited} arrives last in {int(most['times_awaited']):,} of {count:,} iterations and "
            f"causes {format_share(most['caused'])} of all waiting; in collectives, rank {awaited} spends {least}, and "
            f"rank {int(other['rank'])} spends {longest} ({format_share(other['waits'])} of it waiting); {amount}"
        )
        return
    if total / length < _MIN_SHARE:
        yield f"{waiting_words(ranks)}: {amount}"
        return
    named = shares.sort_values(["caused", "rank"], ascending=[False, True], kind="stable").head(_MAX_NAMED)
    turns = ", ".join(
        f"rank {int(row['rank'])} causes {format_share(row['caused'])} of the waiting (last in"
        f" {int(row['times_awaited']):,} of {count:,} iterations)"
        for row in named.to_dict("records")
    )
    yield f"{waiting_words(ranks)}: {turns}; {amount}"


def _blocked(ranks: pd.DataFrame) -> Iterator[str]:
    """State for which share of exposed communication the next compute waited, and which part was due to a late peer."""
    known = ranks[ranks["blocking_ns"].notna()]
    blocking, exposed = int(known["blocking_ns"].sum()), int(known["exposed_ns"].sum())
    if blocking < _MIN_SHARE * _gpu_time(known) or not exposed:
        return
    most = known.sort_values(["blocking_ns", "rank"], ascending=[False, True], kind="stable").head(_MAX_NAMED)
    each = []
    for row in most.to_dict("records"):
        ns = [format_ns(int(row[name]) / max(int(row["iterations"]), 1)) for name in BLOCKED]
        what = f"rank {int(row['rank'])} waits for {ns[0]}"
        if row["late_peer_ns"] > 0:
            what += f" ({ns[1]} until late rank {int(row['late_peer'])} arrives, {ns[2]} for the transfer)"
        each.append(what)
    each_time = "the longest waits per iteration: " if len(known) > len(most) else "per iteration, "
    yield (
        f"{format_share(blocking / exposed)} of the exposed communication delays compute; {each_time}{'; '.join(each)}"
    )


def _gpu_time(ranks: pd.DataFrame) -> int:
    """Add up the time of the iterations over all GPUs of all ranks."""
    return int((ranks["own_ns"] + ranks["exposed_ns"]).sum())


def _imbalance(iterations: pd.DataFrame, ranks: pd.DataFrame) -> Iterator[str]:
    """Estimate the most that evenly spread work would save; only if ranks wait for each other."""
    shared = iterations[iterations["ranks"] == len(ranks)]
    if shared.empty or not int(ranks["collective_ns"].sum()):
        return
    gpus = _gpu_time(ranks) / max(int(ranks["span_ns"].sum()), 1)  # of a rank, whose own time adds them up
    length = float(shared["span_max_ns"].sum())
    slowest, mean = (float(shared[f"own_{name}_ns"].sum()) / gpus for name in ("max", "mean"))
    saved = (slowest - mean) / length if length else 0.0
    if saved >= _MIN_SHARE:
        each = (slowest - mean) / len(shared)
        yield (
            f"load imbalance costs up to {format_ns(each)} per iteration ({format_share(saved)}): time of the"
            " slowest rank minus the mean of all ranks, excluding exposed communication"
        )


def _overlap(ranks: pd.DataFrame) -> Iterator[str]:
    talking = ranks[ranks["communication_ns"] > 0]
    if talking.empty:
        return
    hidden = 1 - talking["exposed_ns"] / talking["communication_ns"]
    if not hidden.any():
        yield "0 % of communication overlaps with compute"
        return
    low = talking.iloc[int(hidden.to_numpy().argmin())]
    yield (
        f"{format_share(float(hidden.median()))} of communication overlaps with compute"
        f" ({middle_rank(len(talking))}; least on rank {int(low['rank'])}, {format_share(float(hidden.min()))})"
    )


def middle_rank(count: int) -> str:
    """Return the word for the middle of ``count`` ranks: their median or, with two ranks, their mean."""
    return "mean of both ranks" if count == 2 else "median rank"


def _slowest(split: pd.DataFrame, ranks: pd.DataFrame, each: str) -> Iterator[str]:
    """Compare the slowest rank with the median rank, part by part, if it is also slower in the same iterations.

    ``each``: the unit of the times, such as "per iteration".
    """
    slow = ranks["rank"][ranks["ratio"] >= 1 + MIN_SLOWNESS]
    if split.empty or split["slowest_rank"].iloc[0] not in set(slow.tolist()):
        return
    rows: list[Any] = list(split.itertuples(index=False))
    own = sum(row.slowest_ns - row.median_ns for row in rows if row.part != EXPOSED)
    whole = sum(row.median_ns for row in rows)
    if own < _MIN_SHARE * whole or rows[0].slowest_rank == rows[0].median_rank:
        return
    parts = sorted((row for row in rows if row.part != EXPOSED), key=lambda row: row.median_ns - row.slowest_ns)
    parts = [row for row in parts if abs(row.slowest_ns - row.median_ns) >= 0.05 * own]
    differences = ", ".join(f"{_signed(row.slowest_ns - row.median_ns)} {_PART_WORDS[row.part]}" for row in parts)
    [exposed] = [row for row in rows if row.part == EXPOSED]
    apart = exposed.slowest_ns - exposed.median_ns
    instead = f"; exposed communication differs by {_signed(apart)}" if abs(apart) >= 0.05 * own else ""
    median = f"rank {rows[0].median_rank}{' (median)' if len(ranks) > 2 else ''}"
    yield (
        f"rank {rows[0].slowest_rank} (the slowest) takes {format_ns(own)} longer {each} than {median}, "
        f"excluding exposed communication: {differences}{instead}"
    )


def _signed(ns: int) -> str:
    return f"{'+' if ns >= 0 else '−'}{format_ns(abs(ns))}"
