"""What real reports do to a reader, each through the public path: open, read, attribute, break down.

The numbers are those of the list of quirks in the notes on the report format; the ones on metadata and on the file
as such (1, 2, 5, 20, 22) are tested where those are read.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.text import summary
from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import gpu_events
from tests.kit.schema import STYLES
from tests.kit.trace import (
    CudaDevice,
    DomainCreate,
    Gpu,
    GraphTrace,
    Items,
    Kernel,
    Launch,
    Mark,
    Memcpy,
    NvtxEvent,
    Range,
    Row,
    global_tid,
    launch_kernel,
    launch_memcpy,
)

END = 1_000
STEP: tuple[Items, ...] = (
    Range("step", 0, 100),
    launch_kernel("gemm", (10, 15), (20, 30), id=1),
    launch_memcpy((16, 18), (31, 35), id=2),
)


def answer(path: Path, threads: str = "follow", **how: Any) -> Breakdown:
    with open_report(path) as report:
        return break_down(attribute(read_tables(report), threads), **how)


def sums(found: Breakdown) -> dict[str, int]:
    """The inclusive sum of each path."""
    return dict(zip(found.ranges["path"], found.ranges["sum_ns"].tolist(), strict=True))


def busy(found: Breakdown) -> dict[str, int]:
    return dict(zip(found.ranges["path"], found.ranges["busy_ns"].tolist(), strict=True))


def outcomes(found: Breakdown) -> dict[str, int]:
    """Ops of each outcome that any met."""
    ledger = zip(found.ledger["fate"], found.ledger["ops"].tolist(), strict=True)
    return {outcome: ops for outcome, ops in ledger if ops}


def test_quirk_3_no_kernel_table(trace: MakeTrace) -> None:
    """A report of ranges alone is an answer with zeros and a warning, whatever the style."""
    found = answer(trace(Range("step", 0, 100), duration=END))
    assert (sums(found), found.totals["ops"]) == ({"step": 0}, 0)
    assert any("no GPU work" in warning for warning in found.warnings)


def test_quirk_3_no_nvtx_table(trace: MakeTrace) -> None:
    """A report without ranges has its kernels, owned by nobody, and a warning."""
    found = answer(trace(launch_kernel("gemm", (10, 15), (20, 30), id=1)))
    assert (len(found.ranges), found.kernels["kernel"].tolist()) == (0, ["gemm"])
    assert outcomes(found) == {"outside every range": 1}
    assert any("no NVTX ranges" in warning for warning in found.warnings)


def test_quirk_3_no_runtime_table(trace: MakeTrace) -> None:
    """A report without host calls cannot attribute and says so."""
    found = answer(trace(Range("step", 0, 100), Kernel("gemm", 20, 30, 1), duration=END))
    assert outcomes(found) == {"no launch row": 1}
    assert any("no CUDA calls" in warning for warning in found.warnings)


def test_quirk_3_all_tables_there_and_empty(trace: MakeTrace) -> None:
    """A table without rows is the same as no table."""
    found = answer(trace(empty_tables=["*"]))
    assert (len(found.ranges), found.totals["ops"]) == (0, 0)
    assert any("no GPU work" in warning for warning in found.warnings)
    assert any("no NVTX ranges" in warning for warning in found.warnings)


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
NO_GPU = dict.fromkeys(["smCount", "computeMajor", "computeMinor"], None)
ANSWERS: dict[str, tuple[Sequence[Items], dict[str, Any], dict[str, int]]] = {
    "3: empty tables beside full ones": (STEP, {"empty_tables": ["*"]}, {"step": 14}),
    "3: no table of processes or GPUs": (STEP, {"processes": False, "gpus": False}, {"step": 14}),
    "4: columns, tables and indexes of the user's": (
        STEP,
        {
            "extra_columns": {KERNEL: {"note": "TEXT"}, "NVTX_EVENTS": {"mine": "REAL"}},
            "sql": ["CREATE TABLE scratch(a, b)", "CREATE INDEX by_start ON NVTX_EVENTS(start)"],
        },
        {"step": 14},
    ),
    "4: optional columns are not there": (
        STEP,
        {
            "drop_columns": {
                KERNEL: ["graphNodeId", "mangledName", "greenContextId"],
                "CUPTI_ACTIVITY_KIND_MEMCPY": ["graphNodeId"],
                "NVTX_EVENTS": ["textId", "domainId", "endGlobalTid", "category"],
            }
        },
        {"step": 14},
    ),
    "4: columns in another order": (
        STEP,
        {
            "sql": [
                "CREATE TABLE k AS SELECT globalPid, streamId, demangledName, shortName, correlationId, end,"
                f" deviceId, start FROM {KERNEL}",
                *(f"DROP TABLE {KERNEL}", f"ALTER TABLE k RENAME TO {KERNEL}"),
            ]
        },
        {"step": 14},
    ),
    "7: a range without any name": (
        (Range(None, 0, 10), launch_kernel("k", (1, 2), (3, 5), id=1)),
        {},
        {"[unnamed]": 2},
    ),
    "10: a name nested in itself": (
        (Range("forward", 0, 100), Range("forward", 10, 50), launch_kernel("gemm", (20, 22), (30, 40), id=1)),
        {},
        {"forward": 10, "forward/forward": 10},
    ),
    "11: nesting crosses domains": (
        (
            *(Range("aten::mm", 0, 100, domain=1), Range("cublasGemmEx", 10, 50, domain=2)),
            launch_kernel("gemm", (20, 22), (30, 40), id=1),
        ),
        {},
        {"aten::mm": 10, "aten::mm/cublasGemmEx": 10},
    ),
    "11: ranges at one moment, and some that coincide": (
        (
            *(Range("a", 10, 20), Range("b", 10, 20), Range("point", 15, 15)),
            launch_kernel("k", (15, 15), (16, 19), id=1),
        ),
        {},
        {"a": 3, "a/b": 3, "a/b/point": 3},
    ),
    "14: ids collide between processes": (
        (
            *(Range(f"p{process}", 0, 100, process=process) for process in (101, 102, 103)),
            *(
                launch_kernel("k", (i, i + 1), (20 * i, 20 * i + process), id=i, process=process)
                for process in (101, 102, 103)
                for i in range(1, 6)
            ),
        ),
        {},
        {"p101": 505, "p102": 510, "p103": 515},
    ),
    "14: ids need not be dense": (
        (
            *(Range("step", 0, 50), Launch(5, 6, 2**31 + 1)),
            *(launch_kernel("k", (1, 2), (10, 10 + (id & 7)), id=id) for id in (1, 2**31, 2**32 - 1, 2**32 - 2)),
        ),
        {},
        {"step": 14},
    ),
    "15: a runtime call around a driver call is one launch, the shorter one": (
        (
            *(Range("step", 10, 50), Launch(5, 60, 1), Launch(11, 40, 1, event_class=1, api="cuLaunchKernel")),
            Kernel("gemm", 100, 110, 1),
        ),
        {},
        {"step": 10},
    ),
    "15: a row with a backtrace doubles nothing": (
        (Range("step", 0, 50), Launch(10, 20, 1), Launch(10, 20, 1, event_class=67), Kernel("gemm", 100, 110, 1)),
        {},
        {"step": 10},
    ),
    "19: what is no GPU is listed, and takes no work": (
        (*(Gpu(0, "Intel(R) UHD Graphics", NO_GPU), Gpu(1), Gpu(2, "Microsoft Basic Render Driver", NO_GPU)), *STEP),
        {"style": "2022.4"},
        {"step": 14},
    ),
    "21: no green context": (
        (Range("step", 0, 50), Launch(1, 2, 1), Kernel("k", 20, 30, 1, green_context=None)),
        {},
        {"step": 10},
    ),
}


@pytest.mark.parametrize(("items", "how", "wanted"), ANSWERS.values(), ids=ANSWERS)
def test_quirks_change_no_answer(
    trace: MakeTrace, items: Sequence[Items], how: dict[str, Any], wanted: dict[str, int]
) -> None:
    """The sum of each path; every op is owned once, and has one launch."""
    found = answer(trace(*items, duration=END, **how))
    assert sums(found) == wanted
    assert int(found.ranges["exclusive_sum_ns"].sum()) == found.totals["sum_ns"]
    assert found.totals["launches"] == found.totals["ops"] == found.kernels["count"].sum()


def test_quirk_7_names_by_text_and_by_id_are_one(trace: MakeTrace) -> None:
    """The same name as text and through StringIds is one path, row by row mixed."""
    names = Range("step", 0, 10), Range("step", 20, 30, text_id=True), Range("x", 40, 41)
    found = answer(trace(*names, duration=END))
    assert dict(zip(found.ranges["path"], found.ranges["instances"], strict=True)) == {"step": 2, "x": 1}


def test_quirk_7_a_text_id_goes_before_the_text(trace: MakeTrace) -> None:
    """Where both are there the name is that of the id; where the id says nothing it is the text."""
    both = Range("by id", 0, 10, text_id=True, text="by text")
    values = {"start": 20, "end": 30, "eventType": 59, "textId": 4_711, "text": "by text", "domainId": 0}
    lost = Row("NVTX_EVENTS", {**values, "globalTid": global_tid(1, 1)})
    assert answer(trace(both, lost, duration=END)).ranges["path"].tolist() == ["by id", "by text"]


@pytest.mark.parametrize(
    "name",
    [
        *("a, b", 'say "hi"', "two\nlines", "a\ttab"),
        "{'k': " + "1, " * 400 + "}",
        "日本語 🚀",
        "x" * 5_000,
        "'",
        "%s",
        " ",
    ],
)
@pytest.mark.parametrize("text_id", [False, True])
def test_quirk_7_any_text_is_a_name(trace: MakeTrace, name: str, text_id: bool) -> None:
    """Commas, quotes, newlines, long texts and texts beyond one page come out as they went in."""
    found = answer(trace(Range(name, 0, 10, text_id=text_id), duration=END), merge=None)
    assert found.ranges["path"].tolist() == [name]


def test_quirk_7_many_distinct_names(trace: MakeTrace) -> None:
    """5,000 names, by text and by id, each end up at their own range."""
    items = [Range(f"name {i}", 10 * i, 10 * i + 5, text_id=i % 2 == 0) for i in range(5_000)]
    found = answer(trace(*items, duration=10**6))
    assert found.ranges["path"].tolist() == [f"name {i}" for i in range(5_000)]


@pytest.mark.parametrize(
    ("items", "domains"),
    [
        ((Range("a", 0, 10), Range("a", 20, 30, domain=None)), {"a": "default"}),  # 0 has no create row, NULL is 0
        (
            (
                *(DomainCreate(1, "NCCL", process=1), DomainCreate(1, "cuBLAS", process=2, text_id=True)),
                *(Range("a", 0, 10, process=1, domain=1), Range("b", 0, 10, process=2, domain=1)),
            ),
            {"a": "NCCL", "b": "cuBLAS"},  # numbers are those of a process
        ),
        (
            (
                *(DomainCreate(1, "NCCL", thread=1), DomainCreate(1, "NCCL", thread=2)),
                *(Range("a", 0, 10, domain=1), Range("b", 20, 30, domain=7)),
            ),
            {"a": "NCCL", "b": "domain 7"},  # created twice by two threads, or never
        ),
        ((Range("a", 0, 10, domain=1), DomainCreate(1, "NCCL")), {"a": "NCCL"}),  # created behind its ranges
    ],
)
def test_quirk_8_domains(trace: MakeTrace, items: tuple[Items, ...], domains: dict[str, str]) -> None:
    """Every domain has its name, or its number, and each path one row."""
    found = answer(trace(*items, duration=END))
    assert found.ranges[["path", "domain"]].to_numpy().tolist() == [[*pair] for pair in domains.items()]
    assert found.ranges["instances"].sum() == sum(isinstance(item, Range) for item in items)


def test_quirk_9_unclosed_start_end_ranges_end_with_the_session(trace: MakeTrace) -> None:
    """`end` NULL: the range is open to the end of the session, is marked, and is warned of."""
    found = answer(
        trace(Range("open", 5, None, kind="start_end"), launch_kernel("k", (900, 901), (902, 905), id=1), duration=END)
    )
    instance = found.instances.iloc[0]
    assert (instance["end_ns"], instance["unclosed"], instance["sum_ns"]) == (END, 1, 3)
    assert any("the program never closed 1 of 1 ranges" in warning for warning in found.warnings)


def test_quirk_9_push_pop_ranges_that_end_with_the_session_are_unclosed(trace: MakeTrace) -> None:
    """nsys closes a forgotten push/pop range at the session's duration, and nothing else marks it."""
    found = answer(trace(Range("forgotten", 5, END), Range("closed", 6, END - 1), duration=END))
    assert found.instances["unclosed"].tolist() == [1, 0]


