"""Finding nsys, and what its export and stats make of success and failure, with made-up nsys programs."""

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.tools import nsys as module
from nsysprof.tools.nsight import last_line, version_numbers
from nsysprof.tools.nsys import Nsys, all_nsys, export, find_importer, find_nsys, import_stream, stats
from nsysprof.trace.nsys.reader import export_report

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the made-up nsys are shell scripts")

Fake = Callable[..., Path]
OLD = Nsys(Path("nsys"), (2023, 4, 4, 54), "2023.4.4.54-2344v0")


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Makes a program that answers --version like nsys does, and any other command with the given script."""

    def make(place: str, version: str, script: str = "exit 1") -> Path:
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        says = f'[ "$1" = --version ] && echo "NVIDIA Nsight Systems version {version}" && exit 0'
        path.write_text(f"#!/bin/sh\n{says}\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the nsys of the machine it runs on."""
    monkeypatch.delenv(module.ENVIRONMENT, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path / "empty"), "/usr/bin", "/bin")))
    monkeypatch.setattr(module, "NSYS", replace(module.NSYS, linux=(str(tmp_path / "opt/*/bin/nsys"),)))
    monkeypatch.setattr("shutil.which", _which(tmp_path))


def _which(tmp_path: Path) -> Callable[[str], str | None]:
    found = tmp_path / "path" / "nsys"
    return lambda name: str(found) if found.exists() else None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2025.3.2.474-253236389321v0", (2025, 3, 2, 474)),
        ("2025@3@2@474-253236389321v0", (2025, 3, 2, 474)),
        ("2022.4.2.1-df9881f", (2022, 4, 2, 1)),
        ("unknown", ()),
    ],
)
def test_a_version_is_its_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    """Whichever way nsys writes its version, the numbers can be compared."""
    assert version_numbers(text) == numbers


def test_an_nsys_that_cannot_even_be_looked_for_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Somebody's home that is not there, a folder that nobody may look into: one line, and where to get nsys."""
    with pytest.raises(NsysprofError, match="~nosuch-user/nsys: not a working nsys: no such file"):
        find_nsys("~nosuch-user/nsys")

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(NsysprofError, match="closed/nsys: not a working nsys: Permission denied") as caught:
        find_nsys(tmp_path / "closed" / "nsys")
    assert "developer.nvidia.com" in str(caught.value.hint)


