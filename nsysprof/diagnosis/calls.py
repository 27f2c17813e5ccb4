"""Find GPU waits while the host is in a call: allocation, pinning, a lock, input, and one-time work."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import pick
from nsysprof.core.intervals import union
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.case import Case, made_once
from nsysprof.diagnosis.finding import NAME, ONCE, Finding
from nsysprof.diagnosis.kinds import (
    BY_ROWS,
    DIRECTIVES,
    Group,
    Kind,
    Remedy,
    by_culprit,
    copied_op,
    copying,
    dialect_text,
    idling,
    in_calls,
    in_mpi,
    in_one_gap,
    in_steps,
    launching,
    messages,
    of_host,
    removal,
    repeats,
    text_of,
)
from nsysprof.waits import purposes
from nsysprof.waits.facts import BETWEEN
from nsysprof.waits.whole import Cause

_REUSE = {
    "pytorch": (
        "remove empty_cache() from the loop, so that PyTorch's allocator keeps its memory; if the program does not call"
        " it, GPU memory may be full: use less of it (a smaller batch)"
    ),
    "cuda": "allocate once before the loop and reuse the memory, or use cudaMallocAsync with a memory pool",
    "openacc": "keep the arrays on the GPU with an enter data directive before the loop",
}
_BLOCK = "allocate one block before the loop for all buffers that are in use until the end, and give out parts of it"
_MADE = 16  # allocations
LOST_GRAPHS, _HIDDEN = "CUDA graphs that are not recorded", 0.05  # a cause; of the time from first to last operation
_SLOW_LAUNCH = (
    "; nsys makes these launches longer by recording each node of the graphs, so measure them with "
    "nsys profile --cuda-graph-trace=graph"
)
OVERLAP = "; start MPI_Isend and MPI_Irecv before independent work, and balance the ranks"
_COLLECTIVE = re.compile(r"P?MPI_((?:All|Reduce|Bcast|Gather|Scatter|Scan|Exscan)(?!oc|\w*_(?:local|init)\b)\w*)")
_STARTED = re.compile(r"P?MPI_I")  # calls that do not wait
_FEWER = "; call it in fewer steps, or start MPI_I{name} before independent work, and balance the ranks"
_CACHE = (
    "turn the caching allocator on: unset PYTORCH_NO_CUDA_MEMORY_CACHING and PYTORCH_NO_HIP_MEMORY_CACHING, and do"
    " not call empty_cache() in the loop"
)
_OF_LAUNCHES, _RUNS, _LOOP = 4, 10, 100  # launches for each allocation, for each time that it frees, and in all
_POOL = re.compile(r"[Aa]lloc(?:FromPool)?Async|FreeAsync")
_ROWS = 64  # allocations: fewer are arrays of their own
_SOON = 0.25  # of a wait for input: another thread that woke up within so much of its end made the input then
_CALL = "the GPU waits for {cause}: {amount}"


def _advise(texts: dict[str, str]) -> Callable[[Case, Group], Iterable[Remedy]]:
    def remedies(case: Case, group: Group) -> Iterable[Remedy]:
        call = np.unique(case.pieces["call"][group.rows])
        if not in_one_gap(case, group) and repeats(case, group, case.purpose[call]):
            yield removal(dialect_text(case, texts), group)

    return remedies


def _each_step(*purposes: int, long: bool = False) -> Callable[[Case], Mask]:
    def claims(case: Case) -> Mask:
        mine = in_calls(case, *purposes) & (copied_op(case) < 0)
        return mine & (case.pieces["ns"] >= case.long_code_ns) if long else mine

    return claims


def _once(*purposes: int) -> Callable[[Case], Mask]:
    def claims(case: Case) -> Mask:
        call = case.pieces["call"]
        return of_host(case) & idling(case) & case.once[call] & np.isin(case.purpose[call], purposes)

    return claims


def _kind(name: str, claims: Callable[[Case], Mask], texts: dict[str, str] | None, *, once: bool = False) -> Kind:
    words = by_culprit, text_of("culprit"), _CALL
    if texts is None:
        return Kind(name, claims, *words, set_up=once)
    return Kind(name, claims, *words, _advise(texts), set_up=once, arithmetic=True)


_ALLOCATES = (purposes.ALLOCATE, purposes.FREE, purposes.MANAGED)


def _allocates(case: Case) -> Mask:
    """In calls that allocate or free, and launching behind a call that waited for the GPU to free."""
    exposing = case.pieces["exposing"]
    behind = (case.purpose[exposing] == purposes.FREE) & ~case.once[exposing] & launching(case)
    return (in_calls(case, *_ALLOCATES) | behind) & (copied_op(case) < 0)


def _in_place(case: Case, group: Group) -> Mask:
    """Mark the calls in the steps that allocate or free."""
    calls, windows = case.facts.activity.calls, case.windows.take(group.place.windows)
    order = np.argsort(windows.start, kind="stable")
    at = np.searchsorted(windows.start[order], calls.start, side="right") - 1
    inside = (at >= 0) & (calls.start < windows.end[order][at])
    return inside & np.isin(case.purpose[:-1], _ALLOCATES) & ~case.once[:-1]


def _allocations(case: Case, group: Group) -> Cause:
    """All calls of the steps that allocate or free: who reuses memory does without both."""
    return case.program.wholes.of_calls(np.flatnonzero(_in_place(case, group)))


def _allocator(case: Case, row: int) -> str:
    """The calls of a place: all of them are one cause, as one remedy concerns them all. Most of it is in one call, and
    in one range if that has most of this call.
    """
    mine = np.flatnonzero(in_calls(case, *_ALLOCATES) & (case.place_of == case.place_of[row]))
    if not len(mine):
        return text_of("exposed_by")(case, row)
    culprit, ns, words = case.pieces["culprit"][mine], case.pieces["ns"][mine], case.facts.texts.words
    calls = case.facts.activity.calls
    name = calls.name[case.pieces["call"][mine]]
    total = np.bincount(name, ns)
    call = min(np.flatnonzero(total == total.max()).tolist(), key=calls.names.__getitem__)
    of_call = np.bincount(culprit, ns * (name == call))
    most = words[case.facts.texts.most(culprit, ns * (name == call))]
    if (culprit == culprit[0]).all():
        return one_line(most, NAME)
    most = most if 2 * of_call.max() > total.max() else calls.names[call]
    return one_line(f"allocation, most in {most}", NAME)


@made_once
def _pooled(case: Case) -> Mask:
    """Mark the calls that allocate from a pool of the driver, as PyTorch's backend cudaMallocAsync."""
    calls = case.facts.activity.calls
    return np.array([_POOL.search(name) is not None for name in calls.names], bool)[calls.name]


