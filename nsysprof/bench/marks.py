"""What is drawn beside the lines of a benchmark's charts: ceilings, memory limits, crossings; and numbers at axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from nsysprof.bench.axes import backend_look, panel_width
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.words import tflops_text
from nsysprof.charts.palette import FAINT, INK
from nsysprof.charts.style import SMALL

_MOST_PASSINGS = 2
# Where the words about a crossing stand, in points from it: the first below on the right, the next above on the left.
_PLACES = (((14, -34), "left"), ((-12, 26), "right"))
DASHES = (0, (4, 3))
WIDE = 5.0  # inches of a panel that has room for words
_FEW = 7  # lines that leave room for them


@dataclass(frozen=True)
class BenchLine:
    """A line of a chart: where it goes, its 95 % band (NaN: none), and how it looks."""

    backend: str
    dtype: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    graph: bool = False


def draw_even(axes: Axes, least: float) -> None:
    """The line where nothing changes, and the stretch that counts as no change."""
    axes.axhspan(1 / (1 + least), 1 + least, color=FAINT, alpha=0.2, linewidth=0)
    axes.axhline(1, color=INK, linewidth=1.0)


def peaks_of(part: pd.DataFrame) -> list[tuple[float, str]]:
    """The peaks of the dtypes of a sweep, at the clock that its samples ran at."""
    out = []
    for dtype, group in part.groupby("dtype", sort=False):
        for column, said in (("peak_tflops", "peak"), ("measured_peak_tflops", "measured")):
            known = group[column].dropna()
            if len(known):
                level = float(known.median())
                out.append((level, f"{dtype} {said} {tflops_text(level)}"))
    return out


def capacity_of(results: BenchResults, part: pd.DataFrame) -> float | None:
    """The memory of the GPU, where it is known and something did not fit into it."""
    size = (results.samples.environment.get("workload") or {}).get("memory_bytes")
    full = (part["status"] == "out of memory").any()
    return float(size) if full and isinstance(size, int | float) and size > 0 else None


def draw_capacity(axes: Axes, part: pd.DataFrame, sweep: BenchSweep, capacity: float) -> None:
    """A line at the GPU's memory, and a cross for each backend where it ran out of it."""
    axes.axhline(capacity, color=INK, linewidth=1.0, linestyle=DASHES)
    for row in part[part["status"] == "out of memory"].to_dict("records"):
        colour, _ = backend_look(row["backend"])
        axes.plot(
            [row[sweep.axis]],
            [capacity],
            "x",
            color=colour,
            markersize=9,
            mew=2.2,
            label="out of memory",
            clip_on=False,
        )


@dataclass(frozen=True)
class Passing:
    """A place where one line of a chart passes another: `cudnn passes flash`."""

    x: float
    y: float
    text: str
    near: str


def passings(results: BenchResults, sweep: BenchSweep, lines: Sequence[BenchLine]) -> list[Passing]:
    """Where the backend that is fastest in the end passes others, eager and along S; at most two, the last ones."""
    found = results.crossovers[
        (results.crossovers["sweep"] == sweep.fixed)
        & (results.crossovers["kind"] == "eager")
        & results.crossovers[f"crossing_{results.about.size}"].notna()
        & ~results.crossovers["winner"].isin(results.repeats)
        & ~results.crossovers["loser"].isin(results.repeats)
    ]
    own = [line for line in lines if not line.graph and line.backend not in results.repeats]
    eager = {(line.backend, line.dtype): line for line in own}
    if found.empty or not eager or sweep.axis != results.about.size:
        return []
    end = max(line.x[-1] for line in eager.values())
    best = min((line for line in eager.values() if line.x[-1] == end), key=lambda line: line.y[-1])
    found = found[(found["winner"] == best.backend) & (found["dtype"] == best.dtype)].sort_values(
        f"crossing_{results.about.size}"
    )
    out = []
    for row in found.tail(_MOST_PASSINGS).to_dict("records"):
        x = float(row[f"crossing_{results.about.size}"])
        y = float(np.exp(np.interp(np.log(x), np.log(best.x), np.log(best.y))))
        out.append(
            Passing(x, y, f"{row['winner']} passes {row['loser']}", f"near {results.about.short}={x:.0f}")
        )
    return out


def room_for_words(axes: Axes, lines: Sequence[BenchLine]) -> bool:
    """Whether words beside a ring would stand in the open: in a wide panel, and not on top of many lines."""
    return panel_width(axes) >= WIDE and len({line.backend for line in lines}) <= _FEW


def draw_passings(axes: Axes, rings: Sequence[Passing], *, words: bool) -> None:
    """Rings, with words beside them where there is room for these."""
    for ring, (offset, side) in zip(rings, _PLACES, strict=False):
        axes.plot(
            [ring.x], [ring.y], "o", mfc="none", mec=INK, markersize=11, mew=1.2, zorder=5, label="crossing"
        )
        if not words:
            continue
        axes.annotate(
            f"{ring.text}\n{ring.near}",
            (ring.x, ring.y),
            xytext=offset,
            textcoords="offset points",
            ha=side,
            fontsize=SMALL + 0.5,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": INK, "shrinkB": 6},
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            zorder=6,
        )


def ns_tick(value: float) -> str:
    """`10 µs`."""
    for divisor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if value >= divisor * 0.999:
            return f"{value / divisor:g} {unit}"
    return f"{value:g} ns"


def byte_tick(value: float) -> str:
    """`64 MiB`."""
    for divisor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= divisor * 0.999:
            return f"{value / divisor:.3g} {unit}"
    return f"{value:g} B"


def plain_tick(value: float) -> str:
    """`0.3`, `1,000`."""
    return f"{value:g}" if value < 1000 else f"{value:,.0f}"


def ratio_tick(value: float) -> str:
    """`30x`."""
    return f"{plain_tick(value)}x"
