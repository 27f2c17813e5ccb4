"""Identify a file by its content, and explain why a file cannot be read as a report."""

import difflib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import Literal

from nsysprof.core.files import open_regular
from nsysprof.core.text import cut, join_first
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import version_in

Kind = Literal["sqlite", "parquet", "nsys-rep"]

SQLITE = b"SQLite format 3\0"
REPORT = b"NVIDIA Tegra Profiler Report "
STREAM = b"NVIDIA Nsight Systems Stream "
POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_NAMES = 5
_MAX_MESSAGE = 161  # characters
EXPORT = "nsys export --type sqlite"
REPORT_ENDINGS = (".sqlite", "_pqtdir", ".nsys-rep", ".qdrep")
ENDINGS = (*REPORT_ENDINGS, ".qdstrm")  # the last is a raw stream, which must be imported first
# First bytes of what people hand over by mistake, what it is, and the command or advice that helps.
OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip-compressed", "gunzip -k {path}"),
    (b"PK\x03\x04", "a zip archive", "unzip {path}"),
    (b"\xfd7zXZ\0", "xz-compressed", "xz -dk {path}"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "zstd -d {path}"),
    (b"BZh", "bzip2-compressed", "bunzip2 -k {path}"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x {path}"),
    (b"\x04\x22\x4d\x18", "lz4-compressed", "lz4 -d {path}"),
    (b"\x7fELF", "an ELF program or library", "profile it: nsys profile --trace=cuda,nvtx {path}"),
    (b"MZ", "a Windows program or library", "profile it: nsys profile --trace=cuda,nvtx {path}"),
    (b"PAR1", "a single parquet file", "give the folder that holds it and StringIds.parquet: {folder}"),
    (b"ARROW1", "an Arrow file", f"export the report again: {EXPORT} REPORT.nsys-rep"),
    (b"\x89HDF", "an HDF5 export", f"export the report again: {EXPORT} REPORT.nsys-rep"),
    (b"NVR", "an Nsight Compute report", "nsysprof reads Nsight Systems reports: .nsys-rep or .sqlite"),
)


class DamagedError(Exception):
    """A table has impossible values; the message describes them, and `reading` adds the file name."""


def identify(path: Path) -> Kind:
    """Return ``sqlite``, ``parquet`` (a folder) or ``nsys-rep`` (to be exported first), by content, not by name.

    Raises `NsysprofError` with a specific message if the path is not a readable report.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return _folder(path)
        if not stat.S_ISREG(status.st_mode):
            raise NsysprofError(f"{path}: not a regular file", "copy the report into a file first")
        with path.open("rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise _missing(path) from None
    except PermissionError:
        raise NsysprofError(f"{path}: no permission to read it", f"chmod +r {quote(str(path))}") from None
    except OSError as error:
        raise NsysprofError(f"{path}: cannot be opened: {error.strerror}") from None
    if status.st_size == 0:
        raise NsysprofError(f"{path} is empty: the export or the copy of the file failed", _again(path))
    if head.startswith(SQLITE):
        _check_sqlite(path, head, status.st_size)
        return "sqlite"
    if head.startswith(REPORT):
        return "nsys-rep"
    raise _refusal(path, head, status.st_size)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors from damaged files into `NsysprofError`."""
    try:
        yield
    except sqlite3.Error as error:
        what = f"{path}: reading failed part-way: {message_of(error)}"
        raise NsysprofError(f"{what}: the file is damaged", _again(path)) from None
    except DamagedError as error:
        raise NsysprofError(f"{path}: {error}: the file is damaged", _again(path)) from None
    except OSError as error:
        raise NsysprofError(f"{path}: reading failed part-way: {error.strerror or error}") from None


def message_of(error: BaseException) -> str:
    """Return an error's message on one line, shortened: SQLite quotes whole declarations."""
    return cut(" ".join(str(error).split()), _MAX_MESSAGE)


def fold(name: str) -> str:
    """Fold a table or column name as SQL does: ASCII letters match in either case."""
    return name.lower() if name.isascii() else name


Stamp = tuple[int, int, int, int, bytes]


