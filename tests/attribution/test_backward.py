"""Backward: each operator of autograd's backward names the range of forward that it belongs to."""

from pathlib import Path

import numpy as np
import pytest

import nsysprof
from nsysprof.analyze.analyze import break_down
from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.backward import find_backward
from tests.conftest import MakeTrace
from tests.kit.kineto import annotation, launch, link, module, operator, write_trace
from tests.kit.plain_kineto import load
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import Range, launch_kernel

FORWARD = {"Fwd_thread_id": 0}
BACK = {"tid": 200, "Fwd_thread_id": 1}
TRAINING = [
    annotation("forward", 0, 100),
    module("Linear_0", 10, 40),
    operator("aten::linear", 12, 38, Sequence_number=5, **FORWARD),
    operator("aten::addmm", 14, 36, Sequence_number=5, **FORWARD),
    *launch("gemm", (20, 30), (100, 200), id=1),
    module("ReLU_0", 50, 90),
    operator("aten::relu", 60, 80, Sequence_number=6, **FORWARD),
    *launch("relu", (65, 70), (200, 250), id=2),
    annotation("backward", 300, 600),
    operator("autograd::engine::evaluate_function: ReluBackward0", 310, 380, Sequence_number=6, **BACK),
    operator("ReluBackward0", 320, 370, Sequence_number=6, **BACK),
    *launch("relu_back", (330, 340), (350, 400), id=3, tid=200),
    operator("autograd::engine::evaluate_function: AddmmBackward0", 400, 500, Sequence_number=5, **BACK),
    operator("AddmmBackward0", 410, 490, Sequence_number=5, **BACK),
    *launch("gemm_back", (420, 430), (450, 750), id=4, tid=200),
    operator("torch::autograd::AccumulateGrad", 510, 520, tid=200),
    *link(6, (100, 60), (200, 320)),
    *link(5, (100, 14), (200, 410)),
]


def test_operators_of_backward_name_their_forward(tmp_path: Path) -> None:
    """With `--ranges ops` each range in an operator of backward has the path of the operator that it answers."""
    answer = break_down(attributed(write_trace(tmp_path / "t.json", TRAINING), ranges="ops"))
    ranges, instances = answer.ranges, answer.instances
    for frame in (ranges, instances):
        paths = dict(zip(frame["path"].str.rpartition("/")[2], frame["forward_path"], strict=True))
        assert paths["ReluBackward0"] == "forward/aten::relu"
        assert paths["AddmmBackward0"] == "forward/aten::linear/aten::addmm"
        assert paths["backward"] == paths["aten::relu"] == paths["torch::autograd::AccumulateGrad"] == ""


def test_ranges_of_emit_nvtx_are_linked_by_seq(trace: MakeTrace) -> None:
    """In reports of nsys the `seq = N` of autograd's ranges says so, and what the engine does around a node is its."""
    path = trace(
        Range("block", 0, 50),
        Range("aten::addmm, seq = 7, op_id = 3", 10, 40),
        *launch_kernel("gemm", (15, 20), (60, 90), id=1),
        Range("autograd::engine::evaluate_function: AddmmBackward0, op_id = 4", 100, 150, thread=9),
        Range("AddmmBackward0, seq = 7, op_id = 5", 105, 145, thread=9),
        Range("aten::mm, seq = 9", 110, 130, thread=9),
        *launch_kernel("gemm_back", (115, 120), (200, 290), id=2, thread=9),
        Range("aten::sum, op_id = 6", 146, 149, thread=9),
        *launch_kernel("sum_of_bias", (147, 148), (290, 300), id=3, thread=9),
    )
    answer = broken_down(path)
    paths = dict(zip(answer.instances["path"], answer.instances["forward_path"], strict=True))
    [rows] = [each for each in answer.summaries.values() if "backward.csv" in each.files]
    sums = {row["merged_path"]: row["backward_sum_ns"] for row in rows.files["backward.csv"].records()}
    assert sum(bool(each) for each in paths.values()) == 4
    assert set(filter(None, paths.values())) == {"block/aten::addmm, seq = 7, op_id = 3"}
    assert sums == {"block": 100, "block/aten::addmm": 100}


def test_numbers_that_two_threads_have_claim_nothing(tmp_path: Path) -> None:
    """Threads of forward count for themselves: without an arrow nobody knows whose number it is."""
    two = [operator("aten::mm", 5, 9, tid=300, Sequence_number=5, **FORWARD)]
    plain = [each for each in TRAINING if each["ph"] == "X"]
    for events, unknown in (([*plain, *two], 2), ([*TRAINING, *two], 0)):
        assert find_backward(attributed(write_trace(tmp_path / "t.json", events))).unknown == unknown


@pytest.mark.parametrize("name", ["cpu.pt.trace.json.gz"])
def test_links_are_the_arrows_of_pytorch(name: str) -> None:
    """In a real trace numbers lead from each end of PyTorch's own arrows to its beginning."""
    path = Path(__file__).parents[2] / "traces" / name
    arrows: dict[tuple[int, str], int] = {}
    for event in load(path):
        if event.get("cat") == "fwdbwd":
            arrows[event["id"], event["ph"]] = int(event["ts"] * 1000)
    expected = {(arrows[id, "s"], at) for (id, ph), at in arrows.items() if ph == "f"}
    with nsysprof.open_report(path) as report:
        found, first = find_backward(attribute(report)), report.reader.events.first  # type: ignore[attr-defined]
    pairs = set(zip((found.op_start + first).tolist(), (found.start + first).tolist(), strict=True))
    assert expected
    assert expected <= pairs
    assert np.all(found.op_start < found.start)
