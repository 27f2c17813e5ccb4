"""Options of commands that run a workload or any program, declared once and passed on unchanged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nsysprof.commands.report_options import option


class DType(str, Enum):
    """The data types of the workloads, as an enum because typer takes no lists of literals."""

    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


WORKLOAD = "sdpa"
Device = Literal["cuda", "cpu"]
_Names = list[str] | None
_Numbers = list[int] | None
_OneDType = Annotated[DType | None, option("Data type.", "fp16|bf16|fp32")]

_NOT_PASSED = ("program", "workload", "output", "force")


@dataclass(frozen=True)
class ShapeOptions:
    """The calls of a workload to run."""

    backend: Annotated[_Names, option("Backend of the workload; repeatable.", "NAME")] = None
    seq: Annotated[_Numbers, option("Sequence length; repeatable.", "N", min=1)] = None
    batch: Annotated[_Numbers, option("Batch size; repeatable.", "N", min=1)] = None
    heads: Annotated[_Numbers, option("Number of attention heads; repeatable.", "N", min=1)] = None
    head_dim: Annotated[_Numbers, option("Head dimension; repeatable.", "N", min=1)] = None
    kv_heads: Annotated[
        _Numbers, option("Number of key/value heads (grouped-query attention); repeatable.", "N", min=1)
    ] = None
    axis: Annotated[_Names, option("Sizes of an axis of the workload, such as m=64,128; repeatable.", "NAME=N,N")] = (
        None
    )
    dtype: Annotated[list[DType] | None, option("Data type; repeatable.", "fp16|bf16|fp32")] = None
    causal: Annotated[bool | None, option("Use a causal mask, or no mask.", "--causal/--no-causal")] = None
    mask: Annotated[_Names, option("sdpa: attention mask; repeatable.", "none|causal|padding|window:N|bool|float")] = (
        None
    )
    kv_seq: Annotated[_Numbers, option("sdpa: length of keys and values; repeatable.", "N", min=1)] = None
    dropout: Annotated[list[float] | None, option("sdpa: dropout probability; repeatable.", "P")] = None
    score_scale: Annotated[
        list[float] | None,
        option("sdpa: multiply the queries by X, which widens the distribution of scores; repeatable.", "X"),
    ] = None
    tile_keys: Annotated[_Numbers, option("sdpa: keys per tile in the tiled_… kernels; repeatable.", "N", min=1)] = None
    deterministic: Annotated[bool, option("Use deterministic algorithms only.", "--deterministic")] = False
    backward: Annotated[bool, option("sdpa: run the forward and the backward pass.", "--backward")] = False
    train: Annotated[bool, option("transformer_block, gpt: run whole training steps.", "--train")] = False
    decode: Annotated[bool, option("gpt: generate new tokens with a KV cache.", "--decode")] = False
    cuda_graph: Annotated[bool, option("gpt: replay a CUDA graph.", "--cuda-graph")] = False
    compile: Annotated[bool, option("gpt: use torch.compile.", "--compile")] = False


@dataclass(frozen=True)
class ProgramOptions(ShapeOptions):
    """The program of a command (a workload with its options, or any program), and the place of results."""

    program: Annotated[
        _Names, typer.Argument(metavar="[-- PROGRAM ...]", help="Program to run instead of a workload.")
    ] = None
    workload: Annotated[
        str, option("The workload: sdpa, transformer_block, gpt, or a file that declares one.", "NAME|FILE")
    ] = WORKLOAD
    dtype: _OneDType = None  # type: ignore[assignment]  # not repeatable here
    device: Annotated[Device | None, option("Device to run the workload on.", "cuda|cpu")] = None
    warmup: Annotated[
        int | None,
        option("Number of warm-up calls before the measured calls [default: the workload's; counters: 1].", "N", min=0),
    ] = None
    iterations: Annotated[
        int | None, option("Number of measured calls per range [default: the workload's; counters: 2].", "N", min=1)
    ] = None
    seed: Annotated[int | None, option("Seed for the inputs.", "N")] = None
    output: Annotated[
        str | None, option("Name of the results, or FOLDER/NAME [default: traces/…].", "NAME", "--output", "-o")
    ] = None
    force: Annotated[bool, option("Replace earlier results of the same name.", "--force")] = False

    @property
    def given(self) -> bool:
        """Return whether a program, a workload or a workload option was given."""
        return bool(self.program) or self.workload != WORKLOAD or any(self._typed())

    @property
    def default_name(self) -> str:
        """Return `sdpa-math-flash-S1024-S4096`, or the name of a script: `train` for `python train.py`."""
        if self.program:
            scripts = [part for part in self.program if part.endswith(".py")]
            return Path(scripts[0] if scripts else self.program[0]).stem
        sizes = [f"{name}{size}" for name, values in axis_values(self.axis).items() for size in values]
        lengths = [f"S{length}" for length in self.seq or ()]
        name = Path(self.workload).name.removesuffix(".py")
        return "-".join([name, *(self.backend or ()), *lengths, *sizes])

    def command(self, **defaults: int) -> tuple[str, ...]:
        """Return the command of a workload with its options, or of the given program.

        If an option is not given, its value comes from ``defaults`` or from the workload. Raises `typer.BadParameter`
        if both a program and workload options are given.
        """
        from nsysprof.catalog import find_workload, workload_command

        if not self.program:
            return (*workload_command(find_workload(self.workload)), *self._typed(**defaults))
        if any(self._typed()) or self.workload != WORKLOAD:
            raise typer.BadParameter("give either a program or workload options, not both")
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
            raise typer.BadParameter(f"--axis {text}: must be NAME=N,N with N ≥ 1, such as m=64,128")
        axes[name] = list(dict.fromkeys([*axes.get(name, ()), *sizes]))
    return axes
