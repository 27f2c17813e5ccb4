"""Each kind of finding on a program that has it, and on one that looks alike and has not."""

import re
import shlex
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from nsysprof import diagnosis
from nsysprof.attribution.levels import WHOLE
from nsysprof.core.units import format_ns
from nsysprof.diagnosis import tried
from nsysprof.diagnosis.calls import LOST_GRAPHS
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import Diagnosis, case_of
from nsysprof.diagnosis.finding import BOUND, EVERY, ONCE, REPLAYED, SHARED, UNTRIED, Finding, ranked
from nsysprof.diagnosis.kinds import dialect_text
from nsysprof.diagnosis.text import (
    findings_text,
    gain_text,
    headline,
    kernels_first,
    names_several,
    next_command,
    nothing_text,
)
from nsysprof.diagnosis.tried import groups, removal_of
from nsysprof.forecast.forecast import forecast
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.kit.kineto import annotation, launch, operator, write_trace
from tests.kit.kineto import collective as all_ranks
from tests.kit.program import MS, STARTS, US, Program
from tests.kit.reports import attributed
from tests.kit.trace import (
    Diagnostic,
    Gpu,
    GraphTrace,
    Items,
    Kernel,
    Launch,
    Memcpy,
    MpiCall,
    OsCall,
    PageFault,
    Process,
    Range,
    launch_kernel,
    launch_memcpy,
)
from tests.why.test_why import NCCL

STEPS = 12
Act = Callable[[Program], None]


def diagnosis_of(path: Path, select: str | None = None) -> Diagnosis:
    """What `nsysprof why` diagnoses."""
    found = why(attributed(path), select).diagnosis
    assert found is not None
    return found


def nothing(program: Program) -> None:
    """A step that is over."""


def wait(program: Program) -> None:
    """Wait for the GPU, and go on at once."""
    program.wait()


def wait_long(program: Program) -> None:
    """Wait after each kernel."""
    for _ in range(20):
        program.launch("mul", 20 * US)
        program.wait()


def code(program: Program) -> None:
    """Work of the CPU behind a synchronization."""
    program.wait()
    with program.range("log"):
        program.code(2 * MS)


def os(name: str, ns: int = 2 * MS) -> Act:
    """Call the operating system behind a synchronization."""

    def act(program: Program) -> None:
        program.wait()
        with program.range("data"):
            program.os(name, ns)

    return act


def fed(sleep_ns: int = 0, early_ns: int = 0) -> Act:
    """Take a batch from another thread, and copy it; that thread sleeps until ``early_ns`` before."""

    def act(program: Program) -> None:
        os("sem_wait")(program)
        woke = program.now - early_ns
        if sleep_ns:
            program.items.append(OsCall("clock_nanosleep", woke - sleep_ns, woke, 9))
        program.copy(1, 1 << 20, 20 * US)

    return act


def call(name: str, ns: int = 2 * MS) -> Act:
    """Call CUDA behind a synchronization."""

    def act(program: Program) -> None:
        program.wait()
        with program.range("data"):
            id = program.call(name, ns)
        if name == "cudaGraphLaunch":  # a graph of a moment
            program.items.append(GraphTrace(program.now + STARTS, program.now + STARTS + US, id))
            program.free[7] = program.now + STARTS + US

    return act


def copy(kind: int, *, host: int, blocks: bool = False) -> Act:
    """Copy 32 MiB in the stream that computes."""

    def act(program: Program) -> None:
        program.copy(kind, 32 << 20, 4 * MS, blocks=blocks, host=host)

    return act


def waited_copy(program: Program) -> None:
    """Copy pinned memory behind the layers, and wait for the copy."""
    program.copy(1, 32 << 20, 4 * MS, host=1)
    program.wait()


def allocations(program: Program) -> None:
    """Allocate, and free what was allocated."""
    program.wait()
    with program.range("data"):
        program.call("cudaMalloc", MS)
        program.call("cudaFree", 2 * MS)


def small_copies(program: Program) -> None:
    """Copy 8 KiB forty times, each behind the one before."""
    for _ in range(40):
        program.copy(1, 8 << 10, 5 * US, blocks=True)


def mpi_copies(program: Program) -> None:
    """The same by MPI."""
    with program.range("MPI_Sendrecv"):
        small_copies(program)


def launching(count: int) -> Act:
    """Launch short kernels more slowly than the GPU runs them."""

    def act(program: Program) -> None:
        program.wait()
        for _ in range(count):
            program.code(10 * US)
            program.launch("k", 2 * US)

    return act


def kernel(name: str, blocks: int = 264, **shape: Any) -> Act:
    """A kernel of two ms."""

    def act(program: Program) -> None:
        program.launch(name, 2 * MS, blocks=blocks, **shape)

    return act


def memset(ns: int) -> Act:
    """Set memory between kernels."""

    def act(program: Program) -> None:
        program.memset(256 << 20, ns)

    return act


def late_kernels(late: int) -> Act:
    """Kernels that are launched far ahead, and start late all the same."""

    def act(program: Program) -> None:
        for _ in range(12):
            program.launch("k", 60 * US, late=late)

    return act


def tiny(count: int, ns: int = US) -> Act:
    """Short kernels in a row, launched while the GPU still computes, that all start a few µs behind the one before."""

    def act(program: Program) -> None:
        program.launch("gemm", 5 * MS)
        for _ in range(count):
            program.launch("k", ns, late=2 * US)

    return act


def recorder(ns: int) -> Act:
    """The recorder works behind a synchronization."""

    def act(program: Program) -> None:
        program.wait()
        program.recorder(ns)

    return act


def collective(beside: bool, ns: int = 2 * MS) -> Act:
    """A collective behind the layers, of two ms by default, with a kernel of two ms beside it or none."""

    def act(program: Program) -> None:
        program.stream_waits(program.record(7), 8)
        program.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", ns, stream=8)
        if beside:
            program.launch("gemm", 2 * MS)
        program.stream_waits(program.record(8), 7)

    return act


def beside(blocks: int) -> Act:
    """A kernel in a separate stream that all others wait for."""

    def act(program: Program) -> None:
        program.stream_waits(program.record(7), 8)
        program.launch("spin", 400 * US, stream=8, blocks=blocks)
        program.stream_waits(program.record(8), 7)
        program.launch("gemm", 60 * US)

    return act


def optimizer(count: int, name: str = "Optimizer.step#Adam.step") -> Act:
    """Kernels that update parameters, launched more slowly than the GPU runs them."""

    def act(program: Program) -> None:
        program.wait()
        with program.range(name):
            for _ in range(count):
                program.code(10 * US)
                program.launch("at::native::vectorized_elementwise_kernel<addcdiv>", 2 * US)

    return act


MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>"
PRODUCT, SCORES = "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", 500 * US
SOFTMAX = "void softmax_warp_forward<c10::Half, c10::Half, float, 11, false, false>"
NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>"
MOMENTS = "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>"
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>"
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 0>"
GEMV = "void gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16, float>"
LOSS = "void cunn_SoftMax{0}<8, c10::BFloat16, float, c10::BFloat16, LogSoftMax{0}Epilogue>"
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::"
    "[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>,"
    " 4, at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>>(int, T1)"
)
SCALE, ADD, GELU, FILL = (
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{each}>"
    for each in ("AUnaryFunctor<MulFunctor>", "CUDAFunctor_add", "GeluCUDAKernelImpl", "FillFunctor<float>")
)


def in_a_row(*names: str) -> Act:
    """Kernels of half a ms one behind the other; norms with a block for each of 32 channels."""

    def act(program: Program) -> None:
        for name in names:
            program.launch(name, SCORES, blocks=32 if "_1C11_kernel_new<" in name else 4096)

    return act


def copied_scores(program: Program) -> None:
    """Attention whose scores are copied."""
    in_a_row(PRODUCT, SOFTMAX)(program)
    program.copy(8, 1 << 20, SCORES)
    program.launch(PRODUCT, SCORES)


def read_back(program: Program) -> None:
    """`.item()` behind each layer."""
    for _ in range(12):
        with program.range("log"):
            program.launch("reduce", 60 * US)
            program.copy(2, 4, 2 * US)
            program.wait()
            program.code(30 * US)
            program.launch("scale", 5 * US)


def steps(act: Act, between: Act = nothing, count: int = STEPS) -> Program:
    """Steps of twelve layers, in each of which a program acts, and what it does between them."""
    program = Program()
    for number in range(count):
        with program.range(f"step{number}"):
            program.code(US)
            with program.range("forward"):
                program.layers()
            act(program)
        between(program)
    return program


