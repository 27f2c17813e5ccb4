"""Numbers of waits: of reports by chance whose streams and threads wait for one another, and of changed replays."""

import random

import numpy as np
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.report import open_report
from nsysprof.waits.change import steps_of
from nsysprof.waits.changes import Changes
from nsysprof.waits.facts import read_facts
from nsysprof.waits.program import Program
from nsysprof.waits.ranges import choose_windows
from nsysprof.waits.replay import replay
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.forecast.test_kept import CHANGES as ASKED
from tests.forecast.test_kept import program
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


@pytest.mark.parametrize("case", [case for case in ASKED if case != "copies"])  # whose name is a finding's
def test_what_is_asked_of_a_replay_is_as_it_was(trace: MakeTrace, case: str) -> None:
    """When all ops and all moments of the host come after a change, and how much is noted about it."""
    with open_report(trace(*program())) as report:
        attribution = attribute(report)
        facts = read_facts(attribution, kinds_of(attribution.trace), None)
        chosen = choose_windows(attribution, facts.communication, "step", None)
    tried = Program(facts, chosen.windows, None)
    changes = steps_of(tried, Changes(**ASKED[case]))
    tried.know(np.concatenate([change.ranges for change in changes]))
    network = tried.network.copy()
    for change in changes:
        change.apply(network)
    times = replay(network)
    hold(__file__, f"asked {case}", [times.start, times.end, times.moment, len(tried.notes)])
