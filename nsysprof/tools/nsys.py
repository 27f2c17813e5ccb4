"""Find NVIDIA's ``nsys`` and its importer, get versions, import streams and export reports."""

import csv
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from nsysprof.core.files import whole_file
from nsysprof.errors import NsysprofError
from nsysprof.tools import nsight

ENVIRONMENT = "NSYSPROF_NSYS"
PRINT_ELSEWHERE = "send the program's output to a file (-- sh -c 'PROGRAM > FILE 2>&1')"
TOO_BIG = "the recording contains a text of more than 1 GB (usually the program's output), which SQLite cannot store"
GET_IT = (
    "get Nsight Systems from https://developer.nvidia.com/nsight-systems, or name it with --nsys PATH or"
    f" {ENVIRONMENT}=PATH; a report that was exported already (.sqlite) needs none"
)
# Debian's and Ubuntu's package of a library, and Fedora's and RHEL's.
_PACKAGES = {
    "libdw.so.1": ("libdw1", "elfutils-libs"),
    "libelf.so.1": ("libelf1", "elfutils-libelf"),
    "libssh.so": ("libssh-4", "libssh"),
    "libssh.so.4": ("libssh-4", "libssh"),
    "libnss3.so": ("libnss3", "nss"),
    "libGL.so.1": ("libgl1", "libglvnd-glx"),
    "libglib-2.0.so.0": ("libglib2.0-0", "glib2"),
}
NEWER = re.compile(
    r"Report was created in Nsight Systems version \((?P<a>[^)]+)\), newer than"
    r"|Version number is invalid: (?P<b>\S+)"
    r"|Version not supported: (?P<build>\d+)"
)

# What a report was called before 2023, where both names give the same table. The old gpukernsum splits by
# grid and block, so it is not here; nvtxgpuproj was a trace, and there was no projected summary.
OLD_NAMES = {
    "cuda_api_sum": "cudaapisum",
    "cuda_gpu_mem_size_sum": "gpumemsizesum",
    "cuda_gpu_mem_time_sum": "gpumemtimesum",
    "cuda_gpu_trace": "gputrace",
    "cuda_kern_exec_sum": "kernexecsum",
    "nvtx_gpu_proj_trace": "nvtxgpuproj",
    "nvtx_kern_sum": "nvtxkernsum",
    "nvtx_pushpop_sum": "nvtxppsum",
    "osrt_sum": "osrtsum",
    "um_cpu_page_faults_sum": "umcpupagefaults",
    "um_total_sum": "unifiedmemorytotals",
    "nvtx_pushpop_trace": "nvtxpptrace",
    "nvtx_startend_sum": "nvtxsesum",
    "nvtx_sum": "nvtxsum",
}
CHATTER = re.compile(r"(NOTICE|WARNING|SKIPPED|ERROR|Generating)\b")
FAILED = re.compile(r"^ERROR: (.*internal error.*)", re.MULTILINE)


Nsys: TypeAlias = nsight.Tool
NSYS = nsight.ToolKind(
    name="nsys",
    environment=ENVIRONMENT,
    get_it=GET_IT,
    version_pattern=r"Nsight Systems version (\d\S*)",
    linux=(
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
        "/usr/local/cuda*/bin/nsys",
        "/usr/local/cuda*/nsight-systems-*/target-linux-*/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "/usr/lib/nsight-systems/bin/nsys",
        "/usr/lib/nsight-systems/target-linux-*/nsys",
        "/usr/lib/*/nsight-systems/target-linux-*/nsys",
    ),
    windows=(
        r"NVIDIA Corporation\Nsight Systems *\target-windows-*\nsys.exe",
        r"NVIDIA Corporation\Nsight Compute *\host\target-windows-*\nsys.exe",
    ),
)


def header_version(path: Path) -> str | None:
    """Return the nsys version in the header of a ``.nsys-rep`` or ``.qdstrm``, or None if the header has none."""
    with path.open("rb") as file:
        return version_in(file.read(256))


