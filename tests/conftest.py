"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.kit.trace import Items, write


class Trace(Protocol):
    """What the `trace` fixture gives: items and `tests.trace.write`'s keywords in, a report's path out."""

    def __call__(self, *items: Items, name: str = ..., **how: Any) -> Path: ...


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Makes a tiny report in the test's own folder: `trace(Range("step", 0, 100), ...)` returns its path."""
    made = 0

    def build(*items: Items, name: str = "report.sqlite", **how: Any) -> Path:
        nonlocal made
        made += 1
        path = tmp_path / name
        if path.exists():
            path = tmp_path / f"{path.stem}-{made}{path.suffix}"
        return write(path, items, **how)

    return build
