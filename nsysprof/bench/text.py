"""The output of `nsysprof bench`: plan, results, and difference of two runs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nsysprof.bench import words
from nsysprof.bench.diff import BenchDiff, regressions
from nsysprof.bench.findings import bench_findings
from nsysprof.bench.results import BenchResults, shape_labels
from nsysprof.bench.words import Cell, Row, columns, shown
from nsysprof.core.text import join_first, one_line, visible
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.results.table import TextTable, screen_width, warning_lines, wrap
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES
from nsysprof.statistics.summary import LEAST_SAMPLES

WITHIN_EACH = "two single runs cannot show a regression: measure both sides with --runs 3"
MAX_POINTS_NAMED = 8


def _plain(table: TextTable) -> list[str]:
    """The lines of a table; empty without rows."""
    return table.lines()[0].split("\n") if table.rows else []


def _wrapped(lines: Iterable[str], first: str = "", others: str = "  ") -> Iterator[str]:
    for line in lines:
        yield from wrap(line, first, others).split("\n")


def _without_repeats(texts: Sequence[str]) -> list[str]:
    """The texts, with each repetition of the previous text left empty."""
    return ["" if text == before else text for before, text in zip(["", *texts], texts, strict=False)]


def _joined(*parts: Iterable[str]) -> str:
    lines = [line for part in map(list, parts) if part for line in ("", *part)][1:]
    return "".join(f"{visible(line)}\n" for line in lines)


def plan_matrix(plan: Mapping[str, Any], described: Mapping[str, Any], gpu_bytes: int | None) -> str:
    """List each configuration with the estimated memory of its backends, and points that may not fit on the GPU."""
    rows = described["configurations"]
    held = {(row["id"], name): row["cost"]["held_bytes"].get(name) for row in rows for name in row["backends"]}
    names = dict.fromkeys(name for row in rows for name in row["backends"])

    def memory(name: str) -> Cell:
        return lambda row: "" if (size := held.get((row["id"], name))) is None else format_bytes(size)

    table = shown(rows, {"configuration": "id", **{name: memory(name) for name in names}}, texts=1)
    until = f", until the interval is narrower than {plan['ci_width']:g}" if plan["ci_width"] else ""
    mode = described["mode"]
    called = (mode["on"] if plan[mode["option"]] else mode["off"] or "forward") if mode else described["says"]
    cache = "warm" if plan["warm_cache"] or plan["device"] == "cpu" else "cold"
    taken = plan["runs"] * math.ceil(plan["samples"] / plan["runs"])
    sentences = [
        f"{len(held)} points of {plan['workload']} ({called}) on {plan['device']}: {taken:,} samples"
        f" each{until}, at least {format_ns(plan['min_sample_ns'])} per sample, {cache} cache.",
        "1 run: intervals exclude variation between runs; to include it, use --runs 3."
        if plan["runs"] == 1
        else f"{plan['runs']} runs, each in its own process, with {taken // plan['runs']} samples per run "
        "in a new random order. The first run also checks the outputs and measures memory.",
        "Memory: estimated peak memory of one call, computed from the shapes.",
    ]
    how = list(_wrapped(sentences, others=""))
    most = gpu_bytes or math.inf
    too_large = [f"  {name} at {where}" for (where, name), size in held.items() if (size or 0) > most]
    if gpu_bytes and too_large:
        how.append(f"These points may need more than the {format_bytes(gpu_bytes)} of this GPU, and are then skipped:")
    return _joined(_plain(table), [*how, *too_large])


def bench_summary(results: BenchResults) -> str:
    """Format a summary of the measurement, a table of all points, and the conclusions; the text ends with a newline."""
    about = [
        *_wrapped([words.about_run(results)]),
        *_wrapped([f"{words.clock_words(results)}; ±: {words.interval_words(results)}"], "  ", "    "),
    ]
    warnings = warning_lines(results.warnings, "report.md")
    points = _points(results)
    findings = _wrapped([*bench_findings(results), _legend(results, points.fit(screen_width())[0])])
    return _joined(about, warnings, _plain(points), _decisions(results), findings)


def _legend(results: BenchResults, head: Sequence[str]) -> str:
    unit = results.about.unit
    finds = "; detectable: smallest difference found with 80 % power" * ("detectable" in head)
    meanings = {
        "of peak": "peak = SMs × sampled clock × FLOPs/clock/SM",
        unit.rpartition(" ")[2]: f"peak memory in {unit} of the dtype",
        "error": "relative error against float64",
    }
    told = (f" {name}: {meaning}." for name, meaning in meanings.items() if name and name in head)
    return f"(1.01x): no clear change; 1.3x ?: too few samples{finds}.{''.join(told)}"


def _points(results: BenchResults) -> TextTable:
    rows, unit = words.rows_of(results, results.results), results.about.unit.rpartition(" ")[2]
    labels = _without_repeats([one_line(row["label"], 30) for row in rows])
    for row, label in zip(rows, labels, strict=True):
        row["label"] = label
        if not math.isfinite(row["median_ns"]):
            row |= {"peak_bytes": None, "peak_matrices": None, "error": None}

    table: dict[str, Cell] = {
        "shape": "label",
        "backend": lambda row: one_line(row["backend"], 14),
        "latency": lambda row: format_ns(row["median_ns"]) if math.isfinite(row["median_ns"]) else str(row["status"]),
        "±": lambda row: words.plus_minus(row).removeprefix("± ") if math.isfinite(row["median_ns"]) else "",
        "graph": "graph_median_ns",
        "TFLOP/s": words.tflops_cell,
        "of peak": words.share_cell,
        f"vs {results.base}": lambda row: words.speedup_cell(
            row["eager"], lambda pair: format_ratio(pair["speedup"]), ("(", ")")
        ),
        "detectable": lambda row: words.finds_cell(row["eager"]),
        "peak": "peak_bytes",
        unit: "peak_matrices",
        "error": lambda row: "" if pd.isna(row["error"]) else f"{row['error']:.0e}",
    }
    return shown(rows, table, 2, (unit, "TFLOP/s", "error", "of peak", "peak", "detectable", "graph"))


def _decisions(results: BenchResults) -> list[str]:
    table: dict[str, Cell] = {
        "shape": lambda row: one_line(row["label"], 30),
        "fastest": lambda row: one_line(words.fastest_words(results, row), 28),
        "beats": lambda row: f"{row['runner_up']} by {row['margin']}" if row["margin"] else "",
        "without launches": lambda row: one_line(row["graph"], 24),
        "auto picks": lambda row: words.picked_words(results, row["configuration"]),
    }
    return _plain(shown(words.decided_rows(results), table, 5))


def diff_table(diff: BenchDiff) -> str:
    """Format ``shape | backend | metric | before | after | change | overlap | effect | verdict``, and a summary."""
    return _joined(_runs(diff), _differences(diff), _totals(diff))


def regression_lines(diff: BenchDiff, max_regress: float) -> list[str]:
    """List each significant regression above ``max_regress`` on one line."""
    labels = _labels(diff)
    return [
        f"{labels[row['configuration']]} {row['backend']}: {row['metric']} {_value(row, 'before')} →"
        f" {_value(row, 'after')}, {_percent(row['change'])} (above {format_share(max_regress)})"
        for row in regressions(diff, max_regress).to_dict("records")
    ]


def _runs(diff: BenchDiff) -> Iterator[str]:
    for name, samples in (("before", diff.before), ("after", diff.after)):
        yield f"{name:6}  {one_line(samples.name, 40)}  {one_line(str(samples.path), screen_width() - 50)}"
    if diff.differences:
        yield from _wrapped([f"unlike: {'; '.join(diff.differences)}"])


def _labels(diff: BenchDiff) -> dict[str, str]:
    shapes = {point.shape.id: point.shape for point in (*diff.before.points, *diff.after.points)}
    return shape_labels(list(shapes.values()))[1]


def _differences(diff: BenchDiff) -> list[str]:
    labels, metrics = _labels(diff), {"graph latency": "graph", "peak memory": "peak"}
    rows = diff.rows.to_dict("records")
    shapes = [one_line(labels[row["configuration"]], 24) for row in rows]
    places = [f"{shape}\n{one_line(row['backend'], 14)}" for shape, row in zip(shapes, rows, strict=True)]
    named = zip(rows, _without_repeats(shapes), _without_repeats(places), strict=True)
    rows = [{**row, "shape": shape, "named": place.partition("\n")[2]} for row, shape, place in named]
    table = columns(
        "shape | backend = named | metric | before | after | change | intervals | detectable | effect | verdict",
        metric=lambda row: str(metrics.get(row["metric"], row["metric"])),
        before=lambda row: _value(row, "before"),
        after=lambda row: _value(row, "after"),
        change=_change,
        intervals=lambda row: (
            "" if pd.isna(row["before_low"] + row["after_low"]) else "overlap" if row["overlap"] else "apart"
        ),
        detectable=words.finds_cell,
        effect=_effect,
    )
    return _plain(shown(rows, table, 3, ("intervals", "effect", "detectable", "change")))


def _value(row: Row, name: str) -> str:
    return (format_bytes if row["metric"] == "peak memory" else format_ns)(row[name])


def _percent(change: float) -> str:
    """`+5.1 %`, `-0.3 %`."""
    decimals = 0 if abs(change) >= 0.9995 else 1
    return f"{change * 100:+,.{decimals}f} %".replace("-0.0 %", "+0.0 %")


def _change(row: Row) -> str:
    """`+8.0 ± 0.4 %`; without the interval if samples are few, because it would be too narrow."""
    few = min(row["before_n"], row["after_n"]) < LEAST_SAMPLES or math.isnan(row["change_low"])
    if row["metric"] == "peak memory" or few:
        return _percent(row["change"])
    half = (row["change_high"] - row["change_low"]) / 2
    reach = ">100" if half > 1 else f"{half * 100:.{0 if half >= 0.0995 else 1}f}"
    return f"{_percent(row['change'])[:-2]} ± {reach} %"


def _effect(row: Row) -> str:
    """`+0.96 large`; empty for memory, which is not sampled."""
    text = f"{row['delta']:+.2f} {row['delta_word']}".replace("-0.00", "+0.00")
    return "" if math.isnan(row["adjusted_p"]) else text


def _totals(diff: BenchDiff) -> Iterator[str]:
    times = diff.rows[diff.rows["metric"] != "peak memory"]
    counts = times["verdict"].value_counts()
    order = [FASTER, SLOWER, NO_CLEAR_CHANGE, TOO_FEW_SAMPLES]
    verdicts = ", ".join(f"{counts[name]} {name}" for name in order if name in counts)
    least = format_share(diff.rules.least_effect)
    yield f"{len(times)} comparisons: {verdicts}; a difference counts if it is at least {least}"
    scope = f"over {diff.runs} runs before and after" if diff.runs > 1 else WITHIN_EACH
    meaning = "detectable: the smallest change that these samples would detect; effect: Cliff's delta."
    only = {"before": diff.only_before, "after": diff.only_after}
    named = [f"only {name}: {join_first(points, MAX_POINTS_NAMED)}" for name, points in only.items() if points]
    yield from _wrapped([f"± 95 % interval of the change, {scope}; {meaning}", *named])
