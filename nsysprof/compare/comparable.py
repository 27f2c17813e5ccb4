"""Choose what to compare in two reports if no ranges are named: common steps or, without these, whole recordings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.levels import Level, choose_level
from nsysprof.attribution.range_work import index_work
from nsysprof.compare.loaded import LoadedReport
from nsysprof.core.arrays import Index
from nsysprof.core.columns import sums
from nsysprof.core.text import one_line
from nsysprof.core.units import format_share
from nsysprof.kernels.classify import short_name

MIN_ALIKE = 0.5  # of the time in kernels, for which both sides must run the same ones to be one loop
MIN_RENAMED = 0.8  # of the GPU's busy time in loops of either side, for loops with other names to be one
MIN_SHARED = 0.05  # the same of whole recordings: with less they have nothing in common
MAX_COUNTS = 1.5  # times as many kernels of one name in an iteration: more are another loop
_NAME = 60
_GRID = (1 << 31) - 1  # a prime: sums of what is left of grids tell one from another
Kernels = dict[str, tuple[int, int, int]]  # by their short names: how many, for how many ns, the sum of their grids


@dataclass(frozen=True)
class Agreement:
    """What to compare: ``codes`` are pairs of merged paths of the ``reports``, empty for whole recordings.

    ``notes`` are sentences for the user; ``reasons``: why the reports cannot be compared, empty if they can be
    compared.
    """

    reports: tuple[LoadedReport, ...] = ()
    codes: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def agree(first: LoadedReport, last: LoadedReport, merge: Sequence[str] | None) -> Agreement:
    """Find the steps that two reports have in common, as an `Agreement`.

    Annotated steps with the same path form a pair, even if they run different kernels. Loops with different names form
    a pair if they run the same kernels. Detected iterations form a pair if they launch the same kernels equally often.
    The iterations then become ranges of the reports. If there is no pair, whole recordings are compared, if they have
    kernels in common.
    """
    levels = [choose_level(each.attribution, None, merge) for each in (first, last)]
    reports = first, last
    if all(level.found for level in levels):
        first, last = reports = first.among(levels[0].attribution, merge), last.among(levels[1].attribution, merge)
    ours = [level.attribution is each.attribution.launched for level, each in zip(levels, reports, strict=True)]
    kernels = [kernels_of(each, level) for each, level in zip(reports, levels, strict=True)]
    one, other = levels
    if all(ours) and all(len(level.rows) for level in levels):
        shared = [path for path in one.paths if path in other.paths]
        alike = _alike(kernels[0], kernels[1], levels)
        if shared and (alike or not (one.found or other.found)):
            return Agreement(reports, tuple((_code(one, path), _code(other, path)) for path in shared))
        most = min(level.share or 0.0 for level in levels) >= MIN_RENAMED
        if not (shared or one.found or other.found) and alike and most and len(one.paths) == len(other.paths) == 1:
            names = " and ".join(repr(one_line(level.paths[0], _NAME)) for level in levels)
            note = f"loops with different names are compared, because both loops run the same kernels: {names}"
            return Agreement(reports, ((_code(one, one.paths[0]), _code(other, other.paths[0])),), (note,))
    notes: tuple[str, ...] = ()
    if any(len(level.rows) for level in levels):
        loops = " and ".join(
            f"{one_line(level.paths[0], _NAME)!r} ({len(level.rows):,} times)" if len(level.rows) else "none"
            for level in levels
        )
        notes = (
            (f"whole recordings are compared, because the reports have no loops that run the same kernels: {loops}"),
        )
    whole = [kernels_of(each, None) for each in reports]
    shares = shares_of(*whole)
    if whole[0] and whole[1] and max(shares) < MIN_SHARED:
        nearest = [max(side, key=lambda name, side=side: side[name][1]) for side in whole]  # type: ignore[misc]
        took = " and ".join(map(format_share, shares))
        reasons = (
            f"common kernels take {took} of the kernel time",
            *(
                f"in {each.path.name}, {one_line(name, _NAME)} takes the most time"
                for name, each in zip(nearest, reports, strict=True)
            ),
        )
        return Agreement(notes=notes, reasons=reasons)
    return Agreement(notes=notes)


def conditions(first: LoadedReport, last: LoadedReport) -> dict[str, tuple[str, str]]:
    """Return the recording conditions that differ between the reports, with the texts of both."""
    base, new = (dict(conditions_of(each)) for each in (first, last))
    return {
        name: (base[name], new[name])
        for name in base
        if base[name] and new.get(name) and not same_version(base[name], new[name])
    }


def same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal; parts that the shorter version lacks are ignored (`12.4` and `12.4.1`)."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def conditions_of(loaded: LoadedReport) -> Iterator[tuple[str, str]]:
    """Yield the recording conditions of a report, as names and texts, empty if unknown."""
    trace, about, reader = loaded.trace, loaded.report.about, loaded.report.reader
    used = np.unique(trace.stream_device[np.unique(trace.ops.stream)]).tolist()
    devices = [trace.devices[device] for device in used]
    gpus = [about.gpus[device.gpu] for device in devices if device.gpu is not None]
    yield "GPU", " and ".join(sorted({str(gpu.name) for gpu in gpus}))
    yield "GPUs in use", str(len({trace.gpu_numbers[device] for device in used}))
    yield "processes", str(len({device.process for device in devices}))
    yield ("GPU clock", " and ".join(sorted({f"{gpu.clock_hz / 1e6:,.0f} MHz" for gpu in gpus if gpu.clock_hz})))
    yield "driver", about.driver_version or ""
    yield "CUDA", about.cuda_version or ""
    yield "operating system", about.os or ""
    yield "CPU", "" if about.cpu == "unknown" else about.cpu or ""
    yield "profiler", " ".join(filter(None, (reader.recorder, about.nsys_version)))
    yield from ((f"profiler option {name}", value) for name, value in about.options.items())


def _code(level: Level, path: str) -> int:
    return next(code for code in np.unique(level.of).tolist() if level.texts[code] == path)


def kernels_of(loaded: LoadedReport, level: Level | None) -> Kernels:
    """For each kernel name, return the count, the time (ns) and the sum of grid sizes, in the whole recording or in a
    level.
    """
    ops = loaded.trace.ops
    rows: Index = np.arange(len(ops))
    if level is not None:
        each = np.unique(level.rows)
        rows = np.unique(index_work(level.attribution, each).ops_of(each)[0]) if len(each) else rows[:0]
        ops = level.attribution.trace.ops
    count = np.bincount(ops.name[rows], minlength=len(loaded.trace.op_names))
    total = sums(ops.name[rows], ops.end[rows] - ops.start[rows], len(count))
    known = rows[rows < len(loaded.grids)] if level is None else rows[:0]
    blocks = np.bincount(ops.name[known], loaded.grids[known] % _GRID, minlength=len(count))
    out: Kernels = {}
    for code in np.flatnonzero(count).tolist():
        name = short_name(loaded.trace.op_names[code])  # types in templates differ from GPU to GPU
        runs, ns, grids = out.get(name, (0, 0, 0))
        out[name] = runs + int(count[code]), ns + int(total[code]), grids + int(blocks[code])
    return out


def shares_of(one: Kernels, other: Kernels) -> tuple[float, float]:
    """Return the share of each side's time in kernels that both sides run."""
    both = one.keys() & other.keys()
    base, new = (
        sum(side[name][1] for name in both) / max(sum(ns for _, ns, _ in side.values()), 1) for side in (one, other)
    )
    return base, new


def _alike(one: Kernels, other: Kernels, levels: Sequence[Level]) -> bool:
    """Whether two loops run the same kernels equally often in each iteration."""
    if min(shares_of(one, other)) < MIN_ALIKE:
        return False
    both = one.keys() & other.keys()
    base, new = (
        sum(side[name][0] for name in both) / max(len(level.rows), 1)
        for side, level in zip((one, other), levels, strict=True)
    )
    return max(base, new) <= MAX_COUNTS * min(base, new)
