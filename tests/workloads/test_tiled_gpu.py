"""The tiled kernels on a GPU: right by `tests/kit/tiled_check.py`, in CUDA graphs, in O(S) memory, in the workloads."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit import tiled_check

WORKLOADS = Path(__file__).parents[2] / "workloads"
NAMES = [f"tiled_o{number}" for number in range(7)]


def _lacking() -> str:
    """What is missing here, or nothing. Without importing what takes seconds where it is no use."""
    for package in ("torch", "cupy", "nvtx"):
        if importlib.util.find_spec(package) is None:
            return f"needs {package}"
    import torch

    return "" if torch.cuda.is_available() else "needs a GPU"


pytestmark = pytest.mark.skipif(bool(_lacking()), reason=_lacking() or "all is there")


def refusal(name: str) -> str:
    """Why this GPU cannot run the stage, or nothing."""
    import torch

    from _tiled import device_limits
    from _tiled_stages import STAGES, TiledError, fitting_tile, require

    device = device_limits(torch.cuda.current_device())
    try:
        require(name, STAGES[name].dtypes[0], 64, device)
        fitting_tile(name, STAGES[name].dtypes[0], 64, device)
    except TiledError as error:
        return str(error)
    return ""


def runnable(name: str) -> str:
    """The stage, if this GPU can run it; the test is skipped with the reason where it cannot."""
    if reason := refusal(name):
        pytest.skip(reason)
    return name


@pytest.mark.parametrize("name", NAMES)
def test_right_for_all_shapes(name: str) -> None:
    """Ragged, one row, unequal lengths, diagonals, rows that see nothing, large scores; nothing outside is touched."""
    count, wrong = tiled_check.check_stage(runnable(name), small=False)
    assert wrong == []
    assert count > 50


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_gradients_are_right_for_all_shapes(dtype: str, head_dim: int) -> None:
    """As `test_right_for_all_shapes`, in four parts: all of them are compiled for minutes."""
    stage = runnable("tiled_o6")
    count, wrong = tiled_check.check_stage(stage, small=False, dtype=dtype, head_dim=head_dim, backward=True)
    assert wrong == []
    assert count > 50


def test_gradients_are_captured_in_a_graph() -> None:
    """Forward and backward by autograd, of views as a block has them; a replay reads what the inputs are by then."""
    import torch

    from _tiled import prepare

    attend = prepare(runnable("tiled_o6"), causal=True)
    qkv = torch.randn(2, 200, 3, 3, 64, device="cuda").half()
    leaves = [each.requires_grad_() for each in qkv.permute(2, 0, 3, 1, 4)]
    grad_out = torch.randn_like(leaves[0])

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(attend(*leaves), leaves, grad_out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    qkv.normal_()
    graph.replay()
    exact = [each.detach().double().requires_grad_() for each in leaves]
    out = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
    for got, want in zip(found, torch.autograd.grad(out, exact, grad_out.double()), strict=True):
        assert ((got - want).norm() / want.norm()).item() < tiled_check.GRADIENT_LIMITS["fp16"]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_captured_in_a_graph(name: str) -> None:
    """On the stream that captures, and a replay reads what the inputs are by then."""
    import torch

    from _tiled import prepare

    attend = prepare(runnable(name), causal=True)
    q, k, v = (torch.randn(1, 2, 200, 64, device="cuda").half() for _ in range(3))
    attend(q, k, v)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(q, k, v)
    q.normal_()
    graph.replay()
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert ((out - want).norm() / want.norm()).item() < 2e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_thread_without_a_context_launches(name: str) -> None:
    """As autograd's may be, if nothing before has called CUDA's runtime in it: all memory is there already."""
    import torch

    from _tiled import prepare

    attend = prepare(runnable(name), causal=True)
    q, k, v = torch.randn(3, 1, 2, 200, 64, device="cuda").half()
    want = attend(q, k, v).clone()
    with ThreadPoolExecutor(1) as threads:
        assert torch.equal(threads.submit(attend, q, k, v).result(), want)


def test_the_log_sum_exp_is_that_of_the_scores() -> None:
    """With the output, in float32; minus infinity where nothing is seen. That it is right is part of `tiled_check`."""
    import torch

    from _tiled import prepare

    attend = prepare(runnable("tiled_o6"), causal=True, diagonal=-3, log_sum_exp=True)
    q, k, v = (torch.randn(2, 3, 200, 64, device="cuda").bfloat16() for _ in range(3))
    out, found = attend(q, k, v)
    scores = q.double() @ k.double().transpose(-2, -1) / 8
    seen = torch.ones(200, 200, device="cuda", dtype=torch.bool).tril(-3)
    want = torch.logsumexp(scores.masked_fill(~seen, float("-inf")), dim=-1)
    assert (out.dtype, found.dtype) == (torch.bfloat16, torch.float32)
    assert torch.allclose(found.double(), want, atol=tiled_check.LOG_LIMIT)
    assert torch.isneginf(found[..., :3]).all()


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_the_output(name: str) -> None:
    """A call holds its output and nothing else, however long the sequence is."""
    import torch

    from _tiled import prepare

    attend = prepare(runnable(name), causal=True)
    q, k, v = (torch.randn(1, 2, 4096, 64, device="cuda").half() for _ in range(3))
    attend(q, k, v)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    out = attend(q, k, v)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    assert peak - before == out.numel() * 2


def test_the_workloads_run_them(tmp_path: Path) -> None:
    """Checked and measured as any backend; in the block with views as inputs; without gradients by name."""
    names = [name for name in NAMES if not refusal(name)]
    for program, more, statuses in (
        ("sdpa.py", [], {"measured"}),
        ("transformer_block.py", ["--batch", "2"], {"measured"}),
        ("sdpa.py", ["--backward"], {"measured", "unsupported"}),
        ("transformer_block.py", ["--train"], {"measured", "unsupported"}),
    ):
        results = tmp_path / f"{program}{len(more)}{'-'.join(statuses)}.json"
        command = [sys.executable, str(WORKLOADS / program), *more, "--seq", "300", "--iterations", "2"]
        done = subprocess.run(
            [*command, "--backend", *names, "--results", str(results)], capture_output=True, text=True, check=False
        )
        runs = json.loads(results.read_text(encoding="utf-8"))["runs"]
        assert {run["status"] for run in runs} == statuses, done.stderr
        for name, run in zip(names, runs, strict=True) if "unsupported" in statuses else ():
            lacking = f"{name} is forward only, it has no gradients"
            assert run.get("reason") == (None if name == "tiled_o6" else lacking)
