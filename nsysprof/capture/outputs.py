"""The files of one capture: their names, the folder they are made in, and how they get their names when whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from nsysprof.errors import NsysprofError

__all__ = ["Outputs", "keep", "making", "outputs_of", "publish"]

ENDINGS = (".nsys-rep", ".sqlite", ".json")
_FOLDER = Path("traces")
_LONGEST = 100


@dataclass(frozen=True)
class Outputs:
    """The names of a capture without their endings: ``folder / name``."""

    folder: Path
    name: str

    def path(self, ending: str) -> Path:
        """The file of this capture that ends so."""
        return self.folder / f"{self.name}{ending}"


def outputs_of(named: str | os.PathLike[str] | None, default: str) -> Outputs:
    """Where the results go: in ``traces`` under the default name, or under the name, or at the path, that was given.

    An ending that a capture writes is not taken for a part of the name: ``-o a.sqlite`` and ``-o a`` are the same.
    """
    given = os.fspath(named) if named is not None else default
    path = Path(given)
    name = path.name
    for ending in (*ENDINGS, ".qdstrm"):
        name = name.removesuffix(ending)
    if not name.strip("."):
        raise NsysprofError(f"-o {given}: not a name for files", "-o NAME, or -o FOLDER/NAME")
    bare = named is None or (path.parent == Path() and not given.startswith("."))
    return Outputs(_FOLDER if bare else path.parent, name[:_LONGEST])


@contextmanager
def making(outputs: Outputs, endings: Sequence[str] = ENDINGS, *, force: bool = False) -> Iterator[Path]:
    """A folder beside the results to make them in; it is gone afterwards, however that ends.

    Raises `NsysprofError` at once where a result exists already (unless ``force``), or its folder cannot be written.
    """
    if not force:
        for ending in endings:
            _refuse(outputs.path(ending))
    try:
        outputs.folder.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".nsysprof-", dir=outputs.folder)
    except OSError as error:
        raise NsysprofError(
            f"{outputs.folder}: cannot write there: {error.strerror}", "-o FOLDER/NAME for another folder"
        ) from None
    try:
        yield Path(folder).absolute()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(parts: Mapping[Path, Path], *, force: bool = False) -> None:
    """Give files (keys) their final names (values), all of them or none; both are on one file system.

    Raises `NsysprofError` where a name is taken meanwhile, unless ``force``, which replaces.
    """
    done: list[Path] = []
    try:
        for part, final in parts.items():
            if force:
                part.replace(final)
                continue
            _link(part, final)
            done.append(final)
    except OSError as error:
        for published in done:
            published.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            _refuse(final)
        raise NsysprofError(f"{final}: cannot write it: {error.strerror}", "df -h") from None


def keep(parts: Mapping[Path, str], outputs: Outputs) -> list[Path]:
    """Keep what a failed capture left: ``name.partial.log`` and so on, numbered where that name is taken.

    ``parts`` maps files to endings; those that do not exist are passed over. Returns the names they got.
    """
    there = {part: ending for part, ending in parts.items() if part.is_file()}
    for number in range(1, 1000):
        partial = f".partial{f'-{number}' if number > 1 else ''}"
        finals = {part: outputs.path(f"{partial}{ending}") for part, ending in there.items()}
        if any(os.path.lexists(final) for final in finals.values()):
            continue
        for part, final in finals.items():
            part.replace(final)
        return list(finals.values())
    return []


def _link(part: Path, final: Path) -> None:
    """A rename that never replaces a file."""
    try:
        os.link(part, final)
    except FileExistsError:
        raise
    except OSError:  # no hard links on this file system
        if os.path.lexists(final):
            raise FileExistsError from None
        part.replace(final)


def _refuse(final: Path) -> None:
    if os.path.lexists(final):
        raise NsysprofError(
            f"{final}: exists already, not overwritten",
            f"--force to replace it, -o NAME for another name, or rm {quote(str(final))}",
        )