def version_in(head: bytes) -> str | None:
    """Return the nsys version in the first bytes of a file."""
    version = re.search(rb"(?:Profiler Report|Systems Stream) (20\d\d[.@]\d+[.@0-9]*(?:-[0-9a-v]*)?)", head)
    return version[1].decode("ascii").replace("@", ".").rstrip(".") if version else None


def find_nsys(explicit: str | os.PathLike[str] | None = None) -> Nsys:
    """Find the nsys to use, like `find_tool`; the environment variable is ``NSYSPROF_NSYS``."""
    return nsight.find_tool(NSYS, explicit)


def all_nsys() -> list[Nsys]:
    """Find every working nsys, without duplicates: ``NSYSPROF_NSYS``, the PATH, then all installed, newest first."""
    named = [name for name in (os.environ.get(ENVIRONMENT), shutil.which("nsys")) if name]
    first = [nsight.ask_tool(NSYS, name)[0] for name in named]
    unique: dict[str, Nsys] = {}
    for nsys in [*first, *nsight.installed_tools(NSYS)]:
        if nsys is not None:
            unique.setdefault(os.path.realpath(nsys.path), nsys)
    return list(unique.values())


def find_importer(nsys: Nsys | None = None) -> Path | None:
    """Find the QdstrmImporter of an nsys; returns None if it is not installed.

    nsys looks for the importer in ``../host-linux-x64``. Debian separates nsys's own folder from the host folder, so
    nsys does not find the importer and writes only a .qdstrm. This function also tries Debian's place, and Nsight
    Compute's ``../linux-desktop-glibc_*-x64``.
    """
    exe = "QdstrmImporter.exe" if sys.platform == "win32" else "QdstrmImporter"
    roots = []
    if nsys is not None:
        for place in (Path(nsys.path), Path(os.path.realpath(nsys.path))):
            roots += [place.parent.parent, *(up / "nsight-systems" for up in place.parents)]
    for root in roots or [Path("/usr/lib/nsight-systems")]:
        for importer in [*sorted(root.glob(f"host-*/{exe}")), *sorted(root.glob(f"*-desktop-*/{exe}"))]:
            if os.access(importer, os.X_OK):
                return importer
    return None


def import_stream(stream: Path, out: Path, nsys: Nsys, *, timeout: float = 3600) -> None:
    """Make the .nsys-rep ``out`` from a .qdstrm with the importer of ``nsys``; the stream is kept.

    The report gets its name when it is complete.

    Raises `NsysprofError` if there is no importer, or if the importer refuses the stream or lacks a library (the error
    names the package). The hint of the error does not say how to resume, because only the caller knows where the stream
    is kept.
    """
    importer = find_importer(nsys)
    if importer is None:
        raise NsysprofError(
            f"nsys {nsys.version_text} has no importer (QdstrmImporter), neither in ../host-linux-x64 nor elsewhere",
            "install it (Debian, Ubuntu: apt-get install nsight-systems; NVIDIA: nsight-systems instead of"
            " nsight-systems-cli), or import the stream on a machine that has it",
        )
    part = out.with_name(f"part-{out.name}")
    done = nsight.run_tool(importer, ["-i", str(stream), "-o", str(part)], timeout)
    if done.returncode == 0 and part.is_file() and part.stat().st_size:
        part.replace(out)
        return
    part.unlink(missing_ok=True)
    output = done.stderr + done.stdout
    missing = missing_libraries(importer) or re.findall(r"loading shared libraries: ([^:\s]+):", output)
    if missing:
        raise NsysprofError(
            f"nsys's importer cannot start: {', '.join(missing)} is missing ({importer})", _installation(missing)
        )
    raise NsysprofError(
        f"{importer} cannot read the stream: {_reason(output) or f'exit code {done.returncode}'}",
        "only the importer of the nsys that recorded this file can read it: nsys "
        f"{header_version(stream) or '(unknown)'}",
    )


