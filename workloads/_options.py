"""The command line that all workloads share, and the shapes that it asks for. Without torch, so that it is instant."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _attention import BACKENDS, TOLERANCES

SIZES = {
    "batch": "sequences",
    "heads": "attention heads",
    "seq": "length of a sequence",
    "head_dim": "size of a head",
}
# Not known to argparse: it would add what is given to a list, instead of replacing it.
DEFAULTS: dict[str, list[Any]] = {
    "backend": ["math", "flash"],
    "batch": [1],
    "heads": [8],
    "seq": [1024],
    "head_dim": [64],
}


@dataclass(frozen=True)
class Shape:
    """The sizes of the queries, keys and values of one run."""

    batch: int
    heads: int
    seq: int
    head_dim: int


def parse(
    says: str | None, training: str, training_says: str, argv: Sequence[str] | None
) -> argparse.Namespace:
    """The options of a workload that ``says`` what it is; its flag ``training`` sets `backward`.

    Help and mistakes end the process, as argparse does it. A value that is given twice is there once.
    """
    options = _parser(says, training, training_says).parse_args(argv)
    for name, default in DEFAULTS.items():
        setattr(options, name, list(dict.fromkeys(getattr(options, name) or default)))
    return options


def _parser(says: str | None, training: str, training_says: str) -> argparse.ArgumentParser:
    backends = "\n".join(f"  {name:<14}{each.says}" for name, each in BACKENDS.items())
    parser = argparse.ArgumentParser(
        description=says,
        epilog=f"backends:\n{backends}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    many: dict[str, Any] = {"action": "extend", "nargs": "+"}
    add("--backend", **many, choices=BACKENDS, metavar="NAME", help="one or more (math flash)")
    for name, meaning in SIZES.items():
        flag, said = f"--{name.replace('_', '-')}", f"{meaning}, one or more ({DEFAULTS[name][0]})"
        add(flag, **many, type=_at_least(1), metavar="N", help=said)
    add("--dtype", choices=TOLERANCES, default="fp16", help="type of the tensors (fp16)")
    add("--causal", action=argparse.BooleanOptionalAction, default=True, help="mask the future (--causal)")
    add(training, dest="backward", action="store_true", help=training_says)
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where to run (cuda)")
    add("--warmup", type=_at_least(0), default=5, metavar="N", help="calls before the measured ones (5)")
    add("--iterations", type=_at_least(1), default=20, metavar="N", help="measured calls (20)")
    add("--seed", type=_at_least(0), default=0, metavar="N", help="of the random tensors (0)")
    add("--results", type=Path, metavar="FILE", help="write all numbers as JSON, to a new file")
    add("--force", action="store_true", help="let --results replace a file")
    return parser


def _at_least(smallest: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if not smallest <= value < 2**63:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {smallest} up")
        return value

    return whole_number


def shapes(options: argparse.Namespace) -> Iterator[tuple[str, Shape]]:
    """Every shape that is asked for, with the part of its range names that tells it from the others.

    That is `S1024`, with the batch, the heads and the head dimension where they vary: `B4::H16::S4096::D128`.
    """
    sizes = itertools.product(options.batch, options.heads, options.head_dim, options.seq)
    for batch, heads, head_dim, seq in sizes:
        parts = [
            f"B{batch}" if len(options.batch) > 1 else "",
            f"H{heads}" if len(options.heads) > 1 else "",
            f"S{seq}",
            f"D{head_dim}" if len(options.head_dim) > 1 else "",
        ]
        yield "::".join(filter(None, parts)), Shape(batch, heads, seq, head_dim)
