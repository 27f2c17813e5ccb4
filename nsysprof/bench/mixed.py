"""What a comparison across dtypes hides: a speed-up taken apart into that of the dtype and that of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from nsysprof.bench.pairs import between
from nsysprof.bench.results import BenchResults
from nsysprof.bench.words import backend_name, base_backend
from nsysprof.core.units import format_ratio

__all__ = ["mixed_lines", "mixed_rows"]

_ENDS = ("", "_low", "_high")
_PARTS = ("total", "precision", "algorithm")


def mixed_rows(results: BenchResults) -> pd.DataFrame:
    """What a comparison across dtypes is made of: per shape, a backend in one dtype against another one in another.

    Columns: the size, configuration and base_configuration, base, base_dtype, new, new_dtype, total (across both),
    precision (of base by the dtype alone), algorithm (of new over base in one dtype), each with its 95 % interval as
    ``_low`` and ``_high``, NaN where base was not measured in both dtypes; total = precision × algorithm.
    """
    shape, size = results.about.shape, results.about.size
    eager = results.comparisons[results.comparisons["kind"] == "eager"]
    mixed = eager[eager["mixed"].astype(bool)]
    others = ~mixed["new"].isin([*results.repeats, base_backend(results)])
    across = mixed[others & (mixed["base"] != mixed["new"])]
    alone = {
        (row["configuration"], row["base"], row["base_dtype"]): row
        for row in mixed[mixed["base"] == mixed["new"]].to_dict("records")
    }
    of_shape = results.results.set_index([*shape, "dtype"])["configuration"]
    ids = of_shape[~of_shape.index.duplicated()].to_dict()
    rows = []
    for row in across.to_dict("records"):
        place = (row["configuration"], row["base"], row["base_dtype"])
        parts = {
            "total": row,
            "precision": alone.get(place),
            "algorithm": between(eager, row["configuration"], row["base"], row["new"]),
        }
        rows.append(
            {
                **{
                    name: row[name]
                    for name in (size, "configuration", "base", "base_dtype", "new", "new_dtype")
                },
                "base_configuration": ids[(*(row[name] for name in shape), row["base_dtype"])],
                **{f"{part}{end}": _value(found, end) for part, found in parts.items() for end in _ENDS},
            }
        )
    names = [size, "configuration", "base_configuration", "base", "base_dtype", "new", "new_dtype"]
    return pd.DataFrame(rows, columns=[*names, *(f"{part}{end}" for part in _PARTS for end in _ENDS)])


def _value(found: Any, end: str) -> float:
    return float("nan") if found is None else float(found[f"speedup{end}"])


def mixed_lines(results: BenchResults) -> Iterator[str]:
    """For each two backends what their comparison across dtypes hides, at the largest S."""
    rows = mixed_rows(results)
    for _, group in rows.groupby(["base", "new"], sort=False):
        known = group[group["algorithm"].notna() & group["precision"].notna()]
        row = (known if len(known) else group).sort_values(results.about.size, kind="stable").iloc[-1]
        new = backend_name(results, row["new"], [row["configuration"]])
        base = backend_name(results, row["base"], [row["base_configuration"]])
        line = (
            f"mixed dtypes: {new} {row['new_dtype']} is {format_ratio(row['total'])} as fast as {base}"
            f" {row['base_dtype']} at {results.about.short}={row[results.about.size]}"
        )
        if len(known):
            parts = [format_ratio(row[name]) for name in ("precision", "algorithm")]
            line += f": {parts[0]} from the dtype, {parts[1]} from the algorithm"
        yield line
