"""Find GPU waits for other GPU work, for the GPU's own queue, or for an unknown reason."""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import pick
from nsysprof.core.intervals import covered, merge, union
from nsysprof.core.text import one_line
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.diagnosis.busy import Busy, starts_in
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import BOUND, NAME, OFTEN_SO, SHARED, Finding
from nsysprof.diagnosis.kinds import (
    DIRECTIVES,
    STARTS_NS,
    Group,
    Kind,
    Remedy,
    by_culprit,
    counted,
    dialect_text,
    each_step,
    idling,
    on_windows,
    stalled,
    text_of,
)
from nsysprof.diagnosis.synchronization import WAIT
from nsysprof.kernels.names import short_name
from nsysprof.trace.plausibility import tells_of_dropped_events
from nsysprof.trace.trace import KERNEL, MEMCPY
from nsysprof.waits.changes import Changes
from nsysprof.waits.culprits import LATE_PEER
from nsysprof.waits.facts import COMMUNICATION, NOBODY, OTHER_KERNEL, OVERHEAD, QUEUED
from nsysprof.waits.purposes import SYNCHRONIZE
from nsysprof.waits.walk import BARRIER, EVENT
from nsysprof.waits.whole import Cause

_MIN_EXPOSED = 0.05  # of the steps
_EARLIER = {
    "pytorch": "start collectives earlier, to overlap them with compute (lower bucket_cap_mb or set async_op=True)",
    "cuda": "start collectives earlier, in a separate stream, to overlap them with independent compute (in a halo "
    "exchange: the interior)",
}
# Of exposed communication: with less compute to hide it behind, overlap is not the remedy.
_HIDES = 0.5
_MIN_BESIDE = 0.03  # of the steps
_LATER = {
    "pytorch": "call wait_stream right before the first kernel that reads the result",
    "cuda": "call cudaStreamWaitEvent right before the first kernel that reads the result",
}
_NO_BARRIER = {
    "pytorch": "create both streams with torch.cuda.Stream(); otherwise they synchronize with the default stream",
    "cuda": "create the streams with cudaStreamNonBlocking; otherwise they synchronize with the default stream",
}
_LEAST_NS = 200_000  # of a collective, beside its bytes over 1 GB/s: what takes longer waits for other ranks
_LESS = "communicate less: keep results sharded and gather only what is read, {halves}or use a faster link"
_FEWER = "send fewer, larger messages (wider halos, fewer reductions){small}: short messages are mostly latency"
_LATENCY_NS, _SMALL = 30_000, 64 << 10  # of a message, and bytes
_MOSTLY, _MANY = 0.1, 8  # of the calls, a tenth are shorter; of so many
_FEW, _TOO_LITTLE = 3, "too few collectives to tell transfer from waiting: record several steps on all ranks"
_INFERENCE = (
    "no backward pass is recorded, so only another micro-batch can hide communication;"
    " record all ranks to see which rank waits"
)
_TRAINS = re.compile("(?i)backward|autograd|bwd|dgrad|wgrad|optimizer|addcdiv|adam|sgd|ddp|distributeddata")
_LOOP = 16  # calls that wait, or more: a loop, not a benchmark of a few kernels
_EACH = 3  # kernels for each wait: more, and it is no wait behind each kernel
_HALVES = "send bfloat16 instead of FP32, "


def _late(case: Case) -> Mask:
    named = np.array([text == LATE_PEER for text in case.facts.texts.words], bool)
    return named[case.pieces["activity"]]


def _caused(case: Case, cause: int) -> Mask:
    return case.pieces["cause"] == cause


def _one(_: Case, rows: Index) -> Ints:
    return np.zeros(len(rows), np.int64)


def _nobody_late(_: Case, __: Group) -> Cause:
    return Cause(late=True)


def _balance(_: Case, __: Group) -> Iterable[Remedy]:
    yield Remedy("find the cause of that rank's delay, or give that rank less work", Changes(no_late_peer=True))


def _peer(case: Case, row: int) -> str:
    return text_of("culprit")(case, row).split(", ")[0]


