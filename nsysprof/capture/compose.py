"""Define the request for a capture, and its ``nsys profile`` command line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nsysprof.capture.injection import Injection
from nsysprof.capture.program import with_results
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import Nsys

_CUDA = "cudaProfilerApi"
_NVTX = "nvtx:"
# Without it, nsys waits for a range whose name was registered, and most programs do not register names.
_UNREGISTERED = "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
METRICS_DEVICE = "--gpu-metrics-device"  # what the option was called at first; newer nsys takes it too
_LONG = {
    "-t": "--trace",
    "-s": "--sample",
    "-c": "--capture-range",
    "-p": "--nvtx-capture",
    "-e": "--env-var",
    "-o": "--output",
}


@dataclass(frozen=True)
class Request:
    """A capture to make: the program with its arguments, the nsys to use, and the data to record.

    ``trace`` is the list for nsys's ``--trace``. ``extra`` are more arguments for ``nsys profile``; an option in
    ``extra`` replaces nsysprof's default, because nsys accepts no duplicates. ``capture_range`` limits the recording:
    ``cudaProfilerApi`` (from cudaProfilerStart to cudaProfilerStop) or ``nvtx:NAME`` (the first range of that name);
    None records the whole run. ``results``: whether the program accepts ``--results FILE`` and writes its own
    measurements there, like the workloads; ``overhead``: whether to run the program once without nsys first, to measure
    the cost of nsys. ``injection`` is the code that runs inside the program.
    """

    program: tuple[str, ...]
    nsys: Nsys
    trace: tuple[str, ...] = ("cuda", "nvtx", "osrt")
    capture_range: str | None = None
    extra: tuple[str, ...] = ()
    results: bool = False
    overhead: bool = False
    injection: Injection = field(default_factory=Injection)


def nsys_command(request: Request, out: Path, results: Path | None = None) -> list[str]:
    """Compose the ``nsys profile`` command that runs a program and writes the report ``out`` plus ``.nsys-rep``.

    The program writes its own measurements to ``results``. CPU sampling and the tracing of context switches stay off,
    because both take time and do not help here. Operating system calls are recorded: the cost is not measurable, and
    these calls show why the CPU launches late (analysis/planted-faults). CUDA graphs are traced node by node, because a
    graph traced as a whole hides its kernels. Raises `NsysprofError` for an invalid capture range, and for arguments
    that would write the report to another place.
    """
    given = {_name(one) for one in request.extra}
    if "--output" in given:
        raise NsysprofError("--nsys-arg: --output is set by nsysprof itself", "-o NAME, or -o FOLDER/NAME")
    options = [f"--trace={','.join(request.trace)}", "--sample=none"]
    if request.nsys.version >= (2021, 3):
        options.append("--cpuctxsw=none")
    if "cuda" in request.trace and request.nsys.version >= (2021, 5):
        options.append("--cuda-graph-trace=node")
    options += _range_options(request.capture_range)
    extra = list(request.extra)
    if f"--env-var={_UNREGISTERED}" in options:  # and the variables of the user, in one option
        extra = list(_with_unregistered(extra))
    return [
        str(request.nsys.path),
        "profile",
        *(one for one in options if _name(one) not in given),
        *extra,
        # nsys has a meaning for %p, %h and so on, and a folder may have such a name
        f"--output={str(out).replace('%', '%%')}",
        *with_results(request.program, results),
    ]


def metrics_options(nsys: Nsys, frequency: int) -> tuple[str, str]:
    """Return the options with which this nsys samples the metrics of all GPUs ``frequency`` times per second."""
    devices = "--gpu-metrics-devices" if nsys.version >= (2025,) else METRICS_DEVICE
    return f"{devices}=all", f"--gpu-metrics-frequency={frequency}"


def _name(argument: str) -> str:
    """Return the long name of an option, ``--sample`` for ``--sample=cpu``, ``-s`` and ``-scpu``; else the argument."""
    return argument.partition("=")[0] if argument.startswith("--") else _LONG.get(argument[:2], argument)


def _with_unregistered(extra: Sequence[str]) -> Iterator[str]:
    bare = ("--env-var", "-e")
    for before, one in zip(["", *extra], extra, strict=False):
        is_value = before in bare or (_name(one) == "--env-var" and one not in bare)
        yield f"{one},{_UNREGISTERED}" if is_value else one


def _range_options(capture_range: str | None) -> Iterator[str]:
    if capture_range is None:
        return
    name = capture_range.removeprefix(_NVTX)
    if capture_range == _CUDA:
        yield f"--capture-range={_CUDA}"
    elif name and name != capture_range:
        yield from ("--capture-range=nvtx", f"--nvtx-capture={name}", f"--env-var={_UNREGISTERED}")
    else:
        raise NsysprofError(
            f"--capture-range {capture_range}: not a capture range",
            f"--capture-range {_CUDA}, or --capture-range {_NVTX}NAME for the first NVTX range NAME",
        )
    # "stop" lets the program run to its end; nsys's default would stop it with the recording.
    yield "--capture-range-end=stop"
