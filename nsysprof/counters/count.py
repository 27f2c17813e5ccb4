"""Count a program: run it under ncu twice (for its memory traffic, and for its FLOPs), and join both runs into one
table.

The columns of the table are an interface.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from shlex import join
from typing import Any, TypeAlias

from nsysprof.capture.outputs import LOG, Outputs, completed
from nsysprof.capture.program import check_input, check_program, input_kept, workload_results
from nsysprof.core.files import make_spreadsheet_safe
from nsysprof.core.text import path_part, visible
from nsysprof.counters.metrics import TRAFFIC, CountingRun, plan_runs
from nsysprof.counters.ncu_csv import NcuRow, read_ncu_csv
from nsysprof.counters.ncu_run import (
    PROCESS_SCOPE,
    CountRequest,
    check_counted,
    kernels_counted,
    ncu_command,
    ncu_import,
    ncu_messages,
    profiled_kernels,
)
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import COUNTER_SCHEMA, METRICS, CounterRow, write_counter_csv
from nsysprof.formats.run_record import file_facts, write_record
from nsysprof.results.table import table
from nsysprof.scrub.secrets import Secrets, machine_secrets
from nsysprof.tools.child import Echo, run_child
from nsysprof.tools.driver import PERMISSION_FIX, ask_driver, counters_kept_from_us, fingerprint, gpu_states
from nsysprof.tools.nsight import chip_metrics, ncu_options, run_tool

COUNTERS = table(
    "NAME.counters.csv",
    "a row per kernel launch, in launch order; metrics that the GPU cannot count are empty",
    {
        "range": "path of the range that owns the kernel",
        "order": "number of the launch within its range and process, counted from 0",
        "pid": "process id",
        "kernel": "full name of the kernel",
        "grid block": "size of the grid (in blocks) and of a block (in threads)",
        "duration_ns": "time of the kernel when ncu runs it alone; `compare` uses the time in the report instead",
        "dram_read_bytes dram_write_bytes l2_bytes": (
            "DRAM traffic while the kernel runs, and the kernel's requests to L2; written data may reach "
            "DRAM only during a later kernel"
        ),
        "tensor_instructions tensor_flops": (
            "number of tensor-core instructions and of their FLOPs; a multiply-add counts as two FLOPs"
        ),
        "fp32_flops fp16_flops fp64_flops": (
            "number of FLOPs outside the tensor cores; a packed pair of float16 operations counts as one "
            "operation, as in the hardware counter"
        ),
        "occupancy_percent dram_percent sm_percent l2_percent": (
            "occupancy in % of the warps that an SM can hold; throughput of DRAM, SMs and L2 in % of the peak"
        ),
    },
)


def in_ranges(rows: Iterable[NcuRow], select: str | None) -> list[NcuRow]:
    """Select the rows in ranges whose path or name matches a glob, and in their inner ranges (None: all rows).

    Rows with unclear ranges are kept, because their ranges may match the glob.
    """

    def matches(names: Sequence[str], glob: str) -> bool:
        paths = accumulate(map(path_part, names), "{}/{}".format)
        return any(fnmatchcase(each, glob) for each in (*paths, *names))

    return [row for row in rows if select is None or not row.clear or matches(row.ranges, select)]


def counter_rows(first: Sequence[NcuRow], second: Sequence[NcuRow]) -> tuple[list[CounterRow], int]:
    """Join the rows of the first run with their partners in the second run. Also return the number of rows without a
    partner.

    A partner has the same process (by order of appearance), range, kernel, grid and block. Among all rows with these
    values, it has the same index. Order alone is not enough, because launches of several threads interleave differently
    in each run.
    """
    partners = dict(zip(_keys(second), (row.values for row in second), strict=True))
    rows: list[CounterRow] = []
    seen: dict[tuple[int, str], int] = {}
    lost = 0
    for row, key in zip(first, _keys(first), strict=True):
        more = partners.get(key)
        lost += more is None and bool(second)
        path = row.path
        order = seen.get((row.pid, path), 0)
        seen[row.pid, path] = order + 1
        values = {**dict.fromkeys(METRICS), **row.values, **(more or {})}
        rows.append(CounterRow(path, order, row.pid, row.kernel, row.grid, row.block, values))
    return rows, lost


def without_secrets(rows: Sequence[CounterRow], secrets: Secrets) -> list[CounterRow]:
    """Remove every certain secret from the names of ranges and kernels."""
    names = {name for row in rows for name in (row.path, row.kernel)}
    redactor = secrets.redactor([name.encode("utf-8", "surrogatepass") for name in names], sure=True)
    cut = {name: redactor(name.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass") for name in names}
    return [replace(row, path=cut[row.path], kernel=cut[row.kernel]) for row in rows]


def _keys(rows: Sequence[NcuRow]) -> Iterator[tuple[object, ...]]:
    """Yield for each row the key that its partner in another run has too."""
    processes: dict[int, int] = {}
    times: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = (processes.setdefault(row.pid, len(processes)), row.path, row.kernel, row.grid, row.block)
        times[key] = times.get(key, -1) + 1
        yield (*key, times[key])


_TABLE, _RECORD, _REPORT = ".csv", ".json", ".ncu-rep"
_READING_S = 3600
_NO_TIMES = "launch latencies are unknown, because ncu serializes and replays kernels"


Counted: TypeAlias = tuple[dict[str, Path], list[CounterRow], dict[str, Any]]


def counter_endings(request: CountRequest) -> list[str]:
    """Return the name endings of the files that a count writes."""
    runs = plan_runs(None, quick=request.quick) if request.keep_reports else []
    return [_TABLE, _RECORD, *(f".{run.name}{_REPORT}" for run in runs)]


def counting_commands(request: CountRequest, outputs: Outputs) -> Iterator[list[str]]:
    """Compose the ncu command of each run for the local GPU, or for an H100 if there is no GPU."""
    options = ncu_options(request.ncu)
    try:
        available: Collection[str] | None = chip_metrics(request.ncu)
    except NsysprofError:
        available = None
    for run in plan_runs(available, quick=request.quick):
        yield ncu_command(request, options, run.metrics, outputs.path(f".{run.name}"))


def count_program(
    request: CountRequest,
    folder: Path,
    outputs: Outputs,
    command: Sequence[str],
    echo: Echo,
    *,
    spreadsheet_safe: bool = False,
) -> Counted:
    """Run a program under ncu and tabulate the counters of its kernels, all within ``folder``.

    ``command`` is the user's command line, to be recorded. Returns the files by ending (renamed to their final names
    later), the rows and the record. Raises `NsysprofError` (with the exit code of a failed program) or `Interrupt`;
    ``folder`` then has the log.
    """
    check_program(request.program[0], "ncu")
    options = ncu_options(request.ncu)
    if counters_kept_from_us():
        raise NsysprofError("the driver restricts hardware counters to administrators", PERMISSION_FIX)
    driver, why = ask_driver()
    shown = f"driver {driver.version}" if driver else why
    echo(visible(f"ncu {request.ncu.version_text} ({request.ncu.path}); {shown}") + "\n")
    runs = plan_runs(chip_metrics(request.ncu), quick=request.quick)
    if len(runs) > 1 and not request.results:  # workloads read nothing
        check_input("--quick", echo)
    started, before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), gpu_states()
    counted = []
    for number, run in enumerate(runs, 1):
        times = "each kernel once" if run.name == TRAFFIC else "each kernel replayed, which is slow"
        echo(f"ncu run {number} of {len(runs)}, counting {run.name}: {times}\n")
        with input_kept():
            counted.append(_run_once(request, run, options, folder, outputs, echo))
        if not counted[0][0]:
            raise NsysprofError(
                f"no kernel ran in a range that matches {request.select!r}",
                "choose other ranges with --range GLOB; nsysprof analyze lists the ranges of a recorded program",
            )
    (first, _, results), *others = counted
    rows, lost = counter_rows(first, others[0][0] if others else [])
    record = {
        "schema": COUNTER_SCHEMA,
        "name": outputs.name.removesuffix(".counters"),
        "started": started,
        "command": join(command),
        "program": join(request.program),
        "ncu": request.ncu.version_text,
        "range": request.select,
        "threads": request.threads,
        "cache_control": request.cache_control,
        "clock_control": request.clock_control,
        "runs": [facts for _, facts, _ in counted],
        "columns": {name: {"run": run.name, **terms} for run in runs for name, terms in run.columns.items()},
        "missing": [name for run in runs for name in run.missing],
        "kernels": len(rows),
        "ranges": len({row.path for row in rows}),
        "unmatched": lost,
        "unclear": sum(not row.clear for row in first),
        "warnings": [],
        "environment": fingerprint(None, driver, (results or {}).get("environment")),
        "environment_hash": None,
        "gpu_state": {"before": before, "after": gpu_states()},
        "workload": _without_times(results),
    }
    record["warnings"] = list(_warnings(record, options))
    return _staged(request, folder, outputs, rows, record, spreadsheet_safe)


def _run_once(
    request: CountRequest, run: CountingRun, options: Collection[str], folder: Path, outputs: Outputs, echo: Echo
) -> tuple[list[NcuRow], dict[str, Any], dict[str, Any] | None]:
    """Run the program once under ncu: its rows, its facts for the record, and what the workload wrote."""
    out, log = folder / run.name, folder / LOG
    results = folder / f"{run.name}-results.json" if request.results else None
    since = log.stat().st_size if log.exists() else 0
    with kernels_counted(echo, program=not request.results) as shown:
        ended = run_child(ncu_command(request, options, run.metrics, out, results), log, shown)
    messages, report = ncu_messages(log, since), folder / f"{run.name}{_REPORT}"
    check_counted(ended, messages, request, report)
    measured = workload_results(results, request.program)
    kernels, passes = profiled_kernels(messages)
    rows = _rows(request, run, options, report)
    if len(rows) < kernels:
        raise NsysprofError(f"ncu profiled {kernels:,} kernels, but its report has only {len(rows):,}", "df -h")
    facts = {
        "name": run.name,
        "ncu_command": join(ncu_command(request, options, run.metrics, outputs.path(f".{run.name}"))),
        "wall_ns": ended.wall_ns,
        "kernels": len(rows),
        "passes": list(passes),
        "metrics": list(run.metrics),
    }
    return in_ranges(rows, request.select), facts, measured


def _rows(request: CountRequest, run: CountingRun, options: Collection[str], report: Path) -> list[NcuRow]:
    """Read the rows of ncu's report, which ncu itself prints."""
    done = run_tool(request.ncu.path, ncu_import(options, report), _READING_S)
    try:
        return read_ncu_csv(done.stdout, run.columns)
    except NsysprofError as error:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("==ERROR==")]
        why = errors[0].removeprefix("==ERROR== ") if errors else error.message
        raise NsysprofError(f"ncu {request.ncu.version_text} cannot read its own report: {why}") from None