def test_quirk_9_a_thousand_forgotten_pops(trace: MakeTrace) -> None:
    """Pushed 1,009 times in itself and never popped, a name has one row with all of the work, and a warning."""
    items: list[Items] = []
    for i in range(1_009):
        items.append(Range("step", 10 * i, 10**6))
        items.append(launch_kernel("k", (10 * i + 1, 10 * i + 2), (20 * i, 20 * i + 3), id=i + 1))
    found = answer(trace(*items, duration=10**6))
    assert found.ranges["path"].tolist() == ["step"]
    assert found.ranges["sum_ns"].tolist() == found.ranges["exclusive_sum_ns"].tolist() == [3 * 1_009]
    assert any("`step` is never popped: the first and 1,008 later pushes" in warning for warning in found.warnings)


@pytest.mark.parametrize("shift", [-50, -(10**15), 10**18])
def test_quirk_12_times_may_be_negative_or_far_from_zero(trace: MakeTrace, shift: int) -> None:
    """All times shifted alike: sums, busy and span stay, starts shift."""
    found = answer(
        trace(
            Range("step", shift, shift + 100),
            launch_kernel("a", (shift + 10, shift + 15), (shift + 20, shift + 30), id=1),
            launch_kernel("b", (shift + 16, shift + 18), (shift + 25, shift + 45), id=2, stream=8),
            duration=max(shift, 0) + END,
        )
    )
    instance = found.instances.iloc[0]
    assert (instance["start_ns"], instance["first_op_ns"]) == (shift, shift + 20)
    assert (instance["sum_ns"], instance["busy_ns"], instance["span_ns"]) == (30, 25, 25)


