"""What a report holds beyond ranges, launches and GPU ops: details, host calls, names of threads, memory."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.trace.calls import waits_for_gpu
from nsysprof.trace.details import CallList, OpDetails, grid_text, unpacked
from nsysprof.trace.nsys.about import read_thread_names
from nsysprof.trace.nsys.gpu_work import WORK, read_grids, read_op_details
from nsysprof.trace.nsys.host_calls import read_call_list
from nsysprof.trace.nsys.memory import read_memory
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.reports import source_of
from tests.kit.trace import (
    Item,
    Kernel,
    Launch,
    Memcpy,
    NvtxEvent,
    Range,
    Row,
    ThreadName,
    global_pid,
    global_tid,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

TRACES = Path(__file__).parents[2] / "traces"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"


def details_of(path: Path) -> OpDetails:
    with open_report(path) as report:
        return read_op_details(source_of(report))


def calls_of(path: Path) -> CallList:
    with open_report(path) as report:
        return read_call_list(source_of(report))


def test_details_stand_beside_the_ops(trace: MakeTrace) -> None:
    """Kernels have a shape and no size, copies and sets a size and no shape, graphs neither; the order is the ops'."""
    path = trace(
        *launch_graph((0, 1), (50, 60), id=4),
        *launch_memset((0, 1), (30, 40), id=3, bytes=77),
        *launch_kernel("k", (0, 1), (10, 20), id=1, grid=(3, 2, 1), block=(64, 4, 1), registers=40, shared=(8, 16)),
        Memcpy(21, 22, None, bytes=5),
    )
    found = details_of(path)
    with open_report(path) as report:
        read = read_tables(report)
    assert read.ops.kind.tolist() == [0, 1, 2, 3]
    assert read.copy_sizes().tolist() == [-1, 5, 77, -1]
    assert found.correlation.tolist() == [1, 0, 3, 4]
    assert [grid_text(grid) for grid in found.grid.tolist()] == ["3x2", "", "", ""]
    assert [side.tolist() for side in unpacked(found.block)] == [[64, 0, 0, 0], [4, 0, 0, 0], [1, 0, 0, 0]]
    assert found.registers.tolist() == [40, -1, -1, -1]
    assert (found.static_shared.tolist(), found.dynamic_shared.tolist()) == ([8, -1, -1, -1], [16, -1, -1, -1])


