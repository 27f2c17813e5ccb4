"""The sources of a page's numbers: the report, and the run record if there is one."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nsysprof.core.document import read_if_document
from nsysprof.core.text import one_line, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns
from nsysprof.formats.run_record import program_alone, record_beside, without_arguments
from nsysprof.trace.report import describe_report
from nsysprof.trace.trace import Report

_LONG = 300
_HIDDEN = {"diagnostics", "gpus", "file", "size_bytes", "duration_ns"}
_RECORDED = ("name", "started", "command", "program", "nsys_command", "environment_hash")

Facts = list[tuple[str, list[tuple[str, str]]]]


def report_facts(report: Report, threads: str, record: Path | None = None) -> Facts:
    """List facts in groups, ``(heading, [(name, value)])``; by default with the run record beside the report."""
    about = describe_report(report)
    facts = [("file", visible(about["file"]))]
    if about["size_bytes"]:
        facts.append(("size", format_bytes(about["size_bytes"])))
    if about["duration_ns"]:
        facts.append(("duration", format_ns(about["duration_ns"])))
    facts += [*_flat({name: value for name, value in about.items() if name not in _HIDDEN}, "")]
    beside = record or record_beside(report.path)
    recorded = read_if_document(beside) if beside else {}
    command = report.about.command
    if command and not _keeps_arguments(recorded):
        command = " ".join(program_alone(shlex.split(command)))
    facts += [*_flat({"os": report.about.os, "command": command}, "")]
    facts.append(("threads", threads))
    groups = [("Report", facts), *_gpus(about["gpus"])]
    return [*groups, *_record(beside, recorded)] if beside and recorded else groups


def _gpus(gpus: list[dict[str, Any]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for gpu in gpus:
        facts = [("name", visible(str(gpu["name"])))]
        for key, label, text in (
            ("sm_count", "SMs", str),
            ("memory_bytes", "memory", format_bytes),
            ("bandwidth_bytes_per_s", "bandwidth", format_bandwidth),
            ("clock_hz", "clock", lambda hertz: f"{hertz / 1e6:,.0f} MHz"),
            ("compute_capability", "compute capability", lambda version: ".".join(map(str, version))),
        ):
            if gpu[key]:
                facts.append((label, text(gpu[key])))
        yield f"GPU {gpu['id']}", facts


def _keeps_arguments(record: Mapping[str, Any]) -> bool:
    """Tell whether the program's arguments were to be kept (``capture --keep-environment``): pages are passed on."""
    report = record.get("report")
    sqlite = report.get("sqlite") if isinstance(report, dict) else None
    return isinstance(sqlite, dict) and sqlite.get("scrubbed") is False


def _record(path: Path, record: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    if not _keeps_arguments(record):
        record = without_arguments(record)
    yield "Run record", [("file", visible(path.name)), *_flat({name: record.get(name) for name in _RECORDED}, "")]
    environment = record.get("environment")
    if isinstance(environment, dict):
        yield "Environment", [*_flat(environment, "")]
    for name, heading in (("gpu_state", "Clocks and power"), ("overhead", "Overhead of profiling")):
        part = record.get(name)
        if isinstance(part, dict):
            facts = [*_flat({key: value for key, value in part.items() if key != "ranges"}, "")]
            if facts:  # machines without a GPU have no clocks
                yield heading, facts


def _flat(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    """List all that is known, one value each, under names such as ``workload.torch``."""
    for name, value in values.items():
        label = f"{before}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value):
                which = f"[{number}]" if len(value) > 1 else ""
                yield from _flat(each, f"{before}{name}{which}.")
        elif value not in (None, "", []):
            yield (
                visible(label),
                one_line(", ".join(map(str, value)) if isinstance(value, list) else str(value), _LONG),
            )
