"""How a range's name is written within a range path."""

from __future__ import annotations

import re

__all__ = ["path_part"]

_BEFORE_SLASH = re.compile(r"(\\+)(?=/|\Z)")


def path_part(name: str) -> str:
    r"""A name within a path: ``/`` becomes ``\/``, and so that this is clear, ``\`` before it or at the end ``\\``."""
    if "/" not in name and not name.endswith("\\"):
        return name
    return _BEFORE_SLASH.sub(r"\1\1", name).replace("/", "\\/")
