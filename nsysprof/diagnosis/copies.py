"""Find GPU waits for copies that are pageable, blocking, tiny, or in the same stream as kernels."""

from collections.abc import Iterable

import numpy as np

from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import distinct, pick
from nsysprof.core.intervals import covered, merge, union
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bandwidth
from nsysprof.diagnosis.busy import starts_in
from nsysprof.diagnosis.case import Case, made_once
from nsysprof.diagnosis.finding import BOUND
from nsysprof.diagnosis.kinds import (
    BY_ROWS,
    DIRECTIVES,
    Group,
    Kind,
    Remedy,
    copied_op,
    dialect_text,
    of_mpi,
    repeats,
    whole_cause,
)
from nsysprof.diagnosis.launch_bound import launching_time
from nsysprof.diagnosis.synchronization import READ
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET
from nsysprof.waits.awaited import ITEM_BYTES
from nsysprof.waits.changes import Changes
from nsysprof.waits.culprits import size_text
from nsysprof.waits.facts import COPY as COPIES
from nsysprof.waits.facts import MEMORY
from nsysprof.waits.whole import Cause

_PAGEABLE = MEMORY.index(" pageable")
SMALL = 128 << 10  # bytes: up to these, a copy takes no longer than its launch
_MANY = 16  # of them in a step
_RANGE = 40  # characters of the name of their range
_ASIDE = 0.05  # of all compute: with no more before copies, or behind them, they are no part of a loop
_FEW = 16  # kernels of one pass: each copied array is used by one of them, and not again in a loop
_HIDES = 4  # times the compute: it hides little of copies that take longer
_WORTH = 0.05  # of the steps: with less compute the link is the limit
_BESIDES = 0.25  # as long as copies, other work that overlap could hide beside them
_PART = 0.05  # of the copies and of the kernels of the steps: a stream with at least this part of each is a lane
_FULL = 0.95  # of the steps: copies of both directions that are apart as much take turns
_NEARLY = 0.9  # of the steps: from here on the link is the limit, whatever runs beside
ONLY_BYTES = "so only copying fewer bytes helps"
_SLOW, _LARGE = 8e9, 1 << 20  # bytes per second over PCIe 3 x16, and bytes of a copy that could reach them
_STAGED = 0.25  # of copies, from their end to the return of their calls: the driver still moves the data
_DIRECTIONS = {"HtoD": "to the GPU", "DtoH": "to the host", "DtoD": "on the GPU", "PtoP": "between GPUs"}
_PIN = {
    "pytorch": (
        "pin the host memory (DataLoader(pin_memory=True) or tensor.pin_memory()), and copy it one step "
        "ahead with non_blocking=True in a separate stream"
    ),
    "cuda": "allocate the host memory with cudaMallocHost, and copy it early with cudaMemcpyAsync in a separate stream",
    "openacc": "pin the host memory (-gpu=pinned), and copy it early with an async clause",
}
_KEEP = {
    "pytorch": "keep the tensor on the GPU, or copy it to pinned memory with non_blocking=True and read it later",
    "cuda": "keep the data on the GPU, or copy it to pinned memory with cudaMemcpyAsync and read it later",
}
SPARE = {
    "pytorch": "keep the tensor on the GPU; if you must copy it, use pinned memory and non_blocking=True in a separate"
    " stream",
    "cuda": "keep the data on the GPU; if you must copy it, use pinned memory and cudaMemcpyAsync in a separate stream",
    "openacc": "keep the arrays on the GPU with a data region around the loop, or update them with async",
}
_AHEAD = {
    "pytorch": "copy the next step's data in a separate stream while the GPU computes this step",
    "cuda": "issue the copy earlier, in a separate stream, so that it overlaps with compute",
}
_SPLIT = {
    "cuda": "if kernels can work on parts of the data, split copies and kernels into 4 to 16 parts in two streams, so"
    " that a part is copied while the GPU computes another"
}
_BATCH = {
    "pytorch": "combine the small copies: gather the values in one tensor and transfer it once",
    "cuda": "combine the small copies: gather the values in one buffer and copy it with one cudaMemcpyAsync",
}
TO_AND_FRO = (
    "most copies to the host are followed by one of the same size back to the GPU: if this is the same data, keep it on"
    " the GPU"
)
_CHUNKS = "copy and compute larger chunks: a copy of so few bytes takes as long as its launch"
_BY_MPI = "let MPI move the data between GPUs without the host (CUDA IPC or GPUDirect), or use NCCL"


