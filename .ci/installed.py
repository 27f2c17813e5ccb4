"""Says whether the installed nsysprof put anything but `nsysprof` beside other packages, and how large all of it is."""

from __future__ import annotations

import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

MOST_MIB = 300
WITH_PYTHON = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what a fresh environment holds anyway


def main() -> int:
    """Print the top-level names that the distribution owns; 1 when one is wrong or something is missing."""
    files = distribution("nsysprof").files or []
    inside = [file for file in files if ".." not in file.parts]
    names = sorted({file.parts[0] for file in inside if not file.parts[0].endswith(".dist-info")})
    print("installed at top level:", ", ".join(names))
    wanted = {
        "nsysprof/kernels/kernels.toml",
        "nsysprof/py.typed",
        "nsysprof/page/parts/uPlot.LICENSE",
        "nsysprof/workloads/__init__.py",
    }
    missing = sorted(wanted - {file.as_posix() for file in inside})
    if missing:
        print("missing:", ", ".join(missing), file=sys.stderr)
    size = mebibytes(Path(sysconfig.get_path("purelib")))
    print(f"with all that it needs: {size:.0f} MiB, at most {MOST_MIB}")
    return int(names != ["nsysprof"] or bool(missing) or size > MOST_MIB)


def mebibytes(folder: Path) -> float:
    """What the packages in a folder take on the disk, without those that come with Python."""
    packages = [path for path in folder.iterdir() if not path.name.startswith(WITH_PYTHON)]
    files = [file for path in packages for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file()) / 2**20


if __name__ == "__main__":
    sys.exit(main())