# What programs do in each step; kind and cause of the first finding; ns that a step loses; the change; of the remedy.
HAS = [
    (code, "cpu-code", "CPU time in log", 2_000_000, "--remove 'CPU time in log'", "speed up this CPU work"),
    (beside(1), "stream-dependency", "spin in another stream", 400_000, "", "call cudaStreamWaitEvent right before"),
    (os("nanosleep"), "sleep", "nanosleep in data", 2_000_000, "--remove 'nanosleep in data'", "take the sleep"),
    (os("poll"), "input-wait", "poll in data", 2_000_000, "--remove 'poll in data'", "read the next input"),
    (os("write"), "input-wait", "write in data", 2_000_000, "--remove 'write in data'", "buffer the output"),
    (os("fputs"), "input-wait", "fputs in data", 2_000_000, "--remove 'fputs in data'", "buffer the output"),
    (os("fsync"), "input-wait", "fsync in data", 2_000_000, "--remove 'fsync in data'", "buffer the output"),
    (fed(), "input-wait", "sem_wait in data", 2_000_000, "--remove 'sem_wait in data'", "read the next input"),
    (os("futex"), "lock", "futex in data", 2_000_000, "", ""),
    (os("MPI_Send"), "mpi", "MPI_Send in data", 2_000_000, "", ""),
    (os("mmap"), "page-fault", "mmap in data", 2_000_000, "--remove 'mmap in data'", "touch or pin"),
    (call("cudaMalloc"), "allocation", "cudaMalloc in data", 2_000_000,
     "--remove 'cudaMalloc in data'", "allocate once"),
    (call("cudaFree"), "allocation", "cudaFree in data", 2_000_000, "--remove 'cudaFree in data'", "allocate once"),
    (call("cudaHostAlloc"), "pinning", "cudaHostAlloc in data", 2_000_000, "--remove 'cudaHostAlloc in data'",
     "call cudaHostRegister or cudaMallocHost once"),
    (call("cuModuleLoadData"), "compilation", "cuModuleLoadData in data", 2_000_000,
     "--remove 'cuModuleLoadData in data'", "move this compilation"),
    (call("cudaGraphLaunch"), "graph-launch", "cudaGraphLaunch in data", 2_000_000, "", ""),
    (copy(1, host=0, blocks=True), "pageable-copy", "pageable copies to the GPU of 32.0 MiB in step*", 4_017_750,
     "--pinned", "allocate the host memory with cudaMallocHost"),
    (copy(2, host=0, blocks=True), "pageable-copy", "pageable copies to the host of 32.0 MiB in step*", 4_017_750,
     "--pinned", "keep the data on the GPU"),
    (copy(1, host=1), "exposed-copy", "pinned copies to the GPU of 32.0 MiB in step*", 4_002_000,
     "--remove 'pinned copies to the GPU of 32.0 MiB in step*'", "issue the copy earlier, in a separate stream"),
    (waited_copy, "exposed-copy", "pinned copies to the GPU of 32.0 MiB in step*", 4_022_000,
     "--remove 'pinned copies to the GPU of 32.0 MiB in step*'", "issue the copy earlier, in a separate stream"),
    (allocations, "allocation", "allocation, most in cudaFree in data", 3_000_000,
     "--remove 'allocation, most in cudaFree in data'", "allocate once"),
    (copy(10, host=2), "exposed-copy", "copies between GPUs of 32.0 MiB in step*", 4_002_000,
     "--remove 'copies between GPUs of 32.0 MiB in step*'", "issue the copy earlier"),
    (copy(8, host=1), "copy-layout", "copies on the GPU of 32.0 MiB in step*", 4_002_000, "", ""),
    (small_copies, "small-copies", "pinned copies to the GPU of 8.00 KiB in step*", 530_000,
     "--remove 'pinned copies to the GPU of 8.00 KiB in step*'", "combine the small copies"),
    (read_back, "synchronization", ".item() in log", 511_333, "--remove '.item() in log'", "keep the value on the GPU"),
    (mpi_copies, "small-copies", "pinned copies to the GPU of 8.00 KiB in MPI_Sendrecv", 530_000,
     "--remove 'pinned copies to the GPU of 8.00 KiB in MPI_Sendrecv'", "let MPI move the data between GPUs"),
    (kernel("add", 1), "small-grid", "add", 1_996_212, "", "launch at least 528 blocks of 128"),
    (memset(3 * MS), "memset", "memsets in step*", 3_002_000, "", ""),
    (late_kernels(30 * US), "launch-latency", "launch latency between kernels that were ready to run",
     408_000, "", ""),
    (tiny(200), "launch-latency", "tiny kernels in a row", 995_000, "", "run these kernels as one"),
    (recorder(2 * MS), "profiler-overhead", "work of the profiler", 2_000_000, "", ""),
    (collective(beside=False, ns=MS), "communication-exposed", "exposed communication", 1_000_000, "",
     "start collectives"),
    (collective(beside=False), "communication-exposed", "exposed communication", 2_000_000, "",
     "communicate less: keep results sharded and gather only what is read, send bfloat16"),
    (optimizer(60), "optimizer", "kernel launches of the optimizer", 604_083,
     "--fuse 'Optimizer.step#Adam.step'", "construct the optimizer with fused=True"),
    (optimizer(60, "sgd"), "optimizer", "kernel launches of the optimizer", 604_083,
     "--fuse sgd", "construct the optimizer with fused=True"),
    (kernel("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 264), "tensor-cores", "attention in FP32", 1_666_667, "",
     "if bfloat16 is precise enough, run the model under torch.autocast"),
    (kernel("fmha_cutlassB_f32_aligned_64x64_k64_sm80", 264), "tensor-cores", "attention in FP32", 1_666_667, "",
     "if bfloat16 is precise enough, run the model under torch.autocast"),
    (kernel("ampere_sgemm_128x64_tn", 264), "tensor-cores", "matrix products in FP32 on CUDA cores", 1_750_000, "",
     "if TF32 is precise enough, set CUBLAS"),
    (kernel("sm80_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x16", 264), "tensor-cores", "matrix products in FP64",
     1_750_000, "", "if TF32 is precise enough, store"),
    (kernel("_5x_cudnn_ampere_scudnn_128x32_relu_small_nn_v1"), "tensor-cores", "convolutions in FP32 on CUDA cores",
     1_750_000, "", "if TF32 is precise enough, set CUDNN"),
    (in_a_row(NORM, GELU, NORM, GELU), "training-mode", "batch norm in training mode without a backward pass",
     1_000_000, "", "call model.eval()"),
    (in_a_row(MOMENTS, GELU, MOMENTS, GELU), "training-mode", "batch norm in training mode without a backward pass",
     1_000_000, "", "call model.eval()"),
    (in_a_row(PRODUCT, FILL, PRODUCT), "memset", "kernels that fill memory with a constant", 500_000, "",
     "use torch.empty for memory that is overwritten anyway"),
    (in_a_row(PRODUCT, CAST, PRODUCT), "casts", "kernels that only convert between types", 500_000, "",
     "keep weights and inputs in the data type of the matrix products"),
    (kernel("stencil", 4096, local=4096), "spills", "stencil", 892_126, "", "keep values in registers (32)"),
    (kernel("dense", 264, shared=(0, 200 << 10)), "low-occupancy", "dense", 1_500_000, "",
     "use less shared memory per block (204,800 bytes)"),
    (kernel("add", 1056, block=(32, 1, 1)), "tiny-blocks", "add", 1_000_000, "", "use blocks of 128 to 256 threads"),
    (kernel("add", 140, block=(32, 1, 1)), "tiny-blocks", "add", 1_867_424, "", "launch at least 528 blocks of 128"),
    (kernel("add", 1 << 16, block=(16, 1, 1)), "tiny-blocks", "add", 1_500_000, "", "use blocks of 128 to 256 threads"),
    (kernel("heavy", 140, block=(512, 1, 1), shared=(0, 120 << 10)), "tail-wave", "heavy", 939_394, "",
     "launch a multiple of 132 blocks"),
    (kernel("stencil", 4096, shared=(0, 100 << 10)), "low-occupancy", "stencil", 1_000_000, "",
     "use less shared memory per block (102,400 bytes)"),
    (kernel("stencil", 4096, block=(32, 8, 1), registers=255), "low-occupancy", "stencil", 1_000_000, "",
     "use fewer registers per thread (255)"),
    (kernel("cutlass_80_tensorop_f16_s16816gemm_f16_128x128_nn_align1"), "misaligned",
     "matrix products of misaligned sizes", 1_600_000, "", "pad the leading dimensions"),
    *((kernel(name), "channels-last", "conversions between channels-first and channels-last", 2_000_000, "",
       "pass tensors to cuDNN in NHWC") for name in ("nchw2nhwc_kernel", "nhwc2nchwKernel<float>", "nhwcToNchwKernel")),
    (kernel(TO_NHWC), "channels-last",
     "conversions between channels-first and channels-last", 2_000_000, "", "pass tensors to cuDNN in NHWC"),
    (in_a_row(TO_NHWC, "void cudnn::bn_bw_1C11_kernel_new<__half>"), "channels-last",
     "conversions between channels-first and channels-last", 750_000, "", "pass tensors to cuDNN in NHWC"),
    (in_a_row(SCALE, TO_NHWC, ADD, SCALE, ADD), "channels-last", "conversions between channels-first and channels-last",
     500_000, "", "keep model and input in channels-last"),
    (kernel("heavy", 310, block=(512, 1, 1), shared=(0, 120 << 10)), "tail-wave", "heavy", 434_343, "",
     "launch a multiple of 132 blocks"),
    (in_a_row(PRODUCT, SCALE, SOFTMAX, PRODUCT), "unfused-attention", "attention in separate kernels", 1_666_667, "",
     "call torch.nn.functional.scaled_dot_product_attention"),
    (copied_scores, "unfused-attention", "attention in separate kernels", 1_666_667, "",
     "call torch.nn.functional.scaled_dot_product_attention"),
    (in_a_row(PRODUCT, SCALE, SOFTMAX, DROPOUT, PRODUCT), "unfused-attention", "attention in separate kernels",
     2_166_667, "", "call torch.nn.functional.scaled_dot_product_attention"),
    (in_a_row(GELU, GEMV, GEMV, GEMV), "weight-bound", "reads of weights", 750_000, "", "quantize the weights to 8"),
    (in_a_row(SCALE, ADD, GELU, SCALE), "pointwise", "pointwise kernels in a row", 1_500_000, "",
     "fuse these kernels with torch.compile"),
    (in_a_row(ADD, MEAN, SCALE, MEAN, GELU), "pointwise", "pointwise kernels in a row", 2_000_000, "",
     "fuse these kernels with torch.compile"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "kind", "cause", "lost", "change", "remedy"), HAS, ids=[each[2] for each in HAS])
def test_a_program_that_has_it(
    trace: MakeTrace, act: Act, kind: str, cause: str, lost: int, change: str, remedy: str
) -> None:
    """The first finding names what was planted in the steps, what that costs each, and what to do."""
    diagnosis = diagnosis_of(trace(*steps(act).items))
    first = diagnosis.findings[0]
    assert (first.kind, first.cause, first.path, first.gpu) == (kind, cause, "step*", 0)
    assert (first.steps, first.often) == (STEPS, "every step")
    assert first.lost_ns / first.steps == pytest.approx(lost, rel=0.001)
    assert shlex.join(first.change) == change
    assert first.remedy.startswith(remedy)
    assert bool(remedy) == bool(first.remedy) == (first.gain_ns > 0)
    assert 0 <= first.gain_low_ns <= first.gain_ns <= first.gain_high_ns <= first.total_ns
    assert not diagnosis.nothing


@pytest.mark.parametrize(("name", "cause"), [(SCALE, ".item()"), ("scale", "a copy of a few bytes to the host")])
def test_a_value_is_read_in_the_words_of_the_language(trace: MakeTrace, name: str, cause: str) -> None:
    """PyTorch's kernels, or those of CUDA C++, behind a copy of four bytes."""

    def act(program: Program) -> None:
        read_back(program)
        program.launch(name, US)

    first = diagnosis_of(trace(*steps(act).items, Process(1, "./solver"))).findings[0]
    assert first.cause == f"{cause} in log"
    assert (".item()" in first.remedy) is (cause == ".item()")


def test_many_short_launches_are_launch_bound(trace: MakeTrace) -> None:
    """Forty kernels of two µs, each launched 14 µs after the one before."""
    found = diagnosis_of(trace(*steps(launching(40)).items)).findings
    [bound] = [each for each in found if each.kind == "launch-bound"]
    assert (bound.cause, bound.path) == ("kernel launches", "step*")
    assert 1.1 * 40 * 12_000 > bound.lost_ns / STEPS > 0.9 * 40 * 12_000
    assert "CUDA graph" in bound.remedy


@pytest.mark.parametrize(("reads", "name", "advice"), [
    (1, SCALE, "launch fewer kernels: capture"),
    (3, SCALE, "launch fewer kernels: take .item() out of the step (3 per step, which a CUDA graph cannot contain)"),
    (3, "scale", "launch fewer kernels: take the copy to the host out of the step (3 per step"),
])  # fmt: skip
def test_a_graph_contains_no_wait_of_the_cpu(trace: MakeTrace, reads: int, name: str, advice: str) -> None:
    """Steps of sixty short kernels that read one value, or one before every twenty kernels."""

    def act(program: Program) -> None:
        for _ in range(reads):
            program.copy(2, 4, 2 * US)
            program.wait()
            launching(60 // reads)(program)
        program.launch(name, US)

    found = diagnosis_of(trace(*steps(act).items, Process(1, "./solver"))).findings
    [bound] = [each for each in found if each.kind == "launch-bound"]
    assert bound.remedy.startswith(advice)


@pytest.mark.parametrize(("name", "after", "lost"), [
    (SCALE, 40 * US, 10 * (12 + 40) * US),  # two calls, and code beyond the usual 10 µs
    ("scale", 40 * US, 10 * 12 * US),
    (SCALE, 300 * US, 10 * 12 * US),  # work of the program
])  # fmt: skip
def test_a_read_goes_with_its_copy_and_the_code_of_pytorch(trace: MakeTrace, name: str, after: int, lost: int) -> None:
    """Ten reads in steps that are bound by launches come before the graph that cannot contain them."""

    def act(program: Program) -> None:
        program.wait()
        for _ in range(10):
            for _ in range(12):
                program.code(10 * US)
                program.launch(name, 2 * US)
            program.copy(2, 4, 2 * US)
            program.wait()
            program.code(after)

    found = diagnosis_of(trace(*steps(act).items, Process(1, "./solver"))).findings
    [read] = [each for each in found if each.kind == "synchronization"]
    assert read.lost_ns / STEPS == pytest.approx(lost, rel=0.1)
    assert (found[0] is read) is (after < 100 * US)


@pytest.mark.parametrize(("waits", "told"), [(1, False), (2, True)])
def test_several_waits_cost_little_each(trace: MakeTrace, waits: int, told: bool) -> None:
    """Steps of 2 ms, of which the GPU idles for 4 % behind one or two calls."""

    def act(program: Program) -> None:
        for _ in range(waits):
            program.launch("gemm", 1200 * US // waits)
            program.wait("cudaDeviceSynchronize")
            program.code(80 * US // waits)
        program.launch("gemm", 100 * US)

    found = diagnosis_of(trace(*steps(act).items)).findings
    assert [each.kind for each in found] == ["synchronization"] * told


@pytest.mark.parametrize(("names", "advice"), [(1, "capture the loop"), (2, "merge the parallel loops")])
def test_one_kernel_again_and_again_has_no_loops_to_merge(trace: MakeTrace, names: int, advice: str) -> None:
    """Sweeps of OpenACC, launched more slowly than the GPU runs them: one loop, or two in turn."""

    def act(program: Program) -> None:
        program.wait()
        for number in range(40):
            program.code(10 * US)
            program.launch(f"main_{55 + number % names}_gpu", 2 * US)

    found = diagnosis_of(trace(*steps(act).items)).findings
    [bound] = [each for each in found if each.kind == "launch-bound"]
    assert advice in bound.remedy


@pytest.mark.parametrize("node", [None, 5])
def test_launches_of_graphs_are_long_where_nsys_records_each_node(trace: MakeTrace, node: int | None) -> None:
    """Two graphs in each step, launched in two ranges for 4 ms each, and 2 ms of code; with their nodes they are one
    cause, more than three times as large as that code.
    """

    def act(program: Program) -> None:
        code(program)
        for name in ("forward", "backward"):
            with program.range(name):
                id, start = program.call("cudaGraphLaunch", 4 * MS), program.now + STARTS
            program.items.append(
                Kernel("k", start, start + US, id, graph_node=node) if node else GraphTrace(start, start + US, id)
            )
            program.free[7] = start + US

    found = diagnosis_of(trace(*steps(act).items)).findings
    graphs = [each for each in found if each.kind == "graph-launch"]
    alone = {"cudaGraphLaunch in backward", "cudaGraphLaunch in forward"}
    assert {each.cause for each in graphs} == ({"cudaGraphLaunch"} if node else alone)
    assert ("--cuda-graph-trace=graph" in graphs[0].text) is (node is not None)
    assert (found[0] is graphs[0]) is (node is not None)


def test_code_that_is_usual_is_code_all_the_same(trace: MakeTrace) -> None:
    """Two kernels in a step, 400 µs of code before each: that is no launching, though each piece is as long."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            for _ in range(2):
                program.code(400 * US)
                program.launch("k", 300 * US)
                program.wait()
    first = diagnosis_of(trace(*program.items)).findings[0]
    assert (first.kind, first.cause) == ("cpu-code", "CPU time in step*")
    assert first.lost_ns / STEPS == pytest.approx(2 * 400 * US, rel=0.1)


NOT = [
    pytest.param(nothing, nothing, id="a busy GPU"),
    pytest.param(wait, nothing, id="a synchronization behind which nothing is late"),
    pytest.param(launching(2), nothing, id="few launches"),
    pytest.param(kernel("add", 264), nothing, id="a full grid"),
    pytest.param(kernel("heavy", 264, block=(512, 1, 1), shared=(0, 120 << 10)), nothing, id="two whole waves"),
    pytest.param(kernel("copy", 1200, block=(256, 1, 1)), nothing, id="a last wave of small blocks"),
    pytest.param(kernel("stencil", 4096, shared=(0, 50 << 10)), nothing, id="a quarter of all warps, not sampled"),
    pytest.param(kernel("hybridgemm_f32", 4096), nothing, id="no product in FP64"),
    pytest.param(kernel("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", 4096), nothing, id="attention in bfloat16"),
    pytest.param(kernel(PRODUCT, 4096, shared=(0, 200 << 10)), nothing, id="few warps by design"),
    pytest.param(kernel("cutlass_80_tensorop_f16_s16816gemm_f16_128x128_nn_align8"), nothing, id="aligned"),
    pytest.param(kernel("cutlass_80_tensorop_s8_i16832gemm_s8_128x128_nn_align16"), nothing, id="bytes aligned"),
    pytest.param(in_a_row(SCALE, SCALE, SCALE, SCALE), nothing, id="one kernel in a loop"),
    pytest.param(in_a_row(SCALE, PRODUCT, ADD, PRODUCT), nothing, id="products between pointwise kernels"),
    pytest.param(in_a_row(PRODUCT, GELU, GEMV, PRODUCT), nothing, id="a small part by products of one row"),
    pytest.param(in_a_row(GEMV, GEMV, GEMV), nothing, id="products of one row in a program without weights"),
    pytest.param(in_a_row(PRODUCT, SOFTMAX, "void topk", PRODUCT), nothing, id="a softmax that routes"),
    pytest.param(in_a_row(PRODUCT, LOSS.format("Forward"), LOSS.format("Backward"), PRODUCT), nothing, id="a loss"),
    pytest.param(kernel("add", 264, block=(64, 1, 1)), nothing, id="blocks that fill a multiprocessor"),
    pytest.param(memset(10 * US), nothing, id="a short memset"),
    pytest.param(late_kernels(2 * US), nothing, id="kernels that start as soon as they usually do"),
    pytest.param(tiny(40), nothing, id="few tiny kernels"),  # 3 % of a step
    pytest.param(tiny(150, 5 * US), nothing, id="kernels that take longer than a launch"),
    pytest.param(recorder(20 * US), nothing, id="a recorder that is soon done"),
    pytest.param(collective(beside=True), nothing, id="a collective beside a kernel"),
    pytest.param(in_a_row(NORM, "cudnn::bn_bw_1C11_kernel_new"), nothing, id="batch norm in training"),
    pytest.param(
        in_a_row(NORM, GELU, "sm80_xmma_dgrad_implicit_gemm_f16f16"), nothing, id="batch norm and convolution"
    ),
    pytest.param(in_a_row(*[PRODUCT] * 14, CAST), nothing, id="few casts"),
    pytest.param(optimizer(2), nothing, id="an optimizer of few launches"),
    pytest.param(kernel("stencil", 132, shared=(0, 200 << 10)), nothing, id="a persistent kernel"),
    pytest.param(kernel("sm90_xmma_gemm_bf16", 64), nothing, id="a product that may read memory as fast as it can"),
    pytest.param(kernel("add", 128), nothing, id="a grid that leaves four of 132 multiprocessors empty"),
    pytest.param(kernel("add", 20, block=(0, 1, 1)), nothing, id="a small grid of blocks that were not recorded"),
]


@pytest.mark.parametrize(("act", "between"), NOT)
def test_a_look_alike(trace: MakeTrace, act: Act, between: Act) -> None:
    """Nothing that is worth advice."""
    assert diagnosis_of(trace(*steps(act, between).items)).findings == ()


def test_what_lies_between_steps_is_named(trace: MakeTrace) -> None:
    """4 ms of code, 0.9 ms of which the GPU still runs."""
    [first] = diagnosis_of(trace(*steps(nothing, lambda program: program.code(4 * MS)).items)).findings
    assert (first.kind, first.cause) == ("cpu-code", "CPU time between steps")
    assert 3 * MS < first.lost_ns / first.steps < 4 * MS


@pytest.mark.parametrize(
    ("name", "kind"), [("[DALI] RunCPU", "input-wait"), ("reader 0", "input-wait"), ("plan", "cpu-code")]
)
@pytest.mark.parametrize(("ns", "every", "told"), [(4 * MS, 1, True), (0, 1, False), (48 * MS, 12, False)])
def test_pauses_in_which_the_gpu_also_works_are_told(
    trace: MakeTrace, name: str, kind: str, ns: int, every: int, told: bool
) -> None:
    """0.6 ms of augmentation behind 4 ms of another thread between steps of 0.8 ms; or no pause, or one long one."""

    def between(program: Program) -> None:
        program.wait()
        if next(turns) % every:
            return
        if ns:
            program.items.append(Range(name, program.now, program.now + ns, thread=9))
            for thread in range(10, 15):  # at the same time, for a quarter of the pause
                program.items.append(Range("read", program.now, program.now + ns // 4, thread=thread))
        program.code(ns)
        program.launch("augment", 600 * US)
        program.wait()

    turns = iter(range(1, 14))
    program = steps(nothing, between, count=13)
    program.items.append(Range("epoch", 0, program.now, thread=8))
    found = diagnosis_of(trace(*program.items)).findings
    mine = [each for each in found if each.cause == "pauses between steps"]
    assert [each.kind for each in mine] == [kind] * told
    for each in mine:
        assert each.lost_ns / each.steps == pytest.approx(4 * MS, rel=0.1)
        assert each.text == (
            f"the GPU idles between the steps for 3.71 ms per step on average (74 %), most of it while {name} runs; a"
            " median step takes 759 µs (5.02 ms on average with the pauses)"
        )
        assert each.gain_ns == (each.lost_ns if kind == "input-wait" else 0)
        assert each.remedy.startswith("prepare batches further ahead" if kind == "input-wait" else "")


def test_pauses_between_other_steps_are_theirs(trace: MakeTrace) -> None:
    """A loop without pauses in front of one with pauses of 4 ms in which the GPU works for another range."""

    def between(program: Program) -> None:
        program.wait()
        program.code(4 * MS)
        program.launch("augment", 600 * US)
        program.wait()

    program = Program()
    for name, pause in (("train", nothing), ("evaluate", between)):
        for _ in range(13):
            with program.range(name):
                program.layers()
                program.wait()
            pause(program)
    found = diagnosis_of(trace(*program.items), "[te]*a*").findings
    assert [each.path for each in found if each.cause == "pauses between steps"] == ["evaluate"]


def code_and_write(program: Program) -> None:
    code(program)
    os("write", 3 * MS)(program)


def test_one_cause_is_replayed_where_more_take_too_long(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waits most; of others nothing is known."""
    for limit in ("MAX_TRIED", "MAX_NODES"):
        monkeypatch.setattr(tried, limit, 1)
        found = diagnosis_of(trace(*steps(code_and_write).items)).findings
        assert [each.basis for each in found] == [REPLAYED, UNTRIED]
        monkeypatch.undo()


def test_a_cause_is_replayed_on_two_gpus_of_many(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks do the same: replays of the first cause on all of their GPUs would leave none for the second."""
    monkeypatch.setattr(tried, "MAX_TRIED", 3)
    items: list[Any] = steps(code_and_write).items
    of_rank = [
        replace(each, process=rank + 1, **({"device": rank} if hasattr(each, "device") else {}))
        for rank in range(3)
        for each in items
    ]
    assert [each.basis for each in diagnosis_of(trace(*of_rank)).findings] == [REPLAYED, REPLAYED]


@pytest.mark.parametrize("waits", [True, False])
def test_launches_that_wait_for_each_kernel_can_queue(trace: MakeTrace, waits: bool) -> None:
    """Kernels start 130 µs late; where the CPU waits behind each, it could launch the next one meanwhile."""

    def act(program: Program) -> None:
        for _ in range(12):
            program.launch("k", 60 * US, late=130 * US)
            if waits:
                program.wait("cudaEventSynchronize")

    found = diagnosis_of(trace(*steps(act).items)).findings
    [late] = [each for each in found if each.kind == "launch-latency"]
    assert late.remedy.startswith("do not call cudaEventSynchronize after each kernel") == waits
    assert (late.gain_ns > 0, late.basis) == ((True, BOUND) if waits else (False, UNTRIED))
    assert "another process may use the GPU" in late.text
    program = Program()
    program.launch("init", 60 * MS)
    for _ in range(6):
        act(program)
    said = kernels_first(diagnosis_of(trace(*program.items)))
    assert "begin with init" in said
    assert said.endswith(
        "The best known fix for a wait saves 13 % of this time." if waits else "No fix is known for the waits."
    )


@pytest.mark.parametrize(("slow", "kind"), [(0, "cold-start"), (5, "cpu-code")])
def test_a_cold_first_iteration_is_no_cost_of_each(trace: MakeTrace, slow: int, kind: str) -> None:
    """The first of twelve forwards behind a long preparation takes 200 ms, others 1 ms; or a later one does."""
    program = Program()
    program.launch("prepare", 30 * MS)
    program.wait()
    for number in range(12):
        with program.range(f"forward{number}"):
            program.code(200 * MS if number == slow else 100 * US)
            program.layers()
            program.wait()
    first, *_ = diagnosis_of(trace(*program.items)).findings
    assert first.kind == kind
    if not slow:
        assert first.text.startswith(
            "a cold start: the first of 12 ranges forward* takes 201 ms (84 %); the median of the others is 862 µs"
        )
        assert first.remedy.startswith("record steps after a warm-up")


@pytest.mark.parametrize(("busy", "told"), [(20, True), (1, False)])
def test_kernels_that_fill_the_gpu_are_told_without_a_gain(trace: MakeTrace, busy: int, told: bool) -> None:
    """CPU code takes as long as each step: a replay of shorter kernels gains nothing, however full the GPU."""

    def act(program: Program) -> None:
        for _ in range(busy):
            program.launch("fmha_cutlassF_f32_aligned_64x64_rf_sm80", MS)
        program.code(21 * MS)

    found = diagnosis_of(trace(*steps(act).items)).findings
    mine = [each for each in found if each.cause == "attention in FP32"]
    assert [(each.basis, each.gain_ns) for each in mine] == [(UNTRIED, 0)] * told
    assert all(each.remedy.startswith("if bfloat16 is precise enough") for each in mine)


def test_a_copy_to_one_gpu_creates_no_context_of_another(trace: MakeTrace) -> None:
    """A call that copies to the first GPU for 150 ms comes before all work of the second one."""
    items: list[Items] = []
    for gpu, begin in enumerate((0, 160 * MS)):
        for number in range(20):
            length = (150 if number == 0 else 1) * MS
            call, op = (begin, begin + length + 2 * US), (begin + US, begin + length)
            items.append(launch_memcpy(call, op, id=20 * gpu + number + 1, stream=7 + gpu, device=gpu, host=0))
            begin += length + 4 * US
    assert diagnosis_of(trace(*items)).once == ()


def test_a_context_is_made_once(trace: MakeTrace) -> None:
    """The first cudaMalloc takes 200 ms: that is set-up, and no allocation in the steps."""
    program = Program()
    program.call("cudaMalloc", 200 * MS)
    program.call("cudaMalloc", 10 * US)
    begun = program.now
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.layers()
    diagnosis = diagnosis_of(trace(*program.items))
    assert diagnosis.findings == ()
    assert diagnosis.once == (("context", 200 * MS),)
    assert begun > 200 * MS


def test_the_first_launch_of_a_kernel_loads_it(trace: MakeTrace) -> None:
    """A copy, and 120 µs in the first launch behind it: the copy drained nothing, and no step repeats."""
    program = Program()
    program.copy(1, 4096, US, host=0, blocks=True)
    program.items.append(Launch(program.now, program.now + 120 * US, 77, api="cudaLaunchKernel_v7000"))
    begun = program.now + 121 * US
    program.items.append(Kernel("wave", begun, begun + 2 * US, 77, grid=(264, 1, 1)))
    demo, first = diagnosis_of(trace(*program.items)).findings
    assert demo.kind == "cold-start"
    assert (first.kind, first.often, first.remedy) == ("module-loading", ONCE, "")
    assert first.cause == "the first cudaLaunchKernel, which loads the kernel"


def test_a_kernel_that_is_loaded_while_the_gpu_copies_is_no_cold_start(trace: MakeTrace) -> None:
    """The first launch returns after 11 ms, because a pinned copy of 11 ms runs before the kernel is loaded."""
    program = Program()
    program.copy(1, 256 << 20, 11 * MS, host=1)
    program.items.append(Launch(program.now, program.now + 11_100 * US, 77, api="cudaLaunchKernel_v7000"))
    begun = program.now + 11_101 * US
    program.items.append(Kernel("norm", begun, begun + 3 * MS, 77, grid=(64, 1, 1)))
    found = diagnosis_of(trace(*program.items)).findings
    assert [each.kind for each in found] == ["small-grid"]


def one_pass(set_up: int, work: int, act: Act = nothing, blocks: int = 1) -> Program:
    """A context, then one kernel behind what a program does once."""
    program = Program()
    program.call("cudaMalloc", set_up)
    program.call("cudaMalloc", 10 * US)
    act(program)
    program.launch("add", work, blocks=blocks)
    return program


def test_a_demo_is_no_bottleneck(trace: MakeTrace) -> None:
    """100 µs of work of one block behind 200 ms of set-up: nothing to tune; of 50 ms of work the grid is the matter."""
    diagnosis = diagnosis_of(trace(*one_pass(200 * MS, 100 * US).items))
    demo, grid = diagnosis.findings
    assert (demo.kind, demo.often, demo.gain_ns, demo.cause) == ("cold-start", ONCE, 0, "set-up")
    assert demo.text.startswith(
        "too little GPU work to optimize: the GPU is busy for 100 µs, set-up takes 200 ms (context)"
    )
    assert demo.remedy.startswith("run the work once as a warm-up")
    assert (grid.kind, grid.remedy, grid.basis, grid.gain_ns) == ("small-grid", "", UNTRIED, 0)
    assert "set-up takes 200 ms of the 200 ms recorded (context); the GPU computes for 100 %" in headline(
        diagnosis, "r"
    )
    waits = one_pass(10 * MS, 100 * US)
    waits.code(300 * MS)
    waits.launch("mul", 100 * US, blocks=1)
    diagnosis = diagnosis_of(trace(*waits.items))
    assert diagnosis.recorded_ns == waits.free[7]  # from the first call to the end of the last kernel
    demo, *facts = diagnosis.findings
    assert "kernels run for 200 µs of the 310 ms" in demo.text
    assert not facts
    assert demo.text.endswith("; the GPU waits >99 % of the time for CPU time between calls")
    waits.copy(1, 1 << 30, 100 * MS)  # worth a look, with whatever kernels
    assert diagnosis_of(trace(*waits.items)).findings[0].kind != "cold-start"
    [grid] = diagnosis_of(trace(*one_pass(200 * MS, 50 * MS).items)).findings
    assert grid.kind == "small-grid"
    assert grid.remedy.startswith("launch at least 528 blocks of 128 threads (4 per multiprocessor)")


def test_failed_calls_come_first(trace: MakeTrace) -> None:
    """One of nineteen launches fails; one of 145 may be tried; queries, frees and synchronizations of a dead context
    fail without harm. Of three calls that fail two are named.
    """

    def found(api: str, returned: int, count: int = 8) -> list[Finding]:
        program = steps(code)
        for at in range(program.now, program.now + count * US, US):
            program.items.append(Launch(at, at + US // 2, 9_000_000 + at, api=f"{api}_v7000", returned=returned))
        return [*diagnosis_of(trace(*program.items)).findings]

    first, second = found("cudaLaunchKernel", 701)
    assert (first.kind, first.gain_ns, second.kind) == ("failed-calls", 0, "cpu-code")
    assert first.text.startswith(
        "8 of 152 cudaLaunchKernel calls failed, so the program did not do all of its work; the"
    )
    assert first.text.endswith("is cudaErrorLaunchOutOfResources from cudaLaunchKernel")
    assert first.remedy.startswith("fix the first error before any tuning: use fewer registers")
    assert found("cudaDeviceSynchronize", 700, 1)[0].kind == "failed-calls"
    assert found("cudaLaunchKernel", 701, 1)[0].kind == "cpu-code"
    program = steps(code)
    ran = [replace(each, returned=719) if isinstance(each, Launch) else each for each in program.items]
    assert diagnosis_of(trace(*ran)).findings[0].kind == "failed-calls"  # though its kernel is recorded
    for api, returned in (("cudaEventQuery", 600), ("cudaFree", 1), ("cuCtxSynchronize", 709), ("cuMemAlloc", 2)):
        assert [each.kind for each in found(api, returned)] == ["cpu-code"]
    program = one_pass(200 * MS, 100 * US)
    for api, returned in (("cudaMalloc", 2), ("cudaMemset", 1), ("cudaMemcpy2D", 3), ("cudaMemcpy", 4)):
        program.items.append(Launch(program.now, program.now + US, 9_000 + returned, api=api, returned=returned))
        program.code(2 * US)
    demo, *_ = diagnosis_of(trace(*program.items)).findings
    assert demo.text == (
        "1 of 1 cudaMemcpy calls and 1 of 1 cudaMemcpy2D calls failed, so the program did not do all of its work; the"
        " first error is cudaErrorMemoryAllocation from cudaMalloc"
    )


def test_a_call_that_waits_for_a_kernel_sets_nothing_up(trace: MakeTrace) -> None:
    """A module that is loaded behind a running kernel returns when that is done."""
    program = one_pass(MS, 60 * MS)
    program.call("cuModuleLoadData", 50 * MS)
    program.launch("mul", 5 * MS)
    assert dict(diagnosis_of(trace(*program.items)).once)["module loading"] < 10 * US


def test_a_cold_start_says_little(trace: MakeTrace) -> None:
    """The driver loads modules for 60 of 70 ms between two kernels: no step repeats, and no remedy is given."""
    program = one_pass(MS, 5 * MS)
    program.call("cuModuleLoadData", 60 * MS)
    program.launch("mul", 5 * MS, blocks=1)
    first, *facts = diagnosis_of(trace(*program.items)).findings
    assert first.kind == "cold-start"
    assert first.lost_ns == pytest.approx(55 * MS, rel=0.01)
    assert first.remedy.startswith("record steps after a warm-up")
    assert first.text.startswith("a cold start")
    assert not any(each.remedy for each in facts)


def test_one_copy_is_not_worth_pinning(trace: MakeTrace) -> None:
    """A program copies 32 MiB once: pinning takes as long; so a rate for memory that is pinned already."""
    first, *_ = diagnosis_of(trace(*one_pass(MS, 2 * MS, copy(1, host=0, blocks=True), 264).items)).findings
    assert (first.kind, first.remedy, first.gain_ns) == ("pageable-copy", "", 0)
    assert "pays off only for buffers" in first.text
    first, *_ = diagnosis_of(trace(*one_pass(MS // 4, MS // 4, copy(1, host=1), 264).items)).findings
    assert (first.kind, first.remedy) == ("exposed-copy", "")
    assert first.text.endswith(
        "at 8.39 GB/s and there is little compute to hide them, so only copying fewer bytes helps"
    )

    def slow(program: Program) -> None:
        program.copy(1, 128 << 20, 20 * MS)

    first, *_ = diagnosis_of(trace(*one_pass(MS, 2 * MS, slow, 264).items)).findings
    assert first.text.endswith("6.71 GB/s is slow for pinned memory: check the PCIe link width with nvidia-smi -q")

    def staged(program: Program) -> None:  # through buffers of the driver, whatever kind of memory is recorded
        program.copy(1, 32 << 20, 16 * MS, blocks=True)
        program.items[-2] = replace(cast(Launch, program.items[-2]), end=program.now + 6 * MS)
        program.now += 6 * MS

    first, *_ = diagnosis_of(trace(*one_pass(MS, 2 * MS, staged, 264).items)).findings
    assert first.text.endswith("2.10 GB/s is slow, and the call returns long after the copy, as if not pinned")


@pytest.mark.parametrize(("work", "said"), [(3 * MS, True), (MS // 2, False)])
def test_copies_that_are_made_once_are_not_what_to_begin_with(trace: MakeTrace, work: int, said: bool) -> None:
    """Pageable memory is copied once in 4 ms, then a kernel runs for a good part of that, or for little."""
    diagnosis = diagnosis_of(trace(*one_pass(MS // 4, work, copy(1, host=0, blocks=True), 264).items))
    assert (diagnosis.findings[0].kind, diagnosis.findings[0].remedy) == ("pageable-copy", "")
    assert ("begin with add (43 %)" in kernels_first(diagnosis)) is said


def test_a_copy_costs_no_more_than_the_gpu_waits(trace: MakeTrace) -> None:
    """Kernels of four streams, each behind a copy that blocks the CPU: at the same time they may take longer."""
    program = Program()
    for stream in range(4):
        program.launch("gemm", 40 * MS, stream=10 + stream)
        program.copy(2, 16 << 20, 2 * MS, 10 + stream, blocks=True, host=0)
    found = diagnosis_of(trace(*program.items)).findings
    [lost] = [each.lost_ns for each in found if each.kind == "pageable-copy"]
    assert 6 * MS < lost <= 9 * MS


def test_a_thread_is_not_blamed_before_it_begins(trace: MakeTrace) -> None:
    """The thread that launched last reads for 50 ms, then another one begins with a launch."""
    program = Program()
    program.launch("gemm", MS)
    program.os("read", 50 * MS)
    with program.on(2):
        program.launch("gemm", 40 * MS)
    other = launch_kernel("gemm", (US, 2 * US), (3 * US, 4 * US), id=77, process=2, thread=99, device=1)
    for items in (program.items, [*program.items, *other]):  # with a launch of another process in between
        first = next(each for each in diagnosis_of(trace(*items)).findings if each.gpu == 0)
        assert (first.kind, first.cause) == ("input-wait", "read on thread 1")
        assert first.lost_ns == pytest.approx(49 * MS, rel=0.01)


def test_the_largest_wait_of_a_pass_is_called_by_its_name(trace: MakeTrace) -> None:
    """A program that launches twice is not launch-bound, however short its code between other calls."""
    program = Program()
    program.launch("gemm", 100 * US)
    for _ in range(10):
        program.code(40 * US)
        program.call("cudaEventRecord")
    program.launch("gemm", 3 * MS, blocks=1320)
    assert "Largest wait: CPU time between calls (8.9 %)" in nothing_text(diagnosis_of(trace(*program.items)))


def test_instances_of_a_template_are_one_kernel_to_begin_with(trace: MakeTrace) -> None:
    """Three loops of one function take longer than the longest kernel, each of them less."""

    def act(program: Program) -> None:
        program.launch("void par::each<pressure(int)::[lambda(int) (instance 1)]>(T1)", 2 * MS)
        for loop in (1, 2, 3):
            program.launch(f"void par::each<advect(int)::[lambda(int) (instance {loop})]>(T1)", MS)

    found = diagnosis_of(trace(*steps(act).items))
    assert found.busiest == "each advect (52 % in 3 variants) and each pressure (35 %)"
    assert names_several(found)


@pytest.mark.parametrize(
    ("count", "named", "apart"), [(50, False, True), (65, False, True), (0, False, False), (50, True, False)]
)
def test_variants_that_a_benchmark_runs_one_after_the_other_share_no_step(
    trace: MakeTrace, count: int, named: bool, apart: bool
) -> None:
    """A hundred launches of two kernels, one after the other, each of which the program waits for; or both in turn.
    Annotated steps are no comparison.
    """
    program = Program()
    for number in range(100):
        with program.range(f"step{number}") if named else nullcontext():
            for name, ns in (("naive", 300 * US), ("tiled", 200 * US)):
                if not count or (number < count) == (name == "naive"):
                    program.launch(name, ns)
            program.wait()
            program.code(20 * US)
    found = diagnosis_of(trace(*program.items, Process(1, "./gemm")))
    assert found.chosen.level.found is not named
    assert ("naive (" in found.busiest, "tiled (" in found.busiest) == (True, True)
    assert found.busiest.endswith(", median 200 µs), which run in different steps") is apart
    assert found.several is apart


def test_graphs_that_are_recorded_whole_hide_their_kernels(trace: MakeTrace) -> None:
    """Most of the GPU time is in graphs: no kernel beside them is the one to begin with."""
    graphs = [GraphTrace(number * 10 * MS, number * 10 * MS + 9 * MS, id=number) for number in range(1, 6)]
    launches = [
        Launch(each.start - 10 * US, each.start - 5 * US, each.id, api="cudaGraphLaunch_v10000") for each in graphs
    ]
    found = diagnosis_of(trace(*launches, *graphs, *launch_kernel("fill", (0, 5), (10 * US, MS), id=9)))
    assert found.busiest.startswith("CUDA graphs (")
    assert "--cuda-graph-trace=node" in found.busiest


def test_what_a_demo_waits_for_is_a_wait(trace: MakeTrace) -> None:
    """A hundred tiny kernels of a demo: what their row costs is no time for which the GPU waits."""
    program = Program()
    program.call("cudaMalloc", 200 * MS)
    program.launch("gemm", 500 * US)
    for _ in range(100):
        program.launch("k", US)
    demo, *_ = diagnosis_of(trace(*program.items)).findings
    assert demo.text.startswith("too little GPU work")
    assert "tiny" not in demo.text


def test_tiny_kernels_are_in_a_row_only_without_code_between(trace: MakeTrace) -> None:
    """Of twelve kernels with 300 µs of code between them, fusing saves no code."""

    def apart(program: Program) -> None:
        for _ in range(12):
            program.launch("k", US)
            program.code(300 * US)

    found = diagnosis_of(trace(*steps(apart).items)).findings
    assert [each.kind for each in found if "tiny" in each.text] == []


@pytest.mark.parametrize(("waits", "first"), [(0, ""), (3, "take cudaStreamSynchronize out of the step (3 per step, ")])
def test_waits_between_tiny_kernels_go_before_these_are_in_a_graph(trace: MakeTrace, waits: int, first: str) -> None:
    """The CPU waits for the GPU after each sixty of 240 tiny kernels, or not at all."""

    def act(program: Program) -> None:
        program.launch("gemm", 10 * MS)
        for number in range(4):
            for _ in range(60):
                program.launch(GELU, US, late=2 * US)
            if number < waits:
                program.wait()

    [tiny] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "launch-latency"]
    assert tiny.remedy.startswith(f"run these kernels as one: fuse them with torch.compile, or {first or 'capture'}")


def test_what_the_first_step_of_a_found_loop_waits_for_is_outside_the_steps(trace: MakeTrace) -> None:
    """It pins memory for 2 s; the others compute."""
    program = Program()
    for number in range(24):
        for name in ("gemm", "relu", "gemm", "norm"):
            program.launch(name, 300 * US)
        if not number:
            program.call("cudaMallocHost", 2_000 * MS)
    assert "in one gap (cudaMallocHost)" in headline(diagnosis_of(trace(*program.items)), "file")


def test_values_that_are_read_one_after_another_are_one_cause(trace: MakeTrace) -> None:
    """The first of two copies of four bytes waits for the kernel, the second one for itself: without both a step gains
    nearly all of the idle time.
    """

    def read(program: Program) -> None:
        for _ in range(20):
            program.launch("reduce", 20 * US)
            for _ in range(2):
                program.copy(2, 4, US, blocks=True, host=0)
                blocking = cast("Launch", program.items[-2])
                program.items[-2] = replace(blocking, api="cudaMemcpy_v3020")

    diagnosis = diagnosis_of(trace(*steps(read).items))
    first = diagnosis.findings[0]
    assert (first.kind, first.cause) == ("synchronization", "cudaMemcpy (DtoH pageable, 4 B) in step*")
    assert first.gain_ns > 0.8 * sum(each.idle_ns + each.copies_ns for each in diagnosis.times)


def test_a_wait_for_a_collective_is_told_once(trace: MakeTrace) -> None:
    """Another GPU idles while the CPU waits for a collective: without that wait, it needs the data all the same."""

    def exchange(program: Program) -> None:
        program.launch("gemm", 700 * US, stream=9, device=1)
        program.wait()
        program.launch("ncclDevKernel_SendRecv", MS, stream=8)
        program.wait()

    found = diagnosis_of(trace(*steps(exchange).items)).findings
    assert [each.kind for each in found] == ["communication-exposed"]


def test_a_collective_is_named_that_runs_in_the_steps(trace: MakeTrace) -> None:
    """Steps broadcast; an all-reduce behind them takes longer than all broadcasts."""

    def broadcast(program: Program) -> None:
        program.launch("ncclDevKernel_Broadcast_RING_LL", MS)

    program = steps(broadcast)
    program.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20 * MS)
    [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "communication-exposed"]
    assert "mostly ncclDevKernel_Broadcast_RING_LL)" in found.text


def test_a_recording_of_cpu_code_alone(trace: MakeTrace) -> None:
    """Ten seconds before a kernel of 30 ms; one second of them is no reason to say so."""
    for seconds, said in ((10, "first GPU operation comes 10.0 s after"), (1, "")):
        program = Program()
        program.os("read", MS)
        program.code(seconds * 1_000 * MS)
        program.launch("gemm", 30 * MS, blocks=1320)
        found = diagnosis_of(trace(*program.items)).findings
        assert any(said in each.text for each in found) == bool(said)


def test_an_allocator_that_grows_calls_no_empty_cache(trace: MakeTrace) -> None:
    """PyTorch allocates in each step: beside as many frees again and again, without them for the first time."""
    for calls, remedy in ((("cudaMalloc", "cudaFree"), "remove empty_cache()"), (("cudaMalloc",), "")):
        warm = [("cudaMalloc", 10 * US)] * 100 * bool(remedy)  # what the warm-up allocates says nothing

        def act(program: Program, calls: Sequence[str] = calls) -> None:
            program.wait()
            for name in calls:
                program.call(name, 2 * MS)
            program.launch(SCALE, US)

        program = Program()
        for name, ns in warm:
            program.call(name, ns)
        program.now += MS
        for number in range(STEPS):
            with program.range(f"step{number}"):
                program.layers()
                act(program)
        [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "allocation"]
        assert found.remedy.startswith(remedy)
        assert bool(found.remedy) == bool(remedy)
        assert ("still grows" in found.text) == (not remedy)


@pytest.mark.parametrize("cached", [False, True])
def test_an_allocator_that_keeps_nothing_should_keep_its_memory(trace: MakeTrace, cached: bool) -> None:
    """PyTorch allocates and frees for each of twelve kernels, or as often at the end of each step: empty_cache()."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            for _ in range(12):
                program.launch(SCALE, 60 * US)
                program.wait()
                if not cached:
                    program.call("cudaMalloc", 50 * US)
                    program.call("cudaFree", 200 * US)
            for name in ("cudaFree", "cudaMalloc") * cached:
                for _ in range(12):
                    program.call(name, 100 * US)
    [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "allocation"]
    assert found.text.startswith("PyTorch's caching allocator seems to be off") is not cached
    assert found.remedy.startswith("remove empty_cache()" if cached else "turn the caching allocator on")
    assert cached or found.lost_ns == pytest.approx(STEPS * 12 * 250 * US, rel=0.1)


def test_the_call_that_allocates_longest_is_named(trace: MakeTrace) -> None:
    """In all ranges together, with the range if most of it is in one; iterations of each found loop are one range."""

    def act(program: Program) -> None:
        program.wait()
        for name, api in (("data", "cudaFree"), ("data", "cudaMalloc"), ("model", "cudaMalloc")):
            with program.range(name):
                program.call(api, (3 if api == "cudaFree" else 2) * MS)

    [cause] = [each.cause for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "allocation"]
    assert cause == "allocation, most in cudaMalloc"
    program = Program()
    for kernels in (["a", "b"], ["c", "d", "e"]):
        for _ in range(30):
            for name in kernels:
                program.launch(name, 100 * US)
            program.wait()
            program.call("cudaFree", MS)
            program.call("cudaMalloc", len(kernels) * MS)
    found = diagnosis_of(trace(*program.items)).findings
    causes = [f"allocation, most in cudaMalloc in {path}" for path in ("iteration B*", "iteration*")]
    assert sorted(each.cause for each in found if each.kind == "allocation") == causes


def test_a_pool_of_the_driver_is_no_caching_allocator_that_is_off(trace: MakeTrace) -> None:
    """PyTorch's backend cudaMallocAsync: it calls the driver for each kernel, and has no memory of its own to keep."""

    def act(program: Program) -> None:
        for _ in range(12):
            program.launch(SCALE, 60 * US)
            program.wait()
            program.call("cudaMallocAsync", 90 * US)
            program.call("cudaFreeAsync", 50 * US)

    [found] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "allocation"]
    assert found.text.startswith("the GPU waits for allocation, most in cudaMallocAsync")
    assert not found.remedy


def test_fills_of_one_shape_flush_a_benchmarks_cache(trace: MakeTrace) -> None:
    """Of one shape before each kernel that is measured, in no step; fills of several shapes are a program's."""
    for sizes, kinds in (((1320, 1320), []), ((1320, 2640), ["memset"])):
        program = Program()
        for number in range(3):
            program.launch(FILL, MS, blocks=sizes[number % 2])
            program.launch(f"gemm_{number}", (3 + number) * MS, blocks=1320)
        found = diagnosis_of(trace(*program.items)).findings
        assert [each.kind for each in found if each.kind == "memset"] == kinds


@pytest.mark.parametrize(("kernels", "remedy"), [(1, "if kernels can work on parts"), (20, "")])
def test_one_pass_can_copy_and_compute_in_parts(trace: MakeTrace, kernels: int, remedy: str) -> None:
    """A pinned copy of 4 ms before a kernel of 9 ms, which takes most of the time; or before 20 kernels of a loop."""
    program = Program()
    program.launch("fill", US)
    program.copy(1, 64 << 20, 4 * MS)
    for number in range(kernels):
        program.launch(f"gemm_{number * number % 17}", 9 * MS // kernels)
    diagnosis = diagnosis_of(trace(*program.items))
    [found] = [each for each in diagnosis.findings if each.kind == "exposed-copy"]
    assert found.remedy.startswith(remedy)
    assert (found.gain_ns > 0) == bool(remedy)
    assert "little compute" not in found.text
    fixed = "The best known fix for a wait saves 31 % of this time."
    waits = fixed if remedy else "No fix is known for the waits."
    assert kernels_first(diagnosis).endswith(waits)


def test_weights_are_copied_once_however_many_they_are(trace: MakeTrace) -> None:
    """Twenty arrays of a size before all compute are no loop that pinning would help; with compute between they are."""
    for kernel_ns, remedy in ((0, ""), (5 * MS, "allocate the host memory with cudaMallocHost")):
        program = Program()
        program.call("cudaMalloc", MS)
        program.launch("fill", US)
        for number in range(20):
            copy(1, host=0, blocks=True)(program)
            program.code((number * number + 1) * US)
            if kernel_ns:
                program.launch(f"gemm_{number * number % 17}", kernel_ns)
        program.launch("gemm", 50 * MS)
        [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "pageable-copy"]
        assert found.remedy.startswith(remedy)
        assert bool(found.remedy) == bool(remedy) == (found.gain_ns > 0)
        assert ("pinning itself takes time" in found.text) == (not remedy)


@pytest.mark.parametrize(("back_ns", "advice"), [(6 * MS, "run both copy directions"), (0, "only copying fewer bytes")])
def test_copies_in_turn_with_other_work_can_overlap_it(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, back_ns: int, advice: str
) -> None:
    """Pageable copies that no replay can try: pinning helps with as long copies back between them, not without."""
    monkeypatch.setattr("nsysprof.diagnosis.case.MAX_LOST", -1.0)

    def act(program: Program) -> None:
        program.copy(1, 64 << 20, 6 * MS, blocks=True, host=0)
        if back_ns:
            program.copy(2, 64 << 20, back_ns, blocks=True, host=0)

    found = diagnosis_of(trace(*steps(act).items)).findings
    [first] = [each for each in found if each.kind == "pageable-copy"]
    assert advice in first.text


@pytest.mark.parametrize(
    ("size", "streams", "remedy"),
    [
        (64 << 10, (13, 14), "copy and compute larger chunks"),
        (64 << 20, (13, 14), ""),
        (64 << 20, (13,), "keep the data on the GPU"),
    ],
)
def test_copies_in_several_streams_overlap_already(
    trace: MakeTrace, size: int, streams: tuple[int, ...], remedy: str
) -> None:
    """Streams that copy, compute and copy back in turn have nothing to move to a separate stream; one stream has, also
    if another one is used once.
    """

    def act(program: Program) -> None:
        for stream in streams:
            program.copy(1, size, 2 * MS, stream=stream)
            program.launch("k", MS // 4, stream=stream)
            program.copy(2, size, 2 * MS, stream=stream)
        program.wait()

    program = steps(act)
    program.copy(1, size, MS, stream=15)
    program.launch("k", MS, stream=15)
    found = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "exposed-copy"]
    told = {re.split("[:,]", each.remedy)[0] for each in found}
    assert remedy in told if remedy else not found


def test_sizes_are_exact_or_about(trace: MakeTrace) -> None:
    """Copies of one size are told as such; those of nearly equal sizes are about as large; both ways have a finding."""

    def act(sizes: Sequence[int]) -> Act:
        def copies(program: Program) -> None:
            for size in sizes:
                program.copy(1, size, 2 * MS)
            program.copy(2, 8_000_000, 2 * MS)

        return copies

    for sizes, size in (([8_000_000, 8_000_000], "7.63 MiB"), ([8_000_000, 8_100_000], "about 7.72 MiB")):
        found = diagnosis_of(trace(*steps(act(sizes)).items)).findings
        assert [each.cause for each in found] == [
            f"pinned copies to the GPU of {size} in step*",
            "pinned copies to the host of 7.63 MiB in step*",
        ]
    found = diagnosis_of(trace(*steps(act([8_000_000, 32_000_000])).items)).findings
    assert found[0].cause.startswith("pinned copies, most to the GPU of ")
    assert found[0].lost_ns / STEPS == pytest.approx(4 * MS, rel=0.01)

    def layers(program: Program) -> None:
        act([8_000_000] * 4)(program)
        program.copy(1, 32_000_000, 4 * MS)

    most = diagnosis_of(trace(*steps(layers).items)).findings[0]
    assert most.cause == "pinned copies, most to the GPU of 7.63 MiB in step*"  # by time, not the longest one


def test_what_is_copied_behind_a_loop_is_no_copy_of_each_step(trace: MakeTrace) -> None:
    """A found loop reads a value in each step; its last step holds the results, which are read once."""
    program = Program()
    for _ in range(40):
        program.launch("jacobi_12_gpu", 30 * US)
        program.copy(2, 8, 2 * US)
        program.wait()
    for _ in range(2):
        program.copy(2, 2 << 20, 160 * US)
        program.wait()
    [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "exposed-copy"]
    assert found.cause == "pinned copies to the host of 8 B in iteration*"
    assert found.remedy == "keep the value on the GPU, and read it on the CPU only every N steps"


def rarely(act: Act, count: int, of: int = 24) -> Program:
    """A loop without ranges, whose steps are found by their pattern: in ``count`` of them a program acts."""
    program = Program()
    for number in range(of):
        program.code(US)
        program.layers()
        if number % (of // count) == 5:
            act(program)
    return program


@pytest.mark.parametrize("act", [call("cudaFree", 4 * MS), code])
def test_a_loop_that_was_found_is_not_blamed_for_what_few_steps_do(trace: MakeTrace, act: Act) -> None:
    """What two of the found steps do may be another loop around them: no advice about "the loop"."""
    found = diagnosis_of(trace(*rarely(act, 2).items)).findings
    assert found
    assert not any(each.remedy for each in found)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "input-wait") for name in ("fetch_batch", "next batch", "data_loading", "DataLoader.__next__")),
        *((name, "cpu-code") for name in ("prefetch_w1", "compiled_loss")),  # which has the letters of MPI
    ],
)
def test_a_prefetch_is_no_loader(trace: MakeTrace, name: str, kind: str) -> None:
    """Code in a range that fetches waits for input; what prefetches weights is code."""

    def act(program: Program) -> None:
        program.wait()
        with program.range(name):
            program.code(2 * MS)

    assert diagnosis_of(trace(*steps(act).items)).findings[0].kind == kind


def test_a_graph_may_save_more_than_its_launches_cost() -> None:
    """CPU time between the launches goes, too, and the sentence says so."""
    path = Path(__file__).parents[2] / "traces/block.sqlite"
    found = diagnosis_of(path, "RUN::flash::S1024/iter*").findings
    first, *others = [gain_text(each) for each in found if each.gain_ns]
    assert first == "saves 824 µs per step in a replay, including other CPU time"
    assert not any("included" in each for each in others)


def test_cpu_work_on_results_belongs_on_the_gpu(trace: MakeTrace) -> None:
    """The CPU works on 8 MiB that it has read back; without the copy on something else, which another thread hides
    unless it takes longer than all else.
    """

    def results(program: Program) -> None:
        program.copy(2, 8 << 20, 10 * US)
        short(program)

    def short(program: Program) -> None:
        program.wait()
        with program.range("log"):
            program.code(600 * US)

    for act, basis, remedy in (
        (results, "bound", "do this work on the GPU"),
        (short, "replayed", "move this CPU work"),
        (code, "bound", "speed up this CPU work or move it to the GPU"),
    ):
        [found] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "cpu-code"]
        assert (found.cause, found.basis) == ("CPU time in log", basis)
        assert found.remedy.startswith(remedy)


def test_ranges_that_differ_in_numbers_are_one_cause(trace: MakeTrace) -> None:
    """Four ranges of one ms are one finding of four; two keep their names."""
    for count, causes in ((4, ["CPU time in load_*"]), (2, ["CPU time in load_0", "CPU time in load_1"])):

        def act(program: Program, count: int = count) -> None:
            for number in range(count):
                program.wait()
                with program.range(f"load_{number}"):
                    program.code(MS)
                program.launch("k", 5 * US)

        path = trace(*steps(act).items)
        found = [each for each in diagnosis_of(path).findings if each.kind == "cpu-code"]
        assert sorted(each.cause for each in found) == causes
        assert found[0].lost_ns / STEPS == pytest.approx(4 * MS if count == 4 else MS, rel=0.01)
        answer = forecast(attributed(path), "step*", as_profiled=True, remove=[found[0].cause])
        assert answer.gain_ns == found[0].gain_ns


def test_a_replay_that_is_off_gives_upper_limits(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the GPU waits for is the most that a fix saves, and nothing is said to have been tried."""
    path = trace(*steps(read_back).items)
    tried = diagnosis_of(path)
    monkeypatch.setattr("nsysprof.diagnosis.case.MAX_RESIDUAL", -1.0)
    first = diagnosis_of(path).findings[0]
    assert (first.kind, first.basis, first.change) == ("synchronization", "bound", ())
    assert first.remedy == tried.findings[0].remedy
    assert first.gain_ns == first.lost_ns == first.gain_high_ns
    few = diagnosis_of(trace(*steps(memset(20 * US)).items))
    assert not few.tried
    assert "no fix was tried" in nothing_text(replace(few, findings=()))
    assert "no fix that was tried saves" in nothing_text(replace(tried, findings=()))
    launches = nothing_text(replace(few, findings=(), mostly="kernel launches (97 %)", idle_share=0.97))
    assert launches.endswith("or capture several steps in a CUDA graph, with no wait between them.")


def test_what_is_lost_without_a_fix_leads_over_little_with_one() -> None:
    """A fix for 3 % of the time comes behind a third that has none, a fix for 8 % before it; of a GPU that other
    processes share, a fix is the first thing, unless launching costs far more. A wait of 3 % comes before launching.
    """

    def first(*found: tuple[str, int, int]) -> str:
        each = [
            Finding(cause, "step", 0, EVERY, 1, "", cause, "", lost, basis=BOUND if gain else UNTRIED, gain_ns=gain)
            for cause, lost, gain in found
        ]
        return ranked([replace(finding, total_ns=100) for finding in each])[0].cause

    assert first(("copies", 3, 3), ("code", 37, 0)) == "code"
    assert first(("copies", 8, 8), ("code", 37, 0)) == "copies"
    assert first(("copies", 3, 3), ("launch-latency", 37, 0)) == "copies"  # which no program is without
    assert first((SHARED, 12, 0), ("launches", 69, 0)) == "launches"
    assert first((SHARED, 12, 0), ("launches", 20, 20)) == SHARED
    assert first(("launch-bound", 60, 0), ("synchronization", 6, 6)) == "synchronization"
    assert first(("launch-bound", 60, 0), ("copies", 6, 6)) == "launch-bound"
    assert first(("launch-bound", 40, 40), ("synchronization", 3, 3)) == "synchronization"
    assert first(("launch-bound", 40, 40), ("synchronization", 2, 2)) == "launch-bound"


def test_a_late_rank_is_told_from_a_slow_transfer(trace: MakeTrace) -> None:
    """One GPU comes 3 ms later than the other to each of twelve collectives; or both at once, and these take long."""

    def ranks(comes: Sequence[int]) -> Iterator[Items]:
        for number in range(12):
            at, calls = 6 * MS * number + MS, 200 * number
            for rank, later in enumerate(comes):
                where, ids = {"process": rank + 1, "device": rank}, 10 * (2 * number + rank)
                yield Range(f"step{number}", calls, calls + 150, process=rank + 1)
                moments = ((at, at + later), (at + later, at + 5 * MS), (at + 5 * MS, at + 6 * MS))
                for id, (name, ran) in enumerate(zip(("gemm", NCCL, "adam"), moments, strict=True)):
                    called = calls + 40 * id
                    yield launch_kernel(name, (called, called + 30), ran, id=ids + id, **where)

    for comes, kind in (([MS, 4 * MS], "communication-late-rank"), ([4 * MS, 4 * MS], "communication-exposed")):
        found = diagnosis_of(trace(*ranks(comes))).findings
        first = next(each for each in found if each.kind != "small-grid")
        assert first.kind == kind
        if kind == "communication-late-rank":
            assert (first.cause, first.gpu, first.change) == ("late peer GPU 1", 0, ("--no-late-peer",))
            assert first.lost_ns / first.steps == pytest.approx(3 * MS, rel=0.1)


def test_a_pass_in_which_the_gpu_hardly_works_is_nothing_to_tune(trace: MakeTrace) -> None:
    """Kernels of 8 ms in a second: the CPU is the matter; in a tenth of a second they are."""

    def first(ns: int) -> Finding:
        program = one_pass(MS, 4 * MS, blocks=264)
        program.code(ns)
        program.launch("mul", 4 * MS)
        return diagnosis_of(trace(*program.items)).findings[0]

    assert first(1000 * MS).text.startswith("too little GPU work to optimize: kernels run for 8.00 ms of the 1.01 s")
    assert "99 % of the time for CPU time between calls" in first(1000 * MS).text
    assert first(100 * MS).kind == "cpu-code"


def test_rows_of_pointwise_kernels_are_counted_where_they_are(trace: MakeTrace) -> None:
    """A row of three in two steps of forty; one in each of four streams, which take no longer than the step."""
    program = Program()
    for number in range(40):
        with program.range(f"step{number}"):
            program.launch("gemm", MS)
            for name in (SCALE, ADD, GELU) * (number in (7, 25)):
                program.launch(name, MS)
            program.wait()
    [few] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "pointwise"]
    text = "3 pointwise kernels in a row each read and write memory: 6.00 ms in 2 of 40 steps"
    assert (few.text, few.often) == (text, "2 of 40 steps")

    def streams(program: Program) -> None:
        program.wait()
        for stream in (7, 8, 9, 10):
            for name in (SCALE, ADD, GELU):
                program.launch(name, MS, stream=stream)
        program.wait()

    [many] = [each for each in diagnosis_of(trace(*steps(streams).items)).findings if each.kind == "pointwise"]
    assert many.text.startswith("12 pointwise kernels in chains of 3 each read and write memory: 3.0")


def test_rows_of_pointwise_kernels_end_where_their_names_begin_again(trace: MakeTrace) -> None:
    """Twelve parameters of one size, four kernels each: four kernels become one, not 48; one chain of four is a row."""
    for count, rows in (
        (12, "48 pointwise and reduction kernels in chains of 4 each"),
        (1, "4 pointwise and reduction kernels in a row each"),
    ):
        found = diagnosis_of(
            trace(*steps(in_a_row(PRODUCT, *(SCALE, ADD, GELU, MEAN) * count, PRODUCT)).items)
        ).findings
        [chain] = [each for each in found if each.kind == "pointwise"]
        assert rows in chain.text
        assert "of each step (" in chain.text
        assert chain.gain_ns == pytest.approx(3 * count * SCORES * STEPS, rel=0.01)

    def optimizer_of(program: Program) -> None:
        with program.range("optimizer"):
            in_a_row(*(SCALE, ADD, GELU) * 12)(program)

    found = diagnosis_of(trace(*steps(optimizer_of).items)).findings
    [chain] = [each for each in found if each.kind == "pointwise"]
    assert "; for the optimizer (100 % of their time), use a torch.optim optimizer with fused=True" in chain.remedy
    act = in_a_row("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", PRODUCT)
    assert not [*diagnosis_of(trace(*steps(act).items)).findings]  # a convolution that converts while it computes
    for name in (
        *(TO_NHWC, "void dali::kernels::detail::gpu::FlipKernel<(unsigned long)5, (bool)0, float>"),
        *("void cudnn::ops::nchwAddPaddingKernel<float>", "void at::native::vectorized_gather_kernel<16, long>"),
    ):
        found = diagnosis_of(trace(*steps(in_a_row(SCALE, ADD, name, GELU, ADD, name, SCALE)).items)).findings
        assert "pointwise" not in {each.kind for each in found}  # no compiler fuses what a library launches between


def test_a_full_gpu_gains_what_recording_adds_to_launches(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a step converts layouts; in a replay, launches that take as long as recorded hide a part of that."""

    def act(program: Program) -> None:
        for _ in range(4):
            for _ in range(10):
                program.code(80 * US)
                program.launch("k", US)
            in_a_row(PRODUCT, TO_NHWC)(program)

    path, gains = trace(*steps(act).items), []
    for factor in (1.0, 1.2, 9.0):
        monkeypatch.setattr("nsysprof.diagnosis.case._NSYS", factor)
        [layout] = [each for each in diagnosis_of(path).findings if each.kind == "channels-last"]
        gains.append(layout.gain_ns)
    assert 0 < gains[0] < gains[1] < gains[2] == layout.lost_ns


def test_what_costs_little_beside_others_and_has_no_remedy_is_not_told(trace: MakeTrace) -> None:
    """Copies on the GPU of 20 % of a step: a finding where nothing else costs more than twice as much."""
    for blocks, kinds in ((264, ["copy-layout"]), (1, ["small-grid"])):

        def act(program: Program, blocks: int = blocks) -> None:
            copy(8, host=1)(program)
            program.launch("add", 16 * MS, blocks=blocks)

        assert [each.kind for each in diagnosis_of(trace(*steps(act).items)).findings] == kinds


@pytest.mark.parametrize("name", [PRODUCT, "fused_moe_kernel", "fusedMoeKernel"])
@pytest.mark.parametrize(("prompts", "told"), [("0(0)", True), ("1(64)", False)])
def test_products_of_few_tokens_read_weights(trace: MakeTrace, name: str, prompts: str, told: bool) -> None:
    """Steps of vLLM that decode eight tokens; with a prompt of 64 tokens, weights are read for all of these."""
    program = Program()
    for _ in range(STEPS):
        with program.range(f"execute_context_{prompts}_generation_8(8)"):
            in_a_row(GELU, name, name, GELU)(program)
            program.wait()
    found = diagnosis_of(trace(*program.items)).findings
    assert [each.gain_ns / STEPS for each in found if each.kind == "weight-bound"] == [SCORES] * told


@pytest.mark.parametrize(
    "norm",
    [
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>",
        "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>",
    ],
)
@pytest.mark.parametrize(
    ("last", "count", "lost"), [(PRODUCT, 5, 1500 * US), ("cudnn::bn_bw_1C11_kernel_new<__half>", 0, 0)]
)
def test_batch_norm_of_inference_is_pointwise(trace: MakeTrace, norm: str, last: str, count: int, lost: int) -> None:
    """It scales each element, and the activation behind it could, too; in training, two kernels are no chain."""
    act = in_a_row(PRODUCT, norm, GELU, PRODUCT, norm, ADD, SCALE, PRODUCT, GELU, ADD, last)
    found = diagnosis_of(trace(*steps(act).items)).findings
    chains = [each for each in found if each.kind == "pointwise"]
    assert [each.lost_ns / STEPS for each in chains] == [pytest.approx(lost, rel=0.001)] * bool(count)
    assert all(each.text.startswith(f"{count} pointwise kernels (with batch norms) in") for each in chains)
    assert all(each.remedy == "fuse these kernels with torch.compile" for each in chains)


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["CudaCodeGen::kernel2(CudaCodeGen::Tensor<float, (int)5>)"], "channels_last)"),
        (["void dali::kernels::FlipKernel<float>(float *, dali::TensorShape<(int)5>)"], "channels_last)"),
        (["void at::native::conv_depthwise3d_cuda_kernel<float>"], "channels_last_3d)"),
        (["void cudnn::ConvTranspose3d", "void at::native::avg_pool2d_out_cuda_frame<float>"], "channels_last_3d)"),
        (["BatchNorm2d", "void at::native::avg_pool3d_cuda_update_output<float>"], "channels_last)"),
        (["Conv2d", "Conv3d"], "channels_last) (volumes: torch.channels_last_3d)"),
        (["void at::native::max_pool3d_with_indices_single_out_frame<float>"],
         "channels_last) (volumes: torch.channels_last_3d)"),
    ],
    ids=["group norm", "DALI", "volumes", "volumes and pool", "images and pool", "both", "pool alone"],
)  # fmt: skip
def test_volumes_have_a_channels_last_of_their_own(trace: MakeTrace, names: list[str], ends: str) -> None:
    """Convolutions and norms say their dimensions; group norms and DALI have five for images, and pooling for other
    axes.
    """
    found = diagnosis_of(trace(*steps(in_a_row(SCALE, TO_NHWC, TO_NHWC, *names)).items)).findings
    [layout] = [each for each in found if each.kind == "channels-last"]
    assert layout.remedy.endswith(ends)


