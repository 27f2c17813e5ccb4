"""What runs on the GPU: the bases for their recording, what is measured apart, and the outcomes.

    python analysis/forecasts/run.py DIR plain tables pilot
    nsysprof capture --no-overhead -o DIR/bases -- python analysis/forecasts/run.py DIR profiled
    python analysis/forecasts/run.py DIR outcomes

All programs run one after the other in one process: `plain` and `profiled` the bases alone, those of the pilot too,
`outcomes` base and change of each case in turn, and `pilot` those of the pilot. Without a GPU they run small, and their
numbers mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cases import bases, cases, write_rows
from programs import DEVICE, GPU, Program, Variant, calibrate, move_to_quick_cores, probe

PASSES, STEPS, UNTIMED = 4, 8, 4
ROUNDS, OF_ROUND, BEFORE_ROUND = 5, 8, 2
QUICK = 1.3  # times the shortest loop
OUTCOMES = ("case", "base_ns", "outcome_ns", "base_rounds_ns", "outcome_rounds_ns", "error")


class Batches:
    """Batches of steps, each where cores are quick; which are kept are those that were quick to the end.

    ``best`` is the shortest loop so far, in µs.
    """

    def __init__(self) -> None:
        self.best = float("inf")
        self.found: dict[Variant, list[tuple[bool, list[int]]]] = {}

    def run(self, program: Program, steps: int, untimed: int) -> None:
        """Run a batch; without a GPU where it is."""
        before = move_to_quick_cores() if GPU else 0.0
        times = program.run(steps, untimed)
        slowest = max(before, probe(), probe())
        self.best = min(self.best, slowest)
        self.found.setdefault(program.variant, []).append((slowest < QUICK * self.best, times))

    def of(self, variant: Variant) -> list[list[int]]:
        """The batches of a variant that were quick, at least two, or all."""
        every = self.found.pop(variant)
        quick = [times for quick, times in every if quick]
        return quick if len(quick) > 1 else [times for _, times in every]


def run_bases(place: Path) -> None:
    """Run all bases in turn, several times, and write what the steps of each took."""
    programs = [Program(variant) for variant in bases()]
    batches = Batches()
    for number in range(PASSES if GPU else 1):
        for program in programs:
            batches.run(program, STEPS if GPU else 3, BEFORE_ROUND if number else UNTIMED)
    found = []
    for program in programs:
        program.stopped.set()
        every = len(batches.found[program.variant])
        kept = batches.of(program.variant)
        times = [ns for times in kept for ns in times]
        found.append({"range": program.variant.name, "status": "measured", "latency_ns": times,
                      "batches": every, "kept": len(kept)})  # fmt: skip
    place.write_text(json.dumps({"schema": "nsysprof-workload/1", "runs": found}))


def run_tables(folder: Path) -> None:
    """Measure the fused optimizer alone as a CUDA graph, and copies from pinned memory; and what is absent, as 0 ns."""
    optimizers, copies = [], []
    for each in (*cases(), *cases(pilot=True)):
        if each.changed.fused:
            program = Program(each.changed)
            program.run(2, 1)
            optimizers.append({"backend": each.changed.name, "median_ns": timed(graph_of(program))})
        if each.kind == "async-copies":
            program = Program(each.changed)
            host = program.batch()
            host = host.pin_memory() if GPU else host
            copies.append({"base": each.base.name, "ns": timed(lambda host=host: host.to(DEVICE, non_blocking=True))})
    write_rows(folder / "optimizer.csv", ("backend", "median_ns"), optimizers)
    write_rows(folder / "copies.csv", ("base", "ns"), copies)
    write_rows(folder / "absent.csv", ("backend", "median_ns"), [{"backend": "none", "median_ns": 0}])


def graph_of(program: Program) -> Callable[[], object]:
    """The optimizer's part of a step, as a CUDA graph."""

    def work() -> None:
        assert program.optimizer is not None
        program.optimizer.step()
        program.optimizer.zero_grad(set_to_none=False)

    if not GPU:
        return work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def timed(work: Callable[[], object], count: int = 30) -> int:
    """The median ns of some work, by events in a stream that is never empty."""
    if not GPU:
        begin = time.perf_counter_ns()
        work()
        return time.perf_counter_ns() - begin
    for _ in range(3):
        work()
    torch.cuda._sleep(20_000_000)  # type: ignore[attr-defined]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return round(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e6)


def run_outcomes(folder: Path, pilot: bool) -> None:
    """Run base and change of each case in turn, and write both medians; a program that fails is written down so."""
    programs: dict[Variant, Program] = {}
    every = [each for each in cases(pilot) if not each.refused]
    last = {variant: at for at, each in enumerate(every) for variant in (each.base, each.changed)}
    found, batches = [], Batches()
    for at, each in enumerate(every):
        pair = each.base, each.changed
        try:
            for variant in pair:
                if variant not in programs:
                    programs[variant] = Program(variant)
                    programs[variant].run(3, UNTIMED if GPU else 1)
            for number in range(ROUNDS if GPU else 1):
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    batches.run(programs[pair[which]], OF_ROUND if GPU else 2, BEFORE_ROUND if GPU else 0)
            rounds = [[statistics.median(times) for times in batches.of(variant)] for variant in pair]
            texts = [" ".join(str(round(ns)) for ns in ns_of) for ns_of in rounds]
            medians = [round(statistics.median(ns_of)) for ns_of in rounds]
            found.append(dict(zip(OUTCOMES, (each.name, *medians, *texts, ""), strict=True)))
        except Exception as error:  # the other cases count all the same
            print(f"{each.name}: {error}", file=sys.stderr)
            found.append({"case": each.name, "error": str(error).splitlines()[0][:200]})
        for variant in pair:
            if last[variant] == at and variant in programs:
                programs.pop(variant).stopped.set()
        write_rows(folder / f"{'pilot-' if pilot else ''}outcomes.csv", OUTCOMES, found)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="+", choices=("plain", "profiled", "tables", "outcomes", "pilot"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    calibrate()
    for what in options.what:
        begin = time.monotonic()
        if what in ("plain", "profiled"):
            run_bases(options.folder / f"{what}.json")
        elif what == "tables":
            run_tables(options.folder)
        else:
            run_outcomes(options.folder, what == "pilot")
        print(
            f"{what}: {time.monotonic() - begin:.1f} s on {torch.cuda.get_device_name() if GPU else 'a CPU'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
