"""A plain, slow reading of traces of the PyTorch profiler, which knows nothing of the package: json, lists, loops."""

import gzip
import json
from bisect import bisect_right
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

HOST = {"cuda_runtime", "cuda_driver", "runtime"}
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "concurrent_kernel"}
Range = tuple[str, int, int]  # name, start, end
GpuOp = tuple[int, int, str | None, int | None, str | None]  # start, end, call, its start, innermost range


def load(path: Path) -> list[dict[str, Any]]:
    """All events of a trace, numbers exactly as written."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    document = json.loads(content, parse_float=Decimal, strict=False, object_pairs_hook=_members)
    events = document if isinstance(document, list) else document["traceEvents"]
    return [each for each in events if isinstance(each, dict)]


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; JSON leaves open which of two lists of events counts."""
    if sum(name == "traceEvents" for name, _ in pairs) > 1:
        raise ValueError("two lists of events")
    return dict(pairs)


def read(path: Path, inner: str = "") -> tuple[Counter[Range], Counter[GpuOp]]:
    """The ranges, and the GPU ops with the call that launched each and the innermost range around that on its thread.

    Times are ns since the first event. ``inner`` are categories that count as ranges beside annotations.
    """
    timed = [(each, *times(each)) for each in load(path) if each.get("ph") == "X" and each.get("ts") is not None]
    kept = [
        row
        for row in timed
        if (category := str(row[0].get("cat", "")).lower()) in HOST | GPU | {"user_annotation", "cpu_op", "operator"}
        or category in {"trace", "overhead", "cuda_sync"}
        or (category == "python_function" and _kept(row[0]["name"]))
    ]
    slack = 0 if any(start % 1000 or (end - start) % 1000 for _, start, end in kept) else 1000
    zero = min((start for _, start, _ in kept), default=0)
    rows = [(each, start - zero, end - zero) for each, start, end in kept]
    ranges = [row for row in rows if _is_range(row[0], inner)]
    by_thread: dict[Any, list[tuple[str, int, int]]] = {}
    for each, start, end in ranges:
        by_thread.setdefault((each["pid"], each["tid"]), []).append((each["name"], start, end))
    for own in by_thread.values():
        own.sort(key=lambda row: (row[1], -row[2], row[0]))
    calls: dict[int, tuple[int, int, int, dict[str, Any]]] = {}
    for each, start, end in rows:
        if str(each.get("cat", "")).lower() in HOST and (number := each.get("args", {}).get("correlation", 0)):
            known = calls.get(number)
            if known is None or (end - start, start) < known[:2]:
                calls[number] = end - start, start, end, each
    ops: Counter[GpuOp] = Counter()
    for each, start, end in rows:
        if str(each.get("cat", "")).lower() not in GPU:
            continue
        found = calls.get(each.get("args", {}).get("correlation", 0))
        if found is None:
            ops[start, end, None, None, None] += 1
            continue
        _, begin, stop, called = found
        own = by_thread.get((called["pid"], called["tid"]), [])
        at = bisect_right(own, begin, key=lambda row: row[1]) - 1
        while at >= 0 and not (stop <= own[at][2] + slack and begin <= own[at][2]):
            at -= 1
        ops[start, end, called["name"], begin, own[at][0] if at >= 0 else None] += 1
    return Counter((each["name"], start, end) for each, start, end in ranges), ops


def _is_range(event: dict[str, Any], inner: str) -> bool:
    category = str(event["cat"]).lower()
    return category == "user_annotation" or ("ops" in inner and category in {"cpu_op", "operator"})


def _kept(name: str) -> bool:
    return name.startswith("nn.Module: ")


def times(event: dict[str, Any]) -> tuple[int, int]:
    """The start and the end of an event in ns; true is no duration."""
    start, length = int(Fraction(event["ts"]) * 1000), event.get("dur")
    return start, start + max(int(Fraction(0 if length is True else length or 0) * 1000), 0)
