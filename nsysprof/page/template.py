"""Templates of a page and how they are filled: text of a report is escaped, all else comes from this folder."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from nsysprof import __version__
from nsysprof.charts.chart import Chart
from nsysprof.charts.palette import COLOURS, text_on

_PARTS = Path(__file__).parent / "parts"
# Of pages with a timeline, and of those without.
_SCRIPTS = {
    True: ("uPlot.iife.min.js", "tables.js", "timeline_data.js", "timeline.js"),
    False: ("tables.js",),
}
_STYLES = {True: ("uPlot.min.css", "page.css"), False: ("page.css",)}
_MAX_COLOURS, _FREQUENT = 256, 160


def fill(template: str, *, with_timeline: bool = True, **values: Any) -> str:
    """Fill a template with values; a page without a timeline needs no scripts for one.

    A content security policy names the scripts by their hash and forbids every request: whatever a name of a range
    may hold, nothing else runs, and nothing is loaded.
    """
    # no names that a report brings can be code: autoescape writes them out, in texts and in attributes
    environment = Environment(
        loader=FileSystemLoader(_PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_part(name) for name in _SCRIPTS[with_timeline]]
    return environment.get_template(template).render(
        **values,
        version=__version__,
        with_timeline=with_timeline,
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(_part(name)) for name in _STYLES[with_timeline]],
        colours=COLOURS,
        text_on=text_on,
        policy=_policy(scripts),
    )


def _part(name: str) -> str:
    """Read a script or a style sheet of this package; none may end its own element."""
    text = (_PARTS / name).read_text(encoding="utf-8")
    assert not re.search("</(script|style)", text, re.IGNORECASE), name
    return text


def _policy(scripts: list[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


# ---- pictures


def figures(charts: Sequence[Chart[Any]], pictures: Sequence[bytes]) -> list[dict[str, str]]:
    """List the pictures of charts with their captions, for the macro ``charts``; none where none were drawn."""
    if not pictures:
        return []
    return [
        {"caption": chart.caption, "source": inline(picture)}
        for chart, picture in zip(charts, pictures, strict=True)
    ]


def inline(picture: bytes) -> str:
    """Turn a PNG of the chart kit into the address of an image that holds it, a third of its size: with 256 colours.

    Charts have few colours and their blends at the edges of letters; those that are rare are replaced by near ones.
    """
    width, height, pixels = _pixels(picture)
    code = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    place, colours = pd.factorize(code)
    count = np.bincount(place)
    palette, near = _palette(colours, count)
    rows = np.zeros((height, 1 + width), np.uint8)
    rows[:, 1:] = near[place.reshape(height, width)]
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", head),
        (b"PLTE", palette.tobytes()),
        (b"IDAT", zlib.compress(rows.data, 9)),
        (b"IEND", b""),
    )
    small = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(small).decode('ascii')}"


def _pixels(picture: bytes) -> tuple[int, int, NDArray[np.uint8]]:
    """Read width, height and the pixels, a row of red, green and blue each, of a PNG of the chart kit."""
    at, data = 8, b""
    width = height = 0
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        kind, content = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", content[:8])
        elif kind == b"IDAT":
            data += content
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + 3 * width)
    return width, height, np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(-1, 3)


def _palette(
    colours: NDArray[np.uint32], count: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Choose at most 256 of the colours; with the place of the nearest of these for each colour.

    First the frequent ones, then always the one that is worst off.
    """
    rgb = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.int64)
    chosen = np.argsort(-count, kind="stable")[: min(_FREQUENT, len(colours))].tolist()
    distance = ((rgb[:, None] - rgb[None, chosen]) ** 2).sum(-1)
    near, least = distance.argmin(1), distance.min(1)
    while len(chosen) < _MAX_COLOURS and least.any():
        worst = int((least * np.sqrt(count)).argmax())
        off = ((rgb - rgb[worst]) ** 2).sum(-1)
        near = np.where(off < least, len(chosen), near)
        least = np.minimum(least, off)
        chosen.append(worst)
    return rgb[chosen].astype(np.uint8), near.astype(np.uint8)
