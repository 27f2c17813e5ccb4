"""Where the workloads are: programs that are run by path, beside the package or beside the checkout."""

from __future__ import annotations

from pathlib import Path

from nsysprof.errors import NsysprofError

__all__ = ["find_workload", "list_workloads"]

_HERE = Path(__file__).resolve().parent


def list_workloads() -> dict[str, Path]:
    """The workloads by name; a wheel ships them inside the package, a checkout has them beside it."""
    for folder in (_HERE / "workloads", _HERE.parent / "workloads"):
        found = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
        if found:
            return found
    return {}


def find_workload(name: str) -> Path:
    """The program of a workload; `NsysprofError` names the valid ones where there is none of that name."""
    known = list_workloads()
    if name not in known:
        names = ", ".join(known) or "none is installed"
        raise NsysprofError(
            f"no workload {name!r}", f"--workload is one of: {names}; any other program: capture -- PROGRAM"
        )
    return known[name]
