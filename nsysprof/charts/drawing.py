"""From plan to figure and to PNG: all that matplotlib does for the charts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from matplotlib.figure import Figure

from nsysprof.charts.bars import draw_bars
from nsysprof.charts.call_lanes import draw_calls
from nsysprof.charts.lanes import draw_lanes
from nsysprof.charts.lines import draw_lines
from nsysprof.charts.marks import Bars, Calls, Lanes, Lines, Message, Plan, Roofs, Violins, Waterfalls
from nsysprof.charts.roofs import draw_roofs
from nsysprof.charts.style import draw_message, figure_png, shown, style
from nsysprof.charts.violins import draw_violins
from nsysprof.charts.waterfall import draw_waterfalls

_P = TypeVar("_P")
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
    """The figure of a plan, with a box in place of each character that the font lacks."""
    plan = in_font(plan)
    with style():
        return _DRAWN_BY[type(plan)](plan)


def picture(plan: Plan) -> bytes:
    """The chart of a plan as a PNG file; equal plans give equal bytes."""
    return figure_png(draw(plan))


def in_font(part: _P) -> _P:
    """The same with every text in it `shown`."""
    new: Any = part
    if isinstance(part, str):
        new = shown(part)
    elif isinstance(part, list | tuple):
        new = type(part)(in_font(inner) for inner in part)
    elif is_dataclass(part) and not isinstance(part, type):
        new = replace(part, **{field.name: in_font(getattr(part, field.name)) for field in fields(part)})
    return cast(_P, new)
