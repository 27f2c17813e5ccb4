"""Read the events of a PyTorch profiler trace into narrow columns: host events, GPU work and the rest."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from nsysprof.core.arrays import Array, Ints
from nsysprof.trace.details import packed
from nsysprof.trace.kineto.text import Arguments, Event, TraceText
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET

# Kinds of host events: `record_function`, operators, calls of modules, calls of CUDA or HIP, what Python waited in, and
# work of the profiler.
ANNOTATION, OPERATOR, MODULE, CALL, WAIT, OVERHEAD = range(6)
# Categories as Kineto writes them; with capitals before 2022.
_HOST = {
    "user_annotation": ANNOTATION,
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "overhead": OVERHEAD,
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver"), CALL),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), CALL),
}
_GPU = {
    **dict.fromkeys(("kernel", "concurrent_kernel"), KERNEL),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), MEMSET),
}
_PYTHON, _SYNC, _MEMORY, _LINK = "python_function", "cuda_sync", "[memory]", ("fwdbwd", "forward_backward")
# Events that say again what others say, or that belong to no program.
_NOT_READ = {
    "gpu_user_annotation",
    "trace",
    "ac2g",
    "async",
    "async_gpu",
    "async_cpu_to_gpu",
    "external_correlation",
    "",
}
_MODULE = "nn.Module: "
_BY_NAME = (_PYTHON, "operator")
# What PyTorch annotates itself; before 1.10 annotations were operators, too.
_OWN_ANNOTATION = re.compile(r"ProfilerStep#\d|Optimizer\.(?:step|zero_grad)#|enumerate\(DataLoader\)#")
# Bytes of an element, by the names that PyTorch writes.
_ITEM_BYTES = {
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_ITEM = re.compile(r"Byte|Char|Bool|Float8_")
# Python functions in which a thread waits, or works for the system.
_WAITS = re.compile(
    r"<built-in (?:method|function) (?:sleep|acquire|wait\w*|poll|select|recv\w*|readinto|read|fsync|accept|connect)\b"
    r"|.*\bdataloader\.py\(\d+\): __next__$|.*\b(?:threading|queue)\.py\(\d+\): (?:wait|get|join)$"
)
_MOST_NS, _LONGEST_NS = 1 << 62, 1 << 55
_LEAST_US, _MOST_US = Decimal(-_MOST_NS // 1000), Decimal(_MOST_NS // 1000)
_FLUSH = 1 << 14  # rows that are kept as Python values


class Columns:
    """Integer columns that grow row by row: ``add`` takes one value per column."""

    def __init__(self, **types: str) -> None:
        self._types = types
        self._rows: list[tuple[int, ...]] = []
        self._parts: list[Ints] = []
        self.add = self._rows.append

    def flush(self, least: int = 0) -> None:
        """Convert the pending rows to narrow columns if there are at least ``least`` rows."""
        if len(self._rows) > least:
            self._parts.append(np.array(self._rows, np.int64).reshape(-1, len(self._types)))
            self._rows.clear()

    def take(self) -> dict[str, Array]:
        """Return all columns, by name."""
        self.flush()
        out = {}
        for at, (name, dtype) in enumerate(self._types.items()):
            out[name] = np.concatenate([np.empty(0, dtype), *[part[:, at].astype(dtype) for part in self._parts]])
        return out


class Codes(dict[Any, int]):
    """Codes of values, in order of first appearance: ``codes[value]``."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


