"""Host calls and copies of whole traces, added up for either report, and what changed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from nsysprof.compare.gap_ledger import mean_text
from nsysprof.compare.selection import LoadedReport
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns
from nsysprof.results.table import Column, TextTable, show_columns
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.summary import Asked

# The summaries that are compared: what names the rows that readers see of each, and its title.
_COMPARED = {"calls": ("call", "host calls"), "copies": ("what", "copies")}
_COLUMNS = ("base_count", "base_ns", "new_count", "new_ns")


def compare_totals(base: LoadedReport, new: LoadedReport) -> dict[str, pd.DataFrame]:
    """Add up the host calls and the copies of two reports: a frame by the name of a summary of which one has any.

    A row each, by the largest difference: ``name``, of either side ``base_count, base_ns, new_count, new_ns`` (added
    durations), and ``delta_ns``.
    """
    out = {}
    for summary in (each for each in SUMMARIES if each.name in _COMPARED):
        sides = []
        for side, loaded in (("base", base), ("new", new)):
            asked = Asked(loaded.code_of, loaded.texts, loaded.merged.parent)
            if found := summary.make(loaded.attribution, asked):
                names = found.rows.texts(_COMPARED[summary.name][0]).tolist()
                values = {f"{side}_count": found.rows["count"], f"{side}_ns": found.rows["sum_ns"]}
                sides.append(pd.DataFrame(values, index=names).groupby(level=0).sum())
        if sides:
            both = pd.concat(sides, axis=1).reindex(columns=_COLUMNS).fillna(0).astype("int64").sort_index()
            both["delta_ns"] = both["new_ns"] - both["base_ns"]
            order = both["delta_ns"].abs().sort_values(ascending=False, kind="stable").index
            out[summary.name] = both.loc[order].rename_axis("name").reset_index()
    return out


def totals_table(name: str, totals: pd.DataFrame, sides: Sequence[str], top: int) -> TextTable:
    """The ``top`` rows of a frame of `compare_totals`, and all in one: counts and added durations of either side."""
    whole = totals.drop(columns="name").sum().to_frame().T.assign(name="total")
    rows = pd.concat([totals.head(top), whole])
    counts = [dict.fromkeys(map(mean_text, pair)) for pair in rows[["base_count", "new_count"]].to_numpy()]
    columns = (
        Column("name", "", _COMPARED[name][1], lambda text: one_line(text, 40)),
        Column("count", "", align="r"),
        *(Column(f"{side}_ns", "", head) for side, head in zip(("base", "new"), sides, strict=True)),
        Column("delta_ns", "", "change", lambda ns: f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"),
    )
    more = len(totals) - top
    note = "added durations of all threads and streams, which may overlap"
    note += f"; {more:,} more that changed less: see gap.json" if more > 0 else ""
    return show_columns(
        columns, rows.assign(count=[" → ".join(pair) for pair in counts]), note=note, last_apart=True
    )
