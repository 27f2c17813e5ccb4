"""Find GPU waits during which the launching thread runs long CPU code. Such code is neither a call nor part of
launching.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import expand_ranges, merge
from nsysprof.core.text import one_line
from nsysprof.core.units import format_share
from nsysprof.diagnosis.calls import LOAD_AHEAD, OUTPUT, OVERLAP, writes
from nsysprof.diagnosis.case import Case, made_once
from nsysprof.diagnosis.copies import SPARE
from nsysprof.diagnosis.finding import BOUND, NAME
from nsysprof.diagnosis.kinds import (
    DIRECTIVES,
    Group,
    Kind,
    Remedy,
    dialect_text,
    fetched,
    in_steps,
    launching,
    most_in,
    of_host,
    removal,
)
from nsysprof.diagnosis.launch_bound import without_waits
from nsysprof.trace.details import NO_RANGES, CpuSamples
from nsysprof.waits.purposes import compiles

_NUMBER, _MANY = re.compile(r"\d+"), 3
_LOADS = re.compile(r"dataloader|data_load|next batch|(?<!pre)fetch", re.IGNORECASE)
_OFF = {
    "pytorch": "move this CPU work off the launching thread: to another thread, or out of the step",
    "cuda": "move this CPU work to another thread, or do it while the GPU is busy",
}
_AT_INPUT = {
    "pytorch": (
        "move this CPU work off the launching thread: to DataLoader workers, another thread, or out of the step"
    )
}
_EAGER = {
    "pytorch": (
        "move this CPU work out of the step, or, if it only launches operators, capture the step in a CUDA graph"
        " (torch.cuda.graph)"
    )
}
_MUCH = 0.25  # of the steps: with so much waiting for launches, too, the CPU runs operator after operator
_FASTER = (
    "speed up this CPU work or move it to the GPU: it takes longer than all other work, so moving it to another"
    " thread would hide only part of it"
)
_ON_GPU = {
    "pytorch": "do this work on the GPU, so that its tensors stay there and no step waits for a copy",
    "cuda": "do this work on the GPU, so its data stays there and no step waits for a copy",
}
_OUTPUT = "write less often, or prepare and write the output in another thread while the GPU works"
_OPERATOR = {
    "pytorch": "run this operator on the GPU: create its tensors there (device='cuda'), or move its inputs there once",
    "cuda": _ON_GPU["cuda"],
}
_AWAITED = (
    "find out what blocks this thread (a data loader, another thread, a file or the network), and start that work"
    " earlier"
)
_MESSAGES = re.compile(r"\((?:lib(?:p?mpi|uc[pst]|hcoll|open-|psm|fabric)|h?mca_)")  # MPI, and what it runs on
_STAGES = re.compile(r"mcopy|\((?:libnvc|libacc|libomptarget)")  # of pageable arrays through buffers of the runtime
_SOME_WRITING = 0.01  # of a wait: a call that writes what a library then waits for
_FILES = re.compile(
    r"pwritev?\d*$|fwrite|f(?:data)?sync"
)  # no plain write, which may be for another thread or a terminal
_OPENS = re.compile(r"f?(?:re)?open(?:at)?(?:64)?$")
_ENOUGH, _HARDLY = 20, 0.1  # samples of a thread that runs; part of these in one that sleeps
_FEW_SAMPLES = 5
_STARTS = {"main", "_start", "__libc_start_main", "__libc_start_call_main", "__libc_start_main_impl", "start_thread"}
_NO_FUNCTION = re.compile(r"0x|\[|clone\d?\Z|\Z")  # addresses; what nsys writes for stacks that are cut off
_NO_CODE = re.compile(r"(?:^|/)(?:lib)?python[\d.]*(?:\.so[\d.]*)?\Z|(?:^|/)ld-|libToolsInjection|kernel\.kallsyms")
_RELEASE = re.compile(r"-\d+\Z")  # of a library
_ARGUMENTS = re.compile(r"<[^<>]*>|\(anonymous namespace\)::")


def _long_code(case: Case) -> Mask:
    pieces = case.pieces
    return of_host(case) & (pieces["call"] < 0) & (pieces["ns"] >= case.long_code_ns)


def _in_ranges(case: Case, name: re.Pattern[str]) -> Mask:
    named = [name.search(text) is not None for text in case.facts.texts.words]
    return np.array(named, bool)[case.pieces["range"]]


def _compiling(case: Case) -> Mask:
    named = [compiles(text) for text in case.facts.texts.words]
    return np.array(named, bool)[case.pieces["range"]]


def _words(case: Case, row: int) -> str:
    text = case.facts.texts.words[case.pieces["culprit"][row]]
    if int(_alike(case)[case.pieces["culprit"][row]]) < 0:
        text = _NUMBER.sub("*", text)
    operator = int(_operators(case)[row])
    named = f"in {case.facts.texts.words[operator]} " * (operator > 0)
    return one_line(f"CPU time {named}{text.removeprefix('code').strip() or 'between calls'}", NAME)


@made_once
def _operators(case: Case) -> Ints:
    """The name, as a code of `Facts.texts`, of the operator that runs on the CPU for most of each piece; 0 for none.

    Operators that launch nothing, and are in no other one, work on the CPU.
    """
    trace = case.facts.attribution.trace
    out, rows = np.zeros(len(case.pieces["ns"]), np.int64), np.flatnonzero(_long_code(case))
    found = trace.report.reader.other_ranges(trace, {"ops"}) if len(rows) else NO_RANGES
    codes = (0 if name.text.startswith("autograd::") else case.facts.texts.code(name.text) for name in found.names)
    names = np.fromiter(codes, np.int64)
    out[rows] = np.append(names, 0)[np.append(found.name, -1)[most_in(case, rows, found, launching=False)]]
    return out


def _move(case: Case, group: Group) -> Iterable[Remedy]:
    if not in_steps(case, group):  # what a program does once between two kernels is no step's work
        return
    if _MESSAGES.search(_sampled_in(case, group)):
        return
    if case.dialect in DIRECTIVES and _STAGES.search(_sampled_in(case, group)):
        yield replace(removal(dialect_text(case, SPARE), group), basis=BOUND)
    if _asleep(case, group):
        yield removal(_OUTPUT if _file_call(case, group) else _AWAITED, group)
    if _for_output(case, group) or _ends_in_writes(case, group):
        yield removal(_OUTPUT, group)
    if _operators(case)[group.rows].any():
        yield replace(removal(dialect_text(case, _OPERATOR), group), basis=BOUND)
    if 2 * group.waited_ns > group.place.total_ns:
        yield replace(removal(_FASTER, group), basis=BOUND)
    if _of_results(case, group):
        yield replace(removal(dialect_text(case, _ON_GPU), group), basis=BOUND)
    here = case.place_of == case.places.index(group.place)
    eager = int(case.pieces["ns"][launching(case) & here].sum()) >= _MUCH * group.place.total_ns
    texts = _OFF | (_AT_INPUT if _at_input(case, group) else _EAGER if eager else {})
    yield removal(without_waits(case, group.place, dialect_text(case, texts), np.flatnonzero(here)), group)


def _of_results(case: Case, group: Group) -> bool:
    """Whether the CPU mostly works on what it has copied, or fetched by page faults, from the GPU just before."""
    ns = case.pieces["ns"][group.rows]
    named = np.array(["(DtoH" in text for text in case.facts.texts.words], bool)
    copied = named[case.pieces["exposed_by"][group.rows]]
    return 2 * int(ns[copied | fetched(case, group)].sum()) > int(ns.sum())


def _for_output(case: Case, group: Group) -> bool:
    """Whether most of this work is in steps in which a thread then also writes for long, as a library of files does."""
    window, rows = case.pieces["window"], group.usual_rows(case)
    ns, mine = case.pieces["ns"][rows], np.isin(window[rows], window[writes(case)])
    return 2 * int(ns[mine].sum()) > int(ns.sum()) and _of_results(case, group)


def _ends_in_writes(case: Case, group: Group) -> bool:
    """Whether most of this work ends in calls that write for a part of its time, by threads that open files in the same
    steps.
    """
    calls, pieces, ns, written = case.facts.activity.calls, case.pieces, 0, 0
    writing, opening = (np.array([of.match(name) is not None for name in calls.names], bool) for of in (OUTPUT, _OPENS))
    for code in np.unique(pieces["thread"][group.rows]).tolist():
        mine = group.rows[pieces["thread"][group.rows] == code]
        at = calls.of_thread(int(case.facts.attribution.trace.threads[code]))
        start, name, window, end = calls.start[at], calls.name[at], pieces["window"][mine], pieces["end_ns"][mine]
        then, opens = np.searchsorted(start, end), start[opening[name]]
        first, last = (np.searchsorted(opens, each[window]) for each in (case.windows.start, case.windows.end))
        writes = np.append(writing[name], False)[then] & (last > first)
        writes[writes] = start[then[writes]] - end[writes] <= _SOME_WRITING * pieces["ns"][mine[writes]]
        ns += int(pieces["ns"][mine][writes].sum())
        written += int((calls.end[at] - start)[np.unique(then[writes])].sum())
    return 2 * ns > group.waited_ns and written >= _SOME_WRITING * group.waited_ns


def _at_input(case: Case, group: Group) -> bool:
    """Whether the waits mostly end before a step computes anything, or in a copy to the GPU, as for input."""
    trace, starts = case.facts.attribution.trace, case.lines[group.place.gpu].compute[0]
    op, window, end, ns = (case.pieces[name][group.rows] for name in ("op", "window", "end_ns", "ns"))
    copies = np.array([*("HtoD" in name for name in trace.op_names), False], bool)
    first = np.searchsorted(starts, end) == np.searchsorted(starts, case.windows.start[window])
    inputs = copies[np.append(trace.ops.name, len(trace.op_names))[op]] | first
    return 2 * int(ns[inputs].sum()) > int(ns.sum())


def _prefetch(case: Case, group: Group) -> Iterable[Remedy]:
    yield removal(dialect_text(case, LOAD_AHEAD), group)


def _claims(case: Case) -> Mask:
    return _long_code(case) & ~_in_ranges(case, _LOADS) & ~_compiling(case)


def _codes(case: Case, rows: Index) -> Ints:
    """By the code's range; ranges that differ in numbers alone are one: `load_layer_3` and `load_layer_4`."""
    alike, culprit = _alike(case), case.pieces["culprit"][rows]
    operator = _operators(case)[rows]
    return np.where(alike[culprit] < 0, -alike[culprit] - 1, culprit) + operator * len(alike)