def _grows(case: Case, group: Group) -> bool:
    """Whether a program allocates, and hardly frees, as PyTorch's allocator in the first steps."""
    count = np.bincount(case.purpose[:-1][_in_place(case, group)], minlength=purposes.ALLOCATE + 1)
    return 2 * int(count[purposes.FREE]) < int(count[purposes.ALLOCATE])


def _keeps(case: Case) -> bool:
    """Whether a program that allocates many buffers in its loops hardly frees until the last kernel has been launched:
    what is in use until then cannot be reused.
    """
    calls, purpose = case.facts.activity.calls, case.purpose[:-1]
    launched = calls.start < calls.start[purpose == purposes.LAUNCH].max(initial=0)
    first = calls.start >= case.windows.start.min()
    made, freed = (int(((purpose == of) & launched & first).sum()) for of in (purposes.ALLOCATE, purposes.FREE))
    return made >= _MADE and 2 * freed < made and int(((purpose == purposes.FREE) & ~launched).sum()) >= made - freed


def _reuse(case: Case, group: Group) -> Iterable[Remedy]:
    if case.dialect == "pytorch" and not (_in_place(case, group) & ~_pooled(case)).any():
        return ()  # its own allocator is not in use
    grows, managed = _grows(case, group), case.dialect in ("pytorch", *DIRECTIVES)
    if not (grows and managed):
        return _advise({"cuda": _BLOCK} if grows and _keeps(case) else _REUSE)(case, group)
    by_rows = case.dialect in DIRECTIVES and len(np.unique(case.pieces["call"][group.rows])) >= _ROWS
    return [removal(BY_ROWS, group)] if by_rows else ()


