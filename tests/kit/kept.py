"""Numbers of answers about made-up reports, kept beside the tests of a room as a digest for each name.

A test that fails names what changed. Who changes numbers on purpose keeps the new ones:

    NSYSPROF_KEEP=1 python -m pytest tests/ROOM/test_kept.py
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.core.columns import ColumnTable

_DIGITS = 6
_FIGURE = re.compile(r"[-+−]?\d[\d,.]*")
_ELSEWHERE = (
    "diagnosis",
    "not_replayed",
    "report",
    "version",
    "report_sha256",
)  # a room of its own, and what other tests keep
_INPUT = ("Attribution", "Facts", "Report", "Network", "Reader", "Diagnosis")  # what is read, and a room of its own


def numbers(value: Any, name: str = "", into: dict[str, list[Any]] | None = None) -> dict[str, list[Any]]:
    """All numbers of an answer by the names that lead to them, those in sentences too, whose words may change."""
    out = {} if into is None else into
    if isinstance(value, ColumnTable):
        value = list(value.records())
    if isinstance(value, pd.DataFrame):
        value = {str(column): np.asarray(value[column]) for column in value.columns}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | np.generic):
        number = value.item() if isinstance(value, np.generic) else value
        out.setdefault(name, []).append(f"{number:.{_DIGITS}g}" if isinstance(number, float) else number)
    elif isinstance(value, str):
        out.setdefault(name, []).append(_FIGURE.findall(value) if " " in value else value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if key not in _ELSEWHERE:
                numbers(each, f"{name}.{key}" if isinstance(key, str) else name, out)
    elif isinstance(value, list | tuple | range):
        for each in value:
            numbers(each, name, out)
    elif is_dataclass(value) and not type(value).__name__.endswith(_INPUT):
        for each in fields(value):
            numbers(getattr(value, each.name), f"{name}.{each.name}", out)
    return out


def hold(test: str, case: str, answer: Any) -> None:
    """Assert that the numbers of an answer are those kept in ``kept.json`` beside the file of a test."""
    path = Path(test).with_name("kept.json")
    kept: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    parts: dict[str, list[Any]] = {}
    for name, values in sorted(numbers(answer).items()):
        parts.setdefault(name[1:].partition(".")[0], []).append((name, values))
    found = {name: hashlib.sha1(repr(values).encode()).hexdigest()[:6] for name, values in parts.items()}
    if os.environ.get("NSYSPROF_KEEP"):
        rows = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted({**kept, case: found}.items())]
        path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
        return
    before = kept.get(case, {})
    changed = [name for name in {**before, **found} if before.get(name) != found.get(name)]
    assert not changed, f"{case}: other numbers in {', '.join(sorted(changed)[:9])}; see tests/kit/kept.py"
    assert found
