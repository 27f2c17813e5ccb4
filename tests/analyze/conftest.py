"""Reports by chance: written, attributed and read by the reference once for all tests of a room."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from tests.kit.random_reports import random_report
from tests.kit.reference import refer
from tests.kit.reports import attributed
from tests.kit.trace import Items, write

Made = Callable[..., Path]
attributed_once, referred = cache(attributed), cache(refer)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The report of a seed, with more items if there are any."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def path(seed: int, *more: Items) -> Path:
        return write(folder / f"{seed}-{len(more)}.sqlite", [*random_report(seed), *more])

    return path


def broken_once(path: Path, threads: str = "follow", **how: Any) -> Breakdown:
    """The breakdown of such a report."""
    return break_down(attributed_once(path, threads), **how)
