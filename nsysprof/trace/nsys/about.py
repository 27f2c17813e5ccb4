"""Report metadata: versions, hardware, the command, the job, and problems that nsys recorded."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import dropwhile, takewhile
from typing import Any

from nsysprof.core.text import one_line
from nsysprof.tools.driver import PLACE_VARIABLES
from nsysprof.trace.about import About, Diagnostic, Generation, Gpu, Severity
from nsysprof.trace.details import Job
from nsysprof.trace.nsys.blocks import Source, known, named_rows, named_values, whole

SEVERITIES: dict[str, Severity] = {"2": "warning", "warning": "warning", "3": "error", "error": "error"}
SOURCES = {"1": "injection", "2": "daemon", "3": "analysis"}
PROCESS_PART = re.compile(r"PROCESS_(\d{1,9}):(?:COMMAND|ARGUMENT_(\d{1,9}))\Z")
CAPTURE = re.compile(rf"{PROCESS_PART.pattern}|\w*PRODUCT_VERSION\Z")  # never ENVIRONMENT_VARIABLE
_OPTION = re.compile(r"CAPTURE_EVENT_TYPE\Z|PROCESS_\d+:CUDA_GRAPH_TRACE_OPTIONS:MODE\Z")
# The folder of the nsys that recorded; a folder of Nsight Compute or of an HPC SDK has a version of its own.
INSTALLED = re.compile(r"nsight[-_ ]systems(?:-cli)?[-_/\\ ](20\d\d(?:\.\d+)+)", re.IGNORECASE)
_SYSTEM = (
    *("NvDriverVersion", "CudaDriverVersion", "OsDescription", "CpuDescription", "CpuArchitecture"),
    *("GpuInfo", "TargetInstallDir"),
)
_ERROR = re.compile(r"error|exception|fail|denied|can(?:no|')t|no such|abort|fault", re.IGNORECASE)
_OF_JOBS = re.compile(r"\s*(?:srun|slurmstepd|mpi\w*|prte\w*|orte\w*|ssh)\b")  # which name hosts
_PRIVATE = re.compile(r"[/\\~@=]")  # in a word: a path, an address, a setting
SCRIPT_VALUE = re.compile(r"(?<![\w./-])([A-Z_][A-Z0-9_]*)=(?:'[^']*'|\"[^\"]*\"|[^\s;'\"]+)")


def read_about(source: Source, *, report_version: str | None = None) -> About:
    """Read the `About` of a report; ``report_version`` comes from the header of its ``.nsys-rep``.

    Only the program's command is kept: no environment, user, host or folder names.
    """
    generation, meta = _metadata(source)
    capture = dict(named_values(source, "META_DATA_CAPTURE", CAPTURE.match))
    system = _system_properties(source)
    export_version = meta.get("EXPORT_PRODUCT_VERSION")
    captured = next((value for name, value in capture.items() if name.endswith("PRODUCT_VERSION")), None)
    recorder = captured or report_version or _installed(system.get("TargetInstallDir"), export_version)
    return About(
        nsys_version=recorder or export_version,
        recorder_version=recorder,
        export_version=export_version,
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        generation=generation,
        duration_ns=max(
            filter(None, (whole(row[0]) for row in named_rows(source, "ANALYSIS_DETAILS", "duration"))), default=None
        ),
        start_utc=_start(source),
        gpus=_read_gpus(source),
        driver_version=_driver_version(system.get("NvDriverVersion")),
        cuda_version=_cuda_version(system.get("CudaDriverVersion")),
        os=known(system.get("OsDescription")),
        cpu=known(system.get("CpuDescription")) or known(system.get("CpuArchitecture")),
        command=_command(capture),
        processes=_processes(source),
        diagnostics=_diagnostics(source),
        options=_options(source),
        warnings=_warnings(generation, meta),
    )


def _options(source: Source) -> dict[str, str]:
    """What was traced, and how: kinds of events, CUDA graphs, memory."""
    options: dict[str, set[str]] = {}
    for name, value in named_values(source, "META_DATA_CAPTURE", _OPTION.match):
        options.setdefault("CUDA graph trace" if ":" in name else "traced events", set()).add(value)
    return {name: ", ".join(sorted(values)) for name, values in options.items()}


def _system_properties(source: Source) -> dict[str, str]:
    """The few machine properties that are used; the first value if several are recorded."""
    properties: dict[str, str] = {}
    for name, value in named_values(source, "TARGET_INFO_SYSTEM_ENV", _SYSTEM.__contains__):
        if known(value) is not None:
            properties.setdefault(name, value)
    return properties


def _metadata(source: Source) -> tuple[Generation, dict[str, str]]:
    tables: tuple[Generation, ...] = ("META_DATA_EXPORT", "EXPORT_META_DATA")
    for table in tables:
        if meta := dict(named_values(source, table, lambda name: name.startswith("EXPORT_"))):
            return table, meta
    return "none", {}


def _warnings(generation: Generation, meta: Mapping[str, str]) -> tuple[str, ...]:
    if generation == "none":
        return ("the report records no nsys version: nsys 2021 or older exported it, or another program rewrote it",)
    lacking = [name for name in ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION") if name not in meta]
    return (f"the report's metadata ({generation}) lacks {' and '.join(lacking)}",) if lacking else ()


def _installed(folder: str | None, export_version: str | None) -> str | None:
    """The version in the folder name of the recording nsys; in full if the same nsys exported the report."""
    match = INSTALLED.search(folder or "")
    if match is None:
        return None
    return export_version if f"{export_version}.".startswith(f"{match[1]}.") else match[1]


def _driver_version(value: str | None) -> str | None:
    """`525.105.17`, which some versions of nsys write without its dots."""
    match = re.fullmatch(r"(\d{3})(\d{2,3})(\d{2})|(\d{3})(\d{2})", (value or "").strip())
    return known(value) if match is None else ".".join(filter(None, match.groups()))


def _cuda_version(value: str | None) -> str | None:
    number = whole(value)
    return known(value) if number is None or number < 1000 else f"{number // 1000}.{number % 1000 // 10}"


def _start(source: Source) -> str | None:
    for epoch, text in named_rows(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcTime"):
        if isinstance(text, str) and text:
            return text
        epoch_ns = whole(epoch)
        if epoch_ns and epoch_ns > 0:
            start = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=epoch_ns // 1000)
            return start.strftime("%Y-%m-%dT%H:%M:%S")
    return None


def _command(capture: Mapping[str, str]) -> str | None:
    """The command line of the first process that nsys launched, without values of ``NAME=value`` words."""
    parts: dict[int, dict[int, str]] = {}
    for name, value in capture.items():
        if match := PROCESS_PART.match(name):
            parts.setdefault(int(match[1]), {})[int(match[2] or -1)] = value
    launched = [words for _, words in sorted(parts.items()) if -1 in words]
    if not launched:
        return None
    words = [word for _, word in sorted(launched[0].items())]
    return shlex.join(_without_values(words))


def _without_values(words: list[str]) -> Iterator[str]:
    """The words without the values of variables, also in the script after a ``-c``."""
    leading = re.search(r"(^|[/\\])env(\.exe)?$", words[0]) is not None
    for before, word in zip(["", *words], words, strict=False):
        assigned = re.match(r"\w+=" if leading else r"[A-Z_][A-Z0-9_]*=", word)
        leading = leading and (not before or assigned is not None or word.startswith("-"))
        if before == "-c":
            yield SCRIPT_VALUE.sub(r"\1=...", word)
        else:
            yield f"{assigned[0]}..." if assigned else word


def _processes(source: Source) -> dict[int, str]:
    rows = [(whole(process), name) for process, name in named_rows(source, "PROCESSES", "globalPid", "name")]
    texts = source.strings([name for process, name in rows if process is not None and isinstance(name, int)])
    return {
        process: texts.get(name, "") if isinstance(name, int) else str(name)
        for process, name in rows
        if process is not None and name not in (None, "")
    }


def _diagnostics(source: Source) -> tuple[Diagnostic, ...]:
    """Warnings and errors, errors first, each text once. Exports before 2024 have none."""
    events = [
        (SEVERITIES[level], str(part or "").lower(), text, whole(text_id))
        for severity, part, text, text_id in named_rows(
            source, "DIAGNOSTIC_EVENT", "severity", "source", "text", "textId"
        )
        if (level := str(severity).lower()) in SEVERITIES
    ]
    texts = source.strings([row[3] for row in events if row[2] is None and row[3] is not None])
    counts: Counter[tuple[Severity, str, str]] = Counter()
    for severity, part, text, text_id in events:
        if text is None and text_id is not None:
            text = texts.get(text_id)
        if message := " ".join(str(text or "").split()):
            counts[severity, SOURCES.get(part, part or "unknown"), message] += 1
    diagnostics = [Diagnostic(*key, count) for key, count in counts.items()]
    return tuple(sorted(diagnostics, key=lambda one: (one.severity != "error", one.severity, one.source, one.text)))


def last_error(source: Source) -> str:
    """Return the last line of a program's stderr if it tells of an error, up to a path, address or setting in it."""
    rows = [tuple(map(whole, row)) for row in named_rows(source, "ProcessStreams", "filenameId", "contentId")]
    texts = source.strings([number for row in rows for number in row if number is not None])
    written = [texts.get(content or 0, "") for file, content in rows if texts.get(file or 0, "").endswith("stderr.log")]
    last = [lines[-1] for text in written if (lines := text.strip().splitlines())]
    line = min((each for each in last if _ERROR.search(each) and not _OF_JOBS.match(each)), default="")
    words = line.split()
    safe = [*takewhile(lambda word: not _PRIVATE.search(word), dropwhile(_PRIVATE.search, words))]
    text = " ".join(safe) if len(safe) > 1 else ""  # one word says nothing
    return one_line(text if len(safe) == len(words) else re.sub(r"(?: at| in)?[\s:'\"(,]*$", "", text), 120).rstrip(".")


