"""Find NVIDIA's command-line tools ``nsys`` and ``ncu``, get their versions, and run them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nsysprof.errors import NsysprofError

_PROGRESS = re.compile(r"\[[=\s]*\d+%\s*\]|^\s*(Processing|Exporting|Importing) .*\[|^\[\s*\d+/\d+\]")


@dataclass(frozen=True)
class Tool:
    """A working tool: ``version`` as numbers (2024, 2, 3, 38), ``version_text`` as printed."""

    path: Path
    version: tuple[int, ...]
    version_text: str


@dataclass(frozen=True)
class ToolKind:
    """The data needed to find a tool.

    ``version_pattern`` matches the output of the tool, with the version as the first group. ``linux`` has patterns of
    usual paths below the root, ``windows`` of paths in the program folders.
    """

    name: str
    environment: str
    get_it: str
    version_pattern: str
    linux: Sequence[str]
    windows: Sequence[str]


def find_tool(kind: ToolKind, explicit: str | os.PathLike[str] | None = None) -> Tool:
    """Find the tool to use, in this order: named by the user, named by the environment variable, on the PATH, newest
    installation.

    "Installed" means in a usual place on Linux or Windows. Raises `NsysprofError` if the named tool does not work, or
    if no tool is found.
    """
    named = explicit or os.environ.get(kind.environment)
    first = named or shutil.which(kind.name)
    tool, why = ask_tool(kind, first) if first else (None, "")
    if tool is not None:
        return tool
    if named:
        where = "" if explicit else f" (from {kind.environment})"
        raise NsysprofError(f"{named}{where}: not a working {kind.name}: {why}", kind.get_it)
    installed = installed_tools(kind)
    if not installed:
        broken = f"; {first}, which is on the PATH, does not work: {why}" if first else ""
        raise NsysprofError(f"no {kind.name} found{broken}", kind.get_it)
    return installed[0]


def installed_tools(kind: ToolKind) -> list[Tool]:
    """Find every working installation in the usual places, without duplicates, newest first."""
    paths: dict[str, Path] = {}
    for path in _usual_places(kind):
        paths.setdefault(os.path.realpath(path), path)
    tools = [tool for path in paths.values() if (tool := ask_tool(kind, path)[0])]
    return sorted(tools, key=lambda tool: tool.version, reverse=True)


def _usual_places(kind: ToolKind) -> Iterator[Path]:
    if sys.platform == "win32":
        roots = {os.environ.get(name) for name in ("ProgramFiles", "ProgramW6432")}
        places = [(Path(root), place) for root in sorted(filter(None, roots)) for place in kind.windows]
    else:
        places = [(Path("/"), place.lstrip("/")) for place in kind.linux]
    for root, place in places:
        yield from sorted(root.glob(place))


def ask_tool(kind: ToolKind, named: str | os.PathLike[str]) -> tuple[Tool | None, str]:
    """Ask the tool at a path (or in a folder) for its version; returns None and the reason if it does not answer."""
    path = Path(os.path.expanduser(named))  # noqa: PTH111  that of Path raises where there is no such home
    try:
        if path.is_dir():
            path = path / (f"{kind.name}.exe" if sys.platform == "win32" else kind.name)
        if not path.exists():
            return None, "no such file"
    except OSError as error:  # a folder that may not be looked into
        return None, error.strerror or str(error)
    path = path.absolute()  # a bare name would be looked for on the PATH
    try:
        done = run_tool(path, ["--version"], timeout=60)
    except NsysprofError as error:
        return None, error.message
    version = re.search(kind.version_pattern, done.stdout + done.stderr, re.S | re.M)
    if not version:
        return None, last_line(done.stderr) or last_line(done.stdout) or "the tool does not answer --version"
    return Tool(path, version_numbers(version[1]), version[1]), ""


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version in either notation of nsys: 2024.2.3.38-v0, 2024@2@3@38-v0."""
    numbers = re.match(r"\d+(?:[.@]\d+)*", text)
    return tuple(map(int, re.split(r"[.@]", numbers[0]))) if numbers else ()


def run_tool(tool: Path, arguments: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a tool, or nsys's importer, to its end; raises `NsysprofError` if the tool cannot run or takes too long."""
    try:
        return subprocess.run(
            [str(tool), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        shown = " ".join([str(tool), *arguments[:1]])
        raise NsysprofError(f"{shown} did not end within {timeout:g} s and was stopped") from None
    except OSError as error:
        raise NsysprofError(f"{tool} cannot be run: {error.strerror}") from None


def last_line(output: str) -> str:
    """Return the last message of a failed tool: its error if there is one, without progress and stack details."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
    lines = [line for line in lines if not _PROGRESS.search(line)]
    errors = [line for line in lines if re.search(r"\berror\b|std::exception::what|^FATAL", line, re.I)]
    return (errors or lines or [""])[-1]


NCU_ENVIRONMENT = "NSYSPROF_NCU"
GET_NCU = (
    "install Nsight Compute from the CUDA toolkit (package cuda-nsight-compute) or from "
    "https://developer.nvidia.com/nsight-compute; if it is not on the PATH, give --ncu PATH or set "
    f"{NCU_ENVIRONMENT}=PATH"
)
# What a count cannot do without: an ncu that lacks one of these is too old.
_NEEDED = ("--nvtx-include", "--cache-control", "--clock-control", "--query-metrics", "--print-units", "--page")
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
    """Find the ncu to use, like `find_tool`; the environment variable is ``NSYSPROF_NCU``."""
    return find_tool(NCU, explicit)


def ncu_options(ncu: Ncu) -> frozenset[str]:
    """The long options that an ncu supports. Raises `NsysprofError` if the ncu lacks a required option."""
    known = frozenset(re.findall(r"--[a-z][a-z0-9-]+", run_tool(ncu.path, ["--help"], timeout=60).stdout))
    missing = [name for name in _NEEDED if name not in known]
    if missing:
        raise NsysprofError(
            f"ncu {ncu.version_text} ({ncu.path}) is too old: it has no {missing[0]}", f"newer: {GET_NCU}"
        )
    return known


def chip_metrics(ncu: Ncu) -> frozenset[str]:
    """Return the metrics, without suffixes, that every local GPU has; raises `NsysprofError` if ncu lists none."""
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
            f"ncu {ncu.version_text} lists no GPU metrics here{f': {message}' if message else ''}",
            f"check that nvidia-smi lists a GPU and that ncu is new enough for it: {GET_NCU}",
        )
    return metrics
