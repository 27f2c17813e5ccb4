"""The look of charts: fonts, fitted texts, and the common frame."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Transform

from nsysprof.charts.marks import DPI, Axis, Heading
from nsysprof.charts.palette import FAINT, INK, RULE
from nsysprof.core.arrays import Array
from nsysprof.core.text import shorten
from nsysprof.core.units import scale_ns

WIDTH = 12.8  # inches: 1,920 pixels
MARGIN = 0.25
WRITTEN = 0.17  # inches that a row with text in it takes
TITLE, TEXT, SMALL = 13.0, 8.5, 7.5
BOLD = 1.16  # times as wide
Edges: TypeAlias = Array | float
_SIZE = 100  # pixels: of the fonts that are measured

# Beside matplotlib's own defaults, which are not those of a user's settings.
_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT,
    "text.parse_math": False,
    "text.hinting": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.xmargin": 0.0,
    "axes.ymargin": 0.0,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": TEXT,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the look of all charts, regardless of the user's matplotlib settings, which stay unchanged."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


@lru_cache(maxsize=2)
def _font(name: str = "DejaVuSans") -> FT2Font:
    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")))
    font.set_size(_SIZE, 72)
    return font


@lru_cache(maxsize=10_000)
def _shown(character: str) -> str:
    known = _font().get_char_index(ord(character)) and _font("DejaVuSans-Bold").get_char_index(ord(character))
    return character if known else "□"


def shown(text: str) -> str:
    """Return the text with a box for each character missing from the font."""
    return text if text.isascii() else "".join(map(_shown, text))


@lru_cache(maxsize=10_000)
def _advance(character: str) -> float:
    """The width of a character in ems, without hinting."""
    return _font().load_char(ord(character)).linearHoriAdvance / 65536 / _SIZE


def text_width(text: str, size: float) -> float:
    """Return the width in inches of a text of `shown` characters; ``size`` is in points."""
    return sum(map(_advance, text)) * size / 72


_UNIT = re.compile(r"(?<=\d) (?=%|[nµm]?s\b|min\b)")  # a number keeps its unit


def wrap(text: str, size: float, width: float, most: int = 2) -> list[str]:
    """Break a text at spaces into at most ``most`` lines, ``width`` inches wide; a cut text ends in ``…``."""
    lines = [""]
    for word in _UNIT.sub("\u00a0", text).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] += " …"
            break
    return lines


def fitting(text: str, size: float, width: float, least: int) -> str:
    """Shorten a text to ``width`` inches; return an empty text if fewer than ``least`` letters would remain."""
    while (wide := text_width(text, size)) > width:  # more than once, as letters are not equally wide
        most = int(len(text) * width / wide) - 1
        if most < least:
            return ""
        text = shorten(text, most)
    return text


def write(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    ha: str = "center",
    va: str = "center_baseline",
    *,
    size: float = SMALL,
    at: Transform | None = None,
    **look: Any,
) -> None:
    """Write a text at a point, in data coordinates or in the coordinates ``at``, aligned by ``ha`` and ``va``."""
    axes.text(x, y, text, ha=ha, va=va, fontsize=size, transform=at or axes.transData, **look)


def write_title(axes: Axes, y: float, title: str) -> None:
    """Write the title of a panel, left-aligned; ``y`` is 1 at the upper edge of the panel."""
    write(axes, 0, y, title, "left", "baseline", size=TEXT + 0.5, at=axes.transAxes, weight="bold")


def _title_lines(title: str) -> list[str]:
    return wrap(title, TITLE * BOLD, WIDTH - 2 * MARGIN)


def _title_height(title: str) -> float:
    return 0.28 + 0.25 * len(_title_lines(title)) + 0.3


def heading_height(heading: Heading) -> float:
    """Return the height of title, subtitle and legend in inches."""
    places = _legend_places([label for label, _ in heading.legend])
    return _title_height(heading.title) + 0.24 * (1 + max((line for line, _ in places), default=-1))


def framed(heading: Heading, height: float) -> Figure:
    """Make a figure ``height`` inches tall, with title, subtitle and legend at the top and footnotes at the bottom."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    lines = _title_lines(heading.title)
    for number, line in enumerate(lines):
        top = 1 - (0.2 + 0.25 * number) / height
        figure.text(MARGIN / WIDTH, top, line, size=TITLE, weight="bold", va="top")
    top = 1 - (0.25 + 0.25 * len(lines)) / height
    figure.text(MARGIN / WIDTH, top, wrap(heading.subtitle, TEXT, WIDTH - 2 * MARGIN, 1)[0], color=FAINT, va="top")
    if heading.legend:
        _legend(figure, heading.legend, _title_height(heading.title))
    if heading.notes:
        text = wrap("; ".join(heading.notes) + ".", SMALL, WIDTH - 2 * MARGIN, 1)[0]
        figure.text(MARGIN / WIDTH, 0.1 / height, text[:1].upper() + text[1:], size=SMALL, color=FAINT)
    return figure


