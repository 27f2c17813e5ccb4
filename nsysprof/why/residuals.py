"""Measure the error of replays from dependencies and constants; paths with large errors get no ceilings."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.results.table import TextTable, wrap
from nsysprof.trace.trace import Trace
from nsysprof.waits.identity import replays
from nsysprof.waits.spans import MAX_RESIDUAL
from nsysprof.waits.walk import Reasons
from nsysprof.waits.windows import Windows

_NAME = 60
_CONSTANTS = ("behind_op_ns", "behind_event_ns", "behind_launch_ns")
_HEADS = [
    "replayed from dependencies",
    "windows",
    "behind a GPU op",
    "over an event",
    "behind a launch",
    "ends off by",
    "at most",
]


def residual_frame(trace: Trace, why: Reasons, windows: Windows, paths: pd.Series) -> pd.DataFrame:
    """Make a row per path and GPU; ``paths`` are the texts of the paths of ``windows``.

    Columns: ``path``, ``gpu``, ``replayed`` (number of windows), ``behind_op_ns``, ``behind_event_ns`` and
    ``behind_launch_ns`` (see `Replay`), and the relative error of a replayed window's end: the median ``residual`` and
    the largest error ``max_residual``.
    """
    texts = paths.to_numpy(object)
    rows = [
        {
            "path": texts[each.windows[0]],
            "gpu": each.gpu,
            "replayed": len(each.windows),
            **{name: getattr(each, name) for name in _CONSTANTS},
            "residual": float(np.median(each.residual)),
            "max_residual": float(each.residual.max()),
        }
        for each in replays(trace, why, windows)
    ]
    return pd.DataFrame(rows, columns=["path", "gpu", "replayed", *_CONSTANTS, "residual", "max_residual"])


def without_ceilings(rows: pd.DataFrame, residuals: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``why.csv``, without ceilings for paths whose residual on that GPU exceeds `MAX_RESIDUAL`."""
    places = pd.MultiIndex.from_frame(residuals[residuals["residual"] > MAX_RESIDUAL][["path", "gpu"]])
    doubtful = pd.MultiIndex.from_frame(rows[["path", "gpu"]]).isin(places)
    return rows.assign(ceiling_ns=rows["ceiling_ns"].where(~doubtful)) if doubtful.any() else rows


def abstention(residuals: pd.DataFrame, path: str) -> str:
    """Return why the waits of a path have no ceilings; empty if they have ceilings."""
    most = residuals.loc[residuals["path"] == path, "residual"].max()
    if not most > MAX_RESIDUAL:
        return ""
    return (
        "why.csv has no ceilings, because a replay of the recorded dependencies misses step times by "
        "up to {format_share(most)} (limit: {format_share(MAX_RESIDUAL)})."
    )


def verification(residuals: pd.DataFrame) -> Iterator[str]:
    """Show the residual of each path and GPU as a table, with an explanation."""
    cells = [
        [
            f"{one_line(row['path'], _NAME)}, GPU {row['gpu']}",
            f"{row['replayed']:,}",
            *(format_ns(row[name]) for name in _CONSTANTS),
            *(format_share(row[name]) for name in ("residual", "max_residual")),
        ]
        for row in residuals.to_dict("records")
    ]
    if cells:
        yield from TextTable(_HEADS, cells, "lrrrrrr").lines()
    bad = int((residuals["residual"] > MAX_RESIDUAL).sum())
    rows = f"{plural(len(cells) - bad, 'row')} of {len(cells):,}"
    share = format_share(MAX_RESIDUAL)
    yield wrap(f"dependencies and constant delays explain {rows} to within {share} of the span", "", "  ")
