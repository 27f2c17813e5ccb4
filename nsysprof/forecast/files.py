"""Write a forecast as a JSON document, for comparison with the outcome."""

from pathlib import Path
from typing import Any

import numpy as np

from nsysprof import __version__
from nsysprof.core.columns import ColumnTable
from nsysprof.diagnosis.text import diagnosis_members
from nsysprof.forecast.forecast import Forecast
from nsysprof.forecast.path import PARTS
from nsysprof.forecast.text import forecast_sentence
from nsysprof.results.files import write_answer
from nsysprof.trace.report import describe_report

SCHEMA = "nsysprof-forecast/1"
FILES = ("forecast.json",)


def write_forecast(answer: Forecast, folder: Path) -> list[Path]:
    """Write ``forecast.json`` into an existing folder and return its path."""
    steps = ColumnTable({"start_ns": answer.starts, "base_ns": answer.base, "forecast_ns": answer.forecast})
    return write_answer(folder, {}, FILES[0], forecast_document(answer), {"steps": steps})


def forecast_document(answer: Forecast) -> dict[str, Any]:
    """Return the forecast for JSON, without its steps."""
    scaled = answer.unprofiled
    return {
        "schema": SCHEMA,
        "report": describe_report(answer.attribution.trace.report),
        "version": __version__,
        "question": answer.question,
        "words": answer.words,
        "path": answer.path,
        "chosen_steps": answer.steps.record(answer.warm_up),
        "gpu": answer.gpu,
        "base_ns": answer.base_ns,
        "forecast_ns": answer.forecast_ns,
        "low_ns": answer.low_ns,
        "high_ns": answer.high_ns,
        "level": answer.level,
        "as_profiled": answer.as_profiled,
        "residual": answer.residual if scaled is None else scaled.residual,
        "identity_residual": answer.residual,
        "basis": answer.basis,
        "gain_ns": answer.gain_ns,
        **diagnosis_members(answer.diagnosis, answer.attribution.trace.report.path, "forecast"),
        "published": answer.published,
        "because": answer.because or None,
        "sentence": forecast_sentence(answer),
        "critical_path": {
            name: {"base_ns": int(now), "forecast_ns": int(then)}
            for name, now, then in zip(PARTS, answer.before.ns, answer.after.ns, strict=True)
        },
        "per_call_ns": None if answer.per_call_ns is None else float(np.round(answer.per_call_ns, 3)),
        "profiler_cost_ns": None if scaled is None else scaled.cost_ns,
        "notes": list(answer.notes),
        "warnings": list(answer.warnings),
        "other_paths": [
            {"path": path, "gpu": gpu, "base_ns": base, "forecast_ns": new} for path, gpu, base, new in answer.others
        ],
        "report_sha256": answer.report_hash,
        "question_sha256": answer.question_hash,
    }