def _warnings(record: Mapping[str, Any], options: Collection[str]) -> Iterator[str]:
    passes = max(record["runs"][0]["passes"], default=1)
    if passes > 1:
        yield (
            f"counting traffic took {passes} passes on this GPU, so ncu replayed each kernel. Each replay read "
            "all inputs from DRAM, even inputs that the previous kernel had left in L2"
        )
    if record["missing"]:
        yield f"not counted, because this GPU has no metric for it: {', '.join(record['missing'])}"
    if record["unclear"]:
        yield (
            f"{record['unclear']:,} kernels have no range in the table, because several threads had "
            "ranges open; --threads strict uses only ranges of the launching thread"
        )
    if record["threads"] == "follow" and PROCESS_SCOPE not in options:
        yield (
            "this ncu reads only the ranges of the launching thread; a newer ncu (with "
            "--nvtx-push-pop-scope) reads the ranges of all threads"
        )
    if record["unmatched"]:
        yield (
            f"{record['unmatched']:,} kernels of the first run had no match in the second run, so their FLOPs are "
            "unknown"
        )


def _without_times(results: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a workload wrote, without times, which mean nothing here."""
    if results is None:
        return None
    runs = [
        {name: value for name, value in run.items() if not name.startswith("latency")}
        for run in results.get("runs", [])
    ]
    return {**results, "runs": runs, "note": _NO_TIMES}


def _staged(
    request: CountRequest,
    folder: Path,
    outputs: Outputs,
    rows: list[CounterRow],
    record: dict[str, Any],
    spreadsheet_safe: bool,
) -> Counted:
    """Write table and record, without secrets of the machine and its user."""
    rows = without_secrets(rows, machine_secrets())
    table, written = folder / "table.csv", folder / "record.json"
    write_counter_csv(rows, table)
    if spreadsheet_safe:
        make_spreadsheet_safe(table)
    reports = [f"{run['name']}{_REPORT}" for run in record["runs"]] if request.keep_reports else []
    record = completed(record, scrubbed=True)
    record["csv"] = {"file": outputs.path(_TABLE).name, **file_facts(table)}
    write_record(written, record)
    return {_TABLE: table, _RECORD: written, **{f".{name}": folder / name for name in reports}}, rows, record
