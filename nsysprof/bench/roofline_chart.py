"""``roofline.png``: FLOP/s over FLOP per byte, below what memory and arithmetic can do at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nsysprof.bench.axes import (
    EndLabel,
    backend_legend,
    backend_look,
    dtype_style,
    end_labels,
    finish_axes,
    log_y,
    new_panels,
    readable,
    round_ticks,
)
from nsysprof.bench.lines import dtype_notes, dtypes_of
from nsysprof.bench.marks import DASHES, plain_tick
from nsysprof.bench.results import BenchResults
from nsysprof.bench.shares import refused_rates
from nsysprof.bench.titles import chart_subtitle, roofline_title
from nsysprof.bench.words import tflops_text
from nsysprof.charts.marks import DPI, Heading, Message
from nsysprof.charts.palette import INK
from nsysprof.charts.style import SMALL, TEXT, draw_message, style, text_width
from nsysprof.core.units import format_bandwidth


@dataclass(frozen=True)
class Ceiling:
    """The most FLOP/s (10^12) of a dtype, and the bandwidth (10^9 B/s) that limits them at low intensity."""

    tflops: float
    gb_per_s: float
    text: str
    measured: bool

    def at(self, intensity: float) -> float:
        """10^12 FLOP/s that memory lets through at this intensity, at most."""
        return min(self.tflops, intensity * self.gb_per_s / 1e3)


# x, y, name and colour of the end of a path, and where its name may stand, in widths and heights of it
_End = tuple[float, float, str, str, Sequence[tuple[int, int]]]
_BEFORE, _AFTER = ((-1, 0), (0, -1), (0, 1), (1, 0)), ((1, 0), (0, 1), (0, -1), (-1, 0))


def roofline_chart(results: BenchResults) -> Figure:
    """Every point below its ceilings; without launches where there is such a figure. Words where no peak is known."""
    frame = results.results[results.results["tflops"].notna()]
    ceilings = roofs(frame)
    title, subtitle = roofline_title(results), chart_subtitle(results)
    frame = frame[~frame["backend"].isin(results.repeats)]
    refused = refused_rates(frame)
    frame = frame[~refused]
    if not ceilings or frame.empty:
        sentences = [
            "A roofline needs the device's FLOP/s and bandwidth.",
            "Measure them with:  nsysprof bench --measure-peaks",
        ]
        said = ["The warnings say which figures are suspect."] if ceilings else sentences
        with style():
            return draw_message(Message(Heading(title, subtitle), said))
    rate = frame["graph_tflops"].fillna(frame["tflops"])
    dtypes = dtypes_of(frame)
    notes = [
        "bytes: " + results.about.traffic_words,
        *(["dashed ceilings: measured on this machine"] if any(roof.measured for roof in ceilings) else []),
        *dtype_notes(dtypes),
    ]
    if frame["graph_tflops"].notna().any():
        notes.insert(0, "FLOP/s without launches, from CUDA graphs")
    if refused.any():
        notes.insert(0, f"left out: {refused.sum()} of {len(refused)} points, above the peak")
    backends = [str(name) for name in frame["backend"].unique()]
    with style():
        figure, (axes,) = new_panels(
            Heading(title, subtitle, backend_legend(backends), notes), 1, height=5.4, room=1.85
        )
        _limits(axes, frame, rate, ceilings)
        finish_axes(axes, "intensity: FLOP per byte moved", "TFLOP/s")
        _roofs(axes, ceilings)
        ends: list[_End] = []
        for number, sweep in enumerate(results.sweeps):
            part = frame.loc[[row for row in sweep.rows if row in frame.index]]
            for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
                x, y = group["intensity"].tolist(), rate[group.index].tolist()
                _path(axes, str(backend), dtype_style(dtypes, str(dtype)) if number == 0 else "none", x, y)
                for place in (0, -1) if number == 0 else ():
                    name = f"{results.about.shorts[sweep.axis]}{group[sweep.axis].iloc[place]}"
                    along = x[0] <= x[-1]
                    sides = _BEFORE if (place == 0) == along else _AFTER
                    ends.append((x[place], y[place], name, backend_look(str(backend))[0], sides))
        _name_ends(axes, ends, list(zip(frame["intensity"], rate, strict=True)))
    return figure


def roofs(frame: pd.DataFrame) -> list[Ceiling]:
    """For each dtype the ceiling by the datasheet and the measured one, as far as both of their parts are known."""
    out = []
    for dtype, group in frame.groupby("dtype", sort=False):
        for tflops, gb_per_s, words, measured in (
            ("peak_tflops", "peak_gb_per_s", "peak", False),
            ("measured_peak_tflops", "measured_gb_per_s", "measured", True),
        ):
            known = group[[tflops, gb_per_s]].dropna()
            if len(known):
                top, slope = float(known[tflops].median()), float(known[gb_per_s].median())
                out.append(Ceiling(top, slope, f"{dtype} {words} {tflops_text(top)} TFLOP/s", measured))
    return out


def _limits(axes: Axes, frame: pd.DataFrame, rate: pd.Series[float], ceilings: Sequence[Ceiling]) -> None:
    ridge = max(roof.tflops / roof.gb_per_s * 1e3 for roof in ceilings)
    low, high = float(frame["intensity"].min()) / 2, max(float(frame["intensity"].max()), ridge) * 2.5
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = round_ticks(low, high)
    axes.set_xticks(ticks, [plain_tick(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    log_y(axes, float(rate.min()) / 1.5, max(roof.tflops for roof in ceilings) * 1.3, plain_tick)


def _roofs(axes: Axes, ceilings: Sequence[Ceiling]) -> None:
    low, high = axes.get_xlim()
    labels = []
    for roof in ceilings:
        ridge = roof.tflops / roof.gb_per_s * 1e3
        x = np.array([low, ridge, high]) if low < ridge < high else np.array([low, high])
        y = [roof.at(value) for value in x.tolist()]
        axes.plot(x, y, color=INK, linewidth=1.2, linestyle=DASHES if roof.measured else "-", label=roof.text)
        labels.append(EndLabel(roof.tflops, roof.text, INK))
    end_labels(axes, labels)
    _bandwidths(axes, ceilings)


def _bandwidths(axes: Axes, ceilings: Sequence[Ceiling]) -> None:
    """The bandwidths, beside the highest slope, where no point can be."""
    roof = max(ceilings, key=lambda each: (each.gb_per_s, each.tflops))
    measured = [each.gb_per_s for each in ceilings if each.measured and each is not roof]
    text = format_bandwidth(roof.gb_per_s * 1e9)
    text += f" (measured {format_bandwidth(measured[0] * 1e9)})" if measured else ""
    ridge = roof.tflops / roof.gb_per_s * 1e3
    start = max(axes.get_xlim()[0], axes.get_ylim()[0] / roof.gb_per_s * 1e3)
    if start >= ridge:
        return
    x = start**0.4 * ridge**0.6
    axes.annotate(
        text, (x, roof.at(x)), xytext=(-8, 4), textcoords="offset points", ha="right", fontsize=TEXT
    )


def _path(axes: Axes, backend: str, dashes: Any, x: Sequence[float], y: Sequence[float]) -> None:
    """The points of a backend, joined in the order of the sweep."""
    colour, marker = backend_look(backend)
    axes.plot(
        x,
        y,
        color=colour,
        marker=marker,
        markersize=6.5,
        linewidth=1.0,
        linestyle=dashes,
        label=backend,
        zorder=4,
    )


def _name_ends(axes: Axes, ends: Sequence[_End], points: Sequence[tuple[float, float]]) -> None:
    """Names at the ends of the paths, where they lie neither on a point nor on another name; otherwise none."""
    places = [axes.transData.transform(point) for point in points]
    taken = [_box(float(place[0]), float(place[1]), 6.0, 6.0) for place in places]
    named: list[tuple[str, float, float]] = []
    for x, y, name, colour, sides in ends:
        middle = axes.transData.transform((x, y))
        if any(
            name == other and np.hypot(middle[0] - left, middle[1] - up) < 15 for other, left, up in named
        ):
            continue
        named.append((name, float(middle[0]), float(middle[1])))
        width = text_width(name, SMALL) * DPI / 2
        for right, above in sides:
            across, up = right * (width + 14), above * 22
            wanted = _box(middle[0] + across, middle[1] + up, width, 8.0)
            if not any(_overlap(wanted, other) for other in taken):
                taken.append(wanted)
                where = np.array([across, up]) * 72 / DPI
                axes.annotate(
                    name,
                    (x, y),
                    xytext=(float(where[0]), float(where[1])),
                    textcoords="offset points",
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color=readable(colour),
                    zorder=5,
                )
                break


def _box(x: float, y: float, half_width: float, half_height: float) -> tuple[float, float, float, float]:
    """Left, right, bottom and top."""
    return x - half_width, x + half_width, y - half_height, y + half_height


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes share more than an edge."""
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
