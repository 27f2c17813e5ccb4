"""Plan line charts along a sweep; choose the colours and markers of backends, and the dashes of dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import AUTO, COMPARED
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import refused_calls
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.titles import latency_title, memory_title, speedup_title, throughput_title
from nsysprof.bench.words import rows_of, subtitle, tflops_text, where
from nsysprof.charts.marks import Axis, Heading, Line, LinePanel, Lines, Spot, log_axis
from nsysprof.charts.palette import INK
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share, scale_bytes, scale_ns

MAX_PANELS = 6
MAX_PASSINGS = 2
_NO_SPEEDUP = dict.fromkeys(("speedup", "speedup_low", "speedup_high"), math.nan)

# Colour and marker of each backend. Readers of all kinds can distinguish the colours (a test measures it), and
# markers the lines that lie on each other. Other backends get what is free (`backend_looks`).
LOOKS = {
    "math": ("#c44916", "o"),
    "flash": ("#0127bb", "s"),
    "efficient": ("#06976b", "^"),
    "cudnn": ("#773a82", "D"),
    "naive": ("#b5b700", "v"),
    "math_reduced": ("#7b1b17", "P"),
    "flex": ("#4cbfff", "X"),
    "flash_attn": ("#e46bb0", "p"),
    "auto": (INK, "x"),
    "tiled_o0": ("#460046", "<"),
    "tiled_o1": ("#fac86e", ">"),
    "tiled_o2": ("#96c88c", "d"),
    "tiled_o3": ("#a064fa", "H"),
    "tiled_o4": ("#e60abe", "*"),
    "tiled_o5": ("#460078", "8"),
}
OTHER_LOOK = ("#4e4e4e", "h")
_PEAKS = {"peak": ["peak_tflops", "peak_gb_per_s"], "measured": ["measured_peak_tflops", "measured_gb_per_s"]}
_DASHES = ("solid", "dashed", "dash-dotted")  # a dtype after the other


def backend_looks(backends: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and marker of each backend, all distinct.

    A backend without a fixed colour and marker gets the pair of a backend that was not measured, or another free pair.
    """
    free = [OTHER_LOOK, *(look for name, look in reversed(LOOKS.items()) if name not in backends)]
    known = [*LOOKS.values(), OTHER_LOOK]
    pairs = ((colour, marker) for _, marker in known for colour, _ in known if (colour, marker) not in known)
    others = chain(free, pairs)
    return {name: LOOKS.get(name) or next(others) for name in backends}


def backend_legend(results: BenchResults, backends: Iterable[str]) -> list[tuple[str, str]]:
    """Legend entries of backends."""
    looks = backend_looks(results.backends)
    return [(name, looks[name][0]) for name in backends]


def dtypes_of(frame: pd.DataFrame) -> list[str]:
    """The dtypes, the most frequent first."""
    return [str(name) for name in frame["dtype"].value_counts().index]


def dtype_dash(dtypes: Sequence[str], dtype: str) -> str:
    """Return the dash pattern of a dtype: solid for the first."""
    return _DASHES[list(dtypes).index(dtype) % len(_DASHES)]


def dtype_notes(dtypes: Sequence[str]) -> list[str]:
    """Return a footnote about dash patterns if there are several dtypes."""
    return [f"solid: {dtypes[0]}, dashed: {' and '.join(dtypes[1:])}"] if len(dtypes) > 1 else []


def plan_latency(results: BenchResults) -> Lines:
    """Plan latency along each sweep, with its interval; dotted: CUDA graph replays of the call."""
    panels = []
    for sweep, part in _sweeps(results):
        own = results.own(part)
        lines = _lines(results, part, sweep, ("median_ns", "low_ns", "high_ns"), format_ns)
        graphs = ("graph_median_ns", "graph_low_ns", "graph_high_ns")
        lines += _lines(results, own, sweep, graphs, format_ns, graph=True)
        rings = _passings(results, sweep, own, lines)
        panels.append(_panel(results, sweep, "latency of a call", ns_tick, lines, spots=rings))
    notes = ["bands: 95 % interval of the median"]
    if results.results["graph_median_ns"].notna().any():
        notes.append("dotted: the same call replayed as a CUDA graph (no launch overhead)")
    if panels and panels[0].spots:
        notes.append("rings: " + ", ".join(ring.text for ring in panels[0].spots))
    return _chart(results, latency_title(results), panels, notes)


