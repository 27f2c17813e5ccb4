"""Work shared by several cores: results in order, errors where they belong, and no process left."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from nsysprof.core.parallel import MAX_CORES, cores, in_threads, side_by_side, sort
from nsysprof.errors import NsysprofError

forks = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="work is shared by threads here")


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and forks though the test runner has threads."""
    monkeypatch.setattr("nsysprof.core.parallel.cores", lambda: 4)
    monkeypatch.setattr("nsysprof.core.parallel._may_fork", lambda: hasattr(os, "memfd_create"))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
def test_results_come_in_the_order_of_the_tasks(count: int, apart: bool) -> None:
    """Wherever each of them is computed; and no process is left."""
    tasks = [partial(pow, number, 2) for number in range(count)]
    assert side_by_side(*tasks, apart=apart) == in_threads(*tasks) == [number**2 for number in range(count)]
    assert not multiprocessing.active_children()


@forks
def test_tasks_run_in_processes_of_their_own() -> None:
    """The first one here; those inside a task run in threads."""

    def inner() -> tuple[int, list[int]]:
        return os.getpid(), side_by_side(os.getpid, os.getpid, apart=True)

    here, *others = side_by_side(*[inner] * 4, apart=True)
    assert here == (os.getpid(), [os.getpid()] * 2)
    assert all(pid != os.getpid() and inside == [pid, pid] for pid, inside in others)


@forks
def test_results_refer_to_what_was_there() -> None:
    """Arrays that a task makes come back writable, and the objects to keep as themselves."""
    old, words = np.arange(3), ["a", "b"]

    def make() -> dict[str, Any]:
        many = np.arange(100_000).reshape(2, -1) * 2
        return {"old": old, "words": words, "many": many.T, "none": np.empty(0, bool), "text": "ü"}

    _, there = side_by_side(make, make, apart=True, keep=(old, words))
    assert there["old"] is old
    assert there["words"] is words
    assert np.array_equal(there["many"], make()["many"])
    assert there["text"] == "ü"
    assert there["none"].dtype == bool
    assert len(there["none"]) == 0
    there["many"][0] = 7


@forks
def test_arrays_come_back_where_too_many_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the pipe, as other objects do."""

    def full(_: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", full)
    _, there = side_by_side(int, lambda: np.arange(100_000), apart=True)
    assert (there == np.arange(100_000)).all()


@pytest.mark.parametrize("apart", [False, True])
def test_the_first_error_is_raised(apart: bool) -> None:
    """Of the tasks in their order, whichever fails first, with its hint; and no process is left."""

    def fails(number: int) -> int:
        if number % 3 == 2:
            raise NsysprofError(f"task {number}", "a hint")
        return number

    with pytest.raises(NsysprofError, match="task 2\na hint"):
        side_by_side(*(partial(fails, number) for number in range(9)), apart=apart)
    assert not multiprocessing.active_children()
    assert side_by_side(os.getpid, int, apart=True) == [os.getpid(), 0]


@forks
@pytest.mark.parametrize("first", [int, partial(time.sleep, 0.5)])
def test_a_killed_fork_is_an_error(first: Callable[[], Any]) -> None:
    """As where the system runs out of memory: no answer, and no hang."""
    with pytest.raises(NsysprofError, match="a worker process was killed"):
        side_by_side(first, lambda: os.kill(os.getpid(), signal.SIGKILL), int, apart=True)
    assert not multiprocessing.active_children()


@forks
def test_an_interrupt_ends_all_forks() -> None:
    """Ctrl-C, wherever they are."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(interrupted, *[signal.pause] * 3, apart=True)
    assert not multiprocessing.active_children()


def test_threads_share_the_work_where_a_fork_is_unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the tasks run in this process."""
    monkeypatch.setattr("nsysprof.core.parallel._may_fork", lambda: False)
    assert side_by_side(*[os.getpid] * 6, apart=True) == [os.getpid()] * 6


def test_a_fork_is_unsafe_beside_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may hold a lock; threads of the progress bar do not count."""
    monkeypatch.undo()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    monkeypatch.setattr("nsysprof.core.parallel.cores", lambda: 2)
    assert side_by_side(os.getpid, os.getpid, apart=True) == [os.getpid()] * 2
    gate.set()
    thread.join()


@pytest.mark.parametrize("rows", [0, 1, 5, 1_000])
def test_a_column_that_threads_sort_is_sorted(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of rows for each thread."""
    monkeypatch.setattr("nsysprof.core.parallel.MIN_ROWS", 1)
    values = np.random.default_rng(rows).integers(-9, 9, rows)
    expected = sorted(values.tolist())
    sort(values)
    assert values.tolist() == expected


def test_cores_are_few() -> None:
    """As many as there are, up to the limit."""
    assert 1 <= cores() <= MAX_CORES
