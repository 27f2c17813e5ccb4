"""Finds NVIDIA's ``ncu`` (Nsight Compute), and asks it for its version, its options and the metrics of a chip."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.nsys import last_line, run_nsys, version_numbers

__all__ = ["GET_NCU", "NCU_ENVIRONMENT", "Ncu", "chip_metrics", "find_ncu", "ncu_options"]

NCU_ENVIRONMENT = "NSYSPROF_NCU"
GET_NCU = (
    "Nsight Compute comes with the CUDA toolkit (cuda-nsight-compute), or get it from"
    f" https://developer.nvidia.com/nsight-compute; name one with --ncu PATH or {NCU_ENVIRONMENT}=PATH"
)
_PLACES_LINUX = (
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/cuda*/bin/ncu",
    "usr/local/cuda*/nsight-compute-*/ncu",
    "opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
    "usr/lib/nsight-compute/ncu",
)
_PLACES_WINDOWS = (r"NVIDIA Corporation\Nsight Compute *\target\windows-desktop-*\ncu.exe",)
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


@dataclass(frozen=True)
class Ncu:
    """An ncu that answered: ``version`` as numbers (2025, 3, 1, 0), ``version_text`` as it prints it."""

    path: Path
    version: tuple[int, ...]
    version_text: str


def find_ncu(explicit: str | os.PathLike[str] | None = None) -> Ncu:
    """The ncu to use: the one named, else ``NSYSPROF_NCU``'s, else the PATH's, else the newest in the usual places.

    Raises `NsysprofError` where the one that was named does not work, or where there is none.
    """
    named = explicit or os.environ.get(NCU_ENVIRONMENT)
    if named:
        where = "" if explicit else f" (from {NCU_ENVIRONMENT})"
        found, why = _asked(Path(named).expanduser())
        if found is None:
            raise NsysprofError(f"{named}{where}: not a working ncu: {why}", GET_NCU)
        return found
    on_path = shutil.which("ncu")
    broken = ""
    if on_path:
        found, why = _asked(Path(on_path))
        if found is not None:
            return found
        broken = f"; {on_path} on the PATH does not work: {why}"
    answering = [found for found in (_asked(path)[0] for path in _candidates()) if found is not None]
    if not answering:
        raise NsysprofError(f"no ncu found{broken}", GET_NCU)
    return max(answering, key=lambda ncu: ncu.version)


def ncu_options(ncu: Ncu) -> frozenset[str]:
    """The long options that an ncu knows. Raises `NsysprofError` for one that lacks what a count needs."""
    told = run_nsys(ncu.path, ["--help"], timeout=60).stdout
    known = frozenset(re.findall(r"--[a-z][a-z0-9-]+", told))
    missing = [name for name in _NEEDED if name not in known]
    if missing:
        raise NsysprofError(
            f"ncu {ncu.version_text} ({ncu.path}) is too old: it has no {missing[0]}", f"newer: {GET_NCU}"
        )
    return known


def chip_metrics(ncu: Ncu) -> frozenset[str]:
    """The metrics, without suffixes, that every GPU here has; `NsysprofError` where ncu cannot tell."""
    done = run_nsys(ncu.path, ["--query-metrics"], timeout=300)
    chips: list[set[str]] = []
    for line in done.stdout.splitlines():
        if line.startswith("Device "):
            chips.append(set())
        found = _METRIC.match(line)
        if found:
            chips = chips or [set()]
            chips[-1].add(found[0])
    metrics = frozenset.intersection(*map(frozenset, chips)) if chips else frozenset()
    if not metrics:
        said = re.sub(r"==\w+== ", "", last_line(f"{done.stdout}\n{done.stderr}"))
        raise NsysprofError(
            f"ncu {ncu.version_text} knows no metric of a GPU here{f': {said}' if said else ''}",
            f"is there a GPU (nvidia-smi), and is ncu new enough for it? {GET_NCU}",
        )
    return metrics


def _candidates() -> Iterator[Path]:
    if sys.platform == "win32":
        roots = {os.environ.get(name) for name in ("ProgramFiles", "ProgramW6432")}
        places = [(Path(root), place) for root in sorted(filter(None, roots)) for place in _PLACES_WINDOWS]
    else:
        places = [(Path("/"), place) for place in _PLACES_LINUX]
    for root, place in places:
        yield from sorted(root.glob(place))


def _asked(path: Path) -> tuple[Ncu | None, str]:
    """The ncu at a path (or in a folder), and why not where it is None."""
    if path.is_dir():
        path = path / ("ncu.exe" if sys.platform == "win32" else "ncu")
    if not path.exists():
        return None, "no such file"
    path = path.absolute()  # a bare name would be looked for on the PATH
    try:
        done = run_nsys(path, ["--version"], timeout=60)
    except NsysprofError as error:
        return None, error.message
    said = re.search(r"Nsight Compute.*?^Version (\d[\d.]*)", done.stdout + done.stderr, re.S | re.M)
    if not said:
        return None, last_line(done.stderr) or last_line(done.stdout) or "it does not answer --version"
    return Ncu(path, version_numbers(said[1]), said[1]), ""
