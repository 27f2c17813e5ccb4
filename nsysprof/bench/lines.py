"""``latency.png``, ``memory.png``, ``throughput.png`` and ``speedup.png``: along a sweep, a line per backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.looks import backend_legend, backend_looks, dtype_dash, dtype_notes, dtypes_of
from nsysprof.bench.pairs import AUTO, between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.shares import refused_calls
from nsysprof.bench.titles import chart_subtitle, latency_title, memory_title, speedup_title, throughput_title
from nsysprof.bench.words import base_backend, tflops_text
from nsysprof.charts.marks import Axis, Heading, Line, LinePanel, Lines, Spot, log_axis
from nsysprof.charts.palette import INK
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share

_MOST_PANELS = 6
_MOST_PASSINGS = 2
_NO_SPEEDUP = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), math.nan)


def plan_latency(results: BenchResults) -> Lines:
    """Latency along each sweep with its interval; dotted, the same call as a CUDA graph."""
    panels = []
    for sweep, part in _sweeps(results):
        own = part[~part["backend"].isin(results.repeats)]
        lines = _lines(results, part, sweep, ("median_ns", "low_ns", "high_ns"), format_ns)
        graphs = ("graph_median_ns", "graph_low_ns", "graph_high_ns")
        lines += _lines(results, own, sweep, graphs, format_ns, graph=True)
        rings = _passings(results, sweep, own, lines)
        panels.append(_panel(results, sweep, "latency of a call", ns_tick, lines, spots=rings))
    notes = ["bands: 95 % interval of the median, mostly thinner than the line"]
    if results.results["graph_median_ns"].notna().any():
        notes.append("dotted: the same call as a CUDA graph, without launches")
    if panels and panels[0].spots:
        notes.append("rings: " + ", ".join(ring.text for ring in panels[0].spots))
    return _chart(results, latency_title(results), panels, notes)


def plan_memory(results: BenchResults) -> Lines:
    """Peak memory along each sweep, and how much the GPU has where something ran out of it."""
    panels, looks = [], backend_looks(results)
    for sweep, part in _sweeps(results):
        lines = _lines(results, part, sweep, ("peak_bytes",), format_bytes)
        full, capacity = part[part["status"] == "out of memory"], _capacity(results)
        limits: dict[str, Any] = {}
        if len(full) and capacity:
            limits["levels"] = [(capacity, f"GPU {format_bytes(capacity)}", True)]
            limits["spots"] = [
                Spot(float(row[sweep.axis]), capacity, looks[row["backend"]][0])
                for row in full.to_dict("records")
            ]
        panels.append(_panel(results, sweep, "peak memory of a call", byte_tick, lines, **limits))
    notes = [
        "what PyTorch asked for at the peak of one call: inputs, outputs and libraries' workspaces included"
    ]
    full = results.results[results.results["status"] == "out of memory"]
    if len(full):
        names = dict.fromkeys(f"{row['backend']} {row['dtype']}" for row in full.to_dict("records"))
        notes.append(f"crosses: out of memory ({', '.join(names)})")
    return _chart(results, memory_title(results), panels, notes)


def plan_throughput(results: BenchResults) -> Lines:
    """FLOP/s along each sweep, below what the GPU can do."""
    panels = []
    for sweep, part in _sweeps(results):
        kept = part[~refused_calls(part)]
        flops = kept["flops"].astype(float) / 1e3
        kept = kept.assign(low=flops / kept["high_ns"], high=flops / kept["low_ns"])
        lines = _lines(results, kept, sweep, ("tflops", "low", "high"), tflops_text)
        panels.append(_panel(results, sweep, "TFLOP/s", plain_tick, lines, levels=_peaks(part)))
    notes = [f"FLOPs {results.about.flops}; peak: SMs × sampled clock × FLOPs per clock"]
    refused = refused_calls(results.results) & results.results["tflops"].notna()
    if refused.any():
        notes.insert(0, f"left out: {refused.sum()} of {len(refused)} points, above the peak")
    return _chart(results, throughput_title(results), panels, notes)


def plan_speedup(results: BenchResults) -> Lines:
    """Speed-up over the baseline along each sweep, with its interval; dotted, without launches."""
    base, least = base_backend(results), results.rules.least_effect
    panels = []
    for sweep, part in _sweeps(results):
        lines: list[Line] = []
        for kind in ("eager", "graph"):
            comparisons = results.pairs(kind)
            found = [
                {**row, **(between(comparisons, row["configuration"], base, row["backend"]) or _NO_SPEEDUP)}
                for row in part[part["backend"] != base].to_dict("records")
                if kind == "eager" or row["backend"] not in results.repeats
            ]
            if found:
                columns, graph = ("speedup", "speedup_low", "speedup_high"), kind == "graph"
                lines += _lines(results, pd.DataFrame(found), sweep, columns, format_ratio, graph=graph)
        panels.append(_panel(results, sweep, f"speed-up over {base}", ratio_tick, lines, least=least))
    notes = [
        f"in one dtype; bands: 95 % interval; grey: below the least effect of {format_share(least)}",
        "dotted: without launches",
    ]
    return _chart(results, speedup_title(results), panels, notes)


# ---- plans


def _sweeps(results: BenchResults) -> Iterator[tuple[BenchSweep, pd.DataFrame]]:
    for sweep in results.sweeps[:_MOST_PANELS]:
        yield sweep, results.results.loc[list(sweep.rows)]


def _chart(results: BenchResults, title: str, panels: Sequence[LinePanel], notes: Sequence[str]) -> Lines:
    drawn = [line.label for panel in panels for line in panel.lines]
    names = results.results["backend"].unique()
    backends = [name for name in names if any(label.startswith(f"{name} ") for label in drawn)]
    notes = [*notes, *dtype_notes(dtypes_of(results.results))]
    if len(results.sweeps) > len(panels):
        notes.append(f"{len(results.sweeps) - len(panels)} sweeps more are in results.csv")
    return Lines(Heading(title, chart_subtitle(results), backend_legend(results, backends), notes), panels)


def _panel(
    results: BenchResults,
    sweep: BenchSweep,
    label: str,
    tick: Callable[[float], str],
    lines: Sequence[Line],
    *,
    levels: Sequence[tuple[float, str, bool]] = (),
    spots: Sequence[Spot] = (),
    least: float | None = None,
) -> LinePanel:
    """A panel that holds all of this; ``least`` is the least effect, around 1, that counts."""
    title, size = sweep.fixed if len(results.sweeps) > 1 else "", results.about.label(sweep.axis)
    if not lines:
        return LinePanel(title, Axis(size, 1, 2, []), Axis(label, 1, 2, []), lines)
    bands = [edge for line in lines for edge in (line.band or ())]
    parts = [*(line.y for line in lines), *bands, [level for level, *_ in levels]]
    y = np.concatenate([*parts, [spot.y for spot in spots], [1.0] if least else []])
    y = y[np.isfinite(y) & (y > 0)]
    crosses = [spot.x for spot in spots if not spot.ring]
    along = sorted({*crosses, *(x for line in lines for x in line.x)})
    margin = (along[-1] / along[0]) ** 0.04 if len(along) > 1 else 1.5
    ticks = [(x, f"{x:.0f}") for x in along]
    return LinePanel(
        title,
        Axis(size, along[0] / margin, along[-1] * margin, ticks),
        log_axis(label, float(y.min()), float(y.max()), tick, binary=tick is byte_tick),
        lines,
        levels,
        (1 / (1 + least), 1 + least) if least else None,
        spots,
    )


def _lines(
    results: BenchResults,
    part: pd.DataFrame,
    sweep: BenchSweep,
    columns: Sequence[str],
    text: Callable[[float], str],
    *,
    graph: bool = False,
) -> list[Line]:
    """A line for each backend and dtype, of what is known: ``columns`` are its value and the bounds of its interval."""
    dtypes, looks = dtypes_of(results.results), backend_looks(results)
    out = []
    for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
        known = group[group[columns[0]].notna() & (group[columns[0]] > 0)].sort_values(sweep.axis)
        if known.empty:
            continue
        y, *band = (known[name].astype(float).tolist() for name in columns)
        colour, marker = looks[str(backend)]
        name = f"{backend} {dtype}" if len(dtypes) > 1 else str(backend)
        out.append(
            Line(
                label=f"{backend} {dtype}{' graph' if graph else ''}",
                colour=colour,
                marker=marker,
                look="dotted" if graph else dtype_dash(dtypes, str(dtype)),
                x=known[sweep.axis].astype(float).tolist(),
                y=y,
                band=(band[0], band[1]) if band else None,
                end="" if graph else f"{name} {text(y[-1])}",
                thin=backend == AUTO,
            )
        )
    return out


# ---- what is drawn beside them


def _peaks(part: pd.DataFrame) -> list[tuple[float, str, bool]]:
    """The peaks of the dtypes of a sweep, at the clock that its samples ran at."""
    out = []
    for dtype, group in part.groupby("dtype", sort=False):
        for column, said in (("peak_tflops", "peak"), ("measured_peak_tflops", "measured")):
            known = group[column].dropna()
            if len(known):
                level = float(known.median())
                out.append((level, f"{dtype} {said} {tflops_text(level)}", True))
    return out


def _capacity(results: BenchResults) -> float | None:
    """The memory of the GPU, where it is known."""
    size = (results.samples.environment.get("workload") or {}).get("memory_bytes")
    return float(size) if isinstance(size, int | float) and size > 0 else None


def _passings(
    results: BenchResults, sweep: BenchSweep, own: pd.DataFrame, lines: Sequence[Line]
) -> list[Spot]:
    """Where the backend that is fastest in the end passes others, eager and along sizes; at most two, the last ones."""
    size, near = results.about.size, f"near {results.about.short}="
    names = {f"{row['backend']} {row['dtype']}": row for row in own.to_dict("records")}
    eager = [line for line in lines if line.label in names]
    if not eager or sweep.axis != size:
        return []
    end = max(line.x[-1] for line in eager)
    best = min((line for line in eager if line.x[-1] == end), key=lambda line: line.y[-1])
    found = results.crossovers[
        (results.crossovers["sweep"] == sweep.fixed)
        & (results.crossovers["kind"] == "eager")
        & results.crossovers[f"crossing_{size}"].notna()
        & (results.crossovers["winner"] == names[best.label]["backend"])
        & (results.crossovers["dtype"] == names[best.label]["dtype"])
        & ~results.crossovers["loser"].isin(results.repeats)
    ].sort_values(f"crossing_{size}")
    out = []
    for row in found.tail(_MOST_PASSINGS).to_dict("records"):
        x = float(row[f"crossing_{size}"])
        y = float(np.exp(np.interp(np.log(x), np.log(best.x), np.log(best.y))))
        out.append(Spot(x, y, INK, f"{row['winner']} passes {row['loser']} {near}{x:.0f}", ring=True))
    return out


# ---- numbers at axes


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