@dataclass
class Events:
    """The events of a trace. Times are int64 ns since ``first``, the start of the first event on the trace clock.

    ``host``: columns ``kind`` (ANNOTATION …), ``name`` code of ``names``, ``thread`` code of ``threads`` (pairs of pid
    and tid), ``start``, ``end``, ``link`` (correlation of a CALL, sequence number of an OPERATOR, otherwise -1),
    ``forward`` (autograd's thread number of the matching forward operator, 0 for forward operators), ``shape`` code of
    ``shapes`` (an OPERATOR's name and inputs, -1 if not recorded).

    ``gpu``: ``kind`` KERNEL, MEMCPY or MEMSET, ``name``, ``place`` code of ``places`` (pairs of device and stream;
    None: not recorded), ``start``, ``end``, ``correlation``, ``size``, ``grid``, ``block``, ``registers``, ``shared``
    memory (-1 if not recorded, grids 0); ``node``: whether the op is a node of a CUDA graph; ``collective`` code of
    ``collectives`` (kind and group: name, description, ranks and size), -1 for other ops; ``message``: bytes of the
    collective, -1 if not recorded.

    ``memory``: ``thread``, ``time``, ``device``, ``address``, ``change``, ``reserved``. ``links``: ``begins``, ``id``,
    ``thread``, ``time``. ``syncs`` are the arguments and times of `cuda_sync` events that make a stream wait.
    ``labels`` are names of threads, by thread; ``seen`` counts events by category; ``faults`` counts malformed events.
    """

    names: Codes = field(default_factory=Codes)
    threads: Codes = field(default_factory=Codes)
    places: Codes = field(default_factory=Codes)
    collectives: Codes = field(default_factory=Codes)
    shapes: Codes = field(default_factory=Codes)
    host: dict[str, Array] = field(default_factory=dict)
    gpu: dict[str, Array] = field(default_factory=dict)
    memory: dict[str, Array] = field(default_factory=dict)
    links: dict[str, Array] = field(default_factory=dict)
    syncs: list[tuple[int, Arguments]] = field(default_factory=list)
    labels: dict[int, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    whole_us: bool = True
    first: int = _MOST_NS
    last: int = -_MOST_NS


def read_events(text: TraceText) -> Events:
    """Read all `Events` of a trace; afterwards, ``text`` has the data outside the events."""
    out = Events()
    host = Columns(kind="u1", name="i4", thread="i4", start="i8", end="i8", link="i8", forward="i8", shape="i4")
    numbers = ("start", "end", "correlation", "size", "grid", "block", "registers", "shared")
    gpu = Columns(
        kind="u1", name="i4", place="i4", **dict.fromkeys(numbers, "i8"), node="?", collective="i4", message="i8"
    )
    memory = Columns(**dict.fromkeys(("thread", "time", "device"), "i8"), address="i8", change="i8", reserved="i8")
    links = Columns(begins="?", id="i8", thread="i4", time="i8")
    waits: dict[str, bool] = {}
    for events in text.events():
        for event in events:
            category = event.cat.lower()
            if event.ph == "X":
                kind = _HOST.get(category)
                if category in _BY_NAME:
                    kind = _kind_by_name(category, event.name, waits)
                if kind is not None:
                    _add_host(out, host, event, kind)
                elif category in _GPU:
                    _add_gpu(out, gpu, event, _GPU[category])
                elif category == _SYNC:
                    _add_sync(out, event)
                elif category == "trace":
                    _times(out, event)
            elif event.ph == "M":
                _add_label(out, event)
                continue
            elif category in _LINK:
                _add_link(out, links, event)
            elif event.name == _MEMORY:
                _add_memory(out, memory, event)
            out.seen[category] += 1
        host.flush(_FLUSH)
        gpu.flush(_FLUSH)
        memory.flush(_FLUSH)
        links.flush(_FLUSH)
    out.host, out.gpu, out.memory, out.links = (each.take() for each in (host, gpu, memory, links))
    order = np.lexsort((out.gpu["end"], out.gpu["start"], out.gpu["kind"]))  # kernels first
    out.gpu = {name: values[order] for name, values in out.gpu.items()}
    for columns in (out.host, out.gpu, out.memory, out.links):
        for name in {"start", "end", "time"} & columns.keys():
            columns[name] -= out.first
    return out


def is_pytorch(seen: Mapping[str, int]) -> bool:
    """Return whether any of these event categories is typical of the PyTorch profiler."""
    known = {*_HOST, *_GPU, _PYTHON, _SYNC, "cpu_instant_event"} - {"overhead", "operator", "runtime"}
    return not known.isdisjoint(seen) or any(category.startswith(("mtia_", "xpu_")) for category in seen)


def not_read(seen: Mapping[str, int]) -> dict[str, int]:
    """Return the categories that nsysprof does not use, with the number of events of each."""
    known = {*_HOST, *_GPU, _PYTHON, _SYNC, *_LINK, "cpu_instant_event", *_NOT_READ}
    return {category: count for category, count in seen.items() if category not in known}


def whole(value: Any, missing: int = -1) -> int:
    """Convert a value in any notation to a 64-bit integer, or to ``missing`` if that is impossible."""
    if not isinstance(value, int):
        try:
            value = int(value, 0) if isinstance(value, str) else int(value)
        except (TypeError, ValueError, OverflowError):
            return missing
    return value if -(1 << 63) <= value < 1 << 63 else missing


def _kind_by_name(category: str, name: str, known: dict[str, bool]) -> int | None:
    """The kind of a Python function, or of an operator in a trace of 2021."""
    if category != _PYTHON:
        return ANNOTATION if _OWN_ANNOTATION.match(name) else OPERATOR
    if name.startswith(_MODULE):
        return MODULE
    waits = known.get(name)
    if waits is None:
        waits = known[name] = _WAITS.match(name) is not None
    return WAIT if waits else None


def _ns(microseconds: Decimal | None) -> int | None:
    """A time in whole ns, exactly as written; None if it is missing or impossible."""
    if microseconds is None:
        return None
    try:
        if not _LEAST_US < microseconds < _MOST_US:  # before a number of a million digits is made of 1e999999
            return None
    except ArithmeticError:
        return None
    return int(microseconds * 1000)


def _times(out: Events, event: Event) -> tuple[int, int] | None:
    """Start and end of an event; an event without a start gives None and counts as a fault."""
    start, length = _ns(event.ts), _ns(event.dur)
    if start is None:
        out.faults["without a time"] += 1
        return None
    if length is None or not 0 <= length < _LONGEST_NS:
        if event.dur is None or event.dur.is_nan():
            out.faults["without a duration"] += 1
        else:
            out.faults["longer than a year" if event.dur > 0 else "with a negative duration"] += 1
        length = 0
    if out.whole_us and (start % 1000 or length % 1000):
        out.whole_us = False
    end = min(start + length, _MOST_NS)
    out.first, out.last = min(out.first, start), max(out.last, end)
    return start, end


def _thread(out: Events, event: Event) -> int:
    """The code of the event's thread; a missing process or thread is counted as a fault."""
    pid, tid = event.pid, event.tid
    if not isinstance(pid, int) or not isinstance(tid, int):
        if pid is None or tid is None:
            out.faults["without a process or a thread"] += 1
        pid, tid = _id(pid), _id(tid)
    return out.threads[pid, tid]


def _id(value: Any) -> int | str | None:
    """The id of a process or a thread; PyTorch 1.8 wrote numbers as texts."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else value
    return value if isinstance(value, int) else None


def _add_host(out: Events, host: Columns, event: Event, kind: int) -> None:
    times = _times(out, event)
    if times is None:
        return
    link, forward, shape, arguments = -1, 0, -1, event.args
    if arguments is not None:
        if kind == CALL:
            link = whole(arguments.correlation)
        elif kind == OPERATOR:
            if arguments.sequence is not None:
                link, forward = whole(arguments.sequence), whole(arguments.forward_thread, 0)
            if arguments.dims:
                inputs = (bytes(each) for each in (arguments.dims, arguments.types, arguments.values))
                shape = out.shapes[(event.name, *inputs)]
    host.add((kind, out.names[event.name], _thread(out, event), *times, link, forward, shape))


def _add_gpu(out: Events, gpu: Columns, event: Event, kind: int) -> None:
    times = _times(out, event)
    if times is None:
        return
    its = event.args or Arguments()
    device, stream = (
        whole(event.pid if its.device is None else its.device, 0),
        whole(event.tid if its.stream is None else its.stream, -1),
    )
    gpu.add(
        (
            *(kind, out.names[event.name], out.places[device, stream], *times),
            *(whole(its.correlation), whole(its.size), _dimensions(its.grid), _dimensions(its.block)),
            *(whole(its.registers), whole(its.shared), whole(its.graph_node, 0) > 0),
            *(_collective(out, its) if isinstance(its.collective, str) else (-1, -1)),
        )
    )


def _collective(out: Events, its: Arguments) -> tuple[int, int]:
    """The code of a collective, and its message bytes: sent or received by a rank, whichever is larger."""
    group = (its.group, its.group_about, its.group_ranks, its.group_size)
    code = out.collectives[(its.collective, *(str(part or "") for part in group))]
    elements = max(whole(its.elements_in), whole(its.elements_out))
    match = _ITEM.match(str(its.dtype))
    size = 1 if match else _ITEM_BYTES.get(str(its.dtype), -1)
    return code, whole(elements * size) if min(elements, size) >= 0 else -1


def _dimensions(value: Any) -> int:
    """A grid or block as one number, see `packed`; 0 if not recorded."""
    if not isinstance(value, Sequence) or len(value) != 3:
        return 0
    x, y, z = (whole(each, 0) for each in value)
    return packed(x, y, z)


def _add_sync(out: Events, event: Event) -> None:
    times = _times(out, event)
    if times and event.args and event.args.sync == "Stream Wait Event":
        if event.args.device is None:
            event.args.device = event.pid
        out.syncs.append((times[0], event.args))


def _add_link(out: Events, links: Columns, event: Event) -> None:
    time = _ns(event.ts)
    if time is not None and event.ph in ("s", "f"):
        links.add((event.ph == "s", whole(event.id), _thread(out, event), time))


def _add_memory(out: Events, memory: Columns, event: Event) -> None:
    time, its = _ns(event.ts), event.args
    if time is None or its is None or not whole(its.device_type, 0):
        return
    change, reserved = whole(its.allocated, 0), whole(its.reserved)
    memory.add((_thread(out, event), time, whole(its.device_id), whole(its.address), change, reserved))


_SYSTEM_NAME = re.compile(r"thread -?\d+ \((.*)\)\Z", re.DOTALL)


def _add_label(out: Events, event: Event) -> None:
    name, pid, tid = event.args.name if event.args else None, _id(event.pid), _id(event.tid)
    if not isinstance(name, str) or not isinstance(pid, int):
        return
    if event.name == "process_name":
        out.processes[pid] = name
    elif event.name == "thread_name" and isinstance(tid, int):
        match = _SYSTEM_NAME.match(name)
        out.labels[out.threads[pid, tid]] = match[1] if match else name.strip()
