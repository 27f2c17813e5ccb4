"""The questions of the track record: of which program each is asked, and which program has the change.

    python analysis/forecasts/cases.py [--pilot]

lists them. The pilot's programs have other sizes: on them the model was mended before the first forecast that counts.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from programs import Variant

HERE = Path(__file__).parent
PARTS = ("norm", "qkv", "attention", "proj", "up", "gelu", "down", "head", "side")


@dataclass(frozen=True)
class Case:
    """A question: ``ask`` are the changes as `nsysprof.forecast` takes them, of ``base``; ``changed`` is the outcome.

    In their texts `STEP` stands for the path of the base's steps, `TABLES` for the folder of what was measured apart,
    `COPY` for what its copy takes from pinned memory. ``refused``: it must have no forecast.
    """

    name: str
    kind: str
    base: Variant
    changed: Variant
    ask: tuple[tuple[str, Any], ...]
    refused: bool = False


def case(kind: str, base: Variant, name: str = "", refused: bool = False, ask: Any = (), **change: Any) -> Case:
    """A case that is named after its base and what changes."""
    words = name or "-".join(f"{key}" if value is True else f"{key}={value}" for key, value in change.items())
    return Case(f"{base.name}:{words}", kind, base, replace(base, **change), tuple(ask.items()), refused)


def cases(pilot: bool = False) -> Iterator[Case]:
    """All cases: those that count, or those of the pilot."""
    small, middle = (4, 4) if pilot else (1, 8)
    block, gpt = Variant("block", "train", middle), Variant("gpt", "forward", middle)
    for base in graphed(pilot):
        yield case("graph", base, graph=True, ask={"graph": ["STEP"]})
    for base in (block, gpt):
        for us in (50, 200) if pilot else (5, 20, 100, 500):
            yield case("gpu-delay", base, spin_us=us, ask={"gpu_delay": [f"STEP/forward/layer3={us}us"]})
    side = replace(gpt, spin_us=400 if pilot else 500, slack=True)
    for times in (2, 6) if pilot else (2, 4, 8):
        yield case("kernel", side, spin_us=times * side.spin_us, ask={"scale": [f"*spin*={times}"]})
    for base, delays in (
        (block, (1000,) if pilot else (20, 500, 5000)),
        (gpt, (300, 3000) if pilot else (100, 500, 2000, 5000, 10000)),
    ):
        for us in delays:
            yield case("delay", base, host_us=us, ask={"delay": [f"STEP/forward/layer3={us}us"]})
    yield from swaps(pilot, gpt)
    for base in (block, gpt) if pilot else (replace(block, model="mlp"), block, gpt, replace(gpt, mode="decode")):
        yield case("drop-sync", replace(base, item=True), item=False, ask={"drop_sync": ["STEP/loss"]})
    yield from data(pilot, block, gpt)
    yield from absences(pilot, gpt, small)
    if not pilot:
        yield case("none", block, batch=16, refused=True, ask={"scale": ["*=2"]})
        yield case("none", block, "another GPU", refused=True, ask={"swap": ["TABLES/other-gpu.sqlite"]})


def graphed(pilot: bool) -> Iterator[Variant]:
    """The programs that are captured as a CUDA graph."""
    kinds = (("mlp", "train"), ("block", "train"), ("gpt", "forward"), ("gpt", "decode"), ("block", "forward"))
    for model, mode in kinds[: 4 if pilot else None]:
        for batch in (4,) if pilot else (1, 8, 32):
            yield Variant(model, mode, batch)
    for batch in (2,) if pilot else (1, 4):
        yield Variant("gpt", "train", batch)


def swaps(pilot: bool, gpt: Variant) -> Iterator[Case]:
    """Other backends of attention, with the times of a bench; and the fused optimizer, with that of its graph alone."""
    pairs = [("math", "flash"), ("flash", "cudnn")]
    more = [("math", "efficient"), ("flash", "tiled_o4"), ("tiled_o4", "tiled_o5")]
    block = Variant("block", "forward", 8, length=1024)
    for base, heads, some in ((gpt, 12, pairs if pilot else pairs + more), (block, 8, pairs)):
        for old, new in some if base is gpt or not pilot else ():
            row = f"B{base.batch}.H{heads}.S1024.D64.fp16.causal/{new}"
            ask = {"swap": [f"STEP/forward/layer*/attention=TABLES/bench.csv:{row}"]}
            yield case("swap", replace(base, backend=old), backend=new, ask=ask)
    trained = (("block", 4),) if pilot else (("mlp", 8), ("block", 8), ("gpt", 1))
    for model, batch in trained:
        base = Variant(model, "train", batch)
        row = replace(base, fused=True).name
        yield case("swap", base, fused=True, ask={"swap": [f"STEP/optimizer=TABLES/optimizer.csv:{row}"]})


def data(pilot: bool, block: Variant, gpt: Variant) -> Iterator[Case]:
    """Copies from pinned memory, copies ahead of use, and a loader that works ahead."""
    for mode, batch in (("forward", 16),) if pilot else (("forward", 64), ("train", 32)):
        copied = Variant("mlp", mode, batch, copy=True)
        pinned = replace(copied, pinned=True)
        ask: dict[str, Any] = {"async_copies": True, "set": ["*memcpy HtoD*=COPY"]}
        yield case("async-copies", copied, pinned=True, ask=ask)
        yield case("remove", pinned, prefetch=True, ask={"remove": ["memcpy HtoD*"]})
    loading = (block,) if pilot else (replace(block, model="mlp"), replace(block, mode="forward"), gpt)
    for base in loading:
        yield case("remove", replace(base, load_us=2000.0), threaded=True, ask={"remove": ["*sleep*"]})


def absences(pilot: bool, gpt: Variant, small: int) -> Iterator[Case]:
    """Parts of a GPT that are left out, where the GPU is what a step waits for, and where the host is."""
    busy = replace(gpt, spin_us=1000, slack=True)
    late = Variant("gpt", "forward", small, length=128, spin_us=1000, slack=True)
    for base in (busy, late):
        for part in ("norm", "attention", "gelu", "side") if pilot else PARTS:
            if part == "up":
                continue  # what comes behind it would have another shape
            where = "STEP/forward/head" if part == "head" else f"STEP/forward/layer*/{part}"
            ask = {"swap": [f"{where}=TABLES/absent.csv:none"]} if part != "side" else {"set": ["*spin*=0us"]}
            yield case("absent", base, without=part, ask=ask)


def bases() -> list[Variant]:
    """The programs that are recorded, each once; those of the pilot too."""
    return list(dict.fromkeys(each.base for each in (*cases(), *cases(pilot=True))))


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none where it is not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, columns: Sequence[str], found: Sequence[dict[str, Any]]) -> None:
    """Write a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    for each in cases("--pilot" in sys.argv):
        print(each.kind, each.name, dict(each.ask))
