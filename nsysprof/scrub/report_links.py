"""Which processes a report is about, and which of its strings are in use for what."""

from __future__ import annotations

import re
from typing import Any

from nsysprof.scrub.report_copy import ReportCopy, quoted

__all__ = ["profiled_processes", "string_references"]

# Tables that only processes under the profiler fill; samples and context switches may be everybody's.
_PROFILED = re.compile(
    r"NVTX_|CUPTI_|CUDA_|CUDNN|CUBLAS|OSRT_|MPI_|UCP_|OPENMP|OPENACC|OPENGL|OPENSHMEM|NCCL|VULKAN|DX1|D3D|NVVIDEO"
)
# What a column is called that refers to StringIds, where its declaration does not say so; and the words that name
# no work.
_NO_NAME = {"module", "file", "filename", "content", "path"}
_REFERS = {"name", "text", "symbol", "string", "message", "description", "instruction", "label", *_NO_NAME}
_DECLARED = re.compile(r'^\s*"?(\w+)"?\s[^\n]*REFERENCES StringIds', re.MULTILINE)
THREAD = (1 << 24) - 1  # of a globalTid; the rest is the globalPid


def profiled_processes(copy: ReportCopy) -> list[int]:
    """The globalPid of each process that recorded something of what programs do."""
    found: set[Any] = set()
    for table, about in copy.tables.items():
        if _PROFILED.match(table):
            for column in {"globalTid", "globalPid"}.intersection(about.columns):
                found.update(copy.rows(f"SELECT DISTINCT {column} & ~{THREAD} FROM {quoted(table)}"))
    return sorted(pid for (pid,) in found if pid is not None)


def string_references(copy: ReportCopy) -> tuple[set[Any], set[Any]]:
    """The ids of strings that name work (kernels, ranges, calls, functions), and of all others that are in use."""
    names: set[Any] = set()
    others: set[Any] = set()
    for table, about in copy.tables.items():
        declared = set(_DECLARED.findall(about.sql))
        last = {column: _last_word(column) for column in about.numbers if table != "StringIds"}
        refers = [column for column, word in last.items() if column in declared or word in _REFERS]
        ids = (
            copy.rows(f"SELECT DISTINCT {', '.join(map(quoted, refers))} FROM {quoted(table)}")
            if refers
            else []
        )
        for column, mine in zip(refers, zip(*ids, strict=True), strict=False):
            work = (_PROFILED.match(table) or last[column] == "symbol") and last[column] not in _NO_NAME
            (names if work else others).update(id for id in set(mine) if isinstance(id, int))
    return names, others


def _last_word(column: str) -> str:
    """What a column holds: `name` of `endNameId` and of `name_id`, `context` of `contextId`."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", column)]
    return next((word for word in reversed(words) if word not in ("id", "ids")), "")