@made_once
def _uncached(case: Case) -> bool:
    """Whether PyTorch's allocator keeps no memory: it allocates for many kernels, and frees between few of them."""
    if case.dialect != "pytorch":
        return False
    calls = case.facts.activity.calls
    order = np.lexsort((calls.start, calls.thread))
    purpose = case.purpose[order[np.isin(case.purpose[order], (*_ALLOCATES, purposes.LAUNCH)) & ~_pooled(case)[order]]]
    count, frees = np.bincount(purpose, minlength=len(purposes.PURPOSES)), purpose == purposes.FREE
    runs = int((frees[1:] & ~frees[:-1]).sum())  # of empty_cache() each frees much
    least = min(_OF_LAUNCHES * count[purposes.ALLOCATE], _RUNS * runs)
    return count[purposes.LAUNCH] >= _LOOP and least >= count[purposes.LAUNCH]


ALLOCATION = Kind(
    "allocation",
    lambda case: _allocates(case) & (not _uncached(case)),
    lambda case, rows: np.zeros(len(rows), np.int64),
    _allocator,
    _CALL,
    _reuse,
    _allocations,
    arithmetic=True,
    note=lambda case, group: (
        "; PyTorch's allocator still grows, so record later steps" * (case.dialect == "pytorch" and _grows(case, group))
    ),
)
# Its calls are made in all operators, where a replay does not know which thread waits for which.
UNCACHED = replace(
    ALLOCATION,
    claims=lambda case: _allocates(case) & _uncached(case),
    symptom="PyTorch's caching allocator seems to be off, because operators allocate from the driver; the GPU waits for"
    " {cause}: {amount}",
    remedies=lambda case, group: [removal(_CACHE, group)],
    tried=False,
)
PINNING = _kind(
    "pinning",
    _each_step(purposes.PIN),
    {
        "pytorch": "pin the memory once, before the loop, and reuse it",
        "cuda": "call cudaHostRegister or cudaMallocHost once, before the loop, and reuse the memory",
    },
)
_SLEEPING = _kind("sleep", _each_step(purposes.SLEEP), {"cuda": "take the sleep out of the loop"})
# A program that sleeps outside its steps, as a benchmark with idle time, means to, and the steps are what to shorten.
SLEEPING = replace(
    _SLEEPING,
    remedies=lambda case, group: () if BETWEEN in group.cause else _SLEEPING.remedies(case, group),
    note=lambda _, group: (
        "; this pause is between the steps: remove it unless it is intended" * (BETWEEN in group.cause)
    ),
)


OUTPUT = re.compile(r"p?writev?\d*$|fwrite|fsync|fdatasync|fflush|f?puts|v?f?printf")


@made_once
def _fed(case: Case) -> Mask:
    """In waits for a lock (not a mutex) behind which the thread first copies to the GPU: another thread makes input."""
    trace, calls = case.facts.attribution.trace, case.facts.activity.calls
    mutex = np.array([*("mutex" in name for name in calls.names), False], bool)
    mask = _each_step(purposes.LOCK, long=True)(case) & ~mutex[np.append(calls.name, -1)[case.pieces["call"]]]
    rows = np.flatnonzero(mask)
    _, launch = trace.launches.around(case.pieces["thread"][rows], case.pieces["end_ns"][rows])
    inputs = np.array([*("HtoD" in name for name in trace.op_names), False], bool)
    mask[rows] = inputs[pick(case.program.wholes.copy_name, launch)]
    return mask


