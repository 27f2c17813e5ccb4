"""``nsysprof counters``: run a program under Nsight Compute to read hardware counters per kernel."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nsysprof.commands import report_options as options
from nsysprof.commands.progress import echo, print_message
from nsysprof.commands.report_options import option
from nsysprof.commands.screen import print_json, show_next
from nsysprof.commands.workload_options import ProgramOptions

if TYPE_CHECKING:
    from nsysprof.capture.outputs import Outputs
    from nsysprof.counters.ncu_run import CountRequest
    from nsysprof.formats.counters import CounterRow
    from nsysprof.kernels.rules import Rules


_WARMUP, _ITERATIONS = 1, 2
_RUNS = "RUN::*"


@dataclass(frozen=True)
class CountingOptions:
    """The settings for counting with ncu."""

    select: Annotated[
        str | None,
        option(
            "Count kernels in these ranges only [default: RUN::* for workloads, all for programs].", "GLOB", "--range"
        ),
    ] = None
    quick: Annotated[
        bool, option("Run the program only once, and count bytes and occupancy but no FLOPs.", "--quick")
    ] = False
    threads: options.ThreadsOption = "follow"
    cache_control: Annotated[
        Literal["none", "all"],
        option(
            "State of the caches before each kernel: as the previous kernel left them (none), or flushed (all).",
            "none|all",
        ),
    ] = "none"
    clock_control: Annotated[
        Literal["none", "base"], option("GPU clocks: unlocked (none), or locked to the base clock (base).", "none|base")
    ] = "none"
    ncu_arg: Annotated[list[str] | None, option("Additional argument for ncu; repeatable.", "ARG")] = None
    ncu: Annotated[Path | None, option("Path of the ncu to count with.", "PATH")] = None
    keep_report: Annotated[
        bool, option("Also keep the reports of ncu, which contain the host name.", "--keep-report")
    ] = False

    def request(self, command: tuple[str, ...], workload: bool) -> CountRequest:
        """Return the request to count the kernels of a command, which may run a workload."""
        from nsysprof.counters.ncu_run import CountRequest
        from nsysprof.tools.nsight import find_ncu

        return CountRequest(
            command,
            find_ncu(self.ncu),
            select=self.select or (_RUNS if workload else None),
            threads=self.threads,
            cache_control=self.cache_control,
            clock_control=self.clock_control,
            quick=self.quick,
            extra=tuple(self.ncu_arg or ()),
            results=workload,
            keep_reports=self.keep_report,
        )


@options.options_unfolded
def counters(
    chosen: ProgramOptions,
    counting: CountingOptions,
    rules: options.RulesOption = None,
    spreadsheet_safe: options.SpreadsheetOption = False,
    dry_run: Annotated[bool, option("Print the ncu commands and run nothing.", "--dry-run")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run a workload or any program under Nsight Compute, and write the hardware counters of each kernel to a table.

    `nsysprof compare` combines the table with the times of a capture of the same program.
    """
    from nsysprof.capture.outputs import making
    from nsysprof.counters.count import count_program, counter_endings, counting_commands
    from nsysprof.kernels.classify import load_rules
    from nsysprof.results.folder import give_names

    command = chosen.command(warmup=_WARMUP, iterations=_ITERATIONS)
    loaded = load_rules(rules)
    request = counting.request(command, workload=not chosen.program)
    outputs = _outputs(chosen.output, chosen.default_name)
    if dry_run:
        for shown in counting_commands(request, outputs):
            print(shlex.join(shown))
        return
    with making(outputs, force=chosen.force, endings=counter_endings(request)) as folder:
        typed = ["nsysprof", *sys.argv[1:]]
        files, rows, record = count_program(request, folder, outputs, typed, echo, spreadsheet_safe=spreadsheet_safe)
        give_names({path: outputs.path(ending) for ending, path in files.items()}, force=chosen.force)
    if as_json:
        print_json(outputs.path(".json"))
    else:
        _report(rows, record, outputs, loaded)


def _outputs(output: str | None, default: str) -> Outputs:
    """Choose the names of the results: `NAME.counters`, even if another file of this name was given."""
    from nsysprof.capture.outputs import Outputs, outputs_of

    named = outputs_of(output, default)
    name = named.name.removesuffix(".csv").removesuffix(".counters")
    return Outputs(named.folder, f"{name}.counters")


def _report(rows: list[CounterRow], record: dict[str, Any], outputs: Outputs, rules: Rules) -> None:
    from nsysprof.counters.text import compare_command, counters_summary
    from nsysprof.kernels.classify import classify

    names = list(dict.fromkeys(row.kernel for row in rows))
    families = dict(zip(names, classify(rules, names).family, strict=True))
    print(counters_summary(rows, record, families), end="", flush=True)
    for warning in record["warnings"]:
        print_message(f"warning: {warning}")
    table = outputs.path(".csv")
    report = table.with_name(f"{outputs.name.removesuffix('.counters')}.sqlite")
    if not report.exists():
        print_message(f"there is no {report} yet: record the same program with nsysprof capture")
    show_next(compare_command(rows, report, table))