def read_thread_names(source: Source) -> dict[int, str]:
    """Return the name of each named globalTid; of several names, the alphabetically last is used, because rows have no
    order.
    """
    rows = [(whole(tid), whole(name)) for tid, name in named_rows(source, "ThreadNames", "globalTid", "nameId")]
    texts = source.strings(sorted({name for _, name in rows if name is not None}))
    named = [(known(texts.get(name)), tid) for tid, name in rows if tid is not None and name is not None]
    return {tid: name for name, tid in sorted((name, tid) for name, tid in named if name)}


_NOT_CUDA = re.compile(r"Microsoft Basic|\bIntel\b|\bAMD\b|\bRadeon\b|\bllvmpipe\b", re.IGNORECASE)
# What describes a GPU: the column of TARGET_INFO_GPU, and of TARGET_INFO_CUDA_GPU before 2021.2.
_GPU_COLUMNS = (
    ("id", "deviceId"),
    ("name", "name"),
    ("smCount", "numMultiprocessors"),
    ("totalMemory", "globalMemorySize"),
    ("memoryBandwidth", "globalMemoryBandwidth"),
    ("clockRate", "coreClockRate"),
    ("l2CacheSize", "l2CacheSize"),
    ("computeMajor", "computeCapabilityMajor"),
    ("computeMinor", "computeCapabilityMinor"),
    ("chipName", "chipName"),
    ("uuid", "uuid"),
)


