"""Copies and memsets, added up."""

from __future__ import annotations

from nsysprof.analyze.breakdown import break_down
from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.trace import launch_kernel


def test_no_copies_is_no_answer(trace: MakeTrace) -> None:
    """A report without copies has no summary of them."""
    with open_report(trace(launch_kernel("k", (1, 2), (3, 4), id=1))) as report:
        assert break_down(attribute(report)).summaries.get("copies") is None
