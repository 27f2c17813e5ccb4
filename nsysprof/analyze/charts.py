"""The charts of an answer: as plans, as figures, and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import chart_rows
from nsysprof.analyze.kernel_breakdown import plan_kernel_breakdown
from nsysprof.analyze.kernel_counts import plan_kernel_counts
from nsysprof.analyze.subject import subtitle
from nsysprof.analyze.timeline import timeline
from nsysprof.analyze.timeline_chart import COLUMNS, plan_timeline
from nsysprof.charts.marks import Heading, Message, Plan
from nsysprof.charts.painter import start_painter
from nsysprof.errors import NsysprofError
from nsysprof.results.files import write_pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("kernel_counts.png", "kernel_breakdown.png", "timeline.png")
TOP = 20


def kernel_counts(breakdown: Breakdown, *, top: int = TOP) -> Figure:
    """Kernels and launches per range, by family; a figure that says why where there is no GPU work."""
    return _draw(_counts(breakdown, top))


def kernel_breakdown(breakdown: Breakdown, *, top: int = TOP) -> Figure:
    """Busy and idle time per range, by family; a figure that says why where there is no GPU work."""
    return _draw(_breakdown(breakdown, top))


def timeline_chart(breakdown: Breakdown) -> Figure:
    """Streams and ranges over time with a zoom on one instance; a figure that says why where there is neither."""
    return _draw(_timeline(breakdown))


def chart_plans(breakdown: Breakdown, *, top: int = TOP) -> list[Plan]:
    """What the charts in `FILES` show, in that order, for a `Painter`; ``top`` ranges in the bar charts."""
    return [_counts(breakdown, top), _breakdown(breakdown, top), _timeline(breakdown)]


def save_charts(breakdown: Breakdown, folder: Path, *, top: int = TOP, overwrite: bool = True) -> list[Path]:
    """Write `FILES` into a folder, which is made if need be, and return their paths.

    ``top`` is how many ranges the bar charts show. Raises `NsysprofError` when a file cannot be written, and before
    anything is drawn when one exists and ``overwrite`` is False.
    """
    existing = [path for name in FILES if (path := Path(folder, name)).exists()]
    if existing and not overwrite:
        raise NsysprofError(f"{existing[0]} exists already", "choose another folder, or allow overwriting")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with start_painter(apart=False) as painter:
            painter.paint(chart_plans(breakdown, top=top))
            return write_pictures(dict(zip(FILES, painter.pictures(), strict=True)), Path(folder))
    except OSError as error:
        raise NsysprofError(
            f"cannot write charts into {folder}: {error.strerror or error}", "choose another folder with -o"
        ) from error


def _draw(plan: Plan) -> Figure:
    from nsysprof.charts.drawing import draw  # noqa: PLC0415 (matplotlib is slow to import)

    return draw(plan)


def _counts(breakdown: Breakdown, top: int) -> Plan:
    rows = chart_rows(breakdown, top)
    return _nothing(breakdown) if rows is None else plan_kernel_counts(breakdown, rows)


def _breakdown(breakdown: Breakdown, top: int) -> Plan:
    rows = chart_rows(breakdown, top)
    return _nothing(breakdown) if rows is None else plan_kernel_breakdown(breakdown, rows)


def _timeline(breakdown: Breakdown) -> Plan:
    answer = timeline(breakdown, columns=COLUMNS)
    return plan_timeline(answer) if answer.streams or answer.ranges else _nothing(breakdown)


def _nothing(breakdown: Breakdown) -> Message:
    reason, _, rest = breakdown.attribution.tables.no_work.partition(": ")
    sentences = [
        f"{reason[:1].upper()}{reason[1:]}{':' if rest else '.'}",
        *([f"{rest}."] if rest else []),
        "Capture again with:  nsys profile --trace=cuda,nvtx <program>",
    ]
    return Message(Heading("This report holds no GPU work", subtitle(breakdown)), sentences)
