"""The charts of a comparison: as plans, as figures, and as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsysprof.charts.marks import Plan
from nsysprof.charts.painter import start_painter
from nsysprof.compare.call_chart import plan_calls
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.gap_chart import plan_gap
from nsysprof.compare.roofline_chart import plan_roofline
from nsysprof.errors import NsysprofError
from nsysprof.results.files import write_pictures, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP_CHARTS = ("gap.png", "compare.png")
ROOFLINE = "roofline.png"


def gap_waterfall(comparison: Comparison) -> Figure:
    """How the time of a call of one side becomes that of the other, cause by cause; up to six pairs."""
    return _figure(plan_gap(comparison))


def call_timeline(comparison: Comparison) -> Figure:
    """The median call of either side of the pair with the largest difference, kernel by kernel."""
    return _figure(plan_calls(comparison))


def kernel_roofline(comparison: Comparison) -> Figure:
    """The kernels of the pair with the largest difference below what its GPU can do; words without counters."""
    return _figure(plan_roofline(comparison))


def comparison_charts(comparison: Comparison) -> tuple[str, ...]:
    """The names of the charts: `GAP_CHARTS`, and `ROOFLINE` where there are counters."""
    return (*GAP_CHARTS, ROOFLINE) if comparison.measured else GAP_CHARTS


def comparison_plans(comparison: Comparison) -> list[Plan]:
    """What the charts of `comparison_charts` show, in that order, for a `Painter`."""
    plans: list[Plan] = [plan_gap(comparison), plan_calls(comparison)]
    return [*plans, plan_roofline(comparison)] if comparison.measured else plans


def save_comparison_charts(comparison: Comparison, folder: Path, *, overwrite: bool = True) -> list[Path]:
    """Write the charts of `comparison_charts` into a folder, which is made if need be, and return their paths.

    Raises `NsysprofError` when a file cannot be written, and before anything is drawn when one exists and
    ``overwrite`` is False.
    """
    names = comparison_charts(comparison)
    existing = [path for name in names if (path := Path(folder, name)).exists()]
    if existing and not overwrite:
        raise NsysprofError(f"{existing[0]} exists already", "choose another folder, or allow overwriting")
    with writing(folder), start_painter(apart=False) as painter:
        Path(folder).mkdir(parents=True, exist_ok=True)
        painter.paint(comparison_plans(comparison))
        return write_pictures(dict(zip(names, painter.pictures(), strict=True)), Path(folder))


def _figure(plan: Plan) -> Figure:
    from nsysprof.charts.drawing import draw  # noqa: PLC0415 (matplotlib is slow to import)

    return draw(plan)
