"""A diagnosis in sentences: the steps, their bottlenecks, fixes and gains, and the next command."""

from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.attribution.levels import WHOLE, Level
from nsysprof.core.text import command_line, join_words, next_line, one_line, path_option, plural, quote_glob
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.calls import LOST_GRAPHS
from nsysprof.diagnosis.case import NOT_ASKED
from nsysprof.diagnosis.catalogue import KERNEL_KINDS
from nsysprof.diagnosis.cold_start import MIN_NS
from nsysprof.diagnosis.copies import ONLY_BYTES, TO_AND_FRO
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.finding import BOUND, COLD, EVERY, FAILED, PACED, SLOW, UNTRIED, Finding
from nsysprof.diagnosis.launch_bound import CAUSE, LAUNCHES
from nsysprof.results.table import wrap
from nsysprof.trace.trace import MEMCPY, MEMSET, MIGRATION, STDERR

_PATH = 60
_HALF = 0.5  # of the time without compute: from there on kernels do not matter most
_BUSY, _MUCH = 0.8, 0.25  # of the steps: kernels matter more than waits that cost little; a wait that is much
_TIMES = 10  # what a fix saves: so much more compute matters more
_MOSTLY = 0.5
# A part of the GPU, or of what is read: saves less if something else is the limit.
_IDLE_PART = frozenset(["small-grid", "tiny-blocks", "tail-wave", "low-occupancy", "weight-bound"])
_MORE = 1.05  # times what a cause costs: a graph spares the code between launches, too
# Of the time from the first to the last GPU operation: copies and set-up to tell of; of busy time outside the steps.
_SOME_COPIES, _SOME, _OUTSIDE = 0.05, 0.1, 0.1
_LONG_NS = 100_000_000  # before the first GPU operation: less is not worth a line
_IDLE = 0.05  # of the steps, or of the recording, that nothing needs to be said about


def headline(diagnosis: Diagnosis, file: Any, device: str = "") -> str:
    """State the share of step time in which the GPUs compute. If no step repeats, state the share of the time from
    first to last GPU operation.
    """
    gpus = len({each.gpu for each in diagnosis.times})
    who = "the GPU computes" if gpus == 1 else f"{gpus:,} GPUs compute"
    who += " outside CUDA graphs" * any(each.cause == LOST_GRAPHS for each in diagnosis.findings)
    if not gpus:
        return f"{file}: no GPU work{' in these ranges' * (diagnosis.busy_ns > 0)}"
    computes, on = f"{who} for {format_share(1 - diagnosis.idle_share)}", f"; {device}" if device else ""
    if not diagnosis.repeats:
        span = format_ns(max(each.total_ns for each in diagnosis.times))
        total = max(sum(each.total_ns for each in diagnosis.times), 1)
        trace = diagnosis.chosen.attribution.trace
        copies = sum(each.copies_ns for each in diagnosis.times) / total
        length, kind = trace.ops.end - trace.ops.start, trace.ops.kind
        ns = {
            "copies": int(length[np.isin(kind, (MEMCPY, MIGRATION))].sum()),
            "sets memory": int(length[kind == MEMSET].sum()),
        }
        does = " or ".join(name for name in ns if ns[name] >= _SOME * sum(ns.values()))
        copying = f", {does} for {format_share(copies)}," * (copies >= _SOME_COPIES)
        whole = f"{span} from first to last GPU operation"
        if gpus > 1:
            whole = f"time from the first to the last operation of each GPU (up to {span})"
        of = f"{computes}{copying} of the {whole}{on}"
        return f"{file}: no step repeats; {_set_up_text(diagnosis)}{of}{_migrated_text(diagnosis)}"
    level = diagnosis.chosen.level
    several = f" in {len(level.paths):,} paths" * (len(level.paths) > 1)
    found = ", found by their pattern" * level.found
    steps = f"{plural(diagnosis.steps, 'steady step')} of {level.name}{several}{found}{_lost_text(diagnosis)}"
    return f"{file}: {_set_up_text(diagnosis)}{computes} of the step time ({steps}{on}){_outside_text(diagnosis)}"


