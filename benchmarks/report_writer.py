"""Fills the tables of a made-up report from the events of its ranks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from big_schema import KERNEL_COLUMNS, KERNEL_NAMES
from nsysprof.core.arrays import Array, Ints
from training_job import (
    API,
    GRAPH,
    HOST_CALLS,
    KERNEL,
    KERNELS,
    LOADER,
    MAIN,
    MEMCPY,
    MEMSET,
    NCCL_DOMAIN,
    Columns,
    Step,
)

Column: TypeAlias = Callable[[slice], Iterable[Any]]  # the values of some rows

PUSH_POP, START_END, MARK, DOMAIN_CREATE = 59, 60, 34, 75
VM = 1 << 48
STREAM_IDS = np.array([7, 13, 20])
CHUNK = 200_000  # rows inserted at once


class Strings:
    """StringIds: `strings(value)` is the id of the value."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def __call__(self, value: str) -> int:
        """The id of a value, a new one where it is new."""
        return self.ids.setdefault(value, len(self.ids))


class Ids:
    """The process, thread and device ids of the ranks, by rank (and thread)."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.pid = np.array([4000 + 211 * rank for rank in range(ranks)], dtype=np.int64)
        self.global_pid = VM | (self.pid << 24)
        tid = np.array([[pid, pid + 37, pid + 91] for pid in self.pid])  # main, autograd, loader
        self.global_tid = self.global_pid[:, None] | tid


def kernel_table(strings: Strings, rng: np.random.Generator) -> Ints:
    """A row per kernel of the job, its values of KERNEL_COLUMNS."""
    rows = []
    for i in range(KERNELS):
        base = KERNEL_NAMES[i % len(KERNEL_NAMES)]
        short = base if i < 2 * len(KERNEL_NAMES) else f"{base}_{i // len(KERNEL_NAMES)}"
        parameters = ", ".join(f"T{j}" for j in range(2 + i % 5))
        array = i % 6 + 1
        demangled = (
            f"void at::native::{short}<(int)4, at::native::functor_{i}<float>,"
            f" at::native::<unnamed>::op{i}_impl(at::TensorIteratorBase &)"
            f"::[lambda() (instance {i % 7 + 1})]::operator ()() const::[lambda(float) (instance 1)],"
            f" std::array<char *, (unsigned long){array}>>({parameters})"
        )
        mangled = f"_ZN2at6native{len(short)}{short}ILi4ENS0_{i}functorIfEESt5arrayIPcLm{array}EEEEviT0_T1_"
        names = strings(demangled), strings(short), strings(mangled)
        registers, grid_x = rng.integers(16, 168), rng.integers(1, 4096)
        grid = grid_x, rng.choice([1, 1, 1, 8, 32]), 1
        block = rng.choice([64, 128, 256, 512]), 1, 1
        shared = rng.choice([0, 0, 1024, 33792]), rng.choice([0, 0, 49152, 232448])
        rows.append((*names, registers, *grid, *block, *shared, rng.choice([32768, 135168, 233472])))
    return np.array(rows, dtype=np.int64)


def of(values: Array, index: Ints | None = None) -> Column:
    """An array as a column, or some of its values."""
    if index is None:
        return lambda rows: values[rows].tolist()
    return lambda rows: values[index[rows]].tolist()


def insert(
    con: sqlite3.Connection, table: str, columns: dict[str, Column], constants: Mapping[str, object], count: int
) -> None:
    """Insert `count` rows. Columns this schema does not have are left out, others it requires are 0."""
    info = {name: (kind, needed) for _, name, kind, needed, *_ in con.execute(f'PRAGMA table_info("{table}")')}
    columns = {name: values for name, values in columns.items() if name in info}
    constants = {name: value for name, value in constants.items() if name in info}
    for name, (kind, needed) in info.items():
        if needed and name not in columns and name not in constants:
            constants[name] = "''" if kind == "TEXT" else 0
    names = ",".join(f'"{name}"' for name in (*columns, *constants))
    marks = ",".join([*("?" * len(columns)), *map(str, constants.values())])
    for low in range(0, count, CHUNK):
        rows = slice(low, min(count, low + CHUNK))
        values = zip(*(column(rows) for column in columns.values()), strict=True)
        con.executemany(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', values)


def gather(parts: Sequence[Columns], by_time: bool) -> Columns:
    """The columns of all ranks in one, with a column for the rank; by process, or all in start order."""
    whole: Columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    lengths = [len(part["start"]) for part in parts]
    whole["rank"] = np.repeat(np.arange(len(parts), dtype=np.int8), lengths)
    if by_time:
        order = np.argsort(whole["start"], kind="stable")
        whole = {key: values[order] for key, values in whole.items()}
    return whole


def write_calls(con: sqlite3.Connection, calls: Columns, ids: Ids, strings: Strings) -> dict[str, int]:
    """Write the host calls; returns the rows written by table, as all writers do."""
    others = np.array([strings(name) for name in HOST_CALLS])
    launching = {
        KERNEL: strings("cudaLaunchKernel_v7000"),
        GRAPH: strings("cudaGraphLaunch_v10000"),
        MEMCPY: strings("cudaMemcpyAsync_v3020"),
        MEMSET: strings("cudaMemsetAsync_v3020"),
    }
    count = len(calls["start"])
    name = np.empty(count, dtype=np.int32)
    for kind, string in launching.items():
        name[calls["kind"] == kind] = string
    other = calls["kind"] == API
    name[other] = others[calls["what"][other]]
    columns: dict[str, Column] = {
        "start": of(calls["start"]),
        "end": of(calls["end"]),
        "globalTid": lambda rows: ids.global_tid[calls["rank"][rows], calls["thread"][rows]].tolist(),
        "correlationId": of(calls["correlation"]),
        "nameId": of(name),
    }
    constants = {"eventClass": 0, "returnValue": 0, "callchainId": "NULL"}
    insert(con, "CUPTI_ACTIVITY_KIND_RUNTIME", columns, constants, count)
    return {"CUPTI_ACTIVITY_KIND_RUNTIME": count}


def op_columns(work: Columns, index: Ints, ids: Ids) -> dict[str, Column]:
    """The columns that all ops have, of some of them."""
    return {
        "start": of(work["start"], index),
        "end": of(work["end"], index),
        "deviceId": of(work["rank"], index),
        "streamId": lambda rows: STREAM_IDS[work["stream"][index[rows]]].tolist(),
        "correlationId": of(work["correlation"], index),
        "globalPid": lambda rows: ids.global_pid[work["rank"][index[rows]]].tolist(),
    }


def write_kernels(
    con: sqlite3.Connection, work: Columns, ids: Ids, kernels: Ints, site_kernel: Ints, graphs: bool
) -> dict[str, int]:
    """Write the kernels; with `graphs` those of a graph get a node id."""
    index = np.flatnonzero((work["kind"] == KERNEL) | (work["kind"] == GRAPH))
    which = site_kernel[work["what"][index]].astype(np.int16)
    columns = op_columns(work, index, ids)

    def property_of(column: int) -> Column:
        return lambda rows: kernels[which[rows], column].tolist()

    columns |= {name: property_of(column) for column, name in enumerate(KERNEL_COLUMNS)}
    columns["gridId"] = lambda rows: range(rows.start + 1, rows.stop + 1)
    constants = {
        "contextId": 1,
        "greenContextId": "NULL",
        "launchType": 1,
        "cacheConfig": 1,
        "localMemoryPerThread": 0,
        "localMemoryTotal": 250871808,
        "sharedMemoryLimitConfig": 0,
    }
    if graphs:
        in_graph, site = work["kind"][index] == GRAPH, work["what"]
        columns["graphNodeId"] = lambda rows: [
            (1 << 32) + node if graph else None
            for graph, node in zip(in_graph[rows].tolist(), site[index[rows]].tolist(), strict=True)
        ]
    else:
        constants["graphNodeId"] = "NULL"
    insert(con, "CUPTI_ACTIVITY_KIND_KERNEL", columns, constants, len(index))
    return {"CUPTI_ACTIVITY_KIND_KERNEL": len(index)}


def write_memops(con: sqlite3.Connection, work: Columns, ids: Ids, rng: np.random.Generator) -> dict[str, int]:
    """Write the copies and the memsets."""
    copies = np.flatnonzero(work["kind"] == MEMCPY)
    direction = work["what"][copies]
    size = rng.integers(1, 1 << 16, len(copies)) * 64
    columns = op_columns(work, copies, ids) | {
        "bytes": of(size),
        "copyKind": of(direction),
        "srcKind": lambda rows: np.where(direction[rows] == 1, 1, 2).tolist(),
        "dstKind": lambda rows: np.where(direction[rows] == 1, 2, 1).tolist(),
    }
    insert(con, "CUPTI_ACTIVITY_KIND_MEMCPY", columns, {"contextId": 1}, len(copies))
    fills = np.flatnonzero(work["kind"] == MEMSET)
    constants = {"contextId": 1, "value": 0, "bytes": 65536, "memKind": 2}
    insert(con, "CUPTI_ACTIVITY_KIND_MEMSET", op_columns(work, fills, ids), constants, len(fills))
    return {"CUPTI_ACTIVITY_KIND_MEMCPY": len(copies), "CUPTI_ACTIVITY_KIND_MEMSET": len(fills)}


def write_nvtx(
    con: sqlite3.Connection,
    ranges: Columns,
    step: Step,
    ids: Ids,
    strings: Strings,
    last_steps: Ints,
    *,
    sequence: int,
    session_end: int,
    by_time: bool,
    rng: np.random.Generator,
) -> dict[str, int]:
    """Write domains, then push/pop ranges with marks and start/end ranges among them."""
    count = len(ranges["start"])
    extra = extra_events(ranges, ids, max(ids.ranks, count // 1000), session_end, rng)
    where = np.searchsorted(ranges["start"], [row[0] for row in extra]) if by_time else [count] * len(extra)
    for rank in range(ids.ranks):
        row = (3_900_000_000 + rank, DOMAIN_CREATE, "NCCL", int(ids.global_tid[rank, MAIN]), NCCL_DOMAIN)
        con.execute("INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId) VALUES (?,?,?,?,?)", row)
    columns = push_pop_columns(ranges, step, ids, strings, last_steps, sequence)
    sql = f"INSERT INTO NVTX_EVENTS ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})"
    extra_sql = (
        "INSERT INTO NVTX_EVENTS (start, end, eventType, rangeId, text, globalTid, endGlobalTid, domainId)"
        " VALUES (?,?,?,?,?,?,?,?)"
    )
    done = 0
    for low in range(0, count, CHUNK):
        high = min(count, low + CHUNK)
        rows = list(zip(*(column(slice(low, high)) for column in columns.values()), strict=True))
        at = 0
        while done < len(extra) and where[done] < high:
            stop = int(where[done]) - low
            con.executemany(sql, rows[at:stop])
            con.execute(extra_sql, extra[done])
            at = stop
            done += 1
        con.executemany(sql, rows[at:])
    con.executemany(extra_sql, extra[done:])
    return {"NVTX_EVENTS": count + len(extra) + ids.ranks}


def push_pop_columns(
    ranges: Columns, step: Step, ids: Ids, strings: Strings, last_steps: Ints, sequence: int
) -> dict[str, Column]:
    """The columns of the push/pop ranges; the last step of each rank has no end (the capture stopped)."""
    texts = [None if name.registered else name.text for name in step.names]
    text_ids = [strings(name.text) if name.registered else None for name in step.names]
    domains = [name.domain for name in step.names]
    name, rank = ranges["name"], ranges["rank"]
    is_step = name == step.step_name
    closed = ~(is_step & (ranges["step"] == last_steps[rank]))
    # PyTorch's emit_nvtx numbers every operator, from 0 in every rank: many names that differ at their end
    numbered = step.name("aten::linear") if sequence else -1
    number = np.zeros(len(name), dtype=np.int64)
    for one in range(ids.ranks if sequence else 0):
        at = np.flatnonzero((name == numbered) & (rank == one))
        number[at] = np.arange(len(at)) % sequence

    def text(rows: slice) -> list[str | None]:
        return [
            f"step {nth}" if which == step.step_name
            else f"{texts[which]}, seq = {seq}" if which == numbered
            else texts[which]
            for which, nth, seq in zip(
                name[rows].tolist(), ranges["step"][rows].tolist(), number[rows].tolist(), strict=True
            )
        ]  # fmt: skip

    return {
        "start": of(ranges["start"]),
        "end": lambda rows: [
            end if is_closed else None
            for end, is_closed in zip(ranges["end"][rows].tolist(), closed[rows].tolist(), strict=True)
        ],
        "eventType": lambda rows: [PUSH_POP] * (rows.stop - rows.start),
        "text": text,
        "globalTid": lambda rows: ids.global_tid[rank[rows], ranges["thread"][rows]].tolist(),
        "textId": lambda rows: [text_ids[which] for which in name[rows].tolist()],
        "domainId": lambda rows: [domains[which] for which in name[rows].tolist()],
    }


def extra_events(
    ranges: Columns, ids: Ids, count: int, session_end: int, rng: np.random.Generator
) -> list[tuple[Any, ...]]:
    """Marks, and start/end ranges of which one in ten ends on another thread, in start order."""
    rank = rng.integers(0, ids.ranks, count)
    start = np.sort(rng.integers(int(ranges["start"].min()), session_end, count))
    length = rng.integers(20_000, 3_000_000, count)
    kind = np.array([MARK, START_END, START_END, START_END])[rng.integers(0, 4, count)]
    crosses = (kind == START_END) & (rng.random(count) < 0.1)
    rows: list[tuple[Any, ...]] = []
    columns = (start.tolist(), length.tolist(), kind.tolist(), rank.tolist(), crosses.tolist())
    for i, (begin, lasts, event, one, crossing) in enumerate(zip(*columns, strict=True)):
        tid = int(ids.global_tid[one, MAIN])
        if event == MARK:
            rows.append((begin, None, event, None, "mark", tid, None, 0))
        else:
            end_tid = int(ids.global_tid[one, LOADER]) if crossing else None
            rows.append((begin, min(begin + lasts, session_end), event, i, f"async {i % 40}", tid, end_tid, 0))
    return rows


def write_session(con: sqlite3.Connection, ids: Ids, strings: Strings, session_end: int) -> None:
    """Write processes, threads, devices, the session's length and, last, the strings."""
    names = [strings(name) for name in ("python3", "pt_autograd_0", "pt_data_pin")]
    for rank in range(ids.ranks):
        process = (int(ids.global_pid[rank]), int(ids.pid[rank]), "python3")
        con.execute("INSERT INTO PROCESSES VALUES (?,?,?)", process)
        threads = [(name, 20, int(tid)) for name, tid in zip(names, ids.global_tid[rank], strict=True)]
        con.executemany("INSERT INTO ThreadNames VALUES (?,?,?)", threads)
    session = (VM, session_end + 1_000_000, 0, session_end + 1_000_000)
    con.execute("INSERT INTO ANALYSIS_DETAILS VALUES (?,?,?,?)", session)
    write_devices(con, ids)
    con.executemany("INSERT INTO StringIds VALUES (?,?)", [(i, value) for value, i in strings.ids.items()])


