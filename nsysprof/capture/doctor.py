"""Check everything that a capture needs on this machine, with a fix for each failure."""

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from nsysprof.capture.compose import Request
from nsysprof.capture.failure import why_no_ranges
from nsysprof.capture.outputs import Outputs
from nsysprof.capture.program import with_results
from nsysprof.capture.session import capture_program
from nsysprof.catalog import INSTALL_AGAIN, workload_command
from nsysprof.core.document import read_if_document
from nsysprof.core.units import format_bytes, format_ns
from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import Described, ask_workload
from nsysprof.tools.child import run_child
from nsysprof.tools.driver import PERMISSION_FIX, Driver, ask_driver, counters_kept_from_us, too_new_for
from nsysprof.tools.nsight import find_ncu
from nsysprof.tools.nsys import Nsys, all_nsys, find_nsys

State = Literal["ok", "warn", "missing"]
TORCH_PROFILER = "PyTorch's profiler"

_FREE_BYTES, _MIN_FREE_BYTES = 5 << 30, 256 << 20
# Ranges for about a second, as an import of torch would take; without the nvtx package a capture is tried all the same.
_TRIAL = """
import sys, time
try:
    import nvtx
except ImportError:
    time.sleep(0.5)
    sys.exit()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    with nvtx.annotate("RUN::doctor::S1"):
        time.sleep(0.01)
"""
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_WITHOUT_NSYS = "records without nsys: nsysprof capture --profiler torch"
INSTALL_TORCH = f"{sys.executable} -m pip install torch nvtx"
_GET_GPU = "install the driver (https://www.nvidia.com/drivers), or start the container with --gpus all"


@dataclass(frozen=True)
class Check:
    """The result of one test: what was tested, its state, the finding, and a one-line fix (None if the state is ok).

    ``needed``: whether captures with nsys depend on the tested part. ``lab``: whether only the shipped workloads do.
    """

    name: str
    state: State
    found: str
    fix: str | None = None
    needed: bool = False
    lab: bool = False


def check_machine(
    folder: Path, *, nsys: Path | None = None, workload: Path | None = None, announce: Callable[[str], None]
) -> Iterator[Check]:
    """Test everything that a capture may need on this machine, and yield the result of each test, the workloads last.

    ``folder`` is the output folder of captures, ``workload`` the workload to try (None: not installed). ``announce`` is
    called with a description before each slow test.
    """
    try:
        tool: Nsys | None = find_nsys(nsys)
    except NsysprofError as error:
        tool = None
        yield Check("nsys", "missing", error.message, error.hint, needed=True)
    if tool is not None:
        yield from _nsys(tool, announce)
    driver, why = ask_driver()
    yield from _gpu(driver, why, tool)
    yield _counters(driver)
    torch = list(_torch(workload, driver, announce))
    yield from (check for check in torch if not check.lab)
    yield _disk(folder)
    if sys.platform == "linux":
        yield _paranoid()
    yield from (check for check in torch if check.lab)


def capture_works(checks: list[Check]) -> bool:
    """Return whether a capture with nsys would work: nothing that it needs is missing."""
    return not any(check.needed and check.state == "missing" for check in checks)


def _nsys(nsys: Nsys, announce: Callable[[str], None]) -> Iterator[Check]:
    others = [f"{other.version_text} at {other.path}" for other in all_nsys() if other.path != nsys.path]
    also = f"; also {', '.join(others)}" if others else ""
    yield Check("nsys", "ok", f"{nsys.version_text} at {nsys.path}{also}", needed=True)
    announce("capturing for a second")
    try:
        with tempfile.TemporaryDirectory(prefix="nsysprof-") as folder:
            yield _trial(nsys, Path(folder))
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        message = f"cannot write {where}: {error.strerror or error}"
        fix = f"df -h {tempfile.gettempdir()}, or set TMPDIR=FOLDER"
        yield Check("capture", "missing", message, fix, needed=True)


