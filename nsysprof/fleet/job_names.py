"""Which rank of its job a report is of, as far as the record beside it says."""

from __future__ import annotations

from pathlib import Path

from nsysprof.core.side_file import read_json
from nsysprof.fleet.inputs import record_path

MOST_DIGITS = 9  # of the number of a rank


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
