"""Made-up ``samples.json`` files of `nsysprof bench`: latencies and memory as an H200 has them, with seeded noise."""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.bench.results import BenchResults, read_bench_results
from nsysprof.core.arrays import Floats
from nsysprof.hardware.attention_cost import AttentionShape, attention_flops

ENVIRONMENT: dict[str, Any] = {
    "gpus": [{"name": "NVIDIA H200", "memory.total": "143771", "compute_cap": "9.0"}],
    "driver": "580.95.05",
    "driver_cuda": "13.0",
    "nsys": None,
    "python": "3.12.3",
    "os": "Ubuntu 24.04",
    "kernel": "Linux 6.8",
    "machine": "x86_64",
    "cpu": "INTEL(R) XEON(R) PLATINUM 8568Y+",
    "cpu_count": 16,
    "workload": {
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "cudnn": 91300,
        "device": "NVIDIA H200",
        "compute_capability": "9.0",
        "sm_count": 132,
        "memory_clock_mhz": 3201,
        "memory_bus_width_bits": 6144,
    },
}
PEAKS = {"bandwidth_bytes_per_s": 4.1e12, "flops": {"fp16": 7.4e14, "fp32": 5.1e13}, "measured": "once"}

# Eager latency: the time to launch (ns), and the rate at which FLOPs go once the GPU is busy (FLOP/s).
SPEED = {
    "math": (95_000, 5.7e12),
    "math_reduced": (80_000, 1.3e13),
    "naive": (60_000, 1.5e13),
    "flash": (9_800, 3.9e14),
    "efficient": (11_500, 1.7e14),
    "cudnn": (12_600, 5.1e14),
    "auto": (12_600, 5.1e14),
    "flex": (32_000, 3.3e14),
}
UNFUSED_MATRICES = {"math": (3, 4), "math_reduced": (3, 2), "naive": (2, 2)}  # how many at a time, bytes of an element


def made_up(
    backends: Sequence[str] = ("math", "flash"),
    seqs: Sequence[int] = (1024, 2048, 4096),
    *,
    batch: int = 1,
    heads: int = 8,
    head_dim: int = 64,
    dtypes: Mapping[str, Sequence[str]] | None = None,
    causal: bool = True,
    workload: str = "sdpa",
    backward: bool = False,
    device: str = "cuda",
    samples: int = 100,
    noise: float = 0.012,
    slower: Mapping[str, float] | None = None,
    seed: int = 0,
    name: str = "math-vs-flash",
    memory_limit: float = 141e9,
) -> dict[str, Any]:
    """The file as a mapping: every backend on every length, in each dtype of ``dtypes`` (dtype → its backends).

    ``slower`` multiplies the latency of a backend; what needs more memory than ``memory_limit`` is out of memory.
    """
    shapes = [
        (
            {
                "id": f"B{batch}.H{heads}.S{seq}.D{head_dim}.{dtype}" + ".causal" * causal,
                "batch": batch,
                "heads": heads,
                "seq": seq,
                "head_dim": head_dim,
                "dtype": dtype,
                "causal": causal,
            },
            list(names),
        )
        for seq in seqs
        for dtype, names in (dtypes or {"fp16": backends}).items()
    ]
    points = [
        _point(shape, backend, workload, backward, device, samples, noise, (slower or {}).get(backend, 1), seed)
        for shape, names in shapes
        for backend in names
    ]
    for point in points:
        if (point["memory"]["peak_bytes"] or 0) > memory_limit:
            _give_up(point, "out of memory", "Tried to allocate more than there is.")
        elif point["configuration"]["dtype"] == "fp32" and point["backend"] in ("flash", "cudnn"):
            _give_up(point, "unsupported", "Expected query, key and value to all be of dtype: {Half, BFloat16}.")
    return {
        "schema": "nsysprof-bench/1",
        "name": name,
        "command": f"nsysprof bench --preset {name}",
        "plan": {
            "schema": "nsysprof-bench-plan/1",
            "workload": workload,
            "device": device,
            "seed": seed,
            "train" if workload == "transformer_block" else "backward": backward,
            "samples": samples,
            "warm_cache": False,
            "graph": True,
            "configurations": [{**shape, "backends": names} for shape, names in shapes],
        },
        "workload": described(workload, [shape for shape, _ in shapes], backward=backward),
        "environment": json.loads(json.dumps(ENVIRONMENT)) if device == "cuda" else {"cpu": "a CPU", "gpus": []},
        "environment_hash": "5c1a9d3f0b7e2468" if device == "cuda" else "00cc00cc00cc00cc",
        "peaks": PEAKS if device == "cuda" else None,
        "points": points,
        "auto": {shape["id"]: "cudnn" for shape, names in shapes if "auto" in names and shape["dtype"] != "fp32"},
    }