@made_once
def _alike(case: Case) -> Ints:
    """For each text minus one minus the first of those that differ from it in numbers alone, 0 where few do."""
    words = case.facts.texts.words
    out, same = np.zeros(len(words), np.int64), dict[str, list[int]]()
    for code in np.unique(case.pieces["culprit"][_long_code(case)]).tolist():
        same.setdefault(_NUMBER.sub("*", words[code]), []).append(code)
    for codes in same.values():
        if len(codes) >= _MANY:
            out[codes] = -1 - codes[0]
    return out


def _unknown_code(case: Case, group: Group) -> str:
    sampled = _sampled_in(case, group)
    if _MESSAGES.search(sampled):
        return OVERLAP
    if _operators(case)[group.rows].any():
        return f"; {dialect_text(case, _OPERATOR)}"
    return (
        ""
        if sampled or in_steps(case, group)
        else "; to see what this code does, annotate it with ranges or use a CPU profiler"
    )


@made_once
def _samples(case: Case) -> CpuSamples | None:
    """The samples of the CPU during all long code."""
    trace, pieces = case.facts.attribution.trace, case.pieces
    rows = np.flatnonzero(_long_code(case))
    threads = trace.threads[pieces["thread"][rows]]
    spans = [
        (np.full(len(begin), thread), begin, end)
        for thread in np.unique(threads)
        for mine in [rows[threads == thread]]
        for begin, end in [merge(pieces["start_ns"][mine], pieces["end_ns"][mine])]
    ]
    if not spans:
        return None
    return trace.report.reader.cpu_samples(*(np.concatenate(column) for column in zip(*spans, strict=True)))