def _lost_text(diagnosis: Diagnosis) -> str:
    """The later steps that are left out because nsys lost GPU operations, by GPU where GPUs differ."""
    lost, gpus = diagnosis.lost, set(diagnosis.chosen.windows.gpu.tolist())
    if not lost:
        return ""
    some = join_words([f"{plural(count, 'later step')} on GPU {gpu}" for gpu, count in lost.items()])
    if set(lost) == gpus and len(set(lost.values())) == 1:
        some = plural(next(iter(lost.values())), "later step")
    return f"; {some} left out, because nsys lost GPU operations"


def _migrated_text(diagnosis: Diagnosis) -> str:
    """For how long unified memory moves outside the time that the diagnosis is about, where that is much of it."""
    if diagnosis.migrated_ns < _SOME * sum(each.total_ns for each in diagnosis.times):
        return ""
    return f"; pages of unified memory also migrate for {format_ns(diagnosis.migrated_ns)} outside this time"


def _set_up_text(diagnosis: Diagnosis) -> str:
    """For how long the program sets up: longer than all steps that were found, or much of a recording without."""
    once = [(name, ns) for name, ns in diagnosis.once if ns >= MIN_NS]
    took, total = sum(ns for _, ns in once), sum(each.total_ns for each in diagnosis.times)
    if any(each.kind == COLD and each.lost_ns for each in diagnosis.findings):
        return ""  # the first finding says for how long the GPU waits for it
    if diagnosis.repeats and not diagnosis.chosen.level.found:
        return ""
    if took <= (1.0 if diagnosis.repeats else _SOME) * total:
        return f"{_before_text(diagnosis)}; " if _before_text(diagnosis) else ""
    names = join_words([name for name, _ in once])
    return f"set-up takes {format_ns(took)} of the {format_ns(diagnosis.recorded_ns)} recorded ({names}); "


def _before_text(diagnosis: Diagnosis) -> str:
    """What takes longer before the first GPU operation than all steps that were found; empty if nothing does."""
    name, ns = diagnosis.before
    annotated = diagnosis.repeats and not diagnosis.chosen.level.found
    if annotated or ns < max(_LONG_NS, *(each.total_ns for each in diagnosis.times)):
        return ""
    return f"{one_line(name, _PATH)} takes {format_ns(ns)} before the first GPU operation"


def _outside_text(diagnosis: Diagnosis) -> str:
    """What GPUs do outside the steps that were found, and for how long they idle there, where that is much."""
    if not diagnosis.chosen.level.found:
        return ""
    share, idle = diagnosis.outside_share, diagnosis.idle_outside_ns
    one = len({each.gpu for each in diagnosis.times}) == 1
    of = f"{format_share(share)} of the GPU busy time"
    busy = f"; {of} is outside the steps, {diagnosis.outside}" * (share >= _OUTSIDE)
    if idle < _IDLE * diagnosis.recorded_ns:
        return busy
    during = f" ({diagnosis.during})" * bool(diagnosis.during)
    in_it = "of it in one gap" if one else "in one gap of a GPU"
    gap = f", {format_ns(diagnosis.gap_ns)} {in_it}{during}" * (diagnosis.gap_ns < idle)
    who = "it idles" if one else "a GPU idles on average"
    return f"{busy}; outside the steps, {who} for {format_ns(idle)} of {format_ns(diagnosis.recorded_ns)}{gap}"


def once_text(diagnosis: Diagnosis) -> str:
    """Name the program's long one-time work if steps repeat; empty if there is none."""
    once = [f"{name} {format_ns(ns)}" for name, ns in diagnosis.once if ns >= MIN_NS]
    if not once or not diagnosis.repeats:
        return ""
    return f"One-time work (outside the steps or in the first ones): {join_words(once)}."