def source_sleeps(case: Case, group: Group) -> bool:
    """Return whether the sleep of another thread sets the pace, because most waits for input end soon after it."""
    calls, threads = case.facts.activity.calls, case.facts.attribution.trace.threads
    end, ns, thread = (case.pieces[name][group.rows] for name in ("end_ns", "ns", "thread"))
    sleeps = np.flatnonzero((case.purpose[:-1] == purposes.SLEEP) & (calls.end - calls.start >= np.median(ns) / 2))
    sleeps = sleeps[np.argsort(calls.end[sleeps], kind="stable")]
    if not len(sleeps):
        return False
    at = np.searchsorted(calls.end[sleeps], end, side="right") - 1
    last = sleeps[at]
    near = (at >= 0) & (end - calls.end[last] <= _SOON * ns) & (calls.threads[calls.thread[last]] != threads[thread])
    return 2 * int(ns[near].sum()) > int(ns.sum())


@made_once
def writes(case: Case) -> Mask:
    """Mark pieces in long calls that write to a file or a terminal."""
    calls = case.facts.activity.calls
    named = np.array([*(OUTPUT.match(name) is not None for name in calls.names), False], bool)
    return _each_step(purposes.INPUT_OUTPUT, long=True)(case) & named[np.append(calls.name, -1)[case.pieces["call"]]]


WRITING = _kind(
    "input-wait",
    writes,
    {"cuda": ("buffer the output, and write large blocks from another thread while the GPU works")},
)
LOAD_AHEAD = {
    "pytorch": "load ahead: raise DataLoader num_workers and prefetch_factor, set persistent_workers=True",
    "cuda": "read the next input in another thread while the GPU works on this one",
}
WAITING_FOR_INPUT = _kind(
    "input-wait",
    lambda case: (_each_step(purposes.POLL, purposes.INPUT_OUTPUT, long=True)(case) & ~writes(case)) | _fed(case),
    LOAD_AHEAD,
)
LOCKED = replace(
    _kind("lock", lambda case: _each_step(purposes.LOCK, long=True)(case) & ~_fed(case), None),
    note=lambda case, group: (
        "; the GPU copies for most of this time, so the program may wait for copies" * copying(case, group.rows)
    ),
)


def _called(case: Case, rows: Index | int) -> Mask:
    """Whether a call of MPI is recorded as such, not as a range."""
    return case.purpose[case.pieces["call"][rows]] == purposes.MPI


def _sent(case: Case, rows: Index) -> Ints:
    """The call of MPI or else the range, as a code of `Facts.texts`."""
    named = np.where(_called(case, rows), *(case.pieces[name][rows] for name in ("culprit", "range")))
    return np.where(messages(case)[rows] > 0, messages(case)[rows], named)


def _overlap(case: Case, group: Group) -> str:
    """What to do about a call of MPI; ranks enter collectives together."""
    collective = _COLLECTIVE.match(group.cause)
    if not in_steps(case, group) or not collective:
        return OVERLAP * (in_steps(case, group) and not _STARTED.match(group.cause))
    return _FEWER.format(name=collective[1].lower())


COLLECTIVES = _kind("mpi", _each_step(purposes.NCCL), None)
MESSAGES = Kind(
    "mpi",
    in_mpi,
    _sent,
    lambda case, row: one_line(case.facts.texts.words[_sent(case, np.array([row]))[0]], NAME),
    _CALL,
    note=_overlap,
)
HOST_PAGES = _kind(
    "page-fault", _each_step(purposes.PAGES), {"cuda": "touch or pin the memory once, before the loop, and reuse it"}
)


def _by_node(case: Case) -> Mask:
    """Mark the pieces in launches of graphs of which nsys records each node."""
    trace = case.facts.attribution.trace
    nodes = trace.ops.from_graph & (trace.report.reader.recorder == "nsys")
    return _each_step(purposes.GRAPH_LAUNCH)(case) & np.append(nodes, False)[case.pieces["op"]]


