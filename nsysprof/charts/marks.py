"""Describe everything that is needed to draw charts, in plain numbers and words, without pandas or matplotlib.

A plan may be drawn in another process, so it must be picklable and small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nsysprof.core.arrays import Array, Bytes, Ints

DPI = 150
ROW = 0.27  # inches of a row of bars
STREAM, RANGE = 0.36, 0.24  # inches of a lane
PLOT = 10.0  # inches of the lanes, whose columns are whole pixels
PLOT_COLUMNS = round(PLOT * DPI)  # one per pixel
STREAM_LEVELS = 24  # heights of a column of a stream's lane, which show how busy it is


@dataclass(frozen=True)
class Heading:
    """The text around a chart: the finding, its subject, ``legend`` as (label, colour), and footnotes."""

    title: str
    subtitle: str
    legend: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Message:
    """A text that replaces a chart: why there is no chart, and what to do."""

    heading: Heading
    sentences: Sequence[str]


@dataclass(frozen=True)
class Part:
    """A part of the bars, from ``left`` to ``right`` for each of ``rows``; ``edge`` is the outline colour."""

    label: str
    colour: str
    edge: str
    rows: Ints
    left: Array
    right: Array


@dataclass(frozen=True)
class BarPanel:
    """Bars on one axis from 0 to ``end``.

    ``share`` is the panel's share of the free width; ``inside`` are texts on the bars as (x, row, text, colour).
    ``marks``, if present, have a label and one x per row (nan: no mark). ``cut`` is the row whose bar is longer than
    the axis, or None. Axis numbers are percentages if ``percent``, and integers if ``whole``.
    """

    label: str
    share: float
    end: float
    parts: Sequence[Part]
    inside: Sequence[tuple[float, int, str, str]] = ()
    marks: tuple[str, Array] | None = None
    cut: int | None = None
    percent: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Heat:
    """A grid of cells: a row per bar row, and a column per name; each name is a list of lines.

    ``values`` from -1 to 1 (nan: an empty cell) are coloured between ``colours``; ``scale`` labels both ends and the
    middle. ``texts`` has alternative texts for each cell, from longest to shortest; the first text that fits is used.
    """

    share: float
    names: Sequence[Sequence[str]]
    values: Array
    texts: Sequence[Sequence[Sequence[str]]]
    colours: tuple[str, str]
    scale: tuple[str, str, str]


@dataclass(frozen=True)
class Column:
    """Numbers beside the bars, as text, right-aligned below their heading."""

    heading: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Bars:
    """Rows of bars from top to bottom, with labels on the left and columns of numbers after the first panel.

    ``rest`` is the row that combines all other rows, or None; ``strong`` rows have bold labels; ``row`` is the height
    of each row in inches. If there is not enough space for all labels, some are left out.
    """

    heading: Heading
    labels: Sequence[str]
    rest: int | None
    panels: Sequence[BarPanel | Heat]
    columns: Sequence[Column] = ()
    strong: Sequence[int] = ()
    row: float = ROW


@dataclass(frozen=True)
class Stream:
    """One lane of equal columns: ``level`` uint8: the fill height of each column (of `STREAM_LEVELS`); ``group`` uint8:
    an index into ``colours``.
    """

    label: str
    process: int
    level: Bytes
    group: Bytes
    colours: Sequence[str]
    height: float = STREAM


def fill_levels(busy: Ints, edges: Ints) -> Bytes:
    """Compute the ``level`` of a `Stream` from its busy time in each column; short times are emphasized."""
    level = np.maximum(np.rint(busy / np.maximum(np.diff(edges), 1) * STREAM_LEVELS), 3)
    return np.where(busy > 0, level, 0).astype(np.uint8)


@dataclass(frozen=True)
class Marks:
    """One lane of boxes from ``start`` to ``end`` (int64 ns after the start of the panel), ``height`` in inches.

    Each box has one of ``colours`` and ``names``. A name is written inside the box if it fits or, with ``beside``, to
    the right or left of the box. ``process`` is None outside the overview.
    """

    label: str
    height: float
    start: Ints
    end: Ints
    colours: Sequence[str]
    names: Sequence[str]
    process: int | None = None
    beside: bool = False


@dataclass(frozen=True)
class Ribbons:
    """Many lanes of equal columns that mix colours; ``shares`` (uint8, shape (lanes, colours, columns)): the share of
    each colour in each column, from 0 to 255. The rest is white.
    """

    labels: Sequence[str]
    shares: Bytes
    colours: Sequence[str]
    height: float
    process: int | None = None


@dataclass(frozen=True)
class LanePanel:
    """One time axis of ``length`` ns with lanes; ``title`` above it, ``label`` below.

    ``gaps`` (starts, ends) are shaded behind the streams; ``framed``, if present, is the stretch to frame.
    """

    lanes: Sequence[Stream | Marks | Ribbons]
    length: int
    title: str
    label: str
    gaps: tuple[Ints, Ints] | None = None
    framed: tuple[int, int] | None = None


@dataclass(frozen=True)
class Lanes:
    """Time axes from top to bottom."""

    heading: Heading
    panels: Sequence[LanePanel]


@dataclass(frozen=True)
class Waterfall:
    """The steps of a waterfall, one per cause, from the total ``before`` to the total ``after``, in the unit of the
    axis.

    ``totals``: the first and the last bar as (busy, idle); ``total_texts``: the texts above these bars. ``texts`` and
    ``shares``: one per step, empty if nothing changes. ``title`` is above, ``label`` at the axis.
    """

    title: str
    label: str
    totals: tuple[tuple[float, float], tuple[float, float]]
    total_texts: tuple[str, str]
    before: Array
    after: Array
    texts: Sequence[str]
    shares: Sequence[str]


@dataclass(frozen=True)
class Waterfalls:
    """Waterfalls one below the other; ``columns`` are the names of the common columns, each with a remark or ""."""

    heading: Heading
    columns: Sequence[tuple[str, str]]
    panels: Sequence[Waterfall]


@dataclass(frozen=True)
class Flag:
    """One label for ``count`` boxes between ``start`` and ``end`` (ns); ``amount`` is the total time of these boxes.

    If it fits, the label is written into the longest box, which extends from ``inner`` to ``outer``. Otherwise, the
    text ``aloft`` (if not empty) is written above the lane, and a vertical line connects text and boxes.
    """

    text: str
    amount: str
    start: int
    end: int
    inner: int
    outer: int
    colour: str
    count: int = 1
    aloft: str = ""


@dataclass(frozen=True)
class CallLane:
    """Boxes from ``start`` to ``end`` (int64 ns) in ``colours``; the most important ``flags`` come first.

    ``level``, if given, is the fill height of each box, from 0 to 1.
    """

    label: str
    height: float
    start: Ints
    end: Ints
    colours: Sequence[str]
    flags: Sequence[Flag] = ()
    level: Array | None = None


@dataclass(frozen=True)
class CallBlock:
    """One call of ``length`` ns: the lanes of its streams and its host; ``amount`` is written at its end."""

    title: str
    length: int
    amount: str
    lanes: Sequence[CallLane]


@dataclass(frozen=True)
class CallPanel:
    """A time axis from 0 to ``length`` ns with calls one below the other; ``label`` names the axis."""

    blocks: Sequence[CallBlock]
    length: int
    label: str


@dataclass(frozen=True)
class Calls:
    """Time axes from top to bottom; ``zoomed``: the index of the panel that enlarges a call, and the index of this
    call, or None.
    """

    heading: Heading
    panels: Sequence[CallPanel]
    zoomed: tuple[int, int] | None


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: label, limits, and as many ticks as fit."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


def log_axis(label: str, low: float, high: float, text: Callable[[float], str], *, binary: bool = False) -> Axis:
    """Make an axis that covers ``low`` to ``high`` with a margin, with round ticks (``binary``: powers of two)."""
    if high <= low * 1.05:
        low, high = low / 1.5, high * 1.5
    margin = (high / low) ** 0.06
    low, high = low / margin, high * margin
    ticks = binary_ticks(low, high) if binary else round_ticks(low, high)
    return Axis(label, low, high, [(tick, text(tick)) for tick in ticks])


def round_ticks(low: float, high: float) -> list[float]:
    """Return about 3 to 8 round numbers from low to high: powers of ten, 2 and 5 times these, or finer steps."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(np.arange(1, 10, 0.5).tolist())):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    return ticks


