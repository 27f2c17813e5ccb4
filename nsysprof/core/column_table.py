"""A table as named numpy columns: what an answer is made of until somebody asks for a pandas frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.codes import first_appearances

if TYPE_CHECKING:
    import pandas as pd

Rows = slice | NDArray[np.integer] | NDArray[np.bool_]


@dataclass(frozen=True)
class Texts:
    """A column of texts: of each row the place of its text in ``words``, -1 for the last one."""

    codes: NDArray[np.integer]
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Rows) -> Texts:
        return Texts(self.codes[rows], self.words)

    def tolist(self) -> list[str]:
        """The text of each row; the strings are shared."""
        words = self.words
        return [words[code] for code in self.codes.tolist()]

    def equal(self, text: str) -> NDArray[np.bool_]:
        """Which rows have this text."""
        found: NDArray[np.bool_] = np.array([word == text for word in self.words], bool)[self.codes]
        return found


Column = NDArray[Any] | Texts


@dataclass(frozen=True)
class ColumnTable:
    """Columns of equal length by their names."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column of numbers."""
        column = self.columns[name]
        assert not isinstance(column, Texts), name
        return column

    def texts(self, name: str) -> Texts:
        """A column of texts."""
        column = self.columns[name]
        assert isinstance(column, Texts), name
        return column

    def take(self, rows: Rows) -> ColumnTable:
        """Some rows, in the order asked for."""
        return ColumnTable({name: column[rows] for name, column in self.columns.items()})

    def records(self) -> Iterator[dict[str, Any]]:
        """The rows as Python values, for the few that are shown."""
        for row in zip(*(column.tolist() for column in self.columns.values()), strict=True):
            yield dict(zip(self.columns, row, strict=True))

    def summed(self, keys: Sequence[str], sums: Sequence[str]) -> ColumnTable:
        """The rows of equal keys as one, in order of first appearance: those columns, and the sums of others."""
        group, example = np.zeros(len(self), np.int64), np.zeros(0, np.intp)
        for name in keys:
            codes = _codes(self.columns[name])
            group, example = first_appearances(group * (codes.max(initial=0) + 1) + codes)
        found: dict[str, Column] = {name: self.columns[name][example] for name in keys}
        for name in sums:
            total = np.zeros(len(example), np.int64)
            np.add.at(total, group, self[name])
            found[name] = total
        return ColumnTable(found)

    def frame(self) -> pd.DataFrame:
        """The table as a pandas frame with a default index; text is of type object, its strings shared between rows."""
        import pandas as pd  # noqa: PLC0415  takes a quarter of a second, and many answers need no frame

        arrays = {
            name: np.array([*column.words, None], object)[:-1][column.codes]
            if isinstance(column, Texts)
            else column
            for name, column in self.columns.items()
        }
        return pd.DataFrame(
            {name: pd.Series(values, dtype=values.dtype, copy=False) for name, values in arrays.items()},
            copy=False,
        )


def _codes(column: Column) -> NDArray[np.int64]:
    """Numbers, not negative, that are equal where the column is."""
    if not isinstance(column, Texts):
        return first_appearances(column)[0].astype(np.int64)
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in column.words], np.int64)
    found: NDArray[np.int64] = codes[column.codes]
    return found


def stack_tables(tables: Sequence[ColumnTable]) -> ColumnTable:
    """The rows of tables with the same columns; their texts are of the same words."""
    if len(tables) == 1:
        return tables[0]
    return ColumnTable(
        {name: _joined([table.columns[name] for table in tables]) for name in tables[0].columns}
    )


def _joined(parts: Sequence[Column]) -> Column:
    texts = [part for part in parts if isinstance(part, Texts)]
    if not texts:
        return np.concatenate(parts)  # type: ignore[arg-type]
    return Texts(np.concatenate([part.codes for part in texts]), texts[0].words)
