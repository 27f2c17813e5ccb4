"""``report.md``: the results of a benchmark as Markdown, with everything that is needed to judge and repeat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd

from nsysprof import __version__
from nsysprof.bench.findings import bench_findings, mixed_rows
from nsysprof.bench.limits import first_words, priorities
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import LEAST_FOR_P99
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.tables import DECISIONS, EXPONENTS, RESULTS
from nsysprof.bench.words import (
    Cell,
    Columns,
    aa_words,
    about_run,
    cell,
    clock_words,
    decision_words,
    declared,
    device_name,
    exponent_words,
    finds_cell,
    interval_words,
    known_text,
    largest,
    latency_cell,
    picked_words,
    ratio_cell,
    reason_cell,
    share_cell,
    shown,
    speedup_cell,
    tflops_cell,
)
from nsysprof.charts.chart import Chart
from nsysprof.core.text import visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_ratio, format_share
from nsysprof.results.table import markdown_section, markdown_table
from nsysprof.statistics.runs import scope_of

# What attention backends are, beyond their names.
_IS = {
    "flash": "the FlashAttention 2 of PyTorch, with Ampere's instructions on any GPU",
    "cudnn": "a kernel that cuDNN makes for the GPU, of the version below",
    "efficient": "the memory-efficient attention of xFormers in PyTorch",
    "flash_attn": "the flash-attn package, FlashAttention 2",
    "flash_attn_4": "the flash-attn-4 package, FlashAttention 4",
}


def bench_report(results: BenchResults, charts: Sequence[Chart[BenchResults]] = ()) -> str:
    """The report; ``charts`` are those whose pictures lie beside it. The text ends with a newline."""
    lines = [f"# {results.samples.name}", "", f"{about_run(results)} · {clock_words(results)}"]
    lines += markdown_section("Findings", [f"- {line}" for line in bench_findings(results)])
    lines += markdown_section("Warnings", [f"- {line}" for line in results.warnings])
    lines += markdown_section("Charts", [f"![{chart.caption}]({chart.file})" for chart in charts])
    for sweep in results.sweeps:
        lines += _sweep(results, sweep)
    for section in (
        _decisions, _limits, _auto, _shapes, _spread, _outputs, _growth, _mixed, _pairs, _not_measured, _method,
        _environment, _command
    ):  # fmt: skip
        lines += section(results)
    return "".join(f"{visible(line)}\n" for line in lines)


def _table(rows: Iterable[dict[Any, Any]], columns: Columns, texts: int) -> list[str]:
    """A table of Markdown, the first ``texts`` columns flush left and the others right, without empty columns."""

    def escape(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    table = shown(rows, columns, texts)
    return markdown_table(*table, escape=escape, even=False) if table[1] else []


def _section(title: str, table: Sequence[str], note: str = "") -> Iterator[str]:
    """A section with a table and a note above it; nothing without rows."""
    return markdown_section(title, [note] if note and table else [], table)


def _label(results: BenchResults) -> Cell:
    return lambda row: results.labels[row["configuration"]]


def _sweep(results: BenchResults, sweep: BenchSweep) -> Iterator[str]:
    base, part, short = results.base, results.rows_of(sweep), results.about.shorts[sweep.axis]
    several = part["dtype"].nunique() > 1
    peaks = part[part["backend"] == base].set_index("configuration")["peak_bytes"].dropna()

    def size(row: dict[Any, Any]) -> str:
        return f"{short}{row[sweep.axis]}" + (f" {row['dtype']}" if several else "")

    def speedup(kind: str) -> Cell:
        return lambda row: speedup_cell(results.speedup(row["configuration"], base, row["backend"], kind))

    def reduction(row: dict[Any, Any]) -> str:
        of_base = peaks.get(row["configuration"], 0)
        return "" if pd.isna(row["peak_bytes"]) or of_base <= 0 else format_ratio(of_base / row["peak_bytes"])

    columns: Columns = [
        (short, size),
        *declared(RESULTS, "backend"),
        ("latency", latency_cell),
        (f"speed-up over {base}", speedup("eager")),
        ("finds", lambda row: finds_cell(results.speedup(row["configuration"], base, row["backend"]))),
        ("graph", partial(latency_cell, graph=True)),
        ("speed-up, graph", speedup("graph")),
        ("TFLOP/s", tflops_cell),
        ("of peak", share_cell),
        *declared(RESULTS, "gb_per_s", "share_of_bandwidth"),
        *declared(RESULTS, *["tokens_per_s"] * results.about.tokens_shown, "peak_bytes", "temporary_bytes"),
        (results.about.unit, cell("peak_matrices", "{:.2f}".format)),
        ("memory reduction", reduction),
    ]
    return _section(sweep.fixed, _table(part.to_dict("records"), columns, texts=2))


def _decisions(results: BenchResults) -> Iterator[str]:
    graph = results.decided("graph").set_index("configuration")["decision"]

    def fastest(row: dict[Any, Any]) -> str:
        return decision_words(results, row["configuration"], row["decision"])

    def beaten(row: dict[Any, Any]) -> str:
        return f"{row['runner_up']}, {ratio_cell(row, 'margin')}" if known_text(row["runner_up"]) else ""

    def of_graph(row: dict[Any, Any]) -> str:
        return decision_words(results, row["configuration"], graph.get(row["configuration"], ""))

    columns = [
        ("shape", _label(results)),
        ("fastest", fastest),
        ("clearly beats", beaten),
        *declared(DECISIONS, "unsure"),
        ("without launches", of_graph),
        *declared(DECISIONS, "least_memory"),
    ]
    table = _table(results.decided().to_dict("records"), columns, texts=6)
    note = "Backends joined by “or” cannot be told apart: no clear change between them."
    return _section("Which backend at which shape", table, note)


def _limits(results: BenchResults) -> Iterator[str]:
    """What bounds each shape, and what to look at first."""
    columns: Columns = [
        ("shape", _label(results)),
        *declared(RESULTS, "backend"),
        ("first", lambda row: first_words(results, row)),
        ("bound by", cell("bound")),
        ("times", cell("bound_by", format_ratio)),
        ("at the least", cell("least_ns", format_ns)),
        ("without launches", cell("now_ns", format_ns)),
        ("launches", cell("launching_ns", format_ns)),
    ]
    note = (
        "Of the fastest backend of each shape, the one with most to gain first. Bound by: what needs longer at the peak"
        " of the GPU, all FLOPs or each input and output once, and how many times as long as the other."
    )
    return _section(
        "What limits each shape", _table(priorities(results).to_dict("records"), columns, 3), note
    )


def _shapes(results: BenchResults) -> Iterator[str]:
    """Each backend from the first shape of a sweep to the others: latency, and work per time."""
    rows: list[dict[Any, Any]] = []
    for sweep in results.sweeps:
        part = results.rows_of(sweep)
        for _, group in part[part["n"] > 0].groupby(["backend", "dtype"], sort=False):
            first, *others = group.to_dict("records")
            short = results.about.shorts[sweep.axis]
            for row in others:
                rows.append(
                    {
                        **row,
                        "from": f"{short}{first[sweep.axis]}",
                        "to": f"{short}{row[sweep.axis]}",
                        "longer": row["median_ns"] / first["median_ns"],
                        "longer_low": row["low_ns"] / first["high_ns"],
                        "longer_high": row["high_ns"] / first["low_ns"],
                        "faster": row["tflops"] / first["tflops"],
                    }
                )
    columns: Columns = [
        ("sweep", lambda row: f"{row['from']} to {row['to']}"),
        *declared(RESULTS, "backend", "dtype"),
        ("takes", partial(ratio_cell, name="longer")),
        ("FLOP/s", cell("faster", format_ratio)),
    ]
    note = (
        "A call of the larger shape over one of the first shape of its sweep, in brackets what the intervals of both"
        " allow; FLOP/s: the same of work per time, above 1 where larger shapes use the device better."
    )
    return _section("From shape to shape", _table(rows, columns, texts=3), note)


def _spread(results: BenchResults) -> Iterator[str]:
    """Mean, standard deviation and 99 % quantile beside the median, and the median of one head."""
    rows = results.results[results.results["n"] > 0].to_dict("records")

    def p99(row: dict[Any, Any]) -> str:
        return "of 100 samples on" if row["n"] < LEAST_FOR_P99 else format_ns(row["p99_ns"])

    def per_head(row: dict[Any, Any]) -> str:
        heads = row.get("heads")
        return format_ns(row["median_ns"] / heads / row.get("batch", 1)) if heads else ""

    columns: Columns = [
        ("shape", _label(results)),
        *declared(RESULTS, "backend"),
        ("n", cell("n")),
        ("median", cell("median_ns", format_ns)),
        ("mean", cell("mean_ns", format_ns)),
        ("σ", cell("sd_ns", format_ns)),
        ("p99", p99),
        ("per head", per_head),
    ]
    note = "σ: standard deviation of the samples; per head: the median over batch × heads, for shapes of other sizes."
    return _section("How calls are spread", _table(rows, columns, texts=2), note)


def _auto(results: BenchResults) -> Iterator[str]:
    def best_over_auto(prefix: str) -> Cell:
        return lambda row: ratio_cell(row, f"{prefix}speedup") if known_text(row[f"{prefix}best"]) else ""

    columns = [
        ("shape", _label(results)),
        ("auto picks", lambda row: picked_words(results, row["configuration"])),
    ]
    for before, prefix in (("", ""), ("graph: ", "graph_")):
        columns += [
            (f"{before}auto", cell(f"{prefix}median_ns", format_ns)),
            (f"{before}best other", cell(f"{prefix}best")),
            (f"{before}its latency", cell(f"{prefix}best_ns", format_ns)),
            (f"{before}best over auto", best_over_auto(prefix)),
            (f"{before}best is", cell(f"{prefix}verdict")),
        ]
    columns.append(("output right", lambda row: "yes" if row["equivalent"] else "no"))
    table = _table(results.auto.to_dict("records"), columns, texts=2)
    return _section("What PyTorch picks by itself", table)


def _outputs(results: BenchResults) -> Iterator[str]:
    """The largest error of each backend and dtype against float64."""
    rows: list[dict[Any, Any]] = []
    for (backend, dtype), group in results.results.groupby(["backend", "dtype"], sort=False):
        known = group[group["error_of_tolerance"].notna()]
        wrong = int((group["status"] == "wrong").sum())
        if known.empty and not wrong:
            continue
        worst = largest(known, "error_of_tolerance") if len(known) else {"error": None, "tolerance": None}
        rows.append({**worst, "backend": backend, "dtype": dtype, "shapes": len(known), "wrong": wrong})
    columns: Columns = [
        *declared(RESULTS, "backend", "dtype"),
        ("shapes", cell("shapes")),
        ("largest error", cell("error", "{:.1e}".format)),
        ("allowed", cell("tolerance", "{:.0e}".format)),
        ("equivalent", lambda row: f"no, at {row['wrong']}" if row["wrong"] else "yes"),
    ]
    note = (
        f"Relative error (Frobenius norm) against {results.about.reference or results.about.says} in float64,"
        " checked before anything is timed."
    )
    return _section("Do the outputs agree", _table(rows, columns, texts=2), note)


def _growth(results: BenchResults) -> Iterator[str]:
    several = results.exponents["sweep"].nunique() > 1
    columns: Columns = [
        ("sweep", lambda row: row["sweep"] if several else ""),
        *declared(EXPONENTS, "backend", "dtype", "metric", "points"),
        ("exponent (95 %)", lambda row: exponent_words(row, results.about.short)),
        *declared(EXPONENTS, "last_exponent", "r_squared", "growth"),
    ]
    table = _table(results.exponents.to_dict("records"), columns, texts=4)
    note = "Fitted to all lengths, log over log; “last step” is the slope between the two largest."
    return _section(f"Growth with {results.about.short}", table, note)


def _mixed(results: BenchResults) -> Iterator[str]:
    def from_to(row: dict[Any, Any]) -> str:
        base = results.backend_name(row["base"], [row["base_configuration"]])
        new = results.backend_name(row["new"], [row["configuration"]])
        return f"{base} {row['base_dtype']} → {new} {row['new_dtype']}"

    short = results.about.short
    columns: Columns = [
        (short, lambda row: f"{short}{row[results.about.size]}"),
        ("from, to", from_to),
        ("speed-up", partial(ratio_cell, name="total")),
        ("by the dtype", partial(ratio_cell, name="precision")),
        ("by the algorithm", partial(ratio_cell, name="algorithm")),
    ]
    table = _table(mixed_rows(results).to_dict("records"), columns, texts=2)
    return _section("What mixed dtypes hide", table)


def _pairs(results: BenchResults) -> Iterator[str]:
    """The verdicts, counted; every one of them is in ``comparisons.csv``."""
    lines = []
    for kind, group in results.comparisons.groupby("kind", sort=False):
        counts = group["verdict"].value_counts()
        some = ", ".join(f"{count} {name}" for name, count in counts.items())
        lines.append(f"- {kind}: {len(group)} pairs of backends, {some} (Holm over all {len(group)})")
    if results.aa_compared:
        lines.append(f"- A/A, against a second, interleaved set of their own samples: {aa_words(results)}")
    where = "Each with interval, shift, effect size and p-value in [comparisons.csv](comparisons.csv)."
    yield from markdown_section("Comparisons", lines, [where] if lines else [])


def _not_measured(results: BenchResults) -> Iterator[str]:
    columns: Columns = [
        ("shape", _label(results)),
        *declared(RESULTS, "backend", "status"),
        ("because", reason_cell),
    ]
    rows = results.results[results.results["n"] == 0].to_dict("records")
    return _section("Not measured", _table(rows, columns, texts=4))


def _method(results: BenchResults) -> Iterator[str]:
    rules = results.rules
    methods = [str(name) for name in results.results["interval"].dropna().unique()] or ["none"]
    lines = [
        f"- ±: half the {interval_words(results)} ({', '.join(methods)})",
        f"- a difference is called one from {format_share(rules.least_effect)} on, with {rules.least_samples} or more"
        f" samples a side, when its interval leaves 1 out and p stays below {rules.alpha:g}",
        "- a difference between eager calls also has to exceed what either backend differs from itself by (A/A)",
        "- speed-up in brackets: no clear change; with “?”: too few samples; finds: the smallest difference that the"
        " samples of both would have shown in 80 of 100 cases, among as many comparisons",
        f"- intervals and verdicts speak of what holds {scope_of(results.samples.runs)}"
        + (
            ", each a process of its own: the medians of the runs are what is averaged, and what varies"
            if results.samples.runs > 1
            else ": another process may differ by more (`nsysprof bench --runs 3`)"
        ),
        f"- TFLOP/s: {results.about.flops}; of peak: of SMs × sampled clock × FLOPs per"
        " clock and SM, on tensor cores for fp16 and bf16",
        "- peak memory: what PyTorch asked for at the peak of one call: inputs, outputs, temporaries, and what the"
        " backend's libraries keep from call to call (cuBLAS: a workspace)",
        f"- GB/s: {results.about.traffic_words}",
        *(f"- `{name}`: {_IS[name]}" for name in results.backends if name in _IS),
        *(f"- {name}: {' '.join(str(rule).split())}" for name, rule in results.samples.rules.items()),
    ]
    yield from markdown_section("How it was measured", lines)


def _environment(results: BenchResults) -> Iterator[str]:
    environment, limits = results.samples.environment, results.samples.limits
    software = environment.get("workload") or {}
    clocks = results.results["sm_clock_mhz"].dropna()
    ends = dict.fromkeys(f"{value:,.0f}" for value in (clocks.min(), clocks.max()))
    facts = {
        "device": device_name(results),
        "SM clock, sampled": f"{' to '.join(ends)} MHz" if len(clocks) else "",
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
        **{name: str(software.get(name) or "") for name in ("torch", "cuda", "cudnn", "triton")},
        **{name: str(environment.get(name) or "") for name in ("driver", "os", "python", "cpu")},
        "environment": results.samples.environment_hash,
        "nsysprof": __version__,
    }
    rows = [{"fact": name, "value": value} for name, value in facts.items() if value]
    return _section("Environment", _table(rows, [("", cell("fact")), ("", cell("value"))], texts=2))


def _known(value: object, text: Callable[[float], str]) -> str:
    return text(value) if isinstance(value, int | float) else ""


def _command(results: BenchResults) -> Iterator[str]:
    command = results.samples.command
    return markdown_section("How to repeat it", ["```sh", command, "```"] if command else [])