def _peers(case: Case, rows: Index) -> Ints:
    texts = [case.facts.texts.words[code].split(", ")[0] for code in case.pieces["culprit"][rows].tolist()]
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([known[text] for text in texts], np.int64)


def exposed_communication(case: Case, place: Place) -> Iterator[Finding]:
    """Find exposed communication, except waits for late ranks. The gain is at most the total compute time, because only
    compute can hide communication.
    """
    windows, lines = case.windows.take(place.windows), case.lines[place.gpu]
    both = covered(union(lines.compute, lines.communication), windows.start, windows.end)
    compute = covered(lines.compute, windows.start, windows.end)
    here = case.place_of == case.places.index(place)
    late = int(case.pieces["ns"][LATE_RANK.claims(case) & here].sum())
    lost, most = int((both - compute).sum()) - late, int(compute.sum())
    if lost < max(1, _MIN_EXPOSED * place.total_ns, late):  # ranks that are late are no matter of overlap
        return
    trace = case.facts.attribution.trace
    talks = np.flatnonzero(case.facts.communication[trace.ops.name] & (trace.op_gpu == place.gpu))
    inside = starts_in(case, place, trace.ops.start[talks])
    mine = talks[inside] if inside.any() else talks
    length = trace.ops.end[mine] - trace.ops.start[mine]
    alone = length - covered(lines.compute, trace.ops.start[mine], trace.ops.end[mine])
    of_name = np.bincount(trace.ops.name[mine], alone, len(trace.op_names)).astype(np.int64)
    most_of_it = one_line(short_name(trace.op_names[trace.largest_name(of_name)]), NAME)
    if int(alone.max()) > _HIDES * int(alone.sum()):
        op = int(alone.argmax())
        most_of_it = one_line(short_name(trace.op_names[trace.ops.name[mine[op]]]), NAME)
        most_of_it = f"one {most_of_it} of {format_ns(int(length[op]))}{_where(case, int(mine[op]))}"
    some = "mostly" if int(of_name.max()) > _HIDES * int(alone.sum()) else "such as"
    text = f"no compute overlaps communication ({some} {most_of_it}): {each_step(place, lost)}"
    waits = _for_others(case, mine) or _for_one(case, place) or _TOO_LITTLE * (len(talks) < _FEW and not most)
    if most < _HIDES * lost and not waits:
        single = 2 * sum(int(of_name[code]) for code in np.flatnonzero(of_name) if "f32" in trace.op_names[code])
        single = single > int(alone.sum())
        text += f"; all compute takes {each_step(place, most)}, too little to hide the communication"
        short = float(np.median(length)) < _LATENCY_NS
        sizes = pick(case.facts.collectives.size_bytes, case.facts.collectives.of_ops(len(trace.ops))[mine], 0)
        most_bytes = int(sizes.max(initial=0))
        small = f" if these are below {format_bytes(_SMALL)}" * (most_bytes <= 0)  # unknown
        fewer = short and most_bytes <= _SMALL
        less = _LESS.format(halves=_HALVES * single)
        shortest, longest = (int(np.quantile(length, part)) for part in (_MOSTLY, 1 - _MOSTLY))
        unequal = 2 * shortest * len(mine) < int(np.minimum(length, longest).sum()) and shortest > 0
        if len(mine) >= _MANY and unequal and (sizes <= 0).all():
            calls = f"most collectives take {format_ns(shortest)} to {format_ns(longest)}"
            less = (
                f"compare the ranks first (nsysprof fleet): {calls}, and much of this may be waiting for other "
                f"ranks; or {less}"
            )
        remedy, most = _FEWER.format(small=small) if fewer else less, lost
    else:
        waits, remedy = waits or _INFERENCE * (not _trains(case)), dialect_text(case, _EARLIER)
    found = counted(place, "communication-exposed", "exposed communication", text, remedy, lost, min(lost, most))
    untold = found.untried(text=f"{text}; {waits}", remedy="")
    yield untold if waits else found


