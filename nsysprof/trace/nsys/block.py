"""What both sources of a report hand out: some rows of a table, column by column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """Consecutive rows of one table.

    `values` maps an INTEGER column to int64 (0 where NULL) and a TEXT column to int32 codes into the
    `Words` of the call (-1 where NULL). `nulls` maps an INTEGER column to a bool mask; a column without
    a NULL in these rows is not in it.
    """

    rows: int
    values: dict[str, np.ndarray]
    nulls: dict[str, np.ndarray]
