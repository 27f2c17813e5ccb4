"""``nsysprof doctor``: whether this machine can capture, and how to fix what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nsysprof.commands.report_options import JsonOption

if TYPE_CHECKING:
    from nsysprof.capture.doctor import Check

_SCHEMA = "nsysprof-doctor/1"
_MARK = len("[missing]")


def doctor(
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to try.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try what a capture needs: nsys and its importer, driver, GPU, counters, torch, attention backends, disk.

    Exit code 0 when a capture would work, 3 when not.
    """
    from nsysprof.capture.doctor import capture_works, check_machine
    from nsysprof.catalog import list_workloads
    from nsysprof.commands.screen import print_json, show
    from nsysprof.commands.workload_options import WORKLOAD
    from nsysprof.results.table import wrap
    from nsysprof.tools.interrupts import ending_on_interrupts

    checks = []
    workload = list_workloads().get(WORKLOAD)
    with ending_on_interrupts():
        for check in check_machine(Path("traces"), nsys=nsys, workload=workload, announce=_announce):
            checks.append(check)
            if not as_json:
                show(f"{_finding(check)}\n")
    works = capture_works(checks)
    if as_json:
        document = {"schema": _SCHEMA, "capture_works": works, "checks": [asdict(check) for check in checks]}
        print_json(document)
    else:
        show(f"\n{wrap(_verdict(checks, works), '', '  ')}\n")
    if not works:
        raise typer.Exit(3)


def _announce(what: str) -> None:
    if sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)


def _finding(check: Check) -> str:
    """Show a finding as a line of [ok], [warn] or [missing], and below it the fix where there is one."""
    from nsysprof.core.text import visible
    from nsysprof.results.table import wrap

    mark, inner = f"{f'[{check.state}]':<{_MARK}} ", " " * (_MARK + 3)
    line = wrap(visible(f"{check.name}: {check.found}"), mark, inner)
    return f"{line}\n{wrap(visible(check.fix), f'{inner}fix: ', f'{inner}  ')}" if check.fix else line


def _verdict(checks: Sequence[Check], works: bool) -> str:
    from nsysprof.capture.doctor import TORCH_PROFILER

    if not works:
        missing = [check.name for check in checks if check.needed and check.state == "missing"]
        instead = any(check.name == TORCH_PROFILER and check.state == "ok" for check in checks)
        nsys = " with nsys" if instead else ""
        torch = " PyTorch's profiler works: nsysprof capture --profiler torch." if instead else ""
        return f"A capture{nsys} would not work here: see {', '.join(missing)}.{torch}"
    if any(check.name == "GPU" and check.state == "missing" for check in checks):
        return "A capture works here, of ranges and the CPU; there is no GPU whose kernels it could record."
    return "A capture works here."
