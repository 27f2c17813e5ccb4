"""The machine and the software of a capture, and a hash by which two captures are comparable or not."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsysprof.tools.driver import Driver
from nsysprof.tools.nsys import Nsys

# Variables of a process's place in its job: torchrun, Open MPI, MPICH and its kin, Slurm; the first one set counts.
PLACE_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}


def fingerprint(
    nsys: Nsys | None, driver: Driver | None, workload: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Collect GPUs, driver, nsys, Python, OS and CPU of this machine, and what a workload reports of its own software.

    A plain mapping for JSON, without anything that changes from run to run; ``workload`` is the ``environment`` of
    its results: torch, CUDA, cuDNN, precision flags. What is not known is None.
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
    """Return the first 16 digits of the SHA-256 of a fingerprint, whatever the order of its keys."""
    text = json.dumps(environment, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rank_in_job(variables: Mapping[str, str]) -> dict[str, int] | None:
    """Return ``rank``, ``local_rank`` and ``world_size`` of a process that a launcher started, as far as known.

    None where no rank is set. It is recorded apart because scrubbing a report removes the variables.
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
