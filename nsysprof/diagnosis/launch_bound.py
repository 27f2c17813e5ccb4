"""Find steps in which the GPU waits for launch after launch from a busy CPU."""

import re
from collections.abc import Iterable

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import AnyInts, Index, Ints, Mask
from nsysprof.core.columns import marked
from nsysprof.core.intervals import expand_ranges
from nsysprof.diagnosis.case import Case, Place, made_once
from nsysprof.diagnosis.finding import BOUND, OFTEN_SO
from nsysprof.diagnosis.kinds import LAUNCHING, Group, Kind, Remedy, dialect_text, glob_of, launching
from nsysprof.trace.details import CUDA, OS
from nsysprof.trace.details import LAUNCHING as LAUNCH_CALLS
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.changes import Changes
from nsysprof.waits.facts import QUEUED
from nsysprof.waits.purposes import COPY, LOCK, SYNCHRONIZE
from nsysprof.waits.whole import Cause

MIN_LAUNCHES = 8  # in a step: of fewer nobody captures a graph
CAUSE = "kernel launches"
LAUNCHES = "launches"  # said instead where they may be launches of copies
RECORDING = "this may be profiling overhead alone; if the steps take as long without the profiler"
_OPTIMIZER_CAUSE = "kernel launches of the optimizer"
_OPTIMIZER = re.compile(r"Optimizer\.step|(?:^|[^a-z])opt(?:im(?:izer)?)?(?:[^a-z]|$)|(?:adam|sgd)", re.IGNORECASE)
# What an optimizer launches that goes through parameters one by one, or list by list.
_UPDATES = re.compile(r"addcdiv|addcmul|(?<![a-z])lerp|multi_tensor_apply|_foreach_", re.IGNORECASE)
_MIN_UPDATES, _MIN_SHARE = 16, 0.1
# Of the steps: with so much of launching and the latency of launches, and some of it launching, both are one cause:
# without one of them the GPU waits for the other.
_MUCH, _SOME = 0.25, 0.05
_DETAILS = re.compile(r" in | \(")  # of a call: its range, its copy
_INSIDE = 2  # waits of the CPU in the median step: with so many, one has launches before and behind it
_EXPOSED = 0.75  # of launching: with more behind calls that wait, each before few launches, these come first
_GRAPH = {
    "pytorch": (
        "launch fewer kernels: capture the step in a CUDA graph (torch.cuda.graph), or compile it with "
        "torch.compile(mode='reduce-overhead')"
    ),
    "cuda": (
        "launch fewer kernels: capture the loop body in a CUDA graph (cudaStreamBeginCapture), or fuse small kernels"
    ),
    "openacc": (
        "launch fewer kernels: merge the parallel loops into larger kernels, and launch them with an async clause"
    ),
    "jax": "launch fewer kernels: put the whole step under one jax.jit",
}
# Of the waits for launches: with so much for launches of one kernel there are no loops to merge.
_MOSTLY_ONE = 0.8
_SAME_KERNEL = (
    "launch fewer kernels: capture the loop, with an async clause, in a CUDA graph "
    "(accx_async_begin_capture in NVHPC), or compute several iterations in one kernel"
)
_FUSED = "construct the optimizer with fused=True, so that a few kernels update all parameters"


@made_once
def _claims(case: Case) -> Mask:
    """Launching, and the latency of launches where both together are much of the steps of a place."""
    pieces, claimed = case.pieces, launching(case)
    both: Mask = claimed | (pieces["cause"] == QUEUED)
    for number, place in enumerate(case.places):
        mine = case.place_of == number
        launch_ns, ns = (int(pieces["ns"][some & mine].sum()) for some in (claimed, both))
        if ns < _MUCH * place.total_ns or launch_ns < _SOME * place.total_ns:
            both[mine] = claimed[mine]
    return both


def _one(_: Case, rows: Index) -> Ints:
    return np.zeros(len(rows), np.int64)


