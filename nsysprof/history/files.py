"""Write the files of a history: tables as CSV, everything as one document, and their folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof import __version__
from nsysprof.charts.chart import files_of
from nsysprof.core.document import members_at_head
from nsysprof.history.charts import CHARTS
from nsysprof.history.history import History
from nsysprof.history.tables import CHANGES, LEDGER, RUNS, change_rows, ledger_rows, run_rows
from nsysprof.history.text import change_text, headline
from nsysprof.results.files import records, write_csv, write_document
from nsysprof.results.folder import PAGE, ResultFolder

SCHEMA = "nsysprof-history/1"
CACHE = "history.db"
FILES = ("history.json", RUNS.file, CHANGES.file, LEDGER.file)


def history_folder(
    place: Path, names: Sequence[str], *, charts: bool = False, html: bool = False, **more: Any
) -> ResultFolder:
    """Make the result folder for reports with these ``names``; ``more`` are other fields of `ResultFolder`."""
    drawn = files_of(CHARTS)
    return ResultFolder(
        place,
        "history",
        possible=(*FILES, *drawn, PAGE),
        wanted=(*FILES, *(drawn * charts), *([PAGE] * html)),
        is_ours=lambda document: _is_about(document, names),
        refusal="not written about these reports",
        hint="nsysprof history … -o OTHER-DIR   (or --force to replace them)",
        **more,
    )


def _is_about(document: Path, names: Sequence[str]) -> bool:
    head = members_at_head(document)
    options = head.get("options")
    return head.get("schema") == SCHEMA and isinstance(options, dict) and options.get("names") == list(names)


def write_history(answer: History, folder: Path) -> list[Path]:
    """Write the `FILES` into an existing folder and return their paths."""
    runs = [row for number, series in enumerate(answer.series, 1) for row in run_rows(answer, series, number)]
    made = {RUNS: runs, CHANGES: [*change_rows(answer)], LEDGER: [*ledger_rows(answer)]}
    frames = {table: pd.DataFrame(rows, columns=table.header(rows)) for table, rows in made.items()}
    for table, frame in frames.items():
        write_csv(frame, folder / table.file)
    write_document(history_document(answer, *frames.values()), folder / FILES[0])
    return [folder / name for name in FILES]


def history_document(
    answer: History, runs: pd.DataFrame, changes: pd.DataFrame, ledger: pd.DataFrame
) -> dict[str, Any]:
    """The result for JSON: series with their runs, and changes with their ledgers."""
    sentences = {(id(series), change.run): change_text(answer, series, change) for series, change in answer.changes}
    return {
        "schema": SCHEMA,
        "nsysprof": __version__,
        "options": answer.options,
        "headline": headline(answer),
        "notes": list(answer.notes),
        "skipped": [{"file": file, "reason": reason} for file, reason in answer.skipped],
        "series": [
            {
                "path": series.path,
                "noise": float(series.levels.noise),
                "noise_known": series.levels.known,
                "drift": series.drift,
                "detectable": series.levels.detectable(len(series.runs)),
                "runs": records(runs[runs["series"] == number].drop(columns=["series", "path"])),
                "changes": [
                    row
                    | {
                        "text": sentences[id(series), int(row["run"]) - 1],
                        "ledger": records(
                            ledger[(ledger["series"] == number) & (ledger["run"] == row["run"])].drop(
                                columns=["series", "run"]
                            )
                        ),
                    }
                    for row in records(changes[changes["series"] == number].drop(columns="series"))
                ],
            }
            for number, series in enumerate(answer.series, 1)
        ],
    }
