"""What a workload declares of itself, its command line, and `--describe`: without torch, so that it is instant.

A workload is one file, here or elsewhere, that declares ``WORKLOAD = Workload(...)``. One that lies elsewhere is run by
`python _harness.py FILE ...`, as nsysprof does it.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _results import WorkloadError

if TYPE_CHECKING:
    from _measure import Results, Step

SCHEMA = "nsysprof-describe/1"
# The relative Frobenius norm of the difference to the float64 reference that a result may have: for backends that
# keep what is between in float32 inside, and for those that round it to the type of the inputs.
# Rounding the result alone makes about 3e-4 in fp16 and 2e-3 in bf16.
TOLERANCES = {"fp16": (2e-3, 1e-2), "bf16": (1.6e-2, 8e-2), "fp32": (1e-5, 1e-5)}
GRADIENT_FACTOR = 2.0  # gradients pass through twice as many roundings
# One configuration: an attribute for each axis, flag and choice, and `dtype`, `backward`, `device` and `seed`.
Case = argparse.Namespace


@dataclass(frozen=True)
class Axis:
    """A size that may vary: ``short`` before its value names a shape, as in `S1024`."""

    short: str
    says: str
    default: int


@dataclass(frozen=True)
class Flag:
    """A property that a shape has or has not, and the words for both in names; an empty one is left out."""

    says: str
    on: str
    off: str
    default: bool = True


@dataclass(frozen=True)
class Choice:
    """A property of a shape with a value of its own, ``short`` before it in names, which leave out the default.

    ``read`` makes of a text what it sets, the value and maybe flags; ValueError says what it should be.
    """

    short: str
    says: str
    metavar: str
    default: str | int | float
    read: Callable[[str], Mapping[str, Any]]


def number_of(name: str, kind: type[int | float], below: float = 2.0**63) -> Callable[[str], Mapping[str, Any]]:
    """The `Choice.read` of numbers from 0 up."""

    def read(text: str) -> Mapping[str, Any]:
        try:
            value = kind(text)
        except ValueError:
            value = -1
        if not 0 <= value < below:
            most = f", below {below:g}" if below < 2.0**63 else ""
            raise ValueError(f"{text!r} is not a {'whole ' if kind is int else ''}number of 0 or more{most}")
        return {name: value}

    return read


@dataclass(frozen=True)
class Mode:
    """The other thing that a call may be: its option, what that does, and words for a call without and with it."""

    option: str
    says: str
    off: str
    on: str


@dataclass(frozen=True)
class Backend:
    """One way to compute it.

    ``make`` prepares it for a `Case` and returns what `Work.build` is given. ``settings`` is entered around everything
    that is done with it, and restores what it changed. ``named`` is how PyTorch's warnings call it when they say why it
    cannot run. A backend that is not ``exact`` rounds what is between; ``tolerances`` by dtype replace those of all.
    ``install`` is the command that makes it available; what is ``compiled`` takes long at its first
    call. The backend named `auto` is whatever PyTorch picks.
    """

    says: str
    make: Callable[[Any], Callable[..., Any]]
    settings: Callable[[], AbstractContextManager[object]] = nullcontext
    named: str = ""
    exact: bool = True
    tolerances: Mapping[str, float] = field(default_factory=dict)
    install: str | None = None
    compiled: bool = False


@dataclass(frozen=True)
class Cost:
    """What a call costs at the least, whatever computes it.

    ``tokens`` are what a call gets through, ``unit_bytes`` the size in which memory is compared (``Workload.unit``).
    By backend: ``extra_bytes`` moved beyond each input and output once, and ``held_bytes``, about the peak of memory.
    ``suspects``: ways in which the FLOPs may be miscounted, with what they would be then.
    """

    flops: int
    read_bytes: int
    written_bytes: int
    tokens: int | None = None
    unit_bytes: int | None = None
    extra_bytes: Mapping[str, int] = field(default_factory=dict)
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    suspects: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What a workload computes at one shape.

    ``build`` puts it on the device, around what a backend's `make` returned. ``reference`` is what `Step.results` has
    to come to: float64 on the CPU, by name. ``tokens`` are what a call gets through, where that is a figure to give.
    """

    build: Callable[[Any], Step]
    reference: Callable[[], Results]
    tokens: int | None = None


@dataclass(frozen=True)
class Workload:
    """A workload: what a call is, the shapes and backends that it has, what it costs, and how it is made.

    ``sweep`` is the axis that sweeps go along and range names always have. ``base``: the backends that speed-ups are
    over, by preference. ``trial``: sizes at which all backends can be tried in no time. Texts: a call (``says``), the
    reference, what ``flops``, ``traffic`` and ``unit`` count; ``tokens_shown`` where tokens per second are a figure.
    """

    name: str
    says: str
    axes: Mapping[str, Axis]
    sweep: str
    backends: Mapping[str, Backend]
    cost: Callable[[Case], Cost]
    prepare: Callable[[Case], Work]
    dtypes: tuple[str, ...] = tuple(TOLERANCES)
    flags: Mapping[str, Flag] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    mode: Mode | None = None
    default_backends: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    trial: Mapping[str, int] = field(default_factory=dict)
    reference: str = ""
    flops: str = "as counted by the workload"
    traffic: str = ""
    unit: str = ""
    tokens_shown: bool = False

    @property
    def chosen_backends(self) -> tuple[str, ...]:
        """Those that run where none is asked for."""
        return self.default_backends or tuple(self.backends)


def tolerance(backend: Backend, dtype: str, *, gradient: bool) -> float:
    """The relative error up to which a result of ``backend`` counts as right."""
    exact, rounded = TOLERANCES[dtype]
    allowed = backend.tolerances.get(dtype, exact if backend.exact else rounded)
    return allowed * (GRADIENT_FACTOR if gradient else 1)


def main(workload: Workload, argv: Sequence[str] | None = None) -> int:
    """Run a workload as a command; returns its exit code. With `--describe` print what it is, without torch."""
    options = parse(workload, sys.modules["__main__"].__doc__, argv)
    if options.describe is not None:
        try:
            print(json.dumps(describe(workload, json.loads(options.describe))))
        except WorkloadError as failure:  # sizes that do not go together
            print(f"{failure.message}\n  hint: {failure.hint}", file=sys.stderr)
            return 1
        return 0
    import _harness

    return _harness.run(workload, options)


def load(path: Path) -> Workload:
    """What a file declares. Raises `WorkloadError` where that is no workload, and whatever the file raises."""
    name = f"workload {path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{path}: not a Python file", "name a file that ends with .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "WORKLOAD", None)
    if not isinstance(found, Workload):
        raise WorkloadError(f"{path}: declares no workload", "WORKLOAD = Workload(...)")
    return found


def describe(workload: Workload, grids: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What `--describe` prints. ``grids`` hold lists of sizes, `dtype`, `backend`, flags and whether to train.

    ``configurations`` are all shapes of the grids, along the sweep and once each, with their cost.
    """
    mode = asdict(workload.mode) if workload.mode else None
    names = ("name", "says", "sweep", "base", "trial", "reference", "flops", "traffic", "unit", "tokens_shown")
    return {
        "schema": SCHEMA,
        **{name: getattr(workload, name) for name in names},
        "axes": [{"name": name, **asdict(axis)} for name, axis in workload.axes.items()],
        "flags": [{"name": name, **asdict(flag)} for name, flag in workload.flags.items()],
        "choices": [
            {"name": name, "short": each.short, "says": each.says, "default": each.default}
            for name, each in workload.choices.items()
        ],
        "dtypes": workload.dtypes,
        "mode": mode,
        "backends": {
            name: {"says": each.says, "install": each.install, "compiled": each.compiled}
            for name, each in workload.backends.items()
        },
        "default_backends": workload.chosen_backends,
        "configurations": _configurations(workload, grids),
    }


def _configurations(workload: Workload, grids: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for grid in grids:
        values = {name: grid.get(name) or [axis.default] for name, axis in workload.axes.items()}
        flags = {name: grid.get(name, flag.default) for name, flag in workload.flags.items()}
        values["dtype"] = grid.get("dtype") or [workload.dtypes[0]]
        given = [name for name in workload.choices if name in grid]
        values |= {name: [_read(workload, name, str(text)) for text in grid[name]] for name in given}
        order = [*(name for name in values if name != workload.sweep), workload.sweep]
        for picked in itertools.product(*(values[name] for name in order)):
            at = dict(zip(order, picked, strict=True))
            shape = {name: at[name] for name in workload.axes} | {"dtype": at["dtype"], **flags}
            shape |= {name: each.default for name, each in workload.choices.items()}
            for name in given:
                shape |= at[name]
            name = _id(workload, shape)
            cost = workload.cost(Case(**shape, backward=bool(grid.get("training"))))
            one = found.setdefault(name, {"id": name, **shape, "backends": [], "cost": asdict(cost)})
            backends = grid.get("backend") or workload.chosen_backends
            one["backends"] += [each for each in dict.fromkeys(backends) if each not in one["backends"]]
    for one in found.values():  # of these backends only
        for part in ("extra_bytes", "held_bytes"):
            by_backend = one["cost"][part]
            one["cost"][part] = {each: by_backend[each] for each in one["backends"] if each in by_backend}
    return sorted(found.values(), key=lambda one: int(one[workload.sweep]))


def _id(workload: Workload, shape: Mapping[str, Any]) -> str:
    """What a shape is called: `B1.H8.S1024.D64.fp16.causal.window:256`."""
    sizes = [f"{axis.short}{shape[name]}" for name, axis in workload.axes.items()]
    words = [flag.on if shape[name] else flag.off for name, flag in workload.flags.items()]
    chosen = [
        f"{each.short}{shape[name]:g}" if isinstance(shape[name], float) else f"{each.short}{shape[name]}"
        for name, each in workload.choices.items()
        if shape[name] != each.default
    ]
    return ".".join(filter(None, [*sizes, shape["dtype"], *words, *chosen]))


def _read(workload: Workload, name: str, text: str) -> Mapping[str, Any]:
    try:
        return workload.choices[name].read(text)
    except ValueError as error:
        raise WorkloadError(f"{name}: {error}", f"{name} is {workload.choices[name].metavar}") from None


def parse(workload: Workload, says: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a workload that ``says`` what it is; the flag of its mode sets `backward`.

    Help and mistakes end the process, as argparse does it. A value that is given twice is there once.
    """
    options = _parser(workload, says).parse_args(argv)
    # Not known to argparse: it would add what is given to a list, instead of replacing it.
    defaults: dict[str, list[Any]] = {name: [axis.default] for name, axis in workload.axes.items()}
    defaults["backend"] = list(workload.chosen_backends)
    defaults |= {name: [None] for name in workload.choices}
    for name, default in defaults.items():
        setattr(options, name, list(dict.fromkeys(getattr(options, name) or default)))
    return options


def _parser(workload: Workload, says: str | None) -> argparse.ArgumentParser:
    backends = "\n".join(f"  {name:<14}{each.says}" for name, each in workload.backends.items())
    parser = argparse.ArgumentParser(
        description=says,
        epilog=f"backends:\n{backends}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    many: dict[str, Any] = {"action": "extend", "nargs": "+"}
    chosen = " ".join(workload.chosen_backends)
    add("--backend", **many, choices=workload.backends, metavar="NAME", help=f"one or more ({chosen})")
    for name, axis in workload.axes.items():
        said = f"{axis.says}, one or more ({axis.default})"
        add(f"--{name.replace('_', '-')}", **many, type=_at_least(1), metavar="N", help=said)
    first = workload.dtypes[0]
    add("--dtype", choices=workload.dtypes, default=first, help=f"type of the tensors ({first})")
    for name, flag in workload.flags.items():
        yes = f"--{'' if flag.default else 'no-'}{name.replace('_', '-')}"
        said = f"{flag.says} ({yes})"
        add(f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, default=flag.default, help=said)
    for name, choice in workload.choices.items():
        said = f"{choice.says}, one or more ({choice.default})"
        option = f"--{name.replace('_', '-')}"
        add(option, **many, type=_text_of(choice), metavar=choice.metavar, help=said)
    parser.set_defaults(backward=False)
    if workload.mode:
        add(f"--{workload.mode.option}", dest="backward", action="store_true", help=workload.mode.says)
    says = "use deterministic algorithms only; backends without one are unsupported"
    add("--deterministic", action="store_true", help=says)
    add("--device", choices=("cuda", "cpu"), default="cuda", help="device to run on (cuda)")
    add(
        "--warmup",
        type=_at_least(0),
        default=5,
        metavar="N",
        help="number of warm-up calls before the measured calls (5)",
    )
    add("--iterations", type=_at_least(1), default=20, metavar="N", help="measured calls (20)")
    add("--seed", type=_at_least(0), default=0, metavar="N", help="seed of the random tensors (0)")
    add("--results", type=Path, metavar="FILE", help="write all numbers as JSON to a new file")
    add("--force", action="store_true", help="let --results replace an existing file")
    add("--describe", nargs="?", const="[]", metavar="GRIDS", help="print a description of this workload as JSON")
    return parser


def _at_least(smallest: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if not smallest <= value < 2**63:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {smallest} or more")
        return value

    return whole_number


def _text_of(choice: Choice) -> Callable[[str], str]:
    def checked(text: str) -> str:
        try:
            choice.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return checked


def cases(workload: Workload, options: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    """Every shape that is asked for, with the part of its range names that tells it from the others.

    That is `S1024`, with the other sizes where they vary: `B4::H16::S4096::D128`.
    """
    order = [*workload.choices, *(name for name in workload.axes if name != workload.sweep), workload.sweep]
    same = {name: getattr(options, name) for name in (*workload.flags, "dtype", "backward", "device", "seed")}
    for picked in itertools.product(*(getattr(options, name) for name in order)):
        at = dict(zip(order, picked, strict=True))
        parts = [
            f"{axis.short}{at[name]}"
            for name, axis in workload.axes.items()
            if name == workload.sweep or len(getattr(options, name)) > 1
        ]
        found = {name: at[name] for name in workload.axes} | same
        found |= {name: choice.default for name, choice in workload.choices.items()}
        for name, choice in workload.choices.items():
            if at[name] is not None:
                found |= choice.read(at[name])
            if len(getattr(options, name)) > 1:
                parts.append(f"{choice.short}{at[name]}")
        yield "::".join(parts), Case(**found)


def title(workload: Workload, options: argparse.Namespace) -> str:
    """What all runs have in common: `sdpa: forward, causal, fp16, batch 1, heads 8, head_dim 64`."""
    mode = workload.mode
    what = [mode.on if options.backward else mode.off] if mode else [workload.says]
    for name, flag in workload.flags.items():
        found = {getattr(at, name) for _, at in cases(workload, options)}  # choices may set it as well
        if len(found) == 1:
            what.append(flag.on if found.pop() else flag.off and f"not {flag.on}")
    what.append(options.dtype)
    for name in workload.axes:
        values = getattr(options, name)
        if name != workload.sweep and len(values) == 1:
            what.append(f"{name} {values[0]}")
    for name in workload.choices:
        values = getattr(options, name)
        if len(values) == 1 and values[0] is not None:
            what.append(f"{name} {values[0]}")
    return f"{workload.name}: {', '.join(filter(None, what))}"