@made_once
def updates(case: Case) -> Mask:
    """Mark the GPU ops of the optimizer: by range names, or from the first to the last typical kernel of a step."""
    trace, attribution = case.facts.attribution.trace, case.facts.attribution
    named = np.array([_OPTIMIZER.search(name.text) is not None for name in trace.range_names], bool)
    inside = np.zeros(len(trace.ranges) + 1, bool)
    up: AnyInts = np.flatnonzero(marked(attribution.op_owner, len(inside))[:-1])
    owners = up
    while len(owners):
        inside[owners[named[trace.ranges.name[up]]]] = True
        up = attribution.parent[up]
        owners, up = owners[up >= 0], up[up >= 0]
    by_range: Mask = inside[attribution.op_owner]
    if by_range.any():
        many = len(np.unique(trace.ops.launch[by_range])) >= _MIN_UPDATES * len(case.chosen.windows)
        return by_range & many
    kernels = np.array([_UPDATES.search(name) is not None for name in trace.op_names], bool)
    update = kernels[trace.ops.name] & (trace.ops.kind == KERNEL)
    out = np.zeros(len(update), bool)
    windows = case.windows
    for place in case.places:
        rows = np.flatnonzero(update & (trace.op_gpu == place.gpu))
        rows = rows[np.argsort(trace.ops.start[rows], kind="stable")]
        begin = np.searchsorted(trace.ops.start[rows], windows.start[place.windows])
        end = np.searchsorted(trace.ops.start[rows], windows.end[place.windows])
        some = np.flatnonzero(end - begin >= _MIN_UPDATES)
        for low, high in zip(begin[some].tolist(), end[some].tolist(), strict=True):
            first, last = trace.ops.start[rows[low]], trace.ops.start[rows[high - 1]]
            out |= (trace.ops.start >= first) & (trace.ops.start <= last) & (trace.op_gpu == place.gpu)
    return out


def _of_optimizer(case: Case) -> Mask:
    """Launching of the optimizer, where that is much of all launching."""
    op, claimed = case.pieces["op"], launching(case)
    if not claimed.any() or case.dialect != "pytorch":
        return np.zeros(len(op), bool)
    mine = claimed & (op >= 0) & np.append(updates(case), False)[op]
    ns = case.pieces["ns"]
    enough = int(ns[mine].sum()) >= _MIN_SHARE * int(ns[claimed].sum())
    return mine if enough else np.zeros(len(op), bool)


def launching_time(case: Case, place: Place, only: AnyInts | None = None) -> Cause:
    """Return a cause that covers the launching in the steps of a place: all launch calls, and short CPU code between
    these calls.

    Other calls that do not wait are included. ``only`` limits the cause to these calls.
    """
    calls, trace, windows = case.facts.activity.calls, case.facts.attribution.trace, case.windows
    parts: list[tuple[Index, Ints, Ints]] = []
    used = np.flatnonzero(marked(trace.launches.thread[trace.ops.launch[trace.ops.launch >= 0]], len(trace.threads)))
    kind = case.facts.activity.kind
    quiet = np.isin(case.purpose[:-1], LAUNCHING) & np.isin(kind, (LAUNCH_CALLS, CUDA)) & ~case.once[:-1]
    quiet |= (case.purpose[:-1] == LOCK) & (kind == OS)
    if only is not None:
        quiet = np.isin(np.arange(len(calls)), only) & ~case.once[:-1]
    for code in used.tolist():
        rows = calls.of_thread(int(trace.threads[code]))
        start, end, mine = calls.start[rows], calls.end[rows], quiet[rows]
        if not mine.any():
            continue
        until = np.append(start[1:], end[-1:])
        short = (until - end < case.long_code_ns) & mine
        stop = np.where(short, np.maximum(until, end), end)
        begin, stop = start[mine], stop[mine]
        low = np.searchsorted(stop, windows.start[place.windows], side="right")
        high = np.searchsorted(begin, windows.end[place.windows])
        at = np.unique(expand_ranges(low, np.maximum(high - low, 0)))
        parts.append((np.full(len(at), code, np.int64), begin[at], stop[at]))
    if not parts:
        return Cause()
    thread, begin, stop = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Cause(thread=thread, start=begin, end=stop)


def _whole(case: Case, group: Group) -> Cause:
    queued = group.rows[case.pieces["cause"][group.rows] == QUEUED]
    return launching_time(case, group.place) | Cause(queued=np.unique(case.pieces["op"][queued]))


