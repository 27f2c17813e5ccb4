"""Sentences whose amount covers several things, and that once named one of them as if it were all."""

import numpy as np
import pytest

from nsysprof.diagnosis.diagnose import Diagnosis, case_of
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.slow_steps import _without
from nsysprof.diagnosis.text import kernels_first, nothing_text, sentence
from nsysprof.diagnosis.tried import groups
from nsysprof.kernels.classify import kinds_of
from tests.conftest import MakeTrace
from tests.diagnosis.test_kinds import STEPS, diagnosis_of, steps
from tests.kit.program import MS, US, Program
from tests.kit.reports import attributed
from tests.kit.trace import Kernel, launch_kernel


def one(diagnosis: Diagnosis, kind: str) -> Finding:
    """The only finding of a kind."""
    [found] = [each for each in diagnosis.findings if each.kind == kind]
    return found


def test_kernels_of_other_streams_are_not_all_the_longest(trace: MakeTrace) -> None:
    """The main stream waits for three kernels, none of which takes most of the time."""

    def act(program: Program) -> None:
        program.stream_waits(program.record(7), 8)
        for number, ns in enumerate((160, 150, 140)):
            program.launch(f"spin{number}", ns * US, stream=8, blocks=1)
        program.stream_waits(program.record(8), 7)
        program.launch("gemm", 60 * US)

    text = one(diagnosis_of(trace(*steps(act).items)), "stream-dependency").text
    assert text.startswith("kernels (such as spin0) run in other streams and use only a small part of the GPU, while")


def test_a_collective_beside_compute_is_not_the_exposed_one(trace: MakeTrace) -> None:
    """A reduction takes longer than a broadcast, but most of it runs beside a kernel."""

    def act(program: Program) -> None:
        program.stream_waits(program.record(7), 8)
        program.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3 * MS, stream=8)
        program.launch("gemm", 3 * MS)
        program.stream_waits(program.record(7), 8)
        program.launch("ncclDevKernel_Broadcast_RING_LL", MS, stream=8)
        program.stream_waits(program.record(8), 7)

    text = one(diagnosis_of(trace(*steps(act).items)), "communication-exposed").text
    assert "(mostly ncclDevKernel_Broadcast_RING_LL)" in text


def test_slow_steps_may_wait_for_several_things(trace: MakeTrace) -> None:
    """Two of twenty steps are 6 ms longer: three waits of 2 ms, and no kernel takes longer."""

    def act(program: Program) -> None:
        program.wait()
        slow = done[0] % 10 == 5
        for name in ("usleep", "read", "sem_wait"):
            program.os(name, 2 * MS if slow else 10 * US)
            program.launch("gemm", 60 * US)
            program.wait()
        done[0] += 1

    done = [0]
    slow = [each for each in diagnosis_of(trace(*steps(act, count=20).items)).findings if each.kind == "slow-steps"]
    assert [each.cause for each in slow] == ["several longer waits"]


@pytest.mark.parametrize(("copy", "told"), [(0, False), (2, False), (4, True)])
def test_a_lock_while_the_gpu_copies_may_wait_for_copies(trace: MakeTrace, copy: int, told: bool) -> None:
    """In each step the CPU waits for a lock (5 ms, in four of twenty steps 10 ms), and another stream copies."""

    def act(program: Program) -> None:
        program.wait()
        slow = 1 + (done[0] % 5 == 3)
        program.copy(1, 64 << 20, copy * slow * MS + US, stream=9)
        program.os("pthread_mutex_lock", 5 * slow * MS)
        program.launch("gemm", 60 * US)
        program.wait()
        done[0] += 1

    done = [0]
    diagnosis = diagnosis_of(trace(*steps(act, count=20).items))
    for kind, said in (("lock", "the program may wait for copies"), ("slow-steps", "while the GPU copies: step")):
        assert (said in one(diagnosis, kind).text) is told


