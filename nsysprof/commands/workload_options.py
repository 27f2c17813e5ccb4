"""The options of commands that run a workload, or any program: defined once, and passed on as they were given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer


class DType(str, Enum):
    """What the workloads compute in."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


class Device(str, Enum):
    """Where the workloads run."""

    CUDA = "cuda"
    CPU = "cpu"


WORKLOAD = "sdpa"
_Names = list[str] | None
_Numbers = list[int] | None

ProgramArgument = Annotated[
    _Names, typer.Argument(metavar="[-- PROGRAM ...]", help="Any program, instead of a workload.")
]
WorkloadOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE", help="The workload: sdpa, transformer_block, or a file that declares one."
    ),
]
BackendOption = Annotated[_Names, typer.Option(metavar="NAME", help="Backend of the workload; repeatable.")]
SeqOption = Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Sequence length; repeatable.")]
BatchOption = Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Batch size; repeatable.")]
HeadsOption = Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Attention heads; repeatable.")]
HeadDimOption = Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Size of a head; repeatable.")]
AxisOption = Annotated[
    _Names,
    typer.Option(metavar="NAME=N,N", help="Sizes along an axis of the workload, by its name; repeatable."),
]
DTypeOption = Annotated[DType | None, typer.Option(metavar="fp16|bf16|fp32", help="Data type.")]
CausalOption = Annotated[bool | None, typer.Option("--causal/--no-causal", help="Causal mask or none.")]
BackwardOption = Annotated[bool, typer.Option("--backward", help="sdpa: forward and backward.")]
TrainOption = Annotated[bool, typer.Option("--train", help="transformer_block: whole training steps.")]
DeviceOption = Annotated[Device | None, typer.Option(metavar="cuda|cpu", help="Where the workload runs.")]
WarmupOption = Annotated[int | None, typer.Option(metavar="N", min=0, help="Calls before what is measured.")]
IterationsOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Calls measured per range.")]
SeedOption = Annotated[int | None, typer.Option(metavar="N", help="Seed of the inputs.")]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="NAME", help="Name of the results, or FOLDER/NAME [default: traces/…]."
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace earlier results of that name.")]

_PASSED = (
    *("backend", "seq", "batch", "heads", "head_dim", "dtype", "causal", "backward", "train"),
    *("axis", "device", "warmup", "iterations", "seed"),
)


def says_what_to_run(context: typer.Context) -> bool:
    """Whether a program, a workload or an option of one was given."""
    given = context.params
    return bool(given["program"]) or given["workload"] != WORKLOAD or any(_as_typed(_passed(context)))


def program_to_run(context: typer.Context, **defaults: int) -> tuple[str, ...]:
    """The command of a workload with its options, or of the program that was given in its place.

    What was not given is the workload's to choose, but for ``defaults``. Raises `typer.BadParameter` where a program
    is given and options of a workload as well.
    """
    from nsysprof.catalog import find_workload, workload_command

    program, workload = context.params["program"], context.params["workload"]
    given = _passed(context)
    options = list(_as_typed(given))
    if program:
        if options or workload != WORKLOAD:
            raise typer.BadParameter("options of a workload and a program: give one of them")
        return tuple(program)
    options += _as_typed({name: value for name, value in defaults.items() if given[name] is None})
    return (*workload_command(find_workload(workload)), *options)


def default_name(context: typer.Context) -> str:
    """`sdpa-math-flash-S1024-S4096`, or the script of a program: `train` for `python train.py`."""
    program: Sequence[str] = context.params["program"] or ()
    if program:
        scripts = [part for part in program if part.endswith(".py")]
        return Path(scripts[0] if scripts else program[0]).stem
    backends, lengths = context.params["backend"] or (), context.params["seq"] or ()
    sizes = [
        f"{name}{value}" for name, values in axis_values(context.params["axis"]).items() for value in values
    ]
    name = Path(context.params["workload"]).name.removesuffix(".py")
    return "-".join([name, *backends, *(f"S{length}" for length in lengths), *sizes])


def axis_values(given: Sequence[str] | None) -> dict[str, list[int]]:
    """What `--axis` gives: `m=64,128` is {"m": [64, 128]}. Raises `typer.BadParameter`."""
    found: dict[str, list[int]] = {}
    for text in given or ():
        name, _, values = text.partition("=")
        sizes = [int(value) if value.isdecimal() else 0 for value in values.split(",")]
        if not name.isidentifier() or not all(0 < size < 2**31 for size in sizes):
            raise typer.BadParameter(
                f"--axis {text}: NAME=N,N with whole numbers from 1 up, such as m=64,128"
            )
        found.setdefault(name, []).extend(
            size for size in dict.fromkeys(sizes) if size not in found.get(name, ())
        )
    return found


def _passed(context: typer.Context) -> dict[str, Any]:
    return {name: context.params[name] for name in _PASSED}


def _as_typed(values: dict[str, Any]) -> Iterator[str]:
    """Options as they are typed; flags that are False say so where they have another name for that."""
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value in ((), []):
            continue
        if name == "axis":
            for axis, sizes in axis_values(value).items():
                yield from (f"--{axis.replace('_', '-')}", *map(str, sizes))
            continue
        if isinstance(value, bool):
            if value:
                yield option
            elif name == "causal":
                yield "--no-causal"
        else:
            for each in value if isinstance(value, (list, tuple)) else [value]:
                yield from (option, str(each.value if isinstance(each, Enum) else each))
