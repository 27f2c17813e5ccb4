"""The reader for PyTorch profiler traces."""

import codecs
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec

from nsysprof.core.arena import ColumnArena
from nsysprof.core.arrays import Ints, Line
from nsysprof.core.text import one_line
from nsysprof.core.units import format_ns
from nsysprof.errors import NsysprofError
from nsysprof.trace import details
from nsysprof.trace.about import About, Gpu
from nsysprof.trace.kineto.build import Threads, build_trace, threads_of, within_whole_us
from nsysprof.trace.kineto.details import (
    read_autograd,
    read_call_list,
    read_collectives,
    read_dependencies,
    read_host_activity,
    read_memory,
    read_op_details,
    read_operator_calls,
    read_other_ranges,
)
from nsysprof.trace.kineto.events import Events, is_pytorch, not_read, read_events, whole
from nsysprof.trace.kineto.text import BOMS, GZIP, TraceText
from nsysprof.trace.trace import KERNEL, Progress, Reader, Report, Trace

_OPTIONS = ("record_shapes", "profile_memory", "with_stack", "with_flops")  # stated where they are on
_HEAD = 1 << 12  # bytes that show what a file is
_ANY_TRACE, _BYTES_PER_ROW = 450_000_000, 150  # memory of an analysis in all, and per event that is kept
_EPOCH_NS = 1_000_000_000 * 1_000_000_000  # times above it are since 1970: traces before 2024


class KinetoReader(Reader):
    """Reader of Chrome JSON written by ``torch.profiler``, plain or gzip-compressed."""

    format, recorder = "kineto", "PyTorch profiler"
    endings = (".pt.trace.json", ".pt.trace.json.gz", ".trace.json", ".trace.json.gz", ".json.gz")
    annotations = "PyTorch"
    recording = "nsysprof capture --profiler torch -- PROGRAM"

    def __init__(self, text: TraceText, events: Events, threads: Threads) -> None:
        self.text, self.events, self.threads = text, events, threads

    @classmethod
    def claims(cls, path: Path) -> bool:
        """Return whether a file, compressed or not, starts like JSON; pipes are refused, because they may never end."""
        if not path.is_file():
            return False
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD)
            if head.startswith(GZIP):
                head = zlib.decompressobj(31).decompress(head, _HEAD)
        except (OSError, zlib.error):
            return False
        for mark, name in BOMS:
            if head.startswith(mark):
                head = codecs.decode(head, name, "replace").encode("utf-8", "replace")
        return head.lstrip()[:1] in (b"{", b"[")

    @classmethod
    def open(cls, path: Path, **options: Path | None) -> Report:
        """Read the whole trace into narrow columns; metadata outside the events becomes `About`."""
        text = TraceText(path)
        with _reading(path):
            events = read_events(text)
        of_2021 = "operator" in events.seen and "schemaVersion" in text.beside  # MXNet has the category, too
        if not text.found or not (is_pytorch(events.seen) or of_2021):
            raise _refusal(path, text, events)
        if events.whole_us:
            within_whole_us(events)
        reader = cls(text, events, threads_of(events))
        return Report(path, path, reader, reader.about())

    def about(self) -> About:
        """Metadata of the trace."""
        beside, events = self.text.beside, self.events
        cuda = whole(_json(beside, "cuda_driver_version"), 0)
        start = self._start_utc_ns()
        began = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=(start or 0) // 1000)
        processes = {
            int(self.threads.ids[code]) & ~0xFFFFFF: events.processes[pid]
            for code, (pid, _) in enumerate(events.threads)
            if pid in events.processes
        }
        return About(
            duration_ns=max(events.last - events.first, 0) or None,
            start_utc=began.strftime("%Y-%m-%dT%H:%M:%S") if start else None,
            gpus=tuple(_gpus(_json(beside, "deviceProperties"))),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda > 1000 else None,
            processes=processes,
            options={name: "on" if _json(beside, name) else "off" for name in _OPTIONS},
            warnings=tuple(self._faults()),
        )

    def _faults(self) -> Iterator[str]:
        text, events = self.text, self.events
        if text.cut:
            last = format_ns(max(events.last - events.first, 0))
            yield (
                f"reading stopped ({text.cut}): {sum(events.seen.values()):,} events were read, the last "
                f"one {last} after the first; later events are missing"
            )
        if text.behind:
            yield "text after the trace, such as a second trace, is ignored"
        if text.broken:
            yield f"unreadable events left out: {text.broken:,}"
        if text.mended:
            yield f"events with unreadable fields, which count as not recorded: {text.mended:,}"

    def _start_utc_ns(self) -> int | None:
        first = self.events.first + max(whole(_json(self.text.beside, "baseTimeNanoseconds"), 0), 0)
        return first if _EPOCH_NS < first < 1 << 62 else None

    def trace(self, report: Report, progress: Progress | None, arena: ColumnArena) -> Trace:
        """The annotations, launches and GPU ops."""
        return build_trace(report, self.events, self.threads, arena)

    def steps(self) -> int:
        """Return the number of GPU ops: the progress bar counts ops, because attribution reports progress per op."""
        return len(self.events.gpu["kind"])

    def bytes_needed(self, enough: int) -> int:
        """Estimate the memory (bytes) that an analysis takes."""
        return _ANY_TRACE + _BYTES_PER_ROW * (len(self.events.gpu["kind"]) + len(self.events.host["kind"]))

    def other_ranges(self, trace: Trace, sources: Collection[str]) -> details.OtherRanges:
        """Operators and module calls."""
        return read_other_ranges(self.events, self.threads, sources)

    def op_details(self, trace: Trace) -> details.OpDetails:
        """Grids, blocks and registers."""
        return read_op_details(self.events)

    def collectives(self, trace: Trace) -> details.Collectives:
        """Return collectives from NCCL kernel arguments (PyTorch 2.2+)."""
        return read_collectives(self.events)

    def grids(self) -> Ints:
        """The grid of each kernel; empty if not recorded."""
        values: Ints = self.events.gpu["grid"][self.events.gpu["kind"] == KERNEL]
        return values if values.any() else values[:0]

    def call_list(self, progress: Progress | None = None) -> details.CallList:
        """All calls of CUDA or HIP."""
        return read_call_list(self.events, self.threads)

    def autograd(self, trace: Trace) -> details.AutogradOps:
        """The operators with a ``Sequence number``."""
        return read_autograd(self.events, self.threads)

    def operator_calls(self, trace: Trace) -> details.OperatorCalls:
        """The operators, with their shapes."""
        return read_operator_calls(self.events, self.threads)

    def dependencies(self, trace: Trace) -> details.Dependencies:
        """Dependencies between streams, if recorded."""
        return read_dependencies(self.events, trace)

    def host_activity(self, trace: Trace, near: Line | None = None) -> details.HostActivity:
        """Calls of CUDA or HIP, and Python functions that wait."""
        return read_host_activity(self.events, self.threads)

    def memory(self) -> details.MemoryEvents:
        """Return the GPU memory that PyTorch's allocator allocated and released (``profile_memory=True``)."""
        return read_memory(self.events, self.threads)

    def not_read(self) -> dict[str, int]:
        """Return the event categories that nsysprof does not use."""
        return not_read(self.events.seen)

    def thread_names(self) -> dict[int, str]:
        """Thread names as set in the operating system."""
        return self.threads.names

    def job(self) -> details.Job:
        """Rank, host and start."""
        rank = whole((_json(self.text.beside, "distributedInfo") or {}).get("rank"))
        host = _json(self.text.beside, "host_name")
        return details.Job(rank if rank >= 0 else None, host if isinstance(host, str) else None, self._start_utc_ns())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NsysprofError(f"{path}: reading failed part-way: {error.strerror or error}") from None


def _json(beside: dict[str, bytes], name: str) -> Any:
    """The data of that name outside the events; None if missing or unreadable."""
    try:
        value = msgspec.json.decode(beside.get(name, b"null"))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if name == "distributedInfo" and not isinstance(value, dict):
        return None
    return value


def _gpus(properties: Any) -> Iterator[Gpu]:
    for each in properties if isinstance(properties, list) else ():
        if not isinstance(each, dict):
            continue
        number = {
            name: whole(each.get(name), 0)
            for name in ("id", "numSms", "totalGlobalMem", "computeMajor", "computeMinor")
        }
        yield Gpu(
            id=number["id"],
            name=str(each.get("name") or "unknown GPU"),
            sm_count=max(number["numSms"], 0) or None,
            memory_bytes=max(number["totalGlobalMem"], 0) or None,
            compute_capability=(number["computeMajor"], number["computeMinor"]) if number["computeMajor"] > 0 else None,
        )


_HINT = "give a trace from torch.profiler's export_chrome_trace, or an nsys report"


def _refusal(path: Path, text: TraceText, events: Events) -> NsysprofError:
    """The error for a JSON file that is not a PyTorch profiler trace: says what the file looks like instead."""
    beside = text.beside
    shown = ", ".join(list(beside)[:4])
    if not text.found:
        what = f"JSON without traceEvents ({one_line(shown, 60)})" if beside else "JSON without traceEvents"
        if "rocprofiler-sdk-tool" in beside:
            what = "a result of rocprofv3"
        elif {"schema", "nodes"} <= beside.keys():
            what = "a PyTorch execution trace (operator graph without GPU work)"
        elif {"resourceSpans", "spans"} & beside.keys():
            what = "a trace of OpenTelemetry"
        elif "nsysprof" in shown or re.search(r"nsysprof-\w+/\d", _first_text(beside)):
            what = "a result of nsysprof, not a recording"
        if text.cut and not beside:
            return NsysprofError(
                f"{path} is not a trace of the PyTorch profiler: {text.cut}", f"head -c 300 {quote(str(path))}"
            )
        return NsysprofError(f"{path} is not a trace of the PyTorch profiler: {what}", _HINT)
    return NsysprofError(f"{path} is a Chrome trace, but not from the PyTorch profiler: {_looks(text, events)}", _HINT)


def _first_text(beside: dict[str, bytes]) -> str:
    return next(iter(beside.values()), b"")[:80].decode("utf-8", "replace")


def _looks(text: TraceText, events: Events) -> str:
    """Say which other program's trace a Chrome trace resembles."""
    beside = b" ".join([b"%b %b" % (name.encode(), value[:4096]) for name, value in text.beside.items()]).lower()
    names = " ".join(str(name) for name in list(events.processes.values())[:50]).lower()
    seen = set(events.seen)
    listed = ", ".join(sorted(filter(None, seen))[:4])
    known = {
        "there are no events": not seen,
        "this looks like a trace of viztracer": b"viztracer" in beside,
        "this is an export of nsysprof": b"nsysprof" in beside,
        "this looks like a trace of JAX or TensorFlow (XLA)": "/device:" in names or "/host:cpu" in names,
        "this looks like a trace of Chromium": b"chrom" in beside or "devtools.timeline" in seen,
        "this looks like a trace of torch.autograd.profiler, predecessor of torch.profiler": "cpu functions" in names
        or bool({"cuda", "cpu"} & seen),
        f"categories {one_line(listed, 80)}": bool(listed),
    }
    return next((what for what, holds in known.items() if holds), "the events have no category")
