"""Measure the error of replays that use only dependencies and constant delays; with large errors, give no ceilings."""

from collections.abc import Iterator

import numpy as np

from nsysprof.core.columns import ColumnTable, Texts
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
    "error of the end",
    "largest error",
]


def residual_columns(trace: Trace, why: Reasons, windows: Windows, paths: Texts) -> ColumnTable:
    """Make a row per path and GPU; ``paths`` are the texts of the paths of ``windows``.

    Columns: ``path``, ``gpu``, ``replayed`` (number of windows), ``behind_op_ns``, ``behind_event_ns`` and
    ``behind_launch_ns`` (see `Replay`), and the relative error of a replayed window's end: the median ``residual`` and
    the largest error ``max_residual``.
    """
    found = replays(trace, why, windows)
    counted = {"gpu": [each.gpu for each in found], "replayed": [len(each.windows) for each in found]}
    counted |= {name: [getattr(each, name) for each in found] for name in _CONSTANTS}
    errors = (each.residual for each in found)
    off = np.array([(np.median(each), each.max()) for each in errors], np.float64).reshape(-1, 2)
    return ColumnTable(
        {
            "path": paths[np.array([each.windows[0] for each in found], np.int64)],
            **{name: np.array(values, np.int64) for name, values in counted.items()},
            "residual": off[:, 0],
            "max_residual": off[:, 1],
        }
    )


def without_ceilings(rows: ColumnTable, residuals: ColumnTable) -> ColumnTable:
    """Return the rows of ``why.csv``, without a ceiling if the residual of the path and GPU exceeds `MAX_RESIDUAL`."""
    off = residuals.take(residuals["residual"] > MAX_RESIDUAL)
    places, of_rows = (
        [*zip(table.texts("path").tolist(), table["gpu"].tolist(), strict=True)] for table in (off, rows)
    )
    found = {*places}
    doubtful = np.array([place in found for place in of_rows], bool)
    return ColumnTable({**rows.columns, "ceiling_ns": np.where(doubtful, np.nan, rows["ceiling_ns"])})


def abstention(residuals: ColumnTable, path: str) -> str:
    """Return the reason why the waits of a path have no ceilings; empty if they have ceilings."""
    most = residuals["residual"][residuals.texts("path").equal(path)].max(initial=0)
    if not most > MAX_RESIDUAL:
        return ""
    return (
        "why.csv has no ceilings, because a replay of the recorded dependencies misses step times by "
        f"up to {format_share(most)} (limit: {format_share(MAX_RESIDUAL)})."
    )


def verification(residuals: ColumnTable) -> Iterator[str]:
    """Show the residual of each path and GPU as a table, with an explanation."""
    cells = [
        [
            f"{one_line(row['path'], _NAME)}, GPU {row['gpu']}",
            f"{row['replayed']:,}",
            *(format_ns(row[name]) for name in _CONSTANTS),
            *(format_share(row[name]) for name in ("residual", "max_residual")),
        ]
        for row in residuals.records()
    ]
    if cells:
        yield from TextTable(_HEADS, cells, "lrrrrrr").lines()
    bad = int((residuals["residual"] > MAX_RESIDUAL).sum())
    rows = f"{plural(len(cells) - bad, 'row')} of {len(cells):,}"
    share = format_share(MAX_RESIDUAL)
    yield wrap(f"dependencies and constant delays explain {rows} with an error below {share} of the span", "", "  ")
