"""All kinds of findings that pieces of waits can be of."""

from __future__ import annotations

from nsysprof.diagnosis.calls import (
    ALLOCATION,
    GRAPHS,
    HOST_PAGES,
    LOCKED,
    MESSAGES,
    PINNING,
    RECOMPILING,
    SET_UP,
    SLEEPING,
    WAITING_FOR_INPUT,
)
from nsysprof.diagnosis.copies import EXPOSED, LAYOUT, MEMSETS, PAGEABLE, SMALL_COPIES
from nsysprof.diagnosis.cpu_code import COMPILING, CPU_CODE, LOADER
from nsysprof.diagnosis.gpu_waits import (
    EXPOSED_COMMUNICATION,
    LATE_RANK,
    LATENCY,
    NOT_RECORDED,
    PROFILER,
    STREAMS,
)
from nsysprof.diagnosis.kinds import Kind
from nsysprof.diagnosis.launch_bound import LAUNCH_BOUND, OPTIMIZER
from nsysprof.diagnosis.synchronization import SYNCHRONIZATION

KINDS: tuple[Kind, ...] = (
    *(CPU_CODE, LOADER, COMPILING, LAUNCH_BOUND, OPTIMIZER, SYNCHRONIZATION),
    *(PAGEABLE, SMALL_COPIES, EXPOSED, LAYOUT, MEMSETS),
    *(ALLOCATION, PINNING, SLEEPING, WAITING_FOR_INPUT, LOCKED, MESSAGES, HOST_PAGES, GRAPHS, RECOMPILING),
    *(LATE_RANK, EXPOSED_COMMUNICATION, STREAMS, LATENCY, NOT_RECORDED, PROFILER),
    *SET_UP,
)
