"""The parts of a capture one by one: the command, the names, the overhead, the fingerprint, the catalog."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nsysprof import catalog
from nsysprof.capture.child import Ended, run_child
from nsysprof.capture.compose import Tracing, nsys_command
from nsysprof.capture.driver import Driver
from nsysprof.capture.fingerprint import environment_hash, fingerprint
from nsysprof.capture.outputs import Outputs, making, outputs_of, publish
from nsysprof.capture.overhead import overhead_of
from nsysprof.capture.record import file_facts
from nsysprof.errors import NsysprofError
from nsysprof.nsys import Nsys

NSYS = Nsys(Path("/n/nsys"), (2025, 3, 2), "2025.3.2.474-v0")


def test_an_old_nsys_is_not_given_options_that_it_does_not_know() -> None:
    """Graph tracing came with 2021.5, context switches with 2021.3."""
    old = Nsys(Path("/n/nsys"), (2021, 2, 4), "2021.2.4.12")
    assert nsys_command(old, Tracing(), Path("out"), ["./a", "--b"]) == [
        "/n/nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--output=out", "./a", "--b",
    ]  # fmt: skip
    assert "--cuda-graph-trace=node" in nsys_command(NSYS, Tracing(), Path("out"), ["./a"])
    assert "--cuda-graph-trace=node" not in nsys_command(NSYS, Tracing(("nvtx",)), Path("out"), ["./a"])


NAMES = {
    (None, "sdpa-math"): ("traces", "sdpa-math"),
    ("run", "x"): ("traces", "run"),
    ("run.sqlite", "x"): ("traces", "run"),
    ("run.nsys-rep", "x"): ("traces", "run"),
    ("v1.5", "x"): ("traces", "v1.5"),
    ("out/run", "x"): ("out", "run"),
    ("./run", "x"): (".", "run"),
    ("/tmp/run.json", "x"): ("/tmp", "run"),
}


@pytest.mark.parametrize("given", NAMES)
def test_a_bare_name_goes_to_traces_and_a_path_where_it_says(given: tuple[str | None, str]) -> None:
    """Endings that a capture writes are not a part of the name, other dots are."""
    outputs = outputs_of(*given)
    assert (str(outputs.folder), outputs.name) == NAMES[given]
    assert outputs.path(".sqlite").name == f"{outputs.name}.sqlite"


def test_a_long_default_name_is_cut() -> None:
    """Twenty backends and lengths do not make a name that no file system takes."""
    assert len(outputs_of(None, "x" * 400).name) == 100


def test_publishing_is_all_or_nothing(tmp_path: Path) -> None:
    """Where the second name is taken, the first is taken back and the files stay where they were made."""
    parts = {tmp_path / name: tmp_path / f"final-{name}" for name in ("a", "b", "c")}
    for part in parts:
        part.write_text(part.name)
    (tmp_path / "final-b").write_text("mine")
    with pytest.raises(NsysprofError, match="final-b: exists already"):
        publish(parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "final-b"]
    assert (tmp_path / "final-b").read_text() == "mine"
    publish(parts, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final-a", "final-b", "final-c"]
    assert (tmp_path / "final-b").read_text() == "b"


def test_the_folder_of_a_capture_is_gone_however_it_ends(tmp_path: Path) -> None:
    """Also after an exception."""
    outputs = Outputs(tmp_path / "new" / "traces", "run")

    def fails() -> None:
        with making(outputs) as folder:
            assert folder.is_absolute()
            (folder / "file").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert list(outputs.folder.iterdir()) == []


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


def test_file_facts_are_size_and_digest(tmp_path: Path) -> None:
    """The digest is what sha256sum prints."""
    (tmp_path / "f").write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_facts(tmp_path / "f") == {"size_bytes": 3, "sha256": digest}


def test_a_log_on_a_full_disk_does_not_stop_the_program(tmp_path: Path) -> None:
    """What the program prints is still handed on."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    heard: list[str] = []
    ended = run_child([sys.executable, "-c", "print('x' * 100000)"], full, heard.append)
    assert ended.code == 0
    assert len("".join(heard)) >= 100_000


def test_the_code_of_a_killed_program_is_a_shells(tmp_path: Path) -> None:
    """128 + 15 for a SIGTERM, as a shell tells it."""
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"]
    assert run_child(command, tmp_path / "log", lambda text: None).code == 143


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
