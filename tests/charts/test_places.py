"""Free places for names on a chart."""

import numpy as np
import pytest

from nsysprof.charts.places import Box, Places, free_place


@pytest.mark.parametrize("count", [3, 30, 150])
def test_places_are_free_and_near(count: int) -> None:
    """Whatever is taken, no two names meet, none leaves the area, and what has no place gets none."""
    centres = np.random.default_rng(5).random((count, 2)) * [6, 4]
    marks = [Box(x - 0.1, x + 0.1, y - 0.1, y + 0.1) for x, y in centres.tolist()]
    places = Places(6.0, 4.0)
    places.mark(*marks)
    put: list[Box] = []
    for mark in marks:
        place = free_place(places, mark, 1.0, 0.15)
        if place:
            put.append(place[0])
            places.put(*place)
    assert put if count < 150 else len(put) < count
    left, right, low, high = np.array([(box.left, box.right, box.low, box.high) for box in (*put, *marks)]).T
    meet = (left[:, None] < right) & (left < right[:, None]) & (low[:, None] < high) & (low < high[:, None])
    np.fill_diagonal(meet, val=False)
    assert not meet[: len(put)].any()
    assert all(box.left >= 0 and box.right <= 6 and box.low >= 0 and box.high <= 4 for box in put)
