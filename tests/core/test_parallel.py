"""Results of several threads: in order, few ahead of the reader, and errors where they belong."""

import threading

import pytest

from nsysprof.core.parallel import MAX_THREADS, cores, map_in_order


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    """Even where the first items take longest."""
    gate = threading.Event()

    def square(item: int) -> int:
        if threads > 1 and item == 0:
            gate.wait(60)
        elif item == 1:
            gate.set()
        return item * item

    assert list(map_in_order(square, range(20), threads)) == [item * item for item in range(20)]
    assert list(map_in_order(square, [], threads)) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_few_items_are_computed_ahead_of_the_reader(threads: int) -> None:
    """No more than one for each thread and the one that is read: what they hold is memory."""
    begun: list[int] = []

    def note(item: int) -> int:
        begun.append(item)
        return item

    found = map_in_order(note, range(100), threads)
    for number in range(10):
        assert next(found) == number
        assert len(begun) <= number + 1 + (threads if threads > 1 else 0)
    found.close()
    assert len(begun) <= 11 + threads


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_where_its_result_would(threads: int) -> None:
    """What was computed before it is read first, and no thread is left."""

    def fails(item: int) -> int:
        if item == 5:
            raise ValueError(item)
        return item

    found, before = map_in_order(fails, range(100), threads), threading.active_count()
    assert [next(found) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="5"):
        next(found)
    assert threading.active_count() == before


def test_threads_are_few() -> None:
    """As many as there are cores, up to the limit."""
    assert 1 <= cores() <= MAX_THREADS
