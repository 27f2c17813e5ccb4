"""Compares what `nsysprof why` names with what was planted: a row per fault and dose, into verdicts.csv.

    python analysis/planted-faults/judge.py FOLDER -o analysis/planted-faults/verdicts.csv

FOLDER holds for each fault NAME.sqlite, a report of plant.py, and NAME.json, its step times without the profiler.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import nsysprof

# What a right verdict names, in the words of the findings.
NAMES = {
    "sleep": r"nanosleep in log",
    "python": r"code in augment",
    "sync_then_python": r"cudaDeviceSynchronize in measure",
    "collect": r"code in collect",
    "item": r"\.item\(\) in look",
    "synchronize": r"cudaDeviceSynchronize in forward",
    "pageable": r"Memcpy.*HtoD.* in load",
    "pinned_out": r"memcpy DtoH .* in checkpoint",
    "allocate": r"cuda(Free|Malloc)",
    "side_stream": r"spin in side holds up",
    "hidden_side_stream": r"spin in side",
    "legacy_barrier": r"spin in barrier holds up",
    "tiny_kernels": r"launch-bound in tiny|launch and queue latency",
    "loader": r"sem_wait in data",
    "lock": r"sem_wait in locked",
    "backward_hook": r"code in hook",
    "late_peer": r"waits for GPU 1, which comes late",
}
SHOWS = 1.03  # a step that takes so many times as long as the clean one shows its dose
NEAR, NEAR_NS = 0.1, 100_000  # of the added time: what a magnitude may be off by


def verdicts(folder: Path, fault: str) -> Iterator[dict[str, Any]]:
    """The rows of one fault: what was measured without the profiler, what the report shows, and what was named."""
    times = json.loads((folder / f"{fault}.json").read_text())["step_ms"]
    with nsysprof.open_report(folder / f"{fault}.sqlite") as report:
        answer = nsysprof.why(nsysprof.attribute(report), "FAULT::*/step")
    windows = answer.windows.assign(window_ns=answer.windows["end_ns"] - answer.windows["start_ns"])
    mean = windows.groupby("path")[["window_ns", "compute_ns"]].mean()
    clean = mean.loc[f"FAULT::{fault}::0/step"]
    for dose, step_ms in times.items():
        path = f"FAULT::{fault}::{dose}/step"
        here, findings = mean.loc[path], answer.findings[path]
        added = float(here["window_ns"] - clean["window_ns"])
        named = [each for each in findings if re.search(NAMES[fault], each.text)]
        planted = sum(each.ns for each in named)
        yield {
            "fault": fault,
            "dose": dose,
            "step_ms": round(step_ms, 3),
            "window_ms": round(here["window_ns"] / 1e6, 3),
            "added_ms": round(added / 1e6, 3),
            "added_compute_ms": round(float(here["compute_ns"] - clean["compute_ns"]) / 1e6, 3),
            "named_ms": round(planted / 1e6, 3),
            "named": "; ".join(dict.fromkeys(each.culprit for each in named)),
            "others": "; ".join(each.culprit for each in findings if each not in named),
            "verdict": _verdict(step_ms / times["0"], added, planted, bool(findings)),
        }


def _verdict(ratio: float, added: float, named: float, says_something: bool) -> str:
    if named:
        near = abs(named - added) <= max(NEAR * added, NEAR_NS)
        return "named, within 10 % or 0.1 ms" if near else "named, magnitude off"
    if ratio < SHOWS:
        return "blames something else" if says_something else "correctly silent"
    return "missed"


def main() -> None:
    """Judge all faults of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    faults = [name for name in NAMES if (options.folder / f"{name}.sqlite").exists()]
    rows = pd.DataFrame([row for fault in faults for row in verdicts(options.folder, fault)])
    rows.to_csv(options.output, index=False)


if __name__ == "__main__":
    main()
