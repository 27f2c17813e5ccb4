"""Cache the runs of reports in SQLite: a row per report with its ledger, replaced if the report changes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from nsysprof import __version__
from nsysprof.core.text import one_line
from nsysprof.fleet.inputs import ReportFile
from nsysprof.history.run import Run

_TABLE, _FORMAT = "runs", 1  # the format goes up when what is measured changes between two versions
_ENDS = 1 << 16  # bytes of the head and of the tail of a file, whose content counts
_PATIENCE_MS = 30_000  # for another writer
_READ = "SELECT path, stamp, digest, run, failed FROM runs WHERE asked = ? AND version = ?"


class Store:
    """Storage of runs in the SQLite file ``path`` (None: only in memory). Each value of ``asked`` has its own runs.

    Each run is a separate transaction, so that several processes can use one file. If the file cannot be used,
    ``notes`` has a message, and no error is raised.
    """

    def __init__(self, path: str | os.PathLike[str] | None, asked: Sequence[str] = ()) -> None:
        self._path, self._asked, self._version = path, "\0".join(asked), f"{__version__}/{_FORMAT}"
        self._table: Any = None
        self._digests: dict[str, str] = {}
        self.notes: list[str] = []

    def __enter__(self) -> Store:
        if self._path is not None:
            try:
                self._open(Path(self._path))
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._table is not None:
            self._table.db.conn.close()

    def _open(self, path: Path) -> None:
        import sqlite_utils  # noqa: PLC0415  takes as long as the rest

        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite_utils.Database(sqlite3.connect(path, timeout=_PATIENCE_MS / 1000))
        database.conn.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        database.enable_wal()
        columns = {"path": str, "asked": str, "stamp": str, "digest": str, "version": str, "run": bytes, "failed": str}
        self._table = database.table(_TABLE)
        self._table.create(columns, pk=("path", "asked"), if_not_exists=True)

    def _give_up(self, error: Exception) -> None:
        self.notes.append(f"{self._path} cannot be used, so runs are not cached: {one_line(str(error), 80)}")
        if self._table is not None:
            self._table.db.conn.close()
        self._table = None

    def known(self, files: Sequence[ReportFile]) -> Iterator[Run | str | None]:
        """For each file, yield the cached run, or the reason why it has no run, or None if the file must be read."""
        rows: dict[str, tuple[str, str, bytes | None, str | None]] = {}
        if self._table is not None:
            try:
                for path, *row in self._table.db.conn.execute(_READ, (self._asked, self._version)):
                    rows[path] = tuple(row)
            except sqlite3.Error as error:
                self._give_up(error)
        decoder = msgspec.json.Decoder(Run)
        for file in files:
            path = os.path.realpath(file.name)
            self._digests[file.name] = digest = _digest(path) if self._path is not None else ""
            stamp, kept, run, failed = rows.get(path, ("", "", None, None))
            if (stamp, kept) != (file.stamp, digest):
                yield None
                continue
            try:
                yield failed if run is None else msgspec.structs.replace(decoder.decode(run), file=file.name)
            except msgspec.DecodeError:
                yield None

    def keep(self, file: ReportFile, run: Run | str) -> None:
        """Keep the result of a file."""
        if self._table is None:
            return
        found = isinstance(run, Run)
        row = {
            "path": os.path.realpath(file.name),
            "asked": self._asked,
            "stamp": file.stamp,
            "digest": self._digests[file.name],
            "version": self._version,
            "run": msgspec.json.encode(run) if found else None,
            "failed": None if found else run,
        }
        try:
            with self._table.db.conn:
                self._table.upsert(row, pk=("path", "asked"))
        except sqlite3.Error as error:
            self._give_up(error)


def _digest(path: str) -> str:
    """A digest of the head and the tail of a file; of a folder of its files' names and sizes."""
    out = blake2b(digest_size=16)
    try:
        if os.path.isdir(path):  # noqa: PTH112
            for each in sorted(os.scandir(path), key=lambda each: each.name):
                out.update(f"{each.name} {each.stat().st_size}\0".encode(errors="surrogateescape"))
            return out.hexdigest()
        with open(path, "rb") as file:  # noqa: PTH123
            out.update(file.read(_ENDS))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _ENDS, 0))
            out.update(file.read(_ENDS))
    except OSError:
        return ""
    return out.hexdigest()
