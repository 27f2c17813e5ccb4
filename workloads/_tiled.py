"""Runs the tiled attention kernels: compiled with NVRTC through CuPy when they are first called, launched on torch's
stream.

Tensors are passed by their addresses, nothing is copied; only what is not contiguous is made so first, by PyTorch. A
call allocates the output and nothing else, and can be captured into a CUDA graph once one with tensors of the same
shape was made outside of it: kernels are loaded then.

Environment variables, read when a process compiles: NSYSPROF_TILED_SRC is a folder whose sources replace the shipped
ones, NSYSPROF_TILED_SMEM_KB limits the shared memory of a block, NSYSPROF_TILED_DEBUG=1 prints each kernel that is
compiled: its source, tile, registers and options.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from _tiled_stages import (
    STAGES,
    Device,
    Grid,
    Load,
    Tile,
    TiledError,
    compile_options,
    fitting_tile,
    launch_grid,
    macros,
    require,
)

if TYPE_CHECKING:
    from _attention import Attend

KERNELS = Path(os.environ.get("NSYSPROF_TILED_SRC") or Path(__file__).parent / "kernels")
DTYPES = {"torch.float16": "fp16", "torch.float32": "fp32", "torch.bfloat16": "bf16"}
_SHARED_SIZE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MOST_THREADS = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
_LOCAL_BYTES, _REGISTERS = 3, 4  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, CU_FUNC_ATTRIBUTE_NUM_REGS
# Numbers of cudaDeviceAttr: those that `Device` has, and the two of the compute capability.
_LIMITS = {"threads": 1, "multiprocessors": 16, "major": 75, "minor": 76, "shared_bytes": 97}


class _Arguments(ctypes.Structure):
    """What kernels are called with, one after the other; those that do not ask for the last ones do not see them."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_int) for name in ("queries", "keys")),
        ("scale_log2e", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("causal", "diagonal", "heads")),
        ("log_sum_exp", ctypes.c_void_p),
    ]


_OFFSETS = [getattr(_Arguments, field[0]).offset for field in _Arguments._fields_]


@dataclass(frozen=True)
class Kernel:
    """A kernel on a device, compiled for one type, head dimension and tile. ``function`` is CuPy's, which keeps it
    loaded.
    """

    name: str
    head_dim: int
    tile: Tile
    device: Device
    function: Any

    def launch(
        self, tensors: Sequence[torch.Tensor], causal: bool, diagonal: int, log_sum_exp: torch.Tensor | None = None
    ) -> None:
        """Compute the last of four tensors from the others, all contiguous, on torch's current stream.

        ``log_sum_exp``, of float32, becomes the logarithm of the sum of the exponentials of each row's scores.
        """
        q, k, _, out = tensors
        batch, heads, queries, _ = q.shape
        keys = k.shape[2]
        if not out.numel():
            return
        if not keys:
            out.zero_()
            if log_sum_exp is not None:
                log_sum_exp.fill_(-math.inf)
            return
        diagonal = max(-queries, min(diagonal, keys))  # beyond these nothing changes, but numbers overflow
        scale_log2e = self.head_dim**-0.5 / math.log(2)
        addresses = [each.data_ptr() for each in tensors]
        more = 0 if log_sum_exp is None else log_sum_exp.data_ptr()
        values = _Arguments(*addresses, queries, keys, scale_log2e, causal, diagonal, batch * heads, more)
        begin = ctypes.addressof(values)
        places = [begin + offset for offset in _OFFSETS]
        if module := STAGES[self.name].arguments:
            own = importlib.import_module(module).arguments(self, tensors)
            places[: len(own)] = map(ctypes.addressof, own)
        grid = launch_grid(self.name, self.tile, batch * heads, queries, self.device)
        start(self.function, grid, self.tile.threads, self.tile.shared_bytes, places, q.get_device())


def start(function: Any, grid: Grid, threads: int, shared_bytes: int, addresses: Sequence[int], index: int) -> None:
    """Launch a kernel with arguments at these addresses on a GPU, by its number, on torch's current stream.

    Launching needs a context, which a thread has only once it called CUDA's runtime. A thread of autograd's may have
    this for its first work: choosing the GPU gives it one.
    """
    launch_kernel, choose = _calls()
    choose(index)
    held = (ctypes.c_void_p * len(addresses))(*addresses)
    stream = torch.cuda.current_stream().cuda_stream
    launch_kernel(function.ptr, *grid, threads, 1, 1, shared_bytes, stream, ctypes.addressof(held), 0)


