"""The host waits for the GPU, and the GPU is then idle until the host has launched again."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Index, Ints, Mask
from nsysprof.core.text import one_line
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.finding import NAME, OFTEN_SO
from nsysprof.diagnosis.kinds import Group, Kind, Remedy, copied_op, dialect_text, fetched, launching, of_host, removal
from nsysprof.diagnosis.launch_bound import launching_time
from nsysprof.waits.purposes import COPY, SYNCHRONIZE
from nsysprof.waits.whole import Cause

_READ = {
    "pytorch": "read the value less often: keep it on the GPU and call .item() every N steps",
    "cuda": "keep the value on the GPU, or copy it with cudaMemcpyAsync and read it a step later",
}
_MASK = {
    "pytorch": (
        "use torch.where or a multiplication instead of a boolean mask, because the CPU must wait for "
        "the size of a masked tensor"
    ),
    "cuda": "keep the size on the GPU",
}
_WAIT = {
    "pytorch": "remove the synchronization from the step, or synchronize only every N steps",
    "cuda": "remove the synchronization from the loop, and order the work with streams and events",
    "openacc": "launch with an async clause, and wait once after the loop",
}


def _claims(case: Case) -> Mask:
    """Short launching behind a call that waited for the GPU, and such calls themselves."""
    exposing = case.pieces["exposing"]
    waits = np.isin(case.purpose[exposing], (SYNCHRONIZE, COPY)) & (exposing >= 0)
    own = np.isin(case.purpose[case.pieces["call"]], (SYNCHRONIZE,))
    return of_host(case) & (copied_op(case) < 0) & ((waits & launching(case)) | own)


def _codes(case: Case, rows: Index) -> Ints:
    exposed = case.pieces["exposed_by"][rows]
    return np.where(exposed > 0, exposed, case.pieces["culprit"][rows])


def _words(case: Case, row: int) -> str:
    code = int(_codes(case, np.array([row]))[0])
    return one_line(case.facts.texts.words[code], NAME)


def _calls(case: Case, group: Group) -> Cause:
    pieces = case.pieces
    calls = np.where(pieces["exposing"] >= 0, pieces["exposing"], pieces["call"])[group.rows]
    wholes, trace = case.program.wholes, case.facts.attribution.trace
    cause = wholes.of_calls(np.unique(calls[calls >= 0]))
    if "nonzero()" not in group.cause:
        return cause
    counts = np.array(["nonzero" in name.lower() for name in trace.op_names], bool)  # its kernels go, too
    ops = np.flatnonzero(counts[trace.ops.name] & (trace.ops.launch >= 0))
    made = wholes.of_launch[np.unique(trace.ops.launch[ops])]
    cause |= launching_time(case, group.place, np.union1d(cause.calls, made[made >= 0]))
    return cause | wholes.of_ops(ops)


def _read(case: Case, group: Group) -> bool:
    """Whether the CPU reads managed memory behind the synchronization, which it cannot do without."""
    windows = case.pieces["window"]
    here = np.flatnonzero(case.place_of == case.places.index(group.place))
    mine = here[np.isin(windows[here], windows[group.rows])]
    return 2 * len(np.unique(windows[mine[fetched(case, replace(group, rows=mine))]])) > len(np.unique(windows[mine]))


def _drop(case: Case, group: Group) -> Iterable[Remedy]:
    if group.place.path == WHOLE or _read(case, group):
        return
    reads = ".item()" in group.cause or "DtoH" in group.cause
    texts = _READ if reads else _MASK if "nonzero()" in group.cause else _WAIT
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
    note=lambda case, group: "; the CPU reads what the GPU wrote to managed memory" * _read(case, group),
)
