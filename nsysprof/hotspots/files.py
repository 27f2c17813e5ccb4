"""Write hot spots as files: the kernels as CSV, and everything as one JSON document."""

from pathlib import Path
from typing import Any

from nsysprof.diagnosis.text import diagnosis_members
from nsysprof.hotspots.hotspots import Hotspots
from nsysprof.hotspots.tables import HOTSPOTS
from nsysprof.hotspots.text import command, spot_sentence
from nsysprof.results.files import document_head, write_answer

SCHEMA = "nsysprof-hotspots/1"
FILES = ("hotspots.csv", "hotspots.json")


def write_hotspots(answer: Hotspots, folder: Path) -> list[Path]:
    """Write the `FILES` into an existing folder and return their paths."""
    table = HOTSPOTS.of(answer.table)
    return write_answer(folder, {HOTSPOTS.file: table}, FILES[-1], hotspots_document(answer), {"kernels": table})


def hotspots_document(answer: Hotspots) -> dict[str, Any]:
    """Return the answer for JSON, without its kernels."""
    place, limits, best = answer.place, answer.limits, answer.best
    return {
        **document_head(SCHEMA, answer.attribution.trace.report),
        "by": answer.by,
        "path": place.path if place else None,
        "gpu": place.gpu if place else None,
        "steps": place.steps if place else 0,
        "chosen_steps": answer.case.chosen.level.record(answer.diagnosis.left_out),
        "other_paths": answer.others,
        "limits": {"bytes_per_s": limits.bytes_per_s, "sm_clock_mhz": limits.max_sm_clock_mhz},
        "shapes_recorded": answer.known,
        "sentence": spot_sentence(answer, best) if best else None,
        "command": command(answer, best) if best else None,
        "warnings": list(answer.warnings),
        **diagnosis_members(answer.diagnosis, answer.attribution.trace.report.path, "hotspots"),
    }
