"""Write ``report.md``: the results of a benchmark as Markdown, with everything needed to judge and repeat them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd

from nsysprof import __version__
from nsysprof.bench import words
from nsysprof.bench.findings import bench_findings, first_words, mixed_rows, priorities
from nsysprof.bench.results import BenchResults
from nsysprof.bench.rows import LEAST_FOR_P99
from nsysprof.bench.scaling import BenchSweep
from nsysprof.bench.words import Cell, Row, columns, shown
from nsysprof.charts.chart import Chart
from nsysprof.core.text import plural, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_ratio, format_share
from nsysprof.results.table import markdown_section, markdown_table
from nsysprof.statistics.runs import scope_of

# What attention backends are, beyond their names.
_IS = {
    "flash": "PyTorch's FlashAttention 2, which uses Ampere instructions on every GPU",
    "cudnn": "a kernel that cuDNN generates for the GPU (version below)",
    "efficient": "the memory-efficient attention of xFormers in PyTorch",
    "flash_attn": "the flash-attn package, FlashAttention 2",
    "flash_attn_4": "the flash-attn-4 package, FlashAttention 4",
}
_ONE_RUN = ": intervals exclude variation between runs (`nsysprof bench --runs 3`)"
_SEVERAL = ", each in its own process: intervals reflect the variation between run medians"


def bench_report(results: BenchResults, charts: Sequence[Chart[BenchResults]] = ()) -> str:
    """Format the report; ``charts`` are the charts with pictures in the same folder. The text ends with a newline."""
    lines = [f"# {results.samples.name}", "", words.subtitle(results)]
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


def _section(title: str, rows: Iterable[Row], table: Mapping[str, Cell], texts: int, note: str = "") -> Iterator[str]:
    """A section with a table made by `shown` and a note above it; empty without rows."""
    made = shown(rows, table, texts)
    if made.rows:
        lines = markdown_table(made.head, made.rows, made.align, escape=_escape, even=False)
        yield from markdown_section(title, [note] if note else [], lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sweep(results: BenchResults, sweep: BenchSweep) -> Iterator[str]:
    base, part, about = results.base, results.rows_of(sweep), results.about
    short, several = about.shorts[sweep.axis], part["dtype"].nunique() > 1
    peaks = part[part["backend"] == base].set_index("configuration")["peak_bytes"].dropna()

    def reduction(row: Row) -> str:
        of_base = peaks.get(row["configuration"], 0)
        return "" if pd.isna(row["peak_bytes"]) or of_base <= 0 else format_ratio(of_base / row["peak_bytes"])

    table: dict[str, Cell] = {
        short: lambda row: f"{short}{row[sweep.axis]}" + (f" {row['dtype']}" if several else ""),
        "backend": "backend",
        "latency": words.latency_cell,
        f"speed-up over {base}": lambda row: words.speedup_cell(row["eager"]),
        "detectable": lambda row: words.finds_cell(row["eager"]),
        "graph": lambda row: words.latency_cell(row, "graph_"),
        "speed-up, graph": lambda row: words.speedup_cell(row["graph"]),
        "TFLOP/s": words.tflops_cell,
        "of peak": words.share_cell,
        "GB/s": "gb_per_s",
        "of bandwidth": "share_of_bandwidth",
        **({"tokens/s": "tokens_per_s"} if about.tokens_shown else {}),
        "peak memory": "peak_bytes",
        "of it temporary": "temporary_bytes",
        about.unit: "peak_matrices",
        "memory reduction": reduction,
    }
    return _section(sweep.fixed, words.rows_of(results, part), table, 2)


def _decisions(results: BenchResults) -> Iterator[str]:
    heads = (
        "shape = label | fastest | clearly beats = beats | too few samples to tell = unsure"
        " | without launches = graph | least memory = least_memory"
    )
    table = columns(heads, beats=lambda row: f"{row['runner_up']}, {row['margin']}" if row["margin"] else "")
    note = "Backends joined by “or” do not differ significantly."
    return _section("Which backend at which shape", words.decided_rows(results), table, 6, note)


def _limits(results: BenchResults) -> Iterator[str]:
    heads = (
        "shape = label | backend | first = words | bound by = bound | times = bound_by | at the least = least_ns"
        " | without launches = now_ns | launches = launching_ns"
    )
    table = columns(heads, words=lambda row: first_words(results, row))
    note = (
        "The fastest backend for each shape, largest potential gain first. Bound by: compute or memory "
        "traffic (each input and output once), whichever takes longer at the GPU's peak; times: longer ÷ shorter."
    )
    return _section("What limits each shape", words.rows_of(results, priorities(results)), table, 3, note)


def _shapes(results: BenchResults) -> Iterator[str]:
    """The growth of each backend's latency and throughput from the first shape of a sweep to the others."""
    rows: list[Row] = []
    for sweep in results.sweeps:
        part, short = results.rows_of(sweep), results.about.shorts[sweep.axis]
        for _, group in part[part["n"] > 0].groupby(["backend", "dtype"], sort=False):
            first, *others = group.to_dict("records")
            for row in others:
                row["sweep"] = f"{short}{first[sweep.axis]} to {short}{row[sweep.axis]}"
                row["longer"] = row["median_ns"] / first["median_ns"]
                row["longer_low"] = row["low_ns"] / first["high_ns"]
                row["longer_high"] = row["high_ns"] / first["low_ns"]
                row["takes"] = words.ratio_cell(row, "longer")
                row["flops_ratio"] = row["tflops"] / first["tflops"]
            rows += others
    table = columns("sweep | backend | dtype | takes | FLOP/s = flops_ratio")
    note = (
        "Takes: latency ÷ latency of the sweep's first shape (in brackets: 95 % intervals combined). "
        "FLOP/s: FLOP/s ÷ FLOP/s of the first shape; above 1 if larger shapes use the device better."
    )
    return _section("From shape to shape", rows, table, 3, note)


