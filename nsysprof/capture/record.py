"""The record of a capture: the ``.json`` beside a report, which says how the report came to be."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["file_facts", "write_record"]


def file_facts(path: Path) -> dict[str, Any]:
    """``size_bytes`` and ``sha256`` of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
    return {"size_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as JSON that people can read; keys stay in their order, numbers as they are, no NaN."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False, default=str)
    path.write_text(f"{text}\n", encoding="utf-8")


def _digest(file: Any) -> Any:
    digest = hashlib.sha256()  # Python 3.10 has no file_digest
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest
