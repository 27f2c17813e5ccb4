"""Numbers of steps: of programs with slow steps of many kinds, and of reports by chance."""

import random
from itertools import count
from pathlib import Path

import pytest

from nsysprof.steps import page
from nsysprof.steps import steps as found
from nsysprof.steps.charts import overview, plan_steps
from nsysprof.steps.files import steps_document
from nsysprof.steps.text import steps_text
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.kept import hold
from tests.kit.program import MS, Program
from tests.kit.random_reports import random_report
from tests.kit.trace import Item, Items, OsCall, Range, launch_kernel
from tests.steps.test_steps import program, served, steps_of

SLOW = {20: "sleep", 30: "allocate", 40: "kernel", 50: "copy", 60: "before", 70: "wait"}


def several() -> list[Items]:
    """Five processes on three GPUs, of 7 to 31 steps: some load at first, most are slow once, some speed up."""
    rng, ids, items = random.Random(4), count(1), list[Items]()
    for process in range(1, 6):
        for step in range(7 + 6 * (process - 1)):
            at, length = 1_000_000 * step, round(100_000 * rng.uniform(0.99, 1.01)) + 500_000 * (step in (0, 11))
            id, inner = next(ids), "load" if step < 11 else "save"
            items += [
                Range(f"step {step}", at, at + 50_000, process=process),
                Range(inner, at, at + 40, process=process),
            ]
            items += [
                launch_kernel(
                    f"gemm {step > 20}",
                    (at + 10, at + 20),
                    (at + 100, at + length),
                    id=id,
                    process=process,
                    device=process // 2,
                )
            ]
    return items


def on_the_host(steps: int) -> list[Item]:
    """Steps without a GPU, some slow, more than a chart has columns for; one takes no time."""
    rng, at, items = random.Random(6), 0, list[Item]()
    for step in range(steps):
        end = at + round(10_000 * rng.uniform(0.9, 1.1)) * (step != 40)
        if step % 1000 == 13:
            items.append(OsCall("fsync", end - 1000, end + 50_000))
            end += 60_000
        items.append(Range("step", at, end))
        at = end + step % 3
    return items


def two_halves() -> list[Item]:
    """Steps of which some have two reasons to be slow, after a warm-up for two more; a second half that drifts."""
    rng, made = random.Random(8), Program()
    for step in range(90):
        with made.range(f"step {step}"):
            made.code((3 if step < 3 else 2 if step in (20, 30) else 0) * MS)
            made.launch(
                "first" if step == 0 else "gemm",
                round(
                    (5 if step == 0 else 2 if step in (20, 33) else 1) * MS * rng.uniform(0.99, 1.01) * (1 + step / 900)
                ),
            )
            made.wait()
    return made.items


def clocked() -> tuple[Items, ...]:
    """Steps at a slower clock, which is sampled, and from step 90 on with a slower kernel."""
    items = program(dict.fromkeys(range(30, 38), "clock") | dict.fromkeys(range(90, 120), "kernel"), 120).items
    hz = [1_250_000_000 if 25_000_000 <= at < 38_000_000 else 1_410_000_000 for at in range(0, 300_000_000, STEP_NS)]
    return (*items, gpu_samples({"clock_hz": hz}))


CASES: dict[str, list[Item] | tuple[Items, ...]] = {
    "slow": program(SLOW).items,
    "few explained": program(SLOW).items,
    "change": program(dict.fromkeys(range(50, 120), "sleep"), 120).items,
    "clock": program(dict.fromkeys(range(30, 38), "clock") | {60: "kernel"}, 120).items,
    "period": program(dict.fromkeys(range(19, 120, 20), "sleep"), 120).items,
    "served": served(),
    "several": tuple(several()),
    "on the host": on_the_host(5000),
    "two halves": two_halves(),
    "clocked": clocked(),
    "second kind": program(dict.fromkeys(random.Random(1).sample(range(80), 25), "sleep") | {41: "wait"}).items,
    "spread": program({}, 7).items,
    **{f"random {seed}": tuple(random_report(seed)) for seed in (2, 11)},
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_as_they_were(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Steps, their ledger, the document, what a chart draws, and the numbers in all texts."""
    path = trace(*CASES[case])
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(page, "answer_page", lambda attribution, *parts: parts)
    if case == "few explained":
        monkeypatch.setattr(found, "MAX_EXPLAINED", 3)
    answer = steps_of(Path(path.name), "execute_*" if case == "served" else "*" if "random" in case else None)
    texts = steps_text(answer), steps_text(answer, 3, full=True), page.steps_page(answer), [*overview(answer).details()]
    hold(__file__, case, [answer.steps.reset_index(), answer.ledger, steps_document(answer), plan_steps(answer), texts])
