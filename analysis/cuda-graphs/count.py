"""Counts what each way of `graphs.py` replays by the layer it was captured in, beside the eager layers: layers.csv.

nsysprof analyze graphs.sqlite --no-charts && python analysis/cuda-graphs/count.py graphs.analysis/kernels.csv*
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import Counter, defaultdict
from pathlib import Path

WAYS = ("EAGER", "GRAPH", "TWO", "THREAD", "CHILD", "CALLABLES", "COMPILED")
HEAD = ("way", "captured_in", "gpu_ops", "sum_ns", "eager_ops", "eager_sum_ns", "same_kernels")


def main() -> None:
    """Write a row per way and captured range; kernels are the same where their names and counts are."""
    kernels: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    time: Counter[tuple[str, str]] = Counter()
    table = Path(sys.argv[1])
    with (gzip.open if table.suffix == ".gz" else open)(table, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            way = row["path"].split("/")[0]
            where = row["path"] if way == "EAGER" else row["captured_path"]
            if way in WAYS and (way == "EAGER" or where or way == "CHILD"):
                kernels[way, where][row["kernel"]] += int(row["count"])
                time[way, where] += int(row["sum_ns"])
    with Path(__file__).with_name("layers.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(HEAD)
        for way, where in sorted(kernels, key=lambda key: (WAYS.index(key[0]), key[1])):
            eager = "EAGER", f"EAGER/iter/{where.split('/')[-1]}"
            mine, other = kernels[way, where], kernels.get(eager, Counter())
            known = [other.total(), time[eager], int(mine == other)] if other else ["", "", ""]
            rows.writerow([way, where, mine.total(), time[way, where], *known])


if __name__ == "__main__":
    main()