def _installation(libraries: Sequence[str]) -> str:
    """Name the packages to install for libraries; libraries of unknown packages are mostly nsys's own."""
    known = dict.fromkeys(_PACKAGES[library] for library in libraries if library in _PACKAGES)
    other = [library for library in libraries if library not in _PACKAGES]
    debian, fedora = (" ".join(names) for names in zip(*known, strict=True)) if known else ("", "")
    hints = [f"apt-get install {debian} (Fedora, RHEL: dnf install {fedora})"] if known else []
    hints += [f"install the package that contains {', '.join(other)}, or reinstall nsys"] if other else []
    return "; ".join(hints)


def missing_libraries(program: Path) -> list[str]:
    """List the shared libraries that a Linux program needs but the loader does not find."""
    try:
        done = nsight.run_tool(Path(shutil.which("ldd") or "ldd"), [str(program)], timeout=60)
    except NsysprofError:
        return []
    return list(dict.fromkeys(re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE)))


def _reason(output: str) -> str:
    """Return why an import failed: the text within nsys's error report, else its last line."""
    texts = re.findall(r'ErrorText"?\s*\n\s*Value: "([^"]+)"', output)
    closing = re.search(r"File is corrupted", output)
    return "; ".join([*texts[:1], *(["the file is truncated or damaged"] if closing else [])]) or nsight.last_line(
        output
    )


def export(nsys: Nsys, report: Path, out: Path, *, timeout: float = 3600) -> None:
    """Export a ``.nsys-rep`` or ``.qdrep`` to the SQLite file ``out``, which must not exist.

    The file gets its name when it is complete; otherwise nothing is left behind. Raises `NsysprofError` if nsys refuses
    or fails; the message has both versions if the report is newer than nsys, or the last line of nsys's output.
    """
    taken = NsysprofError(f"{out}: exists already, not overwritten", f"rm {quote(str(out))}, or name another file")
    if os.path.lexists(out):
        raise taken
    try:
        with whole_file(out, replace=False) as part:
            command = ["export", "--type", "sqlite", "--output", str(part), str(report.absolute())]
            done = nsight.run_tool(nsys.path, command, timeout)
            if done.returncode != 0 or not part.exists() or part.stat().st_size == 0:
                raise _export_error(nsys, report, done.stdout + "\n" + done.stderr, done.returncode)
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise NsysprofError(
            f"{out}: cannot be written: {error.strerror}", f"mkdir -p {quote(str(out.parent))}, or name another folder"
        ) from None


def _build(report: Path) -> str:
    """Return the build of the nsys that made a report, if its header has that instead of a version."""
    with report.open("rb") as file:
        build = re.search(rb"Profiler Report (\d{6,})\.", file.read(256))
    return f" (build {build[1].decode()})" if build else ""


def _export_error(nsys: Nsys, report: Path, output: str, code: int) -> NsysprofError:
    newer = NEWER.search(output)
    if newer:
        made_by = f"build {newer['build']}" if newer["build"] else (newer["a"] or newer["b"]).replace("@", ".")
        return newer_than(report, made_by, nsys)
    if "ProtobufParseException" in output:
        return NsysprofError(
            f"nsys {nsys.version_text} cannot parse {report}: a newer nsys{_build(report)} made the "
            "file, or it is damaged",
            f"copy the report again, or export it with the nsys that made it: {_by_hand(report)}",
        )
    if "magic number mismatch" in output:
        return NsysprofError(
            f"{report} is truncated or damaged: its section table is missing (nsys {nsys.version_text})",
            "copy the file again and compare its size with the original's",
        )
    if "string or blob too big" in output:
        return NsysprofError(
            f"{report}: nsys {nsys.version_text} could not export it: {TOO_BIG}",
            f"export it as Parquet, which nsysprof analyze also reads: {quote(str(nsys.path))} "
            f"export --type parquetdir {quote(str(report))}; next time, {PRINT_ELSEWHERE}",
        )
    what = nsight.last_line(output) or f"exit code {code}"
    return NsysprofError(
        f"{report}: nsys {nsys.version_text} could not export it: {what}",
        f"see nsys's own message: {_by_hand(report, str(nsys.path))}",
    )


