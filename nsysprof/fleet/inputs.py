"""The reports that a user names: files, folders, globs, URLs and lists of names, each report once."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.errors import NsysprofError

__all__ = ["ReportFile", "dask_hint", "find_reports", "missing_dask", "natural_key"]

_ENDINGS = (".sqlite", ".nsys-rep", ".qdrep")
_FOLDER = "_pqtdir"
_URL = re.compile(r"\w[\w+.-]*(?:::\w[\w+.-]*)*://")


@dataclass(frozen=True)
class ReportFile:
    """A report to read: its path or URL as given, and a text that changes when the file does."""

    name: str
    stamp: str

    @property
    def is_url(self) -> bool:
        """Whether fsspec has to fetch it."""
        return _URL.match(self.name) is not None


def find_reports(names: Sequence[str]) -> tuple[list[ReportFile], list[str]]:
    """The reports behind names, in their order, those of a folder or a glob in natural order; and notes in words.

    A name may be a file, a folder (all reports in it, however deep), a glob, or a URL of any of these that fsspec can
    open. The same file under two names counts once. Raises `NsysprofError` where a name stands for nothing.
    """
    found: dict[str, ReportFile] = {}
    notes = []
    for name in names:
        for path, identity, stamp in _remote(name) if _URL.match(name) else _local(name):
            if identity in found:
                notes.append(f"{path} is the same report as {found[identity].name}: counted once")
            else:
                found[identity] = ReportFile(path, stamp)
    if not found:
        raise NsysprofError("no reports are named", "nsysprof fleet 'traces/*.sqlite'")
    return list(found.values()), notes


def names_in(path: Path) -> list[str]:
    """The names in a file of them, one on a line, relative ones to its folder; blank lines and ``#`` are passed
    over.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NsysprofError(
            f"{path}: cannot read the list of reports: {why}", f"ls -l {quote(str(path))}"
        ) from None
    names = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [name if _URL.match(name) else str(path.parent / name) for name in names]


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts ``rank_2`` before ``rank_10``."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    ]


def missing_dask() -> NsysprofError:
    """The error for a Python without Dask."""
    return NsysprofError("analysing many reports needs dask[distributed]", dask_hint())


def dask_hint() -> str:
    """The command that brings what a fleet needs."""
    return "pip install 'nsysprof[fleet]'"


def _local(name: str) -> Iterator[tuple[str, str, str]]:
    path = Path(name)
    if path.is_dir() and not _is_report(path):
        inside = sorted(_inside(path), key=lambda each: natural_key(str(each)))
        if not inside:
            raise NsysprofError(f"{name}: no reports in this folder", f"ls {quote(name)}")
    elif path.exists() or not glob.has_magic(name):
        inside = [path]  # what does not exist is a report that cannot be read
    else:
        found = glob.glob(name, recursive=True)  # noqa: PTH207  Path.glob refuses absolute patterns
        inside = sorted(map(Path, found), key=lambda each: natural_key(str(each)))
        inside = [each for each in inside if not each.is_dir() or _is_report(each)]
        if not inside:
            raise NsysprofError(f"{name}: matches no file", "ls")
    for each in inside:
        yield str(each), str(each.resolve()), _stamp(each)


def _is_report(folder: Path) -> bool:
    return (folder / "StringIds.parquet").is_file()


def _inside(folder: Path) -> Iterator[Path]:
    """The reports of a folder; one that was exported counts by its export."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or (path.is_file() and path.suffix not in _ENDINGS) or path.parent.name.endswith(_FOLDER):
            continue
        if path.is_dir() and not _is_report(path):
            continue
        if path.suffix in _ENDINGS[1:] and path.with_suffix(".sqlite").exists():
            continue
        yield path


def _stamp(path: Path) -> str:
    """Size and time of a report and of the record beside it."""
    parts = []
    for file in (path, path.with_suffix(".json")):
        try:
            status = file.stat()
            parts.append(f"{status.st_size}-{status.st_mtime_ns}")
        except OSError:
            parts.append("none")
    return " ".join(parts)


def _remote(name: str) -> Iterator[tuple[str, str, str]]:
    """The reports behind a URL. Those in local files are named by their path."""
    system, path = file_system(name)
    if _is_here(system):
        yield from _local(path)
        return
    try:
        if glob.has_magic(path):
            paths = system.glob(path)
        elif system.isdir(path) and not system.exists(f"{path}/StringIds.parquet"):
            paths = [each for each in system.find(path) if each.endswith(_ENDINGS)]
        else:
            paths = [path]
        paths = sorted(paths, key=natural_key)
        if not paths:
            raise NsysprofError(f"{name}: no reports there", "give the URL of a report, a folder or a glob")
        for each in paths:
            url = system.unstrip_protocol(each)
            yield url, url, str(system.ukey(each)) if system.exists(each) else "none"
    except OSError as error:
        raise NsysprofError(
            f"{name}: cannot be listed: {error}", "check the URL and your credentials"
        ) from None


def file_system(name: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. Raises `NsysprofError` where none can be had."""
    try:
        import fsspec.core  # noqa: PLC0415 (an extra)
    except ImportError:
        raise missing_dask() from None
    try:
        system, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError, OSError) as error:
        raise NsysprofError(
            f"{name}: {str(error).splitlines()[0]}", "pip install the package for such URLs"
        ) from None
    return system, path


def _is_here(system: Any) -> bool:
    return "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol)
