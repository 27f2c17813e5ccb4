"""Apply changes to the network of a trace: find the targets of each change, and edit them."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np

from nsysprof.attribution.range_work import index_work
from nsysprof.core.arrays import Index
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import covered, merge
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import GRAPH, KERNEL, MEMCPY
from nsysprof.waits import edits
from nsysprof.waits.changes import AbstainError, Changes, read_factor, read_time
from nsysprof.waits.program import Program
from nsysprof.waits.removals import matching, refuse_all, removals_of
from nsysprof.waits.replay import Network
from nsysprof.waits.swap import time_of_row, times_by_name


@dataclass(frozen=True)
class Step:
    """One change: its ``kind``, a description, the ``ranges`` that it affects, and a function that edits a network."""

    kind: str
    words: str
    ranges: Index
    apply: Callable[[Network], None]


def steps_of(program: Program, changes: Changes) -> list[Step]:
    """Make a `Step` for each change; targets are found immediately, before the network is built."""
    none = np.empty(0, np.intp)
    made: list[Step] = []
    for glob in changes.drop_sync:
        calls, rows = _syncs(program, glob)
        made.append(Step("drop-sync", f"without waiting in {glob}", rows, partial(_drop, program, calls, rows, glob)))
    for glob in changes.graph:
        rows = program.ranges_of(glob)
        made.append(Step("graph", f"{glob} as a CUDA graph", rows, partial(_graph, program, rows, glob)))
    for text in changes.scale:
        glob, factor = read_factor(text)
        names = _kernels(program, glob, "scale")
        words = f"{glob} at {factor:g} of its time"
        made.append(Step("kernel", words, none, partial(_scale, program, names, factor)))
    for text in changes.set:
        glob, ns = read_time(text, "set", "KERNEL=40us")
        times = dict.fromkeys(_kernels(program, glob, "set"), ns)
        made.append(Step("kernel", f"{glob} in {format_ns(ns)}", none, partial(_set, program, times)))
    made += [_swap(program, text) for text in changes.swap]
    for glob in changes.fuse:
        rows = program.ranges_of(glob)
        words = f"{glob} as one kernel of equal duration"
        made.append(Step("fuse", words, rows, partial(_fuse, program, rows, glob)))
    made += [Step(kind, words, none, apply) for kind, words, apply in removals_of(program, changes)]
    if changes.no_late_peer:
        if program.facts.peers is None:
            raise AbstainError(
                "this report has no collective of two or more ranks, so the late rank is unknown",
                "record all ranks of a node in one report: nsysprof capture -- torchrun …",
            )
        made.append(Step("no-late-peer", "no late rank", none, edits.run_together))
    for option, texts in (("delay", changes.delay), ("gpu-delay", changes.gpu_delay)):
        act, whose = (_delay_host, "") if option == "delay" else (_delay_gpu, "of the GPU ")
        for text in texts:
            glob, ns = read_time(text, option, "RANGE=500us")
            rows = program.ranges_of(glob)
            words = f"{format_ns(ns)} more {whose}behind {glob}"
            made.append(Step(option, words, rows, partial(act, program, rows, ns)))
    return made


def _kernels(program: Program, glob: str, option: str) -> list[int]:
    """The codes of the op names that a glob matches, and a note on their number and time.

    A full name matches itself. Otherwise names as printed, families and causes (`softmax`, `gemm, tensor core`) match
    in any letter case; a text without a star that matches none of these is searched in full names.
    """
    trace, kinds = program.attribution.trace, program.facts.kinds
    refuse_all(glob, option)
    full, low = [*trace.op_names], glob.lower()
    used = np.flatnonzero(np.bincount(trace.ops.name, minlength=len(full))).tolist()
    found = [at for at in used if full[at] == glob]
    if not found:
        units = (f"{family}, {unit}" for family, unit in zip(kinds.family, kinds.math_unit, strict=True))
        words = zip(map(short_name, full), kinds.family, kinds.cause, units, strict=True)
        texts = [{text.lower() for text in some} for some in words]
        found = [at for at in used if any(text == low or fnmatchcase(text, low) for text in texts[at])]
    if not found and "*" not in glob:
        found = [at for at in used if low in full[at].lower()]
    if not found:
        short = [short_name(full[at]) for at in used]
        return matching([*short, *{kinds.family[at] for at in used}], glob, "kernel or family", program.file)
    program.notes.append(f"{glob}: {_amount(program, found)}")
    return found


def _amount(program: Program, names: list[int]) -> str:
    """The number of these kernels, their time, and its share of the steps."""
    trace, windows = program.attribution.trace, program.windows
    rows = np.flatnonzero(np.isin(trace.ops.name, names))
    total = np.zeros(len(trace.op_names), np.int64)
    for gpu in np.unique(windows.gpu).tolist():
        mine = windows.gpu == gpu
        ops = rows[trace.op_gpu[rows] == gpu]
        steps = merge(windows.start[mine], windows.end[mine])
        np.add.at(total, trace.ops.name[ops], covered(steps, trace.ops.start[ops], trace.ops.end[ops]))
    share = format_share(int(total.sum()) / max(int(windows.length.sum()), 1))
    return f"{plural(int((total > 0).sum()), 'kernel')}, {format_ns(int(total.sum()))}, {share} of the steps"


def _scale(program: Program, names: list[int], factor: float, network: Network) -> None:
    ops = np.flatnonzero(np.isin(program.attribution.trace.ops.name, names))
    edits.lengthen(network, ops, np.rint(network.length[ops] * factor).astype(np.int64))


def _set(program: Program, times: dict[int, int], network: Network) -> None:
    name = program.attribution.trace.ops.name
    table = np.full(len(program.attribution.trace.op_names), -1, np.int64)
    table[list(times)] = list(times.values())
    ops = np.flatnonzero(table[name] >= 0)
    edits.lengthen(network, ops, table[name[ops]])


def _swap(program: Program, text: str) -> Step:
    """Times of kernels by name from a table or report, or of one kernel instead of all that a range runs.

    A kernel that takes no time is not launched, and the host then does nothing in the range.
    """
    glob, equals, source = text.rpartition("=")
    if not equals:
        times = times_by_name(program.attribution.trace, Path(text))
        words = f"{plural(len(times), 'kernel')} as fast as in {Path(text).name}"
        return Step("swap", words, np.empty(0, np.intp), partial(_set, program, times))
    name, _, row = source.rpartition(":")
    if not name:
        raise NsysprofError(f"--swap {text!r} does not name a row of the table", "--swap 'RANGE=results.csv:flash'")
    rows = program.ranges_of(glob)
    ns = time_of_row(Path(name), row)

    def apply(network: Network) -> None:
        ops, place = program.ops_of(rows)
        trace = program.attribution.trace
        keep = trace.ops.kind[ops] != MEMCPY
        ops, place = ops[keep], place[keep]
        order = np.lexsort((trace.ops.start[ops], place))
        ops, place = ops[order], place[order]
        if not ns:
            begun = program.place(np.unique(rows[place]))
            edits.leave_out(network, program.inside[begun], program.stop[begun], ops)
            return
        first = np.append(True, place[1:] != place[:-1])[: len(place)]
        edits.merge_ops(network, trace, ops, first, np.full(len(ops), ns))

    words = f"{glob} as one kernel of {format_ns(ns)} ({row})" if ns else f"{glob} left out ({row})"
    return Step("swap", words, rows, apply)


def _fuse(program: Program, rows: Index, glob: str, network: Network) -> None:
    """Fuse the kernels of each range and stream into one that takes as long as all, launched like the first."""
    ops, place = program.ops_of(rows)
    trace = program.attribution.trace
    keep = (trace.ops.kind[ops] == KERNEL) & ~program.facts.communication[trace.ops.name[ops]]
    ops, place = ops[keep], place[keep]
    if not len(ops):
        raise NsysprofError(f"{glob} launches no kernels to fuse", "nsysprof analyze shows what ranges launch")
    order = np.lexsort((trace.ops.start[ops], trace.ops.stream[ops], place))
    ops, place = ops[order], place[order]
    first = np.append(True, (np.diff(place) != 0) | (np.diff(trace.ops.stream[ops].astype(np.int64)) != 0))
    whole = np.add.reduceat(network.length[ops], np.flatnonzero(first))
    edits.merge_ops(network, trace, ops, first, np.repeat(whole, np.diff(np.append(np.flatnonzero(first), len(ops)))))


def _graph(program: Program, rows: Index, glob: str, network: Network) -> None:
    trace, activity = program.attribution.trace, program.facts.activity
    launch, place = index_work(program.attribution, rows).launches_of(rows)
    if not len(launch):
        raise NsysprofError(
            f"{glob} has no GPU work that a CUDA graph could contain", "nsysprof analyze shows what ranges launch"
        )
    used = np.unique(place)
    at = program.place(rows)
    first, stop = [program.inside[at[used]]], [program.stop[at[used]]]
    helped = trace.launches.thread[launch] != trace.ranges.thread[rows[place]]
    if helped.any():
        work = launch[helped]
        lead, end = network.launch_moment[:, work]
        one, group = distinct(place[helped], trace.launches.thread[work])
        np.minimum.at(starts := lead[one], group, lead)
        np.maximum.at(ends := end[one], group, end)
        first.append(starts)
        stop.append(ends)
    lows, highs = np.concatenate(first), np.concatenate(stop)
    waits = np.append(0, np.cumsum((network.node >= 0) & network.waits[network.node]))
    blocked = np.flatnonzero(waits[highs + 1] > waits[lows])
    if len(blocked):
        low, high = int(lows[blocked[0]]), int(highs[blocked[0]])
        calls = activity.calls
        hits = np.flatnonzero((network.sync_moment[1] >= low) & (network.sync_moment[1] <= high))
        name = calls.names[calls.name[network.sync_call[hits[0]]]] if len(hits) else "a copy that blocks"
        raise AbstainError(
            f"{glob} cannot be captured as a CUDA graph: it waits for the GPU in {name}",
            f"nsysprof forecast {program.file} --drop-sync '{glob}' --graph '{glob}', or name a range "
            "without such a wait",
        )
    names = trace.launches.name
    graphs = [code for code, name in enumerate(trace.call_names) if "GraphLaunch" in name]
    calls_of = np.flatnonzero(np.isin(names, graphs))
    lengths = trace.launches.end[calls_of] - trace.launches.start[calls_of]
    cost = int(np.median(lengths)) if len(lengths) else network.lags.launch
    whence = "from this report" if len(lengths) else "from kernel launches, because this report has no graph launch"
    program.notes.append(f"assumed launch time of the graph: {format_ns(cost)}, {whence}")
    edits.launch_as_graph(network, program.inside[at[used]], lows, highs, cost)


def _syncs(program: Program, glob: str) -> tuple[Index, Index]:
    """The calls of that name, or the ranges that match; raises `NsysprofError` if there is neither."""
    calls = program.facts.activity.calls
    names = [at for at, name in enumerate(calls.names) if fnmatchcase(name, glob)]
    rows = np.flatnonzero(np.isin(calls.name, names)) if names else np.empty(0, np.intp)
    if len(rows):
        return rows, np.empty(0, np.intp)
    return rows, program.ranges_of(glob)


def _drop(program: Program, calls: Index, rows: Index, glob: str, network: Network) -> None:
    waits = np.flatnonzero((network.node >= 0) & network.waits[network.node])
    if len(calls):
        chosen = network.sync_moment[1][np.isin(network.sync_call, calls)]
    else:
        at = program.place(rows)
        depth = np.zeros(len(network.time) + 1, np.int64)
        np.add.at(depth, program.begin[at], 1)
        np.add.at(depth, program.stop[at], -1)
        chosen = waits[np.cumsum(depth)[waits] > 0]
    if not len(chosen):
        raise NsysprofError(f"nothing in {glob} waits for the GPU", "nsysprof why lists the waiting calls (exposed_by)")
    edits.stop_waiting(network, chosen)


def _delay_host(program: Program, rows: Index, ns: int, network: Network) -> None:
    edits.delay_host(network, program.stop[program.place(rows)], ns)


def _delay_gpu(program: Program, rows: Index, ns: int, network: Network) -> None:
    trace = program.attribution.trace
    ops, place = program.ops_of(rows)
    ops, place = ops[trace.ops.kind[ops] <= GRAPH], place[trace.ops.kind[ops] <= GRAPH]
    if not len(ops):
        raise NsysprofError("these ranges launch no GPU op to delay", "--delay delays the host")
    order = np.lexsort((trace.launches.start[trace.ops.launch[ops]], place))
    last = np.append(place[order][1:] != place[order][:-1], True)[: len(order)]
    launched = trace.ranges.end[rows[place[order[last]]]]
    edits.delay_gpu(network, ops[order[last]], ns, launched)
