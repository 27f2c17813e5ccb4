"""``points.jsonl``, the file of an unfinished sweep: nsysprof and the measuring process add its lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from nsysprof.core.document import parse_as
from nsysprof.core.files import MAX_TABLE_BYTES, read_small
from nsysprof.errors import NsysprofError

POINTS_SCHEMA = "nsysprof-bench-points/1"
_START_OVER = "--force starts over"
# The lists of a point by the beginning of their names: latencies, and what goes with each of them.
_LISTS = {"": ("throttled", "gpu", "order", "place_in_round"), "aa_": ("aa_throttled",), "graph_": ("graph_throttled",)}
MAX_DIFFERENCES = 5


@dataclass
class SweepFile:
    """The current contents of a sweep file. ``points``: the points of the first run, by (configuration id, backend).

    ``again``: the points of later runs, by (configuration id, backend, run). ``runs``: run and order of every measuring
    process.
    """

    head: dict[str, Any]
    start: dict[str, Any] | None = None
    peaks: dict[str, Any] | None = None
    points: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    again: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    auto: dict[str, str | None] = field(default_factory=dict)
    trying: str | None = None
    failed: dict[str, Any] | None = None
    deaths: int = 0
    done: bool = False

    @property
    def planned(self) -> int:
        """Return the number of planned points over all runs; later runs omit points that run 1 could not measure."""
        given_up: int = sum(point["status"] != "measured" for point in self.points.values())
        once: int = sum(len(each["backends"]) for each in self.head["plan"]["configurations"])
        return once + (once - given_up) * (self.planned_runs - 1)

    @property
    def planned_runs(self) -> int:
        """Return the number of runs in the plan."""
        return int(self.head["plan"].get("runs") or 1)

    @property
    def kept(self) -> int:
        """The number of points already measured."""
        return len(self.points) + len(self.again)

    def merged(self, place: tuple[str, str]) -> dict[str, Any]:
        """Return a point with the samples of all runs, and with ``run``, ``aa_run``, ``graph_run`` of each sample.

        All other values are from the first run. ``run_reasons``: why samples of a run are missing.
        """
        first = self.points[place]
        point = {name: value for name, value in first.items() if name != "run"}
        parts = [(0, first), *((run, each) for (*at, run), each in self.again.items() if (*at,) == place)]
        if first["status"] != "measured" or self.planned_runs == 1:
            return point
        measured = [(run, each) for run, each in parts if each["status"] == "measured"]
        for prefix, names in _LISTS.items():
            latency = f"{prefix}latency_ns"
            known = [(run, each) for run, each in measured if each.get(latency)]
            for name in (latency, *names):
                lists = [each.get(name) for _, each in known]
                point[name] = list(chain.from_iterable(lists)) if lists and None not in lists else None  # type: ignore[arg-type]
            point[f"{prefix}run"] = [run for run, each in known for _ in each[latency]]
        gone = {str(run): each["reason"] or each["status"] for run, each in parts if each["status"] != "measured"}
        return {**point, "run_reasons": gone}


def begin_points(path: Path, head: Mapping[str, Any]) -> None:
    """Create the file of a new sweep; ``head`` has the plan, and machine facts that only this process knows."""
    path.write_bytes(b"")
    add_line(path, "sweep", schema=POINTS_SCHEMA, **head)


def add_line(path: Path, kind: str, **content: Any) -> None:
    """Append a line about an event."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, **content}, allow_nan=False) + "\n")


def resume_points(path: Path, head: Mapping[str, Any]) -> SweepFile:
    """Resume a sweep, after removing an incomplete last line.

    Raises `NsysprofError` with the differences if plan or machine differ.
    """
    sweep = read_points(path, cut=True)
    for what in ("plan", "machine"):
        if differ := differing(sweep.head[what], json.loads(json.dumps(head[what]))):
            more = [f"and {len(differ) - MAX_DIFFERENCES} more"] * (len(differ) > MAX_DIFFERENCES)
            shown = "; ".join([*differ[:MAX_DIFFERENCES], *more])
            raise NsysprofError(f"{path.parent}: started with another {what}: {shown}", _START_OVER)
    if head["measure_peaks"] and not sweep.head["measure_peaks"]:
        raise NsysprofError(f"{path.parent}: started without --measure-peaks", _START_OVER)
    return sweep


def read_points(path: Path, *, cut: bool = False) -> SweepFile:
    """Read the file of a sweep; ``cut`` removes an incomplete last line.

    Raises `NsysprofError` with the line if the file cannot be read, is damaged, or is not a sweep.
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
        raise NsysprofError(f"{path}: empty; expected a sweep file", _START_OVER)
    return sweep


def differing(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return the differences between a saved and a new mapping in words: `samples 100 there, 50 here`."""
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
    run: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0


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
            sweep.runs.append({name: line.get(name) for name in ("run", "order")})
            sweep.failed = None
        case "trying":
            sweep.trying = f"{' '.join(line['backends'])} at {line['configuration']}"
        case "point":
            point = line["point"]
            place, run = (point["configuration"]["id"], point["backend"]), point.get("run") or 0
            if run:
                sweep.again[(*place, run)] = point
            else:
                sweep.points[place] = point
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
    raise ValueError(f"{constant} is not a number")
