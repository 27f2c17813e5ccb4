"""The files of a capture: their names, how they get them, and what is kept of a capture that failed."""

from pathlib import Path

import pytest

from nsysprof.capture.outputs import Outputs, making, outputs_of
from nsysprof.errors import NsysprofError
from nsysprof.results import folder as module
from nsysprof.tools.interrupts import Interrupt

NAMES = {
    (None, "sdpa-math"): ("traces", "sdpa-math"),
    ("run", "x"): ("traces", "run"),
    ("run.sqlite", "x"): ("traces", "run"),
    ("run.nsys-rep", "x"): ("traces", "run"),
    ("v1.5", "x"): ("traces", "v1.5"),
    ("out/run", "x"): ("out", "run"),
    ("./run", "x"): (".", "run"),
    ("/tmp/run.json", "x"): ("/tmp", "run"),
    ("out/", "sdpa-math"): ("out", "sdpa-math"),
    ("a name, ünïcode", "x"): ("traces", "a name, ünïcode"),
    ("n" * 150, "x"): ("traces", "n" * 150),
}


@pytest.mark.parametrize("given", NAMES)
def test_a_bare_name_goes_to_traces_and_a_path_where_it_says(given: tuple[str | None, str]) -> None:
    """Endings that a capture writes are not a part of the name, other dots are."""
    outputs = outputs_of(*given)
    assert (str(outputs.folder), outputs.name) == NAMES[given]
    assert outputs.path(".sqlite").name == f"{outputs.name}.sqlite"


@pytest.mark.parametrize("named", ["", ".", "..", "new\nline", "a\x1b[0m/b", "caf\udce9"])
def test_what_cannot_be_typed_again_is_no_name(named: str) -> None:
    """The command to go on with could not be pasted."""
    with pytest.raises(NsysprofError, match="not a valid file name"):
        outputs_of(named, "x")


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_long_default_name_is_cut(letter: str) -> None:
    """Twenty backends and lengths do not make a name that no file system takes; these count bytes."""
    assert len(outputs_of(None, letter * 400).name.encode()) == 100


def test_a_default_name_can_be_typed_again() -> None:
    """Whatever a program or a backend is called, also in bytes that are no text."""
    assert outputs_of(None, "caf\udce9\n\x1b[0m ü").name == "caf___[0m ü"


def test_a_name_that_is_too_long_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Not after hours, when the results are to get it."""
    with pytest.raises(NsysprofError, match="File name too long"), making(Outputs(tmp_path, "é" * 130)):
        pytest.fail("it began")


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_not_replaced_by_force(tmp_path: Path) -> None:
    """It may hold anything."""
    (tmp_path / "run.sqlite").mkdir()
    with pytest.raises(NsysprofError, match="a folder"), making(Outputs(tmp_path, "run"), force=True):
        pytest.fail("it began")


def fails(outputs: Outputs, error: BaseException, **files: str) -> None:
    """A capture that fails when there are these files; their names have _ for dots and dashes."""
    with making(outputs) as folder:
        assert folder.is_absolute()
        for name, text in files.items():
            (folder / name.replace("nsys_rep", "nsys-rep").replace("_", ".")).write_text(text)
        raise error


def test_the_folder_of_a_capture_is_gone_however_it_ends(tmp_path: Path) -> None:
    """Also after an exception that nobody expects, and the one above it where that is new."""
    outputs = Outputs(tmp_path / "new" / "traces", "run")
    with pytest.raises(KeyError):
        fails(outputs, KeyError(), scratch="x")
    assert names(tmp_path / "new") == []
    with pytest.raises(KeyError) as caught:
        fails(outputs, KeyError(), report_nsys_rep="x")
    assert names(outputs.folder) == ["run.partial.nsys-rep"]
    notes = getattr(caught.value, "__notes__", ["Python 3.10: run.partial.nsys-rep"])
    assert "run.partial.nsys-rep" in notes[0]


def test_an_interrupt_and_a_full_disk_are_errors_that_say_what_is_kept(tmp_path: Path) -> None:
    """With a shell's exit code, and the command to go on with."""
    outputs = Outputs(tmp_path, "run")
    with pytest.raises(NsysprofError, match="interrupted") as caught:
        fails(outputs, Interrupt(15), report_qdstrm="x", output_log="", record_json="{}")
    assert caught.value.exit_code == 143
    assert str(caught.value.hint).endswith(f"--resume {tmp_path}/run.partial.qdstrm")
    assert names(tmp_path) == ["run.partial.log", "run.partial.qdstrm", "run.partial.run.json"]
    full = OSError(28, "No space left on device", str(tmp_path / "published.json"))
    with pytest.raises(NsysprofError, match=r"published.json: No space left") as caught:
        fails(outputs, full, imported_nsys_rep="x", report_qdstrm="x")
    assert "the disk is full: df -h" in str(caught.value.hint)
    assert "run.partial-2.nsys-rep" in names(tmp_path)  # beside the record of the first it would be taken for its
    assert "run.partial-2.qdstrm" not in names(tmp_path)  # it is all in the report


def test_what_cannot_be_kept_under_its_name_stays_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording is never thrown away: the error says where it is."""

    def refuse(part: Path, final: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "give_final_name", refuse)
    with pytest.raises(NsysprofError) as caught:
        fails(Outputs(tmp_path, "run"), NsysprofError("it failed"), report_nsys_rep="x")
    (folder,) = tmp_path.iterdir()
    assert f"--resume {folder}/report.nsys-rep" in str(caught.value.hint)
    assert (folder / "report.nsys-rep").read_text() == "x"


def test_an_error_names_files_as_they_are_afterwards(tmp_path: Path) -> None:
    """Not by the folder that is gone."""

    def cannot_export() -> None:
        with making(Outputs(tmp_path, "run")) as folder:
            (folder / "report.nsys-rep").write_text("x")
            raise NsysprofError(f"{folder}/report.nsys-rep: no", f"nsys export {folder}/report.nsys-rep")

    with pytest.raises(NsysprofError) as caught:
        cannot_export()
    assert caught.value.message == f"{tmp_path}/run.partial.nsys-rep: no"
    assert f"nsys export {tmp_path}/run.partial.nsys-rep" in str(caught.value.hint)
    assert ".nsysprof-" not in str(caught.value)