def _for_others(case: Case, talks: Index) -> str:
    """That collectives mostly wait for other ranks, because their bytes need far less time over the slowest link."""
    ops, known = case.facts.attribution.trace.ops, case.facts.collectives
    row = known.of_ops(len(ops))[talks]
    size = pick(known.size_bytes, row)
    length = ops.end[talks] - ops.start[talks]
    more = np.where(size >= 0, np.maximum(length - _LEAST_NS - size, 0), 0)  # a byte takes a ns at 1 GB/s
    if 2 * int(more.sum()) <= int(length.sum()):
        return ""
    most = int(more.argmax())
    of = f"one of {format_bytes(int(size[most]))} takes {format_ns(int(length[most]))}"
    return (
        f"{of}, so collectives mostly wait for other ranks: record warm steps on all ranks (nsysprof fleet names the "
        "late rank)"
    )


def _for_one(case: Case, place: Place) -> str:
    """That the collectives of a GPU mostly wait for another GPU, which makes as many, each of which ends soon."""
    trace = case.facts.attribution.trace
    talks = np.flatnonzero(case.facts.communication[trace.ops.name] & (trace.op_gpu >= 0))
    ns = np.bincount(trace.op_gpu[talks], trace.ops.end[talks] - trace.ops.start[talks], place.gpu + 1)
    count = np.bincount(trace.op_gpu[talks], minlength=len(ns))
    last = int(np.where(count == count[place.gpu], ns, np.inf).argmin())
    if 2 * ns[last] >= ns[place.gpu]:
        return ""
    each, rest = format_ns(int(ns[last])), format_ns(int(ns[place.gpu]))
    return f"all collectives take {each} on GPU {last} and {rest} on GPU {place.gpu}, which waits for GPU {last}"


def _trains(case: Case) -> bool:
    """Whether a backward pass is recorded, or a program without PyTorch, which may name it in any way."""
    trace = case.facts.attribution.trace
    if case.dialect != "pytorch" or any(_TRAINS.search(name) for name in trace.op_names):
        return True
    ranges = (*trace.range_names, *trace.report.reader.other_ranges(trace, {"ops"}).names)
    return any(_TRAINS.search(name.text) for name in ranges)


def _where(case: Case, op: int) -> str:
    """The range that launched a GPU operation, and is none of the library's own."""
    trace, attribution = case.facts.attribution.trace, case.facts.attribution
    row = int(attribution.op_owner[op])
    while row >= 0 and "nccl" in trace.range_names[trace.ranges.name[row]].text.lower():
        row = int(attribution.parent[row])
    return f" in {one_line(trace.range_names[trace.ranges.name[row]].text, NAME)}" if row >= 0 else ""


def stream_findings(busy: Busy) -> Iterator[Finding]:
    """Find kernels in side streams that use only a small part of the GPU while compute in the main stream waits for
    them.
    """
    case, place, known = busy.case, busy.place, busy.case.launches
    if known is None or not known.sms or not len(busy.op):
        return
    trace, why = case.facts.attribution.trace, case.facts.reasons
    stream, blocks = trace.ops.stream[busy.op], known.blocks[known.of[busy.op]]
    main = int(np.bincount(stream, busy.length).argmax())
    beside = np.flatnonzero((stream != main) & (blocks > 0) & (2 * blocks <= known.sms))
    late = np.flatnonzero((why.edge >= EVENT) & (trace.ops.stream == main) & (why.launched <= why.ready))
    late = late[np.isin(why.op[late], busy.op[beside])]
    if not len(late):
        return
    since = np.maximum(why.in_stream[late], case.windows.start.min())
    start, end = trace.ops.start[busy.op[beside]], trace.ops.end[busy.op[beside]]
    waited = np.minimum(covered(merge(since, np.maximum(why.ready[late], since)), start, end), busy.alone[beside])
    lost, names = int(waited.sum()), trace.ops.name[busy.op[beside]]
    most = min(lost, int(busy.length[stream == main].sum()))
    if not busy.enough(most) and most < _MIN_BESIDE * place.total_ns:
        return
    of_name = np.bincount(names, waited, len(trace.op_names))
    name = one_line(short_name(trace.op_names[trace.largest_name(of_name)]), NAME)
    who, it = f"{name} runs in another stream and uses", "it"
    if np.count_nonzero(of_name) > 1:
        some = "mostly" if 2 * of_name.max() > lost else "such as"
        who, it = f"kernels ({some} {name}) run in other streams and use", "them"
    barrier = 2 * int((why.edge[late] == BARRIER).sum()) > len(late)
    text = f"{who} only a small part of the GPU, while the stream with most kernels waits for {it}"
    text = f"{text}: {each_step(place, lost)}"
    remedy = dialect_text(case, _NO_BARRIER if barrier else _LATER)
    yield counted(place, "stream-dependency", f"{name} in another stream", text, remedy, lost, most)


