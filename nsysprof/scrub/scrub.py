"""Makes a copy of an exported report without what it tells of the machine, its user and its processes.

What stands where, as seen in exports of nsys 2022 to 2025:

- ``META_DATA_CAPTURE``: ``PROCESS_n:ENVIRONMENT_VARIABLE`` (``NAME="value"``, quotes in it not escaped),
  ``:ARGUMENT_n``, ``:WORKING_DIR``, ``:USER_NAME``, ``DEVICE_DISPLAY_NAME`` (the host). ``META_DATA_EXPORT``,
  before 2023.3 ``EXPORT_META_DATA``: ``EXPORT_HOST``, ``EXPORT_USER``, ``EXPORT_PARAM_…`` paths.
- ``TARGET_INFO_SYSTEM_ENV``: ``DeviceEnvironment`` (``A=b;C=d``, semicolons in it not escaped), ``Hostname``,
  ``SystemUID``, ``TargetInstallDir``, and JSON.
- ``StringIds``: the environment of every process that nsys could look into, NUL-separated, also of those that it
  did not profile, with no column that refers to it; what the program printed (``ProcessStreams``) and files of
  /proc (``ANALYSIS_FILE``); messages with paths; full paths of modules and Python sources.
- ``PROCESSES``, ``ThreadNames``: all of the machine.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.final_name import give_final_name
from nsysprof.errors import NsysprofError
from nsysprof.scrub.private_text import (
    COMMAND,
    ENVIRONMENT,
    FOLDER,
    HOME,
    HOST,
    PATH,
    PROCESS,
    REMOVED,
    USER,
    assignments,
    kind_of_property,
    private_values,
    without_paths,
    without_private_keys,
)
from nsysprof.scrub.report_copy import Key, ReportCopy, copied_report
from nsysprof.scrub.report_links import THREAD, profiled_processes, string_references
from nsysprof.scrub.secrets import Secret, Secrets, environment_secrets, machine_secrets, redacted, secrets_of

__all__ = ["Scrubbed", "machine_secrets", "redacted", "scrub_report"]

_PROPERTIES = ("META_DATA_CAPTURE", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SYSTEM_ENV")
_LAUNCHED = re.compile(r"PROCESS_\d+:COMMAND\Z")
_CALLED = {
    ENVIRONMENT: "environment variables",
    HOST: "host names and machine ids",
    USER: "user names",
    FOLDER: "working folders",
    HOME: "home folders",
    COMMAND: "command-line arguments",
    PATH: "paths of the export",
}
# Names of work and facts of hardware: out of them is cut only what is surely a secret.
_NAMES = re.compile(r"ENUM_|NVTX_EVENTS\Z|TARGET_INFO_(GPU|CUDA|NVTX)")
_HARDWARE = re.compile(r"(?i)(version|description|architecture|gpuinfo|cpuinfo|product_\w+|event_type)\Z")


@dataclass(frozen=True)
class Scrubbed:
    """What is not in the copy: how many of each thing, in plain words, and which kinds of secrets were looked for."""

    path: Path
    removed: Mapping[str, int]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class _Work:
    """A copy while it is scrubbed: the secrets and variables found so far, and what was removed."""

    copy: ReportCopy
    secrets: Secrets = field(default_factory=Secrets)
    variables: set[tuple[bytes, bytes]] = field(default_factory=set)
    removed: Counter[str] = field(default_factory=Counter)

    def learn(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Take environment variables for secrets."""
        for name, value in pairs:
            self.variables.add((name, value))
            self.secrets.add(environment_secrets(name, value))


