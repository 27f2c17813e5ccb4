"""`max_slow_step_share`: how many of the calls of a range are slow steps, and a draft that the report keeps to."""

from pathlib import Path

import pytest

import nsysprof
from nsysprof.check.check import draft
from tests.check.test_check import checked, one
from tests.conftest import MakeTrace
from tests.kit.trace import Range, launch_kernel
from tests.steps.test_steps import program


def test_the_share_is_that_of_steps(trace: MakeTrace) -> None:
    """Four of 80 sleep; eight more at which all kernels are slower are the clock's."""
    slow = dict.fromkeys((20, 31, 47, 70), "sleep") | dict.fromkeys(range(50, 58), "clock")
    report = trace(*program(slow).items)
    for limit, ok in (('"5 %"', True), ("0.04", False)):
        row = one(checked(report, f"max_slow_step_share = {limit}"))
        assert (row["rule"], row["stat"], row["unit"], row["instances"]) == (
            "max_slow_step_share",
            "total",
            "share",
            80,
        )
        assert (row["found"], row["ok"]) == (0.05, ok)
        assert row["evidence"] == "slow steps: 20, 31, 47 and 1 more (nsysprof steps shows the causes)"


def test_what_cannot_be_judged_breaks_the_limit_unless_it_is_optional(trace: MakeTrace) -> None:
    """Few steps, and the whole trace."""
    report = trace(
        *(Range(f"step {at}", at * 100, at * 100 + 90) for at in range(3)),
        *(
            launch_kernel("gemm", (at * 100 + 1, at * 100 + 2), (at * 100 + 3, at * 100 + 50), id=at + 1)
            for at in range(3)
        ),
    )
    few = one(checked(report, "max_slow_step_share = 0"))
    assert (few["found"], few["ok"]) == (None, False)
    assert few["evidence"].startswith("fewer than 8 steps")
    assert one(checked(report, "max_slow_step_share = 0\noptional = true"))["ok"] is None
    whole = '[[range]]\npath = "whole trace"\nmax_slow_step_share = 0'
    assert one(checked(report, whole))["ok"] is False


@pytest.mark.parametrize(("count", "slow", "limit"), [(80, 4, "6 %"), (80, 0, "5 %"), (40, 1, None)])
def test_a_draft_has_it_for_many_steps(
    trace: MakeTrace, tmp_path: Path, count: int, slow: int, limit: str | None
) -> None:
    """The report keeps to its draft, and another with more slow steps does not."""
    made = trace(*program(dict.fromkeys((20, 31, 37, 70)[:slow], "sleep"), count).items)
    text = draft(made)
    assert (f'max_slow_step_share = "{limit}"' in text) == (limit is not None)
    assert ("\nmax_slow_step_share" in text) == (limit is not None)
    budget = tmp_path / "budget.toml"
    budget.write_text(text, encoding="utf-8")
    nsysprof.check(made, budget).assert_ok()
