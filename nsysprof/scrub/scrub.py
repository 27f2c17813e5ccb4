"""Make a copy of an exported report without private data about the machine, its user and its processes.

Private data in exports of nsys 2022 to 2025 is in these places:

- ``META_DATA_CAPTURE``: ``PROCESS_n:ENVIRONMENT_VARIABLE`` (``NAME="value"``, inner quotes not escaped),
  ``:ARGUMENT_n``, ``:WORKING_DIR``, ``:USER_NAME``, ``DEVICE_DISPLAY_NAME`` (the host). ``META_DATA_EXPORT``,
  before 2023.3 ``EXPORT_META_DATA``: ``EXPORT_HOST``, ``EXPORT_USER``, ``EXPORT_PARAM_…`` paths.
- ``TARGET_INFO_SYSTEM_ENV``: ``DeviceEnvironment`` (``A=b;C=d``, semicolons in it not escaped), ``Hostname``,
  ``SystemUID``, ``TargetInstallDir``, and JSON.
- ``StringIds``: the environment of every process that nsys could inspect, even of unprofiled processes (NUL-separated).
  Also output of the program (``ProcessStreams``), files of /proc (``ANALYSIS_FILE``), messages with paths, full paths
  of modules and Python sources.
- ``PROCESSES``, ``ThreadNames``: all processes and threads of the machine.

An allow-list (`nsysprof.scrub.allow_list`) names everything that stays; all other tables, columns and properties are
removed.
"""

import os
import re
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.files import give_final_name
from nsysprof.errors import NsysprofError
from nsysprof.scrub.allow_list import EMPTIED, LOCAL, known_column, known_property, known_table
from nsysprof.scrub.credentials import without_credentials
from nsysprof.scrub.private_text import Kind, assignments, installation, is_absolute, kind_of_property, private_values
from nsysprof.scrub.report_copy import THREAD, Key, copied_report, profiled_processes, quoted
from nsysprof.scrub.secrets import Secret, secrets_of
from nsysprof.scrub.work import ScrubWork

_PROPERTIES = ("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV")
_LAUNCHED = re.compile(r"PROCESS_\d+:COMMAND\Z")
_CALLED = {
    Kind.ENVIRONMENT: "environment variables",
    Kind.HOST: "host names and machine ids",
    Kind.USER: "user names",
    Kind.FOLDER: "working folders",
    Kind.HOME: "home folders",
    Kind.COMMAND: "command-line arguments",
    Kind.PATH: "paths of the export",
    Kind.ID: "ids of GPUs and of the session",
}
_HARDWARE = re.compile(r"(?i)(version|description|architecture|gpuinfo|cpuinfo|product_\w+|event_type)\Z")
_INSTALLED = "TargetInstallDir"


@dataclass(frozen=True)
class Scrubbed:
    """A scrubbed copy: the number of removed items by kind, in plain words, and the kinds of secrets that were searched
    for.

    ``unknown`` has the names (in the format of ``keep``) of items that were removed because they are unknown to
    nsysprof.
    """

    path: Path
    removed: Mapping[str, int]
    kinds: tuple[str, ...]
    unknown: Mapping[str, Sequence[str]]


def scrub_report(source: Path, out: Path, *, keep: Sequence[str] = (), names: bool = False) -> Scrubbed:
    """Write a scrubbed copy of an SQLite report to ``out``, which must not exist; the report itself is only read.

    Ranges, kernels, host calls and their times stay. ``keep`` names tables, columns (``TABLE.COLUMN``) and properties
    to keep although their content is unknown to nsysprof (``*`` matches any text); known private data is removed from
    this content. Credentials are removed from all texts; with ``names``, paths and addresses are also removed from the
    names of ranges and kernels.

    The copy gets its final name when it is complete. Until the copy is complete, a private folder beside it contains
    unscrubbed data. Raises `NsysprofError` if the report cannot be read or the copy cannot be written, or if ``keep``
    matches nothing.
    """
    taken = NsysprofError(f"{out}: exists already, not overwritten", f"rm {quote(str(out))}, or name another file")
    if os.path.lexists(out):
        raise taken
    try:
        with tempfile.TemporaryDirectory(prefix=".nsysprof-", dir=out.parent) as folder:
            part = Path(folder, "scrubbed.sqlite")
            with copied_report(source, Path(folder)) as copy:
                work = ScrubWork(copy, keep, names)
                _scrub(work, source)
                copy.finish(part)
            _check_kept(work)
            give_final_name(part, out)
    except FileExistsError:
        raise taken from None
    except (sqlite3.Error, UnicodeError, MemoryError) as error:  # names of tables that are no text; doubled columns
        raise _explained(source, out, error) from None
    except OSError as error:
        real, failed = os.path.realpath(source), os.fsdecode(error.filename or "")
        # of the report or of its log, under the name that was given
        read = failed.replace(real, str(source), 1) if failed.startswith(real) else None
        what = f"{read}: cannot be read" if read else f"{out}: cannot be written"
        hint = f"ls -l {quote(read)}" if read else f"df -h {quote(str(out.parent))}"
        raise NsysprofError(f"{what}: {error.strerror or error}", hint) from None
    cut = {f"{kind} in other text": count for kind, count in sorted(work.secrets.cuts.items())}
    unknown = {kind: len(names) for kind, names in work.unknown.items()}
    removed = {name: count for name, count in {**work.removed, **unknown, **cut}.items() if count}
    kinds = tuple(sorted({secret.kind for secret in work.secrets.known.values()}))
    return Scrubbed(out, removed, kinds, work.unknown)


