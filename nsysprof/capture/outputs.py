"""Manage the files of one capture: names, the temporary folder, and the files that are kept after a failure."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof import __version__
from nsysprof.core.text import quote_path
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import without_arguments
from nsysprof.results.folder import give_names, refuse_taken
from nsysprof.scrub.secrets import machine_secrets, redacted
from nsysprof.tools.driver import environment_hash
from nsysprof.tools.interrupts import Interrupt, interrupted, interrupts_ignored, interrupts_raised
from nsysprof.tools.nsys import TOO_BIG

ENDINGS = (".nsys-rep", ".sqlite", ".json")
TORCH_ENDINGS = (".json.gz", ".json")
# What lies in the folder of a capture while it is made, apart from what is only of use there.
REPORT, STREAM, IMPORTED = "report.nsys-rep", "report.qdstrm", "imported.nsys-rep"
_LONG_ENDING = ".partial-999.nsys-rep"
LOG, RECORD, RECORD_ENDING = "output.log", "record.json", ".run.json"
_FOLDER = Path("traces")
_MAX_NAME_BYTES = 100
_MIN_FREE_BYTES = 64 << 20
_FULL = re.compile(r"(?i)no space left|disk (is )?full|disk quota")


@dataclass(frozen=True)
class Outputs:
    """The names of a capture without their endings: ``folder / name``."""

    folder: Path
    name: str

    def path(self, ending: str) -> Path:
        """Return the file of this capture with this ending."""
        return self.folder / f"{self.name}{ending}"


def outputs_of(named: str | None, default: str) -> Outputs:
    """Choose the place of the results: the given path or, for a name without a folder, the folder ``traces``.

    The endings of captured files are not part of the name: ``-o a.sqlite`` and ``-o a`` are the same. A path with a
    trailing slash is a folder. Raises `NsysprofError` for an impossible file name.
    """
    given = default if named is None else named
    if named is not None and named.endswith(("/", os.sep)):
        return Outputs(Path(named), outputs_of(None, default).name)
    path = Path(given)
    name = path.name
    for ending in (*ENDINGS, ".qdstrm", TORCH_ENDINGS[0]):
        name = name.removesuffix(ending)
    if named is None:
        shown = "".join(letter if letter.isprintable() else "_" for letter in name)
        return Outputs(_FOLDER, shown.encode()[:_MAX_NAME_BYTES].decode(errors="ignore"))
    if not name.strip(".") or not given.isprintable():
        raise NsysprofError(f"-o {given}: not a valid file name", "-o NAME, or -o FOLDER/NAME")
    bare = path.parent == Path() and not given.startswith(".")
    return Outputs(_FOLDER if bare else path.parent, name)


@contextmanager
def making(outputs: Outputs, *, force: bool = False, endings: Sequence[str] = ENDINGS) -> Iterator[Path]:
    """Provide a temporary folder beside the results, in which the results are made; the folder is always removed.

    ``endings`` are the endings of the results. Raises `NsysprofError` at once if a result exists (unless ``force``), or
    if the folder of the results is not writable. If the capture is stopped later, its log, recording and record are
    kept as ``NAME.partial.*``; known failures and interrupts are raised as `NsysprofError` with a hint about these
    files.
    """
    for ending in endings:
        refuse_taken(outputs.path(ending), force=force)
    new = not os.path.lexists(outputs.folder)
    try:
        outputs.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # a name that is too long is refused now, not after hours
            outputs.path(_LONG_ENDING).lstat()
        folder = Path(tempfile.mkdtemp(prefix=".nsysprof-", dir=outputs.folder)).absolute()
    except OSError as error:
        raise NsysprofError(
            f"{outputs.path('')}: cannot be written: {error.strerror}", "-o FOLDER/NAME for another place"
        ) from None
    kept: dict[Path, Path] = {}
    with interrupts_ignored():
        try:
            with interrupts_raised():
                yield folder
        except BaseException as error:
            kept = _keep(folder, outputs)
            known = _known(error, folder, outputs, kept)
            if known is None:
                raise
            raise known from None
        finally:
            with suppress(OSError):
                if not _is_kept(folder, kept):
                    shutil.rmtree(folder, ignore_errors=True)
                if new:
                    outputs.folder.rmdir()  # where nothing came into it


def completed(record: dict[str, Any], *, scrubbed: bool) -> dict[str, Any]:
    """Complete a record: nsysprof's version, the hash of the environment and, if ``scrubbed``, no private data."""
    if scrubbed:
        record = redacted(without_arguments(record), machine_secrets())
    record = {"schema": record["schema"], "nsysprof": __version__, **record}
    if record["environment"] is not None:  # as it stands there, so that the hash can be checked
        record["environment_hash"] = environment_hash(record["environment"])
    return record


