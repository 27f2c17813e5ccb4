"""Read and write ``samples.json``, the measurements of `nsysprof bench`: written when a sweep is complete, validated
when read.

Every error names file, point and field. NaN, infinite and non-positive latencies are refused.
"""

import contextlib
import hashlib
import json
import lzma
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from nsysprof.core.arrays import Floats, Mask
from nsysprof.core.document import Amount, Count, Text, parse_as
from nsysprof.core.files import parse_json, read_small
from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import Cost, Described, check_countable, described
from nsysprof.hardware.peaks import GpuLimits, memory_bandwidth
from nsysprof.statistics.runs import rounding_of
from nsysprof.statistics.summary import clock_step

BENCH_SCHEMA = "nsysprof-bench/1"
MEMORY_PARTS = ("before", "inputs", "outputs", "temporary", "peak")
_MEASURE_AGAIN = "measure it again: nsysprof bench"
_MOST_BYTES = 64 << 20  # of a file, and unpacked: some million samples

Kind = Literal["eager", "aa", "graph"]
"""Set of samples: eager calls, the same eager calls repeated (A/A), or CUDA graph replays."""
KINDS: tuple[Kind, ...] = ("eager", "aa", "graph")

_Duration = Annotated[float, msgspec.Meta(ge=1e-3, le=1e18)]  # ns: from a picosecond to 30 years
_Durations = list[_Duration] | None
_Marks = list[bool] | None
_Runs = list[Annotated[int, msgspec.Meta(ge=0, le=10_000)]] | None
_Error = Annotated[float, msgspec.Meta(ge=0, le=1e300)]  # of a wrong output, which may be anything


class GpuState(msgspec.Struct):
    """The state of the GPU when a sample was taken."""

    sm_clock_mhz: Amount | None = None
    temperature_c: Amount | None = None
    power_w: Amount | None = None


@dataclass(frozen=True)
class BenchShape:
    """One configuration: the problem given to every backend; ``parts`` describe it in words (`S1024`, `fp16`)."""

    id: str
    sizes: Mapping[str, int]
    dtype: str
    flags: Mapping[str, Any]
    parts: Sequence[str]
    cost: Cost


