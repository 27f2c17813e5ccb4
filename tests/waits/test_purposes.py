"""What host calls are for: by their names, and those that set something up."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.waits.purposes import IN_CODE, PURPOSES, compiles, happens_once, purpose_of, purposes
from tests.conftest import MakeTrace
from tests.kit.trace import Items, Launch, OsCall, Overhead, launch_kernel

MS = 1_000_000
NAMES = {
    "launch": "cudaLaunchKernel_v7000 cudaLaunch cudaLaunchKernelExC_v11060 cuLaunchKernelEx hipLaunchKernel",
    "graph launch": "cudaGraphLaunch_v10000 cuGraphLaunch hipGraphLaunch",
    "query": "cudaEventQuery_v3020 cuStreamQuery hipEventQuery",
    "synchronize": "cudaDeviceSynchronize_v3020 cuCtxSynchronize cuStreamSynchronize_ptsz hipStreamSynchronize",
    "copy": "cudaMemcpy_v3020 cudaMemcpy2DAsync_v3020 cuMemcpyHtoDAsync_v2 cudaMemcpyToSymbol hipMemcpyWithStream",
    "memset": "cudaMemsetAsync_v3020 cuMemsetD32Async hipMemset",
    "managed": "cudaMallocManaged_v6000 cuMemAllocManaged cudaMemPrefetchAsync_v8000 cuMemAdvise hipMallocManaged",
    "pin": "cudaHostAlloc_v3020 cudaMallocHost cuMemHostRegister_v2 cudaFreeHost hipHostMalloc cuMemAllocHost_v2",
    "free": "cudaFree_v3020 cudaFreeAsync_v11020 cuMemFree_v2 hipFree cuMemUnmap cudaMemPoolTrimTo",
    "allocate": "cudaMalloc_v3020 cudaMallocAsync_v11020 cuMemAlloc_v2 cuMemCreate hipMalloc cudaMallocPitch_v3020",
    "context": "cuInit cuCtxCreate_v4 cuDevicePrimaryCtxRetain cudaDeviceReset_v3020 hipInit",
    "compile": "nvrtcCompileProgram nvJitLinkComplete cuLinkAddData_v2 hiprtcCompileProgram",
    "module": "cuModuleLoadDataEx cuLibraryLoadData hipModuleLoadData cuLibraryGetKernel",
    "graph capture": "cudaStreamBeginCapture_v10000 cudaStreamEndCapture_v10000 cudaGraphInstantiateWithFlags_v11040",
    "event": "cudaEventRecord_v3020 cudaStreamWaitEvent_v3020 cudaStreamCreateWithPriority_v5050 cudaLaunchHostFunc",
    "MPI": "MPI_Allreduce",
    "NCCL": "ncclAllReduce",
    "sleep": "clock_nanosleep usleep sleep",
    "lock": "pthread_cond_timedwait futex sem_wait waitpid",
    "poll": "poll epoll_wait select",
    "input-output": "read write fopen64 recvmsg",
    "pages": "mmap64 munmap mprotect",
    "profiler": "cudaProfilerStart_v4000",
    "other": "cudaGetDevice_v3020 cudaStreamIsCapturing_v10000 cudaFuncGetAttributes fork ioctl",
}


@pytest.mark.parametrize(("purpose", "names"), NAMES.items(), ids=NAMES)
def test_names_of_runtime_driver_hip_and_system(purpose: str, names: str) -> None:
    """Each with the version that its function has."""
    assert {name: PURPOSES[purpose_of(name)] for name in names.split()} == dict.fromkeys(names.split(), purpose)


def test_ranges_in_which_frameworks_compile() -> None:
    """Of PyTorch, Triton and XLA; what runs compiled code is none."""
    yes: tuple[str, ...] = (
        "CompiledFxGraph.compile_fx_inner",
        "_compile.compile_inner",
        "dynamo: compile",
        "XlaCompile:#module=jit_f#",
    )
    yes += ("triton_compile", "async_compile.wait", "Autotuner.benchmark", "GpuCompiler::RunBackend autotuning")
    makers = ("dynamo", "inductor", "fx", "backend", "frame", "aot_autograd", "jit", "triton", "xla", "gpu", "nvfuser")
    yes += tuple(f"{each}_compile" for each in makers)
    yes += (
        "benchmark_all_configs",
        "cudnnFindConvolutionForwardAlgorithm",
        "find_algorithm",
        "AsyncCompile",
        "nvcc compilation",
    )
    no = ("Torch-Compiled Region: 0/0", "forward", "compiled_model", "step", "triton_poi_fused_add_0", "build batch")
    assert ([name for name in yes if not compiles(name)], [name for name in no if compiles(name)]) == ([], [])


def found(path: Path, *steps: tuple[int, int]) -> list[tuple[str, str, bool]]:
    """Name and purpose of each call by its start, and whether it happens once, besides the ``steps`` of the program."""
    with open_report(path) as report:
        trace = attribute(report).trace
        activity = report.reader.host_activity(trace)
    purpose = purposes(trace, activity)
    assert purpose[-1] == IN_CODE
    start, end = np.array(steps, np.int64).reshape(-1, 2).T
    once, calls = happens_once(activity, purpose, start, end), activity.calls
    order = np.argsort(calls.start, kind="stable").tolist()
    return [(calls.names[calls.name[row]], PURPOSES[purpose[row]], bool(once[row])) for row in order]


def call(start: int, length: int, api: str, id: int = 900, **more: int) -> Launch:
    """A call at a time in ms that takes so many µs."""
    return Launch(start * MS, start * MS + length * 1000, id, api=api, **more)


def test_the_long_first_allocation_makes_the_context(trace: MakeTrace) -> None:
    """130 ms, and then 0.1 ms each; one that is as long behind the first kernel is an allocation."""
    path = trace(
        *(call(at, length, "cudaMalloc_v3020") for at, length in ((0, 130_000), (140, 100), (141, 90))),
        launch_kernel("k", (150 * MS, 150 * MS + 9000), (151 * MS, 152 * MS), id=1),
        call(160, 140_000, "cudaMalloc_v3020"),
    )
    names = [("cudaMalloc", "context", True), *[("cudaMalloc", "allocate", False)] * 2]
    assert found(path) == [*names, ("cudaLaunchKernel", "launch", False), ("cudaMalloc", "allocate", False)]


def test_allocations_that_are_all_long_make_no_context(trace: MakeTrace) -> None:
    """A recording that began when the program had its context long since: all take 5 ms."""
    path = trace(
        *(call(10 * at, 5000, "cudaMalloc_v3020") for at in range(4)),
        launch_kernel("k", (150 * MS, 150 * MS + 9000), (151 * MS, 152 * MS), id=1),
    )
    assert {purpose for _, purpose, _ in found(path)} == {"allocate", "launch"}


def test_each_device_of_a_process_has_a_context(trace: MakeTrace) -> None:
    """Two streams that are created take 300 ms, each on the first use of a device; the third takes 10 µs."""
    path = trace(
        *(call(at, length, "cudaStreamCreate_v3020") for at, length in ((0, 300_000), (400, 280_000), (790, 10))),
        *(
            launch_kernel("k", (at * MS, at * MS + 9000), ((at + 1) * MS, (at + 2) * MS), id=at, device=device)
            for at, device in ((310, 0), (700, 1), (710, 1))
        ),
    )
    created = [purpose for name, purpose, _ in found(path) if name == "cudaStreamCreate"]
    assert created == ["context", "context", "event"]


def test_each_process_has_a_context(trace: MakeTrace) -> None:
    """Ranks of a job, one of which launched nothing: `cudaFree(0)` makes it, and the first call where none works."""
    path = trace(
        *(call(at, 500_000, "cudaFree_v3020", process=at + 1) for at in range(3)),
        *(call(600 + at, 40_000, "cudaFree_v3020", process=at + 1) for at in range(3)),
        *(
            launch_kernel("k", (550 * MS, 550 * MS + 9000), (551 * MS, 552 * MS), id=1, process=process)
            for process in (1, 2)
        ),
    )
    assert [purpose for name, purpose, _ in found(path) if name == "cudaFree"] == ["context"] * 3 + ["free"] * 3


def kernels(*calls: tuple[int, int], name: str = "k", first: int = 0, wait: int = 0) -> list[Items]:
    """Launches at ms that take µs; each kernel starts a µs later, or ``wait`` µs."""
    out: list[Items] = []
    for number, (at, length) in enumerate(calls, first + 1):
        start, end = at * MS, at * MS + length * 1000
        out.append(
            launch_kernel(name, (start, end), (end + 1000 * (wait or 1), end + 1000 * (wait or 1) + 500), id=number)
        )
    return out


def test_a_long_first_launch_loads_the_kernel(trace: MakeTrace) -> None:
    """CUDA loads kernels when they are used first. A launch that waits for room in the queue is a launch."""
    loaded = trace(*kernels((10, 8000), (30, 5), (31, 6)))
    assert [purpose for _, purpose, _ in found(loaded)] == ["module", "launch", "launch"]
    second = trace(*kernels((10, 5), (30, 8000), (41, 6)))
    assert [purpose for _, purpose, _ in found(second)] == ["launch"] * 3
    full = trace(*kernels((10, 5), name="a"), *kernels((30, 8000), first=1, wait=20_000))
    assert [purpose for _, purpose, _ in found(full)] == ["launch"] * 2


def test_what_is_called_during_a_capture_is_a_part_of_it(trace: MakeTrace) -> None:
    """On that thread, up to its end; the instantiation, too. Launches of the graph are no set-up."""
    path = trace(
        call(0, 5, "cudaLaunchKernel_v7000"),
        call(1, 5, "cudaStreamBeginCapture_v10000"),
        call(2, 5, "cudaLaunchKernel_v7000"),
        call(3, 5, "cudaLaunchKernel_v7000", thread=2),
        call(4, 5, "cudaStreamEndCapture_v10000"),
        call(5, 5, "cudaGraphInstantiate_v12000"),
        call(6, 5, "cudaGraphLaunch_v10000"),
    )
    capture = "graph capture"
    expected = ["launch", capture, capture, "launch", capture, capture, "graph launch"]
    assert [purpose for _, purpose, _ in found(path)] == expected


def test_what_every_step_sets_up_is_a_part_of_the_step(trace: MakeTrace) -> None:
    """A plan that is loaded for each token, and one that the first of four steps loads."""
    path = trace(
        *(call(10 * step, 5000, "cuModuleLoadData") for step in range(4)),
        call(7, 900, "cuLibraryLoadData"),
        call(50, 900, "cuLibraryLoadData"),
    )
    steps = [(10 * step * MS, (10 * step + 9) * MS) for step in range(4)]
    module = [("cuModuleLoadData", "module", False)]
    library = [("cuLibraryLoadData", "module", True)]
    assert found(path, *steps) == module + library + module * 3 + library
    assert all(once for *_, once in found(path))


def test_the_profilers_own_work_is_its_own(trace: MakeTrace) -> None:
    """Whatever it is called."""
    path = trace(Overhead(0, 10), OsCall("read", 20, 30))
    assert [purpose for _, purpose, _ in found(path)] == ["profiler", "input-output"]


@pytest.mark.parametrize(
    ("items", "purpose"),
    [
        *(([call(at, us, "cudaMalloc") for at, us in ((0, long), (5, usual), (6, 100))], made)
          for long, usual, made in ((1_000, 100, "context"), (999, 50, "allocate"), (1_005, 102, "allocate"))),
        ([call(0, 4_999_999, "cudaHostAlloc")], "context"),
        ([call(0, 5_000_000, "cudaHostAlloc")], "pin"),
        *((kernels((10, long), (30, usual), (31, usual), wait=wait), made)
          for long, usual, wait, made in ((50, 5, 50, "module"), (50, 5, 51, "launch"), (49, 4, 9, "launch"),
                                          (59, 6, 9, "launch"))),
        *(([*kernels((300, 5), name="b", first=1), call(10, us, "cudaFree"), call(120, usual, "cudaFree"),
            call(121, 100, "cudaFree"), launch_kernel("a", (0, 10), (9 * MS, 9 * MS + end), id=1)], made)
          for us, usual, end, made in (
              (100_000, 100, 9, "module"), (99_999, 90, 9, "free"), (100_009, 102, 9, "free"),
              (100_000, 100, 51 * MS - 1, "module"), (100_000, 100, 51 * MS, "free"))),
    ],
)  # fmt: skip
def test_a_call_that_takes_far_longer_than_others_sets_up(trace: MakeTrace, items: list[Items], purpose: str) -> None:
    """Makes a context, ten times as long; loads a kernel, too; or a library, a thousand times, while the GPU idles."""
    calls = found(trace(*items))
    assert next((each for name, each, _ in calls if "Launch" not in name), calls[0][1]) == purpose


@pytest.mark.parametrize(("steps", "once"), [(4, False), (5, True)])
def test_set_up_in_half_of_the_steps_is_theirs(trace: MakeTrace, steps: int, once: bool) -> None:
    """In fewer of them it happens once."""
    path = trace(call(0, 900, "cuModuleLoadData"), call(10, 900, "cuModuleLoadData"))
    every = [(10 * step * MS, (10 * step + 9) * MS) for step in range(steps)]
    assert [each for *_, each in found(path, *every)] == [once, once]
