"""Find the reports that a user names: files, folders, globs, URLs and lists of names, each report once."""

import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.files import MAX_BYTES, read_small
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import record_name
from nsysprof.trace.report import report_endings

_FOLDER, _INSIDE = "_pqtdir", "StringIds.parquet"  # what a folder that is a report is called, and is known by
_URL = re.compile(r"\w[\w+.-]*(?:::\w[\w+.-]*)*://")


@dataclass(frozen=True)
class ReportFile:
    """A report to read: its path or URL as given by the user, and a text that changes whenever the file changes."""

    name: str
    stamp: str

    @property
    def is_url(self) -> bool:
        """Whether fsspec has to fetch the report."""
        return _URL.match(self.name) is not None


def find_reports(names: Sequence[str]) -> tuple[list[ReportFile], list[str]]:
    """Find the named reports, in order (inside folders and globs, in natural order); also return notes.

    A name may be a file, a folder (for all reports in it, at any depth), a glob, or a URL that fsspec can open. If both
    a report and its export are named, only the export counts. A file with two names counts once. Raises `NsysprofError`
    if a name matches nothing.
    """
    files: dict[str, ReportFile] = {}
    notes: list[str] = []
    for name in names:
        for path, identity, stamp in (_remote if _URL.match(name) else _listed)(name, notes):
            if identity in files:
                notes.append(f"{path} is the same report as {files[identity].name}, so it is counted once")
            else:
                files[identity] = ReportFile(path, stamp)
    if not files:
        raise NsysprofError("no reports are named", "nsysprof fleet 'traces/*.sqlite'")
    return list(files.values()), notes


def names_in(path: Path) -> list[str]:
    """Read the names in a file, one per line, relative to its folder; skip blank lines and ``#`` lines."""
    try:
        text = read_small(path, pipes=True).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise NsysprofError(f"{path}: cannot read the list of reports: {why}", f"ls -l {quote(str(path))}") from None
    if "\0" in text:
        raise NsysprofError(
            f"{path} contains NUL bytes, but a list of reports is text with one name per line",
            f"tr '\\0' '\\n' < {quote(str(path))} > LIST",
        )
    names = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [name if _URL.match(name) else str(path.parent / name) for name in names]


def record_path(report: Path) -> Path:
    """Return the path of the run record that `capture` writes beside a report, also for an export in a folder."""
    stem = report.name.removesuffix(_FOLDER)
    return record_name(report) if stem == report.name else report.with_name(f"{stem}.json")


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Make a key that sorts ``rank_2`` before ``rank_10``."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def missing_dask() -> NsysprofError:
    """Make the error for a missing Dask, or for a missing package that keeps Dask's local processes private."""
    return NsysprofError(
        "analyzing many reports needs dask[distributed] and cryptography", "pip install 'nsysprof[fleet]'"
    )


def _listed(name: str, notes: list[str]) -> Iterator[tuple[str, str, str]]:
    """List the reports behind a local name: the path, the resolved path (equal for equal files), and the stamp."""
    try:
        for each in _local(name, notes):
            # not Path.resolve, which raises on a link that leads to itself: no report, but no reason to lose the others
            yield str(each), os.path.realpath(each), _stamp(each)
    except OSError as error:
        raise NsysprofError(f"{name}: cannot be listed: {error.strerror or error}", "ls") from None


def _local(name: str, notes: list[str]) -> list[Path]:
    path = Path(name)
    if path.is_dir() and not _is_report(path):
        files = (each.as_posix() for each in path.rglob("*") if not each.is_dir())
        inside = _each_once(_shown(files, path.as_posix()), notes)
        if not inside:
            raise NsysprofError(f"{name}: no reports in this folder", f"ls {quote(name)}")
    elif path.exists() or not glob.has_magic(name):
        return [path]  # what does not exist is a report that cannot be read
    else:
        matches = [Path(each) for each in dict.fromkeys(_globbed(name))]
        whole = [each / _INSIDE if _is_report(each) else each for each in matches]
        inside = _matched((each.as_posix() for each in whole if not each.is_dir()), notes)
        if not inside:
            raise NsysprofError(f"{name}: matches no file", "ls")
    return [Path(each) for each in inside]


def _globbed(pattern: str) -> Iterator[str]:
    """Match as `glob.glob` does, but ``**`` does not follow links to folders, because links can form cycles."""
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.glob(pattern)  # noqa: PTH207  Path.glob refuses absolute patterns
        return
    at = parts.index("**")
    above, below = "/".join(parts[:at]), "/".join(parts[at + 1 :]) or "*"
    for top in glob.glob(f"{above}/") if at else ("",):  # noqa: PTH207
        for folder, inner, _ in os.walk(top or "."):
            inner[:] = [name for name in inner if not name.startswith(".")]
            inside = folder.removeprefix(".").removeprefix("/") if not top else folder
            yield from _globbed(os.path.join(glob.escape(inside), below))  # noqa: PTH118


def _is_report(folder: Path) -> bool:
    return (folder / _INSIDE).is_file()