def test_small_grids_at_a_time_leave_the_gpu_empty_together(trace: MakeTrace) -> None:
    """Kernels of one block in four streams: the time counts once; beside a full kernel none is lost."""

    def act(full: bool) -> Act:
        def four(program: Program) -> None:
            program.wait()
            for stream in range(4):
                program.launch("add", 2 * MS, 11 + stream, 1)
            if full:
                program.launch("full", 2 * MS)
            program.wait()

        return four

    [grid] = [each for each in diagnosis_of(trace(*steps(act(False)).items)).findings if each.kind == "small-grid"]
    assert grid.lost_ns / STEPS == pytest.approx(2 * MS, rel=0.02)
    assert grid.gain_ns / STEPS == pytest.approx(2 * MS, rel=0.05)
    assert not [each for each in diagnosis_of(trace(*steps(act(True)).items)).findings if each.kind == "small-grid"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (CAST.replace("LoadWithCast", "LoadWithoutCast").replace("StoreWithCast", "StoreWithoutCast"), {}),  # a copy
        ("stencil", {"local": 32}),  # of a stack: 32 bytes of each thread are 14 µs
    ],
)
def test_kernels_that_look_like_casts_and_spills(trace: MakeTrace, name: str, shape: dict[str, int]) -> None:
    """Copies between equal types, and threads with little local memory."""
    found = diagnosis_of(trace(*steps(kernel(name, 4096, **shape)).items)).findings
    assert not {"casts", "spills"} & {each.kind for each in found}


