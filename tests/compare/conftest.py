"""Comparisons of reports: of shipped ones, made once for all tests, and of tiny ones."""

from pathlib import Path
from typing import Any

import pytest

from nsysprof.compare.comparison import Comparison, compare
from tests.kit.reports import BLOCK, RUN, attributed

END = 90_000
ASKED = {
    "S1024": ("run", "RUN::math::S1024", "RUN::flash::S1024"),
    "S4096": ("run", "RUN::math::S4096", "RUN::flash::S4096"),
    "back": ("run", "RUN::flash::S4096", "RUN::math::S4096"),
    "all": ("run", "RUN::math::*", "RUN::flash::*"),
    "fused": ("run", "RUN::efficient::*", "RUN::cudnn::*"),
    "same": ("run", "RUN::cudnn::*", "RUN::auto::*"),
    "kernel": ("run", "RUN::flash::*", "RUN::cudnn::*"),
    "step": ("block", "RUN::math::*", "RUN::flash::*"),
}
NAMES = tuple(ASKED)


@pytest.fixture(scope="session")
def shipped() -> dict[str, Comparison]:
    """Math against flash at 1024, at 4096 and everywhere, and the other way round, and others, of shipped reports."""
    of_name = {"run": RUN, "block": BLOCK}
    return {name: compare(attributed(of_name[of]), base=base, new=new) for name, (of, base, new) in ASKED.items()}


def answer(*paths: Path, **how: Any) -> Comparison:
    """The comparison of one report, or of two."""
    found = []
    for path in paths:
        found.append(attributed(path))
    return compare(*found, **how)
