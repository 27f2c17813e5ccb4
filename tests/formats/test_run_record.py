"""Run records: what a capture and a workload leave, what is none, and records without the arguments of programs."""

import json
from pathlib import Path
from shlex import join
from typing import Any

import pytest

from nsysprof.core.document import read_if_document
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import (
    RecordedRun,
    file_facts,
    program_alone,
    read_runs,
    record_beside,
    without_arguments,
    write_record,
)

RUN = {
    "range": "RUN::math::S8",
    "status": "measured",
    "batch": 1,
    "heads": 8,
    "seq": 4096,
    "head_dim": 64,
    "dtype": "fp16",
    "causal": True,
    "backward": False,
    "latency_ns": [10, 12],
    "latency_clock": "cuda events",
}
READ = RecordedRun((10, 12), 1, 8, 4096, 64, "fp16", True, False)


def workload(*runs: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "nsysprof-workload/1", "workload": "sdpa", "runs": list(runs)}


def write(folder: Path, what: object, name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
    return path


def test_results_of_a_workload_and_records_of_a_capture_are_read(tmp_path: Path) -> None:
    """The one holds the other; both say the same."""
    assert read_runs(write(tmp_path, workload(RUN))) == {"RUN::math::S8": READ}
    record = {"schema": "nsysprof-run/1", "name": "run", "workload": workload(RUN)}
    assert read_runs(write(tmp_path, record)) == {"RUN::math::S8": READ}


def test_a_capture_of_any_program_has_no_runs(tmp_path: Path) -> None:
    """Only workloads measure themselves."""
    assert read_runs(write(tmp_path, {"schema": "nsysprof-run/1", "workload": None})) == {}


def test_only_what_was_measured_by_events_is_a_clock(tmp_path: Path) -> None:
    """A run that failed has no times, and those of the host's clock are not CUDA events."""
    failed = {**RUN, "range": "RUN::fish::S8", "status": "unsupported"}
    host = {**RUN, "latency_clock": "perf_counter"}
    odd = {
        **RUN,
        "range": "RUN::odd::S8",
        "latency_ns": [5, "x", -1, True, 10**30],
        "seq": "many",
        "heads": 2**53 + 1,
        "causal": 1,
        "dtype": 3,
    }
    assert read_runs(write(tmp_path, workload(failed, host, odd))) == {
        "RUN::math::S8": RecordedRun((), 1, 8, 4096, 64, "fp16", True, False),
        "RUN::odd::S8": RecordedRun((5,), 1, None, None, 64, None, None, False),
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("{", "not JSON, so no run record"),
        ("[" * 200_000, "not JSON, so no run record"),
        ([1], "the schema must be "),
        ({"schema": "other"}, "the schema must be "),
        ({"schema": "nsysprof-run/1", "workload": {"schema": "x"}}, "is not a run record: its "),
    ],
)
def test_what_is_no_record_is_refused(what: object, message: str, tmp_path: Path) -> None:
    """One that was named must be one; a file of the same name beside a report is simply not it."""
    path = write(tmp_path, what)
    with pytest.raises(NsysprofError, match=message):
        read_runs(path)
    assert record_beside(tmp_path / "run.sqlite") is None


def test_a_record_that_is_not_there(tmp_path: Path) -> None:
    """Named, it is an error with its path; beside a report it need not exist."""
    with pytest.raises(NsysprofError, match=r"none\.json: cannot read the run record: No such file"):
        read_runs(tmp_path / "none.json")
    assert record_beside(tmp_path / "none.sqlite") is None


def test_the_record_beside_a_report_has_its_name(tmp_path: Path) -> None:
    """`run.json` goes with `run.sqlite`."""
    path = write(tmp_path, workload(RUN))
    assert record_beside(tmp_path / "run.sqlite") == path
    assert record_beside(tmp_path / "run.json.gz") == path
    assert record_beside(path) is None  # a trace that is not packed has that name itself


def test_runs_that_are_none_are_none(tmp_path: Path) -> None:
    """A list of something else, or no list at all."""
    assert read_runs(write(tmp_path, {"schema": "nsysprof-workload/1", "runs": "x"})) == {}
    assert read_runs(write(tmp_path, {"schema": "nsysprof-workload/1", "runs": [1, {}]})) == {}


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
    assert counted["runs"] == [{"name": "traffic", "ncu_command": "ncu --nvtx python [3 arguments]"}, {"name": "work"}]


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
    found = without_arguments(record(*options, program="sleep 1" if workload else join(PROGRAM), workload=workload))
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


def test_a_record_is_short_and_comes_back_as_it_was(tmp_path: Path) -> None:
    """Samples stand on one line, however many; names that are not UTF-8 survive; NaN is read as None."""
    record = {
        "command": "echo caf\udce9 ü",
        "latency_ns": list(range(10_000_000, 10_000_100)),
        "runs": [{"range": "RUN::math::S1024", "errors": {"output": 1e-7}}, {"range": "x" * 120}],
        "workload": None,
    }
    path = tmp_path / "record.json"
    write_record(path, record)
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert len(path.read_text(encoding="utf-8").splitlines()) == 11
    assert [one.name for one in tmp_path.iterdir()] == ["record.json"]
    path.write_text('{"error": NaN, "largest": -Infinity}')
    assert read_if_document(path) == {"error": None, "largest": None}


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", "[" * 100_000])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    """A half-written one, or something else of that name."""
    (tmp_path / "record.json").write_text(text)
    assert read_if_document(tmp_path / "record.json") == {}


def test_file_facts_are_size_and_digest(tmp_path: Path) -> None:
    """The digest is what sha256sum prints."""
    (tmp_path / "f").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_facts(tmp_path / "f") == {"size_bytes": 3, "sha256": digest}
