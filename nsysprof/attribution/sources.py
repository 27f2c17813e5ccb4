"""Choose the kinds of ranges to use (`--ranges`): NVTX or annotations, MPI, OpenACC, PyTorch operators and modules,
detected iterations.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from nsysprof.attribution.iterations import find_iterations
from nsysprof.core.text import read_list
from nsysprof.trace.trace import MODULE, OPERATOR, PUSH_POP, START_END, Trace
from nsysprof.trace.variants import with_ranges, without_ranges

AUTO = "auto"
SOURCES = ("nvtx", "mpi", "openacc", "ops", "modules", "found")
_RECORDED = ("mpi", "openacc", "ops", "modules")
# which stand inside of annotations, and are asked for beside these
_ADDED = {"ops": OPERATOR, "modules": MODULE}
_LACKING = {
    "ops": "the trace has no operators: record with torch.profiler and activities=[ProfilerActivity.CPU, ...]",
    "modules": "the trace has no modules: record with torch.profiler, with_stack=True and with_modules=True",
}


def read_sources(text: str) -> frozenset[str] | None:
    """Parse the sources in ``--ranges nvtx,found`` (None for ``auto``); raises `NsysprofError` for any other text."""
    names = read_list(text, "ranges", SOURCES, AUTO)
    return None if names is None else frozenset(names)


def annotated(trace: Trace) -> bool:
    """Return whether the trace has NVTX ranges or annotations."""
    return bool(np.isin(trace.ranges.kind, (PUSH_POP, START_END)).any())


def choose_ranges(trace: Trace, text: str) -> Trace:
    """Return the trace of a report, which must be open, with the ranges that ``--ranges`` requests.

    ``auto`` means NVTX ranges or annotations if there are any, otherwise all other kinds (PyTorch operators only if
    there are no modules).
    """
    sources = read_sources(text)
    if sources is None:
        if len(trace.ranges):
            return trace
        trace = _with_recorded(trace, {"mpi", "openacc", "modules"})
        trace = trace if len(trace.ranges) else _with_recorded(trace, {"ops"})
        return with_ranges(trace, find_iterations(trace))
    if "nvtx" not in sources and not sources & _ADDED.keys():
        trace = without_ranges(trace)
    if asked := sources.intersection(_RECORDED):
        trace = _with_recorded(trace, asked)
    lacking = [
        f"--ranges {each}: {_LACKING[each]}"
        for each in sorted(sources & _ADDED.keys())
        if not (trace.ranges.kind == _ADDED[each]).any()
    ]
    trace = replace(trace, warnings=(*trace.warnings, *lacking))
    return with_ranges(trace, find_iterations(trace)) if "found" in sources else trace


def _with_recorded(trace: Trace, sources: Collection[str]) -> Trace:
    return with_ranges(trace, trace.report.reader.other_ranges(trace, sources))
