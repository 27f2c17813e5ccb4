"""Kernels wait for pages of unified memory, or the GPU idles while the host fetches what it touches."""

from __future__ import annotations

from collections.abc import Iterator

from nsysprof.core.units import format_bytes
from nsysprof.diagnosis.case import Case, Place
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.kinds import MIN_SHARE, counted, dialect_text, each_step
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
        size = format_bytes(int(moved.sum()))
        text = f"{verb} {cause} for {each_step(place, lost)}, which move {size} of unified memory"
        yield counted(place, "page-fault", cause, text, dialect_text(case, texts), lost, lost)
