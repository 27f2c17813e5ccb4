"""Plans of charts, in plain numbers and words: all that the drawing needs, and nothing of pandas or matplotlib.

A plan is made where the answer is and can be drawn in another process, so it must pickle and stay small.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nsysprof.core.intervals import Ints

Numbers: TypeAlias = NDArray[Any]  # integers or floats

DPI = 150
ROW = 0.27  # inches of a row of bars
STREAM, RANGE = 0.36, 0.24  # inches of a lane
PLOT = 10.0  # inches of the lanes, whose columns are whole pixels
PLOT_COLUMNS = round(PLOT * DPI)  # one per pixel
STREAM_LEVELS = 24  # heights of a column of a stream's lane, which show how busy it is


@dataclass(frozen=True)
class Heading:
    """The words around a chart: the finding, what it is about, ``legend`` as (label, colour), and footnotes."""

    title: str
    subtitle: str
    legend: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Message:
    """A chart of nothing but words: why there is no other, and what to do."""

    heading: Heading
    sentences: Sequence[str]


@dataclass(frozen=True)
class Part:
    """A part of the bars, from ``left`` to ``right`` for each of ``rows``; ``edge`` is the colour of its outline."""

    label: str
    colour: str
    edge: str
    rows: Ints
    left: Numbers
    right: Numbers


@dataclass(frozen=True)
class BarPanel:
    """Bars on one axis from 0 to ``end``.

    ``share`` is its part of the free width; ``inside`` are texts on the bars as (x, row, text, colour); ``marks``, if
    any, a label and one x per row (nan: none); ``cut`` the row whose bar runs out of the axis, or None. Numbers of the
    axis are per cent where ``percent``, and whole where ``whole``.
    """

    label: str
    share: float
    end: float
    parts: Sequence[Part]
    inside: Sequence[tuple[float, int, str, str]] = ()
    marks: tuple[str, Numbers] | None = None
    cut: int | None = None
    percent: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Heat:
    """A picture of cells, a row per row of the bars and a column per name, each in the lines that it is written in.

    ``values`` go from -1 to 1 (nan: an empty cell) in ``colours`` of both ends; ``scale`` says what both ends and the
    middle mean. ``texts``, row by row, are what is written into a cell, the longest first: the first that fits is.
    """

    share: float
    names: Sequence[Sequence[str]]
    values: Numbers
    texts: Sequence[Sequence[Sequence[str]]]
    colours: tuple[str, str]
    scale: tuple[str, str, str]


@dataclass(frozen=True)
class Column:
    """Numbers beside the bars, as text; right-aligned below their heading."""

    heading: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Bars:
    """Rows of bars from top to bottom, with labels on the left and columns of numbers after the first panel.

    ``rest`` is the row that stands for many more, or None; ``strong`` are rows with bold labels; ``row`` are the inches
    of each. Where labels have no room, those of some rows are left out.
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
    """One lane of equal columns: ``level`` uint8, how high each is filled (of `STREAM_LEVELS`), and ``group`` uint8,
    the number of its colour among ``colours``.
    """

    label: str
    process: int
    level: NDArray[np.uint8]
    group: NDArray[np.uint8]
    colours: Sequence[str]
    height: float = STREAM


def fill_levels(busy: Ints, edges: Ints) -> NDArray[np.uint8]:
    """The ``level`` of a `Stream` whose columns, between ``edges``, are busy for so long; those of little stand out."""
    level = np.maximum(np.rint(busy / np.maximum(np.diff(edges), 1) * STREAM_LEVELS), 3)
    return np.where(busy > 0, level, 0).astype(np.uint8)


@dataclass(frozen=True)
class Marks:
    """One lane of boxes from ``start`` to ``end`` (int64 ns after the start of the panel), ``height`` in inches.

    Box by box: ``colours``, and ``names``, which are written where they fit, or, where ``beside``, to the right of the
    box or to its left. ``process`` is None outside of the overview.
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
    """Many lanes of equal columns that mix colours: ``shares`` uint8, how much of each column (of 255) has each of the
    ``colours``, of shape (lanes, colours, columns). What is left is white.
    """

    labels: Sequence[str]
    shares: NDArray[np.uint8]
    colours: Sequence[str]
    height: float
    process: int | None = None


@dataclass(frozen=True)
class LanePanel:
    """One time axis of ``length`` ns with lanes; ``title`` above it, and ``label`` below.

    ``gaps`` (starts, ends) are shaded behind the streams; ``framed``, if any, is the stretch that a frame marks.
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
    """How one total becomes another, in the unit of the axis: steps from ``before`` to ``after``, one per cause.

    ``totals`` are the first and the last bar as (busy, idle), ``total_texts`` what is written above them. Step by step
    ``texts`` and ``shares``, empty where nothing changes. ``title`` stands above, ``label`` at the axis.
    """

    title: str
    label: str
    totals: tuple[tuple[float, float], tuple[float, float]]
    total_texts: tuple[str, str]
    before: Numbers
    after: Numbers
    texts: Sequence[str]
    shares: Sequence[str]


@dataclass(frozen=True)
class Waterfalls:
    """Waterfalls one below the other with common columns: ``columns`` are their names, each with a remark or ""."""

    heading: Heading
    columns: Sequence[tuple[str, str]]
    panels: Sequence[Waterfall]