@cache
def _calls() -> tuple[Any, Any]:
    """CUDA's `cuLaunchKernel` and `cudaSetDevice`."""
    from cupy.cuda import driver, runtime

    return driver.launchKernel, runtime.setDevice


def prepare(
    name: str, *, causal: bool, diagonal: int = 0, device: str = "cuda", columns: int = 0, log_sum_exp: bool = False
) -> Attend:
    """Attention by a stage of the kernel, of (batch, heads, sequence, head dimension) tensors on a GPU.

    With ``causal`` a query sees the keys up to its own place plus ``diagonal``; where it sees none, the output is zero.
    ``columns`` chooses among the tiles of a stage the one of so many keys. With ``log_sum_exp`` a second tensor comes
    out, of (batch, heads, sequence) in float32: the logarithm of the sum of the exponentials of a query's scores.
    Raises `TiledError`, then or when called, with what cannot be done here and why.
    """
    if device != "cuda":
        raise TiledError(f"{name} runs on NVIDIA GPUs only, not on {device}")
    if log_sum_exp and not STAGES[name].log_sum_exp:
        raise TiledError(f"{name} has no log-sum-exp")
    _require_cupy(name)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, both: bool = True) -> tuple[Any, Any]:
        _check_tensors(name, q, k, v)
        kernel = kernel_for(name, q, causal, columns)
        q, k, v = plain(q), plain(k), plain(v)
        out = torch.empty_like(q)
        sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if both else None
        kernel.launch((q, k, v, out), causal, diagonal, sums)
        return out, sums

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            if not (module := STAGES[name].backward):
                raise TiledError(f"{name} is forward only, it has no gradients")
            if log_sum_exp:
                raise TiledError(f"{name} has no gradients of its log-sum-exp: call it under torch.no_grad()")
            return importlib.import_module(module).Attention.apply(forward, causal, diagonal, q, k, v)
        found = forward(q, k, v, log_sum_exp)
        return found if log_sum_exp else found[0]

    return attend