def test_gpus_without_fast_tf32_are_told_of_half_precision(trace: MakeTrace) -> None:
    """A GeForce multiplies as fast in TF32 as in FP32, a V100 has none."""
    act = kernel("ampere_sgemm_128x64_tn", 264)
    for name, major, minor, times in (("NVIDIA GeForce RTX 3060", 8, 6, 2), ("Tesla V100", 7, 0, 8)):
        gpu = Gpu(0, name, {"computeMajor": major, "computeMinor": minor})
        [found] = diagnosis_of(trace(gpu, *steps(act).items)).findings
        assert found.kind == "tensor-cores"
        assert found.remedy.startswith("if half precision is precise enough")
        assert f"up to {times} times as fast" in found.text


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("at::native::write_indices<long>", True),
        ("at_cuda_detail::cub::CUB_200200_NS::DeviceReduceSingleTileKernel<Sum>", True),
        ("at_cuda_detail::cub::DeviceSelectSweepKernel<Flags>", True),
        ("at_cuda_detail::cub::DeviceCompactInitKernel<State>", True),
        ("at_cuda_detail::cub::DeviceReduceByKeyKernel<Sum>", False),  # of an embedding
        ("cub::DeviceReduceKernel<Sum>", False),  # of other code
    ],
)
def test_a_boolean_mask_goes_with_its_kernels(trace: MakeTrace, name: str, goes: bool) -> None:
    """Without the mask neither the wait nor the kernels that count its elements are left; other kernels stay."""

    def act(program: Program) -> None:
        for _ in range(8):
            program.launch(name, 30 * US)
            program.launch("at::native::DeviceSelectSweepKernel<NonZeroOp>", 3 * US)
            program.copy(2, 4, 2 * US)
            program.wait()
            program.code(20 * US)
            program.launch(GELU, 5 * US)

    first, *_ = diagnosis_of(trace(*steps(act).items)).findings
    assert (first.kind, first.cause) == ("synchronization", "nonzero() in step*")
    assert first.remedy.startswith("use torch.where")
    assert first.lost_ns / STEPS == pytest.approx(337 * US if goes else 303 * US, rel=0.01)


