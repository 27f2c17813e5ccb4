"""Reads NVIDIA Nsight Systems reports and says where the GPU time went.

    import nsysprof

    with nsysprof.open_report("traces/run.sqlite") as report:
        attribution = nsysprof.attribute(report)
        breakdown = nsysprof.break_down(attribution)
    breakdown.ranges  # a pandas frame, a row per NVTX range path

Importing this package loads nothing heavy: numpy, pandas and matplotlib come with the functions that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsysprof.attribution import Attribution, attribute
    from nsysprof.breakdown import Breakdown, break_down
    from nsysprof.comparison.comparing import Comparison, compare
    from nsysprof.errors import NsysprofError
    from nsysprof.exporting import export
    from nsysprof.gate import check
    from nsysprof.kernels import load_rules
    from nsysprof.paths import merged_paths, range_paths
    from nsysprof.report import Report, open_report
    from nsysprof.table_reader import read_tables
    from nsysprof.tables import Tables

__version__ = "0.1.0"

_HOMES = {
    "Attribution": "attribution",
    "Breakdown": "breakdown",
    "Comparison": "comparison.comparing",
    "NsysprofError": "errors",
    "Report": "report",
    "Tables": "tables",
    "attribute": "attribution",
    "break_down": "breakdown",
    "check": "gate",
    "compare": "comparison.comparing",
    "export": "exporting",
    "load_rules": "kernels",
    "merged_paths": "paths",
    "open_report": "report",
    "range_paths": "paths",
    "read_tables": "table_reader",
}
__all__ = [
    "Attribution", "Breakdown", "Comparison", "NsysprofError", "Report", "Tables", "__version__", "attribute",
    "break_down", "check", "compare", "export", "load_rules", "merged_paths", "open_report", "range_paths",
    "read_tables",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
