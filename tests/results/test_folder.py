"""Results: each file whole, all of a run together, and through no name that anybody could foresee."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from nsysprof.core.files import whole_file
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import write_record
from nsysprof.results import folder as folder_module
from nsysprof.results.folder import ResultFolder, give_names, new_files

NAMES = ("analysis.json", "ranges.csv", "timeline.png", "report.html")
Together = Callable[..., AbstractContextManager[tuple[Path, list[str]]]]


@pytest.fixture
def together(tmp_path: Path) -> Together:
    """Results in the making, and what is stale then, of a folder that belongs to whoever wrote its document."""

    @contextmanager
    def begin(owner: str = "mine") -> Iterator[tuple[Path, list[str]]]:
        def is_ours(document: Path) -> bool:
            return document.exists() and document.read_text() == owner

        results = ResultFolder(tmp_path / "out", "analyze", NAMES, NAMES, is_ours, "of somebody else", "hint")
        with results.making() as made:
            yield made, results.stale

    return begin


def fill(made: Path, owner: str, *names: str) -> None:
    """Make files that say whose they are."""
    for name in names:
        (made / name).write_text(owner)


def files_in(folder: Path) -> set[str]:
    """The names of the files in a folder, without what becomes some."""
    return {path.name for path in folder.iterdir() if path.is_file()}


def texts(folder: Path) -> dict[str, str]:
    """All that a folder holds."""
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_later_run_replaces_all_of_an_earlier_one_that_ran_meanwhile(together: Together, tmp_path: Path) -> None:
    """Two runs of one command at once: the files of the one that ends last, and no chart of the other."""
    with together() as (slow, stale):
        with together() as (quick, none):
            fill(quick, "mine", "analysis.json", "ranges.csv", "timeline.png")
        assert {"analysis.json", "timeline.png"} <= files_in(tmp_path / "out")
        fill(slow, "mine", "analysis.json", "ranges.csv")
    assert (stale, none) == (["timeline.png"], [])
    assert texts(tmp_path / "out").keys() == {"analysis.json", "ranges.csv"}


def test_a_run_does_not_mix_with_one_of_another_report(together: Together, tmp_path: Path) -> None:
    """What another command wrote meanwhile stays as it is, and nothing comes beside it."""

    def run() -> None:
        with together("mine") as (slow, _):
            with together("theirs") as (quick, _):
                fill(quick, "theirs", "analysis.json", "ranges.csv")
            fill(slow, "mine", *NAMES)

    with pytest.raises(NsysprofError, match="of somebody else"):
        run()
    assert texts(tmp_path / "out") == {"analysis.json": "theirs", "ranges.csv": "theirs"}


def test_only_one_run_at_a_time_gives_names(
    together: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that gives its files their names waits for one that does so already."""
    pytest.importorskip("fcntl")
    inside, go_on = threading.Event(), threading.Event()
    publish = ResultFolder._publish

    def held(results: ResultFolder, made: Path) -> None:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(30)
        publish(results, made)

    def run(*names: str) -> None:
        with together() as (made, _):
            fill(made, "mine", "analysis.json", *names)

    run("timeline.png")
    monkeypatch.setattr(ResultFolder, "_publish", held)
    first = threading.Thread(target=run, args=["ranges.csv"])
    second = threading.Thread(target=run, args=["report.html"])
    first.start()
    assert inside.wait(30)
    second.start()
    second.join(0.3)
    assert "report.html" not in files_in(tmp_path / "out")
    go_on.set()
    first.join()
    second.join()
    assert files_in(tmp_path / "out") == {"analysis.json", "report.html"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_fails_leaves_everything_as_it_was(together: Together, tmp_path: Path, error: BaseException) -> None:
    """Nothing of a run that stops half-way: not in a folder with results, and no folder where there was none."""

    def fail() -> None:
        with together() as (made, _):
            fill(made, "mine", *NAMES)
            raise error

    for before in (set(), {"analysis.json", "ranges.csv"}):
        with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else NsysprofError):
            fail()
        assert (tmp_path / "out").exists() == bool(before)
        if not before:
            with together() as (made, _):
                fill(made, "mine", "analysis.json", "ranges.csv")
        assert files_in(tmp_path / "out") == {"analysis.json", "ranges.csv"}