def test_an_operator_on_the_cpu_is_named(tmp_path: Path) -> None:
    """`aten::randn` takes 3 ms of each step and launches nothing; an operator that launches is no work of the CPU."""
    events: list[Any] = []
    for at in range(0, 120 * MS, 10 * MS):
        events.append(annotation(f"ProfilerStep#{at // (10 * MS)}", at, at + 10 * MS))
        events.append(operator("aten::randn", at + US, at + 3 * MS))
        events.append(operator("aten::normal_", at + 2 * US, at + 3 * MS - US))
        events.append(operator("aten::mm", at + 3 * MS + US, at + 6 * MS))
        began = at + 3 * MS + 10 * US
        events += launch("gemm", (began, began + 5 * US), (began + 9 * US, at + 10 * MS), id=at)
    found = diagnosis_of(write_trace(tmp_path / "t.json", events)).findings
    [first] = [each for each in found if each.kind == "cpu-code"]
    assert first.cause == "CPU time in aten::randn in ProfilerStep*"
    assert first.lost_ns / first.steps == pytest.approx(3 * MS, rel=0.01)
    assert first.remedy.startswith("run this operator on the GPU")
    assert not any("aten::mm" in each.cause for each in found)
    once = [*launch("fill", (0, 5 * US), (9 * US, 2 * MS), id=1), operator("aten::randn", 3 * MS, 90 * MS)]
    once += launch("gemm", (91 * MS, 91 * MS + 5 * US), (91 * MS + 9 * US, 99 * MS), id=2)
    for events, advice in ((once, "; run this operator on the GPU"), (once[:2] + once[3:], "; to see what this code")):
        found = diagnosis_of(write_trace(tmp_path / "t.json", events)).findings
        [first] = [each for each in found if each.kind == "cpu-code"]
        assert (advice in first.text, first.remedy) == (True, "")


def test_autotuning_is_no_step(trace: MakeTrace) -> None:
    """Rounds that run a kernel and check the memory around its result compare kernels; others compute."""

    def first(check: str) -> Finding | None:
        program = Program()
        for _ in range(24):
            for name in ("convolve", "fill", check):
                program.code(200 * US)
                program.launch(name, 50 * US)
            program.wait()
        found = diagnosis_of(trace(*program.items))
        assert found.chosen.level.found
        return found.findings[0] if found.findings else None

    tuned, other = first("redzone_checker"), first("reduce")
    assert tuned is not None
    assert tuned.text.startswith("a cold start: the program compares kernels (autotuning) for ")
    assert other is None or other.kind != "cold-start"


def test_set_up_of_a_library_compares_no_kernels(trace: MakeTrace) -> None:
    """A stream that takes 60 ms or one to make is told apart; steps without a check around it compare nothing."""
    for name, ns, told in (
        ("redzone_checker", 60 * MS, " and sets up libraries for 60.0 ms, of the 75."),
        ("redzone_checker", MS, " and sets up libraries for 1.00 ms, of the 16."),
        ("reduce", 60 * MS, ""),
    ):
        program = Program()
        for number in range(24):
            for each in ("convolve", "fill", name):
                program.code(200 * US)
                program.launch(each, 50 * US)
            program.wait()
            if number == 3:
                program.call("cudaStreamCreateWithFlags", ns)
        first = diagnosis_of(trace(*program.items)).findings[0]
        assert told in first.text if told else first.kind != "cold-start", first.text


def test_what_some_steps_wait_for_leads_if_it_costs_far_more(trace: MakeTrace) -> None:
    """Every third step waits for another rank: for 20 ms that leads, for 2 ms the copies in each step do."""
    for ns, kinds in ((20 * MS, ["mpi", "exposed-copy"]), (2 * MS, ["exposed-copy"])):
        program = Program()
        for number in range(24):
            with program.range(f"step{number}"):
                program.layers()
                program.copy(1, 2 << 20, 600 * US)
                if number % 3 == 2:
                    os("MPI_Recv", ns)(program)
        found = diagnosis_of(trace(*program.items)).findings
        assert [each.kind for each in found if each.kind in ("mpi", "exposed-copy")][: len(kinds)] == kinds


@pytest.mark.parametrize(
    ("kernel", "region"),
    [("nvkernel__Z4mainv_F1L20_2", "a target data region"), ("main_20_gpu", "a data region"), ("main", "")],
)
def test_directives_keep_arrays_on_the_gpu(trace: MakeTrace, kernel: str, region: str) -> None:
    """What directives copy in each step is no matter of pinning; nor are CUDA's calls of any use to them."""

    def act(program: Program) -> None:
        copy(1, host=0, blocks=True)(program)
        program.launch(kernel, MS)

    first, *_ = diagnosis_of(trace(*steps(act).items)).findings
    expected = f"keep the arrays on the GPU with {region}" if region else "allocate the host memory with cudaMallocHost"
    assert (first.kind, first.remedy.startswith(expected)) == ("pageable-copy", True)
    assert ("cuda" in first.remedy) is not bool(region)

    def stages(program: Program) -> None:
        program.launch(kernel, MS)
        code(program)

    program = steps(stages)
    samples = [(time, ("__c_mcopy8_sky", "main")) for time in range(0, program.now, 100 * US)]
    first, *_ = diagnosis_of(sampled(trace(*program.items), 1, *samples)).findings
    expected = f"keep the arrays on the GPU with {region}" if region else "speed up this CPU work"
    assert (first.kind, first.remedy.startswith(expected)) == ("cpu-code", True)


def test_advice_for_openmp_has_no_words_of_openacc() -> None:
    """Directives have other names there: `target data`, `nowait`, `teams`."""
    case = cast(Case, SimpleNamespace(dialect="openmp"))
    values = [
        each for module in vars(diagnosis).values() if isinstance(module, ModuleType) for each in vars(module).values()
    ]
    texts = [each for each in values if isinstance(each, dict) and "openacc" in each]
    assert len(texts) > 9
    for each in texts:
        said = dialect_text(case, each)
        assert not re.search(r"(?<!target )(?:enter data|data regions?)|async|an nowait|gang|-gpu=", said)


def test_rows_of_an_array_become_one_block(trace: MakeTrace) -> None:
    """Rows that directives allocate and copy one by one; not arrays that are copied around each kernel."""
    program = Program()
    for _ in range(300):
        program.call("cuMemAlloc", 4 * US)
        program.copy(1, 1 << 10, 2 * US, blocks=True)
        program.launch("__pgi_uacc_cuda_fill_42_gpu", 2 * US)
        program.wait()
    program.launch("main_20_gpu", 20 * MS)
    program.wait()
    rows = [each for each in diagnosis_of(trace(*program.items)).findings if each.remedy]
    assert {each.kind for each in rows} >= {"small-copies", "allocation"}
    assert all("one contiguous block" in each.remedy for each in rows)

    def act(program: Program) -> None:
        for _ in range(20):
            program.copy(1, 1 << 10, 2 * US, blocks=True)
            program.launch("main_20_gpu", 20 * US)

    first, *_ = diagnosis_of(trace(*steps(act).items)).findings
    assert (first.kind, first.remedy[:40]) == ("small-copies", "keep the arrays on the GPU with a data r")


def test_a_cold_start_is_told_once(trace: MakeTrace) -> None:
    """Two calls of cudaFree that set up for 60 ms are told once, as the set-up that they are."""
    program = one_pass(MS, 2 * MS)
    for _ in range(2):
        program.call("cudaFree", 30 * MS)
        program.launch("mul", 2 * MS)
    diagnosis = diagnosis_of(trace(*program.items))
    assert diagnosis.findings[0].kind == "cold-start"
    assert not {"allocation", "profiler-overhead"} & {each.kind for each in diagnosis.findings}
    assert "set-up takes" not in headline(diagnosis, "r")


def test_unloading_at_the_end_is_no_set_up(trace: MakeTrace) -> None:
    """Modules are loaded for 10 ms, 2 of them beside a kernel, and unloaded for 20 ms behind the last one."""
    program = one_pass(MS, 2 * MS)
    program.call("cuModuleLoadData", 10 * MS)
    program.launch("mul", 2 * MS)
    program.wait()
    program.call("cuModuleUnload", 20 * MS)
    assert dict(diagnosis_of(trace(*program.items)).once)["module loading"] == 8 * MS


@pytest.mark.parametrize(("load_ns", "behind_ns"), [(50 * MS, 0), (500 * MS, 0), (500 * MS, 900 * MS)])
def test_what_is_long_before_the_gpu_works_is_told(trace: MakeTrace, load_ns: int, behind_ns: int) -> None:
    """A loop found by its pattern, without a wait, behind a range that takes longer than all of its steps, or not; it
    is not most of a recording with a longer pause behind the loop.
    """
    program = Program()
    with program.range("load"):
        program.code(load_ns)
    for _ in range(30):
        for name in ("a", "b", "c"):
            program.launch(name, MS)
    if behind_ns:
        program.wait()
        program.code(behind_ns)
        program.launch("save", MS)
    diagnosis = diagnosis_of(trace(*program.items))
    told = load_ns > 100 * MS
    assert ("load takes 500 ms before the first GPU operation; " in headline(diagnosis, "r")) is told
    most = told and not behind_ns
    assert nothing_text(diagnosis).startswith("Most of the recording is before" if most else "No wait to fix")
    several = replace(diagnosis, before=("", 0), idle_outside_ns=MS, gap_ns=2 * MS, recorded_ns=10 * MS, findings=())
    assert "in one gap" not in nothing_text(several)


def test_idle_time_outside_found_steps_is_told(trace: MakeTrace) -> None:
    """A loop without a wait, then two kernels of their own, each behind 20 ms of code."""
    program = Program()
    for _ in range(24):
        program.code(US)
        program.layers()
    for name in ("save", "check"):
        program.wait()
        program.code(20 * MS)
        program.launch(name, US)
    diagnosis = diagnosis_of(trace(*program.items))
    assert diagnosis.chosen.level.found
    assert diagnosis.gap_ns == pytest.approx(20 * MS, rel=0.01)
    assert "; outside the steps, it idles for " in headline(diagnosis, "r")
    text = nothing_text(replace(diagnosis, findings=()))
    assert text.startswith(
        "No wait to fix in the steps, which compute longest in gemm (97 %); outside the steps, the GPU idles"
    )


def test_kernels_that_are_not_recorded_are_no_little_work(trace: MakeTrace) -> None:
    """A copy is recorded, and of a kernel only its launch."""
    program = one_pass(MS, MS)
    program.copy(1, 4 << 10, 20 * US)
    items = [each for each in program.items if not isinstance(each, Kernel)]
    first, *_ = diagnosis_of(trace(*items)).findings
    assert first.text.startswith("no kernel is recorded, although 1 call launched kernels: ")
    assert first.remedy.startswith("check the error codes")


@pytest.mark.parametrize("copy_ns", [US, 60 * MS])
def test_a_program_that_launches_no_kernel_has_ended_early(trace: MakeTrace, copy_ns: int) -> None:
    """Memory is set, or copied for long as by a test of bandwidth, and nothing else."""
    program = Program()
    program.call("cudaMalloc", 200 * MS)
    program.memset(1 << 10, US) if copy_ns == US else program.copy(1, 1 << 20, copy_ns)
    diagnosis = diagnosis_of(trace(*program.items))
    verb = "sets memory" if copy_ns == US else "copies"
    assert f"the GPU computes for 0 %, {verb} for 100 %, of the" in headline(diagnosis, "r")
    told = [each.remedy for each in diagnosis.findings if each.text.startswith("no kernel is recorded")]
    assert told == ["look at the program's output and exit code: it may have ended before its GPU work"] * (
        copy_ns == US
    )


@pytest.mark.parametrize(("set_up", "code_ns", "kind", "remedy"), [
    (0, 20 * US, "launch-bound", "launch fewer kernels"),
    (5 * MS, 20 * US, "cold-start", "run the work once as a warm-up"),
    (0, 2 * US, "cold-start", "record several steps with a realistic problem size"),
])  # fmt: skip
def test_a_recording_without_set_up_needs_no_warm_up(
    trace: MakeTrace, set_up: int, code_ns: int, kind: str, remedy: str
) -> None:
    """Sixty kernels of 9 µs in two streams, in 9 ms: launched slowly, or so fast that two run at a time."""
    program = Program()
    if set_up:
        program.call("cudaMalloc", set_up)
        program.call("cudaMalloc", 10 * US)
    for number in range(60):
        program.code(code_ns)
        program.launch(f"k{number}", 9 * US, stream=7 + number % 2)
    program.items.append(OsCall("poll", 0, 50 * MS, thread=9))
    diagnosis = diagnosis_of(trace(*program.items, duration=9 * MS))
    first = diagnosis.findings[0]
    assert (first.kind, diagnosis.recorded_ns) == (kind, 9 * MS)
    assert first.remedy.startswith(remedy)
    if kind == "cold-start":
        assert first.text.startswith(
            f"too little GPU work to optimize: kernels run for {format_ns(diagnosis.busy_ns)} of"
        )


@pytest.mark.parametrize("recorded", [False, True])
def test_graphs_that_are_not_recorded_are_no_idle_time(trace: MakeTrace, recorded: bool) -> None:
    """Eight launches of a graph, a wait of 20 ms and a value read behind each; the graph is recorded, or not."""
    program = Program()
    program.call("cudaMalloc", 100 * MS)
    for _ in range(8):
        id = program.call("cudaGraphLaunch", MS)
        if recorded:
            program.items.append(GraphTrace(program.now + US, program.now + 20 * MS, id))
        program.wait(until=program.now + 20 * MS)
        program.launch("difference", 10 * US)
        program.copy(2, 8, 2 * US)
        program.wait()
    diagnosis = diagnosis_of(trace(*program.items))
    told = [each.text for each in diagnosis.findings if "CUDA graphs" in each.text]
    assert ("outside CUDA graphs for" in headline(diagnosis, "r")) is not recorded
    if recorded:
        assert not told
        return
    [first] = diagnosis.findings
    assert first.text == (
        "8 calls launched CUDA graphs whose GPU work is not recorded, so up to 147 ms of the GPU's idle"
        " time may be work of these graphs"
    )
    assert first.remedy == "record again with nsys profile --cuda-graph-trace=node"


def test_one_graph_that_is_not_recorded_hides_no_other_wait(trace: MakeTrace) -> None:
    """Code of 2 ms in each step, and one launch of a graph in a wait of another 2 ms: it comes behind that code."""
    for count, causes in ((12, ["CPU time in log", LOST_GRAPHS]), (2, [LOST_GRAPHS])):
        program = Program()
        for number in range(count):
            with program.range("step"):
                program.layers()
                code(program)
            if number == 0:
                program.call("cudaGraphLaunch", 10 * US)
                program.code(2 * MS)
        assert [each.cause for each in diagnosis_of(trace(*program.items)).findings] == causes


def test_launches_without_gpu_work_are_no_program_without_launches(trace: MakeTrace) -> None:
    """A recording may lack what was launched."""
    program = one_pass(MS, MS)
    diagnosis = diagnosis_of(trace(*program.items))
    lacks = replace(diagnosis, steps=0, findings=())
    assert nothing_text(lacks).startswith("The program launches GPU work, but none was recorded")
    assert nothing_text(replace(lacks, launches=0)).startswith("No GPU work to diagnose")
    calls = [each for each in program.items if isinstance(each, Launch)]
    assert nothing_text(diagnosis_of(trace(*calls))).endswith(
        ": nsys got no data from the driver (WSL2, no permission, or a killed run)."
    )
    calls.append(replace(calls[-1], start=program.now, end=program.now + US, id=99, returned=700))
    assert "may have crashed on the GPU" in nothing_text(diagnosis_of(trace(*calls)))


@pytest.mark.parametrize(("touched", "words"), [(1, "6.72 ms once"), (3, "20.2 ms in 3 of 12"), (12, "of each step")])
def test_page_faults_of_the_first_steps_are_not_those_of_each(trace: MakeTrace, touched: int, words: str) -> None:
    """Memory that is touched for the first time moves once; their mean is no time of the median step."""
    left = iter([True] * touched)

    def touch(program: Program) -> None:
        program.launch("k", 6 * MS)
        program.wait()
        if next(left, False):
            program.items.append(Memcpy(program.now - 7 * MS, program.now, None, 1 << 20, 11, cause=2))

    found = next(each for each in diagnosis_of(trace(*steps(touch).items)).findings if each.kind == "page-fault")
    assert words in found.text
    assert (found.often == "every step") == (touched == 12)