def _keep(folder: Path, outputs: Outputs) -> dict[Path, Path]:
    """Rename the files of a failed capture to ``name.partial.log`` and so on; return the new name of each.

    If this fails, the names stay the same, and the folder is kept.
    """
    there = _left(folder)
    taken = [path.name for path in outputs.folder.glob("*")]
    for number in range(1, 1000):
        partial = f".partial{f'-{number}' if number > 1 else ''}"
        if any(name.startswith(f"{outputs.name}{partial}.") for name in taken):
            continue  # files of another capture: its record would be taken for the one of this
        kept = {part: outputs.path(f"{partial}{ending}") for part, ending in there.items()}
        try:
            give_names(kept)
        except NsysprofError:
            continue  # taken in this very moment, or not to be written at all
        return kept
    return {part: part for part in there}


def _left(folder: Path) -> dict[Path, str]:
    """Find the files worth keeping in a folder, each with its new ending."""
    recorded = [path for path in sorted(folder.glob("report*")) if path.stat().st_size]
    streams = [path for path in recorded if path.suffix == ".qdstrm"]
    # A report beside a stream is what a broken importer left; with several capture ranges there are several.
    reports = streams or [path for path in recorded if path.suffix == ".nsys-rep"]
    made = {path: path.name.removeprefix("report") for path in reports}
    if (folder / IMPORTED).exists():
        made = {folder / IMPORTED: ".nsys-rep"}
    if made and (folder / RECORD).exists():
        made[folder / RECORD] = RECORD_ENDING
    return {**made, **({folder / LOG: ".log"} if (folder / LOG).exists() else {})}


def _is_kept(folder: Path, kept: Mapping[Path, Path]) -> bool:
    return any(final.parent == folder for final in kept.values())


def _known(error: BaseException, folder: Path, outputs: Outputs, kept: Mapping[Path, Path]) -> NsysprofError | None:
    """Return an error that names the cause, the kept files and the next step, or None for an internal error."""
    names = [quote_path(final) for final in kept.values()]
    recorded = [quote_path(final) for final in kept.values() if final.suffix in (".qdstrm", ".nsys-rep")]
    on = [f"kept: {' '.join(names)}"] if names else []
    if recorded and TOO_BIG not in str(error):  # the export would fail again, for ever
        on.append(f"to go on: nsysprof capture --resume {recorded[0]}")
    hints: list[str | None] = []
    if isinstance(error, Interrupt):
        known = interrupted(error)
    elif isinstance(error, OSError):
        known = NsysprofError(f"{error.filename or outputs.folder}: {error.strerror or error}")
        hints = [_space(known.message, outputs) or f"ls -ld {quote_path(outputs.folder)}"]
    elif isinstance(error, NsysprofError):
        known, space = error, _space(error.message, outputs)
        full = space is not None and (error.hint or "").startswith("df -h")
        hints = [space, None if full else error.hint]
    else:
        if on and hasattr(error, "add_note"):  # Python 3.10 has no notes
            error.add_note("; ".join(on))
        return None
    message, hint = known.message, "; ".join(filter(None, [*hints, *on]))
    for part, final in kept.items():
        message, hint = (
            text.replace(quote(str(part)), quote_path(final)).replace(str(part), str(final)) for text in (message, hint)
        )
    if not _is_kept(folder, kept):  # no word of a folder that is gone
        message = message.replace(str(folder), str(outputs.folder))
    return NsysprofError(message, hint or None, exit_code=known.exit_code)


def _space(message: str, outputs: Outputs) -> str | None:
    """Return a hint if the cause may be a full disk, otherwise None."""
    try:
        there = next(place for place in (outputs.folder, *outputs.folder.absolute().parents) if place.is_dir())
        free = shutil.disk_usage(there).free
    except OSError:  # the working folder is gone
        return None
    if _FULL.search(message):
        return f"the disk is full: df -h {quote_path(there)} {quote(tempfile.gettempdir())}"
    return f"only {format_bytes(free)} free there: df -h {quote_path(there)}" if free < _MIN_FREE_BYTES else None
