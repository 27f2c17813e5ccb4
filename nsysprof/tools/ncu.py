"""NVIDIA's ``ncu`` (Nsight Compute): finds it, and asks for its version, its options and the metrics of a chip."""

from __future__ import annotations

import os
import re
from typing import TypeAlias

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import Tool, ToolKind, find_tool, last_line, run_tool

NCU_ENVIRONMENT = "NSYSPROF_NCU"
GET_NCU = (
    "Nsight Compute comes with the CUDA toolkit (cuda-nsight-compute), or get it from"
    f" https://developer.nvidia.com/nsight-compute; name one with --ncu PATH or {NCU_ENVIRONMENT}=PATH"
)
# What a count cannot do without: an ncu that lacks one of these is too old.
_NEEDED = (
    "--nvtx-include",
    "--cache-control",
    "--clock-control",
    "--query-metrics",
    "--print-units",
    "--page",
)
_METRIC = re.compile(r"[a-z][a-z0-9]*__\w+")


Ncu: TypeAlias = Tool
NCU = ToolKind(
    name="ncu",
    environment=NCU_ENVIRONMENT,
    get_it=GET_NCU,
    version_pattern=r"Nsight Compute.*?^Version (\d[\d.]*)",
    linux=(
        "opt/nvidia/nsight-compute/*/ncu",
        "usr/local/cuda*/bin/ncu",
        "usr/local/cuda*/nsight-compute-*/ncu",
        "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
        "usr/lib/nsight-compute/ncu",
    ),
    windows=(r"NVIDIA Corporation\Nsight Compute *\target\windows-desktop-*\ncu.exe",),
)


def find_ncu(explicit: str | os.PathLike[str] | None = None) -> Ncu:
    """Find the ncu to use, as `find_tool` does; its variable is ``NSYSPROF_NCU``."""
    return find_tool(NCU, explicit)


def ncu_options(ncu: Ncu) -> frozenset[str]:
    """Return the long options that an ncu knows. Raises `NsysprofError` for one that lacks what a count needs."""
    known = frozenset(re.findall(r"--[a-z][a-z0-9-]+", run_tool(ncu.path, ["--help"], timeout=60).stdout))
    missing = [name for name in _NEEDED if name not in known]
    if missing:
        raise NsysprofError(
            f"ncu {ncu.version_text} ({ncu.path}) is too old: it has no {missing[0]}", f"newer: {GET_NCU}"
        )
    return known


def chip_metrics(ncu: Ncu) -> frozenset[str]:
    """Return the metrics, without suffixes, that every GPU here has; `NsysprofError` where ncu does not know."""
    done = run_tool(ncu.path, ["--query-metrics"], timeout=300)
    chips: list[set[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith("Device "):
            chips.append(set())
        metric = _METRIC.match(line)
        if metric:
            chips = chips or [set()]
            chips[-1].add(metric[0])
    metrics = frozenset.intersection(*map(frozenset, chips)) if chips else frozenset()
    if not metrics:
        message = re.sub(r"==\w+== ", "", last_line(f"{done.stdout}\n{done.stderr}"))
        raise NsysprofError(
            f"ncu {ncu.version_text} knows no metric of a GPU here{f': {message}' if message else ''}",
            f"is there a GPU (nvidia-smi), and is ncu new enough for it? {GET_NCU}",
        )
    return metrics
