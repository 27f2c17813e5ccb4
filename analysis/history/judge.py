"""The history of segment-anything-fast, compared with what its authors changed.

python analysis/history/judge.py sam > analysis/history/sam.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import nsysprof
from nsysprof.charts.chart import save_charts
from nsysprof.history.charts import CHARTS

# What the diffs and the pull request say of each state of the program, beside the one before.
GAINS, REGRESSION = ("e3ca3cb", "9566500", "7055eae"), ("775afb0",)
ALIKE = ("7194b86", "186b788", "6bc0db0", "130d91c", "a763b06", "57c71fe")


def main(folder: str) -> None:
    """Write a row per run, with the change that was found at it and the truth, and draw the chart."""
    answer = nsysprof.history(folder)
    changes = {change.run: change for _, change in answer.changes}
    names = ("run", "report", "commit", "series", "step_ms", "level_ms", "found", "ratio", "cause", "part", "part_ms")
    rows: list[tuple[object, ...]] = [(*names, "truth")]
    for number, series in enumerate(answer.series, 1):
        level = series.levels.of(len(series.runs)).tolist()
        for row, timed, of in zip(series.runs, series.times, level, strict=True):
            run, change = answer.runs[row], changes.get(row)
            truth = "gain" if run.commit in GAINS else "slower" if run.commit in REGRESSION else ""
            truth = "no change" if run.commit in ALIKE else truth
            about = (row + 1, run.name, run.commit, number, f"{timed.median_ns / 1e6:.1f}")
            found: tuple[object, ...] = ("",) * 5
            if change is not None:
                sign = 1 if change.ratio > 1 else -1
                part, before, after = max(change.ledger, key=lambda each: (each[2] - each[1]) * sign)
                found = ("slower" if sign > 0 else "gain", f"{change.ratio:.3f}", change.cause, part)
                found += (f"{(after - before) / 1e6:+.1f}",)
            rows.append((*about, f"{series.levels.time(of) / 1e6:.1f}", *found, truth))
    with Path(__file__).with_name("sam.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    save_charts(CHARTS, answer, Path(__file__).parent)


if __name__ == "__main__":
    main(sys.argv[1])
