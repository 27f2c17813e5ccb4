"""How a finished file gets its name: when it is whole, and through no name that anybody could foresee."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PART", "give_final_name", "whole_file"]

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
