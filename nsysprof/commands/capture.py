"""``nsysprof capture``: a program under nsys, from one command to a report that says how it was made."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nsysprof.capture.compose import Tracing
    from nsysprof.capture.outputs import Outputs
    from nsysprof.capture.session import Request
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
        typer.Option(metavar="X.qdstrm", help="Finish a capture whose stream could not be imported."),
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
    from nsysprof.capture.compose import Tracing
    from nsysprof.capture.outputs import making, outputs_of
    from nsysprof.capture.session import capture_program, resume_stream
    from nsysprof.commands.captured import finish
    from nsysprof.kernels import load_rules
    from nsysprof.nsys import find_nsys

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
    loaded = load_rules(rules)
    if resume:
        if program or options:
            raise typer.BadParameter("--resume takes no program and no workload")
        outputs = outputs_of(output or resume.with_name(resume.name.replace(".partial", "", 1)), "")
        with making(outputs, force=force) as folder:
            staged = resume_stream(resume, folder, find_nsys(nsys) if nsys else None)
            finish(staged, outputs, folder, rules=loaded, keep_environment=keep_environment, force=force)
        return
    found = find_nsys(nsys)
    tracing = Tracing(tuple(trace.split(",")), capture_range, tuple(nsys_arg or ()))
    request = _request(program, workload, options, found, tracing, overhead)
    outputs = outputs_of(output, _default_name(program, workload, backend, seq))
    if dry_run:
        _show(request, outputs)
        return
    _introduce(request)
    with making(outputs, force=force) as folder:
        staged = capture_program(request, folder, outputs, ["nsysprof", *sys.argv[1:]], _echo)
        finish(staged, outputs, folder, rules=loaded, keep_environment=keep_environment, force=force)


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


def _request(
    program: list[str] | None,
    workload: str,
    options: list[str],
    nsys: Nsys,
    tracing: Tracing,
    overhead: bool | None,
) -> Request:
    from nsysprof.capture.session import Request
    from nsysprof.catalog import find_workload

    if program:
        return Request(tuple(program), nsys, tracing, overhead=bool(overhead))
    path = find_workload(workload)
    command = (sys.executable, str(path), *options)
    return Request(command, nsys, tracing, results=True, overhead=overhead is not False)


def _show(request: Request, outputs: Outputs) -> None:
    """Print the command that a capture would run, ready to paste."""
    from nsysprof.capture.compose import nsys_command

    print(shlex.join(nsys_command(request.nsys, request.tracing, outputs.path(""), request.program)))


def _introduce(request: Request) -> None:
    """Say on stderr which nsys and which driver will be at work, and what will not go well between them."""
    from nsysprof.capture.driver import ask_driver, too_new_for

    driver, why = ask_driver()
    what = f"driver {driver.version}" if driver else f"no GPU ({why})"
    _say(f"nsys {request.nsys.version_text} ({request.nsys.path}); {what}")
    warning = too_new_for(driver, request.nsys) if driver else None
    if warning:
        _say(f"warning: {warning}")


def _echo(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _say(text: str) -> None:
    from nsysprof.render.terminal import visible

    _echo(f"{visible(text)}\n")