def test_quirk_13_a_range_that_ends_on_another_thread(trace: MakeTrace) -> None:
    """It is a window of its process; for `strict`, of the thread that started it."""
    path = trace(
        Range("request", 0, 100, kind="start_end", thread=1, end_thread=2),
        launch_kernel("a", (10, 15), (20, 30), id=1, thread=1),
        launch_kernel("b", (20, 25), (30, 37), id=2, thread=2),
        duration=END,
    )
    assert sums(answer(path)) == {"request": 17}
    assert sums(answer(path, "strict")) == {"request": 10}
    assert answer(path).instances["tid"].tolist() == [1]


def test_nvtx_rows_that_are_no_ranges_are_none(trace: MakeTrace) -> None:
    """Marks, categories, thread names and domain rows are not counted as ranges; imported NVTX text is."""
    found = answer(
        trace(
            Mark("mark", 5),
            NvtxEvent(33, "category", 6),
            NvtxEvent(39, "thread name", 7),
            NvtxEvent(76, None, 8, domain=1),
            Range("imported", 0, 50, kind="nvtxt_push_pop"),
            Range("window", 0, 50, kind="nvtxt_start_end"),
            duration=END,
        )
    )
    assert dict(zip(found.ranges["path"], found.ranges["kind"], strict=True)) == {
        "imported": "push_pop",
        "window": "start_end",
    }


