"""Turn plans into figures and PNG pictures: the only module that uses matplotlib."""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass, replace
from io import BytesIO
from multiprocessing import get_context
from typing import Any, TypeVar, cast

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nsysprof.charts import marks
from nsysprof.charts.bars import draw_bars, draw_waterfalls
from nsysprof.charts.lanes import draw_calls, draw_lanes
from nsysprof.charts.panels import draw_lines, draw_series, draw_violins
from nsysprof.charts.roofs import draw_roofs
from nsysprof.charts.style import MARGIN, TITLE, WIDTH, framed, heading_height, shown, style
from nsysprof.core.arrays import Bytes

_P = TypeVar("_P")
_WHITE = 255


def draw_message(plan: marks.Message) -> Figure:
    """Draw a picture with text only."""
    height = 2.2
    figure = framed(plan.heading, height)
    top = heading_height(plan.heading) + 0.25
    for number, sentence in enumerate(plan.sentences):
        figure.text(MARGIN / WIDTH, 1 - (top + 0.25 * number) / height, sentence, size=TITLE - 2, va="top")
    return figure


_DRAWN_BY: dict[type, Callable[[Any], Figure]] = {
    marks.Bars: draw_bars,
    marks.Calls: draw_calls,
    marks.Lanes: draw_lanes,
    marks.Lines: draw_lines,
    marks.Message: draw_message,
    marks.Roofs: draw_roofs,
    marks.Series: draw_series,
    marks.Violins: draw_violins,
    marks.Waterfalls: draw_waterfalls,
}


def draw(plan: marks.Plan) -> Figure:
    """Draw the figure of a plan, with a box for each character missing from the font."""
    plan = in_font(plan)
    with style():
        return _DRAWN_BY[type(plan)](plan)


def picture(plan: marks.Plan) -> bytes:
    """Draw a plan as a PNG picture; equal plans give equal bytes."""
    return figure_png(draw(plan))


def figure_png(figure: Figure) -> bytes:
    """Convert a figure of this kit to a PNG picture; equal figures give equal bytes."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    with style():
        canvas.draw()  # type: ignore[no-untyped-call]
    return png(np.asarray(canvas.buffer_rgba()), marks.DPI)  # type: ignore[no-untyped-call]


def in_font(part: _P) -> _P:
    """Return the same plan with every text passed through `shown`."""
    new: Any = part
    if isinstance(part, str):
        new = shown(part)
    elif isinstance(part, list | tuple):
        new = type(part)(in_font(inner) for inner in part)
    elif is_dataclass(part) and not isinstance(part, type):
        new = replace(part, **{field.name: in_font(getattr(part, field.name)) for field in fields(part)})
    return cast(_P, new)


def png(pixels: Bytes, dpi: int) -> bytes:
    """Return the PNG file of an image with shape (height, width, 4), uint8, without transparency, in 256 colours.

    Charts have few colours, plus blends of these at the edges of letters; similar blends become one colour. An octree
    keeps every colour within 14 of 255; median cut, which is slower, moves rare colours by 46.
    """
    file = BytesIO()
    few = Image.fromarray(pixels).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.putpalette([_WHITE if value >= _WHITE - 2 else value for value in few.getpalette() or ()])
    few.save(file, "png", dpi=(dpi, dpi), compress_level=9)
    return file.getvalue()


def pictures(plans: Sequence[marks.Plan]) -> Iterator[bytes | None]:
    """Draw pictures in parallel, each in a fork of this process if supported; yields None for a failed picture."""
    if sys.platform != "linux":
        yield from map(picture, plans)
        return
    with ProcessPoolExecutor(max(len(plans), 1), get_context("fork")) as pool:
        for drawn in [pool.submit(picture, plan) for plan in plans]:
            yield None if drawn.exception() else drawn.result()
