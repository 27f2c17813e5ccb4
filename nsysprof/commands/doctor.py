"""``nsysprof doctor``: test whether this machine can capture, with a fix for each failure."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.report_options import JsonOption, option
from nsysprof.commands.screen import print_json, show
from nsysprof.core.text import next_line, visible

if TYPE_CHECKING:
    from nsysprof.capture.doctor import Check

_SCHEMA = "nsysprof-doctor/1"
_MARK = len("[missing]")
_LAB = "Attention lab (captures of other programs do not need it):"


def doctor(
    nsys: Annotated[Path | None, option("Path of the nsys to test.", "PATH")] = None, as_json: JsonOption = False
) -> None:
    """Test everything a capture needs: nsys and its importer, driver, GPU, counters, torch, backends, disk.

    Exit code 0: capture with nsys works. Exit code 3: it does not.
    """
    from nsysprof.capture.doctor import capture_works, check_machine
    from nsysprof.catalog import list_workloads
    from nsysprof.commands.workload_options import WORKLOAD
    from nsysprof.results.table import wrap
    from nsysprof.tools.interrupts import ending_on_interrupts

    workload = list_workloads().get(WORKLOAD)
    with ending_on_interrupts():
        checks = list(check_machine(Path("traces"), nsys=nsys, workload=workload, announce=_announce))
    works = capture_works(checks)
    if as_json:
        print_json({"schema": _SCHEMA, "capture_works": works, "checks": [asdict(check) for check in checks]})
    else:
        verdict, command = _verdict(checks, works)
        groups = ["\n".join(_finding(check) for check in checks if check.lab == lab) for lab in (False, True)]
        shown = [f"{wrap(verdict, '', '  ')}\n{next_line(command)}", groups[0]]
        shown += [f"{_LAB}\n{groups[1]}"] if groups[1] else []
        show("\n\n".join(shown) + "\n")
    if not works:
        raise typer.Exit(3)


def _announce(what: str) -> None:
    if sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def _finding(check: Check) -> str:
    """Return a finding as a line that starts with its state, and the fix below it."""
    from nsysprof.results.table import wrap

    mark, inner = f"{f'[{check.state}]':<{_MARK}} ", " " * (_MARK + 3)
    line = wrap(visible(f"{check.name}: {check.found}"), mark, inner)
    return f"{line}\n{wrap(visible(check.fix), f'{inner}fix: ', f'{inner}  ')}" if check.fix else line


def _verdict(checks: Sequence[Check], works: bool) -> tuple[str, str]:
    """Return the verdict, and the command to run next."""
    from nsysprof.capture.doctor import INSTALL_TORCH, TORCH_PROFILER

    if works:
        no_gpu = any(check.name == "GPU" and check.state == "missing" for check in checks)
        only = ", but without a GPU: only ranges and CPU time can be recorded" if no_gpu else ""
        return f"Capture works on this machine{only}.", "nsysprof capture -- python train.py"
    missing = ", ".join(check.name for check in checks if check.needed and check.state == "missing")
    if not any(check.name == TORCH_PROFILER and check.state == "ok" for check in checks):
        hint = "or install torch to use PyTorch's profiler"
        return f"Capture does not work on this machine: fix {missing}, {hint}.", INSTALL_TORCH
    return (
        f"Capture works with PyTorch's profiler. Capture with nsys does not work: fix {missing}.",
        "nsysprof capture --profiler torch -- python train.py",
    )
