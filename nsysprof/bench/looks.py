"""How the charts of a benchmark tell backends and dtypes apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import pandas as pd

from nsysprof.bench.results import BenchResults
from nsysprof.charts.palette import INK

# Colour and marker of each backend. Colours are told apart by readers of all kinds (a test measures it); where lines
# lie on each other, markers tell them. Other backends get what is free (`backend_looks`).
LOOKS = {
    "math": ("#c44916", "o"),
    "flash": ("#0127bb", "s"),
    "efficient": ("#06976b", "^"),
    "cudnn": ("#773a82", "D"),
    "naive": ("#b5b700", "v"),
    "math_reduced": ("#7b1b17", "P"),
    "flex": ("#4cbfff", "X"),
    "flash_attn": ("#e46bb0", "p"),
    "auto": (INK, "x"),
    "tiled_o0": ("#460046", "<"),
    "tiled_o1": ("#fac86e", ">"),
    "tiled_o2": ("#96c88c", "d"),
    "tiled_o3": ("#a064fa", "H"),
    "tiled_o4": ("#e60abe", "*"),
    "tiled_o5": ("#460078", "8"),
}
OTHER_LOOK = ("#4e4e4e", "h")
_DASHES = ("solid", "dashed", "dash-dotted")  # a dtype after the other


def backend_looks(results: BenchResults) -> dict[str, tuple[str, str]]:
    """The colour and the marker of each backend of a run, no two alike.

    A backend that has no look of its own gets one of another's that was not measured; after these, other pairs.
    """
    backends = dict.fromkeys(str(name) for name in results.results["backend"])
    free = [OTHER_LOOK, *(look for name, look in LOOKS.items() if name not in backends)]
    known = [*LOOKS.values(), OTHER_LOOK]
    pairs = ((colour, marker) for _, marker in known for colour, _ in known if (colour, marker) not in known)
    others = chain(free, pairs)
    return {name: LOOKS.get(name) or next(others) for name in backends}


def backend_legend(results: BenchResults, backends: Iterable[str]) -> list[tuple[str, str]]:
    """Legend entries of backends."""
    looks = backend_looks(results)
    return [(name, looks[name][0]) for name in backends]


def dtypes_of(frame: pd.DataFrame) -> list[str]:
    """The dtypes, that of most points first."""
    return [str(name) for name in frame["dtype"].value_counts().index]


def dtype_dash(dtypes: Sequence[str], dtype: str) -> str:
    """How lines of a dtype are dashed: solid for the first."""
    return _DASHES[list(dtypes).index(dtype) % len(_DASHES)]


def dtype_notes(dtypes: Sequence[str]) -> list[str]:
    """A footnote that says how the dtypes are dashed, where there are several."""
    if len(dtypes) < 2:
        return []
    return [f"solid: {dtypes[0]}, dashed: {' and '.join(dtypes[1:])}"]