def _check_tensors(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises `TiledError` for tensors that a kernel would read wrongly."""
    if not q.dtype == k.dtype == v.dtype:
        raise TiledError(f"{name} needs tensors of one type, not {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.ndim == k.ndim == 4 or k.shape != v.shape:
        raise TiledError(
            f"{name} needs (batch, heads, sequence, head dimension) tensors, keys and values alike, not"
            f" {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if (*q.shape[:2], q.shape[3]) != (*k.shape[:2], k.shape[3]):
        raise TiledError(f"{name} needs as many key heads as query heads, not {tuple(k.shape)} for {tuple(q.shape)}")
    if max(q.shape[2], k.shape[2]) * q.shape[3] >= 2**31:
        raise TiledError(f"{name} needs less than 2^31 numbers per head, not {tuple(q.shape)} and {tuple(k.shape)}")
    if not q.get_device() == k.get_device() == v.get_device() == torch.cuda.current_device():
        raise TiledError(f"{name} needs all tensors on the current GPU")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is not contiguous or does not start where 16 bytes can be read at once."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def kernel_for(name: str, q: torch.Tensor, causal: bool, columns: int = 0) -> Kernel:
    """The kernel of a stage for queries on a GPU, compiled where it is not yet."""
    return _kernel_for(name, q.dtype, q.shape, q.get_device(), causal, columns)


@lru_cache(maxsize=256)
def _kernel_for(name: str, dtype: torch.dtype, shape: torch.Size, index: int, causal: bool, columns: int) -> Kernel:
    short = DTYPES.get(str(dtype), str(dtype))
    batch, heads, queries, head_dim = shape
    device = device_limits(index)
    require(name, short, head_dim, device)
    tile = fitting_tile(name, short, head_dim, device, columns, Load(queries, batch * heads, causal))
    return _kernel(name, short, head_dim, index, tile)


@cache
def device_limits(index: int) -> Device:
    """What the GPU of this number allows."""
    from cupy.cuda import runtime

    limits = {name: runtime.deviceGetAttribute(number, index) for name, number in _LIMITS.items()}
    if kib := os.environ.get("NSYSPROF_TILED_SMEM_KB"):
        limits["shared_bytes"] = min(limits["shared_bytes"], int(kib) * 1024)
    return Device(
        name=runtime.getDeviceProperties(index)["name"].decode(),
        capability=(limits.pop("major"), limits.pop("minor")),
        **limits,
    )


def loaded(source: str, symbols: Sequence[str], shared_bytes: int, options: tuple[str, ...]) -> list[Any]:
    """Kernels of a source, compiled, allowed the shared memory that they need."""
    from cupy.cuda import driver
    from cupy.cuda.function import Module

    if torch.cuda.is_current_stream_capturing():
        raise TiledError(
            f"{source} cannot be loaded during CUDA graph capture: call it with this shape before the capture"
        )
    module = Module()
    module.load(compiled(source, options))
    functions = [module.get_function(symbol) for symbol in symbols]
    for function in functions:
        driver.funcSetAttribute(function.ptr, _SHARED_SIZE, shared_bytes)
    return functions


@cache
def _kernel(name: str, dtype: str, head_dim: int, index: int, tile: Tile) -> Kernel:
    """The kernel of a stage, where the GPU has the registers for a block."""
    from cupy.cuda import driver

    device = device_limits(index)
    options = compile_options(name, macros(dtype, head_dim, tile), device)
    (function,) = loaded(name, [name], tile.shared_bytes, options)
    most, local, registers = (
        driver.funcGetAttribute(number, function.ptr) for number in (_MOST_THREADS, _LOCAL_BYTES, _REGISTERS)
    )
    if os.environ.get("NSYSPROF_TILED_DEBUG"):
        said = f"{tile}, {registers} registers, {local} bytes of local memory, {' '.join(options)}"
        print(f"{KERNELS / name}.cu: {said}", file=sys.stderr)
    if most < tile.threads:
        raise TiledError(
            f"{name} has blocks of {tile.threads} threads, but the registers of {device.name} allow only {most}"
        )
    return Kernel(name, head_dim, tile, device, function)


def compiled(name: str, options: tuple[str, ...]) -> bytes:
    """The machine code of a stage. Raises `TiledError` with the first error; all of NVRTC's log goes to stderr."""
    from cupy.cuda import nvrtc

    path = KERNELS / f"{name}.cu"
    program = nvrtc.createProgram(path.read_text(encoding="utf-8"), str(path), (), ())
    try:
        nvrtc.compileProgram(program, (*options, *_include_options()))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = str(nvrtc.getProgramLog(program)).strip() or str(error)
        print(f"{name} does not compile with {' '.join(options)}:\n{log}", file=sys.stderr)
        lines = log.splitlines()
        first = next((line for line in lines if "error" in line), lines[0])
        raise TiledError(f"{name} does not compile: {first.strip()}") from None
    finally:
        nvrtc.destroyProgram(program)


def _include_options() -> tuple[str, ...]:
    """Where CUDA's own headers are, if they are installed."""
    import cupy

    home = cupy.cuda.get_cuda_path()
    return (f"-I{home}/include",) if home else ()


def _require_cupy(name: str) -> None:
    """Raises `TiledError` naming the package to install where CuPy is missing or made for another CUDA."""
    if not torch.version.cuda:
        raise TiledError(f"{name} needs a CUDA build of torch")
    wanted = torch.version.cuda.split(".")[0]
    package = f"cupy-cuda{wanted}x"
    try:
        import cupy
    except ImportError as error:
        why = "CuPy" if isinstance(error, ModuleNotFoundError) else f"a working CuPy ({error})"
        raise TiledError(f"{name} needs {why}: pip install {package}") from None
    found = str(cupy.cuda.runtime.runtimeGetVersion() // 1000)
    if found != wanted:
        raise TiledError(
            f"{name} needs CuPy for CUDA {wanted}, like torch, but the installed CuPy is for CUDA {found}:"
            f" pip uninstall cupy-cuda{found}x, then pip install {package}"
        )