def _trial(nsys: Nsys, folder: Path) -> Check:
    """Make a real capture of NVTX ranges, with import and export, in a temporary folder."""
    checked = partial(Check, "capture", needed=True)
    request = Request((sys.executable, "-c", _TRIAL), nsys)
    try:
        staged = capture_program(request, folder, Outputs(folder, "trial"), (), lambda text: None)
        ranges, none = _ranges_in(staged.sqlite), why_no_ranges(staged.sqlite)
    except NsysprofError as error:
        return checked("missing", error.message.replace(f"{folder}{os.sep}", ""), error.hint or _by_hand(nsys))
    except sqlite3.Error as error:
        return checked("missing", f"nsys's export cannot be read: {error}", _by_hand(nsys))
    rescued = staged.record["rescued"]
    how = "nsys did not find its importer, so nsysprof ran the importer directly" if rescued else "imported"
    took = format_ns(staged.record["wall_ns"])
    version = _version("nvtx")
    if version is None:
        finding = f"made a report in {took} ({how}); the nvtx package is missing, so ranges were not tested"
        return checked("warn", finding, f"{sys.executable} -m pip install nvtx")
    if not ranges:
        why = f": {none[0]}" if none else ""
        finding = f"made a report in {took} ({how}), without ranges from nvtx {version}{why}"
        return checked("warn", finding, "pip install 'nvtx<0.2.12', or a newer nsys: --nsys PATH")
    return checked("ok", f"{ranges:,} NVTX ranges in {took}, {how}")


def _by_hand(nsys: Nsys) -> str:
    return f"run this command and read its output: {quote(str(nsys.path))} profile --trace=nvtx --output=trial true"


def _ranges_in(sqlite: Path) -> int:
    with closing(sqlite3.connect(sqlite)) as database:
        there = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
        query = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)"
        return int(database.execute(query).fetchone()[0]) if there else 0


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  takes 20 ms

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu(driver: Driver | None, why: str, nsys: Nsys | None) -> Iterator[Check]:
    if driver is None:
        yield Check("GPU", "missing", f"{why}; no kernels to capture", _GET_GPU)
        return
    names = [gpu.get("name", "?") for gpu in driver.gpus]
    cuda = f", CUDA {'.'.join(map(str, driver.cuda))}" if driver.cuda else ""
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    yield Check("GPU", "ok", f"{counted}; driver {driver.version}{cuda}")
    warning = too_new_for(driver, nsys) if nsys is not None else None
    if warning:
        yield Check("driver and nsys", "warn", warning, "https://developer.nvidia.com/nsight-systems")


def _counters(driver: Driver | None) -> Check:
    checked = partial(Check, "ncu")
    try:
        ncu = find_ncu()
    except NsysprofError as error:
        return checked("missing", f"{error.message}: no hardware counters", error.hint)
    there = f"{ncu.version_text} at {ncu.path}"
    if driver is None:
        return checked("warn", f"{there}; no GPU, so no hardware counters", _GET_GPU)
    if counters_kept_from_us():
        return checked("warn", f"{there}; the driver restricts hardware counters to administrators", PERMISSION_FIX)
    return checked("ok", f"{there}; hardware counters are readable")


def _torch(workload: Path | None, driver: Driver | None, announce: Callable[[str], None]) -> Iterator[Check]:
    """Check torch and each backend of the workload by a tiny run in a separate process."""
    try:
        if workload is None:
            raise NsysprofError("none beside the package", INSTALL_AGAIN)
        about, _ = ask_workload(workload)
    except NsysprofError as error:
        yield from _installed_torch()
        yield Check("workloads", "missing", error.message, error.hint, lab=True)
        return
    announce(f"trying the backends of {about.says}")
    device = "cuda" if driver else "cpu"
    results, why, fix = _tiny_run(workload, about, device)
    if results is None and driver:
        yield Check("torch", "warn", f"does not run on the GPU: {why}", fix)
        device = "cpu"
        results, why, fix = _tiny_run(workload, about, device)
    if results is None:
        installed = [*_installed_torch()]
        yield from installed
        if len(installed) > 1:
            yield Check(about.says, "warn", why, fix, lab=True)
        return
    facts = results["environment"]
    built = f"built for CUDA {facts['cuda']}" if facts.get("cuda") else "built without CUDA"
    if driver and not facts.get("cuda"):
        yield Check("torch", "warn", f"{facts['torch']}, {built}", INSTALL_TORCH)
    else:
        yield Check("torch", "ok", f"{facts['torch']}, {built}")
    yield Check(TORCH_PROFILER, "ok", _WITHOUT_NSYS)
    yield from _backends(results, about, device)