def _check_kept(work: ScrubWork) -> None:
    for name in work.keep:
        if name not in work.kept:
            raise NsysprofError(
                f"--keep {name} has no effect: scrub removes no table, column or property of this name",
                "nsysprof scrub without --keep lists every TABLE, TABLE.COLUMN or PROPERTY that it removes",
            )


def _explained(source: Path, out: Path, error: Exception) -> NsysprofError:
    message = " ".join(str(error).split())[:160] or "there is not enough memory"
    if "full" in message or "I/O" in message:
        return NsysprofError(f"{out}: cannot be written: {message}", f"df -h {quote(str(out.parent))}")
    hint = f"sqlite3 {quote(str(source))} 'PRAGMA integrity_check'"
    return NsysprofError(f"{source}: cannot be scrubbed: {message}", hint)


def _scrub(work: ScrubWork, source: Path) -> None:
    """Learn the secrets from where they are known to stand, delete that, then look for them in all that is left."""
    copy = work.copy
    if not copy.has("StringIds", "id", "value"):
        raise NsysprofError(f"{source} is not a report: it has no table StringIds", "nsysprof reads exports of nsys")
    properties = [table for table in _PROPERTIES if copy.has(table, "name", "value")]
    work.removed.update(dict.fromkeys(_CALLED.values(), 0))  # the order in which they are listed
    work.removed["added triggers, search tables and statistics"] = copy.dropped
    for table in properties:
        _learn_properties(work, table)
    _empty_columns(work)
    for table in ("ProcessStreams", "ANALYSIS_FILE"):
        if copy.has(table):
            work.removed["captured files and streams"] += copy.delete(table)
            copy.drop(table)
    for table in [table for table in copy.tables if not work.keeps(table)]:
        _drop_unknown(work, table)
    _remove_processes(work)
    work.clean_strings()
    for table in properties:
        _remove_properties(work, table)
    done = {(table, "value") for table in (*properties, "StringIds")}
    for table, about in copy.tables.items():
        for column in about.texts:
            if (table, column) not in done:
                work.clean_column(table, column)
    redactor = work.secrets.redactor(copy.declarations(), sure=True)
    work.removed["declarations with secrets"] = copy.declare(lambda sql: without_credentials(redactor(sql))[0])
    variables = _CALLED[Kind.ENVIRONMENT]
    work.removed[variables] = max(work.removed[variables], len(work.variables))


def _drop_unknown(work: ScrubWork, table: str) -> None:
    """Drop a table, or columns of it, unknown to nsysprof, and texts in columns of numbers."""
    copy = work.copy
    if not known_table(table):
        if copy.rows(f"SELECT 1 FROM {quoted(table)} LIMIT 1"):
            work.drops("tables", table)
        copy.drop(table)
        return
    columns = copy.tables[table].columns
    known = {column: known_column(table, column) for column in columns}
    left = [column for column in columns if known[column] or work.keeps(f"{table}.{column}")]
    for column in (column for column in columns if column not in left):
        if copy.rows(f"SELECT 1 FROM {quoted(table)} WHERE {quoted(column)} NOT IN ('') LIMIT 1"):
            work.drops("columns", f"{table}.{column}")
    if not left:
        copy.drop(table)
        return
    if len(left) < len(columns):
        copy.narrow(table, left)
    for column in copy.tables[table].texts:
        if known[column] == "number":
            no_number = f"typeof({quoted(column)}) IN ('text', 'blob')"
            work.removed["texts in columns of numbers"] += copy.empty(table, column, no_number, otherwise="0")


def _empty_columns(work: ScrubWork) -> None:
    """Empty the columns that say which one of all GPUs or machines it is; elsewhere that is a secret."""
    for table, columns in EMPTIED.items():
        for column in columns:
            if not work.copy.has(table, column) or work.keeps(f"{table}.{column}"):
                continue
            kind = Kind.HOST if table == "TARGET_INFO_SYSTEM_ENV" else Kind.ID
            for (value,) in work.copy.texts(table, column):
                if value != LOCAL:
                    work.secrets.add(secrets_of(kind, value))
            foreign = f"{quoted(column)} NOT IN ('{LOCAL.decode()}', '', 0)"
            work.removed[_CALLED[kind]] += len(
                work.copy.rows(f"SELECT DISTINCT {quoted(column)} FROM {quoted(table)} WHERE {foreign}")
            )
            work.copy.empty(table, column, foreign, otherwise="''")


