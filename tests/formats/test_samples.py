"""Reading samples.json: what is damaged, foreign or impossible is refused by name; the rest arrives as it is."""

import lzma
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import KINDS, read_bench_samples
from tests.kit.bench_samples import made_up, point_of, write_samples

Change = Callable[[dict[str, Any]], None]


def changed(folder: Path, change: Change) -> Path:
    """A file with math and flash at S=1024 to 4096 after a change."""
    data = made_up(samples=12)
    change(data)
    return write_samples(folder, data)


def of_flash(field: str, value: Any, at: int | None = None) -> Change:
    """Sets a field of flash at S=2048, or one of its entries."""

    def change(data: dict[str, Any]) -> None:
        point = point_of(data, "flash", 2048)
        if at is None:
            point[field] = value
        else:
            point[field][at] = value

    return change


def top(field: str, value: Any) -> Change:
    """Sets a field of the file."""

    def change(data: dict[str, Any]) -> None:
        data[field] = value

    return change


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """A file, and the folder that holds it, give the same points in the same order."""
    data = made_up(samples=12)
    path = write_samples(tmp_path, data)
    samples = read_bench_samples(path)
    assert [point.name for point in samples.points[:2]] == [
        "math at B1.H8.S1024.D64.fp16.causal",
        "flash at B1.H8.S1024.D64.fp16.causal",
    ]
    assert samples.points[1].latency_ns.tolist() == point_of(data, "flash", 1024)["latency_ns"]
    assert (samples.workload, samples.device, samples.backward) == ("sdpa", "cuda", False)
    assert samples.planned == len(samples.points) == 6
    assert read_bench_samples(tmp_path).digest == samples.digest
    assert samples.points[0].sm_clock_mhz == 1980


def test_the_gpu_is_read_from_environment_and_peaks(tmp_path: Path) -> None:
    """SMs, bandwidth from clock and bus, and the measured peaks."""
    limits = read_bench_samples(write_samples(tmp_path, made_up(samples=3))).limits
    assert (limits.name, limits.compute_capability, limits.sm_count) == ("NVIDIA H200", "9.0", 132)
    assert limits.bytes_per_s == 2 * 3201e6 * 6144 / 8
    assert limits.measured_peak("fp16") == 7.4e14
    assert limits.measured_bytes_per_s == 4.1e12


def test_throttled_samples_are_left_out_of_every_set(tmp_path: Path) -> None:
    """Of eager, A/A and graph samples, each by its own marks; the clock is that of the others."""

    def change(data: dict[str, Any]) -> None:
        point = point_of(data, "flash", 2048)
        point["throttled"] = [number < 3 for number in range(12)]
        point["aa_throttled"] = [number == 0 for number in range(12)]
        point["graph_throttled"] = [number > 9 for number in range(12)]
        for state in point["gpu"][:3]:
            state["sm_clock_mhz"] = 345

    samples = read_bench_samples(changed(tmp_path, change))
    point = next(each for each in samples.points if each.backend == "flash" and each.shape.sizes["seq"] == 2048)
    assert [len(point.samples(kind)) for kind in KINDS] == [9, 11, 10]
    assert (point.left_out, len(point.sets["eager"][0]), point.sm_clock_mhz) == (3, 12, 1980)