class BenchPoint(msgspec.Struct, dict=True, kw_only=True):
    """One point of the file: a backend on a configuration. The shape follows from the configuration.

    Latencies are in ns per call. Latencies measured while the GPU was throttled are marked; `samples` are all other
    latencies. ``graph_reason``: why there are no CUDA graph replays. ``sampled_with``: the backends whose samples
    alternate with the samples of this backend. ``eager_runs`` and similar fields: the run (process) of each latency, or
    None if there was only one run. ``run_reasons``: why a run has no samples, by run number.
    """

    shape: BenchShape
    backend: str
    status: Literal["measured", "unsupported", "out of memory", "wrong"]
    reason: str | None = None
    eager: _Durations = msgspec.field(name="latency_ns", default=None)
    aa: _Durations = msgspec.field(name="aa_latency_ns", default=None)
    graph: _Durations = msgspec.field(name="graph_latency_ns", default=None)
    eager_marks: _Marks = msgspec.field(name="throttled", default=None)
    aa_marks: _Marks = msgspec.field(name="aa_throttled", default=None)
    graph_marks: _Marks = msgspec.field(name="graph_throttled", default=None)
    eager_runs: _Runs = msgspec.field(name="run", default=None)
    aa_runs: _Runs = msgspec.field(name="aa_run", default=None)
    graph_runs: _Runs = msgspec.field(name="graph_run", default=None)
    run_reasons: dict[str, str] = {}
    gpu: list[GpuState | None] | None = None
    calls_per_sample: Count = 1
    graph_calls_per_sample: Count | None = None
    graph_reason: str | None = None
    errors: dict[str, _Error | None] | None = None
    tolerance: Amount | None = None
    tolerances: dict[str, Amount | None] | None = None
    memory: dict[str, Amount | None] | None = None
    sampled_with: list[str] | None = None
    latency_clock: str | None = None
    cache: str | None = None
    alone_reason: str | None = None
    warm_until: str | None = None
    started: Any = None

    @property
    def name(self) -> str:
        """`flash at B1.H8.S1024.D64.fp16.causal`."""
        return f"{self.backend} at {self.shape.id}"

    @property
    def place(self) -> tuple[str, str]:
        """Configuration and backend."""
        return self.shape.id, self.backend

    @cached_property
    def sets(self) -> dict[Kind, tuple[Floats, Mask]]:
        """Return all latencies of each set, with a mask of samples taken while the GPU was throttled."""
        values = {kind: np.array(getattr(self, kind) or [], np.float64) for kind in KINDS}
        marks = {kind: getattr(self, f"{kind}_marks") or [False] * len(values[kind]) for kind in KINDS}
        return {kind: (values[kind], np.array(marks[kind], np.bool_)) for kind in KINDS}

    def samples(self, kind: Kind) -> Floats:
        """The valid latencies of a set."""
        values, throttled = self.sets[kind]
        return values[~throttled]

    def calls_of(self, kind: Kind) -> int:
        """Return the number of calls per sample of a set, 1 if not recorded."""
        return (self.graph_calls_per_sample if kind == "graph" else self.calls_per_sample) or 1

    def by_run(self, kind: Kind) -> dict[int, Floats]:
        """Return the valid latencies of a set by run; one run if the file states no runs."""
        runs = np.array(getattr(self, f"{kind}_runs") or [0] * len(self.sets[kind][0]), np.int64)
        values, throttled = self.sets[kind]
        return {int(run): values[(runs == run) & ~throttled] for run in np.unique(runs[~throttled])}

    @property
    def latency_ns(self) -> Floats:
        """The valid latencies of eager calls."""
        return self.samples("eager")

    @property
    def left_out(self) -> int:
        """Return the number of eager samples excluded as throttled."""
        return int(self.sets["eager"][1].sum())

    @property
    def sm_clock_mhz(self) -> float | None:
        """Return the median SM clock of the valid samples, or None if it was not sampled."""
        states = zip(self.gpu or [], self.sets["eager"][1], strict=False)
        known = [state.sm_clock_mhz for state, skip in states if state and state.sm_clock_mhz and not skip]
        return float(np.median(known)) if known else None

    def memory_bytes(self, part: str) -> int | None:
        """Return one part of the memory of a call (a name in `MEMORY_PARTS`), in bytes."""
        size = (self.memory or {}).get(f"{part}_bytes")
        return None if size is None else round(size)


# What a point has only where it was measured: a wrong result is no fast one.
_OF_SAMPLES = {
    *("latency_ns", "aa_latency_ns", "graph_latency_ns", "throttled", "aa_throttled", "graph_throttled"),
    *("gpu", "calls_per_sample", "graph_calls_per_sample", "run", "aa_run", "graph_run"),
}


@dataclass(frozen=True)
class BenchSamples:
    """One ``samples.json``: the points in order of measurement, and the machine."""

    path: Path
    name: str
    command: str | None
    workload: str
    described: Described
    device: str
    backward: bool
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]
    environment_hash: str
    limits: GpuLimits
    points: Sequence[BenchPoint]
    auto: Mapping[str, str | None]
    gpu_watch: Mapping[str, Any] | None
    rules: Mapping[str, str]
    planned: int
    digest: str

    @property
    def measured(self) -> list[BenchPoint]:
        """The points with samples."""
        return [point for point in self.points if len(point.latency_ns)]

    @cached_property
    def runs(self) -> int:
        """Return the number of runs with samples (each run is a separate process), 1 if the file states no runs."""
        return max((len(point.by_run("eager")) for point in self.points), default=1) or 1

    def step(self, point: BenchPoint, kind: Kind) -> float:
        """Return the clock resolution per call (ns): a sample is the mean of several calls."""
        return self.clock_step / point.calls_of(kind)

    def rounding(self, point: BenchPoint, kind: Kind) -> float:
        """Return the largest error (in logarithms) that the clock resolution causes in a median; see `rounding_of`."""
        values = point.samples(kind)
        return rounding_of(self.step(point, kind), float(np.median(values))) if len(values) else 0.0

    @cached_property
    def clock_step(self) -> int:
        """Return the clock resolution (ns) that the latencies show, or 0 if it cannot be determined."""
        # what the clock read
        whole = [point.samples(kind) * point.calls_of(kind) for point in self.measured for kind in KINDS]
        return clock_step(np.rint(np.concatenate(whole)).astype(np.int64)) if whole else 0


