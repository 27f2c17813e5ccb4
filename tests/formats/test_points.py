"""The file that a sweep grows in: what is lost when it is cut, what is refused, and who is tried again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.formats.points import add_line, begin_points, differing, read_points, resume_points

if TYPE_CHECKING:
    from _bench_points import Progress

WORKLOADS = Path(__file__).parents[2] / "workloads"
MACHINE = {"gpus": [{"name": "NVIDIA H200"}], "driver": "580.1", "cpu": "a CPU"}


def plan(**more: Any) -> dict[str, Any]:
    """Two configurations."""
    configurations = [{"id": name, "backends": ["math", "flash", "auto"]} for name in ("S1", "S2")]
    return {"schema": "nsysprof-bench-plan/1", "samples": 100, "seed": 0, "configurations": configurations, **more}


def head(**more: Any) -> dict[str, Any]:
    """What the first line of the file says."""
    return {"plan": plan(), "machine": MACHINE, "measure_peaks": False, **more}


def point(configuration: str, backend: str) -> dict[str, Any]:
    """The result of one backend."""
    return {"configuration": {"id": configuration}, "backend": backend, "status": "measured"}


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """A sweep of which one point is measured."""
    path = tmp_path / "x.partial" / "points.jsonl"
    path.parent.mkdir()
    begin_points(path, head())
    add_line(path, "start", environment={"torch": "2.11"})
    add_line(path, "trying", configuration="S1", backends=["math", "flash", "auto"])
    add_line(path, "point", point=point("S1", "math"))
    return path


def test_what_was_written_is_read(points: Path) -> None:
    """Points by their place, what is being tried, and how many there will be."""
    sweep = read_points(points)
    assert list(sweep.points) == [("S1", "math")]
    assert sweep.start is not None
    assert sweep.start["environment"] == {"torch": "2.11"}
    assert (sweep.planned, sweep.trying, sweep.done) == (6, "math flash auto at S1", False)
    add_line(points, "auto", configuration="S1", backend=None)
    add_line(points, "peaks", peaks={"flops": {}})
    add_line(points, "done")
    sweep = read_points(points)
    assert (sweep.auto, sweep.peaks, sweep.done) == ({"S1": None}, {"flops": {}}, True)


def test_a_line_that_was_cut_is_all_that_is_lost(points: Path) -> None:
    """Wherever the process was killed while it wrote; what follows is written on a line of its own."""
    whole = points.read_bytes()
    line = json.dumps({"kind": "point", "point": point("S1", "flash")}).encode()
    for length in range(len(line)):
        points.write_bytes(whole + line[:length])
        assert list(read_points(points).points) == [("S1", "math")]
        resume_points(points, head())
        assert points.read_bytes() == whole
    points.write_bytes(whole + line + b"\n")
    assert list(resume_points(points, head()).points) == [("S1", "math"), ("S1", "flash")]


DAMAGE: Mapping[str, tuple[bytes, bytes, str]] = {
    "bytes in the middle": (b'"kind": "start"', b"\x00\xff\x00", ":2: not a line of a sweep"),
    "half a line in the middle": (b'"torch": "2.11"}}\n', b'"torch', ":2: not a line of a sweep"),
    "NaN": (b'"status": "measured"', b'"status": NaN', ":4: not a line of a sweep: .*NaN is not a number"),
    "another kind of line": (b'"kind": "trying"', b'"kind": "dancing"', ":3: .*kind: invalid value 'dancing'"),
    "a point of nothing": (b'"backend": "math"', b'"backed": "math"', ":4: .*: point: 'backend' is missing"),
    "a list": (b'{"kind": "start", "environment": {"torch": "2.11"}}', b"[1]", ":2: not a line"),
    "another schema": (b"nsysprof-bench-points/1", b"nsysprof-bench-points/9", ":1: .*points/9"),
    "no plan": (b'"plan"', b'"plane"', ":1: not a line of a sweep: 'plan' is missing"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_refused_with_its_line(points: Path, case: str) -> None:
    """Never a traceback, never a sweep that goes on from what it guesses."""
    old, new, message = DAMAGE[case]
    content = points.read_bytes()
    assert old in content
    points.write_bytes(content.replace(old, new, 1))
    with pytest.raises(NsysprofError, match=message) as refused:
        resume_points(points, head())
    assert str(points) in refused.value.message
    assert refused.value.hint == "--force starts over"


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"null\n", b"SQLite format 3\x00\n", b'{"kind": "sweep"'])
def test_a_file_that_is_none_is_refused(points: Path, content: bytes) -> None:
    """Empty, of another program, or never begun."""
    points.write_bytes(content)
    with pytest.raises(NsysprofError, match=r"not a line of a sweep|expected a sweep file"):
        resume_points(points, head())


def test_another_plan_is_refused_by_what_differs(points: Path) -> None:
    """Every value, then configurations that are there or here alone, and other backends; many are cut short."""
    other = plan(samples=50)
    other["configurations"] = [{"id": "S1", "backends": ["math"]}, {"id": "S3", "backends": ["math"]}]
    with pytest.raises(NsysprofError) as refused:
        resume_points(points, head(plan=other))
    assert refused.value.message == (
        f"{points.parent}: started with another plan: samples 100 there, 50 here; S2 only there; S3 only here;"
        " backends of S1: math flash auto there, math here"
    )
    many = plan(configurations=[{"id": f"X{number}", "backends": []} for number in range(20)])
    with pytest.raises(NsysprofError, match=r"S1 only there; .*X2 only here; and 17 more"):
        resume_points(points, head(plan=many))
    turned = plan(configurations=plan()["configurations"][::-1])
    with pytest.raises(NsysprofError, match="the order of the configurations"):
        resume_points(points, head(plan=turned))


def test_another_machine_is_refused(points: Path) -> None:
    """Samples of two machines never make one sweep; what was typed differently is."""
    with pytest.raises(NsysprofError, match=r'another machine: driver "580\.1" there, "590\.2" here'):
        resume_points(points, head(machine={**MACHINE, "driver": "590.2"}))
    with pytest.raises(NsysprofError, match="started without --measure-peaks"):
        resume_points(points, head(measure_peaks=True))
    assert resume_points(points, head(machine=dict(reversed(MACHINE.items())))).planned == 6


def test_nothing_differs_between_equals() -> None:
    """Whatever the order of the keys."""
    assert differing(plan(), dict(reversed(plan().items()))) == []
    assert differing({"a": 1}, {"b": None}) == ["a 1 there, null here"]


# --- as the program that measures sees it ---


def progress(path: Path, monkeypatch: pytest.MonkeyPatch) -> Progress:
    """How far it is."""
    monkeypatch.syspath_prepend(str(WORKLOADS))
    from _bench_points import read

    return read(path)


def test_both_sides_read_the_same_file(points: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one writes, the other counts as done; the environment is that of the first process."""
    add_line(points, "start", environment={"torch": "2.12"})
    found = progress(points, monkeypatch)
    from _bench_points import append

    assert found.done == {(0, "S1", "math")}
    assert (found.environment, found.peaks) == ({"torch": "2.11"}, False)
    append(points, "point", point=point("S1", "flash"))
    append(points, "failed", message="no torch", hint="pip install torch")
    sweep = read_points(points)
    assert ("S1", "flash") in sweep.points
    assert sweep.failed == {"message": "no torch", "hint": "pip install torch"}
    append(points, "start", environment={"torch": "2.11"})
    assert read_points(points).failed is None


def test_who_was_killed_with_others_is_tried_alone_and_who_was_killed_alone_is_not(
    points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt blames nobody."""
    assert progress(points, monkeypatch).alone == set()
    add_line(points, "died", reason="killed by signal 9")
    found = progress(points, monkeypatch)
    assert found.alone == {("S1", "flash"), ("S1", "auto")}
    assert found.killed == {}
    add_line(points, "trying", configuration="S1", backends=["flash"])
    add_line(points, "died", reason="killed by signal 9")
    add_line(points, "trying", configuration="S2", backends=["auto"])
    found = progress(points, monkeypatch)
    assert found.killed == {("S1", "flash"): "killed by signal 9"}


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[]\n", b"text\n", b'{"schema": "x", "plan": {}}\n'])
def test_the_program_refuses_a_foreign_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """In a line; nobody but `nsysprof bench` starts it."""
    path = tmp_path / "points.jsonl"
    path.write_bytes(content)
    monkeypatch.syspath_prepend(str(WORKLOADS))
    from _results import WorkloadError

    with pytest.raises(WorkloadError) as refused:
        progress(path, monkeypatch)
    assert "is not a sweep file" in refused.value.message
