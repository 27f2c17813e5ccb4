"""Compare ranks: find the rank that is slower in the same iterations, and the rank for which the other ranks wait in
collectives.

The waiting of a rank is its time in a collective minus the shortest time of any rank in this collective (see
`waits.peers`). Clocks need not be synchronized: the ends of collectives show the offsets between clocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysprof.core.arrays import Floats, Index, Ints
from nsysprof.core.columns import sums
from nsysprof.fleet.identity import Ranked
from nsysprof.formats.rank_answer import RankPart
from nsysprof.statistics.confidence import LEVEL
from nsysprof.statistics.dependence import dependence
from nsysprof.statistics.distributions import normal_quantile
from nsysprof.statistics.summary import LEAST_SAMPLES, SURE_FROM, summarize
from nsysprof.waits.peers import wait_for_last

# What it takes to be called a straggler: this much slower than the median of the others, and surely so. Ratios are of
# equal iterations: how much iterations differ from each other must not hide how much ranks do.
MIN_SLOWNESS = 0.05
MIN_Z = 3.5
SLOWER, NOT_SLOWER, NOT_PROVEN = "slower", "not slower", "not proven"
BY_INTERVAL, BY_EACH, BY_SPREAD = "interval", "every iteration", "spread of ranks"
_ITERATIONS_PER_EXCEPTION = 15  # where every iteration has to show it, one in so many need not
_MIN_RANKS_FOR_Z = 5  # fewer have no spread worth the name
_MAX_OUTLIERS = 20
_MAX_RANKS_WITHOUT_SELF = 16  # up to here a rank is compared with the others without itself
_OUTLIER_Z, _OUTLIER_RATIO = 6.0, 1.2
_TO_SIGMA = 1.4826  # the median absolute deviation of normal samples times this is their standard deviation


def straggler_rows(own: pd.DataFrame) -> pd.DataFrame:
    """Judge each rank by its row of ``own``: ns per iteration, excluding exposed communication; NaN if missing.

    Columns are ``rank``, and `RANKS` from ``ratio`` to ``compared``. ``low``, ``high``: the interval of the ratio (at
    95 % for all ranks together), or its minimum and maximum over iterations if the rank is slower in each iteration.
    Only ranks with a ratio at least `MIN_SLOWNESS` above 1 have these values.

    ``verdict`` is "slower", "not slower" or "not proven". A rank is slower if the interval is above 1 and the effective
    number of iterations is at least `SURE_FROM`. A rank also counts as slower if it is slower in every iteration and
    there are at least `LEAST_SAMPLES` iterations (see `_is_slower_in_each`). With five or more ranks, the robust
    z-score of the rank must also reach `MIN_Z`. ``basis`` is the test. A rank is not slower if its ratio is
    significantly below 1 + `MIN_SLOWNESS`.
    """
    values: Floats = own.to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = values / _of_the_others(values)
    ratios[~np.isfinite(ratios)] = np.nan
    ratio = _median(ratios, 1)[:, 0]
    z = robust_z(ratio) if np.isfinite(ratio).sum() >= _MIN_RANKS_FOR_Z else np.full(len(ratio), np.nan)
    frame = pd.DataFrame({"rank": own.index.to_numpy(), "ratio": ratio, "z": z})
    frame["low"], frame["high"] = np.nan, np.nan
    verdict, basis = np.full(len(ratio), NOT_PROVEN, object), np.full(len(ratio), "", object)
    for at in np.flatnonzero(np.isfinite(ratio)).tolist():
        known = ratios[at][np.isfinite(ratios[at])]
        if ratio[at] < 1 + MIN_SLOWNESS:
            if len(known) >= LEAST_SAMPLES and _at_most(known) < 1 + MIN_SLOWNESS:
                verdict[at] = NOT_SLOWER
            continue
        by = BY_SPREAD
        if len(known) >= LEAST_SAMPLES:
            level = 1 - (1 - LEVEL) / len(values)  # Bonferroni: the ranks were all looked at
            summary = summarize(known, level=level)
            low, high, by = summary.interval.low, summary.interval.high, ""
            if low > 1 and summary.interval.level >= level and summary.order.effective >= SURE_FROM:
                by = BY_INTERVAL
            elif _is_slower_in_each(known):
                low, high, by = known.min(), known.max(), BY_EACH
            frame.loc[at, ["low", "high"]] = low, high
        if by and (z[at] >= MIN_Z or (np.isnan(z[at]) and by != BY_SPREAD)):
            verdict[at], basis[at] = SLOWER, by
    frame["straggler"] = verdict == SLOWER
    frame["verdict"], frame["basis"] = verdict, basis
    frame["slower"], frame["compared"] = (ratios > 1).sum(axis=1), np.isfinite(ratios).sum(axis=1)
    return frame


def _is_slower_in_each(ratios: Floats) -> bool:
    """Return whether a rank is slower in every iteration and, in all but one in 15 iterations, slower by at least
    `MIN_SLOWNESS` and by half of its median slowdown.

    If iterations resemble the ones before them, the effective n can be too small for an interval, although the rank
    differs from the others by far more than iterations differ from each other. In simulated fleets of 2 to 8 ranks and
    15 iterations (times vary by 3 % and depend on the previous iteration, with phi from 0 to 0.8), this test finds a
    rank that is 1.27 times slower in 99 of 100 fleets, and names one of equal ranks in less than 1 of 100.
    """
    low = max(float(np.median(ratios) + 1) / 2, 1 + MIN_SLOWNESS)
    return bool((ratios > 1).all() and (ratios < low).sum() <= len(ratios) // _ITERATIONS_PER_EXCEPTION)


def _at_most(ratios: Floats) -> float:
    """Estimate the upper 95 % limit of the median: the order statistic of a sign test with the effective n."""
    reach = normal_quantile(LEVEL) / 2 / np.sqrt(dependence(ratios).effective)
    return float(np.quantile(ratios, min(1.0, 0.5 + reach), method="higher"))


def robust_z(values: Floats) -> Floats:
    """Return the distance of each value from the median in robust standard deviations; 0 if most values are equal."""
    known = values[np.isfinite(values)]
    middle = np.median(known)
    sigma = _TO_SIGMA * float(np.median(np.abs(known - middle)))
    if sigma == 0:
        # more than half are equal: what the others differ by on average has to do
        sigma = float(np.mean(np.abs(known - middle))) * 1.2533
    return (values - middle) / sigma if sigma > 0 else np.where(np.isfinite(values), 0.0, np.nan)


def outlier_rows(own: pd.DataFrame) -> pd.DataFrame:
    """Find iterations that take long on one rank, compared with the other ranks and with the rank's other iterations.

    Return at most `_MAX_OUTLIERS` iterations, longest first, in the columns ``rank, iteration, own_ns, expected_ns,
    ratio, z``. With fewer than three ranks, there are no outliers. ``z`` is the robust z-score of the ratio's logarithm
    among all ranks and iterations.
    """
    names = ("rank", "iteration", "own_ns", "expected_ns", "ratio", "z")
    values: Floats = own.to_numpy(np.float64)
    if len(values) < 3 or values.shape[1] < 3:
        return pd.DataFrame(columns=names)
    with np.errstate(invalid="ignore", divide="ignore"):
        log = np.log(np.where(values > 0, values, np.nan))
    log -= _median(log, 0)
    log -= _median(log, 1)
    z = robust_z(log)
    hits = np.argwhere((z > _OUTLIER_Z) & (log > np.log(_OUTLIER_RATIO)))
    rank, iteration = hits[np.argsort(-log[hits[:, 0], hits[:, 1]], kind="stable")][:_MAX_OUTLIERS].T
    ratio = np.exp(log[rank, iteration])
    return pd.DataFrame(
        {
            "rank": own.index.to_numpy()[rank],
            "iteration": own.columns.to_numpy()[iteration],
            "own_ns": values[rank, iteration].astype(np.int64),
            "expected_ns": np.rint(values[rank, iteration] / ratio).astype(np.int64),
            "ratio": ratio,
            "z": z[rank, iteration],
        }
    )


def _of_the_others(values: Floats) -> Floats:
    """For each rank and iteration, take the median of the other ranks (of all ranks if there are many)."""
    if len(values) > _MAX_RANKS_WITHOUT_SELF or len(values) < 2:
        return np.broadcast_to(_median(values, 0), values.shape).copy()
    return np.stack([_median(np.delete(values, at, axis=0), 0)[0] for at in range(len(values))])


def _median(values: Floats, axis: int) -> Floats:
    """Take the median of the known values along an axis, which is kept; NaN if no value is known."""
    known = np.isfinite(values).any(axis=axis, keepdims=True)
    median: Floats = np.nanmedian(np.where(known, values, 0.0), axis=axis, keepdims=True)
    return np.where(known, median, np.nan)


_WAITING = ("rank", "label", "collectives", "collective_ns", "waiting_ns", "caused_ns", "late_peer_ns")
_LATE = ("rank", "label", "peer", "late_ns")


@dataclass(frozen=True)
class Waiting:
    """The time that ranks spend waiting in collectives.

    ``each`` has a row per rank and iteration: ``rank``, ``label``, ``collectives`` (the number of collectives),
    ``collective_ns`` (the time in collectives), ``waiting_ns`` (the part beyond the shortest time of any rank),
    ``caused_ns`` (how long other ranks waited because this rank arrived last), and ``late_peer_ns`` (the waiting that
    blocked compute). ``late`` shows how long each rank waited for each other rank; its columns are ``rank, label, peer,
    late_ns``.

    ``matched`` and ``unmatched`` count the collectives of all ranks with and without a counterpart on other ranks.
    ``offset_ns`` shows, for each rank, how far its clock is ahead of the first rank's clock; it is empty if nothing was
    matched. ``spread_ns`` is half the width of the middle 90 % of the differences that remain between the ends.
    """

    each: pd.DataFrame
    late: pd.DataFrame
    matched: int
    unmatched: int
    offset_ns: Mapping[int, int]
    spread_ns: int


def find_waiting(ranks: Sequence[Ranked], path: str) -> Waiting:
    """Find the `Waiting` in the iterations of a range path.

    Within an iteration, the k-th collective of a communicator is the same on all ranks if the collectives of these
    ranks have the same names in the same order. If ranks differ, only the largest group of ranks with equal names is
    compared. If a trace names no communicators, all collectives count as one communicator.
    """
    labels: dict[str, int] = {}
    names: dict[str, int] = {}
    groups: dict[tuple[str, int], int] = {}
    rows = pd.concat([_rows(each, path, labels, names, groups) for each in ranks], ignore_index=True)
    matched = _matched(rows) if len(rows) else rows
    if matched.empty:
        none, late = pd.DataFrame(columns=_WAITING), pd.DataFrame(columns=_LATE)
        return Waiting(none, late, 0, len(rows), {}, 0)
    matched["length"] = matched["end"] - matched["start"]
    matched["one"] = matched["group"] * (int(matched["place"].max()) + 1) + matched["place"]
    waiting, last = wait_for_last(matched["one"].to_numpy(np.int64), matched["length"].to_numpy(np.int64))
    caused = sums(last, waiting, len(matched))
    matched["waiting"], matched["caused"] = waiting, caused
    matched["late"] = _late(ranks, matched)
    matched["peer"] = matched["rank"].to_numpy()[last]
    each = (
        matched.groupby(["rank", "label"], sort=False)
        .agg(
            collectives=("length", "size"),
            collective_ns=("length", "sum"),
            waiting_ns=("waiting", "sum"),
            caused_ns=("caused", "sum"),
            late_peer_ns=("late", "sum"),
        )
        .reset_index()
    )
    blocked = matched[matched["late"] > 0].rename(columns={"late": "late_ns"})
    late = blocked.groupby(["rank", "label", "peer"], sort=False)["late_ns"].sum().reset_index()
    for frame in (each, late):
        frame["label"] = np.array(list(labels), object)[frame["label"].to_numpy(np.int64)]
    offsets, spread = _clocks(matched)
    return Waiting(each, late, len(matched), len(rows) - len(matched), offsets, spread)


def _late(ranks: Sequence[Ranked], matched: pd.DataFrame) -> Ints:
    """Measure how much of the waiting of each matched collective blocked compute, within its iteration."""
    out = np.zeros(len(matched), np.int64)
    for each in ranks:
        part, mine = each.part, np.flatnonzero(matched["rank"] == each.rank)
        until = np.full(len(part.collective), np.iinfo(np.int64).min)
        rows = matched.iloc[mine]
        until[rows["of"]] = np.minimum(rows["start"] + rows["waiting"], rows["until"])
        blocked = np.minimum(part.blocking_end, until[part.blocking_of]) - part.blocking_start
        blocked = np.where(part.blocking_start < until[part.blocking_of], blocked, 0)
        out[mine] = sums(part.blocking_of, blocked, len(part.collective))[rows["of"]]
    return out


def _matched(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep ranks with the same collectives as other ranks: in each iteration, the largest group of such ranks."""
    # the names in their order, as one number: sums of a random one per name and place, which wrap around
    draws = np.random.default_rng(0).integers(1 << 62, size=(int(rows["name"].max()) + 1, int(rows["place"].max()) + 1))
    rows = rows.assign(draw=draws[rows["name"], rows["place"]])
    shapes = rows.groupby(["rank", "group"], sort=False)["draw"].sum().rename("shape").reset_index()
    shapes["members"] = shapes.groupby(["group", "shape"], sort=False)["rank"].transform("size")
    best = shapes.sort_values(["members", "rank"], ascending=[False, True], kind="stable")
    best = best.drop_duplicates("group")[["group", "shape"]]
    kept = shapes[shapes["members"] > 1].merge(best, on=["group", "shape"], validate="many_to_one")
    return rows.drop(columns="draw").merge(kept[["rank", "group"]], on=["rank", "group"], validate="many_to_one")


