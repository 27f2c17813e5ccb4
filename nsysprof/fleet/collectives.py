"""Who waits for whom: collectives that all ranks take part in, laid beside each other.

A collective ends on all ranks together, so the rank that comes last is in it for the shortest time, and whatever
another rank takes beyond that is waiting for it. Nothing of this needs the clocks of the ranks to agree; the ends even
tell how far the clocks are apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.fleet.identity import Ranked
from nsysprof.fleet.rank_part import RankPart


@dataclass(frozen=True)
class Waiting:
    """``each``: a row per rank and iteration, ``rank, label, collectives, collective_ns, waiting_ns, caused_ns``:
    time in collectives, the part of it beyond the shortest, and what others waited while this rank was the last to
    come. ``matched``: how many collectives of all ranks were laid beside each other, ``unmatched`` how many were not.
    ``offset_ns``: per rank by how much its clock is ahead of the first's, ``spread_ns`` half the middle 90 % of what
    the ends differ by then; empty where nothing was matched.
    """

    each: pd.DataFrame
    matched: int
    unmatched: int
    offset_ns: Mapping[int, int]
    spread_ns: int


def find_waiting(ranks: Sequence[Ranked], path: str) -> Waiting:
    """The `Waiting` in the iterations of a range path.

    The k-th collective of an iteration is the same on all ranks whose collectives there have the same names in the same
    order; where ranks differ, those of the largest such group are compared.
    """
    labels: dict[str, int] = {}
    names: dict[str, int] = {}
    rows = pd.concat([_rows(each, path, labels, names) for each in ranks], ignore_index=True)
    if rows.empty:
        return Waiting(_no_rows(), 0, 0, {}, 0)
    matched = _matched(rows)
    if matched.empty:
        return Waiting(_no_rows(), 0, len(rows), {}, 0)
    matched["length"] = matched["end"] - matched["start"]
    matched["one"] = matched["label"] * (int(matched["place"].max()) + 1) + matched["place"]
    together = matched.groupby("one", sort=False)["length"]
    matched["waiting"] = matched["length"] - together.transform("min")
    all_waiting = matched.groupby("one", sort=False)["waiting"].transform("sum")
    last = together.idxmin().to_numpy()
    matched["caused"] = 0
    matched.loc[last, "caused"] = all_waiting.loc[last]
    each = (
        matched.groupby(["rank", "label"], sort=False)
        .agg(
            collectives=("length", "size"),
            collective_ns=("length", "sum"),
            waiting_ns=("waiting", "sum"),
            caused_ns=("caused", "sum"),
        )
        .reset_index()
    )
    each["label"] = np.array(list(labels), object)[each["label"]]
    offsets, spread = _clocks(matched)
    return Waiting(each, len(matched), len(rows) - len(matched), offsets, spread)


def _matched(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of iterations in which a rank has the same collectives as others: in each the largest such group."""
    # the names in their order, as one number: sums of a random one per name and place, which wrap around
    draws = np.random.default_rng(0).integers(
        1 << 62, size=(int(rows["name"].max()) + 1, int(rows["place"].max()) + 1)
    )
    rows = rows.assign(draw=draws[rows["name"], rows["place"]])
    shapes = rows.groupby(["rank", "label"], sort=False)["draw"].sum().rename("shape").reset_index()
    shapes["members"] = shapes.groupby(["label", "shape"], sort=False)["rank"].transform("size")
    best = shapes.sort_values(["members", "rank"], ascending=[False, True], kind="stable")
    best = best.drop_duplicates("label")[["label", "shape"]]
    kept = shapes[shapes["members"] > 1].merge(best, on=["label", "shape"], validate="many_to_one")
    return rows.drop(columns="draw").merge(
        kept[["rank", "label"]], on=["rank", "label"], validate="many_to_one"
    )


def _no_rows() -> pd.DataFrame:
    names = ("rank", "label", "collectives", "collective_ns", "waiting_ns", "caused_ns")
    return pd.DataFrame({name: pd.Series(dtype=object if name == "label" else np.int64) for name in names})


def _rows(ranked: Ranked, path: str, labels: dict[str, int], names: dict[str, int]) -> pd.DataFrame:
    """The collectives that start in an iteration of a rank: ``rank``, ``label`` and ``name`` as codes that are added to
    those given, ``place`` in the iteration, ``start``, ``end``.
    """
    part = ranked.part
    mine = iteration_rows(part, path)
    mine = mine[np.argsort(part.first_ns[mine], kind="stable")]
    at = np.searchsorted(part.first_ns[mine], part.collective_start, side="right") - 1
    inside = at >= 0
    inside[inside] &= part.collective_start[inside] < part.last_ns[mine][at[inside]]
    at = at[inside]
    first = np.searchsorted(at, at, side="left")
    label = np.array(
        [labels.setdefault(part.labels[code], len(labels)) for code in part.label[mine].tolist()], np.int64
    )
    name = np.array([names.setdefault(text, len(names)) for text in part.collective_names], np.int64)
    return pd.DataFrame(
        {
            "rank": ranked.rank,
            "label": label[at],
            "place": np.arange(len(at)) - first,
            "name": name[part.collective[inside]],
            "start": part.collective_start[inside],
            "end": part.collective_end[inside],
        }
    )


def iteration_rows(part: RankPart, path: str) -> NDArray[np.intp]:
    """The rows of a part that are iterations of a path; that of all of it where it has no others."""
    if path not in part.paths:
        return np.empty(0, np.intp)
    mine = np.flatnonzero(part.path == part.paths.index(path))
    single = mine[part.label[mine] > 0]
    return single if len(single) else mine


def _clocks(matched: pd.DataFrame) -> tuple[dict[int, int], int]:
    """How far each rank's clock is ahead of the first's by the ends of the collectives, and how well that is known."""
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
