"""Read the description that a workload prints with `--describe`: axes, backends, and the cost of each shape."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shlex import join
from typing import Annotated, Any, Literal

import msgspec

from nsysprof.catalog import workload_command
from nsysprof.core.document import Count, Text, parse_as
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import last_line

TOO_LARGE = "operation count per call exceeds 64 bits"
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]*$")]
_Size = Annotated[int, msgspec.Meta(ge=0)]


# Names that mean something else in plans and on command lines.
_RESERVED = {
    "id", "backend", "backends", "cost", "dtype", "backward", "train", "device", "seed", "training", "warmup",
    "iterations", "results", "force", "describe",
}  # fmt: skip
# Columns of the tables that results are written to, beside shapes.
TAKEN = {
    "run", "workload", "configuration", "status", "reason", "n", "left_out", "outliers", "interval", "cv", "clock",
    "cache", "flops", "intensity", "tflops", "refused", "error", "tolerance", "base", "new", "mixed", "kind", "speedup",
    "delta", "p", "family", "test", "verdict", "best", "as_good", "unsure", "decision", "runner_up", "margin",
    "least_memory", "picked", "equivalent", "sweep", "metric", "points", "exponent", "low", "high", "r_squared",
    "growth", "winner", "loser", "before", "after", "change", "overlap", "runs", "scope", "detectable", "bound",
}  # fmt: skip


def _column(name: str) -> str:
    return f"{name}_size" if name in TAKEN else name


class _Column(msgspec.Struct):
    name: _Name

    @property
    def column(self) -> str:
        """The column of this property in tables."""
        return _column(self.name)


class Axis(_Column):
    """A size that may vary, with its prefix in names (`S1024`)."""

    short: Text
    says: str
    default: Count


class Flag(_Column):
    """A yes/no property of a shape, with the words for yes and no."""

    on: Text
    off: str = ""
    says: str = ""
    default: bool = True

    def word(self, value: Any) -> str:
        """Return the word that shows a value in names."""
        return self.on if value else self.off


class Choice(_Column):
    """A shape property with a value. Names show the prefix ``short`` and the value, unless the value is the default."""

    default: str | int | float
    short: str = ""
    says: str = ""

    def word(self, value: Any) -> str:
        """Return the word that shows a value in names: `KV2`, `window:256`; empty for the default."""
        shown = f"{value:g}" if isinstance(value, float) else value
        return "" if value == self.default else f"{self.short}{shown}"


class Mode(msgspec.Struct):
    """An option that changes a call (such as gradients), and the words for calls with and without it."""

    option: _Name
    on: Text
    off: str = ""
    says: str = ""


class Backend(msgspec.Struct):
    """One way to compute the workload. ``install`` is a command that installs it. ``compiled``: whether the first call
    compiles, which takes a long time.
    """

    says: str = ""
    install: str | None = None
    compiled: bool = False


class Cost(msgspec.Struct):
    """The cost of one call: see `Cost` of the workloads. ``extra_bytes`` and ``held_bytes`` are per backend."""

    flops: Annotated[int, msgspec.Meta(ge=1)]
    read_bytes: Annotated[int, msgspec.Meta(ge=1)]
    written_bytes: _Size
    tokens: _Size | None = None
    unit_bytes: _Size | None = None
    extra_bytes: dict[str, _Size] = {}
    held_bytes: dict[str, _Size] = {}
    suspects: dict[str, _Size] = {}

    @property
    def least_bytes(self) -> int:
        """Return the number of bytes if every input is read once and every output written once."""
        return self.read_bytes + self.written_bytes

    def traffic_bytes(self, backend: str) -> int:
        """Return the minimal number of bytes that a backend moves."""
        return self.least_bytes + self.extra_bytes.get(backend, 0)


class Costly(msgspec.Struct):
    """The part of a configuration that all workloads have in common; the other parts depend on axes and flags."""

    id: Text
    backends: Annotated[list[Text], msgspec.Meta(min_length=1)]
    cost: Cost


class Described(msgspec.Struct, dict=True):
    """A workload's description of itself. ``configurations``: all configurations of the requested grids."""

    schema: Literal["nsysprof-describe/1"]
    name: Text
    says: Text
    axes: Annotated[list[Axis], msgspec.Meta(min_length=1)]
    sweep: _Name
    dtypes: Annotated[list[Text], msgspec.Meta(min_length=1)]
    backends: Annotated[dict[str, Backend], msgspec.Meta(min_length=1)]
    default_backends: list[Text]
    flags: list[Flag] = []
    choices: list[Choice] = []
    mode: Mode | None = None
    base: list[Text] = []
    trial: dict[str, Count] = {}
    reference: str = ""
    flops: str = ""
    traffic: str = ""
    unit: str = ""
    tokens_shown: bool = False
    configurations: list[Costly] = []

    @cached_property
    def shorts(self) -> dict[str, str]:
        """Return the prefix of each axis, by column; the sweep axis comes first."""
        return {self.size: "", **{axis.column: axis.short for axis in self.axes}}

    @property
    def size(self) -> str:
        """The column of the sweep axis."""
        return _column(self.sweep)

    @property
    def short(self) -> str:
        """The prefix of the sweep axis."""
        return self.shorts[self.size]

    @property
    def traffic_words(self) -> str:
        """The description of the counted bytes."""
        return "inputs and outputs once" + (f", and {self.traffic}" if self.traffic else "")

    def label(self, axis: str) -> str:
        """Return the label of an axis in a chart: `sequence length S`."""
        return next(f"{each.says} {each.short}".lstrip() for each in self.axes if each.column == axis)

    @property
    def sizes(self) -> list[str]:
        """Return the columns of the axes in order."""
        return [axis.column for axis in self.axes]

    @property
    def properties(self) -> list[Flag | Choice]:
        """The flags and choices in order."""
        return [*self.flags, *self.choices]

    @property
    def flag_names(self) -> list[str]:
        """Return the columns of the flags and choices in order."""
        return [each.column for each in self.properties]

    @property
    def shape(self) -> list[str]:
        """Return the columns of a shape without its dtype."""
        return [*self.sizes, *self.flag_names]

    @property
    def names(self) -> list[str]:
        """Return the names of a shape's parts, which are option names, without the dtype."""
        return [each.name for each in (*self.axes, *self.properties)]

    @cached_property
    def configuration(self) -> type[msgspec.Struct]:
        """The type of a configuration."""
        fields: list[tuple[str, Any]] = [("id", Text), *((axis.name, Count) for axis in self.axes)]
        fields += [("dtype", Literal[tuple(self.dtypes)]), *((flag.name, bool) for flag in self.flags)]
        # What is not said, as by those who wrote before there was a choice, is the default.
        chosen: list[Any] = [(each.name, str | int | float, each.default) for each in self.choices]
        return msgspec.defstruct("Configuration", [*fields, *chosen])

    def parts(self, at: Mapping[str, Any]) -> list[str]:
        """Return a shape in words (`B1`, `H8`, `S1024`, `D64`, `fp16`, `causal`), empty for a value without a word."""
        words = [each.word(at[each.name]) for each in self.properties]
        return [*(f"{axis.short}{at[axis.name]}" for axis in self.axes), at["dtype"], *words]

    def title(self, *, training: bool) -> str:
        """Name the work of a call, such as `attention forward`."""
        if training and self.mode:
            return f"{self.says}, {self.mode.on}"
        return f"{self.says} {self.mode.off}".rstrip() if self.mode else self.says


