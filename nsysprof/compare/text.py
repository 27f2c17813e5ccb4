"""A comparison as text for a terminal or pull request, plain or Markdown: same numbers, same order."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.compare.attention_model import Expected
from nsysprof.compare.clocks import totals_table
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.findings import Difference, calls_text
from nsysprof.compare.gap_ledger import apportion, mean_text
from nsysprof.compare.pairs import SIDES
from nsysprof.compare.selection import STEP
from nsysprof.compare.traffic import Measured, flops_of, tensor_share
from nsysprof.core.text import (
    cell_count,
    command_line,
    drop_repeats,
    next_line,
    one_line,
    path_option,
    plural,
    shorten_both,
    visible,
)
from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.results.one_screen import FILES, LINES
from nsysprof.results.table import (
    TextTable,
    code_block,
    escape_markdown,
    row_dicts,
    screen_width,
    spread_text,
    without_empty,
    wrap,
)
from nsysprof.statistics.contrast import TOO_FEW_SAMPLES
from nsysprof.trace.trace import Report

MAX_WARNINGS = 12
MIN_LEVEL = 0.9499  # of an interval that counts as one of 95 %
_NAME_WIDTH, _SIDE_WIDTH = 60, 16
# Units of a ledger: from this many ns on, one step of the last digit in ns, its decimals, the unit and its ns.
_UNITS = (
    (100_000_000_000, 1_000_000, 3, "s", 10**9),
    (100_000_000, 1_000, 3, "ms", 10**6),
    (10_000, 100, 1, "µs", 10**3),
    (0, 1, 0, "ns", 1),
)
_MAX_FINDINGS, _MAX_CAUSES, _MAX_PAIRS, _LEAST_ROWS = 6, 8, 5, 3  # of the short answer
_SPREAD = ("median_ns", "iqr_ns", "min_ns", "max_ns", "n")


def comparison_screen(comparison: Comparison) -> str:
    """Format the answer on one screen: at most eight causes and five pairs, and fewer if the screen has less room."""
    top, pairs, room = _MAX_CAUSES, _MAX_PAIRS, LINES - FILES
    text = comparison_text(comparison, top=top)
    while (beyond := sum(max(-(-cell_count(line) // screen_width()), 1) for line in text.splitlines()) - room) > 0:
        if max(top, pairs) <= _LEAST_ROWS:
            break
        pairs = max(pairs - (beyond + 1) // 2, _LEAST_ROWS)
        top = max(top - max(beyond // 2, 1), _LEAST_ROWS)
        text = comparison_text(comparison, top=top, pairs=pairs)
    return text


def comparison_text(
    comparison: Comparison, *, top: int = 20, pairs: int = _MAX_PAIRS, every: bool = False, markdown: bool = False
) -> str:
    """Format the answer: the findings, causes and clocks of the pair with the largest difference, and a table of all
    pairs if there are several; ``every`` adds all details of every pair, with evidence, traffic, totals and warnings.

    Without ``every``, the table has the first ``pairs``. Each ledger has the ``top`` causes, and one row for all
    others, so that it adds up. Control characters in names are escaped; the text ends with a newline.
    """
    shown = escape_markdown if markdown else str
    blocks: list[list[str]] = []
    if not comparison.comparable:
        first, *others = comparison.agreement.reasons
        reasons = f"cannot be compared: {first}; nearest: {'; '.join(others)}"
        reasons += ". The two sides do different work, so the ratio of the times below is not a speedup."
        blocks.append([wrap(shown(reasons), "", "  ")])
    differences = [*comparison.differences.values()]
    merged = comparison.options.get("merge", DEFAULT_MERGE) is not None
    for difference in differences if every else differences[:1]:
        notes = _notes_on_both(comparison) if difference is differences[0] else ()
        blocks += _difference(difference, top, markdown, notes, every=every, merged=merged)
    if len(differences) > 1:
        blocks.append(pair_table(comparison, None if every else pairs).lines(markdown))
    if every:
        blocks += [table.lines(markdown) for table in totals_tables(comparison, top)]
    blocks += _head(comparison, shown, every=every)
    lines = [line for block in blocks if block for line in ("", *block)][1:]
    # Markdown is escaped already, and visible but for the mark that breaks mentions
    shown = str if markdown else visible
    return "".join(f"{shown(line)}\n" for text in lines for line in text.split("\n"))


def _notes_on_both(comparison: Comparison) -> Iterator[str]:
    """The compared ranges and the differences in recording conditions, if a reader would not expect them."""
    yield from comparison.agreement.notes
    unlike = [f"{name} {one} against {other}" for name, (one, other) in comparison.conditions.items()]
    if unlike:
        yield f"recorded under different conditions: {'; '.join(one_line(text, _NAME_WIDTH * 2) for text in unlike)}"


def _head(comparison: Comparison, shown: Callable[[str], str], *, every: bool) -> Iterator[list[str]]:
    """The reports and the warnings, formatted by ``shown``; without ``every``, only the number of warnings."""
    reports = [shown(_report(loaded.report)) for loaded in comparison.reports]
    head = reports if len(reports) == 1 else [f"base: {reports[0]}", f"new:  {reports[1]}"]
    warnings = drop_repeats([each for each in comparison.warnings if each not in comparison.agreement.notes])
    if warnings and not every:
        yield [*head, f"{plural(len(warnings), 'note')} on the input and the comparison: --full"]
        return
    yield head
    lines = [wrap(f"warning: {shown(one_line(text, 400))}", "", "  ") for text in warnings[:MAX_WARNINGS]]
    more = len(warnings) - MAX_WARNINGS
    yield [*lines, f"and {more:,} more warnings: see gap.json"] if more > 0 else lines


def _report(report: Report) -> str:
    about = report.about
    gpus = ", ".join(dict.fromkeys(str(gpu.name) for gpu in about.cuda_gpus))
    facts = [gpus, f"nsys {about.nsys_version}" if about.nsys_version else ""]
    return f"{report.path}: {', '.join(filter(None, facts))}".removesuffix(": ")


def pair_table(comparison: Comparison, most: int | None = None) -> TextTable:
    """Make a row for each of the first ``most`` pairs, in the order of `Comparison.ranked`. Names that all pairs have
    in common are in the head.
    """
    names = list(dict.fromkeys(pair.names for pair in comparison.sides))
    alike = len(names) == 1 and all(pair.place for pair in comparison.sides)
    rows = []
    for difference in [*comparison.differences.values()][:most]:
        row = difference.row
        label = row["place"] if alike else f"{row['base_name']} → {row['new_name']} {row['place']}".strip()
        largest = ""
        if difference.largest_cause:
            cause, share = difference.largest_cause
            largest = f"{one_line(cause, 30)} {format_share(share)}"
        medians = [format_ns(row[f"{side}_median_ns"]) for side in SIDES]
        both = [(row[f"base_{each}_ns"], row[f"new_{each}_ns"]) for each in ("median", "busy_median")]
        ratios = [format_ratio(base / new) if new else "-" for base, new in both]
        rows.append([one_line(label, _NAME_WIDTH), *medians, *ratios, row["verdict"], largest])
    heads = shorten_both(*names[0], _SIDE_WIDTH, one_line) if alike else SIDES
    label = "at" if alike else "pair"
    clock = " or ".join(f"by {each}" for each in dict.fromkeys(pair.clock for pair in comparison.sides))
    head = [label, *heads, clock, "by busy", f"{heads[1]} is", "most of the difference"]
    more = len(comparison.differences) - len(rows)
    note = f"median call {clock}; ratios: {heads[0]} ÷ {heads[1]}" + (f"; {more:,} more pairs: --full" if more else "")
    return TextTable(head, rows, "lrrrrll", note)


def _difference(
    difference: Difference, top: int, markdown: bool, notes: Iterable[str], *, every: bool, merged: bool
) -> Iterator[list[str]]:
    headline, *more = difference.findings if every else difference.findings[:_MAX_FINDINGS]
    more = [*notes, *more]
    if markdown:
        yield [f"**{escape_markdown(headline)}**", "", *[f"- {escape_markdown(line)}" for line in more]]
    else:
        command = [] if every else [next_line(next_command(difference, merged=merged))]
        yield [wrap(headline, "", "  "), *[wrap(line, "  ", "    ") for line in more], *command]
    traffic = traffic_tables(difference) if every else ()
    tables = (clock_table(difference), work_table(difference, top)) if every else ()
    for table in filter(None, (gap_table(difference, top), *tables, *traffic)):
        yield table.lines(markdown)
    if every:
        yield _evidence(difference, top, markdown)


def next_command(difference: Difference, *, merged: bool) -> str:
    """Return the command that shows more of the slower side; ``merged``: whether the comparison merged names."""
    pair, row = difference.pair, difference.row
    side = pair.base if row["base_median_ns"] > row["new_median_ns"] else pair.new
    path, options = side.loaded.report.path, side.loaded.attribution.options
    if side.is_whole:
        return command_line("why", path, *options)
    inner = f"{side.text}/{side.per}"
    text = inner if inner in side.loaded.texts else side.text
    return command_line("why", path, path_option(text), *options, "" if merged else "--no-merge")


def gap_table(difference: Difference, top: int) -> TextTable:
    """Make a table of the ``top`` causes of a pair, all other causes combined, and the total. All figures have one unit
    and, as rounded, add up to the total.

    ``values`` of the table are the times (ns) per cause.
    """
    row, gaps, pair = difference.row, difference.gaps, difference.pair
    shown, rest = gaps.head(top), gaps.iloc[top:]
    longer = max(row["base_mean_ns"], row["new_mean_ns"])
    _, step, decimals, unit, unit_ns = next(each for each in _UNITS if longer >= each[0])
    base, new = (apportion([*shown[f"{side}_ns"].tolist(), int(rest[f"{side}_ns"].sum())], step) for side in SIDES)

    def cells(counts: Sequence[float], base: int, new: int, share: float) -> list[str]:
        one, other = (mean_text(count, 2) for count in counts)
        kernels = "" if not any(counts) else one if one == other else f"{one} → {other}"
        times = [f"{value * step / unit_ns:,.{decimals}f}" if value else "" for value in (base, new)]
        change = f"{(new - base) * step / unit_ns:+,.{decimals}f}"
        return [kernels, *times, change, "" if difference.no_shares else _share(share)]

    kernels = gaps[["base_kernels", "new_kernels"]]
    causes = zip(shown["cause"], kernels.to_numpy().tolist(), base, new, shown["share"], strict=False)
    rows = [[one_line(cause, _NAME_WIDTH), *cells(*figures)] for cause, *figures in causes]
    if len(rest):
        share = float(rest["share"].sum(skipna=False))
        counts = kernels.iloc[top:].sum().tolist()
        rows.append([plural(len(rest), "more cause"), *cells(counts, base[-1], new[-1], share)])
    share = 1.0 if row["delta_ns"] else math.nan
    rows.append(["total", *cells(kernels.sum().tolist(), sum(base), sum(new), share)])
    names = shorten_both(*pair.names, _SIDE_WIDTH, one_line)
    head = ["cause", "kernels", *(f"{name}, {unit}" for name in names), f"change, {unit}", "share"]
    per = " and ".join(dict.fromkeys((pair.base.per, pair.new.per)))
    note = f"mean {unit} {difference.each} ({calls_text(row)} of {per}), adding up to "
    note += "the step time without warm-up" if difference.clock == STEP else "the span of the whole range"
    if difference.whole:
        note = f"{unit} {difference.each}, adding up to the span from the first GPU op to the end of the last"
    exact = shown[["base_ns", "new_ns", "delta_ns"]].to_numpy().tolist()
    values = [[None, None, *each, None] for each in exact] + [[None] * 6] * (len(rows) - len(shown))
    notes = "; ".join(filter(None, (note, difference.no_shares)))
    return TextTable(head, rows, "lrrrrr", notes, last_apart=True, values=values)


def clock_table(difference: Difference) -> TextTable:
    """Make a table with a row per clock: the time of a call on each side, and the verdict."""
    rows = []
    for row in row_dicts(difference.clocks):
        spreads = [spread_text(*(row[f"{side}_{name}"] for name in _SPREAD)) for side in SIDES]
        ratio = ["", ""] if math.isnan(row["ratio"]) else [format_ratio(row["ratio"]), _interval(row)]
        rows.append([row["clock"], *spreads, *ratio, row["verdict"]])
    names = shorten_both(*difference.pair.names, _SIDE_WIDTH, one_line)
    few = "; (a–b): min and max of fewer than 10 samples" if "–" in str(rows) else ""
    step = "; step: time since the end of the previous step, without warm-up" if difference.clock == STEP else ""
    return TextTable(
        ["clock", *names, "ratio", "95 % interval", f"{names[1]} is"],
        rows,
        "lrrrrl",
        f"median {difference.noun} ± half the IQR{few}{step}; span: time between"
        " the first GPU ops of consecutive calls",
        spare=["95 % interval"],
    )


def work_table(difference: Difference, top: int) -> TextTable | None:
    """Make a table of the launches and moved bytes of each side per kernel or copy, with the verdict on the work."""
    if difference.work.empty:
        return None
    rows = []
    for row in row_dicts(difference.work.head(top)):
        launches = " → ".join(dict.fromkeys(mean_text(row[f"{side}_launches"], 2) for side in SIDES))
        flops, sizes, local = ([row[f"{side}_{name}"] for side in SIDES] for name in ("flops", "bytes", "local_memory"))
        rows.append(
            [
                one_line(short_name(row["name"]), _NAME_WIDTH),
                launches,
                "" if math.isnan(row["ratio"]) else format_ratio(row["ratio"]),
                _change(flops, lambda each: format_count(round(each))),
                _change(sizes, lambda each: format_bytes(round(each))),
                _change(local, lambda each: f"{each:,.0f}"),
                " ".join(dict.fromkeys(f"{row['math_unit']} {row['element']}".replace("unknown", "").split())),
                row["verdict"],
            ]
        )
    more = len(difference.work) - len(rows)
    note = f"{difference.each}; ratio: work of new ÷ work of base (kernel threads or copied bytes)"
    note += f"; {more:,} more names: see gap.json" if more > 0 else ""
    heads = ["work", "launches", "ratio", "FLOP", "bytes", "local memory, B", "math", "work is"]
    return TextTable(*without_empty(heads, rows, "lrrrrrll"), note)


def _change(both: Sequence[float], shown: Callable[[float], str]) -> str:
    """The amounts of both sides, or one if they are equal; empty if neither side has any."""
    texts = [shown(each) if each > 0 else "-" for each in both]
    return "" if set(texts) == {"-"} else " → ".join(dict.fromkeys(texts))


def totals_tables(comparison: Comparison, top: int) -> Iterator[TextTable]:
    """Yield the host calls and copies of whole traces; empty for other comparisons."""
    for pair in comparison.sides:
        if pair.base.is_whole:
            heads = shorten_both(*pair.names, _SIDE_WIDTH, one_line)
            yield from (totals_table(name, totals, heads, top) for name, totals in comparison.totals.items())


def _interval(row: Mapping[str, Any]) -> str:
    """The interval, with its level if this is below 95 %; empty if samples are too few."""
    if row["verdict"] == TOO_FEW_SAMPLES:
        return ""
    level = "" if row["level"] > MIN_LEVEL else f" ({100 * row['level']:.0f} %)"
    return f"{format_ratio(row['ratio_low'])} to {format_ratio(row['ratio_high'])}{level}"


def _evidence(difference: Difference, top: int, markdown: bool) -> list[str]:
    gaps, head = difference.gaps.head(top), f"Evidence, {difference.each}"
    texts = {cause: text for cause, text in zip(gaps["cause"], gaps["evidence"], strict=True) if text}
    width = min(max(map(len, texts), default=0), _NAME_WIDTH, screen_width() // 4) + 2
    heads = {cause: one_line(cause, width - 2).ljust(width) for cause in texts}
    lines = [wrap(one_line(text, 2000), heads[cause], " " * width) for cause, text in texts.items()]
    if not markdown:
        return [head, *lines]
    return [f"<details><summary>{head}</summary>", "", *code_block(lines), "", "</details>"]


def traffic_tables(difference: Difference) -> Iterator[TextTable]:
    """Yield one table with the expected bytes of both sides; with counters, a table per side with measured bytes."""
    both, gaps = difference.measured, difference.gaps
    if not any(both):
        if not difference.traffic.empty:
            yield _expected(difference)
        return
    last = both[1] or both[0]
    for side, name, model, measured in zip(SIDES, difference.pair.names, difference.models, both, strict=True):
        causes = gaps.loc[gaps[f"{side}_kernels"] > 0, "cause"].tolist()
        if measured:
            yield _measured(name, causes, model, measured, last=measured is last)


def _expected(difference: Difference) -> TextTable:
    rows = []
    for row in row_dicts(difference.traffic):
        cells = [one_line(row["cause"], _NAME_WIDTH)]
        for side, selection in zip(SIDES, difference.pair.sides, strict=True):
            size, rate = row[f"{side}_bytes"], row[f"{side}_bytes_per_s"]
            most = selection.only_gpu.bandwidth_bytes_per_s if selection.only_gpu else None
            share = rate / most if most else math.nan
            cells += [_size(size), "cache" if share > 1 else _share(share)]
        rows.append(cells)
    names = shorten_both(*difference.pair.names, _SIDE_WIDTH, one_line)
    head = ["expected traffic", *(text for name in names for text in (name, "of bandwidth"))]
    shapes = [f"expected bytes per call for {model.text}" for model in difference.models if model]
    note = f"{' and '.join(dict.fromkeys(shapes))}; % of the GPU's memory bandwidth"
    if any("cache" in row[1:] for row in rows):
        note += "; cache: the rate exceeds the memory bandwidth"
    return TextTable(head, rows, "lrrrr", note)


def _measured(name: str, causes: list[str], model: Expected | None, measured: Measured, *, last: bool) -> TextTable:
    """A side's causes with expected and measured figures, without empty columns."""
    figures = row_dicts(measured.causes.reindex(causes))
    rows = [[one_line(cause, _NAME_WIDTH), *_figures(row)] for cause, row in zip(causes, figures, strict=True)]
    rows.append(["total", *_figures(measured.total)])
    head = [
        f"measured, {one_line(name, _SIDE_WIDTH)}",
        *("expected", "DRAM", "of expected", "bandwidth", "L2", "FLOP", "tensor cores"),
    ]
    notes = "; ".join(_notes(model, measured, last=last))
    return TextTable(*without_empty(head, rows, "lrrrrrrr"), notes, last_apart=True)


def _notes(model: Expected | None, measured: Measured, *, last: bool) -> Iterator[str]:
    """The sources of the figures and the number of kernels with them; below the ``last`` table, also their meaning."""
    calls = f"median of {measured.calls:,} calls" if measured.calls > 1 else "one call"
    yield f"per call, {calls} in {measured.path.name}"
    yield (
        f"{measured.matched:,} of {measured.launches:,} kernels in this report have counters"
        f" ({format_share(measured.matched_share)} of kernel time)"
    )
    if model and model.bytes_of:
        yield f"expected: computed for {model.text}"
    if measured.cold:
        yield "the caches were empty at the start of every kernel"
    if last:
        yield (
            "DRAM: bytes read and written while a kernel runs, including writes of data that an earlier "
            "kernel left in L2"
        )
        yield "bandwidth: DRAM bytes ÷ kernel time in this report, in % of the GPU's memory bandwidth"


def _figures(amounts: Mapping[str, Any]) -> list[str]:
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


def _share(share: float) -> str:
    return "" if math.isnan(share) else format_share(share)