def described(workload: str, shapes: Sequence[Mapping[str, Any]], *, backward: bool = False) -> dict[str, Any]:
    """How a workload of attention describes itself, and what a call of each of these shapes costs."""
    block = workload == "transformer_block"
    mode = {"option": "train", "on": "training step"}
    axes = {"batch": ("B", 1), "heads": ("H", 8), "seq": ("S", 1024), "head_dim": ("D", 64)}
    says = {"seq": "sequence length", "head_dim": "head dimension"}
    return {
        "schema": "nsysprof-describe/1",
        "name": workload,
        "says": {"sdpa": "attention", "transformer_block": "transformer block"}.get(workload, workload),
        "axes": [
            {"name": name, "short": short, "says": says.get(name, name), "default": size}
            for name, (short, size) in axes.items()
        ],
        "sweep": "seq",
        "flags": [{"name": "causal", "on": "causal", "off": "full"}],
        "dtypes": ["fp16", "bf16", "fp32"],
        "mode": mode if block else {"option": "backward", "on": "forward and backward", "off": "forward"},
        "backends": {name: {} for name in ("math", "flash")},
        "default_backends": ["math", "flash"],
        "base": ["math", "naive"],
        "reference": "attention",
        "flops": "of the matrix products, masked scores not counted",
        "traffic": "the score matrices of unfused backends as often as they must be moved",
        "unit": "score matrices",
        "tokens_shown": block,
        "configurations": [
            {"id": shape["id"], "backends": ["math"], "cost": _cost(shape, block, backward)} for shape in shapes
        ],
    }