def test_quirk_16_gpu_rows_without_launch(trace: MakeTrace) -> None:
    """Unified-memory copies have id 0; rows of a cut file have ids that no call has. Both are in the ledger."""
    found = answer(
        trace(
            Range("step", 0, 50),
            Launch(1, 2, 0),
            Memcpy(10, 15, 0, kind=11),
            Memcpy(15, 18, None, kind=12),
            Kernel("cut", 20, 30, 77),
            launch_kernel("gemm", (5, 6), (40, 42), id=1),
            duration=END,
        )
    )
    assert outcomes(found) == {"own thread": 1, "no launch row": 1, "unified memory": 2}
    assert found.kernels[found.kernels["path"] == ""]["kernel"].tolist() == ["cut", "migration HtoD", "migration DtoH"]
    assert any(
        "with no recorded launch (attributed to no range): 1 (50 % of GPU op time)" in warning
        for warning in found.warnings
    )


def test_quirk_16_launches_without_gpu_rows(trace: MakeTrace) -> None:
    """Calls that left no trace on the GPU are no launches and no error."""
    found = answer(trace(Range("step", 0, 50), *(Launch(i, i + 1, i + 1) for i in range(5)), duration=END))
    assert (found.ranges["launches"].tolist(), found.totals["launches"]) == ([0], 0)


