"""Define a summary: its tables, the function that makes the tables, and the part of the tables that is printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.core.arrays import AnyInts, Ints, Ints32
from nsysprof.core.columns import ColumnTable, Texts, known, sums
from nsysprof.core.text import plural
from nsysprof.results.table import Column, Table, TextTable, show_columns
from nsysprof.trace.details import CALL_KINDS


@dataclass(frozen=True)
class Asked:
    """The options of summaries.

    ``merged_of`` int32, the merged path of each range instance; ``merged``, the texts of these paths; ``parent`` int32:
    the parent of each path, -1 at the top; parents come first; ``calls``: the requested ones of `CALL_KINDS`;
    ``family``: the kernel family of each entry of `Trace.op_names`, if classified.
    """

    merged_of: Ints32
    merged: Sequence[str]
    parent: Ints32
    calls: Sequence[str] = CALL_KINDS
    family: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """The result of a summary for one trace.

    ``files``: the rows of each table of the summary, by file name. ``finding`` is the sentence above the displayed
    table, which shows ``columns`` of ``rows``, the most important row first; ``note`` explains them. Without a finding,
    nothing is displayed.
    """

    files: Mapping[str, ColumnTable]
    finding: str
    columns: tuple[Column, ...]
    rows: ColumnTable
    note: str = ""

    def show(self, top: int) -> TextTable:
        """Return the first ``top`` rows, for terminals and pages."""
        more = len(self.rows) - top
        tables = " or ".join(name.removesuffix(".csv") for name in self.files)
        left_out = f" {plural(more, 'more row')}: --top {len(self.rows)}, or see table {tables}."
        note = (self.note + left_out * (more > 0)).strip()
        cut = isinstance(self.rows.columns[self.columns[-1].name], Texts)
        return show_columns(self.columns, self.rows.take(slice(top)), note=note, last_cut=cut)

    def json(self, most: int) -> dict[str, list[dict[str, Any]]]:
        """Return the first ``most`` rows of each table, by file name without ending."""
        return {
            name.removesuffix(".csv"): [
                {key: known(value) for key, value in row.items()} for row in rows.take(slice(most)).records()
            ]
            for name, rows in self.files.items()
        }


@dataclass(frozen=True)
class Summary:
    """A summary: ``name`` is its key in JSON, ``title`` its heading on pages, ``tables`` its files.

    ``make`` returns the `Answer`, or None if its data were not recorded.
    """

    name: str
    title: str
    tables: tuple[Table, ...]
    make: Callable[[Attribution, Asked], Answer | None]


def mostly(group: Ints, code: AnyInts, weight: Ints) -> Ints:
    """For each group, return the code (-1 or more) with the largest sum of weights; ties go to the smallest code."""
    size = int(code.max()) + 2
    pairs, place = np.unique(group * size + code + 1, return_inverse=True)
    of, each = np.divmod(pairs, size)
    order = np.lexsort((each, -sums(place, weight, len(pairs)), of))
    return each[order[np.append(True, np.diff(of[order]) != 0)]] - 1