def plan_memory(results: BenchResults) -> Lines:
    """Plan peak memory along each sweep, and the memory of the GPU if a point ran out of memory."""
    panels, looks = [], backend_looks(results.backends)
    size = (results.samples.environment.get("workload") or {}).get("memory_bytes")
    capacity = float(size) if isinstance(size, int | float) else 0.0
    for sweep, part in _sweeps(results):
        lines = _lines(results, part, sweep, ("peak_bytes",), format_bytes)
        full = part[part["status"] == "out of memory"]
        limits: dict[str, Any] = {}
        if len(full) and capacity > 0:
            limits["levels"] = [(capacity, f"GPU {format_bytes(capacity)}", True)]
            limits["spots"] = [
                Spot(float(row[sweep.axis]), capacity, looks[row["backend"]][0]) for row in full.to_dict("records")
            ]
        panels.append(_panel(results, sweep, "peak memory of a call", byte_tick, lines, **limits))
    notes = ["peak memory that PyTorch requests during one call, including library workspaces"]
    full = results.results[results.results["status"] == "out of memory"]
    if len(full):
        names = dict.fromkeys(f"{row['backend']} {row['dtype']}" for row in full.to_dict("records"))
        notes.append(f"crosses: out of memory ({', '.join(names)})")
    return _chart(results, memory_title(results), panels, notes)


def plan_throughput(results: BenchResults) -> Lines:
    """Plan FLOP/s along each sweep, below the GPU's peak."""
    panels = []
    for sweep, part in _sweeps(results):
        kept = part[~refused_calls(part)]
        flops = kept["flops"].astype(float) / 1e3
        kept = kept.assign(low=flops / kept["high_ns"], high=flops / kept["low_ns"])
        lines = _lines(results, kept, sweep, ("tflops", "low", "high"), tflops_text)
        levels = [(top, text, True) for text, _, [top] in peaks_of(part, memory=False)]
        panels.append(_panel(results, sweep, "TFLOP/s", plain_tick, lines, levels=levels))
    refused = refused_calls(results.results) & results.results["tflops"].notna()
    notes = [*left_out_note(refused), f"FLOPs {results.about.flops}; peak: SMs × sampled clock × FLOPs per clock"]
    return _chart(results, throughput_title(results), panels, notes)


def plan_speedup(results: BenchResults) -> Lines:
    """Plan the speed-up over the baseline along each sweep, with its interval; dotted: without launches."""
    base, least = results.base, results.rules.least_effect
    panels = []
    for sweep, part in _sweeps(results):
        lines: list[Line] = []
        for kind in COMPARED:
            others = part[part["backend"] != base]
            others = results.own(others) if kind == "graph" else others
            rows = [{**row, **(row[kind] or _NO_SPEEDUP)} for row in rows_of(results, others)]
            if rows:
                frame, graph = pd.DataFrame(rows), kind == "graph"
                lines += _lines(results, frame, sweep, [*_NO_SPEEDUP], format_ratio, graph=graph)
        panels.append(_panel(results, sweep, f"speed-up over {base}", ratio_tick, lines, least=least))
    notes = [
        f"in one dtype; bands: 95 % interval; grey: below the smallest meaningful effect of {format_share(least)}",
        "dotted: without launches",
    ]
    return _chart(results, speedup_title(results), panels, notes)