LATE_RANK = Kind(
    "communication-late-rank",
    lambda case: _caused(case, COMMUNICATION) & _late(case),
    _peers,
    _peer,
    "the GPU waits in collectives for {cause}: {amount}",
    _balance,
    _nobody_late,
)
STREAMS = Kind(
    "stream-dependency",
    lambda case: _caused(case, OTHER_KERNEL),
    by_culprit,
    text_of("culprit"),
    "the GPU waits for {cause}, which runs elsewhere: {amount}",
)


def _unusual(case: Case, group: Group) -> str:
    """What may be the matter where launches take many times as long as usual to start."""
    long = case.pieces["ns"][group.rows].mean() >= STARTS_NS
    return "launches usually start within 10 µs: another process may use the GPU (nvidia-smi lists it)" * bool(long)


def _queue(case: Case, group: Group) -> Iterable[Remedy]:
    """To launch ahead, where most late starts are behind a call that waited for the GPU, again and again."""
    pieces, calls = case.pieces, case.facts.activity.calls
    call = np.where(pieces["exposing"] >= 0, pieces["exposing"], pieces["call"])
    waits = np.flatnonzero(case.purpose[call] == SYNCHRONIZE)
    behind = np.isin(pieces["op"][group.rows], pieces["op"][waits])
    mine = np.unique(call[waits[np.isin(pieces["op"][waits], pieces["op"][group.rows])]])
    ops = case.facts.attribution.trace.ops
    kernels = np.flatnonzero((ops.kind == KERNEL) & (case.facts.attribution.trace.op_gpu == group.place.gpu))
    each = _EACH * len(mine) >= int(starts_in(case, group.place, ops.start[kernels]).sum())
    if each and len(mine) >= _LOOP and 2 * int(pieces["ns"][group.rows[behind]].sum()) > group.waited_ns:
        name = calls.names[int(np.bincount(calls.name[mine]).argmax())]
        text = f"do not call {name} after each kernel: launch the whole loop, and synchronize once after the loop"
        text = dialect_text(case, WAIT) if case.dialect in DIRECTIVES else text
        yield Remedy(text, Changes(remove=[group.cause]), BOUND)


LATENCY = Kind(
    "launch-latency",
    lambda case: _caused(case, QUEUED),
    _one,
    lambda case, row: "launch latency between kernels that were ready to run",
    "{cause}: {amount}",
    _queue,
    least_share=OFTEN_SO,
    where=_unusual,
    arithmetic=True,
)


def _not_recorded(case: Case) -> Mask:
    """Time without a reason in which nothing at all ran, mostly."""
    return ((case.pieces["cause"] == NOBODY) & idling(case)) | stalled(case)


_LATE = "launched work starts late, for an unrecorded reason"
_LONGEST = 32  # pieces: so many are looked at
_DRAWN = "launched work starts late, perhaps because the program also draws (it uses a graphics API)"


def _reasons(case: Case, rows: Index) -> Ints:
    """For each piece 0 if work was launched late, 2 if it was launched before and waits for nothing, 1 if it may."""
    trace, op = case.facts.attribution.trace, case.pieces["op"][rows]
    free = {place.gpu for place in case.places if _cannot_wait(case, place.gpu)}
    waits = (pick(trace.ops.kind, op) == MEMCPY) | ~np.isin(pick(trace.op_gpu, op), [*free])
    late = stalled(case)[rows] | _launched_before(case, rows)
    return np.where(late, np.where(waits, 1, 2), 0)


