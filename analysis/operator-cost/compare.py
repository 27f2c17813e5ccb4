"""FLOPs and bytes from recorded shapes beside the counters of Nsight Compute, per operator.

python analysis/operator-cost/compare.py -o analysis/operator-cost/results.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import nsysprof
from nsysprof.kernels.shapes import op_work

HERE = Path(__file__).resolve().parent
COUNTED = ["tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops"]


def compare() -> pd.DataFrame:
    """A row per range `OP::…`: FLOPs and bytes as computed and as counted, and their ratios (NaN: not computed)."""
    with nsysprof.open_report(HERE / "trace.json.gz") as report:
        trace = nsysprof.attribute(report).trace
        work = op_work(trace)
    ranges = trace.ranges
    spans = {
        trace.range_names[name].text: (start, end)
        for name, start, end in zip(ranges.name, ranges.start, ranges.end, strict=True)
    }
    launched = trace.launches.start[trace.ops.launch]
    counters = pd.read_csv(HERE / "counters.csv").fillna(dict.fromkeys(COUNTED, 0)).groupby("range", sort=False)
    rows = []
    for name, counted in counters:
        start, end = spans[str(name)]
        mine = (launched >= start) & (launched < end)
        measured = counted[COUNTED].sum().sum(), counted[["dram_read_bytes", "dram_write_bytes"]].sum().sum()
        rows.append((name, *_total(work.flops[mine]), *measured[:1], *_total(work.moved[mine]), *measured[1:]))
    table = pd.DataFrame(rows, columns=["range", "flops", "counted_flops", "least_bytes", "counted_bytes"])
    table["flops_ratio"] = (table.flops / table.counted_flops.where(table.counted_flops > 0)).round(4)
    table["bytes_ratio"] = (table.least_bytes / table.counted_bytes).round(4)
    return table


def _total(values: np.ndarray) -> tuple[float]:
    return (float("nan") if np.isnan(values).all() else float(np.nansum(values).round()),)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results.csv")
    compare().to_csv(parser.parse_args().output, index=False)
