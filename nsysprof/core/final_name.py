"""How a finished file gets its final name: never that of a file which is there already."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["give_final_name"]


def give_final_name(part: Path, final: Path) -> None:
    """Give a file a name on its file system; it may keep its old one too.

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
