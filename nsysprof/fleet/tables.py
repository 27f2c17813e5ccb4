"""The tables over all ranks: rows per path and iteration, per path and rank, and per path.

Columns are an interface: add columns, but never rename one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

from nsysprof.core.arrays import Array, Ints, Ints32
from nsysprof.fleet.identity import Ranked
from nsysprof.formats.rank_answer import BLOCKING, COLUMNS, COMMUNICATION, COMPUTE, COPIES, IDLE_PARTS, PARTS
from nsysprof.results.table import table
from nsysprof.statistics.distributions import grouped_quartiles

_PARTS = {
    "communication_ns": "time in which a collective runs",
    "compute_ns": "time in which any other kernel runs",
    "exposed_ns": "exposed communication: time in which communication kernels run, but no other kernels",
    "copies_ns": "exposed copies and memsets: time in which copies or memsets run, but no kernels",
    "idle_host_ns idle_sync_ns idle_queue_ns": (
        "GPU idle time caused by launches, by synchronization, and by queue delay"
    ),
    "blocking_ns": "part of exposed communication that delayed the next compute kernel; empty if unknown",
}
_TOTALS = {
    "cpu_ns": "total CPU time of the instances",
    "span_ns": "elapsed time from the first GPU op to the last",
    "busy_ns": "time in which GPU ops run, per GPU",
    "sum_ns": "total duration of the GPU ops",
    "own_ns": "time excluding exposed communication",
    "idle_ns": "time in which the GPU is idle",
}
_MEDIANS = {
    "own_median_ns span_median_ns": "median of own_ns and of span_ns over the iterations; empty without iterations"
}
PATHS = table(
    "fleet.csv",
    "a row per range path and rank",
    {
        "path": "merged path of the range",
        "rank": "number of the rank",
        "iterations": "number of iterations in which the rank has this range",
        "instances": "number of instances of the range",
        **_TOTALS,
        **_PARTS,
        **_MEDIANS,
        "relative": "own_median_ns of the rank ÷ median over all ranks; uses own_ns if own_median_ns is empty",
        "times_slowest": "number of iterations in which the rank is the slowest (excluding exposed communication)",
    },
    made_in="fleet/tables.py",
)
ITERATIONS = table(
    "iterations.csv",
    "a row per range path and iteration",
    {
        "path": "merged path of the range",
        "iteration": "name or number of the iteration",
        "ranks": "number of ranks that have this iteration",
        "own_median_ns own_iqr_ns own_min_ns own_max_ns": (
            "time excluding exposed communication: statistics over the ranks"
        ),
        "max_over_min": "own_max_ns ÷ own_min_ns",
        "own_mean_ns": "time excluding exposed communication: mean over the ranks",
        "slowest_rank fastest_rank": ("ranks with the longest and the shortest time, excluding exposed communication"),
        "span_median_ns span_iqr_ns span_min_ns span_max_ns": (
            "span (elapsed time from the first GPU op to the last): statistics over the ranks"
        ),
    },
    made_in="fleet/tables.py",
)
RANKS = table(
    "ranks.csv",
    "a row per rank; times cover the iterations of the rank, except in columns whose names begin with report",
    {
        "rank": "number of the rank",
        "report host pid process": "report, host and process of the rank",
        "gpu gpu_name": "numbers and names of the rank's GPUs in the report",
        "nsys_version": "version of nsys that recorded the report",
        "report_duration_ns": "length of the recording",
        "report_span_ns report_busy_ns": (
            "whole report: elapsed time from the first GPU op to the last, and GPU busy time"
        ),
        "iterations": "number of iterations of the rank",
        **{name: _TOTALS[name] for name in ("cpu_ns", "span_ns", "own_ns")},
        **_PARTS,
        "idle_ns": _TOTALS["idle_ns"],
        **_MEDIANS,
        "times_slowest": "number of iterations in which the rank is the slowest (excluding exposed communication)",
        "collectives collective_ns": "number of collectives, and time spent in collectives",
        "waiting_ns": "time for which this rank waits in collectives for ranks that arrive later",
        "caused_ns": "time for which the other ranks wait in collectives for this rank",
        "late_peer_ns": "part of blocking_ns that is spent waiting for late ranks",
        "times_awaited": "number of iterations in which the rank arrives last at the collectives",
        "transfer_ns": "part of blocking_ns that is not spent waiting for late ranks",
        "late_peer": "rank that causes most of late_peer_ns; empty if none",
        "clock_offset_ns": "offset of the rank's clock from the common clock; empty if unknown",
        "ratio": "own_ns of the rank ÷ median own_ns of the other ranks (median over iterations)",
        "z": "robust z-score of ratio; empty with fewer than five ranks",
        "low high": "confidence interval of ratio",
        "straggler verdict basis": (
            "whether the rank is a straggler; verdict (slower, not slower, not proven); test that gave the verdict"
        ),
        "slower compared": "number of iterations with a ratio above 1; number of iterations compared",
        "seconds peak_bytes": "time and peak memory that a worker needed to read the report",
    },
    made_in="fleet/answer.py",
)


# Own time: what a rank takes for itself, without exposed communication.
OWN_PARTS = (COMPUTE, COPIES, *IDLE_PARTS)
SUMS = ("cpu", "span", "own", COMMUNICATION, *PARTS, BLOCKING, "idle")
WAITS = ("collectives", "collective_ns", "waiting_ns", "caused_ns", "late_peer_ns")
BLOCKED = ("blocking_ns", "late_peer_ns", "transfer_ns")
USUAL = (
    *("rank", "iterations", *(f"{name}_ns" for name in SUMS), *WAITS),
    *("transfer_ns", "late_peer", "times_awaited"),
)


@dataclass(frozen=True)
class RankRows:
    """The iterations of all ranks. ``path``, ``rank`` and ``label`` are codes into ``paths``, ``ranks`` and ``labels``;
    ``own`` and ``span`` int64 ns; ``order`` is the position of a row among the iterations of its rank. ``totals``: a
    row per path and rank with the codes and all columns, sorted by path, then rank.
    """

    paths: list[str]
    ranks: list[int]
    labels: list[str]
    path: Ints32
    rank: Ints32
    label: Ints32
    order: Ints
    own: Ints
    span: Ints
    totals: pd.DataFrame


def rank_rows(ranks: Sequence[Ranked]) -> RankRows:
    """Collect the rows of all ranks, rank by rank. Paths are sorted as on the rank with the most paths."""
    longest = sorted(ranks, key=lambda one: -len(one.part.paths))
    paths, labels = (
        {text: code for code, text in enumerate(dict.fromkeys(chain.from_iterable(texts)))}
        for texts in ((each.part.paths for each in longest), (each.part.labels for each in ranks))
    )
    rows: dict[str, list[Array]] = {name: [] for name in ("path", "rank", "label", "order", "own", "span")}
    totals = []
    for number, each in enumerate(ranks):
        part = each.part
        path = np.array([paths[text] for text in part.paths], np.int32)[part.path]
        label = np.array([labels[text] for text in part.labels], np.int32)[part.label]
        single, total = np.flatnonzero(part.label > 0), np.flatnonzero(part.label == 0)
        own = np.sum([part.columns[name][single] for name in OWN_PARTS], axis=0)
        rank = np.full(len(single), number, np.int32)
        own_rows = (path[single], rank, label[single], single, own, part.columns["span"][single])
        for column, values in zip(rows.values(), own_rows, strict=True):
            column.append(values)
        columns = {name: part.columns[name][total] for name in COLUMNS}
        totals.append(pd.DataFrame({"path": path[total], "rank": number, **columns}))
    together = pd.concat(totals, ignore_index=True).sort_values(["path", "rank"], ignore_index=True)
    together["own"] = together[list(OWN_PARTS)].sum(axis=1)
    together["idle"] = together[list(IDLE_PARTS)].sum(axis=1)
    return RankRows(
        paths=list(paths),
        ranks=[each.rank for each in ranks],
        labels=list(labels),
        **{name: np.concatenate(values) for name, values in rows.items()},
        totals=together,
    )


def iteration_frame(rows: RankRows) -> pd.DataFrame:
    """Make a row of `ITERATIONS` per path and iteration, in order.

    ``max_over_min`` is NaN if the minimum is 0. If ranks tie, the first rank counts as the slowest (or fastest).
    """
    key = rows.path.astype(np.int64) * len(rows.labels) + rows.label
    chosen = np.argsort(key, kind="stable")  # in a group by rank
    key = key[chosen]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.empty(0, np.intp)
    groups, size = key[first], np.diff(np.append(first, len(key)))
    group = np.repeat(np.arange(len(groups)), size)
    own, span = rows.own[chosen], rows.span[chosen]
    place = np.minimum.reduceat(rows.order[chosen], first) if len(first) else first
    columns: dict[str, object] = {
        "path": np.array(rows.paths, object)[groups // len(rows.labels)],
        "iteration": np.array(rows.labels, object)[groups % len(rows.labels)],
        "ranks": size,
    }
    for name, values in (("own", own), ("span", span)):
        of = grouped_quartiles(group, values, len(groups))
        columns |= {f"{name}_median_ns": of.median, f"{name}_iqr_ns": of.iqr, f"{name}_min_ns": of.low}
        columns[f"{name}_max_ns"] = of.high
        if name == "own":
            columns["max_over_min"] = np.where(of.low > 0, of.high / np.maximum(of.low, 1), np.nan)
            total = np.add.reduceat(values, first) if len(first) else first
            columns["own_mean_ns"] = total // size
            numbers = np.array(rows.ranks)[rows.rank[chosen]]
            for which, extreme in (("slowest_rank", of.high), ("fastest_rank", of.low)):
                hits = np.flatnonzero(values == np.repeat(extreme, size))
                columns[which] = numbers[hits[np.searchsorted(hits, first)]]
    return pd.DataFrame(columns).iloc[np.lexsort((place, groups // len(rows.labels)))].reset_index(drop=True)


def path_frame(rows: RankRows, iterations: pd.DataFrame) -> pd.DataFrame:
    """Make a row of `PATHS` per path and rank.

    ``relative`` compares medians over iterations, or sums if there are no iterations; NaN if both are missing.
    """
    totals, count = rows.totals, len(rows.ranks)
    group = rows.path.astype(np.int64) * count + rows.rank
    place = totals["path"].to_numpy(np.int64) * count + totals["rank"].to_numpy(np.int64)
    size = np.bincount(group, minlength=len(rows.paths) * count)
    frame = pd.DataFrame(
        {
            "path": np.array(rows.paths, object)[totals["path"]],
            "rank": np.array(rows.ranks)[totals["rank"]],
            "iterations": size[place],
            "instances": totals["instances"],
        }
    )
    for name in ("cpu", "span", "busy", "sum", "own", "idle", *COLUMNS[5:]):
        frame[f"{name}_ns"] = totals[name]
    for name, values in (("own", rows.own), ("span", rows.span)):
        middle = grouped_quartiles(group, values, len(rows.paths) * count).median[place]
        frame[f"{name}_median_ns"] = np.where(size[place] > 0, middle, np.nan)
    basis = frame["own_median_ns"].where(frame["own_median_ns"].notna(), frame["own_ns"])
    middle = basis.groupby(frame["path"], sort=False).transform("median")
    frame["relative"] = (basis / middle).where(middle > 0)
    slowest = iterations[iterations["ranks"] > 1].groupby(["path", "slowest_rank"], sort=False).size()
    keys = pd.MultiIndex.from_frame(frame[["path", "rank"]])
    frame["times_slowest"] = slowest.reindex(keys, fill_value=0).to_numpy()
    return frame


def spread_frame(paths: pd.DataFrame, iterations: pd.DataFrame) -> pd.DataFrame:
    """Make a row per path that shows how ranks differ in time per iteration, excluding exposed communication.

    The columns are ``path, ranks, iterations``; ``own_median_ns, own_iqr_ns, own_min_ns, own_max_ns`` (statistics of
    the ranks' medians); ``max_over_min``; and ``slowest_rank``, the rank that is most often the slowest, in
    ``times_slowest`` of the ``compared`` iterations on several ranks.
    """
    some = paths[paths["own_median_ns"].notna()]
    own = some.groupby("path", sort=False)["own_median_ns"]
    low, middle, high = (own.quantile(share) for share in (0.25, 0.5, 0.75))
    columns = {
        "ranks": own.size(),
        "iterations": iterations.groupby("path", sort=False).size(),
        "own_median_ns": middle.round(),
        "own_iqr_ns": (high - low).round(),
        "own_min_ns": own.min(),
        "own_max_ns": own.max(),
    }
    frame = pd.DataFrame(columns).reindex(some["path"].drop_duplicates())
    frame["max_over_min"] = (frame["own_max_ns"] / frame["own_min_ns"]).where(frame["own_min_ns"] > 0)
    most = some.sort_values(["times_slowest", "own_ns"], ascending=False, kind="stable")
    most = most.drop_duplicates("path").set_index("path")
    frame["slowest_rank"] = most["rank"]
    frame["times_slowest"] = most["times_slowest"]
    compared = iterations[iterations["ranks"] > 1].groupby("path", sort=False).size()
    frame["compared"] = compared.reindex(frame.index, fill_value=0)
    whole = dict.fromkeys([*columns, "slowest_rank", "times_slowest"], np.int64)
    return frame.reset_index(names="path").astype(whole)


def own_matrix(rows: RankRows, path: str) -> pd.DataFrame:
    """Make a table of the times of a path's iterations, excluding exposed communication. There is a row per rank and a
    column per iteration; missing times are NaN.
    """
    code = rows.paths.index(path) if path in rows.paths else -1
    chosen = np.flatnonzero(rows.path == code)
    labels = np.unique(rows.label[chosen])
    place = np.full(len(rows.labels), -1)
    order = np.full(len(labels), np.iinfo(np.int64).max)
    np.minimum.at(order, np.searchsorted(labels, rows.label[chosen]), rows.order[chosen])
    labels = labels[np.argsort(order, kind="stable")]
    place[labels] = np.arange(len(labels))
    values = np.full((len(rows.ranks), len(labels)), np.nan)
    values[rows.rank[chosen], place[rows.label[chosen]]] = rows.own[chosen]
    return pd.DataFrame(values, index=rows.ranks, columns=[rows.labels[at] for at in labels.tolist()])
