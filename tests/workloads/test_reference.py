"""The float64 reference of the workloads, against torch's own float64 attention and autograd."""

import math

import pytest


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block", [2**23, 1000, 200, 1])
def test_blocks_add_up_to_attention(causal: bool, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients are autograd's, whether all heads are one block, or every row is its own."""
    import torch

    import _reference

    monkeypatch.setattr(_reference, "BLOCK", block)
    generator = torch.Generator().manual_seed(1)
    q, k, v, grad = (torch.randn(5, 13, 8, generator=generator, dtype=torch.float16).double() for _ in range(4))
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    assert torch.allclose(_reference.attention(q, k, v, causal=causal), want, rtol=1e-12, atol=1e-14)
    found = _reference.gradients(q, k, v, grad, causal=causal)
    for got, expected in zip(found, torch.autograd.grad(want, leaves, grad), strict=True):
        assert torch.allclose(got, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("causal", [True, False])
def test_no_block_is_larger_than_said(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of all heads come up once, in blocks of at most that many scores."""
    import torch

    import _reference

    monkeypatch.setattr(_reference, "BLOCK", 64)
    q = torch.randn(3, 17, 4, dtype=torch.float64)
    seen = torch.zeros(3, 17)
    for heads, rows, _, weights in _reference._weights(q, q, causal):
        assert weights.numel() <= 64
        assert torch.allclose(weights.sum(-1), torch.ones((), dtype=torch.float64))
        seen[heads, rows] += 1
    assert bool((seen == 1).all())


def test_autograd_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operation of its own the reference has the gradients that numeric differences have."""
    import torch

    import _reference

    monkeypatch.setattr(_reference, "BLOCK", 20)
    q, k, v = (torch.randn(2, 2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *qkv: _reference.Attention.apply(*qkv, True), (q, k, v))


def test_errors_are_relative_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each result on its own, block by block; NaN and infinity are never close."""
    import torch

    import _reference

    monkeypatch.setattr(_reference, "BLOCK", 3)
    want = {"output": torch.arange(1.0, 9.0, dtype=torch.float64).reshape(2, 4), "dq": torch.full((2,), 2.0)}
    off = {"output": (want["output"] * 1.25).float().t().contiguous().t(), "dq": want["dq"].half()}
    assert _reference.relative_errors(off, want) == pytest.approx({"output": 0.25, "dq": 0.0})
    assert math.isnan(_reference.relative_errors({**off, "dq": torch.tensor([2, math.nan])}, want)["dq"])
    assert math.isinf(_reference.relative_errors({**off, "dq": torch.tensor([2, math.inf])}, want)["dq"])


def test_a_gradient_of_nothing_is_held_against_the_others() -> None:
    """With one key the gradients of queries and keys are rounding noise in float64, and may be in the result."""
    import torch

    import _reference

    want = {"dq": torch.full((4,), 1e-17, dtype=torch.float64), "dv": torch.ones(4, dtype=torch.float64)}
    got = {"dq": torch.full((4,), 1e-4), "dv": torch.ones(4)}
    assert _reference.relative_errors(got, want)["dq"] == pytest.approx(1e-4)
