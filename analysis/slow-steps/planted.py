"""Plants slow steps into made reports, and counts which `nsysprof steps` finds, and whom it blames: planted.csv.

    python analysis/slow-steps/planted.py -o analysis/slow-steps

Prints the tables of README.md. Reports are made by tests/kit/program.py, a made-up GPU and host that keep time: 300
steps of a small training loop that reads its loss in each step, in three kinds of noise, with 24 slow steps at random
places, one of each kind and dose. The shipped reports, which nobody planted anything in, are judged too: shipped.csv.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # of the kit of the tests

import nsysprof  # noqa: E402
from nsysprof.charts.chart import save_charts  # noqa: E402
from nsysprof.steps.charts import CHARTS  # noqa: E402
from tests.kit.program import MS, US, Program  # noqa: E402
from tests.kit.trace import write  # noqa: E402

STEPS, REPORTS, SEED = 300, 4, 19
STEP_NS = 1_040 * US  # what a step takes without noise, about
DOSES = (0.05, 0.1, 0.3, 1.0)  # of a step
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KINDS = {
    "host": "futex in data",
    "synchronization": "cudaDeviceSynchronize in loss",
    "allocator": "cudaMalloc in forward",
    "kernel": "gemm_2",
    "copy": "memcpy HtoD pinned of 1.00 MiB in data",
    "communication": "ncclDevKernel_AllReduce_Sum_f32_RING_LL in forward",
}
SHIPPED = (
    "traces/run.sqlite",
    "traces/block.sqlite",
    "traces/two-processes.sqlite",
    "analysis/two-ranks/rank_0.sqlite",
    "analysis/two-ranks/rank_1.sqlite",
    "analysis/tiled-attention/tiled.sqlite",
)


def autoregression(random: np.random.Generator) -> np.ndarray:
    """Normal noise of 1 %, of which each step keeps 0.7 of the one before."""
    noise = random.standard_normal(STEPS) * 0.01 * np.sqrt(1 - 0.7**2)
    for at in range(1, STEPS):
        noise[at] += 0.7 * noise[at - 1]
    return noise


NOISES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal, 1 %": lambda random: 0.01 * random.standard_normal(STEPS),
    "autoregression, 1 %": autoregression,
    "heavy tails (t, 3 degrees), 1 %": lambda random: 0.01 * random.standard_t(3, STEPS),
}


def program(planted: dict[int, tuple[str, int]], noise: np.ndarray, random: np.random.Generator) -> Program:
    """A loop that loads, computes, reduces and reads its loss; ``planted``: kind and ns of slow steps."""
    made = Program()
    for step in range(STEPS):
        kind, ns = planted.get(step, ("", 0))
        factor = float(np.exp(noise[step]))

        def takes(usual: int, kind_of: str = "", factor: float = factor, kind: str = kind, ns: int = ns) -> int:
            return round(usual * factor * random.uniform(0.998, 1.002)) + (ns if kind == kind_of else 0)

        with made.range(f"step {step}"):
            with made.range("data"):
                made.code(takes(120 * US))
                made.os("futex", takes(20 * US, "host"))
                made.copy(1, 1 << 20, takes(50 * US, "copy"))
            with made.range("forward"):
                made.call("cudaMalloc", takes(5 * US, "allocator"))
                for at in range(12):
                    made.launch(f"gemm_{at % 4}", takes(60 * US, "kernel" if at == 6 else "none"))
                made.launch(NCCL, takes(80 * US, "communication"))
            with made.range("loss"):
                made.copy(2, 4, 2 * US)
                made.wait()
                made.call("cudaDeviceSynchronize", takes(4 * US, "synchronization"))
    return made


def rows(folder: Path, picture: Path) -> Iterator[dict[str, Any]]:
    """A row per planted step, and one per step that was called slow and has nothing planted; draws the first report."""
    for name, noise in NOISES.items():
        for number in range(REPORTS):
            random = np.random.default_rng([SEED, number, len(name)])
            places = random.choice(np.arange(10, STEPS), len(KINDS) * len(DOSES), replace=False).tolist()
            doses = [(kind, dose) for kind in KINDS for dose in DOSES]
            planted = dict(zip(places, doses, strict=True))
            of_steps = {step: (kind, round(dose * STEP_NS)) for step, (kind, dose) in planted.items()}
            path = folder / f"planted-{number}.sqlite"
            path.unlink(missing_ok=True)
            write(path, program(of_steps, noise(random), random).items)
            with nsysprof.open_report(path) as report:
                answer = nsysprof.steps(nsysprof.attribute(report))
            [chain], judged = answer.chains, answer.steps
            if not number and name == next(iter(NOISES)):
                save_charts(CHARTS, answer, picture)
            limit = chain.judgement.limit
            slow = judged[judged["class"] == "slow"].set_index("step")
            for step, (kind, dose) in sorted(planted.items()):
                found = step in slow.index
                named = found and slow.loc[step, "culprit"] == KINDS[kind]
                off = abs(int(slow.loc[step, "excess_ns"]) - of_steps[step][1]) / STEP_NS if found else np.nan
                yield {"noise": name, "report": number, "step": step, "kind": kind, "dose": dose, "found": int(found),
                       "named": int(named), "off_by": off, "slow_from": limit}  # fmt: skip
            for step in sorted({*slow.index} - {*planted}):
                yield {"noise": name, "report": number, "step": step, "kind": "none", "dose": 0.0, "found": 1,
                       "named": 0, "off_by": np.nan, "slow_from": limit}  # fmt: skip


def shipped() -> Iterator[dict[str, Any]]:
    """A row per path of the shipped reports: its steps, warm-up, and how many of the others are called slow."""
    for file in SHIPPED:
        with nsysprof.open_report(ROOT / file) as report:
            answer = nsysprof.steps(nsysprof.attribute(report))
        for chain in answer.chains:
            yield {"report": file, "path": chain.path, "gpu": chain.gpu, "steps": len(chain.span),
                   "warm_up": chain.judgement.warm_up, "slow": round(chain.slow_share * chain.judged),
                   "slow_from": round(chain.judgement.limit, 3)}  # fmt: skip


def main() -> None:
    """Plant, judge, print the tables, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = pd.DataFrame(rows(Path(folder), options.output))
    real = pd.DataFrame(shipped())
    table.to_csv(options.output / "planted.csv", index=False, float_format="%.3g")
    real.to_csv(options.output / "shipped.csv", index=False)
    mine = table[table["kind"] != "none"]
    for noise, group in mine.groupby("noise", sort=False):
        cells = [f"{each['found'].sum()} / {len(each)}" for _, each in group.groupby("dose")]
        named, found = int(group["named"].sum()), int(group["found"].sum())
        false = int(((table["kind"] == "none") & (table["noise"] == noise)).sum())
        clean = REPORTS * STEPS - len(group)
        print(
            f"| {noise} | {' | '.join(cells)} | {named} of {found} | {false} of {clean} |"
            f" {found / (found + false):.2f} |"
        )
    print()
    for kind, group in mine.groupby("kind", sort=False):
        cells = [f"{each['found'].sum()} / {len(each)}" for _, each in group.groupby("dose")]
        print(f"| {kind} | {' | '.join(cells)} | {int(group['named'].sum())} of {int(group['found'].sum())} |")
    print()
    for report, group in real.groupby("report", sort=False):
        judged = int((group["steps"] - group["warm_up"]).sum())
        print(f"| `{report}` | {len(group)} | {judged} | {int(group['warm_up'].sum())} | {int(group['slow'].sum())} |")


assert MS == 1000 * US
if __name__ == "__main__":
    main()