def test_quirk_17_graphs_traced_as_a_whole(trace: MakeTrace) -> None:
    """A GRAPH_TRACE row is an op like others: most of the time may be in it."""
    found = answer(
        trace(
            Range("step", 0, 50),
            Launch(10, 12, 1, api="cudaGraphLaunch_v10000"),
            GraphTrace(100, 100_099, 1, graph=42),
            launch_kernel("k", (20, 21), (100_100, 100_101), id=2),
            duration=10**6,
        )
    )
    row = found.ranges.iloc[0]
    assert (row["sum_ns"], row["graph_launches"], row["kernels"], row["launches"]) == (100_000, 1, 1, 2)
    assert found.kernels["family"].tolist()[0] == "graph"
    assert "42" in found.kernels["kernel"].tolist()[0]


def test_quirk_17_graphs_traced_by_node(trace: MakeTrace) -> None:
    """A hundred kernels under one launch: one launch, one graph launch, a hundred kernels."""
    nodes = [Kernel(f"n{i % 3}", 100 + 10 * i, 105 + 10 * i, 1, graph_node=i + 1) for i in range(100)]
    found = answer(trace(Range("step", 0, 50), Launch(10, 12, 1), *nodes, duration=10_000))
    row = found.ranges.iloc[0]
    assert (row["launches"], row["graph_launches"], row["kernels"], row["sum_ns"]) == (1, 1, 100, 500)


def test_quirk_18_kernels_overlap_on_one_device(trace: MakeTrace) -> None:
    """Two streams of one device: busy is the union, sum is not."""
    found = answer(
        trace(
            Range("step", 0, 50),
            launch_kernel("a", (10, 11), (100, 200), id=1, stream=7),
            launch_kernel("b", (12, 13), (150, 250), id=2, stream=13),
            duration=END,
        )
    )
    assert (sums(found), busy(found)) == ({"step": 200}, {"step": 150})
    assert found.totals["busy_ns"] == 150


def test_quirk_19_devices_are_told_apart_by_process(trace: MakeTrace) -> None:
    """Device 0 of two processes may be two GPUs, or one: TARGET_INFO_CUDA_DEVICE says which."""
    items = (
        Range("a", 0, 50, process=11),
        Range("a", 0, 50, process=12),
        launch_kernel("k", (1, 2), (100, 150), id=1, process=11),
        launch_kernel("k", (1, 2), (120, 170), id=1, process=12),
    )
    two = answer(trace(*items, Gpu(0), Gpu(1), CudaDevice(0, 0, 11), CudaDevice(1, 0, 12), duration=END))
    assert (two.totals["busy_ns"], two.ranges["devices"].tolist()) == (100, [2])
    one = answer(trace(*items, Gpu(0), CudaDevice(0, 0, 11), CudaDevice(0, 0, 12), duration=END))
    assert (one.totals["busy_ns"], one.ranges["devices"].tolist()) == (70, [1])


