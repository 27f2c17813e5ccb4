"""``nsysprof bench``: compare backends over a sweep of shapes, and read saved sweeps again."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands.front_door import OneScreenGroup
from nsysprof.commands.progress import echo, print_message, progress_bar
from nsysprof.commands.report_options import (
    ChartsOption,
    JsonOption,
    SpreadsheetOption,
    folder_option,
    option,
    options_unfolded,
)
from nsysprof.commands.screen import print_json, show
from nsysprof.commands.workload_options import WORKLOAD, Device, ShapeOptions, axis_values
from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsysprof.bench.results import BenchResults
    from nsysprof.bench.sweep import BenchPreset, Grid, SweepJob
    from nsysprof.results.folder import ResultFolder

_SAMPLES, _SAMPLES_WITH_CI = 100, 1000
_NO_SIZES = ("backend", "axis", "dtype", "deterministic", "backward", "train")


def finite(value: float) -> float:
    """Return the value of an option. Infinity and NaN are refused, because range checks do not catch them."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def _part_of_median(value: float | None) -> float | None:
    if value is not None and not 0 < value < 1:
        raise typer.BadParameter(f"{value:g} is not a share of the median: give a number between 0 and 1, such as 0.01")
    return value


@dataclass(frozen=True)
class ResultOptions:
    """The outputs made from samples."""

    database: Annotated[Path | None, option("Append the results to this SQLite file.", "FILE", "--db")] = None
    target: Annotated[
        list[str] | None,
        option(
            "Exit with code 3 unless NEW is at least X times as fast as BASE. 'graph:…' compares CUDA "
            "graph replays; '…,delta>=D' also requires a Cliff's delta of at least D. Repeatable.",
            "'NEW/BASE>=X'",
        ),
    ] = None
    charts: ChartsOption = True
    spreadsheet_safe: SpreadsheetOption = False


bench_app = typer.Typer(
    cls=OneScreenGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@bench_app.callback()
@options_unfolded
def bench(
    context: typer.Context,
    preset: Annotated[
        str | None,
        option(
            "Measure a ready-made set of sizes and backends: math-vs-flash, baseline, scaling, long, "
            "single-head, backward, train, short-block,"
            " selection, score-scale, best-kernels, gpt, gpt-train.",
            "NAME",
        ),
    ] = None,
    full: Annotated[bool, option("Add bf16 and more lengths to the preset.", "--full")] = False,
    workload: Annotated[
        str | None, option("Workload: sdpa, transformer_block, gpt, or a file [default: sdpa].", "NAME|FILE")
    ] = None,
    device: Annotated[Device, option("Device.", "cuda|cpu")] = "cuda",
    runs: Annotated[
        int,
        option(
            "Split the samples over this many runs (processes); with 1, intervals exclude variation between runs.",
            "K",
            min=1,
            max=1000,
        ),
    ] = 3,
    samples: Annotated[
        int | None, option("Number of samples per backend [default: 100; with --ci-width: 1000].", "N", min=1)
    ] = None,
    ci_width: Annotated[
        float | None,
        option(
            "Stop when the 95 % interval of every median is narrower than this share of the median (0.01: 1 %).",
            "X",
            callback=_part_of_median,
        ),
    ] = None,
    min_sample_us: Annotated[
        float,
        option(
            "Repeat a call within a sample until the sample takes at least this time (in µs).",
            "US",
            min=0,
            max=1e6,
            callback=finite,
        ),
    ] = 20,
    warm_cache: Annotated[bool, option("Do not flush the L2 cache before a call.", "--warm-cache")] = False,
    graph: Annotated[bool, option("Also time CUDA graph replays.", "--graph/--no-graph")] = True,
    measure_peaks: Annotated[
        bool,
        option(
            "First measure the device's peak bandwidth (large copies) and FLOP/s (large matrix products).",
            "--measure-peaks",
        ),
    ] = False,
    seed: Annotated[
        int, option("Seed for the inputs and for the order of the measurements.", "N", min=0, max=2**63 - 1)
    ] = 0,
    output: Annotated[Path | None, folder_option("NAME.bench")] = None,
    force: Annotated[bool, option("Replace earlier results, or an unfinished sweep.", "--force")] = False,
    resume: Annotated[bool, option("Continue an interrupted sweep.", "--resume")] = False,
    *,
    made: ResultOptions,
    dry_run: Annotated[bool, option("Print the sweep and measure nothing.", "--dry-run")] = False,
    as_json: JsonOption = False,
    calls: ShapeOptions,
) -> None:
    """Compare the backends of a workload over a sweep of shapes, without the profiler."""
    if context.invoked_subcommand:
        _refuse_options(context)
        return
    from nsysprof.bench.sweep import SweepJob, bench_plan, find_preset
    from nsysprof.catalog import find_workload

    if full and not preset:
        raise typer.BadParameter("--full: only with --preset")
    chosen = find_preset(preset, full=full) if preset else None
    grids = _grids(chosen, calls)
    if chosen and workload not in (None, chosen.workload):
        raise typer.BadParameter(f"this preset runs {chosen.workload}: leave out --workload")
    program = find_workload(chosen.workload if chosen else workload or WORKLOAD)
    modes = [name for name in ("backward", "train") if getattr(calls, name)]
    modes += [chosen.mode] if chosen and chosen.mode else []
    plan, described = bench_plan(
        program,
        grids,
        modes,
        device=device,
        seed=seed,
        training=bool(modes),
        samples=samples or (_SAMPLES if ci_width is None else _SAMPLES_WITH_CI),
        ci_width=ci_width,
        min_sample_ns=round(min_sample_us * 1000),
        warm_cache=warm_cache,
        graph=graph,
        deterministic=calls.deterministic,
        runs=runs,
    )
    if dry_run:
        from nsysprof.bench.text import plan_matrix

        print(plan_matrix(plan, described, _gpu_bytes() if device == "cuda" else None), end="")
        return
    folder = _named(output or Path(f"{preset or program.stem}.bench"))
    job = SweepJob(program, plan, described, folder, ("nsysprof", *sys.argv[1:]), measure_peaks)
    run_job(job, made, resume=resume, force=force, as_json=as_json)


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of a sweep before a subcommand, because they would have no effect."""
    for parameter in context.params:
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{parameter.replace('_', '-')}"
            raise typer.BadParameter(f"{option} is not an option of nsysprof bench {context.invoked_subcommand}")


def _grids(preset: BenchPreset | None, calls: ShapeOptions) -> Sequence[Grid]:
    """The grids of a preset, or the grid from the options; given backends replace a preset's."""
    sizes = {each.name: getattr(calls, each.name) for each in fields(calls) if each.name not in _NO_SIZES}
    given = {name: value for name, value in sizes.items() if value or (name == "causal" and value is not None)}
    given |= {"dtype": [each.value for each in calls.dtype]} if calls.dtype else {}
    given |= axis_values(calls.axis)
    if preset and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"a preset has its own sizes: leave out {options}, or leave out --preset")
    chosen = {"backend": calls.backend} if calls.backend else {}
    return [{**grid, **chosen} for grid in (preset.grids if preset else [given])]


