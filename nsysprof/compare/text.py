"""A comparison as text for a terminal or a pull request, plain or as Markdown: same numbers, same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nsysprof.compare.attention_model import Expected
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.findings import calls_text
from nsysprof.compare.gap_ledger import apportion, untold_shares
from nsysprof.compare.pairs import Pair
from nsysprof.compare.traffic import Measured, flops_of, tensor_share
from nsysprof.core.text import drop_repeats, one_line, shorten_both, visible
from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio, format_share
from nsysprof.results.table import TextTable, code_block, escape_markdown, spread_text, wrap
from nsysprof.statistics.contrast import TOO_FEW_SAMPLES
from nsysprof.trace.report import Report

_MOST_WARNINGS = 12
_LEVEL = 0.9499  # of an interval that holds 95 % as far as anybody can tell
_NAME_WIDTH, _SIDE_WIDTH = 60, 16
# Units of a ledger: from this many ns on, one step of the last digit in ns, its decimals, and the unit.
_STEPS = (
    (100_000_000_000, 1_000_000, 3, "s"),
    (100_000_000, 1_000, 3, "ms"),
    (10_000, 100, 1, "µs"),
    (0, 1, 0, "ns"),
)
_SPREAD = ("median_ns", "iqr_ns", "min_ns", "max_ns", "n")
_LARGER = {"s": 10**9, "ms": 10**6, "µs": 10**3, "ns": 1}


def comparison_text(
    comparison: Comparison, *, top: int = 20, every: bool = False, markdown: bool = False
) -> str:
    """The whole answer: reports, warnings, a table of all pairs where there are many, and the ledger of the pair with
    the largest difference, or of ``every`` pair; ``top`` causes each, the rest in one row, so that it adds up.

    What names hold that a terminal would obey is written out; the text ends with a newline.
    """
    blocks = [*_head(comparison, escape_markdown if markdown else str)]
    by_name = {pair.name: pair for pair in comparison.sides}
    pairs = [by_name[name] for name in comparison.ranked]
    if len(pairs) > 1:
        blocks.append(pair_table(comparison).lines(markdown))
        if not every:
            pairs = pairs[:1]
            blocks.append([f"The largest difference, of {len(comparison.pairs):,} (--all shows the others):"])
    for pair in pairs:
        blocks += _pair(comparison, pair, top, markdown)
    lines = [line for block in blocks if block for line in ("", *block)][1:]
    shown = (
        str if markdown else visible
    )  # what is escaped for Markdown is visible, but for what breaks mentions
    return "".join(f"{shown(line)}\n" for text in lines for line in text.split("\n"))


def _head(comparison: Comparison, shown: Callable[[str], str]) -> Iterator[list[str]]:
    """The reports and the warnings; ``shown`` makes their texts fit for where they are printed."""
    reports = [
        pair.examined.attribution.trace.report for pair in (comparison.sides[0].base, comparison.sides[0].new)
    ]
    if comparison.one_report:
        yield [shown(_report(reports[0]))]
    else:
        yield [f"base: {shown(_report(reports[0]))}", f"new:  {shown(_report(reports[1]))}"]
    warnings = drop_repeats(comparison.warnings)
    lines = [wrap(f"warning: {shown(one_line(text, 400))}", "", "  ") for text in warnings[:_MOST_WARNINGS]]
    more = len(warnings) - _MOST_WARNINGS
    yield [*lines, f"and {more:,} warnings more: see gap.json"] if more > 0 else lines


def _report(report: Report) -> str:
    about = report.about
    gpus = ", ".join(dict.fromkeys(str(gpu.name) for gpu in about.cuda_gpus))
    facts = [gpus, f"nsys {about.nsys_version}" if about.nsys_version else ""]
    return f"{report.path}: {', '.join(fact for fact in facts if fact)}".removesuffix(": ")


def pair_table(comparison: Comparison) -> TextTable:
    """A row per pair, in the order of `Comparison.ranked`; where all call their sides alike, the head alone does."""
    names = list(dict.fromkeys((pair.base_name, pair.new_name) for pair in comparison.sides))
    alike = len(names) == 1 and all(pair.place for pair in comparison.sides)
    rows = []
    every = dict(iter(comparison.gaps.groupby("pair", sort=False)))
    for row in _rows(comparison.pairs.set_index("pair", drop=False).loc[comparison.ranked]):
        gaps = every[row.pair]
        label = row.place if alike else f"{row.base_name} → {row.new_name} {row.place}".strip()
        shared = not untold_shares(row._asdict(), gaps) and gaps["share"].notna().any()
        largest = gaps.iloc[int(gaps["share"].argmax())] if shared else None
        rows.append(
            [
                one_line(label, _NAME_WIDTH),
                format_ns(row.base_median_ns),
                format_ns(row.new_median_ns),
                format_ratio(row.base_median_ns / row.new_median_ns) if row.new_median_ns else "-",
                format_ratio(row.base_busy_median_ns / row.new_busy_median_ns)
                if row.new_busy_median_ns
                else "-",
                row.verdict,
                "" if largest is None else f"{one_line(largest.cause, 30)} {format_share(largest.share)}",
            ]
        )
    heads = shorten_both(*names[0], _SIDE_WIDTH, one_line) if alike else ("base", "new")
    head = [
        "at" if alike else "pair",
        *heads,
        "by span",
        "by busy",
        f"{heads[1]} is",
        "most of the difference",
    ]
    return TextTable(head, rows, "lrrrrll", f"median call by span, and {heads[0]}/{heads[1]}")


def _pair(comparison: Comparison, pair: Pair, top: int, markdown: bool) -> Iterator[list[str]]:
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    headline, *more = comparison.findings[pair.name]
    if markdown:
        yield [f"**{escape_markdown(headline)}**", "", *[f"- {escape_markdown(line)}" for line in more]]
    else:
        yield [wrap(headline, "", "  "), *[wrap(line, "  ", "    ") for line in more]]
    for table in (
        gap_table(comparison, pair, top),
        clock_table(comparison, pair),
        *traffic_tables(comparison, pair),
    ):
        yield table.lines(markdown)
    yield _evidence(gaps.head(top), markdown)


def gap_table(comparison: Comparison, pair: Pair, top: int) -> TextTable:
    """The ``top`` causes of a pair, the others and the total, in one unit whose last digit adds up as well."""
    row = next(_rows(comparison.pairs[comparison.pairs["pair"] == pair.name]))
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    shown, rest = gaps.head(top), gaps.iloc[top:]
    _, step, decimals, unit = next(
        each for each in _STEPS if max(row.base_span_ns, row.new_span_ns) >= each[0]
    )
    scale = step / _LARGER[unit]
    base, new = (
        apportion([*shown[column].tolist(), int(rest[column].sum())], step)
        for column in ("base_ns", "new_ns")
    )
    untold = untold_shares(row._asdict(), gaps)
    shares = gaps["share"] * float("nan") if untold else gaps["share"]
    rows = []
    for at, (cause, *counts, share) in enumerate(
        zip(shown["cause"], shown["base_kernels"], shown["new_kernels"], shares.head(top), strict=True)
    ):
        rows.append(
            [
                one_line(cause, _NAME_WIDTH),
                *_cells(counts, base[at], new[at], scale, decimals),
                _share(share),
            ]
        )
    if len(rest):
        counts = [float(rest[column].sum()) for column in ("base_kernels", "new_kernels")]
        cells = _cells(counts, base[-1], new[-1], scale, decimals)
        rows.append(
            [f"{len(rest):,} causes more", *cells, _share(float(shares.iloc[top:].sum(skipna=False)))]
        )
    counts = [float(gaps[column].sum()) for column in ("base_kernels", "new_kernels")]
    total = _cells(counts, sum(base), sum(new), scale, decimals)
    rows.append(["total", *total, _share(1.0 if row.delta_ns and not untold else float("nan"))])
    names = shorten_both(pair.base_name, pair.new_name, _SIDE_WIDTH, one_line)
    head = ["cause", "kernels", *(f"{name}, {unit}" for name in names), f"change, {unit}", "share"]
    per = pair.base.per if pair.base.per == pair.new.per else f"{pair.base.per} and {pair.new.per}"
    note = f"mean {unit} per call ({calls_text(row._asdict())} of {per}), adding up to the span of the whole range"
    if untold:
        note += f"; {untold}"
    return TextTable(head, rows, "lrrrrr", note, last_apart=True)


def _cells(counts: Sequence[float], base: int, new: int, scale: float, decimals: int) -> list[str]:
    one, other = (f"{count:,.0f}" if count == int(count) else f"{count:,.2f}" for count in counts)
    kernels = "" if not any(counts) else one if one == other else f"{one} → {other}"
    times = ["" if not value else f"{value * scale:,.{decimals}f}" for value in (base, new)]
    return [kernels, *times, f"{(new - base) * scale:+,.{decimals}f}"]


def _share(share: float) -> str:
    return "" if math.isnan(share) else format_share(share)


def clock_table(comparison: Comparison, pair: Pair) -> TextTable:
    """What each clock says of a call of either side of a pair, and the verdict by it."""
    rows = []
    for row in _rows(comparison.clocks[comparison.clocks["pair"] == pair.name]):
        each = [
            spread_text(*(getattr(row, f"{side}_{name}") for name in _SPREAD)) for side in ("base", "new")
        ]
        told = ["", ""] if math.isnan(row.ratio) else [format_ratio(row.ratio), _interval(row)]
        rows.append([row.clock, *each, *told, row.verdict])
    names = shorten_both(pair.base_name, pair.new_name, _SIDE_WIDTH, one_line)
    few = "; (a–b): of fewer than 10 the shortest and the longest" if "–" in str(rows) else ""
    return TextTable(
        ["clock", *names, "ratio", "95 % interval", f"{names[1]} is"],
        rows,
        "lrrrrl",
        f"median call ± half the IQR{few}; span: from its first op to that of the next call",
    )


def _interval(row: Any) -> str:
    """From … to, with the level where it is less than 95 %; nothing where the samples are too few for anything."""
    if row.verdict == TOO_FEW_SAMPLES:
        return ""
    held = "" if row.level > _LEVEL else f" ({100 * row.level:.0f} %)"
    return f"{format_ratio(row.ratio_low)} to {format_ratio(row.ratio_high)}{held}"


def _evidence(gaps: pd.DataFrame, markdown: bool) -> list[str]:
    """What stands behind each cause, beside it."""
    told = [
        (cause, text)
        for cause, text in zip(gaps["cause"].tolist(), gaps["evidence"].tolist(), strict=True)
        if text
    ]
    width = min(max((len(cause) for cause, _ in told), default=0), _NAME_WIDTH) + 2
    lines = [
        wrap(one_line(text, 2000), one_line(cause, width - 2).ljust(width), " " * width)
        for cause, text in told
    ]
    if not markdown:
        return ["Evidence, per call", *lines]
    return ["<details><summary>Evidence, per call</summary>", "", *code_block(lines), "", "</details>"]


def _rows(frame: pd.DataFrame) -> Iterator[Any]:
    return frame.itertuples(index=False)


def traffic_tables(comparison: Comparison, pair: Pair) -> Iterator[TextTable]:
    """One table for both sides of what the model expects; where there are counters, one for each side with both."""
    both = comparison.measured.get(pair.name, (None, None))
    if not any(both):
        yield from _expected(comparison, pair)
        return
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    names = (pair.base_name, pair.new_name)
    last = both[1] or both[0]
    for side, name, model, found in zip(
        ("base", "new"), names, comparison.models[pair.name], both, strict=True
    ):
        causes = [
            cause
            for cause, kernels in zip(gaps["cause"].tolist(), gaps[f"{side}_kernels"].tolist(), strict=True)
            if kernels
        ]
        if found:
            yield _measured(name, causes, model, found, last=found is last)


def _expected(comparison: Comparison, pair: Pair) -> Iterator[TextTable]:
    """What each cause should move, and how fast that was, where the shape is known."""
    frame = comparison.traffic[comparison.traffic["pair"] == pair.name]
    models = comparison.models[pair.name]
    if frame.empty:
        return
    rows, cached = [], False
    for row in frame.itertuples(index=False):
        cells = [one_line(str(row.cause), _NAME_WIDTH)]
        for side, which in (("base", pair.base), ("new", pair.new)):
            size, rate = getattr(row, f"{side}_bytes"), getattr(row, f"{side}_bytes_per_s")
            most = which.only_gpu.bandwidth_bytes_per_s if which.only_gpu else None
            beyond = bool(most and rate > most)
            cached |= beyond
            cells += [_size(size), "cache" if beyond else _share(rate / most) if most else ""]
        rows.append(cells)
    names = shorten_both(pair.base_name, pair.new_name, _SIDE_WIDTH, one_line)
    head = ["expected traffic", *(text for name in names for text in (name, "of bandwidth"))]
    notes = [f"bytes per call by the model of {model.text}" for model in models if model]
    note = f"{' and '.join(dict.fromkeys(notes))}; that over time, of the GPU's memory bandwidth"
    if cached:
        note += "; cache: more than the memory gives"
    yield TextTable(head, rows, "lrrrr", note)


def _measured(
    name: str,
    causes: list[str],
    model: Expected | None,
    found: Measured,
    *,
    last: bool,
) -> TextTable:
    """A side's causes with what the model expects and what was counted; columns without any figure are left out."""
    rows = [[one_line(cause, _NAME_WIDTH), *_traffic_cells(_of(found.causes, cause))] for cause in causes]
    rows.append(["total", *_traffic_cells(found.total)])
    head = [
        f"measured, {one_line(name, _SIDE_WIDTH)}",
        *("expected", "DRAM", "of expected", "bandwidth", "L2", "FLOP", "tensor cores"),
    ]
    shown = [at for at in range(len(head)) if at == 0 or any(row[at] for row in rows)]
    rows = [[row[at] for at in shown] for row in rows]
    return TextTable(
        [head[at] for at in shown],
        rows,
        "l" + "r" * (len(shown) - 1),
        "; ".join(_notes(model, found, last=last)),
        last_apart=True,
    )