def _spread(results: BenchResults) -> Iterator[str]:
    """Mean, standard deviation and 99 % quantile beside the median, and the median of one head."""
    heads = "shape = label | backend | n | median = median_ns | mean = mean_ns | σ = sd_ns | p99 | per head = head"
    table = columns(
        heads,
        p99=lambda row: "needs 100 samples" if row["n"] < LEAST_FOR_P99 else format_ns(row["p99_ns"]),
        head=lambda row: (
            format_ns(row["median_ns"] / heads / row.get("batch", 1)) if (heads := row.get("heads")) else ""
        ),
    )
    note = "σ: standard deviation of the samples; per head: median ÷ (batch × heads), comparable across sizes."
    rows = words.rows_of(results, results.results[results.results["n"] > 0])
    return _section("How calls are spread", rows, table, 2, note)


def _auto(results: BenchResults) -> Iterator[str]:
    rows = words.rows_of(results, results.auto)
    for row in rows:
        row["picked"] = words.known_text(row["picked"]) or "not seen"
        row["right"] = "yes" if row["equivalent"] else "no"
        for kind in ("", "graph_"):
            known = words.known_text(row[f"{kind}best"])
            row[f"{kind}over"] = words.ratio_cell(row, f"{kind}speedup") if known else ""
    table = columns(
        "shape = label | auto picks = picked | auto = median_ns | best other = best | its latency = best_ns"
        " | best over auto = over | best is = verdict | graph: auto = graph_median_ns | graph: best other = graph_best"
        " | graph: its latency = graph_best_ns | graph: best over auto = graph_over | graph: best is = graph_verdict"
        " | output right = right"
    )
    return _section("PyTorch's own choice", rows, table, 2)


def _outputs(results: BenchResults) -> Iterator[str]:
    """The largest error of each backend and dtype against float64."""
    rows: list[Row] = []
    for _, group in results.results.groupby(["backend", "dtype"], sort=False):
        known = group[group["error_of_tolerance"].notna()]
        wrong = int((group["status"] == "wrong").sum())
        if len(known) or wrong:
            none = {**group.iloc[0], "error": None, "tolerance": None}
            worst = words.largest(known, "error_of_tolerance") if len(known) else none
            rows.append({**worst, "shapes": len(known), "wrong": wrong})
    heads = "backend | dtype | shapes | largest error = error | allowed = tolerance | equivalent"
    table = columns(heads, equivalent=lambda row: f"no, at {row['wrong']}" if row["wrong"] else "yes")
    note = (
        "Relative error (Frobenius norm) of each output, compared with "
        f"{results.about.reference or results.about.says} in float64; checked before anything is timed."
    )
    return _section("Do the outputs agree", rows, table, 2, note)


