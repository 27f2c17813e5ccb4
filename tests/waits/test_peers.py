"""Collectives of several ranks in one report: who came last, and until when the others waited."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.fleet.answer import fleet_answer
from nsysprof.waits.peers import wait_for_last
from nsysprof.why.text import why_text
from nsysprof.why.why import Why
from tests.conftest import MakeTrace
from tests.fleet.test_parts import TWO as RANKS
from tests.fleet.test_parts import examined
from tests.kit.reports import in_one_report
from tests.kit.trace import CudaDevice, Gpu, Item, Items, Range, launch_kernel
from tests.why.test_why import NCCL, check_sums, why_of

CLOCKS_NS = 1_795_178_598_744_522_179 - 1_795_178_598_716_603_108  # between the two ranks' starts of recording


def rank(number: int, comes: int, ends: int = 100, process: int = 0, device: int = -1) -> list[Items]:
    """A step of a rank whose GPU computes, then is in an all-reduce from when it ``comes``, and needs its result."""
    where = {"process": process or number + 1, "device": number if device < 0 else device}
    return [
        Range("step", 0, 130, process=where["process"]),
        launch_kernel("gemm", (0, 1), (5, comes), id=10 * number + 1, **where),
        launch_kernel(NCCL, (2, 3), (comes, ends), id=10 * number + 2, **where),
        launch_kernel("adam", (4, 5), (ends, 120), id=10 * number + 3, **where),
    ]


def late(answer: Why) -> list[tuple[int, str, str, int]]:
    """GPU, activity, culprit and time of all waits for collectives."""
    check_sums(answer)
    rows = answer.rows[answer.rows["cause"] == "communication"].sort_values(["gpu", "pid", "activity"])
    rows = rows.assign(culprit=rows["culprit"].str.replace(r"ncclDevKernel\w+ in step", "NCCL", regex=True))
    return list(rows[["gpu", "activity", "culprit", "waited_ns"]].itertuples(index=False, name=None))


def test_the_rank_that_comes_last_is_named(trace: MakeTrace) -> None:
    """GPU 2 is in the all-reduce for 20 ns: what the others take beyond that they wait for it."""
    answer = why_of(trace(*rank(0, 40), *rank(1, 60), *rank(2, 80)))
    assert late(answer) == [
        (0, "late peer", "late peer GPU 2, NCCL", 40),
        (0, "transfer", "transfer, NCCL", 20),
        (1, "late peer", "late peer GPU 2, NCCL", 20),
        (1, "transfer", "transfer, NCCL", 20),
        (2, "transfer", "transfer, NCCL", 20),
    ]
    claims = answer.rows[answer.rows["cause"] == "communication"].groupby("activity")["claim"].unique()
    assert (claims["late peer"].tolist(), claims["transfer"].tolist()) == (["order"], ["dependency"])


def test_the_finding_says_who_waits_for_whom(trace: MakeTrace) -> None:
    """The one with most time stands for all that wait for the same peer; all others say on which GPU."""
    made = [[*rank(0, 40_000, 100_000), *rank(1, 90_000, 100_000)]]
    step: list[Items] = [Range("step", 0, 10_000, process=process) for process in (1, 2)]
    answer = why_of(trace(*step, *(item for items in made for item in items if not isinstance(item, Range))))
    found = answer.findings["step"]
    [late_rank] = [each for each in found if each.kind == "communication-late-rank"]
    assert late_rank.text.startswith("the GPU waits in collectives for late peer GPU 1: 50.0 µs of each step")
    assert (late_rank.gpu, late_rank.cause) == (0, "late peer GPU 1")
    assert "late peer GPU 1, ncclDev" in why_text(answer)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(rank(1, 90, ends=111), id="ends later than by half of what it takes"),
        pytest.param(rank(1, 80, process=1, device=0), id="is of the same process and GPU"),
        pytest.param(
            [Range("step", 0, 130, process=2), launch_kernel("gemm", (0, 1), (5, 60), id=1, process=2, device=1)],
            id="is not recorded",
        ),
    ],
)
def test_what_has_no_counterpart_is_only_communication(trace: MakeTrace, other: list[Items]) -> None:
    """A collective whose peer nobody sees waits for nobody that could be named."""
    assert {activity for _, activity, _, _ in late(why_of(trace(*rank(0, 40), *other)))} == {""}


def test_ranks_that_share_a_gpu_are_told_apart(trace: MakeTrace) -> None:
    """Two processes on one GPU: the pid says which one is late."""
    one_gpu: list[Item] = [Gpu(0), CudaDevice(0, 0, 1), CudaDevice(0, 0, 2)]
    first = [launch_kernel(NCCL, (2, 3), (40, 100), id=2), launch_kernel("adam", (4, 5), (100, 120), id=3)]
    second = [launch_kernel(NCCL, (2, 3), (80, 100), id=2, process=2)]
    answer = why_of(trace(*one_gpu, Range("step", 0, 130), *first, *second))
    assert ("late peer", "late peer GPU 0 (pid 2), NCCL", 40) in {row[1:] for row in late(answer)}


def test_waiting_is_what_is_beyond_the_shortest() -> None:
    """Of equal ones the first came last."""
    waiting, last = wait_for_last(np.array([5, 5, 2, 2, 5]), np.array([30, 10, 7, 7, 20]))
    assert waiting.tolist() == [20, 0, 0, 0, 10]
    assert last.tolist() == [1, 1, 2, 2, 1]


def test_why_and_fleet_agree_on_two_ranks_in_one_report(tmp_path: Path) -> None:
    """Late peer, transfer and blocking communication of DDP on two GPUs, to the nanosecond, and who was late."""
    path = in_one_report(tmp_path / "both.sqlite", RANKS / "rank_0.sqlite", RANKS / "rank_1.sqlite", -CLOCKS_NS)
    answer, fleet = why_of(path, "step*"), fleet_answer([examined(path)])
    check_sums(answer)
    rows = answer.rows[answer.rows["cause"] == "communication"]
    found = rows.pivot_table(index="gpu", columns="activity", values="waited_ns", aggfunc="sum")
    expected = fleet.ranks.set_index(fleet.ranks["gpu"].astype(int)).sort_index()
    assert found["late peer"].tolist() == expected["late_peer_ns"].tolist() == [15_300_595, 26_633_331]
    assert found["transfer"].tolist() == expected["transfer_ns"].tolist()
    blocking = answer.windows.groupby("gpu")["blocking_ns"].sum()
    assert blocking.tolist() == expected["blocking_ns"].tolist()
    first = answer.findings["step*"][0]
    assert (first.kind, first.gpu, first.cause) == ("communication-late-rank", 1, "late peer GPU 0")
    assert first.change == ("--no-late-peer",)
