"""How charts look: colours, fonts, texts that fit, and the frame that all of them share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
from numpy.typing import NDArray

from nsysprof.breakdown import Breakdown
from nsysprof.kernels import FAMILIES
from nsysprof.render.png import png
from nsysprof.units import format_count, format_share

Numbers: TypeAlias = NDArray[Any]  # integers or floats

DPI = 150
WIDTH = 12.8  # inches: 1,920 pixels
MARGIN = 0.25
TITLE, TEXT, SMALL = 13.0, 8.5, 7.5
_BOLD = 1.16  # times as wide
INK, FAINT, RULE = "#1a1a1a", "#595959", "#d0d0d0"
IDLE = "#e8e8e8"

# One colour per family in all charts: any two are far enough apart for normal sight and for protan, deutan and tritan
# readers (a test measures it), and adjacent parts of a bar have a white edge between them.
COLOURS = {
    "gemm": "#203c78",
    "attention": "#57b2f7",
    "softmax": "#8055c1",
    "elementwise": "#e99622",
    "reduction": "#ca65b7",
    "copy": "#f7e617",
    "fill": "#b9aa74",
    "mask": "#c44916",
    "norm": "#179c83",
    "rng": "#b9f7bb",
    "communication": "#6c0819",
    "memcpy": "#3d3947",
    "memset": "#b9caf2",
    "graph": "#0a6a80",
    "other": "#7d6747",
}
# Ranges are pale, with their names in them: colour proper is for families.
TINTS = ("#a9cbe8", "#f2c393", "#b2d8aa", "#cdb6e0", "#eeb1be", "#e3d88a", "#a3d6d6", "#cbc0b0")

_STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": TEXT,
    "text.parse_math": False,
    "text.usetex": False,
    "text.hinting": "none",
    "text.antialiased": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "white",
    "axes.linewidth": 0.8,
    "axes.grid": False,
    "axes.xmargin": 0.0,
    "axes.ymargin": 0.0,
    "axes.formatter.use_mathtext": False,
    "figure.facecolor": "white",
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "hatch.linewidth": 0.6,
    "savefig.bbox": None,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "xtick.direction": "out",
    "xtick.minor.visible": False,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": TEXT,
    "ytick.minor.visible": False,
    "path.sketch": None,
}


@contextmanager
def style() -> Iterator[None]:
    """The look of all charts, whatever the user's own matplotlib settings; nothing stays changed."""
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(height: float) -> Figure:
    """An empty figure of the common width with an Agg canvas; ``height`` in inches."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def write_png(figure: Figure, path: Path) -> None:
    """Draw a figure of these modules and write it; equal figures give equal bytes."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    with style():
        canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    path.write_bytes(png(pixels, DPI))


# ---- texts


@lru_cache(maxsize=2)
def _font(name: str = "DejaVuSans") -> FT2Font:
    font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")))
    font.set_size(100, 72)
    return font


@lru_cache(maxsize=10_000)
def _printable(character: str) -> str:
    if character.isspace() or not character.isprintable():
        return " "
    known = _font().get_char_index(ord(character)) and _font("DejaVuSans-Bold").get_char_index(ord(character))
    return character if known else "□"


@lru_cache(maxsize=10_000)
def _advance(character: str) -> float:
    """The width of a character in ems, measured between two others so that its side bearings count."""
    font, widths = _font(), []
    for text in ("nn", f"n{character}n"):
        font.set_text(text, 0.0)
        widths.append(font.get_width_height()[0] / 64)
    return (widths[1] - widths[0]) / 100


def printable(text: str) -> str:
    """The text in one line, with a box for what the font cannot show."""
    return " ".join("".join(map(_printable, text)).split()) or "(no name)"


def text_width(text: str, size: float) -> float:
    """The width of a printable text in inches; ``size`` in points."""
    return sum(map(_advance, text)) * size / 72


def shorten(text: str, most: int) -> str:
    """A printable text of at most ``most`` characters, with its middle left out: both ends tell names apart."""
    # Names may be kilobytes long: what can never be shown is not looked at.
    if len(text) > 4 * most:
        text = text[: 2 * most] + "…" + text[-2 * most :]
    text = printable(text)
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head].rstrip()}…{text[len(text) - (most - 1 - head) :].lstrip()}"


_UNIT = re.compile(r"(?<=\d) (?=%|[nµm]?s\b|min\b)")  # a number keeps its unit


def wrap(text: str, size: float, width: float, most: int = 2) -> list[str]:
    """The text in at most ``most`` lines of ``width`` inches, broken at spaces; what does not fit ends in ``…``."""
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


