"""Files: safe reading, atomic writing, and CSV cells that are safe in a spreadsheet.

A name may refer to a pipe without a writer, or to an endless device. Therefore, these functions read only regular files
of plausible size, directly or through links.
"""

import csv
import errno
import gzip
import json
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

PART = ".nsysprof-"  # prefix of the folders in which results are made
MAX_BYTES = 16 << 20  # of records, lists and other small files
MAX_TABLE_BYTES = 1 << 30  # of tables: a row per kernel, per instance or per sample
_MAX_LEVELS = 100  # of nested brackets: code that walks them must not run out of stack
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_SPECIAL = re.compile(r'[,"\r\n]').search
_FORMULA = r"[=+\-@\t\r\n＝＋－＠]"  # how a spreadsheet may take a formula to begin
_BEGINS_FORMULA, _MADE_SAFE = re.compile(_FORMULA).match, re.compile(f"'{_FORMULA}").match
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf|nan)").fullmatch


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a path for writing a file. The file gets its name when it is complete; after a failure, nothing is left.

    The path is in a new private folder beside the file, so that nothing is written through a link of another user. An
    existing file or link with this name is replaced; with ``replace=False``, `FileExistsError` is raised. An `OSError`
    names the file.
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
        error.filename, error.filename2 = str(path), None  # the user has never seen the other
        raise


def give_final_name(part: Path, final: Path) -> None:
    """Rename a file to a free name on the same file system; the old name may remain.

    Raises `FileExistsError` if the name is taken (even by a dangling link), and `OSError` if renaming fails.
    """
    try:
        os.link(part, final)  # unlike a rename this never replaces a file
    except FileExistsError:
        raise
    except OSError:  # no hard links on this file system
        if os.path.lexists(final):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from None
        part.replace(final)


class TooDeepError(ValueError):
    """A document with deeper nesting, or more parts, than any real document."""

    def __init__(self, what: str = "brackets nested too deeply") -> None:
        super().__init__(what)


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes for reading. Raises an `OSError` for other kinds of files."""
    _check_regular(path.stat(), path, most)  # before opening: that alone may act on a device
    # a pipe must not wait for a writer; Path.open has no opener; the caller closes the file
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK))  # noqa: SIM115
    try:
        _check_regular(os.fstat(file.fileno()), path, most)  # it may have been replaced
    except OSError:
        file.close()
        raise
    return file


def read_small(path: Path, most: int = MAX_BYTES, *, pipes: bool = False) -> bytes:
    """Read a regular file of at most ``most`` bytes. Raises an `OSError` for other kinds of files.

    With ``pipes``, pipes (such as a shell's ``<(command)``) and devices are also read.
    """
    with path.open("rb") if pipes else open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it grows, or has no known size
        raise _too_large(path, most)
    return content


def read_table(path: Path) -> BytesIO:
    """Return the content of a CSV file, which may be compressed (``.gz``); raises `OSError` like `read_small`."""
    content = read_small(path, MAX_TABLE_BYTES)
    if path.suffix == ".gz":
        try:
            with gzip.open(BytesIO(content)) as file:
                content = file.read(MAX_TABLE_BYTES + 1)
        except (EOFError, zlib.error):
            raise OSError(errno.EINVAL, "damaged gzip data", str(path)) from None
        if len(content) > MAX_TABLE_BYTES:
            raise _too_large(path, MAX_TABLE_BYTES)
    return BytesIO(content)


def read_json(path: Path, most: int = MAX_BYTES, **how: Any) -> Any:
    """Read a JSON file in UTF-8; ``how`` are keywords of `json.loads`.

    Raises `OSError` like `read_small`, and `ValueError` (such as `TooDeepError`) if the file is not JSON.
    """
    return parse_json(read_small(path, most), most, **how)


def parse_json(content: bytes, most: int = MAX_BYTES, **how: Any) -> Any:
    """Parse the content of a JSON file of at most ``most`` bytes, like `read_json`."""
    if content.count(b"[") + content.count(b"{") > most >> 4:  # each takes 16 bytes as text, and 250 in memory
        raise TooDeepError("too many brackets for such a file")
    try:
        return with_few_levels(json.loads(content.decode("utf-8"), **how))
    except RecursionError:
        raise TooDeepError from None


def with_few_levels(value: Any) -> Any:
    """Return a decoded document if it is nested at most 100 levels deep; otherwise raise `TooDeepError`."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_MAX_LEVELS):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for each in parts for part in each if isinstance(part, (dict, list))]
        if not level:
            return value
    raise TooDeepError


def unusable_warning(path: Path) -> str | None:
    """Return a warning about an unreadable JSON file beside a report, None if it is readable or missing."""
    try:
        read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, TooDeepError) as error:
        return f"{path} is not used: {error.strerror if isinstance(error, OSError) else error}"
    except ValueError:  # not JSON: nsys, too, writes files with such names
        return None
    return None


def _check_regular(status: os.stat_result, path: Path, most: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if most is not None and status.st_size > most:
        raise _too_large(path, most)


def _too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {most >> 20:,} MiB, the limit for files of this kind", str(path))


def csv_field(text: object) -> str:
    """Format a CSV field, quoted as RFC 4180 requires.

    The csv module is ten times slower for long kernel names, and does not quote a single CR before Python 3.13.
    """
    field = str(text)
    plain = not ("," in field or '"' in field or "\n" in field or "\r" in field)
    return field if plain else '"' + field.replace('"', '""') + '"'


def make_spreadsheet_safe(path: Path) -> None:
    """Rewrite a CSV file with a ``'`` before each text that a spreadsheet would treat as a formula.

    CSV quotes do not prevent formulas. Numbers are not changed.
    """
    csv.field_size_limit(2**31 - 1)  # kernel names may be of any length
    with (
        whole_file(path) as part,
        path.open(newline="", encoding="utf-8") as rows,
        part.open("w", newline="", encoding="utf-8") as file,
    ):
        for row in csv.reader(rows):
            safe = (f"'{cell}" if _BEGINS_FORMULA(cell) and not _NUMBER(cell) else cell for cell in row)
            file.write(",".join(map(csv_field, safe)) + "\n")


def undo_spreadsheet_safe(text: str) -> str:
    """Remove the ``'`` that `make_spreadsheet_safe` adds before a cell."""
    return text[1:] if _MADE_SAFE(text) else text


def csv_fields(texts: list[str]) -> list[str]:
    """Format CSV fields like `csv_field`."""
    return [csv_field(text) for text in texts] if _SPECIAL("".join(texts)) else texts
