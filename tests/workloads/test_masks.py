"""Masks, shared heads, cross lengths and dropout of the attention workload: what is seen, computed and counted."""

import json
import re
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MASKS = ("none", "padding", "window:1", "window:5", "window:99", "bool", "float")
SMALL = "--device cpu --heads 4 --head-dim 16 --seq 40 --batch 3 --warmup 0 --iterations 1 --dtype fp32"


def problem(**more: Any) -> Any:
    """A small problem of attention."""
    from _attention import Problem

    sizes = {"seq": 9, "head_dim": 8, "causal": True, "device": "cpu", "batch": 3, "heads": 4}
    return Problem(**{**sizes, **more})


def by_hand(at: Any, batch: int, row: int, key: int) -> bool:
    """Whether a query sees a key, in plain words."""
    name, _, width = at.mask.partition(":")
    if at.causal and key > row:
        return False
    if name == "window":
        return abs(row - key) < int(width)
    if name == "padding":
        return bool(key < max(1, at.keys - at.keys * (batch + 1) // (2 * at.batch)))
    return key == 0 or key % 2 == row % 2 if name == "bool" else True


def test_tiles_are_chosen_where_there_are_some() -> None:
    """The keys of a tile are the own kernels' alone; any other backend says that it has none."""
    from _attention import BACKENDS
    from _tiled_stages import STAGES

    for name in BACKENDS.keys() - STAGES.keys():
        with pytest.raises(RuntimeError, match=f"{name} has no tile sizes to choose from"):
            BACKENDS[name].make(problem(tile_keys=32))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("seq", "kv_seq"), [(9, 0), (8, 0), (1, 0), (9, 4), (5, 12), (6, 1)])
def test_tensor_count_and_cost_model_see_the_same_keys(mask: str, causal: bool, seq: int, kv_seq: int) -> None:
    """Pair by pair, for every mask."""
    import torch

    from _masks import dense_mask, seen_pairs, window_of

    if window_of(mask) and kv_seq:
        return
    at = problem(mask=mask, causal=causal, seq=seq, kv_seq=kv_seq)
    keys = at.keys
    want = torch.tensor(
        [[[by_hand(at, batch, row, key) for key in range(keys)] for row in range(seq)] for batch in range(3)]
    )
    found = dense_mask(at, "cpu", torch.float32)
    found = found > float("-inf") if mask == "float" else found
    assert torch.equal(found.expand(3, 1, seq, keys)[:, 0], want)
    assert seen_pairs(at) == int(want.sum())
    assert bool(want.any(-1).all())  # nothing is left without keys


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("mask", ["none", "window:5", "padding", "bool", "float"])
def test_a_call_costs_what_a_count_finds(mask: str, backward: bool) -> None:
    """FLOPs and bytes, with shared heads and keys of another length."""
    from _attention import attention_cost

    kv_seq = 0 if mask.startswith("window") else 20
    keys = kv_seq or 12
    at = SimpleNamespace(
        **{"batch": 2, "heads": 4, "kv_heads": 2, "seq": 12, "kv_seq": kv_seq, "head_dim": 8, "mask": mask},
        **{"causal": True, "dtype": "bf16", "backward": backward, "keys": keys},
    )
    queries, shared, scores = 2 * 4 * 12 * 8, 2 * 2 * keys * 8, 2 * 4 * 12 * keys
    given = {"bool": 12 * keys, "float": 2 * 12 * keys}.get(mask, 0)
    found = attention_cost(at)  # type: ignore[arg-type]
    if backward:
        assert found.read_bytes == 2 * (2 * queries + 2 * shared) + given
        assert found.written_bytes == 2 * (2 * queries + 2 * shared)
    else:
        assert (found.read_bytes, found.written_bytes) == (2 * (queries + 2 * shared) + given, 2 * queries)
    # for those that take a tensor alone
    dense = {"window:5": 12 * keys, "padding": 2 * 12 * keys}.get(mask, 0)
    assert found.extra_bytes.get("flash", 0) == dense
    assert found.extra_bytes["math"] == (13 if backward else 6) * 4 * scores + dense
    assert found.extra_bytes["naive"] == (19 if backward else 8) * 2 * scores + dense
    if mask != "bool":
        seen = sum(by_hand(at, *place) for place in product(range(2), range(12), range(keys)))
        assert found.flops == (12 if backward else 4) * 8 * 4 * seen


def runs(arguments: str, folder: Path) -> list[dict[str, Any]]:
    """The runs of the attention workload at a small size."""
    from _workload import main
    from sdpa import WORKLOAD

    file = folder / "results.json"
    main(WORKLOAD, [*SMALL.split(), *arguments.split(), "--results", str(file), "--force"])
    return json.loads(file.read_text(encoding="utf-8"))["runs"]


@pytest.mark.parametrize("mode", ["", "--backward", "--kv-heads 2 --backward", "--no-causal --kv-seq 24 --kv-heads 1"])
def test_every_mask_is_right_by_every_backend(mode: str, tmp_path: Path) -> None:
    """Output and gradients against float64, with heads that share keys, and with keys of another length."""
    masks = "none causal padding bool float" + ("" if "--kv-seq" in mode else " window:7")
    found = runs(f"{mode} --backend math naive auto --mask {masks}", tmp_path)
    assert len(found) == 3 * len(masks.split())
    for run in found:
        assert run["status"] == "measured", run["reason"]
        assert max(run["errors"].values()) < 1e-6
        assert run["causal"] == ("--no-causal" not in mode if run["mask"] != "none" else "causal" in run["range"])
    assert [run["range"] for run in found[:4:3]] == ["RUN::math::S40::none", "RUN::math::S40::causal"]


def test_flex_has_every_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled here, as that takes long: as PyTorch's own function with a tensor."""
    import warnings

    import torch

    from _attention import BACKENDS

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for mask, causal in product(MASKS, (True, False)):
        at = problem(mask=mask, causal=causal, seq=40, kv_heads=2, dtype="fp32")
        q, k, v = (torch.randn(3, heads, 40, 8) for heads in (4, 2, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, want = (BACKENDS[name].make(at)(q, k, v) for name in ("flex", "naive"))
        assert torch.allclose(got, want, atol=1e-5), (mask, causal)


def test_dropout_is_checked(tmp_path: Path) -> None:
    """As often as asked for, and the others scaled: a backend that drops none, or scales none, is found."""
    import torch

    from _attention import BACKENDS
    from sdpa import _check_dropout

    for run in runs("--backend math naive flex --dropout 0.1 0.5 --backward", tmp_path):
        expected = (
            ("unsupported", "FlexAttention does not support dropout")
            if run["backend"] == "flex"
            else ("measured", None)
        )
        assert (run["status"], run["reason"]) == expected
    at = problem(dropout=0.25, seq=64, head_dim=16, dtype="fp32")
    tensors = [torch.randn(3, 4, 64, 16) for _ in range(3)]
    right = BACKENDS["naive"].make(at)
    _check_dropout(at, tensors, right)
    with pytest.raises(RuntimeError, match=r"0\.0% of the weights are dropped instead of 25\.0%"):
        _check_dropout(at, tensors, lambda q, k, v, dropout=0.0: right(q, k, v))
    with pytest.raises(RuntimeError, match=r"the remaining weights are 0\.750 times their expected values"):
        _check_dropout(at, tensors, lambda q, k, v, dropout=0.0: right(q, k, v, dropout) * (1 - 0.25 * bool(dropout)))


@pytest.mark.parametrize(
    ("backend", "package", "arguments"),
    [
        ("flash_attn", "flash_attn", {"causal": True, "window_size": (4, 0)}),
        ("flash_attn_4", "flash_attn.cute", {"causal": True, "window_size": (4, 0)}),
    ],
)
def test_packages_get_the_sequence_before_the_heads(
    backend: str, package: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views, their own words for a window, and of what they return the output alone."""
    import sys

    import torch

    from _attention import BACKENDS

    called: list[dict[str, Any]] = []

    def attention(q: Any, k: Any, v: Any, **how: Any) -> Any:
        assert (q.shape, k.shape) == ((3, 9, 4, 8), (3, 9, 2, 8))
        called.append(how)
        return q, None

    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_func=attention))
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(flash_attn_func=attention))
    at = problem(mask="window:5", kv_heads=2, device="cuda")
    q, k, v = (torch.randn(3, heads, 9, 8) for heads in (4, 2, 2))
    assert torch.equal(BACKENDS[backend].make(at)(q, k, v), q)
    assert called == [arguments]
    for refused, why in (
        (problem(mask="bool", device="cuda"), "does not support mask bool"),
        (problem(kv_seq=4, device="cuda"), "aligns masks to the last key"),
    ):
        with pytest.raises(RuntimeError, match=why):
            BACKENDS[backend].make(refused)


@pytest.mark.parametrize(
    ("backend", "package", "install"),
    [("flash_attn", "flash_attn", "flash-attn"), ("flash_attn_4", "flash_attn.cute", "'nsysprof[flash-attn-4]'")],
)
def test_packages_say_what_they_need(backend: str, package: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, and the package with the command that installs it; a folder that holds only its sister is not it."""
    import sys

    from _attention import BACKENDS

    with pytest.raises(RuntimeError, match=r"flash-attn.* runs on NVIDIA GPUs only, not on cpu"):
        BACKENDS[backend].make(problem())
    for found in (None, ModuleType("flash_attn")):
        monkeypatch.setitem(sys.modules, package, found)
        with pytest.raises(RuntimeError, match=rf"does not load .*: pip install {re.escape(install)}$"):
            BACKENDS[backend].make(problem(device="cuda"))


def test_scores_are_spread_and_algorithms_made_deterministic(tmp_path: Path) -> None:
    """Queries times X are what is measured and checked; what is set stands in the results."""
    import torch

    from _workload import main
    from sdpa import WORKLOAD, prepare

    at = SimpleNamespace(batch=1, heads=1, seq=256, head_dim=64, dtype="fp32", causal=True, backward=False, seed=0)
    seen: list[float] = []
    for scale in (1.0, 30.0):
        case = SimpleNamespace(**vars(at), score_scale=scale, device="cpu")
        prepare(case).build(lambda q, k, v: seen.append(float((q @ k.mT).std()) / 8) or q).call()  # type: ignore[arg-type, func-returns-value]
    assert seen == pytest.approx([1, 30], rel=0.05)
    file = tmp_path / "results.json"
    try:
        assert main(WORKLOAD, [*SMALL.split(), "--deterministic", "--backend", "math", "--results", str(file)]) == 0
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
    assert json.loads(file.read_text())["environment"]["precision"]["deterministic"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--mask window", "'window' is not one of: none, causal, padding, window:N, bool, float"),
        ("--mask window:0", "'window:0' is not one of"),
        ("--kv-seq -1", "expected at least one argument|'-1' is not a whole number of 0 or more"),
        ("--kv-heads 1.5", "'1.5' is not a whole number of 0 or more"),
        ("--dropout 1", "'1' is not a number of 0 or more, below 1"),
        ("--score-scale nan", "'nan' is not a number of 0 or more"),
    ],
)
def test_a_wrong_value_is_a_usage_error(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is imported that takes time."""
    import re

    from _workload import parse
    from sdpa import WORKLOAD

    with pytest.raises(SystemExit) as stopped:
        parse(WORKLOAD, "says", arguments.split())
    assert stopped.value.code == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--kv-heads 3", "4 query heads cannot share 3 key heads evenly"),
        ("--mask window:4 --kv-seq 8", "a window would leave queries without keys"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(more: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and a hint."""
    from _workload import main
    from sdpa import WORKLOAD

    assert main(WORKLOAD, [*SMALL.split(), *more.split()]) == 1
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message == f"sdpa: {said}"
    assert hint.startswith("  hint: ")
