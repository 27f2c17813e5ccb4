"""The findings of the doctor, each made to come true."""

import json
import os
import shutil
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from nsysprof.capture import doctor as module
from nsysprof.capture.doctor import Check, capture_works, check_machine
from nsysprof.commands.doctor import doctor
from nsysprof.errors import NsysprofError
from nsysprof.tools import driver
from nsysprof.tools.driver import Driver
from nsysprof.tools.interrupts import Interrupt
from tests.conftest import MakeTrace
from tests.kit import fake_ncu, fake_nsys
from tests.kit.trace import Range

DRIVER = Driver("580.159.04", (13, 0), ({"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}))
WORKLOAD = """
import json, sys
if "--describe" in sys.argv:
    backends = {name: {} for name in ("math", "cudnn", "flash_attn", "tiled_o0", "tiled_o1")}
    backends["flex"] = {"compiled": True}
    backends["flash_attn"]["install"] = "pip install flash-attn"
    print(json.dumps({
        "schema": "nsysprof-describe/1", "name": "workload", "says": "attention", "sweep": "seq",
        "axes": [{"name": "seq", "short": "S", "says": "", "default": 1}], "dtypes": ["fp16", "fp32"],
        "backends": backends, "default_backends": ["math"], "trial": {"seq": 8},
    }))
    sys.exit()
assert "flex" not in sys.argv
path = sys.argv[sys.argv.index("--results") + 1]
runs = [
    {"backend": "math", "status": "measured"},
    {"backend": "cudnn", "status": "unsupported", "reason": "needs sm80"},
    {"backend": "flash_attn", "status": "unsupported", "reason": "no module"},
    {"backend": "tiled_o0", "status": "unsupported", "reason": "tiled_o0 needs CuPy"},
    {"backend": "tiled_o1", "status": "unsupported", "reason": "tiled_o1 needs CuPy"},
]
json.dump({"environment": {"torch": "2.11.0", "cuda": CUDA}, "runs": runs}, open(path, "w"))
"""
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def nsys(tmp_path: Path, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up nsys that is the one in use, whose captures hold one range."""
    report = trace(Range("RUN::doctor::S1", 0, 10), name="export.sqlite")
    for name, value in fake_nsys.install(tmp_path / "fake", report).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NSYSPROF_NSYS", raising=False)
    monkeypatch.setattr(module, "_TRIAL", "")  # the made-up nsys has its ranges from elsewhere
    return tmp_path / "fake" / "target-linux-x64" / "nsys"


def found(folder: Path, **how: Path | None) -> dict[str, Check]:
    """The findings by name."""
    named = {check.name: check for check in check_machine(folder, announce=lambda text: None, **how)}
    assert all((check.state == "ok") == (check.fix is None) for check in named.values())
    assert not any("\n" in str(check.fix) for check in named.values())
    return named


def test_a_capture_is_proven_by_its_ranges(nsys: Path, tmp_path: Path) -> None:
    """The nsys found and the ranges that came through it."""
    checks = found(tmp_path)
    assert checks["nsys"].state == "ok"
    assert str(nsys) in checks["nsys"].found
    assert checks["capture"].state == "ok"
    assert checks["capture"].found.startswith("1 NVTX ranges in ")
    assert capture_works(list(checks.values()))


def test_an_nsys_that_records_no_ranges_is_warned_of(
    nsys: Path, tmp_path: Path, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvtx 0.2.12 and newer record nothing under nsys 2023.4 and 2024.2: what nsys says, and what helps."""
    refused = "NVTX binary payload extension is incompatible. Provided compatibility ID 260 != 259."
    empty = trace(strings=["NVTX profiling started", refused], name="empty.sqlite")
    monkeypatch.setenv("FAKE_NSYS_SQLITE", str(empty))
    checks = found(tmp_path)
    assert checks["capture"].state == "warn"
    assert "without ranges from nvtx" in checks["capture"].found
    assert refused in checks["capture"].found
    assert "nvtx<0.2.12" in str(checks["capture"].fix)


@pytest.mark.parametrize(("fault", "said", "fix"), [
    ("no importer", "libdw.so.1 is missing", "apt-get install libdw1"),
    ("refuses", "Illegal --trace argument", "nsys profile --trace=nvtx"),
    ("nothing", "left no report", "nsys profile --trace=nvtx"),
    ("truncated", "", "nsys profile --trace=nvtx"),
])  # fmt: skip
def test_a_capture_that_fails_makes_the_answer_negative(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str, fix: str
) -> None:
    """What nsys does wrong is told with its fix; nothing of the trial is named in it."""
    monkeypatch.setenv("FAKE_NSYS", fault)
    checks = found(tmp_path)
    assert checks["capture"].state == "missing"
    assert said in checks["capture"].found
    assert fix in str(checks["capture"].fix)
    assert "resume" not in str(checks["capture"])
    assert "partial" not in str(checks["capture"])
    assert not capture_works(list(checks.values()))


def test_a_folder_for_temporary_files_that_is_full_is_told(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial cannot be made there, and neither can a capture."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    checks = found(tmp_path)
    assert checks["capture"].state == "missing"
    assert "cannot write" in checks["capture"].found
    assert "TMPDIR" in str(checks["capture"].fix)


def test_findings_are_lines_with_their_fixes_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict comes first; a needed finding that is missing makes the exit code 3."""
    checks = [
        Check("nsys", "ok", "2025.3 at /n/nsys", needed=True),
        Check("GPU", "missing", "no nvidia-smi", "install the driver"),
    ]
    monkeypatch.setattr(module, "check_machine", lambda folder, **how: iter(checks))
    doctor()
    assert capsys.readouterr().out == (
        "Capture works on this machine, but without a GPU: only ranges and CPU time can be recorded.\n"
        "   $ nsysprof capture -- python train.py\n\n"
        "[ok]      nsys: 2025.3 at /n/nsys\n"
        "[missing] GPU: no nvidia-smi\n"
        "            fix: install the driver\n"
    )
    checks.append(Check("disk", "missing", "full", "-o FOLDER/NAME", needed=True))
    with pytest.raises(typer.Exit) as caught:
        doctor(as_json=True)
    assert caught.value.exit_code == 3
    document = json.loads(capsys.readouterr().out)
    assert document["capture_works"] is False
    assert [one["state"] for one in document["checks"]] == ["ok", "missing", "missing"]


def test_an_interrupt_ends_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no finding: the exit code is a shell's."""

    def interrupts(*arguments: object, **how: object) -> NoReturn:
        raise Interrupt(2)

    monkeypatch.setattr(module, "check_machine", interrupts)
    with pytest.raises(NsysprofError, match="interrupted") as caught:
        doctor()
    assert caught.value.exit_code == 130


def test_without_nsys_nothing_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint of finding nsys is the fix."""
    monkeypatch.setenv("NSYSPROF_NSYS", str(tmp_path / "nowhere"))
    checks = found(tmp_path)
    assert checks["nsys"].state == "missing"
    assert "https://developer.nvidia.com/nsight-systems" in str(checks["nsys"].fix)
    assert "capture" not in checks
    assert not capture_works(list(checks.values()))


def test_gpus_are_counted(nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a kind are one entry; a driver that is newer than nsys is a warning of its own."""
    monkeypatch.setattr(module, "ask_driver", lambda: (DRIVER, ""))
    (nsys.parent / "libcupti.so.12.4").touch()
    checks = found(tmp_path)
    assert checks["GPU"].found == "2 x NVIDIA H200; driver 580.159.04, CUDA 13.0"
    assert checks["driver and nsys"].state == "warn"
    (nsys.parent / "libcupti.so.13.0").touch()
    assert "driver and nsys" not in found(tmp_path)


def test_counters_need_root_where_the_driver_keeps_them(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fix is the line for modprobe; with CAP_SYS_ADMIN, which root in a container may lack, none is needed."""
    monkeypatch.setattr(module, "ask_driver", lambda: (DRIVER, ""))
    for name, value in fake_ncu.install(nsys.parent, []).items():
        monkeypatch.setenv(name, value)
    params = tmp_path / "params"
    params.write_text("EnableMSI: 1\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(driver, "_PARAMS", params)
    status = tmp_path / "status"
    status.write_text("CapInh:\t0000000000000000\nCapEff:\t00000000a80425fb\n")
    monkeypatch.setattr(driver, "_STATUS", status)
    checks = found(tmp_path)
    assert checks["ncu"].state == "warn"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(checks["ncu"].fix)
    status.write_text("CapEff:\t000001ffffffffff\n")
    assert found(tmp_path)["ncu"].state == "ok"


def test_backends_that_do_not_run_are_told_with_the_reason(nsys: Path, tmp_path: Path) -> None:
    """What the workload says of each backend, and torch's own facts; what is compiled first takes too long."""
    (tmp_path / "_harness.py").touch()
    workload = tmp_path / "workload.py"
    workload.write_text(WORKLOAD.replace("CUDA}", "None}"))
    checks = found(tmp_path, workload=workload)
    assert checks["torch"].found == "2.11.0, built without CUDA"
    assert checks["attention"].found == "on cpu: math"
    assert checks["attention cudnn"].found == "unsupported: needs sm80"
    assert checks["attention flex"].found.startswith("not tried")
    assert checks["attention flash_attn"].fix == "pip install flash-attn"
    assert checks["attention tiled_o0, tiled_o1"].found == "unsupported: tiled_o0 needs CuPy"
    assert [name for name, check in checks.items() if check.lab] == [*checks][-5:]  # behind what captures need
    assert capture_works([check for check in checks.values() if check.lab])


def test_a_torch_without_cuda_on_a_machine_with_a_gpu_is_warned_of(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It falls back to the CPU and says so."""
    monkeypatch.setattr(module, "ask_driver", lambda: (DRIVER, ""))
    (tmp_path / "_harness.py").touch()
    workload = tmp_path / "workload.py"
    gpu_fails = "import sys\nif 'cuda' in sys.argv: sys.exit('no GPU')\n"
    workload.write_text(gpu_fails + WORKLOAD.replace("CUDA}", "None}"))
    named = list(check_machine(tmp_path, workload=workload, announce=lambda text: None))
    states = [(check.state, check.found) for check in named if check.name == "torch"]
    assert states == [("warn", "does not run on the GPU: no GPU"), ("warn", "2.11.0, built without CUDA")]


def test_a_missing_torch_names_what_to_install(nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the Python that runs nsysprof, whatever the workload lacks first."""
    monkeypatch.setattr(module, "_version", lambda package: None)
    workload = tmp_path / "workload.py"
    (tmp_path / "_harness.py").touch()
    workload.write_text(WORKLOAD.partition("path =")[0] + "sys.exit('No module named torch')")
    checks = found(tmp_path, workload=workload)
    assert found(tmp_path)["torch"] == checks["torch"]
    assert checks["torch"] == Check("torch", "missing", "not installed", f"{sys.executable} -m pip install torch nvtx")


def test_a_torch_beside_a_workload_that_fails_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint of the workload is its fix, not the result for torch, and the verdict names PyTorch's profiler."""
    monkeypatch.setenv("NSYSPROF_NSYS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(module, "_version", lambda package: "2.13.0" if package == "torch" else None)
    workload = tmp_path / "workload.py"
    (tmp_path / "_harness.py").touch()
    fails = "sys.exit('the package nvtx is not installed\\n  hint: pip install nvtx')"
    workload.write_text(WORKLOAD.partition("path =")[0] + fails)
    checks = found(tmp_path, workload=workload)
    assert checks["torch"] == Check("torch", "ok", "2.13.0 installed")
    lacks = Check("attention", "warn", "the package nvtx is not installed", "pip install nvtx", lab=True)
    assert checks["attention"] == lacks
    monkeypatch.setattr(module, "check_machine", lambda folder, **how: iter(checks.values()))
    with pytest.raises(typer.Exit):
        doctor()
    verdict, *_, lab = capsys.readouterr().out.split("\n\n")
    assert verdict == (
        "Capture works with PyTorch's profiler. Capture with nsys does not work: fix nsys.\n"
        "   $ nsysprof capture --profiler torch -- python train.py"
    )
    assert lab.startswith("Attention lab (captures of other programs do not need it):\n[warn]    attention: ")


@pytest.mark.parametrize(("free", "state"), [(10 << 30, "ok"), (1 << 30, "warn"), (1 << 20, "missing")])
def test_little_disk_is_warned_of_and_none_is_missing(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str
) -> None:
    """A full disk makes a capture impossible."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(1 << 40, 0, free))
    checks = found(tmp_path / "traces")
    assert checks["disk"].state == state
    assert capture_works([checks["disk"]]) == (state != "missing")


def test_a_folder_without_permission_is_missing(nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room there is."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.X_OK)
    checks = found(tmp_path / "traces")
    assert checks["disk"].state == "missing"
    assert str(tmp_path) in checks["disk"].found


@pytest.mark.parametrize(("text", "state"), [("2\n", "ok"), ("4\n", "warn"), ("", "warn")])
def test_the_paranoid_level_never_stops_a_capture(
    nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: str
) -> None:
    """Captures do not sample the CPU."""
    level = tmp_path / "paranoid"
    level.write_text(text)
    monkeypatch.setattr(module, "_PARANOID", level)
    checks = found(tmp_path)
    assert checks["perf_event_paranoid"].state == state
    assert not checks["perf_event_paranoid"].needed
