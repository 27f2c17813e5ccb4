"""Targets of a benchmark: how much faster one backend must be than another, and with which effect size."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from nsysprof.bench.results import BenchResults
from nsysprof.bench.words import ratio_cell
from nsysprof.errors import NsysprofError
from nsysprof.statistics.contrast import TOO_FEW_SAMPLES

_FORM = re.compile(
    r"(?:(eager|graph):)?([^/\s:]+)/([^/\s:]+?)\s*>=\s*(\d+(?:\.\d+)?)(?:\s*,\s*delta\s*>=\s*(0?\.\d+|[01]))?"
)
_SAID = "--target 'flash/math>=1.10', 'graph:flash/math>=1.10', or 'flash/math>=1.10,delta>=0.3'"


@dataclass(frozen=True)
class Target:
    """``new`` is ``speedup`` times as fast as ``base`` at every shape, with a Cliff's delta of at least ``delta``."""

    text: str
    kind: str
    new: str
    base: str
    speedup: float
    delta: float


def read_targets(texts: Sequence[str], backends: Collection[str]) -> list[Target]:
    """Parse targets such as `flash/math>=1.10`; without a delta, any delta is accepted.

    Raises `NsysprofError` for any other text, and for a backend that is not in the benchmark.
    """
    targets = []
    for text in texts:
        found = _FORM.fullmatch(text.strip())
        if not found:
            raise NsysprofError(f"not a target: {text!r}", _SAID)
        kind, new, base, speedup, delta = found.groups()
        for name in (new, base):
            if name not in backends:
                raise NsysprofError(f"{text}: backend {name!r} was not measured", f"backends: {', '.join(backends)}")
        targets.append(Target(text.strip(), kind or "eager", new, base, float(speedup), float(delta or 0)))
    return targets


def missed_targets(results: BenchResults, targets: Sequence[Target]) -> Iterator[str]:
    """Yield a line for each shape at which a target is missed, or for which there is too little data.

    A target is met if the lower end of the interval of the speed-up reaches the target, and Cliff's delta is as large
    as required.
    """
    for target in targets:
        for configuration, label in results.labels.items():
            where = f"{target.text} at {label or configuration}"
            pair = results.speedup(configuration, target.base, target.new, target.kind)
            if pair is None:
                yield f"{where}: no comparison, because one of the backends was not measured"
            elif pair["verdict"] == TOO_FEW_SAMPLES:
                yield f"{where}: too few samples to tell"
            elif not pair["speedup_low"] >= target.speedup:
                yield f"{where}: {ratio_cell(pair)}"
            elif abs(pair["delta"]) < target.delta:
                yield f"{where}: {ratio_cell(pair)}, but delta {abs(pair['delta']):.2f}"
