"""``nsysprof capture``: a program under nsys, from one command to a report with a record of how it was made."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsysprof.commands.progress import echo, print_message, progress_bar
from nsysprof.commands.report_options import RulesOption, options_unfolded
from nsysprof.commands.workload_options import ProgramOptions

if TYPE_CHECKING:
    from nsysprof.capture.compose import Request
    from nsysprof.capture.outputs import Outputs
    from nsysprof.kernels.backends import BackendVerdict

_TRACE = "cuda,nvtx,osrt"


@dataclass(frozen=True)
class RecordingOptions:
    """What nsys is to record of a program, and how."""

    trace: Annotated[str, typer.Option(metavar="LIST", help="What nsys traces.")] = _TRACE
    capture_range: Annotated[
        str | None,
        typer.Option(metavar="cudaProfilerApi|nvtx:NAME", help="Record this range only, not the whole run."),
    ] = None
    nsys_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="One more argument for nsys profile; repeatable.")
    ] = None
    memory: Annotated[bool, typer.Option("--memory", help="Record what GPU memory is allocated, too.")] = (
        False
    )
    nsys: Annotated[Path | None, typer.Option(metavar="PATH", help="The nsys to capture with.")] = None
    overhead: Annotated[
        bool | None,
        typer.Option(
            "--overhead/--no-overhead",
            help="Time it without nsys first, to find what nsys costs [default: workloads only].",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether anything but the nsys was chosen, as only a new recording can honour."""
        chosen = self.trace != _TRACE or self.overhead is not None
        return chosen or self.memory or bool(self.capture_range or self.nsys_arg)

    def request(self, command: tuple[str, ...], workload: bool) -> Request:
        """Return the request to capture that command, which may be a workload's."""
        from nsysprof.capture.compose import Request
        from nsysprof.tools.nsys import find_nsys

        return Request(
            command,
            find_nsys(self.nsys),
            trace=tuple(map(str.strip, self.trace.split(","))),
            capture_range=self.capture_range,
            extra=(*["--cuda-memory-usage=true"] * self.memory, *(self.nsys_arg or ())),
            results=workload,
            overhead=workload if self.overhead is None else self.overhead,
        )


@options_unfolded
def capture(
    chosen: ProgramOptions,
    recording: RecordingOptions,
    keep_environment: Annotated[
        bool,
        typer.Option(
            "--keep-environment",
            help="Leave environment, arguments, host, user and paths in the .sqlite and the .json.",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Finish a capture from the .qdstrm or .nsys-rep that it left."),
    ] = None,
    rules: RulesOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the nsys command and run nothing.")
    ] = False,
) -> None:
    """Run a workload, or any program, under nsys and leave a report, its export and a record of how it was made.

    nsysprof capture --backend math --backend flash --seq 1024 --seq 4096

    nsysprof capture -o NAME -- python train.py ...
    """
    from nsysprof.capture.compose import nsys_command
    from nsysprof.capture.outputs import making, outputs_of
    from nsysprof.capture.session import capture_program, resume_capture
    from nsysprof.kernels.classify import load_rules
    from nsysprof.tools.nsys import find_nsys

    if resume and (chosen.given or recording.given or dry_run):
        raise typer.BadParameter(
            "--resume takes no program, no workload, no --dry-run, --trace, --capture-range, --nsys-arg, --memory or"
            " --overhead"
        )
    command, loaded = chosen.command(), load_rules(rules)
    if resume:
        outputs = _resumed_outputs(resume, chosen.output)
    else:
        outputs = outputs_of(chosen.output, chosen.default_name)
        request = recording.request(command, workload=not chosen.program)
        shown = nsys_command(request, outputs.path(""))
        if dry_run:
            print(shlex.join(shown))
            return
    with making(outputs, force=chosen.force) as folder:
        if resume:
            nsys = find_nsys(recording.nsys) if recording.nsys else None
            staged = resume_capture(resume, folder, outputs, nsys)
            if staged.record["program"] is None:
                print_message("no record lies beside it: what ran, and on what, will not be in the new one")
        else:
            staged = capture_program(request, folder, outputs, ["nsysprof", *sys.argv[1:]], echo)
        from nsysprof.capture.finish import finish_capture  # brings pandas: after the program

        with progress_bar() as progress:
            verdict, record, no_ranges = finish_capture(
                staged, outputs, loaded, progress, scrubbed=not keep_environment, force=chosen.force
            )
    _report(verdict, record, no_ranges, outputs)


def _resumed_outputs(recorded: Path, output: str | None) -> Outputs:
    """Choose the names of a resumed capture's results: beside what was left, unless another name is given."""
    from nsysprof.capture.outputs import Outputs, outputs_of
    from nsysprof.errors import NsysprofError

    # Where a capture left several reports they are numbered.
    name = re.sub(r"\.partial(-\d+)?(?=(\.\d+)?$)", "", recorded.stem)
    outputs = outputs_of(output, name) if output else Outputs(recorded.parent, name)
    result = outputs.path(".nsys-rep")
    if result.exists() and recorded.exists() and result.samefile(recorded):
        raise NsysprofError(f"{recorded}: the results would get its own name", "-o NAME for another name")
    return outputs


def _report(
    verdict: BackendVerdict, record: dict[str, Any], no_ranges: tuple[str, str] | None, outputs: Outputs
) -> None:
    """Print what was captured and what ran, and last the command to go on with.

    Raises `typer.Exit` with 3 where another backend ran than was asked for, or no range was recorded.
    """
    from nsysprof.capture.text import backend_table, captured_summary, difference_lines
    from nsysprof.core.text import quote_path, visible

    report = record["report"]
    ran = backend_table(verdict) if report["kernels"] else ""
    print("\n".join(part for part in (captured_summary(record), ran) if part), end="", flush=True)
    if not report["kernels"] and (record["environment"] or {}).get("driver"):
        print_message(
            "no kernels, although there is a GPU: did the program use it, and does nsysprof doctor find fault?"
        )
    if report["sqlite"]["scrubbed"]:
        print_message(
            f"{outputs.path('.nsys-rep')} still holds the environment; to share: {outputs.path('.sqlite')}"
        )
    differ = difference_lines(verdict)
    for line in differ:
        print_message(f"nsysprof: {line}")
    if no_ranges:
        print_message(f"nsysprof: no ranges: {no_ranges[0]}\n  hint: {no_ranges[1]}")
    print_message("next:")
    print(f"nsysprof analyze {visible(quote_path(outputs.path('.sqlite')))}", flush=True)
    if differ or no_ranges:
        raise typer.Exit(3)
