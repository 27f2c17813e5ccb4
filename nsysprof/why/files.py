"""Write the files of `nsysprof why`: all rows as CSV (columns are an interface), and windows and findings as JSON."""

from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.core.columns import ColumnTable
from nsysprof.diagnosis.text import diagnosis_members
from nsysprof.results.files import document_head, records, write_answer
from nsysprof.results.table import Column, table
from nsysprof.waits.account import PLACE
from nsysprof.why.why import Why

WHY = table(
    "why.csv",
    "a row per range path, GPU, cause and culprit (responsible code); rows of a path and GPU add up to the step time",
    {
        "path": "merged path of the steps",
        "gpu": Column("gpu", "number of the GPU in the report", cell=str, align="r"),
        "pid": Column("pid", "process id", cell=str, align="r"),
        "cause": "compute, or the cause of the wait: communication, copy, kernel, host, latency, profiler, unknown",
        "activity": (
            "CPU activity: launch calls, synchronizing calls, other CUDA calls, OS calls or code. For compute: the "
            "kernel family. For communication with recorded peers: late peer or transfer"
        ),
        "culprit": "responsible call, code, copy, collective or kernel; for unknown waits, the missing data",
        "range": "innermost range around the responsible call or launch",
        "exposed_by": (
            "call that drained the GPU queue before the wait (a call that returned only when the queue was empty)"
        ),
        "meanwhile": "GPU activity during the wait: nothing, copies, communication or compute",
        "claim": (
            "evidence for the cause: dependency (recorded in the trace), order (inferred from times) or abstain "
            "(unknown)"
        ),
        "waits": "number of waits (for compute: number of kernels)",
        "waited_ns": "time of these waits in all steps (for compute: time of the kernels)",
        "per_instance_ns": "waited_ns per step, or per call with --per",
        "share_of_span": Column("share_of_span", "share of the total time of all steps", head="share"),
        "ceiling_ns": "potential speedup: upper bound for the time saved per step without this wait; empty if unknown",
        "hint": "fix that saved time in a replay; empty if none",
        "ceiling_basis": (
            "source of ceiling_ns: forecast (time saved in a replay without the cause) or bound (the whole wait)"
        ),
    },
    made_in="waits/account.py",
)


SCHEMA = "nsysprof-why/1"
FILES = ("why.csv", "why.json")


def write_why(answer: Why, folder: Path) -> list[Path]:
    """Write ``why.csv`` and ``why.json`` into an existing folder and return their paths."""
    return write_answer(folder, {WHY.file: WHY.of(answer.columns("rows"))}, FILES[-1], why_document(answer))


def why_document(answer: Why) -> dict[str, Any]:
    """Return the whole result for JSON: report, paths with their summed windows, rows, and findings."""
    windows = answer.columns("windows")
    length, ones = windows["end_ns"] - windows["start_ns"], np.ones(len(windows), np.int64)
    names = ["windows", "window_ns", "compute_ns", "communication_ns", "blocking_ns", "copies_ns", "idle_ns"]
    paths = ColumnTable({**windows.columns, "windows": ones, "window_ns": length}).summed(PLACE, names)
    return {
        **document_head(SCHEMA, answer.attribution.trace.report),
        "chosen": answer.chosen or None,
        "chosen_steps": answer.level.record(answer.warm_up) if answer.level else None,
        "picked": answer.picked or None,
        "per": answer.per,
        "lacks": list(answer.lacks),
        "warnings": list(answer.warnings),
        "paths": records(paths),
        "residuals": records(answer.columns("residuals")),
        "bounds": answer.bounds or None,
        "findings": [each.listed() for found in answer.findings.values() for each in found],
        **diagnosis_members(answer.diagnosis, answer.attribution.trace.report.path, "why"),
        "rows": records(WHY.of(answer.columns("rows"))),
    }