def nothing_text(diagnosis: Diagnosis) -> str:
    """State the known facts if there is no finding."""
    of = "step time" if diagnosis.repeats else "time from the first GPU operation to the last"
    if not diagnosis.steps:
        no_work, _, line = diagnosis.chosen.attribution.trace.no_work.partition(f"; {STDERR}")
        ended = f"{STDERR}{line}" * bool(line)
        if diagnosis.launches:
            why = no_work.partition(": ")[2] or ended or "this machine cannot record it"
            return f"The program launches GPU work, but none was recorded: {why}."
        todo = ended or "record a program that uses the GPU, where the profiler can trace it"
        return f"No GPU work to diagnose: {todo}."
    if _before_text(diagnosis) and 2 * diagnosis.before[1] >= diagnosis.recorded_ns:
        name = one_line(diagnosis.before[0], _PATH)
        return (
            f"Most of the recording is before the first GPU operation: shorten {name}, or record "
            "several steps after warm-up."
        )
    if diagnosis.nothing:
        share = format_share(1 - diagnosis.idle_share)
        kernels = f", longest in {diagnosis.busiest}" if diagnosis.busiest else ""
        moved = _migrated_text(diagnosis)
        paging = (
            f"The GPU does not wait between operations{moved}: keep pages where they are used (--full "
            "shows unified memory)."
        )
        return paging if moved else f"No wait to fix: the GPU computes for {share} of the {of}{kernels}."
    if diagnosis.early_share >= _MOSTLY:
        share = format_share(diagnosis.early_share)
        return f"Waits in warm-up take {share} of the {of}: record steps after warm-up."
    return _waits_text(diagnosis, of)


def _waits_text(diagnosis: Diagnosis, of: str) -> str:
    """The same where the GPU waits in the steps, or outside them."""
    if diagnosis.idle_share < _IDLE:
        idle, gap = diagnosis.idle_outside_ns, f", {format_ns(diagnosis.gap_ns)} of it in one gap"
        once = gap * (diagnosis.gap_ns <= idle)  # the mean of several GPUs can be less than the longest gap of one
        during = f" ({diagnosis.during})" * bool(once and diagnosis.during)
        kernels = f", which compute longest in {diagnosis.busiest}" * bool(diagnosis.busiest)
        return (
            f"No wait to fix in the steps{kernels}; outside the steps, the GPU idles for "
            f"{format_ns(idle)}{once}{during}."
        )
    mostly = diagnosis.mostly.replace(CAUSE, LAUNCHES, 1)
    mostly = f". Largest wait: {mostly}" * bool(mostly)
    tried = f"no fix that was tried saves 2 % of the {of}" if diagnosis.tried else "no fix was tried"
    compute = 1 - diagnosis.idle_share
    if diagnosis.busiest and compute >= _HALF:
        first = f"The GPU computes for {format_share(compute)} of the {of}: begin with {diagnosis.busiest}"
        return f"{first}{mostly}; {tried}."
    if of == "step time" and diagnosis.mostly.startswith(CAUSE) and not diagnosis.tried:
        tried = "give each launch more work (a larger batch), or capture several steps in a CUDA graph"
        tried += ", with no wait between them"
    return f"The GPU computes nothing for {format_share(diagnosis.idle_share)} of the {of}{mostly}; {tried}."