@pytest.mark.parametrize("kernel", [60 * US, 15 * MS])
def test_the_slow_step_that_is_named_has_the_cause_that_is_named(trace: MakeTrace, kernel: int) -> None:
    """Four of forty steps wait for 4 ms, one reads for 10 ms. If one kernel takes nearly all of the time, it leads."""

    def act(program: Program) -> None:
        program.wait()
        program.os("sem_wait", 4 * MS if done[0] in (5, 13, 24, 31) else 10 * US)
        program.os("read", 10 * MS if done[0] == 22 else 10 * US)
        program.launch("gemm", kernel)
        program.wait()
        done[0] += 1

    done = [0]
    diagnosis = diagnosis_of(trace(*steps(act, count=40).items))
    [slow] = [each for each in diagnosis.findings if each.kind == "slow-steps"]
    assert slow.cause.startswith("sem_wait")
    assert int(slow.text.split("step ")[1].split()[0]) in (5, 13, 24, 31)
    assert kernels_first(diagnosis).startswith("The GPU computes") == (kernel > MS)


@pytest.mark.parametrize(
    ("back", "stays", "others", "told"),
    [
        (1 << 20, True, "", True),
        (1 << 19, True, "", False),
        (1 << 20, False, "", False),
        (1 << 20, True, "process", False),
        (1 << 20, True, "MPI_Barrier", False),
    ],
)
def test_data_that_goes_to_the_host_and_straight_back_may_stay_on_the_gpu(
    trace: MakeTrace, back: int, stays: bool, others: str, told: bool
) -> None:
    """Parts of a model pass their results through the memory of the host. Another size is other data, and what comes
    in the next step, too; other processes exchange data.
    """

    def act(program: Program) -> None:
        if not stays:
            program.copy(1, back, 2 * MS, host=0)
        for _ in range(3 if stays else 1):
            program.launch("gemm", MS)
            program.copy(2, 1 << 20, 2 * MS, host=0)
            if stays:
                program.copy(1, back, 2 * MS, host=0)
        program.launch("gemm", MS * stays + US)
        if others == "MPI_Barrier":
            program.wait()
            program.os(others, MS)

    second = [launch_kernel("gemm", (0, 5), (10, 20), id=9, process=2)] if others == "process" else []
    attribution = attributed(trace(*steps(act).items, *second))
    case = case_of(attribution, None, kinds_of(attribution.trace), None)
    notes = [kind.note(case, group) for kind, group in groups(case) if kind.name == "pageable-copy"]
    assert ["if this is the same data, keep it on the GPU" in note for note in notes] == [told]


@pytest.mark.parametrize(
    ("launches", "reads", "path", "advice"),
    [
        (400, 0, "train", "operators, capture the step in a CUDA graph (torch.cuda.graph)"),
        (400, 2, "train", "operators, take cudaStreamSynchronize and all other waits out of the step (2 per step, which"
         " a CUDA graph cannot contain), then capture the step in a CUDA graph (torch.cuda.graph)"),
        (4, 0, "train", "launching thread: to another thread, or out of the step"),
        (400, 0, "eval", "launching thread: to another thread, or out of the step"),
    ],
    ids=["graph", "reads", "few launches", "other steps"],
)  # fmt: skip
def test_code_between_operators_is_in_a_graph_of_the_step(
    trace: MakeTrace, launches: int, reads: int, path: str, advice: str
) -> None:
    """If the GPU also waits for many launches of PyTorch, a CUDA graph saves both; code alone moves elsewhere."""
    program = Program()
    for name in ("train", path):
        with program.range(name):
            for _ in range(STEPS):
                with program.range("step"):
                    program.launch("gemm", US)
                    for _ in range(launches * (name == "train")):
                        program.code(4 * US)
                        program.launch("void at::native::vectorized_elementwise_kernel<4>", 2 * US)
                    for _ in range(reads):
                        program.copy(2, 4, 2 * US)
                        program.wait()
                    program.code(MS)
                    program.launch("gemm", MS)
                    program.wait()
    found = diagnosis_of(trace(*program.items)).findings
    [remedy] = [each.remedy for each in found if each.kind == "cpu-code" and each.path == f"{path}/step"]
    assert remedy.endswith(advice)


