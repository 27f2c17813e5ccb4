"""Work that several threads share: numpy lets go of the interpreter while it computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 4  # more gain little and take memory


def cores() -> int:
    """The cores that this process may use, `MAX_THREADS` at most."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, MAX_THREADS)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """The results for all items, in their order, computed by that many threads up to one item each ahead of the reader.

    With one thread nothing is computed ahead, and in the reader's own.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    ahead: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
