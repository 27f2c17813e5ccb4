"""What the charts of a benchmark share: colours of backends, panels side by side, logarithmic axes, labels at lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.charts.marks import Heading
from nsysprof.charts.palette import FAINT, INK, RULE
from nsysprof.charts.style import MARGIN, TEXT, WIDTH, framed, heading_height
from nsysprof.statistics.distributions import Floats

# Colour and marker of each backend. Colours are told apart by readers of all kinds (a test measures it); where lines
# lie on each other, markers tell them. Other backends get what is free.
LOOKS = {
    "math": ("#c44916", "o"),
    "flash": ("#0127bb", "s"),
    "efficient": ("#06976b", "^"),
    "cudnn": ("#773a82", "D"),
    "naive": ("#b5b700", "v"),
    "math_reduced": ("#7b1b17", "P"),
    "flex": ("#4cbfff", "X"),
    "flash_attn": ("#e46bb0", "p"),
    "auto": (INK, "x"),
    "tiled_o0": ("#460046", "<"),
    "tiled_o1": ("#fac86e", ">"),
    "tiled_o2": ("#96c88c", "d"),
    "tiled_o3": ("#a064fa", "H"),
    "tiled_o4": ("#e60abe", "*"),
    "tiled_o5": ("#460078", "8"),
}
OTHER_LOOK = ("#4e4e4e", "h")
_CHOSEN: dict[str, tuple[str, str]] = {}  # of the backends of the results that are drawn
_STYLES = ("-", (0, (5, 2)), (0, (8, 2, 1.5, 2)))  # a dtype after the other

_LABEL = TEXT + 0.5
_GAP = 0.17  # inches between labels at lines


@dataclass(frozen=True)
class EndLabel:
    """A text at the end of a line, in data coordinates; ``x`` is None for lines that go through to the right side."""

    y: float
    text: str
    colour: str
    x: float | None = None


def backend_look(backend: str) -> tuple[str, str]:
    """The colour and the marker of a backend."""
    return LOOKS.get(backend) or _CHOSEN.get(backend, OTHER_LOOK)


def choose_looks(backends: Sequence[str]) -> None:
    """Give those that have no look of their own one of the others', in their order, that none of these has."""
    free = [look for name, look in LOOKS.items() if name not in backends]
    _CHOSEN.clear()
    _CHOSEN.update(zip([name for name in backends if name not in LOOKS], free, strict=False))


def readable(colour: str) -> str:
    """The colour, darkened so far that a text in it can be read on white (WCAG contrast of 4.5)."""
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], float)
    while _luminance(channels) > 1.05 / 4.5 - 0.05:
        channels *= 0.95
    return "#" + "".join(f"{round(channel):02x}" for channel in channels.tolist())


def _luminance(channels: Floats) -> float:
    part = channels / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def dtype_style(dtypes: Sequence[str], dtype: str) -> str | tuple[float, tuple[float, ...]]:
    """How lines of a dtype are dashed: solid for the first."""
    return _STYLES[list(dtypes).index(dtype) % len(_STYLES)]


def backend_legend(backends: Iterable[str]) -> list[tuple[str, str]]:
    """Legend entries of backends."""
    return [(name, backend_look(name)[0]) for name in backends]


