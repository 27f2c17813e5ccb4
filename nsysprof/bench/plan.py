"""What a sweep measures: presets and options become a plan, which the program that measures gets as JSON."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsysprof.errors import NsysprofError

__all__ = [
    "DEFAULT_GRID",
    "PRESETS",
    "TOO_LARGE",
    "BenchPreset",
    "Grid",
    "HowMeasured",
    "bench_plan",
    "countable",
    "estimated_bytes",
    "find_preset",
]

PLAN_SCHEMA = "nsysprof-bench-plan/1"
BLOCK = "transformer_block"
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
# Bytes of S x S matrices that are alive at once, as a factor of (bytes of float32, bytes of the inputs): math computes
# in float32, and holds scores, weights and the result of checking them for rows that are masked as a whole.
_SCORES = {"math": (3, 0), "math_reduced": (0, 3), "naive": (0, 2)}
TOO_LARGE = "the operations of such a call are too many to count in 64 bits"
_MOST_PRODUCTS = 2**56  # with all that a training step adds, FLOPs stay below 2^63
_SCORES_BACKWARD = 2  # more of them


@dataclass(frozen=True)
class Grid:
    """Every combination of these sizes, for all of these backends."""

    backends: tuple[str, ...] = ("math", "flash")
    batch: tuple[int, ...] = (1,)
    heads: tuple[int, ...] = (8,)
    seq: tuple[int, ...] = (1024,)
    head_dim: tuple[int, ...] = (64,)
    dtype: tuple[str, ...] = ("fp16",)
    causal: bool = True


DEFAULT_GRID = Grid()


@dataclass(frozen=True)
class BenchPreset:
    """A sweep with a name: what it is for, the program it runs, and the grids it goes through."""

    says: str
    grids: tuple[Grid, ...]
    workload: str = "sdpa"


@dataclass(frozen=True)
class HowMeasured:
    """How every point of a sweep is measured; the same for all, and a part of the plan.

    ``ci_width``: stop before ``samples`` once the 95 % interval of the median is narrower than this part of it.
    ``training``: forward and backward for attention, whole training steps for the block.
    """

    device: str = "cuda"
    seed: int = 0
    training: bool = False
    samples: int = 100
    ci_width: float | None = None
    min_sample_ns: int = 20_000
    warm_cache: bool = False
    graph: bool = True


_ALL = ("math", "flash", "efficient", "cudnn", "auto")
_SCALING_SEQ = (512, 1024, 2048, 4096, 8192, 16384, 32768)

PRESETS: Mapping[str, BenchPreset] = {
    "math-vs-flash": BenchPreset(
        "flash against math: B1 H8 D64 fp16 causal, S 1024 to 4096", (Grid(seq=(1024, 2048, 4096)),)
    ),
    "baseline": BenchPreset(
        "every backend, fp16: S 128 to 2048 at B32 H8 D64, then B 8 to 64 and H 4 to 16 at S512",
        (
            Grid(_ALL, batch=(32,), seq=(128, 256, 512, 1024, 2048), causal=False),
            Grid(_ALL, batch=(8, 16, 32, 64), seq=(512,), causal=False),
            Grid(_ALL, batch=(32,), heads=(4, 8, 16), seq=(512,), causal=False),
        ),
    ),
    "scaling": BenchPreset(
        "a transformer block until memory runs out: naive and auto in fp32 against flash in fp16, and all in fp16",
        (
            Grid(("naive", "auto"), batch=(8,), seq=_SCALING_SEQ, dtype=("fp32",)),
            Grid(("naive", "auto", "flash"), batch=(8,), seq=_SCALING_SEQ),
        ),
        workload=BLOCK,
    ),
    "long": BenchPreset(
        "long sequences: B1 H8 D64 fp16 causal, S 1024 to 32768",
        (Grid(_ALL, seq=(1024, 2048, 4096, 8192, 16384, 32768)),),
    ),
    "single-head": BenchPreset(
        "one head, B1 D64 fp32, S 512 to 2048: what hand-written tiled kernels are measured at",
        (
            Grid(
                ("naive", "math", "efficient", "auto"),
                heads=(1,),
                seq=(512, 1024, 1536, 2048),
                dtype=("fp32",),
                causal=False,
            ),
        ),
    ),
}


def find_preset(name: str) -> BenchPreset:
    """The preset of this name; `NsysprofError` names all of them where there is none."""
    if name not in PRESETS:
        raise NsysprofError(f"no preset {name!r}", f"--preset is one of: {', '.join(PRESETS)}")
    return PRESETS[name]


def bench_plan(
    workload: str, grids: Sequence[Grid], how: HowMeasured, known_backends: Sequence[str]
) -> dict[str, Any]:
    """The plan as JSON has it. Short sequences come first; what several grids ask for is measured once.

    Raises `NsysprofError` for a backend that is none of ``known_backends``.
    """
    asked = dict.fromkeys(name for grid in grids for name in grid.backends)
    if unknown := [name for name in asked if name not in known_backends]:
        raise NsysprofError(
            f"no backend {', '.join(map(repr, unknown))}", f"--backend is one of: {', '.join(known_backends)}"
        )
    return {
        "schema": PLAN_SCHEMA,
        "workload": workload,
        "device": how.device,
        "seed": how.seed,
        "train" if workload == BLOCK else "backward": how.training,
        "samples": how.samples,
        "ci_width": how.ci_width,
        "min_sample_ns": how.min_sample_ns,
        "warm_cache": how.warm_cache,
        "graph": how.graph,
        "configurations": _configurations(grids),
    }


def countable(batch: int, heads: int, seq: int, head_dim: int) -> bool:
    """Whether the FLOPs and bytes of a call of this size, attention or block, fit into 64 bits."""
    width = heads * head_dim
    return batch * seq * width * max(seq, width) <= _MOST_PRODUCTS


def _configurations(grids: Sequence[Grid]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for grid in grids:
        sizes = itertools.product(grid.batch, grid.heads, grid.head_dim, grid.dtype, grid.seq)
        for batch, heads, head_dim, dtype, seq in sizes:
            if not countable(batch, heads, seq, head_dim):
                raise NsysprofError(
                    f"B{batch} H{heads} S{seq} D{head_dim}: {TOO_LARGE}", "choose smaller sizes"
                )
            name = f"B{batch}.H{heads}.S{seq}.D{head_dim}.{dtype}.{'causal' if grid.causal else 'full'}"
            one = found.setdefault(
                name,
                {
                    "id": name,
                    "batch": batch,
                    "heads": heads,
                    "seq": seq,
                    "head_dim": head_dim,
                    "dtype": dtype,
                    "causal": grid.causal,
                    "backends": [],
                },
            )
            one["backends"] += [each for each in dict.fromkeys(grid.backends) if each not in one["backends"]]
    return sorted(found.values(), key=lambda one: one["seq"])


def estimated_bytes(plan: Mapping[str, Any], configuration: Mapping[str, Any], backend: str) -> int:
    """About how much memory a call needs at its peak: inputs, outputs, and the S x S matrices of unfused backends.

    Derived from what the backends are known to keep, and to be trusted to within a factor of two.
    """
    at, training = configuration, bool(plan.get("backward") or plan.get("train"))
    element = ELEMENT_BYTES[at["dtype"]]
    tokens, width = at["batch"] * at["seq"], at["heads"] * at["head_dim"]
    rows = 4 * (2 if training else 1)  # queries, keys, values and the output
    if plan["workload"] == BLOCK:
        rows += 3 * (
            3 if training else 1
        )  # the input, its norm and the sum; all of it is kept for the backward pass
    size = rows * tokens * width * element
    if plan["workload"] == BLOCK:
        size += 4 * width * width * element * (2 if training else 1)  # the weights
    in_float32, in_dtype = _SCORES.get(backend, (0, 0))
    if in_float32 + in_dtype and training:
        in_float32, in_dtype = (count + _SCORES_BACKWARD if count else 0 for count in (in_float32, in_dtype))
    scores = at["batch"] * at["heads"] * at["seq"] ** 2
    return int(size + scores * (4 * in_float32 + element * in_dtype))
