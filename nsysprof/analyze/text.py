"""An answer as text for a terminal, a log or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.highlights import (
    LAUNCH_BOUND_IDLE,
    MIN_WEIGHT,
    WORTH_ASKING_WHY,
    idle_shares,
    kernels_inside,
    launch_bound,
    preparing,
    top_rows,
)
from nsysprof.attribution.verify import Verification
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import drop_repeats, one_line, plural, quote_path, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_count, format_ns, format_share
from nsysprof.kernels.classify import short_name
from nsysprof.results.table import Column, TextTable, show_columns, spread_text, text_table, wrap
from nsysprof.statistics.summary import LEAST_SAMPLES
from nsysprof.trace.plausibility import tells_of_dropped_events
from nsysprof.trace.report import Diagnostic, Report
from nsysprof.trace.trace import KERNEL, START_END

_NAME_WIDTH = 48
_MAX_INDENTS = 12
_TOP_RANGES, _TOP_KERNELS = 4, 5
# The kernels that no range owns are shown when they take at least this share of the time.
_UNOWNED_SHARE = 0.1
_MAX_DIFFERENCES = 20
_MAX_DIAGNOSTICS = 3
# Messages of nsys on each process, even a shell that starts the program: the report as a whole has its own.
_OF_ONE_PROCESS = re.compile(
    r"No .+ events collected|Not all (?!CUDA|NVTX).+ events might have been collected"
)
_OF_GPU_WORK = re.compile(r"CUDA|CUPTI|NVTX|GPU|driver|Unified Memory", re.IGNORECASE)
_LEDGER = (
    Column("fate", "what the GPU ops were launched from", head="launched from"),
    Column("ops", "how many they are", head="GPU ops"),
    Column("sum_ns", "their added durations", head="sum"),
    Column("share", "the part of the whole that these are"),
)


def summary(breakdown: Breakdown, top: int = 20, *, verbose: bool = False) -> str:
    """Write the whole answer: report, warnings, ledger, range tree (``top`` rows), top kernels of the top ranges.

    ``verbose`` shows all that nsys recorded of the recording, and each warning. What names hold that a terminal would
    obey is written out; the text ends with a newline.
    """
    parts = [
        [*report_lines(breakdown.attribution.trace.report), *warning_lines(breakdown, verbose=verbose)],
        [work_line(breakdown), *breakdown.graph_counts.sentences(breakdown.attribution.graphs)],
        [*_waits(breakdown)],
        [*_ledger(breakdown), *_parts(breakdown, top)],
        [*_ranges(breakdown, top)],
        *_kernels(breakdown),
        *_summaries(breakdown, top),
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "".join(f"{visible(line)}\n" for block in lines for line in block.split("\n"))


def report_lines(report: Report) -> Iterator[str]:
    """Describe the report: its file, GPUs, system and command."""
    about = report.about
    made = f"report of {report.reader.recorder}, version not recorded"
    if about.nsys_version:
        made = f"report {'of' if about.recorder_version else 'exported by'} nsys {about.nsys_version}"
    if (
        about.recorder_version
        and about.export_version
        and not _same(about.recorder_version, about.export_version)
    ):
        made += f", exported by {about.export_version}"
    lasted = f", {format_ns(about.duration_ns)} of recording" if about.duration_ns else ""
    yield f"{visible(str(report.path))}: {made}{lasted}"
    cuda = [gpu for gpu in about.gpus if gpu.is_cuda]
    for gpu in dict.fromkeys(_gpu(gpu) for gpu in cuda):
        count = sum(_gpu(other) == gpu for other in cuda)
        yield f"  GPU      {f'{count} x ' if count > 1 else ''}{gpu}"
    versions = [("driver", about.driver_version), ("CUDA", about.cuda_version), ("", about.os)]
    system = ", ".join(f"{label} {value}".strip() for label, value in versions if value)
    if system:
        yield f"  system   {system}"
    if about.command:
        yield f"  command  {one_line(about.command, 100)}"


def _same(one: str, other: str) -> bool:
    """Whether two versions of nsys are the same release: year, number, patch."""
    return re.findall(r"\d+", one)[:3] == re.findall(r"\d+", other)[:3]


def _gpu(gpu: Any) -> str:
    facts = [
        f"{gpu.sm_count} SMs" if gpu.sm_count else None,
        format_bytes(gpu.memory_bytes) if gpu.memory_bytes else None,
        format_bandwidth(gpu.bandwidth_bytes_per_s) if gpu.bandwidth_bytes_per_s else None,
    ]
    known = ", ".join(fact for fact in facts if fact)
    return f"{gpu.name} ({known})" if known else str(gpu.name)


def warning_lines(breakdown: Breakdown, *, verbose: bool = False) -> Iterator[str]:
    """List messages of nsys that bear on the numbers, and the warnings of the analysis; ``verbose``: all of them."""
    diagnostics = breakdown.attribution.trace.report.about.diagnostics
    shown: Sequence[Diagnostic] = diagnostics
    if not verbose:
        shown = [each for each in diagnostics if _bears_on_numbers(each)][:_MAX_DIAGNOSTICS]
    for each in shown:
        times = f" ({each.count} times)" if each.count > 1 else ""
        yield f"  nsys {each.severity}: {one_line(each.text, 160)}{times}"
    more = len(diagnostics) - len(shown)
    if more:
        yield f"  nsys recorded {plural(more, 'message')} more: --verbose shows, and analysis.json holds them"
    for warning in breakdown.warnings if verbose else drop_repeats(breakdown.warnings):
        yield f"  warning  {one_line(warning, 400)}"


def _bears_on_numbers(each: Diagnostic) -> bool:
    if _OF_ONE_PROCESS.match(each.text) or tells_of_dropped_events(each):  # the latter is a warning
        return False
    return each.severity == "error" or _OF_GPU_WORK.search(each.text) is not None


def work_line(breakdown: Breakdown) -> str:
    """State in one sentence how much work there is, and for how much of the time the GPUs are busy."""
    totals = breakdown.totals
    if not totals["ops"]:
        return "no GPU work"
    counts = [plural(totals["kernels"], "kernel"), plural(totals["memops"], "memory operation")]
    if totals["graph_traces"]:
        counts.append(f"{plural(totals['graph_traces'], 'CUDA graph')} traced whole")
    if totals["migrations"]:
        counts.append(f"{plural(totals['migrations'], 'migration')} beside them")
    gpus, busy = breakdown.gpu_count, format_share(breakdown.busy_share)
    who = "the GPU is" if gpus == 1 else f"{gpus} GPUs are"
    return (
        f"{', '.join(counts)}: sum {format_ns(breakdown.work_ns)}; {who} busy for {busy} of the"
        f" {format_ns(totals['span_ns'])} from the first GPU op to the last"
    )


def ledger_table(breakdown: Breakdown, *, empty: bool) -> TextTable:
    """Make the ledger with its total, and with outcomes of no GPU op where they are wanted (``empty``)."""
    totals = breakdown.totals
    total = {"fate": "total", "ops": totals["ops"], "sum_ns": totals["sum_ns"], "share": 1.0}
    rows = [row for row in (*breakdown.columns("ledger").records(), total) if row["ops"] or empty]
    if not totals["ops"]:
        rows = [{**row, "share": None} for row in rows]
    return show_columns(_LEDGER, rows, missing="-")


def _ledger(breakdown: Breakdown) -> Iterator[str]:
    if breakdown.totals["ops"]:
        yield from ledger_table(breakdown, empty=False).lines()


def _parts(breakdown: Breakdown, top: int) -> Iterator[str]:
    """Show how the GPU ops divide, the ``top`` parts, where the answer is split."""
    rows = []
    for part, _ in breakdown.parts if breakdown.by else ():
        ops = part.attribution.trace.ops
        chosen = slice(None) if part.ops is None else part.ops
        kind, sum_ns = ops.kind[chosen], int((ops.end[chosen] - ops.start[chosen]).sum())
        rows.append((-sum_ns, one_line(str(part.label), 40), len(kind), np.count_nonzero(kind == KERNEL)))
    total = breakdown.totals["sum_ns"]
    cells = [
        [
            label,
            f"{ops:,}",
            f"{kernels:,}",
            format_ns(-sum_ns),
            format_share(-sum_ns / total) if total else "",
        ]
        for sum_ns, label, ops, kernels in sorted(rows)
        if ops
    ]
    if cells:
        yield ""
        yield text_table([f"by {breakdown.by}", "GPU ops", "kernels", "sum", "share"], cells[:top], "lrrrr")
        if len(cells) > top:
            yield f"{len(cells) - top:,} more: --top {len(cells)}"


def _ranges(breakdown: Breakdown, top: int) -> Iterator[str]:
    merged, by = breakdown.columns("merged"), breakdown.by
    if not len(merged):
        return
    numbers = top_rows(breakdown, top)
    shown = merged.take(numbers)
    idle = idle_shares(breakdown, numbers.tolist())
    waiting, early = launch_bound(breakdown, numbers, idle), preparing(merged)[numbers]
    rows: list[list[str]] = []
    around: list[int] = []  # depths of the ranges around the row, as far as they are shown
    head = ["range"]
    for row, waits in zip(_rows(shown), waiting.tolist(), strict=True):
        cells = range_cells(row, breakdown.work_ns, waits, captured=breakdown.graphs is not None)
        head = ["range", *cells]
        while around and around[-1] >= row.depth:
            around.pop()
        left_out = row.depth - around[-1] - 1 if around else 0
        if left_out:
            indent = "  " * min(row.depth - left_out, _MAX_INDENTS)
            gap = f"{indent}… {left_out:,} more, each inside the one above"
            rows.append([*([""] if by else []), gap, *[""] * len(cells)])
        around.append(row.depth)
        part = [one_line(str(getattr(row, by)), 30)] if by else []
        rows.append([*part, _label(row), *(text for text, _ in cells.values())])
    head = [by, *head] if by else head
    yield text_table(head, rows, ("ll" if by else "l").ljust(len(head), "r"))
    yield from range_notes(shown, waiting)
    yield from _pointer(breakdown, shown.take(~early), idle[~early])
    if (shown["depth"] > _MAX_INDENTS).any():
        yield "[n]: n ranges are around this one."
    if len(merged) > len(shown):
        more = f"--top {len(merged)}, or " if len(top_rows(breakdown, len(merged))) > len(shown) else ""
        yield f"{plural(len(merged) - len(shown), 'more range')}: {more}see ranges.csv"


def _waits(breakdown: Breakdown) -> Iterator[str]:
    """Say what the GPU waits for most, and point to `nsysprof why`, which says all of it."""
    waits, path = breakdown.waits, quote_path(breakdown.attribution.trace.report.path)
    if waits is not None and waits.findings:
        yield waits.head
        for number, finding in enumerate(waits.findings, 1):
            yield wrap(f"- {waits.sentence(finding)}", "  ", "    ")
            if finding.hint and finding.hint not in [later.hint for later in waits.findings[number:]]:
                yield wrap(f"→ {finding.hint}", "    ", "      ")
        yield f"  all of it: nsysprof why {path}"
    ranges = breakdown.columns("merged")["busy_ns"].any()
    if waits is None and not ranges and breakdown.busy_share < 1 - WORTH_ASKING_WHY:
        yield f"To see why the GPU idles: nsysprof why {path}"


def _pointer(breakdown: Breakdown, rows: ColumnTable, idle: NDArray[np.float64]) -> Iterator[str]:
    """Point to `nsysprof why` where the GPU idles for more than a tenth of an outermost range of any weight.

    Nothing where its findings stand above, or where it was asked about that range and finds nothing to gain. Warm-up,
    which is slow everywhere, does not count, nor what is captured in CUDA graphs: time lies between replays.
    """
    warm = np.array([name.lower().startswith("warm") for name in rows.texts("name").tolist()], bool)
    if breakdown.attribution.replay is not None:
        warm |= rows["captured_nodes"] > 0
    outer = np.flatnonzero((rows["parent"] < 0) & ~warm)
    busy = rows["busy_ns"][outer]
    shares = np.where(busy >= MIN_WEIGHT * busy.sum(), np.nan_to_num(idle[outer]), 0.0)
    if shares.max(initial=0.0) <= WORTH_ASKING_WHY:
        return
    most = int(shares.argmax())
    [row] = _rows(rows.take(outer[most : most + 1]))
    waits = breakdown.waits
    asked = waits is not None and any(f"{path}/".startswith(f"{row.merged_path}/") for path in waits.paths)
    if not asked and not (waits and waits.findings):
        yield f"In {_label(row)} the GPU idles for {format_share(shares[most])} of the span. To see why:"
        yield f"nsysprof why {quote_path(breakdown.attribution.trace.report.path)}"


def range_notes(shown: ColumnTable, waiting: NDArray[np.bool_]) -> Iterator[str]:
    """Explain the columns of `range_cells`, for these rows of ``merged``."""
    yield "All columns include inner ranges. CPU, span and busy add up the instances: time on the host, from the first"
    yield "GPU op to the last, and with GPU ops running; share: of the sum of all GPU ops. each: median over instances,"
    yield "with half the IQR."
    if ((shown["instances"] > 1) & (shown["instances"] < LEAST_SAMPLES)).any():
        yield f"(a–b): of fewer than {LEAST_SAMPLES} instances the least and the most."
    if shown["captured_nodes"].any():
        yield "captured: kernels that CUDA graphs replay of what was captured inside, whoever launches the graph."
    if waiting.any():
        idle = f"for more than {format_share(LAUNCH_BOUND_IDLE)} of the span the GPU runs nothing"
        yield f"* launch-bound: {idle}, not even GPU ops of other ranges."
    if (shown["busy_ns"] > shown["span_ns"]).any():
        yield "busy adds up GPUs, so busy/span exceeds 100 % where one range keeps several of them at work."


def range_cells(row: Any, total: int, waits: bool, *, captured: bool = False) -> dict[str, tuple[str, float]]:
    """Make the cells of a row of ``merged`` by their heads: each its text and the number behind it.

    ``total`` is the sum of all ops, ``waits`` adds the mark of what is launch-bound, ``captured`` the kernels that CUDA
    graphs replay of what was captured inside.
    """
    many = row.instances > 1
    span, busy = (row.span_median_ns, row.busy_median_ns) if many else (row.span_ns, row.busy_ns)
    ratio = busy / span if span > 0 else 0.0
    return {
        "instances": (format_count(row.instances), row.instances),
        "launches": (format_count(row.launches), row.launches),
        "kernels": (format_count(row.kernels), row.kernels),
        **({"captured": (format_count(row.captured_kernels), row.captured_kernels)} if captured else {}),
        "CPU": (format_ns(row.cpu_ns), row.cpu_ns),
        "span": (format_ns(row.span_ns), row.span_ns),
        "busy": (format_ns(row.busy_ns), row.busy_ns),
        "share": (format_share(row.sum_ns / total) if total else "", row.sum_ns),
        "span each": (_each(row, "span") if many else "", row.span_median_ns),
        "busy each": (_each(row, "busy") if many else "", row.busy_median_ns),
        "busy/span": (format_share(ratio) + " *" * waits if span > 0 else "", ratio),
    }


def _each(row: Any, name: str) -> str:
    """Write a median with its spread over the instances; nothing for ranges without GPU ops."""
    median, iqr, low, high = (getattr(row, f"{name}_{what}_ns") for what in ("median", "iqr", "min", "max"))
    return spread_text(median, iqr, low, high, row.instances) if median > 0 else ""


def _label(row: Any) -> str:
    """Write the name, indented by its depth, with what makes the row's numbers differ from those of its neighbours."""
    lead = "  " * min(row.depth, _MAX_INDENTS) + (f"[{row.depth}] " if row.depth > _MAX_INDENTS else "")
    notes = " (start/end)" if row.kind == "start_end" else ""
    if row.unclosed:
        notes += " (never closed)" if row.instances == 1 else f" ({row.unclosed:,} never closed)"
    name = one_line(row.name, max(_NAME_WIDTH - len(lead) - len(notes), 12)) or "(no name)"
    return f"{lead}{name}{notes}"


