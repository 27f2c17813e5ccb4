"""The kit that all charts are drawn with: texts and their widths, colours for every reader, and files."""

from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from nsysprof.analyze.charts import analysis_charts
from nsysprof.charts.chart import plans_of
from nsysprof.charts.drawing import draw, figure_png
from nsysprof.charts.palette import COLOURS, IDLE, text_on
from nsysprof.charts.style import shown, style, text_width, wrap
from nsysprof.core.text import printable, shorten
from nsysprof.kernels.classify import FAMILIES
from tests.kit.figures import SIGHT, contrast, lab
from tests.kit.reports import RUN, broken_down


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("short", 10, "short"),
        ("abcdefghij", 5, "ab…ij"),
        ("x" * 100_000, 7, "xxx…xxx"),
        ("a\n\n b", 9, "a b"),
        ("\x00", 9, "(no name)"),
    ],
)
def test_names_are_shortened_in_the_middle(text: str, most: int, expected: str) -> None:
    """Both ends of a long name stay, spaces and control characters become one space."""
    assert shorten(text, most) == expected


def test_lines_keep_to_the_width_and_numbers_to_their_units() -> None:
    """A line is no wider than asked for, and a number is never parted from its unit."""
    text = "the first line is not very long but there is 60 % of it left for 12 ms"
    for width in np.arange(1.2, 4, 0.1):
        lines = wrap(text, 10, float(width), most=9)
        assert " ".join(lines).replace("\u00a0", " ") == text
        assert all(text_width(line, 10) <= width for line in lines)
        assert not any(line.startswith(("%", "ms")) for line in lines)


def test_text_widths_are_those_that_are_drawn() -> None:
    """The layout measures texts as matplotlib draws them, within a few percent."""
    with style():
        figure = Figure(dpi=150)
        for text in ("RUN::math::S8192", "iiiiiiiiii", "WWWW mmmm", "at::native::<unnamed>"):
            drawn = figure.text(0, 0, text, size=10)
            assert text_width(text, 10) == pytest.approx(drawn.get_window_extent().width / 150, rel=0.06)


def test_what_the_font_lacks_is_a_box() -> None:
    """Letters of DejaVu Sans stay; others become a box each, so that no text gets longer."""
    assert shown("äß√Ж 核心") == "äß√Ж □□"
    assert printable("äß√Ж\n\x1b核心") == "äß√Ж 核心"


@pytest.mark.parametrize("sight", SIGHT)
def test_family_colours_differ_for_every_reader(sight: str) -> None:
    """Any two families, and idle time, are at least 15 units apart in CIE L*a*b*; 2 is just noticeable."""
    assert list(COLOURS) == list(FAMILIES)
    seen = {name: lab(colour, sight) for name, colour in {**COLOURS, "idle": IDLE}.items()}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 15, (one, other)


def test_text_in_bars_has_contrast() -> None:
    """Black or white, whichever is chosen: at least 4.5 to 1, as WCAG asks for."""
    assert all(contrast(colour, white=text_on(colour) == "white") >= 4.5 for colour in COLOURS.values())


def test_pictures_keep_their_look_at_half_their_size() -> None:
    """Of 256 colours none is far from what was drawn, least those of the families; the size on paper is the same."""
    figure = draw(plans_of(analysis_charts(), broken_down(RUN))[1])
    drawn = figure_png(figure)
    pixels, whole = np.asarray(figure.canvas.buffer_rgba())[..., :3], BytesIO()  # type: ignore[attr-defined]
    Image.fromarray(pixels).save(whole, "png", optimize=True)
    assert len(drawn) < len(whole.getvalue()) / 3
    with Image.open(BytesIO(drawn)) as image:
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
        off = np.abs(np.asarray(image.convert("RGB")).astype(int) - pixels).max(axis=-1)
    assert off.mean() < 1
    assert off.max() < 20
    for name in ("gemm", "attention", "softmax"):
        colour = [int(COLOURS[name][at : at + 2], 16) for at in (1, 3, 5)]
        assert (off[(pixels == colour).all(axis=-1)] <= 1).all()
