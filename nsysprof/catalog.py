"""The workloads: programs run by path, inside the package or in a folder beside it."""

import sys
from pathlib import Path

from nsysprof.errors import NsysprofError

__all__ = ["find_workload", "list_workloads", "workload_command", "workload_kit"]

_HERE = Path(__file__).resolve().parent
INSTALL_AGAIN = "pip install --force-reinstall nsysprof; in a checkout: pip install --force-reinstall ."
_HARNESS = "_harness.py"


def list_workloads() -> dict[str, Path]:
    """List the workloads by name; a wheel has them inside the package, a checkout beside it."""
    for folder in (_HERE / "workloads", _HERE.parent / "workloads"):
        workloads = {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}
        if workloads:
            return workloads
    return {}


def find_workload(name: str) -> Path:
    """Find the program of a workload by name, or by path if it ends with `.py`.

    Raises `NsysprofError` with the valid names if there is none.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise NsysprofError(f"{name}: no such file", "--workload NAME, or the path of a workload file")
        return Path(name)
    known = list_workloads()
    if name not in known:
        names = ", ".join(known) or "none is installed"
        raise NsysprofError(
            f"no workload {name!r}", f"--workload is one of: {names}; any other program: capture -- PROGRAM"
        )
    return known[name]


def workload_kit(program: Path) -> Path:
    """Find the folder with the shared code of the workloads: the workload's own folder, otherwise the shipped one."""
    if (program.parent / _HARNESS).exists():
        return program.parent
    known = list_workloads()
    if not known:
        raise NsysprofError("no workloads beside the package", INSTALL_AGAIN)
    return next(iter(known.values())).parent


def workload_command(program: Path) -> tuple[str, ...]:
    """Make the command that runs a workload: by path, or through the harness if the workload is in another folder."""
    kit = workload_kit(program)
    through = () if kit == program.parent else (str(kit / _HARNESS),)
    return (sys.executable, *through, str(program))
