"""Makes tiny traces of the PyTorch profiler for tests: a list of events becomes Chrome JSON as Kineto writes it.

    path = write_trace(tmp_path / "t.json", [
        annotation("step", 0, 100),
        *launch("gemm", (10, 15), (20, 30), id=1),
    ])

Times are ns, written as µs with three decimals; the process is 100, its main thread 100, the GPU 0, the stream 7.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

PID, STREAM = 100, 7
Event = dict[str, Any]
GPU = {
    "id": 0,
    "name": "NVIDIA H100",
    "totalGlobalMem": 85_000_000_000,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}


def event(category: str, name: str, start: int, end: int, *, pid: Any = PID, tid: Any = PID, **args: Any) -> Event:
    """A complete event; ``args`` with ``_`` for a space."""
    named = {key.replace("_", " ") if key[:1].isupper() else key: value for key, value in args.items()}
    where = {"pid": pid, "tid": tid, "ts": _us(start), "dur": _us(end - start)}
    return {"ph": "X", "cat": category, "name": name, **where, "args": named}


def annotation(name: str, start: int, end: int, **more: Any) -> Event:
    """What `record_function` writes."""
    return event("user_annotation", name, start, end, **more)


def operator(name: str, start: int, end: int, **more: Any) -> Event:
    """An operator; ``Sequence_number`` and ``Fwd_thread_id`` link forward and backward."""
    return event("cpu_op", name, start, end, **more)


def module(name: str, start: int, end: int, **more: Any) -> Event:
    """A call of an `nn.Module`."""
    return event("python_function", f"nn.Module: {name}", start, end, **more)


def call(name: str, start: int, end: int, id: int, **more: Any) -> Event:
    """A call of the CUDA runtime."""
    return event("cuda_runtime", name, start, end, correlation=id, **more)


def gpu_op(category: str, name: str, start: int, end: int, id: int, stream: int = STREAM, **more: Any) -> Event:
    """A kernel, gpu_memcpy or gpu_memset."""
    device = more.pop("device", 0)
    where = {"pid": device, "tid": stream, "device": device, "stream": stream}
    return event(category, name, start, end, **where, correlation=id, **more)


def launch(
    name: str, host: tuple[int, int], gpu: tuple[int, int], id: int, stream: int = STREAM, **more: Any
) -> list[Event]:
    """A kernel and the call that launches it; ``more`` is of the call."""
    kernel = gpu_op("kernel", name, *gpu, id, stream, grid=[2, 1, 1], block=[128, 1, 1])
    return [call("cudaLaunchKernel", *host, id, **more), kernel]


def collective(
    kind: str,
    host: tuple[int, int],
    gpu: tuple[int, int],
    id: int,
    *,
    group: str = "0",
    ranks: str = "[0, 1]",
    elements: Any = 1024,
    dtype: str = "Float",
    stream: int = STREAM,
) -> list[Event]:
    """A collective of NCCL, whose kernel does not tell which one it is, with the arguments that PyTorch writes."""
    made = launch("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", host, gpu, id, stream)
    made[1]["args"] |= {
        **{"Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, "dtype": dtype},
        **{"Process Group Name": group, "Process Group Description": "undefined" if group != "0" else "all"},
        **{"Process Group Ranks": ranks, "Group size": ranks.count(",") + 1},
    }
    return made


def wait_event(time: int, id: int, stream: int, record: int, recorded_in: int) -> list[Event]:
    """`cudaStreamWaitEvent`, and what ``enable_cuda_sync_events`` writes of it."""
    its = {"cuda_sync_kind": "Stream Wait Event", "wait_on_stream": recorded_in, "stream": stream, "device": 0}
    its |= {"wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": 1, "correlation": id}
    return [
        call("cudaStreamWaitEvent", time, time + 2, id),
        event("cuda_sync", "Stream Wait Event", time, time + 1, pid=0, tid=stream, **its),
    ]


def memory(time: int, address: int, size: int, reserved: int) -> Event:
    """What the allocator gave out, or took back, on GPU 0."""
    args = {"Total Reserved": reserved, "Bytes": size, "Device Id": 0, "Device Type": 1, "Addr": address}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "pid": PID,
        "tid": PID,
        "ts": _us(time),
        "args": args,
    }


def link(id: int, forward: tuple[int, int], backward: tuple[int, int]) -> list[Event]:
    """An arrow from an operator of forward to one of backward: thread and start of each."""
    ends: list[tuple[str, tuple[int, int], Event]] = [("s", forward, {}), ("f", backward, {"bp": "e"})]
    return [
        {"ph": ph, "id": id, "pid": PID, "tid": tid, "ts": _us(time), "cat": "fwdbwd", "name": "fwdbwd", **more}
        for ph, (tid, time), more in ends
    ]


def trace_text(events: list[Event], **beside: Any) -> str:
    """The text of a trace; ``beside`` stands beside its events."""
    head = {"schemaVersion": 1, "deviceProperties": [GPU], "baseTimeNanoseconds": 1_700_000_000_000_000_000, **beside}
    text = json.dumps({**head, "traceEvents": events, "traceName": "t.json"}, indent=1)
    return re.sub(r'"@(-?)(\d+)@"', _decimal, text)


def write_trace(path: Path, events: list[Event], **beside: Any) -> Path:
    """Write a trace, compressed where the name ends in ``.gz``."""
    content = trace_text(events, **beside).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _us(ns: int) -> str:
    return f"@{ns}@"


def _decimal(match: re.Match[str]) -> str:
    ns = int(match[2])
    return f"{match[1]}{ns // 1000}.{ns % 1000:03}"
