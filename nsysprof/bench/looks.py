"""How the charts of a benchmark tell backends and dtypes apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from nsysprof.charts.palette import INK

# Colour and marker of each backend. Colours are told apart by readers of all kinds (a test measures it); where lines
# lie on each other, markers tell them. A backend that is not here looks like `OTHER_LOOK`.
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


def backend_look(backend: str) -> tuple[str, str]:
    """The colour and the marker of a backend."""
    return LOOKS.get(backend, OTHER_LOOK)


def backend_legend(backends: Iterable[str]) -> list[tuple[str, str]]:
    """Legend entries of backends."""
    return [(name, backend_look(name)[0]) for name in backends]


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