def _read_gpus(source: Source) -> tuple[Gpu, ...]:
    """The GPUs in the order of their ids, from whichever table the exporter wrote; empty without one."""
    both = list(dict.fromkeys(name for pair in _GPU_COLUMNS for name in pair))
    rows: list[dict[str, Any]] = []
    for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"):
        rows = rows or [dict(zip(both, row, strict=True)) for row in named_rows(source, table, *both)]
    gpus: dict[int, Gpu] = {}
    for place, row in enumerate(rows or _listed(_system_properties(source).get("GpuInfo"))):
        gpu = _gpu([row.get(new) if row.get(new) is not None else row.get(old) for new, old in _GPU_COLUMNS], place)
        gpus.setdefault(gpu.id, gpu)
    return tuple(gpu for _, gpu in sorted(gpus.items()))


def _listed(info: str | None) -> list[dict[str, Any]]:
    """The GPUs in the system property ``GpuInfo`` (JSON since 2023), for reports without a table of GPUs."""
    try:
        gpus = json.loads(info or "")["Gpus"]
        return [{name[:1].lower() + name[1:]: value for name, value in gpu.items()} for gpu in gpus]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _gpu(values: list[Any], place: int) -> Gpu:
    number, name, *sizes, chip, uuid = values
    number = whole(number)
    sms, memory, bandwidth, clock, l2, major, minor = map(_count, sizes)
    # before 2022 some rates were kHz and kB/s; no GPU is below 10 MHz or 10 GB/s
    clock = clock * 1000 if clock and clock < 10**7 else clock
    bandwidth = bandwidth * 1000 if bandwidth and bandwidth < 10**10 else bandwidth
    described = sizes[0] is not None or sizes[5] is not None  # an older table does not: then it is one
    named = str(name or "unknown GPU")
    return Gpu(
        id=place if number is None else number,
        name=named,
        sm_count=sms,
        memory_bytes=memory,
        bandwidth_bytes_per_s=bandwidth,
        clock_hz=clock,
        compute_capability=(major, minor or 0) if major else None,
        l2_bytes=l2,
        chip=known(chip),
        uuid=known(uuid),
        is_cuda=bool(sms or major) if described else not _NOT_CUDA.search(named),
    )