def described(value: Any, where: str, hint: str) -> Described:
    """Return a validated description. Raises `NsysprofError` with the invalid place."""
    found = parse_as(value, Described, where, hint)
    names = found.names
    wrong = [name for name in names if names.count(name) > 1 or name in _RESERVED]
    if wrong:
        raise NsysprofError(f"{where}: {wrong[0]!r} cannot be the name of an axis or a flag", hint)
    if found.sweep not in [axis.name for axis in found.axes]:
        raise NsysprofError(f"{where}: sweep: {found.sweep!r} is not one of the axes", hint)
    for name, known in (("default_backends", found.backends), ("trial", names)):
        if unknown := [each for each in getattr(found, name) if each not in known]:
            raise NsysprofError(f"{where}: {name}: no {unknown[0]!r} is declared", hint)
    return found


def ask_workload(program: Path, grids: Sequence[Mapping[str, Any]] = ()) -> tuple[Described, dict[str, Any]]:
    """Ask a workload for its description and the cost of all shapes in the given grids; return both, validated and as
    printed.

    Raises `NsysprofError` if the program does not answer, or does not answer like a workload.
    """
    command = [*workload_command(program), "--describe", *([json.dumps(list(grids))] if grids else [])]
    hint = f"its output: {join(command)}"
    ended = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    try:
        raw = json.loads(ended.stdout)
    except (ValueError, RecursionError):
        raw = None
    if ended.returncode or not isinstance(raw, dict):
        lines = (ended.stderr or ended.stdout).decode(errors="replace").splitlines()
        # sizes that do not go together, in its own words
        if grids and len(lines) == 2 and lines[1].startswith("  hint: "):
            raise NsysprofError(f"{program.stem}: {lines[0]}", lines[1].removeprefix("  hint: "))
        last = last_line("\n".join(line for line in lines if not line.startswith("  hint: ")))
        raise NsysprofError(f"{program}: --describe fails: {last or 'the program prints nothing'}", hint)
    found = described(raw, f"{program}: --describe", hint)
    for number, each in enumerate(raw.get("configurations", ())):
        at = {name: value for name, value in each.items() if name not in ("backends", "cost")}
        parse_as(at, found.configuration, f"{program}: --describe: configurations[{number}]", hint)
    return found, raw


def check_countable(cost: Cost, where: str, hint: str) -> None:
    """Raise `NsysprofError` if FLOPs or bytes, or their sums, do not fit into 64 bits."""
    moved = cost.least_bytes + max(cost.extra_bytes.values(), default=0)
    if max(cost.flops, moved, cost.unit_bytes or 0) >= 2**62:
        raise NsysprofError(f"{where}: {TOO_LARGE}", hint)
