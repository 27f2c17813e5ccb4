"""Forecasts what each remedy would bring from recordings alone: forecasts.csv, to be committed before outcomes.

    python analysis/forecasts-2/foretell.py DIR

DIR holds PROGRAM.bad.sqlite of nsys and PROGRAM.bad.json of torch.profiler. A row is a question to `nsysprof forecast`,
or the first finding of `nsysprof analyze` and its gain. ``same`` says whether that finding names the program's remedy,
judged before outcomes were known: only then does the outcome judge its gain.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import programs

HERE = Path(__file__).parent
RECORDERS = {"nsys": "sqlite", "torch": "json"}
COLUMNS = ("program", "recorder", "kind", "question", "because", "basis", "base_ns", "forecast_ns", "low_ns", "high_ns",
           "gain", "gain_low", "gain_high", "same", "reason", "commit", "report_sha256")  # fmt: skip
CODE, BETWEEN = "--remove 'CPU time in step*'", "--remove 'CPU time between steps'"
MALLOC = "--remove-calls 'cudaMalloc' --remove-calls 'cudaFree'"
# What expresses the remedy, and for kernels why the factor: 4.3 TB/s of memory, 70 % of the matrix rate.
QUESTIONS = {
    "item": ("--remove '.item() in step*'", ""),
    "syncstep": ("--drop-sync cudaDeviceSynchronize", ""),
    "layeritem": ("--drop-sync 'step*'", "the last flag is still waited for"),
    "boolmask": (
        "--drop-sync 'step*' --scale 'index_elementwise*=0'",
        "no wait, no scatter; torch.where as the gather",
    ),
    "preprocess": (CODE, "as if the thread always had a batch ready"),
    "gcchurn": (CODE, "all CPU code of the step is the collection"),
    "emptycache": (MALLOC, ""),
    "smallcopies": ("--pinned", "still 200 copies"),
    "results": ("--pinned", ""),
    "smallnet": ("--graph 'step*'", ""),
    "sgd": ("--fuse 'Optimizer.step*'", "the optimizer's range is only in the trace of torch.profiler"),
    "zeros": ("--scale '*Fill*=0'", ""),
    "streams": (
        "--scale '*scan*=0.5' --scale '*elementwise*=0.5'",
        "8 blocks leave room for a second stream: both branches at once",
    ),
    "logging": (BETWEEN, ""),
    "printing": (BETWEEN, ""),
    "rebuild": (CODE, "all CPU code of the step is the table"),
    "polling": (CODE, "the sleeps are the CPU code"),
    "serialcopy": ("--scale '*HtoD*=0'", "copies hide behind compute"),
    "fp32": ("--set '*gemm*=397us'", "137 GFLOP in each product at 346 TFLOP/s"),
    "misaligned": ("--set '*gemm*=393us'", "275 GFLOP in each product at 700 TFLOP/s"),
    "pointwise": ("--scale '*elementwise*=0.0998'", "805 MB at 4.3 TB/s: 187 µs in place of 1,875"),
    "channels": ("--scale '*nchwToNhwc*=0' --scale '*nhwcToNchw*=0'", "no conversions"),
    "layernorm": (
        "--scale '*elementwise*=0.1165' --scale '*reduce*=0.1165'",
        "4 times 537 MB at 4.3 TB/s: 499 µs in place of 4,286",
    ),
    "crossattention": (
        "--scale 'nvjet*=0.28' --scale '*softmax*=0.28' --scale '*elementwise*=0.28'",
        "120 GFLOP at 400 TFLOP/s and 0.1 ms for the loss, in place of 1.43 ms",
    ),
    "tailwave": ("--scale heavy=0.53", "140 blocks on 132 SMs take two waves: 140 / 264"),
    "occupancy": ("--scale stream=0.135", "2.15 GB at 4.3 TB/s: 499 µs in place of 3,685"),
    "columns": ("--scale walk=0.0903", "537 MB at 4.3 TB/s: 125 µs in place of 1,382"),
    "histogram": ("--set count=20us", "33.5 MB stay in the L2 cache; a guess"),
    "fewblocks": ("--scale heavy=0.09", "24 to 132 SMs, and twice the warps that hide a dependent FMA"),
    "cupymalloc": (MALLOC, ""),
    "cupychain": ("--scale 'cupy_*=0.0735'", "805 MB at 4.3 TB/s: 187 µs in place of 2,544"),
}
SAME = {("item", "nsys"), ("syncstep", "nsys"), ("layeritem", "nsys"), ("preprocess", "nsys"), ("preprocess", "torch"),
        ("smallcopies", "nsys"), ("smallcopies", "torch"), ("results", "nsys"), ("results", "torch"),
        ("smallnet", "nsys"), ("smallnet", "torch"), ("rebuild", "nsys"), ("rebuild", "torch"), ("serialcopy", "torch"),
        ("fp32", "nsys"), ("fp32", "torch"), ("fewblocks", "nsys"), ("fewblocks", "torch"),
        ("cupymalloc", "torch")}  # fmt: skip


def answer(*args: str) -> dict[str, Any]:
    """Return the JSON document that a command of nsysprof prints, or its error under ``reason``."""
    done = subprocess.run(
        [sys.executable, "-m", "nsysprof", *args, "--json"], check=False, capture_output=True, text=True
    )
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"reason": " ".join(done.stderr.split())[-300:]}


def forecast_row(report: Path, question: str) -> dict[str, Any]:
    """Return what `nsysprof forecast` says about a question: times of a step, and gains as shares of the base."""
    said = answer("forecast", str(report), *shlex.split(question), "--no-charts")
    if said.get("forecast_ns") is None:
        return {"reason": said.get("reason") or json.dumps(said.get("error", "no forecast"))}
    base = said["base_ns"]
    row = {name: round(said[name]) for name in ("base_ns", "forecast_ns", "low_ns", "high_ns")}
    gains = {f"gain{end}": round(1 - said[of] / base, 4) for end, of in
             (("", "forecast_ns"), ("_low", "high_ns"), ("_high", "low_ns"))}  # fmt: skip
    return row | gains | {"basis": said["basis"]}


def finding_row(said: dict[str, Any], base: float) -> dict[str, Any]:
    """Return the first finding of an analysis and its gain; without one the forecast is that nothing is gained.

    Gains are sums over steps, so their share is that of the mean step, which a finding's own share tells; ``base`` is
    the median step.
    """
    if not said["diagnosis"]:
        return {
            "question": "(no finding)",
            "base_ns": round(base),
            "forecast_ns": round(base),
            "gain": 0,
            "basis": "none",
        }
    first = said["diagnosis"][0]
    same = [f for f in said["findings"] if (f["kind"], f["culprit"]) == (first["kind"], first["cause"]) and f["share"]]
    mean = same[0]["ns"] / same[0]["share"] if same else base
    steps = said["chosen_steps"]["instances"] - said["chosen_steps"]["warm_up"]
    gains = {f"gain{end}": round(first[f"gain{end}_ns"] / steps / mean, 4) for end in ("", "_low", "_high")}
    times = {"base_ns": round(base), "forecast_ns": round(base * (1 - gains["gain"]))}
    return times | gains | {"question": first["text"], "because": shlex.join(first["change"]), "basis": first["basis"]}


def forecasts(folder: Path, name: str, recorder: str, commit: str) -> list[dict[str, Any]]:
    """Return both rows of a recording."""
    report = folder / f"{name}.bad.{RECORDERS[recorder]}"
    kept = {"commit": commit, "report_sha256": hashlib.sha256(report.read_bytes()).hexdigest()}
    kept |= {"program": name, "recorder": recorder}
    out, found = [], {}
    if name in QUESTIONS:
        question, because = QUESTIONS[name]
        found = forecast_row(report, question)
        out.append(kept | {"kind": "remedy", "question": question, "because": because} | found)
    base = found.get("base_ns") or answer("forecast", str(report), "--scale", "*e*=1", "--no-charts")["base_ns"]
    nothing = name in programs.NOTHING
    same = "nothing" if nothing else "yes" if (name, recorder) in SAME else "no"
    out.append(kept | {"kind": "diagnosis", "same": same} | finding_row(answer("analyze", str(report)), base))
    return out


def main() -> None:
    """Write a row per question and recording."""
    folder = Path(sys.argv[1])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], check=False, capture_output=True, text=True
    ).stdout.strip()
    cases = [(name, recorder) for name in programs.PROGRAMS for recorder in RECORDERS]
    with ThreadPoolExecutor(2) as pool:
        rows = [row for rows in pool.map(lambda case: forecasts(folder, *case, commit), cases) for row in rows]
    with (HERE / "forecasts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
