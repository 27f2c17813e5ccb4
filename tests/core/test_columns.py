"""Columns: codes lead back to the ids and texts they stand for, and named columns do what frames of pandas do."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from nsysprof.core import columns
from nsysprof.core.columns import Coder, ColumnTable, Texts, Words, distinct, stack_tables


def encode(words: Words, texts: Sequence[bytes]) -> list[int]:
    """The codes of texts that lie one behind the other."""
    data = np.frombuffer(b"".join(texts) + bytes(8), np.uint8).copy()
    lengths = np.array([len(raw) for raw in texts], np.int64)
    return [int(code) for code in words.encode(data, np.cumsum(lengths) - lengths, lengths)]


def test_rows_of_the_farthest_numbers_are_told_apart() -> None:
    """A damaged size of 2^63 beside other columns fits into no key of 64 bits."""
    far = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max, 0])
    first, place = distinct(np.array([1, 1, 1, 1, 2]), far, far)
    assert sorted(first.tolist()) == [0, 1, 2, 4]
    assert first[place].tolist() == [0, 1, 2, 0, 4]


def test_values_get_codes_in_order_of_appearance() -> None:
    """The first value is 0, and codes do not change when more blocks come."""
    coder = Coder()
    assert coder.encode(np.array([7, -3, 7, 0, 1 << 60])).tolist() == [0, 1, 0, 2, 3]
    assert coder.encode(np.array([5, 0, -3])).tolist() == [4, 2, 1]
    assert coder.encode(np.array([], np.int64)).dtype == np.int32
    assert coder.values.tolist() == [7, -3, 0, 1 << 60, 5]
    assert coder.values.dtype == np.int64
    assert len(coder) == 5


@pytest.mark.parametrize("count", [1, 40, 3000, 200_000])
def test_values_that_want_one_slot_keep_their_codes(count: int) -> None:
    """More distinct values than slots, extremes among them: every code leads back to its value."""
    random_ = np.random.default_rng(count)
    some = random_.integers(-(1 << 63), (1 << 63) - 1, count)
    some[0] = np.iinfo(np.int64).min
    coder = Coder()
    first: dict[int, int] = {}
    for _ in range(4):
        values = random_.choice(some, 60_000)
        got = coder.encode(values)
        assert np.array_equal(coder.values[got], values)
        for value in values.tolist():
            first.setdefault(value, len(first))
    assert coder.values.tolist() == list(first)


def test_texts_get_codes_and_come_back() -> None:
    """Equal bytes share a code; empty texts, NULs and prefixes are texts of their own."""
    words = Words()
    texts = [b"", b"\0", b"\0\0", b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"a" * 128, b"a" * 129, b"a" * 500]
    expected = list(range(len(texts)))
    assert sorted(encode(words, texts)) == expected
    assert encode(words, texts) == [words.add(raw) for raw in texts]
    assert [words[code] for code in encode(words, texts)] == [raw.decode() for raw in texts]
    assert len(words) == len(texts)
    assert encode(words, []) == []


def test_texts_that_are_not_utf8_are_shown_with_replacements() -> None:
    """Two texts that look alike stay two; a code that is none is no text."""
    words = Words()
    assert encode(words, [b"\xff", b"\xfe", b"\xff"]) in ([0, 1, 0], [1, 0, 1])
    assert (words[0], words[1]) == ("\ufffd", "\ufffd")
    with pytest.raises(IndexError):
        words[-1]


def test_random_texts_come_back_even_when_the_hash_is_useless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is compared, so a table of two slots only costs time."""
    monkeypatch.setattr(columns, "_WORDS_BITS", 1)
    check_random_texts(300)


def test_random_texts_come_back_beyond_what_the_table_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first texts are in the table; the others take the slower way."""
    monkeypatch.setattr(columns, "_MAX_KNOWN", 300)
    check_random_texts(3000)


def test_random_texts_come_back() -> None:
    """Texts of all lengths, many sharing their first bytes."""
    check_random_texts(20_000)


def check_random_texts(count: int) -> None:
    """Blocks drawn from so many texts get codes that lead back to the very bytes."""
    random_ = random.Random(count)
    some = [b"aten::mm, op_id = %d" % k + b"x" * random_.choice([0, 3, 100, 200]) for k in range(count)]
    words = Words()
    known: dict[bytes, int] = {}
    for _ in range(3):
        texts = random_.choices(some, k=2000)
        for raw, code in zip(texts, encode(words, texts), strict=True):
            assert known.setdefault(raw, code) == code
    assert len(words) == len(known)
    assert {words[code].encode(): code for code in known.values()} == known


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
    assert frame["name"].tolist() == own.texts("name").tolist() == [WORDS[code] for code in own.texts("name").codes]
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
