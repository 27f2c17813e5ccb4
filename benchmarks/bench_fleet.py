"""What a fleet on Dask costs against the same work in one process, in turn.

    python benchmarks/bench_fleet.py FOLDER [--runs 3] [--workers 2]

FOLDER holds reports named rank_0.sqlite, rank_1.sqlite … The serial side reads them one after the other, compares the
ranks and writes the same files, without Dask.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = r"rank_(\d+)"
SERIAL = """
import re, sys
from pathlib import Path
from nsysprof.fleet.answer import fleet_answer
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.inputs import find_reports
from nsysprof.fleet.files import write_fleet
files, _ = find_reports([sys.argv[1]])
answer = fleet_answer([examine_report(ReportTask(file)) for file in files], rank_from=re.compile(sys.argv[3]))
write_fleet(answer, [file.name for file in files], Path(sys.argv[2]))
"""


def main() -> None:
    """Print the seconds of each run and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3, metavar="N")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    options = parser.parse_args()
    ratios = []
    for run in range(options.runs):
        with tempfile.TemporaryDirectory() as out:
            serial = _seconds("-c", SERIAL, str(options.folder), out, RANK)
        with tempfile.TemporaryDirectory() as out:
            fleet = _seconds(
                *("-m", "nsysprof", "fleet", str(options.folder), "--no-charts", "--rank-from", RANK),
                *("--workers", str(options.workers), "-o", f"{out}/fleet"),
            )
        ratios.append(fleet / (serial / options.workers))
        print(f"run {run}: serial {serial:.1f} s, fleet {fleet:.1f} s, {ratios[-1]:.2f}x of a share", flush=True)
    print(f"median {statistics.median(ratios):.2f}x of serial / {options.workers}")


def _seconds(*arguments: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
