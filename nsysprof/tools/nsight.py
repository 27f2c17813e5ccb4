"""NVIDIA's command-line tools ``nsys`` and ``ncu``: how both are found, asked for their version, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysprof.errors import NsysprofError

_PROGRESS = re.compile(r"\[[=\s]*\d+%\s*\]|^\s*(Processing|Exporting|Importing) .*\[|^\[\s*\d+/\d+\]")


@dataclass(frozen=True)
class Tool:
    """A tool that answered: ``version`` as numbers (2024, 2, 3, 38), ``version_text`` as it prints it."""

    path: Path
    version: tuple[int, ...]
    version_text: str


@dataclass(frozen=True)
class ToolKind:
    """One of the tools, with all that is needed to find it.

    ``version_pattern`` finds its version, the first group, in what it prints. ``linux`` are patterns of the usual
    places from the root, ``windows`` those below the program folders.
    """

    name: str
    environment: str
    get_it: str
    version_pattern: str
    linux: Sequence[str]
    windows: Sequence[str]


def find_tool(kind: ToolKind, explicit: str | os.PathLike[str] | None = None) -> Tool:
    """Find the tool to use: the one named, else the environment variable's, the PATH's, or the newest installed.

    "Installed" means in one of the usual places of Linux and Windows. Raises `NsysprofError` where the one that was
    named does not work, or where there is none.
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
        broken = f"; {first} on the PATH does not work: {why}" if first else ""
        raise NsysprofError(f"no {kind.name} found{broken}", kind.get_it)
    return installed[0]


def installed_tools(kind: ToolKind) -> list[Tool]:
    """Find every working one in the usual places, each once, newest first."""
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
    """Ask the tool at a path (or in a folder) for its version; None and why where it does not answer."""
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
        return None, last_line(done.stderr) or last_line(done.stdout) or "it does not answer --version"
    return Tool(path, version_numbers(version[1]), version[1]), ""


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, whichever way nsys writes it: 2024.2.3.38-v0, 2024@2@3@38-v0."""
    numbers = re.match(r"\d+(?:[.@]\d+)*", text)
    return tuple(map(int, re.split(r"[.@]", numbers[0]))) if numbers else ()


def run_tool(tool: Path, arguments: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a tool, or nsys's importer, to its end; `NsysprofError` if it cannot run or takes too long."""
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
        raise NsysprofError(f"{shown} did not end within {timeout:g} s: stopped") from None
    except OSError as error:
        raise NsysprofError(f"{tool} cannot be run: {error.strerror}") from None


def last_line(output: str) -> str:
    """Return the last message of a failed tool: its error where there is one, without progress and stack details."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", output) if line.strip()]
    lines = [line for line in lines if not _PROGRESS.search(line)]
    errors = [line for line in lines if re.search(r"\berror\b|std::exception::what|^FATAL", line, re.I)]
    return (errors or lines or [""])[-1]
