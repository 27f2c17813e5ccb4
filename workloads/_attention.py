"""What the attention workloads share: backends, how each one is switched on and called, sizes, and what a call costs.

A backend is one entry of `BACKENDS`. Its functions import what they need when they are called, so that the names
are known, for the help and for mistakes in it, without torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _masks import DENSE, FLOAT, NONE, PADDING, bias, dense_mask, read_mask, seen_pairs, sees, window_of
from _results import WorkloadError
from _tiled_stages import STAGES
from _workload import TOLERANCES, Axis, Backend, Case, Choice, Cost, Flag, number_of, tolerance

__all__ = ["BACKENDS", "TOLERANCES", "Backend", "Problem", "attention_cost", "tolerance"]

if TYPE_CHECKING:
    import torch

    # Queries, keys and values of shape (batch, heads, sequence, head dimension) to an output of that shape; where the
    # problem has dropout, a fourth argument is the part of the weights that is dropped.
    Attend = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """What a backend may know beforehand, to prepare what is not part of a call.

    Queries are of (batch, heads, seq, head_dim), keys and values of (batch, kv_heads, kv_seq, head_dim); 0 for either
    of these: as queries have it.
    """

    seq: int
    head_dim: int
    causal: bool
    device: str
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    kv_seq: int = 0
    dtype: str = "fp16"
    mask: str = NONE
    dropout: float = 0.0
    tile_keys: int = 0

    def __post_init__(self) -> None:
        """Raises `WorkloadError` for sizes that do not go together."""
        if self.heads % (self.kv_heads or self.heads):
            hint = "--heads must be a multiple of --kv-heads"
            raise WorkloadError(f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly", hint)
        if window_of(self.mask) and self.keys != self.seq:
            raise WorkloadError("a window would leave queries without keys", "leave out --kv-seq, or the window")

    @staticmethod
    def of(at: Case | Problem) -> Problem:
        """The problem of a case."""
        given = {"device": "cpu", **vars(at)}  # a cost is asked for without a device
        return Problem(**{field.name: given[field.name] for field in fields(Problem) if field.name in given})

    @property
    def keys(self) -> int:
        """The length of keys and values."""
        return self.kv_seq or self.seq

    @property
    def shared(self) -> int:
        """How many heads of queries share one of keys."""
        return self.heads // (self.kv_heads or self.heads)

    def require(self, what: str, *masks: str, dropout: bool = False) -> None:
        """Raises RuntimeError, which makes it unsupported, where ``what`` has not this mask, or no dropout."""
        if self.mask != NONE and self.mask.partition(":")[0] not in masks:
            raise RuntimeError(f"{what} does not support mask {self.mask}")
        if self.dropout and not dropout:
            raise RuntimeError(f"{what} does not support dropout")

    def dense_mask(self) -> torch.Tensor | None:
        """The mask as a tensor, with causality in it; None where there is none but that."""
        import torch

        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[self.dtype]
        return None if self.mask == NONE else dense_mask(self, self.device, dtype)


@contextmanager
def _only(name: str) -> Iterator[None]:
    """Allows PyTorch exactly one backend: where that cannot run, PyTorch says why instead of taking another."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, name)):
        yield


@contextmanager
def _reduced_math() -> Iterator[None]:
    """Allows `math` alone, and allows it to stay in half precision."""
    import torch

    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with _only("MATH"):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _sdpa(problem: Problem) -> Attend:
    """PyTorch's own function, with whatever the settings leave it."""
    from torch.nn.functional import scaled_dot_product_attention

    problem = Problem.of(problem)
    shared = {"enable_gqa": True} if problem.shared > 1 else {}
    mask = problem.dense_mask()
    how = {"is_causal": problem.causal} if mask is None else {"attn_mask": mask}

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        out: torch.Tensor = scaled_dot_product_attention(q, k, v, dropout_p=dropout, **how, **shared)
        return out

    return attend


