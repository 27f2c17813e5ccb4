"""The workloads: where they are found."""

from pathlib import Path

import pytest

from nsysprof import catalog
from nsysprof.errors import NsysprofError


def test_the_workloads_are_found_in_a_wheel_and_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the package, else beside it; private modules are none."""
    monkeypatch.setattr(catalog, "_HERE", tmp_path / "nsysprof")
    for folder in (tmp_path / "workloads", tmp_path / "nsysprof" / "workloads"):
        folder.mkdir(parents=True)
        for name in ("sdpa.py", "_harness.py", "__init__.py"):
            (folder / name).touch()
        assert catalog.list_workloads() == {"sdpa": folder / "sdpa.py"}
    with pytest.raises(NsysprofError, match="no workload 'x'") as caught:
        catalog.find_workload("x")
    assert "sdpa" in str(caught.value.hint)
