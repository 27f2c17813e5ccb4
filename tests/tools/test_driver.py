"""What nvidia-smi says, and whether an nsys knows the CUDA of the driver."""

from pathlib import Path

import pytest

from nsysprof.tools import driver as module
from nsysprof.tools.driver import Driver, ask_driver, gpu_states, newest_cuda, too_new_for
from nsysprof.tools.nsys import Nsys

# The lines that nvidia-smi of driver 580 prints on a machine with an H200.
SMI = """\
#!/bin/sh
case "$1" in
--query-gpu=driver_version,*)
    echo "580.159.04, NVIDIA H200, 143771, 9.0, Enabled, Disabled" ;;
--query-gpu=clocks.sm,*)
    echo "345, 3201, 1980, 31, 77.18, 700.00" ;;
*)
    echo "| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |" ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up nvidia-smi, the only one."""
    path = tmp_path / "nvidia-smi"
    path.write_text(SMI)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "_SMI_PLACES", ())
    return path


def nsys(folder: Path, *libraries: str) -> Nsys:
    """An nsys whose folder holds CUPTI libraries."""
    for name in libraries:
        (folder / name).touch()
    return Nsys(folder / "nsys", (2023, 4), "2023.4.4.54-v0")


def test_the_driver_names_itself_its_cuda_and_its_gpus(smi: Path) -> None:
    """Versions and facts are as printed; clocks, temperature and power are numbers with their unit in the key."""
    driver, why = ask_driver()
    assert why == ""
    assert driver is not None
    assert (driver.version, driver.cuda) == ("580.159.04", (13, 0))
    assert driver.gpus[0]["name"] == "NVIDIA H200"
    assert gpu_states() == [
        {
            "sm_clock_mhz": 345.0,
            "memory_clock_mhz": 3201.0,
            "max_sm_clock_mhz": 1980.0,
            "temperature_c": 31.0,
            "power_w": 77.18,
            "power_limit_w": 700.0,
        }
    ]


def test_what_a_gpu_does_not_tell_is_left_out(smi: Path) -> None:
    """An old or virtual GPU answers [N/A] to much: such keys are absent, not zero."""
    smi.write_text(SMI.replace("345, 3201, 1980, 31, 77.18", "[N/A], 3201, 1980, 31, [Not Supported]"))
    (state,) = gpu_states()
    assert "sm_clock_mhz" not in state
    assert "power_w" not in state
    assert state["temperature_c"] == 31.0


@pytest.mark.parametrize("text", ["#!/bin/sh\necho 'Driver/library version mismatch' >&2\nexit 9\n", "no program"])
def test_a_driver_that_does_not_answer_is_none_with_its_reason(smi: Path, text: str) -> None:
    """A broken nvidia-smi is no error, only no driver."""
    smi.write_text(text)
    driver, why = ask_driver()
    assert driver is None
    assert str(smi) in why
    assert gpu_states() == []


def test_without_nvidia_smi_there_is_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reason names what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "_SMI_PLACES", ())
    assert ask_driver() == (
        None,
        "no nvidia-smi: no NVIDIA driver is installed, or the container has no access to the driver",
    )
    assert gpu_states() == []


def test_an_nsys_knows_the_cuda_of_its_newest_cupti(tmp_path: Path) -> None:
    """12.4 is newer than 12.10 is not, and what is no CUPTI library is passed over."""
    found = newest_cuda(nsys(tmp_path, "libcupti.so.11.8", "libcupti.so.12.4", "libcupti.so.12.10", "libcupti.so.x"))
    assert found == (12, 10)
    (tmp_path / "empty").mkdir()
    assert newest_cuda(nsys(tmp_path / "empty")) == ()
    (tmp_path / "windows").mkdir()
    assert newest_cuda(nsys(tmp_path / "windows", "cupti64_12.4.dll")) == (12, 4)


def test_a_cupti_of_the_toolkit_says_nothing_of_cuda(tmp_path: Path) -> None:
    """Its file has the year in its name."""
    assert newest_cuda(nsys(tmp_path, "libcupti.so.12.4", "libcupti.so.2024.1")) == (12, 4)


def test_a_driver_without_a_version_is_one(smi: Path) -> None:
    """Some virtual GPUs do not tell it."""
    smi.write_text(SMI.replace('"580.159.04, NVIDIA', '"[N/A], NVIDIA'))
    driver, _ = ask_driver()
    assert driver is not None
    assert driver.version == "unknown"


def test_a_driver_newer_than_nsys_is_warned_of(tmp_path: Path) -> None:
    """Only a newer one, and only where both are known."""
    old = nsys(tmp_path, "libcupti.so.12.4")
    warning = too_new_for(Driver("580.159.04", (13, 0), ()), old)
    assert warning is not None
    assert warning.startswith(
        "driver 580.159.04 runs CUDA 13.0, but nsys 2023.4.4.54-v0 supports only CUDA 12.4 and older"
    )
    assert too_new_for(Driver("550.54", (12, 4), ()), old) is None
    assert too_new_for(Driver("530.30", (12, 1), ()), old) is None
    assert too_new_for(Driver("580.159.04", (), ()), old) is None
