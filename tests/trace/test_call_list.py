"""Host calls that wait for the GPU, and the grids of kernels, as the report has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysprof.trace.details import grid_text
from nsysprof.trace.nsys.gpu_work import read_grids
from nsysprof.trace.nsys.host_calls import read_waits, waits_for_gpu
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.reports import source_of
from tests.kit.trace import Launch, Range, global_tid, launch_kernel, launch_memcpy

NONE = np.iinfo(np.int64).min


def until(path: Path, *asked: tuple[int, int]) -> list[int]:
    """When the waiting calls of (thread, moment) end."""
    with open_report(path) as report:
        waits = read_waits(source_of(report))
    threads = np.array([global_tid(1, thread) for thread, _ in asked], np.int64)
    found: list[int] = waits.until(threads, np.array([moment for _, moment in asked], np.int64)).tolist()
    return found


@pytest.mark.parametrize(
    "api",
    [
        *("cudaDeviceSynchronize_v3020", "cudaStreamSynchronize_v3020", "cudaEventSynchronize_v3020"),
        *("cuStreamSynchronize", "cuCtxSynchronize_v2", "cudaStreamSynchronize_ptsz_v7000"),
        *("cudaMemcpy_v3020", "cudaMemcpy2D_v3020", "cuMemcpyDtoH_v2", "cudaFree_v3020", "cuMemFree_v2"),
    ],
)
def test_calls_that_wait(api: str) -> None:
    """Synchronize calls, blocking copies and frees, runtime and driver, of any version."""
    assert waits_for_gpu(api)


@pytest.mark.parametrize(
    "api",
    [
        *(
            "cudaLaunchKernel_v7000",
            "cudaMemcpyAsync_v3020",
            "cuMemcpyDtoHAsync_v2",
            "cudaMemcpyBatchAsync_v12080",
        ),
        *("cudaFreeAsync_v11020", "cuMemFreeAsync", "cudaStreamWaitEvent_v3020", "cudaEventQuery_v3020"),
        *("cudaMalloc_v3020", "cudaMemcpyPeer_v4000", "cudaStreamIsCapturing_v10000"),
    ],
)
def test_calls_that_do_not_wait(api: str) -> None:
    """What only queues, asks or allocates does not make the host wait for the GPU."""
    assert not waits_for_gpu(api)


def test_the_host_sits_in_a_wait_from_its_start_to_its_end(trace: MakeTrace) -> None:
    """Both ends count; before, after, and on another thread, it sits in none."""
    path = trace(
        Range("run", 0, 100),
        Launch(10, 40, 7, api="cudaDeviceSynchronize_v3020"),
        Launch(60, 70, 8, api="cudaEventQuery_v3020"),
        launch_kernel("k", (1, 2), (5, 30), id=1),
    )
    asked = [(1, 9), (1, 10), (1, 25), (1, 40), (1, 41), (1, 65), (2, 25)]
    assert until(path, *asked) == [NONE, 40, 40, 40, NONE, NONE, NONE]


def test_a_driver_call_inside_a_runtime_call_does_not_end_the_wait(trace: MakeTrace) -> None:
    """`cudaMemcpy` calls the driver: when that returns, the host still sits in the outer call."""
    path = trace(
        Launch(10, 40, 7, api="cudaMemcpy_v3020"),
        Launch(12, 30, 8, event_class=1, api="cuMemcpyDtoH_v2"),
        Launch(100, 140, 9, api="cudaFree_v3020"),
        launch_memcpy((5, 6), (15, 20), id=1),
    )
    assert until(path, (1, 35), (1, 50), (1, 120)) == [40, NONE, 140]


def test_a_report_without_host_calls_has_no_waits(trace: MakeTrace) -> None:
    """No RUNTIME table, no waits, no error."""
    assert until(trace(Range("run", 0, 100)), (1, 50)) == [NONE]


def test_grids_stand_in_the_order_of_the_kernels(trace: MakeTrace) -> None:
    """A grid per kernel row; trailing ones are left out of the text, and 2^31 - 1 blocks fit."""
    path = trace(
        launch_kernel("a", (1, 2), (5, 9), id=1, grid=(32, 32, 8)),
        launch_memcpy((3, 4), (10, 12), id=2),
        launch_kernel("b", (5, 6), (15, 19), id=3, grid=(2**31 - 1, 65535, 1)),
        launch_kernel("c", (7, 8), (25, 29), id=4),
    )
    with open_report(path) as report:
        found = [grid_text(grid) for grid in read_grids(source_of(report)).tolist()]
    assert found == ["32x32x8", "2147483647x65535", "1"]


def test_a_report_without_grids_says_nothing(trace: MakeTrace) -> None:
    """An export that lacks the columns gives numbers without text, one per kernel."""
    path = trace(
        launch_kernel("a", (1, 2), (5, 9), id=1),
        drop_columns={"CUPTI_ACTIVITY_KIND_KERNEL": ["gridX", "gridY", "gridZ"]},
    )
    with open_report(path) as report:
        assert read_grids(source_of(report)).tolist() == []
    assert grid_text(0) == ""
