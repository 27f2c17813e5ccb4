"""The parts of a capture one by one: command, failures, record, import, overhead, fingerprint, catalog."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from nsysprof import catalog
from nsysprof.capture.compose import Request, nsys_command
from nsysprof.capture.failure import check_ended, last_message
from nsysprof.capture.outputs import Outputs
from nsysprof.capture.session import capture_program, overhead_of
from nsysprof.core.document import read_if_document
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import file_facts, write_record
from nsysprof.tools.child import Ended
from nsysprof.tools.driver import Driver
from nsysprof.tools.fingerprint import environment_hash, fingerprint, rank_in_job
from nsysprof.tools.nsys import Nsys, import_stream

NSYS = Nsys(Path("/n/nsys"), (2025, 3, 2), "2025.3.2.474-v0")
PROGRAM = ("./a",)


def test_an_old_nsys_is_not_given_options_that_it_does_not_know() -> None:
    """Graph tracing came with 2021.5, context switches with 2021.3."""
    old = Nsys(Path("/n/nsys"), (2021, 2, 4), "2021.2.4.12")
    assert nsys_command(Request(("./a", "--b"), old), Path("out")) == [
        "/n/nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--output=out", "./a", "--b",
    ]  # fmt: skip
    assert "--cuda-graph-trace=node" in nsys_command(Request(PROGRAM, NSYS), Path("out"))
    assert "--cuda-graph-trace=node" not in nsys_command(Request(PROGRAM, NSYS, ("nvtx",)), Path("out"))


@pytest.mark.parametrize(
    ("extra", "left"),
    [
        (("--sample=process-tree",), "--sample=none"),
        (("-s", "process-tree"), "--sample=none"),
        (("-sprocess-tree",), "--sample=none"),
        (("--cuda-graph-trace=graph",), "--cuda-graph-trace=node"),
    ],
)
def test_an_argument_for_nsys_takes_the_place_of_our_own(extra: tuple[str, ...], left: str) -> None:
    """nsys ends with an error where an option is there twice."""
    command = nsys_command(Request(PROGRAM, NSYS, extra=extra), Path("out"))
    assert left not in command
    assert [one for one in command if one in extra] == list(extra)
    assert left in nsys_command(Request(PROGRAM, NSYS), Path("out"))


@pytest.mark.parametrize("extra", ["--output=x", "-o", "-ox"])
def test_nobody_else_says_where_the_report_goes(extra: str) -> None:
    """It would not be found there, and -o alone would swallow the next option."""
    with pytest.raises(NsysprofError, match="--output is nsysprof's own"):
        nsys_command(Request(PROGRAM, NSYS, extra=(extra,)), Path("out"))


@pytest.mark.parametrize("extra", [("--env-var=A=B",), ("--env-var", "A=B"), ("-eA=B",), ("-e", "A=B")])
def test_a_range_to_capture_goes_with_other_variables(extra: tuple[str, ...]) -> None:
    """Both set environment variables, by one option that nsys takes once, in whichever way it is written."""
    request = Request(PROGRAM, NSYS, capture_range="nvtx:step", extra=extra)
    command = nsys_command(request, Path("out"))
    assert command[-len(extra) - 2 : -2] == [
        *extra[:-1],
        f"{extra[-1]},NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
    ]
    assert str(command).count("REGISTER_ONLY") == 1


def test_a_percent_sign_in_a_folder_is_one(tmp_path: Path) -> None:
    """nsys would put its process id for %p."""
    assert "--output=100%%p/out" in nsys_command(Request(PROGRAM, NSYS), Path("100%p", "out"))


def test_a_program_that_nsys_ends_after_its_duration_did_not_fail(tmp_path: Path) -> None:
    """Otherwise the same exit code, SIGTERM's, is a failure, told with the name of the signal."""
    limited = Request(PROGRAM, NSYS, extra=("--duration=5",))
    check_ended(Ended(143, 0), limited, tmp_path)
    with pytest.raises(NsysprofError, match=r"exit code 143 \(SIGTERM\)") as caught:
        check_ended(Ended(143, 0), Request(PROGRAM, NSYS), tmp_path)
    assert caught.value.exit_code == 143


def test_a_full_folder_for_temporary_files_is_refused_before_nsys_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsys records there, and waits for ever where it cannot."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(NsysprofError, match=r"only 1.00 MiB free in .*, where nsys keeps") as caught:
        capture_program(Request((sys.executable,), NSYS), tmp_path, Outputs(tmp_path, "run"), (), print)
    assert "TMPDIR=FOLDER" in str(caught.value.hint)


USAGE = "\n\nusage: nsys profile [<args>]\nTry 'nsys profile --help' for more information.\n"
CHATTER = "\nGenerating '/tmp/x.qdstrm'\nGenerated:\n    /tmp/x.qdstrm\n"
SAID = {
    f"option '--sample' cannot be specified more than once{USAGE}": "option '--sample' cannot",
    f"Illegal --trace argument 'x'\nPossible values are 'cuda'{USAGE}": "Illegal --trace",
    f"hello\nFailed to create 'x': No space left on device.{CHATTER}": "Failed to create",
    f"so far\nValueError: no{CHATTER}": "ValueError: no",
}