def _legend(figure: Figure, entries: Sequence[tuple[str, str]], top: float) -> None:
    """Draw squares with labels, ``(label, colour)``, line by line, starting ``top`` inches below the upper edge."""
    height = figure.get_figheight()
    places = _legend_places([label for label, _ in entries])
    left = np.array([x for _, x in places])
    bottom = np.array([height - top - 0.24 * line - 0.15 for line, _ in places])
    squares = PolyCollection(
        _corners(left, left + 0.13, bottom, bottom + 0.13),
        facecolors=[colour for _, colour in entries],
        edgecolors=FAINT,
        linewidths=0.4,
        transform=figure.dpi_scale_trans,
        label="legend",
    )
    figure.add_artist(squares)
    for (label, _), x, y in zip(entries, left.tolist(), bottom.tolist(), strict=True):
        figure.text((x + 0.18) / WIDTH, (y + 0.06) / height, label, va="center_baseline", size=TEXT)


def _legend_places(labels: Sequence[str]) -> list[tuple[int, float]]:
    places, line, x = [], 0, MARGIN
    for label in labels:
        width = 0.18 + text_width(label, TEXT) + 0.22
        if x + width > WIDTH and x > MARGIN:
            line, x = line + 1, MARGIN
        places.append((line, x))
        x += width
    return places


def panel_column(
    heading: Heading,
    sizes: Sequence[tuple[float, float]],
    *,
    left: float,
    wide: float,
    first: float,
    between: float,
    foot: float = 0.0,
) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels one below the other, each ``wide`` inches wide and ``left`` inches from the left edge.

    ``sizes``: for each panel, the heights of its title and of the panel itself (inches). ``first``: inches below the
    heading; ``between``: inches below each panel; ``foot``: inches at the bottom.
    """
    y = heading_height(heading) + first
    height = y + sum(above + high + between for above, high in sizes) + foot
    figure, panels = framed(heading, height), []
    for above, high in sizes:
        y += above + high
        panels.append(figure.add_axes((left / WIDTH, 1 - y / height, wide / WIDTH, high / height)))
        y += between
    return figure, panels


def panel_grid(heading: Heading, count: int, *, high: float, left: float, right: float) -> tuple[Figure, list[Axes]]:
    """Make a figure with panels ``high`` inches tall, up to three per row; ``left``, ``right``: margins in inches."""
    columns = max(min(count, 3), 1)
    rows = -(-count // columns)
    top, bottom, between = heading_height(heading) + (0.42 if count == 1 else 0.6), 0.85, 1.0
    total = top + rows * high + (rows - 1) * between + bottom
    figure = framed(heading, total)
    each = (WIDTH - MARGIN) / columns
    panels = []
    for number in range(count):
        row, column = divmod(number, columns)
        y = total - top - row * (high + between) - high
        place = (left + column * each) / WIDTH, y / total, (each - left - right) / WIDTH, high / total
        panels.append(figure.add_axes(place))
    return figure, panels


def shown_rows(count: int, row: float, strong: Sequence[int] = ()) -> list[int]:
    """Return the rows (each ``row`` inches high) whose labels fit: the ``strong`` rows, and evenly spaced others."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * row >= WRITTEN or step == 100)
    shown: list[int] = []
    for at in (*strong, *range(0, count, step)):
        if all(abs(at - other) >= step for other in shown):
            shown.append(at)
    return shown


