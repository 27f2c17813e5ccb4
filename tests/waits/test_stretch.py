"""A stretch of a trace is replayed as the whole is: unchanged as recorded, and changed by as much."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.waits.edits import remove
from nsysprof.waits.facts import read_facts
from nsysprof.waits.program import Program
from nsysprof.waits.ranges import choose_windows
from nsysprof.waits.stretch import stretch_of
from tests.conftest import MakeTrace
from tests.kit import program as made
from tests.kit.reports import TRACES, attributed
from tests.kit.trace import Range, launch_kernel, launch_memcpy

STEPS = 12


def program_of(path: Path, select: str, merge: Sequence[str] | None = None) -> Program:
    """The steps of a report; what a stretch needs is read while it is open."""
    attribution = attributed(path)
    kinds = classify(load_rules(None), attribution.trace.op_names)
    picked = choose_windows(attribution, kinds.communication, select, merge)
    return Program(read_facts(picked.attribution, kinds, None), picked.windows, merge)


def slow_code() -> made.Program:
    """Steps with code that the GPU waits for, in turn more and less, that also run ahead of the GPU."""
    program = made.Program()
    for number in range(STEPS):
        with program.range("step"):
            program.code((1_000 + 50 * (number % 3)) * made.US)
            with program.range("layers"):
                program.layers(12, 60 * made.US, 5 * made.US)
        program.code(20 * made.US)
    return program


@pytest.mark.parametrize("first", [0, 3, 9])
def test_an_unchanged_stretch_is_as_recorded(first: int) -> None:
    """Three steps of a real report, each to the ns; some begin where the one before ends."""
    whole = program_of(TRACES / "block.sqlite", "RUN::math::S1024/iter*")
    stretch = stretch_of(whole.facts, whole.windows, np.arange(first, first + 3))
    part = Program(stretch.facts, stretch.windows, None)
    assert (part.lengths_with()[stretch.asked] == whole.lengths[first : first + 3]).all()
    assert len(stretch.facts.attribution.trace.ops) < len(whole.facts.attribution.trace.ops) / 2
    ops = whole.facts.attribution.trace.ops
    assert (stretch.facts.attribution.trace.ops.start == ops.start[stretch.ops]).all()


def test_a_changed_stretch_gains_what_its_steps_gain_in_the_whole(trace: MakeTrace) -> None:
    """Without the code that the GPU waits for; which pieces these are is found in the stretch alone."""
    whole = program_of(trace(*slow_code().items), "step")
    rows = np.arange(6, 9)
    stretch = stretch_of(whole.facts, whole.windows, rows)
    part = Program(stretch.facts, stretch.windows, None)

    def gains(program: Program) -> np.ndarray:
        waits, words = program.waits, program.facts.texts.words
        code = np.array([word.startswith("code in step") for word in words], bool)[waits["culprit"]]
        assert code.any()
        cause = program.cause_of(code)
        return program.lengths - program.lengths_with(lambda network: remove(network, cause))

    assert gains(whole)[rows].min() > 100 * made.US
    assert (gains(part)[stretch.asked] == gains(whole)[rows]).all()


def test_iterations_that_end_in_another_order_are_replayed_as_recorded(trace: MakeTrace) -> None:
    """Iterations alternate between two streams, of which one takes longer: ends in turn are the steps'."""
    program = made.Program()
    for number in range(16):
        for name in "ab":
            program.launch(name, (made.MS, 17 * made.MS // 10)[number % 2], stream=7 + number % 2)
    program.wait("cudaDeviceSynchronize")
    whole = program_of(trace(*program.items), "iteration*", DEFAULT_MERGE)
    assert len(whole.windows) == 16
    assert whole.residual.max() < 0.01


def test_a_step_that_another_without_a_window_ends_is_replayed_as_recorded(trace: MakeTrace) -> None:
    """The second one's kernel is over before the first one's, so it has no window; its start ends the copy's time."""
    us = made.US
    path = trace(
        Range("step", 0, 100 * us),
        launch_kernel("a", (1 * us, 2 * us), (10 * us, 300 * us), id=1),
        launch_memcpy((3 * us, 4 * us), (20 * us, 500 * us), id=2, stream=8, host=1, kind=1),
        Range("step", 110 * us, 130 * us),
        launch_kernel("b", (111 * us, 112 * us), (140 * us, 160 * us), id=3, stream=9),
        Range("step", 310 * us, 350 * us),
        launch_kernel("c", (320 * us, 330 * us), (400 * us, 450 * us), id=4),
    )
    whole = program_of(path, "step")
    assert whole.lengths[0] == 300 * us
    assert (whole.lengths_with() == whole.lengths).all()


def test_rows_of_a_stretch_are_those_of_the_whole(trace: MakeTrace) -> None:
    """Launches and calls have the times of the rows that they stand for."""
    whole = program_of(trace(*slow_code().items), "step")
    stretch = stretch_of(whole.facts, whole.windows, np.arange(4, 6))
    launches, calls = whole.facts.attribution.trace.launches, whole.facts.activity.calls
    assert (stretch.facts.attribution.trace.launches.start == launches.start[stretch.launches]).all()
    assert (stretch.facts.activity.calls.end == calls.end[stretch.calls]).all()
    assert 0 < len(stretch.calls) <= len(calls)