@pytest.mark.parametrize("text", SAID)
def test_the_reason_of_a_failure_is_neither_usage_nor_chatter(text: str) -> None:
    """What nsys prints around it says nothing."""
    assert last_message(Ended(1, 0, text)).startswith(SAID[text])


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


def importer(folder: Path, text: str) -> Nsys:
    """An nsys whose importer is a shell script."""
    path = folder / "host-linux-x64" / "QdstrmImporter"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return Nsys(folder / "target-linux-x64" / "nsys", (2025, 3), "2025.3.2")


def test_an_import_that_fails_half_way_leaves_no_report(tmp_path: Path) -> None:
    """Otherwise it would be kept for a whole one, and the stream thrown away."""
    (tmp_path / "a.qdstrm").write_text("a stream")
    nsys = importer(tmp_path, 'echo half > "$4"; echo "std::exception::what: disk full" >&2; exit 1')
    with pytest.raises(NsysprofError, match="disk full"):
        import_stream(tmp_path / "a.qdstrm", tmp_path / "a.nsys-rep", nsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.qdstrm", "host-linux-x64"]


def test_missing_libraries_are_named_with_what_can_be_installed(tmp_path: Path) -> None:
    """A command for packages that are known; no made-up package for a library of nsys's own."""
    (tmp_path / "a.qdstrm").touch()
    said = "echo 'x: error while loading shared libraries: {}: cannot open' >&2; exit 127"
    for library, fix in (
        ("libdw.so.1", "apt-get install libdw1 (Fedora, RHEL: dnf install elfutils-libs)"),
        ("libAnalysis.so", "install the package with libAnalysis.so, or nsys again"),
    ):
        (tmp_path / library).mkdir()
        nsys = importer(tmp_path / library, said.format(library))
        with pytest.raises(NsysprofError, match=f"{library} is missing") as caught:
            import_stream(tmp_path / "a.qdstrm", tmp_path / "a.nsys-rep", nsys)
        assert caught.value.hint == fix


def test_the_overhead_is_a_ratio_of_medians_per_range() -> None:
    """Ranges that were measured in one of the runs only are left out."""
    plain = {"runs": [{"range": "a", "latency_ns": [10, 20, 30]}, {"range": "b", "latency_ns": []}]}
    profiled = {"runs": [{"range": "a", "latency_ns": [30, 31, 29]}, {"range": "c", "latency_ns": [1]}]}
    overhead = overhead_of(Ended(0, 100), Ended(0, 250), plain, profiled)
    assert overhead["wall_ratio"] == 2.5
    assert overhead["median_ratio"] == 1.5
    assert overhead["ranges"] == [
        {"range": "a", "samples": 3, "plain_median_ns": 20, "profiled_median_ns": 30, "ratio": 1.5}
    ]
    assert overhead_of(Ended(0, 100), Ended(0, 250), None, None)["median_ratio"] is None


def test_the_hash_is_of_what_is_stable() -> None:
    """The same machine hashes alike whatever the order of keys; another driver or a precision flag does not."""
    driver = Driver("580.1", (13, 0), ({"name": "NVIDIA H200"},))
    flags = {"torch": "2.11.0", "precision": {"allow_tf32_matmul": False}}
    first = fingerprint(NSYS, driver, flags)
    assert first["driver_cuda"] == "13.0"
    assert environment_hash(first) == environment_hash(dict(reversed(list(first.items()))))
    other = fingerprint(NSYS, driver, {**flags, "precision": {"allow_tf32_matmul": True}})
    newer = fingerprint(NSYS, Driver("581.0", (13, 0), driver.gpus), flags)
    assert len({environment_hash(one) for one in (first, other, newer, fingerprint(NSYS, None, None))}) == 4
    json.dumps(first)


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        ({"WORLD_SIZE": "2"}, None),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}, {"rank": 3, "local_rank": 1, "world_size": 4}),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "7"}, {"rank": 0}),
        ({"RANK": "first", "SLURM_PROCID": "2", "SLURM_NTASKS": "8"}, {"rank": 2, "world_size": 8}),
    ],
)
def test_rank_in_job(variables: dict[str, str], job: dict[str, int] | None) -> None:
    """What launchers tell a process of its place in a job is known by the names that they use."""
    assert rank_in_job(variables) == job


def test_file_facts_are_size_and_digest(tmp_path: Path) -> None:
    """The digest is what sha256sum prints."""
    (tmp_path / "f").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_facts(tmp_path / "f") == {"size_bytes": 3, "sha256": digest}


def test_the_workloads_are_found_in_a_wheel_and_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside the package, else beside it; private modules are none."""
    monkeypatch.setattr(catalog, "_HERE", tmp_path / "nsysprof")
    for folder in (tmp_path / "workloads", tmp_path / "nsysprof" / "workloads"):
        folder.mkdir(parents=True)
        for name in ("sdpa.py", "_harness.py", "__init__.py"):
            (folder / name).touch()
        assert catalog.list_workloads() == {"sdpa": folder / "sdpa.py"}
    with pytest.raises(NsysprofError, match="no workload 'x'") as caught:
        catalog.find_workload("x")
    assert "sdpa" in str(caught.value.hint)
