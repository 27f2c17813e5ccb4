"""Host calls and copies of whole traces, added up for either report, and what changed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from nsysprof.compare.gap_ledger import mean_text
from nsysprof.compare.selection import LoadedReport
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns
from nsysprof.results.table import TextTable
from nsysprof.summaries.every import SUMMARIES
from nsysprof.summaries.summary import Asked

_KEYS = {"calls": "call", "copies": "what"}  # what names the rows that readers see of a summary
_TITLES = {"calls": "host calls", "copies": "copies"}


def compare_totals(base: LoadedReport, new: LoadedReport) -> dict[str, pd.DataFrame]:
    """Add up the host calls and the copies of two reports: a frame by the name of a summary of which one has any.

    A row each, by the largest difference: ``name``, of either side ``base_count, base_ns, new_count, new_ns`` (added
    durations), and ``delta_ns``.
    """
    out = {}
    for summary in SUMMARIES:
        if summary.name not in _KEYS:
            continue
        sides = []
        for side, loaded in (("base", base), ("new", new)):
            found = summary.make(
                loaded.attribution, Asked(loaded.code_of, loaded.texts, loaded.merged.parent)
            )
            names = found.rows.texts(_KEYS[summary.name]).tolist() if found else []
            frame = pd.DataFrame({"name": pd.Series(names, dtype=object)})
            frame[f"{side}_count"] = found.rows["count"] if found else []
            frame[f"{side}_ns"] = found.rows["sum_ns"] if found else []
            sides.append(frame.groupby("name").sum())
        both = sides[0].join(sides[1], how="outer").fillna(0).astype("int64")
        both["delta_ns"] = both["new_ns"] - both["base_ns"]
        if len(both):
            out[summary.name] = (
                both.sort_index()
                .sort_values("delta_ns", key=lambda ns: -ns.abs(), kind="stable")
                .reset_index()
            )
    return out


def totals_table(name: str, totals: pd.DataFrame, sides: Sequence[str], top: int) -> TextTable:
    """The ``top`` rows of a frame of `compare_totals`, and all in one: counts and added durations of either side."""
    rows = []
    whole = totals.drop(columns="name").sum().to_frame().T.assign(name="total")
    for row in pd.concat([totals.head(top), whole]).to_dict("records"):
        counts = [mean_text(row[f"{side}_count"]) for side in ("base", "new")]
        change = row["delta_ns"]
        rows.append(
            [
                one_line(str(row["name"]), 40),
                counts[0] if counts[0] == counts[1] else " → ".join(counts),
                *(format_ns(row[f"{side}_ns"]) if row[f"{side}_count"] else "" for side in ("base", "new")),
                f"{'-' if change < 0 else '+'}{format_ns(abs(change))}",
            ]
        )
    more = len(totals) - top
    note = "added durations of all threads and streams, which may overlap"
    note += f"; {more:,} more that changed less: see gap.json" if more > 0 else ""
    return TextTable([_TITLES[name], "count", *sides, "change"], rows, "lrrrr", note, last_apart=True)
