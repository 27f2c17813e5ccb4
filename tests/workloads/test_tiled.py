"""The launcher of the tiled kernels with a made-up CuPy: arguments, refusals, failures; and their arithmetic."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.core.arrays import Array

WORKLOADS = Path(__file__).parents[2] / "workloads"
LOWEST = np.float32(-3e38)


def online(q: Array, k: Array, v: Array, *, columns: int, causal: bool, diagonal: int, scale_log2e: float) -> Array:
    """What the kernels compute for one head, in float32, a tile of keys after the other."""
    rows = np.arange(len(q))[:, None]
    largest = np.full((len(q), 1), LOWEST, np.float32)
    total, output = np.zeros((len(q), 1), np.float32), np.zeros((len(q), v.shape[1]), np.float32)
    for first in range(0, len(k), columns):
        keys = np.arange(first, min(first + columns, len(k)))
        scores = (q.astype(np.float32) * np.float32(scale_log2e)) @ k[keys].astype(np.float32).T
        if causal:
            scores[keys > rows + diagonal] = -np.inf
        larger = np.maximum(largest, scores.max(axis=1, keepdims=True))
        with np.errstate(under="ignore", over="ignore"):
            fade, weights = np.exp2(largest - larger), np.exp2(scores - larger)
        largest, total = larger, total * fade + weights.sum(axis=1, keepdims=True)
        output = output * fade + weights @ v[keys].astype(np.float32)
    return np.divide(output, total, out=np.zeros_like(output), where=total > 0)


def exact(q: Array, k: Array, v: Array, *, causal: bool, diagonal: int) -> Array:
    """The same in float64, with the whole matrix of scores."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T * q.shape[1] ** -0.5
    if causal:
        scores[np.arange(len(k)) > np.arange(len(q))[:, None] + diagonal] = -np.inf
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
    return np.nan_to_num(weights) @ v.astype(np.float64)


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "diagonal", "factor"),
    [
        (1, 1, True, 0, 1),
        (65, 65, True, 0, 1),
        (130, 130, False, 0, 30),
        (130, 130, True, 0, 30),
        (64, 200, True, 136, 1),
        (200, 64, True, -136, 1),
        (40, 40, True, -1, 30),
        (40, 40, True, -40, 1),
    ],
)
def test_online_softmax_is_softmax(queries: int, keys: int, causal: bool, diagonal: int, factor: float) -> None:
    """For ragged tiles, large scores, rows that see no key at first, and rows that never see one, which are zero."""
    random = np.random.default_rng(queries + keys)
    q, k, v = (random.standard_normal((size, 32)) for size in (queries, keys, keys))
    inputs = [each.astype(np.float32) for each in (q * factor, k, v)]
    got = online(*inputs, columns=32, causal=causal, diagonal=diagonal, scale_log2e=32**-0.5 / np.log(2))
    want = exact(*inputs, causal=causal, diagonal=diagonal)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
    unseen = np.arange(queries) + diagonal < 0 if causal else np.zeros(queries, bool)
    assert not got[unseen].any()
    assert (np.abs(got[~unseen]).sum(axis=1) > 0).all()