def _growth(results: BenchResults) -> Iterator[str]:
    several, short = results.exponents["sweep"].nunique() > 1, results.about.short
    heads = (
        "sweep | backend | dtype | of = metric | lengths = points | exponent (95 %) = exponent"
        " | last step = last_exponent | R² = r_squared | grows = growth"
    )
    table = columns(
        heads, sweep=lambda row: row["sweep"] if several else "", exponent=lambda row: words.exponent_words(row, short)
    )
    note = (
        "Slope of log(memory) fitted against log(length) over all lengths; “last step”: slope between the "
        "two largest lengths."
    )
    return _section(f"Growth with {short}", results.exponents.to_dict("records"), table, 4, note)


def _mixed(results: BenchResults) -> Iterator[str]:
    short, size = results.about.short, results.about.size
    table: dict[str, Cell] = {
        short: lambda row: f"{short}{row[size]}",
        "from, to": lambda row: f"{row['from']} → {row['to']}",
        "speed-up": lambda row: words.ratio_cell(row, "total"),
        "by the dtype": lambda row: words.ratio_cell(row, "precision"),
        "by the algorithm": lambda row: words.ratio_cell(row, "algorithm"),
    }
    return _section("What mixed dtypes hide", mixed_rows(results).to_dict("records"), table, 2)


def _pairs(results: BenchResults) -> Iterator[str]:
    """The number of each verdict; ``comparisons.csv`` lists all of them."""
    lines = [
        f"- {kind}: {plural(len(group), 'comparison')}, "
        f"{', '.join(f'{count} {name}' for name, count in group['verdict'].value_counts().items())} "
        f"(Holm-corrected for all {len(group)})"
        for kind, group in results.comparisons.groupby("kind", sort=False)
    ]
    if results.aa_compared:
        against = "compared with a second, interleaved set of their own samples"
        lines.append(f"- A/A, {against}: {words.aa_words(results)}")
    where = "[comparisons.csv](comparisons.csv) has the interval, shift, effect size and p-value of each comparison."
    yield from markdown_section("Comparisons", lines, [where] if lines else [])


def _not_measured(results: BenchResults) -> Iterator[str]:
    table = columns("shape = label | backend | is = status | because", because=words.reason_cell)
    return _section("Not measured", words.rows_of(results, results.results[results.results["n"] == 0]), table, 4)


def _method(results: BenchResults) -> Iterator[str]:
    rules, runs, about = results.rules, results.samples.runs, results.about
    methods = [str(name) for name in results.results["interval"].dropna().unique()] or ["none"]
    lines = [
        f"- ±: half the {words.interval_words(results)} ({', '.join(methods)})",
        f"- a difference counts if it is at least {format_share(rules.least_effect)}, each side has "
        f"{rules.least_samples} or more samples, its interval excludes 1, and p is below {rules.alpha:g}",
        "- a difference between eager calls must also exceed the A/A difference (the difference between "
        "two sets of samples of one backend)",
        "- speed-up in brackets: no clear change; with “?”: too few samples; detectable: smallest difference found"
        " with 80 % power, corrected for the number of comparisons",
        f"- intervals and verdicts hold {scope_of(runs)}{_SEVERAL if runs > 1 else _ONE_RUN}",
        f"- TFLOP/s: {about.flops}; peak: SMs × sampled clock × FLOPs per clock per SM, on tensor cores for "
        "fp16 and bf16",
        "- peak memory: the most memory in use at any moment of one call (as requested from PyTorch): inputs, outputs, "
        "temporaries, and workspaces that libraries keep between calls (cuBLAS)",
        f"- GB/s: {about.traffic_words}",
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
        "device": words.device_name(results),
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
    rows = [(name, value) for name, value in facts.items() if value]
    return markdown_section("Environment", markdown_table(["", ""], rows, "ll", escape=_escape, even=False))


def _known(value: object, text: Callable[[float], str]) -> str:
    return text(value) if isinstance(value, int | float) else ""


def _command(results: BenchResults) -> Iterator[str]:
    command = results.samples.command
    return markdown_section("How to repeat it", ["```sh", command, "```"] if command else [])
