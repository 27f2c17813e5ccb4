"""Composes the command line of ``nsys profile``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.nsys import Nsys

__all__ = ["CUDA_PROFILER_API", "Tracing", "nsys_command"]

CUDA_PROFILER_API = "cudaProfilerApi"
_NVTX = "nvtx:"
# Without it, nsys waits for a range whose name was registered, and most programs do not register names.
_UNREGISTERED = "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"


@dataclass(frozen=True)
class Tracing:
    """What nsys is to record: ``trace`` as its ``--trace`` has it, and further options for ``nsys profile``.

    ``capture_range`` limits the recording: ``cudaProfilerApi`` (from cudaProfilerStart to Stop) or ``nvtx:NAME``
    (the first range of that name); None records the whole run.
    """

    trace: tuple[str, ...] = ("cuda", "nvtx")
    capture_range: str | None = None
    extra: tuple[str, ...] = ()


def nsys_command(nsys: Nsys, tracing: Tracing, out: Path, program: Sequence[str]) -> list[str]:
    """The whole ``nsys profile`` command that runs a program and leaves ``out`` with .nsys-rep appended.

    CPU sampling and context switches stay off: they cost time and answer other questions. CUDA graphs are
    traced node by node, since a graph traced as a whole hides its kernels. Raises `NsysprofError` for a
    capture range that is none.
    """
    quiet = ["--sample=none"]
    if nsys.version >= (2021, 3):
        quiet.append("--cpuctxsw=none")
    if "cuda" in tracing.trace and nsys.version >= (2021, 5):
        quiet.append("--cuda-graph-trace=node")
    return [
        str(nsys.path),
        "profile",
        f"--trace={','.join(tracing.trace)}",
        *quiet,
        *_range_options(tracing.capture_range),
        *tracing.extra,
        f"--output={out}",
        *program,
    ]


def _range_options(capture_range: str | None) -> list[str]:
    if capture_range is None:
        return []
    # "stop" lets the program run to its end; nsys's default would stop it with the recording.
    end = "--capture-range-end=stop"
    if capture_range == CUDA_PROFILER_API:
        return [f"--capture-range={CUDA_PROFILER_API}", end]
    name = capture_range.removeprefix(_NVTX)
    if name and name != capture_range:
        return ["--capture-range=nvtx", f"--nvtx-capture={name}", f"--env-var={_UNREGISTERED}", end]
    raise NsysprofError(
        f"--capture-range {capture_range}: not a capture range",
        f"--capture-range {CUDA_PROFILER_API}, or --capture-range {_NVTX}NAME for the first NVTX range NAME",
    )
