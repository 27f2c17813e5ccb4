"""All that is read of made-up traces of PyTorch, odd and spoiled ones too, is what it was.

`events` and `tables` were compared with a plain reading (json, lists, loops) when they were first kept.
"""

import itertools
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.trace.kineto.reader import KinetoReader
from nsysprof.trace.report import open_report, read_tables
from tests.kit.kept import hold
from tests.kit.kineto import (
    GPU,
    PID,
    Event,
    annotation,
    call,
    collective,
    event,
    gpu_op,
    link,
    memory,
    module,
    operator,
    trace_text,
    wait_event,
)
from tests.kit.mutations import ODD, _by_events, some_trace

OF_TRACE = ("op_details", "collectives", "autograd", "operator_calls", "dependencies", "host_activity")
OF_FILE = ("memory", "grids", "call_list", "steps", "job", "not_read")
PYTHON = (
    *("<built-in method acquire of _thread.lock object at 0x7f>", "<built-in function sleep>", "a.py(1): get"),
    *(
        "/x/queue.py(10): get",
        "utils/data/dataloader.py(630): __next__",
        "nn.Module: Linear_0",
        "threading.py(9): wait",
    ),
)


def _named(name: str, pid: Any, tid: Any, label: Any) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {"name": label}}


def one_of_each() -> list[Event]:
    """An event of each kind that is read, with all fields that are."""
    shapes = {"Input_Dims": [[2, 3], []], "Input_type": ["float", ""], "Concrete_Inputs": ["", "1"]}
    kernel: dict[str, Any] = {"grid": [2, 3, 4], "block": [32, 2, 1], "registers per thread": 40, "shared memory": 512}
    events = [
        annotation("step", 0, 900, more=1),
        operator("aten::mm", 10, 80, Sequence_number=5, Fwd_thread_id=0, **shapes),
        operator("MmBackward0", 90, 95, tid=200, Sequence_number=5, Fwd_thread_id=1),
        *[event("python_function", name, 100 + at, 300 - at) for at, name in enumerate(PYTHON)],
        event("overhead", "Buffer Flush", 20, 30, pid=-1, tid=0),
        event("Runtime", "hipLaunchKernel", 40, 50, correlation=3),
        event("privateuse1_driver", "cuLaunchKernelEx", 55, 56, correlation=4),
        event("mtia_ccp_events", "op", 45, 46),
        event("trace", "PyTorch Profiler (0)", -10, 1000, pid="Spans", tid="x"),
        gpu_op("kernel", "gemm", 60, 70, 3, **{**kernel, "graph node id": 0}),
        gpu_op("concurrent_kernel", "node", 80, 90, 4, 8, **{**kernel, "graph node id": 77}),
        gpu_op("Memcpy", "Memcpy HtoD (Pinned -> Device)", 100, 110, 4, 9, bytes=4096),
        gpu_op("gpu_memset", "Memset (Device)", 120, 130, 4, 9, device=1, bytes=64),
        *collective("allreduce", (140, 150), (160, 190), 5, group="1", ranks="[0, 2]"),
        *wait_event(200, 6, 9, 4, 7),
        memory(210, 4660, 512, 2048),
        *link(7, (100, 10), (200, 90)),
        {**link(8, (100, 10), (200, 90))[0], "cat": "forward_backward"},
        _named("process_name", 100, 0, "python"),
        _named("thread_name", 100, 100, "thread 100 (main)"),
    ]
    return json.loads(json.dumps(events))


def odd_fields() -> list[Event]:
    """Events of each kind, and copies of them in which one field is missing or has some odd value."""
    out, copies, thirds = one_of_each(), itertools.count(1), itertools.count()
    for each in one_of_each():
        for place in ("", "args"):
            for key in each.get(place, ()) if place else each:
                for value in (None, *ODD[next(thirds) % 3 :: 3]):
                    copy = json.loads(json.dumps(each))
                    target = copy[place] if place else copy
                    target[key] = value
                    if value is None:
                        del target[key]
                    out.append(_later(copy, next(copies)))
    return out


