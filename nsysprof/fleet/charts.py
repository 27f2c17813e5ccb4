"""The charts over all ranks as pictures."""

from __future__ import annotations

from nsysprof.fleet.answer import Fleet

FLEET_CHARTS = ("fleet_heatmap.png", "fleet_timeline.png")


def fleet_pictures(fleet: Fleet) -> dict[str, bytes]:
    """Draw all charts: PNG pictures by their names."""
    # only here, as matplotlib takes a second to import
    from nsysprof.charts.style import figure_png  # noqa: PLC0415
    from nsysprof.fleet.heatmap import fleet_heatmap  # noqa: PLC0415
    from nsysprof.fleet.timeline import fleet_timeline  # noqa: PLC0415

    charts = (fleet_heatmap, fleet_timeline)
    return {name: figure_png(chart(fleet)) for name, chart in zip(FLEET_CHARTS, charts, strict=True)}
