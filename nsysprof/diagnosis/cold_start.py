"""Make findings about recordings that allow no other advice: a single pass that is mostly set-up, or failed calls."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Mask, slices
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import covered, merge, union
from nsysprof.core.text import join_words, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import COLD, COUNTED, FAILED, ONCE, SHARED, Finding
from nsysprof.diagnosis.kinds import idling, of_host
from nsysprof.diagnosis.launch_bound import CAUSE, LAUNCHES
from nsysprof.diagnosis.page_fault import SOME_FAULTS, fault_share
from nsysprof.kernels.names import short_name
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY, MIGRATION, Trace
from nsysprof.waits.purposes import (
    ALLOCATE,
    COMPILE,
    COPY,
    EVENT,
    FREE,
    GRAPH_LAUNCH,
    LAUNCH,
    MANAGED,
    MEMSET,
    MODULE,
    PIN,
    PURPOSES,
    SYNCHRONIZE,
    purpose_of,
)
from nsysprof.waits.purposes import SET_UP as SET_UP_PURPOSES

MIN_NS = 1_000_000  # of set-up: less is not worth a line
_LITTLE_NS, _TIMES = 1_000_000, 10  # of GPU work, beside so many times as much set-up: a demo
# The same of one pass in which no fix is known, and which moves no managed memory for longer; and of its kernels alone.
_SMALL_NS, _FEW_NS = 20_000_000, 5_000_000
_LONG_NS = 500_000  # of a kernel: what only shows how to launch one is shorter
_SHORT_NS = 50_000_000  # of GPU work with next to no kernels: no program is tuned for its copies alone
# Of the time from the first GPU operation to the last, by kernels and by all GPU operations: in one pass with less the
# CPU is all that matters. Public recordings of one pass have less than 0.5 %, or more than 3 %, by kernels.
_NO_KERNELS, _NO_WORK = 0.01, 0.05
# Of the recording, before the first GPU operation; and of work behind it, which is worth advice of its own.
_NEARLY_ALL, _LATE_NS, _OF_ITS_OWN_NS = 0.85, 5_000_000_000, 1_000_000_000
_OUTSIDE = 3  # times what all steps take: GPUs that idle so long outside of them are what to look at
_MAIN = 0.1  # of set-up: less is not named
_LAYERS = 128  # so many detected steps are hardly the layers of a pass
_MANY_KERNELS = 100_000
_A_MOMENT = 0.01  # of the recording: steps found in so little, without a large gain, are not what the program is for
_MOSTLY, _SOME = 0.5, 0.25  # of the time from the first GPU operation to the last
_NUMBER = re.compile(r" ?\d+")
_FEW = 8  # long calls of one purpose: more of them are a loop's
_MEMORY = {PIN: "pinning", ALLOCATE: "allocation", FREE: "freeing", MANAGED: "managed memory", EVENT: "streams"}
_WORDS = {**_MEMORY, MODULE: "module loading", COMPILE: "compilation"}
# What waits for set-up in other words; and what each launch costs, which says nothing about a problem of real size.
_SET_UP_TOO = ("allocation", "pinning", "context", "profiler-overhead", "unknown")
_EACH_LAUNCH = ("launch-bound", "launch-latency", "synchronization", "cpu-code", "optimizer")
_CHECK = "check the error codes of CUDA calls, and record until cudaDeviceSynchronize() has returned"
_ENDED = "look at the program's output and exit code: it may have ended before its GPU work"
_REPEAT = "run the work once as a warm-up, then record a second run with a realistic problem size"
_MORE = "record several steps with a realistic problem size"  # where nothing is set up in the recording
_THIS_CODE = "speed up this CPU code or move it to the GPU, unless the program runs it only once"
_BEFORE_IT = "shorten the CPU code before the first GPU operation (a CPU profiler or ranges show what it does)"
_COMPILED = "call the function once first, so that Julia compiles it, then record the second call"
_FEW_STEPS = "record many steps after a warm-up, because the steps are only a small part of this recording"
_PIN_LESS = "pin less memory (pinning time grows with its size), pin it once, and record steps after a warm-up"
_PINS = re.compile(r"HostAlloc|MallocHost|HostRegister|AllocHost")
_WARM = "record steps after a warm-up, because this pass is mostly set-up"

# Calls that give the GPU work, and those before them that may explain their failure. Others fail without harm: queries,
# frees at the end, allocations that are tried again, the profiler's own.
_WORK, _BEFORE = (LAUNCH, GRAPH_LAUNCH, COPY, MEMSET), (ALLOCATE, MANAGED, PIN)
_CRASHES = {700: "IllegalAddress", 710: "Assert", 715: "IllegalInstruction", 716: "MisalignedAddress",
            717: "InvalidAddressSpace", 719: "LaunchFailure"}  # fmt: skip
_ERRORS = {1: "InvalidValue", 2: "MemoryAllocation", 9: "InvalidConfiguration", 98: "InvalidDeviceFunction",
           209: "NoKernelImageForDevice", 701: "LaunchOutOfResources", **_CRASHES}  # fmt: skip
_SOME_FAILED = 0.05  # of the calls of a name
_FIXES = {
    2: "use less GPU memory",
    9: "keep grids, blocks and shared memory within the limits of this GPU",
    209: "compile for the compute capability of this GPU",
    701: "use fewer registers (__launch_bounds__) or fewer threads per block",
    **dict.fromkeys(_CRASHES, "find the faulty kernel with compute-sanitizer"),
}


def failed_calls(case: Case) -> Iterator[Finding]:
    """Find calls that returned an error and so gave the GPU no work, and calls that waited for crashed GPU work."""
    trace = case.facts.attribution.trace
    calls = trace.other_calls
    if calls is None or not case.places or not calls.names.failed.any():
        return
    names, purpose = calls.names, np.array([purpose_of(text) for text in calls.names.texts])
    crashed = (purpose == SYNCHRONIZE) & np.isin(names.result, [*_CRASHES])
    fails = (names.failed & np.isin(purpose, _WORK)) | crashed
    each_once = np.concatenate([calls.beside().name, trace.launches.name])
    count = np.bincount(each_once, minlength=len(fails))
    failed, every = dict[str, int](), dict[str, int]()
    for text, number, bad in zip(names.texts, count.tolist(), fails.tolist(), strict=True):
        every[text] = every.get(text, 0) + number
        failed[text] = failed.get(text, 0) + number * bad
    most = sorted((text for text in failed if failed[text]), key=lambda text: (-failed[text], text))[:2]
    if not most:
        return
    if not crashed.any() and all(failed[text] < _SOME_FAILED * every[text] for text in most):
        return  # a program may try what fails
    if case.dialect != "pytorch":  # whose allocator tries again
        fails |= names.failed & np.isin(purpose, _BEFORE)
    rows = [(each, np.flatnonzero(fails[each.name])) for each in (calls, trace.launches)]
    at = [(each.start[mine].min(), int(each.name[mine[each.start[mine].argmin()]])) for each, mine in rows if len(mine)]
    first = min(at)[1]
    error = int(names.result[first])
    fix = f": {_FIXES[error]}" if error in _FIXES else ""
    place, some = case.places[0], join_words([f"{failed[text]:,} of {every[text]:,} {text} calls" for text in most])
    code = f"cudaError{_ERRORS[error]}" if error in _ERRORS else f"error {error}"
    text = (
        f"{some} failed, so the program did not do all of its work; the first error is {code} from {names.texts[first]}"
    )
    remedy = f"fix the first error before any tuning{fix}; check the error code of each CUDA call"
    yield Finding(
        FAILED, WHOLE, place.gpu, ONCE, place.steps, text, "failed calls", "order", 0, remedy, total_ns=place.total_ns
    )


def set_up(case: Case) -> Iterator[tuple[str, int]]:
    """Yield one-time host work by purpose of call, with its time in ns, the longest first.

    Calls for memory and streams count only before the first GPU operation or after the last.
    """
    calls, ops = case.facts.activity.calls, case.facts.attribution.trace.ops
    if not len(ops):
        return
    last = ops.end.max()
    rows = np.flatnonzero(np.isin(np.arange(len(PURPOSES)), (*SET_UP_PURPOSES, *_MEMORY))[case.purpose[:-1]])
    purpose, behind = case.purpose[rows], calls.start[rows] >= last
    outside = (calls.end[rows] <= ops.start.min()) | behind
    found = []
    for code in (*SET_UP_PURPOSES, *_MEMORY):
        mine = rows[(purpose == code) & (outside if code in _MEMORY else case.once[rows] & ~behind)]
        start, end = merge(calls.start[mine], calls.end[mine])
        ns = int((end - start).sum())
        if ns and code not in _MEMORY:  # a call that waits for a kernel sets nothing up
            lines = case.facts.attribution.trace.gpu_busy.values()
            near = [tuple(each[(line[1] > start[0]) & (line[0] < end[-1])] for each in line) for line in lines]
            ns -= int(covered(union(*near), start, end).sum())
        if ns >= (MIN_NS if code in _MEMORY else 1):
            found.append((_WORDS.get(code, PURPOSES[code]), ns))
    yield from sorted(found, key=lambda each: -each[1])


def cold_start(case: Case, once: Sequence[tuple[str, int]], found: list[Finding], recorded_ns: int) -> list[Finding]:
    """Return findings about a recording that is only a demo or a cold start: first its kind, then facts without advice.

    If annotated steps repeat and have more than a little work, or if GPUs are busy for long, the findings are returned
    unchanged.
    """
    trace = case.facts.attribution.trace
    busy = trace.busy_ns
    if not busy or not case.places:
        return found
    total, span = sum(ns for _, ns in once), sum(each.total_ns for each in case.places)
    place, kernels, level = case.places[0], _kernels_ns(trace), case.chosen.level
    if len(level.rows) and not level.found and not 0 < kernels < min(_LITTLE_NS, _NO_WORK * span):
        return found
    inside = 0 if level.found else int(case.pieces["ns"][_set_up_waits(case)].sum())  # takes all waits of the recording
    little = max(busy, span) if level.found else busy
    hardly = (kernels < _LITTLE_NS and busy < min(_SHORT_NS, recorded_ns / _TIMES)) or (
        kernels < _NO_KERNELS * span and busy < _NO_WORK * span and inside < _MOSTLY * place.total_ns
    )
    moves = int((trace.ops.end - trace.ops.start)[trace.ops.kind == MIGRATION].sum())
    small = not len(level.rows) and moves < busy and not any(each.remedy for each in found)
    hardly |= small and kernels < min(_FEW_NS, _NO_WORK * recorded_ns) and busy < _NO_WORK * recorded_ns
    small &= busy < _SMALL_NS
    gains = any(each.gain_ns >= _SOME * each.total_ns for each in found)
    brief = busy < _SMALL_NS and span < _A_MOMENT * recorded_ns and not gains
    dropped = [each for each in found if each.path == WHOLE and each.kind in _EACH_LAUNCH and each.claim != COUNTED]
    again = _REPEAT if total >= MIN_NS else _MORE
    before = _before_work(case, once, busy, recorded_ns)
    if not kernels and (none := _no_kernel(case, hardly or before is not None)):
        text, remedy = none
    elif total >= max(_TIMES * busy, span) and (little < _LITTLE_NS or small):
        names = join_words([name for name, ns in once if ns >= MIN_NS] or [name for name, _ in once[:1]])
        who = "the GPU is" if len(set(trace.gpu_numbers)) == 1 else "GPUs are"
        text = f"too little GPU work to optimize: {who} busy for {format_ns(busy)}, set-up takes {format_ns(total)}"
        pages = "; the report does not show how long kernels wait for managed memory"
        text, remedy = f"{text} ({names}){pages * (fault_share(case) >= SOME_FAULTS)}", again
    elif hardly if not len(level.rows) else brief:
        warm = (
            any(each.lost_ns >= _MOSTLY * each.total_ns for each in dropped)
            or _long_kernels_ns(trace) >= _MOSTLY * span
            or (len(level.rows) > 0 and kernels >= _LITTLE_NS)
        )
        if again is _MORE and kernels >= _NO_KERNELS * span and warm:
            return found
        all_of_it = f" and all GPU operations for {format_ns(busy)}" * (format_ns(kernels) != format_ns(busy))
        text = f"too little GPU work to optimize: kernels run for {format_ns(kernels)}{all_of_it}"
        text, remedy = f"{text} of the {format_ns(recorded_ns)} recorded", again
    elif before is not None:
        text, remedy = before
    elif inside >= _MOSTLY * place.total_ns:
        text, remedy, dropped = _sets_up(trace, place, inside), _WARM, []
    elif text := _tuning(case, span):
        remedy, dropped = _WARM, []
    elif text := _slow_first(case, found):
        remedy = _WARM
    else:
        return found
    for each in sorted(dropped, key=lambda each: -each.lost_ns)[:1]:
        if each.lost_ns >= _MOSTLY * each.total_ns and np.count_nonzero(trace.ops.kind != MEMCPY) > 1:
            text += f"; the GPU waits {format_share(each.lost_ns / each.total_ns)} of the time for "
            text += each.cause.replace(CAUSE, LAUNCHES, 1) + f" ({each.where})" * bool(each.where)
            remedy = f"{_THIS_CODE}; else {remedy}" * (each.kind == "cpu-code" and bool(each.where)) or remedy
    if any(each.cause == SHARED and each.lost_ns >= _SOME * each.total_ns for each in found):
        text, remedy = f"{text}; {SHARED}", f"{remedy}, with the GPU to yourself"
    first = Finding(
        COLD, WHOLE, place.gpu, ONCE, place.steps, text, "set-up", "order", inside, remedy, total_ns=place.total_ns
    )
    return [first, *(each.untried(remedy="") for each in found if each.kind not in _SET_UP_TOO and each not in dropped)]


def _sets_up(trace: Trace, place: Place, inside: int) -> str:
    """The sentence that the GPU of ``place`` mostly waits for set-up, during ``inside`` ns."""
    start, end = trace.gpu_busy[place.gpu]
    who = "the GPU" if len(trace.gpu_busy) == 1 else f"GPU {place.gpu}"
    waits = f"a cold start: {who} waits for set-up during {format_ns(inside)} of {format_ns(place.total_ns)}"
    return f"{waits}, and is busy for {format_ns(int((end - start).sum()))}"


def outside_steps(case: Case, idle_ns: int, gap_ns: int, during: str) -> Iterator[Finding]:
    """Find programs whose GPUs idle outside the detected steps for several times as long as all steps take. They must
    be PyTorch programs (whose detected steps are often the layers of a cold pass), or idle in one call that pins
    memory. See `Diagnosis` for the times.
    """
    gpus = len({place.gpu for place in case.places})
    total = sum(place.total_ns for place in case.places) // max(gpus, 1)
    if not case.places or idle_ns < max(_OUTSIDE * total, MIN_NS):
        return
    pins = _PINS.search(during) is not None and gap_ns >= _OUTSIDE * total
    if not pins and (case.dialect != "pytorch" or max(place.steps for place in case.places) > _LAYERS):
        return
    place, long = case.places[0], gap_ns >= _SOME * idle_ns
    doing = f" ({during})" * bool(during)
    in_it = "of it in one gap" if gpus == 1 else "in one gap of a GPU"
    at_once = f", {format_ns(gap_ns)} {in_it}{doing}" * (long and gap_ns < idle_ns)
    who = "the GPU idles" if gpus == 1 else "each GPU idles on average"
    text = f"{who} for {format_ns(idle_ns)} outside the steps{at_once}; the steps together take {format_ns(total)}"
    yield Finding(
        COLD, WHOLE, place.gpu, ONCE, place.steps, text, "outside the steps", "order", 0,
        _PIN_LESS if pins else _FEW_STEPS,
        total_ns=place.total_ns,
    )  # fmt: skip


def _no_kernel(case: Case, hardly: bool) -> tuple[str, str] | None:
    """That no kernel is recorded, and what to check; None if the program may only copy."""
    if launched := int(np.isin(case.purpose[:-1], (LAUNCH, GRAPH_LAUNCH)).sum()):
        none = f"no kernel is recorded, although {plural(launched, 'call')} launched kernels"
        return f"{none}: the program or the recording ended too early, or kernels failed", _CHECK
    trace = case.facts.attribution.trace
    sizes = np.bincount(distinct(trace.ops.name[trace.copy_ops], trace.copy_sizes()[trace.copy_ops])[1], minlength=1)
    if not hardly or (case.dialect != "pytorch" and sizes.max() >= _FEW):  # as a benchmark of copies
        return None
    return "no kernel is recorded: the GPU only copies or sets memory", _ENDED


def _kernels_ns(trace: Trace) -> int:
    """For how long GPUs run kernels, one or several at a time; the sum of many, which is no little work either way."""
    kernels = (trace.ops.kind == KERNEL) | (trace.ops.kind == GRAPH)
    if np.count_nonzero(kernels) > _MANY_KERNELS:
        lengths = ((trace.ops.end[part] - trace.ops.start[part])[kernels[part]] for part in slices(len(kernels)))
        return sum(int(part.sum()) for part in lengths)
    rows = np.flatnonzero(kernels)
    lines = (
        merge(trace.ops.start[mine], trace.ops.end[mine])
        for gpu in trace.gpu_busy
        for mine in [rows[trace.op_gpu[rows] == gpu]]
    )
    return sum(int((end - start).sum()) for start, end in lines)


def _long_kernels_ns(trace: Trace) -> int:
    """For how long kernels run that a problem of real size has: long, and launched again."""
    rows = np.flatnonzero((trace.ops.kind == KERNEL) & (trace.ops.end - trace.ops.start >= _LONG_NS))
    again = np.bincount(trace.ops.name[rows])[trace.ops.name[rows]] > 1
    return int((trace.ops.end - trace.ops.start)[rows[again]].sum())


def _before_work(case: Case, once: Sequence[tuple[str, int]], busy: int, recorded_ns: int) -> tuple[str, str] | None:
    """That most of a recording without steps is set-up, or nearly all of it before its first GPU operation; with a
    remedy.
    """
    calls, total = case.facts.activity.calls, sum(ns for _, ns in once)
    if len(case.chosen.level.rows) or not len(calls):
        return None
    span = sum(each.total_ns for each in case.places)
    if total >= max(_TIMES * span, _SOME * recorded_ns, _OF_ITS_OWN_NS):
        names = join_words([f"{name} {format_ns(ns)}" for name, ns in once if ns >= _MAIN * total])
        text = f"set-up takes {format_ns(total)} of the {format_ns(recorded_ns)} recorded ({names}); each"
        longest = format_ns(max(each.total_ns for each in case.places))
        return f"{text} GPU runs all its operations within {longest}", _PIN_LESS if once[0][0] == "pinning" else _WARM
    early = int(case.facts.attribution.trace.ops.start.min()) - int(calls.start.min())
    if early < max(_NEARLY_ALL * recorded_ns, _LATE_NS) or busy >= min(_NO_WORK * recorded_ns, _OF_ITS_OWN_NS):
        return None
    text = f"too little GPU work to optimize: the first GPU operation comes {format_ns(early)} after the first call"
    julia = any("(Julia)" in short_name(name) for name in case.facts.attribution.trace.op_names)
    text += f", and GPUs are busy for {format_ns(busy)} of {format_ns(recorded_ns)}"
    return text, _COMPILED if julia else _BEFORE_IT


def _tuning(case: Case, span: int) -> str:
    """That most of the steps that were found compares kernels, or sets up libraries before.

    XLA checks the memory around the result of each kernel that it compares.
    """
    ops = case.facts.attribution.trace.ops
    names = np.array(["redzone_checker" in name for name in case.facts.attribution.trace.op_names], bool)
    checks = np.sort(ops.start[names[ops.name]])
    if not case.chosen.level.found or not len(checks):
        return ""
    first, last = (np.searchsorted(checks, each) for each in (case.windows.start, case.windows.end))
    start, end = merge(*(np.sort(each[last > first]) for each in (case.windows.start, case.windows.end)))
    waits, ns = case.pieces, np.where(_set_up_waits(case), case.pieces["ns"], 0)
    among = int(ns[(waits["start_ns"] >= checks[0]) & (waits["end_ns"] <= checks[-1])].sum())
    tuning, sets_up = int(covered((start, end), checks[:1], checks[-1:])[0]) - among, int(ns.sum())
    if tuning <= 0 or tuning + sets_up < _MOSTLY * span:
        return ""
    and_sets_up = f" and sets up libraries for {format_ns(sets_up)}," * (sets_up >= MIN_NS)
    compares = f"a cold start: the program compares kernels (autotuning) for {format_ns(tuning)}"
    return f"{compares}{and_sets_up} of the {format_ns(span)} of its steps"


def _slow_first(case: Case, found: Sequence[Finding]) -> str:
    """That the first of many ranges of a name takes much of a recording without steps, in CPU time that was found."""
    trace, span = case.facts.attribution.trace, sum(each.total_ns for each in case.places)
    start, length = trace.ranges.start, trace.ranges.end - trace.ranges.start
    causes = [each.cause for each in found if each.path == WHOLE and each.kind == "cpu-code"]
    names = [_NUMBER.sub("*", name.text) for name in trace.range_names] if causes else []
    for name in dict.fromkeys(name for name in names if any(f"in {name}" in cause for cause in causes)):
        alike = np.flatnonzero(np.array([each == name for each in names])[trace.ranges.name])
        first, others = alike[start[alike].argmin()], np.sort(length[alike])[:-1]
        ns = int(trace.ranges.end[first] - max(start[first], case.windows.start.min()))
        if len(others) < _FEW or ns < max(_SOME * span, _TIMES * np.median(others)):
            continue
        took = f"{format_ns(ns)} ({format_share(ns / span)})"
        usual = format_ns(float(np.median(others)))
        return (
            f"a cold start: the first of {len(alike):,} ranges {name} takes {took}; the median of the others is {usual}"
        )
    return ""


def _set_up_waits(case: Case) -> Mask:
    """Mark the pieces in which the GPU of the first place waits for what is done once: set-up, and a few long calls for
    memory and streams.
    """
    call, ns = case.pieces["call"], case.pieces["ns"]
    mine = case.once[call]
    for code in _MEMORY:
        long = (case.purpose[call] == code) & (ns >= MIN_NS)
        mine = mine | (long if len(np.unique(call[long])) < _FEW else False)
    return of_host(case) & idling(case) & mine & (case.place_of == 0)
