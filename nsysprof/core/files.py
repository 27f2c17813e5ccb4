"""Files: read with care, written whole, and the cells of CSV files that a spreadsheet may open.

A name may stand for a pipe that nobody writes into, a device without end, or a file that is something else. What is
read here is a regular file, or a link to one, of a size that such files have.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PART = ".nsysprof-"  # what the names of folders begin with in which results become whole


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """A place for what becomes a file: it gets its name when it is whole, and else nothing is left of it.

    That is in a folder beside it that is new and of nobody else, so that no link lies there which writing would
    follow. What has the name already is replaced, a link too, or, where ``replace`` is False, stays: then this raises
    `FileExistsError`. An `OSError` names the file.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=PART, dir=path.parent) as folder:
            part = Path(folder, path.name)
            yield part
            if replace:
                part.replace(path)
            else:
                give_final_name(part, path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # nobody has asked for the other
        raise


def give_final_name(part: Path, final: Path) -> None:
    """Give a file a name on its file system that no other has; it may keep its old one too.

    Raises `FileExistsError` where the name is taken, also by a link to nothing, and `OSError` where it cannot be given.
    """
    try:
        os.link(part, final)  # unlike a rename this never replaces a file
    except FileExistsError:
        raise
    except OSError:  # no hard links on this file system
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from None
        part.replace(final)


MAX_BYTES = 64 << 20  # of records, budgets, rules, lists
MAX_TABLE_BYTES = 1 << 30  # of tables: a row per kernel, per instance or per sample
_MOST_LEVELS = 100  # of brackets in brackets: whoever walks through them must not run out of stack
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


class TooDeepError(ValueError):
    """JSON whose brackets are nested deeper than anything that is meant."""

    def __init__(self) -> None:
        super().__init__("brackets nested too deeply")


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most so many bytes for reading. `OSError` says in words what else it is."""
    _check_regular(path.stat(), path, most)  # first: to open a device may already do something
    file = open(path, "rb", opener=_open)  # noqa: SIM115  Path.open has no opener; the caller closes it
    try:
        _check_regular(os.fstat(file.fileno()), path, most)  # it may be another by now
    except OSError:
        file.close()
        raise
    return file


def read_small(path: Path, most: int = MAX_BYTES, *, pipes: bool = False) -> bytes:
    """The content of a regular file of at most so many bytes. `OSError` says in words what else it is.

    With ``pipes`` it may be a pipe, as a shell's ``<(command)`` is one, or a device: to its end, or to so many bytes.
    """
    with path.open("rb") if pipes else open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it grows, or does not tell its size
        raise _too_large(path, most)
    return content


def read_json(path: Path, most: int = MAX_BYTES, **how: Any) -> Any:
    """What a JSON file in UTF-8 holds; ``how`` are `json.loads`'s keywords.

    Raises `OSError` as `read_small` does, and `ValueError` where it is no JSON; `TooDeepError` is one.
    """
    return parse_json(read_small(path, most), **how)


def parse_json(content: bytes, **how: Any) -> Any:
    """The same of bytes."""
    try:
        read = json.loads(content.decode("utf-8"), **how)
    except RecursionError:
        raise TooDeepError from None
    level = [read] if isinstance(read, (dict, list)) else []
    for _ in range(_MOST_LEVELS):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for each in parts for part in each if isinstance(part, (dict, list))]
        if not level:
            return read
    raise TooDeepError


def unusable_warning(path: Path) -> str | None:
    """The warning about a JSON file beside a report that is none to read; None for one that is, or is not there."""
    try:
        read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, TooDeepError) as error:
        return f"{path} is not used: {error.strerror if isinstance(error, OSError) else error}"
    except ValueError:  # of something else: nsys, too, writes files with such names
        return None
    return None


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _NONBLOCK)  # a pipe must not wait for somebody to write


def _check_regular(found: os.stat_result, path: Path, most: int | None) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if most is not None and found.st_size > most:
        raise _too_large(path, most)


def _too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most >> 20:,} MiB, which no such file is", str(path))


_SPECIAL = re.compile(r'[,"\r\n]').search
_FORMULA = r"[=+\-@\t\r\n＝＋－＠]"  # what a spreadsheet may take for the beginning of one
_BEGINS_FORMULA, _MADE_SAFE = re.compile(_FORMULA).match, re.compile(f"'{_FORMULA}").match
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf|nan)").fullmatch


def csv_field(text: object) -> str:
    """A CSV field, in quotes where RFC 4180 asks for them.

    The csv module takes ten times as long for long kernel names, and before Python 3.13 does not quote a lone CR.
    """
    field = str(text)
    return '"' + field.replace('"', '""') + '"' if _SPECIAL(field) else field


def make_spreadsheet_safe(path: Path) -> None:
    """Rewrite a CSV file so that a spreadsheet takes no name in it for a formula: with a ``'`` in front of such texts.

    Quotes of CSV do not keep it from that. Numbers stay as they are.
    """
    csv.field_size_limit(2**31 - 1)  # names of kernels are as long as they like
    with (
        whole_file(path) as part,
        path.open(newline="", encoding="utf-8") as rows,
        part.open("w", newline="", encoding="utf-8") as file,
    ):
        for row in csv.reader(rows):
            file.write(",".join(csv_field(_safe(cell)) for cell in row) + "\n")


def undo_spreadsheet_safe(text: str) -> str:
    """The text of a cell without the ``'`` that `make_spreadsheet_safe` puts in front."""
    return text[1:] if _MADE_SAFE(text) else text


def _safe(cell: str) -> str:
    return f"'{cell}" if _BEGINS_FORMULA(cell) and not _NUMBER(cell) else cell
