"""One capture: the program without nsys for its time, then under nsys, then what nsys left made a report."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote
from typing import Any

from nsysprof.capture.child import Echo, Ended, run_child
from nsysprof.capture.compose import Tracing, nsys_command
from nsysprof.capture.driver import ask_driver, gpu_states
from nsysprof.capture.fingerprint import environment_hash, fingerprint
from nsysprof.capture.outputs import Outputs, keep
from nsysprof.capture.overhead import overhead_of
from nsysprof.capture.rescue import import_stream
from nsysprof.errors import NsysprofError
from nsysprof.nsys import Nsys, all_nsys, export, header_version, last_line, version_numbers

__all__ = ["Request", "Staged", "UnfinishedError", "capture_program", "resume_stream"]

SCHEMA = "nsysprof-run/1"
WORKLOAD_SCHEMA = "nsysprof-workload/1"
RECORD = ".run.json"
USAGE = 2  # what argparse exits with
SPACE_BYTES = 1 << 20
COMPLAINT = re.compile(r"^Illegal --|^unrecogni[sz]ed option|No space left on device|^Executable not found")
# What nsys adds to the output of a program, and nobody needs to read as its reason.
NSYS_CHATTER = re.compile(
    r"^(Generat(ing|ed)\b|Importer error status|Unable to retrieve the importer|Collecting data|Capture range"
    r"|Processing events|Saving |\s*/\S+\.(qdstrm|nsys-rep)$)"
)


@dataclass(frozen=True)
class Request:
    """What to capture: a program with its arguments, with which nsys, traced how.

    ``results`` says that the program takes ``--results FILE`` and writes its own measurements there, as the workloads
    do; ``overhead`` that it is run once without nsys before, to tell what nsys costs.
    """

    program: tuple[str, ...]
    nsys: Nsys
    tracing: Tracing = field(default_factory=Tracing)
    results: bool = False
    overhead: bool = False


@dataclass(frozen=True)
class Staged:
    """What a capture made, not yet under its final names: the report, its export, and the record so far."""

    report: Path
    sqlite: Path
    record: dict[str, Any]


class UnfinishedError(NsysprofError):
    """A capture that failed: ``reason`` and ``fix`` are message and hint without what was kept and how to go on."""

    def __init__(self, why: NsysprofError, message: str, hint: str | None) -> None:
        super().__init__(message, hint, exit_code=why.exit_code)
        self.reason = why.message
        self.fix = why.hint


def capture_program(
    request: Request, folder: Path, outputs: Outputs, command: Sequence[str], echo: Echo
) -> Staged:
    """Run a program under nsys and make a report of it, all within ``folder``.

    ``command`` is what the user typed, for the record. Raises `NsysprofError`: with the program's own exit code where
    it failed, 130 where it was interrupted; its log, and what nsys recorded so far, are kept as ``NAME.partial.*``.
    A stream that cannot be imported is kept as ``NAME.qdstrm``, to be resumed.
    """
    _check_program(request)
    log = folder / "output.log"
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    driver, _ = ask_driver()
    before = gpu_states()
    plain: Ended | None = None
    plain_results: dict[str, Any] | None = None
    if request.overhead:
        echo("running without nsys, for comparison\n")
        results = folder / "plain.json"
        program = _with_results(request, results)
        plain = run_child(program, log, echo)
        if plain.code:
            raise _failed(plain, request, folder, outputs)
        plain_results = _results(request, results)
    results = folder / "profiled.json"
    program = _with_results(request, results)
    echo("running under nsys\n")
    ended = run_child(nsys_command(request.nsys, request.tracing, folder / "report", program), log, echo)
    if not any(_made(folder)) and not ended.interrupted:
        raise _nothing(ended, request, folder, outputs)
    if ended.code:
        raise _failed(ended, request, folder, outputs)
    measured = _results(request, results)
    environment = fingerprint(request.nsys, driver, (measured or {}).get("environment"))
    record = {
        "schema": SCHEMA,
        "name": outputs.name,
        "started": started,
        "command": join(command),
        "program": join(request.program),
        "nsys_command": join(nsys_command(request.nsys, request.tracing, outputs.path(""), request.program)),
        "wall_ns": ended.wall_ns,
        "environment": environment,
        "environment_hash": environment_hash(environment),
        "gpu_state": {"before": before, "after": gpu_states()},
        "overhead": overhead_of(plain, ended, plain_results, measured) if plain else None,
        "workload": measured,
    }
    return _report(request.nsys, folder, outputs, record, echo)


def resume_stream(stream: Path, folder: Path, nsys: Nsys | None) -> Staged:
    """Finish a capture whose stream could not be imported at the time; the stream itself stays as it is.

    ``nsys`` is the one that was named; else the one that recorded the stream is looked for. Raises `NsysprofError`.
    """
    if not stream.is_file():
        raise NsysprofError(f"{stream}: no such file", f"ls {quote(str(stream.parent))}/*.qdstrm")
    try:
        made_by = header_version(stream)
    except OSError as error:
        raise NsysprofError(
            f"{stream}: cannot read it: {error.strerror}", f"ls -l {quote(str(stream))}"
        ) from None
    if made_by is None:
        raise NsysprofError(
            f"{stream}: not a stream of nsys (.qdstrm)",
            f"nsysprof analyze {quote(str(stream))} says what it is",
        )
    chosen = nsys or _same(made_by)
    if chosen is None:
        raise NsysprofError(
            f"{stream}: recorded by nsys {made_by}, which is not installed here; no other can import it",
            "install it, or name it with --nsys PATH",
        )
    report = folder / "report.nsys-rep"
    import_stream(stream, report, chosen)
    record = _unfinished(stream)
    return _exported(chosen, report, folder, record)


def _check_program(request: Request) -> None:
    program = request.program[0]
    if shutil.which(program) is None:
        raise NsysprofError(f"{program}: no such program, or it cannot be run", f"ls -l {quote(program)}")


def _with_results(request: Request, results: Path) -> list[str]:
    return [*request.program, "--results", str(results)] if request.results else list(request.program)


def _results(request: Request, path: Path) -> dict[str, Any] | None:
    """What a workload wrote; None for a program that writes nothing."""
    if not request.results:
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        read = {}
    if not isinstance(read, dict) or read.get("schema") != WORKLOAD_SCHEMA:
        raise NsysprofError(f"{join(request.program)}: ended well but wrote no results")
    return read


def _made(folder: Path) -> tuple[Path | None, Path | None]:
    """The report and the stream that nsys left, None for what is not there."""
    found = [folder / f"report{ending}" for ending in (".nsys-rep", ".qdstrm")]
    report, stream = (path if path.is_file() and path.stat().st_size else None for path in found)
    return report, stream


def _report(nsys: Nsys, folder: Path, outputs: Outputs, record: dict[str, Any], echo: Echo) -> Staged:
    report, stream = _made(folder)
    if stream is not None:  # then a report beside it is what a broken importer left
        echo("nsys did not import what it recorded: calling its importer\n")
        report = folder / "imported.nsys-rep"
        try:
            import_stream(stream, report, nsys)
        except NsysprofError as error:
            raise _kept_stream(stream, outputs, record, error) from None
        record = {**record, "rescued": True}
    assert report is not None
    try:
        return _exported(nsys, report, folder, record)
    except NsysprofError as error:
        kept = keep({report: ".nsys-rep", folder / "output.log": ".log"}, outputs)
        raise _with_kept(error, kept) from None


def _exported(nsys: Nsys, report: Path, folder: Path, record: dict[str, Any]) -> Staged:
    sqlite = folder / "exported.sqlite"
    export(nsys, report, sqlite)
    return Staged(report, sqlite, record)


def _kept_stream(
    stream: Path, outputs: Outputs, record: Mapping[str, Any], why: NsysprofError
) -> NsysprofError:
    """Keep the stream, and beside it the record for later, and say how to go on."""
    (kept,) = keep({stream: ".qdstrm"}, outputs)
    try:
        kept.with_suffix(RECORD).write_text(json.dumps(record), encoding="utf-8")
    except OSError:  # the stream matters more
        kept.with_suffix(RECORD).unlink(missing_ok=True)
    resume = f"nsysprof capture --resume {quote(str(kept))}"
    hint = f"{why.hint}; then: {resume}" if why.hint else resume
    return UnfinishedError(why, f"{why.message}; what was recorded is kept: {kept}", hint)


def _unfinished(stream: Path) -> dict[str, Any]:
    """The record that was kept with a stream; a bare one where there is none."""
    try:
        record = json.loads(stream.with_suffix(RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        record = {"schema": SCHEMA, "name": stream.stem, "environment": None, "workload": None}
    return {**record, "rescued": True}


def _same(made_by: str) -> Nsys | None:
    wanted = version_numbers(made_by)[:3]
    return next((nsys for nsys in all_nsys() if nsys.version[:3] == wanted), None)


def _failed(ended: Ended, request: Request, folder: Path, outputs: Outputs) -> NsysprofError:
    """The error for a program that did not end well, with its own exit code; what there is so far is kept."""
    log = folder / "output.log"
    said = _said(log)
    if request.results and ended.code == USAGE:
        return NsysprofError(said, f"{join(request.program[:2])} --help", exit_code=USAGE)
    kept = keep(
        {folder / "report.nsys-rep": ".nsys-rep", folder / "report.qdstrm": ".qdstrm", log: ".log"}, outputs
    )
    if ended.interrupted:
        return _with_kept(NsysprofError("interrupted", exit_code=ended.code), kept)
    what = f"{join(request.program)}: failed with exit code {ended.code}{f': {said}' if said else ''}"
    return _with_kept(NsysprofError(what, _space(said, folder), exit_code=ended.code), kept)


def _nothing(ended: Ended, request: Request, folder: Path, outputs: Outputs) -> NsysprofError:
    """The error for an nsys that made nothing, whatever the program did."""
    log = folder / "output.log"
    said = _said(log)
    kept = keep({log: ".log"}, outputs)
    failed = f"failed with exit code {ended.code}" if ended.code else "left no report"
    hint = _space(said, folder)
    if request.tracing.capture_range and not ended.code:
        hint = f"did the program ever come to {request.tracing.capture_range}? Try without --capture-range"
    what = f"nsys {request.nsys.version_text} {failed}{f': {said}' if said else ''}"
    return _with_kept(NsysprofError(what, hint), kept)


def _said(log: Path) -> str:
    """What was printed last, or, where nsys complained of its own options, that."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    complaints = [line.strip() for line in lines if COMPLAINT.search(line)]
    lines = [line for line in lines if not NSYS_CHATTER.search(line)]
    return complaints[-1] if complaints else last_line("\n".join(lines[-20:]))


def _space(said: str, folder: Path) -> str | None:
    full = "No space left" in said or shutil.disk_usage(folder).free < SPACE_BYTES
    return f"the disk is full: df -h {quote(str(folder.parent))}" if full else None


def _with_kept(why: NsysprofError, kept: Sequence[Path]) -> NsysprofError:
    """The same error, whose hint also says what was kept."""
    names = f"kept: {' '.join(map(str, kept))}" if kept else None
    hints = [hint for hint in (why.hint, names) if hint]
    return UnfinishedError(why, why.message, "; ".join(hints) or None)
