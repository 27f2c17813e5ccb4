"""The record of a capture: the ``.json`` beside a report, which says how the report came to be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsysprof.core import side_file
from nsysprof.core.final_name import whole_file

__all__ = ["file_facts", "read_json", "write_record"]

_WIDTH = 110


def file_facts(path: Path) -> dict[str, Any]:
    """``size_bytes`` and ``sha256`` of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
    return {"size_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON that people can read: what is short, and any list of numbers, stands on one line.

    Keys stay in their order and numbers as they are. Bytes of names that are not UTF-8 become the JSON escapes of
    Python's surrogates, so that ``json.loads`` gives back what was there. The file is whole, or it is not there.
    """
    with whole_file(path) as part:
        part.write_text(f"{_json(record, 0)}\n", encoding="utf-8", errors="backslashreplace")


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; empty where there is none, or it holds something else. NaN and infinity are None."""
    try:
        read = side_file.read_json(path, parse_constant=lambda name: None)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _json(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    numbers = isinstance(value, list) and not any(isinstance(one, (dict, list, str)) for one in value)
    if depth + len(flat) <= _WIDTH or numbers or not isinstance(value, (dict, list)):
        return flat
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_json(one, depth + 1)}" for key, one in value.items()
        ]
    else:
        parts = [_json(one, depth + 1) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    indent = " " * (depth + 1)
    return f"{opening}\n{indent}" + f",\n{indent}".join(parts) + f"\n{' ' * depth}{closing}"


def _digest(file: Any) -> Any:
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest
