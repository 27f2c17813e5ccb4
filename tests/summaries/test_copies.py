"""Copies and memsets, added up."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.summaries.summary import Answer
from nsysprof.tools.nsys import Nsys, stats
from tests.conftest import MakeTrace
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import (
    Launch,
    Memcpy,
    Memset,
    Range,
    Row,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

RUN = Path(__file__).parents[2] / "traces" / "run.sqlite"
MIB = 1 << 20
A100 = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0}


def answer_of(path: Path, **how: Any) -> Answer | None:
    """The summary of copies of a report."""
    return break_down(attributed(path, **how)).summaries.get("copies")


def rows_of(path: Path, **how: Any) -> list[dict[str, Any]]:
    """The rows of its ``copies.csv``."""
    found = answer_of(path, **how)
    assert found is not None
    return list(found.files["copies.csv"].records())


def test_no_copies_is_no_answer(trace: MakeTrace) -> None:
    """A report without copies has no summary of them; migrations are none."""
    assert answer_of(trace(launch_kernel("k", (1, 2), (3, 4), id=1))) is None
    assert answer_of(trace(Memcpy(3, 4, 0, kind=11))) is None


def test_rows_say_how_fast_and_beside_what(trace: MakeTrace) -> None:
    """By range, direction, memory and call: bytes, rates, share of the link, time beside kernels, small ones."""
    path = trace(
        Range("step", 0, 100),
        Row("TARGET_INFO_GPU", A100),
        launch_memcpy((1, 2), (1_000, 1_000 + MIB // 10), id=1, bytes=MIB, host=0, api="cudaMemcpy"),
        launch_memcpy((3, 4), (400_000, 400_000 + MIB // 20), id=2, bytes=MIB, host=0, api="cudaMemcpy"),
        launch_memcpy((5, 6), (600_000, 600_010), id=3, bytes=16, host=0, api="cudaMemcpy"),
        launch_memcpy((200, 204), (900_000, 900_100), id=4, bytes=4, kind=2),
        launch_kernel("k", (7, 8), (0, 50_000), id=5),
        launch_kernel("k", (9, 10), (600_000, 600_005), id=6, stream=8),
        launch_kernel("k", (11, 12), (600_000, 600_020), id=7, device=1),
    )
    up, down = rows_of(path)
    assert up == {
        **{"merged_path": "step", "gpu": "GPU 0", "operation": "memcpy HtoD", "source": "pageable"},
        **{"destination": "device", "call": "cudaMemcpy", "blocking": "sync"},
        **{"count": 3, "size_bytes": 2 * MIB + 16, "sum_ns": MIB // 10 + MIB // 20 + 10},
        "bytes_per_s": pytest.approx((2 * MIB + 16) / (MIB // 10 + MIB // 20 + 10) * 1e9),
        "median_bytes_per_s": pytest.approx(10e9, rel=1e-4),
        "link_share": pytest.approx(13.334e9 / 31.508e9, rel=1e-3),
        **{"overlapped_ns": 49_000 + 5, "small_count": 1, "small_bytes": 16},
    }
    assert (down["merged_path"], down["operation"], down["source"], down["destination"]) == (
        *("", "memcpy DtoH", "device", "pinned"),
    )
    assert (down["blocking"], down["overlapped_ns"], down["small_count"]) == ("no", 0, 1)


def test_the_table_of_a_screen_has_a_row_for_each_direction(trace: MakeTrace) -> None:
    """How many, how large, how fast; what overlapped, made the host wait, or was small; and where most of it was."""
    path = trace(
        *(Range("load", 0, 5), Row("TARGET_INFO_GPU", A100), Range("save", 10, 15)),
        launch_memcpy((1, 2), (1_000, 201_000), id=1, bytes=2 * MIB, host=0, api="cudaMemcpy"),
        launch_memcpy((3, 4), (250_000, 250_100), id=5, bytes=16, host=0, api="cudaMemcpy"),
        launch_memcpy((11, 12), (300_000, 300_100), id=2, bytes=16),
        launch_memcpy((13, 14), (400_000, 400_050), id=3, bytes=8, kind=2),
        launch_kernel("k", (4, 5), (101_000, 151_000), id=4),
    )
    answer = answer_of(path)
    assert answer is not None
    up, pinned, down = answer.rows.records()
    assert (
        [*up]
        == [column.name for column in answer.columns]
        == [
            *("what", "count", "size_bytes", "sum_ns", "bytes_per_s", "link_share"),
            *("overlapped_share", "waited_share", "small_share", "most"),
        ]
    )
    shown = [(row["what"], row["count"], row["size_bytes"], row["sum_ns"]) for row in (up, pinned, down)]
    assert shown == [
        ("HtoD pageable", 2, 2 * MIB + 16, 200_100),
        ("HtoD pinned", 1, 16, 100),
        ("DtoH pinned", 1, 8, 50),
    ]
    assert [row["waited_share"] for row in (up, pinned, down)] == [1, 0, 0]
    assert [row["small_share"] for row in (up, pinned, down)] == [0.5, 1, 1]
    assert [row["most"] for row in (up, pinned, down)] == ["load", "save", "save"]
    assert [round(row["overlapped_share"], 3) for row in (up, pinned, down)] == [0.25, 0, 0]


@pytest.mark.parametrize(
    ("api", "how", "blocking"),
    [
        ("cudaMemcpy", {"host": 1}, "sync"),
        ("cudaMemcpyToSymbol", {"host": 0}, "sync"),
        ("cuMemcpyHtoD_v2", {"host": 0}, "sync"),
        ("cudaMemcpyAsync", {"host": 0}, "pageable"),
        ("cuMemcpyDtoHAsync_v2", {"host": 0, "kind": 2}, "pageable"),
        ("cudaMemcpyAsync", {"host": 1}, "no"),
        ("cudaMemcpy", {"kind": 8}, "no"),
        ("cudaMemcpyPeer", {"kind": 10}, "no"),
        ("cudaGraphLaunch", {"host": 0, "graph_node": 7}, "no"),
    ],
)
def test_whether_the_host_waits(trace: MakeTrace, api: str, how: dict[str, Any], blocking: str) -> None:
    """In calls that return when all is copied, and in Async ones on pageable memory; not for a GPU's own copies."""
    [row] = rows_of(trace(launch_memcpy((1, 2), (3, 4), id=1, api=api, **how)))
    assert (row["call"], row["blocking"]) == (api, blocking)


def test_what_is_not_recorded_is_not_known(trace: MakeTrace) -> None:
    """No launch: no call; no kinds of memory, no GPU of a known name, no time: empty, not zero."""
    path = trace(Memcpy(5, 5, 99, bytes=64), drop_columns={"CUPTI_ACTIVITY_KIND_MEMCPY": ["srcKind", "dstKind"]})
    [row] = rows_of(path)
    assert (row["source"], row["destination"], row["call"], row["blocking"]) == ("", "", "", "")
    assert (row["count"], row["size_bytes"], row["sum_ns"]) == (1, 64, 0)
    assert all(row[name] != row[name] for name in ("bytes_per_s", "median_bytes_per_s", "link_share"))


def test_a_rate_that_the_link_cannot_reach_has_no_share(trace: MakeTrace) -> None:
    """Then the name of the GPU says nothing of its link."""
    copy = launch_memcpy((1, 2), (3, 4), id=1, bytes=MIB)
    [row] = rows_of(trace(Row("TARGET_INFO_GPU", A100), copy))
    assert row["bytes_per_s"] == MIB * 1e9
    assert row["link_share"] != row["link_share"]


def test_sizes_below_zero_are_nothing(trace: MakeTrace) -> None:
    """Of a damaged row the others' bytes are not less."""
    path = trace(launch_memset((1, 2), (3, 4), id=1, bytes=-5), launch_memset((5, 6), (7, 9), id=2, bytes=8))
    [row] = rows_of(path)
    assert (row["operation"], row["count"], row["size_bytes"], row["sum_ns"]) == ("memset", 2, 8, 3)


def test_a_size_beyond_all_numbers_has_a_rate(trace: MakeTrace) -> None:
    """Of a damaged row with as many bytes as fit, in 1 ns."""
    [row] = rows_of(trace(launch_memset((1, 2), (3, 4), id=1, bytes=(1 << 63) - 1)))
    assert (row["size_bytes"], row["median_bytes_per_s"]) == ((1 << 63) - 1, 10**18)


def test_replayed_copies_keep_their_call(trace: MakeTrace) -> None:
    """Also where graphs are read as captured: the launch of the graph made them."""
    launch = Launch(1, 2, 5, api="cudaGraphLaunch")
    path = trace(Range("step", 0, 9), launch, Memcpy(3, 4, 5, graph_node=1), Memset(5, 6, 5, graph_node=2))
    for graphs in ("launched", "captured"):
        assert {row["call"] for row in rows_of(path, graphs=graphs)} == {"cudaGraphLaunch"}