def _notes(model: Expected | None, found: Measured, *, last: bool) -> Iterator[str]:
    """Where the figures come from and how many kernels have them; below the ``last`` table also what they mean."""
    calls = f"median of {found.calls:,} calls" if found.calls > 1 else "one call"
    yield f"per call, {calls} in {found.path.name}"
    yield (
        f"{found.matched:,} of {found.launches:,} kernels of this report have counters"
        f" ({format_share(found.matched_share)} of their time)"
    )
    if model and model.bytes_of:
        yield f"expected by the model of {model.text}"
    if found.cold:
        yield "every kernel began with empty caches"
    if last:
        yield "DRAM: read and written while a kernel ran, which may be what an earlier one had left in L2"
        yield "bandwidth: of the GPU's, over the time in this report"


def _of(causes: pd.DataFrame, cause: str) -> Mapping[str, float]:
    """The figures of a cause, NaN for one without any."""
    if cause not in causes.index:
        return dict.fromkeys(causes.columns, math.nan)
    return {str(name): float(causes[name][cause]) for name in causes.columns}


def _traffic_cells(amounts: Mapping[str, Any]) -> list[str]:
    size, expected = amounts["dram_bytes"], amounts["expected_bytes"]
    flops = flops_of(amounts)
    return [
        _size(expected),
        _size(size),
        _share(size / expected if expected else math.nan),
        _share(amounts.get("dram_share", math.nan)),
        _size(amounts["l2_bytes"]),
        "" if math.isnan(flops) else format_count(round(flops)),
        _share(tensor_share(amounts)),
    ]


def _size(size: float) -> str:
    return "" if math.isnan(size) else format_bytes(size)