def kernels_first(diagnosis: Diagnosis) -> str:
    """Name the kernel to optimize first if kernels take most of the time and the first finding gains little; otherwise
    return "".
    """
    first = diagnosis.findings[0]
    compute = 1 - diagnosis.idle_share
    little = not first.remedy and compute >= _HALF and first.lost_ns < _MUCH * max(first.total_ns, 1)
    little |= compute >= _BUSY and 0 < _TIMES * first.gain_ns < compute * first.total_ns
    little |= first.kind == "synchronization" and compute >= (_BUSY if first.remedy else _HALF)
    little |= first.kind in ("exposed-copy", "launch-latency") and first.path == WHOLE and compute >= _HALF
    little |= first.kind == "pageable-copy" and not first.remedy and compute >= _MUCH  # copied once, so nothing follows
    fixed = [each for each in diagnosis.findings if each.remedy]
    little |= first.kind == "sleep" and not first.remedy
    little |= first.kind == "page-fault" and first.basis == UNTRIED  # it is unknown whether kernels wait
    slow = first.kind == SLOW and diagnosis.longest_share >= _HALF
    slow &= compute >= _BUSY and _TIMES * first.lost_ns < compute * first.total_ns
    known = (first.kind in (COLD, PACED, SLOW) and not slow) or ONLY_BYTES in first.text or TO_AND_FRO in first.text
    known |= any(each.kind in KERNEL_KINDS for each in fixed)
    if known or not ((little or slow) and diagnosis.busiest):
        return ""
    of = "step time" if diagnosis.repeats else "time from the first GPU operation to the last"
    most = format_share(max((each.gain_ns / max(each.total_ns, 1) for each in fixed), default=0.0))
    gains = any(each.gain_ns for each in fixed)
    waits = (
        f"The best known fix for a wait saves {most} of {'the step' if diagnosis.repeats else 'this'} time."
        if gains
        else "No fix is known for the waits." * (diagnosis.doubt != NOT_ASKED)
    )
    waits *= first.kind != "page-fault" and not slow
    return f"The GPU computes for {format_share(compute)} of the {of}: begin with {diagnosis.busiest}. {waits}".rstrip()


def names_several(diagnosis: Diagnosis) -> bool:
    """Return whether the text names several busiest kernels, because no single kernel takes most of the time."""
    text = kernels_first(diagnosis) if diagnosis.findings else nothing_text(diagnosis)
    return diagnosis.several and diagnosis.busiest in text


def gain_text(finding: Finding) -> str:
    """Return the gain of the remedy, and its basis."""
    if finding.basis == UNTRIED:
        return "no fix was tried"
    each = "" if finding.path == WHOLE else " per step" if finding.often == EVERY else " in all"
    of_step = finding.of_step if finding.often == EVERY else float
    gain = format_ns(of_step(finding.gain_ns))
    if finding.estimated:
        return f"may save about {gain}{each}, not tried"
    if finding.basis == BOUND:
        # what takes the place of kernels can be faster in other ways, too: no upper limit, but arithmetic
        return f"saves {'about' if finding.kind in KERNEL_KINDS - _IDLE_PART else 'at most'} {gain}{each}"
    low, high = (format_ns(of_step(ns)) for ns in (finding.gain_low_ns, finding.gain_high_ns))
    between = f", {low} to {high}" if low != high else ""
    more = ", including other CPU time" * (finding.gain_ns > _MORE * finding.lost_ns)
    return f"saves {gain}{each} in a replay{between}{more}"


def sentence(finding: Finding, diagnosis: Diagnosis | None) -> str:
    """Symptom and cause, with their steps, and with their GPU if there are several."""
    gpus = {each.gpu for each in diagnosis.times} if diagnosis else set()
    several = len(gpus) > 1 and finding.kind not in (COLD, FAILED)
    some = [one_line(finding.path, _PATH)] * (finding.path != WHOLE)
    some += [f"GPU {finding.gpu}"] * (several and finding.cause != LOST_GRAPHS)
    return f"{', '.join(some)}: {finding.text}" if some else finding.text