def _count(value: object) -> int | None:
    """A value as a positive whole number, regardless of its storage type; None if it is anything else."""
    number = whole(value)
    return number if number and number > 0 else None


def gpus_of_devices(source: Source, gpus: Sequence[Gpu], devices: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the GPU of each (process, CUDA device id), None if unknown; a process may be a plain pid.

    CUDA numbers devices per process, so the same id may mean different GPUs in two processes. Since 2025,
    TARGET_INFO_CUDA_DEVICE (pid, cudaId → gpuId) has the mapping. A process that is not listed gets the mapping on
    which all listed processes agree. An unlisted device is the GPU with the same id, otherwise the n-th GPU that CUDA
    can use. ``cuDevice`` of TARGET_INFO_GPU is unreliable.
    """
    index = {gpu.id: place for place, gpu in enumerate(gpus)}
    by_process: dict[tuple[int, int], int] = {}
    agreed: dict[int, set[int]] = {}
    for row in named_rows(source, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId"):
        pid, device, gpu_id = map(whole, row)
        if gpu_id in index and device is not None:
            by_process[pid or 0, device] = index[gpu_id]
            agreed.setdefault(device, set()).add(index[gpu_id])
    usable = [(gpu.id, place) for place, gpu in enumerate(gpus) if gpu.is_cuda]
    by_device = {rank: place for rank, (_, place) in enumerate(usable)} | dict(usable)
    for device, places in agreed.items():
        by_device.pop(device, None)
        if len(places) == 1:
            by_device[device] = places.pop()
    pids = [(process >> 24) & 0xFFFFFF if process >> 24 else process for process, _ in devices]
    return [
        by_process.get((pid, device), by_device.get(device)) for pid, (_, device) in zip(pids, devices, strict=True)
    ]


_VARIABLE = re.compile(r"PROCESS_\d+:ENVIRONMENT_VARIABLE")
_ASSIGNED = re.compile(r"(?:^|;)(\w+)=\"?(\d{1,9})(?=\"|;|$)")


def read_job(source: Source) -> Job:
    """Read rank, host and start time from the environment and system information in the report."""
    starts = named_rows(source, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    hosts = named_values(source, "TARGET_INFO_SYSTEM_ENV", "Hostname".__eq__)
    return Job(
        rank=_rank(source),
        host=next((known(value) for _, value in hosts), None),
        start_utc_ns=next((start for row in starts if (start := whole(row[0]))), None),
    )


def _rank(source: Source) -> int | None:
    """The rank in the program's environment, if nsys recorded it."""
    recorded = [
        *named_values(source, "META_DATA_CAPTURE", _VARIABLE.fullmatch),
        *named_values(source, "TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment".__eq__),
    ]
    ranks = {name: int(number) for _, value in reversed(recorded) for name, number in _ASSIGNED.findall(value)}
    return next((ranks[name] for name in PLACE_VARIABLES["rank"] if name in ranks), None)