@made_once
def _op(case: Case) -> Ints:
    """The copy or memset that each piece is about, -1 for none."""
    own = np.where(case.pieces["cause"] == COPIES, case.pieces["op"], -1)
    return np.where(own >= 0, own, copied_op(case))


def _is(case: Case, kind: int) -> Mask:
    op = _op(case)
    return (op >= 0) & (pick(case.facts.attribution.trace.ops.kind, op, 255) == kind)


def _pageable(case: Case) -> Mask:
    return pick(case.facts.copy_memory, _op(case), 0) == _PAGEABLE


def _on_gpu(case: Case) -> Mask:
    trace = case.facts.attribution.trace
    named = np.array([*("DtoD" in name for name in trace.op_names), False], bool)
    return named[np.append(trace.ops.name, len(trace.op_names))[_op(case)]]


def _small(case: Case) -> Mask:
    """Copies of few bytes of which many are made in each step."""
    op = _op(case)
    small = (op >= 0) & (pick(case.facts.copy_sizes, op, 0) <= SMALL)
    trace = case.facts.attribution.trace
    rows = np.flatnonzero((trace.ops.kind == MEMCPY) & (case.facts.copy_sizes <= SMALL))
    return small & (len(rows) >= _MANY * max(len(case.chosen.windows), 1))


def _codes(case: Case, rows: Index, *, sized: bool = True, placed: bool = True) -> Ints:
    """By direction and memory, and by size (see `Facts.told_sizes`) and range unless these are left out."""
    op = _op(case)[rows]
    trace = case.facts.attribution.trace
    texts = case.facts.texts
    size = pick(case.facts.told_sizes, op, 0) * sized
    owner = pick(case.facts.attribution.owner, pick(trace.ops.launch, op))
    where = np.where(placed, pick(case.facts.name_code, pick(trace.ranges.name, owner)), -1)
    memory = pick(case.facts.copy_memory, op, 0)

    def describe(name: int, memory: int, size: int, where: int) -> str:
        what = trace.op_names[name].removeprefix("memcpy ")
        place = f" in {one_line(case.facts.names[where], _RANGE)}" if where >= 0 else ""
        if "set" in what:
            return f"memsets{place}"
        direction = _DIRECTIONS.get(what, what)
        of = f" of {size_text(size)}" if size else ""
        return f"{MEMORY[memory].strip()} copies {direction}{of}{place}".strip()

    return texts.each(describe, pick(trace.ops.name, op, 0), memory, size, where)


def _words(case: Case, row: int) -> str:
    code = int(_codes(case, np.array([row]))[0])
    return case.facts.texts.words[code]


_PAYS = "; pinning itself takes time, so it pays off only for buffers that are copied many times"


def _copies(case: Case, group: Group) -> Ints:
    """The copies of the usual steps: what few steps copy besides, as the last one of a loop, is no part of each."""
    return np.unique(_op(case)[group.usual_rows(case)])


