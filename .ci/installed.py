"""Says whether the installed nsysprof put anything but `nsysprof` beside other packages."""

from __future__ import annotations

import sys
from importlib.metadata import distribution


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
    return int(names != ["nsysprof"] or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
