"""Find kernels that wait for pages of unified memory, and GPUs that idle while the host fetches pages."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.intervals import covered
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import EVERY, ONCE, UNTRIED, Finding
from nsysprof.diagnosis.kinds import HAS, MIN_SHARE, counted, dialect_text, each_step, often
from nsysprof.trace.trace import MIGRATION
from nsysprof.waits.paging import FAULT_NS, paging

_PREFETCH = {
    "cuda": "prefetch the kernels' data with cudaMemPrefetchAsync, or allocate it with cudaMalloc",
    "openacc": "copy the kernels' data with explicit data regions instead of managed memory",
}
_HOST = {
    "cuda": "prefetch the host's data to the CPU with cudaMemPrefetchAsync, or copy it once",
    "openacc": "update the host's data once, with explicit data regions instead of managed memory",
}


_FIT = {
    "pytorch": "use less GPU memory (a smaller batch, half precision), so that all of it fits",
    "cuda": "use less GPU memory, or work on parts of the data that fit: prefetching does not help if memory is full",
}
_EVICTS = 0.25  # of the bytes that move to the GPU: with so many evicted, its memory is full
_RECORD = "; record the waits with --cuda-um-gpu-page-faults=true --cuda-um-cpu-page-faults=true"
_FAULTS = "page faults on the GPU"
SOME_FAULTS, MANY_FAULTS = 0.05, 0.5  # of the time of kernels: from here on to tell, and to advise nothing else


def fault_share(case: Case) -> float:
    """Return the share of kernel time that may be page faults, estimated from recorded migrations (nsys records them by
    default).

    The share is 0.0 for programs without migrations to the GPU, with prefetching, or with recorded GPU page faults.
    """
    trace = case.facts.attribution.trace
    moves = trace.ops.kind == MIGRATION
    if not moves.any() or trace.page_faults.recorded[1] or any("MemPrefetch" in name for name in _called(case)):
        return 0.0
    to_gpu = np.array(["HtoD" in name for name in trace.op_names], bool).take(trace.ops.name)
    busy = sum(int((line.compute[1] - line.compute[0]).sum()) for line in case.lines.values())
    return min(int((moves & to_gpu).sum()) * FAULT_NS / max(busy, 1), 1.0)


def _called(case: Case) -> list[str]:
    """The names of all calls that were made."""
    calls = case.facts.activity.calls
    return [calls.names[code] for code in np.unique(calls.name).tolist()]


def known_fault_share(case: Case, place: Place) -> float:
    """Return the share of step time in which kernels run while pages migrate to the GPU; if this share is tiny, return
    `fault_share`.
    """
    windows = case.windows.take(place.windows)
    found = paging(case.facts.attribution.trace, place.gpu, windows.start, windows.end)
    known = 0.0 if found is None else int(found.kernel_ns.sum()) / place.total_ns
    return known if known >= MIN_SHARE else fault_share(case)


def without_faults(case: Case, place: Place) -> tuple[Case, Place]:
    """If only some steps wait for pages, return a case (and its place) without these steps; its kernel times contain
    hardly any waits.
    """
    windows = case.windows.take(place.windows)
    found = paging(case.facts.attribution.trace, place.gpu, windows.start, windows.end)
    if found is None or int(found.kernel_ns.sum()) < MIN_SHARE * place.total_ns or often(place, found.wait_ns) == EVERY:
        return case, place
    rows = case.rows[place.windows[found.wait_ns < HAS * found.wait_ns.max()]]
    part = replace(case, rows=rows, launched=case.launches, _made={})
    return part, part.places[0]


def _unknown_faults(case: Case, place: Place) -> Iterator[Finding]:
    """Kernels that may wait for pages, of which the recording does not say for how long."""
    windows = case.windows.take(place.windows)
    lost = int(covered(case.lines[place.gpu].compute, windows.start, windows.end).sum())
    if lost < MIN_SHARE * place.total_ns:
        return
    text = f"kernels run for {each_step(place, lost)}, and those on managed memory may wait for page migrations"
    remedy = f"{_RECORD.removeprefix('; ')}; if kernels wait, {dialect_text(case, _PREFETCH)}"
    found = counted(place, "page-fault", _FAULTS, text, remedy, lost, 0)
    yield replace(found, basis=UNTRIED)


def page_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Yield findings about waits for unified memory pages; gains are upper bounds, because kernels compute during these
    waits.
    """
    windows = case.windows.take(place.windows)
    found = paging(case.facts.attribution.trace, place.gpu, windows.start, windows.end)
    known = 0 if found is None else int(found.kernel_ns.sum())
    some = fault_share(case) >= SOME_FAULTS
    if some and known < MIN_SHARE * place.total_ns:
        yield from _unknown_faults(case, place)
    if found is None:
        return
    for cause, least, waited, moved, verb, texts in (
        (_FAULTS, known, found.wait_ns, found.to_gpu_bytes, "kernels wait up to {} for", _PREFETCH),
        (
            "page faults on the CPU",
            int(found.host_ns.sum()),
            found.host_ns,
            found.to_host_bytes,
            "the GPU idles for {} during",
            _HOST,
        ),
    ):
        if least < MIN_SHARE * place.total_ns:
            continue
        lost = int(waited.sum())
        size, which = format_bytes(int(moved.sum())), often(place, waited)
        when = " once" if which == ONCE else f" in {which}"
        amount = each_step(place, lost) if which == EVERY else format_ns(lost) + when
        in_all = " in all steps" * (place.path != WHOLE)
        text = f"{verb.format(amount)} {cause} ({size} of unified memory moved{in_all})"
        evicted = int(found.evicted_bytes.sum())
        if cause == _FAULTS and evicted > 0 and evicted >= _EVICTS * int(moved.sum()):
            evictions = f"{format_bytes(evicted)} evicted because GPU memory was full"
            text = text.replace(f" moved{in_all})", f" moved to the GPU{in_all}, {evictions})")
            texts = _FIT
        text += _RECORD * (some and cause == _FAULTS)
        yield replace(counted(place, "page-fault", cause, text, dialect_text(case, texts), lost, lost), often=which)