def test_details_of_tables_that_lack_columns(trace: MakeTrace) -> None:
    """Rows count although nothing is told of them."""
    told = ["correlationId", "registersPerThread", "staticSharedMemory", "dynamicSharedMemory"]
    told += [f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ"]
    found = details_of(
        trace(Kernel("k", 1, 2, 1), Kernel("k", 3, 4, 2), drop_columns={"CUPTI_ACTIVITY_KIND_KERNEL": told})
    )
    assert found.grid.tolist() == [0, 0]
    assert found.registers.tolist() == [-1, -1]


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_details_of_real_reports(name: str) -> None:
    """As many rows as ops, and the same bytes as SQL counts."""
    path = TRACES / f"{name}.sqlite"
    found = details_of(path)
    with open_report(path) as report, closing(sqlite3.connect(path)) as connection:
        count, sizes = sum(source_of(report).rows(table) for table in WORK), read_tables(report).copy_sizes()
        [size] = connection.execute(
            "SELECT (SELECT SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY) + SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET"
        ).fetchone()
    assert len(found.grid) == len(sizes) == count
    assert sizes[sizes >= 0].sum() == size


def test_all_calls_are_listed(trace: MakeTrace) -> None:
    """Not only launches: by thread and start, outer ones first, without the version in the name, with results."""
    found = calls_of(
        trace(
            Launch(5, 6, 3, thread=2, api="cudaMalloc_v3020", returned=2),
            Launch(8, 9, 2, api="cuLaunchKernel", event_class=1),
            Launch(8, 12, 1, api="cudaLaunchKernel_ptsz_v7000"),
            Launch(1, 2, None, api="cuMemAlloc_v2"),
        )
    )
    assert [found.names[name] for name in found.name.tolist()] == [
        "cuMemAlloc_v2", "cudaLaunchKernel", "cuLaunchKernel", "cudaMalloc",
    ]  # fmt: skip
    assert found.start.tolist() == [1, 8, 8, 5]
    assert found.threads[found.thread].tolist() == [global_tid(1, 1)] * 3 + [global_tid(1, 2)]
    assert found.correlation.tolist() == [0, 1, 2, 3]
    assert found.result.tolist() == [0, 0, 0, 2]


def test_a_call_is_found_by_thread_and_times(trace: MakeTrace) -> None:
    """Among calls that begin together, and not on another thread."""
    found = calls_of(
        trace(Launch(1, 9, 1), Launch(1, 4, 2), Launch(1, 4, 3, thread=2), Launch(5, 6, 4), Launch(5, 5, 5))
    )
    one, two, nowhere = global_tid(1, 1), global_tid(1, 2), global_tid(1, 3)
    asked = [(one, 1, 4), (two, 1, 4), (one, 5, 5), (two, 5, 6), (one, 9, 9), (nowhere, 1, 4), (one, 1, 5)]
    rows = found.find(*(np.array(column, np.int64) for column in zip(*asked, strict=True))).tolist()
    assert rows[3:] == [-1, -1, -1, -1]
    assert [(found.start[row], found.end[row]) for row in rows[:3]] == [(1, 4), (1, 4), (5, 5)]
    assert found.thread[rows[:3]].tolist() == [0, 1, 0]


def test_a_report_without_calls_has_none(trace: MakeTrace) -> None:
    """A table that is absent, and one without names."""
    assert len(calls_of(trace(Kernel("k", 1, 2, 1)))) == 0
    unnamed = calls_of(trace(Launch(1, 2, 1), drop_columns={"CUPTI_ACTIVITY_KIND_RUNTIME": ["nameId"]}))
    assert [unnamed.names[name] for name in unnamed.name.tolist()] == ["CUDA call"]


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_every_launch_of_a_real_report_is_found(name: str) -> None:
    """All calls are there, and each launch is one of those that launch, copy or set."""
    with open_report(TRACES / f"{name}.sqlite") as report:
        trace, calls = read_tables(report), read_call_list(source_of(report))
        assert len(calls) == source_of(report).rows("CUPTI_ACTIVITY_KIND_RUNTIME")
    launches = trace.launches
    rows = calls.find(trace.threads[launches.thread], launches.start, launches.end)
    assert len(set(rows.tolist())) == len(launches)
    assert rows.min() >= 0
    names = {calls.names[name] for name in np.unique(calls.name[rows]).tolist()}
    assert all("Launch" in name or "Memcpy" in name or "Memset" in name for name in names), names


def test_threads_have_names(trace: MakeTrace) -> None:
    """By globalTid; an empty one is none."""
    path = trace(ThreadName(1, "main"), ThreadName(2, ""), ThreadName(1, "other", process=9), Launch(1, 2, 1))
    with open_report(path) as report:
        assert read_thread_names(source_of(report)) == {global_tid(1, 1): "main", global_tid(9, 1): "other"}


def test_names_that_nvtx_gave_threads_come_first(trace: MakeTrace) -> None:
    """The last one of each thread counts; threads without one keep the system's, or have their number alone."""
    path = trace(
        ThreadName(1, "python"),
        ThreadName(2, "python"),
        NvtxEvent(39, "loader", at=9, thread=2),
        NvtxEvent(39, "worker", at=5, thread=2, text_id=True),
        NvtxEvent(39, " ", at=9, thread=1),
        Range("step", 0, 9),
        *launch_kernel("k", (1, 2), (3, 4), id=1, thread=2),
        *launch_kernel("k", (1, 2), (3, 4), id=2, thread=3),
    )
    with open_report(path) as report:
        whole = read_tables(report)
        assert [whole.thread_label(thread) for thread in range(3)] == ["python 1", "loader 2", "thread 3"]


def memory(start: int, address: int, size: int, *, free: bool = False, **more: Any) -> Item:
    """A row of memory that is allocated or freed."""
    row = {"start": start, "globalPid": global_pid(1), "deviceId": 0, "contextId": 1, "address": address, "pc": 0}
    return Row(MEMORY, {**row, "bytes": size, "memKind": 2, "memoryOperationType": int(free), **more})


def test_memory_is_added_up(trace: MakeTrace) -> None:
    """In time, by process, device and kind; a release gives back what its address held, whatever it says itself."""
    path = trace(
        Kernel("k", 1, 2, 1),
        memory(30, 100, 0, free=True),
        memory(10, 100, 512),
        memory(20, 200, 8, globalPid=global_pid(2)),
        memory(25, 200, 1000, memKind=4),
        memory(40, 999, 64, free=True),  # allocated before the recording
        memory(50, 200, 1000, free=True, memKind=7),
    )
    with open_report(path) as report:
        found = read_memory(source_of(report)).by_use()
    assert list(found) == [
        (global_pid(1), 0, "device"), (global_pid(1), 0, "managed"), (global_pid(2), 0, "device"),
    ]  # fmt: skip
    assert [list(zip(*map(np.ndarray.tolist, line), strict=True)) for line in found.values()] == [
        [(10, 512), (30, 0)], [(25, 1000), (50, 0)], [(20, 8)],
    ]  # fmt: skip


def test_an_address_that_is_allocated_again_was_released_before(trace: MakeTrace) -> None:
    """Reports lose rows: what an address held is not counted for ever beside what it holds now."""
    path = trace(
        Kernel("k", 1, 2, 1),
        memory(10, 100, 512),
        memory(20, 100, 8),
        memory(30, 100, 1000, memKind=4),
        memory(40, 100, 0, free=True),
    )
    with open_report(path) as report:
        device, managed = read_memory(source_of(report)).by_use().values()
    assert dict(zip(*map(np.ndarray.tolist, device), strict=True)) == {10: 512, 20: 8, 30: 0}
    assert dict(zip(*map(np.ndarray.tolist, managed), strict=True)) == {30: 1000, 40: 0}


def test_memory_that_was_not_recorded(trace: MakeTrace) -> None:
    """Nothing, not zero."""
    with open_report(trace(Kernel("k", 1, 2, 1))) as report:
        assert read_memory(source_of(report)).by_use() == {}


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
        *("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cuMemcpyDtoHAsync_v2", "cudaMemcpyBatchAsync_v12080"),
        *("cudaFreeAsync_v11020", "cuMemFreeAsync", "cudaStreamWaitEvent_v3020", "cudaEventQuery_v3020"),
        *("cudaMalloc_v3020", "cudaMemcpyPeer_v4000", "cudaStreamIsCapturing_v10000"),
    ],
)
def test_calls_that_do_not_wait(api: str) -> None:
    """What only queues, asks or allocates does not make the host wait for the GPU."""
    assert not waits_for_gpu(api)


def test_grids_stand_in_the_order_of_the_kernels(trace: MakeTrace) -> None:
    """A grid per kernel row; its text omits trailing dimensions of 1, and 2^31 - 1 blocks fit."""
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
