"""Find synchronizations: the host waits for the GPU, and then the GPU idles until the host launches again."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.columns import pick
from nsysprof.core.intervals import covered, merge, union
from nsysprof.core.text import one_line
from nsysprof.diagnosis.busy import starts_in
from nsysprof.diagnosis.case import Case, Place, made_once
from nsysprof.diagnosis.finding import NAME, OFTEN_SO, Finding
from nsysprof.diagnosis.kinds import (
    DIRECTIVES,
    MIN_SHARE,
    Group,
    Kind,
    Remedy,
    copied_op,
    counted,
    dialect_text,
    each_step,
    fetched,
    launching,
    of_host,
    removal,
    stalled,
)
from nsysprof.trace.details import SYNCHRONIZING
from nsysprof.trace.trace import KERNEL, MEMCPY
from nsysprof.waits.moments import IMPLIED_NS
from nsysprof.waits.purposes import COPY, OTHER, SYNCHRONIZE
from nsysprof.waits.whole import Cause

_BARE = re.compile(r"\w+Synchronize(?: in |\Z)")  # a call that waits for no copy
READ = {
    "pytorch": "read the value less often: keep it on the GPU and call .item() every N steps",
    "cuda": "keep the value on the GPU, or copy it with cudaMemcpyAsync and read it a step later",
    "openacc": "keep the value on the GPU, and read it on the CPU only every N steps",
}
_MASK = {
    "pytorch": (
        "use torch.where or a multiplication instead of a boolean mask, because the CPU must wait for "
        "the size of a masked tensor"
    ),
    "cuda": "keep the size on the GPU",
}
# The kernels of nonzero() in PyTorch.
_COUNTS = re.compile(r"(?i)nonzero|write_indices|cuda_detail::cub\S*::Device(?:Reduce(?!ByKey)|Select|CompactInit)")
_READS = "a copy of a few bytes to the host"  # what is .item() in Python
_UNSET = "unset CUDA_LAUNCH_BLOCKING (or turn off the debug mode that sets it), and record again"
# Kernels of 20 µs or more whose launch ends behind them, of how many, and how far the clocks may differ. Other
# programs, of 200 public ones, have no more than 66 %.
_MANY, _ALL, _CLOCK_NS = 8, 0.95, 2_000
WAIT = {
    "pytorch": "remove the synchronization from the step, or synchronize only every N steps",
    "cuda": "remove the synchronization from the loop, and order the work with streams and events",
    "openacc": "launch with an async clause, and wait only where the CPU reads a result (at best every N steps)",
}


def _claims(case: Case) -> Mask:
    """Short launching behind a call that waited for the GPU, and such calls themselves, also if they copy a few bytes
    to the host; without waits for collectives, which take as long without the call.
    """
    trace, pieces = case.facts.attribution.trace, case.pieces
    waits = np.isin(case.purpose[pieces["exposing"]], (SYNCHRONIZE, COPY))
    to_host = np.array(["DtoH" in name for name in trace.op_names], bool).take(trace.ops.name)
    blocks = np.append(case.facts.activity.kind == SYNCHRONIZING, False)[pieces["call"]]
    reads = (case.purpose[pieces["call"]] == COPY) & blocks & np.append(to_host, False)[pieces["copied"]]
    own = (case.purpose[pieces["call"]] == SYNCHRONIZE) | reads
    talks = np.append(case.facts.communication[trace.ops.name], False)[pieces["on"]]
    begun = np.maximum(np.append(trace.ops.start, 0)[pieces["on"]], pieces["start_ns"])
    talks &= 2 * (pieces["end_ns"] - begun) >= pieces["ns"]
    return of_host(case) & (copied_op(case) < 0) & ((waits & launching(case)) | own) & ~stalled(case) & ~talks


def _codes(case: Case, rows: Index) -> Ints:
    """By call and range; the waits behind the regions of OpenACC and OpenMP are one cause, with one remedy."""
    codes, waits = _calls_of(case, rows), _of_regions(case)
    return np.where(waits[codes], -1, codes) + 1


def _calls_of(case: Case, rows: Index) -> Ints:
    exposed = case.pieces["exposed_by"][rows]
    return np.where(exposed > 0, exposed, case.pieces["culprit"][rows])


@made_once
def _of_regions(case: Case) -> Mask:
    """Which texts are calls that wait at the end of a region."""
    directives = case.dialect in DIRECTIVES
    return np.array([directives and _BARE.match(text) is not None for text in case.facts.texts.words], bool)


def _words(case: Case, row: int) -> str:
    code, waits = int(_calls_of(case, np.array([row]))[0]), _of_regions(case)
    if not waits[code]:
        text = case.facts.texts.words[code]
        return one_line(text.replace(".item()", _READS) if case.dialect in ("cuda", *DIRECTIVES) else text, NAME)
    mine = np.flatnonzero(_claims(case) & (case.place_of == case.place_of[row]))
    codes = _calls_of(case, mine)
    ns = case.pieces["ns"][mine] * waits[codes]
    texts, every = case.facts.texts, np.unique(codes[ns > 0]).tolist()
    text = texts.words[texts.most(codes, ns)]
    if len(every) == 1:
        return one_line(text, NAME)
    place = text.partition(" in ")[2] or text
    there = [code for code in every if texts.words[code].endswith(place)]
    most = 2 * int(ns[np.isin(codes, there)].sum()) >= int(ns.sum())
    return one_line(f"synchronization ({'most' if most else 'for example'} in {place})", NAME)


def _calls(case: Case, group: Group) -> Cause:
    pieces = case.pieces
    calls = np.where(pieces["exposing"] >= 0, pieces["exposing"], pieces["call"])[group.rows]
    wholes, trace = case.program.wholes, case.facts.attribution.trace
    calls = np.unique(calls[calls >= 0])
    cause = wholes.of_calls(calls)
    if _is_read(group):  # with the copy
        copied = case.facts.ops_of_calls.on[calls].astype(np.int64)
        cause |= wholes.of_ops(copied[pick(trace.ops.kind, copied, 255) == MEMCPY])
    if "nonzero()" in group.cause:  # its kernels go, too
        counts = np.array([_COUNTS.search(name) is not None for name in trace.op_names], bool)
        ops = np.flatnonzero(counts[trace.ops.name] & (trace.ops.launch >= 0))
        made = wholes.of_launch[np.unique(trace.ops.launch[ops])]
        cause |= wholes.of_calls(made[made >= 0]) | wholes.of_ops(ops)
    around = case.dialect == "pytorch" and _is_read(group)
    return cause | _code_around(case, group.place, cause) if around else cause


def _is_read(group: Group) -> bool:
    return any(each in group.cause for each in (".item()", "nonzero()", _READS, "DtoH"))


def _code_around(case: Case, place: Place, cause: Cause) -> Cause:
    """The short code of PyTorch around the calls of a read. As much stays as is usual between two other calls."""
    calls, gone, found = case.facts.activity.calls, np.zeros(len(case.purpose), bool), Cause()
    gone[cause.calls] = True
    known = gone | (case.purpose != OTHER)
    for code in np.unique(cause.thread).tolist():
        here = calls.of_thread(int(case.facts.attribution.trace.threads[code]))
        rows = here.start + np.flatnonzero(known[here])
        begin, until = np.maximum.accumulate(calls.end[rows])[:-1], calls.start[rows][1:]
        length = np.maximum(until - begin, 0)
        gap = np.cumsum(~gone[rows])[:-1]  # between two calls that stay
        short, around = length < case.long_code_ns, np.isin(gap, gap[gone[rows][:-1] | gone[rows][1:]])
        others = short & ~around & starts_in(case, place, begin)
        usual = float(length[others].mean()) if others.any() else np.inf
        total = np.bincount(gap, length * short)[gap]
        some = np.flatnonzero(short & around & (total > usual))
        part = np.rint(length[some] * (1 - usual / total[some])).astype(np.int64)
        found |= Cause(thread=np.full(len(some), code), start=begin[some], end=begin[some] + part)
    return found


def _read(case: Case, group: Group) -> bool:
    """Whether the CPU reads managed memory behind the synchronization, which it cannot do without."""
    windows = case.pieces["window"]
    here = np.flatnonzero(case.place_of == case.places.index(group.place))
    mine = here[np.isin(windows[here], windows[group.rows])]
    return 2 * len(np.unique(windows[mine[fetched(case, replace(group, rows=mine))]])) > len(np.unique(windows[mine]))


def _drop(case: Case, group: Group) -> Iterable[Remedy]:
    if group.place.path == WHOLE or _read(case, group):
        return
    texts = _MASK if "nonzero()" in group.cause else READ if _is_read(group) else WAIT
    yield removal(dialect_text(case, texts), group)


SYNCHRONIZATION = Kind(
    "synchronization",
    _claims,
    _codes,
    _words,
    "{cause} drains the GPU queue, and the GPU idles until the CPU has launched again: {amount}",
    _drop,
    _calls,
    least_share=OFTEN_SO,
    exposes=True,
    note=lambda case, group: "; the CPU reads managed memory that the GPU wrote" * _read(case, group),
)


def blocking_launches(case: Case, place: Place) -> Iterator[Finding]:
    """Find launches that return only after their kernel has ended. The gain is at most the GPU's idle time: without the
    waits, the CPU can launch ahead.
    """
    trace = case.facts.attribution.launched.trace
    ops, launches = trace.ops, trace.launches
    rows = np.flatnonzero((ops.kind == KERNEL) & (ops.launch >= 0) & (ops.end - ops.start >= IMPLIED_NS))
    rows = rows[trace.op_gpu[rows] == place.gpu]
    early, late = launches.start[ops.launch[rows]], launches.end[ops.launch[rows]]
    inside = (ops.start[rows] >= early - _CLOCK_NS) & (ops.end[rows] <= late + _CLOCK_NS)  # else the clocks differ
    if len(rows) < _MANY or float(inside.mean()) < _ALL:
        return
    windows, lines = case.windows.take(place.windows), case.lines[place.gpu]
    busy = int(
        covered(union(union(lines.compute, lines.communication), lines.copies), windows.start, windows.end).sum()
    )
    called = np.unique(ops.launch[rows])
    blocked = int(covered(merge(launches.start[called], launches.end[called]), windows.start, windows.end).sum())
    lost = min(place.total_ns - busy, blocked)
    if lost < MIN_SHARE * place.total_ns:
        return
    idle = each_step(place, lost)
    text = f"kernel launches return only after their kernels have ended, so the GPU idles for up to {idle}"
    yield counted(place, "synchronization", "blocking kernel launches", text, _UNSET, lost, lost)
