"""Which rank of its job a report is of, as far as the report or the record beside it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from nsysprof.core.side_file import read_json
from nsysprof.fleet.inputs import record_path
from nsysprof.tools.launchers import PLACE_VARIABLES
from nsysprof.trace.nsys import Report
from nsysprof.trace.nsys.properties import known, named_values

_VARIABLE = re.compile(r"PROCESS_\d+:ENVIRONMENT_VARIABLE")
MOST_DIGITS = 9  # of the number of a rank
_ASSIGNED = re.compile(rf"(?:^|;)(\w+)=\"?(\d{{1,{MOST_DIGITS}}})(?=\"|;|$)")


def rank_in_record(report: Path) -> int | None:
    """The rank in the run record, the ``.json`` beside a report; None without one, or where it says none."""
    try:
        record = read_json(record_path(report))
    except (OSError, ValueError):
        return None
    job = record.get("job") if isinstance(record, dict) and record.get("schema") == "nsysprof-run/1" else None
    rank = job.get("rank") if isinstance(job, dict) else None
    known = isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 10**MOST_DIGITS
    return rank if known else None


def rank_in_environment(report: Report) -> int | None:
    """The rank in the environment that nsys recorded of the program; None where it did not, or it was scrubbed."""
    source = report.source
    values = [value for _, value in named_values(source, "META_DATA_CAPTURE", _VARIABLE.fullmatch)]
    values += [
        value for _, value in named_values(source, "TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment".__eq__)
    ]
    found: Mapping[str, int] = {
        name: int(number)
        for value in reversed(values)
        for name, number in _ASSIGNED.findall(value)
        if name in PLACE_VARIABLES["rank"]
    }
    return next((found[name] for name in PLACE_VARIABLES["rank"] if name in found), None)


def host_name(report: Report) -> str | None:
    """The machine that a report was made on; None where it does not say, or was scrubbed."""
    names = named_values(report.source, "TARGET_INFO_SYSTEM_ENV", "Hostname".__eq__)
    return next((known(value) for _, value in names), None)
