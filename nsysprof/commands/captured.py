"""What is done with a report that was just captured: scrubbed, judged, recorded, published, and told about."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from nsysprof.capture.session import Staged
    from nsysprof.kernels.backends import BackendVerdict
    from nsysprof.kernels.rules import Rules
    from nsysprof.tools.outputs import Outputs


@dataclass(frozen=True)
class Finished:
    """A capture under its final names: which backends ran, its record, and why it holds no ranges, if so."""

    verdict: BackendVerdict
    record: dict[str, Any]
    no_ranges: tuple[str, str] | None


def finish(
    staged: Staged, outputs: Outputs, folder: Path, *, rules: Rules, keep_environment: bool, force: bool
) -> Finished:
    """Bring what was captured under its final names, all of it or nothing.

    Raises `NsysprofError` where the export cannot be read or the names are taken.
    """
    from nsysprof import __version__
    from nsysprof.capture.failure import why_no_ranges
    from nsysprof.formats.run_record import file_facts, write_record
    from nsysprof.tools.fingerprint import environment_hash
    from nsysprof.tools.outputs import publish

    verdict, counts = _judged(staged.sqlite, rules)
    no_ranges = None if counts["ranges"] else why_no_ranges(staged.sqlite)
    sqlite, record = staged.sqlite, staged.record
    if not keep_environment:
        sqlite, record = _scrubbed(staged.sqlite, folder, record)
    record = {"schema": record["schema"], "nsysprof": __version__, **record}
    if record["environment"] is not None:  # as it stands there, so that the hash can be checked
        record["environment_hash"] = environment_hash(record["environment"])
    record["report"] = {
        "nsys_rep": file_facts(staged.report),
        "sqlite": {**file_facts(sqlite), "scrubbed": not keep_environment},
        **counts,
    }
    record["backends"] = verdict.records()
    written = folder / "published.json"
    write_record(written, record)
    parts = {".nsys-rep": staged.report, ".sqlite": sqlite, ".json": written}
    publish({part: outputs.path(ending) for ending, part in parts.items()}, force=force)
    return Finished(verdict, record, no_ranges)


def tell_captured(finished: Finished, outputs: Outputs) -> None:
    """Print what was captured and what ran, and last the command to go on with.

    Raises `typer.Exit` with 3 where another backend ran than was asked for, or no range was recorded.
    """
    from nsysprof.capture.text import captured_summary
    from nsysprof.capture.verdict_text import backend_table, difference_lines
    from nsysprof.core.text import visible
    from nsysprof.tools.outputs import typed

    verdict, report = finished.verdict, finished.record["report"]
    ran = backend_table(verdict) if report["kernels"] else ""
    print("\n".join(part for part in (captured_summary(finished.record), ran) if part), end="", flush=True)
    if not report["kernels"] and (finished.record["environment"] or {}).get("driver"):
        say(
            "no kernels, although there is a GPU: did the program use it, and does nsysprof doctor find fault?"
        )
    if report["sqlite"]["scrubbed"]:
        say(f"{outputs.path('.nsys-rep')} still holds the environment; to share: {outputs.path('.sqlite')}")
    differ = difference_lines(verdict)
    for line in differ:
        say(f"nsysprof: {line}")
    if finished.no_ranges:
        say(f"nsysprof: no ranges: {finished.no_ranges[0]}")
        say(f"  hint: {finished.no_ranges[1]}")
    say("next:")
    print(f"nsysprof analyze {visible(typed(outputs.path('.sqlite')))}", flush=True)
    if differ or finished.no_ranges:
        raise typer.Exit(3)


def say(text: str) -> None:
    """Print a line on stderr, where control characters are shown."""
    from nsysprof.core.text import visible

    to_stderr(f"{visible(text)}\n")


def to_stderr(text: str) -> None:
    """Print on stderr at once; a capture goes on where nobody reads that any more."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _judged(sqlite: Path, rules: Rules) -> tuple[BackendVerdict, dict[str, int]]:
    """Which backends ran, and how much the report holds; reading it all also proves that it is whole."""
    from nsysprof.attribution.attribute import attribute
    from nsysprof.commands.progress import progress_bar
    from nsysprof.core.arena import default_limit
    from nsysprof.kernels.backends import judge_backends
    from nsysprof.trace.report import open_report
    from nsysprof.trace.trace import KERNEL

    with open_report(sqlite) as opened, progress_bar() as progress:
        attribution = attribute(opened, "follow", progress, default_limit())
        verdict, trace = judge_backends(attribution, rules), attribution.trace
        counts = {"kernels": int((trace.ops.kind == KERNEL).sum()), "ranges": len(trace.ranges)}
    return verdict, counts


def _scrubbed(sqlite: Path, folder: Path, record: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The export and the record without what tells of the machine's owner."""
    from nsysprof.formats.run_record import without_arguments
    from nsysprof.scrub.scrub import machine_secrets, redacted, scrub_report

    scrubbed = folder / "scrubbed.sqlite"
    scrub_report(sqlite, scrubbed)
    return scrubbed, redacted(without_arguments(record), machine_secrets())
