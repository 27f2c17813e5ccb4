"""``report.md``: the results of a benchmark as Markdown, with everything that is needed to judge and repeat them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from nsysprof import __version__
from nsysprof.bench.findings import bench_findings, exponent_words, mixed_rows, picked_words
from nsysprof.bench.pairs import between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.words import (
    about_run,
    backend_name,
    base_backend,
    clock_words,
    decision_words,
    device_name,
    interval_words,
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
from nsysprof.charts.chart import Chart
from nsysprof.core.text import visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_ratio, format_share
from nsysprof.results.table import markdown_section, markdown_table, without_empty

__all__ = ["bench_report"]


def bench_report(results: BenchResults, charts: Sequence[Chart[BenchResults]] = ()) -> str:
    """The report; ``charts`` are those whose pictures lie beside it. The text ends with a newline."""
    parts: list[Iterator[str]] = [
        _head(results, charts),
        *(_sweep(results, sweep) for sweep in results.sweeps),
        _decisions(results),
        _auto(results),
        _outputs(results),
        _growth(results),
        _mixed(results),
        _pairs(results),
        _not_measured(results),
        _method_part(results),
        _environment_part(results),
        _repeat_part(results),
    ]
    return "".join(f"{visible(line)}\n" for part in parts for line in part)


def _head(results: BenchResults, charts: Sequence[Chart[BenchResults]]) -> Iterator[str]:
    yield f"# {results.samples.name}"
    yield ""
    yield about_run(results) + f" · {clock_words(results)}"
    findings = [f"- {line}" for line in bench_findings(results)]
    warnings = [f"- {line}" for line in results.warnings]
    yield from markdown_section("Findings", findings)
    yield from markdown_section("Warnings", warnings)
    if charts:
        yield from markdown_section("Charts", [f"![{chart.caption}]({chart.file})" for chart in charts])


def _sweep(results: BenchResults, sweep: BenchSweep) -> Iterator[str]:
    """One table per sweep: latency, speed-up, throughput and memory of every point."""
    base = base_backend(results)
    eager, graph = (results.pairs(kind) for kind in ("eager", "graph"))
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
        "of peak",
    ]
    head += ["GB/s", "of bandwidth", "tokens/s", "peak memory", "of it temporary", results.about.unit]
    yield from markdown_section(sweep.fixed, _table([*head, "memory reduction"], rows, texts=2))


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
    graph = results.decided("graph").set_index("configuration")
    rows = []
    for row in results.decided().to_dict("records"):
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
    yield from markdown_section("Which backend at which shape", [*said, *_table(head, rows, texts=len(head))])


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
    yield from markdown_section("What PyTorch picks by itself", _table(head, rows, texts=2))


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
    yield from markdown_section("Do the outputs agree", [*said, *_table(head, rows, texts=2)] if rows else [])


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
        f"Growth with {results.about.short}", [*said, *_table(head, rows, texts=4)] if rows else []
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
    yield from markdown_section("What mixed dtypes hide", _table(head, rows, texts=2))


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
    yield from markdown_section("Not measured", _table(["shape", "backend", "is", "because"], rows, texts=4))


def _method_part(results: BenchResults) -> Iterator[str]:
    """What the figures mean, and the rules that they were taken by."""
    samples, rules = results.samples, results.rules
    lines = [
        f"- ±: half the {interval_words(results)} ({', '.join(_methods(results.results))})",
        f"- a difference is called one from {format_share(rules.least_effect)} on, with {rules.least_samples} or more"
        f" samples a side, when its interval leaves 1 out and p stays below {rules.alpha:g}",
        "- a difference between eager calls also has to exceed what either backend differs from itself by (A/A)",
        "- speed-up in brackets: no clear change; with “?”: too few samples",
        f"- TFLOP/s: {results.about.flops}; of peak: of SMs × sampled clock × FLOPs per"
        " clock and SM, on tensor cores for fp16 and bf16",
        "- peak memory: what PyTorch asked for at the peak of one call: inputs, outputs, temporaries, and what the"
        " backend's libraries keep from call to call (cuBLAS: a workspace)",
        f"- GB/s: {results.about.traffic_words}",
        *(f"- {name}: {' '.join(str(rule).split())}" for name, rule in samples.rules.items()),
    ]
    yield from markdown_section("How it was measured", lines)


def _methods(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame["interval"].dropna().unique()] or ["none"]


def _environment_part(results: BenchResults) -> Iterator[str]:
    """Machine and software, and what the machine can do at most."""
    environment, limits = results.samples.environment, results.samples.limits
    software = environment.get("workload") or {}
    clocks = results.results["sm_clock_mhz"].dropna()
    facts = {
        "device": device_name(results),
        "SM clock, sampled": f"{_range(clocks)} MHz" if len(clocks) else "",
        "SM clock, highest": _known(limits.max_sm_clock_mhz, "{:,.0f} MHz".format),
        "SMs": str(limits.sm_count or ""),
        "power limit": _known(software.get("power_limit_w"), "{:,.0f} W".format),
        "memory": _known(software.get("memory_bytes"), format_bytes),
        "L2 cache": _known(software.get("l2_cache_bytes"), format_bytes),
        "bandwidth": _known(limits.bytes_per_s, format_bandwidth),
        "bandwidth, measured": _known(limits.measured_bytes_per_s, format_bandwidth),
        **{
            f"{dtype} product, measured": f"{flops / 1e12:,.3g} TFLOP/s"
            for dtype, flops in (limits.measured_flops or {}).items()
        },
        **{name: str(software[name]) for name in ("torch", "cuda", "cudnn", "triton") if software.get(name)},
        **{
            name: str(environment[name])
            for name in ("driver", "os", "python", "cpu")
            if environment.get(name)
        },
        "environment": results.samples.environment_hash,
        "nsysprof": __version__,
    }
    rows = [[name, value] for name, value in facts.items() if value]
    yield from markdown_section("Environment", _table(["", ""], rows, texts=2))


def _range(clocks: pd.Series[float]) -> str:
    """`1,980`, or `1,845 to 1,980`: the medians of the points."""
    ends = dict.fromkeys(f"{value:,.0f}" for value in (clocks.min(), clocks.max()))
    return " to ".join(ends)


def _known(value: object, text: Callable[[float], str]) -> str:
    return text(value) if isinstance(value, int | float) else ""


def _repeat_part(results: BenchResults) -> Iterator[str]:
    """The command."""
    command = results.samples.command
    if command:
        yield from markdown_section("How to repeat it", ["```sh", command, "```"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """A table of Markdown, the first ``texts`` columns flush left and the others right, without empty columns."""

    def escape(cell: str) -> str:
        return cell.replace("|", "\\|").replace("\n", " ")

    shown = without_empty(head, rows, ("l" * texts).ljust(len(head), "r"))
    return markdown_table(*shown, escape=escape, even=False) if rows else []
