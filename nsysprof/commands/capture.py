"""``nsysprof capture``: a program under nsys, from one command to a report that says how it was made."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.workload_options import (
    WORKLOAD,
    AxisOption,
    BackendOption,
    BackwardOption,
    BatchOption,
    CausalOption,
    DeviceOption,
    DTypeOption,
    ForceOption,
    HeadDimOption,
    HeadsOption,
    IterationsOption,
    OutputOption,
    ProgramArgument,
    SeedOption,
    SeqOption,
    TrainOption,
    WarmupOption,
    WorkloadOption,
    default_name,
    program_to_run,
    says_what_to_run,
)

if TYPE_CHECKING:
    from nsysprof.kernels.rules import Rules
    from nsysprof.tools.driver import Driver
    from nsysprof.tools.nsys import Nsys


_TRACE = "cuda,nvtx"


def capture(
    context: typer.Context,
    program: ProgramArgument = None,
    workload: WorkloadOption = WORKLOAD,
    backend: BackendOption = None,
    seq: SeqOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    head_dim: HeadDimOption = None,
    axis: AxisOption = None,
    dtype: DTypeOption = None,
    causal: CausalOption = None,
    backward: BackwardOption = False,
    train: TrainOption = False,
    device: DeviceOption = None,
    warmup: WarmupOption = None,
    iterations: IterationsOption = None,
    seed: SeedOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    trace: Annotated[str, typer.Option(metavar="LIST", help="What nsys traces.")] = _TRACE,
    capture_range: Annotated[
        str | None,
        typer.Option(metavar="cudaProfilerApi|nvtx:NAME", help="Record this range only, not the whole run."),
    ] = None,
    nsys_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="One more argument for nsys profile; repeatable.")
    ] = None,
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to capture with.")] = None,
    overhead: Annotated[
        bool | None,
        typer.Option(
            "--overhead/--no-overhead",
            help="Time it without nsys first, to tell what nsys costs [default: workloads only].",
        ),
    ] = None,
    keep_environment: Annotated[
        bool,
        typer.Option(
            "--keep-environment",
            help="Leave environment, arguments, host, user and paths in the .sqlite and the .json.",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Finish a capture from the .qdstrm or .nsys-rep that it left."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Kernel rules (TOML) that tell backends, asked before the shipped ones."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the nsys command and run nothing.")
    ] = False,
) -> None:
    """Run a workload, or any program, under nsys and leave a report, its export and a record of how it was made.

    nsysprof capture --backend math --backend flash --seq 1024 --seq 4096

    nsysprof capture -o NAME -- python train.py ...
    """
    from nsysprof.capture.compose import Request, Tracing, nsys_command
    from nsysprof.capture.session import capture_program
    from nsysprof.commands.captured import finish, tell_captured, to_stderr
    from nsysprof.kernels.classify import load_rules
    from nsysprof.tools.nsys import find_nsys
    from nsysprof.tools.outputs import making, outputs_of

    of_a_run = dry_run or trace != _TRACE or capture_range or nsys_arg or overhead is not None
    if resume and (says_what_to_run(context) or of_a_run):
        raise typer.BadParameter(
            "--resume takes no program, no workload, no --dry-run, --trace, --capture-range, --nsys-arg or --overhead"
        )
    command = program_to_run(context)
    loaded = load_rules(rules)
    if resume:
        _resume(resume, output, nsys, rules=loaded, keep_environment=keep_environment, force=force)
        return
    found = find_nsys(nsys)
    outputs = outputs_of(output, default_name(context))
    tracing = Tracing(tuple(one.strip() for one in trace.split(",")), capture_range, tuple(nsys_arg or ()))
    shown = nsys_command(found, tracing, outputs.path(""), command)
    if dry_run:
        print(shlex.join(shown))
        return
    with making(outputs, force=force) as folder:
        timed = overhead if overhead is not None else not program
        request = Request(command, found, tracing, _introduced(found), results=not program, overhead=timed)
        staged = capture_program(request, folder, outputs, ["nsysprof", *sys.argv[1:]], to_stderr)
        finished = finish(
            staged, outputs, folder, rules=loaded, keep_environment=keep_environment, force=force
        )
    tell_captured(finished, outputs)


def _resume(
    recorded: Path,
    output: str | None,
    nsys: Path | None,
    *,
    rules: Rules,
    keep_environment: bool,
    force: bool,
) -> None:
    """Finish an earlier capture from what nsys left then: beside it, unless another name is given."""
    from nsysprof.capture.session import resume_capture
    from nsysprof.commands.captured import finish, say, tell_captured
    from nsysprof.errors import NsysprofError
    from nsysprof.tools.nsys import find_nsys
    from nsysprof.tools.outputs import Outputs, making, outputs_of

    # Where a capture left several reports they are numbered.
    name = re.sub(r"\.partial(-\d+)?(?=(\.\d+)?$)", "", recorded.stem)
    outputs = outputs_of(output, name) if output else Outputs(recorded.parent, name)
    if _is_the_file(outputs.path(".nsys-rep"), recorded):
        raise NsysprofError(f"{recorded}: the results would get its own name", "-o NAME for another name")
    with making(outputs, force=force) as folder:
        staged = resume_capture(recorded, folder, outputs, find_nsys(nsys) if nsys else None)
        if staged.record["program"] is None:
            say("no record lies beside it: what ran, and on what, will not be in the new one")
        finished = finish(
            staged, outputs, folder, rules=rules, keep_environment=keep_environment, force=force
        )
    tell_captured(finished, outputs)


def _is_the_file(result: Path, recorded: Path) -> bool:
    try:
        return result.samefile(recorded)
    except OSError:
        return False


def _introduced(nsys: Nsys) -> Driver | None:
    """The driver; tells which nsys and which driver will be at work, and what will not go well between them."""
    from nsysprof.commands.captured import say
    from nsysprof.tools.driver import ask_driver, too_new_for

    driver, why = ask_driver()
    say(
        f"nsys {nsys.version_text} ({nsys.path}); {f'driver {driver.version}' if driver else f'no GPU ({why})'}"
    )
    warning = too_new_for(driver, nsys) if driver else None
    if warning:
        say(f"warning: {warning}")
    return driver
