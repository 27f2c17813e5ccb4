"""Finding an ncu, as an nsys is found, and what it can do."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.tools import nsight as module
from nsysprof.tools.nsight import NCU_ENVIRONMENT, Ncu, chip_metrics, find_ncu, ncu_options
from tests.kit import fake_ncu

ALL = frozenset(fake_ncu.OPTIONS.split())
NCU = Ncu(Path("/n/ncu"), (2025, 3), "2025.3")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up ncu on the PATH; none is installed."""
    for name, value in fake_ncu.install(tmp_path / "bin", []).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(NCU_ENVIRONMENT, raising=False)
    monkeypatch.setattr(module, "NCU", replace(module.NCU, linux=()))
    return tmp_path / "bin" / "ncu"


def test_the_one_that_is_named_comes_first(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the environment's, then the PATH's; a folder stands for the ncu in it."""
    fake_ncu.install(tmp_path / "other", [])
    assert find_ncu() == Ncu(there, (2025, 3, 1, 0), fake_ncu.VERSION)
    monkeypatch.setenv(NCU_ENVIRONMENT, str(tmp_path / "other"))
    assert find_ncu().path == tmp_path / "other" / "ncu"
    assert find_ncu(there).path == there


def test_without_any_the_hint_says_how_to_get_one(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that are installed the newest is taken."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NsysprofError, match="no ncu found") as caught:
        find_ncu()
    assert "https://developer.nvidia.com/nsight-compute" in str(caught.value.hint)
    assert str(caught.value.hint).endswith("set NSYSPROF_NCU=PATH")
    old = tmp_path / "old"
    old.write_text(there.read_text().replace("Version 2025", "Version 2022"))
    old.chmod(0o755)
    monkeypatch.setattr(module, "NCU", replace(module.NCU, linux=(str(old), str(there))))
    assert find_ncu().path == there


def test_an_ncu_that_cannot_filter_ranges_is_too_old(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is named with its version."""
    assert ncu_options(find_ncu()) >= ALL
    monkeypatch.setenv("FAKE_NCU_LACKS", "--nvtx-include")
    with pytest.raises(NsysprofError, match=r"2025\.3\.1\.0 .* is too old: it has no --nvtx-include"):
        ncu_options(find_ncu())


def test_the_metrics_are_those_that_every_gpu_has(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device has its list; the second line of a description is no metric."""
    assert chip_metrics(find_ncu()) == {*fake_ncu.DEFAULT_METRICS}
    told = (
        "Device NVIDIA H200 (GH100)\n-----  ----\nMetric Name  Metric Type\ndram__bytes_read  Counter  byte  # of\n"
        "             bytes\nFBSP.TriageCompute.dramc__cycles  Counter\nlts__t_bytes  Counter\n"
        "Device NVIDIA A30 (GA100)\nlts__t_bytes  Counter\ndram__bytes  Counter\n"
        "==PROF== Note that these metrics must be appended with a valid suffix\n"
    )
    done = subprocess.CompletedProcess([], 0, told, "")
    monkeypatch.setattr(module, "run_tool", lambda *arguments, **how: done)
    assert chip_metrics(NCU) == {"lts__t_bytes"}


def test_without_a_gpu_ncu_says_so(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are in the error."""
    monkeypatch.setenv("FAKE_NCU", "no device")
    with pytest.raises(NsysprofError, match=r"lists no GPU metrics here: No CUDA devices found\."):
        chip_metrics(find_ncu())
