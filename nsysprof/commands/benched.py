"""What `nsysprof bench` does with a plan: prints it, or measures it and makes results of the samples."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsysprof.bench.results import BenchResults
    from nsysprof.bench.run import SweepJob
    from nsysprof.results.folder import ResultFolder


def show_matrix(plan: Mapping[str, Any], described: Mapping[str, Any]) -> None:
    """Print each configuration with what its backends need of memory, about, and which of them may not fit."""
    from nsysprof.bench.text import plain_table
    from nsysprof.core.units import format_bytes

    rows = described["configurations"]
    sizes = {
        (row["id"], name): row["cost"]["held_bytes"].get(name) for row in rows for name in row["backends"]
    }
    names = list(dict.fromkeys(name for row in rows for name in row["backends"]))
    cells = []
    for row in rows:
        known = [sizes.get((row["id"], name)) for name in names]
        cells.append([row["id"], *("" if size is None else format_bytes(size) for size in known)])
    print(plain_table(["configuration", *names], cells, texts=1))
    print(f"\n{_told(plan, described, len(sizes))}")
    there = _gpu_bytes() if plan["device"] == "cuda" else None
    too_large = [
        f"{name} at {where}" for (where, name), size in sizes.items() if there and size and size > there
    ]
    if there and too_large:
        print(f"May not fit into the {format_bytes(there)} of this GPU, and is then passed over:")
        print("\n".join(f"  {each}" for each in too_large))


def _told(plan: Mapping[str, Any], described: Mapping[str, Any], points: int) -> str:
    """One line about how it would be measured, and one about the memory."""
    from nsysprof.core.units import format_ns

    until = f", until the interval is narrower than {plan['ci_width']:g}" if plan["ci_width"] else ""
    mode = described["mode"]
    called = (mode["on"] if plan[mode["option"]] else mode["off"] or "forward") if mode else described["says"]
    cache = "warm" if plan["warm_cache"] or plan["device"] == "cpu" else "cold"
    return (
        f"{points} points of {plan['workload']} ({called}) on {plan['device']}, {plan['samples']} samples each{until},"
        f" each of {format_ns(plan['min_sample_ns'])} at least, {cache} cache.\n"
        "Memory is about what one call needs at its peak, derived from the shapes."
    )


def _gpu_bytes() -> int | None:
    """The memory of the largest GPU, None where there is none."""
    from nsysprof.tools.driver import ask_driver

    driver, _ = ask_driver()
    said = [re.match(r"(\d+)", gpu.get("memory.total", "")) for gpu in driver.gpus] if driver else []
    return max((int(size[1]) << 20 for size in said if size), default=None)


def run_job(
    job: SweepJob,
    *,
    resume: bool,
    force: bool,
    charts: bool,
    database: Path | None,
    spreadsheet_safe: bool = False,
) -> None:
    """Measure, make the results and print them.

    `typer.Exit` 3 where a backend computed something else than it should, 1 where nothing could be measured; the
    results are there in both cases.
    """
    import shutil

    from nsysprof.bench.files import bench_folder
    from nsysprof.bench.run import open_sweep, run_sweep, write_samples

    check_database(database)
    folder = bench_folder(
        job.results,
        charts=charts,
        hint=f"--force to replace them, -o DIR for another folder, or rm -r {quote(str(job.results))}",
        force=force,
        otherwise=f"df -h; to go on: {job.resume_command}",
        spreadsheet_safe=spreadsheet_safe,
    )
    folder.check()
    with open_sweep(job, resume=resume, force=force) as sweep:
        document = run_sweep(job, sweep, echo)
        with folder.making() as made:
            write_samples(document, made / "samples.json")
            results = make_results(made, charts=charts)
        shutil.rmtree(job.partial, ignore_errors=True)
    tell_results(results, folder, database)
    _conclude(document)


def make_results(folder: Path, *, charts: bool) -> BenchResults:
    """Make of the ``samples.json`` in a folder all that belongs beside it."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting more takes longer than what they do here
    from nsysprof.bench.charts import BENCH_CHARTS
    from nsysprof.bench.files import write_bench_tables
    from nsysprof.bench.report import bench_report
    from nsysprof.bench.results import read_bench_results
    from nsysprof.commands.progress import progress_bar

    with progress_bar() as progress:
        progress("comparing", 0)
        results = read_bench_results(folder)
        write_bench_tables(results, folder)
        drawn = BENCH_CHARTS if charts else ()
        if drawn:
            from nsysprof.charts.chart import save_charts

            progress("drawing charts", 0)
            save_charts(drawn, results, folder)
    (folder / "report.md").write_text(bench_report(results, drawn), encoding="utf-8")
    return results


def check_database(database: Path | None) -> None:
    """Refuse a database that results cannot be added to, before they are made."""
    if database:
        from nsysprof.bench.files import check_database_place

        check_database_place(database)


def tell_results(results: BenchResults, folder: ResultFolder, database: Path | None) -> None:
    """Print what was found and where it lies, and add it to the database where there is to be one."""
    from dataclasses import replace

    from nsysprof.bench.files import append_database
    from nsysprof.bench.text import bench_summary

    print(f"\n{bench_summary(results)}", end="", flush=True)
    say(folder.written(sorted(folder.names)))
    if database:
        final = replace(results, samples=replace(results.samples, path=folder.place / "samples.json"))
        added = append_database(final, database)
        say(f"Added to {database}" if added else f"{database} holds this run already")


def _conclude(document: Mapping[str, Any]) -> None:
    """End with the exit code that the points ask for."""
    points = document["points"]
    wrong = [
        f"{point['backend']} at {point['configuration']['id']}"
        for point in points
        if point["status"] == "wrong"
    ]
    if wrong:
        say(f"nsysprof: wrong results, not measured: {', '.join(wrong)}")
        raise typer.Exit(3)
    if not any(point["status"] == "measured" for point in points):
        say("nsysprof: nothing could be measured, the table says why")
        raise typer.Exit(1)


def echo(text: str) -> None:
    """Hand on what the measuring program prints."""
    sys.stderr.write(text)
    sys.stderr.flush()


def say(text: str) -> None:
    """A line for people, on stderr."""
    from nsysprof.core.text import visible

    echo("".join(f"{visible(line)}\n" for line in text.split("\n")))
