"""One capture with torch's own profiler: runs the program without it for its time, then with it; keeps its traces."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import Any

from nsysprof import __version__
from nsysprof.capture.failure import last_message
from nsysprof.capture.injection import Injection, Process, process_sentences, read_processes, why_nothing
from nsysprof.capture.outputs import LOG, TORCH_ENDINGS, Outputs
from nsysprof.capture.program import check_program, failed_program, with_results, workload_results
from nsysprof.capture.session import check_disk, overhead_of, run_plain
from nsysprof.core.text import quote_path, visible
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import file_facts, record_so_far, without_arguments, write_record
from nsysprof.results.folder import give_names, refuse_taken
from nsysprof.scrub.secrets import machine_secrets, redacted
from nsysprof.scrub.trace_copy import copy_trace
from nsysprof.tools.child import Echo, Ended, run_child
from nsysprof.tools.driver import ask_driver, gpu_states
from nsysprof.tools.fingerprint import environment_hash, fingerprint, rank_in_job
from nsysprof.tools.interrupts import Interrupt

PROFILER = "torch's profiler"


@dataclass(frozen=True)
class TorchRequest:
    """A capture with torch's profiler: the program with its arguments, and what is to run in it.

    ``results`` and ``overhead`` are as those of `nsysprof.capture.compose.Request`.
    """

    program: tuple[str, ...]
    injection: Injection
    results: bool = False
    overhead: bool = False


@dataclass(frozen=True)
class TorchCapture:
    """A finished capture: its record, its traces in the order of their ranks, and what was not recorded.

    ``failure`` is the error for a program that failed, whose traces are kept all the same.
    """

    record: dict[str, Any]
    traces: tuple[Path, ...]
    sentences: tuple[str, ...]
    failure: NsysprofError | None


def capture_with_torch(
    request: TorchRequest,
    folder: Path,
    outputs: Outputs,
    command: Sequence[str],
    echo: Echo,
    *,
    scrubbed: bool = True,
    force: bool = False,
) -> TorchCapture:
    """Run a program with torch's profiler in it, and give its traces and the record their names, all or none.

    ``command`` is what the user typed, for the record. Raises `NsysprofError` where nothing was recorded.
    """
    check_program(request.program[0], "the shell")
    check_disk()
    for taken in _of_ranks(outputs):
        refuse_taken(taken, force=force)
    driver, _ = ask_driver()
    started, before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), gpu_states()
    plain, plain_results = None, None
    if request.overhead:
        plain, plain_results = run_plain(request.program, folder, echo, PROFILER, results=request.results)
    echo(f"running with {PROFILER}\n")
    results = folder / "profiled.json" if request.results else None
    ended = _run(with_results(request.program, results), folder, request.injection, echo)
    processes = read_processes(folder)
    failure = None
    if ended.code:
        log = folder / LOG if request.results else None
        failure = failed_program(request.program, ended.code, last_message(ended), log)
    counts = {
        each.trace: copy_trace(each.trace, _packed(each.trace), outputs.name, scrubbed=scrubbed)
        for each in processes
        if each.trace is not None
    }
    recorded = [each for each in processes if each.trace and any(counts[each.trace].values())]
    recorded = [
        each
        for each in recorded
        if each.trace and (counts[each.trace]["ops"] or counts[each.trace]["ranges"])
    ]
    sentences = tuple(process_sentences(processes, request.injection))
    if not recorded:
        raise failure or _nothing(request, processes, sentences)
    measured = workload_results(results, request.program) if not ended.code else None
    record = {
        **record_so_far(),
        "nsysprof": __version__,
        "name": outputs.name,
        "started": started,
        "command": join(command),
        "program": join(request.program),
        "profiler": "torch",
        "wall_ns": ended.wall_ns,
        "exit_code": ended.code,
        "job": rank_in_job(os.environ),
        "environment": fingerprint(None, driver, (measured or {}).get("environment")),
        "gpu_state": {"before": before, "after": gpu_states()},
        "processes": [dict(each.written) for each in processes],
        "overhead": overhead_of(plain, ended, plain_results, measured) if plain and measured else None,
        "workload": measured,
    }
    if plain and not request.results and not ended.code:
        record["overhead"] = overhead_of(plain, ended, None, None)
    if scrubbed:
        record = redacted(without_arguments(record), machine_secrets())
    record["environment_hash"] = environment_hash(record["environment"])
    names = dict(zip((each.trace for each in recorded), _named(recorded, outputs), strict=True))
    traces = [
        {
            "file": names[each.trace].name,
            **file_facts(_packed(each.trace)),
            "scrubbed": scrubbed,
            "pid": each.about.pid,
            "rank": each.about.rank,
            **counts[each.trace],
        }
        for each in recorded
        if each.trace
    ]
    record["report"] = {
        "traces": traces,
        **{what: sum(each[what] for each in traces) for what in ("ops", "ranges", "kernels")},
    }
    written = folder / "published.json"
    write_record(written, record)
    stale = [path for path in _of_ranks(outputs) if path not in names.values()]
    give_names(
        {written: outputs.path(".json"), **{_packed(trace): names[trace] for trace in names if trace}},
        force=force,
    )
    for path in stale:
        path.unlink(missing_ok=True)
    return TorchCapture(record, tuple(names.values()), sentences, failure)


def _packed(trace: Path) -> Path:
    return trace.with_name(f"{trace.name}.gz")


def _run(command: Sequence[str], folder: Path, injection: Injection, echo: Echo) -> Ended:
    """Run the program; an interrupt ends it, and what it had recorded is kept."""
    begin = time.perf_counter_ns()
    try:
        return run_child(command, folder / LOG, echo, injection.environment(folder))
    except Interrupt as interrupt:
        if not any(each.trace for each in read_processes(folder)):
            raise
        return Ended(128 + interrupt.number, time.perf_counter_ns() - begin)


def _nothing(request: TorchRequest, processes: Sequence[Process], sentences: Sequence[str]) -> NsysprofError:
    if not processes:
        why, hint = why_nothing(request.program)
        return NsysprofError(f"nothing recorded: {why}", hint)
    why = "; ".join(sentences) or "the program ran no op of torch, and began no range"
    return NsysprofError(f"nothing recorded: {why}")


def _of_ranks(outputs: Outputs) -> list[Path]:
    """List the traces of single processes that an earlier capture of that name has left."""
    found = (
        outputs.folder.glob(f"{outputs.name}.*{TORCH_ENDINGS[0]}") if outputs.folder.is_dir() else iter(())
    )
    kinds = (f"{outputs.name}.rank", f"{outputs.name}.process")
    return sorted(path for path in found if path.name.startswith(kinds))


def _named(recorded: Sequence[Process], outputs: Outputs) -> Iterator[Path]:
    """Name the trace of each process: by its rank, or its place among those without; a single one as the capture."""
    taken: set[str] = set()
    for number, each in enumerate(recorded, 1):
        alone = len(recorded) == 1 and (each.about.world_size or 1) == 1
        part = "" if alone else f".process{number}" if each.about.rank is None else f".rank{each.about.rank}"
        if part in taken:
            part = f"{part}.process{number}"
        taken.add(part)
        yield outputs.path(f"{part}{TORCH_ENDINGS[0]}")


def captured_line(record: dict[str, Any]) -> str:
    """Describe what was captured in a line."""
    from nsysprof.core.text import plural  # noqa: PLC0415
    from nsysprof.core.units import format_bytes  # noqa: PLC0415

    report = record["report"]
    counted = [
        plural(report[what], noun)
        for what, noun in (("ops", "CPU op"), ("kernels", "kernel"), ("ranges", "range"))
    ]
    size = format_bytes(sum(each["size_bytes"] for each in report["traces"]))
    return f"captured {counted[0]}, {counted[1]} and {counted[2]}: {plural(len(report['traces']), 'trace')}, {size}"


def next_command(traces: Sequence[Path]) -> str:
    """Return the command to go on with: `analyze` for a trace, `fleet` for those of several processes."""
    names = " ".join(visible(quote_path(trace)) for trace in traces)
    return f"nsysprof {'analyze' if len(traces) == 1 else 'fleet'} {names}"