def _in_which_call(case: Case, row: int) -> str:
    """That work was launched, if it was long before; the call in which the host spent most of the longest pieces, if it
    took half of them; else the reason that is not there.
    """
    if code := int(_reasons(case, np.array([row]))[0]):
        return SHARED if code == 2 else _DRAWN if _draws(case) else _LATE
    pieces, calls, texts = case.pieces, case.facts.activity.calls, case.facts.texts
    mine = np.flatnonzero(_not_recorded(case) & (case.place_of == case.place_of[row]))
    mine = mine[_reasons(case, mine) == 0]
    total, of_name = 0, np.zeros(len(calls.names) + 1, np.int64)
    for each in mine[np.argsort(-pieces["ns"][mine], kind="stable")][:_LONGEST].tolist():
        start, end = int(pieces["start_ns"][each]), int(pieces["end_ns"][each])
        inside = np.minimum(calls.end, end) - np.maximum(calls.start, start)
        total += end - start
        if len(inside) and 2 * int(inside.max()) >= end - start:
            of_name[calls.name[int(inside.argmax())]] += end - start
    if 2 * of_name.max() >= total:
        mostly = "mostly " * (int(of_name.max()) < total)
        return f"the CPU {mostly}waits in {calls.names[int(of_name.argmax())]} for GPU work that is not recorded"
    culprit, ns = pieces["culprit"][mine], pieces["ns"][mine]
    why = one_line(texts.words[texts.most(culprit, ns)], NAME)
    return f"the recording does not say why, {'for example ' * (len(np.unique(culprit)) > 1)}{why}"


def _launched_before(case: Case, rows: Index) -> Mask:
    """Mark pieces of waiting of which the op that ended them was launched in their first half, or before them."""
    trace, pieces = case.facts.attribution.trace, case.pieces
    launched = pick(trace.launches.end, pick(trace.ops.launch, pieces["op"][rows]), np.iinfo(np.int64).max)
    before: Mask = launched <= (pieces["start_ns"][rows] + pieces["end_ns"][rows]) // 2
    return before


def _cannot_wait(case: Case, gpu: int) -> bool:
    """Whether nothing that is not recorded can hold up a GPU's ops (except by a copy's host memory): kernels of other
    streams, what nsys dropped, graphics of the program, or Windows, which batches launches.
    """
    trace = case.facts.attribution.trace
    if on_windows(case) or _draws(case) or _dropped(case):
        return False
    kernels = (trace.ops.kind == KERNEL) & (trace.op_gpu == gpu)
    return len(np.unique(trace.ops.stream[kernels])) <= 1 or bool(len(case.facts.dependencies.waits))


def _dropped(case: Case) -> bool:
    return any(map(tells_of_dropped_events, case.facts.attribution.trace.report.about.diagnostics))


def _draws(case: Case) -> bool:
    """Whether the program shares GPU memory with OpenGL, Vulkan or Direct3D."""
    calls = case.facts.activity.calls
    return any("Graphics" in calls.names[name] for name in np.unique(calls.name).tolist())


def _record(case: Case, group: Group) -> str:
    if group.cause == _LATE and _dropped(case):
        return "; nsys may have dropped events: record a shorter run"
    if group.cause == _LATE and case.facts.lacks:
        return f"; record {case.facts.lacks[0]}"
    return "; record again without other processes on the GPU (nvidia-smi lists them)" * (group.cause == SHARED)


NOT_RECORDED = Kind(
    *("unknown", _not_recorded, _reasons, _in_which_call, "the GPU idles, and {cause}: {amount}"),
    tried=False,
    note=_record,
)
PROFILER = Kind(
    "profiler-overhead",
    lambda case: _caused(case, OVERHEAD),
    _one,
    lambda case, row: "work of the profiler",
    "the GPU waits for {cause}: {amount}",
    least_share=OFTEN_SO,
)
