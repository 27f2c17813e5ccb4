"""Write the slow steps as files: steps and ledgers as CSV, and everything as one JSON document."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.diagnosis.text import diagnosis_members
from nsysprof.results.files import document_head, plain, records, write_answer
from nsysprof.statistics.judge import CLASSES, TYPICAL
from nsysprof.steps.findings import findings
from nsysprof.steps.steps import Chain, Steps
from nsysprof.steps.tables import LEDGER, STEPS

SCHEMA = "nsysprof-steps/1"
FILES = ("steps.csv", "steps_ledger.csv", "steps.json")


def write_steps(answer: Steps, folder: Path) -> list[Path]:
    """Write the `FILES` into an existing folder and return their paths."""
    tables = {STEPS.file: STEPS.of(answer.columns("steps")), LEDGER.file: LEDGER.of(answer.columns("ledger"))}
    return write_answer(folder, tables, FILES[-1], steps_document(answer))


def steps_document(answer: Steps) -> dict[str, Any]:
    """Return the result for JSON: report, paths with their distributions, findings, and atypical steps."""
    steps = answer.columns("steps")
    return {
        **document_head(SCHEMA, answer.attribution.trace.report),
        "chosen": answer.chosen or None,
        "chosen_steps": answer.level.record(sum(chain.judgement.warm_up for chain in answer.chains))
        if answer.level
        else None,
        "warnings": list(answer.warnings),
        "left_out": answer.left_out,
        "paths": [_path(chain) for chain in answer.chains],
        "findings": [asdict(each) for each in findings(answer)],
        **diagnosis_members(answer.diagnosis, answer.attribution.trace.report.path, "steps"),
        "steps": records(STEPS.of(steps.take(~steps.texts("class").equal(CLASSES[TYPICAL])))),
    }


def _path(chain: Chain) -> dict[str, Any]:
    judged, fit = chain.judgement, chain.fit
    low, median, high = np.quantile(chain.whole, [0.25, 0.5, 0.75]).tolist()
    return {
        "path": chain.path,
        "gpu": chain.gpu,
        "pid": chain.pid,
        "steps": len(chain.span),
        "warm_up": judged.warm_up,
        "slow_share": chain.slow_share,
        "classes": {name: int((judged.of == code).sum()) for code, name in enumerate(CLASSES)},
        "median_ns": plain(median, None),
        "quartiles_ns": [plain(low, None), plain(high, None)],
        "longest_ns": int(chain.whole.max()),
        "slow_from": plain(judged.limit, None),
        "period": judged.period or None,
        "drift": judged.drift,
        "changes": [{"step": at, "times_as_long": by} for at, by in judged.changes],
        "numbers": None
        if fit is None
        else {
            "explained": fit.explained,
            "fixed_ns": fit.fixed_ns,
            "features": [asdict(each) for each in fit.features],
        },
    }
