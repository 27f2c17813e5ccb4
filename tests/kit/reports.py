"""Reports attributed and broken down: the shipped ones once in a run of the tests, made-up ones as asked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from nsysprof.analyze.breakdown import Breakdown, break_down
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.trace.nsys.blocks import Source
from nsysprof.trace.nsys.reader import NsysReader
from nsysprof.trace.report import Report, open_report

TRACES = Path(__file__).parents[2] / "traces"
RUN, BLOCK, TWO = (TRACES / f"{name}.sqlite" for name in ("run", "block", "two-processes"))


def attributed(path: Path = RUN, threads: str = "follow") -> Attribution:
    """The attribution of a report, whose file is closed again."""
    return _shipped(path, threads) if path.parent == TRACES else _attributed(path, threads)


def broken_down(path: Path = RUN, threads: str = "follow", **how: Any) -> Breakdown:
    """The breakdown of a report, whose file is closed again; nobody may change one of a shipped report."""
    if path.parent != TRACES:
        return break_down(_attributed(path, threads), **how)
    return _broken_down(path, threads, **how)


def source_of(report: Report) -> Source:
    """The tables behind an open report of nsys, for tests of what reads them."""
    assert isinstance(report.reader, NsysReader)
    return report.reader.source


def _attributed(path: Path, threads: str) -> Attribution:
    with open_report(path) as report:
        return attribute(report, threads)


_shipped = lru_cache(_attributed)


@lru_cache
def _broken_down(path: Path, threads: str, **how: Any) -> Breakdown:
    return break_down(_shipped(path, threads), **how)
