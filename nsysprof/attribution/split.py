"""The slices of a report that get rows of their own: all of it, or each process, or each GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.graph_work import GraphWork
from nsysprof.trace.trace import Trace, only_ops, pid_of


@dataclass(frozen=True)
class Part:
    """One slice of a report.

    ``label`` is its pid or GPU, None for all; ``keep`` bool per range instance, ``ops`` bool per GPU op of its
    ``attribution`` (None: all); ``graphs`` what of it was captured in graphs, None where nothing was.
    """

    label: object
    attribution: Attribution
    keep: NDArray[np.bool_]
    ops: NDArray[np.bool_] | None
    graphs: GraphWork | None = None


def parts(
    attribution: Attribution, keep: NDArray[np.bool_], by: str | None, graphs: GraphWork | None = None
) -> list[Part]:
    """The parts by ``process`` or ``device``, or the one part that is all of it."""
    trace = attribution.trace
    if by is None:
        return [Part(None, attribution, keep, None, graphs)]
    if by == "process":
        process = trace.thread_process[trace.ranges.thread]
        of_op = trace.op_process
        out = [
            Part(pid_of(pid), attribution, keep & (process == code), of_op == code, graphs)
            for code, pid in enumerate(trace.processes.tolist())
            if (process == code).any() or (of_op == code).any()
        ]
        return out or [Part("no process", attribution, keep, None, graphs)]
    of_op = np.array(trace.gpu_numbers, np.int32)[trace.stream_device][trace.ops.stream]
    labels = device_labels(trace)
    out = []
    for number, label in labels.items():
        chosen = of_op == number
        part = attribute(only_ops(trace, chosen), attribution.threads)
        some = graphs.of(chosen) if graphs else None
        works = (part.inclusive.launches > 0) | (some.inside.inclusive.launches > 0 if some else False)
        out.append(Part(label, part, keep & works, None, some))
    return out or [Part("no GPU", attribution, keep, None, graphs)]


def device_labels(trace: Trace) -> dict[int, str]:
    """The label of each GPU number of `Trace.gpu_numbers`, in order: ``GPU 0``, or ``device 0 of pid 42``."""
    out = {}
    for device, number in zip(trace.devices, trace.gpu_numbers, strict=True):
        pid = pid_of(int(trace.processes[device.process]))
        unknown = f"device {device.cuda_id} of pid {pid}"
        out[number] = unknown if device.gpu is None else f"GPU {trace.report.about.gpus[device.gpu].id}"
    return dict(sorted(out.items(), key=lambda pair: (len(pair[1]), pair[1])))


def stream_names(trace: Trace) -> list[tuple[str, str]]:
    """For each stream its number in words, and its process where several use its GPU, else nothing."""
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
    """The label of each stream: its GPU and number, and its process where several use that GPU."""
    gpus = device_labels(trace)
    out = []
    for stream, (which, whose) in zip(trace.streams, stream_names(trace), strict=True):
        gpu = gpus[trace.gpu_numbers[stream.device]]
        out.append(" · ".join(filter(None, (gpu, "" if "pid" in gpu else whose, which))))
    return out
