"""The GPT workload on a CPU: prefill, decode and training agree with the whole model in float64, costs are counted."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.test_programs import recorder

SMALL = "--device cpu --layers 2 --heads 4 --kv-heads 2 --width 64 --vocab 96 --seq 24 --batch 2 --warmup 1"


def runs(arguments: str, folder: Path, **backends: Any) -> list[dict[str, Any]]:
    """The runs of the workload at a small size, with more backends."""
    from _workload import main
    from gpt import WORKLOAD

    file = folder / "results.json"
    workload = replace(WORKLOAD, backends={**WORKLOAD.backends, **backends})
    main(workload, [*SMALL.split(), "--iterations", "2", *arguments.split(), "--results", str(file), "--force"])
    return json.loads(file.read_text(encoding="utf-8"))["runs"]


def case(**more: Any) -> argparse.Namespace:
    """A small configuration."""
    sizes = {"batch": 2, "layers": 3, "heads": 4, "kv_heads": 2, "width": 32, "vocab": 40, "seq": 16}
    flags = {"decode": False, "cuda_graph": False, "compile": False, "backward": False}
    rest = {"new_tokens": 1, "dtype": "fp32", "device": "cpu", "seed": 3}
    return argparse.Namespace(**{**sizes, **flags, **rest, **more})


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("mode", ["", "--decode --new-tokens 3", "--train"])
def test_every_backend_agrees_with_the_whole_model(mode: str, dtype: str, tmp_path: Path) -> None:
    """Logits of the prompt, of tokens that are decoded from a cache, and loss and gradients of a training step."""
    for run in runs(f"{mode} --dtype {dtype} --backend math flash naive auto", tmp_path):
        assert run["status"] == "measured", run["reason"]
        assert all(0 < run["errors"][name] <= run["tolerances"][name] for name in run["errors"])
        names = ["output", "grad_embedding", "grad_0.qkv", "grad_0.up"]
        assert list(run["errors"]) == (names if mode == "--train" else names[:1])
        assert run["tokens_per_s"] > 0


@pytest.mark.parametrize("mode", ["", "--decode", "--train"])
def test_attention_that_is_a_little_wrong_is_found(mode: str, tmp_path: Path) -> None:
    """One key that is not seen makes logits wrong, also where only the cache holds it."""
    from _attention import BACKENDS

    def blind(at: Any) -> Any:
        attend = BACKENDS["naive"].make(replace(at, causal=False))
        return lambda q, k, v: attend(q, k[:, :, 1:], v[:, :, 1:])

    from gpt import WORKLOAD, _of_either

    backend = replace(WORKLOAD.backends["math"], make=lambda at: _of_either(blind, at))
    [run] = runs(f"{mode} --dtype fp16 --backend blind", tmp_path, blind=backend)
    assert run["status"] == "wrong"


def test_a_training_run_learns_and_says_its_losses(tmp_path: Path) -> None:
    """The loss of each call, lower from call to call, and alike for two backends of one seed."""
    math, flash = runs("--train --backend math flash --iterations 8", tmp_path)
    assert len(math["losses"]) == 1 + 1 + 8  # check, warm-up, measured
    assert math["losses"] == sorted(math["losses"], reverse=True)
    assert math["losses"] == pytest.approx(flash["losses"], rel=1e-2)
    assert "losses" not in runs("--backend math", tmp_path)[0]


def test_steps_layers_and_modules_have_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new token a step, each layer in it with its modules; none in code that is compiled."""
    ranges: list[str] = []
    monkeypatch.setattr("nvtx.annotate", recorder(ranges))
    runs("--decode --new-tokens 2 --backend math", tmp_path)
    step = "RUN::math::S24/iter1/step1"
    assert [name for name in ranges if name.startswith(step)] == [
        step,
        f"{step}/embedding",
        *(f"{step}/layer{n}{part}" for n in range(2) for part in ("", "/attention", "/mlp")),
        f"{step}/head",
    ]
    ranges.clear()
    runs("--train --backend math --iterations 1", tmp_path)
    parts = [name.removeprefix("RUN::math::S24/iter0/") for name in ranges if name.startswith("RUN::math::S24/iter0/")]
    assert [name for name in parts if "/" not in name] == ["forward", "backward", "optimizer"]
    assert "forward/layer1/attention" in parts


def test_compiled_is_compiled_and_a_graph_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--compile` goes through torch.compile once for each backend; without a GPU `--cuda-graph` says why not."""
    import torch

    compiled = []

    def leave(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", leave)
    assert [run["status"] for run in runs("--compile --backend math flash", tmp_path)] == ["measured"] * 2
    assert len(compiled) == 2
    [run] = runs("--decode --cuda-graph --backend math", tmp_path)
    assert (run["status"], run["reason"]) == ("unsupported", "CUDA graphs need a GPU")


@pytest.mark.parametrize("more", [{}, {"decode": True, "new_tokens": 3}, {"backward": True}])
def test_flops_are_those_of_the_products(more: dict[str, Any]) -> None:
    """As torch counts them where every step is an operation of its own, less the masked scores, which that counts."""
    from torch.utils.flop_counter import FlopCounterMode

    from _attention import BACKENDS
    from gpt import _of_either, cost, prepare

    at = case(**more)
    step = prepare(at).build(_of_either(BACKENDS["naive"].make, at))
    with FlopCounterMode(display=False) as counter:
        step.call()
    masked = 0 if at.decode else at.batch * at.heads * at.seq * (at.seq - 1) // 2
    each = 4 * (at.width // at.heads) * at.layers * (3 if at.backward else 1)
    assert counter.get_total_flops() == cost(at).flops + each * masked


def test_a_decoding_call_reads_weights_and_cache() -> None:
    """Once as input, and again for every further token; float32 weights and two moments of each in training."""
    from gpt import cost

    item, weights = 4, 3 * 32 * (32 * 2 + 2 * 16 + 8 * 32) + 40 * 32
    cache = 2 * 3 * 2 * 2 * 16 * 8
    one, three = (cost(case(decode=True, new_tokens=count)) for count in (1, 3))
    assert one.read_bytes == item * (weights + cache) + 8 * 2
    assert set(one.extra_bytes.values()) == {0}
    assert set(three.extra_bytes.values()) == {2 * item * (weights + cache)}
    assert (one.tokens, three.tokens) == (2, 6)
    train = cost(case(backward=True))
    assert (train.read_bytes - 8 * 32, train.written_bytes) == (12 * weights, 12 * weights)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--width 66", "width 66, 4 heads and 2 key heads do not fit together"),
        ("--kv-heads 3", "width 64, 4 heads and 3 key heads do not fit together"),
        ("--width 20", "rotary positions need heads of an even size, not 5"),
        ("--train --decode", "--train works with neither --decode nor --cuda-graph"),
    ],
)
def test_sizes_that_make_no_model_are_refused(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and a hint, also where the workload is asked for its cost."""
    from _workload import main
    from gpt import WORKLOAD

    assert main(WORKLOAD, [*SMALL.split(), *arguments.split()]) == 1
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message == f"gpt: {said}"
    assert hint.startswith("  hint: ")
    assert main(WORKLOAD, ["--describe", '[{"width": [66]}]']) == 1
    assert capsys.readouterr().err.startswith("width 66, 8 heads")