def _kernels(breakdown: Breakdown) -> Iterator[list[str]]:
    """List the longest kernels of the longest outermost ranges, and of what no range owns when that is much."""
    merged = breakdown.columns("merged")
    # a start/end range is only a view of work that push/pop ranges own: what it owns itself is all there is to list
    owning = (merged.texts("kind").codes != START_END) | (merged["exclusive_sum_ns"] > 0)
    roots = np.flatnonzero((merged["parent"] < 0) & (merged["sum_ns"] > 0) & owning)
    roots = roots[np.argsort(-merged["busy_ns"][roots], kind="stable")][:_TOP_RANGES]
    for number, row in zip(roots.tolist(), _rows(merged.take(roots)), strict=True):
        label = one_line(row.merged_path, 80) or "(no name)"
        part = f" ({breakdown.by} {getattr(row, breakdown.by)})" if breakdown.by else ""
        title = f"GPU ops in {label}{part}" if row.kind != "start_end" else f"GPU ops that {label}{part} owns"
        yield _top_kernels(title, kernels_inside(breakdown, number))
    parts = [(part.label, kernels_inside(breakdown, -1, part.label)) for part, _ in breakdown.parts]
    parts = [(name, rows.take(~rows.texts("family").equal("migration"))) for name, rows in parts]
    sums = [int(rows["sum_ns"].sum()) for _, rows in parts]
    if sum(sums) >= max(_UNOWNED_SHARE * breakdown.work_ns, 1):
        for at in sorted(np.flatnonzero(sums).tolist(), key=lambda at: -sums[at])[:_TOP_RANGES]:
            name, rows = parts[at]
            part = f" ({breakdown.by} {one_line(str(name), 60)})" if breakdown.by else ""
            yield _top_kernels(f"GPU ops{' that no range owns' if len(merged) else ''}{part}", rows)


