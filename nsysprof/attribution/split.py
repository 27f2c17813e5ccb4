"""Split a report into parts, each with its own rows: the whole report, or a part per process, GPU, thread or stream."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.graph_work import GraphWork
from nsysprof.core.arrays import AnyInts, Index, Mask
from nsysprof.core.columns import pick
from nsysprof.trace.trace import Trace, pid_of, tid_of
from nsysprof.trace.variants import only_ops

BY = ("process", "device", "thread", "stream")
MAX_PARTS = 32  # threads or streams that get rows of their own


@dataclass(frozen=True)
class Part:
    """One part of a report.

    ``label`` is the pid, GPU, thread or stream, None for the whole report. ``keep`` marks the range instances of the
    part, and ``ops`` marks its GPU ops in ``attribution`` (None: all). ``graphs`` is the part's work in CUDA graphs
    whose capture is known, or None. If ``attribution`` has only the ops of the part, ``rows`` are the rows that these
    ops have in the whole trace.
    """

    label: object
    attribution: Attribution
    keep: Mask
    ops: Mask | None
    graphs: GraphWork | None = None
    rows: Index | None = None


def parts(attribution: Attribution, keep: Mask, by: str | None, graphs: GraphWork | None = None) -> list[Part]:
    """Split a report by one of `BY`, or return one part with everything. Every GPU op is in exactly one part.

    A process has its own ops. A thread has the ops of its ranges, and the ops that it launched outside all ranges. If
    there are many threads or streams, the `MAX_PARTS` with the most work are separate parts, and all others form one
    more part.
    """
    if by is None:
        return [Part(None, attribution, keep, None, graphs)]
    of_op, of_range, labels = _slices(attribution, by)
    out = []
    for number, label in labels.items():
        chosen = of_op == number
        if of_range is not None:
            rows = of_range == number
            if rows.any() or chosen.any():
                out.append(Part(label, attribution, keep & rows, chosen, graphs))
            continue
        part = attribute(only_ops(attribution.trace, chosen), attribution.threads)
        some = graphs.of(chosen) if graphs else None
        works = (part.inclusive.launches > 0) | (some.inside.inclusive.launches > 0 if some else False)
        out.append(Part(label, part, keep & works, None, some, np.flatnonzero(chosen)))
    return out or [Part("no GPU" if by == "device" else f"no {by}", attribution, keep, None, graphs)]


def _slices(attribution: Attribution, by: str) -> tuple[AnyInts, AnyInts | None, Mapping[int, object]]:
    """The number of each GPU op and range in a split, and the labels of the numbers.

    None instead of range numbers: a range is in each part in which it has work.
    """
    trace = attribution.trace
    if by == "process":
        pids = {code: pid_of(pid) for code, pid in enumerate(trace.processes.tolist())}
        return trace.op_process, trace.thread_process[trace.ranges.thread], pids
    if by == "device":
        return (
            np.array(trace.gpu_numbers, np.int32)[trace.stream_device][trace.ops.stream],
            None,
            device_labels(trace),
        )
    if by == "stream":
        streams, labels = _fewer(trace, trace.ops.stream, stream_labels(trace), "streams")
        return streams, None, labels
    nobody = len(trace.threads)  # of ops without a launch
    owner, launch = attribution.op_owner, trace.ops.launch
    thread = np.append(trace.launches.thread.astype(np.int32), np.int32(nobody))[launch]
    thread = pick(trace.ranges.thread, owner, thread).astype(np.int32)
    names = [*thread_labels(trace), "no launch row"]
    together, labels = _fewer(trace, np.append(thread, trace.ranges.thread), names, "threads")
    return together[: len(thread)], together[len(thread) :], labels


def _fewer(trace: Trace, code: AnyInts, labels: list[str], what: str) -> tuple[AnyInts, dict[int, str]]:
    """The codes of GPU ops, with all parts with little work joined into one, see `parts`."""
    ops = trace.ops
    work = np.bincount(code[: len(ops)], ops.end - ops.start, len(labels))
    used = np.flatnonzero(np.bincount(code, minlength=len(labels)))
    if len(used) <= MAX_PARTS:
        return code, {number: labels[number] for number in used.tolist()}
    kept = np.sort(used[np.argsort(-work[used], kind="stable")][:MAX_PARTS])
    place = np.full(len(labels), MAX_PARTS)
    place[kept] = np.arange(MAX_PARTS)
    named = {number: labels[each] for number, each in enumerate(kept.tolist())}
    return place[code], {**named, MAX_PARTS: f"{len(used) - MAX_PARTS:,} more {what}"}


def thread_labels(trace: Trace) -> list[str]:
    """Label each thread: its name and number, and its process if there are several."""
    several = len(set(trace.thread_process.tolist())) > 1
    return [
        trace.thread_label(code) + f" of pid {pid_of(tid)}" * (several and pid_of(tid) != tid_of(tid))
        for code, tid in enumerate(trace.threads.tolist())
    ]


def device_labels(trace: Trace) -> dict[int, str]:
    """Label each GPU number in `Trace.gpu_numbers`, in order: ``GPU 0``, or ``device 0 of pid 42``."""
    out = {}
    for device, number in zip(trace.devices, trace.gpu_numbers, strict=True):
        pid = pid_of(int(trace.processes[device.process]))
        unknown = f"device {device.cuda_id} of pid {pid}"
        out[number] = unknown if device.gpu is None else f"GPU {trace.report.about.gpus[device.gpu].id}"
    return dict(sorted(out.items(), key=lambda pair: (len(pair[1]), pair[1])))


def stream_names(trace: Trace) -> list[tuple[str, str]]:
    """Label each stream within its GPU: the number of the stream, and its process if several processes use the GPU."""
    numbers = trace.gpu_numbers
    users: dict[int, set[int]] = {}
    for device, number in zip(trace.devices, numbers, strict=True):
        users.setdefault(number, set()).add(device.process)
    out = []
    for stream in trace.streams:
        which = "no stream" if stream.id is None else f"stream {stream.id}"
        which = "unified memory" if stream.migrates else which
        process = trace.devices[stream.device].process
        shared = len(users[numbers[stream.device]]) > 1
        out.append((which, f"pid {pid_of(int(trace.processes[process]))}" if shared else ""))
    return out


def stream_labels(trace: Trace) -> list[str]:
    """Label each stream: its GPU and number, and its process if several processes use this GPU."""
    gpus = device_labels(trace)
    out = []
    for stream, (which, whose) in zip(trace.streams, stream_names(trace), strict=True):
        gpu = gpus[trace.gpu_numbers[stream.device]]
        out.append(" · ".join(filter(None, (gpu, "" if "pid" in gpu else whose, which))))
    return out
