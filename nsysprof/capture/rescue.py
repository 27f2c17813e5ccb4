"""Turns the raw stream that nsys leaves when its importer did not start into a report."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import last_line, run_tool
from nsysprof.tools.nsys import Nsys, find_importer, header_version

__all__ = ["import_stream", "missing_libraries"]

# Debian's and Ubuntu's package of a library, and Fedora's and RHEL's.
_PACKAGES = {
    "libdw.so.1": ("libdw1", "elfutils-libs"),
    "libelf.so.1": ("libelf1", "elfutils-libelf"),
    "libssh.so": ("libssh-4", "libssh"),
    "libssh.so.4": ("libssh-4", "libssh"),
    "libnss3.so": ("libnss3", "nss"),
    "libGL.so.1": ("libgl1", "libglvnd-glx"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2"),
}


def import_stream(stream: Path, out: Path, nsys: Nsys, *, timeout: float = 3600) -> None:
    """Make the .nsys-rep ``out`` of a .qdstrm with the importer that belongs to ``nsys``; the stream stays.

    The report appears under its name when it is whole.

    Raises `NsysprofError`: no importer, a library that it misses (with the package that has it), a stream that it
    refuses. The hint names nothing to resume with: that is for the caller, who knows where the stream stays.
    """
    importer = find_importer(nsys)
    if importer is None:
        raise NsysprofError(
            f"nsys {nsys.version_text} has no importer (QdstrmImporter), neither in ../host-linux-x64 nor elsewhere",
            "install it (Debian, Ubuntu: apt-get install nsight-systems; NVIDIA: nsight-systems instead of"
            " nsight-systems-cli), or import the stream on a machine that has it",
        )
    part = out.with_name(f"part-{out.name}")
    done = run_tool(importer, ["-i", str(stream), "-o", str(part)], timeout)
    if done.returncode == 0 and part.is_file() and part.stat().st_size:
        part.replace(out)
        return
    part.unlink(missing_ok=True)
    said = done.stderr + done.stdout
    missing = missing_libraries(importer) or re.findall(r"loading shared libraries: ([^:\s]+):", said)
    if missing:
        raise NsysprofError(
            f"nsys's importer cannot start: {', '.join(missing)} is missing ({importer})",
            _installation(missing),
        )
    raise NsysprofError(
        f"{importer} cannot read the stream: {_reason(said) or f'exit code {done.returncode}'}",
        f"only the importer of the nsys that recorded it reads a stream: nsys {header_version(stream) or '(unknown)'}",
    )


def _installation(libraries: Sequence[str]) -> str:
    """What to install for libraries; those of unknown packages are nsys's own, as a rule."""
    known = dict.fromkeys(_PACKAGES[library] for library in libraries if library in _PACKAGES)
    other = [library for library in libraries if library not in _PACKAGES]
    debian, fedora = (" ".join(names) for names in zip(*known, strict=True)) if known else ("", "")
    hints = [f"apt-get install {debian} (Fedora, RHEL: dnf install {fedora})"] if known else []
    hints += [f"install the package with {', '.join(other)}, or nsys again"] if other else []
    return "; ".join(hints)


def missing_libraries(program: Path) -> list[str]:
    """The shared libraries that a program of Linux needs and that the loader does not find, by their names."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return []
    try:
        done = subprocess.run(
            [ldd, str(program)],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)))


def _reason(said: str) -> str:
    """Why an import failed: the text within nsys's error report, else its last line."""
    texts = re.findall(r'ErrorText"?\s*\n\s*Value: "([^"]+)"', said)
    closing = re.search(r"File is corrupted", said)
    return "; ".join([*texts[:1], *(["the file is truncated or damaged"] if closing else [])]) or last_line(
        said
    )
