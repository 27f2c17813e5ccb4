"""Kernels wait for pages of unified memory, or the GPU idles while the host fetches what it touches."""

from __future__ import annotations

from collections.abc import Iterator

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import BOUND, EVERY, Finding
from nsysprof.diagnosis.kinds import MIN_SHARE, dialect_text
from nsysprof.waits.paging import paging

_PREFETCH = {
    "cuda": "prefetch what kernels read with cudaMemPrefetchAsync, or allocate it with cudaMalloc",
    "openacc": "copy what kernels read with explicit data regions instead of managed memory",
}
_HOST = {
    "cuda": "prefetch what the host reads with cudaMemPrefetchAsync to the CPU, or copy it once",
    "openacc": "update what the host reads once, with explicit data regions instead of managed memory",
}


def page_findings(case: Case, place: Place) -> Iterator[Finding]:
    """Pages of unified memory that kernels or the host wait for: upper bounds, as kernels compute meanwhile."""
    windows = case.windows.take(place.windows)
    found = paging(case.facts.attribution.trace, place.gpu, windows.start, windows.end)
    if found is None:
        return
    for cause, waited, moved, verb, texts in (
        ("page faults on the GPU", found.kernel_ns, found.to_gpu_bytes, "kernels run during", _PREFETCH),
        ("page faults on the CPU", found.host_ns, found.to_host_bytes, "the GPU idles during", _HOST),
    ):
        lost = int(waited.sum())
        if lost < MIN_SHARE * place.total_ns:
            continue
        per = "" if place.path == WHOLE else " of each step"
        yield Finding(
            kind="page-fault",
            path=place.path,
            gpu=place.gpu,
            often=EVERY,
            steps=place.steps,
            text=f"{verb} {cause} for {format_ns(lost / place.steps)}{per} ({format_share(lost / place.total_ns)}),"
            f" which move {format_bytes(int(moved.sum()))} of unified memory",
            cause=cause,
            claim="counted",
            lost_ns=lost,
            remedy=dialect_text(case, texts),
            gain_ns=lost,
            gain_high_ns=lost,
            basis=BOUND,
            total_ns=place.total_ns,
        )
