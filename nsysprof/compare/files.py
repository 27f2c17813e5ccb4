"""Writes a comparison as files for machines: the gap ledger as CSV, and everything as one JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsysprof import __version__
from nsysprof.compare.attention_model import Expected
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.traffic import COLUMNS, BothMeasured
from nsysprof.formats.answers import GAP_SCHEMA
from nsysprof.results.files import plain, records, write_csv, write_document
from nsysprof.results.table import table
from nsysprof.trace.report import describe_report

GAP_FILES = ("gap.csv", "gap.json")


def write_gaps(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``gap.csv`` and ``gap.json`` into an existing folder and return their paths."""
    written = [folder / name for name in GAP_FILES]
    write_document(gap_document(comparison), written[1])
    names = GAPS.names + (MEASURED.names if comparison.measured else [])
    write_csv(comparison.gaps[names], written[0])
    return written


def gap_document(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison as JSON can hold it: reports, options, warnings, and the pairs with all that is theirs."""
    first = comparison.sides[0]
    reports = [side.examined.attribution.trace.report for side in (first.base, first.new)]
    frames = {
        "clocks": comparison.clocks,
        "gaps": comparison.gaps,
        "evidence": comparison.evidence,
        "traffic": comparison.traffic,
    }
    pairs = []
    for row in records(comparison.pairs):
        mine = {
            name: frame[frame["pair"] == row["pair"]].drop(columns="pair") for name, frame in frames.items()
        }
        findings = list(comparison.findings[str(row["pair"])])
        base, new = (_model(model) for model in comparison.models[str(row["pair"])])
        models = {"base_model": base, "new_model": new}
        tables = {name: records(frame) for name, frame in mine.items()}
        both = comparison.measured.get(str(row["pair"]))
        pairs.append({**row, "findings": findings, **models, **tables, **(_counted(both) if both else {})})
    return {
        "schema": GAP_SCHEMA,
        "report": describe_report(reports[0]),
        "other": None if comparison.one_report else describe_report(reports[1]),
        "nsysprof": __version__,
        "options": comparison.options,
        "warnings": list(comparison.warnings),
        "pairs": pairs,
    }


def _counted(both: BothMeasured) -> dict[str, Any]:
    """What the counters say: how much of either side they match, its totals per call, and its kernels, per launch."""
    found: dict[str, Any] = {"base_counters": None, "new_counters": None, "counters": []}
    for name, side in zip(("base", "new"), both, strict=True):
        if side is not None:
            found[f"{name}_counters"] = {
                "file": side.path.name,
                "calls": side.calls,
                "launches": side.launches,
                "matched": side.matched,
                "matched_share": side.matched_share,
                **{key: plain(value, None) for key, value in side.total.items()},
            }
            found["counters"] += [{"side": name, **row} for row in records(side.kernels)]
    return found


def _model(model: Expected | None) -> dict[str, Any] | None:
    if model is None:
        return None
    shape = model.shape
    return {
        "batch": shape.batch,
        "heads": shape.heads,
        "seq": shape.seq,
        "head_dim": shape.head_dim,
        "causal": shape.causal,
        "dtype": model.dtype,
        "flops": model.flops,
        "least_bytes": model.least_bytes,
        "score_matrix_bytes": model.matrix_bytes,
        "bytes": sum(model.bytes_of.values()) or None,
    }


GAPS = table(
    "gap.csv",
    "a row per pair and cause; all but the shares add up to the difference of the pair",
    {
        "pair": "what the two ranges are called",
        "cause": "kind of work, by the kernel rules, or how the GPU waits",
        "base_launches base_kernels": "host calls that caused it, and kernels, per call of the base side",
        "base_ns": "time per call of the base side",
        "new_launches new_kernels": "the same of the new side",
        "new_ns": "time per call of the new side",
        "delta_ns": "new_ns - base_ns",
        "share": "part of the pair's difference; empty where causes cancel",
        "evidence": "the names of kernels that took most of the time",
    },
)
_MEASURED = {
    "dram_bytes dram_read_bytes dram_write_bytes l2_bytes": "traffic of a call, by hardware counters",
    "tensor_instructions tensor_flops fp32_flops fp16_flops fp64_flops": "what a call computes, by hardware counters",
    "dram_bytes_per_s dram_share": "dram_bytes over the time of the kernels, and its share of the GPU's bandwidth",
    "expected_bytes": "what the model of the operation moves at least",
}
MEASURED = table(
    "gap.csv",
    "further columns where there are hardware counters",
    {
        f"{side}_{name}": f"{about}: {side} side"
        for side in ("base", "new")
        for names, about in _MEASURED.items()
        for name in names.split()
    },
)
assert MEASURED.names == [f"{side}_{name}" for side in ("base", "new") for name in COLUMNS]
