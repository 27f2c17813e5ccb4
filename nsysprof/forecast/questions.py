"""The questions that a forecast answers: which changes there are, how they are written, and what is known of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from nsysprof.attribution.globs import near_names
from nsysprof.errors import NsysprofError

# Forecasts of a kind that were compared with outcomes: the median and the worst error, the error that nine of ten stay
# below, as parts of the outcome, and how many. Nothing is in here that analysis/forecasts has not measured.
PUBLISHED: dict[str, tuple[float, float, float, int]] = {
    "graph": (0.0109, 0.124, 0.1074, 17),
    "swap": (0.0339, 0.3401, 0.2537, 29),
    "remove": (0.0405, 0.6582, 0.6637, 5),
    "gpu-delay": (0.0101, 0.1249, 0.1249, 8),
    "delay": (0.0165, 0.0957, 0.0957, 8),
    "drop-sync": (0.0216, 0.1007, 0.1113, 4),
    "kernel": (0.0693, 0.08, 0.1005, 3),
    "async-copies": (0.0824, 0.1423, 0.2184, 2),
    "no-late-peer": (0.161, 0.2463, 0.3781, 2),
}
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MAX_NS = 3600 * 10**9  # longer times would not add up in 64 bits
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|ms|s)")


class AbstainError(NsysprofError):
    """There is no forecast, as what it needs is not known or not modelled; the exit code is 3."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(f"no forecast: {reason}", hint, exit_code=3)


@dataclass(frozen=True)
class Changes:
    """What is to be changed, all of it at once; texts as the command line has them.

    ``graph``, ``drop_sync``: globs of ranges (the latter also of calls). ``scale``, ``set``: ``KERNEL=FACTOR``,
    ``KERNEL=TIME``. ``swap``: a table or report with times of kernels, or ``RANGE=TABLE:ROW`` for one kernel in place
    of all GPU ops of a range. ``remove``: globs of culprits in ``why.csv``. ``delay``, ``gpu_delay``: ``RANGE=TIME``.
    """

    graph: Sequence[str] = ()
    scale: Sequence[str] = ()
    set: Sequence[str] = ()
    swap: Sequence[str] = ()
    drop_sync: Sequence[str] = ()
    async_copies: bool = False
    remove: Sequence[str] = ()
    no_late_peer: bool = False
    delay: Sequence[str] = ()
    gpu_delay: Sequence[str] = ()

    @property
    def asked(self) -> dict[str, Any]:
        """The changes that were asked for, by the names of their options; `NsysprofError` for none."""
        found = {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
        found = {
            name: list(value) if isinstance(value, (list, tuple)) else value
            for name, value in found.items()
            if value
        }
        if not found:
            raise NsysprofError("no change to forecast", "nsysprof forecast --help lists them")
        return found


def split_value(text: str, option: str, example: str) -> tuple[str, str]:
    """What stands before and behind the last ``=`` of an option."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise NsysprofError(f"--{option} {text!r} lacks a name or a value", f"--{option} '{example}'")
    return name, value.strip()


def read_time(text: str, option: str, example: str) -> tuple[str, int]:
    """The name and the ns of ``NAME=500us``."""
    name, value = split_value(text, option, example)
    match = _TIME.fullmatch(value)
    if match is None:
        raise NsysprofError(
            f"--{option} {text!r}: {value!r} is no time", f"--{option} '{example}' (ns, us, ms or s)"
        )
    ns = float(match[1]) * _UNITS[match[2]]
    if ns > MAX_NS:
        raise NsysprofError(f"--{option} {text!r}: that is more than an hour", f"--{option} '{example}'")
    return name, round(ns)


def read_factor(text: str) -> tuple[str, float]:
    """The name and the factor of ``KERNEL=0.5``."""
    name, value = split_value(text, "scale", "KERNEL=0.5")
    try:
        factor = float(value)
    except ValueError:
        factor = -1
    if not 0 <= factor < 1_000:
        raise NsysprofError(
            f"--scale {text!r}: {value!r} is no factor from 0 to 1000", "--scale 'KERNEL=0.5'"
        )
    return name, factor


def matching(names: Sequence[str], glob: str, what: str, file: str) -> list[int]:
    """The places of names that a glob matches; `NsysprofError` with a few that are near where there are none."""
    found = [at for at, name in enumerate(names) if name and (name == glob or fnmatchcase(name, glob))]
    if not found:
        near = ", ".join(map(repr, near_names([name for name in names if name], glob)))
        raise NsysprofError(
            f"no {what} of {file} matches {glob!r}"
            + (f"; near it: {near}" if near else f"; it has no {what} at all"),
            "a * stands for any text: '*gemm*'",
        )
    return found


def published_error(kinds: Sequence[str]) -> tuple[str, float]:
    """How far off forecasts of these kinds were, in words, and the error that nine of ten stay below, 0 if unknown.

    Of several kinds the one that was off most.
    """
    known = [PUBLISHED[kind] for kind in kinds if kind in PUBLISHED]
    if len(known) < len(kinds) or not known:
        return "no published record for this kind of question yet", 0.0
    median, worst, most, count = max(known, key=lambda each: each[2])
    return (
        f"forecasts of this kind were off by {median:.1%} (median), {worst:.1%} (worst), n = {count}".replace(
            "%", " %"
        ),
        most,
    )