def _gpu_bytes() -> int | None:
    from nsysprof.tools.driver import ask_driver

    driver, _ = ask_driver()
    sizes = [re.match(r"(\d+)", gpu.get("memory.total", "")) for gpu in driver.gpus] if driver else []
    return max((int(size[1]) << 20 for size in sizes if size), default=None)


def _named(folder: Path) -> Path:
    """The folder of the results, resolved if its path ends without a name."""
    if not folder.name:
        folder = folder.resolve()
    if folder.name in ("", ".."):
        raise typer.BadParameter(f"-o {folder}: not a valid folder name")
    return folder


def run_job(job: SweepJob, made: ResultOptions, *, resume: bool, force: bool, as_json: bool = False) -> None:
    """Measure, make the results and print them.

    Raises `typer.Exit` 3 if a backend computed a wrong result or a target is missed, and 1 if no point could be
    measured; results are written in all cases.
    """
    from nsysprof.bench.sweep import open_sweep, run_sweep
    from nsysprof.bench.targets import read_targets
    from nsysprof.formats.samples import write_samples

    # mistakes in them come before hours of measuring
    read_targets(made.target or (), {name: 0 for each in job.plan["configurations"] for name in each["backends"]})
    hint = f"--force to replace them, -o DIR for another folder, or rm -r {quote(str(job.results))}"
    folder = _folder(job.results, made, hint=hint, force=force, otherwise=f"df -h; resume: {job.resume_command}")
    with open_sweep(job, resume=resume, force=force) as sweep:
        document = run_sweep(job, sweep, echo)
        with folder.making() as new:
            write_samples(document, new / "samples.json")
            results = _make_results(new, charts=made.charts)
        shutil.rmtree(job.partial, ignore_errors=True)
    _print_results(results, folder, made, as_json=as_json)
    points = document["points"]
    wrong = [f"{each['backend']} at {each['configuration']['id']}" for each in points if each["status"] == "wrong"]
    if wrong:
        print_message(f"nsysprof: wrong results, not measured: {', '.join(wrong)}")
        raise typer.Exit(3)
    if not any(point["status"] == "measured" for point in points):
        print_message("nsysprof: no point could be measured: see the table")
        raise typer.Exit(1)
    _check_targets(results, made.target or ())


