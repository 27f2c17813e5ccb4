"""The Nsight Compute metrics from which each column of the counters is computed, by chip and run.

The *traffic* run requests only as many metrics as one pass can count. If a kernel is replayed, ncu saves and restores
its memory between replays. These copies flush the L2 cache, regardless of ``--cache-control``. Data that the previous
kernel had left in L2 would then be read from DRAM. Metrics that need several passes, above all FLOPs, do not depend on
caches and are counted in a separate run, *work*.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

TRAFFIC, WORK = "traffic", "work"

Terms = dict[str, int]
"""Metrics and their factors in a sum."""

_TENSOR = "sm__inst_executed_pipe_tensor"
_OPS = "sm__ops_path_tensor_src_"
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"


def _flops(letter: str) -> list[Terms]:
    """List the metrics of adds, products and (twice) multiply-adds; newer chips count packed pairs of float32 apart."""
    single = {f"{letter}add": 1, f"{letter}mul": 1, f"{letter}fma": 2}
    pairs = {f"{name}2": 2 * factor for name, factor in single.items()} if letter == "f" else {}
    factors = [{**single, **pairs}, single] if pairs else [single]
    name = "{}__sass_thread_inst_executed_op_{}_pred_on.sum"
    return [
        {name.format(prefix, operation): factor for operation, factor in each.items()}
        for each in factors
        for prefix in ("sm", "smsp")
    ]


# For each column what it is made of, best first: the first of which a chip has every metric is taken.
_CHOICES: dict[str, dict[str, list[Terms]]] = {
    TRAFFIC: {
        "duration_ns": [{"gpu__time_duration.sum": 1}],
        "dram_read_bytes": [{"dram__bytes_read.sum": 1}, {"dram__bytes_op_read.sum": 1}],
        "dram_write_bytes": [{"dram__bytes_write.sum": 1}, {"dram__bytes_op_write.sum": 1}],
        "l2_bytes": [{"lts__t_bytes.sum": 1}],
        # Without HFMA2.MMA, which compilers load constants with: it would be in every kernel.
        "tensor_instructions": [{f"{_TENSOR}.sum": 1, f"{_TENSOR}_op_hmma_type_hfma2.sum": -1}, {f"{_TENSOR}.sum": 1}],
        "occupancy_percent": [{"sm__warps_active.avg.pct_of_peak_sustained_active": 1}],
        "dram_percent": [{f"gpu__dram_throughput.{_ELAPSED}": 1}, {f"dram__throughput.{_ELAPSED}": 1}],
        "l2_percent": [{f"lts__t_sectors.{_ELAPSED}": 1}],
    },
    WORK: {
        "tensor_flops": [],  # of what the chip has
        "fp32_flops": _flops("f"),
        "fp16_flops": _flops("h"),
        "fp64_flops": _flops("d"),
        "sm_percent": [{f"sm__throughput.{_ELAPSED}": 1}],
    },
}


@dataclass(frozen=True)
class CountingRun:
    """A run under ncu: ``columns`` with their metrics; ``missing``: columns for which the chip has no metrics."""

    name: str
    columns: Mapping[str, Terms]
    missing: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric of the run once."""
        return tuple(dict.fromkeys(metric for terms in self.columns.values() for metric in terms))


def plan_runs(available: Collection[str] | None, *, quick: bool = False) -> list[CountingRun]:
    """Plan the runs for a chip with these metrics (names without suffixes; None: unknown, as for an H100).

    ``quick`` leaves out the run that replays kernels.
    """
    planned = []
    for name, choices in _CHOICES.items():
        columns: dict[str, Terms] = {}
        for column, options in choices.items():
            terms = _tensor_flops(available) if column == "tensor_flops" else _chosen(options, available)
            if terms:
                columns[column] = terms
        planned.append(CountingRun(name, columns, tuple(each for each in choices if each not in columns)))
    return [each for each in planned if each.columns][: 1 if quick else None]


def _chosen(options: list[Terms], available: Collection[str] | None) -> Terms:
    if available is None:
        return next((terms for terms in options if not any("2_pred" in metric for metric in terms)), {})
    fits = (terms for terms in options if all(metric.split(".")[0] in available for metric in terms))
    return next(fits, {})


def _tensor_flops(available: Collection[str] | None) -> Terms:
    """Choose the operations on tensor cores by type of input, without integers; a type stands for its subtypes."""
    if available is None:
        return {f"{_OPS}{kind}.sum": 1 for kind in ("bf16_dst_fp32", "fp16", "fp64", "fp8", "tf32_dst_fp32")}
    names = sorted(name for name in available if re.match(rf"{_OPS}(fp|bf|tf)", name))
    whole = [name for name in names if not any(name.startswith(f"{other}_") for other in names)]
    return {f"{name}.sum": 1 for name in whole}
