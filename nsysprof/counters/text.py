"""Format a count as text: bytes, FLOPs and the distance from limits, per range and kernel family."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.paths import merged_names, split_path
from nsysprof.capture.text import not_run_lines
from nsysprof.core.text import command_line, plural, quote_glob
from nsysprof.core.units import format_count, format_share
from nsysprof.formats.counters import METRICS, CounterRow
from nsysprof.results.table import Column, show_columns, wrap

_COLUMNS = (
    Column("path", "range, or kernel family of the range above", "range"),
    Column(
        "kernels", "number of kernels per call", cell=lambda n: format_count(int(n)) if n.is_integer() else f"{n:.1f}"
    ),
    Column("duration_ns", "time of the kernels", "time"),
    Column("dram_bytes", "bytes read from and written to DRAM", "DRAM"),
    Column("dram_percent", "% of DRAM bandwidth", "of peak"),
    Column("flops", "number of FLOPs", "FLOPs", lambda flops: format_count(round(flops))),
    Column("tensor", "share of FLOPs done by tensor cores", "tensor cores", align="r"),
)
_FLOPS = ["tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops"]
_MAX_RANGES, _MAX_FAMILIES = 40, 4
_NO_RANGE = "(no range)"
_UNKNOWN = "-"


def counters_summary(rows: Sequence[CounterRow], record: Mapping[str, Any], families: Mapping[str, str]) -> str:
    """Show a count as a table, with its conditions; ``families`` maps kernel names to families. Ends with a newline."""
    runs = record["runs"]
    many = [run for run in runs if max(run["passes"], default=1) > 1]
    parts = [f"counted {plural(len(rows), 'kernel')}", *not_run_lines(record["workload"]), ""]
    ranges = list(_frame(rows, families).groupby("path", sort=False))
    shown = (line for path, kernels in ranges[:_MAX_RANGES] for line in _lines(str(path), kernels))
    parts += show_columns(_COLUMNS, shown, missing=_UNKNOWN).lines()
    if len(ranges) > _MAX_RANGES:
        parts.append(f"and {len(ranges) - _MAX_RANGES:,} more ranges: see the table of counters")
    note = (
        "Values are per range, or per call if calls are numbered (iter0, iter1 ...). DRAM: bytes "
        f"read and written, and % of the memory bandwidth. {_cache_sentence(record)} Times are from ncu, which "
        "serializes kernels; `nsysprof compare` uses the times of the report."
    )
    if many:
        note += f" FLOPs are from a second run that replays each kernel (passes: {max(many[-1]['passes'])})."
    parts += [wrap(note, "", ""), ""]
    return "\n".join(parts)


def compare_command(rows: Iterable[CounterRow], report: str | Path, table: str | Path) -> str:
    """Compose the ``compare`` command for a report with these counters; it compares the first two kinds of ranges."""
    paths = dict.fromkeys(row.path for row in rows if row.path)
    outer = list(dict.fromkeys(merged_names([split_path(path)[0] for path in paths])))
    kinds = list(dict.fromkeys("::".join(name.split("::")[:2]) for name in outer if name.startswith("RUN::")))
    globs = [f"{escape(kind)}::*" for kind in kinds] if len(kinds) > 1 else [escape(name) for name in outer]
    base, new = (*map(quote_glob, globs[:2]), "GLOB", "GLOB")[:2]
    return command_line("compare", Path(report), f"--base {base} --new {new} --counters", Path(table))


def _cache_sentence(record: Mapping[str, Any]) -> str:
    if record["cache_control"] == "all":
        return "Caches were flushed before every kernel, so each kernel read the results of the previous one from DRAM."
    if max(record["runs"][0]["passes"], default=1) > 1:
        return "Kernels were replayed for counting, and replay empties L2 before each kernel."
    return "Bytes are from a run without replay, so L2 still holds data of earlier kernels."


def _frame(rows: Sequence[CounterRow], families: Mapping[str, str]) -> pd.DataFrame:
    """Make a frame of the metrics of each kernel (NaN: not measured), with its merged path, its call and its family."""
    frame = pd.DataFrame([row.values for row in rows], columns=list(METRICS), dtype=float)
    merged = {path: "/".join(merged_names(split_path(path))) for path in {row.path for row in rows}}
    frame["path"] = [merged[row.path] or _NO_RANGE for row in rows]
    frame["call"] = [f"{row.pid} {row.path}" for row in rows]
    frame["family"] = [families[row.kernel] for row in rows]
    return frame


def _lines(path: str, kernels: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield a line for the range, and, where it has several families, one for each of the slowest."""
    calls = kernels["call"].nunique()
    yield {"path": path, **_figures(kernels, calls)}
    by_family = [(str(name), rows) for name, rows in kernels.groupby("family", sort=False)]
    if len(by_family) == 1:
        return
    by_family.sort(key=lambda each: -each[1]["duration_ns"].sum())
    for family, rows in by_family[:_MAX_FAMILIES]:
        yield {"path": f"· {family}", **_figures(rows, calls)}
    if others := by_family[_MAX_FAMILIES:]:
        yield {"path": f"· {len(others)} more", **_figures(pd.concat([rows for _, rows in others]), calls)}


def _figures(kernels: pd.DataFrame, calls: int) -> dict[str, Any]:
    """Compute the figures of a call by `_COLUMNS`, NaN where one of the kernels was not measured."""
    total = kernels[list(METRICS)].sum(skipna=False)
    flops = total[_FLOPS].sum()
    if not np.isnan(total["tensor_flops"]):
        tensor = format_share(total["tensor_flops"] / flops) if flops else None
    else:  # then it is known at most whether they did anything
        used = total["tensor_instructions"]
        tensor = None if np.isnan(used) else "used" if used else "not used"
    timed = kernels[["dram_percent", "duration_ns"]].dropna()
    time = timed["duration_ns"].sum()
    return {
        "kernels": len(kernels) / calls,
        "duration_ns": total["duration_ns"] / calls,
        "dram_bytes": (total["dram_read_bytes"] + total["dram_write_bytes"]) / calls,
        "dram_percent": timed.prod(axis=1).sum() / time if time else None,
        "flops": flops / calls if total[_FLOPS].notna().any() else None,
        "tensor": tensor,
    }
