"""Measures `nsysprof analyze --no-charts` of one synthetic report on 1, 2, 4 ... cores of this machine.

    python benchmarks/bench_cores.py --kernels 10000000 --processes 16

Each run is a process that may use the first so many cores. A line of Markdown per number of cores: wall and CPU time
of the fastest of `--runs` runs, its peak memory, and whether text and files are those of one core, to the byte.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench import COMMAND_CODE, ROOT, big_report, cores, processor


def run(report: Path, folder: Path, count: int) -> tuple[float, float, float, str]:
    """Wall and CPU seconds, MB and the digest of text and files of one run on ``count`` cores."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-c", COMMAND_CODE, "analyze", str(report), "--no-charts", "-o", str(folder)]
    allowed = sorted(os.sched_getaffinity(0))[:count]
    text = folder.with_suffix(".txt")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    with text.open("wb") as out:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=out, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, allowed)
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"analyze ended with {child.returncode}")
    digest = hashlib.sha256(text.read_bytes())
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, digest.hexdigest()


def main() -> int:
    """Make the report, measure, print; exit code 3 where outputs differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=ROOT / "benchmarks" / "work", help="where the report is made")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    report = big_report(options.kernels, options.processes, options.work.resolve())
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= cores()]
    print(f"{options.kernels:,} kernels in {options.processes} processes, {cores()} cores of {processor()}\n")
    print("| cores | wall | speedup | CPU time | peak memory | output |\n|---:|---:|---:|---:|---:|---|", flush=True)
    with report.open("rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    first = None
    for count in counts:
        done = min(run(report, options.work.resolve() / "answer", count) for _ in range(options.runs))
        first = first or done
        same = "the same" if done[3] == first[3] else "DIFFERS"
        print(
            f"| {count} | {done[0]:.1f} s | {first[0] / done[0]:.2f} | {done[1]:.1f} s | {done[2]:,.0f} MB | {same} |",
            flush=True,
        )
        if same == "DIFFERS":
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