def test_copies_of_many_sizes_have_no_size(trace: MakeTrace) -> None:
    """None of four sizes makes half of the waits: the direction is the same, the memory too."""

    def act(program: Program) -> None:
        for size in (8, 16, 32, 64):
            program.copy(1, size << 20, 2 * MS)

    assert one(diagnosis_of(trace(*steps(act).items)), "exposed-copy").cause == "pinned copies to the GPU"


def test_a_kernel_of_one_step_is_not_one_of_each(trace: MakeTrace) -> None:
    """Two of twelve steps launch a kernel with few blocks, for 16 ms each."""

    def act(program: Program) -> None:
        few = done[0] % 6 == 3
        for _ in range(8):
            program.launch("solve" if few else "gemm", 2 * MS if few else 60 * US, blocks=4 if few else 264)
        done[0] += 1

    done = [0]
    grid = one(diagnosis_of(trace(*steps(act).items)), "small-grid")
    assert grid.often == "2 of 12 steps"
    assert grid.text.endswith(": 32.0 ms in 2 of 12 steps")


def test_idle_time_between_steps_leaves_out_what_the_gpu_does() -> None:
    """Pauses of 10 ns each, in which a GPU works at the begin, in the middle, at the end or not at all."""
    pauses = np.array([0, 20, 40, 60]), np.array([10, 30, 50, 70])
    busy = np.array([-5, 23, 45]), np.array([4, 25, 55])
    start, end = _without(pauses, busy)
    assert list(zip(start.tolist(), end.tolist(), strict=True)) == [(4, 10), (20, 23), (25, 30), (40, 45), (60, 70)]


def test_waits_that_no_graph_can_contain_are_all_told(trace: MakeTrace) -> None:
    """Each step waits in three calls of two names."""

    def act(program: Program) -> None:
        for api in ("cudaStreamSynchronize", "cudaStreamSynchronize", "cudaDeviceSynchronize"):
            for _ in range(30):
                program.code(20 * US)
                program.launch("add", 3 * US)
            program.wait(api)

    found = diagnosis_of(trace(*steps(act).items)).findings
    [remedy] = [each.remedy or each.text for each in found if each.kind == "launch-bound"]
    assert "take cudaStreamSynchronize and all other waits out of the step (3 per step" in remedy


def test_first_launches_of_several_kernels_are_several(trace: MakeTrace) -> None:
    """Three kernels are loaded in one range, each for 30 ms."""
    program = Program()
    with program.range("init"):
        for name in ("a", "b", "c", "a", "b", "c"):
            ns = 30 * MS if program.ids < 3 else 4 * US
            id = program.call("cudaLaunchKernel", ns)
            program.items.append(Kernel(name, program.now + US, program.now + 50 * US, id))
            program.free[7] = program.now + 60 * US
    found = diagnosis_of(trace(*program.items)).findings
    loads = [each.cause for each in found if each.kind == "module-loading"]
    assert loads == ["first launches of kernels (cudaLaunchKernel in init), which load them"]


def test_a_finding_names_its_gpu_if_there_are_several(trace: MakeTrace) -> None:
    """One GPU of two waits for code."""

    def act(program: Program) -> None:
        program.launch("other", 3 * MS, stream=9, device=1)
        program.wait()
        program.code(2 * MS)

    diagnosis = diagnosis_of(trace(*steps(act).items))
    said = [sentence(each, diagnosis) for each in diagnosis.findings]
    assert said
    assert all(f"GPU {each.gpu}: {each.text}" in text for each, text in zip(diagnosis.findings, said, strict=True))


def test_no_kernel_has_most_of_the_time(trace: MakeTrace) -> None:
    """Twelve kernels of equal length: the first two are the longest, and not most."""
    program = Program()
    for _ in range(STEPS):
        with program.range("step"):
            for number in range(12):
                program.launch(f"kernel{number}", MS)
    said = nothing_text(diagnosis_of(trace(*program.items)))
    assert ", longest in kernel" in said
