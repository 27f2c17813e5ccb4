"""Read samples of call stacks (``--sample``): COMPOSITE_EVENTS has their times, SAMPLING_CALLCHAINS the frames."""

import numpy as np

from nsysprof.core.arrays import Ints
from nsysprof.core.columns import distinct
from nsysprof.trace.details import CpuSamples
from nsysprof.trace.nsys.blocks import Growing, Source, column, has_all, read_blocks

_SAMPLES, _FRAMES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
_AT, _OF = ("id", "start", "globalTid"), ("id", "symbol", "module", "stackDepth")
_USUAL = 0.9  # of all pauses are no longer: code that waits for memory is sampled more rarely than all other
_MOST = 1_000_000  # frames: reading more would take longer than a name is worth


def read_cpu_samples(source: Source, thread: Ints, start: Ints, end: Ints) -> CpuSamples | None:
    """Read the `CpuSamples` of threads (globalTids) in time spans, disjoint for each thread; None without samples."""
    if not (has_all(source, _SAMPLES, _AT) and has_all(source, _FRAMES, _OF)) or source.rows(_FRAMES) > _MOST:
        return None
    grown = Growing(id="i8", start="i8", globalTid="i8")
    for block in read_blocks(source, _SAMPLES, _AT):
        mine = np.isin(column(block, "globalTid"), thread)
        grown.add(int(mine.sum()), **{name: column(block, name)[mine] for name in _AT})
    rows = grown.take_rest()
    order = np.lexsort((rows["start"], rows["globalTid"]))
    number, time, tid = (rows[name][order] for name in _AT)
    pauses = np.diff(time)[np.diff(tid) == 0]
    if not len(pauses):
        return None
    inside = np.zeros(len(time), bool)
    for each in np.unique(thread).tolist():
        at = np.flatnonzero(tid == each)
        begin, stop = np.sort(start[thread == each]), np.sort(end[thread == each])
        inside[at] = np.searchsorted(begin, time[at], "right") > np.searchsorted(stop, time[at], "right")
    sample, depth, function, functions = _frames(source, number[inside])
    period = int(time.min()), int(time.max())
    return CpuSamples(
        int(np.quantile(pauses, _USUAL)), period, tid[inside], time[inside], sample, depth, function, functions
    )


def _frames(source: Source, samples: Ints) -> tuple[Ints, Ints, Ints, list[tuple[str, str]]]:
    """The frames of some samples (index of the sample, depth, code of the function), and the functions."""
    order = np.argsort(samples, kind="stable")
    known = samples[order]
    grown = Growing(sample="i8", symbol="i8", module="i8", depth="i8")
    for block in read_blocks(source, _FRAMES, _OF) if len(known) else ():
        number = column(block, "id")
        at = np.minimum(np.searchsorted(known, number), len(known) - 1)
        mine = known[at] == number
        symbol, module, depth = (column(block, name)[mine] for name in _OF[1:])
        grown.add(int(mine.sum()), sample=order[at[mine]], symbol=symbol, module=module, depth=depth)
    rows = grown.take_rest()
    first, code = distinct(rows["symbol"], rows["module"])
    of = [rows[name][first].tolist() for name in ("symbol", "module")]
    strings = source.strings(sorted({*of[0], *of[1]}))
    names = [(strings.get(symbol, ""), strings.get(module, "")) for symbol, module in zip(*of, strict=True)]
    return rows["sample"], rows["depth"], code, names
