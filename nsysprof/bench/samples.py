"""What `nsysprof bench` measured, read back from ``samples.json`` and checked: nothing that is wrong goes on from here.

Every complaint names the file, the point and the field. NaN, infinite and non-positive latencies are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from nsysprof.bench.attention import attention_cost, attention_described
from nsysprof.core.document import Amount, Count, Text, parse_as
from nsysprof.core.files import MAX_TABLE_BYTES, parse_json, read_small
from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import Cost, Described, check_countable, described
from nsysprof.hardware.peaks import GpuLimits, memory_bandwidth
from nsysprof.statistics.distributions import Floats

__all__ = ["BENCH_SCHEMA", "BenchPoint", "BenchSamples", "BenchShape", "read_bench_samples"]

BENCH_SCHEMA = "nsysprof-bench/1"
MEMORY_PARTS = ("before", "inputs", "outputs", "temporary", "peak")
_AGAIN = "measure it again: nsysprof bench"


_Duration = Annotated[float, msgspec.Meta(ge=1e-3, le=1e18)]  # ns: from a picosecond to 30 years
_Error = Annotated[float, msgspec.Meta(ge=0, le=1e300)]  # of a wrong output, which may be anything


class _State(msgspec.Struct):
    sm_clock_mhz: Amount | None = None
    temperature_c: Amount | None = None
    power_w: Amount | None = None


class _Samples(msgspec.Struct):
    """The samples of a point, in ns, a mark for each that was taken while the GPU was throttled, and its states."""

    latency_ns: list[_Duration] | None = None
    aa_latency_ns: list[_Duration] | None = None
    graph_latency_ns: list[_Duration] | None = None
    throttled: list[bool] | None = None
    aa_throttled: list[bool] | None = None
    graph_throttled: list[bool] | None = None
    gpu: list[_State | None] | None = None
    calls_per_sample: Count = 1


class _Point(msgspec.Struct):
    status: Literal["measured", "unsupported", "out of memory", "wrong"]
    reason: str | None = None
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
    points: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    command: str | None = None
    peaks: _Peaks | None = None
    auto: dict[str, str | None] | None = None
    gpu_watch: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    workload: dict[str, Any] | None = None


@dataclass(frozen=True)
class BenchShape:
    """One configuration: the problem that every backend was given; ``parts`` name it in words (`S1024`, `fp16`)."""

    id: str
    sizes: Mapping[str, int]
    dtype: str
    flags: Mapping[str, bool]
    parts: Sequence[str]
    cost: Cost


@dataclass(frozen=True)
class BenchPoint:
    """One backend on one configuration. Latencies in ns per call, one for each sample.

    ``latency_ns`` holds what was not ``left_out`` (samples taken while the GPU was throttled); ``all_latency_ns`` and
    ``throttled`` hold all. ``aa_latency_ns`` is a second set of the same backend, ``graph_latency_ns`` that of CUDA
    graph replay (empty: none, ``graph_reason`` says why). ``sampled_with``: the backends it took turns with. ``raw`` is
    the point as it stands in the file.
    """

    shape: BenchShape
    backend: str
    status: str
    reason: str | None
    latency_ns: Floats
    all_latency_ns: Floats
    throttled: NDArray[np.bool_]
    aa_latency_ns: Floats
    graph_latency_ns: Floats
    graph_reason: str | None
    calls_per_sample: int
    errors: Mapping[str, float | None]
    tolerance: float | None
    tolerances: Mapping[str, float | None]
    memory: Mapping[str, int | None]
    sm_clock_mhz: float | None
    sampled_with: frozenset[str]
    raw: Mapping[str, Any]

    @property
    def left_out(self) -> int:
        """How many samples were left out."""
        return int(self.throttled.sum())

    @property
    def name(self) -> str:
        """`flash at B1.H8.S1024.D64.fp16.causal`."""
        return f"{self.backend} at {self.shape.id}"


@dataclass(frozen=True)
class BenchSamples:
    """One ``samples.json``: its points in the order they were measured, and what they were measured on."""

    path: Path
    name: str
    command: str | None
    workload: str
    described: Described
    device: str
    backward: bool
    seed: int
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
        """The points that have samples."""
        return [point for point in self.points if len(point.latency_ns)]


def read_bench_samples(path: Path) -> BenchSamples:
    """Read a ``samples.json``, or the one in a folder.

    Raises `NsysprofError` for a file that cannot be read, is no JSON, comes from another program, or holds a value that
    cannot be; the message names file, point and field.
    """
    path = path / "samples.json" if path.is_dir() else path
    try:
        content = read_small(path, MAX_TABLE_BYTES)
    except OSError as error:
        raise NsysprofError(f"cannot read {path}: {error.strerror}", "nsysprof bench writes it") from None
    try:
        data = parse_json(content)
    except ValueError as error:
        raise NsysprofError(f"{path} is corrupt: {error}", _AGAIN) from None
    found = data.get("schema") if isinstance(data, dict) else None
    if found != BENCH_SCHEMA:
        said = f"its schema is {found!r}" if found is not None else "it states no schema"
        raise NsysprofError(
            f"{path} holds no samples of nsysprof bench: {said}, not {BENCH_SCHEMA!r}",
            "samples.json in the folder that nsysprof bench wrote is meant",
        )
    return _samples(data, path, hashlib.sha256(content).hexdigest()[:16])


def _samples(data: dict[str, Any], path: Path, digest: str) -> BenchSamples:
    file = parse_as(data, _File, str(path), _AGAIN)
    points, about, backward = [], _described(file, path), bool(file.plan.backward or file.plan.train)
    for number, raw in enumerate(file.points):
        where = f"{path}: points[{number}]"
        points.append(_point(raw, where, _shape(raw, where, about, file.workload is None, backward)))
    seen: set[tuple[str, str]] = set()
    for point in points:
        if (point.shape.id, point.backend) in seen:
            raise NsysprofError(f"{path} is corrupt: {point.name} is in it twice", _AGAIN)
        seen.add((point.shape.id, point.backend))
    return BenchSamples(
        path=path,
        name=_written(file.name),
        command=_written(file.command) if file.command else None,
        workload=file.plan.workload,
        device=file.plan.device,
        described=about,
        backward=backward,
        seed=file.plan.seed,
        plan=data["plan"],
        environment=data["environment"],
        environment_hash=file.environment_hash,
        limits=_limits(file.environment, file.peaks or _Peaks(), f"{path}: environment"),
        points=points,
        auto=file.auto or {},
        gpu_watch=file.gpu_watch or None,
        rules=file.rules or {},
        planned=sum(len(each.backends) for each in file.plan.configurations),
        digest=digest,
    )


def _written(text: str) -> str:
    return text.encode(errors="replace").decode()  # half a surrogate pair cannot be written


def _described(file: _File, path: Path) -> Described:
    """What the workload said of itself."""
    if file.workload is None:
        return attention_described(file.plan.workload)
    return described(file.workload, f"{path}: workload", _AGAIN)


def _shape(raw: dict[str, Any], where: str, about: Described, attention: bool, backward: bool) -> BenchShape:
    case = msgspec.defstruct("Case", [("configuration", about.configuration), ("backend", Text)])
    at = msgspec.structs.asdict(parse_as(raw, case, where, _AGAIN).configuration)  # type: ignore[attr-defined]
    where = f"{where} ({raw['backend']} at {at['id']})"
    if attention:
        cost: Cost | None = attention_cost(about.name, at, backward=backward)
    else:
        cost = next((each.cost for each in about.configurations if each.id == at["id"]), None)
    if cost is None:
        raise NsysprofError(f"{where}: workload.configurations: nothing is said of it", _AGAIN)
    check_countable(cost, f"{where}: configuration.{about.sweep}: {at[about.sweep]}", _AGAIN)
    sizes = {axis.column: at[axis.name] for axis in about.axes}
    flags = {flag.column: at[flag.name] for flag in about.flags}
    return BenchShape(at["id"], sizes, at["dtype"], flags, about.parts(at), cost)


def _point(raw: dict[str, Any], where: str, shape: BenchShape) -> BenchPoint:
    where = f"{where} ({raw['backend']} at {shape.id})"
    point = parse_as(raw, _Point, where, _AGAIN)
    measured = point.status == "measured"
    # of a point that was not measured, whatever there is of samples does not count
    samples = parse_as(raw if measured else {}, _Samples, where, _AGAIN)
    if measured and not samples.latency_ns:
        raise NsysprofError(f"{where}: latency_ns: holds no sample although the point is measured", _AGAIN)
    kept, throttled = {}, {}
    for name in ("", "aa_", "graph_"):
        values = np.array(getattr(samples, f"{name}latency_ns") or [], np.float64)
        marks = _marks(getattr(samples, f"{name}throttled"), len(values), f"{where}: {name}throttled")
        kept[name], throttled[name] = values[~marks], marks
    return BenchPoint(
        shape=shape,
        backend=_written(raw["backend"]),
        status=point.status,
        reason=point.reason or None,
        latency_ns=kept[""],
        all_latency_ns=np.array(samples.latency_ns or [], np.float64),
        throttled=throttled[""],
        aa_latency_ns=kept["aa_"],
        graph_latency_ns=kept["graph_"],
        graph_reason=point.graph_reason or None,
        calls_per_sample=samples.calls_per_sample,
        errors=point.errors or {},
        tolerance=point.tolerance,
        tolerances=point.tolerances or {},
        memory={part: _size((point.memory or {}).get(f"{part}_bytes")) for part in MEMORY_PARTS},
        sm_clock_mhz=_clock(samples, throttled[""], where),
        sampled_with=frozenset(point.sampled_with or ()),
        raw=raw if measured else {name: raw[name] for name in raw if name not in _Samples.__struct_fields__},
    )


def _marks(marks: list[bool] | None, count: int, where: str) -> NDArray[np.bool_]:
    """Which samples were taken while the GPU was throttled: none where nothing says so."""
    if marks is not None and len(marks) != count:
        raise NsysprofError(f"{where}: {len(marks)} entries for {count} samples", _AGAIN)
    return np.zeros(count, np.bool_) if marks is None else np.array(marks, np.bool_)


def _size(value: float | None) -> int | None:
    return None if value is None else round(value)


def _clock(samples: _Samples, throttled: NDArray[np.bool_], where: str) -> float | None:
    """The median SM clock of the samples that count, in MHz; None where it was not sampled."""
    if samples.gpu is None:
        return None
    if len(samples.gpu) != len(throttled):
        raise NsysprofError(f"{where}: gpu: {len(samples.gpu)} entries for {len(throttled)} samples", _AGAIN)
    clocks = [state.sm_clock_mhz if state else None for state in samples.gpu]
    known = [clock for clock, skip in zip(clocks, throttled, strict=True) if clock and not skip]
    return float(np.median(known)) if known else None


def _limits(environment: _Environment, peaks: _Peaks, where: str) -> GpuLimits:
    """What environment and measured peaks say of the GPU; the workload's own words come before the driver's."""
    facts = {**((environment.gpus or [{}])[0]), **(environment.workload or {})}
    named = parse_as(facts, _Named, where, _AGAIN)
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
        bytes_per_s=number("bandwidth_bytes_per_s")
        or (memory_bandwidth(clock, int(bus)) if clock and bus else None),
        measured_bytes_per_s=peaks.bandwidth_bytes_per_s,
        measured_flops={name: value for name, value in (peaks.flops or {}).items() if value is not None},
        max_sm_clock_mhz=number("max_sm_clock_mhz"),
    )
