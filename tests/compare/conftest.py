"""Comparisons of shipped reports, made once for all tests."""

from __future__ import annotations

import pytest

from nsysprof.compare.comparison import Comparison, compare
from tests.kit.reports import BLOCK, RUN, attributed

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
    return {
        name: compare(attributed(of_name[of]), base=base, new=new) for name, (of, base, new) in ASKED.items()
    }