def scrub_report(source: Path, out: Path) -> Scrubbed:
    """Write a scrubbed copy of an SQLite report to ``out``, which must not exist; the report itself is only read.

    Ranges, kernels, host calls and their times stay. The copy appears under its name when it is whole; until
    then a private folder beside it holds one that is not scrubbed yet. Raises `NsysprofError` where the report
    cannot be read or the copy not be written.
    """
    if os.path.lexists(out):
        raise NsysprofError(
            f"{out}: exists already, not overwritten", f"rm {quote(str(out))}, or name another file"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".nsysprof-", dir=out.parent) as folder:
            part = Path(folder, "scrubbed.sqlite")
            with copied_report(source, Path(folder)) as copy:
                work = _Work(copy)
                _scrub(work, source)
                copy.finish(part)
            give_final_name(part, out)
    except FileExistsError:
        raise NsysprofError(f"{out}: exists already, not overwritten", "name another file") from None
    except (sqlite3.Error, UnicodeError) as error:  # the latter: names of tables that are no text
        raise _explained(source, out, error) from None
    except OSError as error:
        reading = error.filename is not None and str(error.filename).startswith(os.path.realpath(source))
        what = f"{source}: cannot be read" if reading else f"{out}: cannot be written"
        hint = f"ls -l {quote(str(source))}" if reading else f"df -h {quote(str(out.parent))}"
        raise NsysprofError(f"{what}: {error.strerror or error}", hint) from None
    cut = {f"{kind} in other text": count for kind, count in sorted(work.secrets.cuts.items())}
    removed = {name: count for name, count in {**work.removed, **cut}.items() if count}
    return Scrubbed(out, removed, tuple(sorted({secret.kind for secret in work.secrets.found.values()})))


def _explained(source: Path, out: Path, error: Exception) -> NsysprofError:
    told = " ".join(str(error).split())[:160]
    if "full" in told or "I/O" in told:
        return NsysprofError(f"{out}: cannot be written: {told}", f"df -h {quote(str(out.parent))}")
    hint = f"sqlite3 {quote(str(source))} 'PRAGMA integrity_check'"
    return NsysprofError(f"{source}: cannot be scrubbed: {told}", hint)


def _scrub(work: _Work, source: Path) -> None:
    """Learn the secrets from where they are known to stand, delete that, then look for them in all that is left."""
    copy = work.copy
    if not copy.has("StringIds", "id", "value"):
        raise NsysprofError(
            f"{source}: not a report: it has no table StringIds", "nsysprof reads exports of nsys"
        )
    properties = [table for table in _PROPERTIES if copy.has(table, "name", "value")]
    work.removed.update(dict.fromkeys(_CALLED.values(), 0))  # the order in which they are told
    work.removed["triggers, search tables and statistics that somebody added"] = copy.dropped
    for table in properties:
        _learn_properties(work, table)
    _remove_processes(work)
    for table in ("ProcessStreams", "ANALYSIS_FILE"):
        if copy.has(table):
            work.removed["captured files and streams"] += copy.delete(table)
    _sweep_strings(work)
    for table in properties:
        _remove_properties(work, table)
    done = {(table, "value") for table in (*properties, "StringIds")}
    for table, about in copy.tables.items():
        for column in about.texts:
            if (table, column) not in done:
                _sweep_column(work, table, column)
    declarations = copy.declarations()
    work.removed["declarations with secrets"] = copy.declare(work.secrets.knife(declarations, sure=True))
    variables = _CALLED[ENVIRONMENT]
    work.removed[variables] = max(work.removed[variables], len(work.variables))


# ---- what is known to hold secrets


def _learn_properties(work: _Work, table: str) -> None:
    for value, name in work.copy.texts(table, "value", "name"):
        _learn(work, kind_of_property(_text(name)), value)
        for kind, inner in private_values(value):
            if kind == ENVIRONMENT and isinstance(inner, dict):
                work.learn((_raw(one), _raw(another)) for one, another in inner.items())
            else:
                for text in inner if isinstance(inner, list) else [inner]:
                    _learn(work, kind, _raw(text))
        if _LAUNCHED.match(_text(name)):
            work.secrets.add(secrets_of(PATH, value))


def _learn(work: _Work, kind: str | None, value: bytes) -> None:
    if kind == ENVIRONMENT:
        single = re.fullmatch(rb'([^=]+)="(.*)"', value, re.DOTALL)  # as META_DATA_CAPTURE has them
        work.learn([(single[1], single[2])] if single else assignments(value))
    elif kind is not None:
        work.secrets.add(secrets_of(kind, value))