def test_kernels_are_told_of_steps_without_page_faults(trace: MakeTrace) -> None:
    """In three of twelve steps a product takes 60 ms, as the GPU evicts pages of a full memory; in others 6 ms."""
    left = iter([False] * 4 + [True] * 3)

    def act(program: Program) -> None:
        slow = next(left, False)
        program.launch("ampere_sgemm_128x64_tn", 60 * MS if slow else 6 * MS)
        begun = program.free[7] - 60 * MS
        moves = [(begun + 4 * MS, 50 * MS, 11, 2, 3 << 20), (begun + MS, 55 * MS, 12, 4, 1 << 20)] * slow
        program.items += [Memcpy(at, at + ns, None, size, kind, cause=cause) for at, ns, kind, cause, size in moves]
        program.wait()

    found = {each.kind: each for each in diagnosis_of(trace(*steps(act).items)).findings}
    pages, products = found["page-fault"], found["tensor-cores"]
    assert "in 3 of 12 steps" in pages.text
    assert "3.00 MiB evicted because GPU memory was full" in pages.text
    assert pages.remedy.startswith("use less GPU memory")
    assert "6.00 ms of each step" in products.text
    assert products.steps == 9


def test_a_synchronization_before_managed_memory_is_read_stays(trace: MakeTrace) -> None:
    """Pages move to the host behind the wait: the CPU reads results, and must have waited for them."""

    def wait(migrates: bool) -> Act:
        def act(program: Program) -> None:
            program.wait()
            for _ in range(20):
                program.code(40 * US)
                if migrates:
                    program.items.append(Memcpy(program.now - 9 * US, program.now - US, None, 4096, 12, cause=2))
                program.launch("k", 5 * US)

        return act

    for migrates in (False, True):
        found = diagnosis_of(trace(*steps(wait(migrates)).items)).findings
        [sync] = [each for each in found if each.kind == "synchronization"]
        assert bool(sync.remedy) != migrates
        assert ("reads managed memory that the GPU wrote" in sync.text) == migrates


def test_a_short_wait_without_a_remedy_is_no_bottleneck(trace: MakeTrace) -> None:
    """A copy of one ms behind 50 ms of kernel is nothing to fix; one of 10 ms is told."""
    for ns, kinds in ((MS, []), (10 * MS, ["pageable-copy"])):
        program = one_pass(MS, 50 * MS, blocks=264)
        program.copy(2, 2 << 20, ns, host=0, blocks=True)
        assert [each.kind for each in diagnosis_of(trace(*program.items)).findings] == kinds


def test_other_work_makes_no_slow_step_of_a_loop_that_was_found(trace: MakeTrace) -> None:
    """One of twelve rounds computes for three times as long: told where steps are annotated, else it is other work."""
    program, annotated = Program(), Program()
    for turn in range(12):
        for name in "abcdefgh":
            program.launch(name, (3 if turn == 6 else 1) * MS)
        with annotated.range(f"step{turn}"):
            annotated.launch("add", (24 if turn == 6 else 8) * MS)
            annotated.wait()
    assert diagnosis_of(trace(*program.items)).findings == ()
    assert [each.kind for each in diagnosis_of(trace(*annotated.items)).findings] == ["slow-steps"]


def test_managed_memory_may_be_what_a_kernel_waits_for(trace: MakeTrace) -> None:
    """Two blocks on managed memory, faults not recorded: the grid has advice, unless the pages that moved to the GPU
    may explain most of its 20 ms, or the program prefetches.
    """

    def managed(api: str, moved: int, kind: int = 11, each_ns: int = 10, blocks: int = 2) -> list[Finding]:
        program = one_pass(MS, 20 * MS, blocks=blocks)
        program.call(api, 10 * US)
        program.call("cudaMallocManaged", 10 * US)
        program.items += [
            Memcpy(2 * MS + at, 2 * MS + at + each_ns - 1, None, 4096, kind, cause=2)
            for at in range(0, each_ns * moved, each_ns)
        ]
        return [*diagnosis_of(trace(*program.items)).findings]

    first, unknown = managed("cudaMalloc", 300, blocks=1)
    assert (first.kind, unknown.kind, bool(first.remedy)) == ("small-grid", "page-fault", True)
    first, grid = managed("cudaMalloc", 300)
    assert (grid.kind, grid.remedy, grid.basis, grid.gain_ns) == ("small-grid", "", UNTRIED, 0)
    assert (first.kind, first.cause, first.gain_ns) == ("page-fault", "page faults on the GPU", 0)
    assert "record the waits with --cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true" in first.remedy
    assert "cudaMemPrefetchAsync" in first.remedy
    for api, moved, kinds in (
        ("cudaMemPrefetchAsync", 300, ["small-grid"]),
        ("cudaMalloc", 0, ["small-grid"]),
        ("cudaMalloc", 2, ["small-grid"]),
        ("cudaMalloc", 100, ["small-grid", "page-fault"]),
    ):
        assert [each.kind for each in managed(api, moved)] == kinds
    assert next(each.kind for each in managed("cudaMalloc", 300, kind=12)) == "small-grid"  # to the host, behind it
    few, many = (managed("cudaMalloc", 300, each_ns=each_ns) for each_ns in (20 * US, 50 * US))  # 30 %, 75 %
    assert [(each.kind, bool(each.remedy)) for each in few] == [("small-grid", True), ("page-fault", True)]
    assert [(each.kind, bool(each.remedy)) for each in many] == [("page-fault", True), ("small-grid", False)]


@pytest.mark.parametrize(
    "other",
    [
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x32x64",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_32x6_nn_align4>",  # cuDNN's, by a matrix product
    ],
)
def test_convolutions_in_tf32_show_that_it_is_allowed(trace: MakeTrace, other: str) -> None:
    """Beside a convolution in TF32 one in FP32 needs no switch, but another layout or type."""

    def act(program: Program) -> None:
        program.launch(other, MS)
        program.launch("_5x_cudnn_ampere_scudnn_128x32_relu_small_nn_v1", 2 * MS)

    first, *_ = diagnosis_of(trace(*steps(act).items)).findings
    assert first.remedy.startswith("give cuDNN half-precision NHWC tensors")


def test_work_that_starts_late_is_not_unrecorded(trace: MakeTrace) -> None:
    """Kernels start 2 ms after their launch, as where processes share a GPU."""
    late = diagnosis_of(trace(*steps(late_kernels(2 * MS)).items)).findings
    [found] = [each for each in late if each.kind == "unknown"]
    assert found is late[0]
    assert found.cause.startswith("launched work starts late")
    assert "without other processes on the GPU" in found.text


def test_a_second_loop_has_steps_too(trace: MakeTrace) -> None:
    """A solver on one GPU, then another one that waits for messages in each step; a short loop does not count."""
    for count, paths in ((40, ["iteration*", "iteration B*"]), (4, ["iteration*"])):
        program = Program()
        for _ in range(60):
            program.launch("jacobi", 3 * MS)
            program.copy(2, 4, US)
            program.wait()
        for _ in range(count):
            program.launch("jacobi", MS)
            program.copy(8, 1 << 16, US)
            program.copy(1, 1 << 16, US)
            program.wait()
            with program.range("MPI exchange"):
                program.code(2 * MS)
        found = diagnosis_of(trace(*program.items))
        assert found.chosen.level.paths == paths
        if count == 40:
            first = found.findings[0]
            assert (first.kind, first.path, first.cause) == ("mpi", "iteration B*", "MPI exchange")
            assert "start MPI_Isend and MPI_Irecv before" in first.text


@pytest.mark.parametrize(
    ("name", "table", "tid", "kind", "said"),
    [
        ("MPI_Allreduce", "COLLECTIVES", 1, "mpi", "call it in fewer steps, or start MPI_Iallreduce before"),
        ("MPI_Exscan", "COLLECTIVES", 1, "mpi", "call it in fewer steps, or start MPI_Iexscan before"),
        ("MPI_Sendrecv", "OTHER", 1, "mpi", "start MPI_Isend and MPI_Irecv before"),
        ("MPI_Isend", "P2P", 1, "mpi", "the GPU waits for MPI_Isend: 2.00 ms of each step (72 %)"),
        ("MPI_Allreduce", "COLLECTIVES", 9, "cpu-code", "CPU time in log"),
    ],
)
def test_a_recorded_call_of_mpi_is_no_cpu_time(
    trace: MakeTrace, name: str, table: str, tid: int, kind: str, said: str
) -> None:
    """A call of MPI in its table and in no range; not the call of another thread."""

    def act(program: Program) -> None:
        program.wait()
        with program.range("log"):
            program.items.append(MpiCall(name, program.now, program.now + 2 * MS, tid, table=table))
            program.code(2 * MS)

    first = diagnosis_of(trace(*steps(act).items)).findings[0]
    assert first.kind == kind
    assert first.lost_ns / STEPS == pytest.approx(2 * MS, rel=0.001)
    assert said in first.text
    assert "start MPI_Isend" not in first.text or name == "MPI_Sendrecv"


@pytest.mark.parametrize(("inside", "remedy"), [(False, "allocate one block before"), (True, "allocate once before")])
def test_buffers_that_live_until_the_end_are_not_reused(trace: MakeTrace, inside: bool, remedy: str) -> None:
    """Two allocations in each step, which are freed there, or all behind the last kernel."""

    def act(program: Program) -> None:
        program.wait()
        for api in ("cudaMalloc", "cudaMalloc", *("cudaFree", "cudaFree") * inside):
            program.call(api, MS)

    program = steps(act)
    for _ in range(2 * STEPS):
        program.call("cudaFree")
    assert diagnosis_of(trace(*program.items)).findings[0].remedy.startswith(remedy)


def test_where_cpu_work_lies_decides_where_it_goes(trace: MakeTrace) -> None:
    """Loader workers help with what is done before a step's first kernel, or before a copy to the GPU, not with what
    lies between its launches.
    """

    def found(between: bool, copied: bool) -> Finding:
        def act(program: Program) -> None:
            for ns in (0, 3 * MS) if between else (3 * MS, 0):
                if program.free:
                    program.wait()
                program.code(ns)
                if copied:
                    program.copy(1, 1 << 20, 20 * US)
                program.launch(GELU, 2 * MS)

        program = Program()
        for number in range(STEPS):
            with program.range(f"step{number}"):
                act(program)
        return diagnosis_of(trace(*program.items)).findings[0]

    for between, copied in ((False, False), (True, False), (True, True)):
        first = found(between, copied)
        assert first.kind == "cpu-code"
        assert ("DataLoader" in first.remedy) is (copied or not between)