def _rows(
    ranked: Ranked, path: str, labels: dict[str, int], names: dict[str, int], groups: dict[tuple[str, int], int]
) -> pd.DataFrame:
    """List the collectives that start in an iteration of a rank. Columns: ``rank``; ``label`` and ``name`` (codes; new
    codes are added to the given dicts); ``group`` (the code of communicator and iteration); ``place`` within the group;
    ``start``, ``end``; ``of`` (the collective's index in the part); ``until`` (the end of the iteration).
    """
    part = ranked.part
    rows = iteration_rows(part, path)
    rows = rows[np.argsort(part.first_ns[rows], kind="stable")]
    at = np.searchsorted(part.first_ns[rows], part.collective_start, side="right") - 1
    inside = at >= 0
    inside[inside] &= part.collective_start[inside] < part.last_ns[rows][at[inside]]
    at = at[inside]
    label = np.array(
        [labels.setdefault(part.labels[code], len(labels)) for code in part.label[rows].tolist()], np.int64
    )
    name = np.array([names.setdefault(text, len(names)) for text in part.collective_names], np.int64)
    of_group, group = np.unique(
        label[at] * (len(part.communicators) + 1) + part.communicator[inside], return_inverse=True
    )
    codes = [divmod(each, len(part.communicators) + 1) for each in of_group.tolist()]
    known = [groups.setdefault((part.communicators[who], when), len(groups)) for when, who in codes]
    return pd.DataFrame(
        {
            "rank": ranked.rank,
            "label": label[at],
            "group": np.array(known, np.int64)[group],
            "place": pd.Series(group).groupby(group).cumcount().to_numpy(),
            "name": name[part.collective[inside]],
            "start": part.collective_start[inside],
            "end": part.collective_end[inside],
            "of": np.flatnonzero(inside),
            "until": part.last_ns[rows][at],
        }
    )


def iteration_rows(part: RankPart, path: str) -> Index:
    """Return the rows of a path's iterations in a part; without iterations, return the path's row of totals."""
    if path not in part.paths:
        return np.empty(0, np.intp)
    rows = np.flatnonzero(part.path == part.paths.index(path))
    single = rows[part.label[rows] > 0]
    return single if len(single) else rows


def _clocks(matched: pd.DataFrame) -> tuple[dict[int, int], int]:
    """Estimate from the ends of collectives how far each rank's clock is ahead of the first, and how accurately."""
    ends = matched.pivot(index="one", columns="rank", values="end")
    base = ends.columns[0]
    difference = ends.sub(ends[base], axis=0)
    offset = difference.median()
    if offset.isna().any():
        return {}, 0
    rest = difference.sub(offset, axis=1).drop(columns=base).to_numpy().ravel()
    low, high = np.nanquantile(rest, [0.05, 0.95]) if len(rest) else (0.0, 0.0)
    known = zip(offset.index.tolist(), offset.tolist(), strict=True)
    return {rank: round(value) for rank, value in known}, round((high - low) / 2)
