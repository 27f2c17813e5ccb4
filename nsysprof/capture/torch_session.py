"""Make one capture with torch's own profiler: run the program without the profiler to time it, then with the profiler,
and keep the traces.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from nsysprof.capture.failure import last_message
from nsysprof.capture.injection import Injection, Process, process_sentences, read_processes, why_nothing
from nsysprof.capture.outputs import LOG, TORCH_ENDINGS, Outputs, completed
from nsysprof.capture.program import check_program, failed_program, with_results, workload_results
from nsysprof.capture.session import check_disk, overhead_of, run_plain
from nsysprof.core.text import command_line, plural, visible
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import file_facts, record_so_far, write_record
from nsysprof.results.folder import give_names, refuse_taken
from nsysprof.scrub.report_copy import copy_trace
from nsysprof.tools.child import Echo, Ended, run_child
from nsysprof.tools.driver import ask_driver, fingerprint, gpu_states, rank_in_job
from nsysprof.tools.interrupts import Interrupt

if TYPE_CHECKING:
    from nsysprof.kernels.backends import BackendVerdict
    from nsysprof.kernels.rules import Rules

PROFILER = "torch's profiler"


@dataclass(frozen=True)
class TorchCapture:
    """A finished capture: its record, and its traces in rank order.

    ``failure``: the error of a failed program; its traces are kept anyway; ``verdict`` says which backends a workload
    ran on a GPU.
    """

    record: dict[str, Any]
    traces: tuple[Path, ...]
    failure: NsysprofError | None
    verdict: BackendVerdict | None = None


def capture_with_torch(
    program: tuple[str, ...],
    injection: Injection,
    folder: Path,
    outputs: Outputs,
    command: Sequence[str],
    echo: Echo,
    *,
    rules: Rules | None = None,
    is_workload: bool = False,
    overhead: bool = False,
    scrubbed: bool = True,
    names: bool = False,
    force: bool = False,
) -> TorchCapture:
    """Run a program under torch's profiler; give final names to the traces and the run record, or keep none on failure.

    ``command`` is the user's command line, for the record; ``rules`` map kernels to backends; ``overhead``: whether to
    run the program first without the profiler. A workload writes its own measurements; ``scrubbed`` and ``names`` as in
    `copy_trace`. Raises `NsysprofError` if nothing was recorded.
    """
    check_program(program[0], "the shell")
    check_disk()
    for taken in _of_processes(outputs):
        refuse_taken(taken, force=force)
    started, before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), gpu_states()
    plain, plain_results = None, None
    if overhead:
        plain, plain_results = run_plain(program, folder, echo, PROFILER, results=is_workload)
    echo(f"running with {PROFILER}\n")
    results = folder / "profiled.json" if is_workload else None
    ended = _run(with_results(program, results), folder, injection, echo)
    processes = read_processes(folder)
    sentences = list(process_sentences(processes, injection))
    for sentence in sentences:
        echo(visible(f"nsysprof: {sentence}") + "\n")
    failure = None
    if ended.code:
        log = folder / LOG if is_workload else None
        failure = failed_program(program, ended.code, last_message(ended), log)
    traces = _copied(processes, outputs, scrubbed=scrubbed, names=names)
    if not traces:
        raise failure or _nothing(program, processes, told=bool(sentences))
    measured = workload_results(results, program) if not ended.code else None
    verdict = judge_traces(traces, rules) if is_workload else None
    record = {
        **record_so_far(),
        "name": outputs.name,
        "started": started,
        "command": join(command),
        "program": join(program),
        "profiler": "torch",
        "wall_ns": ended.wall_ns,
        "exit_code": ended.code,
        "job": rank_in_job(os.environ),
        "environment": fingerprint(None, ask_driver()[0], (measured or {}).get("environment")),
        "gpu_state": {"before": before, "after": gpu_states()},
        "processes": [dict(each.written) for each in processes],
        "overhead": overhead_of(plain, ended, plain_results, measured) if plain and not ended.code else None,
        "workload": measured,
        "backends": verdict.records() if verdict else [],
    }
    record = _published(record, traces, folder, outputs, scrubbed=scrubbed, force=force)
    return TorchCapture(record, tuple(outputs.folder / facts["file"] for facts in traces.values()), failure, verdict)


def judge_traces(traces: Mapping[Path, Mapping[str, Any]], rules: Rules | None) -> BackendVerdict | None:
    """Judge which backends ran, in the trace with the most kernels; returns None if there are no kernels."""
    path = max(traces, key=lambda each: traces[each]["kernels"])
    if not traces[path]["kernels"]:
        return None
    from nsysprof.attribution.attribute import attribute  # noqa: PLC0415  brings pandas: after the program
    from nsysprof.kernels.backends import judge_backends  # noqa: PLC0415
    from nsysprof.trace.report import open_report  # noqa: PLC0415

    with open_report(path) as opened:
        return judge_backends(attribute(opened), rules)


def _copied(
    processes: Sequence[Process], outputs: Outputs, *, scrubbed: bool, names: bool
) -> dict[Path, dict[str, Any]]:
    """Write the traces to keep, without empty ones, and return the facts about each."""
    counts: dict[Path, dict[str, int]] = {}
    recorded = []
    for each in processes:
        if each.trace is None:
            continue
        packed = each.trace.with_name(f"{each.trace.name}.gz")
        counted = copy_trace(each.trace, packed, outputs.name, scrubbed=scrubbed, names=names)
        each.trace.unlink()  # the copy is what stays, and both take room
        if counted["ops"] or counted["ranges"]:
            counts[packed] = counted
            recorded.append(each)
    called = _names(recorded, outputs)
    return {
        packed: {
            **{"file": name, **file_facts(packed), "scrubbed": scrubbed},
            **{"pid": each.about.pid, "rank": each.about.rank, **counted},
        }
        for (packed, counted), name, each in zip(counts.items(), called, recorded, strict=True)
    }


def _published(
    record: dict[str, Any],
    traces: Mapping[Path, dict[str, Any]],
    folder: Path,
    outputs: Outputs,
    *,
    scrubbed: bool,
    force: bool,
) -> dict[str, Any]:
    """Complete a record, give the record and its traces their final names, and return the written record."""
    record = completed(record, scrubbed=scrubbed)
    sums = {what: sum(facts[what] for facts in traces.values()) for what in ("ops", "kernels", "ranges")}
    record["report"] = {"traces": list(traces.values()), **sums}
    written = folder / "published.json"
    write_record(written, record)
    names = {packed: outputs.folder / facts["file"] for packed, facts in traces.items()}
    stale = [path for path in _of_processes(outputs) if path not in names.values()]
    give_names({written: outputs.path(".json"), **names}, force=force)
    for path in stale:  # of an earlier capture with more processes, which --force replaces
        path.unlink(missing_ok=True)
    return record


def _run(command: Sequence[str], folder: Path, injection: Injection, echo: Echo) -> Ended:
    """Run the program; an interrupt ends it, and its recording is kept."""
    begin = time.perf_counter_ns()
    try:
        return run_child(command, folder / LOG, echo, injection.environment(folder))
    except Interrupt as interrupt:
        if not any(each.trace for each in read_processes(folder)):
            raise
        return Ended(128 + interrupt.number, time.perf_counter_ns() - begin)


def _nothing(program: Sequence[str], processes: Sequence[Process], *, told: bool) -> NsysprofError:
    if not processes:
        why, hint = why_nothing(program)
        return NsysprofError(f"nothing recorded: {why}", hint)
    why = "see above" if told else "the program ran no PyTorch operator and opened no range"
    return NsysprofError(f"nothing recorded: {why}")


def _of_processes(outputs: Outputs) -> list[Path]:
    """List the traces of single processes from an earlier capture of the same name."""
    pattern = re.compile(rf"{re.escape(outputs.name)}\.(rank|process)\d.*{re.escape(TORCH_ENDINGS[0])}")
    found = outputs.folder.iterdir() if outputs.folder.is_dir() else iter(())
    return sorted(path for path in found if pattern.fullmatch(path.name))


def _names(recorded: Sequence[Process], outputs: Outputs) -> list[str]:
    """Name the trace of each process by its rank or, without a rank, by its number; a single trace like the capture."""
    names: list[str] = []
    for number, each in enumerate(recorded, 1):
        alone = len(recorded) == 1 and (each.about.world_size or 1) == 1
        part = "" if alone else f".process{number}" if each.about.rank is None else f".rank{each.about.rank}"
        name = f"{outputs.name}{part}{TORCH_ENDINGS[0]}"
        names.append(name if name not in names else f"{outputs.name}{part}.process{number}{TORCH_ENDINGS[0]}")
    return names


def captured_line(record: dict[str, Any]) -> str:
    """Describe the capture in one line."""
    report = record["report"]
    counted = [
        plural(report[what], noun) for what, noun in (("ops", "CPU op"), ("kernels", "kernel"), ("ranges", "range"))
    ]
    size = format_bytes(sum(each["size_bytes"] for each in report["traces"]))
    return f"captured {counted[0]}, {counted[1]} and {counted[2]}: {plural(len(report['traces']), 'trace')}, {size}"


def next_command(capture: TorchCapture) -> str:
    """Return the next command: `fleet` for several processes that used GPUs, otherwise `analyze`."""
    several = capture.traces if capture.record["report"]["kernels"] else capture.traces[:1]
    return command_line("analyze" if len(several) == 1 else "fleet", *several)