def _kind(name: bytes, value: bytes) -> str | None:
    """Return the kind of a private property, or None for one that is not private, or not known."""
    text = _text(name)
    if text == "DEVICE_ID" and value != LOCAL:
        return Kind.HOST
    if text == _INSTALLED and installation(value) is None:
        return Kind.PATH
    return None if known_property(text) else kind_of_property(text)


def _learn_properties(work: ScrubWork, table: str) -> None:
    for value, name in work.copy.texts(table, "value", "name"):
        _learn(work, _kind(name, value), value)
        for kind, inner in private_values(value):
            if kind == Kind.ENVIRONMENT and isinstance(inner, dict):
                work.learn((_raw(one), _raw(another)) for one, another in inner.items())
            else:
                for text in inner if isinstance(inner, list) else [inner]:
                    _learn(work, kind, _raw(text))
        if (_LAUNCHED.match(_text(name)) or _text(name) == _INSTALLED) and is_absolute(value):
            work.secrets.add(secrets_of(Kind.PATH, value))


def _learn(work: ScrubWork, kind: str | None, value: bytes) -> None:
    if kind == Kind.ENVIRONMENT:
        single = re.fullmatch(rb'([^=]+)="(.*)"', value, re.DOTALL)  # as META_DATA_CAPTURE has them
        work.learn([(single[1], single[2])] if single else assignments(value))
    elif kind is not None:
        work.secrets.add(secrets_of(kind, value))


def _remove_properties(work: ScrubWork, table: str) -> None:
    """Delete the rows that are private by their name or not known, and clean the values of the others."""
    rows = work.copy.texts(table, "value", "name")
    private = {name: kind for value, name in rows if (kind := _kind(name, value))}
    stay = set()
    for (name,) in work.copy.texts(table, "name"):
        text = _text(name)
        if name in private:
            work.removed[_CALLED[private[name]]] += sum(1 for value, its in rows if its == name and value)
        elif known_property(text) or work.keeps(text, text.partition(":")[2]):
            stay.add(name)
        elif any(value for value, its in rows if its == name):
            work.drops("properties", text)
    work.copy.keep_named(table, stay)
    left = [row for row in rows if row[1] in stay]
    new: dict[Key, bytes] = {}
    for facts in (True, False):
        some = [row for row in left if bool(_HARDWARE.search(_text(row[1]))) == facts]
        cleaned = work.cleaned({value for value, _ in some}, "fact" if facts else "text")
        new |= {row: cleaned[row[0]] for row in some if row[0] in cleaned}
    new |= {row: without_credentials(_program(row[0]))[0] for row in left if _LAUNCHED.match(_text(row[1]))}
    new |= {row: installation(row[0]) or b"" for row in left if _text(row[1]) == _INSTALLED}
    work.copy.rewrite(table, "value", new, "name")


def _remove_processes(work: ScrubWork) -> None:
    """Delete processes and threads that recorded nothing; of the others the name of the program stays."""
    copy = work.copy
    profiled = profiled_processes(copy)
    known = ", ".join(map(str, profiled)) or "NULL"
    if copy.has("PROCESSES", "globalPid", "name"):
        named = copy.texts("PROCESSES", "name", "globalPid")
        others = {name for name, pid in named if pid not in profiled}
        work.secrets.add(Secret(name, Kind.PROCESS, sure=False) for name in others if len(name) > 1)
        copy.rewrite("PROCESSES", "name", {(name, pid): _program(name) for name, pid in named}, "globalPid")
    pids = ", ".join(str(pid >> 24 & THREAD) for pid in profiled) or "NULL"
    for table, column, kept in (
        ("PROCESSES", "globalPid", known),
        ("TARGET_INFO_PROCESS", "processId", pids),
        ("TARGET_INFO_PROCESSES", "processId", pids),
    ):
        if copy.has(table, column):
            count = copy.delete(table, f"coalesce({column} NOT IN ({kept}), 1)")
            work.removed["processes that recorded nothing"] += count
    if copy.has("ThreadNames", "globalTid"):
        count = copy.delete("ThreadNames", f"coalesce(globalTid & ~{THREAD} NOT IN ({known}), 1)")
        work.removed["threads of such processes"] += count


def _program(name: bytes) -> bytes:
    """Return the bare name of a program: no folder, no arguments."""
    path = re.split(rb"\s+-|\s+(?=/|[A-Za-z]:[\\/])", name.strip(), maxsplit=1)[0]
    return re.split(rb"[\\/]", path.rstrip(b"\\/"))[-1]


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _raw(value: Any) -> bytes:
    try:
        return str(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return str(value).encode("utf-8", "replace")