def new_panels(
    heading: Heading, count: int, *, height: float = 4.4, room: float = 1.25, left: float = 0.85
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels, up to three beside each other.

    ``room`` and ``left``: inches for labels right and left of each.
    """
    columns = min(count, 3)
    rows = -(-count // columns)
    top, bottom, between = heading_height(heading) + (0.42 if count == 1 else 0.6), 0.85, 1.0
    total = top + rows * height + (rows - 1) * between + bottom
    figure = framed(heading, total)
    each = (WIDTH - MARGIN) / columns
    panels = []
    for number in range(count):
        row, column = divmod(number, columns)
        x = left + column * each
        width = each - room - left
        y = total - top - row * (height + between) - height
        panels.append(figure.add_axes((x / WIDTH, y / total, width / WIDTH, height / total)))
    return figure, panels


def finish_axes(axes: Axes, x_label: str, y_label: str, title: str = "") -> None:
    """Labels, a title above on the left, and lines behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(x_label, fontsize=_LABEL, loc="left")
    # Above the axis, to be read without turning the head.
    axes.text(
        0, 1.02, y_label, transform=axes.transAxes, fontsize=_LABEL, color=FAINT, ha="left", va="bottom"
    )
    if title:
        axes.text(
            0,
            1.02 + (0.2 / _height(axes) if y_label else 0),
            title,
            transform=axes.transAxes,
            fontsize=_LABEL,
            weight="bold",
            va="bottom",
        )
    axes.tick_params(which="both", length=3, labelsize=TEXT)
    axes.grid(visible=True, which="major", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def log_x(axes: Axes, values: Sequence[float], text: Callable[[float], str] = "{:.0f}".format) -> None:
    """A logarithmic axis with a tick at each of the values (fewer where they would touch)."""
    ticks = sorted(set(values))
    axes.set_xscale("log", base=2)
    low, high = ticks[0], ticks[-1]
    margin = (high / low) ** 0.04 if high > low else 1.5
    axes.set_xlim(low / margin, high * margin)
    shown = _apart(axes, ticks, 0.5)
    axes.set_xticks(shown, [text(tick) for tick in shown])
    axes.set_xticks([], minor=True)


def log_y(axes: Axes, low: float, high: float, text: Callable[[float], str], *, binary: bool = False) -> None:
    """A logarithmic axis that holds ``low`` to ``high``, with round numbers as ticks (``binary``: powers of two)."""
    axes.set_yscale("log")
    if high <= low * 1.05:
        low, high = low / 1.5, high * 1.5
    margin = (high / low) ** 0.06
    low, high = low / margin, high * margin
    axes.set_ylim(low, high)
    ticks = binary_ticks(low, high) if binary else round_ticks(low, high)
    axes.set_yticks(ticks, [text(tick) for tick in ticks])
    axes.set_yticks([], minor=True)


def round_ticks(low: float, high: float) -> list[float]:
    """Between 3 and some 8 round numbers from low to high: powers of ten, or 1, 2 and 5 of each, or finer."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(np.arange(1, 10, 0.5).tolist())):
        found = [step * 10.0**decade for decade in decades for step in steps]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) >= 4:
            break
    return found


def binary_ticks(low: float, high: float) -> list[float]:
    """At most 9 powers of two from low to high, evenly spaced."""
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    step = max(1, -(-(last - first + 1) // 9))
    step = next((round_step for round_step in (1, 2, 5, 10) if round_step >= step), step)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


def end_labels(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Texts right of the lines' ends, pushed apart where they would overlap; axes must have their final limits."""
    for x in dict.fromkeys(label.x for label in labels):
        _labels_at(axes, [label for label in labels if label.x == x], x)


def _labels_at(axes: Axes, labels: Sequence[EndLabel], x: float | None) -> None:
    place = axes.transData + axes.transAxes.inverted()
    wanted = np.array([place.transform((x or axes.get_xlim()[1], label.y)) for label in labels])
    put = pushed_apart(wanted[:, 1], _GAP / _height(axes))
    inch = 1 / panel_width(axes)
    side = 1.0 if x is None else float(wanted[0, 0]) + 0.06 * inch
    for label, at, target in zip(labels, put.tolist(), wanted[:, 1].tolist(), strict=True):
        axes.plot(
            [side, side + 0.12 * inch],
            [target, at],
            transform=axes.transAxes,
            color=label.colour,
            linewidth=0.7,
            clip_on=False,
        )
        axes.text(
            side + 0.16 * inch,
            at,
            label.text,
            transform=axes.transAxes,
            fontsize=TEXT,
            color=readable(label.colour),
            va="center",
            label="end label",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            zorder=6,
        )


def panel_width(axes: Axes) -> float:
    """Inches."""
    return float(axes.get_position().width) * WIDTH


def pushed_apart(wanted: Floats, gap: float) -> Floats:
    """Places at least ``gap`` apart, in the same order and as near to those wanted as that allows, within 0 to 1."""
    order = np.argsort(wanted, kind="stable")
    groups: list[tuple[float, int]] = []  # middle and number of labels that touch
    for place in wanted[order].tolist():
        middle, count = float(place), 1
        while groups and groups[-1][0] + (groups[-1][1] + count) / 2 * gap > middle:
            other, several = groups.pop()
            middle = (middle * count + other * several) / (count + several)
            count += several
        groups.append((middle, count))
    placed = []
    for middle, count in groups:
        placed += [middle + (number - (count - 1) / 2) * gap for number in range(count)]
    found = np.array(placed)
    steps = np.arange(len(found)) * gap
    found = np.maximum.accumulate(np.maximum(found, 0) - steps) + steps
    found = np.minimum.accumulate((np.minimum(found, 1) + steps[::-1])[::-1])[::-1] - steps[::-1]
    out = np.empty(len(wanted))
    out[order] = found
    return out


def panel_title(count: int, text: str) -> str:
    """The title of a panel among several; a single one needs none."""
    return text if count > 1 else ""


def _height(axes: Axes) -> float:
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return float(axes.get_position().height * figure.get_figheight())


def _apart(axes: Axes, ticks: Sequence[float], inches: float) -> list[float]:
    """The ticks, or every second, third … of them, so that they are some inches apart."""
    low, high = np.log(axes.get_xlim())
    width = panel_width(axes)
    places = (np.log(np.array(ticks)) - low) / (high - low) * width
    shown = [len(ticks) - 1]
    for number in range(len(ticks) - 2, -1, -1):
        if places[shown[-1]] - places[number] >= inches:
            shown.append(number)
    return [ticks[number] for number in reversed(shown)]
