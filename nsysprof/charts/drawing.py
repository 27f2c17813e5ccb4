"""Charts from plan to figure to PNG: all that matplotlib does for them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nsysprof.charts.bars import draw_bars
from nsysprof.charts.lanes import draw_calls, draw_lanes
from nsysprof.charts.marks import DPI, Bars, Calls, Lanes, Lines, Message, Plan, Roofs, Violins, Waterfalls
from nsysprof.charts.panels import draw_lines, draw_violins
from nsysprof.charts.roofs import draw_roofs
from nsysprof.charts.style import MARGIN, TITLE, WIDTH, framed, heading_height, shown, style
from nsysprof.charts.waterfall import draw_waterfalls

_P = TypeVar("_P")
_UP, _RGB = (
    2,
    2,
)  # a row as its difference from the one above, and a kind of pixel (PNG specification, 9.2 and 11.2)


def draw_message(plan: Message) -> Figure:
    """Draw a picture that holds nothing but words."""
    height = 2.2
    figure = framed(plan.heading, height)
    top = heading_height(plan.heading) + 0.25
    for number, sentence in enumerate(plan.sentences):
        where = 1 - (top + 0.25 * number) / height
        figure.text(MARGIN / WIDTH, where, sentence, size=TITLE - 2, va="top")
    return figure


_DRAWN_BY: dict[type, Callable[[Any], Figure]] = {
    Bars: draw_bars,
    Calls: draw_calls,
    Lanes: draw_lanes,
    Lines: draw_lines,
    Message: draw_message,
    Roofs: draw_roofs,
    Violins: draw_violins,
    Waterfalls: draw_waterfalls,
}


def draw(plan: Plan) -> Figure:
    """Draw the figure of a plan, with a box in place of each character that the font lacks."""
    plan = in_font(plan)
    with style():
        return _DRAWN_BY[type(plan)](plan)


def picture(plan: Plan) -> bytes:
    """Draw a plan as a PNG picture; equal plans give equal bytes."""
    return figure_png(draw(plan))


def in_font(part: _P) -> _P:
    """The same plan with every text in it `shown`."""
    new: Any = part
    if isinstance(part, str):
        new = shown(part)
    elif isinstance(part, list | tuple):
        new = type(part)(in_font(inner) for inner in part)
    elif is_dataclass(part) and not isinstance(part, type):
        new = replace(part, **{field.name: in_font(getattr(part, field.name)) for field in fields(part)})
    return cast(_P, new)


def figure_png(figure: Figure) -> bytes:
    """A figure of this kit as a PNG picture; equal figures give equal bytes."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    with style():
        canvas.draw()  # type: ignore[no-untyped-call]
    return png(np.asarray(canvas.buffer_rgba()), DPI)  # type: ignore[no-untyped-call]


def png(pixels: NDArray[np.uint8], dpi: int) -> bytes:
    """The PNG file of an image of shape (height, width, 3 or more), uint8; all but red, green and blue is dropped.

    Twice as fast as the general way: charts are mostly rows that equal the row above.
    """
    height, width = pixels.shape[:2]
    rgb = np.ascontiguousarray(pixels[:, :, :3]).reshape(height, 3 * width)
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = _UP
    rows[0, 1:] = rgb[0]
    np.subtract(rgb[1:], rgb[:-1], out=rows[1:, 1:])
    per_metre = round(dpi / 0.0254)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _chunk(b"IDAT", zlib.compress(rows.data, 2)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
