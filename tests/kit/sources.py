"""The tables behind an open report, for tests of what reads them."""

from __future__ import annotations

from nsysprof.trace.nsys.blocks import Source
from nsysprof.trace.nsys.reader import NsysReader
from nsysprof.trace.report import Report


def source_of(report: Report) -> Source:
    """The source of a report of nsys."""
    assert isinstance(report.reader, NsysReader)
    return report.reader.source
