"""The charts over all ranks as files."""

from __future__ import annotations

from pathlib import Path

from nsysprof.fleet.answer import Fleet

FLEET_CHARTS = ("fleet_heatmap.png", "fleet_timeline.png")


def save_fleet_charts(fleet: Fleet, folder: Path) -> list[Path]:
    """Draw all charts into an existing folder and return their paths; each is there whole or not at all."""
    # only here, as matplotlib takes a second to import
    from nsysprof.analyze.charts import write_pictures  # noqa: PLC0415
    from nsysprof.charts.style import figure_png  # noqa: PLC0415
    from nsysprof.fleet.heatmap import fleet_heatmap  # noqa: PLC0415
    from nsysprof.fleet.timeline import fleet_timeline  # noqa: PLC0415

    pictures = [figure_png(chart(fleet)) for chart in (fleet_heatmap, fleet_timeline)]
    return write_pictures(pictures, folder, FLEET_CHARTS)