def _cost(at: Mapping[str, Any], block: bool, backward: bool) -> dict[str, Any]:
    """What the workloads count (`workloads/_attention.py`)."""
    shape = AttentionShape(*(at[key] for key in ("batch", "heads", "seq", "head_dim", "causal")))
    width, tokens, item = shape.heads * shape.head_dim, shape.batch * shape.seq, 4 if at["dtype"] == "fp32" else 2
    rows, weights = shape.elements, 4 * width**2 + 2 * width
    moved = {(False, False): (3, 1), (False, True): (4, 4), (True, False): (1, 1), (True, True): (2, 2)}[
        block, backward
    ]
    of_weights = (weights, 2 * weights if backward else 0) if block else (0, 0)
    read, written = ((count * rows + more) * item for count, more in zip(moved, of_weights, strict=True))
    flops = 8 * tokens * width**2 * (3 if backward else 1) * block + attention_flops(shape, backward=backward)
    masks = {"math": shape.causal, "math_reduced": shape.causal, "naive": 1 + shape.causal}
    passes = {
        name: 4 + 2 * (more if name == "naive" else shape.causal) + (7 + 2 * more * (name == "naive")) * backward
        for name, more in masks.items()
    }
    hidden = "causal counting (all scores are counted, a mask would halve them)"
    return {
        "flops": flops,
        "read_bytes": read,
        "written_bytes": written,
        "tokens": tokens,
        "unit_bytes": shape.scores * item,
        "extra_bytes": {name: count * shape.scores * (4 if name == "math" else item) for name, count in passes.items()},
        "suspects": {} if shape.causal else {hidden: flops * (shape.seq + 1) // (2 * shape.seq)},
    }


def write_samples(folder: Path, data: Mapping[str, Any] | None = None, **how: Any) -> Path:
    """Write ``samples.json`` into a folder, which is made, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.json"
    path.write_text(json.dumps(data if data is not None else made_up(**how)), encoding="utf-8")
    return path


def results_of(folder: Path, data: Mapping[str, Any] | None = None, **how: Any) -> BenchResults:
    """The results of a made-up file."""
    return read_bench_results(write_samples(folder, data, **how))


def in_runs(data: dict[str, Any], runs: int = 3) -> dict[str, Any]:
    """The file as if its samples had been taken in so many runs, one after the other; it is changed."""
    for point in data["points"]:
        for kind in ("", "aa_", "graph_"):
            if values := point.get(f"{kind}latency_ns"):
                point[f"{kind}run"] = [number * runs // len(values) for number in range(len(values))]
    return data


def merged(*runs: Mapping[str, Any]) -> dict[str, Any]:
    """Several grids in one file; a point that is in two of them comes from the first."""
    out = json.loads(json.dumps(runs[0]))
    seen = {(point["configuration"]["id"], point["backend"]) for point in out["points"]}
    known = {shape["id"] for shape in out["plan"]["configurations"]}
    for run in runs[1:]:
        for point in run["points"]:
            if (point["configuration"]["id"], point["backend"]) not in seen:
                out["points"].append(point)
        out["plan"]["configurations"] += [shape for shape in run["plan"]["configurations"] if shape["id"] not in known]
        out["workload"]["configurations"] += run["workload"]["configurations"]
        out["auto"] |= run["auto"]
    return dict(out)


def point_of(data: Mapping[str, Any], backend: str, seq: int) -> dict[str, Any]:
    """One point of the file, to be changed in place."""
    points: list[dict[str, Any]] = data["points"]
    return next(each for each in points if each["backend"] == backend and each["configuration"]["seq"] == seq)


def latency_model(backend: str, flops: int, dtype: str, *, launched: bool = True) -> float:
    """The latency (ns) around which samples of a backend lie; without the time to launch for a CUDA graph."""
    launch, rate = SPEED[backend]
    if dtype == "fp32":
        rate = min(rate, 4e13)
    busy = flops / rate * 1e9 + (6_000 if launched else 5_000)
    return max(launch, busy) if launched else busy


def noisy(rng: np.random.Generator, centre: float, count: int, noise: float) -> Floats:
    """Skewed samples with a few outliers above, as a GPU has them."""
    values = centre * np.exp(noise * (rng.gamma(2.0, 1.0, count) - 2) / 1.4)
    late = rng.random(count) < 0.02
    return np.where(late, values * 1.3, values).round(1)


def _point(
    configuration: dict[str, Any],
    backend: str,
    workload: str,
    backward: bool,
    device: str,
    samples: int,
    noise: float,
    slower: float,
    seed: int,
) -> dict[str, Any]:
    shape = AttentionShape(*(configuration[key] for key in ("batch", "heads", "seq", "head_dim", "causal")))
    dtype, on_gpu = configuration["dtype"], device == "cuda"
    flops = _cost(configuration, workload == "transformer_block", backward)["flops"]
    rng = np.random.default_rng([seed, zlib.crc32(f"{backend}{configuration['id']}".encode())])
    centre = latency_model(backend, flops, dtype) * slower
    alone = latency_model(backend, flops, dtype, launched=False) * slower
    start = 1_700_000_000.0
    return {
        "configuration": configuration,
        "backend": backend,
        "status": "measured",
        "reason": None,
        "errors": {"output": 2.1e-4 if dtype == "fp16" else 3e-7},
        "tolerance": 2e-3 if dtype == "fp16" else 1e-5,
        "memory": _memory(shape, dtype, backend, on_gpu),
        "latency_clock": "cuda events" if on_gpu else "perf_counter",
        "calls_per_sample": 1,
        "latency_ns": noisy(rng, centre, samples, noise).tolist(),
        "aa_latency_ns": noisy(rng, centre, samples, noise).tolist(),
        "graph_latency_ns": noisy(rng, alone, samples, noise / 3).tolist() if on_gpu else None,
        "graph_reason": None if on_gpu else "no GPU",
        "order": list(range(samples)),
        "gpu": [
            {
                "t": start + number / 10,
                "sm_clock_mhz": 1980,
                "memory_clock_mhz": 3201,
                "temperature_c": 41,
                "power_w": 320.5,
                "throttle": 0,
            }
            for number in range(samples)
        ]
        if on_gpu
        else None,
        "throttled": [False] * samples,
        "warmup_calls": 40,
        "warm_until": "stable",
        "cache": "cold",
        "started": "2026-11-20T09:00:00Z",
    }


def _memory(shape: AttentionShape, dtype: str, backend: str, on_gpu: bool) -> dict[str, int | None]:
    size = 4 if dtype == "fp32" else 2
    tensor = shape.batch * shape.heads * shape.seq * shape.head_dim * size
    scores = shape.batch * shape.heads * shape.seq**2
    count, each = UNFUSED_MATRICES.get(backend, (0, 0))
    temporary = scores * count * max(each, size) + shape.batch * shape.heads * shape.seq * 4
    return {
        "before_bytes": 0 if on_gpu else None,
        "inputs_bytes": 3 * tensor,
        "outputs_bytes": tensor,
        "temporary_bytes": temporary if on_gpu else None,
        "peak_bytes": 4 * tensor + temporary if on_gpu else None,
    }


def _give_up(point: dict[str, Any], status: str, reason: str) -> None:
    point |= {
        "status": status,
        "reason": reason,
        "memory": dict.fromkeys(point["memory"]),
        "latency_ns": [],
        "aa_latency_ns": [],
        "graph_latency_ns": None,
        "gpu": None,
        "throttled": [],
        "errors": {},
    }