def test_quirk_19_no_list_of_gpus(trace: MakeTrace) -> None:
    """Without any list of GPUs devices are those of the processes."""
    path = trace(*STEP, gpus=False, duration=END)
    assert answer(path, by="device").ranges["device"].tolist() == ["device 0 of pid 1"]


def test_quirk_21_no_stream(trace: MakeTrace) -> None:
    """Stream 4294967295 is none: the op is there all the same."""
    path = trace(Range("step", 0, 50), launch_kernel("k", (1, 2), (20, 30), id=1, stream=4294967295), duration=END)
    assert sums(answer(path)) == {"step": 10}
    with open_report(path) as report:
        assert [stream.id for stream in read_tables(report).streams] == [None]


@pytest.mark.parametrize("style", STYLES)
def test_every_generation_gives_the_same_answer(trace: MakeTrace, style: str) -> None:
    """The same events written as 2019, 2022 and 2025 wrote them are attributed alike."""
    found = answer(
        trace(
            Range("step", 0, 100, text_id=style != "2019"),
            Range("window", 200, None, kind="start_end"),
            launch_kernel("void gemm<float>(float *)", (10, 15), (20, 30), id=1),
            launch_kernel("void fill<int>(int *)", (16, 18), (25, 45), id=2, stream=13),
            launch_memcpy((210, 212), (220, 223), id=3),
            style=style,
            duration=END,
        )
    )
    assert (sums(found), busy(found)) == ({"step": 30, "window": 3}, {"step": 25, "window": 3})
    assert found.kernels["kernel"].tolist() == ["void fill<int>(int *)", "void gemm<float>(float *)", "memcpy HtoD"]
    assert found.instances["unclosed"].tolist() == [0, 1]


@pytest.mark.parametrize("style", ["2019", "2022.4"])
def test_older_reports_without_process_ids_on_gpu_rows(trace: MakeTrace, style: str) -> None:
    """Where GPU rows have no `globalPid`, they are those of the one process that made host calls."""
    dropped = {f"CUPTI_ACTIVITY_KIND_{table}": ["globalPid"] for table in ("KERNEL", "MEMCPY")}
    path = trace(*STEP, style=style, drop_columns=dropped, duration=END)
    assert sums(answer(path)) == {"step": 14}
    two = trace(*STEP, Launch(1, 2, 1, process=2), style=style, drop_columns=dropped)
    assert outcomes(answer(two)) == {"no launch row": 2}


def test_reading_changes_nothing(trace: MakeTrace) -> None:
    """The file is byte for byte what it was, and nothing lies beside it."""
    path = trace(*STEP, duration=END)
    before = path.read_bytes()
    answer(path)
    assert path.read_bytes() == before
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_tables_of_events_that_nothing_reads_are_counted(trace: MakeTrace) -> None:
    """With their rows; not those that are empty, hold no times, or are read, and no views that other tools added."""
    path = trace(Range("step", 0, 100), *launch_kernel("k", (10, 12), (20, 30), id=1))
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER)")
    connection.execute("CREATE TABLE COMPOSITE_EVENTS (start INTEGER)")
    connection.execute("CREATE TABLE TARGET_INFO_NIC_INFO (name TEXT)")
    connection.execute("CREATE VIEW ADDED AS SELECT start FROM SCHED_EVENTS")
    connection.execute("CREATE VIEW ADDED_ONCE_MORE AS WITH a AS (SELECT * FROM ADDED) SELECT * FROM a")
    connection.executemany("INSERT INTO SCHED_EVENTS VALUES (?, 0)", [(5,), (9,)])
    connection.execute("INSERT INTO TARGET_INFO_NIC_INFO VALUES ('eth0')")
    connection.commit()
    connection.close()
    other = Row("GENERIC_EVENTS", {"rawTimestamp": 5, "typeId": 1, "data": "{}"})  # such as events of the kernel
    with open_report(trace(*STEP, other)) as report:
        assert report.reader.not_read() == {"GENERIC_EVENTS": 1}
    with open_report(trace(*STEP, gpu_events({"sm_active": [1, 2]}))) as report:
        assert report.reader.not_read() == {}
    with open_report(path) as report:
        assert report.reader.not_read() == {"SCHED_EVENTS": 2}
        assert "recorded but not read: SCHED_EVENTS (2)" in summary(break_down(attribute(report)), full=True)


