"""Reports attributed and broken down: the shipped ones once in a run of the tests, made-up ones as asked."""

import re
import shutil
import sqlite3
from functools import lru_cache
from pathlib import Path
from typing import Any

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.trace.nsys.blocks import Source
from nsysprof.trace.nsys.reader import NsysReader
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Report

TRACES = Path(__file__).parents[2] / "traces"
RUN, BLOCK, TWO = (TRACES / f"{name}.sqlite" for name in ("run", "block", "two-processes"))


def attributed(path: Path = RUN, threads: str = "follow", **how: Any) -> Attribution:
    """The attribution of a report, whose file is closed again; nobody may change one of a shipped report."""
    return _shipped(path, threads) if path.parent == TRACES and not how else _attributed(path, threads, **how)


def broken_down(path: Path = RUN, threads: str = "follow", **how: Any) -> Breakdown:
    """The breakdown of a report, whose file is closed again; nobody may change one of a shipped report."""
    if path.parent != TRACES:
        return break_down(_attributed(path, threads), **how)
    return _broken_down(path, threads, **how)


def source_of(report: Report) -> Source:
    """The tables behind an open report of nsys, for tests of what reads them."""
    assert isinstance(report.reader, NsysReader)
    return report.reader.source


def _attributed(path: Path, threads: str, **how: Any) -> Attribution:
    with open_report(path) as report:
        return attribute(report, threads, **how)


_shipped = lru_cache(_attributed)


@lru_cache
def _broken_down(path: Path, threads: str, **how: Any) -> Breakdown:
    return break_down(_shipped(path, threads), **how)


def in_one_report(path: Path, first: Path, second: Path, shift_ns: int) -> Path:
    """Two reports of one machine as one: what ``second`` recorded follows, with its times moved by ``shift_ns``."""
    shutil.copy(first, path)
    path.chmod(0o644)
    connection = sqlite3.connect(path)
    connection.execute("ATTACH ? AS other", (str(second),))
    ids = {value: id for id, value in connection.execute("SELECT id, value FROM StringIds")}
    more = connection.execute("SELECT id, value FROM other.StringIds").fetchall()
    words = {id: ids.setdefault(value, len(ids) + len(more) + id) for id, value in more}
    connection.executemany("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", [(id, text) for text, id in ids.items()])
    connection.create_function("word", 1, words.get)
    tables = connection.execute("SELECT name, sql FROM other.sqlite_master WHERE type = 'table'").fetchall()
    for table, sql in tables:
        if not table.startswith(("CUPTI_ACTIVITY", "NVTX_EVENTS", "PROCESSES", "ThreadNames", "TARGET_INFO_CUDA")):
            continue
        texts = set(re.findall(r"^\s*(\w+) .*REFERENCES StringIds", sql, re.MULTILINE))
        names = [row[1] for row in connection.execute(f"PRAGMA other.table_info({table})")]
        moved = {
            "start": f"start + {shift_ns}",
            "end": f'"end" + {shift_ns}',
            **{name: f"word({name})" for name in texts},
        }
        values = ", ".join(moved.get(name, f'"{name}"') for name in names)
        columns = ", ".join(f'"{name}"' for name in names)
        connection.execute(f"INSERT INTO {table} ({columns}) SELECT {values} FROM other.{table}")
    connection.commit()
    connection.close()
    return path
