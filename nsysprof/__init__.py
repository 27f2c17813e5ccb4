"""Read NVIDIA Nsight Systems reports and show where the time went.

    import nsysprof

    breakdown = nsysprof.analyze("traces/run.sqlite")
    breakdown.ranges  # a pandas DataFrame with a row per range path
    breakdown.plot.timeline()  # a matplotlib figure

Importing this package is fast: functions import numpy, pandas and matplotlib only when they need them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from nsysprof.analyze.analyze import analyze, break_down
    from nsysprof.analyze.breakdown import Breakdown
    from nsysprof.attribution.attribute import Attribution, attribute
    from nsysprof.attribution.paths import merged_paths, range_paths
    from nsysprof.check.check import check
    from nsysprof.compare.comparison import Comparison, compare
    from nsysprof.errors import NsysprofError
    from nsysprof.export.export import export
    from nsysprof.fleet.answer import Fleet
    from nsysprof.fleet.fleet import fleet
    from nsysprof.forecast.forecast import Forecast, forecast
    from nsysprof.history.history import History, history
    from nsysprof.hotspots.hotspots import Hotspots, hotspots
    from nsysprof.kernels.classify import load_rules
    from nsysprof.steps.steps import Steps, steps
    from nsysprof.trace.report import open_report, read_tables
    from nsysprof.trace.trace import Report, Tables, Trace
    from nsysprof.why.why import Why, why

__version__ = "0.1.0"

_HOMES = {
    "Attribution": "attribution.attribute",
    "Breakdown": "analyze.breakdown",
    "Comparison": "compare.comparison",
    "Forecast": "forecast.forecast",
    "Fleet": "fleet.answer",
    "History": "history.history",
    "Hotspots": "hotspots.hotspots",
    "NsysprofError": "errors",
    "Report": "trace.trace",
    "Steps": "steps.steps",
    "Tables": "trace.trace",
    "Trace": "trace.trace",
    "Why": "why.why",
    "analyze": "analyze.analyze",
    "attribute": "attribution.attribute",
    "break_down": "analyze.analyze",
    "check": "check.check",
    "compare": "compare.comparison",
    "export": "export.export",
    "forecast": "forecast.forecast",
    "fleet": "fleet.fleet",
    "history": "history.history",
    "hotspots": "hotspots.hotspots",
    "load_rules": "kernels.classify",
    "merged_paths": "attribution.paths",
    "open_report": "trace.report",
    "range_paths": "attribution.paths",
    "read_tables": "trace.report",
    "steps": "steps.steps",
    "why": "why.why",
}
__all__ = [
    "Attribution", "Breakdown", "Comparison", "Fleet", "Forecast", "History", "Hotspots", "NsysprofError", "Report",
    "Steps", "Tables", "Trace", "Why", "__version__", "analyze", "attribute", "break_down", "check", "compare",
    "export", "fleet", "forecast", "history", "hotspots", "load_rules", "merged_paths", "open_report",
    "range_paths", "read_tables", "steps", "why",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """This package: the room `nsysprof.compare` has the name of its function, and importing it must not hide that."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)
