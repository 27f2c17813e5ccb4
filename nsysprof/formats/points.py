"""``points.jsonl``, the file of a sweep that is not finished: a line per point and event, written by both processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from nsysprof.core.document import parse_as
from nsysprof.core.files import MAX_TABLE_BYTES, read_small
from nsysprof.errors import NsysprofError

POINTS_SCHEMA = "nsysprof-bench-points/1"
_START_OVER = "--force starts over"
MAX_DIFFERENCES = 5


@dataclass
class SweepFile:
    """What the file of a sweep holds so far. ``points`` by (id of the configuration, backend)."""

    head: dict[str, Any]
    start: dict[str, Any] | None = None
    peaks: dict[str, Any] | None = None
    points: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    auto: dict[str, str | None] = field(default_factory=dict)
    trying: str | None = None
    failed: dict[str, Any] | None = None
    deaths: int = 0
    done: bool = False

    @property
    def planned(self) -> int:
        """How many points the plan has."""
        return sum(len(each["backends"]) for each in self.head["plan"]["configurations"])


def begin_points(path: Path, head: Mapping[str, Any]) -> None:
    """Make the file of a new sweep. ``head`` has the plan, and what only this process knows of the machine."""
    path.write_text(
        json.dumps({"kind": "sweep", "schema": POINTS_SCHEMA, **head}, allow_nan=False) + "\n",
        encoding="utf-8",
    )


def add_line(path: Path, kind: str, **content: Any) -> None:
    """Add a line of our own."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **content}, allow_nan=False) + "\n")


def resume_points(path: Path, head: Mapping[str, Any]) -> SweepFile:
    """Resume a sweep, after cutting off a line that was not written to its end.

    Raises `NsysprofError` where the plan or the machine is another one, naming what differs.
    """
    sweep = read_points(path, cut=True)
    for what, there, here in (
        ("plan", sweep.head["plan"], head["plan"]),
        ("machine", sweep.head["machine"], head["machine"]),
    ):
        if differ := differing(there, json.loads(json.dumps(here))):
            more = [f"and {len(differ) - MAX_DIFFERENCES} more"] * (len(differ) > MAX_DIFFERENCES)
            shown = "; ".join([*differ[:MAX_DIFFERENCES], *more])
            raise NsysprofError(f"{path.parent}: begun with another {what}: {shown}", _START_OVER)
    if head["measure_peaks"] and not sweep.head["measure_peaks"]:
        raise NsysprofError(f"{path.parent}: begun without --measure-peaks", _START_OVER)
    return sweep


def read_points(path: Path, *, cut: bool = False) -> SweepFile:
    """Read the file of a sweep; ``cut`` shortens it by a last line that has no end.

    Raises `NsysprofError`, with the line, for a file that cannot be read, is damaged, or is none.
    """
    try:
        content = read_small(path, MAX_TABLE_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        if cut and len(whole) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(whole))
    except OSError as error:
        raise NsysprofError(f"{path}: cannot be read: {error.strerror}", _START_OVER) from None
    sweep: SweepFile | None = None
    for number, line in enumerate(whole.splitlines(), 1):
        where = f"{path}:{number}: not a line of a sweep"
        try:
            read = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise NsysprofError(f"{where}: {error!r:.80}", _START_OVER) from None
        parse_as(read, _Line, where, _START_OVER)
        if sweep is None:
            if read["kind"] != "sweep" or read["schema"] != POINTS_SCHEMA:
                raise NsysprofError(f"{where}: schema {read.get('schema')!r}", _START_OVER)
            sweep = SweepFile(read)
        else:
            _take(sweep, read)
    if sweep is None:
        raise NsysprofError(f"{path}: empty, not the file of a sweep", _START_OVER)
    return sweep


def differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What is not the same in two mappings, in words: `samples 100 there, 50 here`."""
    words = []
    for name in dict.fromkeys([*there, *here]):
        old, new = there.get(name), here.get(name)
        if old == new:
            continue
        if name == "configurations" and isinstance(old, list) and isinstance(new, list):
            words += _differing_configurations(old, new)
        else:
            words.append(f"{name} {json.dumps(old)} there, {json.dumps(new)} here")
    return words


def _differing_configurations(there: list[dict[str, Any]], here: list[dict[str, Any]]) -> list[str]:
    old, new = ({each["id"]: each["backends"] for each in those} for those in (there, here))
    words = [f"{name} only there" for name in old if name not in new]
    words += [f"{name} only here" for name in new if name not in old]
    for name, backends in old.items():
        if name in new and backends != new[name]:
            words.append(f"backends of {name}: {' '.join(backends)} there, {' '.join(new[name])} here")
    return words or ["the order of the configurations"]


class _Place(msgspec.Struct):
    id: str


class _Case(msgspec.Struct):
    configuration: _Place
    backend: str


class _Planned(_Place):
    backends: list[str]


class _Plan(msgspec.Struct):
    configurations: list[_Planned]


_LINES: dict[str, list[tuple[str, Any]]] = {
    "sweep": [("schema", str), ("plan", _Plan), ("machine", dict[str, Any]), ("measure_peaks", bool)],
    "start": [],
    "trying": [("configuration", str), ("backends", list[str])],
    "point": [("point", _Case)],
    "auto": [("configuration", str), ("backend", str | None)],
    "peaks": [("peaks", dict[str, Any] | None)],
    "died": [],
    "failed": [("message", str), ("hint", str | None)],
    "done": [],
}
_STRUCTS = (msgspec.defstruct(kind, fields, tag_field="kind", tag=kind) for kind, fields in _LINES.items())
_Line: Any = reduce(or_, _STRUCTS)


def _take(sweep: SweepFile, line: dict[str, Any]) -> None:
    match line["kind"]:
        case "start":
            sweep.start = sweep.start or line
            sweep.failed = None
        case "trying":
            sweep.trying = f"{' '.join(line['backends'])} at {line['configuration']}"
        case "point":
            point = line["point"]
            sweep.points[point["configuration"]["id"], point["backend"]] = point
        case "auto":
            sweep.auto[line["configuration"]] = line["backend"]
        case "peaks":
            sweep.peaks = line["peaks"]
        case "died":
            sweep.deaths += 1
            sweep.trying = None
        case "failed":
            sweep.failed = {"message": line["message"], "hint": line["hint"]}
        case "done":
            sweep.done = True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
