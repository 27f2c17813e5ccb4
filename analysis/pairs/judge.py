"""Compare recordings before and after a change with what is known of it: judge.py FOLDER writes results.csv here.

Truth: of PyTorch traces the time from the first GPU op to the end of the last, or the median time from the end of a
step to the end of the next where there are steps; the same of nsys reports, by SQL; of planted faults what the program
itself measured.
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
from itertools import pairwise, permutations
from pathlib import Path

import nsysprof

SAM = (
    *("9a7a088", "4be6279", "e3ca3cb", "9566500", "7194b86", "186b788", "7055eae"),
    *("6bc0db0", "130d91c", "a763b06", "57c71fe", "775afb0"),
)
MODELS = ("Falconsai", "Qwen", "facebook", "gaunernst", "google")
CHEATS_AFTER = ("halfbatch", "smallgrid")  # of these the remedy does less work, of the others the program without
UNANNOTATED = ("smallgrid", "tailwave", "occupancy", "columns", "histogram", "fewblocks", "cupymalloc", "cupychain")
PLANTED = ("busy", "gc", "pageable")
COURSES = (  # exercises in CUDA C++ and OpenACC, before and after a change
    *(("vec_serial", "vec_streamed"), ("mulmat1", "mulmat2"), ("mulmat2", "mulmat3"), ("mulmat3", "mulmat4")),
    *(("sum2", "sum3"), ("pages1", "pages2"), ("pages6", "pages7"), ("hills3", "hills8"), ("tensor1", "tensor2")),
    *(("model", "model_relu"), ("p2p_managed", "p2p")),
)
COLUMNS = ("set", "base", "new", "pair", "clock", "n", "ratio", "truth", "off", "verdict", "comparable", "check")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def span_of(path: Path) -> float:
    """The time from the first GPU op of a PyTorch trace to the end of the last, in µs."""
    with gzip.open(path) as file:
        ops = [event for event in json.load(file)["traceEvents"] if event.get("cat") in _GPU]
    return max(op["ts"] + op["dur"] for op in ops) - min(op["ts"] for op in ops)


def torch_step_of(path: Path) -> float:
    """The median time from the end of a step of a PyTorch trace to the end of the next, in µs."""
    events = json.loads(path.read_text())["traceEvents"]
    steps = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("step")]
    launch = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    ops = [(launch.get(e["args"]["correlation"], 0), e["ts"] + e["dur"]) for e in events if e.get("cat") in _GPU]
    ends = []
    for step in sorted(steps, key=lambda step: step["ts"]):
        last = step["ts"] + step["dur"]
        ends.append(max([last, *(end for at, end in ops if step["ts"] <= at <= last)]))
    return statistics.median(later - end for end, later in pairwise(ends))


def tables_in(file: sqlite3.Connection) -> list[str]:
    """The tables of GPU work that an nsys report has."""
    known = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    kinds = (f"CUPTI_ACTIVITY_KIND_{each}" for each in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
    return [name for name in kinds if name in known]


def gpu_span_of(path: Path) -> float:
    """The time from the first GPU op of an nsys report to the end of the last, in ns."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
        queries = [f"SELECT min(start), max(end) FROM {name}" for name in tables_in(file)]
        launched = [f"{each} WHERE copyKind NOT IN (11, 12, 13)" if "MEMCPY" in each else each for each in queries]
        rows = [file.execute(each).fetchone() for each in launched]  # but for pages, which the driver moves
    return max(row[1] for row in rows if row[1]) - min(row[0] for row in rows if row[0])


def step_of(path: Path) -> float:
    """The median time from the end of a step to the end of the next in ns, None without steps."""
    steps = "SELECT start, end FROM NVTX_EVENTS WHERE text GLOB 'step*' OR textId IN"
    steps += " (SELECT id FROM StringIds WHERE value GLOB 'step*') ORDER BY start"
    launched = "JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId) WHERE r.start >= ? AND r.end <= ?"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file:
        rows, ends = file.execute(steps).fetchall(), []
        work = [f"SELECT max(k.end) FROM {name} AS k {launched}" for name in tables_in(file) if "MEM" not in name]
        for row in rows:
            ends.append(max(row[1], *(file.execute(each, row).fetchone()[0] or 0 for each in work)))
    return statistics.median(later - end for end, later in pairwise(ends))


