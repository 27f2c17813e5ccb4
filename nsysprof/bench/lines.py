"""``latency.png``, ``memory.png``, ``throughput.png`` and ``speedup.png``: along a sweep, a line per backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
    log_x,
    log_y,
    new_panels,
    panel_title,
)
from nsysprof.bench.marks import (
    DASHES,
    BenchLine,
    byte_tick,
    capacity_of,
    draw_capacity,
    draw_even,
    draw_passings,
    ns_tick,
    passings,
    peaks_of,
    plain_tick,
    ratio_tick,
    room_for_words,
)
from nsysprof.bench.pairs import AUTO, between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.shares import refused_calls
from nsysprof.bench.titles import chart_subtitle, latency_title, memory_title, speedup_title, throughput_title
from nsysprof.bench.words import base_backend, tflops_text
from nsysprof.charts.marks import Heading
from nsysprof.charts.palette import FAINT, INK
from nsysprof.charts.style import TEXT, style, text_width
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share

_MOST_PANELS = 6


Lines = Callable[[pd.DataFrame, str], Iterator[BenchLine]]


def latency_chart(results: BenchResults) -> Figure:
    """Latency along each sweep with its interval; dotted, the same call as a CUDA graph."""

    def lines(part: pd.DataFrame, axis: str) -> Iterator[BenchLine]:
        yield from _columns(part, axis, "median_ns", ("low_ns", "high_ns"))
        own = part[~part["backend"].isin(results.repeats)]
        yield from _columns(own, axis, "graph_median_ns", ("graph_low_ns", "graph_high_ns"), graph=True)

    notes = ["bands: 95 % interval of the median, mostly thinner than the line"]
    if results.results["graph_median_ns"].notna().any():
        notes.append("dotted: the same call as a CUDA graph, without launches")
    first = results.results.loc[list(results.sweeps[0].rows)]
    rings = passings(results, results.sweeps[0], list(lines(first, results.sweeps[0].axis)))
    if rings:
        notes.append("rings: " + ", ".join(f"{ring.text} {ring.near}" for ring in rings))
    chart = _Chart(results, latency_title(results), "latency of a call", lines, ns_tick, format_ns, notes)
    return chart.draw(crossings=True)


def memory_chart(results: BenchResults) -> Figure:
    """Peak memory along each sweep, and how much the GPU has where something ran out of it."""

    def lines(part: pd.DataFrame, axis: str) -> Iterator[BenchLine]:
        yield from _columns(part, axis, "peak_bytes", None)

    notes = [
        "what PyTorch asked for at the peak of one call: inputs, outputs and libraries' workspaces included"
    ]
    full = results.results[results.results["status"] == "out of memory"]
    if len(full):
        names = dict.fromkeys(f"{row['backend']} {row['dtype']}" for row in full.to_dict("records"))
        notes.append(f"crosses: out of memory ({', '.join(names)})")
    chart = _Chart(
        results, memory_title(results), "peak memory of a call", lines, byte_tick, format_bytes, notes
    )
    return chart.draw(limit=True)


def throughput_chart(results: BenchResults) -> Figure:
    """FLOP/s along each sweep, below what the GPU can do."""
    refused = refused_calls(results.results) & results.results["tflops"].notna()

    def lines(part: pd.DataFrame, axis: str) -> Iterator[BenchLine]:
        part = part[~refused_calls(part)]
        part = part.assign(
            low=part["flops"].astype(float) / part["high_ns"] / 1e3,
            high=part["flops"].astype(float) / part["low_ns"] / 1e3,
        )
        yield from _columns(part, axis, "tflops", ("low", "high"))

    notes = [f"FLOPs {results.about.flops}; peak: SMs × sampled clock × FLOPs per clock"]
    if refused.any():
        notes.insert(0, f"left out: {refused.sum()} of {len(refused)} points, above the peak")
    chart = _Chart(results, throughput_title(results), "TFLOP/s", lines, plain_tick, tflops_text, notes)
    return chart.draw(peaks=True)


def speedup_chart(results: BenchResults) -> Figure:
    """Speed-up over the baseline along each sweep, with its interval; dotted, without launches."""
    base = base_backend(results)

    def lines(part: pd.DataFrame, axis: str) -> Iterator[BenchLine]:
        for kind in ("eager", "graph"):
            comparisons = results.comparisons[results.comparisons["kind"] == kind]
            found = [
                {**row, **(between(comparisons, row["configuration"], base, row["backend"]) or _NO_SPEEDUP)}
                for row in part[part["backend"] != base].to_dict("records")
                if kind == "eager" or row["backend"] not in results.repeats
            ]
            if found:
                rows = pd.DataFrame(found)
                yield from _columns(
                    rows, axis, "speedup", ("speedup_low", "speedup_high"), graph=kind == "graph"
                )

    least = results.rules.least_effect
    notes = [f"in one dtype; bands: 95 % interval; grey: below the least effect of {format_share(least)}"]
    notes.append("dotted: without launches")
    chart = _Chart(
        results, speedup_title(results), f"speed-up over {base}", lines, ratio_tick, format_ratio, notes
    )
    return chart.draw(even=least)


_NO_SPEEDUP = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), math.nan)


@dataclass(frozen=True)
class _Chart:
    """A chart of lines in panels, one per sweep."""

    results: BenchResults
    title: str
    label: str
    lines: Lines
    tick: Callable[[float], str]
    text: Callable[[float], str]
    notes: Sequence[str]

    def draw(
        self, *, crossings: bool = False, limit: bool = False, peaks: bool = False, even: float | None = None
    ) -> Figure:
        frame = self.results.results
        sweeps = self.results.sweeps[:_MOST_PANELS]
        found = [list(self.lines(frame.loc[list(sweep.rows)], sweep.axis)) for sweep in sweeps]
        drawn = {line.backend for lines in found for line in lines}
        backends = [name for name in frame["backend"].unique() if name in drawn]
        dtypes = dtypes_of(frame)
        notes = [*self.notes, *dtype_notes(dtypes)]
        if len(self.results.sweeps) > len(sweeps):
            notes.append(f"{len(self.results.sweeps) - len(sweeps)} sweeps more are in results.csv")
        heading = Heading(self.title, chart_subtitle(self.results), backend_legend(backends), notes)
        with style():
            longest = max((text_width(f"{name} 88.8 ms", TEXT) for name in backends), default=0)
            room = max(1.25, longest + 0.25) if len(sweeps) == 1 else 1.25
            figure, panels = new_panels(
                heading, len(sweeps), height=4.6 if len(sweeps) == 1 else 3.6, room=room
            )
            for axes, sweep, lines in zip(panels, sweeps, found, strict=True):
                extent = _extent(lines)
                if extent is None:
                    axes.text(0.5, 0.5, "no figures", transform=axes.transAxes, ha="center", color=FAINT)
                    finish_axes(
                        axes,
                        self.results.about.label(sweep.axis),
                        self.label,
                        panel_title(len(sweeps), sweep.fixed),
                    )
                    continue
                part = frame.loc[list(sweep.rows)]
                ceilings = peaks_of(part) if peaks else []
                capacity = capacity_of(self.results, part) if limit else None
                others = [
                    *(level for level, _ in ceilings),
                    capacity or extent[0],
                    1.0 if even else extent[0],
                ]
                low, high = min(extent[0], *others[-1:]), max(extent[1], *others)
                along = (
                    {float(x) for x in part[sweep.axis]}
                    if capacity
                    else {x for line in lines for x in line.x}
                )
                rings = passings(self.results, sweep, lines) if crossings else []
                log_x(axes, sorted(along))
                words = bool(rings) and room_for_words(axes, lines)
                if words:  # below the lines
                    low = low / (high / low) ** 0.12
                log_y(axes, low, high, self.tick, binary=self.tick is byte_tick)
                finish_axes(
                    axes,
                    self.results.about.label(sweep.axis),
                    self.label,
                    panel_title(len(sweeps), sweep.fixed),
                )
                _draw_lines(axes, lines, dtypes)
                labels = _end_labels(lines, dtypes, self.text, max(along))
                if even is not None:
                    draw_even(axes, even)
                for level, said in ceilings:
                    axes.axhline(level, color=INK, linewidth=1.0, linestyle=DASHES)
                    labels.append(EndLabel(level, said, INK))
                if capacity:
                    draw_capacity(axes, part, sweep, capacity)
                    labels.append(EndLabel(capacity, f"GPU {format_bytes(capacity)}", INK))
                draw_passings(axes, rings, words=words)
                end_labels(axes, labels)
        return figure


# ---- lines


def _columns(
    part: pd.DataFrame, axis: str, value: str, band: tuple[str, str] | None, *, graph: bool = False
) -> Iterator[BenchLine]:
    """A line for each backend and dtype, of what is known."""
    for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
        known = group[group[value].notna() & (group[value] > 0)].sort_values(axis)
        if known.empty:
            continue
        y = known[value].astype(float).tolist()
        low, high = (known[name].astype(float).tolist() for name in band) if band else (y, y)
        x = known[axis].astype(float).tolist()
        yield BenchLine(str(backend), str(dtype), x, y, low, high, graph)


def _draw_lines(axes: Axes, lines: Sequence[BenchLine], dtypes: Sequence[str]) -> None:
    for line in lines:
        colour, marker = backend_look(line.backend)
        auto = line.backend == AUTO
        if line.graph:
            how: dict[str, Any] = {
                "linestyle": (0, (1, 1.6)),
                "linewidth": 1.3,
                "markersize": 3.2,
                "mfc": "white",
            }
        else:
            how = {"linestyle": dtype_style(dtypes, line.dtype), "linewidth": 2.0, "markersize": 5.5}
        if auto:
            how |= {"linewidth": 0.8, "markersize": 5}
        label = f"{line.backend} {line.dtype}{' graph' if line.graph else ''}"
        depth = 4 if auto else 2.5 if line.graph else 3
        axes.plot(
            line.x, line.y, color=colour, marker=marker, label=label, zorder=depth, clip_on=False, **how
        )
        axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.25, linewidth=0, zorder=2)


def _end_labels(
    lines: Sequence[BenchLine], dtypes: Sequence[str], text: Callable[[float], str], last: float
) -> list[EndLabel]:
    """Names and last values of the solid lines; at the right side for those that reach ``last``."""
    out = []
    for line in lines:
        if not line.graph:
            name = line.backend + (f" {line.dtype}" if len(dtypes) > 1 else "")
            x = None if line.x[-1] == last else line.x[-1]
            out.append(EndLabel(line.y[-1], f"{name} {text(line.y[-1])}", backend_look(line.backend)[0], x))
    return out


def _extent(lines: Sequence[BenchLine]) -> tuple[float, float] | None:
    values = np.array([y for line in lines for y in (*line.y, *line.low, *line.high)])
    values = values[np.isfinite(values) & (values > 0)]
    return (float(values.min()), float(values.max())) if len(values) else None


def dtypes_of(frame: pd.DataFrame) -> list[str]:
    """The dtypes, that of most points first."""
    return [str(name) for name in frame["dtype"].value_counts().index]


def dtype_notes(dtypes: Sequence[str]) -> list[str]:
    """A footnote that says how the dtypes are dashed, where there are several."""
    if len(dtypes) < 2:
        return []
    return [f"solid: {dtypes[0]}, dashed: {' and '.join(dtypes[1:])}"]
