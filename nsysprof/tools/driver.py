"""The NVIDIA driver: its GPUs and their state by ``nvidia-smi``, its CUDA, and who may read hardware counters."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import run_tool
from nsysprof.tools.nsys import Nsys

PERMISSION_FIX = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nsight.conf;"
    " reboot (or as root; a container: --cap-add SYS_ADMIN)"
)
_PARAMS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21
_SMI_PLACES = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", r"C:\Windows\System32")
_FACTS = ("name", "memory.total", "compute_cap", "persistence_mode", "mig.mode.current")
_STATE = {
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.max.sm": "max_sm_clock_mhz",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
    "power.limit": "power_limit_w",
}
_YEAR = 2000
_ABSENT = {"", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]"}


@dataclass(frozen=True)
class Driver:
    """A driver that answered: its version, the newest CUDA it runs ((13, 0); () unknown) and a mapping per GPU."""

    version: str
    cuda: tuple[int, ...]
    gpus: tuple[Mapping[str, str], ...]


def ask_driver() -> tuple[Driver | None, str]:
    """Return the driver, or None and why there is none."""
    smi = _smi()
    if smi is None:
        return None, "no nvidia-smi: no NVIDIA driver is installed, or this container was not given it"
    # The banner alone names the CUDA that the driver runs.
    banner, why = _run(smi)
    rows = _query(smi, ("driver_version", *_FACTS)) or _query(smi, ("driver_version", "name"))
    if not rows:
        return None, f"{smi}: {why or 'no GPU answers'}"
    cuda = re.search(r"CUDA Version:\s*(\d+(?:\.\d+)+)", banner)
    return Driver(
        rows[0].get("driver_version", "unknown"),
        tuple(map(int, cuda[1].split("."))) if cuda else (),
        tuple({name: value for name, value in row.items() if name != "driver_version"} for row in rows),
    ), ""


def gpu_states() -> list[dict[str, float]]:
    """Return clocks (MHz), temperature (°C) and power (W) of each GPU at this moment; empty without nvidia-smi."""
    smi = _smi()
    if smi is None:
        return []
    return [
        {_STATE[name]: float(value) for name, value in row.items() if re.fullmatch(r"\d+(\.\d+)?", value)}
        for row in _query(smi, tuple(_STATE))
    ]


def counters_kept_from_us() -> bool:
    """Return whether the driver keeps counters for administrators, and this process is none of them."""
    try:
        restricted = "RmProfilingAdminOnly: 1" in _PARAMS.read_text(encoding="utf-8")
    except OSError:
        restricted = False
    return restricted and not _is_admin()


def _is_admin() -> bool:
    """Return whether this process has CAP_SYS_ADMIN, which the driver asks for and root in a container often lacks."""
    try:
        held = re.search(r"^CapEff:\s*([0-9a-f]+)", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        held = None
    if held is None:
        return hasattr(os, "geteuid") and os.geteuid() == 0
    return bool(int(held[1], 16) >> _CAP_SYS_ADMIN & 1)


def newest_cuda(nsys: Nsys) -> tuple[int, ...]:
    """Return the newest CUDA that an nsys can trace, by the CUPTI libraries in its folder; () where there is none."""
    folder = Path(os.path.realpath(nsys.path)).parent
    libraries = [
        re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", path.name) for path in folder.glob("libcupti.so.*")
    ]
    libraries += [re.match(r"cupti64_(\d+)\.(\d+)", path.name) for path in folder.glob("cupti64_*.dll")]
    # A CUPTI of the toolkit has the year in its name.
    return max(((int(one[1]), int(one[2])) for one in libraries if one and int(one[1]) < _YEAR), default=())


def too_new_for(driver: Driver, nsys: Nsys) -> str | None:
    """Return a warning where the driver runs a newer CUDA than the nsys was made for, else None."""
    known = newest_cuda(nsys)
    if not known or not driver.cuda or driver.cuda[:2] <= known:
        return None
    return (
        f"driver {driver.version} runs CUDA {_dotted(driver.cuda)}, but nsys {nsys.version_text} knows CUDA"
        f" {_dotted(known)} at most: kernels may be missing from the report; a newer nsys: --nsys PATH"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _smi() -> str | None:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_SMI_PLACES))


def _query(smi: str, names: tuple[str, ...]) -> list[dict[str, str]]:
    """Return a mapping per GPU of what was asked and is known."""
    listed, _ = _run(smi, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
    rows = [[value.strip() for value in line.split(",")] for line in listed.splitlines() if line.strip()]
    return [
        {name: value for name, value in zip(names, row, strict=True) if value not in _ABSENT}
        for row in rows
        if len(row) == len(names)
    ]


def _run(smi: str, *arguments: str) -> tuple[str, str]:
    """Return what nvidia-smi printed, and why it failed where it did (then nothing was printed)."""
    try:
        done = run_tool(Path(smi), arguments, timeout=30)
    except NsysprofError as error:
        return "", error.message
    if done.returncode:
        return "", " ".join((done.stderr + done.stdout).split())[:200]
    return done.stdout, ""