def _summaries(breakdown: Breakdown, top: int) -> Iterator[list[str]]:
    """Show each summary; few rows beside ranges, which are the answer there."""
    rows = min(top, _TOP_KERNELS) if len(breakdown.columns("merged")) else top
    for answer in breakdown.summaries.values():
        yield [wrap(answer.finding, "", ""), *answer.show(rows).lines()]


def _top_kernels(title: str, kernels: ColumnTable) -> list[str]:
    total = int(kernels["sum_ns"].sum())
    rows = [
        [
            one_line(short_name(row.kernel, 70), 70),
            row.family if row.math_unit == "unknown" else f"{row.family}, {row.math_unit}",
            "" if row.cause == row.family else one_line(row.cause, 30),
            format_count(row.count),
            format_ns(row.sum_ns),
            format_share(row.sum_ns / total) if total else "",
        ]
        for row in _rows(kernels.take(slice(_TOP_KERNELS)))
    ]
    table = text_table(["GPU op", "family", "cause", "count", "sum", "share"], rows, "lllrrr")
    return [f"{title}: {format_ns(total)} under {plural(len(kernels), 'name')}", table]


def _rows(table: ColumnTable) -> Iterator[Any]:
    """Turn rows into objects with an attribute per column; only for the few that are printed."""
    return (SimpleNamespace(**row) for row in table.records())


def verification(result: Verification) -> str:
    """Write the result as lines of text: what was compared, the explained differences by reason, and the others."""
    if not result.compared:
        return f"Nothing to verify: nsys {visible(result.nsys)} and nsysprof know of no range with GPU work\n"
    lines = [
        f"Verified with nsys {result.nsys}: {result.equal:,} of {result.compared:,} ranges with GPU work are equal"
        " in span, first GPU op and launches"
    ]
    lines += [f"  {count:,} differ as known ({reason})" for reason, count in sorted(result.explained.items())]
    lines += [
        f"  differs: {' '.join(difference.split())}" for difference in result.differences[:_MAX_DIFFERENCES]
    ]
    if len(result.differences) > _MAX_DIFFERENCES:
        lines.append(f"  and {len(result.differences) - _MAX_DIFFERENCES:,} more")
    return "".join(f"{visible(line)}\n" for line in lines)
