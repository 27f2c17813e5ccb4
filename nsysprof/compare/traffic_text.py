"""Bytes and FLOPs of a pair as tables: what each cause should move, and what hardware counters say it moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nsysprof.compare.attention_model import Expected
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.measured import Measured, flops_of, tensor_share
from nsysprof.compare.side_pairs import Pair
from nsysprof.core.text import one_line, shorten_both
from nsysprof.core.units import format_bytes, format_count, format_share
from nsysprof.results.table import TextTable

_NAME_WIDTH, _SIDE_WIDTH = 60, 16


def traffic_tables(comparison: Comparison, pair: Pair) -> Iterator[TextTable]:
    """One table for both sides of what the model expects; where there are counters, one for each side with both."""
    both = comparison.measured.get(pair.name, (None, None))
    if not any(both):
        yield from _expected(comparison, pair)
        return
    gaps = comparison.gaps[comparison.gaps["pair"] == pair.name]
    names = (pair.base_name, pair.new_name)
    last = both[1] or both[0]
    for side, name, model, found in zip(
        ("base", "new"), names, comparison.models[pair.name], both, strict=True
    ):
        causes = [
            cause
            for cause, kernels in zip(gaps["cause"].tolist(), gaps[f"{side}_kernels"].tolist(), strict=True)
            if kernels
        ]
        if found:
            yield _measured(name, causes, model, found, last=found is last)


def _expected(comparison: Comparison, pair: Pair) -> Iterator[TextTable]:
    """What each cause should move, and how fast that was, where the shape is known."""
    frame = comparison.traffic[comparison.traffic["pair"] == pair.name]
    models = comparison.models[pair.name]
    if frame.empty:
        return
    rows, cached = [], False
    for row in frame.itertuples(index=False):
        cells = [one_line(str(row.cause), _NAME_WIDTH)]
        for side, which in (("base", pair.base), ("new", pair.new)):
            size, rate = getattr(row, f"{side}_bytes"), getattr(row, f"{side}_bytes_per_s")
            most = which.only_gpu.bandwidth_bytes_per_s if which.only_gpu else None
            beyond = bool(most and rate > most)
            cached |= beyond
            cells += [_size(size), "cache" if beyond else _share(rate / most) if most else ""]
        rows.append(cells)
    names = shorten_both(pair.base_name, pair.new_name, _SIDE_WIDTH, one_line)
    head = ["expected traffic", *(text for name in names for text in (name, "of bandwidth"))]
    notes = [f"bytes per call by the model of {model.text}" for model in models if model]
    note = f"{' and '.join(dict.fromkeys(notes))}; that over time, of the GPU's memory bandwidth"
    if cached:
        note += "; cache: more than the memory gives"
    yield TextTable(head, rows, "lrrrr", note)


def _measured(
    name: str,
    causes: list[str],
    model: Expected | None,
    found: Measured,
    *,
    last: bool,
) -> TextTable:
    """A side's causes with what the model expects and what was counted; columns without any figure are left out."""
    rows = [[one_line(cause, _NAME_WIDTH), *_cells(_of(found.causes, cause))] for cause in causes]
    rows.append(["total", *_cells(found.total)])
    head = [
        f"measured, {one_line(name, _SIDE_WIDTH)}",
        *("expected", "DRAM", "of expected", "bandwidth", "L2", "FLOP", "tensor cores"),
    ]
    shown = [at for at in range(len(head)) if at == 0 or any(row[at] for row in rows)]
    rows = [[row[at] for at in shown] for row in rows]
    return TextTable(
        [head[at] for at in shown],
        rows,
        "l" + "r" * (len(shown) - 1),
        "; ".join(_notes(model, found, last=last)),
        last_apart=True,
    )


def _notes(model: Expected | None, found: Measured, *, last: bool) -> Iterator[str]:
    """Where the figures come from and how many kernels have them; below the ``last`` table also what they mean."""
    calls = f"median of {found.calls:,} calls" if found.calls > 1 else "one call"
    yield f"per call, {calls} in {found.path.name}"
    yield (
        f"{found.matched:,} of {found.launches:,} kernels of this report have counters"
        f" ({format_share(found.matched_share)} of their time)"
    )
    if model and model.bytes_of:
        yield f"expected by the model of {model.text}"
    if found.cold:
        yield "every kernel began with empty caches"
    if last:
        yield "DRAM: read and written while a kernel ran, which may be what an earlier one had left in L2"
        yield "bandwidth: of the GPU's, over the time in this report"


def _of(causes: pd.DataFrame, cause: str) -> Mapping[str, float]:
    """The figures of a cause, NaN for one without any."""
    if cause not in causes.index:
        return dict.fromkeys(causes.columns, math.nan)
    return {str(name): float(causes[name][cause]) for name in causes.columns}


def _cells(amounts: Mapping[str, Any]) -> list[str]:
    size, expected = amounts["dram_bytes"], amounts["expected_bytes"]
    flops = flops_of(amounts)
    return [
        _size(expected),
        _size(size),
        _share(size / expected if expected else math.nan),
        _share(amounts.get("dram_share", math.nan)),
        _size(amounts["l2_bytes"]),
        "" if math.isnan(flops) else format_count(round(flops)),
        _share(tensor_share(amounts)),
    ]


def _size(size: float) -> str:
    return "" if math.isnan(size) else format_bytes(size)


def _share(share: float) -> str:
    return "" if math.isnan(share) else format_share(share)
