"""The charts of an answer as files."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from nsysprof.breakdown import Breakdown
from nsysprof.errors import NsysprofError
from nsysprof.render.chart_rows import chart_rows
from nsysprof.render.kernel_breakdown import draw_kernel_breakdown
from nsysprof.render.kernel_counts import draw_kernel_counts
from nsysprof.render.lanes import PLOT_COLUMNS
from nsysprof.render.style import message, style, subtitle, write_png
from nsysprof.render.timeline_chart import draw_timeline
from nsysprof.timeline import timeline

FILES = ("kernel_counts.png", "kernel_breakdown.png", "timeline.png")
TOP = 20


def kernel_counts(breakdown: Breakdown, *, top: int = TOP) -> Figure:
    """Kernels and launches per range, by family; a figure that says why where there is no GPU work."""
    with style():
        rows = chart_rows(breakdown, top)
        return _nothing(breakdown) if rows is None else draw_kernel_counts(breakdown, rows)


def kernel_breakdown(breakdown: Breakdown, *, top: int = TOP) -> Figure:
    """Busy and idle time per range, by family; a figure that says why where there is no GPU work."""
    with style():
        rows = chart_rows(breakdown, top)
        return _nothing(breakdown) if rows is None else draw_kernel_breakdown(breakdown, rows)


def timeline_chart(breakdown: Breakdown) -> Figure:
    """Streams and ranges over time with a zoom on one instance; a figure that says why where there is neither."""
    with style():
        answer = timeline(breakdown, columns=PLOT_COLUMNS)
        return draw_timeline(answer) if answer.streams or answer.ranges else _nothing(breakdown)


def save_charts(breakdown: Breakdown, folder: Path, *, top: int = TOP, overwrite: bool = True) -> list[Path]:
    """Write `FILES` into a folder, which is made if need be, and return their paths.

    ``top`` is how many ranges the bar charts show. Raises `NsysprofError` when a file cannot be written, and before
    anything is drawn when one exists and ``overwrite`` is False.
    """
    paths = [Path(folder, name) for name in FILES]
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise NsysprofError(f"{existing[0]} exists already", "choose another folder, or allow overwriting")
    figures = (
        kernel_counts(breakdown, top=top),
        kernel_breakdown(breakdown, top=top),
        timeline_chart(breakdown),
    )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for figure, path in zip(figures, paths, strict=True):
            write_png(figure, path)
    except OSError as error:
        raise NsysprofError(
            f"cannot write charts into {folder}: {error.strerror or error}", "choose another folder with -o"
        ) from error
    return paths


def _nothing(breakdown: Breakdown) -> Figure:
    lines = [
        "Either nothing ran on a GPU while nsys was recording, or CUDA was not traced.",
        "Capture again with:  nsys profile --trace=cuda,nvtx <program>",
    ]
    return message("This report holds no GPU work", lines, subtitle(breakdown))
