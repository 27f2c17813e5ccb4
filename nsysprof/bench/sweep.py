"""Run a sweep: presets and options become a plan, a separate program measures it, and the samples become one document.

The program receives the plan as JSON, and is restarted if it is killed.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join, quote
from typing import Any

from nsysprof.catalog import workload_kit
from nsysprof.errors import NsysprofError
from nsysprof.formats.points import SweepFile, add_line, begin_points, read_points, resume_points
from nsysprof.formats.samples import BENCH_SCHEMA
from nsysprof.formats.workload import Described, ask_workload, check_countable
from nsysprof.results.folder import locked_folder
from nsysprof.tools.child import Echo, Ended, run_child
from nsysprof.tools.driver import ask_driver, environment_hash, fingerprint
from nsysprof.tools.interrupts import Interrupt, interrupts_raised
from nsysprof.tools.nsight import last_line

INTERRUPTED, START_ANEW = 130, 75  # exit codes of the program that measures
POINTS, LOG = "points.jsonl", "output.log"


PLAN_SCHEMA = "nsysprof-bench-plan/1"
# Lists of sizes by axis, of `dtype` and `backend`, and flags; every combination, and what is left out by default.
Grid = Mapping[str, Any]


@dataclass(frozen=True)
class BenchPreset:
    """A named sweep: its grids, its program, and the option that turns on training in the program."""

    grids: tuple[Grid, ...]
    workload: str = "sdpa"
    mode: str | None = None


def _preset(*grids: str, workload: str = "sdpa", mode: str | None = None) -> BenchPreset:
    return BenchPreset(tuple(map(_grid, grids)), workload, mode)


def _grid(text: str) -> Grid:
    """The grid in a text such as `backend=math,flash seq=512,1024 causal=no`; later values override earlier ones."""
    flags = {"yes": True, "no": False}
    return {
        name: flags[values]
        if values in flags
        else [int(value) if value.isdecimal() else value for value in values.split(",")]
        for name, values in (part.split("=") for part in text.split())
    }


_ALL = "backend=math,flash,efficient,cudnn,auto"
_FUSED = f"{_ALL},flash_attn_4"
_SCALING = "batch=8 seq=512,1024,2048,4096,8192,16384,32768"
_SELECTION = f"{_FUSED} batch=2 heads=16 seq=512,4096"
_BEST = "backend=flash,cudnn,flash_attn_4,tiled_o5,tiled_o6"
# the size of GPT-2, with four heads of queries to one of keys
_GPT = "layers=12 heads=12 kv_heads=3 width=768 vocab=50304 batch=8 seq=512,1024"
_GPT_BACKENDS = "backend=math,flash,cudnn,auto,flash_attn_4"

PRESETS: Mapping[str, BenchPreset] = {
    "math-vs-flash": _preset("seq=1024,2048,4096"),
    "baseline": _preset(
        f"{_ALL} batch=32 seq=128,256,512,1024,2048 causal=no",
        f"{_ALL} batch=8,16,32,64 seq=512 causal=no",
        f"{_ALL} batch=32 heads=4,8,16 seq=512 causal=no",
    ),
    # a transformer block until memory runs out: naive and auto in fp32 against flash in fp16, and all in fp16
    "scaling": _preset(
        f"backend=naive,auto {_SCALING} dtype=fp32",
        f"backend=naive,auto,flash {_SCALING}",
        workload="transformer_block",
    ),
    "long": _preset(f"{_ALL} seq=1024,2048,4096,8192,16384,32768"),
    # what hand-written tiled kernels are measured at
    "single-head": _preset("backend=naive,math,efficient,auto heads=1 seq=512,1024,1536,2048 dtype=fp32 causal=no"),
    "backward": _preset(f"{_FUSED} seq=512,1024,2048,4096,8192", mode="backward"),
    "train": _preset(f"{_FUSED} batch=8 seq=512,1024,2048,4096 dtype=bf16", workload="transformer_block", mode="train"),
    # the regime before the one of `scaling`, where launches and projections are most of it
    "short-block": _preset(
        "backend=naive,auto,flash,cudnn batch=8 seq=32,64,128,256,512", workload="transformer_block"
    ),
    # which backend PyTorch picks for each dtype, mask and sharing of heads, and what it costs against the best
    "selection": _preset(
        f"{_SELECTION} mask=none",
        f"{_SELECTION} mask=causal dtype=fp16,bf16,fp32",
        f"{_SELECTION} mask=window:256,padding,bool,float {_ALL},flex,flash_attn_4",
        f"{_SELECTION} mask=causal kv_heads=4",
        f"{_SELECTION} mask=none kv_seq=1024",
    ),
    # latency against the spread of the scores, which a kernel without a maximum in its inner loop pays for
    "score-scale": _preset(f"{_FUSED},tiled_o5,tiled_o6 seq=1024,4096 score_scale=1,3,10,30"),
    # the fastest kernels beside each other, where one or another of them is at its best
    "best-kernels": _preset(
        f"{_BEST} seq=1024,4096,8192",
        f"{_BEST} seq=4096 score_scale=3,10,30",
        f"{_BEST} seq=4096 causal=no",
        f"{_BEST} batch=4 heads=16 seq=4096 head_dim=64,128",
        f"{_BEST} batch=8 heads=16 seq=512,2048",
        f"{_BEST} batch=16 heads=16 seq=1024 head_dim=128 causal=no",
        f"{_BEST} batch=2 heads=16 seq=8192 head_dim=128 dtype=bf16",
    ),
    "gpt": _preset(
        f"{_GPT} {_GPT_BACKENDS} decode=no",
        f"{_GPT} {_GPT_BACKENDS} decode=yes",
        f"{_GPT} backend=math,flash,cudnn seq=1024 decode=yes cuda_graph=yes",
        f"{_GPT} backend=auto seq=1024 decode=no compile=yes",
        f"{_GPT} backend=auto seq=1024 decode=yes compile=yes",
        workload="gpt",
    ),
    "gpt-train": _preset(
        f"{_GPT} backend=math,flash,cudnn,flash_attn_4 seq=512,1024,2048 dtype=bf16", workload="gpt", mode="train"
    ),
}


def find_preset(name: str, *, full: bool = False) -> BenchPreset:
    """The preset with this name. ``full`` adds bf16, all sizes of S between the ends, and one smaller size.

    Raises `NsysprofError` with all names if there is no such preset.
    """
    if name not in PRESETS:
        raise NsysprofError(f"no preset {name!r}", f"--preset is one of: {', '.join(PRESETS)}")
    preset = PRESETS[name]
    return replace(preset, grids=tuple(map(_in_full, preset.grids))) if full else preset


def _in_full(grid: Grid) -> Grid:
    """A grid with the lengths 1, 1.5, 2, 3, 4, 6 … times the smallest power of two, and both half-precision dtypes."""
    ends = min(grid["seq"]) // 2, max(grid["seq"])
    powers = [2**power for power in range(ends[0].bit_length() - 1, ends[1].bit_length())]
    lengths = sorted({*grid["seq"], *powers, *(3 * power // 2 for power in powers)})
    within = [length for length in lengths if ends[0] <= length <= ends[1]]
    dtypes = [] if grid.get("dtype") == ["fp32"] else ["bf16"]
    return {**grid, "seq": within, "dtype": [*dict.fromkeys([*grid.get("dtype", ["fp16"]), *dtypes])]}


def bench_plan(
    program: Path,
    grids: Sequence[Grid],
    modes: Sequence[str] = (),
    *,
    device: str = "cuda",
    seed: int = 0,
    training: bool = False,
    deterministic: bool = False,
    runs: int = 1,
    samples: int = 100,
    ci_width: float | None = None,
    min_sample_ns: int = 20_000,
    warm_cache: bool = False,
    graph: bool = True,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plan for JSON, and the workload's description of itself with the cost of each configuration.

    Short configurations come first; a point in several grids is measured only once. ``ci_width``: stop early, once the
    95 % interval of the median is narrower than this fraction of the median. ``training``: the passes that the
    workload's mode adds to a call, such as backward. ``runs``: the number of processes; each measures all points, with
    an equal part of the ``samples``. Raises `NsysprofError` for backends, axes, dtypes or ``modes`` (given options)
    that the workload lacks.
    """
    about, _ = ask_workload(program)
    for grid in grids:
        _check_grid(about, grid)
    for name in modes:
        if about.mode is None or about.mode.option != name:
            has = f"its option is --{about.mode.option}" if about.mode else f"leave out --{name}"
            raise NsysprofError(f"{about.name} has no --{name}", has)
    about, raw = ask_workload(program, [{**grid, "training": training} for grid in grids])
    configurations = []
    for asked, one in zip(raw["configurations"], about.configurations, strict=True):
        sizes = " ".join(part for part, _ in zip(about.parts(asked), about.axes, strict=False))
        check_countable(one.cost, sizes, "choose smaller sizes")
        configurations.append({name: value for name, value in asked.items() if name != "cost"})
    plan = {
        "schema": PLAN_SCHEMA,
        "workload": about.name,
        "device": device,
        "seed": seed,
        **({about.mode.option: training} if about.mode else {}),
        "runs": runs,
        "samples": samples,
        "ci_width": ci_width,
        "min_sample_ns": min_sample_ns,
        "warm_cache": warm_cache,
        "graph": graph,
        **({"deterministic": True} if deterministic else {}),
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


@dataclass(frozen=True)
class SweepJob:
    """A sweep to run: the workload's file and description of itself, the plan, and the command as typed.

    ``results`` is the folder of the final results. Until the results are complete, everything is in ``partial``.
    """

    program: Path
    plan: Mapping[str, Any]
    described: Mapping[str, Any]
    results: Path
    command: tuple[str, ...]
    measure_peaks: bool = False

    @property
    def partial(self) -> Path:
        """The folder of an unfinished sweep."""
        return self.results.with_name(f"{self.results.name}.partial")

    @property
    def resume_command(self) -> str:
        """The command that resumes the sweep."""
        return join([*(part for part in self.command if part != "--resume"), "--resume"])


@contextmanager
def open_sweep(job: SweepJob, *, resume: bool, force: bool) -> Iterator[SweepFile]:
    """Open the sweep in its folder, new or resumed, and lock it against other processes.

    Raises `NsysprofError` if there is an unfinished sweep and neither ``resume`` nor ``force`` is given. Also raises it
    if there is no sweep to resume, or if the plan or the machine differs from the unfinished sweep. An interrupt
    becomes an error that names the kept files and the command to continue.
    """
    points = job.partial / POINTS
    if os.path.lexists(job.partial) and not resume and not force:
        raise NsysprofError(
            f"{job.partial}: this folder has an unfinished sweep", f"{job.resume_command}   (--force starts over)"
        )
    if resume and not points.exists():
        raise NsysprofError(f"{job.partial}: no unfinished sweep to resume", "leave out --resume")
    machine = fingerprint(None, ask_driver()[0], None)
    del machine["nsys"], machine["workload"]  # the one has no part in this, the other is known once it runs
    head = {"plan": job.plan, "workload": job.described, "machine": machine, "measure_peaks": job.measure_peaks}
    try:
        job.partial.mkdir(parents=True, exist_ok=True)
        taken = NsysprofError(f"{job.partial}: another sweep is running in this folder", "-o DIR for another folder")
        with locked_folder(job.partial, taken), interrupts_raised():
            if not resume:
                begin_points(points, head)
            yield resume_points(points, head)
    except Interrupt as interrupt:
        raise _interrupted(job, 128 + interrupt.number) from None
    except OSError as error:
        raise NsysprofError(
            f"cannot write {error.filename or job.partial}: {error.strerror}", f"df -h; resume: {job.resume_command}"
        ) from None


def run_sweep(job: SweepJob, sweep: SweepFile, echo: Echo) -> dict[str, Any]:
    """Measure all missing points, and return the document for ``samples.json``.

    Raises `NsysprofError` if the program cannot continue; measured points are kept for ``--resume``. If the program is
    killed, for example because memory ran out, it is restarted without the current point.
    """
    points = job.partial / POINTS
    command = [sys.executable, str(workload_kit(job.program) / "_bench.py"), str(points), str(job.program)]
    while not sweep.done:
        before = sweep.kept + sweep.deaths
        ended = run_child(command, job.partial / LOG, echo)
        sweep = read_points(points, cut=True)
        if ended.code == INTERRUPTED:
            raise _interrupted(job, ended.code)
        if sweep.failed:
            _drop_if_empty(job, sweep)
            raise NsysprofError(sweep.failed["message"], sweep.failed["hint"])
        if ended.code > 128 and sweep.trying:
            reason = f"the process was killed by signal {ended.code - 128}"
            several = " " in sweep.trying.partition(" at ")[0]
            then = "points are now measured one by one" if several else "this point is skipped"
            echo(f"{sweep.trying}: {reason}; {then}\n")
            add_line(points, "died", reason=reason)
            sweep = read_points(points)
        elif ended.code not in (0, START_ANEW):
            raise _stopped(job, ended, sweep)
        if not sweep.done and sweep.kept + sweep.deaths == before:
            raise _stopped(job, ended, sweep)
    return _document(job, sweep)


def _document(job: SweepJob, sweep: SweepFile) -> dict[str, Any]:
    start = sweep.start or {}
    plan, environment = sweep.head["plan"], {**sweep.head["machine"], "workload": start.get("environment")}
    order = [(each["id"], backend) for each in plan["configurations"] for backend in each["backends"]]
    if missing := [place for place in order if place not in sweep.points]:
        names = " ".join(missing[0])
        raise NsysprofError(f"{job.partial / POINTS}: no result for {names}", "--force starts over")
    return {
        "schema": BENCH_SCHEMA,
        "name": job.results.name.removesuffix(".bench"),
        "command": join(job.command),
        "plan": plan,
        "workload": sweep.head["workload"],
        "environment": environment,
        "environment_hash": environment_hash(environment),
        "gpu_watch": start.get("gpu_watch"),
        "rules": start.get("rules"),
        "peaks": sweep.peaks,
        "auto": sweep.auto,
        "runs": sweep.runs,
        "points": [sweep.merged(place) for place in order],
    }


def _so_far(job: SweepJob, sweep: SweepFile) -> str:
    return f"{sweep.kept} of {sweep.planned} points are kept in {job.partial}"


def _interrupted(job: SweepJob, code: int) -> NsysprofError:
    sweep = read_points(job.partial / POINTS, cut=True)
    if _drop_if_empty(job, sweep):
        return NsysprofError("interrupted; nothing is measured yet", exit_code=code)
    return NsysprofError(f"interrupted; {_so_far(job, sweep)}", job.resume_command, exit_code=code)


def _drop_if_empty(job: SweepJob, sweep: SweepFile) -> bool:
    """Remove the folder if there is nothing to resume from."""
    empty = not sweep.points and not sweep.peaks
    if empty:
        shutil.rmtree(job.partial, ignore_errors=True)
    return empty


def _stopped(job: SweepJob, ended: Ended, sweep: SweepFile) -> NsysprofError:
    last = last_line("\n".join(line for line in ended.output.splitlines() if not line.startswith("  hint: ")))
    at = f" at {sweep.trying}" if sweep.trying else ""
    return NsysprofError(
        f"the benchmark process failed{at} with exit code {ended.code}{f': {last}' if last else ''}; "
        f"{_so_far(job, sweep)}",
        f"see its output in {quote(str(job.partial / LOG))}; resume: {job.resume_command}",
    )