def light(colour: str) -> bool:
    """Whether dark text reads better on this colour than white text (WCAG contrast)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179


# ---- the frame


def _title_lines(title: str) -> list[str]:
    return wrap(title, TITLE * _BOLD, WIDTH - 2 * MARGIN)


def header_height(title: str) -> float:
    """Inches that `header` takes."""
    return 0.28 + 0.25 * len(_title_lines(title)) + 0.3


def header(figure: Figure, title: str, subtitle: str) -> None:
    """Put the finding and, below it, what it is about at the top."""
    height = figure.get_figheight()
    lines = _title_lines(title)
    for number, line in enumerate(lines):
        top = 1 - (0.2 + 0.25 * number) / height
        figure.text(MARGIN / WIDTH, top, line, size=TITLE, weight="bold", va="top")
    top = 1 - (0.25 + 0.25 * len(lines)) / height
    figure.text(MARGIN / WIDTH, top, wrap(subtitle, TEXT, WIDTH - 2 * MARGIN, 1)[0], color=FAINT, va="top")


def footer(figure: Figure, notes: Sequence[str]) -> None:
    """What a reader must know besides, in one small line at the bottom."""
    if notes:
        text = wrap("; ".join(notes) + ".", SMALL, WIDTH - 2 * MARGIN, 1)[0]
        figure.text(
            MARGIN / WIDTH, 0.1 / figure.get_figheight(), text[:1].upper() + text[1:], size=SMALL, color=FAINT
        )


def legend_height(labels: Sequence[str]) -> float:
    """Inches that `legend` takes."""
    return 0.24 * (1 + max((line for line, _ in _legend_places(labels)), default=-1))


def legend(figure: Figure, entries: Sequence[tuple[str, str]], top: float) -> None:
    """Squares with labels, ``(label, colour)``, in lines from ``top`` (inches from above) down."""
    height = figure.get_figheight()
    places = _legend_places([label for label, _ in entries])
    left = np.array([x for _, x in places])
    bottom = np.array([height - top - 0.24 * line - 0.15 for line, _ in places])
    colours = [colour for _, colour in entries]
    squares = PolyCollection(
        _corners(left, left + 0.13, bottom, bottom + 0.13),
        facecolors=colours,
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


def family_legend(present: NDArray[np.bool_]) -> list[tuple[str, str]]:
    """Legend entries of the families that a chart shows; ``present`` has a flag per family."""
    return [(name, COLOURS[name]) for name, shown in zip(FAMILIES, present.tolist(), strict=True) if shown]


def boxes(
    axes: Axes,
    left: Numbers,
    right: Numbers,
    bottom: Numbers,
    top: Numbers,
    *,
    colours: str | Sequence[str],
    label: str = "",
    edge: str = "none",
    line: float | Numbers = 0.0,
) -> PolyCollection:
    """Many rectangles as one artist."""
    corners = _corners(left, right, bottom, top)
    artist = PolyCollection(corners, facecolors=colours, edgecolors=edge, linewidths=line, label=label)
    axes.add_collection(artist, autolim=False)
    return artist


def _corners(left: Numbers, right: Numbers, bottom: Numbers, top: Numbers) -> list[Numbers]:
    left, right, bottom, top = np.broadcast_arrays(left, right, bottom, top)
    return list(np.stack([left, bottom, right, bottom, right, top, left, top], axis=-1).reshape(-1, 4, 2))


def message(title: str, sentences: Sequence[str], subtitle: str) -> Figure:
    """A picture that holds nothing but words: why there is no chart, and what to do."""
    figure = new_figure(2.2)
    header(figure, title, subtitle)
    top = header_height(title) + 0.25
    for number, sentence in enumerate(sentences):
        figure.text(MARGIN / WIDTH, 1 - (top + 0.25 * number) / 2.2, sentence, size=TITLE - 2, va="top")
    return figure


def subtitle(breakdown: Breakdown) -> str:
    """Which report a chart is about: its file, GPUs, nsys version and size."""
    report, totals = breakdown.attribution.tables.report, breakdown.totals
    used = sorted({device.gpu for device in breakdown.attribution.tables.devices if device.gpu is not None})
    names = [report.about.gpus[gpu].name for gpu in used] or [gpu.name for gpu in report.about.cuda_gpus]
    many = {name: f"{names.count(name)} × " if names.count(name) > 1 else "" for name in names}
    gpus = [f"{count}{name}" for name, count in many.items()]
    kernels, ranges = totals["kernels"], totals["ranges"]
    parts = [
        shorten(report.path.name, 60),
        shorten(", ".join(gpus), 60) if gpus else "GPU not recorded",
        f"nsys {printable(report.about.nsys_version or 'version not recorded')}",
        f"{format_count(kernels)} kernel{'s' * (kernels != 1)}",
        f"{format_count(ranges)} range{'s' * (ranges != 1)}",
    ]
    unowned = outside_share(breakdown)
    if ranges and unowned > 0:
        parts.append(f"{format_share(unowned)} of op time belongs to no range")
    return " · ".join(parts)


def outside_share(breakdown: Breakdown) -> float:
    """The part of the report's op time that no range owns."""
    attribution = breakdown.attribution
    total = sum(row.sum_ns for row in attribution.ledger)
    owned = int(attribution.exclusive_sum_ns.sum())
    return (total - owned) / total if total > 0 else 0.0
