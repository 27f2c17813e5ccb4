"""Instances of one range compared with each other: the slowest, or one that is named, with a typical one."""

from pathlib import Path

import pytest

from nsysprof.compare.comparison import Comparison, compare
from nsysprof.errors import NsysprofError
from nsysprof.steps.steps import steps as timed
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.reports import RUN, attributed
from tests.kit.trace import Items, Range, launch_kernel

PATH = "RUN::auto::S2048/iter*"


def compared(select: str | None = PATH, **more: object) -> Comparison:
    """The shipped report compared with itself."""
    return compare(attributed(RUN), select=select, **more)  # type: ignore[arg-type]


def steps(trace: MakeTrace, kernels: tuple[int, ...]) -> Path:
    """Steps whose kernel takes so long, one as soon as the other is over."""
    items: list[Items] = []
    for step, ns in enumerate(kernels):
        at = sum(kernels[:step]) + 30 * step
        items.append(Range(f"step {step}", at, at + 25))
        items.append(launch_kernel("gemm", (at + 10, at + 20), (at + 30, at + 30 + ns), id=step + 1))
    return trace(*items)


def test_the_slowest_is_compared_with_a_typical_one() -> None:
    """By their times as `steps` has them, and their causes add up to the difference."""
    answer = compared(slowest=True)
    [pair] = answer.sides
    spans = timed(attributed(RUN), pair.base.text).steps["span_ns"].to_numpy()
    assert pair.new.ledger.total_ns == spans.max()
    assert pair.base.ledger.total_ns == sorted(spans)[(len(spans) - 1) // 2]
    assert pair.names == ("a typical one", "the slowest")
    assert answer.gaps["delta_ns"].sum() == answer.pairs["delta_ns"].sum()


def test_one_by_its_number_and_two() -> None:
    """One number is compared with a typical one, two with each other; warm-up that is left out is not the slowest."""
    assert compared(instances=("29",)).sides[0].names == ("a typical one", "instance 29")
    assert compared(instances=("0", "29")).sides[0].names == ("instance 0", "instance 29")
    assert compared(slowest=True, skip=8).pairs["new_mean_ns"][0] < compared(slowest=True).pairs["new_mean_ns"][0]


def test_many_paths_have_a_slowest_each() -> None:
    """Each with its own."""
    answer = compared("RUN::*::S1024/iter*", slowest=True)
    assert len(answer.sides) == 6
    assert (answer.pairs["new_mean_ns"] >= answer.pairs["base_mean_ns"]).all()


def test_without_a_range_nothing_is_compared() -> None:
    """One report alone says so, with what helps."""
    with pytest.raises(NsysprofError, match="nothing to compare") as stop:
        compared(None, slowest=True)
    assert "--slowest" in str(stop.value.hint)


def test_the_command(trace: MakeTrace, run: Run) -> None:
    """`compare REPORT --range GLOB --slowest`, and what makes no sense is usage."""
    path = str(steps(trace, (1000, 1010, 5000, 990)))
    done = run("compare", path, "--range", "step*", "--slowest", "--no-charts", "-o", "out")
    assert done.code == 0
    assert "x faster than the slowest at step* per step" in done.out
    assert run("compare", path, "--slowest").code == 2
    assert run("compare", path, "--range", "step*").code == 2
    assert run("compare", path, "--range", "step*", "--slowest", "--instance", "1").code == 2