def _check_targets(results: BenchResults, targets: Sequence[str]) -> None:
    """Print the missed targets; raise `typer.Exit` 3 if there are any."""
    from nsysprof.bench.targets import missed_targets, read_targets

    _fail_with(f"missed: {line}" for line in missed_targets(results, read_targets(targets, results.backends)))


def _fail_with(lines: Iterable[str]) -> None:
    """Print the lines; raise `typer.Exit` 3 if there are any."""
    for line in (lines := list(lines)):
        print_message(f"nsysprof: {line}")
    if lines:
        raise typer.Exit(3)


@bench_app.command("diff")
def diff_benches(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", readable=False, help="A samples.json(.xz), or its folder.")
    ],
    after: Annotated[
        Path,
        typer.Argument(metavar="AFTER", readable=False, help="The samples.json(.xz) of the later run, or its folder."),
    ],
    max_regress: Annotated[
        float, option("Allowed growth of time or memory, such as 0.05 for 5 %.", "X", min=0, callback=finite)
    ] = 0.05,
    unlike: Annotated[
        bool, option("Compare even if the runs are from different machines or software versions.", "--unlike")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two saved runs, point by point. Exit code 3: a significant regression or wrong results."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from nsysprof.bench.diff import compare_runs, diff_document
    from nsysprof.bench.text import diff_table, regression_lines
    from nsysprof.formats.samples import read_bench_samples

    diff = compare_runs(read_bench_samples(before), read_bench_samples(after), unlike=unlike)
    if as_json:
        print_json(diff_document(diff))
    else:
        show(diff_table(diff))
    wrong = [f"{name}: wrong results after" for name in diff.now_wrong]
    _fail_with([*regression_lines(diff, max_regress), *wrong])


@bench_app.command("report")
@options_unfolded
def report_bench(
    samples: Annotated[Path, typer.Argument(metavar="DIR", readable=False, help="A samples.json(.xz), or its folder.")],
    output: Annotated[Path | None, folder_option("the folder DIR")] = None,
    force: Annotated[bool, option("Replace existing results.", "--force")] = False,
    *,
    made: ResultOptions,
    as_json: JsonOption = False,
) -> None:
    """Make tables, report and charts from saved samples, without measuring."""
    from nsysprof.bench.targets import read_targets
    from nsysprof.formats.samples import read_bench_samples, samples_content, samples_file
    from nsysprof.tools.interrupts import ending_on_interrupts

    source = samples_file(samples)
    if not source.is_file():
        raise NsysprofError(f"{source}: no such file", "nsysprof bench writes this file")
    # complaints name the file that was given, before anything is made
    read_targets(made.target or (), {point.backend: 0 for point in read_bench_samples(source).points})
    hint = f"nsysprof bench report {quote(str(source))} --force, or -o DIR for another folder"
    folder = _folder(output or source.parent, made, source=source, hint=hint, force=force)
    with ending_on_interrupts(), folder.making() as new:
        if source.suffix == ".xz":
            (new / "samples.json").write_bytes(samples_content(source))
        else:
            shutil.copyfile(source, new / "samples.json")
        results = _make_results(new, charts=made.charts)
    _print_results(results, folder, made, as_json=as_json)
    _check_targets(results, made.target or ())


def _folder(place: Path, made: ResultOptions, **more: Any) -> ResultFolder:
    """The folder of the results; an unusable folder or database is refused before anything is written."""
    from nsysprof.bench.files import bench_folder, check_database_place

    if made.database:
        check_database_place(made.database)
    folder = bench_folder(place, charts=made.charts, spreadsheet_safe=made.spreadsheet_safe, **more)
    folder.check()
    return folder


def _make_results(folder: Path, *, charts: bool) -> BenchResults:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting more takes longer than what they do here
    from nsysprof.bench.files import write_bench_results
    from nsysprof.bench.results import read_bench_results

    with progress_bar() as progress:
        progress("comparing", 0)
        results = read_bench_results(folder)
        write_bench_results(results, folder, charts=charts, progress=progress)
    return results


def _print_results(results: BenchResults, folder: ResultFolder, made: ResultOptions, *, as_json: bool) -> None:
    from nsysprof.bench.files import append_database, bench_document
    from nsysprof.bench.text import bench_summary

    if as_json:
        print_json(bench_document(results))
    else:
        show(f"\n{bench_summary(results)}")
    print_message(folder.message(sorted(folder.names)))
    if database := made.database:
        final = replace(results, samples=replace(results.samples, path=folder.place / "samples.json"))
        added = append_database(final, database)
        print_message(f"Added to {database}" if added else f"{database} holds this run already")