class CompileError(Exception):
    """Stands for `cupy.cuda.nvrtc.NVRTCError`."""


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A CuPy for CUDA 13 with one H200, on the CPU: its `launchKernel` computes what the kernels should.

    Has what was compiled and launched, and on which GPU; may be given a `log` with which compiling fails.
    """
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import torch

    import _tiled

    made = SimpleNamespace(compiled=[], launched=[], shared=[], chosen=[], log="", version=13020, threads=1024)

    def compile_program(program: list[str], options: tuple[str, ...]) -> None:
        made.compiled.append((program[1], options))
        if made.log:
            raise CompileError

    def launch(*numbers: int) -> None:
        made.launched.append(numbers[1:9])
        _compute(numbers[9], made.compiled[-1][1])

    limits = {1: made.threads, 16: 132, 75: 9, 76: 0, 97: 232448}
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            runtimeGetVersion=lambda: made.version,
            deviceGetAttribute=lambda number, _index: limits[number],
            getDeviceProperties=lambda _index: {"name": b"NVIDIA H200"},
            setDevice=made.chosen.append,
        ),
        nvrtc=SimpleNamespace(
            NVRTCError=CompileError,
            createProgram=lambda source, name, _headers, _names: [source, name],
            compileProgram=compile_program,
            getCUBIN=lambda _program: b"cubin",
            getProgramLog=lambda _program: made.log,
            destroyProgram=lambda _program: None,
        ),
        driver=SimpleNamespace(
            funcSetAttribute=lambda _function, number, value: made.shared.append((number, value)),
            funcGetAttribute=lambda _number, _function: made.threads,
            launchKernel=launch,
        ),
        get_cuda_path=lambda: None,
        function=SimpleNamespace(Module=_Module),
    )
    _install(monkeypatch, cuda)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # as CPU tensors have it
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for made_once in (_tiled._calls, _tiled._kernel, _tiled._kernel_for, _tiled.device_limits):
        made_once.cache_clear()
    return made


class _Module:
    """Stands for `cupy.cuda.function.Module`."""

    def load(self, _cubin: bytes) -> None:
        pass

    def get_function(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(ptr=len(name))


def _install(monkeypatch: pytest.MonkeyPatch, cuda: SimpleNamespace) -> None:
    """Make `import cupy`, `from cupy.cuda import …` and `from cupy.cuda.function import …` find it."""
    modules = {"cupy": ModuleType("cupy"), "cupy.cuda": ModuleType("cupy.cuda")}
    modules["cupy.cuda.function"] = ModuleType("cupy.cuda.function")
    vars(modules["cupy"])["cuda"] = modules["cupy.cuda"]
    vars(modules["cupy.cuda"]).update(vars(cuda))
    vars(modules["cupy.cuda.function"])["Module"] = cuda.function.Module
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def _compute(parameters: int, options: tuple[str, ...]) -> None:
    """Read a kernel's arguments as CUDA does, from an array of pointers, and write the output."""
    macros = dict(each[2:].split("=") for each in options if each.startswith("-D"))
    kinds: list[Any] = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 2 + [ctypes.c_float] + [ctypes.c_int] * 3
    pointers: Any = (ctypes.c_void_p * len(kinds)).from_address(parameters)
    values: list[Any] = [kind.from_address(pointer).value for kind, pointer in zip(kinds, pointers, strict=True)]
    queries, keys, scale_log2e, causal, diagonal, heads = values[4:]
    head_dim = int(macros["HEAD_DIM"])
    item = ctypes.c_uint16 if macros["HALF"] == "1" else ctypes.c_float

    def at(address: int, rows: int) -> Array:
        held: Any = (item * (heads * rows * head_dim)).from_address(address)
        array: Array = np.ctypeslib.as_array(held)
        return array.view(np.float16 if macros["HALF"] == "1" else np.float32).reshape(heads, rows, head_dim)

    q, k, v, out = (at(values[n], queries if n in (0, 3) else keys) for n in range(4))
    for head in range(heads):
        out[head] = online(
            *(q[head], k[head], v[head]),
            columns=int(macros["COLUMNS"]),
            causal=bool(causal),
            diagonal=diagonal,
            scale_log2e=scale_log2e,
        )


