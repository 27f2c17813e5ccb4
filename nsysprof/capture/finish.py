"""Finish a capture: read, judge and scrub its export, complete its record, and name all files."""

from typing import Any

from nsysprof.attribution.attribute import attribute
from nsysprof.capture.failure import why_no_ranges
from nsysprof.capture.outputs import Outputs, completed
from nsysprof.capture.session import Staged
from nsysprof.core.arena import default_limit
from nsysprof.formats.run_record import file_facts, write_record
from nsysprof.kernels.backends import BackendVerdict, judge_backends
from nsysprof.kernels.rules import Rules
from nsysprof.results.folder import give_names
from nsysprof.scrub.scrub import scrub_report
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import KERNEL, Progress


def finish_capture(
    staged: Staged, outputs: Outputs, rules: Rules, progress: Progress, *, scrubbed: bool, names: bool, force: bool
) -> tuple[BackendVerdict, dict[str, Any], tuple[str, str] | None]:
    """Read the capture, scrub it if requested, and give its files their final names; if anything fails, no file gets
    one.

    Return the backends that ran, the record, and the reason if there are no ranges. Reading the whole export also
    proves that it is complete. Raises `NsysprofError` if the export cannot be read, or if the names are taken.
    """
    folder, sqlite, record = staged.sqlite.parent, staged.sqlite, staged.record
    with open_report(sqlite) as opened:
        attribution = attribute(opened, "follow", progress, default_limit())
        verdict, trace = judge_backends(attribution, rules), attribution.trace
        counts = {"kernels": int((trace.ops.kind == KERNEL).sum()), "ranges": len(trace.ranges)}
    no_ranges = None if counts["ranges"] else why_no_ranges(sqlite)
    if scrubbed:
        sqlite = folder / "scrubbed.sqlite"
        scrub_report(staged.sqlite, sqlite, names=names)
    record = completed(record, scrubbed=scrubbed)
    record["report"] = {
        "nsys_rep": file_facts(staged.report),
        "sqlite": {**file_facts(sqlite), "scrubbed": scrubbed},
        **counts,
    }
    record["backends"] = verdict.records()
    written = folder / "published.json"
    write_record(written, record)
    parts = {".nsys-rep": staged.report, ".sqlite": sqlite, ".json": written}
    give_names({part: outputs.path(ending) for ending, part in parts.items()}, force=force)
    return verdict, record, no_ranges
