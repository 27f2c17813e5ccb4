"""What a report says of itself: versions, hardware, the command, and the problems that nsys recorded."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from nsysprof.trace.nsys.gpus import read_gpus
from nsysprof.trace.nsys.properties import known, named_rows, named_values, system_properties, whole
from nsysprof.trace.report import About, Diagnostic, Generation, Severity

if TYPE_CHECKING:
    from nsysprof.trace.nsys.columns import Source

__all__ = ["read_about", "read_thread_names"]

SEVERITIES: dict[str, Severity] = {"2": "warning", "warning": "warning", "3": "error", "error": "error"}
SOURCES = {"1": "injection", "2": "daemon", "3": "analysis"}
PROCESS_PART = re.compile(r"PROCESS_(\d{1,9}):(?:COMMAND|ARGUMENT_(\d{1,9}))\Z")
CAPTURE = re.compile(rf"{PROCESS_PART.pattern}|\w*PRODUCT_VERSION\Z")  # never ENVIRONMENT_VARIABLE
# The folder of the nsys that recorded; a folder of Nsight Compute or of an HPC SDK has a version of its own.
INSTALLED = re.compile(r"nsight[-_ ]systems(?:-cli)?[-_/\\ ](20\d\d(?:\.\d+)+)", re.IGNORECASE)
SCRIPT_VALUE = re.compile(r"(?<![\w./-])([A-Z_][A-Z0-9_]*)=(?:'[^']*'|\"[^\"]*\"|[^\s;'\"]+)")


def read_about(source: Source, *, report_version: str | None = None) -> About:
    """The `About` of a report; ``report_version`` is what the header of its ``.nsys-rep`` says.

    Of what nsys recorded of the program only the command is kept: no environment, user, host or folder names.
    """
    generation, meta = _metadata(source)
    capture = dict(named_values(source, "META_DATA_CAPTURE", CAPTURE.match))
    system = system_properties(source)
    export_version = meta.get("EXPORT_PRODUCT_VERSION")
    captured = next((value for name, value in capture.items() if name.endswith("PRODUCT_VERSION")), None)
    recorder = captured or report_version or _installed(system.get("TargetInstallDir"), export_version)
    return About(
        nsys_version=recorder or export_version,
        recorder_version=recorder,
        export_version=export_version,
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        generation=generation,
        duration_ns=max(
            filter(None, (whole(row[0]) for row in named_rows(source, "ANALYSIS_DETAILS", "duration"))),
            default=None,
        ),
        start_utc=_start(source),
        gpus=read_gpus(source),
        driver_version=_driver_version(system.get("NvDriverVersion")),
        cuda_version=_cuda_version(system.get("CudaDriverVersion")),
        os=known(system.get("OsDescription")),
        cpu=known(system.get("CpuDescription")) or known(system.get("CpuArchitecture")),
        command=_command(capture),
        processes=_processes(source),
        diagnostics=_diagnostics(source),
        warnings=_warnings(generation, meta),
    )


def _metadata(source: Source) -> tuple[Generation, dict[str, str]]:
    tables: tuple[Generation, ...] = ("META_DATA_EXPORT", "EXPORT_META_DATA")
    for table in tables:
        found = dict(named_values(source, table, lambda name: name.startswith("EXPORT_")))
        if found:
            return table, found
    return "none", {}


def _warnings(generation: Generation, meta: Mapping[str, str]) -> tuple[str, ...]:
    if generation == "none":
        return (
            "the report does not say which nsys made it: exported by nsys 2021 or older, or rewritten since",
        )
    lacking = [name for name in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION") if name not in meta]
    return (f"the report's metadata ({generation}) lacks {' and '.join(lacking)}",) if lacking else ()


def _installed(folder: str | None, export_version: str | None) -> str | None:
    """The version in the folder of the nsys that recorded: in full where the one that exported is the same."""
    found = INSTALLED.search(folder or "")
    if found is None:
        return None
    return export_version if f"{export_version}.".startswith(f"{found[1]}.") else found[1]


def _driver_version(value: str | None) -> str | None:
    """`525.105.17`, which some versions of nsys write without its dots."""
    found = re.fullmatch(r"(\d{3})(\d{2,3})(\d{2})|(\d{3})(\d{2})", (value or "").strip())
    return known(value) if found is None else ".".join(part for part in found.groups() if part)


def _cuda_version(value: str | None) -> str | None:
    number = whole(value)
    return known(value) if number is None or number < 1000 else f"{number // 1000}.{number % 1000 // 10}"


def _start(source: Source) -> str | None:
    for epoch, text in named_rows(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcTime"):
        if isinstance(text, str) and text:
            return text
        epoch_ns = whole(epoch)
        if epoch_ns and epoch_ns > 0:
            start = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=epoch_ns // 1000)
            return start.strftime("%Y-%m-%dT%H:%M:%S")
    return None


def _command(capture: Mapping[str, str]) -> str | None:
    """The command line of the first process that nsys launched, without values of ``NAME=value`` words."""
    parts: dict[int, dict[int, str]] = {}
    for name, value in capture.items():
        found = PROCESS_PART.match(name)
        if found:
            parts.setdefault(int(found[1]), {})[int(found[2]) if found[2] else -1] = value
    launched = [words for _, words in sorted(parts.items()) if -1 in words]
    if not launched:
        return None
    words = [word for _, word in sorted(launched[0].items())]
    return shlex.join(_without_values(words))


def _without_values(words: list[str]) -> Iterator[str]:
    """The words with the values of variables left out, inside the script behind a ``-c`` too."""
    leading = re.search(r"(^|[/\\])env(\.exe)?$", words[0]) is not None
    for before, word in zip(["", *words], words, strict=False):
        assigned = re.match(r"\w+=" if leading else r"[A-Z_][A-Z0-9_]*=", word)
        leading = leading and (not before or assigned is not None or word.startswith("-"))
        if before == "-c":
            yield SCRIPT_VALUE.sub(r"\1=...", word)
        else:
            yield f"{assigned[0]}..." if assigned else word


def _processes(source: Source) -> dict[int, str]:
    rows = ((whole(process), name) for process, name in named_rows(source, "PROCESSES", "globalPid", "name"))
    found = [(process, name) for process, name in rows if process is not None]
    names = source.strings([name for _, name in found if isinstance(name, int)]) if found else {}
    return {
        process: names.get(name, "") if isinstance(name, int) else str(name)
        for process, name in found
        if name not in (None, "")
    }


def _diagnostics(source: Source) -> tuple[Diagnostic, ...]:
    """Warnings and errors, errors first, each text once. Exports before 2024 hold none."""
    told = [
        (SEVERITIES[level], str(part or "").lower(), text, whole(text_id))
        for severity, part, text, text_id in named_rows(
            source, "DIAGNOSTIC_EVENT", "severity", "source", "text", "textId"
        )
        if (level := str(severity).lower()) in SEVERITIES
    ]
    texts = source.strings([row[3] for row in told if row[2] is None and row[3] is not None])
    counts: Counter[tuple[Severity, str, str]] = Counter()
    for severity, part, text, text_id in told:
        if text is None and text_id is not None:
            text = texts.get(text_id)
        said = " ".join(str(text or "").split())
        if said:
            counts[severity, SOURCES.get(part, part or "unknown"), said] += 1
    found = [Diagnostic(*key, count) for key, count in counts.items()]
    return tuple(sorted(found, key=lambda diagnostic: diagnostic.severity != "error"))


def read_thread_names(source: Source) -> dict[int, str]:
    """The name of each globalTid that has one: of several the last."""
    rows = [
        (whole(tid), whole(name)) for tid, name in named_rows(source, "ThreadNames", "globalTid", "nameId")
    ]
    texts = source.strings(sorted({name for _, name in rows if name is not None}))
    found = {tid: known(texts.get(name)) for tid, name in rows if tid is not None and name is not None}
    return {tid: name for tid, name in found.items() if name}