def _later(each: Event, number: int) -> Event:
    """The event a while later, with ids of its own."""
    if isinstance(each.get("ts"), str) and each["ts"].startswith("@"):
        each["ts"] = f"@{int(each['ts'].strip('@')) + 2000 * number}@"
    if isinstance(each.get("args"), dict) and isinstance(each["args"].get("correlation"), int):
        each["args"]["correlation"] += 10 * number if abs(each["args"]["correlation"]) < 10 else 0
    return each


THREADS = (
    *((100, 100), (100, 200), (300, 100), (0, 0), (-1, 0)),
    *(("Spans", "x"), (100, 1 << 30), (1 << 31, -7), ("100", "200"), (300, 1 << 24), (300, (1 << 24) + 1)),
)
GROUPS = (("0", "[0, 1, 2]"), ("1", "[0, 2]"), ("1", "[4]"), ("", ""), ("2", "[0, 1, ...]"))
COPIES = ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)", "Memcpy PtoP (a -> b)", "copy")
CALLS = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaEventRecord", "cudaStreamSynchronize")


def dense(seed: int) -> list[Event]:
    """Few times, threads, streams, ids and addresses, so that all meet: equal ends, crossings, calls of one id."""
    rng = random.Random(seed)
    number, pick = rng.randrange, rng.choice
    unit = 1000 if seed % 2 else 100  # ns

    def where(lost: float = 0.0) -> dict[str, Any]:
        place = pick(THREADS[: 3 if rng.random() < 0.8 else len(THREADS)])
        return dict(zip(("pid", "tid"), place if rng.random() >= lost else (-(seed % 2), 0), strict=True))

    def times(longest: int = 12) -> tuple[int, int]:
        start = number(80)
        return unit * start, unit * (start + number(longest))

    def backward() -> dict[str, Any]:
        return {"Sequence_number": number(-1, 9), "Fwd_thread_id": number(3)}

    def at() -> int:
        return times()[0]

    def kept() -> Event:
        each = {**memory(at(), number(4), pick((64, 32, -64, -32)), pick((-1, 256, 512))), **where()}
        each["args"]["Device Id"] = number(2)
        return each

    makers: dict[Callable[[], Event], int] = {
        lambda: annotation(pick(("a", "b", "step1", "step12")), *times(40), **where()): 14,
        lambda: operator(f"aten::{number(5)}", *times(), **{**where(), **backward()}): 30,
        lambda: module(f"M_{number(3)}", *times(30), **where(0.6)): 9,
        lambda: event("python_function", pick(PYTHON), *times(), **where()): 9,
        lambda: event("overhead", pick(("Lazy Function Loading", "Buffer Flush")), *times(), **where(0.6)): 9,
        lambda: call(pick(CALLS), *times(4), number(30), **where()): 40,
        lambda: gpu_op("kernel", f"k{number(4)}", *times(), number(-1, 30), pick((7, 9, -1)), device=number(2)): 30,
        lambda: gpu_op("gpu_memcpy", pick(COPIES), *times(), number(30), pick((7, 9)), bytes=number(99)): 9,
        lambda: gpu_op("gpu_memset", pick(("Memset (Device)", "Memset")), *times(), number(30)): 5,
        kept: 40,
    }
    out = [make() for make, count in makers.items() for _ in range(count)]
    for id in range(9):
        group, ranks = pick(GROUPS)
        message: dict[str, Any] = {"elements": number(99), "dtype": pick(("Float", "Half", "Bool", "odd"))}
        out += collective(pick(("allreduce", "gather")), times(), times(), 40 + id, group=group, ranks=ranks, **message)
        out += wait_event(at(), 60 + id, pick((7, 9, 11)), pick((*range(30), 0, -1)), pick((7, 9, 12)))
        out += [{**each, **where()} for each in link(id % 6, (100, at()), (200, at()))]
    rng.shuffle(out)
    return out


def spoiled(seed: int) -> list[Event]:
    """Steps of a training, of which some events are changed."""
    rng = random.Random(seed)
    events = some_trace(rng) + collective("allreduce", (1, 2), (50, 90), 7001, elements=3 * seed, dtype="BFloat16")
    if seed % 2:
        _by_events(rng, events)
    return events


