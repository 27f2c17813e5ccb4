"""Measures what reading a trace of the PyTorch profiler costs, beside `json.load` and a pandas frame of its events.

    python benchmarks/bench_kineto.py --events 1000000 --runs 3

The trace is made up: steps of operators, calls and kernels with the arguments that PyTorch writes. Each reading is a
process of its own; printed are the medians of processor time and peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
HOST = {"pid": 4242, "tid": 4242}
NSYSPROF = "nsysprof.attribute(nsysprof.open_report(path))"
PLAIN = "pd.DataFrame(json.load(open(path))['traceEvents'])"
IMPORTS = {NSYSPROF: "import nsysprof", PLAIN: "import json; import pandas as pd"}


def main() -> None:
    """Write the trace, read it in turn both ways, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made-up.pt.trace.json")
        write(path, asked.events)
        print(f"{asked.events:,} events, {path.stat().st_size / 1e6:,.0f} MB")
        found: dict[str, list[tuple[float, float]]] = {NSYSPROF: [], PLAIN: []}
        for _ in range(asked.runs):
            for code, runs in found.items():
                runs.append(measure(code, path))
        for code, runs in found.items():
            seconds, megabytes = (median(column) for column in zip(*runs, strict=True))
            print(f"{seconds:6.2f} s  {megabytes:7,.0f} MB  {code}")


def write(path: Path, count: int) -> None:
    """Write a trace with that many events."""
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "traceEvents": [\n')
        for number, event in enumerate(events(count)):
            file.write(",\n" * (number > 0) + json.dumps(event, indent=2))
        file.write('\n  ],\n  "traceName": "made-up.pt.trace.json"\n}\n')


def events(count: int) -> Iterator[dict[str, object]]:
    """The events: for each operator its Python function, its call, the kernel, and both ends of their arrow."""
    for at in range(count // 6 + 1):
        now = 4_523_326_945_790.484 + 20 * at
        args = {"External id": at, "Record function id": 0, "Sequence number": at, "Fwd thread id": 0, "Ev Idx": at}
        gpu = {"pid": 0, "tid": 7}
        launched = {"External id": at, "device": 0, "context": 1, "stream": 7, "correlation": at + 1}
        shape = {"registers per thread": 32, "shared memory": 0, "grid": [256, 1, 1], "block": [128, 1, 1]}
        python = {"Python parent id": 1, "Python id": at, "Ev Idx": at}
        arrow = {"id": at + 1, "cat": "ac2g", "name": "ac2g"}
        called = {"External id": at, "cbid": 211, "correlation": at + 1}
        row: list[dict[str, object]] = [
            span("python_function", "model.py(17): forward", now, 19.5, python),
            span("cpu_op", f"aten::op{at % 97}", now + 1, 15.25, args),
            span("cuda_runtime", "cudaLaunchKernel", now + 4, 6.125, called),
            span("kernel", KERNEL, now + 12, 5.5, launched | shape) | gpu,
            {"ph": "s", **arrow, **HOST, "ts": now + 4},
            {"ph": "f", "bp": "e", **arrow, **gpu, "ts": now + 12},
        ]
        if at % 1000 == 0:
            row[0] = span("user_annotation", f"ProfilerStep#{at // 1000}", now, 19_999.0, {})
        yield from row[: count - 6 * at]


def span(category: str, name: str, start: float, length: float, args: Mapping[str, object]) -> dict[str, object]:
    """A complete event of the host."""
    return {"ph": "X", "cat": category, "name": name, **HOST, "ts": start, "dur": length, "args": args}


def measure(code: str, path: Path) -> tuple[float, float]:
    """Seconds of processor time, which a busy machine does not change much, and megabytes of a process."""
    used = "import resource; used = resource.getrusage(resource.RUSAGE_SELF)"
    printing = "print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    command = [sys.executable, "-c", f"{IMPORTS[code]}; path = {str(path)!r}; {code}; {used}; {printing}"]
    seconds, kilobytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), int(kilobytes) / 1e3


if __name__ == "__main__":
    main()
