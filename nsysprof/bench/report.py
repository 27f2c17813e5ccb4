"""``report.md``: the results of a benchmark as Markdown, with everything that is needed to judge and repeat them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.bench.about import environment_part, method_part, repeat_part
from nsysprof.bench.findings import bench_findings, exponent_words, picked_words
from nsysprof.bench.mixed import mixed_rows
from nsysprof.bench.pairs import between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.words import (
    about_run,
    backend_name,
    base_backend,
    clock_words,
    decision_words,
    known_text,
    largest,
    latency_cell,
    ratio_cell,
    reason_words,
    shape_parts,
    share_cell,
    tflops_cell,
    verdict_cell,
)
from nsysprof.core.terminal import visible
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.results.markdown import markdown_section, markdown_table

__all__ = ["bench_report"]


def bench_report(results: BenchResults, charts: Sequence[str] = ()) -> str:
    """The report; ``charts`` are names of pictures beside it. The text ends with a newline."""
    parts: list[Iterator[str]] = [
        _head(results, charts),
        *(part for sweep in results.sweeps for part in [_sweep(results, sweep)]),
        _decisions(results),
        _auto(results),
        _outputs(results),
        _growth(results),
        _mixed(results),
        _pairs(results),
        _not_measured(results),
        method_part(results),
        environment_part(results),
        repeat_part(results),
    ]
    lines = [line for part in parts for line in part]
    return "".join(f"{visible(line)}\n" for line in lines)


def _head(results: BenchResults, charts: Sequence[str]) -> Iterator[str]:
    yield f"# {results.samples.name}"
    yield ""
    yield about_run(results) + f" · {clock_words(results)}"
    findings = [f"- {line}" for line in bench_findings(results)]
    warnings = [f"- {line}" for line in results.warnings]
    yield from markdown_section("Findings", findings)
    yield from markdown_section("Warnings", warnings)
    if charts:
        yield from markdown_section(
            "Charts", [f"![{Path(name).stem.replace('_', ' ')}]({name})" for name in charts]
        )


def _sweep(results: BenchResults, sweep: BenchSweep) -> Iterator[str]:
    """One table per sweep: latency, speed-up, throughput and memory of every point."""
    base = base_backend(results)
    eager, graph = (results.comparisons[results.comparisons["kind"] == kind] for kind in ("eager", "graph"))
    part = results.results.loc[list(sweep.rows)]
    several, short = part["dtype"].nunique() > 1, results.about.shorts[sweep.axis]
    rows = []
    for row in part.to_dict("records"):
        speed = between(eager, row["configuration"], base, row["backend"])
        alone = between(graph, row["configuration"], base, row["backend"])
        rows.append(
            [
                f"{short}{row[sweep.axis]}" + (f" {row['dtype']}" if several else ""),
                str(row["backend"]),
                latency_cell(row),
                verdict_cell(speed),
                latency_cell(row, graph=True),
                verdict_cell(alone),
                *_throughput(row, tokens=results.about.tokens_shown),
                *_memory(row, _peak_of(part, row["configuration"], base)),
            ]
        )
    head = [
        short,
        "backend",
        "latency",
        f"speed-up over {base}",
        "graph",
        "speed-up, graph",
        "TFLOP/s",
    ]
    head += [
        "of peak",
        "GB/s",
        "of bandwidth",
        "tokens/s",
        "peak memory",
        "of it temporary",
        results.about.unit,
    ]
    yield from markdown_section(sweep.fixed, markdown_table([*head, "memory reduction"], rows, texts=2))


def _throughput(row: dict[Any, Any], *, tokens: bool) -> list[str]:
    if not math.isfinite(row["median_ns"]):
        return [""] * 5
    return [
        tflops_cell(row),
        share_cell(row),
        f"{row['gb_per_s']:,.0f}",
        _share(row["share_of_bandwidth"]),
        f"{row['tokens_per_s']:,.0f}" if tokens else "",
    ]


def _memory(row: dict[Any, Any], base_peak: float) -> list[str]:
    peak, temporary = row["peak_bytes"], row["temporary_bytes"]
    if pd.isna(peak):
        return [""] * 4
    return [
        format_bytes(peak),
        "" if pd.isna(temporary) else format_bytes(temporary),
        "" if math.isnan(row["peak_matrices"]) else f"{row['peak_matrices']:.2f}",
        format_ratio(base_peak / peak) if base_peak > 0 else "",
    ]


def _peak_of(part: pd.DataFrame, configuration: str, backend: str) -> float:
    rows = part[(part["configuration"] == configuration) & (part["backend"] == backend)][
        "peak_bytes"
    ].dropna()
    return float(rows.iloc[0]) if len(rows) else math.nan


def _share(value: float) -> str:
    return "" if math.isnan(value) else format_share(value)


def _decisions(results: BenchResults) -> Iterator[str]:
    _, labels = shape_parts(results)
    graph = results.decisions[results.decisions["kind"] == "graph"].set_index("configuration")
    rows = []
    for row in results.decisions[results.decisions["kind"] == "eager"].to_dict("records"):
        name = row["configuration"]
        behind = known_text(row["runner_up"])
        rows.append(
            [
                labels[name],
                decision_words(results, name, row["decision"]),
                f"{behind}, {ratio_cell(row, 'margin')}" if behind else "",
                known_text(row["unsure"]),
                decision_words(results, name, graph["decision"][name]) if name in graph.index else "",
                known_text(row["least_memory"]),
            ]
        )
    head = [
        "shape",
        "fastest",
        "clearly beats",
        "too few samples to tell",
        "without launches",
        "least memory",
    ]
    said = ["Backends joined by “or” cannot be told apart: no clear change between them.", ""] if rows else []
    yield from markdown_section(
        "Which backend at which shape", [*said, *markdown_table(head, rows, texts=len(head))]
    )


def _auto(results: BenchResults) -> Iterator[str]:
    _, labels = shape_parts(results)
    rows = []
    for row in results.auto.to_dict("records"):
        cells = [labels[row["configuration"]], picked_words(results, row["configuration"])]
        for prefix in ("", "graph_"):
            cells += [
                _ns(row[f"{prefix}median_ns"]),
                known_text(row[f"{prefix}best"]),
                _ns(row[f"{prefix}best_ns"]),
                ratio_cell(row, f"{prefix}speedup") if known_text(row[f"{prefix}best"]) else "",
                known_text(row[f"{prefix}verdict"]),
            ]
        rows.append([*cells, "yes" if row["equivalent"] else "no"])
    columns = ["auto", "best other", "its latency", "best over auto", "best is"]
    head = ["shape", "auto picks", *columns, *(f"graph: {name}" for name in columns), "output right"]
    yield from markdown_section("What PyTorch picks by itself", markdown_table(head, rows, texts=2))


def _ns(value: float) -> str:
    return "" if math.isnan(value) else format_ns(value)


def _outputs(results: BenchResults) -> Iterator[str]:
    """The largest error of each backend and dtype against float64."""
    rows = []
    for (backend, dtype), group in results.results.groupby(["backend", "dtype"], sort=False):
        known = group[group["error_of_tolerance"].notna()]
        wrong = int((group["status"] == "wrong").sum())
        if known.empty and not wrong:
            continue
        worst = largest(known, "error_of_tolerance") if len(known) else None
        rows.append(
            [
                str(backend),
                str(dtype),
                str(len(known)),
                "" if worst is None else f"{worst['error']:.1e}",
                "" if worst is None else f"{worst['tolerance']:.0e}",
                "no, at " + str(wrong) if wrong else "yes",
            ]
        )
    head = ["backend", "dtype", "shapes", "largest error", "allowed", "equivalent"]
    said = [
        f"Relative error (Frobenius norm) against {results.about.reference or results.about.says} in float64,"
        " checked before anything is timed.",
        "",
    ]
    yield from markdown_section(
        "Do the outputs agree", [*said, *markdown_table(head, rows, texts=2)] if rows else []
    )


def _growth(results: BenchResults) -> Iterator[str]:
    several = results.exponents["sweep"].nunique() > 1
    rows = [
        [
            row["sweep"] if several else "",
            row["backend"],
            row["dtype"],
            row["metric"],
            str(row["points"]),
            exponent_words(row, results.about.short),
            f"{row['last_exponent']:.2f}",
            f"{row['r_squared']:.3f}",
            row["growth"],
        ]
        for row in results.exponents.to_dict("records")
    ]
    head = ["sweep", "backend", "dtype", "of", "lengths", "exponent (95 %)", "last step", "R²", "grows"]
    said = ["Fitted to all lengths, log over log; “last step” is the slope between the two largest.", ""]
    yield from markdown_section(
        f"Growth with {results.about.short}", [*said, *markdown_table(head, rows, texts=4)] if rows else []
    )


def _mixed(results: BenchResults) -> Iterator[str]:
    rows = []
    for row in mixed_rows(results).to_dict("records"):
        base = backend_name(results, row["base"], [row["base_configuration"]])
        new = backend_name(results, row["new"], [row["configuration"]])
        parts = [ratio_cell(row, name) for name in ("total", "precision", "algorithm")]
        rows.append(
            [
                f"{results.about.short}{row[results.about.size]}",
                f"{base} {row['base_dtype']} → {new} {row['new_dtype']}",
                *parts,
            ]
        )
    head = [results.about.short, "from, to", "speed-up", "by the dtype", "by the algorithm"]
    yield from markdown_section("What mixed dtypes hide", markdown_table(head, rows, texts=2))


def _pairs(results: BenchResults) -> Iterator[str]:
    """The verdicts, counted; every one of them is in ``comparisons.csv``."""
    lines = []
    for kind, group in results.comparisons.groupby("kind", sort=False):
        counts = group["verdict"].value_counts()
        some = ", ".join(f"{count} {name}" for name, count in counts.items())
        lines.append(f"- {kind}: {len(group)} pairs of backends, {some} (Holm over all {len(group)})")
    if results.aa_compared:
        lines.append(
            f"- A/A: each of {results.aa_compared} backends against a second, interleaved set of its own samples:"
            f" {results.aa_different} different"
        )
    yield from markdown_section(
        "Comparisons",
        [
            *lines,
            "",
            "Each with interval, shift, effect size and p-value in [comparisons.csv](comparisons.csv).",
        ]
        if lines
        else [],
    )


def _not_measured(results: BenchResults) -> Iterator[str]:
    _, labels = shape_parts(results)
    rows = [
        [labels[row["configuration"]], str(row["backend"]), str(row["status"]), reason_words(row["reason"])]
        for row in results.results[results.results["n"] == 0].to_dict("records")
    ]
    yield from markdown_section(
        "Not measured", markdown_table(["shape", "backend", "is", "because"], rows, texts=4)
    )
