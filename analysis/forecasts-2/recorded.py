"""Writes recorded.csv: the mean step of the bad and the good variant, both as recorded by nsys.

    python analysis/forecasts-2/recorded.py DIR

DIR holds PROGRAM.bad.sqlite and PROGRAM.good.sqlite, of 20 steps each. Times are ms, from the first range to the last
operation of the GPU; programs without kernel records (CUDA graphs) are left out.
"""

from __future__ import annotations

import csv
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

STEPS = 20
KERNELS, COPIES, RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"


def mean_step(report: Path) -> float | None:
    """Return the mean step in ms, or None without kernels."""
    with closing(sqlite3.connect(report)) as db:
        tables = {name for (name,) in db.execute("select name from sqlite_master")}
        if KERNELS not in tables:
            return None
        spans = [db.execute(f"select min(start), max(end) from {name}").fetchone()
                 for name in (KERNELS, COPIES) if name in tables]  # fmt: skip
        first = min(low for low, _ in spans)
        if RANGES in tables:
            name = "coalesce(text, (select value from StringIds where id = textId))"
            first = db.execute(f"select min(start) from {RANGES} where {name} like 'step%'").fetchone()[0]
        return (max(high for _, high in spans) - first) / STEPS / 1e6


def main() -> None:
    """Write a row per program that has both variants."""
    folder = Path(sys.argv[1])
    with (Path(__file__).parent / "recorded.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("program", "bad_ms", "good_ms"))
        for good in sorted(folder.glob("*.good.sqlite")):
            name = good.name.partition(".")[0]
            both = [mean_step(folder / f"{name}.{variant}.sqlite") for variant in ("bad", "good")]
            if None not in both:
                writer.writerow((name, *(f"{ms:.4f}" for ms in both)))


if __name__ == "__main__":
    main()
