"""Numbers of steps: of programs with slow steps of many kinds, and of reports by chance."""

import random

import pytest

from nsysprof.steps.charts import plan_steps
from nsysprof.steps.files import steps_document
from tests.conftest import MakeTrace
from tests.kit.kept import hold
from tests.kit.program import MS, US, Program
from tests.kit.random_reports import random_report
from tests.kit.trace import Item, Items
from tests.steps.test_steps import program, steps_of

SLOW = {20: "sleep", 30: "allocate", 40: "kernel", 50: "copy", 60: "before", 70: "wait"}


def served() -> list[Item]:
    """Steps whose names tell how many tokens they have, some of them warm-up, and one that is slow."""
    rng, made = random.Random(3), Program()
    for step in range(60):
        tokens = rng.choice([0, 0, 0, 512, 1024, 4096])
        with made.range(f"execute_{tokens}_generation_{step}"):
            made.launch("attention", round((200 * US + tokens * 1000) * rng.uniform(0.99, 1.01)))
            made.wait()
            made.code((2 if step == 31 else 0) * MS)
    return made.items


CASES: dict[str, list[Item] | tuple[Items, ...]] = {
    "slow": program(SLOW).items,
    "change": program(dict.fromkeys(range(50, 120), "sleep"), 120).items,
    "clock": program(dict.fromkeys(range(30, 38), "clock") | {60: "kernel"}, 120).items,
    "period": program(dict.fromkeys(range(19, 120, 20), "sleep"), 120).items,
    "served": served(),
    **{f"random {seed}": tuple(random_report(seed)) for seed in (2, 5, 11)},
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_as_they_were(trace: MakeTrace, case: str) -> None:
    """Steps, their ledger, the document, and what a chart draws."""
    answer = steps_of(trace(*CASES[case]), "execute_*" if case == "served" else "*" if "random" in case else None)
    hold(__file__, case, [answer.steps, answer.ledger, steps_document(answer), plan_steps(answer)])
