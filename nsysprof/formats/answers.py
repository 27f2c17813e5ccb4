"""Declare the schemas of result documents (JSON), and read `analysis.json`."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from nsysprof.core.document import parse_as, read_document
from nsysprof.core.files import MAX_TABLE_BYTES

ANALYSIS_SCHEMA = "nsysprof-analysis/1"  # analysis.json, of nsysprof analyze
GAP_SCHEMA = "nsysprof-gap/1"  # gap.json, of nsysprof compare
FLEET_SCHEMA = "nsysprof-fleet/1"  # fleet.json, of nsysprof fleet
EXPORT_SCHEMA = "nsysprof-export/1"  # export.json, of nsysprof export

_Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Gpu(msgspec.Struct):
    name: str


class _Report(msgspec.Struct):
    gpus: list[_Gpu]


class AnalysisRange(msgspec.Struct):
    """A row of ``ranges``: sums over the range's instances."""

    merged_path: str
    kind: str
    instances: _Time
    unclosed: _Time
    span_ns: _Time
    busy_ns: _Time
    cpu_ns: _Time


class _LeftOut(msgspec.Struct):
    rows: Annotated[int, msgspec.Meta(ge=1)]


class Analysis(msgspec.Struct):
    """The parts of an ``analysis.json`` that other commands read."""

    report: _Report
    ranges: list[AnalysisRange]
    options: dict[str, Any] = {}
    left_out: dict[str, _LeftOut] = {}  # of tables of which the document holds some rows only


def read_analysis_document(path: Path) -> Analysis:
    """Read an ``analysis.json``; raises `NsysprofError` if the file is another document, or is damaged."""
    hint = "give a report or its analysis.json: nsysprof analyze REPORT"
    document = read_document(path, "analysis of nsysprof", hint, ANALYSIS_SCHEMA, most=MAX_TABLE_BYTES)
    return parse_as(document, Analysis, str(path), "write it again: nsysprof analyze REPORT")
