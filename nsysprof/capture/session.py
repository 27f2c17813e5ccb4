"""Make one capture: run the program without nsys to time it, then under nsys, and make a report of the recording."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from statistics import median
from typing import Any

from nsysprof.capture.compose import Request, nsys_command
from nsysprof.capture.failure import check_ended, check_made, last_message, made_by_nsys
from nsysprof.capture.injection import TIMES, Injection, process_sentences, read_processes, step_times, why_nothing
from nsysprof.capture.outputs import IMPORTED, LOG, RECORD, RECORD_ENDING, REPORT, Outputs
from nsysprof.capture.program import (
    check_input,
    check_program,
    failed_program,
    input_kept,
    with_results,
    workload_results,
)
from nsysprof.core.text import quote_path, visible
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import record_so_far, write_record
from nsysprof.tools.child import Echo, Ended, run_child
from nsysprof.tools.driver import Driver, ask_driver, fingerprint, gpu_states, rank_in_job, too_new_for
from nsysprof.tools.nsight import version_numbers
from nsysprof.tools.nsys import PRINT_ELSEWHERE, Nsys, all_nsys, export, find_nsys, header_version, import_stream

_MIN_FREE_BYTES = 16 << 20
_MAX_PRINTED = 512 << 20


@dataclass(frozen=True)
class Staged:
    """The results of a capture before they get their final names: report, export, and the record so far."""

    report: Path
    sqlite: Path
    record: dict[str, Any]


def capture_program(request: Request, folder: Path, outputs: Outputs, command: Sequence[str], echo: Echo) -> Staged:
    """Run a program under nsys and make a report, all within ``folder``.

    ``command`` is the user's command line, for the record. Raises `NsysprofError` (with the exit code of a failed
    program) and `Interrupt`. Log, recording and unfinished record are then in ``folder``, named by
    `nsysprof.capture.outputs`.
    """
    check_program(request.program[0], "nsys")
    check_disk()
    driver = _introduced(request.nsys, echo)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    before = gpu_states()
    plain, plain_results = None, None
    if request.overhead:
        plain, plain_results = run_plain(
            request.program, folder, echo, "nsys", results=request.results, times=request.injection.mark_steps
        )
    echo("running under nsys\n")
    results = folder / "profiled.json" if request.results else None
    record = {
        **record_so_far(),
        "name": outputs.name,
        "started": started,
        "command": join(command),
        "program": join(request.program),
        "profiler": "nsys",
        "nsys_command": join(nsys_command(request, outputs.path(""))),
        "rescued": False,
        "job": rank_in_job(os.environ),
        "environment": fingerprint(request.nsys, driver, None),
        "gpu_state": {"before": before, "after": None},
    }
    write_record(folder / RECORD, record)  # whatever becomes of the program
    profiled = nsys_command(request, folder / Path(REPORT).stem, results)
    ended = run_child(profiled, folder / LOG, _warned(echo), request.injection.environment(folder))
    if request.injection.needed:
        record["processes"] = report_processes(folder, request.program, request.injection, echo)
    state = {"before": before, "after": gpu_states()}
    record |= {"wall_ns": ended.wall_ns, "exit_code": ended.code, "gpu_state": state}
    stranded = check_made(ended, request, folder)
    if stranded is None:
        write_record(folder / RECORD, record)
    check_ended(ended, request, folder)
    whole = not ended.code  # else nsys has ended the program, as it was asked to
    if not whole:
        echo("nsys stopped the program, so the program has no results and profiling overhead is unknown\n")
    measured = workload_results(results, request.program) if whole else None
    record |= {
        "environment": fingerprint(request.nsys, driver, (measured or {}).get("environment")),
        "overhead": overhead_of(plain, ended, plain_results, measured or step_times(folder))
        if plain and whole
        else None,
        "workload": measured,
    }
    if stranded is not None:
        raise _stranded(stranded, record, ended)
    write_record(folder / RECORD, record)
    return _report(request.nsys, folder, record, echo)


def _introduced(nsys: Nsys, echo: Echo) -> Driver | None:
    """Report the nsys and the driver in use, and any incompatibility between them; return the driver."""
    driver, why = ask_driver()
    shown = f"driver {driver.version}" if driver else f"no GPU ({why})"
    echo(visible(f"nsys {nsys.version_text} ({nsys.path}); {shown}") + "\n")
    if warning := too_new_for(driver, nsys) if driver else None:
        echo(visible(f"warning: {warning}") + "\n")
    return driver


def _warned(echo: Echo) -> Echo:
    """Return an echo that warns once if a program prints more than its report, which stores all output, can hold."""
    printed = 0

    def warn(text: str) -> None:
        nonlocal printed
        before, printed = printed, printed + len(text)
        echo(text)
        if before < _MAX_PRINTED <= printed:
            echo(
                f"\nwarning: the program has printed {format_bytes(_MAX_PRINTED)}; nsys stores this output "
                f"in the report and cannot export a report with more than 1 GB of output: {PRINT_ELSEWHERE}\n"
            )

    return warn


def report_processes(folder: Path, program: Sequence[str], injection: Injection, echo: Echo) -> list[dict[str, Any]]:
    """Print which processes of a program were not recorded, and why; return the report that each process wrote about
    itself.
    """
    processes = read_processes(folder)
    for sentence in process_sentences(processes, injection) if processes else why_nothing(program)[:1]:
        echo(visible(f"warning: {sentence}") + "\n")
    return [{name: told for name, told in each.written.items() if name != TIMES} for each in processes]


def run_plain(
    program: Sequence[str], folder: Path, echo: Echo, profiler: str, *, results: bool, times: bool = False
) -> tuple[Ended, dict[str, Any] | None]:
    """Run a program without its profiler to time it. A file on stdin can be read again by the next run.

    ``results``: whether the program writes its own measurements, which are then also returned. ``times``: whether to
    record the ends of optimizer steps, and return the step times.
    """
    if not results:  # workloads read nothing
        check_input("--no-overhead", echo)
    echo(f"running without {profiler}, for comparison\n")
    written = folder / "plain.json" if results else None
    noted = folder / "plain"
    noted.mkdir(exist_ok=True)
    with input_kept():
        ended = run_child(with_results(program, written), folder / LOG, echo, Injection(times=times).environment(noted))
    if ended.code:
        raise failed_program(program, ended.code, last_message(ended), folder / LOG if results else None)
    return ended, workload_results(written, program) or step_times(noted)


def resume_capture(recorded: Path, folder: Path, outputs: Outputs, nsys: Nsys | None) -> Staged:
    """Finish a capture that stopped after its program had ended; ``recorded``, the files that nsys left, stay
    unchanged.

    ``nsys`` is the nsys that the user named; if None, a stream is imported by the nsys version that recorded it. If
    there is no record beside the stream, most fields of the new record are None. Raises `NsysprofError` and
    `Interrupt`.
    """
    version = _version(recorded)
    record = {**record_so_far(recorded.with_suffix(RECORD_ENDING)), "name": outputs.name}
    if recorded.suffix == ".nsys-rep":
        return replace(_exported(nsys or find_nsys(), recorded, folder, record), report=_copy(recorded, folder))
    wanted = version_numbers(version)[:3]
    chosen = nsys or next((each for each in all_nsys() if each.version[:3] == wanted), None)
    if chosen is None:
        raise NsysprofError(
            f"{recorded}: recorded by nsys {version}, which is not installed here; no other version can "
            "import the recording",
            "install this nsys, or name its path: --nsys PATH",
        )
    import_stream(recorded, folder / IMPORTED, chosen)
    record["rescued"] = True
    write_record(folder / RECORD, record)
    return _exported(chosen, folder / IMPORTED, folder, record)


def _version(recorded: Path) -> str:
    """Return the version of the nsys that recorded a stream or report; empty if a report lacks the version."""
    try:
        version = header_version(recorded)
    except OSError as error:
        raise NsysprofError(
            f"{recorded}: cannot be read: {error.strerror}", f"ls -l {quote_path(recorded.parent)}"
        ) from None
    if version is None and recorded.suffix != ".nsys-rep":
        raise NsysprofError(
            f"{recorded}: not an nsys stream (.qdstrm)", f"nsysprof analyze {quote_path(recorded)} identifies this file"
        )
    return version or ""


def _copy(recorded: Path, folder: Path) -> Path:
    copy = folder / "resumed.nsys-rep"
    try:
        os.link(recorded.resolve(), copy)
    except OSError:  # another file system, or one without links
        shutil.copyfile(recorded, copy)
    return copy


def check_disk() -> None:
    """Refuse to start if nsys could not write its temporary recording, because nsys would then hang forever."""
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < _MIN_FREE_BYTES:
        raise NsysprofError(
            f"only {format_bytes(free)} free in {place}, where nsys stores the recording until the program ends",
            f"df -h {quote(place)}, or set TMPDIR=FOLDER",
        )


def _report(nsys: Nsys, folder: Path, record: dict[str, Any], echo: Echo) -> Staged:
    report, stream = made_by_nsys(folder)
    if stream is not None:  # then a report beside it is what a broken importer left
        echo("nsys did not import its recording, so nsysprof calls the importer of nsys\n")
        report = folder / IMPORTED
        import_stream(stream, report, nsys)
        stream.unlink()  # all of it is in the report, and an export takes room
        record = {**record, "rescued": True}
        write_record(folder / RECORD, record)
    assert report is not None
    return _exported(nsys, report, folder, record)


def _stranded(recorded: Path, record: dict[str, Any], ended: Ended) -> NsysprofError:
    """Return the error for an nsys that could write only into the temporary folder; write the record there, too."""
    with contextlib.suppress(OSError):
        write_record(recorded.with_suffix(RECORD_ENDING), record)
    return NsysprofError(
        f"nsys could not write the report: {last_message(ended)}",
        f"the recording is kept: nsysprof capture --resume {quote_path(recorded)} -o FOLDER/NAME",
    )


def _exported(nsys: Nsys, report: Path, folder: Path, record: dict[str, Any]) -> Staged:
    sqlite = folder / "exported.sqlite"
    export(nsys, report, sqlite)
    return Staged(report, sqlite, record)


def overhead_of(
    plain: Ended, profiled: Ended, plain_results: Mapping[str, Any] | None, profiled_results: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Compute the ratios of times with and without nsys, for the whole run and for each range of a workload.

    ``ranges``: a mapping per range with ``range, samples, plain_median_ns, profiled_median_ns, ratio``;
    ``median_ratio``: the median over ranges, None if there are none. The whole run includes starting the program, and
    with nsys also starting nsys and writing the report.
    """
    ranges: list[dict[str, Any]] = []
    after = _latencies(profiled_results)
    for name, before in _latencies(plain_results).items():
        if name in after:
            medians = median(before), median(after[name])
            ranges.append(
                {
                    "range": name,
                    "samples": min(len(before), len(after[name])),
                    "plain_median_ns": round(medians[0]),
                    "profiled_median_ns": round(medians[1]),
                    "ratio": round(medians[1] / medians[0], 4) if medians[0] else None,
                }
            )
    ratios: list[float] = [row["ratio"] for row in ranges if row["ratio"] is not None]
    return {
        "plain_wall_ns": plain.wall_ns,
        "profiled_wall_ns": profiled.wall_ns,
        "wall_ratio": round(profiled.wall_ns / plain.wall_ns, 4) if plain.wall_ns else None,
        "median_ratio": round(median(ratios), 4) if ratios else None,
        "ranges": ranges,
    }


def _latencies(results: Mapping[str, Any] | None) -> dict[str, list[int]]:
    return {run["range"]: run["latency_ns"] for run in (results or {}).get("runs", []) if run.get("latency_ns")}
