"""The table of hardware counters: its columns, an interface to be added to and never renamed, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from nsysprof.core.text import path_part
from nsysprof.counters.ncu_csv import NcuRow
from nsysprof.formats.counters import METRICS, CounterRow
from nsysprof.results.table import table
from nsysprof.scrub.secrets import Secrets

COUNTERS = table(
    "NAME.counters.csv",
    "a row per launch of a kernel, in the order of the launches; empty where the chip cannot count it",
    {
        "range": "path of the range that it belongs to",
        "order": "how many of its range and process were launched before it",
        "pid": "process",
        "kernel": "full name of the kernel",
        "grid block": "blocks, and threads of a block",
        "duration_ns": "time of the kernel, run alone under ncu; `compare` takes times from the report",
        "dram_read_bytes dram_write_bytes l2_bytes": "traffic with DRAM while the kernel ran, and requests to L2;"
        " what it wrote may reach DRAM under a later kernel",
        "tensor_instructions tensor_flops": "what tensor cores executed; a multiply-add is two FLOPs",
        "fp32_flops fp16_flops fp64_flops": "the same on the other units; a packed pair of float16 counts as one,"
        " as the hardware counts it",
        "occupancy_percent dram_percent sm_percent l2_percent": "of the warps an SM can hold, and of what DRAM, SMs"
        " and L2 can do at most",
    },
)


def in_ranges(rows: Iterable[NcuRow], select: str | None) -> list[NcuRow]:
    """Select the rows in ranges whose path or name a glob matches, and in ranges inside those; all for None.

    Those whose ranges are not clear stay: one of them may match.
    """
    return [row for row in rows if select is None or not row.clear or _matches(row.ranges, select)]


def _matches(names: Sequence[str], select: str) -> bool:
    parts = [path_part(name) for name in names]
    paths = ("/".join(parts[: count + 1]) for count in range(len(parts)))
    return any(fnmatchcase(each, select) for each in (*paths, *names))


def counter_rows(first: Sequence[NcuRow], second: Sequence[NcuRow]) -> tuple[list[CounterRow], int]:
    """Join the rows of the first run with their partners in the second; returns also how many have none there.

    A partner has the same process (by order of appearance), range, kernel, grid and block, and comes after as many of
    the same: two runs of a program need not launch in the same order, as threads go their own ways.
    """
    partners = dict(zip(_keys(second), (row.values for row in second), strict=True))
    rows: list[CounterRow] = []
    seen: dict[tuple[int, str], int] = {}
    lost = 0
    for row, key in zip(first, _keys(first), strict=True):
        more = partners.get(key)
        lost += more is None and bool(second)
        path = row.path
        order = seen.get((row.pid, path), 0)
        seen[row.pid, path] = order + 1
        values = {**dict.fromkeys(METRICS), **row.values, **(more or {})}
        rows.append(CounterRow(path, order, row.pid, row.kernel, row.grid, row.block, values))
    return rows, lost


def without_secrets(rows: Sequence[CounterRow], secrets: Secrets) -> list[CounterRow]:
    """Cut every sure secret out of the names of ranges and kernels."""
    names = {name for row in rows for name in (row.path, row.kernel)}
    redactor = secrets.redactor([name.encode("utf-8", "surrogatepass") for name in names], sure=True)
    cut = {
        name: redactor(name.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
        for name in names
    }
    return [replace(row, path=cut[row.path], kernel=cut[row.kernel]) for row in rows]


def _keys(rows: Sequence[NcuRow]) -> Iterator[tuple[object, ...]]:
    """Yield for each row the key that its partner in another run has too."""
    processes: dict[int, int] = {}
    times: dict[tuple[object, ...], int] = {}
    for row in rows:
        process = processes.setdefault(row.pid, len(processes))
        key = (process, row.path, row.kernel, row.grid, row.block)
        times[key] = times.get(key, -1) + 1
        yield (*key, times[key])