def binary_ticks(low: float, high: float) -> list[float]:
    """Return at most 9 powers of two from low to high, evenly spaced."""
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    step = max(1, -(-(last - first + 1) // 9))
    step = next((round_step for round_step in (1, 2, 5, 10) if round_step >= step), step)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


@dataclass(frozen=True)
class Line:
    """Points in drawing order.

    ``look`` is `solid`, `dashed`, `dash-dotted`, `dotted` or `none`; ``band``, if present, is the lower and upper bound
    of the line. ``end`` is written beside the last point. In a roofline, each point may have one of ``names`` beside
    it.
    """

    label: str
    colour: str
    marker: str
    look: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    end: str = ""
    names: Sequence[str] = ()
    thin: bool = False


@dataclass(frozen=True)
class Spot:
    """A single point: a ``ring`` with text beside it if there is room, or a cross."""

    x: float
    y: float
    colour: str
    text: str = ""
    ring: bool = False


@dataclass(frozen=True)
class LinePanel:
    """Lines over one axis; ``levels`` are horizontal lines as (y, text, dashed); ``even`` is a shaded interval of y.

    A panel without lines states that there are no figures.
    """

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    levels: Sequence[tuple[float, str, bool]] = ()
    even: tuple[float, float] | None = None
    spots: Sequence[Spot] = ()


@dataclass(frozen=True)
class Lines:
    """Panels beside each other, three in a row."""

    heading: Heading
    panels: Sequence[LinePanel]


@dataclass(frozen=True)
class Violin:
    """Distributions of deviations from the median: ``values`` above a line, ``second`` below it.

    ``texts`` are the lines of text beside the violin.
    """

    label: str
    colour: str
    values: Array
    second: Array
    texts: Sequence[str]


@dataclass(frozen=True)
class ViolinPanel:
    """Violins one below the other, on a symmetric axis."""

    title: str
    label: str
    reach: float
    violins: Sequence[Violin]


@dataclass(frozen=True)
class Violins:
    """Panels beside each other, three in a row."""

    heading: Heading
    panels: Sequence[ViolinPanel]


@dataclass(frozen=True)
class Bubble:
    """A mark at ``x``, ``y`` in axis units; ``size`` is the area of the mark relative to the largest mark.

    ``text`` is written beside the mark if there is room; the most important bubbles come first. ``beyond``: whether the
    mark is right of the axes (shown by an arrow).
    """

    x: float
    y: float
    size: float
    colour: str
    text: str
    beyond: bool = False


@dataclass(frozen=True)
class Ceiling:
    """An upper limit of y, with a text. If ``slope`` (y per x) is known, the line of the limit begins where it meets
    this slope.
    """

    y: float
    text: str
    slope: float | None
    dashed: bool = False


@dataclass(frozen=True)
class Roofs:
    """A roofline: bubbles or paths under slopes and ceilings, on logarithmic axes. A linear axis underneath shows the
    ``flat`` bubbles.

    The flat bubbles are in the rows 0, 1, …; ``flat_end``: the end of the linear axis and its text, or None.
    ``labels``: labels of the x, y and flat axes, and the text above the flat axis.
    """

    heading: Heading
    ceilings: Sequence[Ceiling]
    slopes: Sequence[tuple[float, str]]
    labels: tuple[str, str, str, str]
    bubbles: Sequence[Bubble] = ()
    paths: Sequence[Line] = ()
    flat: Sequence[Bubble] = ()
    flat_end: tuple[float, str] | None = None


@dataclass(frozen=True)
class SeriesPanel:
    """Step times in ns, one after the other: ``colour`` is an index into ``colours``, 0 for a typical step.

    ``x`` and ``y`` are the drawn points, possibly only the lowest and highest of many points; ``all_y`` and
    ``all_colour`` have all steps, for the distribution. ``level`` is a line, as x and y. ``names`` are labels of
    points, as (x, y, text, colour), the most important first. ``noun`` is the word for a point. If the points are not
    steps, the panel has no distribution, and the level is prominent (with gaps where it is nan). ``marks`` are vertical
    lines at these x.
    """

    title: str
    x: Array
    y: Array
    colour: Array
    all_y: Array
    all_colour: Array
    colours: Sequence[str]
    level: tuple[Array, Array]
    names: Sequence[tuple[float, float, str, str]] = ()
    noun: str = "step"
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class Series:
    """Steps of several paths from top to bottom, each path by step number and as a distribution."""

    heading: Heading
    panels: Sequence[SeriesPanel]


Plan: TypeAlias = Message | Bars | Lanes | Waterfalls | Calls | Lines | Violins | Roofs | Series
