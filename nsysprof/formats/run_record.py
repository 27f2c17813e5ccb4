"""Read and write run records, the ``.json`` beside a report: how the report was made, the shapes, and the program's
measurements.

The record of a capture includes the results of its workload (which are also a separate document).
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from nsysprof.core.document import parse_leniently, read_document, read_if_document
from nsysprof.core.files import whole_file
from nsysprof.core.text import plural
from nsysprof.errors import NsysprofError

RUN_SCHEMA, WORKLOAD_SCHEMA = "nsysprof-run/1", "nsysprof-workload/1"
EVENTS = "cuda events"
MAX_RANK_DIGITS = 9  # of the number of a rank
_WIDTH = 110
_MAX_NS = 2**53  # 104 days, exact as a float
_Large = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class RunRecord(msgspec.Struct, kw_only=True):
    """The record of ``nsysprof capture``, in file order; other parts are added during the capture."""

    schema: str = RUN_SCHEMA
    name: str | None = None
    started: str | None = None
    command: str | None = None
    program: str | None = None
    profiler: str | None = None
    nsys_command: str | None = None
    wall_ns: int | None = None
    exit_code: int | None = None
    rescued: bool | None = None
    job: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    environment_hash: str | None = None
    gpu_state: dict[str, Any] | None = None
    processes: list[dict[str, Any]] | None = None
    overhead: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None


class RecordedRun(msgspec.Struct, frozen=True):
    """A range in the record: the ``latency_ns`` of each call by CUDA events (empty for other clocks), and the shape of
    its attention (None if unknown).
    """

    latency_ns: tuple[int, ...] = ()
    batch: _Large | None = None
    heads: _Large | None = None
    seq: _Large | None = None
    head_dim: _Large | None = None
    dtype: str | None = None
    causal: bool | None = None
    backward: bool | None = None


class _Job(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0, lt=10**MAX_RANK_DIGITS)] | None = None


def read_runs(path: Path) -> dict[str, RecordedRun]:
    """Read the runs of a record or of workload results, by range name.

    Raises `NsysprofError` if the file cannot be read, or is neither a record nor workload results. Invalid values of a
    run are left out.
    """
    workload, _ = _read(path)
    runs = workload.get("runs")
    rows = [row for row in runs if isinstance(row, dict)] if isinstance(runs, list) else []
    return {str(row["range"]): _run(row) for row in rows if "range" in row and row.get("status") == "measured"}


def read_environment(path: Path) -> dict[str, Any]:
    """Read the environment of a record or of workload results; empty if unknown."""
    return _read(path)[1]


def record_name(report: Path) -> Path:
    """Return the name of the record that `capture` writes beside a report: ``run.json``, also for ``run.json.gz``."""
    return report.with_name(report.name.removesuffix(".gz")).with_suffix(".json")


def record_beside(report: Path) -> Path | None:
    """Return the record beside a report, or None if there is none."""
    path = record_name(report)
    if path == report:  # a trace of torch.profiler that is not packed
        return None
    try:
        read_runs(path)
    except NsysprofError:
        return None
    return path


def plain_steps(path: Path, steps: str) -> tuple[float, float, str] | None:
    """Return the median step times (ns) without and with the profiler from a run record, and the name of their range in
    the record.

    ``steps`` is the merged path of the steps. In the record, the steps are a range, or the calls of an outer range.
    Returns None if the record has no such times.
    """
    rows = (parse_leniently(read_if_document(path, RUN_SCHEMA), RunRecord).overhead or {}).get("ranges")
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict):
            continue
        name, medians = row.get("range"), (row.get("plain_median_ns"), row.get("profiled_median_ns"))
        if isinstance(name, str) and (steps == name or steps.startswith(f"{name}/") or steps.endswith(f"/{name}")):
            plain, profiled = (ns if isinstance(ns, (int, float)) and ns > 0 else None for ns in medians)
            if plain and profiled:
                return float(plain), float(profiled), name
    return None


def rank_in_record(path: Path) -> int | None:
    """Return the rank in a run record, or None if there is no record or no rank."""
    record = parse_leniently(read_if_document(path, RUN_SCHEMA), RunRecord)
    return parse_leniently(record.job or {}, _Job).rank


def record_so_far(path: Path | None = None) -> dict[str, Any]:
    """Read the unfinished record of a capture as a `RunRecord`; missing parts are None."""
    return msgspec.structs.asdict(parse_leniently(read_if_document(path, RUN_SCHEMA) if path else {}, RunRecord))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the results of the workload, empty where none ran, and the environment."""
    hint = "nsysprof capture writes a run record beside each report"
    document = read_document(path, "run record", hint, RUN_SCHEMA, WORKLOAD_SCHEMA)
    environment = document.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    if document["schema"] == WORKLOAD_SCHEMA:
        return document, {"workload": environment} if environment else {}
    workload = document.get("workload")
    if workload is not None and (not isinstance(workload, dict) or workload.get("schema") != WORKLOAD_SCHEMA):
        raise NsysprofError(f"{path} is not a run record: its workload is not {WORKLOAD_SCHEMA!r}", hint)
    return workload or {}, environment