@pytest.mark.parametrize("name", ["tiled_o0", "tiled_o3"])
def test_it_is_a_backend(name: str, cupy: SimpleNamespace) -> None:
    """What arrives at the kernel gives what PyTorch gives: addresses, sizes, scale, mask; grid and shared memory."""
    import torch

    from _attention import BACKENDS, Problem
    from _tiled_stages import STAGES

    attend = BACKENDS[name].make(Problem(70, 64, True, "cuda"))
    q, k, v = (torch.randn(2, 3, 70, 64).half() for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(attend(q, k, v), want, atol=2e-3)
    tile = STAGES[name].tiles("fp16", 64)[0]
    rows = -(-70 // tile.rows)
    grid = (rows, 1, 1) if name == "tiled_o0" else (6, rows, 1)
    assert cupy.launched == [(*grid, tile.threads, 1, 1, tile.shared_bytes, 7)]
    assert cupy.shared == [(8, tile.shared_bytes)]
    assert cupy.chosen == [-1]  # the tensors' GPU: so a thread that has no context yet gets one


def test_it_is_compiled_once_for_a_type_and_head_dimension(cupy: SimpleNamespace) -> None:
    """Whatever the length, the mask and how often it is prepared; another type is another kernel."""
    import torch

    from _tiled import prepare

    for seq in (5, 9):
        for causal in (True, False):
            attend = prepare("tiled_o1", causal=causal)
            q, k, v = (torch.randn(1, 1, seq, 16) for _ in range(3))
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            assert torch.allclose(attend(q, k, v), want, atol=1e-5)
    assert len(cupy.compiled) == 1
    path, options = cupy.compiled[0]
    assert path == str(WORKLOADS / "kernels" / "tiled_o1.cu")
    assert {"-arch=sm_90", "-DHALF=0", "-DHEAD_DIM=16"} <= set(options)
    prepare("tiled_o1", causal=True)(*(torch.zeros(1, 1, 4, 16).half() for _ in range(3)))
    assert len(cupy.compiled) == 2


def test_knobs_limit_shared_memory_and_show_what_is_compiled(
    cupy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 48 KiB the wider tile of two does not fit, and the output is the same; sources come from the folder."""
    import torch

    import _tiled

    monkeypatch.setenv("NSYSPROF_TILED_SMEM_KB", "48")
    monkeypatch.setenv("NSYSPROF_TILED_DEBUG", "1")
    q, k, v = torch.randn(3, 1, 2, 70, 128).half()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(_tiled.prepare("tiled_o1", causal=False)(q, k, v), want, atol=2e-3)
    assert cupy.shared[0][1] <= 48 * 1024
    assert f"{_tiled.KERNELS / 'tiled_o1.cu'}: Tile(rows=16, columns=32" in capsys.readouterr().err


def test_views_and_odd_addresses_are_copied_first(cupy: SimpleNamespace) -> None:
    """Not contiguous, as a transformer block has them, or not on 16 bytes; longer keys and a diagonal of them."""
    import torch

    from _tiled import prepare

    q, k, v = torch.randn(1, 6, 3, 2, 16).permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(prepare("tiled_o0", causal=False)(q, k, v), want, atol=1e-5)
    odd = torch.randn(1 + 2 * 6 * 16)[1:].view(1, 2, 6, 16)
    want = torch.nn.functional.scaled_dot_product_attention(odd, k, v)
    assert torch.allclose(prepare("tiled_o0", causal=False)(odd, k, v), want, atol=1e-5)
    mask = torch.ones(2, 6, dtype=torch.bool).tril(4)
    want = torch.nn.functional.scaled_dot_product_attention(q[:, :, :2], k, v, attn_mask=mask)
    got = prepare("tiled_o0", causal=True, diagonal=4)(q[:, :, :2], k, v)
    assert torch.allclose(got, want, atol=1e-5)
    empty = prepare("tiled_o0", causal=True)(q[:, :, :0], k, v)
    assert (empty.shape, len(cupy.launched)) == ((1, 2, 0, 16), 3)


@pytest.mark.parametrize(("diagonal", "as_if"), [(2**31 + 5, 0), (2**31 - 1, 4), (-(2**31) - 5, -5)])
def test_diagonals_far_out_do_not_overflow(diagonal: int, as_if: int, cupy: SimpleNamespace) -> None:
    """All keys are seen, or none, however large the number is."""
    import torch

    from _tiled import prepare

    q, k, v = torch.randn(3, 1, 2, 5, 16)
    got = prepare("tiled_o1", causal=True, diagonal=diagonal)(q, k, v)
    mask = torch.ones(5, 5, dtype=torch.bool).tril(as_if or 5)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert torch.allclose(got, torch.nan_to_num(want), atol=1e-5)


def test_without_keys_nothing_is_seen(cupy: SimpleNamespace) -> None:
    """Zeros, also by the stage whose copies cannot be described for no rows; no kernel is launched."""
    import torch

    from _tiled import prepare

    q, k = torch.randn(1, 2, 5, 64).half(), torch.randn(1, 2, 0, 64).half()
    for name in ("tiled_o0", "tiled_o5"):
        assert torch.equal(prepare(name, causal=False)(q, k, k), torch.zeros_like(q))
    assert cupy.launched == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"q": {"requires_grad": True}}, "tiled_o0 is forward only, it has no gradients"),
        ({"q": {"dtype": "float64"}}, "needs tensors of one type, not torch.float64, torch.float32"),
        ({each: {"dtype": "bfloat16"} for each in "qkv"}, "tiled_o0 computes fp16 and fp32, not bf16"),
        ({"k": {"size": (1, 2, 5, 16)}}, r"keys and values alike, not \(1, 2, 4, 16\), \(1, 2, 5, 16\)"),
        ({each: {"size": (1, 1, 4, 16)} for each in "kv"}, "as many key heads as query heads"),
        ({each: {"size": (2, 4, 16)} for each in "qkv"}, "needs .batch, heads, sequence, head dimension."),
    ],
)
def test_what_it_would_compute_wrongly_is_refused(
    change: dict[str, dict[str, Any]], reason: str, cupy: SimpleNamespace
) -> None:
    """Before anything is launched, in a line."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    def made(size: tuple[int, ...] = (1, 2, 4, 16), dtype: str = "float32", **more: Any) -> torch.Tensor:
        return torch.zeros(size, dtype=getattr(torch, dtype), **more)

    tensors = [made(**change.get(each, {})) for each in "qkv"]
    with pytest.raises(TiledError, match=reason):
        prepare("tiled_o0", causal=True)(*tensors)
    assert cupy.launched == []


def test_tensors_elsewhere_are_refused(cupy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would be launched on the current GPU, with addresses of another."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(TiledError, match="tiled_o0 needs all tensors on the current GPU"):
        prepare("tiled_o0", causal=True)(*(torch.zeros(1, 1, 4, 16) for _ in range(3)))
    assert cupy.launched == []


def test_nothing_is_loaded_into_a_graph(cupy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is captured; what a call before has loaded can be called."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    q, k, v = torch.randn(3, 1, 2, 5, 16)
    attend = prepare("tiled_o0", causal=True)
    attend(q, k, v)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    attend(q, k, v)
    with pytest.raises(TiledError, match=r"tiled_o0 cannot be loaded during CUDA graph capture"):
        attend(q.half(), k.half(), v.half())
    assert (len(cupy.compiled), len(cupy.launched)) == (1, 2)


def test_lengths_that_grow_keep_no_more_than_some(cupy: SimpleNamespace) -> None:
    """What a decoder asks for differs from call to call; the kernels are few."""
    import torch

    import _tiled

    for queries in range(300):
        _tiled.kernel_for("tiled_o0", torch.empty(1, 1, queries, 16), causal=True)
    assert _tiled._kernel_for.cache_info().currsize < 300
    assert len(cupy.compiled) == 1


def test_a_log_sum_exp_is_refused_where_there_is_none(cupy: SimpleNamespace) -> None:
    """By name, before anything is compiled."""
    from _tiled import prepare
    from _tiled_stages import TiledError

    with pytest.raises(TiledError, match="tiled_o5 has no log-sum-exp"):
        prepare("tiled_o5", causal=True, log_sum_exp=True)
    assert cupy.compiled == []


def test_gradients_of_a_log_sum_exp_are_refused(cupy: SimpleNamespace) -> None:
    """Those of the output are there."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    tensors = [torch.zeros(1, 1, 4, 64).half().requires_grad_() for _ in range(3)]
    with pytest.raises(TiledError, match=r"tiled_o6 has no gradients of its log-sum-exp: call it under torch\.no_grad"):
        prepare("tiled_o6", causal=True, log_sum_exp=True)(*tensors)
    assert cupy.compiled == []


def test_a_compile_error_shows_the_log(cupy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it on stderr, with the options; the first error is the reason."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    cupy.log = 'k.cu(3): warning: odd\nk.cu(7): error: identifier "x" is undefined\n\n1 error detected\n'
    with pytest.raises(TiledError) as refused:
        prepare("tiled_o0", causal=True)(*(torch.zeros(1, 1, 4, 16) for _ in range(3)))
    assert str(refused.value) == 'tiled_o0 does not compile: k.cu(7): error: identifier "x" is undefined'
    said = capsys.readouterr().err
    assert said.startswith("tiled_o0 does not compile with -arch=sm_90 ")
    assert cupy.log.strip() in said


def test_too_few_registers_are_told(cupy: SimpleNamespace) -> None:
    """Where the compiled kernel allows fewer threads than a block has."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    cupy.threads = 128
    with pytest.raises(TiledError, match=r"blocks of 256 threads, but the registers of NVIDIA H200 allow only 128"):
        prepare("tiled_o0", causal=True)(*(torch.zeros(1, 1, 4, 16) for _ in range(3)))


@pytest.mark.parametrize(
    ("installed", "torch_cuda", "reason"),
    [
        (None, "13.0", "tiled_o2 needs CuPy: pip install cupy-cuda13x"),
        (None, "12.8", "tiled_o2 needs CuPy: pip install cupy-cuda12x"),
        (13020, None, "tiled_o2 needs a CUDA build of torch"),
        (
            12090,
            "13.0",
            "tiled_o2 needs CuPy for CUDA 13, like torch, but the installed CuPy is for CUDA 12:"
            " pip uninstall cupy-cuda12x, then pip install cupy-cuda13x",
        ),
        (
            "libnvrtc.so.12: cannot open shared object file",
            "13.0",
            "tiled_o2 needs a working CuPy (libnvrtc.so.12: cannot open shared object file): pip install cupy-cuda13x",
        ),
    ],
)
def test_the_package_to_install_is_named(
    installed: int | str | None,
    torch_cuda: str | None,
    reason: str,
    cupy: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The one for torch's CUDA, where CuPy is missing, broken, or for another."""
    import torch

    from _tiled import prepare
    from _tiled_stages import TiledError

    if isinstance(installed, int):
        cupy.version = installed
    else:
        monkeypatch.delitem(sys.modules, "cupy")
        name = "ModuleNotFoundError" if installed is None else "ImportError"
        text = f"raise {name}({json.dumps(installed or 'No module named cupy')})"
        (tmp_path / "cupy.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    with pytest.raises(TiledError) as refused:
        prepare("tiled_o2", causal=True)
    assert str(refused.value) == reason


def test_without_a_gpu_it_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others go on, and the table says why."""
    monkeypatch.syspath_prepend(str(WORKLOADS))
    import sdpa
    from _workload import main

    small = "--device cpu --seq 8 --heads 1 --head-dim 16 --warmup 0 --iterations 1 --backend math tiled_o0"
    assert main(sdpa.WORKLOAD, [*small.split(), "--results", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["runs"]
    assert [run["status"] for run in found] == ["measured", "unsupported"]
    assert found[1]["reason"] == "tiled_o0 runs on NVIDIA GPUs only, not on cpu"
    assert "RUN::tiled_o0::S8: unsupported: tiled_o0 runs on NVIDIA GPUs only" in capsys.readouterr().out
