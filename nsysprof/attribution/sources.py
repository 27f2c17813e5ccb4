"""Which ranges count: those of NVTX, of MPI and OpenACC, and iterations found in the launches (`--ranges`)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from nsysprof.attribution.iterations import find_iterations
from nsysprof.core.text import read_list
from nsysprof.trace.trace import PUSH_POP, START_END, Ranges, Trace, with_ranges

AUTO = "auto"
SOURCES = ("nvtx", "mpi", "openacc", "found")
_RECORDED = ("mpi", "openacc")


def read_sources(text: str) -> frozenset[str] | None:
    """The sources that ``--ranges nvtx,found`` names; None for ``auto``. `NsysprofError` for anything else."""
    names = read_list(text, "ranges", SOURCES, AUTO)
    return None if names is None else frozenset(names)


def annotated(trace: Trace) -> bool:
    """Whether any of its ranges are NVTX's."""
    return bool(np.isin(trace.ranges.kind, (PUSH_POP, START_END)).any())


def choose_ranges(trace: Trace, text: str) -> Trace:
    """The trace of a report, which must be open, with the ranges that ``--ranges`` asks for.

    ``auto`` are the NVTX ranges alone where there are any, and all others where there are none.
    """
    sources = read_sources(text)
    if sources is None:
        if len(trace.ranges):
            return trace
        sources = frozenset(SOURCES)
    if "nvtx" not in sources:
        none = {field.name: getattr(trace.ranges, field.name)[:0] for field in fields(Ranges)}
        trace = replace(trace, ranges=Ranges(**none), range_names=[], never_popped=0)
    if asked := sources.intersection(_RECORDED):
        trace = with_ranges(trace, trace.report.reader.other_ranges(trace, asked))
    return with_ranges(trace, find_iterations(trace)) if "found" in sources else trace
