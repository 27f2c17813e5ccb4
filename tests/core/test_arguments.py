"""What a record and a page say of a program: its name, and none of its arguments."""

from __future__ import annotations

from shlex import join
from typing import Any

import pytest

from nsysprof.formats.run_record import program_alone, without_arguments

SECRET = "hunter2"
PROGRAM = ["/home/al/bin/python", "train.py", f"--password={SECRET}", f"/data/{SECRET}/x y"]
TYPED = ["nsysprof", "capture", "-o", "train", "--"]


def record(*options: str, **parts: Any) -> dict[str, Any]:
    """A record of a program, captured with these options for nsys."""
    return {
        "command": join([*TYPED, *PROGRAM]),
        "program": join(PROGRAM),
        "nsys_command": join(["/opt/nsys", "profile", "--trace=cuda,nvtx", *options, *PROGRAM]),
        "wall_ns": 5,
        "workload": None,
        **parts,
    }


def test_the_arguments_of_a_program_are_counted_and_gone() -> None:
    """In all commands that name it; what belongs to nsysprof and nsys stays, and so does everything else."""
    found = without_arguments(record())
    assert found["program"] == "python [3 arguments]"
    assert found["command"] == "nsysprof capture -o train -- python [3 arguments]"
    assert found["nsys_command"] == "/opt/nsys profile --trace=cuda,nvtx python [3 arguments]"
    assert (found["wall_ns"], found["workload"]) == (5, None)
    runs = [{"name": "traffic", "ncu_command": join(["ncu", "--nvtx", *PROGRAM])}, {"name": "work"}]
    counted = without_arguments(record(runs=runs))
    assert counted["runs"] == [
        {"name": "traffic", "ncu_command": "ncu --nvtx python [3 arguments]"},
        {"name": "work"},
    ]


def test_the_options_of_a_workload_stay() -> None:
    """They are nsysprof's own, and say what was measured."""
    own = record(workload={"schema": "nsysprof-workload/1", "runs": []})
    assert without_arguments(own) == own


@pytest.mark.parametrize(
    "options",
    [
        (f"--env-var=token={SECRET},OTHER={SECRET}",),
        ("--env-var", f"token={SECRET}"),
        (f"-etoken={SECRET}",),
        ("-e", f"token={SECRET}"),
        (f"--nsys-arg=--env-var=token={SECRET}",),
        ("--nsys-arg", "-e", "--nsys-arg", f"token={SECRET}"),
        (f"API_KEY={SECRET}",),
    ],
)
@pytest.mark.parametrize("workload", [None, {"runs": []}])
def test_variables_that_nsys_is_to_set_lose_their_values(options: tuple[str, ...], workload: Any) -> None:
    """However they are written; their names stay."""
    command = join(["nsysprof", "capture", *options])
    found = without_arguments(
        record(*options, program="sleep 1" if workload else join(PROGRAM), workload=workload)
    )
    options_alone = without_arguments({"command": command, "program": "x", "workload": {}})["command"]
    assert SECRET not in options_alone
    assert "=..." in options_alone
    assert workload or SECRET not in str(found)


@pytest.mark.parametrize("odd", ["python 'unbalanced", "", "python other", 5, None])
def test_a_program_that_is_not_the_end_of_a_command_leaves_nothing_of_it(odd: object) -> None:
    """Records are read from files that anybody may have written."""
    found = without_arguments({**record(), "program": odd})
    assert SECRET not in str(found)


def test_a_program_without_arguments_is_its_name() -> None:
    """Its folder goes, on Windows too."""
    assert program_alone(["/home/al/train"]) == ["train"]
    assert program_alone(["C:\\Users\\al\\train.exe", "1"]) == ["train.exe", "[1 argument]"]
    assert program_alone([]) == [""]
