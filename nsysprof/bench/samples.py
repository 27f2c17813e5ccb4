"""What `nsysprof bench` measured, read back from ``samples.json`` and checked: nothing that is wrong goes on from here.

Every complaint names the file, the point and the field. NaN, infinite and non-positive latencies are refused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.bench.checked_fields import CheckedFields
from nsysprof.bench.plan import TOO_LARGE, countable
from nsysprof.core.side_file import MOST_TABLE_BYTES, parse_json, read_small
from nsysprof.errors import NsysprofError
from nsysprof.hardware.attention_cost import AttentionShape
from nsysprof.hardware.peaks import GpuLimits, memory_bandwidth
from nsysprof.statistics.distributions import Floats

__all__ = ["BENCH_SCHEMA", "BenchPoint", "BenchSamples", "BenchShape", "read_bench_samples"]

BENCH_SCHEMA = "nsysprof-bench/1"
STATUSES = ("measured", "unsupported", "out of memory", "wrong")
DTYPES = ("fp16", "bf16", "fp32")
MEMORY_PARTS = ("before", "inputs", "outputs", "temporary", "peak")
_SAMPLE_FIELDS = (
    "latency_ns",
    "aa_latency_ns",
    "graph_latency_ns",
    "throttled",
    "aa_throttled",
    "graph_throttled",
    "gpu",
)
_WORDS = ("latency_clock", "cache", "alone_reason", "warm_until")
_LARGEST_ERROR = 1e300  # of a wrong output, which may be anything
_STATES = ("sm_clock_mhz", "temperature_c", "power_w")
_AGAIN = "measure it again: nsysprof bench"


@dataclass(frozen=True)
class BenchShape:
    """One configuration: the problem that every backend was given."""

    id: str
    batch: int
    heads: int
    seq: int
    head_dim: int
    dtype: str
    causal: bool

    @property
    def attention(self) -> AttentionShape:
        """The same for `nsysprof.hardware.attention_cost`."""
        return AttentionShape(self.batch, self.heads, self.seq, self.head_dim, self.causal)


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
        content = read_small(path, MOST_TABLE_BYTES)
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
    return _samples(CheckedFields(data, str(path), _AGAIN), path, hashlib.sha256(content).hexdigest()[:16])


def _samples(top: CheckedFields, path: Path, digest: str) -> BenchSamples:
    plan = top.inner("plan")
    points = [_point(fields) for fields in top.each("points")]
    if not points:
        raise top.wrong("points", "is empty")
    seen: set[tuple[str, str]] = set()
    for point in points:
        if (point.shape.id, point.backend) in seen:
            raise NsysprofError(f"{path} is corrupt: {point.name} is in it twice", _AGAIN)
        seen.add((point.shape.id, point.backend))
    environment = top.inner("environment")
    auto = top.inner("auto", optional=True)
    return BenchSamples(
        path=path,
        name=top.text("name"),
        command=top.optional_text("command"),
        workload=plan.text("workload"),
        device=plan.text("device"),
        backward=bool(plan.values.get("backward") or plan.values.get("train")),
        seed=plan.count("seed", least=0, most=2**63 - 1),
        plan=plan.values,
        environment=environment.values,
        environment_hash=top.text("environment_hash"),
        limits=_limits(environment, top.inner("peaks", optional=True)),
        points=points,
        auto={name: auto.optional_text(name) for name in auto.values},
        gpu_watch=top.inner("gpu_watch").values if top.values.get("gpu_watch") else None,
        rules=top.inner("rules", optional=True).values,
        planned=sum(len(each.texts("backends")) for each in plan.each("configurations")),
        digest=digest,
    )


def _point(fields: CheckedFields) -> BenchPoint:
    shape = _shape(fields.inner("configuration"))
    backend = fields.text("backend")
    fields = fields.called(f"{backend} at {shape.id}")
    status = fields.choice("status", STATUSES)
    measured = status == "measured"
    if not measured:  # whatever there is of samples does not count
        fields = fields.without(*_SAMPLE_FIELDS)
    latency = fields.numbers("latency_ns", least_count=int(measured))
    throttled = fields.flags("throttled", len(latency))
    errors, memory = fields.inner("errors", optional=True), fields.inner("memory", optional=True)
    limits = fields.inner("tolerances", optional=True)
    for name in _WORDS:
        fields.optional_text(name)
    return BenchPoint(
        shape=shape,
        backend=backend,
        status=status,
        reason=fields.optional_text("reason"),
        latency_ns=latency[~throttled],
        all_latency_ns=latency,
        throttled=throttled,
        aa_latency_ns=_kept(fields, "aa_latency_ns", "aa_throttled"),
        graph_latency_ns=_kept(fields, "graph_latency_ns", "graph_throttled"),
        graph_reason=fields.optional_text("graph_reason"),
        calls_per_sample=fields.count("calls_per_sample", least=1) if measured else 1,
        errors={name: errors.number(name, most=_LARGEST_ERROR) for name in errors.values},
        tolerance=fields.number("tolerance"),
        tolerances={name: limits.number(name) for name in limits.values},
        memory={part: _size(memory.number(f"{part}_bytes")) for part in MEMORY_PARTS},
        sm_clock_mhz=_clock(fields, throttled),
        sampled_with=frozenset(fields.texts("sampled_with")),
        raw=fields.values,
    )


def _shape(fields: CheckedFields) -> BenchShape:
    shape = BenchShape(
        id=fields.text("id"),
        batch=fields.count("batch", least=1),
        heads=fields.count("heads", least=1),
        seq=fields.count("seq", least=1),
        head_dim=fields.count("head_dim", least=1),
        dtype=fields.choice("dtype", DTYPES),
        causal=fields.flag("causal"),
    )
    if not countable(shape.batch, shape.heads, shape.seq, shape.head_dim):
        raise fields.wrong("seq", f"is {shape.seq}: {TOO_LARGE}")
    return shape


def _kept(fields: CheckedFields, field: str, throttled: str) -> Floats:
    """The samples of another set that were not taken while the GPU was throttled."""
    values = fields.numbers(field)
    return values[~fields.flags(throttled, len(values))]


def _size(value: float | None) -> int | None:
    return None if value is None else round(value)


def _clock(fields: CheckedFields, throttled: NDArray[np.bool_]) -> float | None:
    """The median SM clock of the samples that count, in MHz; None where it was not sampled."""
    gpu = fields.values.get("gpu")
    if gpu is None:
        return None
    if not isinstance(gpu, list) or not all(state is None or isinstance(state, dict) for state in gpu):
        raise fields.wrong("gpu", f"is no list of states but {gpu!r:.40}")
    if len(gpu) != len(throttled):
        raise fields.wrong("gpu", f"has {len(gpu)} entries for {len(throttled)} samples")
    states = [CheckedFields(state or {}, f"{fields.where}: gpu", fields.hint) for state in gpu]
    clocks, *_ = ([state.number(name) for state in states] for name in _STATES)
    known = [clock for clock, skip in zip(clocks, throttled, strict=True) if clock and not skip]
    return float(np.median(known)) if known else None


def _limits(environment: CheckedFields, peaks: CheckedFields) -> GpuLimits:
    """What environment and measured peaks say of the GPU; the workload's own words come before the driver's."""
    gpus = environment.each("gpus") if environment.values.get("gpus") else []
    workload = environment.inner("workload", optional=True).values
    said = {**(gpus[0].values if gpus else {}), **workload}
    named = CheckedFields(said, environment.where, environment.hint)

    def number(*names: str) -> float | None:
        for name in names:
            try:
                value = float(str(said.get(name)).split()[0])
            except (ValueError, IndexError):
                continue
            if math.isfinite(value) and value > 0:
                return value
        return None

    clock, bus = number("memory_clock_mhz"), number("memory_bus_width_bits")
    sms = number("sm_count", "multi_processor_count")
    flops = peaks.inner("flops", optional=True)
    capability = said.get("compute_capability") or said.get("compute_cap")
    return GpuLimits(
        name=named.optional_text("device") or named.optional_text("name"),
        compute_capability=str(capability) if capability else None,
        sm_count=int(sms) if sms else None,
        bytes_per_s=number("bandwidth_bytes_per_s")
        or (memory_bandwidth(clock, int(bus)) if clock and bus else None),
        measured_bytes_per_s=peaks.number("bandwidth_bytes_per_s"),
        measured_flops={name: value for name in flops.values if (value := flops.number(name)) is not None},
        max_sm_clock_mhz=number("max_sm_clock_mhz"),
    )