def _samples_of(case: Case, every: Index) -> tuple[CpuSamples | None, Index, float]:
    """The samples, those during some pieces, and how many there would be if their threads ran all the time."""
    found = _samples(case)
    if found is None:
        return None, np.empty(0, np.intp), 0.0
    trace, pieces, mine, ns = case.facts.attribution.trace, case.pieces, [], 0
    thread = pieces["thread"][every]
    for code in np.unique(thread).tolist():
        rows = every[thread == code]
        begin, end = merge(pieces["start_ns"][rows], pieces["end_ns"][rows])
        at = np.flatnonzero(found.thread == trace.threads[code])
        inside = np.searchsorted(begin, found.time[at], "right") > np.searchsorted(end, found.time[at], "right")
        mine.append(at[inside])
        ns += int(np.maximum(np.minimum(end, found.period[1]) - np.maximum(begin, found.period[0]), 0).sum())
    return found, np.concatenate([np.empty(0, np.intp), *mine]), ns / max(found.usual_ns, 1)


def _asleep(case: Case, group: Group) -> bool:
    """Whether threads that are sampled when they run are hardly sampled during a cause, in the steps of all paths, and
    also of its own path if that is long enough to tell.
    """
    alike = np.flatnonzero(_long_code(case))
    codes = _codes(case, alike)
    found, mine, most = _samples_of(case, alike[np.isin(codes, _codes(case, group.rows))])
    if found is None or most < _ENOUGH or len(mine) >= _HARDLY * most:
        return False
    _, mine, most = _samples_of(case, group.rows)
    return most < _ENOUGH or len(mine) < _HARDLY * most