def _installed_torch() -> Iterator[Check]:
    """Check whether torch is there, without running it."""
    installed = _version("torch")
    if installed is None:
        yield Check("torch", "missing", "not installed", INSTALL_TORCH)
        return
    yield Check("torch", "ok", f"{installed} installed")
    yield Check(TORCH_PROFILER, "ok", _WITHOUT_NSYS)


def _tiny_run(workload: Path, about: Described, device: str) -> tuple[dict[str, Any] | None, str, str]:
    """Run each quick backend once; return the results, or None with the reason and its fix."""
    with tempfile.TemporaryDirectory(prefix="nsysprof-") as name:
        results = Path(name, "results.json")
        dtype = about.dtypes[0 if device == "cuda" else -1]
        sizes = [part for axis, size in about.trial.items() for part in (f"--{axis.replace('_', '-')}", str(size))]
        tiny = [*sizes, "--iterations", "1", "--warmup", "1", "--dtype", dtype, "--device", device]
        quick = [name for name, each in about.backends.items() if not each.compiled]
        program = [*workload_command(workload), "--backend", *quick, *tiny]
        ended = run_child(with_results(program, results), Path(name, "log"), lambda text: None)
        if measured := read_if_document(results):
            return measured, "", ""
    lines = [line.strip() for line in ended.output.strip().splitlines()] or ["the workload printed nothing"]
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    why = [line for line in lines if not line.startswith("hint: ")] or lines
    return None, why[-1], hints[-1] if hints else INSTALL_TORCH


def _backends(results: Mapping[str, Any], about: Described, device: str) -> Iterator[Check]:
    runs = {run["backend"]: run for run in results["runs"]}
    works = [name for name, run in runs.items() if run["status"] == "measured"]
    instead = f"leave out others: {' '.join(f'--backend {name}' for name in works)}" if works else INSTALL_TORCH
    checked = partial(Check, lab=True)
    yield checked(
        about.says, "ok" if works else "missing", f"on {device}: {', '.join(works) or 'no backend'}",
        None if works else INSTALL_TORCH,
    )  # fmt: skip
    if slow := [name for name, each in about.backends.items() if each.compiled]:
        yield checked(
            f"{about.says} {', '.join(slow)}", "ok", "not tried, because the first call compiles for many seconds"
        )
    refused: dict[str, dict[str, str]] = {}  # backends with the same reason share one finding
    for name in [name for name in runs if name not in works]:
        reason = f"{runs[name]['status']}: {runs[name].get('reason') or 'no reason given'}"
        refused.setdefault(reason.replace(name, ""), {})[name] = reason
    for alike in refused.values():
        install = {about.backends[name].install for name in alike if name in about.backends}
        why = next(iter(alike.values()))
        helps = len(install) == 1 and None not in install and not why.endswith(f"not on {device}")
        fix = next(iter(install)) if helps else instead
        yield checked(f"{about.says} {', '.join(alike)}", "warn", why, fix)


def _disk(folder: Path) -> Check:
    checked = partial(Check, "disk", needed=True)
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir()).absolute()
    free = shutil.disk_usage(there).free
    elsewhere = "-o FOLDER/NAME writes to another folder or disk"
    if not os.access(there, os.W_OK | os.X_OK):
        return checked("missing", f"no permission to write in {there}", elsewhere)
    state: State = "ok" if free >= _FREE_BYTES else "missing" if free < _MIN_FREE_BYTES else "warn"
    return checked(state, f"{format_bytes(free)} free in {there}", None if state == "ok" else elsewhere)


def _paranoid() -> Check:
    """Check the CPU sampling level of the Linux kernel; captures do not need it, because they do not sample the CPU."""
    checked = partial(Check, "perf_event_paranoid")
    try:
        level = int(_PARANOID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return checked("warn", "cannot be read", "only --nsys-arg=--sample=process-tree needs it")
    if level <= 2:
        return checked("ok", f"{level}: CPU sampling is allowed")
    return checked(
        "warn", f"{level}: CPU sampling is off; nsysprof does not need it", "sudo sysctl kernel.perf_event_paranoid=2"
    )