def test_a_gpu_whose_clock_is_off(trace: MakeTrace) -> None:
    """All ops of a GPU come 1.86 s before their launches: they count where they were launched; another GPU is right."""
    off = 1_860_000_000
    items: list[Any] = []
    for number in range(10):
        begun = off + number * 100_000
        items += [
            Range("step", begun, begun + 90_000),
            launch_kernel(
                "a", (begun + 1_000, begun + 5_000), (begun + 1_000 - off, begun + 50_000 - off), id=2 * number + 1
            ),
            launch_kernel(
                "b", (begun + 6_000, begun + 9_000), (begun + 9_500, begun + 19_500), id=2 * number + 2, device=1
            ),
        ]
    found = answer(trace(*items))
    assert sums(found) == {"step": 10 * (49_000 + 10_000)}
    assert [each for each in found.warnings if "1.86 s" in each] == [
        "GPU operations of CUDA device 0 were recorded about 1.86 s too early, before their launches; nsysprof moves"
        " all their times 1.86 s later"
    ]
    ops = found.attribution.trace.ops
    assert sorted((ops.end - ops.start).tolist()) == [10_000] * 10 + [49_000] * 10
    assert ops.start.min() == off + 1_000


@pytest.mark.parametrize(("host", "kernels"), [(0, True), (1, True), (0, False)])
def test_a_gpu_whose_clock_is_late(trace: MakeTrace, host: int, kernels: bool) -> None:
    """Copies to pageable memory end 823 ms after the calls that waited for them; to pinned memory, or without other
    ops, that says nothing. Another GPU is right.
    """
    late, items = 823_000_000, list[Any]()
    for turn in range(3):
        at = 100_000 * turn
        items += [
            launch_kernel("k", (at, at + 3_000), (at + late + 9_000, at + late + 50_000), id=3 * turn + 1),
            launch_kernel("k", (at + 4_000, at + 6_000), (at + 8_000, at + 9_000), id=3 * turn + 2, device=1),
            Launch(at + 10_000, at + 60_000, 3 * turn + 3, api="cudaMemcpyAsync_v3020"),
            Memcpy(at + late + 51_000, at + late + 59_000, 3 * turn + 3, kind=2, host=host),
        ]
    found = answer(trace(*(each for each in items if kernels or not isinstance(each, tuple))))
    said = (
        "GPU operations of CUDA device 0 were recorded about 823 ms too late, after the calls that waited for them;"
        " nsysprof moves all their times 823 ms earlier"
    )
    moved = host == 0 and kernels
    assert [each for each in found.warnings if "823" in each] == [said] * moved
    assert found.attribution.trace.ops.start.max() == (252_000 if moved else 251_000 + late)


@pytest.mark.parametrize(
    ("ahead", "moved"), [([1_000_000] * 9 + [400_000_000], 1_000_000), ([9**k for k in range(9)], 0)]
)
def test_one_op_says_nothing_of_a_clock(trace: MakeTrace, ahead: list[int], moved: int) -> None:
    """One op that comes far too early is an outlier; where all differ, no one amount is right."""
    begun = 500_000_000
    items = [
        launch_kernel(
            "k",
            (begun + at * 1_000, begun + at * 1_000 + 5),
            (begun + at * 1_000 - early, begun + at * 1_000 - early + 9),
            id=at + 1,
        )
        for at, early in enumerate(ahead)
    ]
    found = answer(trace(*items)).attribution.trace
    assert found.ops.start.min() == begun - max(ahead) + ahead.index(max(ahead)) * 1_000 + moved
