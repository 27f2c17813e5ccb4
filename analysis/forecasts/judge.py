"""Compares forecasts with outcomes: the error of each, how often intervals hold, and the table per kind of question.

    python analysis/forecasts/judge.py [FOLDER]

Reads forecasts.csv and outcomes.csv, writes results.csv, and prints the tables as Markdown, and what
`nsysprof.forecast.questions.PUBLISHED` is to hold. A case without an outcome is open and counts as nothing.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

from cases import HERE, cases, rows

COLUMNS = (
    "case",
    "kind",
    "base_ns",
    "forecast_ns",
    "low_ns",
    "high_ns",
    "outcome_ns",
    "error",
    "held",
    "verdict",
)


def judged(folder: Path) -> list[dict[str, str | float]]:
    """A row per forecast: ``error`` is forecast / outcome - 1, ``held`` whether the interval holds the outcome."""
    outcomes = {row["case"]: row for row in rows(folder / "outcomes.csv")}
    must_refuse = {case.name for case in cases() if case.refused}
    out: list[dict[str, str | float]] = []
    for row in rows(folder / "forecasts.csv"):
        found: dict[str, str | float] = {name: row.get(name, "") for name in COLUMNS}
        refused, outcome = row["exit_code"] == "3", outcomes.get(row["case"])
        if refused:
            found["verdict"] = "refused as it must be" if row["case"] in must_refuse else "refused"
        elif row["case"] in must_refuse:
            found["verdict"] = "answered, must be refused"
        elif outcome is None:
            found["verdict"] = "open"
        else:
            ns = float(outcome["outcome_ns"])
            found["outcome_ns"] = ns
            found["error"] = float(row["forecast_ns"]) / ns - 1
            held = float(row["low_ns"]) <= ns <= float(row["high_ns"])
            found["held"], found["verdict"] = int(held), "held" if held else "missed"
        out.append(found)
    return out


def table(found: list[dict[str, str | float]]) -> str:
    """The kinds of questions: how many, the median and the worst error, and how many intervals held."""
    lines = [
        "| kind | forecasts | median error | worst | intervals that held | refused |",
        "|---|---|---|---|---|---|",
    ]
    published = {}
    for kind in [*dict.fromkeys(str(row["kind"]) for row in found), "all"]:
        mine = [row for row in found if kind in (row["kind"], "all")]
        errors = sorted(abs(float(row["error"])) for row in mine if row["error"] != "")
        refused = sum(str(row["verdict"]).startswith("refused") for row in mine)
        if errors:
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            held = sum(int(row["held"]) for row in mine if row["held"] != "")
            lines.append(
                f"| {kind} | {len(errors)} | {statistics.median(errors):.1%} | {errors[-1]:.1%} | {held} | {refused} |"
            )
            published[kind] = (
                round(statistics.median(errors), 4),
                round(errors[-1], 4),
                round(ninth, 4),
                len(errors),
            )
        else:
            lines.append(f"| {kind} | 0 | – | – | – | {refused} |")
    published.pop("all", None)
    return "\n".join([*lines, "", f"PUBLISHED = {published}"])


def main() -> None:
    """Judge what is there."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    found = judged(folder)
    if not found:
        sys.exit(f"{folder} has no forecasts.csv: nothing was forecast yet")
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
