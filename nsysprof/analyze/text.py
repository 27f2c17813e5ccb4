"""Format a result as text for a terminal, a log or a pull request: one screen, or everything."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.findings import steps_table
from nsysprof.analyze.highlights import annotated
from nsysprof.analyze.range_text import range_rows
from nsysprof.attribution.attribute import FOLLOWED, MIGRATED, OUTSIDE, OWN_THREAD
from nsysprof.core.text import drop_repeats, join_words, one_line, plural, visible
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_share
from nsysprof.diagnosis.text import findings_text, headline, names_several
from nsysprof.kernels.classify import NO_KERNELS, OTHER, short_name
from nsysprof.results.one_screen import Rows, answer_lines, grave
from nsysprof.results.table import Column, TextTable, screen_width, show_columns, wrap
from nsysprof.trace.about import Diagnostic
from nsysprof.trace.plausibility import tells_of_dropped_events
from nsysprof.trace.trace import KERNEL, PUSH_POP, START_END, Report, Trace

if TYPE_CHECKING:
    from nsysprof.attribution.verify import Verification

MOST, _FINDINGS, _STEPS, _RANGES, _KERNELS = 20, 3, 3, 8, 5  # rows of each table, and those of one screen
_MAX_DIFFERENCES, _MAX_DIAGNOSTICS = 20, 3
_HALF = 0.5  # of the steps: where the GPU idles for longer, kernels are not what to begin with
_FAMILY_WIDTH, _LEAST_NAME = 28, 36
# Messages of nsys on each process, even a shell that starts the program: the report as a whole has its own.
_OF_ONE_PROCESS = re.compile(r"No .+ events collected|Not all (?!CUDA|NVTX).+ events might have been collected")
_OF_GPU_WORK = re.compile(r"CUDA|CUPTI|NVTX|GPU|driver|Unified Memory", re.IGNORECASE)
_LEDGER = (
    Column("fate", "where the GPU ops were launched from", head="launched from"),
    Column("ops", "number of GPU ops", head="GPU ops"),
    Column("sum_ns", "total duration of the GPU ops", head="sum"),
    Column("share", "share of total GPU op time"),
)
_KERNEL_COLUMNS = (
    Column("kernel", "name of the GPU op", head="GPU op"),
    Column("kind", "kernel family, math unit and cause", head="family"),
    Column("count", "number of GPU ops"),
    Column("sum_ns", "total duration", head="sum"),
    Column("share", "share of GPU op time", head="of GPU time"),
    Column("median_ns", "median duration", head="median"),
    Column("min_ns", "minimum duration", head="min"),
    Column("max_ns", "maximum duration", head="max"),
    Column("api_median_ns", "median time of launching calls", "launch", lambda ns: format_ns(ns) if ns >= 0 else ""),
    Column("queue_median_ns", "median queue delay", "queue", lambda ns: format_ns(ns) if ns >= 0 else ""),
)
_LAUNCHES = (
    "launch: median time of the launching host call; queue: median time from the call's return to the op's start."
)


def summary(
    breakdown: Breakdown,
    top: int | None = None,
    *,
    full: bool = False,
    width: int | None = None,
    sort: str | None = None,
    depth: int | None = None,
) -> str:
    """Write one screen: the share of the steps in which the GPU computes, top bottlenecks, steps, ranges and GPU ops.

    ``full`` adds everything else: report, all messages, ledger, and other recorded data. ``top`` is the number of rows
    per table. ``sort`` and ``depth`` apply to ranges (see `top_rows`). Text fits the ``width``; control characters in
    names are escaped.
    """
    width = width or screen_width()
    report, diagnosis = breakdown.attribution.trace.report, breakdown.diagnosis
    most, few = top or MOST, not full
    findings = None if full else _FINDINGS
    ranges = range_rows(breakdown, top or _RANGES if few else most, width, full=full, sort=sort, depth=depth)
    steps = steps_table(diagnosis, most if full else _STEPS)
    by_kernel = _kernel_rows(breakdown, top or _KERNELS if few else most, full)
    device = "" if full else _devices(breakdown.attribution.trace)
    head = headline(diagnosis, report.path, device)
    said = [wrap(f"warning: {each}", "", "  ", width) for each in grave(breakdown.warnings)]
    parts: list[str | Rows | None] = [
        "\n".join([wrap(visible(head), "", "  ", width), *said]),
        findings_text(diagnosis, report.path, "analyze", findings, width) + _hottest(breakdown, width),
        Rows(steps if full else replace(steps, note="")) if steps else None,
        _parts(breakdown, most),
        *([ranges, by_kernel] if annotated(breakdown.columns("merged")) else [by_kernel, ranges]),
    ]
    if full:
        about = [*report_lines(report), work_line(breakdown), *graph_sentences(breakdown)]
        if unread := report.reader.not_read():
            about.append(
                f"recorded but not read: {join_words([f'{name} ({rows:,})' for name, rows in unread.items()])}"
            )
        parts.insert(2, "\n".join(wrap(line, "", "  ", width) for line in about))
        parts += [_ledger(breakdown), _family_rows(breakdown, most), *_summaries(breakdown, most, width)]
    notes = [*messages(breakdown, every=full), *graph_sentences(breakdown) * few]
    more = len(diagnosis.findings) - _FINDINGS
    left = [plural(more, "more bottleneck")] if few and more > 0 else []
    return answer_lines([each for each in parts if each], notes, more=left, full=full, width=width)


def _hottest(breakdown: Breakdown, width: int) -> str:
    """A line below the findings with the longest kernel, if the GPU computes for at least half of the steps."""
    spot, diagnosis = breakdown.hottest, breakdown.diagnosis
    if spot is None or diagnosis.idle_share > _HALF or not diagnosis.repeats or names_several(diagnosis):
        return ""
    from nsysprof.hotspots.text import spot_words  # noqa: PLC0415 (large recordings do without)

    first, every = diagnosis.times[0], diagnosis.times
    path = f" of {one_line(first.path, 60)}" * (len({each.path for each in every}) > 1)
    gpu = f" on GPU {first.gpu}" * (len({each.gpu for each in every}) > 1)
    words = spot_words(spot, f"the step time{path}{gpu}")
    return "\n" + wrap(visible(f"Longest kernel: {words} (nsysprof hotspots)."), "", "  ", width)


def report_lines(report: Report) -> Iterator[str]:
    """Describe the report: its file, GPUs, system and command."""
    about = report.about
    made = f"report of {report.reader.recorder}, version not recorded"
    if about.nsys_version:
        made = f"report {'of' if about.recorder_version else 'exported by'} nsys {about.nsys_version}"
    if about.recorder_version and about.export_version and not _same(about.recorder_version, about.export_version):
        made += f", exported by {about.export_version}"
    lasted = f", {format_ns(about.duration_ns)} of recording" if about.duration_ns else ""
    yield f"{visible(str(report.path))}: {made}{lasted}"
    cuda = [gpu for gpu in about.gpus if gpu.is_cuda]
    for gpu in dict.fromkeys(_gpu(gpu) for gpu in cuda):
        count = sum(_gpu(other) == gpu for other in cuda)
        yield f"GPU: {f'{count} x ' if count > 1 else ''}{gpu}"
    versions = [("driver", about.driver_version), ("CUDA", about.cuda_version), ("", about.os)]
    if system := ", ".join(f"{label} {value}".strip() for label, value in versions if value):
        yield f"system: {system}"
    if about.command:
        yield f"command: {one_line(about.command, 100)}"


def _devices(trace: Trace) -> str:
    """The GPUs that a headline names: the GPUs with work or, if there are none, all GPUs of the machine."""
    gpus = trace.report.about.gpus
    used = [gpus[number] for number in sorted(set(trace.gpu_numbers)) if 0 <= number < len(gpus)]
    names = [gpu.name for gpu in used or gpus if gpu.is_cuda]
    counts = {name: names.count(name) for name in names}
    return one_line(", ".join(f"{f'{many} × ' if many > 1 else ''}{name}" for name, many in counts.items()), 60)


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


def messages(breakdown: Breakdown, *, every: bool = False) -> list[str]:
    """Return the warnings of the analysis, and the messages of nsys that affect the numbers. With ``every``, all
    messages of nsys are returned.
    """
    diagnostics = breakdown.attribution.trace.report.about.diagnostics
    if not every:
        diagnostics = tuple(each for each in diagnostics if _bears_on_numbers(each))[:_MAX_DIAGNOSTICS]
    times = [f" ({each.count} times)" if each.count > 1 else "" for each in diagnostics]
    said = [f"nsys {each.severity}: {one_line(each.text, 160)}{n}" for each, n in zip(diagnostics, times, strict=True)]
    warnings = breakdown.warnings if every else drop_repeats(breakdown.warnings)
    return [*said, *(one_line(each, 400) for each in warnings)]


def graph_sentences(breakdown: Breakdown) -> list[str]:
    """Describe the CUDA graphs that ran, and the data about these graphs that was not recorded."""
    return [*breakdown.graph_counts.sentences(breakdown.attribution.graphs)]


def _bears_on_numbers(each: Diagnostic) -> bool:
    if _OF_ONE_PROCESS.match(each.text) or tells_of_dropped_events(each):  # the latter is a warning
        return False
    return each.severity == "error" or _OF_GPU_WORK.search(each.text) is not None


def work_line(breakdown: Breakdown) -> str:
    """State in one sentence how much work there is, and the busy share of the GPUs."""
    totals = breakdown.totals
    if not totals["ops"]:
        return "no GPU work"
    counts = [plural(totals["kernels"], "kernel"), plural(totals["memops"], "memory operation")]
    if totals["graph_traces"]:
        counts.append(f"{plural(totals['graph_traces'], 'CUDA graph')} recorded as a whole")
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
        parts.append(f"{share} of the {format_ns(totals['chosen_span_ns'])} in the chosen ranges")
    return f"{', '.join(counts)}: sum {format_ns(breakdown.work_ns)}; {who} busy for {join_words(parts)}"


def ledger_table(breakdown: Breakdown, *, empty: bool) -> TextTable:
    """Make the ledger with its total. ``empty`` also includes outcomes without GPU ops."""
    totals = breakdown.totals
    total = {"fate": "total", "ops": totals["ops"], "sum_ns": totals["sum_ns"], "share": 1.0}
    rows = [row for row in (*breakdown.columns("ledger").records(), total) if row["ops"] or empty]
    if not totals["ops"]:
        rows = [{**row, "share": None} for row in rows]
    return show_columns(_LEDGER, rows, missing="-")


def _ledger(breakdown: Breakdown) -> Rows | None:
    """Show the ledger, unless there are no annotated ranges that could own work and no work is lost."""
    kind = breakdown.columns("merged").texts("kind").codes
    fates = set(np.flatnonzero(breakdown.columns("ledger")["ops"]).tolist())
    if fates and (
        ((kind == PUSH_POP) | (kind == START_END)).any() or fates - {OWN_THREAD, FOLLOWED, OUTSIDE, MIGRATED}
    ):
        return Rows(ledger_table(breakdown, empty=False))
    return None


def _parts(breakdown: Breakdown, top: int) -> Rows | None:
    """If the result is split, show the ``top`` parts with their GPU ops."""
    rows, total = [], breakdown.totals["sum_ns"]
    for part, _ in breakdown.parts if breakdown.by else ():
        ops = part.attribution.trace.ops
        chosen = slice(None) if part.ops is None else part.ops
        kind, sum_ns = ops.kind[chosen], int((ops.end[chosen] - ops.start[chosen]).sum())
        kernels, share = np.count_nonzero(kind == KERNEL), format_share(sum_ns / total) if total else ""
        name = one_line(str(part.label), 40)
        rows.append((-sum_ns, name, [name, f"{len(kind):,}", f"{kernels:,}", format_ns(sum_ns), share]))
    cells = [row for _, _, row in sorted(rows) if row[1] != "0"]
    if not cells:
        return None
    head = [f"by {breakdown.by}", "GPU ops", "kernels", "sum", "share"]
    return Rows(TextTable(head, cells[:top], "lrrrr"), str(breakdown.by), len(cells))


def _kernel_rows(breakdown: Breakdown, top: int, full: bool) -> Rows | None:
    """The ``top`` GPU op names in the ranges of the result by time; with statistics if ``full``."""
    table = breakdown.columns("whole_kernels" if full else "kernel_sums")
    table = table.take(~table.texts("family").equal("migration"))
    if not len(table):
        return None
    table = table.take(np.argsort(-table["sum_ns"], kind="stable"))
    total, by = int(table["sum_ns"].sum()), breakdown.by
    known_calls = full and bool((table["api_median_ns"] >= 0).any())
    columns = _KERNEL_COLUMNS[: 5 if not full else None if known_calls else -2]
    columns = (*columns[:1], *([Column(by, "", cell=lambda part: one_line(str(part), 30))] if by else []), *columns[1:])
    cells = [_cells(row, total, 100) for row in table.take(slice(top)).records()]
    shown = show_columns(
        columns, cells, note=_LAUNCHES * known_calls, spare=("min", "max", "queue", "launch"), least=_LEAST_NAME
    )
    return Rows(shown, "GPU op", len(table))


def _family_rows(breakdown: Breakdown, top: int) -> Rows | None:
    """The totals of GPU ops by family and cause, if these are known and fewer than the op names."""
    table = breakdown.columns("kernel_sums")
    kinds = table.summed(["family", "math_unit", "cause"], ["count", "sum_ns"])
    kinds = kinds.take(np.argsort(-kinds["sum_ns"], kind="stable"))
    known = [family not in (*NO_KERNELS, OTHER) for family in kinds.texts("family").tolist()]
    if not any(known) or len(kinds) >= len(table):
        return None
    cells = [_cells(row, int(table["sum_ns"].sum())) for row in kinds.take(slice(top)).records()]
    return Rows(show_columns(_KERNEL_COLUMNS[1:5], cells))


def _cells(row: dict[str, Any], total: int, width: int = 0) -> dict[str, Any]:
    """A row of `_KERNEL_COLUMNS`, without a ``width`` one of kinds."""
    unit = "" if row["math_unit"] == "unknown" else f", {row['math_unit']}"
    cause = "" if row["cause"] == row["family"] else f": {row['cause']}"
    unit = unit if not cause or not width else ""  # where there is room for one, the cause
    name = {"kernel": one_line(short_name(row["kernel"], width), width)} if width else {}
    share = row["sum_ns"] / total if total else None
    return {**row, **name, "kind": one_line(f"{row['family']}{unit}{cause}", _FAMILY_WIDTH), "share": share}


def _summaries(breakdown: Breakdown, top: int, width: int) -> Iterator[str | Rows]:
    for answer in breakdown.summaries.values():
        if answer.finding:
            yield wrap(answer.finding, "", "", width)
            yield Rows(answer.show(top))


def verification(result: "Verification") -> str:
    """Format the result: the number of compared ranges, explained differences by reason, and all other differences."""
    if not result.compared:
        return f"Nothing to verify: neither nsys {visible(result.nsys)} nor nsysprof finds a range with GPU work\n"
    lines = [
        f"Verified with nsys {result.nsys}: {result.equal:,} of {result.compared:,} ranges with GPU work "
        "match in GPU time span, first GPU op and number of launches"
    ]
    lines += [f"  {count:,} differ for known reasons ({reason})" for reason, count in sorted(result.explained.items())]
    lines += [f"  differs: {' '.join(difference.split())}" for difference in result.differences[:_MAX_DIFFERENCES]]
    if len(result.differences) > _MAX_DIFFERENCES:
        lines.append(f"  and {len(result.differences) - _MAX_DIFFERENCES:,} more")
    return "".join(f"{visible(line)}\n" for line in lines)
