"""Changes that remove something from a program: causes, host calls, code, page faults, and blocking copies."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from nsysprof.attribution.attribute import FOLLOWED
from nsysprof.attribution.globs import near_names
from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.intervals import covered, merge
from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import link_bytes_per_s
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMORY_KINDS, MIGRATION
from nsysprof.waits import edits
from nsysprof.waits.changes import AbstainError, Changes
from nsysprof.waits.facts import CAUSES, COMPUTE, NOBODY
from nsysprof.waits.host import host_time
from nsysprof.waits.paging import PREFETCHED
from nsysprof.waits.program import Program
from nsysprof.waits.replay import Network, editable
from nsysprof.waits.whole import Cause

OUTSIDE = "outside every range"
_LARGE = 1 << 20  # bytes of a pinned copy that show the speed of the link
_LINK = 12_000_000_000  # bytes/s: PCIe 3.0 x16, where neither the report nor the GPU's name says more


def removals_of(program: Program, changes: Changes) -> Iterator[tuple[str, str, Callable[[Network], None]]]:
    """Yield the removals: the kind of each change, a description, and a function that edits a network."""
    if changes.async_copies:
        yield "async-copies", "copies that do not block", partial(_unblock, program, False)
    if changes.pinned:
        yield "pinned", "copies from and to pinned memory", partial(_unblock, program, True)
    for glob in changes.remove:
        refuse_all(glob, "remove")
        yield "remove", f"without {glob}", partial(_remove, program, glob)
    for glob in changes.remove_calls:
        refuse_all(glob, "remove-calls")
        yield "remove-calls", f"without calls of {glob}", partial(edits.remove, cause=calls_of(program, glob))
    for glob in changes.remove_code:
        yield "remove-code", f"without code in {glob}", partial(edits.remove, cause=code_of(program, glob))
    if changes.no_page_faults:
        yield "no-page-faults", "no page faults", partial(_no_page_faults, program)


def refuse_all(glob: str, option: str) -> None:
    """Refuse a glob that matches everything."""
    if glob and not glob.strip("*?"):
        raise AbstainError(
            f"--{option} {glob!r} matches everything, but changes of clock, GPU or batch size are not modelled",
            "name the kernels that change: nsysprof analyze lists them",
        )


def matching(names: Sequence[str], glob: str, what: str, file: str) -> list[int]:
    """Return the indices of the names that a glob matches; raises `NsysprofError` with similar names if there are none.

    If nothing matches, letter case is ignored.
    """
    found = [at for at, name in enumerate(names) if name and (name == glob or fnmatchcase(name, glob))]
    low = glob.lower()
    found = found or [at for at, name in enumerate(names) if name and fnmatchcase(name.lower(), low)]
    if not found:
        near = ", ".join(map(repr, near_names(sorted(filter(None, names)), glob)))
        raise NsysprofError(
            f"no {what} of {file} matches {glob!r}" + (f"; near it: {near}" if near else f"; it has no {what} at all"),
            "a * stands for any text: '*gemm*'",
        )
    return found


def _remove(program: Program, glob: str, network: Network) -> None:
    """What the GPU waited for by that name, with all that belongs to it, or computed."""
    trace, waits, words = program.attribution.trace, program.waits, program.facts.texts.words
    culprits = np.unique(waits["culprit"]).tolist()
    causes = sorted({*np.unique(waits["cause"]).tolist()} - {COMPUTE})
    used = np.unique(trace.ops.name[program.spans.ops[trace.ops.kind[program.spans.ops] == KERNEL]]).tolist()
    talks = program.facts.communication
    kernels = {code: short_name(trace.op_names[code]) for code in used if not talks[code]}
    names = sorted({*(words[code] for code in culprits), *(CAUSES[code] for code in causes), *kernels.values()} - {""})
    chosen = {names[at] for at in matching(names, glob, "cause", program.file)}
    pieces = np.isin(waits["culprit"], [code for code in culprits if words[code] in chosen])
    pieces |= np.isin(waits["cause"], [code for code in causes if CAUSES[code] in chosen])
    if (waits["cause"][pieces] == NOBODY).any():
        raise AbstainError(f"the causes of GPU waits in {glob} are unknown")
    edits.remove(network, program.wholes.alike(program.cause_of(pieces)))
    gone = np.isin(trace.ops.name, [code for code, name in kernels.items() if name in chosen])
    editable(network, "length")[gone & (trace.ops.kind == KERNEL)] = 0


def calls_of(program: Program, glob: str) -> Cause:
    """Return the host calls with a matching name as a `Cause`, with the copies and waits that belong to these calls."""
    calls = program.facts.activity.calls
    codes = matching(calls.names, glob, "call", program.file)
    return program.wholes.of_calls(np.flatnonzero(np.isin(calls.name, codes)))


def code_of(program: Program, glob: str) -> Cause:
    """Return code between calls as a `Cause`. The innermost range around the code must match a glob; code on threads
    that work for matching ranges is included.

    `OUTSIDE` is the glob for code outside all ranges, on threads that launch.
    """
    trace, attribution = program.attribution.trace, program.attribution
    launches, ranges = trace.launches, trace.ranges
    follow = np.flatnonzero(attribution.outcome == FOLLOWED)
    earlier = np.append(0, launches.end)[:-1]
    earlier[np.append(True, launches.thread[1:] != launches.thread[:-1])[: len(launches)]] = np.iinfo(np.int64).min
    owner = attribution.owner[follow]
    if glob == OUTSIDE:
        rows, where = np.empty(0, np.intp), np.array([-1])
        threads = np.unique(launches.thread)
        low, high = program.windows.start.min(), program.windows.end.max()
        parts = [(threads, np.full(len(threads), low), np.full(len(threads), high))]
    else:
        where = rows = program.ranges_of(glob)
        parts = [(ranges.thread[rows], ranges.start[rows], ranges.end[rows])]
    mine = np.isin(owner, rows)
    helped = follow[mine]
    begun = np.maximum(ranges.start[owner[mine]], earlier[helped])
    parts.append((launches.thread[helped], begun, launches.start[helped]))
    thread, start, end = (np.concatenate([np.asarray(part[at]) for part in parts]) for at in range(3))
    some = np.flatnonzero(start < end)
    time = host_time(attribution, program.facts.activity, some, start[some], end[some], thread[some].astype(np.int32))
    helper = time.piece >= len(parts[0][0])
    code = (time.call < 0) & np.where(helper, time.range < 0, np.isin(time.range, where))
    return Cause(thread=time.thread[code].astype(np.int64), start=time.start[code], end=time.end[code])


def _unblock(program: Program, pinned: bool, network: Network) -> None:
    """Stop copies to the GPU, and calls right after them that wait for their stream, from blocking the host.

    With ``pinned``, pageable copies are as fast as the link, also copies to the host, which still wait.
    """
    trace, ops = program.attribution.trace, program.attribution.trace.ops
    directions = [np.array([word in name for name in trace.op_names], bool) for word in ("HtoD", "DtoH")]
    copies = (ops.kind == MEMCPY) & (ops.launch >= 0) & ~ops.from_graph
    rows = np.flatnonzero(copies & directions[0][ops.name])
    pageable = np.zeros(len(ops), bool)
    kind = MEMORY_KINDS.index("pageable")
    pageable[trace.copy_ops] = (trace.copies.source == kind) | (trace.copies.destination == kind)
    if pinned:
        rows = rows[pageable[rows]]
    launch = np.unique(ops.launch[rows])
    ends = network.launch_moment[1][launch]
    node = network.node[ends]
    syncs, behind = program.wholes.behind_launch
    chosen = network.sync_moment[1][np.isin(network.sync_call, syncs[np.isin(behind, launch)])]
    both = copies & pageable & (directions[0] | directions[1])[ops.name]
    if (pinned and not both.any()) or not (pinned or len(chosen) or ((node >= 0) & network.waits[node]).any()):
        what = "uses pageable memory" if pinned else "to the GPU blocks the host"
        raise NsysprofError(f"no copy {what} in {program.file}", "nsysprof why lists the causes of GPU waits")
    edits.stop_waiting(network, chosen)
    at = network.start[rows]  # the host does not carry them to pinned memory first
    editable(network, "extra")[at] = np.minimum(network.extra[at], 0)
    for each, usual in zip(network.edges, (network.lags.behind_launch, network.lags.behind_op), strict=True):
        editable(each, "lag")[at] = np.minimum(editable(each, "lag")[at], usual)
    edits.hurry(network, ends, network.lags.launch)
    if not pinned:
        program.notes.append("the forecast keeps the recorded copy times, although pinned memory is faster")
        return
    for to_gpu, direction in zip(("to", "from"), directions, strict=True):
        some = np.flatnonzero(both & direction[ops.name])
        if len(some):
            rate = _link_rate(program, copies & ~pageable & direction[ops.name], f"{to_gpu} the GPU")
            size = program.facts.copy_sizes[some]
            length = np.where(size >= 0, np.ceil(size / rate * 1e9), network.length[some]).astype(np.int64)
            edits.lengthen(network, some, np.minimum(network.length[some], length))


def _link_rate(program: Program, pinned: Mask, words: str) -> float:
    """The bytes per second of pinned copies: the median of the report's large ones, or the link's bandwidth."""
    trace, size = program.attribution.trace, program.facts.copy_sizes
    large = np.flatnonzero(pinned & (size >= _LARGE) & (trace.ops.end > trace.ops.start))
    if len(large):
        rate = float(np.median(size[large] / (trace.ops.end[large] - trace.ops.start[large]) * 1e9))
        whence = "like other pinned copies of this report"
    else:
        rates = [link_bytes_per_s(gpu.name, gpu.compute_capability) for gpu in trace.report.about.cuda_gpus]
        known = [each for each in rates if each == each]  # noqa: PLR0124 (NaN is not itself)
        rate, whence = (min(known), "link bandwidth") if known else (_LINK, "bandwidth of PCIe 3.0")
    program.notes.append(f"pinned copies {words} are assumed to reach {format_bytes(round(rate))}/s ({whence})")
    return rate


def _no_page_faults(program: Program, network: Network) -> None:
    """Remove the time in which pages migrated to the GPU from its kernels, and to the host from code."""
    trace, faults = program.attribution.trace, program.attribution.trace.page_faults
    ops = trace.ops
    asked = np.zeros(len(ops), bool)
    asked[trace.copy_ops] = trace.copies.cause == PREFETCHED
    moved = np.flatnonzero((ops.kind == MIGRATION) & ~asked)
    if not len(moved) and not len(faults.start):
        raise NsysprofError(
            f"{program.file} has no page faults or migrations",
            "nsys profile --cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true records them",
        )
    back = np.array(["DtoH" in name for name in trace.op_names], bool)[ops.name[moved]]
    numbers = np.array(trace.gpu_numbers, np.int64)[trace.stream_device[ops.stream[moved]]]
    on = np.array([trace.gpu_of.get((int(each), int(device)), -1) for each, device in
                   zip(faults.process, faults.device, strict=True)], np.int64)  # fmt: skip
    for gpu in np.unique(trace.op_gpu[trace.op_gpu >= 0]).tolist():
        rows = np.flatnonzero((trace.op_gpu == gpu) & (ops.kind == KERNEL))
        came, fault = moved[~back & (numbers == gpu)], on == gpu
        starts = np.concatenate([ops.start[came], faults.start[fault]])
        ends = np.concatenate([ops.end[came], faults.end[fault]])
        less = covered(merge(starts, ends), ops.start[rows], ops.end[rows])
        edits.lengthen(network, rows, network.length[rows] - less)
    edits.remove(network, _code_that_faulted(program, moved[back]))
    program.notes.append("this is an upper bound: the pages must still be migrated, at best before their first use")


def _code_that_faulted(program: Program, back: Index) -> Cause:
    """Code of the thread of each process that launches most, while pages came back to the host."""
    trace = program.attribution.trace
    launches, process = trace.launches, trace.op_process[back]
    parts: list[tuple[Index, Ints, Ints]] = []
    for code in np.unique(process).tolist():
        mine = np.bincount(launches.thread[trace.thread_process[launches.thread] == code], minlength=1)
        rows = back[process == code]
        parts.append((np.full(len(rows), int(mine.argmax())), trace.ops.start[rows], trace.ops.end[rows]))
    if not parts:
        return Cause()
    thread, start, end = (np.concatenate(each) for each in zip(*parts, strict=True))
    number = np.arange(len(thread))
    time = host_time(program.attribution, program.facts.activity, number, start, end, thread.astype(np.int32))
    code = time.call < 0
    return Cause(thread=time.thread[code].astype(np.int64), start=time.start[code], end=time.end[code])
