"""The charts over all ranks as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsysprof.fleet.answer import Fleet
from nsysprof.render.charts import write_pictures
from nsysprof.render.fleet_heatmap import fleet_heatmap
from nsysprof.render.fleet_timeline import fleet_timeline
from nsysprof.render.style import figure_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLEET_CHARTS: dict[str, Callable[[Fleet], Figure]] = {
    "fleet_heatmap.png": fleet_heatmap,
    "fleet_timeline.png": fleet_timeline,
}


def save_fleet_charts(fleet: Fleet, folder: Path) -> list[Path]:
    """Draw all charts into an existing folder and return their paths; each is there whole or not at all."""
    pictures = [figure_png(chart(fleet)) for chart in FLEET_CHARTS.values()]
    return write_pictures(pictures, folder, tuple(FLEET_CHARTS))