def write_devices(con: sqlite3.Connection, ids: Ids) -> None:
    """A GPU per rank: the template's first GPU again and again, with context and streams, or a plain one."""
    columns = [row[1] for row in con.execute("PRAGMA table_info(TARGET_INFO_GPU)")]
    first = con.execute("SELECT * FROM TARGET_INFO_GPU LIMIT 1").fetchone()
    if not first:
        rows = [(rank,) for rank in range(ids.ranks)]
        con.executemany("INSERT INTO TARGET_INFO_GPU VALUES (1, ?, 'NVIDIA H200')", rows)
        return
    gpu = dict(zip(columns, first, strict=True))
    copies = [tuple((gpu | {"id": rank}).values()) for rank in range(1, ids.ranks)]
    con.executemany(f"INSERT INTO TARGET_INFO_GPU VALUES ({','.join('?' * len(columns))})", copies)
    tables = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
    if "TARGET_INFO_CUDA_CONTEXT_INFO" in tables:
        constants = {"nullStreamId": 7, "vmId": 1, "contextId": 1, "parentContextId": 0, "isGreenContext": 0}
        own = {"processId": of(ids.pid), "deviceId": of(np.arange(ids.ranks))}
        insert(con, "TARGET_INFO_CUDA_CONTEXT_INFO", own, constants, ids.ranks)
    if "TARGET_INFO_CUDA_STREAM" in tables:
        own = {"streamId": of(np.tile(STREAM_IDS, ids.ranks)), "processId": of(np.repeat(ids.pid, len(STREAM_IDS)))}
        constants = {"vmId": 1, "contextId": 1, "flag": 1}
        insert(con, "TARGET_INFO_CUDA_STREAM", own, constants, ids.ranks * len(STREAM_IDS))
