"""Hot spots as text: the kernel to optimize first, known fixes, and the kernels that take longest."""

from dataclasses import replace
from math import isnan

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.columns import ColumnTable, Texts
from nsysprof.core.text import command_line, next_line, one_line, path_option, quote_glob, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.catalogue import KERNEL_KINDS
from nsysprof.diagnosis.finding import BOUND, Finding
from nsysprof.diagnosis.reached import COMPUTE, MEMORY
from nsysprof.diagnosis.text import findings_text, headline, not_tried, same_ranges
from nsysprof.hotspots.hotspots import LATENCY, NO_COUNTERS, NO_SHAPES, OCCUPANCY, UNKNOWN, Hotspots, Spot
from nsysprof.hotspots.tables import HOTSPOTS
from nsysprof.kernels.classify import short_name
from nsysprof.results.one_screen import Rows, answer_lines, grave
from nsysprof.results.table import TextTable, wrap

_FULL = 0.95  # of the multiprocessors: a fuller GPU gains nothing
_SEVERAL = 1.2  # times a step: kernels that run for longer ran at the same time
_SHOWN = ("kernel", "calls_per_step", "step_ns", "share", "limit", "limit_share", "gain_ns")
_RECORD = {
    NO_SHAPES: "to record shapes: record_shapes=True in torch.profiler, or in emit_nvtx (nsys)",
    NO_COUNTERS: "to count memory traffic and FLOPs: nsysprof counters -- PROGRAM, then hotspots --counters FILE",
}
_NAME, _SHORT, _COMMAND, _FINDINGS = 60, 40, 68, 2


def hotspots_text(answer: Hotspots, top: int = 10, *, full: bool = False, markdown: bool = False) -> str:
    """Format one screen for a terminal, or Markdown, or the ``full`` answer; the text ends with a newline."""
    device = answer.gpu.name if answer.gpu else ""
    head = headline(answer.diagnosis, answer.attribution.trace.report.path, device)
    said = [wrap(f"warning: {each}", "", "  ") for each in grave(answer.warnings)]
    parts: list[str | Rows] = ["\n".join([wrap(visible(head), "", "  "), *said])]
    best = answer.best
    found = known_fixes(answer)
    if best is not None:
        more = found and found[0].gain_ns / found[0].steps > np.nan_to_num(best.gain_ns)
        gains = best.gain_ns >= answer.least_ns and not more
        shown, word = (best, "Optimize first") if gains else (answer.spots[0], "Longest kernel")
        line = wrap(visible(f"{word}: {spot_sentence(answer, shown)}."), "", "  ")
        parts.append(line if more else f"{line}\n{next_line(command(answer, best))}")
    if found:
        file = answer.attribution.trace.report.path
        parts.append(findings_text(replace(answer.diagnosis, findings=tuple(found)), file, "hotspots", _FINDINGS))
    if not answer.spots and not found:
        parts.append(next_line(same_ranges("steps", answer.case.chosen.level, answer.attribution.trace.report.path)))
    if answer.spots:
        rows = len(answer.spots) if full else top
        parts.append(
            Rows(spots_table(answer, rows), "kernel family" if answer.by == "family" else "kernel", len(answer.spots))
        )
    others = "1 more path or GPU" if answer.others == 1 else f"{answer.others} more paths or GPUs"
    left = [others] if answer.others else []
    return answer_lines(parts, answer.warnings, more=left, full=full, markdown=markdown)


def known_fixes(answer: Hotspots) -> list[Finding]:
    """Return the findings of the diagnosis about kernels of these steps."""
    path = answer.place.path if answer.place else ""
    return [each for each in answer.diagnosis.findings if each.kind in KERNEL_KINDS and each.path == path]


def called(answer: Hotspots, spot: Spot) -> str:
    """Return the name of a kernel or family for display."""
    return spot.name if answer.by == "family" else one_line(short_name(spot.name), _NAME)


def limit_words(spot: Spot) -> str:
    """Return the limit of a kernel, and how close the kernel is to this limit."""
    of = {COMPUTE: f"of the peak of {spot.unit}", MEMORY: "of the memory bandwidth", OCCUPANCY: "of the GPU in use"}
    if spot.limit == UNKNOWN:
        return f"limit unknown: {spot.reason}"
    if spot.limit in of:
        why = f" ({spot.reason})" if spot.reason else ""
        return f"limited by {spot.limit}, {format_share(spot.limit_share)} {of[spot.limit]}{why}"
    return f"limited by {spot.limit}" + (f" ({spot.reason} reached)" if spot.reason else "")