def _again(case: Case, group: Group) -> bool:
    """Whether a program copies in a loop: the same direction and size again, and not all before it computes, or behind.

    Weights that are loaded, and results that are read at the end, are copied once, however many arrays they are.
    """
    op = _copies(case, group)
    sizes, names = case.facts.copy_sizes[op], case.facts.attribution.trace.ops.name[op]
    if not repeats(case, group, distinct(names, sizes)[1]):
        return False
    ops, (start, end) = case.facts.attribution.trace.ops, case.lines[group.place.gpu].compute
    middle = int(np.sort(ops.start[op])[len(op) // 2])
    before, total = int((np.minimum(end, middle) - np.minimum(start, middle)).sum()), int((end - start).sum())
    return _ASIDE * total <= before <= (1 - _ASIDE) * total


def _spare(case: Case, group: Group) -> Remedy:
    """Keep the data on the GPU, and read a value less often; or, where directives copy many pieces between two kernels
    of the program, in one block.

    Kernels of the runtime of OpenACC write the pointers to rows.
    """
    trace, op = case.facts.attribution.trace, _copies(case, group)
    runtime = np.array([name.lstrip("_").startswith("pgi_uacc") for name in trace.op_names], bool)
    kernels = np.sort(trace.ops.start[(trace.ops.kind == KERNEL) & ~runtime[trace.ops.name]])
    moments = np.unique(np.searchsorted(kernels, trace.ops.start[op]))
    by_rows = case.dialect in DIRECTIVES and len(op) >= _MANY * len(moments)
    value = "to the host" in group.cause and np.median(case.facts.copy_sizes[op]) <= ITEM_BYTES
    text = BY_ROWS if by_rows else dialect_text(case, READ if value else SPARE)
    return Remedy(text, Changes(remove=[group.cause]), BOUND)


def _to_and_fro(case: Case, group: Group) -> bool:
    """Whether most bytes go to the host amid a step, and as many come back with the next operation on the GPU.

    Several processes, and MPI, exchange data that way.
    """
    trace, op = case.facts.attribution.trace, _copies(case, group)
    if len(np.unique(trace.op_process)) > 1 or of_mpi(case).any():
        return False
    rows = np.flatnonzero(np.isin(trace.ops.kind, (KERNEL, MEMCPY)) & (trace.op_gpu == group.place.gpu))
    rows = trace.in_order(rows, trace.ops.start)
    to, back = (
        np.array([name.endswith(each) for name in trace.op_names], bool)[trace.ops.name[rows]]
        for each in ("DtoH", "HtoD")
    )
    size = case.facts.copy_sizes[rows]
    start, kernel = trace.ops.start[rows], trace.ops.kind[rows] == KERNEL
    windows = case.windows.take(group.place.windows)
    windows = windows.take(np.argsort(windows.start, kind="stable"))
    step = np.searchsorted(windows.start, start, side="right") - 1
    first, last = (np.full(len(windows) + 1, each) for each in (np.iinfo(np.int64).max, -1))
    np.minimum.at(first, step[kernel], start[kernel])
    np.maximum.at(last, step[kernel], start[kernel])
    amid = (first[step] < start) & (start < last[step]) & (step >= 0)
    pair = np.flatnonzero(to[:-1] & back[1:] & (size[:-1] == size[1:]) & amid[:-1] & amid[1:] & (step[:-1] == step[1:]))
    mine = case.facts.copy_sizes[op]
    return bool(2 * mine[np.isin(op, rows[np.append(pair, pair + 1)])].sum() > mine.sum())


def _back(case: Case, group: Group) -> str:
    """The same as a note, if no remedy was tried."""
    return f"; {TO_AND_FRO}" * (_again(case, group) and _to_and_fro(case, group))


def _pin(case: Case, group: Group) -> Iterable[Remedy]:
    if not _again(case, group):
        return
    if case.dialect in DIRECTIVES:
        yield _spare(case, group)
    texts = _KEEP if "to the host" in group.cause else _PIN
    yield Remedy(dialect_text(case, texts), Changes(pinned=True))


def _computes(case: Case, group: Group) -> int:
    """For how many ns a GPU computes in the steps; less than a quarter of its copies counts as nothing."""
    windows, lines = case.windows.take(group.place.windows), case.lines[group.place.gpu]
    compute, copies = (int(covered(each, windows.start, windows.end).sum()) for each in (lines.compute, lines.copies))
    return compute if _HIDES * compute >= copies else 0


def _overlap(case: Case, group: Group) -> Iterable[Remedy]:
    trace = case.facts.attribution.trace
    if not _again(case, group):
        if len(case.lines[group.place.gpu].kernels) <= _FEW and (most_ns := _computes(case, group)):
            yield Remedy(dialect_text(case, _SPLIT), Changes(remove=[group.cause]), BOUND, most_ns)
        return
    streams = trace.ops.stream[_copies(case, group)]
    if not np.isin(streams, trace.ops.stream[trace.ops.kind == KERNEL]).any():
        return  # they run beside compute already: the link is the limit
    op = _op(case)[group.usual_rows(case)]
    small = int(np.median(case.facts.copy_sizes[op[op >= 0]])) <= SMALL
    if case.dialect not in ("pytorch", *DIRECTIVES) and _pipelined(case, group):
        if small:
            yield Remedy(_CHUNKS, Changes(remove=[group.cause]), BOUND)
        return
    if small or case.dialect in DIRECTIVES:  # what small ones cost is the waiting, not the transfer
        yield _spare(case, group)
    texts = _KEEP if "to the host" in group.cause else _AHEAD
    windows = case.windows.take(group.place.windows)
    compute = int(covered(case.lines[group.place.gpu].compute, windows.start, windows.end).sum())
    if texts is _KEEP or compute >= _WORTH * group.place.total_ns:
        yield Remedy(dialect_text(case, texts), Changes(remove=[group.cause]), BOUND, compute)


def _pipelined(case: Case, group: Group) -> bool:
    """Whether several streams of a process each make many of the steps' copies and kernels, so that copies overlap
    other streams' kernels already.
    """
    trace = case.facts.attribution.trace
    here = np.flatnonzero(trace.op_gpu == group.place.gpu)
    here = here[starts_in(case, group.place, trace.ops.start[here])]
    many = np.ones(len(trace.streams), bool)
    for kind in (MEMCPY, KERNEL):
        of_stream = np.bincount(trace.ops.stream[here[trace.ops.kind[here] == kind]], minlength=len(many))
        many &= (of_stream > 0) & (of_stream >= _PART * of_stream.sum())
    return bool(np.bincount(trace.stream_process[many], minlength=1).max() > 1)


def _gather(case: Case, group: Group) -> Iterable[Remedy]:
    if case.dialect in DIRECTIVES:
        yield _spare(case, group)
    text = _BY_MPI if of_mpi(case)[group.rows].all() else dialect_text(case, _BATCH)
    yield Remedy(text, Changes(remove=[group.cause]), basis=BOUND)


def _pageable_copies(case: Case) -> Mask:
    return _is(case, MEMCPY) & _pageable(case) & ~_small(case)


def _together(case: Case, rows: Index) -> Ints:
    """All copies of a place in one direction are one cause; pageable ones in both, as one change concerns them all."""
    named: Ints = case.facts.attribution.trace.ops.name[_op(case)[rows]].astype(np.int64)
    return np.where(_pageable(case)[rows], -1, named) + 1


def _mostly(case: Case, row: int) -> str:
    """Most of the copies that are one cause with those of a piece, in the usual steps: without their range, and then
    without their size, if these differ too much.
    """
    claims = _pageable_copies(case) if _pageable(case)[row] else _other_copies(case)
    same = np.flatnonzero(claims & (case.place_of == case.place_of[row]))
    key = _together(case, same)
    same = same[key == _together(case, np.array([row]))[0]]
    place = case.places[int(case.place_of[row])]
    same = Group(place, "", same, case.waited(place, same)).usual_rows(case)
    for told in ({}, {"placed": False}, {"placed": False, "sized": False}):
        most = np.bincount(_codes(case, same, **told), case.pieces["ns"][same])
        if 2 * most.max() >= most.sum():
            break
    text = case.facts.texts.words[int(most.argmax())]
    return text.replace("copies ", "copies, most ", 1) if np.count_nonzero(most) > 1 else text


def _other_copies(case: Case) -> Mask:
    return _is(case, MEMCPY) & ~_pageable(case) & ~_small(case) & ~_on_gpu(case)


def _whole(case: Case, group: Group) -> Cause:
    """The waits, and the copies that the host made or waited for, with their calls."""
    ops = np.unique(_op(case)[group.rows])
    return whole_cause(case, group) | case.program.wholes.of_ops(ops[ops >= 0])


def _whole_small(case: Case, group: Group) -> Cause:
    """The same, and the little code around the calls: one copy needs it once."""
    cause = _whole(case, group)
    return cause | launching_time(case, group.place, cause.calls)


_SYMPTOM = "the GPU waits for {cause}: {amount}"
PAGEABLE = Kind(
    *("pageable-copy", _pageable_copies, _together, _mostly, _SYMPTOM, _pin, _whole),
    note=lambda case, group: _back(case, group) or (_fast(case, group) if _again(case, group) else _PAYS),
)
SMALL_COPIES = Kind(
    "small-copies", lambda case: _is(case, MEMCPY) & _small(case), _codes, _words, _SYMPTOM, _gather, _whole_small
)


def _link(case: Case, group: Group) -> str:
    """How fast copies run that no overlap would hide; for slow large copies what to check."""
    trace, op = case.facts.attribution.trace, _copies(case, group)
    sizes, ns = case.facts.copy_sizes[op], int((trace.ops.end[op] - trace.ops.start[op]).sum())
    rate = sizes.sum() / max(ns, 1) * 1e9
    speed = format_bandwidth(rate)
    slow = rate < _SLOW and np.median(sizes) >= _LARGE
    length = trace.ops.end[op] - trace.ops.start[op]
    most = trace.ops.name[op] == np.bincount(trace.ops.name[op], length).argmax()  # pageable ones may be of both
    if not slow and _fills(case, group, op[most]):
        speed = format_bandwidth(sizes[most].sum() / max(int(length[most].sum()), 1) * 1e9)
        one = "this direction" if most.all() else "one direction"
        return f"; copies in {one} are almost continuous at {speed}, {ONLY_BYTES}, not faster kernels"
    if not slow and "pageable" in group.cause and _again(case, group) and _beside(case, group, op):
        return (
            f"; copies run at {speed}: pin these buffers, and run both copy directions and the kernels in"
            " separate streams"
        )
    if not slow and "pinned" in group.cause and _in_turn(case, group):
        parts = "run both copy directions and the kernels in separate streams, if kernels can work on parts of the data"
        return f"; copies run at {speed}: {parts}"
    if not slow:
        little = f" and there is little compute to hide them, {ONLY_BYTES}"
        return f"; copies run at {speed}{'' if _computes(case, group) else little}"
    if "pageable" in group.cause:
        return f"; copies at {speed} are slow: pin these buffers once and reuse them, with a stream for each direction"
    returned = pick(trace.launches.end, trace.ops.launch[op], 0)
    staged = int(np.maximum(returned - trace.ops.end[op], 0).sum()) >= _STAGED * ns
    memory = "pinned memory" if "pinned" in group.cause else "a copy, if its host memory is pinned"
    pinned = f" for {memory}: check the PCIe link width with nvidia-smi -q"
    return f"; {speed} is slow{', and the call returns long after the copy, as if not pinned' if staged else pinned}"


def _fills(case: Case, group: Group, op: Index) -> bool:
    """Whether copies in the direction of some run nearly all the time of the steps, with kernels beside them."""
    trace, windows = case.facts.attribution.trace, case.windows.take(group.place.windows)
    rows = np.flatnonzero((trace.ops.name == trace.ops.name[op[0]]) & (trace.op_gpu == group.place.gpu))
    rows = rows[np.argsort(trace.ops.start[rows], kind="stable")]
    line, part = merge(trace.ops.start[rows], trace.ops.end[rows]), _NEARLY if len(rows) >= _MANY else _FULL
    return int(covered(line, windows.start, windows.end).sum()) >= part * group.place.total_ns


def _in_turn(case: Case, group: Group) -> bool:
    """Whether copies in both directions take much time of the steps, and run one after another around few kernels."""
    trace, windows = case.facts.attribution.trace, case.windows.take(group.place.windows)
    if len(case.lines[group.place.gpu].kernels) > _FEW * max(len(windows), 1):
        return False
    mine = (trace.ops.kind == MEMCPY) & (trace.op_gpu == group.place.gpu)
    ns = []
    for direction in (("HtoD",), ("DtoH",), ("HtoD", "DtoH")):
        named = np.array([name.endswith(direction) for name in trace.op_names], bool)
        rows = np.flatnonzero(mine & named[trace.ops.name])
        line = merge(trace.ops.start[rows], trace.ops.end[rows])
        ns.append(int(covered(line, windows.start, windows.end).sum()))
    return min(ns[:2]) >= _BESIDES * max(ns[:2]) and ns[2] >= _FULL * sum(ns[:2])


def _beside(case: Case, group: Group, op: Index) -> bool:
    """Whether much other work is done amid the middle half of some copies: kernels, or the longer direction of them."""
    ops, lines = case.facts.attribution.trace.ops, case.lines[group.place.gpu]
    starts = np.sort(ops.start[op])
    low, high = starts[[len(op) // 4]], starts[[3 * len(op) // 4]]
    mine = op[(ops.start[op] >= low) & (ops.start[op] < high)]
    longest = int(np.bincount(ops.name[mine], ops.end[mine] - ops.start[mine], 1).max())
    return int(covered(union(lines.compute, lines.copies), low, high)[0]) >= (1 + _BESIDES) * longest


def _fast(case: Case, group: Group) -> str:
    """The same of pageable copies that run about as fast as pinned ones."""
    ops, op = case.facts.attribution.trace.ops, _copies(case, group)
    return _link(case, group) if 2 * int((ops.end[op] - ops.start[op]).sum()) > group.waited_ns else ""


EXPOSED = Kind(
    "exposed-copy",
    _other_copies,
    _together,
    _mostly,
    _SYMPTOM,
    _overlap,
    _whole,
    note=lambda case, group: _back(case, group) or _link(case, group),
)
LAYOUT = Kind(
    "copy-layout",
    lambda case: _is(case, MEMCPY) & ~_pageable(case) & ~_small(case) & _on_gpu(case),
    _codes,
    _words,
    _SYMPTOM,
    whole=_whole,
)
MEMSETS = Kind("memset", lambda case: _is(case, MEMSET), _codes, _words, _SYMPTOM, whole=_whole)
