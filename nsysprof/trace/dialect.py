"""Detect a program's language or framework from kernels, ranges and process names, to choose advice."""

import re
from collections.abc import Iterable

import numpy as np

from nsysprof.trace.trace import COPYING, OPENACC, Trace

DIALECTS = ("pytorch", "jax", "openmp", "openacc-fortran", "cuda c++", "unknown")
PYTORCH, JAX, OPENMP, OPENACC_FORTRAN, CUDA_CPP, UNKNOWN = DIALECTS
# What kernels and ranges are named that only a framework, or a compiler of directives, makes; also as C++ mangles it.
_OF_PYTORCH = re.compile(
    r"(?:.*\b(?:at::(?:native|cuda)|at_cuda_detail|c10::|torch::)|_Z\w*(?:2at6native|3c10)|triton_(?:poi|red|per|tem)_fused"
    r"|aten::|autograd::|ProfilerStep|Optimizer\.(?:step|zero_grad)#|Torch-Compiled|TorchDynamo|CompiledFunction|nn\.Module)"
)
_OF_XLA = re.compile(
    r"(?:(?:loop|input|wrapped|transpose|reduce|scatter|concatenate|horizontal|gemm|cudnn|triton|softmax|custom|dynamic)"
    r"_(?:\w+_)?(?:fusion|dot|gemm|softmax)(?:_\d+)*\Z|(?:fusion|wrapped_\w+)(?:_\d+)*\Z|Xla(?:Module|Launch|Compile)\b|TSL:|jit_\w+)"
)
_OF_OPENACC = re.compile(r"__pgi_\w+|\w+_\d+_gpu(?:__red\w*)?\Z|acc_(?:enter|exit|compute|wait|launch)\w*\Z")
_LINE = re.compile(
    r"(?!_Z|julia_)\w+?_\d+(?:__red\w*)?(?:\(|\Z)"
)  # a function and its line, as C++ demangles kernels of OpenACC
_OF_OPENMP = re.compile(r"nvkernel_|__omp_offloading_")
# Of Python without those: no advice is written for them.
_OF_OTHERS = re.compile(r"cupy_|cudapy::|(?:_ZN6cudapy)|tensorflow::|.*tensorflow::|CUTENSOR_|.*_kernel_cupy")
_PYTHON = re.compile(
    r"(?:.*/)?(?:python[\d.]*|pytest|torchrun|ipython3?|jupyter\S*|conda|accelerate|deepspeed|mpiexec\S* .*python)\b"
)
_PYTHON_DOMAIN = re.compile(r"(?i).*(?:python|cudf|cupy|rapids|tensorrt)")
_ENOUGH = 3  # kernels that are named like XLA's: a program may call one of its own "fusion"


def dialect(trace: Trace) -> str:
    """Return the program's entry of `DIALECTS`, or UNKNOWN if it cannot be detected."""
    kernels = _kernels(trace)
    ranges = [name.text for name in trace.range_names]
    if trace.report.reader.recorder != "nsys" or _any(_OF_PYTORCH, [*kernels, *ranges]):
        return PYTORCH
    if sum(_OF_XLA.match(name) is not None for name in kernels) >= _ENOUGH or _any(_OF_XLA, ranges):
        return JAX
    if _any(_OF_OPENMP, kernels):
        return OPENMP
    domains = {name.domain for name in trace.range_names}
    other = _any(_OF_OTHERS, kernels) or _any(_PYTHON_DOMAIN, domains) or _any(_PYTHON, _programs(trace))
    openacc = _any(_OF_OPENACC, kernels) or (trace.ranges.kind == OPENACC).any()
    if openacc or (not other and _of_lines(trace, kernels)):
        return OPENACC_FORTRAN
    if other:
        return UNKNOWN
    calls = trace.other_calls is not None and len(trace.other_calls)
    return CUDA_CPP if kernels or calls or len(trace.ops) else UNKNOWN


def _of_lines(trace: Trace, kernels: list[str]) -> bool:
    """Whether every kernel name has a function and a line, and the driver API launched all GPU work."""
    if trace.other_calls is None or not kernels or not all(map(_LINE.match, kernels)):
        return False
    names = [trace.other_calls.names.texts[name] for name in np.unique(trace.launches.name).tolist()]
    return "cuLaunchKernel" in names and all(name.startswith("cuM") or name == "cuLaunchKernel" for name in names)


def _any(pattern: re.Pattern[str], names: Iterable[str]) -> bool:
    return any(pattern.match(name) for name in names)


def _kernels(trace: Trace) -> list[str]:
    return [trace.op_names[name] for name in np.unique(trace.ops.name[~np.isin(trace.ops.kind, COPYING)]).tolist()]


def _programs(trace: Trace) -> list[str]:
    about = trace.report.about
    named = [about.processes.get(process) for process in trace.processes.tolist()]
    return [name for name in [*named, about.command] if name]