def _shown(files: Iterable[str], folder: str) -> Iterator[str]:
    """Leave out the files that are hidden inside a folder."""
    top = "" if folder == "." else f"{folder.rstrip('/')}/"
    return (file for file in files if "/." not in f"/{file.removeprefix(top)}")


def _matched(files: Iterable[str], notes: list[str]) -> list[str]:
    """Choose the reports among the files that a glob matches; all files if none has a report's name."""
    files = sorted(files, key=natural_key)
    return _each_once(files, notes) or files


def _each_once(files: Iterable[str], notes: list[str]) -> list[str]:
    """Choose the reports among file names, in natural order, each once: a report that was exported counts as its
    export; if several recorders made recordings of one name, only one recording counts, and ``notes`` name the others.

    A folder of Parquet files is recognized by a file in it, and returned by the name of the folder.
    """
    endings = report_endings()
    recorders = list(dict.fromkeys(reversed(endings.values())))
    best: dict[str, dict[int, tuple[int, str]]] = {}
    for file in files:
        folder, _, last = file.rpartition("/")
        name = folder if last == _INSIDE else file
        stem = without_ending(name)
        ending = name[len(stem) :]
        if last != _INSIDE and ending in ("", _FOLDER):
            continue
        recorder = recorders.index(endings[ending]) if ending else 0
        rank = (list(endings).index(ending) if ending else 0, name)
        known = best.setdefault(stem, {})
        known[recorder] = min(rank, known.get(recorder, rank))
    chosen = []
    for known in best.values():
        (_, (_, name)), *others = sorted(known.items())
        chosen.append(name)
        notes += [
            f"{other} is left out: {name} has the same name and is from another profiler" for _, (_, other) in others
        ]
    return sorted(chosen, key=natural_key)


def without_ending(name: str) -> str:
    """Return the name of a report without its ending."""
    return name.removesuffix(next((each for each in report_endings() if name.endswith(each)), ""))


def _stamp(path: Path) -> str:
    """Describe a report and the record beside it by size and time."""
    parts = []
    for file in (path, record_path(path)):
        try:
            status = file.stat()
            parts.append(f"{status.st_size}-{status.st_mtime_ns}")
        except OSError:
            parts.append("none")
    return " ".join(parts)


def _remote(name: str, notes: list[str]) -> Iterator[tuple[str, str, str]]:
    """List the reports behind a URL. Reports in local files are named by their path."""
    system, path = _file_system(name)
    if "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol):
        yield from _listed(path, notes)
        return
    with _fetching(name, "cannot be listed"):
        if glob.has_magic(path):
            matches = [(each, f"{each}/{_INSIDE}") for each in system.glob(path)]
            files = tuple(ending for ending in report_endings() if ending != _FOLDER)
            folders = {each for each, inside in matches if not each.endswith(files) and system.exists(inside)}
            paths = _matched((inside if each in folders else each for each, inside in matches), notes)
        elif system.isdir(path) and not system.exists(f"{path}/{_INSIDE}"):
            paths = _each_once(_shown(system.find(path), path), notes)
        else:
            paths = [path]
        urls = [system.unstrip_protocol(each) for each in paths]
        stamps = [str(system.ukey(each)) if system.exists(each) else "none" for each in paths]
    if not urls:
        raise NsysprofError(f"{name}: no reports at this URL", "give the URL of a report or folder, or a glob")
    yield from zip(urls, urls, stamps, strict=True)


def _file_system(name: str) -> tuple[Any, str]:
    """Open the fsspec file system of a URL; return it and the path in it. Raises `NsysprofError` if this fails."""
    try:
        import fsspec.core  # noqa: PLC0415 (an extra)
    except ImportError:
        raise missing_dask() from None
    with _fetching(name, "cannot be opened"):
        try:
            system, path = fsspec.core.url_to_fs(name)
        except (ImportError, ValueError) as error:
            raise NsysprofError(f"{name}: {first_line(error)}", "install fsspec's package for this URL") from None
    return system, path


@contextmanager
def local_copy(file: ReportFile) -> Iterator[Path]:
    """Yield the report as a local path: the report itself, or a temporary copy of a URL, with its record."""
    if not file.is_url:
        yield Path(file.name)
        return
    system, path = _file_system(file.name)
    folder = Path(tempfile.mkdtemp(prefix="nsysprof-"))
    try:
        copy = folder / Path(path).name
        record = str(record_path(Path(path)))
        with _fetching(file.name, "cannot be fetched"):
            system.get(path, str(copy), recursive=system.isdir(path))
            if system.exists(record) and (system.size(record) or 0) <= MAX_BYTES:
                system.get(record, str(record_path(copy)))
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _fetching(name: str, failed: str) -> Iterator[None]:
    """Turn any error of fsspec (or of code that it calls) into a `NsysprofError` that says what ``failed``."""
    try:
        yield
    except NsysprofError:
        raise
    except Exception as error:  # each file system and each archive has errors of its own
        raise NsysprofError(
            f"{name}: {failed}: {type(error).__name__}: {first_line(error)}", "check the URL and your credentials"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or ["no reason given"])[0]
