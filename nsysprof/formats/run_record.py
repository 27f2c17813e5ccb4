"""Reads the record that a capture leaves beside its report: what ran, in which shape, and what the program measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.side_file import read_json
from nsysprof.errors import NsysprofError

_WORKLOAD, _RUN = "nsysprof-workload/1", "nsysprof-run/1"
_SHAPE = ("batch", "heads", "seq", "head_dim")
EVENTS = "cuda events"
_MOST = 2**53  # exact as a float; as nanoseconds 104 days


@dataclass(frozen=True)
class RecordedRun:
    """What the record says of one range: ``latency_ns`` of each call by CUDA events (empty by any other clock), and the
    shape of its attention, None where it does not say.
    """

    latency_ns: tuple[int, ...]
    batch: int | None = None
    heads: int | None = None
    seq: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    causal: bool | None = None
    backward: bool | None = None


def read_runs(path: Path) -> dict[str, RecordedRun]:
    """The runs of a record by the name of their range.

    Raises `NsysprofError` where the file cannot be read or is no record of a capture or a workload.
    """
    try:
        read = read_json(path)
    except OSError as error:
        raise NsysprofError(
            f"{path}: cannot read the record: {error.strerror}", f"ls -l {quote(str(path))}"
        ) from None
    except ValueError as error:
        raise NsysprofError(
            f"{path}: not JSON, so no run record: {error}", f"head -c 200 {quote(str(path))}"
        ) from None
    workload = read.get("workload") if isinstance(read, dict) and read.get("schema") == _RUN else read
    if isinstance(read, dict) and read.get("schema") == _RUN and workload is None:
        return {}
    if not isinstance(workload, dict) or workload.get("schema") != _WORKLOAD:
        raise NsysprofError(
            f"{path}: neither a run record of nsysprof capture nor the results of a workload",
            "nsysprof capture writes one beside each report",
        )
    runs = workload.get("runs")
    rows = [row for row in runs if isinstance(row, dict)] if isinstance(runs, list) else []
    return {
        str(row["range"]): _run(row) for row in rows if "range" in row and row.get("status") == "measured"
    }


def read_environment(path: Path) -> dict[str, Any]:
    """The environment that a record, which `read_runs` has read, was made in; empty where it does not say."""
    read = read_json(path)
    found = read.get("environment")
    if read.get("schema") == _WORKLOAD:
        return {"workload": found} if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def record_beside(report: Path) -> Path | None:
    """The record beside a report, as ``nsysprof capture`` puts it there; None where there is none."""
    path = report.with_suffix(".json")
    try:
        read_runs(path)
    except NsysprofError:
        return None
    return path


def _run(row: dict[str, Any]) -> RecordedRun:
    latency = row.get("latency_ns") if row.get("latency_clock") == EVENTS else None
    numbers = [value for value in latency if _is_count(value)] if isinstance(latency, list) else []
    whole = {name: row[name] for name in _SHAPE if _is_count(row.get(name))}
    known = {name: row[name] for name in ("causal", "backward") if isinstance(row.get(name), bool)}
    dtype = row.get("dtype")
    return RecordedRun(tuple(numbers), **whole, **known, dtype=dtype if isinstance(dtype, str) else None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST
