"""What a sweep measures: presets and options become a plan, which the program that measures gets as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import Described, ask_workload, check_countable

__all__ = ["PRESETS", "BenchPreset", "Grid", "HowMeasured", "bench_plan", "find_preset"]

PLAN_SCHEMA = "nsysprof-bench-plan/1"
# Lists of sizes by axis, of `dtype` and `backend`, and flags; every combination, and what is left out by default.
Grid = Mapping[str, Any]


@dataclass(frozen=True)
class BenchPreset:
    """A sweep with a name: the grids it goes through, and the program it runs."""

    grids: tuple[Grid, ...]
    workload: str = "sdpa"


@dataclass(frozen=True)
class HowMeasured:
    """How every point of a sweep is measured; the same for all, and a part of the plan.

    ``ci_width``: stop before ``samples`` once the 95 % interval of the median is narrower than this part of it.
    ``training``: what the mode of the workload makes of a call, such as forward and backward.
    """

    device: str = "cuda"
    seed: int = 0
    training: bool = False
    samples: int = 100
    ci_width: float | None = None
    min_sample_ns: int = 20_000
    warm_cache: bool = False
    graph: bool = True


_ALL = ("math", "flash", "efficient", "cudnn", "auto")
_SCALING_SEQ = (512, 1024, 2048, 4096, 8192, 16384, 32768)

PRESETS: Mapping[str, BenchPreset] = {
    "math-vs-flash": BenchPreset(({"seq": (1024, 2048, 4096)},)),
    "baseline": BenchPreset(
        (
            {"backend": _ALL, "batch": [32], "seq": (128, 256, 512, 1024, 2048), "causal": False},
            {"backend": _ALL, "batch": (8, 16, 32, 64), "seq": [512], "causal": False},
            {"backend": _ALL, "batch": [32], "heads": (4, 8, 16), "seq": [512], "causal": False},
        )
    ),
    # a transformer block until memory runs out: naive and auto in fp32 against flash in fp16, and all in fp16
    "scaling": BenchPreset(
        (
            {"backend": ("naive", "auto"), "batch": [8], "seq": _SCALING_SEQ, "dtype": ["fp32"]},
            {"backend": ("naive", "auto", "flash"), "batch": [8], "seq": _SCALING_SEQ},
        ),
        workload="transformer_block",
    ),
    "long": BenchPreset(({"backend": _ALL, "seq": (1024, 2048, 4096, 8192, 16384, 32768)},)),
    # what hand-written tiled kernels are measured at
    "single-head": BenchPreset(
        (
            {
                "backend": ("naive", "math", "efficient", "auto"),
                "heads": [1],
                "seq": (512, 1024, 1536, 2048),
                "dtype": ["fp32"],
                "causal": False,
            },
        )
    ),
}


def find_preset(name: str) -> BenchPreset:
    """The preset of this name; `NsysprofError` names all of them where there is none."""
    if name not in PRESETS:
        raise NsysprofError(f"no preset {name!r}", f"--preset is one of: {', '.join(PRESETS)}")
    return PRESETS[name]


def bench_plan(
    program: Path, grids: Sequence[Grid], how: HowMeasured, modes: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan as JSON has it, and the workload's own description with the cost of each configuration.

    Short ones come first; what several grids ask for is measured once. Raises `NsysprofError` for what the workload
    does not have: backends, axes, dtypes, or ``modes``, the options that were given of these.
    """
    about, _ = ask_workload(program)
    for grid in grids:
        _check_grid(about, grid)
    for name in modes:
        if about.mode is None or about.mode.option != name:
            has = f"its option is --{about.mode.option}" if about.mode else f"leave out --{name}"
            raise NsysprofError(f"{about.name} has no --{name}", has)
    about, raw = ask_workload(program, [{**grid, "training": how.training} for grid in grids])
    configurations = []
    for asked, one in zip(raw["configurations"], about.configurations, strict=True):
        sizes = " ".join(part for part, _ in zip(about.parts(asked), about.axes, strict=False))
        check_countable(one.cost, sizes, "choose smaller sizes")
        configurations.append({name: value for name, value in asked.items() if name != "cost"})
    plan = {
        "schema": PLAN_SCHEMA,
        "workload": about.name,
        "device": how.device,
        "seed": how.seed,
        **({about.mode.option: how.training} if about.mode else {}),
        "samples": how.samples,
        "ci_width": how.ci_width,
        "min_sample_ns": how.min_sample_ns,
        "warm_cache": how.warm_cache,
        "graph": how.graph,
        "configurations": configurations,
    }
    return plan, raw


def _check_grid(about: Described, grid: Grid) -> None:
    named = {"backend": list(about.backends), "dtype": about.dtypes}
    for option, known in named.items():
        if unknown := [name for name in dict.fromkeys(grid.get(option, ())) if name not in known]:
            names = ", ".join(map(repr, unknown))
            raise NsysprofError(f"no {option} {names}", f"--{option} is one of: {', '.join(known)}")
    if unknown := [name for name in grid if name not in (*named, *about.names)]:
        raise NsysprofError(
            f"{about.name} has no axis {', '.join(map(repr, unknown))}", f"its axes: {', '.join(about.names)}"
        )
