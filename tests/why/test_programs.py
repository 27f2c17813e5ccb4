"""What slow programs are told first: loops that read back, files, loaders, allocations, another thread's copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import MakeTrace
from tests.kit.program import MS, US, Program
from tests.why.test_why import check_sums, why_of

STEPS = 12


def tensor_to_cpu(program: Program) -> None:
    """`tensor.cpu()` in a loop, of pageable memory."""
    with program.range("metrics"):
        for _ in range(8):
            program.launch("reduce", 5 * US)
            program.copy(2, 4096, 2 * US, blocks=True)
            program.wait()
            program.code(30 * US)


def boolean_mask(program: Program) -> None:
    """`x[mask]` in each layer: how many elements there are has to be known."""
    for _ in range(12):
        with program.range("layer"):
            program.launch("gemm", 60 * US)
            program.launch("void cub::DeviceReduceSingleTileKernel<at::native::NonZeroOp<bool>>()", 3 * US)
            program.copy(2, 8, 2 * US)
            program.wait()
            program.code(30 * US)
            program.launch("index", 30 * US)


def loader(call: str) -> Callable[[Program], None]:
    """The queue of a `DataLoader` is empty."""

    def data(program: Program) -> None:
        with program.range("data"):
            program.os(call, 2 * MS)

    return data


def print_loss(program: Program) -> None:
    """`print(loss)` in each step."""
    with program.range("log"):
        program.copy(2, 4, 2 * US)
        program.wait()
        program.code(40 * US)
        program.os("write", 8 * US)
        program.code(60 * US)


def write_file(program: Program) -> None:
    """A checkpoint in each step."""
    with program.range("checkpoint"):
        program.copy(2, 1 << 20, 80 * US, blocks=True)
        program.wait()
        program.code(90 * US)
        program.os("write", 400 * US)
        program.os("fsync", 3 * MS)


def pin_memory(program: Program) -> None:
    """Pinned memory of its own for each batch."""
    with program.range("data"):
        program.call("cudaHostAlloc", 2 * MS)
        program.copy(1, 1 << 20, 10 * US)


def copying_thread(program: Program) -> None:
    """A thread copies from pageable memory, the step waits until it has, and the stream for its event."""
    with program.on(2), program.range("prefetch"):
        program.code(30 * US)
        program.copy(1, 32 << 20, 4 * MS, stream=9, blocks=True)
        event = program.record(9)
        done = program.now
    with program.range("data"):
        program.os("pthread_cond_wait", max(done - program.now, 0))
        program.stream_waits(event)


def slow_event(program: Program) -> None:
    """`cudaEventSynchronize` on an event behind a long copy in another stream."""
    with program.range("save"):
        program.stream_waits(program.record(7), 9)
        program.copy(2, 128 << 20, 3 * MS, stream=9)
        program.wait("cudaEventSynchronize", program.events[program.record(9)])
    program.layers()


def load_module(program: Program) -> None:
    """Kernels are loaded at first use, in the first two steps."""
    with program.range("load"):
        if program.now < 25 * MS:
            program.call("cuModuleLoadData", 20 * MS)


def cpu_optimizer(program: Program) -> None:
    """Gradients to the host, an optimizer there, outside the inner ranges, and parameters back."""
    program.copy(2, 16 << 20, MS, blocks=True)
    program.wait()
    program.code(4 * MS)
    program.copy(1, 16 << 20, MS, blocks=True)


def nothing(program: Program) -> None:
    """A step that is over."""


CASES = [
    (
        tensor_to_cpu,
        "cudaStreamSynchronize (DtoH pinned, 4.00 KiB) in metrics lets the queue run dry",
        "keep the tensor",
    ),
    (
        boolean_mask,
        "nonzero() in layer lets the queue run dry, then the GPU waits for code in layer",
        "boolean mask",
    ),
    (loader("poll"), "poll in data:", "more loader workers"),
    (loader("select"), "select in data:", "more loader workers"),
    (loader("futex"), "futex in data:", "more loader workers"),
    (print_loss, ".item() in log lets the queue run dry", "read it once every so many steps"),
    (
        write_file,
        "fsync in checkpoint, exposed by cudaStreamSynchronize (DtoH pinned, 1.00 MiB)",
        "another thread",
    ),
    (pin_memory, "cudaHostAlloc in data:", "pin memory once"),
    (copying_thread, "pthread_cond_wait (HtoD pinned, 32.0 MiB) in data", "another thread"),
    (slow_event, "cudaEventSynchronize (DtoH pinned, 128 MiB) in save:", "read it later"),
    (
        cpu_optimizer,
        "code in step*, exposed by cudaStreamSynchronize (DtoH pinned, 16.0 MiB)",
        "keep the tensor",
    ),
]


def steps(act: Callable[[Program], None], between: Callable[[Program], None] = nothing) -> Program:
    """Steps of twelve layers, in each of which a program acts, and what it does between them."""
    program = Program()
    for number in range(STEPS):
        with program.range(f"step{number}"):
            program.code(US)
            with program.range("forward"):
                program.layers()
            act(program)
        between(program)
    return program


@pytest.mark.parametrize(
    ("act", "text", "hint"), CASES, ids=[f"{case[0].__name__} {case[1][:6]}" for case in CASES]
)
def test_the_culprit_stands_first(
    trace: MakeTrace, act: Callable[[Program], None], text: str, hint: str
) -> None:
    """The first finding names what is to be mended, and says how."""
    answer = why_of(trace(*steps(act).items), "step*")
    check_sums(answer)
    first = answer.findings["step*"][0]
    assert first.text.startswith(text)
    assert hint in first.hint


def test_what_happens_in_warm_up_is_found_where_that_is_asked_for(trace: MakeTrace) -> None:
    """Modules are loaded in the first two of twelve steps: no time of each."""
    path = trace(*steps(load_module).items)
    answer = why_of(path, None)
    assert (len(answer.windows), answer.findings["step*"]) == (STEPS - 2, [])
    [first, *_] = why_of(path, None, skip=0).findings["step*"]
    assert first.text.startswith("cuModuleLoadData in load:")
    assert "CUDA_MODULE_LOADING" in first.hint


def test_a_program_that_keeps_ahead_hears_nothing(trace: MakeTrace) -> None:
    """Layers of 60 µs, launched in 14."""
    assert why_of(trace(*steps(nothing).items), None).findings["step*"] == []


@pytest.mark.parametrize(
    ("between", "culprit", "hint"),
    [
        (lambda program: program.code(4 * MS), "code between steps", "shorter"),
        (lambda program: program.os("poll", 4 * MS), "poll between steps", "more loader workers"),
    ],
    ids=["optimizer", "loader"],
)
def test_what_lies_between_steps_is_named(
    trace: MakeTrace, between: Callable[[Program], None], culprit: str, hint: str
) -> None:
    """Of 12 steps of 0.76 ms with 4 ms of the host between them, 0.59 ms of which the GPU still runs."""
    answer = why_of(trace(*steps(nothing, between).items), None)
    check_sums(answer)
    [first] = answer.findings["step*"]
    assert first.text.startswith(f"{culprit}: 3.1")
    assert " 80 % of it, in 11 waits" in first.text
    assert hint in first.hint


def test_what_the_gpu_computes_between_the_windows_is_no_wait(trace: MakeTrace) -> None:
    """Work of other ranges between the steps: the question was about the steps."""

    def evaluate(program: Program) -> None:
        program.launch("evaluate", MS)
        program.code(4 * MS)

    assert why_of(trace(*steps(nothing, evaluate).items), "step*").findings["step*"] == []