def stamp(path: Path) -> Stamp:
    """Return a file's state: device, inode, size, modification time, and SQLite's change counter."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (Path.open hides that this is unbuffered)
        status = os.fstat(file.fileno())
        head = file.read(28)
    counter = head[24:] if head.startswith(SQLITE) else b""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, counter


def changed(path: Path) -> NsysprofError:
    """Make the error for a file that changed since it was opened."""
    return NsysprofError(f"{path} was changed while it was read", "try again when nothing writes to it")


def _missing(path: Path) -> NsysprofError:
    folder = path.parent
    if not folder.is_dir():
        return NsysprofError(f"{path} does not exist: there is no folder {folder}", f"ls {folder.parent}")
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        names = []
    same = [name for name in names if Path(name).stem == path.stem]
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    reports = [name for name in names if name.endswith(ENDINGS)]
    similar = list(dict.fromkeys([*same, *close]))[:3] or reports[:3]
    hint = f"in that folder: {', '.join(similar)}" if similar else f"ls {folder}"
    return NsysprofError(f"{path}: no such file", hint)


def _folder(path: Path) -> Kind:
    names = sorted(entry.name for entry in os.scandir(path))
    if "stringids.parquet" in map(fold, names):
        return "parquet"
    inside = [name for name in names if name.endswith(ENDINGS)]
    if inside:
        hint = f"give one of the reports in this folder: {', '.join(str(path / name) for name in inside[:3])}"
    else:
        hint = "a parquet export is made with: nsys export --type parquetdir REPORT.nsys-rep"
    if any(name.endswith(".parquet") for name in names):
        raise NsysprofError(f"{path} is an incomplete export: it has Parquet files, but no StringIds.parquet", hint)
    raise NsysprofError(f"{path} is a folder, but not a Parquet export of a report", hint)


def _refusal(path: Path, head: bytes, size: int) -> NsysprofError:
    if head.startswith(POINTER):
        return NsysprofError(
            f"{path} is only a Git LFS pointer of {size} bytes: the report itself was not downloaded",
            f"git lfs pull --include {quote(path.name)}",
        )
    if STREAM in head[:64]:
        return _stream(path, head)
    if not any(head):
        return NsysprofError(
            f"{path} is an unfinished export: nsys export was interrupted before it wrote the first page", _again(path)
        )
    for magic, what, advice in OTHERS:
        if head.startswith(magic):
            hint = advice.format(path=quote(str(path)), folder=quote(str(path.parent)))
            return NsysprofError(f"{path}: not a report: {what}", hint)
    if head[257:262] == b"ustar":
        return NsysprofError(f"{path}: not a report: a tar archive", f"tar xf {quote(str(path))}")
    named = f" although its name ends in {path.suffix}" if path.suffix in ENDINGS else ""
    return NsysprofError(
        f"{path}: not a report{named}: {_looks(head)}",
        "nsysprof reads Nsight Systems .sqlite, .nsys-rep, .qdrep and parquet files, and torch.profiler JSON traces",
    )


def _looks(head: bytes) -> str:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        text = "" if error.start < len(head) - 4 else head[: error.start].decode("utf-8")
    if not text or "\0" in text:
        return f"binary, first bytes {head[:8].hex(' ')}"
    first = text.lstrip()[:1]
    kind = {"{": "JSON text", "[": "JSON text", "<": "XML or HTML text"}.get(first, "text")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{kind}, beginning {line[:40]!r}"


def _stream(path: Path, head: bytes) -> NsysprofError:
    version = version_in(head) or "an unknown version"
    return NsysprofError(
        f"{path} is a raw recording of nsys {version} (.qdstrm) that was never converted to a report",
        f"import it, with nsys {version} installed: nsysprof capture --resume {quote(str(path))}",
    )


def _again(path: Path) -> str:
    report = path.with_suffix(".nsys-rep")
    source = report if report.exists() and report != path else Path("REPORT.nsys-rep")
    return f"export the report again: {EXPORT} --force-overwrite true -o {quote(str(path))} {quote(str(source))}"


def _check_sqlite(path: Path, head: bytes, size: int) -> None:
    if any(_filled(Path(f"{path}{ending}")) for ending in ("-journal", "-wal")):
        return  # the file alone does not say what it holds; the source reads it together with its log
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    # the page count in the header holds only if the change counter was written together with it
    if head[24:28] == head[92:96] and size < pages * page:
        raise NsysprofError(
            f"{path} is truncated ({size:,} of {pages * page:,} bytes): the copy or the export was interrupted",
            f"copy it again, or {_again(path)}",
        )
    tables = _tables(path)
    check_tables(path, [name for name, _ in tables])
    if _unfinished(head, tables):
        raise NsysprofError(
            f"{path} is an unfinished export: nsys failed before it wrote the thread names and the metadata",
            _again(path),
        )


def _filled(log: Path) -> bool:
    """Whether a log beside the file has content: an emptied one starts with zeros."""
    try:
        with open_regular(log) as file:
            return any(file.read(8))
    except OSError:
        return False


def _tables(path: Path) -> list[tuple[str, str]]:
    """Name and declaration of each table and view, in the order in which they were made."""
    # without a log "immutable" is true enough, and SQLite then makes no files beside the report
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')")
            return [(str(name), str(sql or "")) for name, sql in rows]
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where sqlite3 quotes a damaged name
        raise NsysprofError(f"{path}: a damaged SQLite file: {message_of(error)}", _again(path)) from None


def check_tables(path: Path, names: Sequence[str]) -> None:
    """Refuse a database that lacks the tables of a report."""
    if "stringids" in map(fold, names):
        return
    if not names:
        raise NsysprofError(f"{path} is an unfinished export or an empty database: it has no tables", _again(path))
    shown = join_first(names, _MAX_NAMES)
    if "StringTable" in names and any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in names):
        hint = (
            "this is an nvprof database, which nsysprof cannot read: profile again with nsys profile --trace=cuda,nvtx"
        )
    else:
        hint = f"this is not an Nsight Systems export (no table StringIds); export the report: {EXPORT} REPORT.nsys-rep"
    raise NsysprofError(f"{path} is an SQLite database, but not a report: its tables are {shown}", hint)


def _unfinished(head: bytes, tables: Sequence[tuple[str, str]]) -> bool:
    """Whether nsys failed while it wrote this file.

    nsys exports in one transaction and, when it fails, commits what it has. Since 2022 it declares its tables with
    comments and writes ThreadNames, the ENUM tables and the metadata last. Complete reports of 2019 to 2021 may lack
    these tables, but they have no comments; a trimmed file lacks them, but was changed more than once.
    """
    names = {fold(name) for name, _ in tables}
    commented = any(fold(name) == "stringids" and "--" in sql for name, sql in tables)
    last = {"meta_data_export", "export_meta_data", "meta_data_capture", "threadnames"}
    untouched = int.from_bytes(head[24:28], "big") == 1 and not any(head[36:40])  # one change, no free pages
    return commented and untouched and not names & last and not any(n.startswith("enum_") for n in names)
