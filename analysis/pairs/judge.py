"""Compare recordings before and after a change with what is known of it: judge.py FOLDER writes results.csv here.

Truth: of PyTorch traces the time from the first GPU op to the end of the last, of nsys reports with steps the median
time from the end of a step to the end of the next, by SQL, of planted faults what the program itself measured.
"""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
import statistics
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import nsysprof

SAM = (
    *("9a7a088", "4be6279", "e3ca3cb", "9566500", "7194b86", "186b788", "775afb0"),
    *("7055eae", "6bc0db0", "57c71fe", "130d91c", "a763b06"),
)
REMEDIES = ("optimizer", "pageable", "attention", "halfbatch", "smallgrid")
PLANTED = ("busy", "gc", "pageable")
COLUMNS = (
    "set",
    "base",
    "new",
    "pair",
    "clock",
    "n",
    "ratio",
    "truth",
    "off",
    "verdict",
    "comparable",
    "check",
)
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def span_of(path: Path) -> float:
    """The time from the first GPU op of a PyTorch trace to the end of the last, in µs."""
    with gzip.open(path) as file:
        ops = [event for event in json.load(file)["traceEvents"] if event.get("cat") in _GPU]
    return max(op["ts"] + op["dur"] for op in ops) - min(op["ts"] for op in ops)


def step_of(path: Path) -> float:
    """The median time from the end of a step to the end of the next in ns, None without steps."""
    steps = "SELECT start, end FROM NVTX_EVENTS WHERE text GLOB 'step*' OR textId IN"
    steps += " (SELECT id FROM StringIds WHERE value GLOB 'step*') ORDER BY start"
    last = "SELECT max(k.end) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r"
    last += " USING (correlationId) WHERE r.start >= ? AND r.end <= ?"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
        rows = file.execute(steps).fetchall()
        ends = [max(row[1], file.execute(last, row).fetchone()[0] or 0) for row in rows]
    return statistics.median(later - end for end, later in pairwise(ends))


def judged(kind: str, before: Path, after: Path, truth: float | None, **how: str) -> dict[str, object]:
    """What compare says of a pair, beside the truth: how many times as fast the new side is."""
    found = nsysprof.compare(str(before), str(after) if after != before else None, **how)
    difference = found.differences[found.largest]
    row = difference.row
    ratio = row["base_median_ns"] / row["new_median_ns"]
    names = how.values() if how else (before.name, after.name)
    sides = dict(
        zip(("base", "new"), (name.split(".json")[0].split(".sqlite")[0] for name in names), strict=True)
    )
    return {
        "set": kind,
        **sides,
        "pair": row["pair"] if not how else "step*",
        "clock": row["clock"],
        "n": f"{row['base_n']} {row['new_n']}",
        "ratio": f"{ratio:.4g}",
        "truth": "" if truth is None else f"{truth:.4g}",
        "off": "" if truth is None else f"{ratio / truth - 1:+.1%}",
        "verdict": row["verdict"],
        "comparable": "yes" if found.comparable else "no",
        "check": "yes" if any("check its result" in text for text in difference.doubts) else "",
    }


def rows(folder: Path) -> Iterator[dict[str, object]]:
    """All pairs whose recordings are there."""
    traces = [folder / f"sam_True_{commit}.json.gz" for commit in SAM]
    for base, new in pairwise(traces):
        if base.is_file() and new.is_file():
            yield judged("segment-anything-fast", base, new, span_of(base) / span_of(new))
    base, new = (folder / f"mfu_2gpu_{side}.sqlite" for side in ("before", "after"))
    if base.is_file():
        yield judged("nsys-ai", base, new, None)
    for name in REMEDIES:
        for one, other in (("bad", "good"), ("good", "cheat")):
            base, new = (folder / f"{name}.{variant}.sqlite" for variant in (one, other))
            if base.is_file() and new.is_file():
                truth = None if name == "smallgrid" else step_of(base) / step_of(new)
                yield judged("remedies", base, new, truth)
    for name in PLANTED:
        report = folder / f"{name}.sqlite"
        if report.is_file():
            times = json.loads(report.with_name(f"{name}.nsys.json").read_text())
            clean = statistics.median(times["PHASE::clean"])
            for phase in [phase for phase in times if phase != "PHASE::clean"]:
                sides = {"base": "PHASE::clean/step*", "new": f"{phase}/step*"}
                yield judged("planted", report, report, clean / statistics.median(times[phase]), **sides)


if __name__ == "__main__":
    with (Path(__file__).parent / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(Path(sys.argv[1])))
