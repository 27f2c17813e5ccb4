"""Synthetic series of 40 runs with and without changes: how many are found, where, and how many false alarms there are.

python analysis/history/simulate.py > analysis/history/series.csv
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nsysprof.history.history import MACHINE, judge_runs
from nsysprof.history.run import Run, Timed
from nsysprof.statistics.levels import find_levels

SERIES, RUNS, EDGE = 200, 40, 4
# Standard deviations between runs: half of all programs below 0.35 %, hardly any above 3.7 %, and both for all.
USUAL, MOST = 0.0035, 0.037
Noise = Callable[[np.random.Generator, int], np.ndarray]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, count: rng.normal(size=count),
    "heavy tails (t, 4)": lambda rng, count: rng.standard_t(4, count) / np.sqrt(2),
    "two kinds of runs": lambda rng, count: np.where(rng.random(count) < 0.3, 1.8, 0.0) + 0.1 * rng.normal(size=count),
    "one disturbed run in 20": lambda rng, count: (
        rng.normal(size=count) + (rng.random(count) < 0.05) * rng.exponential(8, count)
    ),
    "dependent (0.3)": lambda rng, count: autoregressive(rng, count, 0.3),
}
SCALES: dict[str, Callable[[np.random.Generator], float]] = {
    "as measured": lambda rng: float(min(np.exp(rng.normal(np.log(USUAL), 0.9)), MOST)),
    "0.35 %": lambda _: USUAL,
    "3.7 %": lambda _: MOST,
}


def autoregressive(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    """Noise of which each run keeps a part of that of the run before."""
    out = rng.normal(size=count)
    for at in range(1, count):
        out[at] = phi * out[at - 1] + np.sqrt(1 - phi**2) * out[at]
    return out


def run(number: int, log: float, clock: str) -> Run:
    """A run as the program reads one."""
    ns = round(1e7 * np.exp(log))
    timed = Timed("step*", False, 20, ns, None, None, ns, round(0.9 * ns), 3.0, {"gemm kernels": ns})
    machine = {"GPU": "NVIDIA H200", "GPU clock": clock}
    return Run(f"run_{number}.sqlite", float(number), "", machine, {"gemm": (1, ns, 1)}, (timed,), None)


def clocks(draw: Noise, scale: Callable[[np.random.Generator], float]) -> tuple[int, int, int]:
    """Two changes of the GPU's clock by 8 %, there and back: found, within a run, and blamed on the program."""
    rng, found, near, blamed = np.random.default_rng(3), 0, 0, 0
    for _ in range(SERIES // 4):
        first, second = sorted(rng.choice(np.arange(EDGE, RUNS - EDGE, 6), 2, replace=False).tolist())
        logs = scale(rng) * draw(rng, RUNS)
        logs[first:second] += np.log1p(0.08)
        slow = range(first, second)
        runs = [run(n, log, "1,830 MHz" if n in slow else "1,980 MHz") for n, log in enumerate(logs.tolist())]
        changes = [change for _, change in judge_runs(runs).changes]
        for at in (first, second):
            mine = [change for change in changes if abs(change.run - at) <= 1]
            found, near = found + bool(mine), near + bool(mine)
        blamed += sum(change.cause != MACHINE for change in changes)
    return found, near, blamed


def main() -> None:
    """Write a row per noise, spread and planted change."""
    rows: list[tuple[object, ...]] = [("noise", "spread", "planted", "series", "found", "within_a_run", "false_alarms")]
    for name, draw in NOISES.items():
        for spread, scale in SCALES.items():
            for change in (0.0, 0.02, 0.05, 0.10):
                rng, found, near, false = np.random.default_rng(1), 0, 0, 0
                for _ in range(SERIES):
                    at = int(rng.integers(EDGE, RUNS - EDGE))
                    logs = scale(rng) * draw(rng, RUNS)
                    logs[at:] += np.log1p(change) * rng.choice([1, -1])
                    levels = find_levels(logs)
                    off = [abs(start - at) for start in levels.starts[1:]]
                    mine = bool(off) and change > 0
                    found, near = found + mine, near + (mine and min(off) <= 1)
                    false += len(off) > (change > 0) or levels.slope != 0
                rows.append((name, spread, f"{change:.0%}", SERIES, found, near, false))
            found, near, blamed = clocks(draw, scale)
            rows.append((name, spread, "two clocks", SERIES // 2, found, near, blamed))
    with Path(__file__).with_name("series.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
