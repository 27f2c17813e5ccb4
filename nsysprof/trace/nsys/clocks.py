"""Find GPUs whose clock differs from the clock of the CPU by milliseconds or seconds, and move their times."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints, Ints32, slices
from nsysprof.core.units import format_ns
from nsysprof.trace import trace
from nsysprof.trace.nsys.gpu_work import Work

_OFF_NS, _OUTLIERS = 20_000, 200  # clocks are right to a few us, or off by ms; of so many ops one is an outlier
_LATE_NS = 1_000_000  # a copy ends by so much after the call that waited for it
_PAGEABLE = trace.MEMORY_KINDS.index("pageable")


def on_one_clock(work: Work, called: Ints, returned: Ints, launch: Ints32) -> Work:
    """Return the GPU work with corrected times for devices whose clock is off, and a warning for each of these devices.

    ``called`` and ``returned`` are the start and end times of the launches; ``launch`` is the index of each op's launch
    (-1 for none).
    """
    device = np.array([device for device, *_ in work.streams], np.int64)
    moved = {**dict(_early(work, called, launch, device)), **dict(_late(work, called, returned, launch, device))}
    said = []
    for code, off in sorted(moved.items()):
        mine = device.take(work.stream) == code
        work.start[mine] += off
        work.end[mine] += off
        ahead = format_ns(abs(off))
        if off > 0:
            how, why = f"{ahead} too early", f"before their launches; nsysprof moves all their times {ahead} later"
        else:
            why = f"after the calls that waited for them; nsysprof moves all their times {ahead} earlier"
            how = f"{ahead} too late"
        said.append(f"GPU operations of CUDA device {work.devices[code][1]} were recorded about {how}, {why}")
    return replace(work, warnings=(*work.warnings, *said)) if said else work


def _early(work: Work, called: Ints, launch: Ints32, device: Ints) -> Iterator[tuple[int, int]]:
    """Yield devices whose ops mostly start before their launches, and the ns by which to move the ops: afterwards, at
    most one op of `_OUTLIERS` starts before its launch.
    """
    early = [np.empty(0, np.intp)]
    for part in slices(len(launch) if len(called) else 0):
        ahead = called.take(launch[part]) - work.start[part]
        early.append(part.start + np.flatnonzero((ahead > _OFF_NS) & (launch[part] >= 0)))
    rows = np.concatenate(early)
    if not len(rows):
        return
    known = np.bincount(device.take(work.stream)[launch >= 0], minlength=len(work.devices))
    often = np.bincount(device.take(work.stream[rows]), minlength=len(known))
    for code in np.flatnonzero(2 * often > known).tolist():
        mine = np.flatnonzero((device.take(work.stream) == code) & (launch >= 0))
        ahead = np.sort(called[launch[mine]] - work.start[mine])
        off = int(ahead[-1 - max(len(ahead) // _OUTLIERS, len(ahead) > 2)])
        if 2 * int(ahead[len(ahead) // 2]) >= off:  # else a clock that drifts: no one amount is right
            yield code, off


def _late(work: Work, called: Ints, returned: Ints, launch: Ints32, device: Ints) -> Iterator[tuple[int, int]]:
    """Yield devices whose copies to pageable memory all end about equally long after the calls that wait for them; and
    the (negative) ns by which to move the ops, so that the copies end with their calls. Afterwards, no op may start
    before its launch; only ops other than copies can show this, so devices without such ops are left out.
    """
    rows = np.flatnonzero(np.isin(work.kind, trace.COPYING))
    rows = rows[(work.copies.destination == _PAGEABLE) & (work.kind[rows] == trace.MEMCPY) & (launch[rows] >= 0)]
    behind = work.end[rows] - returned[launch[rows]]
    of: AnyInts = device.take(work.stream[rows])
    for code in np.unique(of[behind > _LATE_NS]).tolist():
        least, off = int(behind[of == code].min()), int(behind[of == code].max())
        if least <= 0.9 * off:
            continue
        mine = np.flatnonzero((device.take(work.stream) == code) & (launch >= 0))
        others = len(mine) > np.count_nonzero(of == code)  # else nothing shows when ops start
        if others and (work.start[mine] - called[launch[mine]]).min() >= off - _OFF_NS:
            yield code, -off