@dataclass(frozen=True)
class Flag:
    """The name of the ``count`` boxes from ``start`` to ``end`` (ns), and the ``amount`` of their time.

    It is written into the longest of them, from ``inner`` to ``outer``, where it fits; otherwise ``aloft``, if that is
    no empty text, is written above the lane at the end of a pole.
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
    """Boxes from ``start`` to ``end`` (int64 ns) in ``colours``; the most important of the ``flags`` come first.

    ``level``, where given, is how high each box is filled, of 1.
    """

    label: str
    height: float
    start: Ints
    end: Ints
    colours: Sequence[str]
    flags: Sequence[Flag] = ()
    level: Numbers | None = None


@dataclass(frozen=True)
class CallBlock:
    """One call, ``length`` ns long: the lanes of its streams and of its host; ``amount`` stands at its end."""

    title: str
    length: int
    amount: str
    lanes: Sequence[CallLane]


@dataclass(frozen=True)
class CallPanel:
    """A time axis from 0 to ``length`` ns with calls below each other; ``label`` is what it measures."""

    blocks: Sequence[CallBlock]
    length: int
    label: str


@dataclass(frozen=True)
class Calls:
    """Time axes from top to bottom; ``zoomed``: the panel that shows more closely what another one has, and the number
    of the call there, or None.
    """

    heading: Heading
    panels: Sequence[CallPanel]
    zoomed: tuple[int, int] | None


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: what it measures, where it ends, and its numbers, as many as have room."""

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]


def log_axis(label: str, low: float, high: float, text: Callable[[float], str], *, binary: bool = False) -> Axis:
    """An axis that holds ``low`` to ``high`` with a margin, and round numbers (``binary``: powers of two)."""
    if high <= low * 1.05:
        low, high = low / 1.5, high * 1.5
    margin = (high / low) ** 0.06
    low, high = low / margin, high * margin
    ticks = binary_ticks(low, high) if binary else round_ticks(low, high)
    return Axis(label, low, high, [(tick, text(tick)) for tick in ticks])


def round_ticks(low: float, high: float) -> list[float]:
    """Some 3 to 8 round numbers from low to high: powers of ten, or 1, 2 and 5 of each, or finer."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(np.arange(1, 10, 0.5).tolist())):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) >= 4:
            break
    return ticks


def binary_ticks(low: float, high: float) -> list[float]:
    """At most 9 powers of two from low to high, evenly spaced."""
    first, last = int(np.ceil(np.log2(low))), int(np.floor(np.log2(high)))
    step = max(1, -(-(last - first + 1) // 9))
    step = next((round_step for round_step in (1, 2, 5, 10) if round_step >= step), step)
    return [2.0**power for power in range(first, last + 1) if power % step == 0]


@dataclass(frozen=True)
class Line:
    """Points in the order in which they are joined.

    ``look`` is `solid`, `dashed`, `dash-dotted`, `dotted` or `none`; ``band``, if any, its lower and its upper bound.
    ``end`` is written beside the last point; in a roofline each point may have a name of ``names`` beside it.
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
    """A single point: a ``ring`` with words beside it where there is room, or a cross."""

    x: float
    y: float
    colour: str
    text: str = ""
    ring: bool = False


@dataclass(frozen=True)
class LinePanel:
    """Lines over one axis; ``levels`` go across, as (y, text, dashed), and ``even`` is a stretch of y that is shaded.

    Without lines the panel says that there are no figures.
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
    """The spread of ``values``, deviations from their median, above a line; of ``second`` ones below it.

    ``texts`` are the lines that are written beside it.
    """

    label: str
    colour: str
    values: Numbers
    second: Numbers
    texts: Sequence[str]


@dataclass(frozen=True)
class ViolinPanel:
    """Violins below each other, on an axis that goes as far to the left as to the right."""

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
    """A mark at ``x``, ``y`` in the units of its axes; ``size`` is its area as a part of the largest one's.

    ``text`` is written beside it, where there is room; the most important bubbles come first. ``beyond``: it belongs
    further right than the axes reach, and an arrow says so.
    """

    x: float
    y: float
    size: float
    colour: str
    text: str
    beyond: bool = False


@dataclass(frozen=True)
class Ceiling:
    """The most that y can be, with its text; drawn from where ``slope`` (y per x), if it is known, reaches it."""

    y: float
    text: str
    slope: float | None
    dashed: bool = False


@dataclass(frozen=True)
class Roofs:
    """Bubbles or paths below slopes and ceilings, on logarithmic axes, and ``flat`` bubbles below on a linear axis.

    The flat bubbles are in the rows 0, 1, …; ``flat_end`` is where their axis ends, with its text, or None. ``labels``:
    of x, of y, of the flat axis, and what stands above that.
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
    """Times of steps, in ns, one after the other: ``colour`` is a number of ``colours``, 0 that of a typical step.

    ``x`` and ``y`` are what is drawn, which may be the lowest and the highest of many; ``all_y`` and ``all_colour`` are
    of all steps, for their distribution. ``level`` is a line, x and y; ``names`` are written at points, as (x, y, text,
    colour), the most important first. ``noun`` is what a point is: anything but a step has no distribution, and
    a level, in parts where it is nan, that stands out; ``marks`` are lines across, at these x.
    """

    title: str
    x: Numbers
    y: Numbers
    colour: Numbers
    all_y: Numbers
    all_colour: Numbers
    colours: Sequence[str]
    level: tuple[Numbers, Numbers]
    names: Sequence[tuple[float, float, str, str]] = ()
    noun: str = "step"
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class Series:
    """Steps of several paths from top to bottom, each over their number and as a distribution."""

    heading: Heading
    panels: Sequence[SeriesPanel]


Plan: TypeAlias = Message | Bars | Lanes | Waterfalls | Calls | Lines | Violins | Roofs | Series
