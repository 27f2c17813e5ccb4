"""How long the optimizer steps of any PyTorch program take without a profiler."""

import subprocess
import sys
from pathlib import Path

import pytest

from nsysprof.capture.injection import Injection, step_times
from nsysprof.capture.session import overhead_of
from nsysprof.formats.run_record import plain_steps, write_record
from nsysprof.tools.child import Ended

PROGRAM = """
import torch
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
for number in range(12):
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
print(layer.weight.sum().item() != 0)
"""


def test_a_program_is_timed_step_by_step_without_ranges(tmp_path: Path) -> None:
    """From the end of one optimizer step to the next, without the first; nothing else is asked of the program."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=Injection(times=True).environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
    found = step_times(tmp_path)
    assert found is not None
    [run] = found["runs"]
    assert (run["range"], len(run["latency_ns"])) == ("step*", 12 - 3 - 1)
    assert min(run["latency_ns"]) > 0


def test_a_forecast_finds_both_medians_in_the_record(tmp_path: Path) -> None:
    """As those of the steps that `--mark-steps` names."""
    runs = [{"runs": [{"range": "step*", "latency_ns": [ns] * 9}]} for ns in (500, 800)]
    ended = Ended(0, 1_000)
    write_record(tmp_path / "run.json", {"schema": "nsysprof-run/1", "overhead": overhead_of(ended, ended, *runs)})
    assert plain_steps(tmp_path / "run.json", "step*") == (500.0, 800.0, "step*")
    assert plain_steps(tmp_path / "run.json", "train/step*") == (500.0, 800.0, "step*")
    assert plain_steps(tmp_path / "run.json", "epoch*") is None


def test_without_steps_there_are_no_times(tmp_path: Path) -> None:
    """Nothing was noted."""
    assert step_times(tmp_path) is None
