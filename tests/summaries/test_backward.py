"""What backward costs for each range of forward."""

from pathlib import Path

from nsysprof.analyze.analyze import break_down
from tests.attribution.test_backward import TRAINING
from tests.kit.kineto import Event, operator, write_trace
from tests.kit.reports import attributed


def test_forward_and_backward_of_a_module_stand_in_one_row(tmp_path: Path) -> None:
    """What a range launched, what backward launched for it, and how many times that is; on the CPU where nothing ran
    on a GPU.
    """
    host: list[Event] = [each for each in TRAINING if each["cat"] not in ("kernel", "cuda_runtime")]
    lost = operator("ReluBackward0", 550, 560, tid=200, Sequence_number=9, Fwd_thread_id=1)
    for events, shown, sentence in (
        (TRAINING, "sum", "350 ns of GPU ops, launched by 4 backward operators with a known forward operator"),
        (
            [*host, lost],
            "cpu",
            "170 ns on the CPU, launched by 4 backward operators with a known forward operator; the forward",
        ),
    ):
        answer = break_down(attributed(write_trace(tmp_path / "t.json", events), ranges="modules")).summaries[
            "backward"
        ]
        found = {row["merged_path"].rpartition("/")[2]: row for row in answer.files["backward.csv"].records()}
        names = ("forward_sum_ns", "backward_sum_ns", "forward_cpu_ns", "backward_cpu_ns", "backward_cpu_ratio")
        gpu = [(150, 350), (100, 300), (50, 50)] if shown == "sum" else [(0, 0)] * 3
        assert {name: tuple(row[each] for each in names) for name, row in found.items()} == {
            "forward": (*gpu[0], 100, 170, 1.7),
            "nn.Module: Linear_0": (*gpu[1], 30, 100, 100 / 30),
            "nn.Module: ReLU_0": (*gpu[2], 40, 70, 1.75),
        }
        assert next(iter(found)) == "forward"
        ratio = "backward_ratio" if shown == "sum" else "backward_cpu_ratio"
        columns = ["merged_path", "instances", f"forward_{shown}_ns", f"backward_{shown}_ns", ratio]
        assert [column.name for column in answer.columns] == columns
        assert answer.finding.startswith(f"Backward: {sentence}")
        assert (found["forward"]["backward_ratio"] == 350 / 150) == (shown == "sum")
