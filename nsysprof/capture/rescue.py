"""Turns the raw stream that nsys leaves when its importer did not start into a report."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from shlex import quote

from nsysprof.errors import NsysprofError
from nsysprof.nsys import Nsys, find_importer, header_version, last_line

__all__ = ["import_stream", "missing_libraries"]

_PACKAGES = {
    "libdw.so.1": "libdw1 (Fedora, RHEL: elfutils-libs)",
    "libelf.so.1": "libelf1 (Fedora, RHEL: elfutils-libelf)",
    "libssh.so": "libssh-4 (Fedora, RHEL: libssh)",
    "libssh.so.4": "libssh-4 (Fedora, RHEL: libssh)",
    "libnss3.so": "libnss3 (Fedora, RHEL: nss)",
    "libGL.so.1": "libgl1 (Fedora, RHEL: libglvnd-glx)",
    "libglib-2.0.so.0": "libglib2.0-0 (Fedora, RHEL: glib2)",
}


def import_stream(stream: Path, out: Path, nsys: Nsys, *, timeout: float = 3600) -> None:
    """Make the .nsys-rep ``out`` of a .qdstrm with the importer that belongs to ``nsys``; the stream stays.

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
    try:
        done = subprocess.run(
            [str(importer), "-i", str(stream), "-o", str(out)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NsysprofError(f"{importer} did not end within {timeout:g} s: stopped") from None
    except OSError as error:
        raise NsysprofError(
            f"{importer} cannot be run: {error.strerror}", f"ls -l {quote(str(importer))}"
        ) from None
    if done.returncode == 0 and out.is_file() and out.stat().st_size:
        return
    out.unlink(missing_ok=True)
    said = done.stderr + done.stdout
    missing = missing_libraries(importer) or re.findall(r"loading shared libraries: ([^:\s]+):", said)
    if missing:
        packages = [_PACKAGES.get(library, f"the package with {library}") for library in missing]
        raise NsysprofError(
            f"nsys's importer cannot start: {', '.join(missing)} is missing ({importer})",
            f"install it: apt-get install {', '.join(dict.fromkeys(packages))}",
        )
    raise NsysprofError(
        f"{importer} cannot read the stream: {_reason(said) or f'exit code {done.returncode}'}",
        f"only the importer of the nsys that recorded it reads a stream: nsys {header_version(stream) or '(unknown)'}",
    )


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
