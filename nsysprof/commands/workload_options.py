"""Options of commands that run a workload or any program, declared once and passed on unchanged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


class DType(str, Enum):
    """The data types of the workloads, as an enum because typer takes no lists of literals."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


WORKLOAD = "sdpa"
Device = Literal["cuda", "cpu"]
_Names = list[str] | None
_Numbers = list[int] | None
_OneDType = Annotated[DType | None, typer.Option(metavar="fp16|bf16|fp32", help="Data type.")]

_NOT_PASSED = ("program", "workload", "output", "force")


@dataclass(frozen=True)
class ShapeOptions:
    """The calls of a workload to run."""

    backend: Annotated[_Names, typer.Option(metavar="NAME", help="Backend of the workload; repeatable.")] = None
    seq: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Sequence length; repeatable.")] = None
    batch: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Batch size; repeatable.")] = None
    heads: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Attention heads; repeatable.")] = None
    head_dim: Annotated[_Numbers, typer.Option(metavar="N", min=1, help="Head dimension; repeatable.")] = None
    kv_heads: Annotated[
        _Numbers,
        typer.Option(metavar="N", min=1, help="Heads of keys and values (grouped-query attention); repeatable."),
    ] = None
    axis: Annotated[
        _Names, typer.Option(metavar="NAME=N,N", help="Sizes of one workload axis, such as m=64,128; repeatable.")
    ] = None
    dtype: Annotated[list[DType] | None, typer.Option(metavar="fp16|bf16|fp32", help="Data type; repeatable.")] = None
    causal: Annotated[bool | None, typer.Option("--causal/--no-causal", help="Causal mask or none.")] = None
    mask: Annotated[
        _Names,
        typer.Option(metavar="none|causal|padding|window:N|bool|float", help="sdpa: attention mask; repeatable."),
    ] = None
    kv_seq: Annotated[
        _Numbers, typer.Option(metavar="N", min=1, help="sdpa: length of keys and values; repeatable.")
    ] = None
    dropout: Annotated[list[float] | None, typer.Option(metavar="P", help="sdpa: dropout probability; repeatable.")] = (
        None
    )
    score_scale: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X", help="sdpa: multiply the queries by X, which widens the distribution of scores; repeatable."
        ),
    ] = None
    tile_keys: Annotated[
        _Numbers, typer.Option(metavar="N", min=1, help="sdpa: keys per tile in the tiled_… kernels; repeatable.")
    ] = None
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Use deterministic algorithms only.")] = False
    backward: Annotated[bool, typer.Option("--backward", help="sdpa: forward and backward.")] = False
    train: Annotated[bool, typer.Option("--train", help="transformer_block, gpt: whole training steps.")] = False
    decode: Annotated[bool, typer.Option("--decode", help="gpt: generate new tokens with a KV cache.")] = False
    cuda_graph: Annotated[bool, typer.Option("--cuda-graph", help="gpt: replay a CUDA graph.")] = False
    compile: Annotated[bool, typer.Option("--compile", help="gpt: use torch.compile.")] = False


@dataclass(frozen=True)
class ProgramOptions(ShapeOptions):
    """The program of a command (a workload with its options, or any program), and the place of results."""

    program: Annotated[
        _Names, typer.Argument(metavar="[-- PROGRAM ...]", help="Any program, instead of a workload.")
    ] = None
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help="The workload: sdpa, transformer_block, gpt, or a file that declares one."
        ),
    ] = WORKLOAD
    dtype: _OneDType = None  # type: ignore[assignment]  # not repeatable here
    device: Annotated[Device | None, typer.Option(metavar="cuda|cpu", help="Device of the workload.")] = None
    warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Warm-up calls before the measured ones [default: the workload's; counters: 1]."
        ),
    ] = None
    iterations: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Calls measured per range [default: the workload's; counters: 2]."),
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the inputs.")] = None
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="NAME", help="Name of the results, or FOLDER/NAME [default: traces/…]."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace earlier results of that name.")] = False

    @property
    def given(self) -> bool:
        """Whether a program, a workload or a workload option was given."""
        return bool(self.program) or self.workload != WORKLOAD or any(self._typed())

    @property
    def default_name(self) -> str:
        """`sdpa-math-flash-S1024-S4096`, or the name of a script: `train` for `python train.py`."""
        if self.program:
            scripts = [part for part in self.program if part.endswith(".py")]
            return Path(scripts[0] if scripts else self.program[0]).stem
        sizes = [f"{name}{size}" for name, values in axis_values(self.axis).items() for size in values]
        lengths = [f"S{length}" for length in self.seq or ()]
        name = Path(self.workload).name.removesuffix(".py")
        return "-".join([name, *(self.backend or ()), *lengths, *sizes])

    def command(self, **defaults: int) -> tuple[str, ...]:
        """The command of a workload with its options, or of the given program.

        Options not given are left to the workload, except ``defaults``. Raises `typer.BadParameter` if both a program
        and workload options are given.
        """
        from nsysprof.catalog import find_workload, workload_command

        if not self.program:
            return (*workload_command(find_workload(self.workload)), *self._typed(**defaults))
        if any(self._typed()) or self.workload != WORKLOAD:
            raise typer.BadParameter("give either a program or the options of a workload, not both")
        return tuple(self.program)

    def _typed(self, **defaults: int) -> Iterator[str]:
        """Yield the options of the workload as they are typed."""
        for field in fields(self):
            value: Any = getattr(self, field.name)
            value = defaults.get(field.name) if value is None else value
            option = f"--{field.name.replace('_', '-')}"
            if field.name in _NOT_PASSED or value is None:
                continue
            if field.name == "axis":
                for axis, sizes in axis_values(value).items():
                    yield from (f"--{axis.replace('_', '-')}", *map(str, sizes))
            elif field.name == "causal":
                yield "--causal" if value else "--no-causal"
            elif isinstance(value, bool):
                yield from [option] if value else []
            else:
                for each in value if isinstance(value, list) else [value]:
                    yield from (option, str(each.value if isinstance(each, Enum) else each))


def axis_values(given: Sequence[str] | None) -> dict[str, list[int]]:
    """Parse the sizes of `--axis`: `m=64,128` is {"m": [64, 128]}. Raises `typer.BadParameter`."""
    axes: dict[str, list[int]] = {}
    for text in given or ():
        name, _, values = text.partition("=")
        sizes = [int(value) if value.isdecimal() else 0 for value in values.split(",")]
        if not name.isidentifier() or not all(0 < size < 2**31 for size in sizes):
            raise typer.BadParameter(f"--axis {text}: NAME=N,N with whole numbers from 1 up, such as m=64,128")
        axes[name] = list(dict.fromkeys([*axes.get(name, ()), *sizes]))
    return axes
