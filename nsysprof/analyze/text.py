"""An answer as text for a terminal, a log or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.findings import MOST, steps_table
from nsysprof.analyze.highlights import annotated
from nsysprof.analyze.kernel_text import kernels_text
from nsysprof.analyze.range_text import TABLE_WIDTH, ranges_text
from nsysprof.attribution.attribute import FOLLOWED, MIGRATED, OUTSIDE, OWN_THREAD
from nsysprof.attribution.verify import Verification
from nsysprof.core.text import drop_repeats, join_words, one_line, plural, quote_path, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_share
from nsysprof.diagnosis.text import finding_lines, nothing_text, overview_lines
from nsysprof.results.table import Column, TextTable, show_columns, text_table, wrap
from nsysprof.trace.about import Diagnostic
from nsysprof.trace.plausibility import tells_of_dropped_events
from nsysprof.trace.trace import KERNEL, PUSH_POP, START_END, Report

_FEW = 5  # rows of summaries beside ranges
_LABELLED = len("  warning  ")
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


def summary(
    breakdown: Breakdown,
    top: int = 20,
    *,
    verbose: bool = False,
    width: int | None = None,
    sort: str | None = None,
    depth: int | None = None,
) -> str:
    """Write the whole answer: report, warnings, ledger, range tree (``top`` rows), top kernels of the top ranges.

    ``verbose`` shows all that nsys recorded of the recording, and each warning. Text fits the ``width``, where one is
    given; ``sort`` and ``depth`` are of the tree, see `top_rows`. What names hold that a terminal would obey is written
    out; the text ends with a newline.
    """
    ranges, kernels = (
        [[*ranges_text(breakdown, top, width, sort, depth)]],
        [*kernels_text(breakdown, top, width)],
    )
    parts = [
        [
            *report_lines(breakdown.attribution.trace.report, verbose=verbose),
            *warning_lines(breakdown, verbose=verbose),
        ],
        [work_line(breakdown), *breakdown.graph_counts.sentences(breakdown.attribution.graphs)],
        [*_findings(breakdown, width)],
        steps.lines(width=width) if (steps := steps_table(breakdown.diagnosis)) else [],
        [*_ledger(breakdown)],
        [*_parts(breakdown, top)],
        *(ranges + kernels if annotated(breakdown.columns("merged")) else kernels + ranges),
        *_summaries(breakdown, top, width),
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "".join(f"{visible(line)}\n" for block in lines for line in _fold(block, width).split("\n"))


def _fold(text: str, width: int | None) -> str:
    """Break a sentence that is wider than a terminal; tables, of several lines, and commands stay as they are."""
    if width is None or "\n" in text or len(text) <= width or text.startswith("   $ "):
        return text
    indent = " " * (_LABELLED if text.startswith("  ") else 2)
    first, mark, rest = text.partition("; ")  # where a reader would draw breath
    after = len(indent) + len(rest) <= width or not text.startswith("  ")
    parts = [f"{first};", f"{indent}{rest}"] if mark and after and len(first) < width else [text]
    how: dict[str, Any] = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    glued = (re.sub(r"(?<=\d) (?=\S)", "\0", part) for part in parts)  # a number and its unit stay together
    return "\n".join(fill(part, width, **how) for part in glued).replace("\0", " ")


def report_lines(report: Report, *, verbose: bool = False) -> Iterator[str]:
    """Describe the report: its file and GPUs, and with ``verbose`` system and command."""
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
    if system and verbose:
        yield f"  system   {system}"
    if about.command and verbose:
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
    gpus = breakdown.gpu_count
    who = "the GPU is" if gpus == 1 else f"{gpus} GPUs are"
    parts = [
        f"{format_share(breakdown.busy_share)} of the {format_ns(totals['span_ns'])} from the first GPU op to the last"
    ]
    if totals["recording_ns"] > totals["span_ns"]:
        share = format_share(totals["busy_ns"] / (gpus * totals["recording_ns"]))
        parts.append(f"{share} of the {format_ns(totals['recording_ns'])} of recording")
    if totals.get("chosen_span_ns"):
        share = format_share(totals["chosen_busy_ns"] / (gpus * totals["chosen_span_ns"]))
        parts.append(f"{share} of the {format_ns(totals['chosen_span_ns'])} of the ranges chosen")
    return f"{', '.join(counts)}: sum {format_ns(breakdown.work_ns)}; {who} busy for {join_words(parts)}"


def ledger_table(breakdown: Breakdown, *, empty: bool) -> TextTable:
    """Make the ledger with its total, and with outcomes of no GPU op where they are wanted (``empty``)."""
    totals = breakdown.totals
    total = {"fate": "total", "ops": totals["ops"], "sum_ns": totals["sum_ns"], "share": 1.0}
    rows = [row for row in (*breakdown.columns("ledger").records(), total) if row["ops"] or empty]
    if not totals["ops"]:
        rows = [{**row, "share": None} for row in rows]
    return show_columns(_LEDGER, rows, missing="-")


def _ledger(breakdown: Breakdown) -> Iterator[str]:
    """Show the ledger, save where there are no annotated ranges to own anything and nothing is lost either."""
    kind = breakdown.columns("merged").texts("kind").codes
    fates = set(np.flatnonzero(breakdown.columns("ledger")["ops"]).tolist())
    if fates and (
        ((kind == PUSH_POP) | (kind == START_END)).any() or fates - {OWN_THREAD, FOLLOWED, OUTSIDE, MIGRATED}
    ):
        yield from ledger_table(breakdown, empty=False).lines()


def _parts(breakdown: Breakdown, top: int) -> Iterator[str]:
    """Show how the GPU ops divide, the ``top`` parts, where the answer is split."""
    rows, total = [], breakdown.totals["sum_ns"]
    for part, _ in breakdown.parts if breakdown.by else ():
        ops = part.attribution.trace.ops
        chosen = slice(None) if part.ops is None else part.ops
        kind, sum_ns = ops.kind[chosen], int((ops.end[chosen] - ops.start[chosen]).sum())
        kernels, share = np.count_nonzero(kind == KERNEL), format_share(sum_ns / total) if total else ""
        name = one_line(str(part.label), 40)
        rows.append((-sum_ns, name, [name, f"{len(kind):,}", f"{kernels:,}", format_ns(sum_ns), share]))
    cells = [row for _, _, row in sorted(rows) if row[1] != "0"]
    if cells:
        yield text_table([f"by {breakdown.by}", "GPU ops", "kernels", "sum", "share"], cells[:top], "lrrrr")
        if len(cells) > top:
            yield f"{len(cells) - top:,} more: --top {len(cells)}"


def _findings(breakdown: Breakdown, width: int | None) -> Iterator[str]:
    """The top bottlenecks, each with what to do, what that gains and the next command."""
    diagnosis = breakdown.diagnosis
    if not breakdown.totals["ops"]:
        return
    yield from (wrap(line, "", "  ", width) for line in overview_lines(diagnosis))
    if not diagnosis.findings:
        yield nothing_text(diagnosis)
        yield f"   $ nsysprof why {quote_path(breakdown.attribution.trace.report.path)}"
        return
    yield "Top bottlenecks:"
    file = breakdown.attribution.trace.report.path
    yield from finding_lines(diagnosis.findings[:MOST], file, "analyze", width)


def _summaries(breakdown: Breakdown, top: int, width: int | None) -> Iterator[list[str]]:
    """Show each summary; few rows beside annotated ranges, which are the answer there."""
    rows = min(top, _FEW) if annotated(breakdown.columns("merged")) else top
    for answer in breakdown.summaries.values():
        if answer.finding:
            finding = wrap(re.sub(r"(?<=\d) ", "\u00a0", answer.finding), "", "", width).replace(
                "\u00a0", " "
            )
            yield [finding, *answer.show(rows).lines(width=width or TABLE_WIDTH)]


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