def findings_text(
    diagnosis: Diagnosis, file: Any, asked_by: str, most: int | None = None, width: int | None = None
) -> str:
    """List the top bottlenecks (each with fix, gain and next command) and one-time work.

    With ``most``, only the first bottleneck has a command, and no fix is repeated.
    """
    level = diagnosis.chosen.level
    if not diagnosis.findings:
        ranges = len(diagnosis.chosen.attribution.trace.ranges)
        other = "analyze" if asked_by == "why" else "why"
        other = "hotspots" if diagnosis.busiest and diagnosis.idle_share <= _HALF else other
        other = other if diagnosis.times else "ranges" if diagnosis.busy_ns else "steps" if ranges else "doctor"
        command = "nsysprof doctor" if other == "doctor" else same_ranges(other, level, file)
        answer = [nothing_text(diagnosis), *not_tried(diagnosis, full=not most)]
        return "\n".join([*(wrap(each, "", "  ", width) for each in answer), next_line(command)])
    heads = {"forecast": "Largest gains, with the commands that forecast them:"}
    lines, said = [heads.get(asked_by, "Top bottlenecks:")], dict[str, int]()
    if (lead := kernels_first(diagnosis)) and asked_by == "analyze":
        hottest = next_line(same_ranges("hotspots", level, file))
        lines = [f"{wrap(lead, '', '  ', width)}\n{hottest}\n\n{lines[0]}"]
    for number, each in enumerate(diagnosis.findings[:most], 1):
        lines.append(wrap(f"{number}. {sentence(each, diagnosis)}", "", "   ", width))
        if each.remedy:
            known = said.setdefault(each.remedy, number)
            remedy = f"as {known}" if most and known < number else each.remedy
            gain = f" ({gain_text(each)})" * (each.basis != UNTRIED)
            lines.append(wrap(f"→ {remedy}{gain}", "   ", "     ", width))
        if number == 1 or not most or asked_by in heads:
            lines.append(next_line(next_command(each, file, asked_by, level)))
    if not most and (once := once_text(diagnosis)):
        lines.append(wrap(once, "", "  ", width))
    lines += [wrap(each, "", "  ", width) for each in not_tried(diagnosis, full=not most)]
    return "\n".join(lines)


def not_tried(diagnosis: Diagnosis | None, *, full: bool = False) -> list[str]:
    """Return the sentence that says why no fix was tried, if the user wanted none or with ``full``; otherwise none."""
    doubt = diagnosis.doubt if diagnosis else ""
    return [f"No fix was tried in a replay: {doubt}."] if doubt and (full or doubt == NOT_ASKED) else []


def same_ranges(name: str, level: Level, file: Any, more: str = "") -> str:
    """Compose the command ``name`` about the ranges of the level in a report, with ``more`` options."""
    unknown = name == "ranges" or (name == "analyze" and level.detected)
    select = f"{'--per' if name == 'steps' else '--range'} {quote_glob(level.select)}"
    return command_line(name, Path(file), select if level.select and not unknown else "", more, *level.options)


def next_command(finding: Finding, file: Any, asked_by: str, level: Level | None = None) -> str:
    """Return the command that tries the change, or a command that shows more, but never ``asked_by`` itself.

    ``level``: the ranges that were asked about.
    """
    steps, file, options = finding.steps_option, Path(file), level.options if level else ()
    if finding.change:
        return command_line("forecast", file, steps, "--as-profiled", finding.change_options, *options)
    if finding.kind == SLOW and asked_by != "steps":
        return command_line("steps", file, path_option(finding.path, "--per"), *options)
    name = "analyze" if asked_by == "why" else "why"
    unknown = name == "analyze" and level is not None and level.detected
    return command_line(name, file, "" if unknown else steps, *options)


def diagnosis_members(diagnosis: Diagnosis | None, file: Any, asked_by: str) -> dict[str, Any]:
    """Return two members of a JSON document: the findings, best first, and why no fix was tried in a replay."""
    if diagnosis is None:
        return {"diagnosis": [], "not_replayed": None}
    level = diagnosis.chosen.level
    found = [each.record(next_command(each, file, asked_by, level)) for each in diagnosis.findings]
    return {"diagnosis": found, "not_replayed": diagnosis.doubt or None}


def steps_text(diagnosis: Diagnosis) -> str:
    """Name the steps of the diagnosis, the number of steady steps, and the number left out as warm-up."""
    left_out = diagnosis.left_out
    warm = f", without {plural(left_out, 'step')} of warm-up" if left_out else ""
    return f"{diagnosis.chosen.level.clause}; {plural(diagnosis.steps, 'steady step')}{warm}"
