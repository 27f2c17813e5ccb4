"""Carries changes out on the network of a trace: finds what each speaks of, and edits that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.globs import find_matches
from nsysprof.attribution.paths import merged_paths, range_paths
from nsysprof.attribution.range_work import index_work
from nsysprof.core.text import plural
from nsysprof.core.units import format_ns
from nsysprof.errors import NsysprofError
from nsysprof.forecast.questions import AbstainError, Changes, matching, read_factor, read_time
from nsysprof.forecast.swap import time_of_row, times_by_name
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import GRAPH, MEMCPY
from nsysprof.waits import edits
from nsysprof.waits.facts import Facts
from nsysprof.waits.moments import Moments
from nsysprof.waits.replay import Network
from nsysprof.waits.spans import asked_moments, moments_of
from nsysprof.waits.whole import Wholes
from nsysprof.why.ceilings import cause_of
from nsysprof.why.why import Why

Rows = NDArray[np.intp]


@dataclass
class Program:
    """A recorded program that can be changed: its trace, what waits for what, and where ranges begin and end.

    ``rows`` are the ranges whose moments the network knows, ``begin``, ``inside`` and ``stop`` these moments, twice the
    begin, so that something can happen in between. ``answer`` makes the accounts of `why`, when asked. ``notes`` are
    sentences on what was assumed.
    """

    attribution: Attribution
    facts: Facts
    merge_names: Sequence[str] | None
    answer: Callable[[], Why]
    network: Network = field(init=False)
    rows: Rows = field(init=False)
    begin: Rows = field(init=False)
    inside: Rows = field(init=False)
    stop: Rows = field(init=False)
    notes: list[str] = field(default_factory=list)
    spans: dict[str, Rows] = field(default_factory=dict)

    @cached_property
    def wholes(self) -> Wholes:
        """What belongs to its calls and GPU ops."""
        return Wholes(self.facts)

    @property
    def file(self) -> str:
        """What messages call the report."""
        return str(self.attribution.trace.report.path)

    def ranges_of(self, glob: str) -> Rows:
        """The ranges that a glob matches, by path or name; `NsysprofError` with near ones where there are none."""
        if glob not in self.spans:
            paths = range_paths(self.attribution)
            merged = merged_paths(paths, self.merge_names)
            codes = [match.code for match in find_matches(merged, merged.texts(), glob, self.file)]
            self.spans[glob] = np.flatnonzero(np.isin(merged.of[paths.of], codes))
        return self.spans[glob]

    def place(self, rows: Rows) -> Rows:
        """Where ranges stand among ``rows``."""
        return np.searchsorted(self.rows, rows)

    def set_rows(self, rows: Rows) -> Moments:
        """Choose the ranges whose moments the network is to know, and return these."""
        self.rows = np.unique(rows)
        return moments_of(self.attribution.trace, self.rows)

    def set_network(self, network: Network) -> None:
        """Keep the network that was made with the moments of `set_rows`."""
        self.network = network
        self.begin, self.inside, self.stop = asked_moments(network)

    def ops_of(self, rows: Rows) -> tuple[Rows, Rows]:
        """The GPU ops launched in ranges, and of each the place of its range in ``rows``."""
        return index_work(self.attribution, rows).ops_of(rows)


@dataclass(frozen=True)
class Step:
    """One change: its ``kind``, what it is in words, the ``ranges`` it speaks of, and how it edits a network."""

    kind: str
    words: str
    ranges: Rows
    apply: Callable[[Network], None]


def steps_of(program: Program, changes: Changes) -> list[Step]:
    """The changes one by one; what they speak of is found now, before there is a network."""
    none = np.empty(0, np.intp)
    made: list[Step] = []
    for glob in changes.drop_sync:
        calls, rows = _syncs(program, glob)
        made.append(
            Step("drop-sync", f"without waiting in {glob}", rows, partial(_drop, program, calls, rows, glob))
        )
    if changes.async_copies:
        made.append(Step("async-copies", "copies that do not block", none, partial(_async, program)))
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
    for glob in changes.remove:
        _refuse_all(glob, "remove")
        made.append(Step("remove", f"without {glob}", none, partial(_remove, program, glob)))
    if changes.no_late_peer:
        if program.facts.peers is None:
            raise AbstainError(
                "no two ranks of this report share a collective, so nobody knows who came late",
                "record all ranks of a node in one report: nsysprof capture -- torchrun …",
            )
        made.append(Step("no-late-peer", "no rank late", none, edits.run_together))
    for option, texts in (("delay", changes.delay), ("gpu-delay", changes.gpu_delay)):
        act, whose = (_delay_host, "") if option == "delay" else (_delay_gpu, "of the GPU ")
        for text in texts:
            glob, ns = read_time(text, option, "RANGE=500us")
            rows = program.ranges_of(glob)
            words = f"{format_ns(ns)} more {whose}behind {glob}"
            made.append(Step(option, words, rows, partial(act, program, rows, ns)))
    return made


# ---- kernels


def _refuse_all(glob: str, option: str) -> None:
    if glob and not glob.strip("*?"):
        raise AbstainError(
            f"--{option} {glob!r} speaks of everything: another clock, GPU or batch size is not modelled",
            "name the kernels that change: nsysprof analyze lists them",
        )


def _kernels(program: Program, glob: str, option: str) -> list[int]:
    trace = program.attribution.trace
    _refuse_all(glob, option)
    full = [*trace.op_names]
    short = [short_name(name) for name in full]
    used = np.bincount(trace.ops.name, minlength=len(full)) > 0
    if hits := [at for at, name in enumerate(full) if name == glob and used[at]]:
        return hits
    some = [name if used[at] else "" for at, name in enumerate(short)]
    whole = [at for at, name in enumerate(full) if used[at] and glob in name and "*" not in glob]
    try:
        return matching(some, glob, "kernel", program.file)
    except NsysprofError:
        if whole:
            return whole
        raise


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
    """Times of kernels by name from a table or report; or of one kernel in place of all that a range runs.

    A kernel of no time at all is none: then nothing is launched, and the host does nothing in the range.
    """
    glob, equals, source = text.rpartition("=")
    if not equals:
        times = times_by_name(program.attribution.trace, Path(text))
        words = f"{plural(len(times), 'kernel')} as fast as in {Path(text).name}"
        return Step("swap", words, np.empty(0, np.intp), partial(_set, program, times))
    name, _, row = source.rpartition(":")
    if not name:
        raise NsysprofError(
            f"--swap {text!r} does not say which row of the table", "--swap 'RANGE=results.csv:flash'"
        )
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


# ---- launches, calls, delays


def _graph(program: Program, rows: Rows, glob: str, network: Network) -> None:
    trace, activity = program.attribution.trace, program.facts.activity
    index = index_work(program.attribution, rows)
    launch, place = index.launches_of(rows)
    if not len(launch):
        raise NsysprofError(
            f"{glob} launches nothing that a CUDA graph could hold",
            "nsysprof analyze shows what ranges launch",
        )
    used = np.unique(place)
    at = program.place(rows)
    first, stop = [program.inside[at[used]]], [program.stop[at[used]]]
    helped = trace.launches.thread[launch] != trace.ranges.thread[rows[place]]
    if helped.any():
        frame = pd.DataFrame({
            "place": place[helped], "thread": trace.launches.thread[launch[helped]],
            "first": network.launch_moment[0][launch[helped]], "stop": network.launch_moment[1][launch[helped]],
        })  # fmt: skip
        each = frame.groupby(["place", "thread"]).agg({"first": "min", "stop": "max"})
        first.append(each["first"].to_numpy())
        stop.append(each["stop"].to_numpy())
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
            f"nsysprof forecast {program.file} --drop-sync '{glob}' --graph '{glob}', or name a range without it",
        )
    names = trace.launches.name
    graphs = [code for code, name in enumerate(trace.call_names) if "GraphLaunch" in name]
    calls_of = np.flatnonzero(np.isin(names, graphs))
    lengths = trace.launches.end[calls_of] - trace.launches.start[calls_of]
    cost = int(np.median(lengths)) if len(lengths) else network.lags.launch
    whence = "as in this report" if len(lengths) else "as for a kernel, since this report has none"
    program.notes.append(f"the launch of the graph is taken to be {format_ns(cost)} long, {whence}")
    edits.launch_as_graph(network, program.inside[at[used]], lows, highs, cost)


def _syncs(program: Program, glob: str) -> tuple[Rows, Rows]:
    """The calls of that name, or the ranges that match: `NsysprofError` where there is neither."""
    calls = program.facts.activity.calls
    names = [at for at, name in enumerate(calls.names) if fnmatchcase(name, glob)]
    rows = np.flatnonzero(np.isin(calls.name, names)) if names else np.empty(0, np.intp)
    if len(rows):
        return rows, np.empty(0, np.intp)
    return rows, program.ranges_of(glob)


def _drop(program: Program, calls: Rows, rows: Rows, glob: str, network: Network) -> None:
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
        raise NsysprofError(
            f"nothing in {glob} waits for the GPU", "nsysprof why says which calls do, as exposed_by"
        )
    edits.stop_waiting(network, chosen)


def _async(program: Program, network: Network) -> None:
    """Copies to the GPU that block, by waiting or by carrying data, and the calls right behind them that wait."""
    trace, wholes = program.attribution.trace, program.wholes
    to_gpu = np.array(["HtoD" in name for name in trace.op_names], bool)
    ops = np.flatnonzero((trace.ops.kind == MEMCPY) & (trace.ops.launch >= 0) & ~trace.ops.from_graph)
    ops = ops[to_gpu[trace.ops.name[ops]]]
    launch = np.unique(trace.ops.launch[ops])
    ends = network.launch_moment[1][launch]
    node = network.node[ends]
    syncs, behind = wholes.behind_launch
    chosen = network.sync_moment[1][np.isin(network.sync_call, syncs[np.isin(behind, launch)])]
    if not len(chosen) and not ((node >= 0) & network.waits[node]).any():
        raise NsysprofError(
            f"no copy to the GPU blocks the host in {program.file}",
            "nsysprof why lists what the GPU waits for",
        )
    program.notes.append("copies keep their length: pinned memory is faster than that")
    edits.stop_waiting(network, chosen)
    node = network.start[ops]  # the host does not carry them to pinned memory first
    network.extra[node] = np.minimum(network.extra[node], 0)
    for each, usual in zip(network.edges, (network.lags.behind_launch, network.lags.behind_op), strict=True):
        each.lag[node] = np.minimum(each.lag[node], usual)
    edits.hurry(network, ends, network.lags.launch)


def _delay_host(program: Program, rows: Rows, ns: int, network: Network) -> None:
    edits.delay_host(network, program.stop[program.place(rows)], ns)


def _delay_gpu(program: Program, rows: Rows, ns: int, network: Network) -> None:
    trace = program.attribution.trace
    ops, place = program.ops_of(rows)
    ops, place = ops[trace.ops.kind[ops] <= GRAPH], place[trace.ops.kind[ops] <= GRAPH]
    if not len(ops):
        raise NsysprofError("these ranges launch no GPU op to delay", "--delay delays the host")
    order = np.lexsort((trace.launches.start[trace.ops.launch[ops]], place))
    last = np.append(place[order][1:] != place[order][:-1], True)[: len(order)]
    launched = trace.ranges.end[rows[place[order[last]]]]
    edits.delay_gpu(network, ops[order[last]], ns, launched)


def _remove(program: Program, glob: str, network: Network) -> None:
    """What the rows of why.csv with that culprit say the GPU waited for, or computed."""
    answer = program.answer()
    trace = program.attribution.trace
    names = sorted({*answer.rows["culprit"], *answer.rows["cause"]} - {"", "compute"})
    chosen = {names[at] for at in matching(names, glob, "culprit", program.file)}
    waits: Any = answer.waits
    waits = waits[waits["culprit"].isin(chosen) | waits["cause"].isin(chosen)]
    if (waits["cause"] == "unknown").any():
        raise AbstainError(f"what the GPU waited for in {glob} is not known")
    edits.remove(network, program.wholes.alike(cause_of(program.wholes, waits)))
    kernels = answer.rows.loc[
        (answer.rows["cause"] == "compute") & answer.rows["culprit"].isin(chosen), "culprit"
    ]
    if len(kernels):
        some = [at for at, name in enumerate(trace.op_names) if short_name(name) in set(kernels)]
        _scale(program, some, 0.0, network)
