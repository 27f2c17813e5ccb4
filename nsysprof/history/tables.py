"""Declare the tables of `nsysprof history`; columns are an interface: add columns, but never rename one."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from nsysprof.core.text import one_line
from nsysprof.history.history import History, Series
from nsysprof.results.table import Column, table

_RUN = Column("", "number of the run in the order of the history, counted from 1", cell=str, align="l")
_SERIES = Column("", "number of the series (comparable runs and steps), counted from 1", cell=str, align="r")
_COMMIT = Column("", "commit of the run, from the run record or the file name", cell=lambda text: text[:7])
RUNS = table(
    "history.csv",
    "a row per series and run",
    {
        "series": _SERIES,
        "path": Column("", "merged path of the steps of the series", "steps of"),
        "run": _RUN,
        "file": Column("", "report of the run", "report", lambda text: one_line(text, 40)),
        "commit": _COMMIT,
        "started": Column(
            "", "start time of the run in UTC; empty if not recorded", cell=lambda text: text[:16].replace("T", " ")
        ),
        "step_ns": Column("", "median time of the steady steps of the run", "step"),
        "low_ns high_ns": "95 % interval of the median within the run; empty if unknown",
        "n": "number of steady steps",
        "busy_ns": Column("", "mean GPU-busy time per step", "busy"),
        "waits_ns": Column("", "mean GPU-idle time per step", "waits"),
        "launches": Column("", "mean number of launches per step", cell=lambda count: f"{count:,.0f}"),
        "memory_bytes": Column("", "peak of allocated GPU memory", "memory"),
        "level": Column("", "number of the level, counted from 1", cell=str, align="r"),
        "level_ns": Column("", "step time of the level", "level time"),
        "odd": "1 for an outlier run (the next runs return to the earlier level); otherwise 0",
        "gpu driver clock torch": "GPU, driver, GPU clock and version of torch, if recorded",
    },
    made_in="history/tables.py",
)
CHANGES = table(
    "changes.csv",
    "a row per change of level",
    {
        "series": _SERIES,
        "run": Column("", "the first run after the change", "since run", str, "l"),
        "file": Column("", "report of the first run after the change", "report"),
        "commit": _COMMIT,
        "before_ns": Column("", "step time of the level before the change", "before"),
        "after_ns": Column("", "step time of the level after the change", "after"),
        "ratio": "after ÷ before",
        "low_ratio high_ratio": "95 % interval of ratio (each run counts as one sample)",
        "cause": (
            "likely cause: program, machine (the machine changed too, or the commit is the same), or clock "
            "(all kernels changed by the same factor)"
        ),
        "machine": "properties of the machine that changed",
    },
    made_in="history/tables.py",
)
LEDGER = table(
    "history_ledger.csv",
    "a row per change and part of a step; the times in the rows of a change add up to the mean step time",
    {
        "series": _SERIES,
        "run": _RUN,
        "part": Column(
            "", "part of a step: kernel family, copies, CPU time, calls or other waits", head="part of a step"
        ),
        "before_ns": Column("", "time of the part before the change", head="before"),
        "after_ns": Column("", "time of the part after the change", head="after"),
        "delta_ns": Column("", "after_ns − before_ns", head="change"),
    },
    made_in="history/tables.py",
)


def run_rows(answer: History, series: Series, number: int) -> Iterator[dict[str, Any]]:
    """The rows of `RUNS` for a series."""
    levels = series.levels
    for row, timed, level, odd in zip(
        series.runs, series.times, levels.of(len(series.runs)).tolist(), levels.odd.tolist(), strict=True
    ):
        run = answer.runs[row]
        yield {
            "series": number,
            "path": series.path,
            "run": row + 1,
            "file": run.file,
            "commit": run.commit,
            "started": "" if run.started is None else utc(run.started),
            "step_ns": timed.median_ns,
            "low_ns": timed.low_ns,
            "high_ns": timed.high_ns,
            "n": timed.n,
            "busy_ns": timed.busy_ns,
            "waits_ns": timed.mean_ns - timed.busy_ns,
            "launches": timed.launches,
            "memory_bytes": run.memory_bytes,
            "level": level + 1,
            "level_ns": round(levels.time(level)),
            "odd": int(odd),
            "gpu": run.machine.get("GPU", ""),
            "driver": run.machine.get("driver", ""),
            "clock": run.machine.get("GPU clock", ""),
            "torch": run.machine.get("torch", ""),
        }


def change_rows(answer: History) -> Iterator[dict[str, Any]]:
    """The rows of `CHANGES`, by series and time."""
    for number, series in enumerate(answer.series, 1):
        for change in series.changes:
            run = answer.runs[change.run]
            yield {
                "series": number,
                "run": change.run + 1,
                "file": run.file,
                "commit": run.commit,
                "before_ns": round(change.before_ns),
                "after_ns": round(change.after_ns),
                "ratio": change.ratio,
                "low_ratio": change.low,
                "high_ratio": change.high,
                "cause": change.cause,
                "machine": "; ".join(f"{name} {old} → {new}" for name, (old, new) in change.machine.items()),
            }


def ledger_rows(answer: History) -> Iterator[dict[str, Any]]:
    """The rows of `LEDGER`."""
    for number, series in enumerate(answer.series, 1):
        for change in series.changes:
            for part, before, after in change.ledger:
                where = {"series": number, "run": change.run + 1, "part": part}
                yield {**where, "before_ns": before, "after_ns": after, "delta_ns": after - before}


def utc(seconds: float) -> str:
    """A UTC time in ISO 8601."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
