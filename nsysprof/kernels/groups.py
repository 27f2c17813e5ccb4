"""What charts tell ops apart by: kernel families; or names, where the families do not know most of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.kernels.classify import FAMILIES, Kinds, short_name
from nsysprof.trace.trace import Trace

# Families of ops that are no kernels: groups of their own whatever the kernels are told apart by.
NO_KERNELS = ("memcpy", "memset", "migration", "graph")
OTHER = "other"
LAST = (OTHER, *NO_KERNELS)  # what stands behind the names of kernels
MOST_NAMES = 8
_NAMED = 0.95  # of the kernels' time: what names beyond it share is one group
_LABEL = 40
_CHUNK = 1 << 20  # ops at a time where temporaries would be large


@dataclass(frozen=True)
class OpGroups:
    """The groups: their ``labels``, and ``of`` uint8, the group of each op name of the report.

    ``by_name``: the first are names of kernels, then come all other kernels and the families of `NO_KERNELS`; otherwise
    they are `FAMILIES`.
    """

    labels: tuple[str, ...]
    of: NDArray[np.uint8]
    by_name: bool

    def place(self, family: str) -> int:
        """The group of one of the families in `LAST`, which are groups in either case."""
        return len(self.labels) - len(LAST) + LAST.index(family) if self.by_name else FAMILIES.index(family)


def op_groups(trace: Trace, kinds: Kinds) -> OpGroups:
    """The `OpGroups` of a report: by name where `OTHER` is more than half of the time of its kernels."""
    total = np.zeros(len(trace.op_names), np.int64)
    for first in range(0, len(trace.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        np.add.at(total, trace.ops.name[part], trace.ops.end[part] - trace.ops.start[part])
    kernel = np.array([family not in NO_KERNELS for family in kinds.family], bool)
    other = np.array([family == OTHER for family in kinds.family], bool)
    if 2 * int(total[other].sum()) <= int(total[kernel].sum()):
        of = [FAMILIES.index(family) for family in kinds.family]
        return OpGroups(FAMILIES, np.array(of, np.uint8), by_name=False)
    names = [short_name(name, _LABEL) for name in trace.op_names]
    times: dict[str, int] = {}
    for code in np.flatnonzero(kernel).tolist():
        times[names[code]] = times.get(names[code], 0) + int(total[code])
    shown: list[str] = []
    for name in sorted(times, key=lambda name: -times[name])[:MOST_NAMES]:
        if shown and sum(times[each] for each in shown) >= _NAMED * sum(times.values()):
            break
        shown.append(name)
    place = {name: number for number, name in enumerate(shown)}
    rest = {family: len(shown) + number for number, family in enumerate(LAST)}
    of = [
        place.get(name, rest[OTHER]) if is_kernel else rest[family]
        for name, is_kernel, family in zip(names, kernel.tolist(), kinds.family, strict=True)
    ]
    return OpGroups((*shown, "other kernels", *NO_KERNELS), np.array(of, np.uint8), by_name=True)
