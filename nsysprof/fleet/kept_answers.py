"""Answers of reports on the disk, so that an interrupted fleet goes on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof import __version__
from nsysprof.core.files import PART, open_regular, read_small, whole_file
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportAnswer, ReportTask
from nsysprof.fleet.rank_part import RankPart

_FORMAT = 3


def answer_file(folder: Path, task: ReportTask) -> Path:
    """Where the answer to a task is kept: the name says file, size, time, options and version."""
    name = task.file.name if task.file.is_url else os.path.realpath(task.file.name)
    asked = {
        **asdict(task),
        "file": name,
        "memory_limit": None,
        "stamp": task.file.stamp,
        "version": __version__,
        "format": _FORMAT,
    }
    if task.rules:
        asked["rules"] = hashlib.sha256(read_small(Path(task.rules))).hexdigest()
    return folder / f"{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]}.npz"


def keep_answer(answer: ReportAnswer, path: Path) -> None:
    """Write an answer, at once or not at all. Raises `NsysprofError` where that fails."""
    arrays: dict[str, Any] = {}
    head = {field.name: getattr(answer, field.name) for field in fields(answer) if field.name != "parts"}
    parts = []
    for number, part in enumerate(answer.parts):
        plain: dict[str, Any] = {}
        for field in fields(part):
            value = getattr(part, field.name)
            if isinstance(value, np.ndarray):
                arrays[f"{number}.{field.name}"] = value
            elif field.name == "columns":
                arrays |= {f"{number}.columns.{name}": values for name, values in value.items()}
                plain["columns"] = list(value)
            else:
                plain[field.name] = value
        parts.append(plain)
    text = json.dumps({**head, "parts": parts})
    try:
        with whole_file(path) as unfinished, unfinished.open("wb") as file:
            np.savez(file, head=np.frombuffer(text.encode(), np.uint8), **arrays)
    except OSError as error:
        raise NsysprofError(
            f"cannot keep the answers of reports in {path.parent}: {error.strerror or error}",
            "choose another folder: -o DIR",
        ) from None


def forget_answers(folder: Path) -> None:
    """Remove what is kept in a folder, and the folder too where nothing else is in it."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*.npz"):
            path.unlink()
        for unfinished in folder.glob(f"{PART}*"):
            shutil.rmtree(unfinished)
        folder.rmdir()


def answers_in(folder: Path, tasks: Sequence[ReportTask]) -> dict[int, ReportAnswer]:
    """The answers to tasks that a folder holds, by the number of the task."""
    found = {number: kept_answer(answer_file(folder, task)) for number, task in enumerate(tasks)}
    return {number: answer for number, answer in found.items() if answer is not None}


def kept_answer(path: Path) -> ReportAnswer | None:
    """The answer in a file; None where there is none, or it is damaged."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as kept:
            head = json.loads(kept["head"].tobytes())
            parts = tuple(_part(number, plain, kept) for number, plain in enumerate(head.pop("parts")))
        return ReportAnswer(**{**head, "warnings": tuple(head["warnings"]), "parts": parts})
    except (
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        EOFError,
        RecursionError,
        zipfile.BadZipFile,
    ):
        return None


def _part(number: int, plain: dict[str, Any], kept: Any) -> RankPart:
    known: dict[str, Any] = {}
    for field in fields(RankPart):
        if field.name == "columns":
            known["columns"] = {name: kept[f"{number}.columns.{name}"] for name in plain["columns"]}
        elif field.name in plain:
            value = plain[field.name]
            known[field.name] = tuple(value) if isinstance(value, list) else value
        else:
            known[field.name] = kept[f"{number}.{field.name}"]
    return RankPart(**known)
