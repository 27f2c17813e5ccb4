"""Documents: what does not fit is refused by its place, and what only may lie there is read as far as it is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from nsysprof.core.document import (
    Count,
    Text,
    members_at_head,
    parse_as,
    parse_leniently,
    read_document,
    read_if_document,
)
from nsysprof.errors import NsysprofError


class Even(int):
    """A type of our own."""

    @classmethod
    def read(cls, value: Any) -> Even:
        """Half of the whole numbers."""
        if not isinstance(value, int) or value % 2:
            raise ValueError("must be even")
        return cls(value)


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the whole."""

    color: Literal["red", "green"] = "red"
    pair: Even | None = None
    sizes: dict[str, Count] = {}


class Whole(msgspec.Struct):
    """What a document may hold."""

    name: Text
    parts: list[Part] | Part = []


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ([], "f: expected object, got array", "again"),
        ({}, "f: 'name' is missing", "again"),
        ({"name": ""}, "f: name: expected str of length >= 1, got ''", "again"),
        ({"name": 10**5000}, "f: name: expected str, got int", "again"),
        (
            {"name": "a", "parts": [{}, {"color": "rad"}]},
            "f: parts[1].color: 'rad' is not one of red, green",
            "did you mean red? again",
        ),
        (
            {"name": "a", "parts": {"colour": 1}},
            "f: parts: unknown key 'colour'",
            "did you mean color? keys are color, pair, sizes; again",
        ),
        ({"name": "a", "parts": {"pair": 3}}, "f: parts.pair: must be even, got 3", "again"),
        ({"name": "a", "parts": {"sizes": {"x": 0}}}, "f: parts.sizes[...]: expected int >= 1", "again"),
    ],
)
def test_what_does_not_fit_is_refused(value: object, message: str, hint: str) -> None:
    """The place, what stands there, what could, and the word that was likely meant."""
    with pytest.raises(NsysprofError) as error:
        parse_as(value, Whole, "f", "again")
    assert (error.value.message, error.value.hint) == (message, hint)


def test_what_fits_is_read() -> None:
    """Also types of our own, inside others; keys that nobody asks for do not count."""
    read = parse_as({"name": "a", "more": 1, "parts": [{"pair": 4}]}, Whole, "f", "again")
    assert read == Whole("a", [Part(pair=Even(4))])
    assert parse_leniently({"color": "blue", "pair": 2, "sizes": {"a": "b"}}, Part) == Part(pair=Even(2))


def test_a_document_says_what_it_is(tmp_path: Path) -> None:
    """Another schema is refused by whoever needs the document, and is nothing to whoever only looks."""
    path = tmp_path / "a.json"
    path.write_text('{"schema": "mine/1", "n": NaN}', encoding="utf-8")
    assert read_document(path, "record", "again", "mine/1") == {"schema": "mine/1", "n": None}
    assert read_if_document(path, "x/1", "mine/1") == read_if_document(path) != {}
    assert read_if_document(path, "x/1") == read_if_document(tmp_path / "b.json", "mine/1") == {}
    with pytest.raises(NsysprofError, match=r"a\.json: the schema must be 'yours/1' \(record\), not 'mine/1'"):
        read_document(path, "record", "again", "yours/1")


def test_the_head_of_a_document_is_read_however_long_it_is(tmp_path: Path) -> None:
    """Members in their order, none that the end of the head cuts, whatever comes after."""
    path = tmp_path / "a.json"
    head = {"schema": "a/1", "report": {"file": '"}, {\\', "size_bytes": 7}, "e": []}
    path.write_text(json.dumps({**head, "rows": [0] * (1 << 20), "end": 1}, indent=1), encoding="utf-8")
    assert members_at_head(path) == head
    whole = json.dumps({**head, "n": 1234})
    for length in range(len(whole)):
        path.write_text(whole[:length], encoding="utf-8")
        read = members_at_head(path)
        assert list(read.items()) == list(head.items())[: len(read)]
    path.write_text(whole, encoding="utf-8")
    assert members_at_head(path) == json.loads(whole)
    for odd in ("", "[1]", "{" * 9, '{"a": ' + "[" * 200_000, "\x00"):
        path.write_text(odd, encoding="utf-8")
        assert members_at_head(path) == {}
    assert members_at_head(tmp_path) == members_at_head(tmp_path / "none.json") == {}