class _Planned(msgspec.Struct):
    backends: list[str] = []


class _Plan(msgspec.Struct):
    workload: Text
    device: Text
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    configurations: list[_Planned]
    backward: bool | None = None
    train: bool | None = None


class _Environment(msgspec.Struct):
    gpus: list[dict[str, Any]] | None = None
    workload: dict[str, Any] | None = None


class _Named(msgspec.Struct):
    device: str | None = None
    name: str | None = None


class _Peaks(msgspec.Struct):
    bandwidth_bytes_per_s: Amount | None = None
    flops: dict[str, Amount | None] | None = None


class _File(msgspec.Struct):
    name: Text
    plan: _Plan
    environment: _Environment
    environment_hash: Text
    workload: dict[str, Any]
    points: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    command: str | None = None
    peaks: _Peaks | None = None
    auto: dict[str, str | None] | None = None
    gpu_watch: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None


def write_samples(document: Mapping[str, Any], path: Path) -> None:
    """Write the document as JSON, one line per point."""
    rest = {name: value for name, value in document.items() if name != "points"}
    text = json.dumps(rest, indent=1, ensure_ascii=False, allow_nan=False)
    points = ",\n".join(json.dumps(point, allow_nan=False) for point in document["points"])
    whole = f'{text[:-2]},\n "points": [\n{points}\n ]\n}}\n'
    path.write_text(whole, encoding="utf-8", errors="replace")  # names of files need not be UTF-8


