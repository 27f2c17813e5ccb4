"""A kernel whose launch leaves most of the GPU empty: fewer blocks than multiprocessors, or blocks of few threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import BOUND, EVERY, Finding
from nsysprof.diagnosis.kinds import NAME
from nsysprof.kernels.names import short_name
from nsysprof.trace.details import unpacked
from nsysprof.trace.trace import KERNEL
from nsysprof.waits.windows import compute_ops

MIN_SHARE = 0.05  # of the steps
_MIN_EMPTY = 0.25  # of the GPU: 128 blocks on 132 multiprocessors are nothing to change
# Threads of a block with which as many blocks as a multiprocessor holds (32) fill it (2,048); with fewer it stays part
# empty.
FULL = 64
_MANY = {
    "cuda": "launch at least as many blocks as the GPU has multiprocessors ({sms}): give each block less work",
    "pytorch": "give the kernel more parallel work: a larger batch, or a kernel that splits this one over more blocks"
    " (the GPU has {sms} multiprocessors)",
}
_WIDE = {"cuda": "use blocks of 128 to 256 threads: blocks of {threads} leave most lanes empty"}


@dataclass(frozen=True)
class _Launches:
    """The kernels of the steps of a place with their blocks and threads; ``ns``: what no other kernel ran beside."""

    op: np.ndarray
    blocks: np.ndarray
    threads: np.ndarray
    ns: np.ndarray


def _kernels(case: Case, place: Place) -> _Launches | None:
    trace = case.facts.attribution.trace
    reader = trace.report.reader
    grids, blocks = reader.grids(), reader.blocks()
    kernel = np.flatnonzero(trace.ops.kind == KERNEL)
    if len(grids) != len(kernel) or len(blocks) != len(kernel):
        return None
    inside = (trace.op_gpu[kernel] == place.gpu) & compute_ops(trace, case.facts.communication)[kernel]
    start, end = trace.ops.start[kernel], trace.ops.end[kernel]
    windows = case.windows.take(place.windows)
    at = np.searchsorted(windows.start, start, side="right") - 1
    inside &= (at >= 0) & (start < windows.end[at]) & (grids > 0) & (blocks > 0)
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(start[rows], kind="stable")]
    alone = end[rows] - start[rows]
    reach = np.maximum.accumulate(np.append(start[rows[:1]], end[rows][:-1])) if len(rows) else alone
    follows = np.append(start[rows][1:], np.iinfo(np.int64).max)
    alone = np.maximum(np.minimum(end[rows], follows) - np.maximum(start[rows], reach), 0)
    count = np.prod(np.stack(unpacked(grids[rows])), axis=0)
    return _Launches(kernel[rows], count, np.prod(np.stack(unpacked(blocks[rows])), axis=0), alone)


def geometry_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Kernels whose grid or blocks are too small, with what a full GPU would save at most: time × its idle share."""
    sms = max((gpu.sm_count or 0 for gpu in case.facts.attribution.trace.report.about.cuda_gpus), default=0)
    found = _kernels(case, place) if sms else None
    if found is None or not len(found.op):
        return
    trace, filled = case.facts.attribution.trace, np.minimum(found.threads / FULL, 1.0)
    few = found.blocks <= (1 - _MIN_EMPTY) * sms
    for kind, share, texts in (
        ("small-grid", np.where(few, 1 - found.blocks / sms * filled, 0.0), _MANY),
        ("tiny-blocks", np.where(few, 0.0, 1 - filled), _WIDE),
    ):
        lost = np.rint(found.ns * share).astype(np.int64)
        names = trace.ops.name[found.op]
        total = np.zeros(len(trace.op_names), np.int64)
        np.add.at(total, names, lost)
        name = int(total.argmax())
        if total[name] < MIN_SHARE * place.total_ns:
            continue
        mine = np.flatnonzero((names == name) & (lost > 0))
        most = mine[int(np.argmax(found.ns[mine]))]
        blocks, threads = int(found.blocks[most]), int(found.threads[most])
        cause = one_line(short_name(trace.op_names[name]), NAME)
        ns = int(found.ns[mine].sum())
        per = "" if place.path == WHOLE else " of each step"
        amount = f"{format_ns(ns / place.steps)}{per}, {format_share(ns / place.total_ns)}"
        shape = f"{blocks:,} block{'s' * (blocks != 1)} of {threads:,} threads on {sms:,} multiprocessors"
        narrow = (
            f", in blocks of 128 to 256 threads, not {threads:,}"
            if kind == "small-grid" and threads < FULL
            else ""
        )
        remedy = texts.get(case.dialect, texts["cuda"]).format(sms=sms, threads=threads) + narrow
        gain = int(total[name])
        yield Finding(
            kind=kind,
            path=place.path,
            gpu=place.gpu,
            often=EVERY,
            steps=place.steps,
            text=f"{cause} runs {shape}: {amount}",
            cause=cause,
            claim="counted",
            lost_ns=gain,
            remedy=remedy,
            gain_ns=gain,
            gain_low_ns=0,
            gain_high_ns=gain,
            basis=BOUND,
            total_ns=place.total_ns,
        )