def _beside(number: int) -> dict[str, Any]:
    """What stands beside the events, an odd value each, and GPUs with odd values."""
    names = ("cuda_driver_version", "baseTimeNanoseconds", "host_name", "with_stack", "record_shapes")
    odd = {name: ODD[(number + 7 * at) % len(ODD)] for at, name in enumerate(names)}
    value = ODD[number % len(ODD)]
    gpus = [value, *({**GPU, key: value} for key in GPU)] if number % 9 else value
    return {**odd, "deviceProperties": gpus, "distributedInfo": {"rank": value} if number % 5 else value}


def _without(at: int) -> list[Event]:
    """One event of each kind but that one, or with a negative number no other one than that beside an operator."""
    events = one_of_each()
    return [*events[:at], *events[at + 1 :]] if at >= 0 else [operator("aten::mm", 0, 9000), events[at]]


def _since_1970(pid: int | str) -> list[Event]:
    """One event of each kind at the times of PyTorch before 2024, of a process and its thread 1."""
    out = [_later(each, 85 * 10**13 if "args" in each else 0) for each in one_of_each()]
    for each in out:
        each.update({"pid": pid} if each["pid"] == PID else {}, **({"tid": 1} if each.get("tid") == PID else {}))
    return [*out, module("Lost", 1_700_000_000_000_000_300, 1_700_000_000_000_000_400, pid=pid, tid=0)]


Make = Callable[[], list[Event]]
CASES: dict[str, list[tuple[Make, dict[str, Any], float]]] = {
    "fields": [(one_of_each, {"cuda_driver_version": 12040}, 1), (odd_fields, {"host_name": "h"}, 1)],
    "dense": [(partial(dense, seed), {"distributedInfo": {"rank": seed}}, 1) for seed in range(16)],
    "spoiled": [(partial(spoiled, seed), {}, 0.6 if seed % 3 else 1) for seed in range(10)],
    "few": [(partial(_without, at), {}, 1) for at in range(-len(one_of_each()), len(one_of_each()))],
    "old": [(partial(_since_1970, pid), {"baseTimeNanoseconds": None}, 1) for pid in (0, 1, 7, "9" * 19, "9" * 20)],
    "beside": [(one_of_each, _beside(number), 1) for number in range(len(ODD))],
}


@pytest.mark.parametrize("case", CASES)
def test_tables_are_as_they_were(tmp_path: Path, case: str) -> None:
    """Every column of events, threads, ranges, launches, GPU ops and of all that is read beside them."""
    out: dict[str, list[Any]] = {}
    for number, (make, beside, part) in enumerate(CASES[case]):
        path, content = tmp_path / f"{number}.json", trace_text(make(), **beside).encode("utf-8", "surrogatepass")
        path.write_bytes(content[: int(len(content) * part)])
        with open_report(path) as report:
            reader = report.reader
            assert isinstance(reader, KinetoReader)
            trace = read_tables(report)
            found = {name: getattr(reader, name)(trace) for name in OF_TRACE}
            found |= {name: getattr(reader, name)() for name in OF_FILE}
            found |= {source: reader.other_ranges(trace, source.split(",")) for source in ("ops", "modules,ops")}
            found |= {name: _listed(getattr(reader, name)) for name in ("events", "threads")}
            found |= {"trace": trace, "about": report.about, "bytes": reader.bytes_needed(0)}
        for name, each in found.items():
            out.setdefault(name, []).append(each)
    hold(__file__, f"kineto {case}", out)


def _listed(value: Any) -> dict[str, Any]:
    """The fields of events or threads: columns as they are, the rest as text without blanks, faults as counts."""
    out: dict[str, Any] = {}
    for name, each in vars(value).items():
        if name == "syncs":
            each = [(time, *(its.device, its.stream, its.wait_stream, its.wait_record)) for time, its in each]
        columns = isinstance(each, np.ndarray) or name in ("host", "gpu", "memory", "links")
        shown = list(each.values()) if name == "faults" else each
        out[name] = each if columns else ascii(shown).replace(" ", "")
    return out
