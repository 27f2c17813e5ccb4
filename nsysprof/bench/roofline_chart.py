"""``roofline.png``: FLOP/s over FLOP per byte, below what memory and arithmetic can do at most."""

from __future__ import annotations

import pandas as pd

from nsysprof.bench.looks import backend_legend, backend_looks, dtype_dash, dtype_notes, dtypes_of
from nsysprof.bench.results import BenchResults
from nsysprof.bench.shares import refused_rates
from nsysprof.bench.titles import chart_subtitle, roofline_title
from nsysprof.bench.words import tflops_text
from nsysprof.charts.marks import Ceiling, Heading, Line, Message, Roofs
from nsysprof.core.units import format_bandwidth


def plan_roofline(results: BenchResults) -> Roofs | Message:
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
        return Message(Heading(title, subtitle), said)
    dtypes = dtypes_of(frame)
    notes = [
        "bytes: " + results.about.traffic_words,
        *(["dashed ceilings: measured on this machine"] if any(roof.dashed for roof in ceilings) else []),
        *dtype_notes(dtypes),
    ]
    if frame["graph_tflops"].notna().any():
        notes.insert(0, "FLOP/s without launches, from CUDA graphs")
    if refused.any():
        notes.insert(0, f"left out: {refused.sum()} of {len(refused)} points, above the peak")
    legend = backend_legend(results, (str(name) for name in frame["backend"].unique()))
    return Roofs(
        heading=Heading(title, subtitle, legend, notes),
        ceilings=ceilings,
        slopes=_slopes(ceilings),
        labels=("intensity: FLOP per byte moved", "TFLOP/s", "", ""),
        paths=_paths(results, frame, dtypes),
    )


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
                said = f"{dtype} {words} {tflops_text(top)} TFLOP/s"
                out.append(Ceiling(top, said, slope / 1e3, measured))
    return out


def _slopes(ceilings: list[Ceiling]) -> list[tuple[float, str]]:
    """The bandwidths, all named beside the highest, where no point can be."""
    slopes = {each.slope: each.dashed for each in ceilings if each.slope}
    highest = max(slopes)
    measured = [slope for slope, dashed in slopes.items() if dashed and slope != highest]
    text = format_bandwidth(highest * 1e12)
    text += f" (measured {format_bandwidth(measured[0] * 1e12)})" if measured else ""
    return [(slope, text if slope == highest else "") for slope in slopes]


def _paths(results: BenchResults, frame: pd.DataFrame, dtypes: list[str]) -> list[Line]:
    """The points of each backend in the order of a sweep: those of the first are joined, and named at both ends."""
    rate, looks = frame["graph_tflops"].fillna(frame["tflops"]), backend_looks(results)
    out = []
    for number, sweep in enumerate(results.sweeps):
        part = frame.loc[[row for row in sweep.rows if row in frame.index]]
        for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
            colour, marker = looks[str(backend)]
            names = [""] * len(group)
            for end in (0, -1) if number == 0 else ():
                names[end] = f"{results.about.shorts[sweep.axis]}{group[sweep.axis].iloc[end]}"
            out.append(
                Line(
                    label=str(backend),
                    colour=colour,
                    marker=marker,
                    look=dtype_dash(dtypes, str(dtype)) if number == 0 else "none",
                    x=group["intensity"].tolist(),
                    y=rate[group.index].tolist(),
                    names=names,
                )
            )
    return out
