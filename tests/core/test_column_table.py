"""Named columns: rows, sums and frames of them against what pandas makes of the same table."""

from __future__ import annotations

import numpy as np
import pytest

from nsysprof.core.columns import ColumnTable, Texts, stack_tables

WORDS = ["b", "a", "", "b"]  # one text under two codes


def table(rows: int, seed: int = 0) -> ColumnTable:
    """Two columns of texts and two of numbers."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, len(WORDS), (2, rows))
    return ColumnTable(
        {
            "name": Texts(codes[0], WORDS),
            "kind": Texts(codes[1].astype(np.int8), ("x", "y", "z", "x")),
            "count": rng.integers(0, 9, rows),
            "small": rng.integers(0, 9, rows).astype(np.int32),
        }
    )


def test_a_frame_holds_the_texts_and_the_numbers_as_they_are() -> None:
    """Texts are shared Python strings, types of numbers stay, and -1 stands for the last text."""
    own = table(50)
    frame = own.frame()
    assert (
        frame["name"].tolist()
        == own.texts("name").tolist()
        == [WORDS[code] for code in own.texts("name").codes]
    )
    assert [str(dtype) for dtype in frame.dtypes] == ["object", "object", "int64", "int32"]
    assert len({id(text) for text in frame["name"]}) == len(set(WORDS))
    assert list(own.records()) == frame.to_dict("records")
    assert [len(table(0).frame()), len(table(0)), list(table(0).records())] == [0, 0, []]


@pytest.mark.parametrize("rows", [0, 1, 200])
def test_sums_of_equal_texts_are_those_of_pandas(rows: int) -> None:
    """Equal texts are one group, whatever their codes; groups stand in order of first appearance."""
    own = table(rows, seed=rows)
    found = own.summed(["name", "kind"], ["count", "small"]).frame()
    expected = own.frame().groupby(["name", "kind"], sort=False, as_index=False)[["count", "small"]].sum()
    assert found.to_numpy().tolist() == expected.to_numpy().tolist()
    assert found["small"].dtype == np.int64


def test_rows_are_taken_and_put_below_one_another() -> None:
    """Slices, row numbers and masks choose rows, and tables put together again are the whole."""
    own = table(10)
    parts = [own.take(slice(0, 4)), own.take(np.array([4, 5])), own.take(np.arange(10) > 5)]
    assert list(stack_tables(parts).records()) == list(own.records())
    assert stack_tables([own]) is own
