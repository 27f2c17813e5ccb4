"""Start/end ranges seen together: which launches lie in at least one of several windows, each counted once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution import Attribution
from nsysprof.intervals import contained_slices, layers


def launches_inside(attribution: Attribution, rows: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which launches lie wholly inside at least one of the start/end ranges ``rows``.

    A window is open to all threads of its process, or under ``strict`` to its own thread.
    """
    tables = attribution.tables
    launches, ranges = tables.launches, tables.ranges
    out = np.zeros(len(launches), bool)
    strict = attribution.threads == "strict"
    place_of_launch = launches.thread if strict else tables.thread_process[launches.thread]
    place_of_range = ranges.thread[rows] if strict else tables.thread_process[ranges.thread[rows]]
    for place in np.unique(place_of_range).tolist():
        mine = np.flatnonzero(place_of_launch == place)
        mine = mine[np.lexsort((launches.end[mine], launches.start[mine]))]
        windows = rows[place_of_range == place]
        for layer in layers(launches.end[mine]):
            members = mine if layer is None else mine[layer]
            low, high = contained_slices(
                launches.start[members], launches.end[members], ranges.start[windows], ranges.end[windows]
            )
            cover = np.zeros(len(members) + 1, np.int64)
            np.add.at(cover, low, 1)
            np.add.at(cover, high, -1)
            out[members[np.cumsum(cover[:-1]) > 0]] = True
    return out


def overlapping(
    attribution: Attribution, of: NDArray[np.int32], rows: NDArray[np.integer]
) -> NDArray[np.int32]:
    """The paths among start/end ranges ``rows`` whose own instances overlap in one process; ``of`` is the path of
    every range.
    """
    tables = attribution.tables
    ranges = tables.ranges
    process = tables.thread_process[ranges.thread[rows]]
    path = of[rows]
    order = np.lexsort((ranges.start[rows], process, path))
    start, end = ranges.start[rows][order], ranges.end[rows][order]
    path, process = path[order], process[order]
    same = (path[1:] == path[:-1]) & (process[1:] == process[:-1])
    # An instance that overlaps any earlier one of its path leaves some two neighbours overlapping.
    return np.unique(path[1:][same & (start[1:] < end[:-1])])