def spot_words(spot: Spot, whole: str = "the step time") -> str:
    """Describe a kernel: its share of the step time, or of another ``whole``, and its limit if known."""
    name = one_line(short_name(spot.name), _SHORT)
    limit = "" if spot.limit == UNKNOWN else f", {limit_words(spot)}"
    return f"{name} {takes(spot, whole)}{limit}"


def takes(spot: Spot, whole: str) -> str:
    """Describe the share of a kernel, and in how many steps it runs unless it runs in all."""
    if spot.share < _SEVERAL:
        return f"takes {format_share(min(spot.share, 1))} of {whole}" + f" and runs in {spot.some}" * bool(spot.some)
    return f"runs several times at once, so the sum of its times is {spot.share:.3g} times {whole}"


def whole_words(answer: Hotspots) -> str:
    """Name the base of shares: the steps, or the whole recording if no step repeats."""
    if answer.diagnosis and answer.diagnosis.repeats:
        return "the step time"
    return "the time from first to last GPU operation"


def spot_sentence(answer: Hotspots, spot: Spot) -> str:
    """Describe a kernel in a sentence: its share of a step, its limit, and the time it could save per step."""
    text = f"{called(answer, spot)} {takes(spot, whole_words(answer))}, {limit_words(spot)}"
    if isnan(spot.gain_ns) or (spot.scale >= 1 and spot.limit == LATENCY):
        return text
    if spot.scale >= 1:
        full = spot.limit != OCCUPANCY or spot.limit_share >= _FULL
        return f"{text}{': near what can be reached' if full else '; kernels this short cannot get much shorter'}"
    each = " per step" * answer.diagnosis.repeats
    if spot.gain_ns < 1_000:
        hidden = spot.gain_ns == 0 and spot.gain_basis != BOUND
        return f"{text}; speeding it up saves " + (
            "nothing, because it is not on the critical path" if hidden else f"less than 1 µs{each}"
        )
    most = " at most" * (spot.gain_basis == BOUND)
    saves = f"saves{most} {format_ns(spot.gain_ns)}{each}"
    if spot.some and answer.place:
        total = format_ns(spot.gain_ns * answer.place.steps)
        saves = f"saves{most} {total} in all ({format_ns(spot.gain_ns)}{each} on average)"
        return f"{text}. Cutting its time to {format_share(spot.scale)} {saves}"
    return f"{text}; cutting its time to {format_share(spot.scale)} {saves}"


def command(answer: Hotspots, spot: Spot) -> str:
    """Compose the command that replays the saving per step or, if nothing is saved, the command that shows more."""
    report, place, level = answer.attribution.trace.report.path, answer.place, answer.case.chosen.level
    steps = "" if place is None or place.path == WHOLE else path_option(place.path)
    scale = quote_glob(f"{spot.glob}={spot.scale:g}")
    replayed = spot.gain_basis != BOUND  # a forecast refuses what could not be replayed
    if spot.gain_ns > 0 and replayed and len(f"{steps}{scale}") <= _COMMAND:
        return command_line("forecast", report, steps, "--as-profiled --scale", scale, *level.options)
    if answer.by == "kernel":
        return same_ranges("hotspots", level, report, "--by family")
    return same_ranges("analyze", level, report)


def spots_table(answer: Hotspots, top: int) -> TextTable:
    """Make a table of the longest kernels, with as many columns as fit the screen."""
    rows = answer.table.take(slice(top))
    names = Texts(rows.texts("kernel").codes, [called(answer, each) for each in answer.spots])
    why = dict.fromkeys(each.reason for each in answer.spots[:top] if each.limit == UNKNOWN)
    said = (
        "can save: at most this time, not tried in a replay"
        if not_tried(answer.diagnosis)
        else "can save: time saved in a replay with all other work unchanged",
        *(f"unknown: {each}" for each in [*why][:2]),
    )
    note = "; ".join([*said, *(_RECORD[each] for each in why if each in _RECORD and not answer.known)])
    steps = answer.place.steps if answer.place else 0
    count = "steps" if any(each.some and 2 * each.steps <= steps for each in answer.spots[:top]) else _SHOWN[1]
    shown = (_SHOWN[0], count, *_SHOWN[2:])
    return HOTSPOTS.show(ColumnTable({**rows.columns, "kernel": names}), shown, note=note)
