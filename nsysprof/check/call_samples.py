"""What every call of every merged range did: a sample per instance, and how the samples of a range are spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.projection import Totals
from nsysprof.statistics.distributions import Floats

COUNTS = ("kernels", "launches", "memops", "graph_launches")
# What is nothing, and not short, where a range has no GPU work.
OF_GPU_WORK = ("span", "busy", "idle")


@dataclass(frozen=True)
class CallSamples:
    """A sample per range instance (call), sorted by the row that it belongs to, and in the order of their starts.

    ``row``: an index into the ``count`` rows, which ``keys`` finds by merged path and kind. ``columns``: by measure a
    float64 per call, NaN where it cannot be told: counts; ``span``, ``busy``, ``cpu`` in ns; ``idle`` as a part of 1.
    """

    keys: Mapping[tuple[str, str], int]
    row: NDArray[np.integer]
    count: int
    columns: Mapping[str, Floats]

    @cached_property
    def calls(self) -> NDArray[np.int64]:
        """How many calls each row has."""
        return np.bincount(self.row, minlength=self.count).astype(np.int64)

    def of(self, row: int, measure: str) -> Floats:
        """The samples of one row that can be told."""
        first, last = np.searchsorted(self.row, [row, row + 1]).tolist()
        values = self.columns[measure][first:last]
        told: Floats = values[~np.isnan(values)]
        return told


@dataclass(frozen=True)
class Spread:
    """Per row: of how many samples (``n``), the smallest, the median, the 95th percentile and the largest.

    Percentiles interpolate linearly, as `numpy.quantile` does. NaN for rows without samples.
    """

    n: NDArray[np.int64]
    low: Floats
    median: Floats
    p95: Floats
    max: Floats


def call_samples(breakdown: Breakdown) -> CallSamples:
    """The samples behind the rows of ``breakdown.merged``, which must not be split by process or device.

    ``idle`` is the part of the span in which the GPUs that a call uses run none of its ops; NaN without a span. ``cpu``
    of a call that was never closed is NaN: its end is that of the session.
    """
    [(part, rows)] = breakdown.parts
    row = np.where(part.keep, rows[breakdown.merged_of], -1)
    ranges, inside = part.attribution.trace.ranges, part.attribution.inclusive
    order = np.lexsort((ranges.start, row))
    order = order[np.searchsorted(row[order], 0) :]
    cpu = np.where(ranges.unclosed, np.nan, ranges.end - ranges.start)
    columns = {
        **{name: getattr(inside, name) for name in COUNTS},
        "span": inside.span_ns,
        "busy": inside.busy_ns,
        "idle": _idle(inside),
        "cpu": cpu,
    }
    merged = breakdown.merged
    keys = zip(merged["merged_path"].tolist(), merged["kind"].tolist(), strict=True)
    return CallSamples(
        keys={key: number for number, key in enumerate(keys)},
        row=row[order],
        count=len(merged),
        columns={name: values[order].astype(np.float64) for name, values in columns.items()},
    )


def _idle(inside: Totals) -> Floats:
    masks, which = np.unique(inside.devices, return_inverse=True)
    gpus = np.array([max(int(mask).bit_count(), 1) for mask in masks.tolist()])[which.reshape(-1)]
    room = inside.span_ns * gpus
    idle: Floats = np.where(room > 0, 1 - inside.busy_ns / np.maximum(room, 1), np.nan)
    return idle


def spread_of(samples: CallSamples, measure: str) -> Spread:
    """How a measure is spread in each row."""
    values = samples.columns[measure]
    told = ~np.isnan(values)
    row, values = samples.row[told], values[told]
    ordered = np.append(values[np.lexsort((values, row))], np.nan)  # the last one is what empty rows point at
    size = np.bincount(row, minlength=samples.count)
    first = np.cumsum(size) - size

    def at(part: float) -> Floats:
        place = part * np.maximum(size - 1, 0)
        whole = np.floor(place).astype(np.int64)
        low = ordered[np.where(size > 0, first + whole, -1)]
        high = ordered[np.where(size > 0, first + np.minimum(whole + 1, size - 1), -1)]
        found: Floats = low + (high - low) * (place - whole)
        return found

    return Spread(size.astype(np.int64), at(0.0), at(0.5), at(0.95), at(1.0))


def samples_of_frame(frame: pd.DataFrame, measures: tuple[str, ...]) -> CallSamples:
    """The samples in a frame of calls in the order of time: ``merged_path``, ``kind`` and a column per measure."""
    named = ["merged_path", "kind"]
    row = frame.groupby(named, sort=False).ngroup().to_numpy()
    order = np.argsort(row, kind="stable")
    distinct = frame[named].drop_duplicates().to_numpy().tolist()
    keys = {(str(path), str(kind)): number for number, (path, kind) in enumerate(distinct)}
    columns = {name: frame[name].to_numpy(np.float64)[order] for name in measures}
    return CallSamples(keys, row[order], len(keys), columns)
