"""What to count, and the command lines of ``ncu`` for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.tools.driver import Driver
from nsysprof.tools.ncu import Ncu

__all__ = ["PROCESS_SCOPE", "CountRequest", "Counting", "ncu_command", "ncu_import"]

PROCESS_SCOPE = "--nvtx-push-pop-scope"
# What decides where the results go and how they are read.
_OWN = {
    "--export": "-o",
    "--import": "-i",
    "--log-file": "",
    "--csv": "",
    "--page": "",
    "--metrics": "",
    "--mode": "",
}
_MAGIC = re.compile(r"[*?\[/]")


@dataclass(frozen=True)
class Counting:
    """How to count: kernels in ranges that ``select`` matches (None: all), ranges of other threads as in `attribute`.

    ``cache_control`` (none, all) and ``clock_control`` (none, base) are ncu's; ``extra`` goes to it as it is.
    """

    select: str | None = None
    threads: str = "follow"
    cache_control: str = "none"
    clock_control: str = "none"
    quick: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class CountRequest:
    """What to count of which program, with which ncu, on a machine with which driver.

    ``results`` says that the program takes ``--results FILE``, as the workloads do; ``keep_reports`` that ncu's own
    reports are results too.
    """

    program: tuple[str, ...]
    ncu: Ncu
    counting: Counting = field(default_factory=Counting)
    driver: Driver | None = None
    results: bool = False
    keep_reports: bool = False


def ncu_command(
    ncu: Ncu,
    options: Collection[str],
    counting: Counting,
    metrics: Sequence[str],
    out: Path,
    program: Sequence[str],
) -> list[str]:
    """The ncu command that runs a program and leaves ``out`` with .ncu-rep appended.

    ``options`` are those that this ncu knows. Clocks are left alone, the boost of the tensor cores too, unless asked
    otherwise. Raises `NsysprofError` for further arguments that would put the results elsewhere.
    """
    for argument in counting.extra:
        name = argument.partition("=")[0]
        if name in _OWN or (name[:2] in filter(None, _OWN.values()) and not name.startswith("--")):
            raise NsysprofError(f"--ncu-arg: {name} is nsysprof's own", "ncu --help lists the others")
    chosen = [
        "--config-file=off",
        "--nvtx",
        *(f"--nvtx-include={each}" for each in _filters(counting.select)),
        "--target-processes=all",
        "--replay-mode=kernel",
        f"--cache-control={counting.cache_control}",
        f"--clock-control={counting.clock_control}",
    ]
    if counting.clock_control == "none":
        chosen.append("--pipeline-boost-state=dynamic")
    if counting.threads == "follow":
        chosen.append(f"{PROCESS_SCOPE}=process")
    chosen.append("--import-sass=off")  # the machine code of every kernel is most of a report
    given = {argument.partition("=")[0] for argument in counting.extra}
    return [
        str(ncu.path),
        *(each for each in chosen if each.partition("=")[0] in {*options} - given),
        *counting.extra,
        f"--metrics={','.join(metrics)}",
        # ncu has a meaning for %p, %h and so on, and a folder may have such a name
        f"--export={str(out).replace('%', '%%')}",
        *program,
    ]


def ncu_import(options: Collection[str], report: Path) -> list[str]:
    """The arguments with which ncu prints a report as CSV: a row per kernel, names in full, base units."""
    chosen = ["--config-file=off", "--csv", "--page=raw", "--print-units=base", "--rename-kernels=off"]
    known = [each for each in chosen if each.partition("=")[0] in options]
    return [f"--import={report}", *known]


def _filters(select: str | None) -> Iterator[str]:
    """Expressions of ncu for every range that a glob may match, push/pop and start/end, in every domain.

    They match more: ncu looks for them anywhere in a name and knows no paths. What the glob does not match is
    dropped once it is counted. In place of characters that have a meaning for ncu stands any character.
    """
    if select is None:
        return
    head = _MAGIC.split(select, maxsplit=1)[0]
    pattern = re.sub(r"[^\w: -]", ".", head) or ".*"
    yield from (f"regex:.*@{pattern}/", f"regex:.*@{pattern}")