def test_the_named_nsys_wins_over_the_environment_and_the_path(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named, then NSYSPROF_NSYS, then the PATH, then the newest of the usual places."""
    newest = fake("opt/2025.3/bin/nsys", "2025.3.1.90-2531v0")
    fake("opt/2024.2/bin/nsys", "2024.2.3.38-2423v0")
    assert find_nsys().path == newest
    on_path = fake("path/nsys", "2022.4.2.1-df9881f")
    assert find_nsys().path == on_path
    monkeypatch.setenv(module.ENVIRONMENT, str(fake("env/nsys", "2023.1.1.1-x")))
    assert find_nsys().version == (2023, 1, 1, 1)
    named = find_nsys(fake("named/nsys", "2021.5.2.53-28d0e6e"))
    assert (named.version, named.version_text) == ((2021, 5, 2, 53), "2021.5.2.53-28d0e6e")


def test_the_newest_installed_nsys_is_found_by_number_not_by_spelling(fake: Fake) -> None:
    """2024.10 is newer than 2024.9."""
    fake("opt/2024.9/bin/nsys", "2024.9.1.1-v0")
    fake("opt/2024.10/bin/nsys", "2024.10.1.1-v0")
    assert find_nsys().version[:2] == (2024, 10)


def test_a_folder_may_be_named_instead_of_the_program(fake: Fake) -> None:
    """--nsys takes the folder that nsys lies in."""
    program = fake("target-linux-x64/nsys", "2024.2.3.38-2423v0")
    assert find_nsys(program.parent).path == program


def test_every_nsys_is_listed_once(fake: Fake, tmp_path: Path) -> None:
    """A link on the PATH to an installed nsys is not a second nsys."""
    program = fake("opt/2024.2/bin/nsys", "2024.2.3.38-2423v0")
    fake("opt/2025.3/bin/nsys", "2025.3.1.90-2531v0")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "nsys").symlink_to(program)
    assert [nsys.version[:2] for nsys in all_nsys()] == [(2024, 2), (2025, 3)]


def test_no_nsys_says_where_to_get_it_and_that_sqlite_needs_none() -> None:
    """The hint names the download, the option and what needs no nsys."""
    with pytest.raises(NsysprofError, match="no nsys found") as caught:
        find_nsys()
    hint = str(caught.value.hint)
    assert "https://developer.nvidia.com/nsight-systems" in hint
    assert "--nsys PATH" in hint
    assert ".sqlite) needs none" in hint


def test_a_broken_nsys_on_the_path_is_skipped_for_an_installed_one(fake: Fake, tmp_path: Path) -> None:
    """A stub that cannot run does not hide a working nsys, and is named where there is no other."""
    broken = tmp_path / "path" / "nsys"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(NsysprofError, match="which is on the PATH, does not work: no such module"):
        find_nsys()
    installed = fake("opt/2024.2/bin/nsys", "2024.2.3.38-2423v0")
    assert find_nsys().path == installed


@pytest.mark.parametrize("named", ["missing/nsys", "text"])
def test_a_named_nsys_that_does_not_work_is_an_error_even_where_another_is_installed(
    fake: Fake, tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the user asks for is never silently replaced."""
    fake("opt/2024.2/bin/nsys", "2024.2.3.38-2423v0")
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(NsysprofError, match="not a working nsys"):
        find_nsys(tmp_path / named)
    monkeypatch.setenv(module.ENVIRONMENT, str(tmp_path / named))
    with pytest.raises(NsysprofError, match="from NSYSPROF_NSYS"):
        find_nsys()


def test_an_nsys_named_in_the_current_folder_is_that_one(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--nsys nsys` and `--nsys ./nsys` mean the file here, not one of that name on the PATH."""
    here = fake("here/nsys", "2024.2.3.38-2423v0")
    other = fake("path/nsys", "2025.3.2.474-v0")
    monkeypatch.setenv("PATH", f"{other.parent}:/bin")
    monkeypatch.chdir(here.parent)
    for name in ("nsys", "./nsys"):
        found = find_nsys(name)
        assert (found.path, found.version[:2]) == (here, (2024, 2))


def test_the_importer_is_found_in_debians_folders_too(fake: Fake) -> None:
    """Debian keeps nsys in usr/lib/ARCH/nsight-systems and its importer in usr/lib/nsight-systems."""
    program = fake("usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", "2022.4.2.1-df9881f")
    importer = fake("usr/lib/nsight-systems/host-linux-x64/QdstrmImporter", "")
    assert find_importer(find_nsys(program)) == importer
    beside = fake("usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64/QdstrmImporter", "")
    assert find_importer(find_nsys(program)) == beside


def test_the_importer_of_nsight_compute_is_found(fake: Fake) -> None:
    """Nsight Compute keeps nsys in host/target-linux-x64 and its importer in host/linux-desktop-glibc_2_11_3-x64."""
    host = "opt/nvidia/nsight-compute/2025.3.1/host"
    program = fake(f"{host}/target-linux-x64/nsys", "2025.3.2.474-v0")
    importer = fake(f"{host}/linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "")
    assert find_importer(find_nsys(program)) == importer


def test_an_export_appears_under_its_name_only_when_it_is_whole(fake: Fake, tmp_path: Path) -> None:
    """nsys writes elsewhere; the file is moved to its name at the end and nothing else stays."""
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", f'test ! -e {tmp_path}/o/out.sqlite && echo data > "$5"'))
    (tmp_path / "o").mkdir()
    export(nsys, tmp_path / "a b.nsys-rep", tmp_path / "o" / "out.sqlite")
    assert [entry.name for entry in (tmp_path / "o").iterdir()] == ["out.sqlite"]


def test_an_export_never_overwrites(fake: Fake, tmp_path: Path) -> None:
    """A file under the asked-for name is left as it is, and so is a dangling link."""
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", 'echo new > "$5"'))
    out = tmp_path / "out.sqlite"
    out.write_text("mine")
    with pytest.raises(NsysprofError, match="exists already"):
        export(nsys, tmp_path / "a.nsys-rep", out)
    assert out.read_text() == "mine"
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NsysprofError, match="exists already"):
        export(nsys, tmp_path / "a.nsys-rep", tmp_path / "link.sqlite")


def test_an_export_into_a_missing_folder_says_how_to_make_it(fake: Fake, tmp_path: Path) -> None:
    """The hint is the mkdir command."""
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", 'echo new > "$5"'))
    with pytest.raises(NsysprofError, match="cannot be written") as caught:
        export(nsys, tmp_path / "a.nsys-rep", tmp_path / "no" / "out.sqlite")
    assert f"mkdir -p {tmp_path / 'no'}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "Exportation error: Report was created in Nsight Systems version (2025.3.2.474-v0), newer than"
            " your current version (2024.2.3.38-v0).\nPlease update your Nsight Systems.",
            r"made by nsys 2025\.3\.2\.474-v0, which is newer than the installed nsys 2024\.2\.3\.38-v0",
        ),
        (
            "Exportation error: Version number is invalid: 2025@3@2@474-v0",
            r"made by nsys 2025\.3\.2\.474-v0, which is newer than the installed nsys 2024\.2\.3\.38-v0",
        ),
        (
            "Exportation error: Version not supported: 36398880",
            r"made by nsys build 36398880, which is newer than the installed nsys 2024\.2\.3\.38-v0 .*\ninstall a new",
        ),
        (
            "Dynamic exception type\nstd::exception::what: ProtobufParseException\n[x] = y",
            r"newer nsys \(build 36398880\)",
        ),
        ("Exportation error: Section Table Reference magic number mismatch.", "truncated or damaged"),
        (
            "Processing 9 events: [=2%  ]\rProcessing 9 events: [==3%  ]\n\nExportation error: LZ4 failed.\n",
            r"could not export it: Exportation error: LZ4 failed\.\n",
        ),
        ("", "could not export it: exit code 1"),
    ],
)
def test_a_failed_export_says_why_and_leaves_nothing(fake: Fake, tmp_path: Path, said: str, message: str) -> None:
    """Each refusal of a real nsys becomes one line, and its half-written file is removed."""
    (tmp_path / "said").write_text(said)
    (tmp_path / "a.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 36398880.\x00")
    script = f'echo half > "$5"; cat {tmp_path}/said >&2; exit 1'
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", script))
    (tmp_path / "o").mkdir()
    with pytest.raises(NsysprofError, match=message) as caught:
        export(nsys, tmp_path / "a.nsys-rep", tmp_path / "o" / "out.sqlite")
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert list((tmp_path / "o").iterdir()) == []


def test_an_nsys_that_hangs_is_stopped(fake: Fake, tmp_path: Path) -> None:
    """After the timeout the export is an error, not a wait."""
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", "exec sleep 60"))
    with pytest.raises(NsysprofError, match="did not end within"):
        export(nsys, tmp_path / "a.nsys-rep", tmp_path / "out.sqlite", timeout=0.2)


STATS = """\
cat <<'END'
Processing [/x/report.sqlite] with [/opt/reports/x.py]...

Name,Total (ns),"Range, quoted"
"a, ""b""
c",12,Processing [not chatter]
d,,

END
"""


def test_stats_are_the_rows_behind_the_chatter(fake: Fake, tmp_path: Path) -> None:
    """Names with commas, quotes and newlines survive, and a name that looks like chatter is data."""
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"bytes")
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", STATS))
    assert stats(nsys, report, "cuda_gpu_trace") == [
        {"Name": 'a, "b"\nc', "Total (ns)": "12", "Range, quoted": "Processing [not chatter]"},
        {"Name": "d", "Total (ns)": "", "Range, quoted": ""},
    ]


def test_stats_run_on_a_copy(fake: Fake, tmp_path: Path) -> None:
    """nsys may write into what it reads and beside it; the report and its folder stay as they are."""
    folder = tmp_path / "reports"
    folder.mkdir()
    report = folder / "r.sqlite"
    report.write_bytes(b"bytes")
    spoil = 'for last; do :; done; echo spoilt > "$last"; echo x > "$last.more"'
    script = f'{spoil}; echo "Processing [x]"; echo A; echo 1'
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", script))
    assert stats(nsys, report, "any") == [{"A": "1"}]
    assert report.read_bytes() == b"bytes"
    assert list(folder.iterdir()) == [report]


NAMES = 'if [ "$3" = %s ]; then echo "Processing [x] with [y]..."; echo Name; echo old; else\n' + (
    "echo \"ERROR: Report '$3' could not be found.\" >&2; fi"
)


def test_an_old_nsys_is_asked_under_the_old_name(fake: Fake, tmp_path: Path) -> None:
    """Before 2023 the projected trace was called nvtxgpuproj; nsys says so with exit code 0."""
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"bytes")
    nsys = find_nsys(fake("n/nsys", "2022.4.2.1-x", NAMES % "nvtxgpuproj"))
    assert stats(nsys, report, "nvtx_gpu_proj_trace") == [{"Name": "old"}]
    with pytest.raises(NsysprofError, match=r"nsys 2022\.4\.2\.1-x has no report named nvtx_gpu_proj_sum"):
        stats(nsys, report, "nvtx_gpu_proj_sum")


def test_a_report_without_the_data_gives_no_rows(fake: Fake, tmp_path: Path) -> None:
    """nsys prints SKIPPED where the tables are not there."""
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"bytes")
    script = "echo 'Processing [x] with [y]... '; echo 'SKIPPED: x does not contain GPU trace data.'; echo"
    assert stats(find_nsys(fake("n/nsys", "2024.2.3.38-v0", script)), report, "cuda_gpu_trace") == []


def test_failed_stats_say_the_last_line(fake: Fake, tmp_path: Path) -> None:
    """A non-zero exit code is an error with nsys's own words; so is a report that cannot be copied."""
    report = tmp_path / "r.sqlite"
    report.write_bytes(b"bytes")
    nsys = find_nsys(fake("n/nsys", "2024.2.3.38-v0", "echo one >&2; echo python is missing >&2; exit 4"))
    with pytest.raises(NsysprofError, match="python is missing"):
        stats(nsys, report, "cuda_gpu_trace")
    with pytest.raises(NsysprofError, match=r"cannot copy .* for nsys stats"):
        stats(nsys, tmp_path / "gone.sqlite", "cuda_gpu_trace")


def test_the_last_line_is_the_error_and_not_a_progress_bar() -> None:
    """Bars are redrawn with carriage returns, and a stack of details may follow the error."""
    assert last_line("a\rProcessing 3 events: [===100%]\n") == "a"
    assert last_line("FATAL ERROR: disk full\nbacktrace 0x1\n") == "FATAL ERROR: disk full"
    assert last_line("\n\r") == ""


def test_a_report_too_new_for_the_nsys_on_the_path_is_exported_with_an_installed_one(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one that can read it is used, unless the user named one: that is never replaced."""
    old = fake("path/nsys", "2023.4.4.54-v0")
    fake("opt/2025.3/bin/nsys", "2025.3.1.90-v0", 'echo exported > "$5"')
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2025@3@2@474-v0.\n")
    out, folder = export_report(report)
    assert out.read_text() == "exported\n"
    assert folder is not None
    folder.cleanup()
    newer = r"made by nsys 2025\.3\.2\.474-v0, which is newer than the installed nsys 2023"
    with pytest.raises(NsysprofError, match=newer):
        export_report(report, nsys=old)
    monkeypatch.setenv(module.ENVIRONMENT, str(old))
    with pytest.raises(NsysprofError, match=newer):
        export_report(report)


def test_without_nsys_an_export_beside_the_report_is_offered(tmp_path: Path) -> None:
    """The .sqlite of the same name needs no nsys."""
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    with pytest.raises(NsysprofError, match="must first be exported by nsys: no nsys found"):
        export_report(report)
    (tmp_path / "r.sqlite").touch()
    with pytest.raises(NsysprofError) as caught:
        export_report(report)
    assert str(caught.value.hint).endswith(str(tmp_path / "r.sqlite"))


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
        ("libAnalysis.so", "install the package that contains libAnalysis.so, or reinstall nsys"),
    ):
        (tmp_path / library).mkdir()
        nsys = importer(tmp_path / library, said.format(library))
        with pytest.raises(NsysprofError, match=f"{library} is missing") as caught:
            import_stream(tmp_path / "a.qdstrm", tmp_path / "a.nsys-rep", nsys)
        assert caught.value.hint == fix
