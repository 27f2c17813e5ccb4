"""The list of program changes that can be replayed, with the syntax of each."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from nsysprof.errors import NsysprofError

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MAX_NS = 3600 * 10**9  # longer times would not add up in 64 bits
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|ms|s)")


def _repeatable(value: str, about: str) -> Any:
    """A change that may be asked for several times."""
    return field(default=(), metadata={"value": value, "about": about})


def _flag(about: str) -> Any:
    return field(default=False, metadata={"value": "", "about": about})


class AbstainError(NsysprofError):
    """No forecast is possible, because a fact is unknown or not modelled; the exit code is 3."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(f"no forecast: {reason}", hint, exit_code=3)


@dataclass(frozen=True)
class Changes:
    """The changes to make together, in the form of command-line options.

    The metadata of a field describe the option: its ``value`` (empty for a flag) and its description (``about``).
    """

    graph: Sequence[str] = _repeatable("GLOB", "Launch all work of matching ranges as one CUDA graph")
    fuse: Sequence[str] = _repeatable(
        "GLOB", "Fuse the kernels of each matching range and stream into one kernel of the same total duration"
    )
    scale: Sequence[str] = _repeatable("KERNEL=FACTOR", "Multiply the time of matching kernels: '*gemm*=0.5'")
    set: Sequence[str] = _repeatable("KERNEL=TIME", "Set the time of matching kernels: 'softmax=40us'")
    swap: Sequence[str] = _repeatable(
        "TABLE",
        "Take kernel times from a kernels.csv or a report; RANGE=TABLE:ROW replaces the kernels of a range with the "
        "kernel of one row",
    )
    drop_sync: Sequence[str] = _repeatable("GLOB", "Remove the CPU's waits for the GPU in matching ranges or calls")
    async_copies: bool = _flag("Copy to the GPU from pinned memory without blocking the host.")
    pinned: bool = _flag("Copy from and to pinned memory, at link bandwidth and without blocking.")
    remove: Sequence[str] = _repeatable("CAUSE", "Remove a cause listed in a finding or in why.csv")
    remove_calls: Sequence[str] = _repeatable("GLOB", "Remove matching host calls, with their waits")
    remove_code: Sequence[str] = _repeatable(
        "GLOB", "Remove CPU code between calls in matching ranges ('outside every range')"
    )
    no_page_faults: bool = _flag("Remove migrations and page faults of unified memory (an upper bound).")
    no_late_peer: bool = _flag("Let all ranks arrive at each collective at the same time.")
    delay: Sequence[str] = _repeatable("RANGE=TIME", "Add CPU time after matching ranges: 'loss=500us'")
    gpu_delay: Sequence[str] = _repeatable("RANGE=TIME", "Add GPU time (one kernel) after matching ranges")

    @property
    def asked(self) -> dict[str, Any]:
        """The requested changes, by option name; raises `NsysprofError` if there are none."""
        found = {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
        found = {
            name: list(value) if isinstance(value, (list, tuple)) else value for name, value in found.items() if value
        }
        if not found:
            raise NsysprofError("no change to forecast", "nsysprof forecast --help lists them")
        return found

    @property
    def options(self) -> str:
        """Return the changes as options of a command line: ``--remove-calls 'cudaMalloc*' --pinned``."""
        words: list[str] = []
        for name, value in self.asked.items():
            words += [f"--{name}"] if value is True else [f"--{name} {shlex.quote(each)}" for each in value]
        return " ".join(words)


def split_value(text: str, option: str, example: str) -> tuple[str, str]:
    """Split an option at the last ``=``."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise NsysprofError(f"--{option} {text!r} lacks a name or a value", f"--{option} '{example}'")
    return name, value.strip()


def read_time(text: str, option: str, example: str) -> tuple[str, int]:
    """Parse ``NAME=500us`` into the name and the time in ns."""
    name, value = split_value(text, option, example)
    match = _TIME.fullmatch(value)
    if match is None:
        raise NsysprofError(
            f"--{option} {text!r}: {value!r} is not a time", f"--{option} '{example}' (ns, us, ms or s)"
        )
    ns = float(match[1]) * _UNITS[match[2]]
    if ns > MAX_NS:
        raise NsysprofError(f"--{option} {text!r}: more than an hour", f"--{option} '{example}'")
    return name, round(ns)


def read_factor(text: str) -> tuple[str, float]:
    """Parse ``KERNEL=0.5`` into the name and the factor."""
    name, value = split_value(text, "scale", "KERNEL=0.5")
    try:
        factor = float(value)
    except ValueError:
        factor = -1
    if not 0 <= factor < 1_000:
        raise NsysprofError(f"--scale {text!r}: {value!r} is not a factor from 0 to 1000", "--scale 'KERNEL=0.5'")
    return name, factor
