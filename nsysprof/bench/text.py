"""The results of a benchmark for a terminal, at most 110 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any

import pandas as pd

from nsysprof.bench.findings import bench_findings, picked_words
from nsysprof.bench.pairs import between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.words import (
    about_run,
    base_backend,
    clock_words,
    decision_words,
    fastest_words,
    interval_words,
    known_text,
    plus_minus,
    ratio_cell,
    shape_parts,
    share_cell,
    tflops_cell,
)
from nsysprof.core.text import drop_repeats, one_line, visible
from nsysprof.core.units import format_bytes, format_ns, format_ratio
from nsysprof.results.table import text_table, without_empty
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES

__all__ = ["bench_summary"]

_WIDTH = 110
_MOST_WARNINGS = 12


def bench_summary(results: BenchResults) -> str:
    """What was measured, a table of all points, and what follows from it; the text ends with a newline."""
    parts = [
        [
            about_run(results),
            f"  {clock_words(results)}; ±: {interval_words(results)}",
        ],
        list(_warnings(results)),
        [_points(results)],
        [_decisions(results)],
        [*_wrapped(bench_findings(results)), *_wrapped([_legend(results)])],
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "".join(f"{visible(line)}\n" for block in lines for line in block.split("\n"))


def _legend(results: BenchResults) -> str:
    unit = results.about.unit
    return (
        "(1.01x): no clear change; 1.3x ?: too few samples. of peak: of SMs × sampled clock × FLOPs per clock."
        + (f" {unit.split()[-1]}: peak memory in {unit} of the dtype." if unit else "")
        + " error: relative, against float64."
    )


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, _WIDTH, subsequent_indent="  ")


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Columns of text, the first ``texts`` flush left and the others right; empty columns are left out."""
    return text_table(*without_empty(head, rows, ("l" * texts).ljust(len(head), "r")), after_head=0)


def _warnings(results: BenchResults) -> Iterator[str]:
    warnings = drop_repeats(results.warnings)
    for warning in warnings[:_MOST_WARNINGS]:
        yield from wrap(f"  warning  {visible(warning)}", _WIDTH, subsequent_indent=" " * 11)
    if len(warnings) > _MOST_WARNINGS:
        yield f"  and {len(warnings) - _MOST_WARNINGS} warnings more: see report.md"


def _points(results: BenchResults) -> str:
    frame = results.results
    base = base_backend(results)
    eager = results.pairs()
    _, labels = shape_parts(results)
    rows, before = [], None
    for row in frame.to_dict("records"):
        label = labels[row["configuration"]]
        rows.append(["" if label == before else one_line(label, 30), *_point(row, base, eager)])
        before = label
    head = ["shape", "backend", "latency", "±", "graph", "TFLOP/s", "of peak", f"vs {base}", "peak"]
    return plain_table([*head, results.about.unit.rpartition(" ")[2], "error"], rows, texts=2)


def _point(row: dict[Any, Any], base: str, eager: pd.DataFrame) -> list[str]:
    name = one_line(str(row["backend"]), 14)
    if not math.isfinite(row["median_ns"]):
        return [name, str(row["status"]), *[""] * 8]
    found = between(eager, row["configuration"], base, row["backend"])
    peak = row["peak_bytes"]
    return [
        name,
        format_ns(row["median_ns"]),
        plus_minus(row).removeprefix("± "),
        format_ns(row["graph_median_ns"]) if math.isfinite(row["graph_median_ns"]) else "",
        tflops_cell(row),
        share_cell(row),
        _versus(found),
        "" if pd.isna(peak) else format_bytes(peak),
        "" if math.isnan(row["peak_matrices"]) else f"{row['peak_matrices']:.2f}",
        "" if math.isnan(row["error"]) else f"{row['error']:.0e}",
    ]


def _versus(found: dict[str, Any] | None) -> str:
    """The speed-up, in brackets where it is no clear change, with a question mark for too few samples."""
    if found is None:
        return ""
    ratio = format_ratio(found["speedup"])
    return {NO_CLEAR_CHANGE: f"({ratio})", TOO_FEW_SAMPLES: f"{ratio} ?"}.get(found["verdict"], ratio)


def _decisions(results: BenchResults) -> str:
    _, labels = shape_parts(results)
    rows = []
    eager = results.decided().to_dict("records")
    graph = results.decided("graph").set_index("configuration")["decision"]
    for row in eager:
        behind = known_text(row["runner_up"])
        rows.append(
            [
                one_line(labels[row["configuration"]], 30),
                one_line(fastest_words(results, row), 28),
                f"{behind} by {ratio_cell(row, 'margin')}" if behind else "",
                one_line(
                    decision_words(results, row["configuration"], graph.get(row["configuration"], "")), 24
                ),
                picked_words(results, row["configuration"]),
            ]
        )
    return (
        plain_table(["shape", "fastest", "beats", "without launches", "auto picks"], rows, texts=5)
        if rows
        else ""
    )