def _call_name(case: Case, row: int) -> str:
    calls = case.facts.activity.calls
    return calls.names[calls.name[case.pieces["call"][row]]]


# No replay can do without the launch of a graph's work.
GRAPHS = replace(
    _kind("graph-launch", lambda case: _each_step(purposes.GRAPH_LAUNCH)(case) & ~_by_node(case), None), tried=False
)
GRAPHS_BY_NODE = replace(
    GRAPHS,
    claims=_by_node,
    codes=lambda case, rows: np.zeros(len(rows), np.int64),
    words=_call_name,
    note=lambda case, group: _SLOW_LAUNCH,
)
RECOMPILING = _kind(
    "compilation",
    _each_step(purposes.COMPILE, purposes.MODULE, purposes.GRAPH_CAPTURE, purposes.CONTEXT),
    {
        "pytorch": (
            "compile or capture only once: keep tensor shapes fixed, or mark the varying dimension as "
            "dynamic (torch._dynamo.mark_dynamic)"
        ),
        "cuda": "move this compilation, loading or capture out of the loop",
    },
)


def graphs_not_recorded(case: Case) -> Iterator[tuple[Finding, bool]]:
    """Find launches of CUDA graphs whose GPU work is not recorded, and whether most GPU idle time may be this work. If
    so, all other waits are doubtful.
    """
    trace, calls = case.facts.attribution.trace, case.facts.activity.calls
    rows = np.flatnonzero(case.purpose[:-1] == purposes.GRAPH_LAUNCH)
    if not len(rows) or not case.places:
        return
    used = [trace.call_names[name] for name in np.unique(trace.launches.name).tolist() if name >= 0]
    if any(purposes.purpose_of(name) == purposes.GRAPH_LAUNCH for name in used):
        return
    start, end = union(*trace.gpu_busy.values())
    gaps = np.unique(np.searchsorted(start[1:], calls.start[rows], side="right"))
    gaps, idle, place = gaps[gaps < len(start) - 1], start[1:] - end[:-1], case.places[0]
    ns = int(idle[gaps].sum())
    if trace.ops.from_graph.any() or ns < _HIDDEN * int(end[-1] - start[0]):
        return
    text = f"{plural(len(rows), 'call')} launched CUDA graphs whose GPU work is not recorded, so up to"
    text += f" {format_ns(ns)} of the GPU's idle time may be work of these graphs"
    remedy = "record again with nsys profile --cuda-graph-trace=node" if trace.report.reader.recorder == "nsys" else ""
    values = "unknown", WHOLE, place.gpu, ONCE, place.steps, text, LOST_GRAPHS, "abstain", 0, remedy
    yield Finding(*values, total_ns=place.total_ns), 2 * ns >= int(idle.sum())


def _loading(case: Case, row: int) -> str:
    """The call that loads; a launch does so if it is the first of its kernel, a call that frees for a library."""
    text, pieces = text_of("culprit")(case, row), case.pieces
    if "Free" in text:
        return one_line(f"{text}, which may load kernels of a library", 90)
    mine = (pieces["culprit"] == pieces["culprit"][row]) & (case.place_of == case.place_of[row]) & of_host(case)
    if "Launch" not in text:
        return text
    several = len(np.unique(pieces["call"][mine & case.once[pieces["call"]]])) > 1
    first = (
        f"first launches of kernels ({text}), which load them"
        if several
        else f"the first {text}, which loads the kernel"
    )
    return one_line(first, 90)


SET_UP = (
    _kind("context", _once(purposes.CONTEXT), None, once=True),
    replace(_kind("module-loading", _once(purposes.MODULE), None, once=True), words=_loading),
    _kind("compilation", _once(purposes.COMPILE, purposes.GRAPH_CAPTURE), None, once=True),
)
