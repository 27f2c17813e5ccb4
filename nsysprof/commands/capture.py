"""``nsysprof capture``: run a program under nsys, and write a report and a record of how it was made."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nsysprof.commands.progress import echo, print_message, progress_bar
from nsysprof.commands.report_options import JsonOption, RulesOption, option, options_unfolded
from nsysprof.commands.screen import print_json, show, show_next
from nsysprof.commands.workload_options import ProgramOptions
from nsysprof.core.text import command_line
from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from nsysprof.capture.compose import Request
    from nsysprof.capture.injection import Injection
    from nsysprof.capture.outputs import Outputs
    from nsysprof.kernels.backends import BackendVerdict
    from nsysprof.kernels.rules import Rules

_TRACE = "cuda,nvtx,osrt"


@dataclass(frozen=True)
class RecordingOptions:
    """The recorder, and the data that it records."""

    profiler: Annotated[
        Literal["nsys", "torch"],
        option("Profiler: nsys, or PyTorch's own profiler (torch), which needs no nsys.", "nsys|torch"),
    ] = "nsys"
    modules: Annotated[
        bool, option("Open a range around each forward and backward pass of each nn.Module.", "--modules")
    ] = False
    depth: Annotated[
        int | None,
        option(
            "With --modules: open ranges for modules at most N levels below the outermost module [default: all].",
            "N",
            min=0,
        ),
    ] = None
    mark_steps: Annotated[bool, option("Open ranges step0, step1 … around optimizer steps.", "--mark-steps")] = False
    steps: Annotated[
        str | None, option("With --profiler torch: record only optimizer steps A to B - 1, counted from 0.", "A:B")
    ] = None
    seconds: Annotated[
        float | None,
        option(
            "With --profiler torch: stop recording S seconds after the first range begins [default: 5; workloads: 60].",
            "S",
            min=0.1,
        ),
    ] = None
    trace: Annotated[str, option("APIs that nsys traces.", "LIST")] = _TRACE
    capture_range: Annotated[
        str | None, option("Record only this range instead of the whole run.", "cudaProfilerApi|nvtx:NAME")
    ] = None
    nsys_arg: Annotated[list[str] | None, option("Additional argument for nsys profile; repeatable.", "ARG")] = None
    memory: Annotated[bool, option("Also record GPU memory allocations.", "--memory")] = False
    gpu_metrics: Annotated[
        int | None,
        option(
            "Also sample GPU metrics at this frequency in Hz, such as 10000.",
            "HZ",
            "--gpu-metrics",
            min=10,
            max=200_000,
        ),
    ] = None
    nsys: Annotated[Path | None, option("Path of the nsys to capture with.", "PATH")] = None
    overhead: Annotated[
        bool | None,
        option(
            "Measure profiling overhead: first run the program without the profiler [default: workloads only].",
            "--overhead/--no-overhead",
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Return whether an option for a new recording was given (any option except ``nsys``)."""
        of_nsys = self.trace != _TRACE or self.memory or bool(self.capture_range or self.nsys_arg or self.gpu_metrics)
        return of_nsys or self.overhead is not None or self.with_torch or self.injection().needed

    @property
    def with_torch(self) -> bool:
        """Return whether PyTorch's profiler records."""
        return self.profiler == "torch"

    def injection(self, workload: bool = False) -> Injection:
        """Return the code to run inside the program. Raises `typer.BadParameter` for options of the other profiler."""
        from nsysprof.capture.injection import PROGRAM_SECONDS, WORKLOAD_SECONDS, Injection

        most = WORKLOAD_SECONDS if workload else PROGRAM_SECONDS

        of_nsys = [self.trace != _TRACE, self.capture_range, self.nsys_arg, self.memory, self.gpu_metrics, self.nsys]
        if self.with_torch and any(of_nsys):
            names = "--trace, --capture-range, --nsys-arg, --memory, --gpu-metrics and --nsys"
            raise typer.BadParameter(f"{names} work only with nsys")
        if not self.with_torch and (self.steps is not None or self.seconds is not None):
            raise typer.BadParameter("--steps and --seconds need --profiler torch; nsys has --capture-range")
        if self.depth is not None and not self.modules:
            raise typer.BadParameter("--depth needs --modules")
        return Injection(
            record=self.with_torch,
            modules=self.modules,
            depth=self.depth,
            mark_steps=self.mark_steps,
            steps=_window(self.steps) if self.steps is not None else None,
            seconds=most if self.seconds is None else self.seconds,
        )

    def request(self, command: tuple[str, ...], workload: bool) -> Request:
        """Return the request to capture a command, which may run a workload."""
        from nsysprof.capture.compose import Request, metrics_options
        from nsysprof.tools.nsys import find_nsys

        injection = self.injection(workload)
        try:
            nsys = find_nsys(self.nsys)
        except NsysprofError as error:
            hint = f"{error.hint}; --profiler torch records PyTorch programs without nsys"
            raise NsysprofError(error.message, hint) from None
        return Request(
            command,
            nsys,
            trace=tuple(map(str.strip, self.trace.split(","))),
            capture_range=self.capture_range,
            extra=(
                *["--cuda-memory-usage=true"] * self.memory,
                *(metrics_options(nsys, self.gpu_metrics) if self.gpu_metrics else ()),
                *(self.nsys_arg or ()),
            ),
            results=workload,
            overhead=workload if self.overhead is None else self.overhead,
            injection=injection,
        )


