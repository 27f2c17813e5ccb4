"""Some windows of a path: by number, the slowest, and without the first ones."""

from pathlib import Path

from nsysprof.attribution.paths import SLOWEST, TYPICAL, Instances, instances_text, pick_instances
from nsysprof.why.text import why_text
from nsysprof.why.why import Why, why
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.reports import TWO, attributed
from tests.why.test_instance import steps
from tests.why.test_why import check_sums

SLEEPS = (300_000, 900_000, 500_000, 700_000)


def picked(path: Path, instances: Instances | None = None, skip: int = 0) -> Why:
    """The account of some windows."""
    return why(attributed(path), "*", instances=instances, skip=skip)


def test_windows_are_those_asked_for_and_add_up(trace: MakeTrace) -> None:
    """Each is as it is among all, with the pause before it."""
    path = trace(*steps(SLEEPS))
    every = picked(path).windows
    for instances, skip, rows in (
        ((2, 2), 0, [2]),
        ((1, 7), 0, [1, 2, 3]),
        (SLOWEST, 0, [1]),
        (SLOWEST, 2, [3]),
        (None, 3, [3]),
        (None, 0, [0, 1, 2, 3]),
    ):
        answer = picked(path, instances, skip)
        check_sums(answer)
        assert answer.windows.equals(every.iloc[rows].reset_index(drop=True))


def test_each_process_has_a_slowest_window() -> None:
    """Of each path, GPU and process one."""
    answer = picked(TWO, SLOWEST)
    check_sums(answer)
    assert not answer.windows.duplicated(["path", "gpu", "pid"]).any()
    assert "the slowest" in why_text(answer)


def test_on_the_command_line_they_exclude_each_other(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """A number means the step of that number, so nothing is skipped before."""
    path = str(trace(*steps(SLEEPS)))
    done = run("why", path, "--instance", "1", "--no-charts", "-o", "out")
    assert done.code == 0
    assert "; instance 1" in " ".join(done.out.split())
    assert "1 step on GPU 0" in done.out
    assert '"picked": "instance 1"' in (tmp_path / "out" / "why.json").read_text(encoding="utf-8")
    for more in ("--slowest", "--skip=1"):
        assert run("why", path, "--instance", "1", more).code == 2


def test_a_typical_instance_takes_as_long_as_the_median() -> None:
    """The lower one of two, and none of none."""
    import numpy as np

    span = np.array([5, 1, 9, 4])
    assert pick_instances(span, TYPICAL).tolist() == [3]
    assert pick_instances(span, SLOWEST).tolist() == [2]
    assert pick_instances(span, (1, 2)).tolist() == [1, 2]
    for instances in (TYPICAL, SLOWEST, (0, 3)):
        assert len(pick_instances(span[:0], instances)) == 0
    assert instances_text(TYPICAL) == "a typical one"