def test_readers_see_what_takes_longest(trace: MakeTrace) -> None:
    """Added up by direction and memory, with the range that has most; the finding names rate and share of the link."""
    path = trace(
        Row("TARGET_INFO_GPU", A100),
        Range("load", 0, 10),
        Range("other", 20, 30),
        launch_memcpy((1, 2), (1_000, 1_000 + MIB), id=1, bytes=MIB, host=0),
        launch_memcpy((21, 22), (3_000_000, 3_000_500), id=2, bytes=500, host=0, api="cudaMemcpy"),
        launch_memset((23, 24), (4_000_000, 4_000_100), id=3, bytes=0),
        launch_graph((25, 26), (5_000_000, 5_000_100), id=4),
    )
    found = answer_of(path)
    assert found is not None
    assert found.finding == (
        "Copies: 3 memory operations of 1.00 MiB in 1.05 ms; most time is spent on 1.00 MiB of "
        "pageable host-to-device copies at 1.00 GB/s, 3.2 % of the link's peak"
    )
    up, fill = found.rows.records()
    assert (up["what"], up["count"], up["waited_share"], up["most"]) == ("HtoD pageable", 2, 1.0, "load")
    assert (fill["what"], fill["count"], fill["most"]) == ("memset", 1, "other")


def test_size_bytes_of_kernels_csv(trace: MakeTrace) -> None:
    """Copies and memsets have their bytes there, by the range that owns them; kernels none."""
    path = trace(
        *(Range(f"step{at}", 100 * at, 100 * at + 50) for at in range(2)),
        launch_kernel("k", (1, 2), (3, 4), id=1),
        launch_memcpy((5, 6), (7, 8), id=2, bytes=10),
        launch_memcpy((105, 106), (107, 108), id=3, bytes=20),
        launch_memcpy((109, 110), (111, 112), id=4, bytes=7),
        launch_memset((205, 206), (207, 208), id=5, bytes=3),
    )
    found = broken_down(path)
    kernels = found.kernels.set_index(["path", "kernel"])["size_bytes"].to_dict()
    merged = found.merged_kernels.set_index(["row", "kernel"])["size_bytes"].to_dict()
    assert kernels == {("step0", "k"): 0, ("step0", "memcpy HtoD"): 10, ("step1", "memcpy HtoD"): 27, ("", "memset"): 3}
    assert merged == {(0, "k"): 0, (0, "memcpy HtoD"): 37, (-1, "memset"): 3}


def test_sums_equal_plain_sql() -> None:
    """Counts, time and bytes of a real report, as one query adds them up."""
    sql = sqlite3.connect(f"file:{RUN}?mode=ro", uri=True)
    kinds = {1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD"}
    query = "SELECT copyKind, count(*), sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1"
    expected = {kinds[kind]: tuple(numbers) for kind, *numbers in sql.execute(query)}
    query = "SELECT count(*), sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET"
    expected["memset"] = sql.execute(query).fetchone()
    sql.close()
    assert added_up(RUN) == expected


def added_up(path: Path) -> dict[str, tuple[int, ...]]:
    """Count, time and bytes by operation, from ``copies.csv``; and the same from ``kernels.csv``."""
    found = broken_down(path)
    rows = found.summaries["copies"].files["copies.csv"].frame()
    kernels = found.kernels
    names = ["count", "sum_ns", "size_bytes"]
    out: dict[str, tuple[int, ...]] = {}
    for table, by in ((rows, "operation"), (kernels[kernels["family"].isin(["memcpy", "memset"])], "kernel")):
        sums = table.groupby(by)[names].sum()
        again = {name: tuple(map(int, row)) for name, row in zip(sums.index, sums.to_numpy(), strict=True)}
        assert out in ({}, again)
        out = again
    return out


@pytest.mark.nsys
@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_sums_equal_nsys_stats(name: str, real_nsys: Nsys) -> None:
    """Count and time of ``cuda_gpu_mem_time_sum``, bytes of ``cuda_gpu_mem_size_sum``, which prints MB."""
    path = RUN.with_name(f"{name}.sqlite")
    words = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD"}

    def rows(report: str) -> dict[str, dict[str, str]]:
        named = {row["Operation"].strip("[]"): row for row in stats(real_nsys, path, report)}
        short = {key.removeprefix("CUDA "): row for key, row in named.items()}
        return {" ".join(words.get(word, word) for word in key.split()): row for key, row in short.items()}

    times, sizes = rows("cuda_gpu_mem_time_sum"), rows("cuda_gpu_mem_size_sum")
    found = added_up(path)
    assert found.keys() == times.keys() == sizes.keys()
    for operation, (count, sum_ns, size) in found.items():
        row = times[operation]
        assert (row["Count"], row["Total Time (ns)"]) == (str(count), str(sum_ns))
        assert float(sizes[operation]["Total (MB)"]) == round(size / 1e6, 3)
