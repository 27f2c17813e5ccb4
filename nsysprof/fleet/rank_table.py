"""The rows of all ranks as frames: a row per rank, path and iteration, and what they are per path over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.fleet.gpu_activity import COMPUTE, COPIES, HOST, QUEUE, SYNC
from nsysprof.fleet.identity import Ranked
from nsysprof.fleet.range_iterations import COLUMNS
from nsysprof.statistics.distributions import grouped_quartiles

# What a rank takes for itself, unlike what it spends in communication that nothing hides.
OWN_PARTS = (COMPUTE, COPIES, HOST, SYNC, QUEUE)


@dataclass(frozen=True)
class RankRows:
    """The iterations of all ranks. ``path``, ``rank`` and ``label`` are codes into ``paths``, ``ranks`` and ``labels``;
    ``own`` and ``span`` int64 ns; ``order`` says where among the iterations of its rank a row comes. ``totals``: a row
    per path and rank with the codes and all columns, by path and then by rank.
    """

    paths: list[str]
    ranks: list[int]
    labels: list[str]
    path: NDArray[np.int32]
    rank: NDArray[np.int32]
    label: NDArray[np.int32]
    order: NDArray[np.int64]
    own: NDArray[np.int64]
    span: NDArray[np.int64]
    totals: pd.DataFrame


def rank_rows(ranks: Sequence[Ranked]) -> RankRows:
    """The rows of all ranks, rank by rank; paths in the order of the rank that has most of them."""
    paths: dict[str, int] = {}
    labels: dict[str, int] = {}
    for each in sorted(ranks, key=lambda one: -len(one.part.paths)):
        for text in each.part.paths:
            paths.setdefault(text, len(paths))
    for each in ranks:
        for text in each.part.labels:
            labels.setdefault(text, len(labels))
    rows: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("path", "rank", "label", "order", "own", "span")
    }
    totals = []
    for number, each in enumerate(ranks):
        part = each.part
        path = np.array([paths[text] for text in part.paths], np.int32)[part.path]
        label = np.array([labels[text] for text in part.labels], np.int32)[part.label]
        single, total = np.flatnonzero(part.label > 0), np.flatnonzero(part.label == 0)
        own = np.sum([part.columns[name][single] for name in OWN_PARTS], axis=0)
        rank = np.full(len(single), number, np.int32)
        found = (path[single], rank, label[single], single, own, part.columns["span"][single])
        for known, values in zip(rows.values(), found, strict=True):
            known.append(values)
        columns = {name: part.columns[name][total] for name in COLUMNS}
        totals.append(pd.DataFrame({"path": path[total], "rank": number, **columns}))
    together = pd.concat(totals, ignore_index=True).sort_values(["path", "rank"], ignore_index=True)
    together["own"] = together[list(OWN_PARTS)].sum(axis=1)
    together["idle"] = together[[HOST, SYNC, QUEUE]].sum(axis=1)
    return RankRows(
        paths=list(paths),
        ranks=[each.rank for each in ranks],
        labels=list(labels),
        **{name: np.concatenate(values) for name, values in rows.items()},
        totals=together,
    )


def iteration_frame(rows: RankRows) -> pd.DataFrame:
    """A row per path and iteration, in order: the distribution over ranks of its own time and its span, in ns.

    ``path, iteration, ranks``; of ``own_`` and ``span_``: ``median_ns, iqr_ns, min_ns, max_ns``; ``own_mean_ns``;
    ``max_over_min`` of own time (NaN where the least is 0); ``slowest_rank`` and ``fastest_rank`` by own time, the
    first of equal ones.
    """
    key = rows.path.astype(np.int64) * len(rows.labels) + rows.label
    mine = np.argsort(key, kind="stable")  # in a group by rank
    key = key[mine]
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.empty(0, np.intp)
    groups, size = key[first], np.diff(np.append(first, len(key)))
    group = np.repeat(np.arange(len(groups)), size)
    own, span = rows.own[mine], rows.span[mine]
    place = np.minimum.reduceat(rows.order[mine], first) if len(first) else first
    found: dict[str, object] = {
        "path": np.array(rows.paths, object)[groups // len(rows.labels)],
        "iteration": np.array(rows.labels, object)[groups % len(rows.labels)],
        "ranks": size,
    }
    for name, values in (("own", own), ("span", span)):
        of = grouped_quartiles(group, values, len(groups))
        found |= {f"{name}_median_ns": of.median, f"{name}_iqr_ns": of.iqr, f"{name}_min_ns": of.low}
        found[f"{name}_max_ns"] = of.high
        if name == "own":
            found["max_over_min"] = np.where(of.low > 0, of.high / np.maximum(of.low, 1), np.nan)
            total = np.add.reduceat(values, first) if len(first) else first
            found["own_mean_ns"] = total // size
            numbers = np.array(rows.ranks)[rows.rank[mine]]
            for which, extreme in (("slowest_rank", of.high), ("fastest_rank", of.low)):
                hits = np.flatnonzero(values == np.repeat(extreme, size))
                found[which] = numbers[hits[np.searchsorted(hits, first)]]
    frame = pd.DataFrame(found)
    return frame.iloc[np.lexsort((place, groups // len(rows.labels)))].reset_index(drop=True)


def path_frame(rows: RankRows, iterations: pd.DataFrame) -> pd.DataFrame:
    """A row per path and rank: the columns of ``fleet.csv``.

    ``path, rank, iterations``, the sums of all columns in ns (and ``instances``), ``own_median_ns`` and
    ``span_median_ns`` over iterations (NaN where there are none), ``relative``: own time over that of the median
    rank, by medians, or by sums where there are none; NaN for nothing; ``times_slowest``: in how many iterations this
    rank is the slowest by own time.
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
    """A row per path: how its own time per iteration differs between ranks.

    ``path, ranks, iterations``; ``own_median_ns, own_iqr_ns, own_min_ns, own_max_ns`` over ranks of their medians;
    ``max_over_min``; ``slowest_rank``: most often the slowest, ``times_slowest`` of ``compared`` iterations that
    several ranks have.
    """
    some = paths[paths["own_median_ns"].notna()]
    grouped = some.groupby("path", sort=False)
    own = grouped["own_median_ns"]
    quartiles = own.quantile(np.array([0.25, 0.5, 0.75])).unstack()
    found = (
        pd.DataFrame(
            {
                "ranks": grouped.size(),
                "iterations": iterations.groupby("path", sort=False).size(),
                "own_median_ns": quartiles[0.5].round(),
                "own_iqr_ns": (quartiles[0.75] - quartiles[0.25]).round(),
                "own_min_ns": own.min(),
                "own_max_ns": own.max(),
            }
        )
        if len(some)
        else pd.DataFrame(
            columns=["ranks", "iterations", "own_median_ns", "own_iqr_ns", "own_min_ns", "own_max_ns"]
        )
    )
    found = found.reindex(some["path"].drop_duplicates())
    found["max_over_min"] = (found["own_max_ns"] / found["own_min_ns"]).where(found["own_min_ns"] > 0)
    most = some.sort_values(["times_slowest", "own_ns"], ascending=False, kind="stable").drop_duplicates(
        "path"
    )
    most = most.set_index("path")
    found["slowest_rank"] = most["rank"].reindex(found.index)
    found["times_slowest"] = most["times_slowest"].reindex(found.index)
    compared = iterations[iterations["ranks"] > 1].groupby("path", sort=False).size()
    found["compared"] = compared.reindex(found.index, fill_value=0)
    found = found.reset_index(names="path")
    whole = ["ranks", "iterations", "own_median_ns", "own_iqr_ns", "own_min_ns", "own_max_ns"]
    return found.astype(
        {**dict.fromkeys(whole, np.int64), "slowest_rank": np.int64, "times_slowest": np.int64}
    )


def own_matrix(rows: RankRows, path: str) -> pd.DataFrame:
    """Own times of the iterations of a path: a row per rank, a column per iteration in order, NaN where one lacks
    it.
    """
    code = rows.paths.index(path) if path in rows.paths else -1
    mine = np.flatnonzero(rows.path == code)
    labels = np.unique(rows.label[mine])
    place = np.full(len(rows.labels), -1)
    order = np.full(len(labels), np.iinfo(np.int64).max)
    np.minimum.at(order, np.searchsorted(labels, rows.label[mine]), rows.order[mine])
    labels = labels[np.argsort(order, kind="stable")]
    place[labels] = np.arange(len(labels))
    values = np.full((len(rows.ranks), len(labels)), np.nan)
    values[rows.rank[mine], place[rows.label[mine]]] = rows.own[mine]
    return pd.DataFrame(values, index=rows.ranks, columns=[rows.labels[at] for at in labels.tolist()])
