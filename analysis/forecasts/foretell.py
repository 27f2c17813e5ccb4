"""Forecasts every case from the recorded bases, and writes forecasts.csv; to be committed before outcomes are measured.

    python analysis/forecasts/foretell.py DIR [--pilot] [-o forecasts.csv]

DIR holds bases.sqlite, plain.json, profiled.json, and the tables of `run.py tables` and `nsysprof bench`; of two
GPUs two.sqlite, two-plain.json, two-profiled.json and reduce.csv. What steps took with the profiler and without it goes
into a run record, as `nsysprof capture --overhead` would write it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import HERE, PARTS, Case, cases, rows, write_rows
from two import pairs

import nsysprof
from nsysprof import __version__
from nsysprof.attribution.paths import range_paths
from nsysprof.errors import NsysprofError
from nsysprof.forecast.forecast import Forecast

NUMBERS = ("base_ns", "forecast_ns", "low_ns", "high_ns")
COLUMNS = ("case", "kind", "question", "exit_code", "plain_ns", "profiled_ns", *NUMBERS, "as_profiled", "residual",
           "profiler_cost_ns", "share_of_time", "share_of_path", "reason", "version", "report_sha256",
           "question_sha256")  # fmt: skip


Times = dict[str, tuple[float, float]]


def run_record(folder: Path, which: str = "") -> tuple[Path, Times]:
    """Write the record of what the profiler cost, and return it with both times of each program.

    Without the profiler that is the lower decile of the steps: outcomes are measured where cores are quick. With it, it
    is the median, as the steps of the report are.
    """
    plain, profiled = (
        {
            run["range"]: float(np.quantile(run["latency_ns"], level))
            for run in json.loads((folder / f"{which}{name}.json").read_text())["runs"]
        }
        for name, level in (("plain", 0.1), ("profiled", 0.5))
    )
    times = {name: (ns, profiled[name]) for name, ns in plain.items() if name in profiled}
    ranges = [
        {"range": f"{name}/step", "plain_median_ns": before, "profiled_median_ns": after}
        for name, (before, after) in times.items()
    ]
    path = folder / f"{which}record.json"
    path.write_text(json.dumps({"schema": "nsysprof-run/1", "overhead": {"ranges": ranges}}))
    return path, times


def cut(report: Path, name: str) -> Path:
    """The part of a report in which a program ran, with the untimed steps before, as a report of its own."""
    path = report.with_name(f"{name}.sqlite")
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("ATTACH ? AS whole", (str(report),))
        text = "COALESCE(text, (SELECT value FROM whole.StringIds WHERE id = textId))"
        marks = database.execute(
            f"SELECT start, end, {text} AS name FROM whole.NVTX_EVENTS WHERE name IN ('warm-up', ?) ORDER BY start",
            (name,),
        ).fetchall()
        spans = [(before[0], mine[1]) for before, mine in itertools.pairwise(marks) if mine[2] == name]
        inside = " OR ".join(f"start BETWEEN {low} AND {high}" for low, high in spans)
        tables = database.execute("SELECT name, sql FROM whole.sqlite_master WHERE type = 'table'").fetchall()
        for table, made in tables:
            database.execute(made)
            columns = [row[1] for row in database.execute(f"PRAGMA whole.table_info({table})")]
            where = f"WHERE {inside}" if "start" in columns else ""
            database.execute(f"INSERT INTO main.{table} SELECT * FROM whole.{table} {where}")
    return path


def asked(case: Case, base: str, folder: Path) -> dict[str, Any]:
    """The changes of a case with what its words stand for; ``base`` is the range around its steps."""
    copies = {row["base"]: row["ns"] for row in rows(folder / "copies.csv")}
    places = {"STEP": f"{base}/step", "TABLES": str(folder), "COPY": f"{copies.get(base, '')}ns"}

    def filled(text: str) -> str:
        for word, place in places.items():
            text = text.replace(word, place)
        return text

    return {key: [filled(each) for each in texts] if isinstance(texts, list) else texts for key, texts in case.ask}


def other_gpu(folder: Path) -> None:
    """A shipped report that says it is of another GPU."""
    path = folder / "other-gpu.sqlite"
    shutil.copyfile(HERE.parents[1] / "traces" / "block.sqlite", path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA A100-SXM4-80GB'")


def shares(answer: Forecast, part: str) -> dict[str, float]:
    """The part's share of the time of all GPU ops of the steps, and of the critical path of a median step."""
    trace = answer.attribution.trace
    texts = range_paths(answer.attribution).texts()
    inside = [text.startswith(f"{answer.path}/") for text in texts]
    wanted = [hit and part in text.split("/") for hit, text in zip(inside, texts, strict=True)]
    of = range_paths(answer.attribution).of
    owner = answer.attribution.op_owner
    path = np.where(owner >= 0, of[owner], -1)
    mine, here = (np.append(np.array(flags), False)[path] for flags in (wanted, inside))
    if part == "side":  # it belongs to no layer
        mine = here & np.array(["spin" in name for name in trace.op_names])[trace.ops.name]
    length = trace.ops.end - trace.ops.start
    on_path = sum(ns for op, ns in answer.before.ops.items() if mine[op])
    return {"share_of_time": round(length[mine].sum() / length[here].sum(), 5),
            "share_of_path": round(on_path / sum(answer.before.ns), 5)}  # fmt: skip


