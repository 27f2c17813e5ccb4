"""Explain failures of a capture: why a program or its nsys failed."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from nsysprof.capture.compose import METRICS_DEVICE, Request
from nsysprof.capture.outputs import LOG, REPORT, STREAM
from nsysprof.capture.program import failed_program, shown_program
from nsysprof.errors import NsysprofError
from nsysprof.tools.child import Ended
from nsysprof.tools.driver import PERMISSION_FIX, counters_kept_from_us
from nsysprof.tools.nsight import last_line

# With --duration nsys ends the program itself, by this signal unless --kill names another.
_ENDED_BY_NSYS = {128 + 15, 128 + 9}
_NO_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM|insufficient privilege", re.IGNORECASE)
_COMPLAINT = re.compile(r"No space left on device|^Executable not found|^Failed to create")
# What nsys adds to the output of a program, and nobody needs to read as its reason.
_NSYS_CHATTER = re.compile(
    r"^(Generat(ing|ed)\b|Importer error status|Unable to retrieve the importer|Collecting data|Capture range"
    r"|Processing events|Saving |\s*/\S+\.(qdstrm|nsys-rep)$)"
)


def made_by_nsys(folder: Path) -> tuple[Path | None, Path | None]:
    """Return the report and the stream that nsys left, each None if missing."""
    paths = (folder / name for name in (REPORT, STREAM))
    report, stream = (path if path.is_file() and path.stat().st_size else None for path in paths)
    return report, stream


def check_made(ended: Ended, request: Request, folder: Path) -> Path | None:
    """Raise `NsysprofError` if nsys wrote nothing, even if the program succeeded.

    If nsys could not write into the folder, it leaves a stream in the folder for temporary files; the path of this
    stream is returned.
    """
    if any(made_by_nsys(folder)):
        return None
    listed = re.search(r"^Generated:\s*\n((?:[ \t]+\S.*\n?)+)", ended.output, re.MULTILINE)
    named = [Path(line.strip()) for line in listed[1].splitlines()] if listed else []
    stranded = [path for path in named if path.suffix in (".qdstrm", ".nsys-rep") and path.is_file()]
    several = sorted(path.name for path in folder.glob("report*"))
    if stranded and not several:
        return stranded[0]
    message = last_message(ended)
    what = f"left {len(several)} reports" if len(several) > 1 else "left no report"
    hint = None
    if len(several) > 1:
        hint = (
            "nsysprof capture makes only one report: let nsys record only once, or finish each recording with --resume"
        )
    elif request.capture_range and not ended.code:
        hint = f"did the program ever reach {request.capture_range}? Try without --capture-range"
    elif sampling := next((one.partition("=")[0] for one in request.extra if one.startswith(METRICS_DEVICE)), None):
        hint = f"nsys profile {sampling}=help lists the GPUs that can be sampled"
        if counters_kept_from_us() or _NO_PERMISSION.search(ended.output):
            message, hint = "no permission for GPU metrics (ERR_NVGPUCTRPERM)", PERMISSION_FIX
    code = f" (exit code {ended.code})" if ended.code else ""
    raise NsysprofError(
        f"nsys {request.nsys.version_text} {what}{code}{f': {message}' if message else ''}",
        hint,
        exit_code=ended.code or 1,
    )


def check_ended(ended: Ended, request: Request, folder: Path) -> None:
    """Raise `NsysprofError`, with the program's exit code, if the program failed or outlived its nsys."""
    if ended.lost:
        raise NsysprofError(
            f"{shown_program(request.program)}: nsys-launcher was killed, so nsys could not detect the end "
            "of the program; nsys was stopped, so later work is not recorded",
            "does the program kill its parent process?",
        )
    limited = any(re.match(r"--duration|-d", one) for one in request.extra)
    if not ended.code or (limited and ended.code in _ENDED_BY_NSYS):
        return
    raise failed_program(request.program, ended.code, last_message(ended), folder / LOG if request.results else None)


def last_message(ended: Ended) -> str:
    """Return nsys's message if nsys rejected its options, otherwise the last printed line."""
    lines = [line.strip() for line in ended.output.splitlines()]
    usage = next((number for number, line in enumerate(lines) if line.startswith("usage: nsys")), None)
    if usage is not None:
        return "\n".join(lines[:usage]).strip().split("\n\n")[-1].split("\n")[0]
    complaints = [line for line in lines if _COMPLAINT.search(line)]
    lines = [line for line in lines if not _NSYS_CHATTER.search(line)]
    return complaints[-1] if complaints else last_line("\n".join(lines[-20:]))


def why_no_ranges(sqlite: Path) -> tuple[str, str] | None:
    """Explain why an export has no NVTX range, with a remedy; returns None if the export has a range, or if NVTX was
    not traced.

    nsys stores the reason in diagnostics. Versions before 2024 store it in unreferenced strings, which scrubbing
    removes.
    """
    with closing(sqlite3.connect(sqlite)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        ranges = "SELECT 1 FROM NVTX_EVENTS WHERE eventType IN (59, 60, 70, 71) LIMIT 1"
        if "NVTX_EVENTS" in there and database.execute(ranges).fetchone():
            return None
        messages = [
            text
            for table, column in {"StringIds": "value", "DIAGNOSTIC_EVENT": "text"}.items()
            if table in there
            for (text,) in database.execute(
                f"SELECT {column} FROM {table} WHERE {column} LIKE '%NVTX %' AND length({column}) < 400"
            )
        ]
    if not any(text.startswith("NVTX profiling started") for text in messages):
        return None
    refused = next((text for text in messages if re.match(r"NVTX .*\bincompatible\b", text)), None)
    if refused:
        return (
            f'this nsys is too old for the NVTX version of the program: "{refused}"',
            "use a newer nsys (--nsys PATH) or, in Python, an older nvtx: pip install 'nvtx<0.2.12'",
        )
    if any(text.startswith("NVTX injection initialized") for text in messages):
        return "the program loads NVTX but opens no range", "use --trace cuda to record without ranges"
    return (
        "nsys recorded no NVTX calls in the program",
        "annotate the program (nvtx.annotate, torch.cuda.nvtx.range), or use --trace cuda to record without ranges",
    )
