"""``nsysprof bench``: backends measured against each other over a sweep of shapes, and two sweeps compared."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands.bench_saved import diff_benches, finite, report_bench
from nsysprof.commands.report_options import ChartsOption, SpreadsheetOption
from nsysprof.commands.workload_options import (
    WORKLOAD,
    AxisOption,
    BackendOption,
    BackwardOption,
    BatchOption,
    CausalOption,
    Device,
    DType,
    HeadDimOption,
    HeadsOption,
    SeqOption,
    TrainOption,
    axis_values,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsysprof.bench.plan import BenchPreset, Grid

_SAMPLES, _SAMPLES_WITH_CI = 100, 1000

bench_app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
)
bench_app.command("diff")(diff_benches)
bench_app.command("report")(report_bench)


@bench_app.callback()
def bench(
    context: typer.Context,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A classic sweep: math-vs-flash, baseline, scaling, long, single-head."
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="What a call is: sdpa, transformer_block, or a file [default: sdpa]."
        ),
    ] = None,
    backend: BackendOption = None,
    seq: SeqOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    head_dim: HeadDimOption = None,
    axis: AxisOption = None,
    dtype: Annotated[
        list[DType] | None, typer.Option(metavar="fp16|bf16|fp32", help="Data type; repeatable.")
    ] = None,
    causal: CausalOption = None,
    backward: BackwardOption = False,
    train: TrainOption = False,
    device: Annotated[Device, typer.Option(metavar="cuda|cpu", help="Where it runs.")] = Device.CUDA,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Samples of each backend [default: 100; with --ci-width 1000]."
        ),
    ] = None,
    ci_width: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Stop once the 95 % interval of every median is narrower: 0.01 for 1 %."
        ),
    ] = None,
    min_sample_us: Annotated[
        float,
        typer.Option(
            metavar="US",
            min=0,
            max=1e6,
            callback=finite,
            help="Repeat shorter calls within a sample up to this.",
        ),
    ] = 20,
    warm_cache: Annotated[
        bool, typer.Option("--warm-cache", help="Do not flush the L2 cache before a call.")
    ] = False,
    graph: Annotated[
        bool, typer.Option("--graph/--no-graph", help="Time replays of a CUDA graph as well.")
    ] = True,
    measure_peaks: Annotated[
        bool,
        typer.Option("--measure-peaks", help="First measure what the device reaches in copies and products."),
    ] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of inputs and order.")
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the results [default: NAME.bench]."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace earlier results, or an unfinished sweep.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted sweep.")] = False,
    database: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="Append the results to this SQLite file.")
    ] = None,
    charts: ChartsOption = True,
    spreadsheet_safe: SpreadsheetOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be measured, and measure nothing.")
    ] = False,
) -> None:
    """Measure the backends of a workload against each other over a sweep of shapes, without the profiler.

    nsysprof bench --preset math-vs-flash

    nsysprof bench --backend flash --backend cudnn --seq 1024 --seq 4096 --samples 200

    nsysprof bench diff BEFORE AFTER

    nsysprof bench report DIR
    """
    if context.invoked_subcommand:
        _nothing_given(context)
        return
    from nsysprof.bench.plan import HowMeasured, bench_plan, find_preset
    from nsysprof.bench.run import SweepJob
    from nsysprof.catalog import find_workload
    from nsysprof.commands.benched import run_job, show_matrix

    chosen = find_preset(preset) if preset else None
    sizes = {"seq": seq, "batch": batch, "heads": heads, "head_dim": head_dim, "causal": causal}
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None} | axis_values(
        axis
    )
    if dtype:
        given["dtype"] = [each.value for each in dtype]
    grids = _grids(chosen, backend, given)
    if chosen and workload not in (None, chosen.workload):
        raise typer.BadParameter(f"this preset runs {chosen.workload}: leave out --workload")
    program = find_workload(chosen.workload if chosen else workload or WORKLOAD)
    if ci_width is not None and not 0 < ci_width < 1:
        raise typer.BadParameter(
            f"--ci-width {ci_width:g}: a part of the median between 0 and 1, such as 0.01"
        )
    how = HowMeasured(
        device=device.value,
        seed=seed,
        training=backward or train,
        samples=samples or (_SAMPLES if ci_width is None else _SAMPLES_WITH_CI),
        ci_width=ci_width,
        min_sample_ns=round(min_sample_us * 1000),
        warm_cache=warm_cache,
        graph=graph,
    )
    modes = [name for name, asked in (("backward", backward), ("train", train)) if asked]
    plan, described = bench_plan(program, grids, how, modes)
    if dry_run:
        show_matrix(plan, described)
        return
    folder = output or Path(f"{preset or program.stem}.bench")
    job = SweepJob(program, plan, described, _named(folder), ("nsysprof", *sys.argv[1:]), measure_peaks)
    run_job(
        job, resume=resume, force=force, charts=charts, spreadsheet_safe=spreadsheet_safe, database=database
    )


def _nothing_given(context: typer.Context) -> None:
    """Refuse options of a sweep in front of a subcommand: they would do nothing."""
    for parameter in context.params:
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{parameter.replace('_', '-')}"
            raise typer.BadParameter(f"{option}: not for nsysprof bench {context.invoked_subcommand}")


def _grids(
    preset: BenchPreset | None, backends: list[str] | None, given: Mapping[str, Any]
) -> Sequence[Grid]:
    """The grids of a preset, or the one that the options make; backends may replace those of a preset."""
    if preset and given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise typer.BadParameter(f"a preset has its own sizes: leave out {options}, or --preset")
    chosen = {"backend": backends} if backends else {}
    return [{**grid, **chosen} for grid in (preset.grids if preset else [given])]


def _named(folder: Path) -> Path:
    """The folder of the results, with a name of its own."""
    if not folder.name:
        folder = folder.resolve()
    if folder.name in ("", ".."):
        raise typer.BadParameter(f"-o {folder}: not a name for a folder")
    return folder
