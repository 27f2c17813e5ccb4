"""``nsysprof capture``: a program under nsys, from one command to a report that says how it was made."""

from __future__ import annotations

import os
import re
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nsysprof.capture.driver import Driver
    from nsysprof.kernel_rules import Rules
    from nsysprof.nsys import Nsys


class DType(str, Enum):
    """What the workloads compute in."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


class Device(str, Enum):
    """Where the workloads run."""

    CUDA = "cuda"
    CPU = "cpu"


_Names = list[str] | None
_Numbers = list[int] | None
_WORKLOAD = "sdpa"
_TRACE = "cuda,nvtx"


def capture(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PROGRAM ...]", help="Any program, instead of a workload."),
    ] = None,
    workload: Annotated[
        str, typer.Option(metavar="NAME", help="The workload to run: sdpa or transformer_block.")
    ] = _WORKLOAD,
    backend: Annotated[_Names, typer.Option(metavar="NAME", help="Attention backend; repeatable.")] = None,
    seq: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Sequence length; repeatable.")] = None,
    batch: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Batch size; repeatable.")] = None,
    heads: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Attention heads; repeatable.")] = None,
    head_dim: Annotated[
        _Numbers, typer.Option(metavar="N", min=1, help="Size of a head; repeatable.")
    ] = None,
    dtype: Annotated[DType | None, typer.Option(metavar="fp16|bf16|fp32", help="Data type.")] = None,
    causal: Annotated[bool | None, typer.Option("--causal/--no-causal", help="Causal mask or none.")] = None,
    backward: Annotated[bool, typer.Option("--backward", help="sdpa: forward and backward.")] = False,
    train: Annotated[bool, typer.Option("--train", help="transformer_block: whole training steps.")] = False,
    device: Annotated[
        Device | None, typer.Option(metavar="cuda|cpu", help="Where the workload runs.")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Calls before what is measured.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Calls measured per range.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the inputs.")] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="NAME", help="Name of the results, or FOLDER/NAME [default: traces/…]."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace earlier results of that name.")] = False,
    trace: Annotated[str, typer.Option(metavar="LIST", help="What nsys traces.")] = _TRACE,
    capture_range: Annotated[
        str | None,
        typer.Option(metavar="cudaProfilerApi|nvtx:NAME", help="Record this range only, not the whole run."),
    ] = None,
    nsys_arg: Annotated[
        _Names, typer.Option(metavar="ARG", help="One more argument for nsys profile; repeatable.")
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
        typer.Option("--keep-environment", help="Leave environment, host, user and paths in the .sqlite."),
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
    from nsysprof.capture.outputs import making, outputs_of
    from nsysprof.capture.session import capture_program
    from nsysprof.commands.captured import finish, tell_captured, to_stderr
    from nsysprof.kernels import load_rules
    from nsysprof.nsys import find_nsys

    if sys.stderr is None:
        # It was closed. Nothing of what goes there may end up in stdout, or in a file that takes its number.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  to the end
    values = {
        "--backend": backend,
        "--seq": seq,
        "--batch": batch,
        "--heads": heads,
        "--head-dim": head_dim,
        "--dtype": dtype,
        "--causal": causal,
        "--backward": backward or None,
        "--train": train or None,
        "--device": device,
        "--warmup": warmup,
        "--iterations": iterations,
        "--seed": seed,
    }
    options = _given(values)
    if program and (options or workload != _WORKLOAD):
        raise typer.BadParameter("options of a workload and a program: give one of them")
    if resume and (program or options or workload != _WORKLOAD or dry_run):
        raise typer.BadParameter("--resume takes no program, no workload and no --dry-run")
    loaded = load_rules(rules)
    if resume:
        _resume(resume, output, nsys, rules=loaded, keep_environment=keep_environment, force=force)
        return
    found = find_nsys(nsys)
    command = tuple(program) if program else _workload_command(workload, options)
    outputs = outputs_of(output, _default_name(program, workload, backend, seq))
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
    from nsysprof.capture.outputs import Outputs, making, outputs_of
    from nsysprof.capture.session import resume_capture
    from nsysprof.commands.captured import finish, say, tell_captured
    from nsysprof.nsys import find_nsys

    name = re.sub(r"\.partial(-\d+)?$", "", recorded.stem)
    outputs = outputs_of(output, name) if output else Outputs(recorded.parent, name)
    with making(outputs, force=force) as folder:
        staged = resume_capture(recorded, folder, outputs, find_nsys(nsys) if nsys else None)
        if staged.record["program"] is None:
            say("no record lies beside it: what ran, and on what, will not be in the new one")
        finished = finish(
            staged, outputs, folder, rules=rules, keep_environment=keep_environment, force=force
        )
    tell_captured(finished, outputs)


def _given(values: dict[str, Any]) -> list[str]:
    """The options that were given, as a workload takes them; what was not given is the workload's to choose."""
    options: list[str] = []
    for name, value in values.items():
        if value is None or value == []:
            continue
        if value is False:
            options.append(f"--no-{name.removeprefix('--')}")
        elif value is True:
            options.append(name)
        else:
            several = value if isinstance(value, list) else [value]
            for one in several:
                options += [name, str(one.value if isinstance(one, Enum) else one)]
    return options


def _default_name(
    program: list[str] | None, workload: str, backend: list[str] | None, seq: list[int] | None
) -> str:
    """`sdpa-math-flash-S1024-S4096`, or the script of a program: `train` for `python train.py`."""
    if program:
        scripts = [part for part in program if part.endswith(".py")]
        return Path(scripts[0] if scripts else program[0]).stem
    return "-".join([workload, *(backend or []), *(f"S{length}" for length in seq or [])])


def _workload_command(workload: str, options: list[str]) -> tuple[str, ...]:
    from nsysprof.catalog import find_workload

    return (sys.executable, str(find_workload(workload)), *options)


def _introduced(nsys: Nsys) -> Driver | None:
    """The driver; tells which nsys and which driver will be at work, and what will not go well between them."""
    from nsysprof.capture.driver import ask_driver, too_new_for
    from nsysprof.commands.captured import say

    driver, why = ask_driver()
    say(
        f"nsys {nsys.version_text} ({nsys.path}); {f'driver {driver.version}' if driver else f'no GPU ({why})'}"
    )
    warning = too_new_for(driver, nsys) if driver else None
    if warning:
        say(f"warning: {warning}")
    return driver