def _naive(problem: Problem) -> Attend:
    """Attention as the formula has it, every step an operation of its own in the type of the inputs."""
    import torch

    problem = Problem.of(problem)
    scale = problem.head_dim**-0.5
    mask = problem.dense_mask()
    if mask is None and problem.causal:
        mask = dense_mask(problem, problem.device, torch.float32)
    hidden = ~mask if mask is not None and mask.dtype == torch.bool else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        if problem.shared > 1:
            k, v = (each.repeat_interleave(problem.shared, dim=1) for each in (k, v))
        scores = q @ k.transpose(-2, -1) * scale
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        elif mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1)
        return (torch.dropout(weights, dropout, train=True) if dropout else weights) @ v

    return attend


def _flex(problem: Problem) -> Attend:
    """FlexAttention, compiled for this shape alone."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Compiled code of earlier shapes would count towards a limit, past which calls are silently not compiled.
    torch._dynamo.reset()
    problem = Problem.of(problem)
    problem.require("FlexAttention", "window", *DENSE, PADDING)
    blocks = None
    if problem.causal or problem.mask not in (NONE, FLOAT):

        def seen(batch: torch.Tensor, _head: object, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return sees(problem, batch, row, key)

        batch = problem.batch if problem.mask == PADDING else None
        blocks = create_block_mask(seen, batch, None, problem.seq, problem.keys, device=problem.device)

    def biased(score: torch.Tensor, _batch: object, _head: object, *at: torch.Tensor) -> torch.Tensor:
        return score + bias(*at).to(problem_dtype).to(score.dtype)

    problem_dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[problem.dtype]
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    more = {"score_mod": biased} if problem.mask == FLOAT else {}
    return partial(compiled, block_mask=blocks, enable_gqa=problem.shared > 1, **more)


def _flash_attn_4(problem: Problem) -> Attend:
    """The flash-attn-4 package, whose kernels are compiled for the GPU at the first call.

    nvidia-cutlass-dsl keeps its modules in a folder of its own, which a `.pth` file puts on the path; where that is
    not read, as in a folder that is on the path by `PYTHONPATH`, it is done here.
    """
    if spec := importlib.util.find_spec("nvidia_cutlass_dsl"):
        for place in spec.submodule_search_locations or ():
            modules = str(Path(place) / "dsl_packages")
            if modules not in sys.path and Path(modules).is_dir():
                sys.path.append(modules)
    return _sequence_first("flash_attn_4", "flash_attn.cute", problem)


def _sequence_first(backend: str, module: str, problem: Problem, *, dropout: bool = False) -> Attend:
    """Attention by a package that has the sequence before the heads: views, nothing is copied."""
    import torch

    problem, package = Problem.of(problem), backend.replace("_", "-")
    if problem.device != "cuda":
        raise RuntimeError(f"{package} runs on NVIDIA GPUs only, not on {problem.device}")
    try:
        attention = importlib.import_module(module).flash_attn_func
    except (ImportError, AttributeError) as error:
        # It, or what it needs, is missing; a folder `flash_attn` with nothing but flash-attn-4 is a module as well.
        raise RuntimeError(f"{package} does not load ({error}): {BACKENDS[backend].install}") from None
    problem.require(package, "window", dropout=dropout)
    window = window_of(problem.mask)
    if (problem.causal or window) and problem.keys != problem.seq:
        raise RuntimeError(f"{package} aligns masks to the last key, but this workload aligns them to the first")
    how: dict[str, Any] = {"causal": problem.causal}
    if window:
        how["window_size"] = (window - 1, 0 if problem.causal else window - 1)
    if torch.are_deterministic_algorithms_enabled():
        how["deterministic"] = True

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropped: float = 0.0) -> torch.Tensor:
        turned = (tensor.transpose(1, 2) for tensor in (q, k, v))
        more = {"dropout_p": dropped} if dropped else {}
        out = attention(*turned, **how, **more)
        out = out[0] if isinstance(out, tuple) else out  # some give the log-sum-exp as well
        turned_back: torch.Tensor = out.transpose(1, 2)
        return turned_back

    return attend


def _tiled(name: str, problem: Problem) -> Attend:
    """A stage of the project's own kernel."""
    from _tiled import prepare

    problem = Problem.of(problem)
    problem.require(name)
    return prepare(name, causal=problem.causal, device=problem.device, columns=problem.tile_keys)


