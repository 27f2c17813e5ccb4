"""Work shared by several cores: tasks run in forked processes or, if a fork is impossible or unsafe, in threads."""

import mmap
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.core.arrays import Array
from nsysprof.errors import NsysprofError

MAX_CORES = 16  # more gain little and take memory
MIN_ROWS = 3_000_000  # of GPU ops: below, sharing gains little, and takes memory
_OURS = ("Timer", "_RefreshThread")  # threads of the progress bar, which hold no lock that a task takes
_MIN_BYTES = 1 << 16  # of an array that is not copied through a pipe
_tasks: Sequence[Callable[[], Any]] = ()  # those that this process and its forks share now
_known: dict[int, Any] = {}


def cores() -> int:
    """Return the number of cores that this process may use, at most `MAX_CORES`."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, MAX_CORES)


def side_by_side(*tasks: Callable[[], Any], apart: bool, keep: Iterable[Any] = ()) -> list[Any]:
    """Return the results of independent tasks in order; with ``apart``, the tasks run in parallel.

    The first task runs in this process, others in forks: changes to existing objects are lost there. Results are
    copies, but refer to the objects ``keep`` themselves. List long tasks first. Inside such a task, tasks run in
    threads. Raises the error of the first task that failed, or `NsysprofError` if a fork was killed.
    """
    global _tasks, _known  # which forks inherit: nothing is sent
    if not apart:
        return [task() for task in tasks]
    if _tasks or cores() == 1 or len(tasks) < 2 or not _may_fork():
        return in_threads(*tasks)
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor  # noqa: PLC0415 (20 ms)
    from multiprocessing import get_context  # noqa: PLC0415

    _tasks, _known = tasks, {id(each): each for each in keep}
    pool = ProcessPoolExecutor(min(cores(), len(tasks) - 1), get_context("fork"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: see `_may_fork`
            others = [pool.submit(_run, number) for number in range(1, len(tasks))]
        return [tasks[0](), *(_Unpickler(BytesIO(each.result())).load() for each in others)]
    except BrokenProcessPool:
        raise NsysprofError("a worker process was killed", "lower --memory-limit if memory is short") from None
    finally:
        _tasks, _known = (), {}
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown()


def in_threads(*tasks: Callable[[], Any]) -> list[Any]:
    """Return the results of independent tasks in order; the tasks take turns except while numpy computes."""
    if cores() == 1 or len(tasks) < 2:
        return [task() for task in tasks]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (20 ms)

    with ThreadPoolExecutor(min(cores(), len(tasks))) as pool:
        return list(pool.map(lambda task: task(), tasks))


def sort(values: Array) -> None:
    """Sort in place; threads sort parts of a long column, which timsort then merges."""
    if (count := cores() if len(values) >= MIN_ROWS else 1) > 1:
        in_threads(*(part.sort for part in np.array_split(values, count)))
    values.sort(kind="stable" if count > 1 else None)


def _may_fork() -> bool:
    """Whether a fork is safe: another thread may hold a lock, which would never be released in the fork."""
    from multiprocessing import current_process  # noqa: PLC0415

    others = (each for each in threading.enumerate() if each is not threading.current_thread())
    safe = all(type(each).__name__ in _OURS for each in others)
    return safe and hasattr(os, "memfd_create") and not current_process().daemon


def _run(number: int) -> bytes:
    """Run a task in a fork, and pickle its result."""
    text = BytesIO()
    _Pickler(text, 5).dump(_tasks[number]())
    return text.getvalue()


class _Pickler(pickle.Pickler):
    def persistent_id(self, each: Any) -> int | None:
        return id(each) if id(each) in _known else None

    def reducer_override(self, each: Any) -> Any:
        if not isinstance(each, np.ndarray) or each.nbytes < _MIN_BYTES:
            return NotImplemented
        try:
            file = os.memfd_create("nsysprof")  # open until the fork ends
        except OSError:  # too many open files: through the pipe
            return NotImplemented
        with open(file, "wb", closefd=False) as memory:
            memory.write(np.ascontiguousarray(each).data)
        return _mapped, (f"/proc/{os.getpid()}/fd/{file}", each.dtype, each.shape)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, number: int) -> Any:
        return _known[number]


def _mapped(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The array that a fork wrote, in the same memory."""
    with Path(path).open("r+b") as memory:
        return np.frombuffer(mmap.mmap(memory.fileno(), 0), dtype).reshape(shape)
