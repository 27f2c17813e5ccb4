"""Holds the tiled kernels against float64 on a GPU. Without pytest, so that it runs anywhere, and under sanitizers:

    python tests/kit/tiled_check.py [STAGE …] [--backward] [--small] [--seeds N] [--dtype TYPE] [--head-dim N]

Inputs lie between NaNs, and so does the output, which is itself full of NaN: what is read or written outside shows, and
what is not written. Every case runs twice and has to give the same bits. The exit code is 1 where a case is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2] / "workloads"))

from _tiled_stages import STAGES, TiledError, heads_and_rows, rows_of_one_head

if TYPE_CHECKING:
    import torch

LIMITS = {"fp16": 2e-3, "bf16": 1e-2, "fp32": 1e-5}
GRADIENT_LIMITS = {"fp16": 3e-3, "bf16": 2e-2}
LOG_LIMIT = 2e-4  # of a log-sum-exp, absolute: below it a weight is off by less than fp16 can tell
SIZES = (1, 2, 17, 63, 64, 65, 127, 129, 500, 1023, 1025, 2048)
SMALL_SIZES = (1, 65, 130)
GUARD = 1024  # elements on both sides of a tensor
_GUARDS = slice(GUARD), slice(-GUARD, None)


@dataclass(frozen=True)
class Case:
    """One problem; ``factor`` makes the scores large, ``diagonal`` is what a causal query sees beyond its own place."""

    dtype: str
    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool
    diagonal: int = 0
    factor: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        mask = f"causal {self.diagonal:+d}" if self.causal else "full"
        return (
            f"{self.dtype} B{self.batch} H{self.heads} Q{self.queries} K{self.keys} D{self.head_dim} {mask}"
            f" x{self.factor:g} seed {self.seed}"
        )


def cases(name: str, *, small: bool, seeds: int = 1) -> Iterator[Case]:
    """What a stage has to get right."""
    stage = STAGES[name]
    some = stage.head_dims or ((32, 80) if small else (1, 32, 40, 64, 80, 96, 128))
    for seed in range(seeds):
        for dtype in stage.dtypes:
            for head_dim in some:
                yield from _square(dtype, head_dim, seed, SMALL_SIZES if small else SIZES)
                yield from _unequal(dtype, head_dim, seed, small)
                if stage.grid not in (heads_and_rows, rows_of_one_head):
                    yield from _many(dtype, head_dim, seed, small)


def _square(dtype: str, head_dim: int, seed: int, sizes: Sequence[int]) -> Iterator[Case]:
    for number, size in enumerate(sizes):
        batch, heads = ((1, 1), (1, 8), (2, 3))[(number + seed) % 3] if size <= 500 else (1, 2)
        for causal in (True, False):
            yield Case(dtype, batch, heads, size, size, head_dim, causal, seed=seed)
    size = sizes[-2]
    for causal in (True, False):
        yield Case(dtype, 1, 2, size, size, head_dim, causal, factor=30, seed=seed)


def _unequal(dtype: str, head_dim: int, seed: int, small: bool) -> Iterator[Case]:
    """More keys than queries and the reverse; diagonals with which some rows, or all of them, see no key."""
    size = 65 if small else 300
    pairs = ((size, 2 * size + 1), (2 * size + 1, size), (1, size), (size, 1))
    for queries, keys in pairs[: 2 if small else 4]:
        yield Case(dtype, 1, 2, queries, keys, head_dim, False, seed=seed)
        diagonals = (keys - queries, -size // 2, 0, 5, -7, -3 * size)
        for diagonal in diagonals[: 2 if small else 6]:
            yield Case(dtype, 1, 2, queries, keys, head_dim, True, diagonal, seed=seed)


def _many(dtype: str, head_dim: int, seed: int, small: bool) -> Iterator[Case]:
    """Enough rows that stages which halve blocks where these are few leave them whole, on up to 200 multiprocessors;
    and that blocks which stay have pairs of tiles, with and without a middle one, and a rest.
    """
    size = 130 if small else 300
    for causal in (True, False):
        yield Case(dtype, 3, 52, size, size, head_dim, causal, seed=seed)
        if not small:
            yield Case(dtype, 4, 48, 640, 640, head_dim, causal, seed=seed)
            yield Case(dtype, 8, 70, 520, 520, head_dim, causal, seed=seed)


def between_nans(size: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor on the GPU, all NaN, and all that it lies in."""
    import math

    import torch

    around = torch.full((math.prod(size) + 2 * GUARD,), math.nan, dtype=dtype, device="cuda")
    return around[GUARD:-GUARD].view(*size), around