BACKENDS: dict[str, Backend] = {
    "math": Backend("PyTorch's unfused attention, computed in float32", _sdpa, partial(_only, "MATH"), "math"),
    "math_reduced": Backend(
        "math, but in half precision where possible", _sdpa, _reduced_math, named="math", exact=False
    ),
    "flash": Backend(
        "FlashAttention 2 in PyTorch, with Ampere instructions", _sdpa, partial(_only, "FLASH_ATTENTION"), "flash"
    ),
    "efficient": Backend(
        "memory-efficient attention", _sdpa, partial(_only, "EFFICIENT_ATTENTION"), "memory efficient"
    ),
    "cudnn": Backend("cuDNN's fused attention", _sdpa, partial(_only, "CUDNN_ATTENTION"), "cudnn"),
    "auto": Backend("the backend that PyTorch selects", _sdpa),
    "naive": Backend("scores, mask, softmax and weighted sum as separate operations", _naive, exact=False),
    "flex": Backend("FlexAttention, compiled", _flex, compiled=True),
    "flash_attn": Backend(
        "the flash-attn package: FlashAttention 2",
        partial(_sequence_first, "flash_attn", "flash_attn", dropout=True),
        install="pip install flash-attn",
    ),
    "flash_attn_4": Backend(
        "the flash-attn-4 package: FlashAttention 4, for Hopper and newer",
        _flash_attn_4,
        install="pip install 'nsysprof[flash-attn-4]'",
    ),
    **{name: Backend(stage.says, partial(_tiled, name)) for name, stage in STAGES.items()},
}


def _untiled(name: str, make: Callable[[Any], Attend], problem: Problem) -> Attend:
    """Make a backend with fixed tiles."""
    if getattr(problem, "tile_keys", 0):
        raise RuntimeError(f"{name} has no tile sizes to choose from")
    return make(problem)


BACKENDS |= {
    name: replace(backend, make=partial(_untiled, name, backend.make))
    for name, backend in BACKENDS.items()
    if name not in STAGES
}
AXES = {
    "batch": Axis("B", "batch", 1),
    "heads": Axis("H", "heads", 8),
    "seq": Axis("S", "sequence length", 1024),
    "head_dim": Axis("D", "head dimension", 64),
}
FLAGS = {"causal": Flag("mask the future", "causal", "full")}
CHOICES = {
    "mask": Choice("", "which keys each query sees", "none|causal|padding|window:N|bool|float", NONE, read_mask),
    "kv_heads": Choice("KV", "number of key/value heads (0: as many as heads)", "N", 0, number_of("kv_heads", int)),
    "kv_seq": Choice("K", "length of keys and values (0: as long as the queries)", "N", 0, number_of("kv_seq", int)),
    "dropout": Choice("drop", "share of the attention weights to drop", "P", 0.0, number_of("dropout", float, 1.0)),
    "tile_keys": Choice(
        "tile", "keys per tile of the tiled kernels (0: chosen by each kernel)", "N", 0, number_of("tile_keys", int)
    ),
    "score_scale": Choice(
        "x",
        "factor by which the queries are multiplied, to widen the scores",
        "X",
        1.0,
        number_of("score_scale", float),
    ),
}
# What `Workload` has of texts and choices.
DECLARED: dict[str, Any] = {
    "axes": AXES,
    "sweep": "seq",
    "flags": FLAGS,
    "backends": BACKENDS,
    "default_backends": ("math", "flash"),
    "base": ("math", "naive"),
    "trial": {"seq": 128},
    "reference": "attention",
    "flops": "matrix products only, without masked scores",
    "traffic": "every necessary read and write of the score matrices in unfused backends",
    "unit": "score matrices",
}
_ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
_UNFUSED = ("math", "math_reduced", "naive")  # those that keep whole score matrices in memory
_BY_TENSOR = (*_UNFUSED, "flash", "efficient", "cudnn", "auto")  # those that take every mask as a tensor
# Bytes of S x S matrices that are alive at once, as a factor of (bytes of float32, bytes of the inputs): math computes
# in float32, and holds scores, weights and the result of checking them for rows that are masked as a whole.
_SCORES = {"math": (3, 0), "math_reduced": (0, 3), "naive": (0, 2)}
_SCORES_BACKWARD = 2  # more of them
_MASKED = "the causal flag (all scores are counted; a causal mask would halve them)"


