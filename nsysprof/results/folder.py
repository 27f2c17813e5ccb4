"""Manage the folder of a command's results: who owns the folder, and files that appear together or not at all."""

import errno
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.document import members_at_head
from nsysprof.core.files import PART, give_final_name, make_spreadsheet_safe, open_regular
from nsysprof.core.text import plural, quote_path, visible
from nsysprof.errors import NsysprofError
from nsysprof.results.files import OTHER_FOLDER, writing
from nsysprof.results.table import screen_width, wrap
from nsysprof.tools.interrupts import ending_on_interrupts, interrupts_ignored
from nsysprof.trace.trace import Progress, Report

PAGE = "report.html"  # every command calls it so; its head names the command
OTHER_NAME = "another name: -o NAME"
_LOCK_TRIES = 100  # tenths of a second, far longer than a few renames take
_COUNTED = (("chart", (".png",)), ("table", (".csv", ".csv.gz")))
_HEAD = 4096  # bytes of a page that hold the name of its command
_JSON = re.compile(r"(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?\Z")


@dataclass
class ResultFolder:
    """The result folder of a run of ``command``.

    ``possible`` are the names of all files that the command may write; the first is the document that identifies the
    owner; ``wanted`` are the files of this run. ``is_ours`` tests whether that document has the same subject as this
    run. Other files are replaced only with ``force``. Files of earlier nsysprof results are also replaced without
    ``force``, unless ``asks`` is set; ``refusal`` and ``hint`` are the error message. ``inputs`` are never replaced.
    ``kept`` are possible files that stay unchanged. ``earlier`` is the name of an earlier run in messages, and
    ``otherwise`` is the hint if writing fails. ``spreadsheet_safe`` passes tables through `make_spreadsheet_safe`.
    ``notes`` are more sentences for `message`.
    """

    place: Path
    command: str
    possible: Sequence[str]
    wanted: Sequence[str]
    is_ours: Callable[[Path], bool]
    refusal: str
    hint: str
    earlier: str = "run"
    inputs: Sequence[Path] = ()
    asks: bool = False
    kept: Sequence[str] = ()
    force: bool = False
    spreadsheet_safe: bool = False
    otherwise: str = OTHER_FOLDER
    names: list[str] = field(default_factory=list, init=False)
    stale: list[str] = field(default_factory=list, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def check(self) -> bool:
        """Return whether the folder has earlier results by nsysprof; the folder need not exist, and is not created.

        Raises `NsysprofError` if nsysprof did not write a wanted file and ``force`` is not set, if a wanted file is an
        input, or if the folder is not writable.
        """
        writable_around(self.place)
        for file in (self.place / name for name in self.wanted):
            if file.exists() and any(file.samefile(each) for each in self.inputs if each.exists()):
                raise NsysprofError(f"{file} is the report itself", OTHER_FOLDER)
        ours = self.is_ours(self.place / self.possible[0])
        foreign = [
            name
            for name in self.wanted
            if os.path.lexists(self.place / name) and (self.asks or not (ours and self._wrote(name)))
        ]
        if foreign and not self.force:
            raise NsysprofError(f"{self.place} holds {', '.join(foreign)}, {self.refusal}", self.hint)
        return ours

    @contextmanager
    def making(self) -> Iterator[Path]:
        """Yield a folder for new results; at the end, all its files get their final names, or none do.

        `check` runs again at the end, because another process may have written to the folder; only one process writes
        at a time. Files of earlier results that have no new version are removed. Afterwards, ``names`` are the written
        files, and ``stale`` are the removed files.
        """
        new = not self.place.exists()
        try:
            with ending_on_interrupts(), writing(self.place, self.otherwise):
                self.place.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=PART, dir=self.place) as name, self._in_terms_of_place(name):
                    made = Path(name)
                    yield made
                    for path in made.glob("*.csv") if self.spreadsheet_safe else ():
                        make_spreadsheet_safe(path)
                    with locked_folder(self.place), interrupts_ignored():
                        self._publish(made)
        finally:
            if new:
                with suppress(OSError):
                    self.place.rmdir()  # unless something came into it

    def write(
        self,
        tables: Callable[[Path], Sequence[Path]],
        pictures: Callable[[], Mapping[str, bytes]] | None = None,
        page: Callable[[Sequence[bytes]], str] | None = None,
        progress: Progress = lambda step, rows: None,
    ) -> str:
        """Write tables, pictures (by name) and a page into a folder; return the `message` about them."""
        with self.making() as made:
            progress("writing tables", 0)
            names = [path.name for path in tables(made)]
            drawn: Mapping[str, bytes] = {}
            if pictures is not None:
                progress("drawing charts", 0)
                drawn = pictures()
                for name, picture in drawn.items():
                    (made / name).write_bytes(picture)
            if page is not None:
                progress("writing the page", 0)
                (made / PAGE).write_text(page(list(drawn.values())), encoding="utf-8", errors="replace", newline="\n")
                names.insert(0, PAGE)
        return self.message([*drawn, *names])

    def message(self, names: Sequence[str]) -> str:
        """Name the files that were written, after a blank line; or, without it, with notes in a second line."""
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        lines = [f"Written to {visible(str(self.place))}/: {', '.join(names)}"]
        if len(lines[0]) > screen_width():
            counts = [(noun, [name for name in names if name.endswith(end)]) for noun, end in _COUNTED]
            some = [plural(len(each), noun) for noun, each in counts if each]
            others = [name for name in names if not name.endswith((".png", ".csv", ".csv.gz"))]
            lines = [f"Written to {visible(str(self.place))}/: {', '.join([*others, *some])}"]
        removed = [f"removed files of an earlier {self.earlier}: {', '.join(self.stale)}"] if self.stale else []
        if notes := [*removed, *self.notes]:
            lines.append("; ".join(notes))
        if on_terminal:
            lines = [wrap(line, "", "  ") for line in lines]
        return "\n".join(lines if notes else ["", *lines])

    def _publish(self, made: Path) -> None:
        ours = self.check()
        # in this order: the first shows who owns the folder, should we be stopped half-way
        possible = [name for name in self.possible if name not in self.kept]
        made_now = [name for name in possible if (made / name).exists()]
        for name in made_now:
            (made / name).replace(self.place / name)
        self.names = made_now
        gone = [name for name in possible if name not in made_now]
        if not ours:  # a table that is compressed now, or no longer, would be read in place of the new one
            gone = [name for name in gone if {f"{name}.gz", name.removesuffix(".gz")} & {*made_now}]
        self.stale += [name for name in gone if (self.place / name).is_file() and self._wrote(name)]
        for name in self.stale:
            (self.place / name).unlink()

    def _wrote(self, name: str) -> bool:
        """Return whether a file is of this command if its folder is: only pages are called alike by all commands."""
        if name != PAGE:
            return True
        try:
            with open_regular(self.place / name) as file:
                mark = f'<meta name="generator" content="nsysprof {self.command} '
                return mark.encode() in file.read(_HEAD)
        except OSError:
            return False

    @contextmanager
    def _in_terms_of_place(self, made: str) -> Iterator[None]:
        """Let errors name the place that the user knows, not the folder in which results are made."""
        try:
            yield
        except OSError as error:
            for file in filter(None, (error.filename, error.filename2)):
                if Path(file).parent == Path(made):
                    error.filename, error.filename2 = str(self.place / Path(file).name), None
            raise
        except NsysprofError as error:
            error.message = error.message.replace(made, str(self.place))
            raise