def _run(row: dict[str, Any]) -> RecordedRun:
    latency = row.get("latency_ns") if row.get("latency_clock") == EVENTS else None
    numbers = [ns for ns in latency if type(ns) is int and 0 < ns <= _MAX_NS] if isinstance(latency, list) else []
    return parse_leniently({**row, "latency_ns": numbers}, RecordedRun)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record as readable JSON; short values and lists of numbers are on one line.

    Keys keep their order, and numbers keep their format. Names that are not UTF-8 are written as JSON escapes of
    Python's surrogates, so ``json.loads`` restores them. The file is written atomically.
    """
    with whole_file(path) as part:
        part.write_text(f"{_json(record, 0)}\n", encoding="utf-8", errors="backslashreplace")


def file_facts(path: Path) -> dict[str, Any]:
    """Return the ``size_bytes`` and ``sha256`` of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()  # Python 3.10 has no file_digest
        while piece := file.read(1 << 20):
            digest.update(piece)
    return {"size_bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _json(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    numbers = isinstance(value, list) and not any(isinstance(one, (dict, list, str)) for one in value)
    if depth + len(flat) <= _WIDTH or numbers or not isinstance(value, (dict, list)):
        return flat
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_json(one, depth + 1)}" for key, one in value.items()]
    else:
        parts = [_json(one, depth + 1) for one in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    indent = " " * (depth + 1)
    return f"{opening}\n{indent}" + f",\n{indent}".join(parts) + f"\n{' ' * depth}{closing}"


_COMMANDS = ("command", "program", "nsys_command")
# Options with which nsys sets variables, as they are and behind --nsys-arg; and a variable in any other word.
_SETS = re.compile(r"(?:--nsys-arg=)?(?:--env-var|-e)(?:=|(?<=-e)|\Z)")
_SET = re.compile(r"(\A|,)(\w+)=[^,]*")
_VARIABLE = re.compile(r"(?<![^=,])([A-Z_][A-Z0-9_]*)=[^,]*")


def program_alone(words: Sequence[str]) -> list[str]:
    """Return the name of a program without its folder and arguments; ``[3 arguments]`` replaces the arguments."""
    name, *rest = words or [""]
    bare = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    return [bare, *([f"[{plural(len(rest), 'argument')}]"] if rest else [])]


def without_arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    """Remove from a record the program's arguments, and the values of environment variables set for the profiler.

    Arguments of a workload are kept, because they are options of nsysprof. Texts that are not shell commands keep only
    their first word.
    """
    program = None if isinstance(record.get("workload"), dict) else _words(record.get("program"))
    changed: dict[str, Any] = {
        name: _shown(record[name], program) for name in _COMMANDS if isinstance(record.get(name), str)
    }
    if isinstance(record.get("runs"), list):  # of ncu
        changed["runs"] = [
            {**run, "ncu_command": _shown(run["ncu_command"], program)}
            if isinstance(run, dict) and isinstance(run.get("ncu_command"), str)
            else run
            for run in record["runs"]
        ]
    return {**record, **changed}


def _shown(command: str, program: Sequence[str] | None) -> str:
    words = _words(command)
    before, last = words, []
    if program is not None:
        count = len(program) if program and words[-len(program) :] == program else len(words)
        before, last = words[: len(words) - count], program_alone(words[len(words) - count :])
    return " ".join([*map(shlex.quote, _without_values(before)), *last])


def _without_values(words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        option = _SETS.match(word)
        earlier = words[max(0, place - 2) : place]  # `--nsys-arg -e --nsys-arg A=b`
        if any((option_alone := _SETS.fullmatch(one)) and not option_alone[0].endswith("=") for one in earlier):
            yield _SET.sub(r"\1\2=...", word)
        elif option:
            yield option[0] + _SET.sub(r"\1\2=...", word[option.end() :])
        else:
            yield _VARIABLE.sub(r"\1=...", word)


def _words(command: object) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # no command of a shell
        return [command.split(maxsplit=1)[0]] if isinstance(command, str) and command.split() else []