def attention_cost(at: Case, *, block: bool = False) -> Cost:
    """What a call costs, as nsysprof's `hardware.attention_cost` counts it for runs of a report.

    FLOPs are of the matrix products: 2 forward, 4 more backward, masked scores not counted; a block adds four
    projections. Bytes: each input and output once. An unfused backend also passes over its score matrices, forward 4
    times and twice for each operation between (scale in `naive`, mask where there is one), backward 7 times and 2
    likewise. A mask that is a tensor by its nature is an input; others are one for those that take no other form.
    """
    problem = Problem.of(at)
    item, width = _ITEM_BYTES[at.dtype], at.heads * at.head_dim
    tokens, scores = at.batch * at.seq, at.batch * at.heads * at.seq * problem.keys
    kept = at.batch * problem.keys * (width // problem.shared)  # elements of the keys, or of the values
    seen = at.heads * seen_pairs(problem)
    per_score = (12 if at.backward else 4) * at.head_dim
    projections = 8 * tokens * width**2 * (3 if at.backward else 1) if block else 0
    rows = tokens * width
    if block:
        weights = 4 * width**2 + 2 * width
        read = (2 if at.backward else 1) * rows + weights
        written = 2 * rows + 2 * weights if at.backward else rows
    else:
        read = 2 * kept + (2 if at.backward else 1) * rows
        written = read if at.backward else rows
    dense = _dense_bytes(problem)
    read, extra = read * item, {name: _score_passes(problem, at.backward, name) for name in _UNFUSED}
    if problem.mask in DENSE:
        read, dense = read + dense, 0
    extra_bytes = {name: passes * scores * (4 if name == "math" else item) for name, passes in extra.items()}
    for name in _BY_TENSOR if dense else ():
        extra_bytes[name] = extra_bytes.get(name, 0) + dense
    flops = projections + per_score * seen
    causal = seen_pairs(replace(problem, causal=True))
    return Cost(
        flops=flops,
        read_bytes=read,
        written_bytes=written * item,
        tokens=tokens,
        unit_bytes=scores * item,
        extra_bytes=extra_bytes,
        held_bytes={name: _held(at, name, block=block) for name in BACKENDS},
        suspects={} if at.causal else {_MASKED: flops * at.heads * causal // seen},
    )


def _dense_bytes(problem: Problem) -> int:
    """The size of the mask as a tensor."""
    if problem.mask == NONE:
        return 0
    size = problem.seq * problem.keys * (problem.batch if problem.mask == PADDING else 1)
    return size * (_ITEM_BYTES[problem.dtype] if problem.mask == FLOAT else 1)


def _score_passes(problem: Problem, backward: bool, backend: str) -> int:
    naive, masked = backend == "naive", problem.causal or problem.mask != NONE
    forward = 4 + 2 * naive + 2 * masked
    return forward + (7 + 2 * naive * (1 + masked) if backward else 0)


def _held(at: Case, backend: str, *, block: bool) -> int:
    """About how much memory a call needs at its peak: inputs, outputs, and the S x S matrices of unfused backends.

    Derived from what the backends are known to keep, and to be trusted to within a factor of two.
    """
    problem = Problem.of(at)
    item, width = _ITEM_BYTES[at.dtype], at.heads * at.head_dim
    again = 2 if at.backward else 1
    rows = 2 * again * (at.seq + problem.keys // problem.shared)  # queries and output, keys and values
    weights = 0
    if block:  # the input, its norm and the sum; all of it is kept for the backward pass
        rows += 3 * (3 if at.backward else 1) * at.seq
        weights = 4 * width * width * again
    in_float32, in_dtype = _SCORES.get(backend, (0, 0))
    if in_float32 + in_dtype and at.backward:
        in_float32, in_dtype = (count + _SCORES_BACKWARD if count else 0 for count in (in_float32, in_dtype))
    scores = at.batch * at.heads * at.seq * problem.keys
    mask = _dense_bytes(problem) if backend in _BY_TENSOR else 0
    held = (rows * at.batch * width + weights) * item + scores * (4 * in_float32 + item * in_dtype)
    return int(held + mask)
