"""The builder itself: what a test writes as a literal must be in the file as nsys would have it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeTrace
from tests.kit.schema import STYLES, TABLES
from tests.kit.trace import (
    CudaDevice,
    DomainCreate,
    Gpu,
    Kernel,
    Launch,
    Range,
    Row,
    global_pid,
    global_tid,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

TRACES = Path(__file__).parents[2] / "traces"


def ask(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def columns(path: Path, table: str) -> list[str]:
    return [row[1] for row in ask(path, f'PRAGMA table_info("{table}")')]


def tables(path: Path) -> set[str]:
    return {name for (name,) in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_global_ids_are_nsys_bit_fields() -> None:
    """A globalTid splits into vm, pid and tid, and its high 40 bits are the globalPid."""
    tid = global_tid(444, 445)
    assert (tid >> 48 & 0xFF, tid >> 24 & 0xFFFFFF, tid & 0xFFFFFF) == (1, 444, 445)
    assert tid & -16777216 == global_pid(444) == 281482425794560


def test_launch_and_op_share_their_key(trace: MakeTrace) -> None:
    """What `launch_*` makes joins on (globalPid, correlationId), for every kind of op."""
    path = trace(
        launch_kernel("gemm", (10, 15), (20, 30), id=1),
        launch_memcpy((16, 18), (31, 33), id=2, process=2),
        launch_memset((19, 20), (34, 36), id=2),
        launch_graph((21, 22), (37, 40), id=4),
    )
    for kind, expected in {
        "KERNEL": [(10, 15, 20, 30)],
        "MEMCPY": [(16, 18, 31, 33)],
        "MEMSET": [(19, 20, 34, 36)],
        "GRAPH_TRACE": [(21, 22, 37, 40)],
    }.items():
        sql = (
            "SELECT r.start, r.end, o.start, o.end FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r"
            f" JOIN CUPTI_ACTIVITY_KIND_{kind} AS o USING (correlationId)"
            " WHERE r.globalTid & -16777216 = o.globalPid"
        )
        assert ask(path, sql) == expected


def test_names_go_where_they_are_told(trace: MakeTrace) -> None:
    """A range's name is in `text`, or in StringIds with `text_id`, or in neither when it is None."""
    path = trace(Range("a", 0, 9), Range("b", 1, 2, text_id=True), Range(None, 3, 4), DomainCreate(3, "NCCL"))
    sql = "SELECT text, value, eventType FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
    assert ask(path, sql) == [("a", None, 59), (None, "b", 59), (None, None, 59), ("NCCL", None, 75)]


def test_short_name_is_the_bare_function_name(trace: MakeTrace) -> None:
    """A kernel's short name drops return type, namespaces, template arguments and parameters."""
    path = trace(Kernel("void at::native::gemm<int, float>(float *)", 0, 1, 1))
    assert ("gemm",) in ask(path, "SELECT value FROM StringIds")


def test_tables_are_lazy(trace: MakeTrace) -> None:
    """Without rows a table does not exist, unless it is asked for; `without_tables` takes one away."""
    path = trace(Range("a", 0, 9))
    assert not tables(path) & {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_GPU"}
    full = trace(Range("a", 0, 9), empty_tables=["*"], without_tables=["PROCESSES"])
    assert tables(full) == set(TABLES) - {"EXPORT_META_DATA", "PROCESSES"}


def test_devices_follow_the_ops(trace: MakeTrace) -> None:
    """GPU and device rows come from the ops of each process unless given by hand or switched off."""
    two = (Kernel("a", 0, 1, 1, device=0), Kernel("b", 0, 1, 1, device=1, process=2))
    assert ask(trace(*two), "SELECT id FROM TARGET_INFO_GPU") == [(0,), (1,)]
    assert ask(trace(*two), "SELECT * FROM TARGET_INFO_CUDA_DEVICE") == [(0, 0, 1), (1, 1, 2)]
    by_hand = trace(*two, Gpu(5, "NVIDIA L4"), CudaDevice(5, 0))
    assert ask(by_hand, "SELECT id, name FROM TARGET_INFO_GPU") == [(5, "NVIDIA L4")]
    assert "TARGET_INFO_GPU" not in tables(trace(*two, gpus=False))


@pytest.mark.parametrize("style", STYLES)
def test_every_style_holds_the_same_events(trace: MakeTrace, style: str) -> None:
    """The same literal gives the same times in every generation of the schema."""
    path = trace(Range("a", 0, 9), launch_kernel("gemm", (1, 2), (3, 4), id=1), style=style)
    assert ask(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(3, 4)]
    assert ask(path, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(1, 2)]
    assert ask(path, "SELECT text FROM NVTX_EVENTS") == [("a",)]
    assert ask(path, "SELECT duration FROM ANALYSIS_DETAILS") == [(9,)]


def test_metadata_has_three_generations(trace: MakeTrace) -> None:
    """The oldest style has no metadata, the middle one one table, the newest two."""
    names = {"META_DATA_EXPORT", "META_DATA_CAPTURE", "EXPORT_META_DATA"}
    assert [tables(trace(style=style)) & names for style in ("2019", "2022.4", "2025.3")] == [
        set(),
        {"EXPORT_META_DATA"},
        {"META_DATA_EXPORT", "META_DATA_CAPTURE"},
    ]


def test_columns_can_be_dropped_and_added(trace: MakeTrace) -> None:
    """A test can take a column away or add one of its own, and the rows still fit."""
    path = trace(
        Kernel("gemm", 0, 1, 1),
        drop_columns={"CUPTI_ACTIVITY_KIND_KERNEL": ["graphNodeId"]},
        extra_columns={"CUPTI_ACTIVITY_KIND_KERNEL": {"note": "TEXT"}},
    )
    assert "graphNodeId" not in columns(path, "CUPTI_ACTIVITY_KIND_KERNEL")
    assert ask(path, "SELECT start, note FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(0, None)]


def test_a_misspelt_column_is_refused(trace: MakeTrace) -> None:
    """A row with a column that nsys does not have fails the test instead of vanishing."""
    with pytest.raises(ValueError, match="NVTX_EVENTS has no column txet"):
        trace(Row("NVTX_EVENTS", {"txet": "a"}))


def test_text_need_not_be_utf8(trace: MakeTrace) -> None:
    """Bytes are stored as TEXT unchanged, and text may hold NULs."""
    path = trace(strings=[b"\xb0\xa1", "A=1\0B=2"])
    assert ask(path, "SELECT hex(value), typeof(value) FROM StringIds") == [
        ("B0A1", "text"),
        ("413D3100423D32", "text"),
    ]


def test_each_report_is_a_file_of_its_own(trace: MakeTrace) -> None:
    """Two reports made in one test do not overwrite each other."""
    assert trace(Launch(0, 1, 1)) != trace(Launch(2, 3, 1))


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_schema_equals_a_real_export(name: str) -> None:
    """Every table the builder and a shipped report share has the same columns, types and NOT NULLs."""
    path = TRACES / f"{name}.sqlite"
    shared = tables(path) & set(TABLES)
    assert len(shared) >= 15
    for table in shared:
        real = {name: (kind, bool(need)) for _, name, kind, need, *_ in ask(path, f"PRAGMA table_info({table})")}
        assert {name: tuple(column) for name, column in STYLES["2025.3"].columns(table).items()} == real, table
