"""The real nsys: what it profiles, exports and refuses, and what it leaves behind when it fails."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import version_numbers
from nsysprof.tools.nsys import Nsys, export, find_importer, header_version, stats
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.reports import source_of
from tests.kit.trace import Range, launch_kernel

pytestmark = pytest.mark.nsys

STEPS = 4000
PROGRAM = f"""
import nvtx
for step in range({STEPS}):
    with nvtx.annotate(f"step {{step}}"):
        pass
"""


@pytest.fixture(scope="module")
def profiled(real_nsys: Nsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `nsys profile` makes of a program with NVTX ranges: a .nsys-rep, or a .qdstrm without its importer."""
    folder = tmp_path_factory.mktemp("profile")
    quiet = ["--sample=none", "--cpuctxsw=none", "--trace=nvtx"]
    command = [str(real_nsys.path), "profile", *quiet, "-o", str(folder / "run"), sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=folder)
    made = [folder / f"run{ending}" for ending in (".nsys-rep", ".qdstrm")]
    found = next((path for path in made if path.is_file()), None)
    if found is None:
        pytest.skip(f"nsys profile made nothing here: {(done.stdout + done.stderr)[-200:]}")
    return found


@pytest.fixture(scope="module")
def rep(real_nsys: Nsys, profiled: Path) -> Path:
    """A .nsys-rep of this nsys, imported by its own importer where nsys did not find that."""
    if profiled.suffix == ".nsys-rep":
        return profiled
    importer = find_importer(real_nsys)
    if importer is None:
        pytest.skip("this nsys has no importer: it cannot make a .nsys-rep")
    made = profiled.with_suffix(".nsys-rep")
    command = [str(importer), "-i", str(profiled), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0 or not made.is_file():
        pytest.skip(f"the importer does not run here: {(done.stdout + done.stderr).strip()[-200:]}")
    return made


def digest(path: Path) -> str:
    """A hash of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(folder: Path) -> list[str]:
    """What lies in the folder."""
    return sorted(entry.name for entry in folder.iterdir())


def test_a_stream_that_was_not_imported_names_its_version(real_nsys: Nsys, profiled: Path) -> None:
    """An nsys without importer leaves a .qdstrm; the error has its version and the command to import it."""
    stream = profiled.with_suffix(".qdstrm")
    if not stream.is_file():
        pytest.skip("this nsys imports by itself")
    with pytest.raises(NsysprofError) as caught:
        open_report(stream)
    assert f"raw recording of nsys {real_nsys.version_text}" in caught.value.message
    assert str(caught.value.hint).endswith(f"nsysprof capture --resume {stream}")


def test_a_report_is_exported_and_the_export_removed(real_nsys: Nsys, rep: Path) -> None:
    """Opening a .nsys-rep gives its tables; the file keeps its bytes and its folder gets no new entry."""
    before = digest(rep), names(rep.parent)
    with open_report(rep) as report:
        assert report.file != rep
        assert report.format == "sqlite"
        assert "StringIds" in source_of(report).tables()
        assert report.about.export_version is not None
        assert version_numbers(report.about.export_version)[:2] == real_nsys.version[:2]
        assert report.about.nsys_version == header_version(rep) or header_version(rep) is None
        assert report.about.duration_ns is not None
        folder = report.file.parent
    assert not folder.exists()
    assert before == (digest(rep), names(rep.parent))


def test_an_asked_for_export_stays_and_is_never_overwritten(rep: Path, tmp_path: Path) -> None:
    """A file or a folder may be named; a second export to the same place is refused."""
    with open_report(rep, export_to=tmp_path / "mine.sqlite") as report:
        assert report.file == tmp_path / "mine.sqlite"
    kept = digest(tmp_path / "mine.sqlite")
    with pytest.raises(NsysprofError, match="exists already"):
        open_report(rep, export_to=tmp_path / "mine.sqlite")
    assert digest(tmp_path / "mine.sqlite") == kept
    open_report(rep, export_to=tmp_path).close()
    assert names(tmp_path) == ["mine.sqlite", "run.sqlite"]


def test_a_truncated_report_is_refused_by_name(rep: Path, tmp_path: Path) -> None:
    """nsys does not find the table at the end of the file; nothing is left."""
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes(rep.read_bytes()[:-1000])
    (tmp_path / "out").mkdir()
    with pytest.raises(NsysprofError, match="truncated or damaged"):
        open_report(cut, export_to=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_newer_report_is_refused_with_both_versions(real_nsys: Nsys, rep: Path, tmp_path: Path) -> None:
    """By the header before nsys runs, and in nsys's own words when it runs."""
    made_by = header_version(rep)
    if made_by is None:
        pytest.skip("reports of this nsys do not have its version in their header")
    newer = tmp_path / "newer.nsys-rep"
    newer.write_bytes(rep.read_bytes().replace(made_by[:4].encode(), b"2099", 1))
    said = f"made by nsys 2099{made_by[4:]}, which is newer than the installed nsys {real_nsys.version_text}"
    with pytest.raises(NsysprofError) as caught:
        open_report(newer, nsys=real_nsys.path)
    assert said in caught.value.message
    with pytest.raises(NsysprofError) as caught:
        export(real_nsys, newer, tmp_path / "out.sqlite")
    assert said in caught.value.message


def test_what_a_failed_nsys_leaves_is_refused_as_half_written(real_nsys: Nsys, rep: Path, tmp_path: Path) -> None:
    """A report damaged in the middle: nsys stops there and leaves an SQLite file that looks whole."""
    with open_report(rep) as whole:
        if source_of(whole).rows("NVTX_EVENTS") < STEPS:
            pytest.skip("this nsys does not record the ranges of this nvtx package")
    content = rep.read_bytes()
    left = []
    for part in range(3, 10):
        damaged = bytearray(content)
        at = len(content) * part // 10
        damaged[at : at + 400] = bytes(byte ^ 0x5A for byte in damaged[at : at + 400])
        report = tmp_path / f"{part}.nsys-rep"
        report.write_bytes(damaged)
        out = tmp_path / f"{part}.sqlite"
        command = [str(real_nsys.path), "export", "--type", "sqlite", "-o", str(out), str(report)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        if done.returncode == 0:
            continue
        with pytest.raises(NsysprofError):
            open_report(report, nsys=real_nsys.path)
        if out.is_file():
            left.append(out)
            with pytest.raises(NsysprofError, match=r"unfinished export|is empty"):
                open_report(out)
    assert left, "no damage made nsys stop part-way"


def test_stats_of_a_report_leave_it_alone(real_nsys: Nsys, trace: MakeTrace) -> None:
    """The projected trace of one range with one kernel, under the new or the old name of nsys's report."""
    report = trace(Range("step", 0, 100), *launch_kernel("gemm", (10, 15), (20, 30), id=1))
    before = digest(report), names(report.parent)
    rows = stats(real_nsys, report, "nvtx_gpu_proj_trace")
    assert [
        (row["Name"].lstrip(":"), row["Projected Start (ns)"], row["Projected Duration (ns)"], row["NumGPUOps"])
        for row in rows
        if row["Style"] == "PushPop"
    ] == [("step", "20", "10", "1")]
    assert before == (digest(report), names(report.parent))


def test_stats_without_the_data_are_no_rows(real_nsys: Nsys, trace: MakeTrace) -> None:
    """A report without kernels has no projected ranges; nsys says so and that is no error."""
    assert stats(real_nsys, trace(Range("alone", 0, 9)), "nvtx_gpu_proj_trace") == []


def test_stats_that_this_nsys_does_not_have_are_an_error(real_nsys: Nsys, trace: MakeTrace) -> None:
    """A name that no nsys knows is refused, though nsys itself ends with exit code 0."""
    with pytest.raises(NsysprofError, match="has no report named no_such_report"):
        stats(real_nsys, trace(Range("step", 0, 100)), "no_such_report")
