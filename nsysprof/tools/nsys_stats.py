"""Runs ``nsys stats``, NVIDIA's own answers, on an exported report."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

from nsysprof.errors import NsysprofError
from nsysprof.tools.nsight import last_line, run_tool
from nsysprof.tools.nsys import Nsys

__all__ = ["stats"]

# What a report was called before 2023, where both names give the same table. The old gpukernsum splits by
# grid and block, so it is not here; nvtxgpuproj was a trace, and there was no projected summary.
OLD_NAMES = {
    "cuda_api_sum": "cudaapisum",
    "cuda_gpu_mem_size_sum": "gpumemsizesum",
    "cuda_gpu_mem_time_sum": "gpumemtimesum",
    "cuda_gpu_trace": "gputrace",
    "nvtx_gpu_proj_trace": "nvtxgpuproj",
    "nvtx_kern_sum": "nvtxkernsum",
    "nvtx_pushpop_sum": "nvtxppsum",
    "nvtx_pushpop_trace": "nvtxpptrace",
    "nvtx_startend_sum": "nvtxsesum",
    "nvtx_sum": "nvtxsum",
}
CHATTER = re.compile(r"(NOTICE|WARNING|SKIPPED|ERROR|Generating)\b")
FAILED = re.compile(r"^ERROR: (.*internal error.*)", re.MULTILINE)


def stats(nsys: Nsys, sqlite: Path, report_name: str, *, timeout: float = 3600) -> list[dict[str, str]]:
    """The rows of ``nsys stats --report NAME``, as text; empty where the report has no data for it.

    Runs on a private copy, since nsys may write into the file or beside it. Old versions are asked under the
    old name. JSON is asked for first: in CSV nsys does not double the quotes that a name holds, and in JSON it writes
    some names as numbers that are none. Raises `NsysprofError` where this nsys has no such report or fails.
    """
    with tempfile.TemporaryDirectory(prefix="nsysprof-") as folder:
        copy = Path(folder, "report.sqlite")
        try:
            shutil.copyfile(sqlite, copy)
        except OSError as error:
            raise NsysprofError(f"{sqlite}: cannot copy it for nsys stats: {error.strerror}") from None
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
        raise NsysprofError(f"{sqlite}: cannot read what nsys stats printed: {error}") from None


def _printed(nsys: Nsys, sqlite: Path, copy: Path, report_name: str, form: str, timeout: float) -> str:
    """What `nsys stats` printed of the report's copy, without the lines before the table."""
    base, _, options = report_name.partition(":")
    names = [base, OLD_NAMES[base]] if base in OLD_NAMES else [base]
    for name in names:
        asked = f"{name}:{options}" if options else name
        done = run_tool(nsys.path, ["stats", "--report", asked, "--format", form, str(copy)], timeout)
        if "could not be found" not in done.stdout + done.stderr:
            break
    else:
        raise NsysprofError(
            f"nsys {nsys.version_text} has no report named {base}: not supported",
            "use a newer nsys: --nsys PATH",
        )
    failed = FAILED.search(done.stderr)  # with exit code 0
    if done.returncode != 0 or failed:
        what = failed[1] if failed else last_line(done.stderr) or last_line(done.stdout)
        raise NsysprofError(
            f"nsys stats --report {name} failed on {sqlite}: {what or f'exit code {done.returncode}'}"
        )
    table = done.stdout.replace("\0", "\ufffd").splitlines(keepends=True)
    starts = [at for at, line in enumerate(table) if line.startswith("Processing [")]
    del table[: starts[0] + 1 if starts else 0]
    while table and (not table[0].strip() or CHATTER.match(table[0])):
        del table[0]
    return "".join(table)
