"""Work shared by several threads: numpy releases the interpreter lock while it computes."""

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
    """Return the number of cores that this process may use, at most `MAX_THREADS`."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, MAX_THREADS)


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Generator[Result, None, None]:
    """Yield the results for all items in order. Each thread computes at most one item before the reader asks for it.

    With one thread, the reader's own thread computes each item on demand.
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
    """Return the results of independent tasks in order; with ``apart``, the tasks run in parallel threads."""
    return list(map_in_order(lambda task: task(), tasks, min(len(tasks), cores()) if apart else 1))
