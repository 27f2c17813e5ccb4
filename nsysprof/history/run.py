"""Measure one report as a run of a history. The run is a small record of step times and their ledgers, the work, and
the machine.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.levels import Level, choose_level
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.compare.comparable import Kernels, conditions_of, kernels_of
from nsysprof.compare.gap_ledger import apportion
from nsysprof.compare.loaded import LoadedReport, load_report
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import one_line
from nsysprof.formats.run_record import record_beside, record_so_far
from nsysprof.kernels.classify import Rules
from nsysprof.statistics.summary import summarize
from nsysprof.steps.features import without_numbers
from nsysprof.summaries.memory import gpu_memory
from nsysprof.waits.account import account_of
from nsysprof.waits.ranges import pick_windows, windows_of

MAX_PATHS, _MAX_ROWS, _MAX_KERNELS, _NAME = 6, 40, 60, 60
OTHERS = "everything else"
# of a name: hexadecimal digits with a letter among them, or seven decimal ones, which are no date
_COMMIT = re.compile(r"(?<![0-9A-Za-z])(?:(?=\d*[a-f])[0-9a-f]{7,40}|\d{7})(?![0-9A-Za-z])")
# What the machine is made of: these make series of their own, all else that differs stands beside a change.
APART = ("GPU", "GPUs in use", "processes", "ranks", "recorder")


class Timed(msgspec.Struct, frozen=True):
    """The steady steps of a path on the GPU with most of their time; ``n`` is the number of steps; times are in ns.

    ``low_ns`` and ``high_ns`` are the 95 % interval of the median within this run, None if unreliable; ``mean_ns``,
    ``busy_ns`` and ``launches`` are means per step. ``ledger`` adds up to ``mean_ns``.
    """

    path: str
    found: bool
    n: int
    median_ns: int
    low_ns: int | None
    high_ns: int | None
    mean_ns: int
    busy_ns: int
    launches: float
    ledger: dict[str, int]


class Run(msgspec.Struct, frozen=True):
    """A report: ``started`` in seconds since 1970, None if unknown; ``commit`` from the record or name of the report,
    or empty.

    ``machine``: the recording conditions, by name. ``kernels``: for each kernel name, the number of launches, the total
    time in ns, and the sum of grid sizes. ``timed``: the steps of the report, longest first, then the whole recording.
    """

    file: str
    started: float | None
    commit: str
    machine: dict[str, str]
    kernels: Kernels
    timed: tuple[Timed, ...]
    memory_bytes: int | None

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.file).name

    def of(self, path: str) -> Timed:
        """The times of a path."""
        return next(each for each in self.timed if each.path == path)


def run_of(attribution: Attribution, rules: Rules, select: str | None = None) -> Run:
    """Measure a report as a run; ``select`` is a glob of the steps.

    Raises `NsysprofError` if no range matches, or if there is no GPU work.
    """
    report = attribution.trace.report
    loaded = load_report(attribution, rules, DEFAULT_MERGE, {})
    level = choose_level(attribution, select, DEFAULT_MERGE)
    record = record_so_far(beside) if (beside := record_beside(report.path)) else {}
    none = np.empty(0, np.intp)
    whole = Level(attribution.launched, none, none.astype(np.int32), [], None, False)
    timed = [*(_timed(loaded, level) if len(level.rows) else ()), *(() if select else _timed(loaded, whole))]
    memory = [int(size.max()) for _, _, size in gpu_memory(attribution.trace).values() if len(size)]
    commit = _text(record, "environment", "workload", "commit") or _text(record, "environment", "commit")
    named = _COMMIT.search(report.path.name)
    return Run(
        str(report.path),
        seconds_of(_text(record, "started") or report.about.start_utc or ""),
        commit or (named[0] if named else ""),
        _machine(loaded, record),
        _kernels(loaded),
        tuple(timed),
        sum(memory) if memory else None,
    )


def _kernels(loaded: LoadedReport) -> Kernels:
    """The kernels with most time; numbers in names, of lines and of generated code, differ between versions."""
    out: Kernels = {}
    for name, each in kernels_of(loaded, None).items():
        name = without_numbers(name)
        known = out.get(name, (0, 0, 0))
        out[name] = (known[0] + each[0], known[1] + each[1], known[2] + each[2])
    return dict(sorted(out.items(), key=lambda each: -each[1][1])[:_MAX_KERNELS])


def _timed(loaded: LoadedReport, level: Level) -> list[Timed]:
    """The steps of the paths with most time."""
    chosen = windows_of(level, loaded.kinds.communication)
    rows, _ = pick_windows(chosen.attribution.launched, chosen.windows, None, None)
    account = account_of(chosen.attribution, chosen.windows, chosen.texts, loaded.kinds, DEFAULT_MERGE, rows)
    windows, trace = account.windows, chosen.attribution.launched.trace
    length = windows["end_ns"] - windows["start_ns"]
    path, gpu = windows.texts("path"), windows["gpu"]
    total: dict[int, tuple[int, int]] = {}
    for code in np.unique(path.codes).tolist():
        each = [(int(length[(path.codes == code) & (gpu == one)].sum()), -one) for one in np.unique(gpu).tolist()]
        total[code] = max(each)
    out = []
    for code, (_, on) in sorted(total.items(), key=lambda each: -each[1][0])[:MAX_PATHS]:
        mine = np.flatnonzero((path.codes == code) & (gpu == -on))
        mine = mine[np.lexsort((windows["end_ns"][mine], windows["start_ns"][mine]))]
        n, span = len(mine), length[mine]
        busy = span - windows["idle_ns"][mine]
        edges = (windows["start_ns"][mine], windows["end_ns"][mine])
        ops = np.flatnonzero((trace.op_gpu == -on) & (trace.ops.launch >= 0))
        at = np.searchsorted(edges[0], trace.ops.start[ops], side="right") - 1
        inside = ops[(at >= 0) & (trace.ops.start[ops] < np.append(edges[1], 0)[at])]
        found = summarize(span, step=0.0)
        sure = found.interval if found.sure and n > 1 else None
        ledger = _ledger(account.rows, path.words[code], -on, n)
        out.append(
            Timed(
                path.words[code],
                level.found,
                n,
                round(found.median),
                round(sure.low) if sure else None,
                round(sure.high) if sure else None,
                sum(ledger.values()),
                int(busy.sum()) // n,
                len(np.unique(trace.ops.launch[inside])) / n,
                ledger,
            )
        )
    return out


def _ledger(rows: ColumnTable, path: str, gpu: int, steps: int) -> dict[str, int]:
    """What a mean step spends its time on, in whole ns; all but the largest rows are one."""
    total: dict[str, int] = {}
    for row in rows.records():
        if row["path"] == path and row["gpu"] == gpu:
            name = part_name(row["cause"], row["activity"], row["culprit"], row["meanwhile"])
            total[name] = total.get(name, 0) + int(row["waited_ns"])
    names = sorted(total, key=lambda name: -total[name])
    rest = sum(total[name] for name in names[_MAX_ROWS:])
    shown = {name: total[name] for name in names[:_MAX_ROWS]} | ({OTHERS: rest} if rest else {})
    return dict(zip(shown, apportion(list(shown.values()), steps), strict=True))


def part_name(cause: str, activity: str, culprit: str, meanwhile: str) -> str:
    """Name a part of a step: `gemm kernels`, `copies`, `CPU time in postprocess`."""
    if cause == "compute":
        return f"{activity} kernels"
    if cause == "copy" or meanwhile == "copies":
        return "copies"
    if cause == "host" and activity == "code":
        where = culprit.removeprefix("code ").removeprefix("in ")
        return one_line(f"CPU time {'' if where.startswith('outside') else 'in '}{where}", _NAME)
    if cause == "host" and activity == "launch calls":
        return "kernel launches"
    fixed = {"latency": "launch and queue latency", "unknown": "idle, cause unknown", "profiler": "profiling overhead"}
    return fixed.get(cause) or one_line(culprit or activity or cause, _NAME)


def _machine(loaded: LoadedReport, record: Mapping[str, Any]) -> dict[str, str]:
    """What a report and its record say of the machine; only what is known."""
    known = {name: text for name, text in conditions_of(loaded) if text}
    known["recorder"] = loaded.report.reader.recorder
    known["torch"] = _text(record, "environment", "workload", "torch")
    job = record.get("job")
    known["ranks"] = str(job.get("world_size") or "") if isinstance(job, dict) else ""
    return {name: text for name, text in known.items() if text}


def _text(record: Mapping[str, Any], *names: str) -> str:
    value: Any = record
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def seconds_of(text: str) -> float | None:
    """Convert a UTC time in ISO 8601 to seconds since 1970."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
