"""Short names for types of numpy arrays."""

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
