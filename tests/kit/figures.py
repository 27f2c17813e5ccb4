"""What is in a figure: its texts and where they are; and colours as different readers see them."""

from itertools import combinations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from nsysprof.charts.style import style
from nsysprof.core.arrays import Floats

# Machado, Oliveira and Fernandes 2009: what a colour (linear RGB) looks like without one kind of cone.
SIGHT = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def texts(figure: Figure) -> list[str]:
    """Every text in the figure, with common spaces."""
    every = figure.findobj(Text)
    return [text.get_text().replace("\u00a0", " ") for text in every if isinstance(text, Text) and text.get_text()]


def title_of(figure: Figure) -> str:
    """The lines of the title, as one."""
    bold = [text.get_text() for text in figure.texts if text.get_fontweight() == "bold"]
    return " ".join(bold).replace("\u00a0", " ")


def check_texts(figure: Figure) -> None:
    """No text leaves the picture, and no two lie on each other."""
    with style():
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        shown = [
            text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()
        ]
        every = [(text.get_text(), Text.get_window_extent(text, renderer)) for text in shown]
    drawn = [(said, box) for said, box in every if box.width]
    for said, box in drawn:
        assert box.x0 >= 0, said
        assert box.x1 <= figure.bbox.width, said
        assert box.y0 >= 0, said
        assert box.y1 <= figure.bbox.height, said
    for (one, first), (other, second) in combinations(drawn, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        down = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert across <= 1 or down <= 4, (one, other)  # boxes of lines have room above and below the letters


def lab(colour: str, sight: str) -> Floats:
    """CIE L*a*b* of an sRGB colour as seen with one kind of sight."""
    seen = np.clip(np.array(SIGHT[sight]) @ _linear(colour), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ seen / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(colour: str, *, white: bool) -> float:
    """The contrast of a colour with white or with black, as WCAG counts it."""
    luminance = float(_linear(colour) @ [0.2126, 0.7152, 0.0722])
    return 1.05 / (luminance + 0.05) if white else (luminance + 0.05) / 0.05


def _linear(colour: str) -> Floats:
    rgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
