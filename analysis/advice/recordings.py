"""The recordings of a folder: unpacked, asked for their findings, and read without nsysprof."""

from __future__ import annotations

import json
import lzma
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from matching import Advice, advices

OPS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")


@cache
def asked(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, JSON document (empty if none) and all text of a command of nsysprof."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "nsysprof", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    try:
        document = json.loads(done.stdout) if "--json" in arguments else {}
    except ValueError:
        document = {}
    return done.returncode, document, done.stdout + done.stderr


class Folder:
    """The recordings, unpacked, and how their findings are read."""

    def __init__(self, folder: Path, work: Path, *, old: bool) -> None:
        self.folder, self.work, self.old = folder, work, old

    def file(self, path: Path) -> Path:
        """A file of the folder as it can be read: unpacked into the temporary directory."""
        packed = path if path.exists() else path.with_name(f"{path.name}.xz")
        if packed.suffix != ".xz":
            return path
        unpacked = self.work / packed.parent.name / packed.stem
        if not unpacked.exists():
            unpacked.parent.mkdir(exist_ok=True)
            with lzma.open(packed) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target)
        return unpacked

    def recordings(self, part: str) -> list[Path]:
        """The recordings of planted, remedies or reports, without .xz."""
        names = {path.name.removesuffix(".xz") for path in (self.folder / part).glob("*")}
        wanted = sorted(
            name
            for name in names
            if name.endswith((".sqlite", ".json")) and not name.endswith((".nsys.json", ".time.json"))
        )
        return [self.folder / part / name for name in wanted]

    def ask(self, command: str, path: Path, *more: str) -> list[Advice] | None:
        """What a command finds, best first; None where it has no such list."""
        return advices(asked(command, str(self.file(path)), *more, "--json")[1], old=self.old)


def gpu_ops(path: Path) -> list[tuple[int, int]]:
    """Start and end of every GPU op of a recording, in ns, by start; not read with nsysprof."""
    if path.suffix == ".json":
        events = json.loads(path.read_bytes())
        events = events.get("traceEvents", events) if isinstance(events, dict) else events
        ops = [
            each
            for each in events
            if each.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
        ]
        return sorted(
            (round(each["ts"] * 1e3), round((each["ts"] + each["dur"]) * 1e3)) for each in ops if "dur" in each
        )
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        tables = {name for (name,) in base.execute("select name from sqlite_master")}
        kinds = [kind for kind in OPS if f"CUPTI_ACTIVITY_KIND_{kind}" in tables]
        parts = [f"select start, end from CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds]
        return base.execute(f"{' union all '.join(parts)} order by 1").fetchall() if parts else []


def idle(ops: list[tuple[int, int]]) -> float:
    """The part of first op to last in which no GPU works."""
    if not ops:
        return 0.0
    busy, last = 0, ops[0][0]
    for start, end in ops:
        busy += max(end - max(start, last), 0)
        last = max(last, end)
    return 1 - busy / max(last - ops[0][0], 1)