def _window(steps: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{0,9}):(\d{1,9})", steps)
    first, last = (int(match[1] or 0), int(match[2])) if match else (0, 0)
    if first >= last:
        raise typer.BadParameter(f"--steps {steps}: give A:B with A < B, such as 10:20 for steps 10 to 19")
    return first, last


@options_unfolded
def capture(
    chosen: ProgramOptions,
    recording: RecordingOptions,
    keep_environment: Annotated[
        bool,
        option(
            "Keep private data (environment, arguments, host, user and paths) in the .sqlite and the .json.",
            "--keep-environment",
        ),
    ] = False,
    names: Annotated[
        bool, option("Also remove paths and addresses from names, as nsysprof scrub --names does.", "--names")
    ] = False,
    resume: Annotated[
        Path | None,
        option("Finish an interrupted capture: write the report from the remaining .qdstrm or .nsys-rep.", "FILE"),
    ] = None,
    rules: RulesOption = None,
    dry_run: Annotated[bool, option("Print the nsys command and run nothing.", "--dry-run")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a workload or any program under nsys or PyTorch's profiler, and write a report and its record."""
    from nsysprof.capture.compose import nsys_command
    from nsysprof.capture.outputs import making, outputs_of
    from nsysprof.capture.session import capture_program, resume_capture
    from nsysprof.kernels.classify import load_rules
    from nsysprof.tools.nsys import find_nsys

    if resume and (chosen.given or recording.given or dry_run):
        raise typer.BadParameter(
            "--resume takes no program, workload, --dry-run, --trace, --capture-range, --nsys-arg, "
            "--memory, --gpu-metrics, --overhead or any other option of a new recording"
        )
    if recording.with_torch:
        how = {"dry_run": dry_run, "scrubbed": not keep_environment, "names": names, "as_json": as_json}
        _capture_with_torch(chosen, recording, load_rules(rules), **how)
        return
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
                print_message(
                    "the interrupted capture left no run record, so the new run record does not describe the program "
                    "and the machine"
                )
        else:
            staged = capture_program(request, folder, outputs, ["nsysprof", *sys.argv[1:]], echo)
        from nsysprof.capture.finish import finish_capture  # brings pandas: after the program

        with progress_bar() as progress:
            verdict, record, no_ranges = finish_capture(
                staged, outputs, loaded, progress, scrubbed=not keep_environment, names=names, force=chosen.force
            )
    _report(verdict, record, no_ranges, outputs, as_json=as_json)


def _capture_with_torch(
    chosen: ProgramOptions,
    recording: RecordingOptions,
    rules: Rules,
    *,
    dry_run: bool,
    scrubbed: bool,
    names: bool,
    as_json: bool,
) -> None:
    """Capture with PyTorch's profiler, and print the result; the traces of a failed program are kept."""
    from nsysprof.capture.outputs import TORCH_ENDINGS, making, outputs_of
    from nsysprof.capture.text import backend_table, not_run_lines, overhead_lines
    from nsysprof.capture.torch_session import capture_with_torch, captured_line, next_command

    workload = not chosen.program
    overhead = workload if recording.overhead is None else recording.overhead
    program, injection = chosen.command(), recording.injection(workload)
    outputs = outputs_of(chosen.output, chosen.default_name)
    if dry_run:
        print(shlex.join(program))
        return
    with making(outputs, force=chosen.force, endings=TORCH_ENDINGS) as folder:
        command = ["nsysprof", *sys.argv[1:]]
        how = {"scrubbed": scrubbed, "names": names, "force": chosen.force, "is_workload": workload}
        done = capture_with_torch(
            program, injection, folder, outputs, command, echo, rules=rules, overhead=overhead, **how
        )
    record, verdict = done.record, done.verdict
    ran = [*overhead_lines(record["overhead"], "PyTorch's profiler"), *not_run_lines(record["workload"])]
    if as_json:
        print_json(outputs.path(".json"))
    else:
        lines = "".join(f"{line}\n" for line in [captured_line(record), *ran])
        table = backend_table(verdict) if verdict else ""
        show("\n".join(filter(None, [lines, table])))
    differ = _say_differences(verdict) if verdict else False
    if not as_json:
        show_next(next_command(done))
    if done.failure:
        raise done.failure
    if differ:
        raise typer.Exit(3)


def _say_differences(verdict: BackendVerdict) -> bool:
    """Print each range that ran a backend other than requested; return whether there is one."""
    from nsysprof.capture.text import difference_lines

    differ = difference_lines(verdict)
    for line in differ:
        print_message(f"nsysprof: {line}")
    return bool(differ)


def _resumed_outputs(recorded: Path, output: str | None) -> Outputs:
    """Choose the names of a resumed capture's results: beside the kept files, unless another name is given."""
    from nsysprof.capture.outputs import Outputs, outputs_of

    # Where a capture left several reports they are numbered.
    name = re.sub(r"\.partial(-\d+)?(?=(\.\d+)?$)", "", recorded.stem)
    outputs = outputs_of(output, name) if output else Outputs(recorded.parent, name)
    result = outputs.path(".nsys-rep")
    if result.exists() and recorded.exists() and result.samefile(recorded):
        raise NsysprofError(f"{recorded}: the results would replace this file", "-o NAME for another name")
    return outputs


def _report(
    verdict: BackendVerdict,
    record: dict[str, Any],
    no_ranges: tuple[str, str] | None,
    outputs: Outputs,
    *,
    as_json: bool,
) -> None:
    """Print the captured data, the backends that ran, and the next command.

    Raises `typer.Exit` 3 if a backend other than requested ran, or if no range was recorded.
    """
    from nsysprof.capture.text import backend_table, captured_summary

    report = record["report"]
    ran = backend_table(verdict) if report["kernels"] else ""
    if as_json:
        print_json(outputs.path(".json"))
    else:
        show("\n".join(part for part in (captured_summary(record), ran) if part))
    if not report["kernels"] and (record["environment"] or {}).get("driver"):
        print_message(
            "the report has no kernels, although the machine has a GPU: make sure that the program uses "
            "the GPU, then run nsysprof doctor"
        )
    if report["sqlite"]["scrubbed"]:
        print_message(
            f"{outputs.path('.nsys-rep')} contains environment variables: share {outputs.path('.sqlite')} instead"
        )
    differ = _say_differences(verdict)
    if no_ranges:
        print_message(f"nsysprof: no ranges: {no_ranges[0]}\n  hint: {no_ranges[1]}")
    if not as_json:
        show_next(command_line("analyze", outputs.path(".sqlite")))
    if differ or no_ranges:
        raise typer.Exit(3)
