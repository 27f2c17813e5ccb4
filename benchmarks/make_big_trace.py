"""Writes a large report of a made-up training job, the same bytes for the same options.

    python benchmarks/make_big_trace.py --kernels 1000000 --processes 8 --out big.sqlite

The file has the schema of an `nsys export --type sqlite` of 2024.2 and the shape of data-parallel training: a
process and a GPU per rank, correlation ids that collide between ranks, three threads per rank, push/pop
ranges up to six deep under thousands of names (some in `text`, some in StringIds), an NCCL domain, marks,
start/end ranges that do not nest, some that end on another thread, and one range per rank that never closes.
Per kernel there are about 1.2 host calls and half a range. Event tables are in start order (or by process),
without an index, as nsys writes them.

With `--template REPORT` every table that holds no events is copied from a real report, with that report's
schema: so also its environment and host names. Do not pass on the result of somebody else's report.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from pathlib import Path

import numpy as np

from big_schema import TABLES
from report_writer import (
    Ids,
    Strings,
    gather,
    kernel_table,
    write_calls,
    write_kernels,
    write_memops,
    write_nvtx,
    write_session,
)
from training_job import Step, run_rank

BEGIN = 4_000_000_000  # ns: when the first rank starts; each further one 1.7 us later

# Tables of a template whose rows are left behind: they would contradict what is made here.
OWN_ROWS = {
    *TABLES,
    "ANALYSIS_FILE",
    "ProcessStreams",
    "DIAGNOSTIC_EVENT",
    "PROFILER_OVERHEAD",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_CUDA_STREAM",
} - {"META_DATA_EXPORT", "TARGET_INFO_GPU"}


def create(path: Path, template: Path | None) -> sqlite3.Connection:
    """A new report with all tables, and the template's rows where it is asked to bring them."""
    con = sqlite3.connect(path, isolation_level=None)
    for pragma in ("page_size=4096", "journal_mode=OFF", "synchronous=OFF", "cache_size=-200000"):
        con.execute(f"PRAGMA {pragma}")
    con.execute("BEGIN")
    have = set()
    if template:
        source = sqlite3.connect(f"{template.resolve().as_uri()}?mode=ro", uri=True)
        tables = source.execute("SELECT name, sql FROM sqlite_master WHERE type='table' ORDER BY rowid")
        for name, sql in tables.fetchall():
            con.execute(sql)
            have.add(name)
            rows = [] if name in OWN_ROWS else source.execute(f'SELECT * FROM "{name}"').fetchall()
            if rows:
                con.executemany(f'INSERT INTO "{name}" VALUES ({",".join("?" * len(rows[0]))})', rows)
        source.close()
    for name, body in TABLES.items():
        if name not in have:
            con.execute(f'CREATE TABLE "{name}" ({body})')
    return con


def write(out: Path, options: argparse.Namespace) -> dict[str, int]:
    """Write the report and return the rows of each event table."""
    ranks = int(options.processes)
    seeds = np.random.SeedSequence(options.seed).spawn(ranks + 2)
    step = Step(options.layers, np.random.default_rng(seeds[0]), options.graphs)
    rng = np.random.default_rng(seeds[1])
    strings, ids = Strings(), Ids(ranks)
    for value in ("", "[Unknown]"):
        strings(value)
    kernels = kernel_table(strings, rng)
    parts = []
    for rank in range(ranks):
        wanted = options.kernels // ranks + (rank < options.kernels % ranks)
        parts.append(run_rank(wanted, step, np.random.default_rng(seeds[2 + rank]), BEGIN + 1_700 * rank))
    by_time = options.order == "time"
    con = create(out, options.template)
    # one kind of event after the other, so that only one lies in memory twice
    columns = gather([part.calls for part in parts], by_time)
    session_end = int(columns["end"].max())
    counts = write_calls(con, columns, ids, strings)
    columns = gather([part.work for part in parts], by_time)
    session_end = max(session_end, int(columns["end"].max()))
    site_kernel = np.array([site.kernel for site in step.sites], dtype=np.int64)
    counts |= write_kernels(con, columns, ids, kernels, site_kernel, options.graphs)
    counts |= write_memops(con, columns, ids, rng)
    columns = gather([part.ranges for part in parts], by_time)
    counts |= write_nvtx(
        con,
        columns,
        step,
        ids,
        strings,
        np.array([part.steps - 1 for part in parts]),
        sequence=options.seq_names,
        session_end=session_end,
        by_time=by_time,
        rng=rng,
    )
    write_session(con, ids, strings, session_end)
    con.execute("COMMIT")
    con.close()
    counts |= {"StringIds": len(strings.ids)}
    return counts


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options, checked."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--kernels", type=int, required=True, help="kernel rows in all")
    add("--processes", type=int, default=8, help="ranks, a process and a GPU each (1-64)")
    add("--out", type=Path, required=True, help="the report to write")
    add("--template", type=Path, help="a real report to take schema, enums and metadata from")
    add("--layers", type=int, default=32, help="layers of the model; distinct names grow with it")
    add("--seq-names", type=int, default=4000, help="different 'aten::linear, seq = N' names; 0: no numbers")
    add("--seed", type=int, default=0)
    add("--graphs", action="store_true", help="add CUDA graphs: many kernels with one correlation id")
    add("--order", choices=("time", "process"), default="time", help="order of the rows in event tables")
    add("--force", action="store_true", help="replace an existing file")
    options = parser.parse_args(arguments)
    if not 1 <= options.processes <= 64:
        parser.error("--processes must be 1 to 64")
    if options.kernels < options.processes:
        parser.error("--kernels must be at least --processes")
    if options.out.exists():
        if not options.force:
            parser.error(f"{options.out} exists (use --force)")
        options.out.unlink()
    return options


def main(arguments: list[str] | None = None) -> None:
    """Write the report; what it holds goes to stderr."""
    options = parse(arguments)
    began = time.monotonic()
    counts = write(options.out, options)
    took, size = time.monotonic() - began, options.out.stat().st_size
    print(f"{options.out}: {size / 1e6:.1f} MB in {took:.1f} s", file=sys.stderr)
    for table, rows in counts.items():
        print(f"  {table:32} {rows:>12,}", file=sys.stderr)


if __name__ == "__main__":
    main()
