"""The attention backends of the workloads: what is switched on for them, how they are called, why they refuse."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest


def test_only_the_backend_that_is_asked_for_may_run() -> None:
    """While `flash` runs, nothing else of PyTorch's is enabled, and so for the others."""
    import torch

    from _attention import BACKENDS

    cuda = torch.backends.cuda
    enabled = {
        "math": cuda.math_sdp_enabled,
        "flash": cuda.flash_sdp_enabled,
        "efficient": cuda.mem_efficient_sdp_enabled,
        "cudnn": cuda.cudnn_sdp_enabled,
    }
    for name in (*enabled, "math_reduced"):
        with BACKENDS[name].settings():
            on = {each for each, asked in enabled.items() if asked()}
        assert on == {"math" if name == "math_reduced" else name}


def test_the_module_attends_alike_by_all_backends() -> None:
    """PyTorch's choice, `math` and `naive` give one output and one gradient; what cannot be is refused by its name."""
    import torch

    attention = importlib.import_module("workloads").Attention
    torch.manual_seed(0)
    module = attention(32, 4)
    x = torch.randn(2, 17, 32, requires_grad=True)
    found = []
    for module.backend in ("auto", "math", "naive"):
        out = module(x)
        found.append((out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])))
    for other in found[1:]:
        assert all(torch.allclose(one, two, atol=1e-4) for one, two in zip(found[0], other, strict=True))
    for wrong in ({"backend": "fast"}, {"width": 33}):
        with pytest.raises(ValueError, match=r"no backend 'fast'|33 is not a multiple"):
            attention(**{"width": 32, "heads": 4, **wrong})


def test_pytorchs_warnings_say_why() -> None:
    """What stands below the heading of the backend that was asked for, without where PyTorch said it."""
    from _refusal import why_not

    where = " (Triggered internally at /pytorch/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:915.)"
    messages = [
        "Memory efficient kernel not used because:" + where,
        "Memory Efficient attention has been runtime disabled." + where,
        "Flash attention kernel not used because:" + where,
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float." + where,
        "cuDNN attention kernel not used because:" + where,
        "cuDNN attention has been runtime disabled." + where,
    ]
    expected = "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float."
    assert why_not("flash", messages) == expected
    assert why_not("memory efficient", messages) == ("Memory Efficient attention has been runtime disabled.")
    assert why_not("cudnn", messages) == "cuDNN attention has been runtime disabled."
    assert why_not("", messages) == why_not("math", messages) == ""


@pytest.mark.parametrize("causal", [True, False])
def test_flex_masks_what_it_should(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention gets causal attention right; here without compiling it, which takes half a minute."""
    import torch

    from _attention import BACKENDS, Problem

    compiled: list[dict[str, Any]] = []

    def leave(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        compiled.append(how)
        return function

    monkeypatch.setattr(torch, "compile", leave)
    attend = BACKENDS["flex"].make(Problem(40, 16, causal, "cpu"))
    assert compiled == [{"dynamic": False, "fullgraph": True}]
    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled, once in a process
        got = attend(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.allclose(got, want, atol=1e-5)