def size_of(axes: Axes) -> tuple[float, float]:
    """Return the size of the axes in inches: width and height."""
    return float(axes.bbox.width) / DPI, float(axes.bbox.height) / DPI


def inches(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return the position of a data point in inches from the lower left corner of the axes."""
    across, up = (axes.transData + axes.transAxes.inverted()).transform((x, y))
    wide, high = size_of(axes)
    return float(across) * wide, float(up) * high


def boxes(
    axes: Axes, left: Edges, right: Edges, bottom: Edges, top: Edges, colours: str | Sequence[str], **look: Any
) -> None:
    """Draw many rectangles as one artist, without edges unless ``look`` sets them."""
    corners = _corners(left, right, bottom, top)
    look = {"edgecolors": "none", "linewidths": 0.0, **look}
    axes.add_collection(PolyCollection(corners, facecolors=colours, **look), autolim=False)


def _corners(left: Edges, right: Edges, bottom: Edges, top: Edges) -> list[Array]:
    left, right, bottom, top = np.broadcast_arrays(left, right, bottom, top)
    return list(np.stack([left, bottom, right, bottom, right, top, left, top], axis=-1).reshape(-1, 4, 2))


_TICK, _PAD, _LINE = 3.0, 3.5, 7.5  # points: length of a tick, gap below it, height of its number


def draw_axis(axes: Axes, ticks: Sequence[float], text: Callable[[float], str], label: str, *, gap: float) -> None:
    """Draw the axis below ``axes``, whose limits must be final: ticks outside the limits are left out.

    ``text`` formats a tick; ``gap`` is the distance between numbers and label in points.
    """
    for own in (axes.xaxis, axes.yaxis):
        own.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    low, high = axes.get_xlim()
    slack = 1e-9 * (high - low)
    x = np.array([tick for tick in ticks if low - slack <= tick <= high + slack])
    point = DPI / 72 / axes.bbox.height
    where = axes.get_xaxis_transform()
    for top, bottom, colour, width, height in ((1.0, 0.0, RULE, 0.5, 0.5), (0.0, -_TICK * point, FAINT, 0.8, 2.0)):
        look: dict[str, Any] = {"linewidth": width, "zorder": height, "clip_on": False}
        axes.vlines(x, bottom, top, colour, transform=where, **look)
    below = -(_TICK + _PAD) * point
    for tick in x.tolist():
        write(axes, tick, below, text(tick), va="top", at=where)
    write(axes, 0, below - (_LINE + gap) * point, label, "left", "top", size=TEXT, at=axes.transAxes)


def draw_time_axis(axes: Axes, length: int, label: str) -> None:
    """Draw the axis of ``length`` ns, in a suitable unit."""
    divisor, unit = scale_ns(length)
    ticks = MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(*axes.get_xlim())
    draw_axis(axes, ticks, lambda tick: f"{tick / divisor:,.6g}", f"{label} ({unit})", gap=2)
    axes.spines["left"].set_visible(False)


def draw_plane(axes: Axes, x: Axis, y: Axis, title: str = "") -> None:
    """Scale both axes logarithmically, with numbers and labels; ``title`` is above, in bold."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    for axis, ticks in ((axes.xaxis, _apart(axes, x.ticks)), (axes.yaxis, y.ticks)):
        axis.set_ticks([tick for tick, _ in ticks], [text for _, text in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, labelsize=TEXT)
    axes.grid(visible=True, color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(x.label, fontsize=TEXT + 0.5, loc="left")
    # Above the axis, to be read without turning the head.
    write(axes, 0, 1.015, y.label, "left", "baseline", size=TEXT + 0.5, at=axes.transAxes, color=FAINT)
    if title:
        write_title(axes, 1.02 + 0.2 / size_of(axes)[1], title)


def _apart(axes: Axes, ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The ticks whose numbers do not touch: the last tick, and each earlier one that has room."""
    shown: list[tuple[float, str]] = []
    edge = np.inf
    for tick, text in reversed(ticks):
        place, half = inches(axes, tick, axes.get_ylim()[0])[0], text_width(text, TEXT) / 2 + 0.07
        if place + half <= edge:
            shown.append((tick, text))
            edge = place - half
    return shown[::-1]