def _whole_optimizer(case: Case, group: Group) -> Cause:
    launch = case.facts.attribution.trace.ops.launch[updates(case)]
    return launching_time(case, group.place, case.program.wholes.of_launch[np.unique(launch[launch >= 0])])


def _graph(case: Case, group: Group) -> Iterable[Remedy]:
    ns, exposing, op = (case.pieces[name][group.rows] for name in ("ns", "exposing", "op"))
    waits = np.isin(case.purpose[exposing], (SYNCHRONIZE, COPY))
    few = len(np.unique(op[waits])) < MIN_LAUNCHES * len(np.unique(exposing[waits]))
    if few and int(ns[waits].sum()) > _EXPOSED * int(ns.sum()):
        return  # too few launches for a graph between calls that wait, and without these they may not be late
    late_ns = np.bincount(case.facts.attribution.trace.ops.name[op], ns)
    one = case.dialect == "openacc" and late_ns.max() >= _MOSTLY_ONE * group.waited_ns
    text = _SAME_KERNEL if one else without_waits(case, group.place, dialect_text(case, _GRAPH), group.rows)
    if group.place.path != WHOLE:
        yield Remedy(text, Changes(graph=[glob_of(group.place.path)]), least=True)
    yield Remedy(text, Changes(remove=[group.cause]), basis=BOUND)


def without_waits(case: Case, place: Place, text: str, rows: Index) -> str:
    """Return the advice to capture a graph. If the CPU waits for the GPU inside the step, the waits go first: those
    behind which the GPU waits in the pieces ``rows``.
    """
    rows = rows[np.isin(case.purpose[case.pieces["exposing"][rows]], (SYNCHRONIZE, COPY))]
    _, once = np.unique(case.pieces["exposing"][rows], return_index=True)
    of_step = np.bincount(case.pieces["window"][rows[once]], minlength=len(case.windows))[place.windows]
    count = int(np.median(of_step))
    if count < _INSIDE or place.path == WHOLE or "CUDA graph" not in text:
        return text
    texts = case.facts.texts
    wait = _DETAILS.split(texts.words[texts.most(case.pieces["exposed_by"][rows], case.pieces["ns"][rows])])[0]
    wait = wait if case.dialect == "pytorch" else wait.replace(".item()", "the copy to the host")
    heads = {texts.words[code].partition(" in ")[0] for code in np.unique(case.pieces["exposed_by"][rows]).tolist()}
    wait += " and all other waits" * (len(heads) > 1)
    first = f"take {wait} out of the step ({count} per step, which a CUDA graph cannot contain), then "
    return text.replace("capture ", f"{first}capture ")


def _unproven(case: Case, group: Group) -> str:
    """What to do where no replay can tell how much of launching is the recorder's."""
    remedy = None if case.known(group.place) or not case.replay else next(iter(_graph(case, group)), None)
    return f"; {RECORDING}, {remedy.text}" if remedy else ""


def _fuse(case: Case, group: Group) -> Iterable[Remedy]:
    names = [name.text for name in case.facts.attribution.trace.range_names if _OPTIMIZER.search(name.text)]
    for name in dict.fromkeys(names):
        yield Remedy(_FUSED, Changes(fuse=[glob_of(name)]))
    yield Remedy(_FUSED, Changes(remove=[group.cause]), basis=BOUND)


LAUNCH_BOUND = Kind(
    "launch-bound",
    _claims,
    _one,
    lambda case, row: CAUSE,
    "launch-bound because the CPU takes longer to launch GPU work than the GPU to run it: {amount}",
    _graph,
    _whole,
    least_launches=MIN_LAUNCHES,
    least_share=OFTEN_SO,
    inflated=True,
    note=_unproven,
)
OPTIMIZER = Kind(
    "optimizer",
    _of_optimizer,
    _one,
    lambda case, row: _OPTIMIZER_CAUSE,
    "the optimizer launches many kernels, and the GPU waits for these launches: {amount}",
    _fuse,
    _whole_optimizer,
    least_launches=MIN_LAUNCHES,
)