def judged(kind: str, before: Path, after: Path, truth: float | None, **how: str) -> dict[str, object]:
    """What compare says of a pair, beside the truth: how many times as fast the new side is."""
    found = nsysprof.compare(str(before), str(after) if after != before else None, **how)
    difference = found.differences[found.largest]
    row = difference.row
    ratio = row["base_median_ns"] / row["new_median_ns"]
    names = (how["base"], how["new"]) if "base" in how else (before.name, after.name)
    sides = dict(zip(("base", "new"), (name.split(".json")[0].split(".sqlite")[0] for name in names), strict=True))
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
        "check": "yes" if any("check that the result is correct" in doubt.text for doubt in difference.doubts) else "",
    }


def public(folder: Path) -> Iterator[dict[str, object]]:
    """Pairs of public recordings."""
    for series in ("True", "False"):
        traces = [folder / f"sam_{series}_{commit}.json.gz" for commit in SAM]
        for base, new in pairwise([trace for trace in traces if trace.is_file()]):
            yield judged("segment-anything-fast", base, new, span_of(base) / span_of(new))
    for model in MODELS:
        base, new = (folder / f"tl_{gpu}_{model}.json.gz" for gpu in ("h100", "mi300"))
        if base.is_file():
            yield judged("TraceLens", base, new, span_of(base) / span_of(new))
    for number in (3, 4, 5):
        base, new = (folder / f"sc23_{each}.sqlite" for each in (number, number + 1))
        if base.is_file():
            yield judged("OpenMP tutorial", base, new, gpu_span_of(base) / gpu_span_of(new))
    for names in COURSES:
        base, new = (folder / f"{name}.sqlite" for name in names)
        if base.is_file():
            yield judged("courses", base, new, gpu_span_of(base) / gpu_span_of(new))
    base, new = (folder / f"mfu_2gpu_{side}.sqlite" for side in ("before", "after"))
    if base.is_file():
        yield judged("nsys-ai", base, new, None)


def programs(folder: Path) -> Iterator[dict[str, object]]:
    """Programs with a remedy, as nsys reports and as PyTorch traces."""
    for kind, ending, of in (("nsys", "sqlite", step_of), ("PyTorch", "json", torch_step_of)):
        for bad in sorted(folder.glob(f"*.bad.{ending}")):
            name = bad.name.split(".")[0]
            for variant in ("good", "cheat"):
                base, new = (folder / f"{name}.{each}.{ending}" for each in ("bad", variant))
                if name in CHEATS_AFTER and variant == "cheat":
                    base = folder / f"{name}.good.{ending}"
                if base.is_file() and new.is_file():
                    truth = gpu_span_of if name in UNANNOTATED and kind == "nsys" else of
                    yield judged(f"programs ({kind})", base, new, truth(base) / truth(new))


def planted(folder: Path) -> Iterator[dict[str, object]]:
    """One loop with faults, against the same without; and the recordings without against each other."""
    reports = [folder / f"{name}.sqlite" for name in PLANTED if (folder / f"{name}.sqlite").is_file()]
    for report in reports:
        times = json.loads(report.with_name(f"{report.stem}.nsys.json").read_text())
        clean = statistics.median(times["PHASE::clean"])
        for phase in [phase for phase in times if phase != "PHASE::clean"]:
            sides = {"base": "PHASE::clean/step*", "new": f"{phase}/step*"}
            yield judged("planted", report, report, clean / statistics.median(times[phase]), **sides)
    for base, new in permutations(reports, 2):
        yield judged("unchanged", base, new, None, select="PHASE::clean/step*")


if __name__ == "__main__":
    with (Path(__file__).parent / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for each in (public, programs, planted) for row in each(Path(sys.argv[1])))
