"""Spoils traces of the PyTorch profiler at random, and reads them: an answer or one line, never another error.

python -m tests.kit.kineto_fuzz --count 1000
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import nsysprof
from nsysprof.analyze.breakdown import break_down
from nsysprof.attribution.attribute import attribute
from nsysprof.errors import NsysprofError
from nsysprof.why.text import why_text
from nsysprof.why.why import why
from tests.kit.kineto import (
    annotation,
    call,
    gpu_op,
    launch,
    link,
    memory,
    module,
    operator,
    trace_text,
    wait_event,
)

Events = list[dict[str, Any]]
ODD: tuple[Any, ...] = (
    *(
        None,
        -1,
        0,
        1,
        2**31,
        2**63 - 1,
        2**63,
        -(2**63),
        10**30,
        1.5,
        -7.25,
        1e300,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        "x",
        "12",
        "0x10",
        "-1",
        "nan",
        "Infinity",
        [],
        [1],
        [1, 2, 3],
        ["a", None, 2**70],
        {},
        {"a": [1]},
        True,
    ),
    *("\ud800", "a" * 5000, "\u0000", "aten::mm", "ProfilerStep#3", "kernel", "X", "Stream Wait Event"),
)
RANGES = ("auto", "nvtx", "ops", "ops,modules,found")


def some_trace(chance: random.Random) -> Events:
    """A few steps of forward and backward with waits, copies and memory."""
    out: Events = []
    for step in range(chance.randint(1, 4)):
        at = 10_000 * step
        out.append(annotation(f"ProfilerStep#{step}", at, at + chance.randint(5_000, 10_000)))
        for number in range(chance.randint(1, 5)):
            id, now, tid = 100 * step + 10 * number + 1, at + 900 * number, chance.choice((100, 100, 200))
            back = {"Sequence_number": number + 5 * step, "Fwd_thread_id": int(tid == 200)}
            out += [module("Linear_0", now, now + 700, **chance.choice(({}, {"pid": 0, "tid": 0})))]
            out += [
                operator(chance.choice(("aten::mm", "MmBackward0")), now + 10, now + 500, tid=tid, **back)
            ]
            out += launch("gemm", (now + 50, now + 90), (now + 100, now + 800), id, tid=tid)
            out += [memory(now + 20, id, chance.choice((512, -512)), 1 << 20)]
            out += link(id, (100, now + 10), (200, now + 910)) + wait_event(now + 600, id + 1, 9, id + 2, 7)
            out += [
                call("cudaEventRecord", now + 650, now + 660, id + 2),
                call("cudaMemcpyAsync", now + 670, now + 680, id + 3),
            ]
            out += [
                gpu_op(
                    "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", now + 700, now + 710, id + 3, 9, bytes=8
                )
            ]
    return out


def spoil_events(events: Events, chance: random.Random) -> None:
    """Change a few events: values, missing fields, order, copies."""
    for _ in range(chance.randint(1, 6)):
        event = chance.choice(events)
        target = event.get("args") if chance.random() < 0.5 else event
        if not isinstance(target, dict) or not target:
            continue
        key = chance.choice(list(target))
        how = chance.randrange(5)
        if how == 0:
            del target[key]
        elif how == 1:
            events.insert(chance.randrange(len(events)), json.loads(json.dumps(event)))
        elif how == 2:
            chance.shuffle(events)
        else:
            target[key] = chance.choice(ODD)


def spoil_text(content: bytes, chance: random.Random) -> bytes:
    """Change bytes: cut, flip, drop, double or insert some."""
    out = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(max(len(out), 1))
        size = chance.choice((1, 1, 2, 7, 60, 900))
        stray = chance.choice((b'"', b"}", b"[", b"NaN", b"\\", b"\xff", b"},{"))
        changes: list[tuple[int, int, bytes]] = [
            (at, at + 1, bytes([chance.randrange(256)])),
            (at, at + size, b""),
            (at, at, bytes(out[at : at + size])),
            (at, at, stray),
            (at, len(out), b""),
        ]
        begin, end, new = chance.choice(changes[: 5 if chance.random() < 0.15 else 4])
        out[begin:end] = new
    return bytes(out)


def spoiled(seed: int) -> bytes:
    """The bytes of a spoiled trace."""
    chance = random.Random(seed)
    events = some_trace(chance)
    if chance.random() < 0.7:
        spoil_events(events, chance)
    content = trace_text(events).encode("utf-8", "surrogatepass")
    if chance.random() < 0.5:
        content = spoil_text(content, chance)
    if chance.random() < 0.3:
        content = gzip.compress(content)
        if chance.random() < 0.5:
            content = spoil_text(content, chance)
    return content


def read_all(path: Path, seed: int) -> str:
    """Ask everything of a trace: ``answered``, or the message of the error, on one line."""
    try:
        with nsysprof.open_report(path) as report:
            ranges = RANGES[seed % len(RANGES)]
            found = attribute(report, ("follow", "strict")[seed % 2], ranges=ranges)
            ops = found.trace.ops
            assert sum(row.sum_ns for row in found.ledger) == int((ops.end - ops.start).sum())
            answer = break_down(found)
            assert answer.ranges is not None
            assert answer.instances is not None
            reader, trace = report.reader, found.trace
            for each in (
                reader.op_details(trace),
                reader.call_list(),
                reader.memory(),
                reader.job(),
                reader.grids(),
            ):
                assert each is not None
            if len(ops):
                assert why_text(why(found))
    except NsysprofError as error:
        return error.message
    return "answered"


def main() -> None:
    """Read many spoiled traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    answered = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        for seed in range(asked.first, asked.first + asked.count):
            path.write_bytes(spoiled(seed))
            try:
                said = read_all(path, seed)
                assert "\n" not in said
                answered += said == "answered"
            except Exception:
                print(f"seed {seed}")  # noqa: T201
                raise
    print(f"{asked.count} traces: {answered} answered, the others refused in one line")  # noqa: T201


if __name__ == "__main__":
    main()