def _sweeps(results: BenchResults) -> Iterator[tuple[BenchSweep, pd.DataFrame]]:
    for sweep in results.sweeps[:MAX_PANELS]:
        yield sweep, results.rows_of(sweep)


def _chart(results: BenchResults, title: str, panels: Sequence[LinePanel], notes: Sequence[str]) -> Lines:
    drawn = [line.label for panel in panels for line in panel.lines]
    backends = [name for name in results.backends if any(label.startswith(f"{name} ") for label in drawn)]
    notes = [*notes, *dtype_notes(dtypes_of(results.results))]
    if len(results.sweeps) > len(panels):
        notes.append(f"{len(results.sweeps) - len(panels)} sweeps more are in results.csv")
    return Lines(Heading(title, subtitle(results), backend_legend(results, backends), notes), panels)


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
    """A panel with these lines and marks; ``least`` is the smallest meaningful effect, drawn around 1."""
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
    """A line per backend and dtype with known values: ``columns`` are the value and the bounds of its interval."""
    dtypes, looks = dtypes_of(results.results), backend_looks(results.backends)
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


def peaks_of(frame: pd.DataFrame, *, memory: bool) -> Iterator[tuple[str, bool, list[float]]]:
    """Yield each dtype's peaks (data sheet and measured): label, whether the peak was measured, TFLOP/s.

    With ``memory``, peaks also have GB/s, and only peaks with both values are returned. Peaks are for the GPU clock
    during the samples.
    """
    for dtype, group in frame.groupby("dtype", sort=False):
        for word, columns in _PEAKS.items():
            known = group[columns if memory else columns[:1]].dropna()
            if len(known):
                figures = known.median().astype(float).tolist()
                yield f"{dtype} {word} {tflops_text(figures[0])}", word == "measured", figures


def left_out_note(refused: pd.Series[bool]) -> list[str]:
    """Return a note on the points that are left out because their FLOP/s exceed the peak, if any."""
    return (
        [f"left out: {refused.sum()} of {len(refused)} points, because they exceed the peak"] if refused.any() else []
    )


def _passings(results: BenchResults, sweep: BenchSweep, own: pd.DataFrame, lines: Sequence[Line]) -> list[Spot]:
    """The points at which the backend that is fastest in the end overtakes others (eager), at most the last two."""
    size, near = results.about.size, f"near {results.about.short}="
    names = {f"{row['backend']} {row['dtype']}": row for row in own.to_dict("records")}
    eager = [line for line in lines if line.label in names]
    if not eager or sweep.axis != size:
        return []
    end = max(line.x[-1] for line in eager)
    best = min((line for line in eager if line.x[-1] == end), key=lambda line: line.y[-1])
    crossing, (backend, dtype) = (f"crossing_{size}", (names[best.label][name] for name in ("backend", "dtype")))
    passed = where(results.crossovers, sweep=sweep.fixed, kind="eager", winner=backend, dtype=dtype)
    passed = results.own(passed, "loser").dropna(subset=crossing).sort_values(crossing)
    out = []
    for row in passed.tail(MAX_PASSINGS).to_dict("records"):
        x = float(row[crossing])
        y = float(np.exp(np.interp(np.log(x), np.log(best.x), np.log(best.y))))
        out.append(Spot(x, y, INK, f"{row['winner']} passes {row['loser']} {near}{x:.0f}", ring=True))
    return out


def ns_tick(value: float) -> str:
    """`10 µs`."""
    divisor, unit = scale_ns(value)
    return f"{value / divisor:g} {unit}"


def byte_tick(value: float) -> str:
    """`64 MiB`."""
    divisor, unit = scale_bytes(value)
    return f"{value / divisor:.3g} {unit}"


def plain_tick(value: float) -> str:
    """`0.3`, `1,000`."""
    return f"{value:g}" if value < 1000 else f"{value:,.0f}"


def ratio_tick(value: float) -> str:
    """`30x`."""
    return f"{plain_tick(value)}x"