def read_bench_samples(path: Path) -> BenchSamples:
    """Read a ``samples.json`` or ``samples.json.xz``, given as a file or by the folder.

    Raises `NsysprofError` if the file cannot be read, is not JSON, comes from another program, or has an impossible
    value; the message names file, point and field.
    """
    path = samples_file(path)
    content = samples_content(path)
    try:
        data = parse_json(content, _MOST_BYTES)
    except ValueError as error:
        raise _corrupt(f"{path} is corrupt: {error}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != BENCH_SCHEMA:
        stated = f"the schema is {schema!r}" if schema is not None else "the file states no schema"
        raise NsysprofError(
            f"{path} is not a samples file of nsysprof bench: {stated}; expected {BENCH_SCHEMA!r}",
            "give samples.json from a folder that nsysprof bench wrote",
        )
    return _samples(data, path, hashlib.sha256(content).hexdigest()[:16])


def samples_file(place: Path) -> Path:
    """Return the samples file in a folder (compressed if there is no other); a file is returned unchanged."""
    if not place.is_dir():
        return place
    plain, packed = place / "samples.json", place / "samples.json.xz"
    return packed if packed.is_file() and not plain.exists() else plain


def samples_content(path: Path) -> bytes:
    """Return the JSON of samples, plain or xz-compressed; raises `NsysprofError` if the file cannot be read."""
    try:
        content = read_small(path, _MOST_BYTES)
    except OSError as error:
        raise NsysprofError(f"cannot read {path}: {error.strerror}", "nsysprof bench writes this file") from None
    if path.suffix != ".xz":
        return content
    unpacker = lzma.LZMADecompressor(memlimit=2 * _MOST_BYTES)
    with contextlib.suppress(lzma.LZMAError):
        content = unpacker.decompress(content, _MOST_BYTES)
    if not unpacker.eof:
        raise _corrupt(f"{path} is a damaged xz file, or exceeds {_MOST_BYTES >> 20} MiB unpacked")
    return content


def _samples(data: dict[str, Any], path: Path, digest: str) -> BenchSamples:
    file = parse_as(data, _File, str(path), _MEASURE_AGAIN)
    plan, backward = file.plan, bool(file.plan.backward or file.plan.train)
    about = described(file.workload, f"{path}: workload", _MEASURE_AGAIN)
    points: dict[tuple[str, str], BenchPoint] = {}
    for number, raw in enumerate(file.points):
        point = _point(raw, f"{path}: points[{number}]", about)
        if point.place in points:
            raise _corrupt(f"{path} is corrupt: {point.name} occurs twice")
        points[point.place] = point
    return BenchSamples(
        path=path,
        name=_written(file.name),
        command=_written(file.command) if file.command else None,
        workload=plan.workload,
        device=plan.device,
        described=about,
        backward=backward,
        plan=data["plan"],
        environment=data["environment"],
        environment_hash=file.environment_hash,
        limits=_limits(file.environment, file.peaks or _Peaks(), f"{path}: environment"),
        points=list(points.values()),
        auto=file.auto or {},
        gpu_watch=file.gpu_watch or None,
        rules=file.rules or {},
        planned=sum(len(each.backends) for each in plan.configurations),
        digest=digest,
    )


def _corrupt(message: str) -> NsysprofError:
    return NsysprofError(message, _MEASURE_AGAIN)


def _written(text: str) -> str:
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be written


def _point(raw: dict[str, Any], where: str, about: Described) -> BenchPoint:
    case = msgspec.defstruct("Case", [("configuration", about.configuration), ("backend", Text)])
    at = msgspec.structs.asdict(parse_as(raw, case, where, _MEASURE_AGAIN).configuration)  # type: ignore[attr-defined]
    where = f"{where} ({raw['backend']} at {at['id']})"
    cost = next((each.cost for each in about.configurations if each.id == at["id"]), None)
    if cost is None:
        raise _corrupt(f"{where}: workload.configurations: no configuration has this id")
    check_countable(cost, f"{where}: configuration.{about.sweep}: {at[about.sweep]}", _MEASURE_AGAIN)
    sizes = {axis.column: at[axis.name] for axis in about.axes}
    flags = {each.column: at[each.name] for each in about.properties}
    shape = BenchShape(at["id"], sizes, at["dtype"], flags, about.parts(at), cost)
    measured = raw.get("status") == "measured"
    kept = raw if measured else {name: raw[name] for name in raw if name not in _OF_SAMPLES}
    point = parse_as({**kept, "backend": _written(raw["backend"]), "shape": shape}, BenchPoint, where, _MEASURE_AGAIN)
    if measured and not point.eager:
        raise _corrupt(f"{where}: latency_ns is empty, although the point was measured")
    lists = [
        (f"{kind}_{entries}", kind, f"{prefix}{field}")
        for kind, prefix in zip(KINDS, ("", "aa_", "graph_"), strict=True)
        for entries, field in (("marks", "throttled"), ("runs", "run"))
    ]
    for name, kind, field in (*lists, ("gpu", "eager", "gpu")):
        entries, samples = getattr(point, name), getattr(point, kind) or ()
        if entries is not None and len(entries) != len(samples):
            raise _corrupt(f"{where}: {field}: {len(entries)} entries for {len(samples)} samples")
    return point


def _limits(environment: _Environment, peaks: _Peaks, where: str) -> GpuLimits:
    """The limits of the GPU by environment and measured peaks; the workload's own facts come before the driver's."""
    facts = {**((environment.gpus or [{}])[0]), **(environment.workload or {})}
    named = parse_as(facts, _Named, where, _MEASURE_AGAIN)
    name = named.device or named.name

    def number(*names: str) -> float | None:
        for name in names:
            try:
                value = float(str(facts.get(name)).split()[0])
            except (ValueError, IndexError):
                continue
            if math.isfinite(value) and value > 0:
                return value
        return None

    clock, bus = number("memory_clock_mhz"), number("memory_bus_width_bits")
    sms = number("sm_count", "multi_processor_count")
    capability = facts.get("compute_capability") or facts.get("compute_cap")
    return GpuLimits(
        name=_written(name) if name else None,
        compute_capability=str(capability) if capability else None,
        sm_count=int(sms) if sms else None,
        bytes_per_s=number("bandwidth_bytes_per_s") or (memory_bandwidth(clock, int(bus)) if clock and bus else None),
        measured_bytes_per_s=peaks.bandwidth_bytes_per_s,
        measured_flops={name: value for name, value in (peaks.flops or {}).items() if value is not None},
        max_sm_clock_mhz=number("max_sm_clock_mhz"),
    )
