"""What to say of an ncu, or of the program below it, that did not do its part."""

from __future__ import annotations

import re
from pathlib import Path

from nsysprof.capture.failure import failed_program
from nsysprof.counters.command import CountRequest
from nsysprof.errors import NsysprofError
from nsysprof.tools.child import Ended
from nsysprof.tools.counter_permission import PERMISSION_FIX
from nsysprof.tools.ncu import GET_NCU
from nsysprof.tools.nsight import last_line
from nsysprof.tools.outputs import LOG

__all__ = ["check_counted", "passes_told", "told_by_ncu"]

_SAID = re.compile(r"==(?:ERROR|WARNING|PROF)==[ \t]*(.*)")
_ERROR = re.compile(r"==ERROR==[ \t]*(.*)")
_PROGRAM_FAILED = re.compile(r"The application returned an error code \((-?\d+)\)")
_PASSES = re.compile(r"==PROF== Profiling .*? - (\d+): .*?(?: - (\d+) pass(?:es)?)?\s*$", re.MULTILINE)
# Of the errors of one failure this is not the reason.
_FOLLOWS = re.compile(r"An error (was reported|occurred)|^Failed to profile|^The application returned|^\s*$")
# What ncu says, and what mends it.
_KNOWN = (
    (r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance", PERMISSION_FIX),
    (
        r"driver resource was unavailable",
        "another tool holds the counters: dcgmi profile --pause (later --resume), or end the other ncu",
    ),
    (
        r"Failed to (create|open|prepare).*lock|nsight-compute-lock",
        "ls -l /tmp/nsight-compute-lock, or TMPDIR=FOLDER",
    ),
    (
        r"(?i)not supported on|unsupported (gpu|device|chip)|LibraryNotLoaded|Failed to initialize the profiler"
        r"|failed to connect to the CUDA driver",
        f"nvidia-smi: is there a GPU, and is ncu new enough for it and its driver? {GET_NCU}",
    ),
    (r"Failed to find metric|unrecogni[sz]ed option|Invalid option", "ncu --help says what --ncu-arg may be"),
)


def told_by_ncu(log: Path, since: int) -> str:
    """What ncu itself said in a log, from that byte on; all of it, however much the program said."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(since)
        return "".join(line for line in file if "==" in line)


def check_counted(ended: Ended, said: str, request: CountRequest, report: Path) -> None:
    """Raises `NsysprofError` for a run after which there is nothing to read; ``said`` is what ncu said.

    A program that failed gives its own exit code, unless ncu was the reason. Nothing is wrong with an ncu that warns.
    """
    errors = [line.strip() for line in _ERROR.findall(said)]
    reasons = [line for line in errors if not _FOLLOWS.search(line)]
    for pattern, fix in _KNOWN:
        found = next((line for line in reasons if re.search(pattern, line)), None)
        if found:
            raise NsysprofError(f"ncu {request.ncu.version_text}: {found}", fix)
    failed = _PROGRAM_FAILED.search("\n".join(errors))
    if any(line.startswith("Failed to profile") for line in errors) or (reasons and not failed):
        what = (reasons or errors)[0]
        raise NsysprofError(f"ncu {request.ncu.version_text}: {what}")
    if failed or ended.code:
        code = int(failed[1]) if failed else ended.code
        raise failed_program(
            request.program,
            128 - code if code < 0 else code,
            last_line(_SAID.sub("", ended.said[-4000:])),
            report.with_name(LOG) if request.results else None,
        )
    if report.is_file() and report.stat().st_size:
        return
    select = request.counting.select
    if select:
        raise NsysprofError(
            f"no kernel ran in a range that matches {select!r}",
            "--range GLOB for others; nsysprof capture and analyze list the ranges of a program",
        )
    raise NsysprofError(
        f"ncu {request.ncu.version_text} profiled no kernel", "does the program use the GPU? nsysprof doctor"
    )


def passes_told(log: str) -> tuple[int, tuple[int, ...]]:
    """How many kernels ncu said that it profiled, and the numbers of passes that it took, without repetitions."""
    found = _PASSES.findall(log)
    kernels = max((int(number) + 1 for number, _ in found), default=0)
    return kernels, tuple(sorted({int(passes) for _, passes in found if passes}))