def _weights(q: torch.Tensor, k: torch.Tensor, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights in float64 of (heads, sequence, head dimension) tensors, zeros for rows that see nothing; and the
    log-sum-exp of the scores.
    """
    import torch

    scores = q.double() @ k.double().transpose(-2, -1) * q.shape[-1] ** -0.5
    if case.causal:
        rows, columns = (torch.arange(size, device=q.device) for size in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None] + case.diagonal, float("-inf"))
    return torch.nan_to_num(torch.softmax(scores, dim=-1), nan=0.0), torch.logsumexp(scores, dim=-1)


def attention(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The attention in float64, and the log-sum-exp of the scores."""
    weights, log_sum_exp = _weights(q, k, case)
    return weights @ v.double(), log_sum_exp


def gradients(case: Case, *tensors: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Those of queries, keys and values in float64, from these and the gradient of the output; each with what errors
    are to be compared with: where a weight is nearly 1, gradients are small differences of large numbers.

    By the formula: autograd has none for rows that see nothing.
    """
    q, k, v, grad_out = (each.double() for each in tensors)
    weights, _ = _weights(q, k, case)
    terms = weights * (grad_out @ v.transpose(-2, -1)) * q.shape[-1] ** -0.5
    of_scores = terms - weights * terms.sum(dim=-1, keepdim=True)
    of_values = weights.transpose(-2, -1) @ grad_out
    return [
        (of_scores @ k, terms @ k),
        (of_scores.transpose(-2, -1) @ q, terms.transpose(-2, -1) @ q),
        (of_values, of_values),
    ]


def _inputs(case: Case, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Random tensors of these lengths between NaNs, the first of them times the factor."""
    import torch

    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]
    generator = torch.Generator("cuda").manual_seed(case.seed + 1000 * case.queries + case.keys)
    tensors: list[torch.Tensor] = []
    for length in lengths:
        tensor, _ = between_nans((case.batch, case.heads, length, case.head_dim), dtype)
        values = torch.randn(tensor.shape, generator=generator, device="cuda")
        tensor.copy_(values * case.factor if not tensors else values)
        tensors.append(tensor)
    return tensors


def check(name: str, case: Case) -> tuple[float, str]:
    """The relative norm of the error, and what is wrong, or nothing."""
    import torch

    from _tiled import kernel_for

    tensors = _inputs(case, (case.queries, case.keys, case.keys))
    dtype = tensors[0].dtype
    kernel = kernel_for(name, tensors[0], case.causal)
    outputs, logs = [], []
    for _ in range(2):
        out, around = between_nans(tensors[0].shape, dtype)
        log, around_log = between_nans(out.shape[:3], torch.float32)
        kernel.launch((*tensors, out), case.causal, case.diagonal, log if STAGES[name].log_sum_exp else None)
        torch.cuda.synchronize()
        for guards in (around, around_log):
            if not all(guards[side].isnan().all() for side in _GUARDS):
                return float("nan"), "written outside of the output"
        outputs.append(out)
        logs.append(log)
    if outputs[0].isnan().any():
        return float("nan"), f"{int(outputs[0].isnan().sum())} elements are NaN or not written"
    if not torch.equal(*outputs):
        return float("nan"), "two runs differ"
    found = [attention(case, *some) for some in zip(*tensors, strict=True)]
    want, want_log = (torch.stack(parts) for parts in zip(*found, strict=True))
    if STAGES[name].log_sum_exp and not torch.allclose(logs[0].double(), want_log, rtol=1e-6, atol=LOG_LIMIT):
        return float("nan"), f"the log-sum-exp is off by {(logs[0] - want_log).nan_to_num().abs().max():.1e}"
    error = (outputs[0].double() - want).norm().item()
    norm = want.norm().item()
    if not norm:
        return error, "" if not error else "not zero where no key is seen"
    error /= norm
    return error, "" if error < LIMITS[case.dtype] else f"more than {LIMITS[case.dtype]}"


def check_gradients(name: str, case: Case) -> tuple[float, str]:
    """The largest relative norm of the error of a gradient, and what is wrong, or nothing."""
    import torch

    from _tiled import prepare
    from _tiled_backward import launch

    *inputs, grad_out = _inputs(case, (case.queries, case.keys, case.keys, case.queries))
    out, log = prepare(name, causal=case.causal, diagonal=case.diagonal, log_sum_exp=True)(*inputs)
    runs = []
    for _ in range(2):
        found = [between_nans(each.shape, each.dtype) for each in inputs]
        launch((*inputs, out, log, grad_out), [each for each, _ in found], case.causal, case.diagonal)
        torch.cuda.synchronize()
        if not all(around[side].isnan().all() for _, around in found for side in _GUARDS):
            return float("nan"), "written outside of the gradients"
        runs.append([each for each, _ in found])
    heads = [gradients(case, *some) for some in zip(*inputs, grad_out, strict=True)]
    largest, wrong = 0.0, []
    for letter, first, second, parts in zip("qkv", *runs, zip(*heads, strict=True), strict=True):
        want, terms = (torch.stack(each) for each in zip(*parts, strict=True))
        norm = terms.norm().item()
        error = (first.double() - want).norm().item() / (norm or 1.0)
        largest = max(largest, error)
        if first.isnan().any():
            wrong.append(f"d{letter} has {int(first.isnan().sum())} elements that are NaN or not written")
        elif not torch.equal(first, second):
            wrong.append(f"d{letter} differs in two runs")
        elif error > (GRADIENT_LIMITS[case.dtype] if norm else 0):
            wrong.append(f"d{letter} is off by {error:.1e}")
    return largest, "; ".join(wrong)


def check_stage(
    name: str, *, small: bool, seeds: int = 1, dtype: str = "", head_dim: int = 0, backward: bool = False
) -> tuple[int, list[str]]:
    """Check all cases of a stage, or those of a type or head dimension; how many there are, and what is wrong with
    which. Prints the largest errors.
    """
    wrong, worst, count = [], dict.fromkeys(LIMITS, 0.0), 0
    for case in cases(name, small=small, seeds=seeds):
        if dtype not in ("", case.dtype) or head_dim not in (0, case.head_dim):
            continue
        error, why = (check_gradients if backward else check)(name, case)
        count += 1
        worst[case.dtype] = max(worst[case.dtype], error)
        if why:
            wrong.append(f"{name} {case}: {error:.2e}, {why}")
    said = ", ".join(f"{dtype} up to {error:.1e}" for dtype, error in worst.items() if error)
    print(f"{name}{' backward' if backward else ''}: {count} cases, {len(wrong)} wrong; {said}", flush=True)
    return count, wrong


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {' '.join(STAGES)} (all)")
    parser.add_argument("--backward", action="store_true", help="the gradients of stages that have some")
    parser.add_argument("--small", action="store_true", help="few small cases, as for a sanitizer")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of the random tensors (1)")
    parser.add_argument("--dtype", choices=LIMITS, default="", help="these cases only")
    parser.add_argument("--head-dim", type=int, default=0, metavar="N", help="these cases only")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]}: {' '.join(STAGES)}")
    if options.backward and (lacking := [name for name in options.stages if not STAGES[name].backward]):
        parser.error(f"{lacking[0]} has no gradients")
    failed = False
    stages = [name for name in STAGES if STAGES[name].backward or not options.backward]
    for name in options.stages or stages:
        try:
            _, wrong = check_stage(
                name,
                small=options.small,
                seeds=options.seeds,
                dtype=options.dtype,
                head_dim=options.head_dim,
                backward=options.backward,
            )
        except TiledError as error:
            wrong = [f"{name}: {error}"]
        failed = failed or bool(wrong)
        print(*wrong[:20], sep="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
