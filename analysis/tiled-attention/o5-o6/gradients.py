"""Times the gradients of `tiled_o6` and changed builds of them, and checks such a build.

    python analysis/tiled-attention/o5-o6/gradients.py --rounds 25 --output gradients-builds.csv
    python analysis/tiled-attention/o5-o6/gradients.py --check 'fence, each' --small --dtype fp16 --head-dim 64

`--check` runs the cases of tests/kit/tiled_check.py, also under compute-sanitizer. Times are of the three kernels
alone: replays of CUDA graphs in random order, cold L2. Builds of one problem must give the same bits as the first.
"""

from __future__ import annotations

import argparse
import csv
import functools
import random
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "kit"))

import measure
import tiled_check
import torch

import _tiled
import _tiled_backward
from _bench_clock import call_clock

FENCE = "proxy_fence();"
WITHOUT = (f"{FENCE}\n", "\n")  # as the gradients were shipped before: no fence in the copying thread
READ = "if (IN_REGISTERS) barrier_arrive_each(shared + HELD_EMPTY);"
PLACES = "barrier_init(shared + PLACE_EMPTY + 8 * i, 4 * CONSUMERS);"
# The copying thread fills a place again without waiting until it is free, which is a race.
WAIT = "barrier_wait(empty_at(shared, place), place.parity ^ 1);"


def freed(keys: str) -> list[tuple[str, str]]:
    """A build that tells in these words that a place of the ring may be filled again, after threads read it."""
    function = f"template <bool KEYS>\n__device__ __forceinline__ void freed(u32 barrier)\n{{\n    {keys}\n}}\n\n"
    copies = "// Copies a box of the map."
    return [
        (copies, function + copies),
        ("barrier_arrive(empty_at(shared, place))", "freed<KEYS>(empty_at(shared, place))"),
        ("barrier_arrive(before)", "freed<KEYS>(before)"),
    ]


EACH = "if (KEYS) barrier_arrive_each(barrier); else barrier_arrive(barrier);"
ALL = (PLACES, PLACES.replace("4 *", "(KEYS ? WARPGROUP : 4) *"))
HELD = (READ, READ.replace(" barrier", f" {{ {FENCE} barrier") + " }")
BUILDS = {
    "copying thread": [],
    "without": [WITHOUT],
    "fence": [WITHOUT, *freed(f"if (KEYS) {FENCE} barrier_arrive(barrier);"), HELD],
    "each": [WITHOUT, *freed(EACH), ALL],
    "fence, each": [WITHOUT, *freed(f"if (KEYS) {FENCE} {EACH}"), ALL, HELD],
    "planted race": [*freed(EACH), ALL, (WAIT, f"if (!KEYS || !place.parity) {WAIT}")],
}
# Batch, heads, sequence, head dimension, causal, type.
ROWS = [
    (1, 8, 1024, 64, True, "float16"),
    (1, 8, 4096, 64, True, "float16"),
    (4, 16, 4096, 64, True, "float16"),
    (4, 16, 4096, 128, True, "float16"),
    (16, 16, 1024, 128, False, "float16"),
    (2, 16, 8192, 128, True, "bfloat16"),
]


def times(rounds: int, output: Path) -> None:
    """Time all builds but the planted race in all problems."""
    replay = call_clock("cuda", warm_cache=False).replay
    load = _tiled_backward._functions.__wrapped__
    folders = {
        name: measure.changed(pairs, "tiled_o6_backward") for name, pairs in BUILDS.items() if name[:7] != "planted"
    }
    own = _tiled.KERNELS
    assert replay

    @functools.cache  # and kept: a graph does not keep what it launches
    def compiled(name: str, *which: Any) -> list[Any]:
        _tiled.KERNELS = folders[name]
        functions: list[Any] = load(*which)
        _tiled.KERNELS = own
        return functions

    with output.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("problem", "build", "samples", "median_us", "low_us", "high_us"))
        for batch, heads, seq, head_dim, causal, dtype in ROWS:
            size, kind = (batch, heads, seq, head_dim), getattr(torch, dtype)
            q, k, v, grad_out = (torch.randn(size, device="cuda").to(kind) for _ in range(4))
            out, log = _tiled.prepare("tiled_o6", causal=causal, log_sum_exp=True)(q, k, v)
            graphs, written = {}, []  # memory that graphs write to: without this, the next capture would give it back
            for name in folders:
                functions = compiled(name, str(kind), head_dim, q.get_device())
                _tiled_backward._functions = lambda *_, functions=functions: functions  # type: ignore[assignment]
                found = [torch.full_like(each, float("nan")) for each in (q, k, v)]
                graphs[name], _ = measure.captured(
                    functools.partial(_tiled_backward.launch, (q, k, v, out, log, grad_out), found, causal, 0)
                )
                written.append(found)
                assert all(map(torch.equal, found, written[0])), f"{name} computes something else"
            samples: dict[str, list[float]] = {name: [] for name in graphs}
            for _ in range(rounds):
                for name in random.sample(list(graphs), len(graphs)):
                    samples[name].append(replay(graphs[name]) / 1e3)
            label = f"B{batch} H{heads} S{seq} D{head_dim} {'causal' if causal else 'full'} {measure.SHORT[dtype]}"
            for name, each in samples.items():
                low, middle, high = statistics.quantiles(each, n=4)
                table.writerow((label, name, rounds, f"{middle:.1f}", f"{low:.1f}", f"{high:.1f}"))
                measure.say(f"{label}: {name} {middle:.1f} ({low:.1f}-{high:.1f})")
            file.flush()


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", choices=BUILDS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--head-dim", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--output", type=Path, default=Path("gradients-builds.csv"))
    at = parser.parse_args()
    if not at.check:
        times(at.rounds, at.output)
        return 0
    _tiled.KERNELS = measure.changed(BUILDS[at.check], "tiled_o6_backward")
    _, wrong = tiled_check.check_stage("tiled_o6", small=at.small, dtype=at.dtype, head_dim=at.head_dim, backward=True)
    measure.say("\n".join(wrong[:20]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
