"""Numbers of waits: of reports by chance whose streams and threads wait for one another, and of changed replays."""

import random

import numpy as np
import pytest

from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.kit import simulated
from tests.kit.kept import hold
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.reports import attributed
from tests.kit.trace import Items
from tests.waits.test_replay import CHANGES, Programs


def simulation(seed: int) -> tuple[Items, ...]:
    """Three programs, a process each."""
    rng = random.Random(seed)
    machines = [simulated.simulate(simulated.random_program(rng), pid) for pid in range(1, 4)]
    return tuple(item for machine in machines for item in machine.items)


MADE = {"waits": random_waits, "report": random_report, "simulated": simulation}


@pytest.mark.parametrize("case", [f"{kind} {seed}" for kind in MADE for seed in (1, 4, 9)])
def test_numbers_are_as_they_were(trace: MakeTrace, case: str) -> None:
    """Windows, each piece of a wait, rows and residuals; of all ranges, and of the whole trace."""
    kind, seed = case.split()
    attribution = attributed(trace(*MADE[kind](int(seed))))
    for select in ("*", None):
        answer = why(attribution, select)
        frames = [answer.windows, answer.waits, answer.rows, answer.residuals, answer.held_up]
        hold(__file__, f"{case} of {select}", frames)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_replays_are_as_they_were(trace: MakeTrace, change: str) -> None:
    """When all ops and steps of a program run after a change, also of programs that a simulation knows nothing of."""
    programs = Programs(trace, 7, 4)
    made, impossible = programs.edited(change, 300)
    outcomes = [programs.outcomes(made, process) for process in range(1, 5)]
    hold(__file__, f"replay {change}", [outcomes, sorted(impossible), np.array(made.length), made.extra, made.waits])
