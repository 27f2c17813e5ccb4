"""Describe this machine: the GPUs and their state from ``nvidia-smi``, the CUDA version, and the access to hardware
counters. A fingerprint of machine and software has a hash that shows whether two captures are comparable.
"""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import run_tool
from nsysprof.tools.nsys import Nsys

PERMISSION_FIX = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nsight.conf && sudo reboot;"
    " or run as root, or start the container with --cap-add SYS_ADMIN"
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
    """The driver's version, the newest CUDA that it supports (such as (13, 0); () if unknown), and each GPU's
    properties.
    """

    version: str
    cuda: tuple[int, ...]
    gpus: tuple[Mapping[str, str], ...]


def ask_driver() -> tuple[Driver | None, str]:
    """Return the driver, or None and the reason."""
    smi = _smi()
    if smi is None:
        return None, "no nvidia-smi: no NVIDIA driver is installed, or the container has no access to the driver"
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
    """Return current clocks (MHz), temperature (°C) and power (W) of each GPU; empty without nvidia-smi."""
    smi = _smi()
    if smi is None:
        return []
    return [
        {_STATE[name]: float(value) for name, value in row.items() if re.fullmatch(r"\d+(\.\d+)?", value)}
        for row in _query(smi, tuple(_STATE))
    ]


def counters_kept_from_us() -> bool:
    """Return whether the driver restricts counters to administrators, and this process does not run as one."""
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
    """Return the newest CUDA that an nsys can trace, from the CUPTI libraries in its folder; () if there are none."""
    folder = Path(os.path.realpath(nsys.path)).parent
    libraries = [re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", path.name) for path in folder.glob("libcupti.so.*")]
    libraries += [re.match(r"cupti64_(\d+)\.(\d+)", path.name) for path in folder.glob("cupti64_*.dll")]
    # A CUPTI of the toolkit has the year in its name.
    return max(((int(one[1]), int(one[2])) for one in libraries if one and int(one[1]) < _YEAR), default=())


def too_new_for(driver: Driver, nsys: Nsys) -> str | None:
    """Return a warning if the driver supports a newer CUDA than the nsys, otherwise None."""
    known = newest_cuda(nsys)
    if not known or not driver.cuda or driver.cuda[:2] <= known:
        return None
    return (
        f"driver {driver.version} runs CUDA {_dotted(driver.cuda)}, but nsys {nsys.version_text} "
        f"supports only CUDA {_dotted(known)} and older, so kernels may be missing from the report: "
        "use a newer nsys (--nsys PATH)"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _smi() -> str | None:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_SMI_PLACES))


def _query(smi: str, names: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the known values of the queried properties per GPU."""
    listed, _ = _run(smi, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
    return [
        {name: value for name, value in zip(names, row, strict=True) if value not in _ABSENT}
        for row in [[value.strip() for value in line.split(",")] for line in listed.splitlines() if line.strip()]
        if len(row) == len(names)
    ]


def _run(smi: str, *arguments: str) -> tuple[str, str]:
    """Return the output of nvidia-smi, and the reason if it failed (then without output)."""
    try:
        done = run_tool(Path(smi), arguments, timeout=30)
    except NsysprofError as error:
        return "", error.message
    if done.returncode:
        return "", " ".join((done.stderr + done.stdout).split())[:200]
    return done.stdout, ""


# Variables of a process's place in its job: torchrun, Open MPI, MPICH and its kin, Slurm; the first one set counts.
PLACE_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}


def fingerprint(nsys: Nsys | None, driver: Driver | None, workload: Mapping[str, Any] | None) -> dict[str, Any]:
    """Collect GPUs, driver, nsys, Python, OS and CPU of this machine, and a workload's report of its own software.

    The result is a plain mapping for JSON, without anything that varies between runs; ``workload`` is the
    ``environment`` in the results of a workload: torch, CUDA, cuDNN, precision flags. Unknown values are None.
    """
    return {
        "gpus": [dict(gpu) for gpu in driver.gpus] if driver else [],
        "driver": driver.version if driver else None,
        "driver_cuda": ".".join(map(str, driver.cuda)) or None if driver else None,
        "nsys": nsys.version_text if nsys else None,
        "python": platform.python_version(),
        "os": _os(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "workload": dict(workload) if workload is not None else None,
    }


def environment_hash(environment: Mapping[str, Any]) -> str:
    """Return the first 16 digits of a fingerprint's SHA-256, which does not depend on the order of keys."""
    text = json.dumps(environment, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rank_in_job(variables: Mapping[str, str]) -> dict[str, int] | None:
    """Return ``rank``, ``local_rank`` and ``world_size`` (if known) of a process that a launcher started.

    Returns None if no rank is set. The rank is recorded separately, because scrubbing a report removes the variables.
    """
    place = {
        name: int(variables[first])
        for name, known in PLACE_VARIABLES.items()
        if (first := next((each for each in known if variables.get(each, "").isdecimal()), None))
    }
    return place if "rank" in place else None


def _os() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # not Linux
        return platform.platform(terse=True)


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None)
