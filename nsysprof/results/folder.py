"""The files of results: what is there already and whose it is, and how they get their names together or not at all."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from nsysprof.core.csv_text import make_spreadsheet_safe
from nsysprof.core.document import members_at_head
from nsysprof.core.final_name import PART
from nsysprof.core.side_file import open_regular
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import Report

PAGE = "report.html"  # of every command: its head says which one made it
_PATIENCE = 100  # tenths of a second: nobody takes as long to give a few files their names
_HEAD = 4096  # bytes of a page in which that stands


@contextmanager
def results_together(
    folder: Path,
    possible: Sequence[str],
    command: str,
    check: Callable[[], bool],
    *,
    spreadsheet_safe: bool = False,
) -> Iterator[tuple[Path, list[str]]]:
    """A folder to make results in: all that is in it in the end gets its name in ``folder``, or nothing where it fails.

    ``possible`` are the names of all files that ``command`` may write. ``check`` says, or refuses, as `check_folder`
    does: it is asked again then, as another process may have written there meanwhile, and only one at a time does.
    Files of earlier results that have no successor are removed: their names come into the list. ``spreadsheet_safe``
    passes the tables through `make_spreadsheet_safe`.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    stale: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix=PART, dir=folder) as name:
            made = Path(name)
            try:
                yield made, stale
                for path in made.glob("*.csv") if spreadsheet_safe else ():
                    make_spreadsheet_safe(path)
            except OSError as error:
                if error.filename and Path(error.filename).parent == made:  # which nobody has asked for
                    error.filename = str(folder / Path(error.filename).name)
                raise
            with alone_in(folder):
                earlier = check()
                # in this order: the document tells whose folder this is, should we be stopped half-way
                made_now = [each for each in possible if (made / each).exists()]
                for each in made_now:
                    (made / each).replace(folder / each)
                gone = [each for each in possible if each not in made_now]
                stale += _remove_earlier(folder, gone, command) if earlier else []
    finally:
        if new:
            with suppress(OSError):
                folder.rmdir()  # where nothing came into it


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds a folder against other processes that ask for it too, where the system can do that."""
    try:
        import fcntl  # noqa: PLC0415  not on Windows
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(_PATIENCE):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:  # some network file systems lock no folders
                break
        yield
    finally:
        os.close(descriptor)


def report_stem(report: Path) -> str:
    """What the results of a report are named after."""
    named = report if report.stem.strip(".") else report.resolve()  # the folder itself may be called "."
    return named.stem


def writable_around(place: Path, hint: str = "choose another folder: -o DIR") -> Path:
    """The innermost folder that exists of a place and those around it.

    Raises `NsysprofError` with that hint where it is no folder, or nothing can be written into it.
    """
    there = next(each for each in (place, *place.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no permission to write there" if there.is_dir() else f"{there} is no folder"
        raise NsysprofError(f"cannot write into {place}: {why}", hint)
    return there


def check_folder(
    folder: Path,
    report: Report,
    names: Sequence[str],
    *,
    force: bool,
    document: tuple[str, str],
    made_by: tuple[str, str],
) -> bool:
    """Whether the folder holds earlier results about the same report; it need not exist, and is not made here.

    ``document`` is the file that tells, with its schema; ``made_by`` what writes it, in words and as a command.
    Raises `NsysprofError` where a file of the given names is somebody else's and ``force`` does not say to replace
    it, where one is the report itself, or where the folder can be neither written into nor made.
    """
    writable_around(folder)
    for place in (folder / name for name in names):
        if place.exists() and any(
            place.samefile(file) for file in {report.path, report.file} if file.exists()
        ):
            raise NsysprofError(f"{place} is the report itself", "choose another folder: -o DIR")
    ours = _is_ours(folder / document[0], document[1], report)
    foreign = foreign_files(folder, names, made_by[1], ours=ours)
    if foreign and not force:
        raise NsysprofError(
            f"{folder} holds {', '.join(foreign)}, not written by {made_by[0]} of {report.path}",
            f"nsysprof {made_by[1]} {quote(str(report.path))} -o OTHER-DIR   (or --force to replace them)",
        )
    return ours


def foreign_files(folder: Path, names: Sequence[str], command: str, *, ours: bool) -> list[str]:
    """Those of the names that a folder holds and ``command`` did not write there: all of them where it is not ours."""
    return [
        name
        for name in names
        if os.path.lexists(folder / name) and not (ours and _made_by(command, folder / name))
    ]


def _remove_earlier(folder: Path, names: Sequence[str], command: str) -> list[str]:
    """Remove files of these names from a folder of ``command``, and say which; the page of another command stays."""
    stale = [name for name in names if (folder / name).is_file() and _made_by(command, folder / name)]
    for name in stale:
        (folder / name).unlink()
    return stale


def _made_by(command: str, path: Path) -> bool:
    """Whether a file is of ``command`` if its folder is: only pages have the same name with all commands."""
    if path.name != PAGE:
        return True
    try:
        with open_regular(path) as file:
            return f'<meta name="generator" content="nsysprof {command} '.encode() in file.read(_HEAD)
    except OSError:
        return False


def _is_ours(path: Path, schema: str, report: Report) -> bool:
    """Whether this is a document of that schema and of this file, or its copy: of one with its name and its size."""
    head = members_at_head(path)
    about = head.get("report")
    if head.get("schema") != schema or not isinstance(about, dict):
        return False
    file_name, size = Path(str(about.get("file"))), about.get("size_bytes")
    try:
        same_file = file_name.resolve() == report.path.resolve()
    except (OSError, ValueError):
        return False
    copied = (
        file_name.name == report.path.name and report.path.is_file() and size == report.path.stat().st_size
    )
    return same_file or copied