WRONG: dict[str, tuple[Change, str]] = {
    "NaN": (of_flash("latency_ns", math.nan, 4), r"latency_ns\[4\]: expected float >= 0\.001"),
    "infinite": (of_flash("aa_latency_ns", math.inf, 0), r"aa_latency_ns\[0\]: expected float <= 1e\+18"),
    "zero": (of_flash("latency_ns", 0, 1), r"latency_ns\[1\]: expected float >= 0\.001"),
    "negative": (of_flash("graph_latency_ns", -5.0, 2), r"graph_latency_ns\[2\]: expected float >= 0\.001"),
    "null": (of_flash("latency_ns", None, 3), r"latency_ns\[3\]: expected float, got null"),
    "text": (of_flash("latency_ns", "fast", 3), r"latency_ns\[3\]: expected float, got str"),
    "boolean": (of_flash("latency_ns", True, 3), r"latency_ns\[3\]: expected float, got bool"),
    "no samples": (of_flash("latency_ns", []), "latency_ns is empty, although the point was measured"),
    "not a list": (of_flash("latency_ns", 5), r"latency_ns: expected array \| null, got int"),
    "marks missing": (of_flash("throttled", [False]), "throttled: 1 entries for 12 samples"),
    "runs missing": (of_flash("aa_run", [0, 1]), "aa_run: 2 entries for 12 samples"),
    "marks": (of_flash("throttled", [0] * 12), r"throttled\[0\]: expected bool, got int"),
    "status": (of_flash("status", "fine"), "status: 'fine' is not one of"),
    "NaN memory": (of_flash("memory", {"peak_bytes": math.nan}), r"memory\[\.\.\.\]: expected float >= 0\.0"),
    "calls": (of_flash("calls_per_sample", 0), "calls_per_sample: expected int >= 1"),
    "tolerances": (
        of_flash("tolerances", {"output": "tight"}),
        r"tolerances\[\.\.\.\]: expected float \| null, got str",
    ),
    "no errors": (of_flash("errors", [1]), r"errors: expected object \| null, got array"),
    "a number of 400 digits": (of_flash("latency_ns", 10**400, 4), r"latency_ns\[4\]: number out of range"),
    "longer than a life": (of_flash("latency_ns", 1.7e308, 4), r"latency_ns\[4\]: expected float <= 1e\+18"),
    "shorter than light": (of_flash("latency_ns", 1e-300, 4), r"latency_ns\[4\]: expected float >= 0\.001"),
    "a large tolerance": (of_flash("tolerance", 10**400), "tolerance: number out of range"),
    "large memory": (
        of_flash("memory", {"peak_bytes": 10**30}),
        r"memory\[\.\.\.\]: expected float <= 4\.611686018427388e\+18",
    ),
    "too few states": (of_flash("gpu", [{}] * 3), "gpu: 3 entries for 12 samples"),
    "no states": (of_flash("gpu", [5] * 12), r"gpu\[0\]: expected object \| null, got int"),
    "no clock": (
        of_flash("gpu", [{"sm_clock_mhz": "fast"}] * 12),
        r"gpu\[0\]\.sm_clock_mhz: expected float \| null, got str",
    ),
    "no company": (of_flash("sampled_with", 5), r"sampled_with: expected array \| null, got int"),
    "odd company": (of_flash("sampled_with", [1, "a", [1]]), r"sampled_with\[0\]: expected str, got int"),
    "no cache": (of_flash("cache", ["cold"]), r"cache: expected str \| null, got array"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_by_file_point_and_field(tmp_path: Path, case: str) -> None:
    """The message names all three, so that the place can be found."""
    change, message = WRONG[case]
    path = changed(tmp_path, change)
    with pytest.raises(NsysprofError, match=message) as refused:
        read_bench_samples(path)
    assert str(path) in refused.value.message
    assert "points[3] (flash at B1.H8.S2048.D64.fp16.causal)" in refused.value.message


FOREIGN: dict[str, tuple[Change, str]] = {
    "workload": (
        top("schema", "nsysprof-workload/1"),
        "is not a samples file of nsysprof bench: the schema is 'nsysprof-workload/1'",
    ),
    "no schema": (top("schema", None), "the file states no schema"),
    "no points": (top("points", None), "points: expected array, got null"),
    "no plan": (top("plan", "math-vs-flash"), "plan: expected object, got str"),
    "points": (top("points", [3]), r"points\[0\]: expected object, got int"),
    "no hash": (top("environment_hash", ""), "environment_hash: expected str of length >= 1"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path: Path, case: str) -> None:
    """Files of other programs, and files that lack a part."""
    change, message = FOREIGN[case]
    with pytest.raises(NsysprofError, match=message):
        read_bench_samples(changed(tmp_path, change))


@pytest.mark.parametrize("content", [b"", b'{"schema": "nsysprof-bench/1", "poi', b"\xff\xfe", b"[1, 2]", b"[" * 9999])
def test_what_is_no_json_is_corrupt_or_foreign(tmp_path: Path, content: bytes) -> None:
    """Empty, cut off, binary and deeply nested files end in one line."""
    path = tmp_path / "samples.json"
    path.write_bytes(content)
    with pytest.raises(NsysprofError, match=r"samples\.json is (corrupt|not a samples file)"):
        read_bench_samples(path)


def inside(*path: Any) -> Change:
    """Sets what lies deeper in the file: the last part is the value."""

    def change(data: Any) -> None:
        *ways, field, value = path
        for way in ways:
            data = data[way]
        data[field] = value

    return change


DAMAGED: dict[str, tuple[Change, str]] = {
    "no points": (top("points", []), "points: expected array of length >= 1"),
    "GPUs": (inside("environment", "gpus", {"a": 1}), r"environment\.gpus: expected array \| null, got object"),
    "a number of GPUs": (inside("environment", "gpus", 5), r"environment\.gpus: expected array \| null, got int"),
    "software": (inside("environment", "workload", "x"), r"environment\.workload: expected object \| null, got str"),
    "a list of software": (
        inside("environment", "workload", [1]),
        r"environment\.workload: expected object \| null, got array",
    ),
    "a device": (inside("environment", "workload", "device", 5), r"environment: device: expected str \| null, got int"),
    "backends": (
        inside("plan", "configurations", 0, "backends", 5),
        r"plan\.configurations\[0\]\.backends: expected array, got int",
    ),
    "a sequence": (
        inside("points", 0, "configuration", "seq", 10**12),
        r"points\[0\]: configuration\.seq: expected int <= 2147483647",
    ),
    "more than 64 bits": (
        inside("workload", "configurations", 0, "cost", "flops", 2**62),
        r"points\[0\] \(math at B1\.H8\.S1024.*: 1024: operation count per call",
    ),
    "no cost": (
        inside("workload", "configurations", 0, "id", "another"),
        r"points\[0\] \(math at B1\.H8\.S1024.*: workload\.configurations: no configuration has this id",
    ),
    "no workload": (top("workload", None), "workload: expected object, got null"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_by_its_field(tmp_path: Path, case: str) -> None:
    """What is no part of a point, and sizes that nobody can count with."""
    change, message = DAMAGED[case]
    with pytest.raises(NsysprofError, match=message):
        read_bench_samples(changed(tmp_path, change))


def test_names_that_cannot_be_written_become_readable(tmp_path: Path) -> None:
    """Half a surrogate pair, which JSON can hold, is in no file and on no terminal."""
    samples = read_bench_samples(changed(tmp_path, top("name", "caf\udce9")))
    assert samples.name == "caf?"


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """The path, and what makes such a file."""
    with pytest.raises(NsysprofError, match=r"cannot read .*samples\.json") as refused:
        read_bench_samples(tmp_path)
    assert "nsysprof bench" in str(refused.value.hint)


def test_a_point_that_is_there_twice_is_corrupt(tmp_path: Path) -> None:
    """Nobody could say which of them counts."""
    with pytest.raises(NsysprofError, match=r"math at B1\.H8\.S1024\.D64\.fp16\.causal occurs twice"):
        read_bench_samples(changed(tmp_path, lambda data: data["points"].append(data["points"][0])))


def test_unsupported_points_have_no_samples(tmp_path: Path) -> None:
    """They keep their status and reason, and the others are measured."""
    data = made_up(dtypes={"fp32": ("math", "flash")}, samples=3)
    samples = read_bench_samples(write_samples(tmp_path, data))
    assert [point.backend for point in samples.measured] == ["math"] * 3
    refused = samples.points[1]
    assert refused.status == "unsupported"
    assert "dtype" in str(refused.reason)
    assert np.array_equal(refused.latency_ns, [])


def test_samples_of_what_is_not_measured_do_not_count(tmp_path: Path) -> None:
    """A wrong result is no fast one."""
    samples = read_bench_samples(changed(tmp_path, of_flash("status", "wrong")))
    point = next(each for each in samples.points if each.status == "wrong")
    assert [len(point.samples(kind)) for kind in KINDS] == [0, 0, 0]
    assert point not in samples.measured


def test_packed_samples_are_the_same_samples(tmp_path: Path) -> None:
    """As ``samples.json.xz`` alone in a folder; a file that ends early, or unpacks to much, is refused by name."""
    plain = write_samples(tmp_path)
    before = read_bench_samples(tmp_path)
    packed = tmp_path / "samples.json.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    plain.unlink()
    after = read_bench_samples(tmp_path)
    assert (after.path, after.digest, len(after.points)) == (packed, before.digest, len(before.points))
    bomb = lzma.compress(bytes(65 << 20), preset=0)
    for damaged in (packed.read_bytes()[:-8], b"{}", bomb):
        packed.write_bytes(damaged)
        with pytest.raises(NsysprofError, match=r"samples\.json\.xz is a damaged xz file"):
            read_bench_samples(tmp_path)
