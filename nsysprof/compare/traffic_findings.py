"""Sentences about bytes and FLOPs: what a pair should move by the model, what it moved by the counters, and why not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from nsysprof.compare.attention_model import Expected
from nsysprof.compare.measured import Measured, tensor_share
from nsysprof.core.units import format_bytes, format_count, format_share

# Model and measurement agree within this part of the former.
_AGREE = 0.2
# Of what a call should move: where both agree on that, a cause is named that differs by more than this.
_NOTABLE = 0.05


def traffic_findings(
    pair: Mapping[str, Any],
    models: tuple[Expected | None, Expected | None],
    measured: tuple[Measured | None, Measured | None],
) -> Iterator[str]:
    """The sentences of one pair; none where neither a model nor counters know its sides."""
    if not any(measured):
        yield from _expected(pair, models)
        return
    names = (pair["base_name"], pair["new_name"])
    each = zip(names, models, measured, strict=True)
    told = [text for name, model, found in each if (text := _moved(name, model, found))]
    shapes = list(dict.fromkeys(model.text for model in models if model))
    at = f" at {shapes[0]}" if len(shapes) == 1 else ""
    if told:
        yield f"memory traffic per call{at}: {'; '.join(told)}"
    for name, model, found in zip(names, models, measured, strict=True):
        if model and found:
            yield from _surprise(name, model, found)
    yield from _tensor_cores(names, measured)


def _expected(pair: Mapping[str, Any], models: tuple[Expected | None, Expected | None]) -> Iterator[str]:
    """What either side moves by the model of its shape."""
    base, new = models
    if base is None or new is None or not base.bytes_of or not new.bytes_of or base.shape != new.shape:
        return
    texts = [
        f"{pair[f'{side}_name']} {format_bytes(sum(model.bytes_of.values()))}{_times(model)}"
        for side, model in (("base", base), ("new", new))
    ]
    yield f"expected memory traffic per call at {base.text}: {texts[0]}, {texts[1]}"


def _times(model: Expected) -> str:
    """How many score matrices that is."""
    if not model.matrix_bytes:
        return ""
    times = sum(model.bytes_of.values()) / model.matrix_bytes
    return f" ({times:.1f} times its score matrix of {format_bytes(model.matrix_bytes)})"


def _moved(name: str, model: Expected | None, found: Measured | None) -> str:
    """`math moves 5.70 GiB, measured, for 5.80 GiB expected (11.6 times its score matrix of 512 MiB)`."""
    parts = []
    size = found.total["dram_bytes"] if found else float("nan")
    if not math.isnan(size):
        part = "" if found and found.complete else " at least"
        parts.append(f"{name} moves{part} {format_bytes(size)} measured")
    if model and model.bytes_of:
        total = f"{format_bytes(sum(model.bytes_of.values()))} expected{_times(model)}"
        parts.append(total if parts else f"{name} {total}")
    return ", ".join(parts)


def _surprise(name: str, model: Expected, found: Measured) -> Iterator[str]:
    """Where the measurement differs from the model: of the call, or else of a cause that makes much of it."""
    expected, size = sum(model.bytes_of.values()), found.total["dram_bytes"]
    if not found.complete or not expected or math.isnan(size):
        return
    change = found.causes["dram_bytes"].sub(pd.Series(model.bytes_of, dtype=float), fill_value=0.0)
    if abs(size - expected) <= _AGREE * expected:
        large = change[change.abs() > _NOTABLE * expected]
        for cause in [str(cause) for cause in large.index if cause in model.bytes_of]:
            known, moved = model.bytes_of[cause], found.causes["dram_bytes"][cause]
            if abs(change[cause]) > _AGREE * known:
                both = f"{format_bytes(moved)} measured, {format_bytes(known)} expected"
                yield f"{cause} of {name} moves {_differs(moved, known)} than expected: {both}"
        return
    said = f"{name} moves {_differs(size, expected)} than expected"
    held = model.matrix_bytes or model.least_bytes
    less = size < expected
    change = change[change < 0] if less else change[change > 0]
    if less and found.l2_bytes and held <= found.l2_bytes:
        size_text, cache = format_bytes(held), format_bytes(found.l2_bytes)
        fits, of_it = f"its score matrix of {size_text} fits", "it"
        if not model.matrix_bytes:
            fits, of_it = f"its input and output of {size_text} fit", "them"
        yield f"{said}: {fits} into the L2 cache ({cache}), so that much of {of_it} need not go through memory"
    elif len(change):
        cause = str(change.abs().idxmax())
        missing = "" if cause in model.bytes_of else ", which the model does not know"
        yield f"{said}, most of it in {cause} ({format_bytes(abs(float(change[cause])))}){missing}"
    else:
        yield said


def _differs(size: float, expected: float) -> str:
    return f"{format_share(abs(size - expected) / expected)} {'less' if size < expected else 'more'}"


def _tensor_cores(names: tuple[str, str], measured: tuple[Measured | None, Measured | None]) -> Iterator[str]:
    """How much of the FLOPs of either side tensor cores do."""
    told = []
    for name, found in zip(names, measured, strict=True):
        share = tensor_share(found.total) if found else float("nan")
        if found and not math.isnan(share):
            part = "none" if not share else format_share(share)
            told.append(f"{part} of the {format_count(round(found.total['flops']))} FLOP of {name}")
    if told:
        yield f"measured: tensor cores do {' and '.join(told)} per call"
