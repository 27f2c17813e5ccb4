"""One run of ``ncu``: its metrics, its command line, and the reason why ncu or the program failed."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsysprof.capture.outputs import LOG
from nsysprof.capture.program import failed_program, with_results
from nsysprof.errors import NsysprofError
from nsysprof.tools.child import Ended
from nsysprof.tools.driver import PERMISSION_FIX
from nsysprof.tools.nsight import GET_NCU, Ncu, last_line

PROCESS_SCOPE = "--nvtx-push-pop-scope"
# What decides where the results go and how they are read.
_OWN = ("--export", "--import", "--log-file", "--csv", "--page", "--metrics", "--mode")
_OWN_SHORT = ("-o", "-i")
_MAGIC = re.compile(r"[*?\[/]")
_MESSAGE = re.compile(r"==(?:ERROR|WARNING|PROF)==[ \t]*(.*)")
_ERROR = re.compile(r"==ERROR==[ \t]*(.*)")
_PROGRAM_FAILED = re.compile(r"The application returned an error code \((-?\d+)\)")
_PASSES = re.compile(r"==PROF== Profiling .*? - (\d+): .*?(?: - (\d+) pass(?:es)?)?\s*$", re.MULTILINE)
_RARER = 10  # from one count of kernels that is shown to the next
# Of the errors of one failure this is not the reason.
_FOLLOWS = re.compile(r"An error (was reported|occurred)|^Failed to profile|^The application returned|^\s*$")
# Errors of ncu, each with what mends it.
_KNOWN = (
    (r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance", PERMISSION_FIX),
    (
        r"driver resource was unavailable",
        "another tool uses the counters: pause it with dcgmi profile --pause (later --resume), or stop the other ncu",
    ),
    (r"Failed to (create|open|prepare).*lock|nsight-compute-lock", "ls -l /tmp/nsight-compute-lock, or set TMPDIR"),
    (
        r"(?i)not supported on|unsupported (gpu|device|chip)|LibraryNotLoaded|Failed to initialize the profiler"
        r"|failed to connect to the CUDA driver",
        f"check that nvidia-smi lists a GPU and that ncu is new enough for this GPU and driver: {GET_NCU}",
    ),
    (r"Failed to find metric|unrecogni[sz]ed option|Invalid option", "ncu --help lists what --ncu-arg may be"),
)


@dataclass(frozen=True)
class CountRequest:
    """A requested count: the program, the ncu installation, and what to count.

    Only kernels in ranges that ``select`` matches are counted (None: all), with ``threads`` as in `attribute`.
    ``cache_control`` (none, all) and ``clock_control`` (none, base) are ncu options; ``extra`` is passed to ncu
    unchanged. ``results``: whether the program accepts ``--results FILE``, as workloads do. ``keep_reports``: whether
    to keep ncu's own reports.
    """

    program: tuple[str, ...]
    ncu: Ncu
    select: str | None = None
    threads: str = "follow"
    cache_control: str = "none"
    clock_control: str = "none"
    quick: bool = False
    extra: tuple[str, ...] = ()
    results: bool = False
    keep_reports: bool = False


def ncu_command(
    request: CountRequest, options: Collection[str], metrics: Sequence[str], out: Path, results: Path | None = None
) -> list[str]:
    """Compose the ncu command that runs a program and writes ``out`` plus ``.ncu-rep``.

    ``options`` are the options that this ncu supports; the program writes its own measurements to ``results``. Clocks,
    including tensor core boost, stay unchanged unless requested otherwise. Raises `NsysprofError` for extra arguments
    that nsysprof sets itself.
    """
    for argument in request.extra:
        name = argument.partition("=")[0]
        if name in _OWN or name[:2] in _OWN_SHORT:
            raise NsysprofError(f"--ncu-arg: {name} is set by nsysprof itself", "ncu --help lists the others")
    chosen = [
        "--config-file=off",
        "--nvtx",
        *(f"--nvtx-include={each}" for each in _filters(request.select)),
        "--target-processes=all",
        "--replay-mode=kernel",
        f"--cache-control={request.cache_control}",
        f"--clock-control={request.clock_control}",
    ]
    if request.clock_control == "none":
        chosen.append("--pipeline-boost-state=dynamic")
    if request.threads == "follow":
        chosen.append(f"{PROCESS_SCOPE}=process")
    chosen.append("--import-sass=off")  # the machine code of every kernel is most of a report
    given = {argument.partition("=")[0] for argument in request.extra}
    return [
        str(request.ncu.path),
        *(each for each in chosen if each.partition("=")[0] in {*options} - given),
        *request.extra,
        f"--metrics={','.join(metrics)}",
        # ncu has a meaning for %p, %h and so on, and a folder may have such a name
        f"--export={str(out).replace('%', '%%')}",
        *with_results(request.program, results),
    ]


def ncu_import(options: Collection[str], report: Path) -> list[str]:
    """Return the arguments with which ncu prints a report as CSV: a row per kernel, full names, base units."""
    chosen = ["--config-file=off", "--csv", "--page=raw", "--print-units=base", "--rename-kernels=off"]
    return [f"--import={report}", *[each for each in chosen if each.partition("=")[0] in options]]


def _filters(select: str | None) -> Iterator[str]:
    """Compose expressions of ncu for every range that a glob may match, push/pop and start/end, in every domain.

    They match more: ncu looks for them anywhere in a name and knows no paths. What the glob does not match is
    dropped once it is counted. In place of characters that have a meaning for ncu stands any character.
    """
    if select is None:
        return
    head = _MAGIC.split(select, maxsplit=1)[0]
    pattern = re.sub(r"[^\w: -]", ".", head) or ".*"
    yield from (f"regex:.*@{pattern}/", f"regex:.*@{pattern}")


@contextmanager
def kernels_counted(echo: Callable[[str], None], *, program: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that receives the output of a run, and calls ``echo`` with the part to show.

    Lines about single kernels are replaced by a count, which is shown more rarely as the number of kernels grows. All
    output of a ``program`` is shown. The output of a workload is hidden, because ncu distorts the printed times.
    Warnings and errors of ncu are always shown, and the log has everything.
    """
    rest, count, following = "", 0, 1

    def take(text: str) -> None:
        nonlocal rest, count, following
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if _PASSES.match(line):
                count += 1
                if count == following:
                    echo(f"  {count:,} kernels counted\n" if count > 1 else "  counting the first kernel\n")
                    following *= _RARER
            elif not line.startswith("==PROF==") and (program or _MESSAGE.match(line)):
                echo(f"{line}\n")

    try:
        yield take
    finally:
        if rest:
            take("\n")


