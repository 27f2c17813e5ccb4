"""The GPU waits while the host is in a call: allocation, pinning, a lock, input, and what a program does once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.kinds import (
    Group,
    Kind,
    Mask,
    Remedy,
    by_text,
    copied_op,
    dialect_text,
    in_calls,
    of_host,
    removal,
    text_of,
)
from nsysprof.waits.purposes import (
    ALLOCATE,
    COMPILE,
    CONTEXT,
    FREE,
    GRAPH_CAPTURE,
    GRAPH_LAUNCH,
    INPUT_OUTPUT,
    LOCK,
    MANAGED,
    MODULE,
    MPI,
    NCCL,
    PAGES,
    PIN,
    POLL,
    SLEEP,
)

_CALL = "the GPU waits for {cause}: {amount}"
_ONCE = "the GPU waits for {cause}: {amount}"


def _advise(texts: dict[str, str]) -> Callable[[Case, Group], Iterable[Remedy]]:
    def remedies(case: Case, group: Group) -> Iterable[Remedy]:
        yield removal(dialect_text(case, texts), group)

    return remedies


def _each_step(*purposes: int, long: bool = False) -> Callable[[Case], Mask]:
    def claims(case: Case) -> Mask:
        mine = in_calls(case, *purposes) & (copied_op(case) < 0)
        return mine & (case.pieces["ns"] >= case.long_code_ns) if long else mine

    return claims


def _once(*purposes: int) -> Callable[[Case], Mask]:
    def claims(case: Case) -> Mask:
        call = case.pieces["call"]
        mask: Mask = of_host(case) & case.once[call] & np.isin(case.purpose[call], purposes)
        return mask

    return claims


def _kind(
    name: str, claims: Callable[[Case], Mask], texts: dict[str, str] | None, *, once: bool = False
) -> Kind:
    if texts is None:
        return Kind(name, claims, by_text("culprit"), text_of("culprit"), _ONCE, set_up=once)
    return Kind(name, claims, by_text("culprit"), text_of("culprit"), _CALL, _advise(texts), set_up=once)


ALLOCATION = _kind(
    "allocation",
    _each_step(ALLOCATE, FREE, MANAGED),
    {
        "pytorch": "let PyTorch's allocator keep its memory: no empty_cache() in the loop, and room for the peak",
        "cuda": "allocate once before the loop and reuse the memory, or use cudaMallocAsync with a memory pool",
        "openacc": "keep the arrays on the GPU with an enter data region around the loop",
    },
)
PINNING = _kind(
    "pinning",
    _each_step(PIN),
    {
        "pytorch": "pin the memory once, before the loop, and reuse it",
        "cuda": "call cudaHostRegister or cudaMallocHost once, before the loop, and reuse the memory",
    },
)
SLEEPING = _kind("sleep", _each_step(SLEEP), {"cuda": "take the sleep out of the loop"})
WAITING_FOR_INPUT = _kind(
    "input-wait",
    _each_step(POLL, INPUT_OUTPUT, long=True),
    {
        "pytorch": "load ahead in more DataLoader workers: num_workers, prefetch_factor, persistent_workers=True",
        "cuda": "read the next input in another thread while the GPU works on this one",
    },
)
LOCKED = _kind("lock", _each_step(LOCK, long=True), None)
MESSAGES = _kind("mpi", _each_step(MPI, NCCL), None)
HOST_PAGES = _kind(
    "page-fault", _each_step(PAGES), {"cuda": "touch or pin the memory once, before the loop, and reuse it"}
)
GRAPHS = _kind("graph-launch", _each_step(GRAPH_LAUNCH), None)
RECOMPILING = _kind(
    "compilation",
    _each_step(COMPILE, MODULE, GRAPH_CAPTURE, CONTEXT),
    {
        "pytorch": "compile or capture once: keep shapes fixed, or mark the dimension as dynamic",
        "cuda": "compile, load or capture once, before the loop",
    },
)
SET_UP = (
    _kind("context", _once(CONTEXT), None, once=True),
    _kind("module-loading", _once(MODULE), None, once=True),
    _kind("compilation", _once(COMPILE, GRAPH_CAPTURE), None, once=True),
)