def forecasts(report: Path, which: str, questions: Sequence[tuple[Case, str]]) -> Iterator[dict[str, Any]]:
    """A row per question; with each the range around the steps of its base."""
    record, times = run_record(report.parent, which)
    for base, of_base in itertools.groupby(sorted(questions, key=lambda each: each[1]), key=lambda each: each[1]):
        with nsysprof.open_report(report if which else cut(report, base)) as opened:
            attribution = nsysprof.attribute(opened)
            for case, _ in of_base:
                row: dict[str, Any] = {"case": case.name, "kind": case.kind, "version": __version__,
                                       "question": json.dumps(dict(case.ask)), "exit_code": 0}  # fmt: skip
                row["plain_ns"], row["profiled_ns"] = times[base]
                changes = asked(case, base, report.parent)
                try:
                    answer = nsysprof.forecast(attribution, f"{base}/step", record=record, **changes)
                except NsysprofError as error:
                    reason = str(error).splitlines()[0].replace(str(report.parent), "TABLES")
                    row |= {"exit_code": error.exit_code, "reason": reason}
                else:
                    row |= answered(answer)
                    if case.changed.without in PARTS:
                        row |= shares(answer, case.changed.without)
                print(f"{case.name}: {row.get('reason', row.get('forecast_ns'))}", flush=True)
                yield row


def answered(answer: Forecast) -> dict[str, Any]:
    """The cells of a forecast."""
    return {
        **{name: round(getattr(answer, name)) for name in NUMBERS},
        "as_profiled": int(answer.as_profiled),
        "residual": round(answer.residual, 5),
        "profiler_cost_ns": answer.unprofiled.cost_ns if answer.unprofiled else "",
        "report_sha256": answer.report_hash,
        "question_sha256": answer.question_hash,
    }


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pilot", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "forecasts.csv")
    options = parser.parse_args()
    if options.output.exists():
        raise SystemExit(f"{options.output} is there already: forecasts are written once")
    folder = options.folder
    other_gpu(folder)
    found = list(forecasts(folder / "bases.sqlite", "", [(each, each.base.name) for each in cases(options.pilot)]))
    if (folder / "two.sqlite").exists():
        two = [(case, f"{base.name}-rank0") for case, base, _ in pairs()]
        found += forecasts(folder / "two.sqlite", "two-", two)
    write_rows(options.output, COLUMNS, found)


if __name__ == "__main__":
    main()
