"""Reads a page back: its elements as a tree, the numbers behind its cells, and what its timelines hold."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

_VOID = {"meta", "link", "img", "input", "br"}


@dataclass
class Element:
    """An element of a page; ``text`` is all the text in it."""

    name: str
    attributes: dict[str, str]
    inner: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, name: str, **attributes: str) -> Iterator[Element]:
        """The elements inside with that name and those attributes (``class_`` for ``class``), in order."""
        for each in self.inner:
            if each.name == name and all(
                each.attributes.get(key.rstrip("_").replace("_", "-")) == value for key, value in attributes.items()
            ):
                yield each
            yield from each.all(name, **attributes)

    def one(self, name: str, **attributes: str) -> Element:
        """The only such element."""
        [found] = self.all(name, **attributes)
        return found

    @property
    def values(self) -> list[str]:
        """The attributes ``data-v`` inside, in order."""
        return [each.attributes["data-v"] for each in self.every() if "data-v" in each.attributes]

    def every(self) -> Iterator[Element]:
        """All elements inside."""
        for each in self.inner:
            yield each
            yield from each.every()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.stack = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs})
        self.stack[-1].inner.append(element)
        if tag not in _VOID:
            self.stack.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].name == tag, f"</{tag}> closes <{self.stack[-1].name}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        for element in self.stack:
            element.text += data


def parse(text: str) -> Element:
    """A page as a tree; an element that is closed wrongly is an error."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.stack) == 1
    return reader.stack[0]


def unpack(packed: str) -> dict[str, Any]:
    """The header of a packed timeline; its rows get ``start``, ``end``, ``data`` and ``detail``."""
    raw = zlib.decompress(base64.b64decode(packed))
    size = int.from_bytes(raw[:4], "little")
    head: dict[str, Any] = json.loads(raw[4 : 4 + size])
    at = 4 + size

    def numbers(count: int) -> list[int]:
        nonlocal at
        out = []
        for _ in range(count):
            value = shift = 0
            while True:
                byte = raw[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            out.append(value)
        return out

    for row in head["rows"]:
        row["detail"] = []
        for count in row["levels"]:
            row["detail"].append((raw[at : at + count], raw[at + count : at + 2 * count]))
            at += 2 * count
        row["start"] = np.cumsum(np.array(numbers(row["marks"]), np.int64))
        row["end"] = row["start"] + np.array(numbers(row["marks"]), np.int64)
        row["data"] = [numbers(row["marks"]) for _ in range(row["columns"])]
    assert at == len(raw)
    return head
