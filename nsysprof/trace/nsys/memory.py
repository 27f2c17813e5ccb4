"""Read allocations and releases of GPU memory (``--cuda-memory-usage=true``) with their host calls, and page faults of
unified memory (``--cuda-um-cpu-page-faults``, ``…-gpu-…``).
"""

import numpy as np

from nsysprof.core.arrays import Array, Ints
from nsysprof.core.columns import Coder, distinct
from nsysprof.trace.details import KEPT, NO_FAULTS, NO_MEMORY, POOL, MemoryEvents, PageFaults
from nsysprof.trace.nsys.blocks import Source, column, read_blocks
from nsysprof.trace.nsys.host_calls import call_rows, calls_of, launch_keys
from nsysprof.trace.trace import MEMORY_KINDS

_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_NEEDS = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")
_OTHERS = ("correlationId", "localMemoryPoolAddress", "localMemoryPoolSize")
_ALLOCATION, _RELEASE = 0, 1
_POOL = len(MEMORY_KINDS)  # the kind of what pools hold


def read_memory(source: Source) -> MemoryEvents:
    """Read the `MemoryEvents` of a report; empty if memory was not recorded.

    A release frees the allocation at the same address, regardless of the stated size. An allocation at an address in
    use ends the earlier allocation, whose release was not recorded. Releases of memory that was allocated before the
    recording are left out.
    """
    blocks = [
        {name: column(block, name) for name in (*_NEEDS, *_OTHERS)}
        for block in read_blocks(source, _MEMORY, _NEEDS, _OTHERS)
    ]
    if not blocks:
        return NO_MEMORY
    row = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    known = np.isin(row["memoryOperationType"], (_ALLOCATION, _RELEASE))
    row = {name: values[known] for name, values in row.items()}
    changes = [np.concatenate(both) for both in zip(_of_addresses(row), _of_pools(row), strict=True)]
    at, kind, change, until = changes
    order = np.lexsort((kind, row["globalPid"][at], row["deviceId"][at], change, row["start"][at]))
    at, kind, change, until = (values[order] for values in changes)
    where = [row[name][at] for name in ("globalPid", "deviceId")]
    first, use = distinct(*(np.unique(values, return_inverse=True)[1] for values in where), kind)
    names = [*MEMORY_KINDS[:-1], "other", POOL]
    uses = zip(*(values[first].tolist() for values in (*where, kind)), strict=True)
    return MemoryEvents(
        uses=tuple((process, device, names[code]) for process, device, code in uses),
        use=use.astype(np.int32),
        time=row["start"][at],
        change=change,
        until=until,
        **{name: values[at] for name, values in _calls(source, row).items()},
    )


def _of_addresses(row: dict[str, Ints]) -> tuple[Array, ...]:
    """Rows that change the allocated memory, its kind, the change in bytes, and the time of release."""
    size = np.maximum(row["bytes"], 0)
    kind = np.where((row["memKind"] >= 0) & (row["memKind"] < _POOL), row["memKind"], _POOL - 1)
    place = (row["address"], row["deviceId"], row["globalPid"])
    # at one time what was released comes first
    order = np.lexsort((size, -row["memoryOperationType"], row["start"], *place))
    same = np.logical_and.reduce([values[order][1:] == values[order][:-1] for values in place])
    allocates = row["memoryOperationType"][order] == _ALLOCATION
    ends = np.flatnonzero(same & allocates[:-1])
    until = np.full(len(order), KEPT)
    until[ends] = row["start"][order][ends + 1]
    given, back, held = order[ends], order[ends + 1], order[allocates]
    return (
        np.concatenate([held, back]),
        np.concatenate([kind[held], kind[given]]),
        np.concatenate([size[held], -size[given]]),
        np.concatenate([until[allocates], row["start"][back]]),
    )


def _of_pools(row: dict[str, Ints]) -> tuple[Array, ...]:
    """The same for memory that pools reserved, used or not; the release time is the time of the change."""
    pooled = np.flatnonzero(row["localMemoryPoolAddress"])
    place = [row[name][pooled] for name in ("localMemoryPoolAddress", "deviceId", "globalPid")]
    size = np.maximum(row["localMemoryPoolSize"][pooled], 0)
    order = np.lexsort((size, row["start"][pooled], *place))
    size, same = size[order], np.logical_and.reduce([np.diff(values[order]) == 0 for values in place])
    change = np.diff(size, prepend=0)
    change[1:][~same] = size[1:][~same]
    some = change != 0
    at = pooled[order][some]
    return at, np.full(len(at), _POOL), change[some], row["start"][at]


def _calls(source: Source, row: dict[str, Ints]) -> dict[str, Ints]:
    """The thread, start and end of the host call of each row, 0 if unknown."""
    processes, threads = Coder(), Coder()
    process = processes.encode(row["globalPid"])
    keys = launch_keys(process, row["correlationId"])
    calls = calls_of(call_rows(source, keys, processes), source, keys, processes, threads)
    place = np.full(keys.count + 1, -1)
    place[calls.slot] = np.arange(len(calls.slot))
    call = place[keys.slots(process, row["correlationId"])]
    columns = {"thread": threads.values[calls.thread], "start": calls.start, "end": calls.end}
    return {name: np.append(values, 0)[call] for name, values in columns.items()}


_CPU_FAULTS, _GPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS", "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
# by the numbers of ENUM_CUDA_UNIF_MEM_ACCESS_TYPE
_ACCESS = ("", "read", "write", "atomic", "prefetch")


def read_page_faults(source: Source) -> PageFaults:
    """The `PageFaults` of a report."""
    parts: list[list[Ints]] = []
    others = ("end", "globalPid", "CpuInstruction", "deviceId", "numberOfPageFaults", "faultAccessType")
    for table, why in ((_CPU_FAULTS, "CpuInstruction"), (_GPU_FAULTS, "faultAccessType")):
        for block in read_blocks(source, table, ("start",), others):
            start, code = column(block, "start"), column(block, why, missing=-1)
            if table == _GPU_FAULTS:
                device, cause = (column(block, "deviceId"), np.where(code < len(_ACCESS), np.maximum(code, 0), 0))
            else:
                device, cause = np.full(block.rows, -1), np.where(code >= 0, code + len(_ACCESS), 0)
            count = np.maximum(column(block, "numberOfPageFaults", missing=1), 0)
            end = np.maximum(column(block, "end"), start)
            parts.append([start, end, column(block, "globalPid"), device, count, cause])
    if not parts:
        return NO_FAULTS
    start, end, process, device, count, known = (np.concatenate(each) for each in zip(*parts, strict=True))
    numbers, cause = np.unique(known, return_inverse=True)
    texts = source.strings([number - len(_ACCESS) for number in numbers.tolist() if number >= len(_ACCESS)])
    causes = dict(enumerate(_ACCESS)) | {number + len(_ACCESS): text for number, text in texts.items()}
    order = np.lexsort((cause, count, end, device, process, start))
    return PageFaults(
        *(start[order], end[order], process[order], device[order], count[order]),
        cause[order].astype(np.int32),
        tuple(causes.get(number, "") for number in numbers.tolist()),
        (bool(source.rows(_CPU_FAULTS)), bool(source.rows(_GPU_FAULTS))),
    )
