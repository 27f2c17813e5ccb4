"""Which language a program speaks, by the names that its kernels, ranges and processes have."""

from pathlib import Path

import pytest

from nsysprof.trace.dialect import CUDA_CPP, JAX, OPENACC_FORTRAN, OPENMP, PYTORCH, UNKNOWN, dialect
from tests.conftest import MakeTrace
from tests.kit.kineto import launch, write_trace
from tests.kit.reports import attributed
from tests.kit.trace import DomainCreate, Kernel, Launch, Process, Range

KERNELS = {
    PYTORCH: [
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int, T2, T3)",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIbEESt5arrayIPcLm1EEEEviT0_T1_",
        "void <unnamed>::softmax_warp_forward<c10::Half, c10::Half, float, (int)11, (bool)0>(T2 *, const T1 *, int)",
        "triton_poi_fused_add_mul_0",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out>(int)",
    ],
    OPENACC_FORTRAN: ["kmeans_235_gpu", "test_55_gpu__red", "__pgi_uacc_cuda_fill_42_gpu"],
    CUDA_CPP: [
        "vectorAdd(const float *, const float *, float *, int)",
        "saxpy",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_s161616gemm_f16_16x16_128x2_nn_align8>(T1::Params)",
        "void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__reduce::ReduceAgent<float*>>(float*)",
        "fusion",
    ],
    OPENMP: ["__omp_offloading_31_18a8104__Z_1_l20", "nvkernel__Z4mainv_F1L20_2"],
    UNKNOWN: ["cupy_scan_naive"],
}
BY_NAME = [(kernel, expected) for expected, names in KERNELS.items() for kernel in names]


def spoken(path: Path) -> str:
    """The dialect of a report."""
    return dialect(attributed(path).trace)


@pytest.mark.parametrize(("kernel", "expected"), BY_NAME)
def test_kernels_tell(kernel: str, expected: str, trace: MakeTrace) -> None:
    """Of PyTorch, directives, and CUDA C++, whose programs are no Python; a library's kernels tell nothing."""
    assert spoken(trace(Kernel(kernel, 0, 10, 1), Kernel("sgemm_128x64_nn", 10, 20, 2), processes=False)) == expected


def test_several_kernels_named_like_those_of_xla_tell(trace: MakeTrace) -> None:
    """One alone may be called so by anyone."""
    names = ("loop_add_fusion_3", "input_reduce_fusion", "wrapped_transpose", "triton_softmax_2")
    assert spoken(trace(*(Kernel(name, at, at + 1, 1) for at, name in enumerate(names)), processes=False)) == JAX
    assert spoken(trace(Kernel("loop_add_fusion_3", 0, 10, 1), processes=False)) == CUDA_CPP


@pytest.mark.parametrize(
    ("name", "domain", "expected"),
    [
        ("aten::mm", "", PYTORCH),
        ("autograd::engine::evaluate_function: AddmmBackward0", "", PYTORCH),
        ("XlaModule:#hlo_module=jit_step,program_id=3#", "TSL", JAX),
        ("DATAFRAME_INIT", "cudf_python", UNKNOWN),
        ("ExecutionContext::execute", "TensorRT", UNKNOWN),
        ("step 3", "", CUDA_CPP),
    ],
)
def test_ranges_tell(name: str, domain: str, expected: str, trace: MakeTrace) -> None:
    """Those of frameworks; what a program calls its own ranges tells nothing."""
    made = [DomainCreate(7, domain), Range(name, 0, 20, domain=7)] if domain else [Range(name, 0, 20)]
    assert spoken(trace(*made, Kernel("gemm", 0, 10, 1), processes=False)) == expected


def test_a_python_program_without_a_framework_is_unknown(trace: MakeTrace) -> None:
    """It may be CuPy, Numba or a binding; other processes of the system say nothing of the program."""
    kernel = Kernel("saxpy", 0, 10, 1)
    assert spoken(trace(kernel, Process(1, "/usr/bin/python3.11"))) == UNKNOWN
    assert spoken(trace(kernel, Process(1, "./saxpy"), Process(77, "python3"))) == CUDA_CPP


@pytest.mark.parametrize(
    ("names", "api", "process", "expected"),
    [
        (("Jacobi_176(double *)", "Jacobi_181"), "cuLaunchKernel", "./jacobi", OPENACC_FORTRAN),
        (("Jacobi_176(double *)", "Jacobi_181"), "cudaLaunchKernel_v7000", "./jacobi", CUDA_CPP),
        (("Jacobi_176(double *)", "reduce"), "cuLaunchKernel", "./jacobi", CUDA_CPP),
        (("julia_step_cuda_176", "julia_add_181"), "cuLaunchKernel", "./julia", CUDA_CPP),
        (("Jacobi_176(double *)", "Jacobi_181"), "cuLaunchKernel", "python3", UNKNOWN),
    ],
)
def test_kernels_of_lines_tell(names: tuple[str, ...], api: str, process: str, expected: str, trace: MakeTrace) -> None:
    """C++ demangles what OpenACC names by function and line; its runtime launches with the driver API."""
    made = [
        each
        for at, name in enumerate(names, 1)
        for each in (Launch(10 * at, 10 * at + 5, at, api=api), Kernel(name, 10 * at + 6, 10 * at + 9, at))
    ]
    assert spoken(trace(*made, Process(1, process))) == expected


def test_calls_without_kernels_are_of_a_cuda_program(trace: MakeTrace) -> None:
    """Where nothing runs on a GPU and nothing calls CUDA there is nothing to tell it by."""
    assert spoken(trace(Launch(0, 10, None, api="cudaMalloc_v3020"), processes=False)) == CUDA_CPP
    assert spoken(trace(Range("main", 0, 10))) == UNKNOWN


def test_what_torch_profiler_recorded_runs_pytorch(tmp_path: Path) -> None:
    """Whatever its kernels are."""
    assert spoken(write_trace(tmp_path / "t.json", launch("saxpy", (0, 10), (20, 30), id=1))) == PYTORCH