def _sampled_in(case: Case, group: Group) -> str:
    """The function in most samples; or that the thread sleeps; empty if unknown."""
    found, mine, _ = _samples_of(case, group.usual_rows(case))
    if not _asleep(case, group):
        return most_samples(found, mine)
    call = _file_call(case, group)
    return "the thread sleeps (almost no CPU samples)" + f", and writes a file ({call}) in the same steps" * bool(call)


def _file_call(case: Case, group: Group) -> str:
    """The call with which the threads of a group write files in most of its steps, for a part of its time; empty if
    there is none.
    """
    calls, pieces, trace = case.facts.activity.calls, case.pieces, case.facts.attribution.trace
    windows = case.windows.take(np.unique(pieces["window"][group.rows]))
    rows = np.flatnonzero(np.array([_FILES.match(name) is not None for name in calls.names], bool)[calls.name])
    mine = np.isin(calls.threads[calls.thread[rows]], trace.threads[np.unique(pieces["thread"][group.rows])])
    rows = rows[mine][np.argsort(calls.start[rows[mine]])]
    first, last = (np.searchsorted(calls.start[rows], each) for each in (windows.start, windows.end))
    rows = rows[expand_ranges(first, last - first)]
    ns = int((calls.end[rows] - calls.start[rows]).sum())
    if 2 * int((last > first).sum()) <= len(windows) or ns < _SOME_WRITING * group.waited_ns:
        return ""
    return calls.names[int(np.bincount(calls.name[rows]).argmax())]


def most_samples(found: CpuSamples | None, mine: Index | None) -> str:
    """Return the innermost function that more than half of the samples ``mine`` (None: all samples) have in common, or
    "" if unknown.
    """
    if found is None:
        return ""
    mine = np.arange(len(found.time)) if mine is None else mine
    frames = np.flatnonzero(np.isin(found.sample, mine))
    if len(mine) < _FEW_SAMPLES or not len(frames):
        return ""
    first, pair = distinct(found.function[frames], found.sample[frames])  # recursion counts once
    inner = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(inner, pair, found.depth[frames])
    of = found.function[frames][first]
    count = np.bincount(of, minlength=len(found.functions))
    depth = np.bincount(of, inner, len(count)) / np.maximum(count, 1)
    some = [code for code in np.flatnonzero(2 * count > len(mine)).tolist() if _tells(*found.functions[code])]
    if not some:
        return ""
    best = min(some, key=lambda code: (depth[code], found.functions[code]))
    name, file = found.functions[best]
    of_file = f" ({_RELEASE.sub('', file.rpartition('/')[2].split('.')[0])})" * (".so" in file)
    return f"{format_share(count[best] / len(mine))} of its CPU samples in {_short(name)}{of_file}"


def _tells(name: str, file: str) -> bool:
    """Whether a function says more than that a program runs: none of an interpreter, or that starts threads."""
    return name not in _STARTS and _NO_FUNCTION.match(name) is None and _NO_CODE.search(file) is None


def _short(name: str) -> str:
    """The last two parts of the name of a C++ function, without template arguments and parameters."""
    while (bare := _ARGUMENTS.sub("", name)) != name:
        name = bare
    return one_line("::".join(name.split("(")[0].split(" ")[-1].split("::")[-2:]) or name, NAME)


CPU_CODE = Kind(
    *("cpu-code", _claims, _codes, _words, "the GPU idles during {cause}: {amount}", _move),
    note=_unknown_code,
    where=_sampled_in,
)
LOADER = Kind(
    "input-wait",
    lambda case: _long_code(case) & _in_ranges(case, _LOADS),
    _codes,
    _words,
    "the GPU waits for input during {cause}: {amount}",
    _prefetch,
)
COMPILING = Kind(
    "compilation",
    lambda case: _long_code(case) & _compiling(case),
    _codes,
    _words,
    "the GPU waits for a compiler during {cause}: {amount}",
    set_up=True,
)
