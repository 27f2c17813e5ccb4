"""Plants slow steps into programs on a GPU, to be recorded: five kinds, three doses, at random places; and clean runs.

    nsysprof capture --no-overhead -o DIR/steps -- python analysis/slow-steps/recorded.py DIR/planted.json
    python analysis/slow-steps/recorded.py DIR/planted.json --judge DIR/steps.sqlite

Two programs read their loss in each step: `steady` waits for the GPU, `launches` for the host, whose speed changes on a
machine that others share. Of each the ranges `…-planted-0` and `…-planted-1` hold 200 steps, 15 of them with something
planted, and `…-clean-0` and `…-clean-1` as many without. `--judge` asks `nsysprof steps` about the report, writes
recorded.csv and prints the tables of README.md.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "forecasts"))

import programs  # noqa: E402
from cases import write_rows  # noqa: E402

RUNS = ("clean-0", "planted-0", "clean-1", "planted-1")
BYTES_OF_US = 50_000  # about, of a copy from pinned memory
STEPS, SEED = 200, 19
DOSES = (0.1, 0.3, 1.0)  # of a step
KINDS = {  # and what a named culprit has in it
    "sleep": "nanosleep in data",
    "code": "code in augment",
    "allocator": "cuda",
    "kernel": "spin",
    "copy": "memcpy HtoD",
}
COLUMNS = ("run", "step", "kind", "dose", "planted_ns", "found", "excess_ns", "cause", "culprit", "named")


class Planted:
    """A program of analysis/forecasts whose steps can have something planted."""

    def __init__(self, model: str, mode: str, batch: int) -> None:
        import torch

        self.program = programs.Program(programs.Variant(model, mode, batch))
        host = torch.empty(256 << 20 if programs.GPU else 1 << 20, dtype=torch.uint8)
        self.host = host.pin_memory() if programs.GPU else host
        self.room = self.host.to(programs.DEVICE)

    def step(self, number: int, kind: str = "", us: float = 0) -> float:
        """A step, with something that takes ``us``; returns what it takes, in µs."""
        begin = time.perf_counter_ns()
        with programs.named(f"step{number}"):
            with programs.named("data"):
                x = next(self.program.loader)
                if kind == "sleep":
                    time.sleep(us / 1e6)
            if kind == "code":
                with programs.named("augment"):
                    programs.busy(us)
            if kind == "allocator":
                self.allocate(us)
            loss = self.program.work(x)
            with programs.named("loss"):  # behind all that the GPU does, so that nothing hides it
                if kind == "kernel" and programs.GPU:
                    programs.spin(us)
                if kind == "copy":
                    count = min(int(us * BYTES_OF_US), len(self.room))
                    self.room[:count].copy_(self.host[:count], non_blocking=True)
                loss.item()
        return (time.perf_counter_ns() - begin) / 1e3

    def allocate(self, us: float) -> None:
        """Allocate and free memory for so long."""
        if not programs.GPU:
            return
        from cupy.cuda import runtime

        end = time.perf_counter_ns() + us * 1e3
        with programs.named("allocate"):
            while time.perf_counter_ns() < end:
                runtime.free(runtime.malloc(1 << 24))


def record(place: Path) -> None:
    """Run all steps, and write what was planted where."""
    programs.calibrate()
    if programs.GPU:
        programs.move_to_quick_cores()
    planted: list[dict[str, Any]] = []
    order, count = random.Random(SEED), STEPS if programs.GPU else 30
    for name, program in (("steady", Planted("mlp", "forward", 512)), ("launches", Planted("mlp", "train", 8))):
        with programs.named("warm-up"):
            usual = statistics.median([program.step(number) for number in range(40)][-20:])
            for kind in KINDS:  # the first of each is slow for other reasons
                program.step(40, kind, 100)
        for run in RUNS:
            doses = [(kind, dose) for kind in KINDS for dose in DOSES] if run.startswith("planted") else []
            places = dict(zip(order.sample(range(10, count), len(doses)), doses, strict=True))
            with programs.named(f"{name}-{run}"):
                for number in range(count):
                    kind, dose = places.get(number, ("", 0.0))
                    program.step(number, kind, dose * usual)
            for number, (kind, dose) in sorted(places.items()):
                planted.append({"run": f"{name}-{run}", "step": number, "kind": kind, "dose": dose,
                                "planted_ns": round(dose * usual * 1e3)})  # fmt: skip
    place.write_text(json.dumps({"planted": planted}, indent=1) + "\n")


def judge(place: Path, report: Path) -> None:
    """Ask `nsysprof steps` which steps are slow and whom it blames."""
    import nsysprof

    document = json.loads(place.read_text())
    found: list[dict[str, Any]] = []
    print("| run | steps | slow from | planted | found | others called slow |\n|---|---:|---:|---:|---:|---:|")
    with nsysprof.open_report(report) as opened:
        attribution = nsysprof.attribute(opened)
        for run in (f"{name}-{run}" for name in ("steady", "launches") for run in RUNS):
            answer = nsysprof.steps(attribution, f"{run}/step*")
            slow = answer.steps[answer.steps["class"] == "slow"].set_index("step")
            mine = [row for row in document["planted"] if row["run"] == run]
            others = set(slow.index) - {row["step"] for row in mine}
            limit = max(chain.judgement.limit for chain in answer.chains)
            hits = len(slow) - len(others)
            print(f"| {run} | {len(answer.steps)} | {limit:.2f}x | {len(mine)} | {hits} | {len(others)} |")
            for row in mine:
                got = slow.loc[row["step"]] if row["step"] in slow.index else None
                cells = {} if got is None else {name: got[name] for name in ("excess_ns", "cause", "culprit")}
                named = "" if got is None else int(KINDS[row["kind"]] in f"{got['culprit']}")
                found.append({**row, "found": int(got is not None), "named": named, **cells})
    write_rows(HERE / "recorded.csv", COLUMNS, found)
    for program in ("steady", "launches"):
        for title, keys in (("kind", [*KINDS]), ("dose", [*DOSES])):
            print(f"\n| {program}: {title} | found | named of the found |\n|---|---:|---:|")
            for key in keys:
                some = [row for row in found if row[title] == key and row["run"].startswith(program)]
                hits = sum(row["found"] for row in some)
                print(f"| {key} | {hits} / {len(some)} | {sum(row['named'] or 0 for row in some)} of {hits} |")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("planted", type=Path)
    parser.add_argument("--judge", type=Path, metavar="REPORT")
    options = parser.parse_args()
    if options.judge:
        judge(options.planted, options.judge)
    else:
        record(options.planted)


if __name__ == "__main__":
    main()