def ncu_messages(log: Path, since: int) -> str:
    """Read ncu's own messages from a log, starting at a byte offset."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(since)
        return "".join(line for line in file if "==" in line)


def check_counted(ended: Ended, messages: str, request: CountRequest, report: Path) -> None:
    """Raise `NsysprofError` if a run left nothing to read; ``messages`` are ncu's own.

    The error has the exit code of a failed program, unless ncu caused the failure. Warnings from ncu are not errors.
    """
    errors = [line.strip() for line in _ERROR.findall(messages)]
    reasons = [line for line in errors if not _FOLLOWS.search(line)]
    for pattern, fix in _KNOWN:
        reason = next((line for line in reasons if re.search(pattern, line)), None)
        if reason:
            raise NsysprofError(f"ncu {request.ncu.version_text}: {reason}", fix)
    failed = _PROGRAM_FAILED.search("\n".join(errors))
    if any(line.startswith("Failed to profile") for line in errors) or (reasons and not failed):
        what = (reasons or errors)[0]
        raise NsysprofError(f"ncu {request.ncu.version_text}: {what}")
    if failed or ended.code:
        code = int(failed[1]) if failed else ended.code
        raise failed_program(
            request.program,
            128 - code if code < 0 else code,
            last_line(_MESSAGE.sub("", ended.output[-4000:])),
            report.with_name(LOG) if request.results else None,
        )
    if report.is_file() and report.stat().st_size:
        return
    select = request.select
    if select:
        raise NsysprofError(
            f"no kernel ran in a range that matches {select!r}",
            "choose other ranges with --range GLOB; nsysprof analyze lists the ranges of a recorded program",
        )
    raise NsysprofError(
        f"ncu {request.ncu.version_text} profiled no kernel", "does the program use the GPU? nsysprof doctor"
    )


def profiled_kernels(messages: str) -> tuple[int, tuple[int, ...]]:
    """Return the number of profiled kernels, and the distinct numbers of passes, according to ncu's messages."""
    profiled = _PASSES.findall(messages)
    kernels = max((int(number) + 1 for number, _ in profiled), default=0)
    return kernels, tuple(sorted({int(passes) for _, passes in profiled if passes}))
