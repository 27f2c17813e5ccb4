"""Two GPUs: a rank that comes late, and gradients that are reduced in more or fewer pieces.

    python analysis/forecasts/two.py DIR plain tables
    nsysprof capture --no-overhead -o DIR/two -- python analysis/forecasts/two.py DIR profiled
    python analysis/forecasts/two.py DIR outcomes

Each rank trains the MLP of programs.py; a range around its steps has the name of the `Pair` and `-rank0` or `-rank1`.
Forecasts are of rank 0. Without GPUs two processes run it small, with gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import Case, write_rows
from programs import DEVICE, GPU, Program, Variant, calibrate
from run import BEFORE_ROUND, OF_ROUND, OUTCOMES, ROUNDS, STEPS, UNTIMED, timed
from torch import multiprocessing


@dataclass(frozen=True)
class Pair:
    """Two ranks: rank 1 waits ``late_us`` in each step before it begins; gradients are reduced in ``pieces``."""

    late_us: float = 0
    pieces: int = 8

    @property
    def name(self) -> str:
        """Both, as the name of a range begins."""
        return f"late={self.late_us:g}-pieces={self.pieces}"


def pairs() -> Iterator[tuple[Case, Pair, Pair]]:
    """Each question with its base and the change; `Case.base` only names the program that both ranks run."""
    model = Variant("mlp", "train", 32)

    def case(kind: str, base: Pair, changed: Pair, **ask: Any) -> tuple[Case, Pair, Pair]:
        name = f"{base.name}:{changed.name}:{'-'.join(ask)}"
        return Case(name, kind, model, model, tuple(ask.items())), base, changed

    for us in (1000, 4000):
        late = Pair(late_us=us)
        yield case("no-late-peer", late, Pair(), no_late_peer=True)
    for before, after in ((8, 1), (8, 2), (1, 8)):
        swap = [f"STEP/reduce=TABLES/reduce.csv:{after}"]
        yield case("swap", Pair(pieces=before), Pair(pieces=after), swap=swap)


class Rank:
    """One of the two processes, with its programs."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        if GPU:
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if GPU else "gloo", rank=rank, world_size=2)
        calibrate()
        self.programs: dict[Pair, Program] = {}

    def program(self, pair: Pair) -> Program:
        """The program of a pair, made when it is first asked for; gradients are pieces of one buffer."""
        if pair in self.programs:
            return self.programs[pair]
        variant = Variant("mlp", "train", 32, load_us=pair.late_us if self.rank else 0)
        made = Program(variant, f"{pair.name}-rank{self.rank}")
        parameters = list(made.model.parameters())
        flat = torch.zeros(sum(each.numel() for each in parameters), dtype=made.dtype, device=DEVICE)
        for each, piece in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
            each.grad = piece.view_as(each)

        def reduce() -> None:
            for piece in flat.chunk(pair.pieces):
                dist.all_reduce(piece)

        made.reduce = reduce
        self.programs[pair] = made
        return made

    def run(self, pair: Pair, steps: int, untimed: int) -> list[int]:
        """Run steps on both ranks and return the ns of each on this one."""
        program = self.program(pair)
        dist.barrier()
        return program.run(steps, untimed)

    def bases(self, place: Path) -> None:
        """All bases, each once."""
        found = []
        for pair in dict.fromkeys(base for _, base, _ in pairs()):
            times = self.run(pair, STEPS if GPU else 3, UNTIMED if GPU else 1)
            found.append({"range": f"{pair.name}-rank{self.rank}", "status": "measured", "latency_ns": times})
        if not self.rank:
            place.write_text(json.dumps({"schema": "nsysprof-workload/1", "runs": found}))

    def tables(self, folder: Path) -> None:
        """What the reduction alone takes, in a stream that is never empty."""
        found = []
        for pieces in (1, 2, 8):
            program = self.program(Pair(pieces=pieces))
            dist.barrier()
            assert program.reduce is not None
            found.append({"backend": pieces, "median_ns": timed(program.reduce)})
        if not self.rank:
            write_rows(folder / "reduce.csv", ("backend", "median_ns"), found)

    def outcomes(self, folder: Path) -> None:
        """Base and change of each question in turn."""
        found = []
        for case, base, changed in pairs():
            rounds: tuple[list[float], list[float]] = ([], [])
            for number in range(ROUNDS if GPU else 1):
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    times = self.run((base, changed)[which], OF_ROUND if GPU else 2, BEFORE_ROUND)
                    rounds[which].append(statistics.median(times))
            texts = [" ".join(str(round(ns)) for ns in ns_of) for ns_of in rounds]
            medians = [round(statistics.median(ns_of)) for ns_of in rounds]
            found.append(dict(zip(OUTCOMES, (case.name, *medians, *texts, ""), strict=True)))
            if not self.rank:
                write_rows(folder / "two-outcomes.csv", OUTCOMES, found)


def work(rank: int, folder: Path, what: list[str]) -> None:
    """What each process does."""
    me = Rank(rank)
    for each in what:
        begin = time.monotonic()
        if each in ("plain", "profiled"):
            me.bases(folder / f"two-{each}.json")
        else:
            {"tables": me.tables, "outcomes": me.outcomes}[each](folder)
        if not rank:
            print(f"{each}: {time.monotonic() - begin:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", nargs="+", choices=("plain", "profiled", "tables", "outcomes"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519"}
    multiprocessing.spawn(work, (options.folder, options.what), nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
