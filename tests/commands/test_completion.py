"""Completion in a shell: commands, options, and the names of the ranges of the report on the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "traces" / "run.sqlite"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("nsysprof ana", "analyze"),
        (f"nsysprof why {RUN} --range RUN::flash::S10", "RUN::flash::S1024/iter*"),
        (f"nsysprof compare {RUN} --base RUN::math::S2", "RUN::math::S2048"),
    ],
)
def test_what_is_typed_is_completed(typed: str, offered: str) -> None:
    """A shell is offered what begins with the last word."""
    asked = {"_NSYSPROF_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'nsysprof'; from nsysprof.cli import main; main()"],
        env=os.environ | asked, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.split("\n")
    assert offered in lines, done.stderr
    assert all(line.startswith(typed.split()[-1]) for line in filter(None, lines))
