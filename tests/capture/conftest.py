"""A `nsysprof capture` whose nsys only plays its part."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTrace
from tests.kit import fake_nsys
from tests.kit.command_line import Done, runner
from tests.kit.trace import Range, launch_kernel


class Captured:
    """A finished `nsysprof capture`: exit code, output, and what lies in its folder."""

    def __init__(self, done: Done, folder: Path) -> None:
        self.code, self.out, self.err, self.folder = done.code, done.out, done.err, folder

    @property
    def files(self) -> list[str]:
        """Names in `traces`, hidden ones too."""
        return sorted(path.name for path in (self.folder / "traces").iterdir())

    def record(self, name: str) -> dict[str, Any]:
        """The record of a capture."""
        read = json.loads((self.folder / "traces" / f"{name}.json").read_text())
        assert isinstance(read, dict)
        return read


Capture = Callable[..., Captured]


@pytest.fixture
def environment(trace: MakeTrace, tmp_path: Path) -> dict[str, str]:
    """A made-up nsys on the PATH whose exports hold a flash kernel in a range that asks for flash."""
    report = trace(
        Range("RUN::flash::S64", 0, 100),
        launch_kernel("pytorch_flash::flash_fwd_kernel<X>", (10, 20), (30, 60), id=1),
        name="export.sqlite",
    )
    return fake_nsys.install(tmp_path / "nsys", report)


@pytest.fixture
def capture(
    environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Capture:
    """Runs `nsysprof capture ARGUMENTS` in the test's folder, with a fault for the made-up nsys to play."""
    call = runner(tmp_path, capsys, monkeypatch, "capture")

    def run(*arguments: str, fault: str = "") -> Captured:
        monkeypatch.delenv("NSYSPROF_NSYS", raising=False)
        for name, value in {**environment, "FAKE_NSYS": fault}.items():
            monkeypatch.setenv(name, value)
        return Captured(call(*arguments), tmp_path)

    return run
