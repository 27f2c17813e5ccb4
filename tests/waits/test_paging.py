"""What pages of unified memory cost steps, in kernels and on the host."""

import numpy as np

from nsysprof.waits.paging import Paging, paging
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Item, Kernel, Memcpy, PageFault

TO_GPU, TO_HOST = 11, 12
PREFETCH, FAULT, EVICTION = 1, 2, 4


def found(trace: MakeTrace, *items: Item, gpu: int = 0) -> Paging | None:
    """What two steps of 100 ns cost."""
    return paging(attributed(trace(*items)).trace, gpu, np.array([0, 100]), np.array([100, 200]))


def test_kernels_and_the_host_wait_for_pages(trace: MakeTrace) -> None:
    """A kernel during which pages come, and a host that reads them when it is done; prefetched ones cost neither."""
    answer = found(
        trace,
        Kernel("k", 10, 60, 1),
        Memcpy(20, 30, None, bytes=4096, kind=TO_GPU, cause=FAULT),
        Memcpy(25, 40, None, bytes=8192, kind=TO_GPU, cause=FAULT),
        Memcpy(2, 8, None, bytes=4096, kind=TO_GPU, cause=PREFETCH),
        Memcpy(50, 80, None, bytes=100, kind=TO_HOST, cause=FAULT),
        Memcpy(95, 110, None, bytes=200, kind=TO_HOST, cause=EVICTION),
    )
    assert answer is not None
    assert (answer.kernel_ns.tolist(), answer.host_ns.tolist()) == ([20, 0], [25, 10])
    assert (answer.to_gpu_bytes.tolist(), answer.to_host_bytes.tolist()) == ([12288, 0], [300, 0])
    assert answer.evicted_bytes.tolist() == [200, 0]


def test_service_of_faults_counts_between_migrations(trace: MakeTrace) -> None:
    """At most 50 µs for each, and never longer than to the last migration in the kernel."""
    us = 1_000
    moves = [Memcpy(at * us, (at + 10) * us, None, kind=TO_GPU, cause=FAULT) for at in (20, 200, 900)]
    report = trace(Kernel("k", 0, 2_000 * us, 1), Kernel("l", 3_000 * us, 3_100 * us, 2), *moves)
    edges = np.array([0]), np.array([4_000 * us])
    answer = paging(attributed(report).trace, 0, *edges)
    assert answer is not None
    assert (answer.kernel_ns.tolist(), answer.wait_ns.tolist()) == ([30 * us], [180 * us])
    report = trace(Kernel("k", 0, 2_000 * us, 1), *moves[:1])
    answer = paging(attributed(report).trace, 0, *edges)
    assert answer is not None
    assert answer.wait_ns.tolist() == [30 * us]  # all of it until the only one is done


def test_page_faults_count_in_the_step_that_they_begin_in(trace: MakeTrace) -> None:
    """Those of the GPU last, and slow the kernel; those of the CPU are moments."""
    answer = found(
        trace,
        Kernel("k", 110, 160, 1),
        PageFault(120, 150, count=7),
        PageFault(99, instruction="main"),
        PageFault(170, instruction="main"),
        PageFault(171, instruction="main"),
    )
    assert answer is not None
    assert (answer.kernel_ns.tolist(), answer.host_ns.tolist()) == ([0, 30], [0, 0])


def test_programs_without_unified_memory_have_no_paging(trace: MakeTrace) -> None:
    """Nor has a GPU to which nothing moved."""
    assert found(trace, Kernel("k", 10, 60, 1)) is None
    assert found(trace, Kernel("k", 10, 60, 1), Memcpy(20, 30, None, kind=TO_GPU, cause=FAULT), gpu=1) is None
