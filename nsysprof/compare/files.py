"""Write the machine-readable files of a comparison: the gap ledger as CSV, and everything as one document."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nsysprof import __version__
from nsysprof.compare.attention_model import Expected
from nsysprof.compare.comparison import Comparison
from nsysprof.compare.pairs import SIDES
from nsysprof.compare.traffic import COLUMNS, BothMeasured
from nsysprof.formats.answers import GAP_SCHEMA
from nsysprof.results.files import plain, records, write_answer
from nsysprof.results.table import table
from nsysprof.trace.report import describe_report

GAP_FILES = ("gap.csv", "gap.json")


# Columns are an interface: add, never rename.
GAPS = table(
    "gap.csv",
    "a row per pair and cause; base_ns, new_ns and delta_ns add up to the pair's base time, new time and difference",
    {
        "pair": "name of the pair of ranges",
        "cause": "cause of a part of the difference: a kernel family (by the kernel rules) or a kind of idle time",
        "base_launches base_kernels": "number of launches and of kernels per call on the base side",
        "base_ns": "time of this cause per call on the base side",
        "new_launches new_kernels": "number of launches and of kernels per call on the new side",
        "new_ns": "time of this cause per call on the new side",
        "delta_ns": "new_ns - base_ns",
        "share": "share of the pair's difference; empty if the causes cancel each other",
        "evidence": "names of the kernels that take the most time of this cause",
        "cause_before": (
            "name of the cause in earlier versions, where `idle: waiting for the host` included waits that a "
            "synchronization exposed; the next version removes this column"
        ),
    },
    made_in="compare/gap_ledger.py",
)
_MEASURED = {
    "dram_bytes dram_read_bytes dram_write_bytes l2_bytes": "memory traffic per call, from hardware counters",
    "tensor_instructions tensor_flops fp32_flops fp16_flops fp64_flops": (
        "instructions and FLOPs per call, from hardware counters"
    ),
    "dram_bytes_per_s dram_share": (
        "DRAM bytes per second of kernel time, and this rate as a share of the GPU's memory bandwidth"
    ),
    "expected_bytes": "expected memory traffic per call, computed from the shape",
}
MEASURED = table(
    "gap.csv",
    "additional columns with hardware counters",
    {
        f"{side}_{name}": f"{about}: {side} side"
        for side in SIDES
        for names, about in _MEASURED.items()
        for name in names.split()
    },
)
assert MEASURED.names == [f"{side}_{name}" for side in SIDES for name in COLUMNS]


def write_gaps(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``gap.csv`` and ``gap.json`` into an existing folder and return their paths."""
    declared = replace(GAPS, columns=GAPS.columns + MEASURED.columns * bool(comparison.measured))
    return write_answer(folder, {GAPS.file: declared.of(comparison.gaps)}, GAP_FILES[-1], gap_document(comparison))


def gap_document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison for JSON: reports, options, warnings, and the pairs with their parts."""
    about = [describe_report(loaded.report) for loaded in comparison.reports]
    frames = ("clocks", "gaps", "evidence", "traffic", "work")
    pairs = []
    for row in records(comparison.pairs):
        difference = comparison.differences[str(row["pair"])]
        row |= {"findings": list(difference.findings), "doubts": [each._asdict() for each in difference.doubts]}
        if difference.runs:
            row["run_medians_ns"] = dict(zip(SIDES, map(list, difference.runs.times), strict=True))
        row |= {f"{side}_model": _model(of) for side, of in zip(SIDES, difference.models, strict=True)}
        row |= {name: records(getattr(difference, name).drop(columns="pair")) for name in frames}
        pairs.append(row | (_counters(difference.measured) if comparison.measured else {}))
    totals = {name: records(each) for name, each in comparison.totals.items()}
    return {
        "schema": GAP_SCHEMA,
        "report": about[0],
        "other": None if comparison.one_report else about[1],
        "nsysprof": __version__,
        "options": comparison.options,
        "comparable": comparison.comparable,
        "reasons": list(comparison.agreement.reasons),
        "conditions": {name: list(both) for name, both in comparison.conditions.items()},
        "warnings": list(comparison.warnings),
        **({"totals": totals} if totals else {}),
        "pairs": pairs,
    }


def _counters(both: BothMeasured) -> dict[str, Any]:
    """The measurement of each side: the share with counters, the totals per call, and the kernels per launch."""
    document: dict[str, Any] = {"base_counters": None, "new_counters": None, "counters": []}
    for name, side in zip(SIDES, both, strict=True):
        if side is not None:
            document[f"{name}_counters"] = {
                "file": side.path.name,
                "calls": side.calls,
                "launches": side.launches,
                "matched": side.matched,
                "matched_share": side.matched_share,
                **{key: plain(value, None) for key, value in side.total.items()},
            }
            document["counters"] += [{"side": name, **row} for row in records(side.kernels)]
    return document


def _model(model: Expected | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        **{name: getattr(model.shape, name) for name in ("batch", "heads", "seq", "head_dim", "causal")},
        "dtype": model.dtype,
        "flops": model.flops,
        "least_bytes": model.least_bytes,
        "score_matrix_bytes": model.matrix_bytes,
        "bytes": model.total_bytes or None,
    }