def _by_hand(report: Path, nsys: str = "nsys") -> str:
    return f"{quote(nsys)} export --type sqlite {quote(str(report))}"


def newer_than(report: Path, made_by: str, nsys: Nsys) -> NsysprofError:
    """Make the error for a report that this nsys is too old to read, with both versions."""
    numbers = nsight.version_numbers(made_by)[:2]
    wanted = f"nsys {'.'.join(map(str, numbers))} or newer" if numbers else "a newer nsys"
    return NsysprofError(
        f"{report} was made by nsys {made_by}, which is newer than the installed nsys "
        f"{nsys.version_text} ({nsys.path})",
        f"install {wanted} and name it with --nsys PATH, or export the report on the machine that "
        f"recorded it: {_by_hand(report)}",
    )


def stats(nsys: Nsys, sqlite: Path, report_name: str, *, timeout: float = 3600) -> list[dict[str, str]]:
    """Return the rows of ``nsys stats --report NAME`` as text; empty if the recording has no data for this report.

    nsys runs on a private copy, because it may write into the file or beside it. Old versions get the report's old
    name. JSON is tried before CSV, because nsys does not escape quotes in CSV names; reading JSON fails if nsys wrote a
    name as an invalid number. Raises `NsysprofError` if this nsys has no such report or fails.
    """
    with tempfile.TemporaryDirectory(prefix="nsysprof-") as folder:
        copy = Path(folder, "report.sqlite")
        try:
            shutil.copyfile(sqlite, copy)
        except OSError as error:
            raise NsysprofError(f"cannot copy {sqlite} for nsys stats: {error.strerror}") from None
        printed = _printed(nsys, sqlite, copy, report_name, "json", timeout)
        if printed.startswith("["):
            try:
                rows = json.loads(printed, strict=False, parse_int=str, parse_float=str)
                return [{name: str(value) for name, value in row.items()} for row in rows]
            except ValueError:
                printed = _printed(nsys, sqlite, copy, report_name, "csv", timeout)
    try:
        return list(csv.DictReader(io.StringIO(printed, newline=""), restval=""))
    except csv.Error as error:
        raise NsysprofError(f"{sqlite}: cannot read the output of nsys stats: {error}") from None


def _printed(nsys: Nsys, sqlite: Path, copy: Path, report_name: str, form: str, timeout: float) -> str:
    """Run `nsys stats` on the report's copy; returns what it printed, without the lines before the table."""
    base, _, options = report_name.partition(":")
    names = [base, OLD_NAMES[base]] if base in OLD_NAMES else [base]
    for name in names:
        asked = f"{name}:{options}" if options else name
        done = nsight.run_tool(nsys.path, ["stats", "--report", asked, "--format", form, str(copy)], timeout)
        if "could not be found" not in done.stdout + done.stderr:
            break
    else:
        raise NsysprofError(
            f"nsys {nsys.version_text} has no report named {base}, so --verify is not supported",
            "use a newer nsys: --nsys PATH",
        )
    failed = FAILED.search(done.stderr)  # with exit code 0
    if done.returncode != 0 or failed:
        what = failed[1] if failed else nsight.last_line(done.stderr) or nsight.last_line(done.stdout)
        raise NsysprofError(f"nsys stats --report {name} failed on {sqlite}: {what or f'exit code {done.returncode}'}")
    table = done.stdout.replace("\0", "\ufffd").splitlines(keepends=True)
    starts = [at for at, line in enumerate(table) if line.startswith("Processing [")]
    del table[: starts[0] + 1 if starts else 0]
    while table and (not table[0].strip() or CHATTER.match(table[0])):
        del table[0]
    return "".join(table)