def test_amounts_of_uneven_steps_add_up(trace: MakeTrace) -> None:
    """Three of twelve steps are ten times as long: the mean times the steps is the time that is lost, and gained."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.launch("add", (20 if number % 4 == 3 else 2) * MS, blocks=1)
            program.wait()
    [first] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "small-grid"]
    assert "6.50 ms per step on average" in first.text
    assert gain_text(first) == "saves at most 6.49 ms per step"


@pytest.mark.parametrize(("layer", "cold"), [("void at::native::add", True), ("add", False)])
def test_layers_of_a_cold_pass_are_no_steps(trace: MakeTrace, layer: str, cold: bool) -> None:
    """Twelve rounds of eight kernels between long code: in PyTorch probably the layers of one pass."""
    program = Program()
    program.launch("fill", MS)
    program.code(200 * MS)
    for number in range(96):
        program.launch(f"{layer}_{number % 8}", MS)
    program.code(200 * MS)
    program.launch("fill", MS)
    found = [each.text for each in diagnosis_of(trace(*program.items)).findings if each.kind == "cold-start"]
    assert bool(found) == cold
    assert not found or found[0].endswith(", 199 ms of it in one gap; the steps together take 96.2 ms")


POINTWISE = [f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}>" for name in ("A", "B", "C")]


@pytest.mark.parametrize(
    ("names", "slower", "since", "beside", "told"),
    [(3, 20, 4, 0, True), (2, 20, 4, 0, False), (3, 6, 4, 0, False), (3, 20, 0, 0, False), (3, 20, 4, 8 * MS, False)],
    ids=["all", "two names", "less", "two sizes in each step", "another kernel beside"],
)
def test_pointwise_kernels_are_slow_when_memory_is_full(
    trace: MakeTrace, names: int, slower: int, since: int, beside: int, told: bool
) -> None:
    """From the fourth step on, all of several pointwise kernels take far longer, and products, which prove nothing."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            if beside:
                program.launch("gemm", beside, stream=8)
            for kernel in POINTWISE[:names]:
                program.launch(kernel, MS // 10 * (slower if since and number >= since else 1))
                program.launch(kernel, MS // 10 * (slower if number >= since else 1))
            program.launch("gemm", MS // 10 * (slower if number >= since else 1))
    found = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "full-memory"]
    assert bool(found) == told
    assert (
        not found
        or "suddenly take up to 20 times as long with the same grid (2.00 ms instead of 100 µs)" in found[0].text
    )


def test_what_takes_most_of_a_recording_before_its_work_comes_first(trace: MakeTrace) -> None:
    """Six seconds that pin memory, before 50 ms of work; or 6 s of code, after which nothing but copies runs."""
    program = Program()
    program.call("cudaHostAlloc", 6_000 * MS)
    program.launch("k", 50 * MS)
    first, *_ = diagnosis_of(trace(*program.items)).findings
    assert first.text == (
        "set-up takes 6.00 s of the 6.05 s recorded (pinning 6.00 s); each GPU runs all its operations within 50.0 ms"
    )
    assert first.remedy.startswith("pin less memory")
    program = Program()
    program.call("cudaGetDevice")
    program.code(6_000 * MS)
    program.copy(1, 512 << 20, 55 * MS, host=0, blocks=True)
    first, *_ = diagnosis_of(trace(*program.items)).findings
    assert first.text.startswith("no kernel is recorded")
    for _ in range(8):
        program.copy(1, 512 << 20, 5 * MS)
    assert not any("no kernel" in each.text for each in diagnosis_of(trace(*program.items)).findings)  # a benchmark


@pytest.mark.parametrize(("call", "kind"), [("sem_wait", "input-wait"), ("pthread_mutex_lock", "lock")])
def test_a_mutex_is_no_queue_of_input(trace: MakeTrace, call: str, kind: str) -> None:
    """Both end before a copy to the GPU; a queue is waited for with a semaphore or condition."""

    def act(program: Program) -> None:
        program.wait()
        program.os(call, 3 * MS)
        program.copy(1, 1 << 20, 100 * US)

    assert diagnosis_of(trace(*steps(act).items)).findings[0].kind == kind


def test_what_lies_outside_found_steps_is_told(trace: MakeTrace) -> None:
    """Twelve rounds of eight kernels without annotation, then a copy of 48 ms."""
    program = Program()
    for name in "abcdefgh" * 12:
        program.launch(name, MS)
    assert "outside" not in headline(diagnosis_of(trace(*program.items)), "r")
    program.wait()
    program.copy(2, 256 << 20, 48 * MS, host=0, blocks=True)
    said = headline(diagnosis_of(trace(*program.items)), "r")
    assert said.endswith("; 33 % of the GPU busy time is outside the steps, most in copies (48.0 ms)")


def test_migrations_outside_the_kernels_are_told(trace: MakeTrace) -> None:
    """One kernel of a millisecond, for which pages move for six before it: that is not "no wait to fix"."""
    kernel = launch_kernel("add", (8 * MS, 8 * MS + US), (9 * MS, 10 * MS), id=1)
    assert "unified memory" not in headline(diagnosis_of(trace(*kernel)), "r")
    found = diagnosis_of(trace(Memcpy(MS, 7 * MS, id=None, kind=11, cause=1), *kernel))
    assert headline(found, "r").endswith("; pages of unified memory also migrate for 6.00 ms outside this time")
    assert not found.nothing or "keep pages where they are used" in nothing_text(found)


@pytest.mark.parametrize(("blocks", "extra", "told"), [(264, 0, True), (528, 0, False), (264, 1, False), (0, 0, False)])
def test_a_kernel_that_takes_longer_at_the_same_grid_makes_steps_slow(
    trace: MakeTrace, blocks: int, extra: int, told: bool
) -> None:
    """In one of twelve found rounds, one kernel takes ten times as long. A larger grid, or more launches, is other
    work; a grid that was not recorded may be.
    """
    program = Program()
    for turn in range(12):
        for name in "abcdefgh":
            slow = turn == 6 and name == "c"
            for _ in range(1 + extra * slow):
                program.launch(name, (10 if slow else 1) * MS, blocks=blocks if slow or not blocks else 264)
    found = diagnosis_of(trace(*program.items)).findings
    text = "1 of 12 steps are slow, mainly because of c, which takes longer with the same grid"
    assert [each.text.split(":")[0] for each in found] == [text] * told


def test_a_step_far_longer_than_the_others_is_not_their_measure(trace: MakeTrace) -> None:
    """One step of twelve works for 100 ms and writes; the others work for 2 ms: that is what a step can save."""
    program = Program()
    for number in range(12):
        with program.range(f"step{number}"):
            program.launch("k", 4 * MS)
            program.copy(2, 1 << 20, 100 * US, host=1)
            program.wait()
            program.code((100 if number == 6 else 2) * MS)
            if number == 6:
                program.os("fwrite", 50 * MS)
    usual = next(each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "cpu-code")
    assert "2.00 ms of a median step (33 %), up to 100 ms of a step" in usual.text
    assert "2.00 ms per step" in gain_text(usual)
    assert "write" not in usual.remedy


def test_steps_of_two_lengths_are_told_by_their_mean(trace: MakeTrace) -> None:
    """Five of twelve steps wait 100 ms for their input, the others 2 ms: no exception, so what all of them save."""
    program = Program()
    for number in range(12):
        with program.range(f"step{number}"):
            program.launch("k", 4 * MS)
            program.wait()
            program.code((100 if number % 5 < 2 else 2) * MS)
    [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "cpu-code"]
    assert "per step on average" in found.text
    assert found.gain_ns == pytest.approx(found.lost_ns)


def test_a_synchronization_at_the_end_is_no_finding(trace: MakeTrace) -> None:
    """The program waits for what it launched once, behind all steps."""
    program = steps(nothing)
    program.wait("cudaDeviceSynchronize")
    assert diagnosis_of(trace(*program.items)).findings == ()


def sleeping(numbers: Collection[int], count: int = 24) -> Program:
    """Steps in some of which the program sleeps for 5 ms."""
    program = Program()
    for step in range(count):
        with program.range(f"step{step}"):
            program.layers()
            if step in numbers:
                program.wait()
                with program.range("data"):
                    program.os("nanosleep", 5 * MS)
    return program


def test_one_slow_step_is_not_spread_over_all(trace: MakeTrace) -> None:
    """One step of twenty sleeps: it is told as a slow step, and not a second time."""
    [slow] = diagnosis_of(trace(*sleeping([13], 20).items)).findings
    assert (slow.kind, slow.often, slow.remedy, slow.gain_ns) == ("slow-steps", "1 of 20 steps", "", 0)
    assert slow.cause == "nanosleep in data"


def test_one_step_of_three_is_told_as_such(trace: MakeTrace) -> None:
    """Every third step sleeps for 5 ms: with a remedy, and with what that saves in all, not in each step."""
    first, *_ = diagnosis_of(trace(*sleeping(range(0, 24, 3)).items)).findings
    assert (first.kind, first.often) == ("sleep", "8 of 24 steps")
    assert "in 8 of 24 steps" in first.text
    assert first.lost_ns == first.gain_ns == pytest.approx(8 * 5 * MS, rel=0.01)
    assert gain_text(first) == "saves 40.0 ms in all in a replay"


def test_a_sleep_between_steps_is_meant(trace: MakeTrace) -> None:
    """The kernels of the steps are what to shorten; a sleep inside a step is not meant."""
    pauses = diagnosis_of(trace(*steps(wait, lambda program: program.os("nanosleep", 20 * MS)).items))
    assert (pauses.findings[0].kind, pauses.findings[0].remedy) == ("sleep", "")
    assert "begin with gemm" in kernels_first(pauses)
    inside = diagnosis_of(trace(*steps(os("nanosleep", 20 * MS)).items))
    assert inside.findings[0].remedy == "take the sleep out of the loop"
    assert not kernels_first(inside)


def test_what_limits_a_kernel_is_told_of_the_launches_that_it_limits(trace: MakeTrace) -> None:
    """Most launches of a kernel are limited by registers; the longest one by shared memory."""

    def act(program: Program) -> None:
        program.launch("stencil", 3 * MS, blocks=4096, shared=(0, 100 << 10))
        for _ in range(4):
            program.launch("stencil", 2 * MS, blocks=4096, block=(32, 8, 1), registers=255)

    first = diagnosis_of(trace(*steps(act).items)).findings[0]
    assert "occupancy, limited by registers: 8.00 ms of each step" in first.text
    assert first.remedy.startswith("use fewer registers per thread (255)")


def test_a_scan_is_no_pointwise_kernel(trace: MakeTrace) -> None:
    """Prefix sums between pointwise kernels, which no compiler fuses with these."""
    scan = "void at::native::tensor_kernel_scan_outer_dim<float, std::plus<float>>(float*, const float*, uint)"
    for name, found in ((scan, False), (MEAN, True)):
        findings = diagnosis_of(trace(*steps(in_a_row(SCALE, name, ADD, name, GELU)).items)).findings
        assert any(each.kind == "pointwise" for each in findings) is found


def test_frames_at_the_rate_of_a_display_are_paced(trace: MakeTrace) -> None:
    """Kernels of 1 ms, 144 times per second: no call tells that the CPU waits for the display. Code with a name of its
    own computes.
    """
    found = []
    for named in (False, True):
        program, period = Program(), 10**9 // 144
        for number in range(40):
            with program.range(f"frame{number}"):
                program.launch("render", MS)
                program.wait()
                with program.range("physics") if named else nullcontext():
                    program.code((number + 1) * period + 3 * (number % 3 == 2) * period // 100 - program.now)
        found.append(diagnosis_of(trace(*program.items)).findings)
    (first, *more), (computes, *_) = found
    assert (first.kind, computes.kind) == ("paced", "cpu-code")
    assert first.text.startswith(
        "the steps keep a rate of 144 per second: the CPU seems to wait for a display or a timer ("
    )
    assert not any(each.gain_ns for each in more)


@pytest.mark.parametrize("name", ["nanosleep", "poll", "futex"])
def test_a_paced_loop_is_promised_nothing(trace: MakeTrace, name: str) -> None:
    """Each step sleeps until 5 ms are over, or waits for a timer so long, whatever it does before."""
    program = Program()
    for number in range(24):
        begun = program.now
        with program.range(f"step{number}"):
            program.layers(6 + number * 7 % 13)
            program.wait()
            with program.range("pace"):
                program.os(name, 5 * MS - (program.now - begun))
    first, *more = diagnosis_of(trace(*program.items)).findings
    assert (first.kind, first.cause, first.remedy, first.gain_ns) == ("paced", f"{name} in pace", "", 0)
    assert not any(each.gain_ns for each in more)


def test_without_launch_rows_it_is_unknown(trace: MakeTrace) -> None:
    """Kernels of which nobody recorded who launched them when, 2 ms apart."""
    report = trace(*steps(code).items, without_tables=["CUPTI_ACTIVITY_KIND_RUNTIME"])
    found = diagnosis_of(report).findings
    assert {each.kind for each in found} == {"unknown"}
    assert not any(each.remedy for each in found)


def test_a_free_that_waits_for_a_kernel_is_no_allocation(trace: MakeTrace) -> None:
    """`cudaFree` returns when the kernel is done: without it the step takes as long."""

    def act(program: Program) -> None:
        program.launch("long", 5 * MS)
        program.wait("cudaFree")

    assert not any(each.kind == "allocation" for each in diagnosis_of(trace(*steps(act).items)).findings)


def test_a_glob_names_causes_to_remove(trace: MakeTrace) -> None:
    """Causes by their words, brackets included, or by a pattern; none for what none of them is called."""
    attribution = attributed(trace(*steps(code).items))
    kinds = classify(load_rules(None), attribution.trace.op_names)
    case = case_of(attribution, None, kinds, None)
    [(_, group), *_] = groups(case)
    assert removal_of(case, group.cause) is not None
    assert removal_of(case, f"{group.cause[:4]}*") is not None
    assert removal_of(case, "nothing*") is None


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (fed(3 * MS, 300 * US), "paced"),  # a timer, or a camera
        (fed(300 * US, 300 * US), "input-wait"),  # a short sleep, as in a loop that polls
        (fed(3 * MS, 800 * US), "input-wait"),  # the thread works behind its sleep
    ],
)
def test_input_of_a_thread_that_sleeps_paces_the_steps(trace: MakeTrace, act: Act, kind: str) -> None:
    """Nothing is promised there, neither for the wait nor for what it hides."""
    findings = diagnosis_of(trace(*steps(act).items)).findings
    assert findings[0].kind == kind
    assert abs(findings[0].lost_ns / STEPS - 2 * MS) < 100 * US
    assert kind == "input-wait" or [each.gain_ns for each in findings] == [0]


def sampled(path: Path, thread: int, *stacks: tuple[int, tuple[str, ...]], file: str = "/home/a/program") -> Path:
    """A report with CPU samples of a thread: when, and the functions of the stack, the innermost first."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, globalTid INTEGER)")
    connection.execute(
        "CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER)"
    )
    (tid,) = connection.execute(
        "SELECT globalTid FROM NVTX_EVENTS WHERE globalTid & 0xFFFFFF = ?", (thread,)
    ).fetchone()
    codes: dict[str, int] = {}
    for number, (time, stack) in enumerate(stacks):
        connection.execute("INSERT INTO COMPOSITE_EVENTS VALUES (?, ?, ?)", (number, time, tid))
        for depth, name in enumerate(stack):
            code = codes.setdefault(name, 10_000 + len(codes))
            connection.execute("INSERT INTO SAMPLING_CALLCHAINS VALUES (?, ?, 9999, ?)", (number, code, depth))
    named = [(9999, file), *((code, name) for name, code in codes.items())]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", named)
    connection.commit()
    connection.close()
    return path


def test_samples_of_the_cpu_name_the_function_that_the_gpu_waits_for(trace: MakeTrace) -> None:
    """The innermost one in most samples, of which main says nothing; a thread that is hardly sampled sleeps."""
    program = steps(code)
    path = trace(*program.items)
    stack = ("png_write(char const*)", "save<float>(int)", "main")
    inside = [(time, stack if time % 4 else ("hash()", *stack[1:])) for time in range(0, program.now, 100 * US + 1)]
    first = diagnosis_of(sampled(path, 1, *inside)).findings[0]
    assert re.search(r"; 7\d % of its CPU samples in png_write$", first.text), first.text
    busy = [(time, stack) for time in (*range(0, 300 * US, 10 * US), program.now)]
    asleep = diagnosis_of(sampled(trace(*program.items), 1, *busy)).findings[0]
    assert asleep.text.endswith("; the thread sleeps (almost no CPU samples)")
    assert asleep.remedy.startswith("find out what blocks this thread")
    writes, others = "write less often", "find out what blocks"
    for call, ns, remedy in (("pwrite64", 50, writes), ("pwrite64", 5, others), ("write", 50, others)):  # to a pipe?

        def output(program: Program, call: str = call, ns: int = ns) -> None:
            code(program)
            program.os(call, ns * US)

        busy[-1] = ((writing := steps(output)).now, stack)
        asleep = diagnosis_of(sampled(trace(*writing.items), 1, *busy)).findings[0]
        assert asleep.remedy.startswith(remedy)
        assert asleep.text.endswith(", and writes a file (pwrite64) in the same steps") == ("less" in remedy)
    early = diagnosis_of(sampled(trace(*program.items), 1, *busy[:-1])).findings[0]
    assert "samples" not in early.text  # they end before the first wait
    rare = [(time, stack) for time in (*range(0, 300 * US, 5 * US), *range(300 * US, program.now, 900 * US))]
    slow = diagnosis_of(sampled(trace(*program.items), 1, *rare)).findings[0]
    assert "% of its CPU samples in png_write" in slow.text  # which are far apart, but as many as in other code there


@pytest.mark.parametrize(
    "library",
    ["libmpi.so.40", "libpmpi.so", "libucp.so.0", "libucs.so.0", "libuct.so.0", "libhcoll.so.1", "libopen-pal.so.40",
     "libpsm2.so.2", "libfabric.so.1", "mca_btl_vader.so", "hmca_bcol_basesmuma.so"],
)  # fmt: skip
def test_samples_in_libraries_of_mpi_are_messages(trace: MakeTrace, library: str) -> None:
    """No call is recorded, and code in them is not to be moved anywhere."""
    program = steps(code)
    samples = [(time, ("progress", "main")) for time in range(0, program.now, 100 * US)]
    first = diagnosis_of(sampled(trace(*program.items), 1, *samples, file=f"/usr/lib/{library}")).findings[0]
    assert (first.kind, first.remedy) == ("cpu-code", "")
    assert "; start MPI_Isend and MPI_Irecv before independent work" in first.text


def test_a_thread_sleeps_in_one_path_and_runs_in_another(trace: MakeTrace) -> None:
    """A cause of two paths, in the shorter of which the thread is sampled: each is told by its own samples."""
    program, samples = Program(), [*range(0, 20 * MS, 100 * US)]
    program.code(20 * MS)
    for name, count in (("a", 60), ("b", 6)):
        for _ in range(count):
            with program.range(name * 3), program.range("step"):
                program.layers()
                program.wait()
                with program.range("log"):
                    if name == "b":
                        samples += range(program.now, program.now + 2 * MS, 100 * US)
                    program.code(2 * MS)
    path = sampled(trace(*program.items), 1, *((time, ("load", "main")) for time in (*samples, program.now)))
    found = diagnosis_of(path, "*/step").findings
    assert {each.path[0]: each.remedy.startswith("find out what blocks") for each in found} == {"a": True, "b": False}


def test_a_thread_sleeps_in_a_cause_of_many_paths(trace: MakeTrace) -> None:
    """Each path is too short to say so by samples that are 0.6 ms apart; not where the thread is sampled in them."""
    program = Program()
    program.code(20 * MS)
    for name in "abcdefgh":
        for _ in range(4):
            with program.range(name * 3), program.range("step"):
                program.layers()
                code(program)
    for until, remedy in ((20 * MS, "find out what blocks this thread"), (program.now, "speed up this CPU work or")):
        samples = ((time, ("load", "main")) for time in (*range(0, until, 600 * US), program.now))
        found = diagnosis_of(sampled(trace(*program.items), 1, *samples), "*/step").findings
        assert len({each.path for each in found}) == 8
        assert all(each.remedy.startswith(remedy) for each in found), found[0]


def test_kernels_come_first_where_a_wait_has_no_fix_and_costs_less(trace: MakeTrace) -> None:
    """One pass: a copy on the GPU among kernels. Where it costs more than a quarter it comes first."""
    for ns, leads in ((10 * MS, True), (40 * MS, False)):
        program = Program()
        for name in ("init", "solve", "check"):
            program.launch(name, 20 * MS)
            if name == "init":
                program.copy(8, 32 << 20, ns)
        program.wait()
        text = findings_text(diagnosis_of(trace(*program.items)), "r", "analyze", 3, 200)
        assert text.startswith("The GPU computes for 86 % of the time from the first GPU operation") is leads, text
        assert ("$ nsysprof hotspots r" in text) is leads
        assert "1. the GPU waits for copies on the GPU of 32.0 MiB" in text


def test_a_loop_of_a_moment_is_too_little_to_tune(trace: MakeTrace) -> None:
    """Iterations found in milliseconds of seconds; those that lose most of their time to one cause are an answer."""
    for pause, act, kind in ((5_000, nothing, "cold-start"), (0, nothing, None), (5_000, wait_long, "synchronization")):
        program = Program()
        program.launch("init", US)
        program.code(pause * MS)
        for _ in range(20):
            program.launch("start", 20 * US)
            act(program)
        assert next((each.kind for each in diagnosis_of(trace(*program.items)).findings), None) == kind


def test_a_small_pass_beside_a_long_set_up_is_too_little_to_tune(trace: MakeTrace) -> None:
    """2 ms of kernels and copies behind 100 ms that make a context; not where a fix is known."""
    for blocks, kind in ((264, "cold-start"), (1, "small-grid")):
        program = Program()
        program.call("cudaMalloc", 100 * MS)
        program.copy(1, 8 << 20, MS, host=0, blocks=True)
        program.launch("multiply", 2 * MS, blocks=blocks)
        program.copy(2, 8 << 20, MS, host=0, blocks=True)
        assert diagnosis_of(trace(*program.items)).findings[0].kind == kind


def test_a_kernel_that_ends_before_a_late_launch_gains_nothing(trace: MakeTrace) -> None:
    """Products in FP32 of which each ends long before the next launch, with launches too few to be known for a replay;
    where the CPU waits for each it launches the earlier.
    """
    for waits in (False, True):
        program = Program()
        for _ in range(30):
            program.launch("ampere_sgemm_128x64_tn", MS)
            if waits:
                program.wait()
            program.code(3 * MS)
            program.launch("odd", MS, late=5 * MS * (program.ids % 7 == 0))
        found = diagnosis_of(trace(*program.items)).findings
        assert any(each.kind == "tensor-cores" for each in found) is waits


def test_launches_that_wait_for_their_kernel_are_told(trace: MakeTrace) -> None:
    """As with CUDA_LAUNCH_BLOCKING=1; not where one in three launches returns early, the GPU's clock is a little
    behind (a clock that is far behind is corrected), or the GPU is busy nearly all the time.
    """
    for early, behind, ns, told in (
        *((1_000, 0, 50 * US, True), (3, 0, 50 * US, False), (1_000, 15 * US, 50 * US, False)),
        *((1_000, MS, 50 * US, True), (1_000, 0, 20 * US, True), (1_000, 0, 5 * MS, False)),
    ):
        program = Program()
        for number in range(STEPS):
            with program.range(f"step{number}"):
                for name in ("gemm", "add", "gelu"):
                    program.code(20 * US)
                    program.launch(name, ns)
                    if program.ids % early:
                        call, kernel = program.items[-2:]
                        assert isinstance(call, Launch)
                        assert isinstance(kernel, Kernel)
                        program.items[-2] = replace(call, end=kernel.end + STARTS)
                        program.items[-1] = replace(kernel, start=kernel.start - behind, end=kernel.end - behind)
                        program.now = kernel.end + STARTS
        found = diagnosis_of(trace(*program.items)).findings
        first = next((each for each in found if each.cause == "blocking kernel launches"), None)
        assert (first is not None) is told
        if first:
            assert first is found[0]
            assert first.remedy.startswith("unset CUDA_LAUNCH_BLOCKING")
            assert first.gain_ns / first.steps == pytest.approx(3 * 28 * US, rel=0.1)


def test_waits_behind_regions_are_one_cause(trace: MakeTrace) -> None:
    """OpenACC waits at the end of each of four regions; a file that is named after MPI sends no messages."""

    def act(program: Program) -> None:
        for line in range(40):
            program.launch(f"solve_{line % 4}_gpu", 40 * US)
            with program.range(f"Wait@solve_mpi.F90:{line % 4}"):
                program.wait()
            program.code(20 * US)

    first = diagnosis_of(trace(*steps(act).items)).findings[0]
    assert (first.kind, first.cause[:32]) == ("synchronization", "synchronization (for example in ")
    assert (
        first.remedy
        == "launch with an async clause, and wait only where the CPU reads a result (at best every N steps)"
    )
    assert first.gain_ns / first.steps == pytest.approx(40 * 28 * US, rel=0.05)


def test_few_bytes_that_take_long_wait_for_other_ranks(tmp_path: Path) -> None:
    """8 KiB need microseconds over any link, 32 MiB do not, which a backward pass hides."""
    engine, module = "autograd::engine::evaluate_function", "DistributedDataParallel.forward"
    for elements, waits, trains in ((2048, True, engine), (8 << 20, False, engine), (8 << 20, False, module),
                                    (8 << 20, False, "")):  # fmt: skip
        events: list[Any] = []
        for at in range(0, 120 * MS, 10 * MS):
            events.append(annotation(f"ProfilerStep#{at // (10 * MS)}", at, at + 10 * MS))
            events += [operator(trains, at + US, at + 6 * US)] * bool(trains)
            events += launch("gemm", (at + 2 * US, at + 5 * US), (at + 9 * US, at + 4 * MS), id=at + 1)
            called, ran = (at + 6 * US, at + 9 * US), (at + 4 * MS, at + 9 * MS)
            events += all_ranks("allreduce", called, ran, id=at + 2, elements=elements)
        found = diagnosis_of(write_trace(tmp_path / "t.json", events))
        assert found.busiest == "gemm (40 %)"  # collectives compute nothing
        [first] = [each for each in found.findings if each.kind == "communication-exposed"]
        assert first.remedy.startswith("start collectives earlier") is (bool(trains) and not waits)
        assert ("; one of 8.00 KiB takes 5.00 ms, so collectives mostly wait for other ranks: " in first.text) is waits
        assert ("; no backward pass is recorded" in first.text) is not bool(trains)


@pytest.mark.parametrize(("last_ns", "waits"), [(200 * US, True), (4 * MS, False)])
def test_the_gpu_whose_collectives_end_soon_comes_last(tmp_path: Path, last_ns: int, waits: bool) -> None:
    """Two GPUs in one trace: 5 ms in collectives on one and 0.2 ms on the other are waiting, 4 ms may be transfer."""
    events: list[Any] = []
    for at in range(0, 120 * MS, 10 * MS):
        events.append(annotation(f"ProfilerStep#{at // (10 * MS)}", at, at + 10 * MS))
        for gpu, ns in enumerate((5 * MS, last_ns)):
            called, id = at + (20 * gpu + 1) * US, 10 * (at // US) + 4 * gpu
            made = launch("gemm_bwd", (called, called + US), (at + 60 * US, at + 9 * MS - ns), id=id + 1)
            made += launch(
                "ncclDevKernel_Generic", (called + 2 * US, called + 3 * US), (at + 9 * MS - ns, at + 9 * MS), id=id + 2
            )
            for each in (made[1], made[3]):
                each["args"]["device"] = each["pid"] = gpu
            events += made
    found = diagnosis_of(write_trace(tmp_path / "t.json", events)).findings
    [first] = [each for each in found if each.kind == "communication-exposed"]
    assert bool(first.remedy) is not waits
    assert ("all collectives take 2.40 ms on GPU 1 and 60.0 ms on GPU 0, which waits for GPU 1" in first.text) is waits


def test_annotated_steps_with_next_to_no_work_are_too_little(trace: MakeTrace) -> None:
    """Kernels of 24 µs in steps of a ms, behind 100 ms that make a context; not kernels of 12 ms in all."""
    for ns, kind in ((2 * US, "cold-start"), (1_000 * US, "launch-bound")):
        program = Program()
        program.call("cudaMalloc", 100 * MS)
        for number in range(STEPS):
            with program.range(f"step{number}"):
                for _ in range(12):
                    program.code(80 * US)
                    program.launch("k", 2 * US)
        program.launch("check", ns)
        assert diagnosis_of(trace(*program.items)).findings[0].kind == kind


def test_kernels_come_before_the_waits_of_a_benchmark(trace: MakeTrace) -> None:
    """A synchronization behind each kernel; not one that costs more than the compute."""
    for ns, leads in ((250 * US, True), (40 * US, False)):
        program = Program()
        for number in range(STEPS):
            with program.range(f"step{number}"):
                for _ in range(4):
                    program.launch("gemm", ns)
                    program.wait("cudaEventSynchronize")
                    program.code(40 * US)
        text = findings_text(diagnosis_of(trace(*program.items)), "r", "analyze", 3, 200)
        assert text.startswith("The GPU computes for ") is leads, text
        assert "1. step*: cudaEventSynchronize in step* drains" in text


def test_work_on_output_is_no_work_for_the_gpu(trace: MakeTrace) -> None:
    """A library of files swaps the bytes of what was copied to the host, and writes them; or nothing is written."""
    for write_ns, remedy in ((MS, "write less often, or prepare"), (0, "do this work on the GPU")):

        def act(program: Program, write_ns: int = write_ns) -> None:
            program.copy(2, 1 << 20, 200 * US)
            program.wait()
            program.code(600 * US)
            if write_ns:
                program.os("pwrite", write_ns)

        found = diagnosis_of(trace(*steps(act).items)).findings
        [swap] = [each for each in found if each.kind == "cpu-code"]
        assert swap.remedy.startswith(remedy)


def test_code_between_writes_to_a_file_is_output(trace: MakeTrace) -> None:
    """Text is made and written to a file of each step; to a terminal, where code only begins with a write, or where it
    takes far longer than the writes, it is not known to be.
    """
    for opens, writes, ns, remedy in (
        *((1, 8, 8 * US, "write less often"), (0, 8, 8 * US, "do this work"), (1, 1, 8 * US, "do this work")),
        (1, 8, 500, "do this work"),
    ):

        def act(program: Program, opens: int = opens, writes: int = writes, ns: int = ns) -> None:
            program.launch("gemm", 2 * MS)
            program.copy(2, 1 << 20, 200 * US)
            program.wait()
            if opens:
                program.os("open64", 5 * US)
            for number in range(8):
                program.code(150 * US)
                if number < writes:
                    program.os("write", ns)

        [text] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "cpu-code"]
        assert text.remedy.startswith(remedy)


def test_few_large_blocks_hold_enough_threads(trace: MakeTrace) -> None:
    """66 blocks of 1,024 threads are 16 warps for each of 132 multiprocessors, 12 blocks are 3."""
    for blocks, remedy in (
        (66, "use smaller blocks (128 threads)"),
        (12, "launch at least 132 blocks of 1,024 threads"),
    ):
        first = diagnosis_of(trace(*steps(kernel("stencil", blocks, block=(1024, 1, 1))).items)).findings[0]
        assert (first.kind, first.remedy.startswith(remedy)) == ("small-grid", True)


def test_grids_of_a_kernel_are_told_from_to_where_more_blocks_help(trace: MakeTrace) -> None:
    """As long with 5 to 26 blocks as with 270: a block takes so long. A third of that with 5 to 26: blocks are few."""
    for ns, some in ((300 * US, False), (100 * US, True)):

        def act(program: Program, ns: int = ns) -> None:
            for blocks in (5, 26, 26):
                program.launch("solve", 100 * US, blocks=blocks, block=(32, 1, 1))
            program.launch("solve", 400 * US - ns, blocks=270, block=(32, 1, 1))

        grids = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "small-grid"]
        assert [each.text.split(":")[0] for each in grids] == (
            ["solve runs 5 to 26 blocks of 32 threads on 132 multiprocessors"] * some
        )
        assert all(each.remedy.startswith("launch at least 528 blocks of 128 threads") for each in grids)


def test_grids_of_a_kernel_have_the_blocks_that_are_told(trace: MakeTrace) -> None:
    """16 blocks of 128 threads and 40 of 64: the amount is of both, and so is the shape."""

    def act(program: Program) -> None:
        program.launch("solve", 2000 * US, blocks=16)
        program.launch("solve", 2200 * US, blocks=40, block=(64, 1, 1))

    [grid] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "small-grid"]
    assert grid.text.startswith("solve runs 16 to 40 blocks of 64 to 128 threads on 132 multiprocessors: 4.20 ms")


def test_nobody_sets_the_blocks_of_a_library(trace: MakeTrace) -> None:
    """Blocks of 32 threads of cuBLAS and of the program; few blocks of cuBLAS, and of a product of the program."""
    for name, blocks, remedy in (
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_nn", 264, None),
        ("add", 1056, "use blocks of 128 to 256 threads"),
        ("ampere_sgemm_128x64_tn", 1, "give the kernel more parallel work"),
        ("void gemmSN_TN_kernel<float, 128, 16>(cublasGemmSmallNParams<float>)", 1, "give the kernel more parallel"),
        ("void gemv2T_kernel_val<int, int, float>(cublasGemvParamsEx<int>)", 264, None),
        ("void gemm_naive<16>(float*, float*, float*, int)", 1, "launch at least 528 blocks"),
        ("void nrm2_kernel<double, 128>(cublasNrm2Params<T1, T3>)", 1, "call this library function in fewer steps"),
        ("void cub::CUB_200200::DeviceRadixSortOnesweepKernel<int>(T1 *)", 1, "call this library function in fewer"),
        ("void generate_seed_pseudo<rng_config<curandStateXORWOW>>(int *)", 1, "create the cuRAND generator once"),
        ("void cusparse::csrmv_v3_kernel<int, double>(int)", 1, "call this library function in fewer"),
        ("void gen_sequenced<curandStateXORWOW, float2>(float2 *)", 1, "call this library function in fewer"),
        ("void cudnn::ops::nchwAddPaddingKernel<float>", 264, None),
        (GEMV, 264, None),
        ("init(curandStateXORWOW *, int)", 1, "launch at least 528 blocks"),
    ):
        found = diagnosis_of(trace(*steps(kernel(name, blocks, block=(32, 1, 1))).items)).findings
        remedies = [each.remedy for each in found if each.kind in ("small-grid", "tiny-blocks")]
        assert len(remedies) == (remedy is not None)
        assert all(each.startswith(str(remedy)) for each in remedies)


def test_copies_that_fill_the_steps_come_before_kernels(trace: MakeTrace) -> None:
    """Copies back to back, under which kernels hide; not with half of these copies."""
    for ns, fills in ((1210 * US, True), (600 * US, False)):
        program, done = Program(), 0
        for number in range(24):
            with program.range(f"step{number}"):
                program.copy(1, 64 << 20, ns, stream=8)
                program.stream_waits(program.record(8))
                program.wait(until=done)
                program.launch("gemm", 900 * US)
                done = program.free[7]
        found = diagnosis_of(trace(*program.items))
        text = findings_text(found, "r", "analyze", 3, 300)
        assert (
            "copies in this direction are almost continuous at 55.5 GB/s, so only copying fewer bytes helps" in text
        ) is fills, text


def test_a_free_of_half_a_second_loads_a_library(trace: MakeTrace) -> None:
    """Others of its name take microseconds, and the GPU is idle; not where a kernel runs meanwhile."""
    for ns, kind in ((MS, "module-loading"), (600 * MS, None)):
        program = Program()
        for _ in range(4):
            program.launch("gemm", 100 * MS)
            program.wait()
            program.call("cudaFree", 100 * US)
        program.launch("gemm", ns)
        program.call("cudaFree", 500 * MS)
        program.launch("gemm", 300 * MS)
        program.wait()
        kinds = [each.kind for each in diagnosis_of(trace(*program.items)).findings if "cudaFree" in each.cause]
        assert kinds == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("name", "remedy"), [("julia_add_12", "so that Julia compiles it"), ("add", "shorten the CPU")]
)
def test_what_comes_before_all_gpu_work(trace: MakeTrace, name: str, remedy: str) -> None:
    """Eight seconds from the first call to the only kernel: in Julia that is its compiler."""
    program = Program()
    program.call("cudaMalloc", 10 * US)
    program.code(8_000 * MS)
    program.launch(name, 3 * MS, blocks=1)
    first = diagnosis_of(trace(*program.items)).findings[0]
    assert first.text.startswith("too little GPU work to optimize: the first GPU operation comes 8.00 s after")
    assert remedy in first.remedy


@pytest.mark.parametrize("node", [None, 5])
def test_tiny_kernels_of_a_graph_have_no_launch_of_their_own(trace: MakeTrace, node: int | None) -> None:
    """What was captured in a graph needs no graph."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            tiny(200)(program)
    items = [replace(each, graph_node=node) if isinstance(each, Kernel) else each for each in program.items]
    found = next(each for each in diagnosis_of(trace(*items)).findings if "tiny kernels" in each.text)
    assert ("each with its own launch" in found.text) is (node is None)
    assert ("in a CUDA graph" in found.text) is (node is not None)
    assert ("run these kernels as one" in found.remedy) is (node is None)


def test_a_long_memset_is_no_copy(trace: MakeTrace) -> None:
    """A few bytes are copied, and 1 GiB is set, which takes longer than all kernels; a range ends in half a year."""
    program = Program()
    program.copy(1, 8, US, blocks=True)
    program.memset(1 << 30, 6 * MS)
    program.launch("k", 3 * MS)
    endless = Range("run", 0, 10**16)
    said = headline(diagnosis_of(trace(*program.items, endless, duration=50 * MS)), "r")
    assert "sets memory for 67 %" in said
    assert diagnosis_of(trace(*program.items, endless, duration=50 * MS)).recorded_ns == 50 * MS


def test_the_code_of_a_straggler_is_told_of_its_gpu(trace: MakeTrace) -> None:
    """The GPUs of ranks 0 and 1 wait longest for their code, but in vain: they then wait for rank 2."""
    items: list[Any] = []
    for rank, code_ns, gemm_ns in ((0, 4 * MS, MS), (1, 4 * MS, MS), (2, 3 * MS, 5 * MS)):
        program = Program()
        for number in range(STEPS):
            program.now = number * 10 * MS
            with program.range(f"step{number}"):
                with program.range("load"):
                    program.code(code_ns)
                program.launch("gemm", gemm_ns)
                id, end = program.call("cudaLaunchKernel"), number * 10 * MS + 9 * MS
                program.items.append(Kernel(NCCL, program.free[7] + STARTS, end, id))
                program.free[7] = end
                program.wait()
        mine: list[Any] = program.items
        items += [
            replace(each, process=rank + 1, **({"device": rank} if hasattr(each, "device") else {})) for each in mine
        ]
    assert ("cpu-code", 2) in [(each.kind, each.gpu) for each in diagnosis_of(trace(*items)).findings]


def test_a_wait_that_ends_with_a_short_collective_is_a_synchronization(trace: MakeTrace) -> None:
    """The CPU waits for 3 ms of one GPU, and then for its broadcast of 0.1 ms, before it launches on the other GPU."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            for gpu in (0, 1):
                program.launch("gemm", 3 * MS, stream=7 + gpu, device=gpu)
                program.launch(NCCL, 100 * US, stream=7 + gpu, device=gpu)
                program.wait(until=program.free[7 + gpu])
    assert "synchronization" in [each.kind for each in diagnosis_of(trace(*program.items)).findings]


def test_faults_without_moved_pages_evict_nothing(trace: MakeTrace) -> None:
    """Pages that the GPU touches first move from nowhere: 0 B moved, and 0 B evicted."""

    def act(program: Program) -> None:
        program.launch("init", 6 * MS)
        begin = program.free[7] - 6 * MS
        program.items += [PageFault(begin + at * US, begin + (at + 100) * US) for at in range(0, 4000, 200)]
        program.wait()

    [found] = [each for each in diagnosis_of(trace(*steps(act).items)).findings if each.kind == "page-fault"]
    assert "evicted" not in found.text


def test_copies_of_unknown_size_have_none(trace: MakeTrace) -> None:
    """An export without the column of bytes."""

    def act(program: Program) -> None:
        program.wait()
        program.copy(1, 16 << 20, 2 * MS)
        program.wait()

    path = trace(*steps(act).items, drop_columns={"CUPTI_ACTIVITY_KIND_MEMCPY": ["bytes"]})
    [found] = [each for each in diagnosis_of(path).findings if each.kind == "exposed-copy"]
    assert found.cause == "pinned copies to the GPU in step*"


@pytest.mark.parametrize(
    ("path", "said"), [("load/iteration*", ""), ("load/step*", " --range 'load/step*'"), (WHOLE, "")]
)
def test_analyze_is_not_asked_about_steps_found_inside_a_range(trace: MakeTrace, path: str, said: str) -> None:
    """`analyze` has no path for detected iterations beside annotated ranges; `why` has."""
    diagnosis = diagnosis_of(trace(*steps(code).items))
    found = replace(diagnosis.findings[0], path=path, change=())
    level = replace(diagnosis.chosen.level, detected=not said, options=("--threads strict",))
    assert next_command(found, "r", "why", level) == f"nsysprof analyze r{said} --threads strict"
    said = "" if path == WHOLE else f" --range '{path}'"
    assert next_command(found, "r", "analyze", level) == f"nsysprof why r{said} --threads strict"


def test_shares_of_gpus_without_steps_are_of_the_time_of_each(trace: MakeTrace) -> None:
    """Two GPUs, of which the second begins when half of the time is over, compute all of their own time."""
    kernels = [
        launch_kernel("k", (at * MS, at * MS + 9000), (at * MS + 9000, end * MS), id=at + 1, device=device)
        for at, end, device in ((0, 20, 0), (10, 20, 1))
    ]
    said = headline(diagnosis_of(trace(*kernels[0], *kernels[1])), "r")
    assert "2 GPUs compute for 100 % of the time from the first to the last operation of each GPU (up to 20" in said


@pytest.mark.parametrize(("late", "gpus"), [(300 * US, 1), (300 * US, 2), (5 * US, 1)])
def test_a_wait_for_work_that_does_not_start_is_no_synchronization(trace: MakeTrace, late: int, gpus: int) -> None:
    """The CPU waits for a memset that starts 300 µs after its launch; with two GPUs it may wait for the other one."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.memset(8, US, late=late)
            program.wait()
            program.launch("k", 20 * US)
            program.wait()
    if gpus > 1:
        program.items += launch_kernel(
            "other", (program.now, program.now + 5), (program.now + 10, program.now + MS), id=9_999, device=1
        )
    found = diagnosis_of(trace(*program.items)).findings
    assert any("launched work starts late" in each.text for each in found) is (late > 100 * US and gpus == 1)


@pytest.mark.parametrize(("longest", "advised"), [(4 * MS, True), (400 * MS, False)])
def test_one_long_allocation_is_no_loop(trace: MakeTrace, longest: int, advised: bool) -> None:
    """Twelve allocations between kernels that do not repeat; one that takes nearly all of the time is set-up."""
    program = Program()
    for number in range(12):
        program.launch(f"k{number * number % 17}", 8 * MS)
        program.wait()
        program.call("cudaMalloc", longest if number == 5 else 4 * MS)
    program.launch("last", MS)
    [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "allocation"]
    assert bool(found.remedy) is advised


@pytest.mark.parametrize(("saved", "said"), [(0.07, True), (0.09, False)])
def test_kernels_come_first_where_a_fix_saves_a_tenth_of_them(trace: MakeTrace, saved: float, said: bool) -> None:
    """The kernel takes 83 % of the time."""
    diagnosis = diagnosis_of(trace(*one_pass(MS // 4, 20 * MS, copy(1, host=0, blocks=True), 264).items))
    first = diagnosis.findings[0]
    gains = replace(first, remedy="copy less", gain_ns=int(saved * first.total_ns))
    assert ("begin with add (83 %)" in kernels_first(replace(diagnosis, findings=(gains,)))) is said


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([], "another process shared the GPU"),
        (["cudaGraphicsMapResources"], "the program also draws"),
        (["Not all CUDA events might have been collected."], "record a shorter run"),
    ],
)
def test_what_may_hold_up_work_that_was_launched(trace: MakeTrace, said: list[str], why: str) -> None:
    """A memset that starts 300 µs late: graphics of the program, and events that nsys dropped, are no other process."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.memset(8, US, late=300 * US)
            program.wait()
            program.launch("k", 20 * US)
            program.wait()
            for name in said:
                program.call(name)
    found = diagnosis_of(trace(*program.items, *map(Diagnostic, said))).findings
    assert [why in each.text for each in found if each.kind == "unknown"] == [True]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("volta_dgemm_64x64_nn", True),
        ("gemm_64f_64x64", True),
        ("gemm<double>", True),
        ("sm80_xmma_gemm_f64f64_f64f64_f64_nn", False),
    ],
)
def test_fp64_on_tensor_cores_was_chosen(trace: MakeTrace, name: str, told: bool) -> None:
    """A program in CUDA C++ has chosen the type, and a library the unit."""
    program = Program()
    for _ in range(STEPS):
        program.launch(name, 2 * MS)
    found = diagnosis_of(trace(*program.items, Process(1, "./solver"))).findings
    assert any("FP64" in each.text for each in found) is told


def test_one_long_read_is_no_loader(trace: MakeTrace) -> None:
    """A checkpoint is read for 300 ms between two kernels of a single pass: no loader would read it ahead."""
    for reads, advised in ((1, False), (12, True)):
        program = Program()
        for number in range(12):
            program.launch(f"k{number * number % 17}", 8 * MS)
            program.wait()
            program.os("read", (300 if number < reads else 1) * MS)
        program.launch("last", MS)
        [found] = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "input-wait"]
        assert bool(found.remedy) is advised


@pytest.mark.parametrize(
    ("ns", "longest", "often", "remedy"),
    [
        (25 * US, 25 * US, 0, "send fewer, larger messages"),
        (200 * US, 200 * US, 0, "communicate less"),
        (200 * US, 1_000 * US, 1, "communicate less"),
        (200 * US, 1_000 * US, 3, "compare the ranks first (nsysprof fleet): most collectives take 200 µs to 1.00 ms"),
    ],
)
def test_short_messages_take_as_long_as_their_latency(
    trace: MakeTrace, ns: int, longest: int, often: int, remedy: str
) -> None:
    """Collectives beside too little compute: of these only short ones cost their number; unequal ones may wait."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            for turn in range(8):
                program.launch("ncclDevKernel_SendRecv", longest if turn < often else ns)
                program.launch("stencil", 5 * US)
    found = [each for each in diagnosis_of(trace(*program.items)).findings if each.kind == "communication-exposed"]
    assert [each.remedy.startswith(remedy) for each in found] == [True]


@pytest.mark.parametrize("count", [2, 3])
def test_two_collectives_alone_tell_nothing(trace: MakeTrace, count: int) -> None:
    """A test of the network that computes nothing: of so few, all may wait for the other ranks to start."""
    program = Program()
    for _ in range(count):
        program.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50 * MS)
        program.code(MS)
    said = [each.text for each in diagnosis_of(trace(*program.items)).findings if "communication" in each.kind]
    assert ["too few collectives to tell" in each for each in said] == [count < 3]


@pytest.mark.parametrize(
    ("elements", "remedy"),
    [(1024, "send fewer, larger messages (wider halos, fewer reductions): "), (256 << 10, "communicate less")],
)
def test_short_collectives_of_many_bytes_are_no_short_messages(tmp_path: Path, elements: int, remedy: str) -> None:
    """Eight collectives of 20 µs in each step: of 4 KiB they cost their number, of 1 MiB the link is fast."""
    events: list[Any] = []
    for step in range(STEPS):
        at = MS * step
        events.append(annotation(f"ProfilerStep#{step}", at, at + 250 * US))
        for turn in range(8):
            called, ran, id = at + 20 * US * turn, at + (20 + 30 * turn) * US, 16 * step + 2 * turn + 1
            events += all_ranks("allreduce", (called, called + US), (ran, ran + 20 * US), id=id, elements=elements)
            events += launch("stencil", (called + 2 * US, called + 3 * US), (ran + 20 * US, ran + 25 * US), id=id + 1)
    found = diagnosis_of(write_trace(tmp_path / "t.json", events)).findings
    assert [each.remedy[: len(remedy)] for each in found if each.kind == "communication-exposed"] == [remedy]


def test_a_wait_that_ends_before_the_late_launch_is_a_wait(trace: MakeTrace) -> None:
    """A synchronization returns 300 µs late, and the kernel launched behind it starts 400 µs late: two causes."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.launch("k", 500 * US)
            program.wait(until=program.free[7] + 300 * US)
            program.launch("m", 20 * US, late=400 * US)
            program.wait()
    kinds = [each.kind for each in diagnosis_of(trace(*program.items)).findings]
    assert kinds == ["launch-latency", "synchronization"]


def test_a_copy_that_starts_late_is_a_copy(trace: MakeTrace) -> None:
    """The CPU waits for a pinned copy that starts two ms behind its call: no other process is to blame."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.launch("k", 500 * US)
            program.free[7] += 2 * MS
            program.copy(2, 8 << 20, 500 * US, host=1)
            program.wait()
    found = diagnosis_of(trace(*program.items)).findings
    assert not any("another process" in each.text for each in found)