def test_no_planted_link_is_followed(tmp_path: Path) -> None:
    """Links under all names that files in the making ever had here lead nowhere: what they name stays as it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "ranges.csv"
    for name in (f".ranges.csv.{os.getpid()}", "ranges.csv.part", "ranges.csv"):
        (tmp_path / name).symlink_to(victim)
    with whole_file(target) as part:
        assert part.parent.stat().st_mode & 0o777 == 0o700
        part.write_text("new")
    assert (target.read_text(), target.is_symlink(), victim.read_text()) == ("new", False, "precious")
    write_record(target, {"a": 1})
    assert (target.read_text(), victim.read_text()) == ('{"a": 1}\n', "precious")


def test_a_finished_file_is_as_open_as_the_user_has_it(tmp_path: Path) -> None:
    """Nobody else can look at a file in the making; the finished one has the permissions of any new file."""
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "x") as part:
            part.write_text("x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def made(folder: Path, *names: str) -> dict[Path, Path]:
    """Files that hold their own names, to be published."""
    parts = {folder / name: folder / f"final-{name}" for name in names}
    for part in parts:
        part.write_text(part.name)
    return parts


def test_publishing_is_all_or_nothing(tmp_path: Path) -> None:
    """Where the second name is taken, the first is taken back and the files stay where they were made."""
    parts = made(tmp_path, "a", "b", "c")
    (tmp_path / "final-b").write_text("mine")
    with pytest.raises(NsysprofError, match="final-b: exists already"):
        give_names(parts)
    assert sorted(texts(tmp_path)) == ["a", "b", "c", "final-b"]
    assert (tmp_path / "final-b").read_text() == "mine"
    give_names(parts, force=True)
    assert sorted(texts(tmp_path)) == ["final-a", "final-b", "final-c"]
    assert (tmp_path / "final-b").read_text() == "b"


@pytest.mark.parametrize("links", [True, False])
def test_earlier_results_come_back_where_new_ones_cannot_be_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """With --force too, and also on file systems without hard links."""

    def link(part: Path, final: Path) -> None:
        if final.name == "final-b":
            raise OSError(28, "No space left on device")
        os.link(part, final) if links else part.replace(final)

    monkeypatch.setattr(folder_module, "give_final_name", link)
    parts = made(tmp_path, "a", "b")
    for final in parts.values():
        final.write_text("mine")
    with pytest.raises(NsysprofError, match="final-b: cannot be written: No space left"):
        give_names(parts, force=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a": "a", "b": "b", "final-a": "mine", "final-b": "mine",
    }  # fmt: skip


def test_files_with_names_of_their_own_come_together(tmp_path: Path) -> None:
    """Refused at once where a name is taken, and by force never over an input or a folder."""
    first, second = tmp_path / "a.csv", tmp_path / "b"
    with new_files(first, second) as made_in:
        (made_in / "a.csv").write_text("1")
        (made_in / "b").mkdir()
        (made_in / "b" / "inner").write_text("2")
    assert (first.read_text(), (second / "inner").read_text()) == ("1", "2")
    for force, inputs, why in ((False, (), "exists already"), (True, (first,), "the report itself")):
        with pytest.raises(NsysprofError, match=why), new_files(first, force=force, inputs=inputs):
            pytest.fail("it began")
    with pytest.raises(NsysprofError, match="a folder, not replaced"), new_files(second, force=True):
        pytest.fail("it began")
    with new_files(first, force=True) as made_in:
        (made_in / "a.csv").write_text("3")
    give_names({first: second}, force=True)
    assert (sorted(path.name for path in tmp_path.iterdir()), second.read_text()) == (["b"], "3")


def test_a_failure_to_write_names_the_file_and_one_to_read_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is left of either."""
    with pytest.raises(NsysprofError, match=r"a: cannot be written: No such file") as caught:
        _write_into_nothing(tmp_path / "a")
    assert caught.value.hint == f"ls -ld {tmp_path}"
    with pytest.raises(FileNotFoundError), new_files(tmp_path / "a"):
        (tmp_path / "input").read_text()
    assert not list(tmp_path.iterdir())


def _write_into_nothing(final: Path) -> None:
    with new_files(final) as made_in:
        (made_in / "none" / "file").write_text("x")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_files_in_the_making_are_cleaned_up_when_a_batch_system_ends_a_program(tmp_path: Path) -> None:
    """SIGTERM, whose default action would leave the hidden folder."""
    with pytest.raises(NsysprofError, match="interrupted") as error, new_files(tmp_path / "budget.toml"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert error.value.exit_code == 143
    assert list(tmp_path.iterdir()) == []
