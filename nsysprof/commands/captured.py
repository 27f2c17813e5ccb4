"""What is done with a report that was just captured: scrubbed, judged, recorded, published, and told about."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from nsysprof.backend_verdict import BackendVerdict
    from nsysprof.capture.outputs import Outputs
    from nsysprof.capture.session import Staged
    from nsysprof.kernel_rules import Rules


def finish(
    staged: Staged, outputs: Outputs, folder: Path, *, rules: Rules, keep_environment: bool, force: bool
) -> None:
    """Bring what was captured under its final names and print what ran; `typer.Exit` 3 where another backend ran.

    Raises `NsysprofError` where the export cannot be read or the names are taken; then the report stays as
    ``NAME.partial.nsys-rep``.
    """
    from nsysprof.capture.outputs import keep, publish
    from nsysprof.capture.record import file_facts, write_record
    from nsysprof.errors import NsysprofError

    record = dict(staged.record)
    try:
        verdict, counts = _judged(staged.sqlite, rules)
        sqlite = staged.sqlite
        if not keep_environment:
            sqlite, record = _scrubbed(staged.sqlite, folder, record)
        record["report"] = {
            "nsys_rep": file_facts(staged.report),
            "sqlite": {**file_facts(sqlite), "scrubbed": not keep_environment},
            **counts,
        }
        record["backends"] = verdict.records()
        written = folder / "record.json"
        write_record(written, record)
        parts = {".nsys-rep": staged.report, ".sqlite": sqlite, ".json": written}
        publish({part: outputs.path(ending) for ending, part in parts.items()}, force=force)
    except NsysprofError as error:
        kept = keep({staged.report: ".nsys-rep", folder / "output.log": ".log"}, outputs)
        names = f"kept: {' '.join(map(str, kept))}"
        raise NsysprofError(error.message, f"{error.hint}; {names}" if error.hint else names) from None
    _tell(verdict, record, outputs, scrubbed=not keep_environment)


def _judged(sqlite: Path, rules: Rules) -> tuple[BackendVerdict, dict[str, int]]:
    """Which backends ran, and how much the report holds; reading it all also proves that it is whole."""
    from nsysprof.attribution import attribute
    from nsysprof.backend_verdict import judge_backends
    from nsysprof.commands.progress import progress_bar
    from nsysprof.report import open_report
    from nsysprof.table_reader import read_tables
    from nsysprof.tables import KERNEL

    with open_report(sqlite) as opened, progress_bar() as progress:
        tables = read_tables(opened, progress)
        verdict = judge_backends(attribute(tables, "follow", progress), rules)
        counts = {"kernels": int((tables.ops.kind == KERNEL).sum()), "ranges": len(tables.ranges)}
    return verdict, counts


def _scrubbed(sqlite: Path, folder: Path, record: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The export and the record without what tells of the machine's owner."""
    from nsysprof.capture.scrub import machine_secrets, redacted, scrub_report

    scrubbed = folder / "scrubbed.sqlite"
    scrub_report(sqlite, scrubbed)
    return scrubbed, redacted(record, machine_secrets())


def _tell(verdict: BackendVerdict, record: dict[str, Any], outputs: Outputs, *, scrubbed: bool) -> None:
    """Print what was captured and what ran, and last the command to go on with."""
    from nsysprof.render.captured_text import captured_summary
    from nsysprof.render.terminal import visible
    from nsysprof.render.verdict_text import backend_table, difference_lines

    ran = (
        backend_table(verdict)
        if record["report"]["kernels"]
        else "no kernels: nothing to tell which backend ran\n"
    )
    parts = [captured_summary(record), ran]
    print("\n".join(part for part in parts if part), end="", flush=True)
    if scrubbed:
        _say(f"{outputs.path('.nsys-rep')} still holds the environment; to share: {outputs.path('.sqlite')}")
    differ = difference_lines(verdict)
    for line in differ:
        _say(f"nsysprof: {line}")
    _say("next:")
    print(f"nsysprof analyze {visible(quote(str(outputs.path('.sqlite'))))}", flush=True)
    if differ:
        raise typer.Exit(3)


def _say(text: str) -> None:
    from nsysprof.render.terminal import visible

    print(visible(text), file=sys.stderr, flush=True)