def report_folder(place: Path, command: str, report: Report, schema: str, earlier: str, **more: Any) -> ResultFolder:
    """Make the result folder of a command about one report; ``schema`` is the schema of the document that names the
    report.

    ``earlier`` is the name of an earlier run in messages; ``more`` are other fields of `ResultFolder`.
    """
    article = "an" if earlier[0] in "aeiou" else "a"
    return ResultFolder(
        place,
        command,
        is_ours=lambda path: _is_about(path, schema, report),
        refusal=f"not written by {article} {earlier} of {report.path}",
        hint=f"nsysprof {command} {quote(str(report.path))} -o OTHER-DIR   (or --force to replace them)",
        earlier=earlier,
        inputs=(report.path, report.file),
        **more,
    )


@contextmanager
def new_files(*finals: Path, force: bool = False, inputs: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a folder for results whose names the user chooses, such as a budget or a scrubbed copy.

    At the end, all files and folders in this folder get their final names, or none do. After a failure, the folder and
    its contents are removed. Raises `NsysprofError` as `refuse_taken` does (at the start and at the end), and if
    writing fails; ``force`` replaces existing files, except ``inputs``.
    """
    for final in finals:
        refuse_taken(final, force=force, inputs=inputs)
    beside = finals[0].absolute().parent
    try:
        with ending_on_interrupts(), tempfile.TemporaryDirectory(prefix=PART, dir=beside) as name:
            made = Path(name)
            parts = {made / final.name: final for final in finals}
            try:
                yield made
            except NsysprofError as error:  # nobody has asked for the folder
                for part, final in parts.items():
                    error.message = error.message.replace(str(part), str(final))
                error.hint = error.hint and error.hint.replace(name, str(finals[0].parent))
                raise
            give_names({part: final for part, final in parts.items() if os.path.lexists(part)}, force=force)
    except OSError as error:
        if error.filename and not os.fsdecode(error.filename).startswith(str(beside / PART)):
            raise  # of something else than what is made here
        raise _not_written(finals[0], error) from None


def refuse_taken(final: Path, *, force: bool = False, inputs: Sequence[Path] = ()) -> None:
    """Raise an error for a taken name before hours of work are done; with ``force``, only for names of folders and of
    ``inputs``.
    """
    if os.path.lexists(final) and not force:
        raise NsysprofError(f"{final}: exists already, not overwritten", f"--force, or {OTHER_NAME}")
    if os.path.isdir(final) and not os.path.islink(final):  # noqa: PTH112, PTH114  neither raises
        raise NsysprofError(f"{final}: a folder, not replaced", OTHER_NAME)
    if os.path.exists(final) and any(final.samefile(each) for each in inputs if each.exists()):  # noqa: PTH110
        raise NsysprofError(f"{final} is the report itself, which is never overwritten", OTHER_NAME)


def give_names(parts: Mapping[Path, Path], *, force: bool = False) -> None:
    """Move files or folders (keys) to their final names (values), all or none; both must be on one file system.

    Interrupts are delayed meanwhile. Raises `NsysprofError` if a name is taken (unless ``force`` is set), or if a move
    fails; then the earlier files are restored.
    """
    with interrupts_ignored():
        done: list[tuple[Path, Path]] = []
        aside: dict[Path, Path] = {}
        try:
            for part, final in parts.items():
                if force and os.path.lexists(final):
                    earlier = part.with_name(f"{part.name}.earlier")
                    final.rename(earlier)
                    aside[final] = earlier
                give_final_name(part, final)
                done.append((part, final))
        except OSError as error:
            for before, published in done:
                if before.exists():
                    published.unlink(missing_ok=True)
                else:
                    published.rename(before)
            for name, earlier in aside.items():
                earlier.rename(name)
            if isinstance(error, FileExistsError):
                refuse_taken(final)
            raise _not_written(final, error) from None
        for path in (*parts, *aside.values()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _not_written(path: Path, error: OSError) -> NsysprofError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    folder = quote_path(path.parent)
    if not path.parent.exists():
        return NsysprofError(f"{path}: there is no folder {path.parent}", f"mkdir -p {folder}")
    return NsysprofError(
        f"{path}: cannot be written: {error.strerror or error}", f"{'df -h' if full else 'ls -ld'} {folder}"
    )


@contextmanager
def locked_folder(folder: Path, taken: NsysprofError | None = None) -> Iterator[None]:
    """Lock a folder against other processes that use the same lock, if the system supports locks.

    If another process holds the lock, raise ``taken``, or wait for the lock if ``taken`` is None.
    """
    try:
        import fcntl  # noqa: PLC0415  not on Windows
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if taken:
                    raise taken from None
                time.sleep(0.1)
            except OSError:  # some network file systems lock no folders
                break
        yield
    finally:
        os.close(descriptor)


def report_stem(report: Path) -> str:
    """Return the common start of the names of a report's results: `run` for run.sqlite and run.pt.trace.json.gz."""
    named = report if report.stem.strip(".") else report.resolve()  # a folder may be called "."
    stem, found = _JSON.subn("", named.name)
    return stem if found and stem else named.stem


def writable_around(place: Path, hint: str = OTHER_FOLDER) -> Path:
    """Return the innermost existing folder around a place.

    Raises `NsysprofError` with this hint if it is not a folder, or is not writable.
    """
    there = next(each for each in (place, *place.absolute().parents) if os.path.lexists(each))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "no permission to write there" if there.is_dir() else f"{there} is not a folder"
        raise NsysprofError(f"cannot write into {place}: {why}", hint)
    return there


def why_not_writable(place: Path) -> NsysprofError | None:
    """Return the error of `writable_around`, or None if the place is writable."""
    try:
        writable_around(place)
    except NsysprofError as error:
        return error
    return None


def _is_about(path: Path, schema: str, report: Report) -> bool:
    """Return whether a document has that schema and is about this file, or about a copy with its name and size."""
    head = members_at_head(path)
    about = head.get("report")
    if head.get("schema") != schema or not isinstance(about, dict):
        return False
    file_name, size = Path(str(about.get("file"))), about.get("size_bytes")
    try:
        same_file = file_name.resolve() == report.path.resolve()
    except (OSError, ValueError):
        return False
    copied = file_name.name == report.path.name and report.path.is_file() and size == report.path.stat().st_size
    return same_file or copied
