"""What all tests of workloads need."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """A workload collects garbage before each run: what other tests have imported is not looked through each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads are run by their path, with their folder first on Python's."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "workloads"))
