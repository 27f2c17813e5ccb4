"""How many steps of steady programs `nsysprof steps` calls slow: simulated times, by source and number of steps.

    python analysis/slow-steps/false_alarms.py -o analysis/slow-steps/false_alarms.csv

Prints the table of docs/steps.md. No report is read: `judge` is given times alone, and the class of the GPU's clock,
which only takes slow steps away, is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.statistics.judge import SLOW, judge

Source = Callable[[np.random.Generator, int], NDArray[np.float64]]
TYPICAL_NS, SEED, STEPS = 10_000_000, 19, 20_000
COUNTS = (20, 50, 100, 300, 1000)


def autoregression(phi: float) -> Source:
    """Logarithms of which each keeps a part ``phi`` of the one before."""

    def draw(random: np.random.Generator, count: int) -> NDArray[np.float64]:
        noise = random.standard_normal(count + 200) * np.sqrt(1 - phi**2)
        for at in range(1, len(noise)):
            noise[at] += phi * noise[at - 1]
        return 0.02 * noise[200:]

    return draw


def two_kinds(share: float) -> Source:
    """A ``share`` of the steps takes 22 % longer, by chance."""
    return lambda random, count: 0.01 * random.standard_normal(count) + 0.2 * (random.random(count) < share)


SOURCES: dict[str, Source] = {
    "normal": lambda random, count: 0.02 * random.standard_normal(count),
    "Laplace": lambda random, count: 0.02 * random.laplace(size=count),
    "Student's t, 3 degrees": lambda random, count: 0.02 * random.standard_t(3, count),
    "Student's t, 2 degrees": lambda random, count: 0.02 * random.standard_t(2, count),
    "lognormal delays": lambda random, count: np.log1p(0.05 * random.lognormal(size=count)),
    "autoregression, 0.5": autoregression(0.5),
    "autoregression, 0.9": autoregression(0.9),
    "two kinds, 50 %": two_kinds(0.5),
    "two kinds, 30 %": two_kinds(0.3),
    "two kinds, 15 %": two_kinds(0.15),
    "drift of 35 %": lambda random, count: 0.01 * random.standard_normal(count) + np.linspace(0, 0.3, count),
    "every 4th 35 % longer": lambda random, count: (
        0.01 * random.standard_normal(count) + 0.3 * (np.arange(count) % 4 == 0)
    ),
    "clock of 32 ns, 5 µs steps": lambda random, count: np.log(
        (5000 + 32 * np.rint(2 * random.standard_normal(count))) / TYPICAL_NS
    ),
}


def rates(steps: int = STEPS, counts: tuple[int, ...] = COUNTS) -> Iterator[dict[str, Any]]:
    """For each source and number of steps how many of 100 are called slow, of about ``steps`` in all."""
    for number, (name, source) in enumerate(SOURCES.items()):
        for count in counts:
            random = np.random.default_rng([SEED, number, count])
            runs = max(steps // count, 5)
            slow = 0
            for _ in range(runs):
                span = np.rint(TYPICAL_NS * np.exp(source(random, count))).astype(np.int64)
                slow += int((judge(span).of == SLOW).sum())
            yield {
                "source": name,
                "steps": count,
                "runs": runs,
                "slow": slow,
                "per_100": round(100 * slow / runs / count, 2),
            }


def main() -> None:
    """Simulate, print the table, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = pd.DataFrame(rates())
    table = rows.pivot_table(index="source", columns="steps", values="per_100", sort=False)
    for name, values in table.iterrows():
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    if options.output:
        rows.to_csv(options.output, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
