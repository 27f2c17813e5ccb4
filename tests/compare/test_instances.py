"""Instances of one range compared with each other: the slowest, or one that is named, with a typical one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysprof.compare.comparison import Comparison, compare
from nsysprof.errors import NsysprofError
from tests.conftest import MakeTrace
from tests.kit.command_line import runner
from tests.kit.reports import RUN, attributed
from tests.kit.trace import Items, Range, launch_kernel

PATH = "RUN::auto::S2048/iter*"


def compared(select: str | None = PATH, **more: object) -> Comparison:
    """The shipped report compared with itself."""
    return compare(attributed(RUN), select=select, **more)  # type: ignore[arg-type]


def steps(trace: MakeTrace, kernels: tuple[int, ...]) -> Path:
    """Steps whose kernel takes so long."""
    items: list[Items] = []
    for step, ns in enumerate(kernels):
        at = step * 10_000
        items.append(Range(f"step {step}", at, at + 9_000))
        items.append(launch_kernel("gemm", (at + 10, at + 20), (at + 30, at + 30 + ns), id=step + 1))
    return trace(*items)


def test_the_slowest_is_compared_with_a_typical_one() -> None:
    """By their spans, and their causes add up to the difference."""
    answer = compared(slowest=True)
    [pair] = answer.sides
    spans = attributed(RUN).inclusive.span_ns[
        compared(slowest=True).sides[0].base.loaded.instances([pair.base.code])
    ]
    assert pair.new.ledger.span_ns == spans.max()
    assert pair.base.ledger.span_ns == sorted(spans)[(len(spans) - 1) // 2]
    assert pair.names == ("a typical one", "the slowest")
    assert answer.gaps["delta_ns"].sum() == answer.pairs["delta_ns"].sum()


def test_one_by_its_number_and_two() -> None:
    """One number is compared with a typical one, two with each other; warm-up that is left out is not the slowest."""
    assert compared(instances=("29",)).sides[0].names == ("a typical one", "instance 29")
    assert compared(instances=("0", "29")).sides[0].names == ("instance 0", "instance 29")
    assert (
        compared(slowest=True, skip=8).pairs["new_span_ns"][0]
        < compared(slowest=True).pairs["new_span_ns"][0]
    )


def test_many_paths_have_a_slowest_each() -> None:
    """Each with its own."""
    answer = compared("RUN::*::S1024/iter*", slowest=True)
    assert len(answer.sides) == 6
    assert (answer.pairs["new_span_ns"] >= answer.pairs["base_span_ns"]).all()


def test_without_a_range_nothing_is_compared() -> None:
    """One report alone says so, with what helps."""
    with pytest.raises(NsysprofError, match="nothing in it to compare") as stop:
        compared(None, slowest=True)
    assert "--slowest" in str(stop.value.hint)


def test_the_command(
    trace: MakeTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare REPORT --range GLOB --slowest`, and what makes no sense is usage."""
    run = runner(tmp_path, capsys, monkeypatch)
    path = str(steps(trace, (1000, 1010, 5000, 990)))
    done = run("compare", path, "--range", "step*", "--slowest", "--no-charts", "-o", "out")
    assert done.code == 0
    assert "a typical one is 5.00x faster than the slowest at step*" in done.out
    assert run("compare", path, "--slowest").code == 2
    assert run("compare", path, "--range", "step*").code == 2
    assert run("compare", path, "--range", "step*", "--slowest", "--instance", "1").code == 2
