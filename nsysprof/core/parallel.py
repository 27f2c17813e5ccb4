"""Work shared by several threads: numpy releases the interpreter while it computes."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8  # more gain little and take memory
MIN_ROWS = 3_000_000  # of GPU ops: below, threads that do different things gain little, and they take memory


def cores() -> int:
    """Count the cores that this process may use, `MAX_THREADS` at most."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, MAX_THREADS)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield the results for all items in order; the threads compute up to one item each ahead of the reader.

    With one thread nothing is computed ahead, and the reader's own thread does it.
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


def side_by_side(*tasks: Callable[[], Any], apart: bool) -> list[Any]:
    """Return what tasks that do not need each other return, in order; ``apart``: each has a thread of its own."""
    return list(map_in_order(lambda task: task(), tasks, len(tasks) if apart and cores() > 1 else 1))
