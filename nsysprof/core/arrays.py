"""Short names for types of numpy arrays, and slices of long ones."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Ints32: TypeAlias = NDArray[np.int32]
AnyInts: TypeAlias = NDArray[np.integer]
Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Index: TypeAlias = NDArray[np.intp]  # row numbers
Array: TypeAlias = NDArray[Any]
Line: TypeAlias = tuple[Ints, Ints]  # starts and ends of disjoint, sorted intervals

ROWS = 1 << 16  # at a time where temporaries would be large: they stay in the cache


def slices(count: int, size: int = 0) -> Iterator[slice]:
    """Yield slices of at most ``size`` rows (`ROWS` by default) that cover ``count`` rows."""
    size = size or ROWS
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
