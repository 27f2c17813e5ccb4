"""What all tests of workloads need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads are run by their path, with their folder first on Python's."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "workloads"))
