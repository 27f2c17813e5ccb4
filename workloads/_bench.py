"""Measures what `nsysprof bench` has planned; started by it, once, or again after a process was killed.

    python workloads/_bench.py POINTS WORKLOAD.py

POINTS is the file that holds the plan and grows by a line for everything that is measured, see `_bench_points.py`. What
is measured there already is not measured again. Where the plan asks for several runs, each is a process of its own,
because how fast a call is differs from process to process. The exit code is 0 when nothing is left to do, 75 when a
process has to be started anew, for the next run or because CUDA is broken in this one, 1 when it cannot go on, and 130
when it was interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _bench_points
from _harness import INTERRUPTED, require, set_precision
from _results import WorkloadError, format_ns
from _workload import Workload, load

if TYPE_CHECKING:
    from _bench_check import Setting
    from _bench_nvml import GpuWatch
    from _bench_points import Progress

START_ANEW = 75
# What the samples mean, for those who read them later.
_RULES = {
    "eager": "from an event on the idle GPU to an event after the call; includes launching",
    "graph": "replay of one captured call, queued while the GPU is still busy; excludes launching",
    "cache": "cold: a buffer of at least twice the L2 size is overwritten before every call; warm: it is not",
    "sample": "mean of calls_per_sample calls, which are timed one by one",
}
_CROWDED = "not enough memory while the other backends are loaded"
_KILLED_TOGETHER = "the process was killed while this backend was measured together with others"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 2 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    path, program = map(Path, arguments)
    os.environ.setdefault("NVTX_DISABLE", "1")  # ranges are for the profiler, and take a microsecond each
    try:
        return _sweep(path, load(program))
    except WorkloadError as failure:
        _tell_failure(path, failure)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _tell_failure(path: Path, failure: WorkloadError) -> None:
    try:
        _bench_points.append(path, "failed", message=failure.message, hint=failure.hint)
    except WorkloadError:  # the disk is full, or the file is none of ours
        print(f"bench: {failure.message}\n  hint: {failure.hint}", file=sys.stderr)


def _sweep(path: Path, workload: Workload) -> int:
    """Measure all that is left to measure."""
    progress = _bench_points.read(path)
    device = progress.plan["device"]
    require("bench", device)
    from _bench_check import BrokenError, setting_of

    set_precision(deterministic=bool(progress.plan.get("deterministic")))
    runs = range(progress.runs)
    run = next((each for each in runs if progress.left(each)), runs[-1])
    left = progress.left(run)
    watch = _start(path, progress, run, [each["id"] for each in left])
    before = len(progress.plan["configurations"]) - len(left) if run == 0 else 0
    prefix = f"run {run + 1} of {len(runs)} " if len(runs) > 1 else ""
    try:
        for number, configuration in enumerate(left, before + 1):
            print(f"{prefix}[{number}/{before + len(left)}] {configuration['id']}", flush=True)
            _measure(path, progress, setting_of(workload, progress.plan, configuration, watch, run))
    except BrokenError as error:
        print(f"starting anew: {error}", flush=True)
        return START_ANEW
    if run < runs[-1]:
        return START_ANEW
    _bench_points.append(path, "done")
    return 0


def _start(path: Path, progress: Progress, run: int, order: Sequence[str]) -> GpuWatch | None:
    """Write the environment, or compare it with the recorded one; measure the peaks if requested."""
    from _bench_nvml import RULE, watch_gpu
    from _bench_peaks import describe_peaks, peaks

    device = progress.plan["device"]
    watch, why = watch_gpu() if device == "cuda" else (None, "no GPU")
    here = _surroundings(device, watch)
    if progress.environment is not None and (differ := _differences(progress.environment, here)):
        raise WorkloadError(
            f"the sweep began under other conditions: {'; '.join(differ)}", "nsysprof bench --force starts over"
        )
    watched = {"answers": watch is not None, "reason": why}
    rules = {**_RULES, "throttled": RULE}
    about = {"environment": here, "gpu_watch": watched, "rules": rules}
    _bench_points.append(path, "start", **about, run=run, order=list(order))
    if progress.measure_peaks and not progress.peaks:
        found = peaks(device)
        print(describe_peaks(found), flush=True)
        _bench_points.append(path, "peaks", peaks=found)
    return watch


def _surroundings(device: str, watch: GpuWatch | None) -> dict[str, Any]:
    """The environment of the workloads, and the properties of the GPU."""
    import torch

    from _environment import environment

    found = environment(device, {})
    # Differs with the backends, and is in the points.
    found["precision"] = {k: v for k, v in found["precision"].items() if "math_sdp" not in k}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        found |= {
            "sm_count": gpu.multi_processor_count,
            "memory_bytes": gpu.total_memory,
            "l2_cache_bytes": getattr(gpu, "L2_cache_size", None),
            **(watch.facts if watch else {}),
        }
    return found


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    now = json.loads(json.dumps(now))
    names = sorted({*before, *now})
    return [f"{name} was {before.get(name)}, is {now.get(name)}" for name in names if before.get(name) != now.get(name)]


def _measure(path: Path, progress: Progress, setting: Setting) -> None:
    """Measure what is left of a configuration, and write a point for each of its backends."""
    from _bench_check import fitting

    if setting.run:
        for group, found, why in _as_before(progress, setting):
            _sampled(path, setting, group, found, why)
        return
    checked, held = _checked(path, progress, setting)
    alone = {name for name in held if (setting.id, name) in progress.alone}
    crowded: list[str] = []
    for group in fitting(held, alone, setting.device):
        why = _KILLED_TOGETHER if group[0] in alone else _CROWDED
        crowded += _sampled(path, setting, group, checked, why if len(held) > 1 and len(group) == 1 else None)
    for name in crowded:
        _sampled(path, setting, [name], checked, _CROWDED)


def _as_before(
    progress: Progress, setting: Setting
) -> list[tuple[list[str], dict[str, Mapping[str, Any]], str | None]]:
    """Who is sampled together in a later run, with what the first found of them: the same as there, in another order.

    Outputs were checked and memory was counted in the first run; neither is done again.
    """
    groups: dict[frozenset[str], list[str]] = {}
    found: dict[str, Mapping[str, Any]] = {}
    for name in setting.configuration["backends"]:
        found[name] = progress.first[setting.id, name]
        groups.setdefault(frozenset([name, *found[name]["sampled_with"]]), []).append(name)
    order = random.Random(f"{setting.plan['seed']} run {setting.run} {setting.id}")
    shuffled = [order.sample(group, len(group)) for group in groups.values()]
    return [(group, found, found[group[0]]["alone_reason"]) for group in shuffled]


def _checked(path: Path, progress: Progress, setting: Setting) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
    """What was found of the backends that can be sampled, and how much of the GPU's memory each needs."""
    from _bench_check import BrokenError, check, give_back

    reference = functools.cache(setting.work.reference)  # one for all backends
    checked: dict[str, dict[str, Any]] = {}
    held: dict[str, int] = {}
    for name in setting.configuration["backends"]:
        if killed := progress.killed.get((setting.id, name)):
            status = "out of memory" if "signal 9" in killed else "unsupported"
            _write(path, setting.refused(name, status, killed))
            continue
        _bench_points.append(path, "trying", configuration=setting.id, backends=[name])
        found, size, picked = check(setting, name, reference)
        if name == "auto":
            _bench_points.append(path, "auto", configuration=setting.id, backend=picked)
        try:
            give_back(setting.device)
        except BrokenError as error:
            if found["status"] == "measured":
                found |= {"status": "unsupported", "reason": str(error)}
            _write(path, setting.point(name, found))
            raise
        if found["status"] == "measured":
            checked[name], held[name] = found, size
        else:
            _write(path, setting.point(name, found))
    return checked, held


def _sampled(
    path: Path, setting: Setting, group: Sequence[str], checked: Mapping[str, Any], alone: str | None
) -> list[str]:
    """Sample backends in turn and write their points; returns those that are to be sampled alone."""
    from _bench_check import give_back
    from _bench_sampling import sample

    _bench_points.append(path, "trying", configuration=setting.id, backends=list(group))
    points, crowded, broken = sample(setting, group, checked, alone)
    for point in points:
        _write(path, point)
    if broken:
        raise broken
    give_back(setting.device)
    return crowded


def _write(path: Path, point: Mapping[str, Any]) -> None:
    """Keep a point, and say so in a line."""
    _bench_points.append(path, "point", point=point)
    said = [point["status"], point["reason"]]
    if point["latency_ns"]:
        said = [_spread(point["latency_ns"])]
        said += [f"graph {_spread(point['graph_latency_ns'])}"] if point["graph_latency_ns"] else []
    print(f"  {point['backend']}: {', '.join(filter(None, said))}", flush=True)


def _spread(samples: Sequence[float]) -> str:
    """The median of some samples, and how many they are."""
    return f"{format_ns(statistics.median(samples))} ({len(samples)} samples)"


if __name__ == "__main__":
    sys.exit(main())