def _remove_properties(work: _Work, table: str) -> None:
    """Delete the rows that are private by their name, and clean the values of the others."""
    rows = work.copy.texts(table, "value", "name")
    kinds = {name: kind_of_property(_text(name)) for _, name in rows}
    for kind, called in _CALLED.items():
        names = {name for name, its in kinds.items() if its == kind}
        work.removed[called] += sum(1 for value, name in rows if value and name in names)
        work.copy.delete_named(table, names)
    new: dict[Key, bytes] = {}
    left = [(value, name) for value, name in rows if kinds[name] is None]
    for facts in (True, False):
        some = [row for row in left if bool(_HARDWARE.search(_text(row[1]))) == facts]
        cleaned = _cleaned(work, {value for value, _ in some}, names=facts)
        new |= {row: cleaned[row[0]] for row in some if row[0] in cleaned}
    new |= {row: _program(row[0]) for row in left if _LAUNCHED.match(_text(row[1]))}
    work.copy.rewrite(table, "value", new, "name")


def _remove_processes(work: _Work) -> None:
    """Delete processes and threads that recorded nothing; of the others the name of the program stays."""
    copy = work.copy
    profiled = profiled_processes(copy)
    known = ", ".join(map(str, profiled)) or "NULL"
    if copy.has("PROCESSES", "globalPid", "name"):
        named = copy.texts("PROCESSES", "name", "globalPid")
        others = {name for name, pid in named if pid not in profiled}
        work.secrets.add(Secret(name, PROCESS, sure=False) for name in others if len(name) > 1)
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
    """The bare name of a program: no folder, no arguments."""
    path = re.split(rb"\s+-|\s+(?=/|[A-Za-z]:[\\/])", name.strip(), maxsplit=1)[0]
    return re.split(rb"[\\/]", path.rstrip(b"\\/"))[-1]


# ---- what is left


def _sweep_strings(work: _Work) -> None:
    """Clean StringIds: what nothing refers to goes, nobody can miss it; names of work lose sure secrets alone."""
    names, others = string_references(work.copy)
    rows = work.copy.texts("StringIds", "value", "id")
    unused = {row for row in rows if row[1] not in names and row[1] not in others}
    blocks = {row for row in rows if row in unused or b"\0" in row[0]}
    for value, _ in blocks:
        work.learn(assignments(value))
    new: dict[Key, bytes] = {row: REMOVED for row in blocks if row in unused or assignments(row[0])}
    work.removed["strings that nothing refers to"] += sum(value not in (b"", REMOVED) for value, _ in new)
    for some, work_names in ((names, True), (others - names, False)):
        mine = [row for row in rows if row[1] in some and row not in new]
        cleaned = _cleaned(work, {value for value, _ in mine}, names=work_names)
        new |= {row: cleaned[row[0]] for row in mine if row[0] in cleaned}
    work.copy.rewrite("StringIds", "value", new, "id")


def _sweep_column(work: _Work, table: str, column: str) -> None:
    names = _NAMES.match(table) is not None and column != "jsonText"
    texts = {value for (value,) in work.copy.texts(table, column)}
    cleaned = _cleaned(work, texts, names=names)
    work.copy.rewrite(table, column, {(old,): new for old, new in cleaned.items()})
    blanked = {row: work.secrets.blank(row[0]) for row in work.copy.texts(table, column, kind="blob")}
    work.copy.rewrite(table, column, {row: new for row, new in blanked.items() if row != (new,)}, kind="blob")


def _cleaned(work: _Work, texts: set[bytes], *, names: bool) -> dict[bytes, bytes]:
    """Those of the texts that hold something private, each with what stays of it."""
    knife = work.secrets.knife(texts, sure=names)
    new: dict[bytes, bytes] = {}
    for text in sorted(texts):  # labels are numbered as they come
        if names:
            clean = knife(text)
        elif b"\0" in text and assignments(text):
            work.learn(assignments(text))
            clean = REMOVED
        else:
            clean, paths = without_paths(without_private_keys(text))
            work.removed["paths cut down to the file name"] += paths
            clean = knife(clean)
        if clean != text:
            new[text] = clean
    return new


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _raw(value: Any) -> bytes:
    try:
        return str(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return str(value).encode("utf-8", "replace")
