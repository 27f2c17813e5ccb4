"""What two reports were recorded under: GPUs, versions, profiler options."""

import sqlite3
from contextlib import closing
from pathlib import Path

from nsysprof.compare.files import gap_document
from nsysprof.compare.text import comparison_text
from tests.compare.conftest import answer
from tests.conftest import MakeTrace
from tests.kit.calls import GEMM, run


def recorded(path: Path, driver: str, events: tuple[str, ...]) -> Path:
    """The report, with the version of a driver and the kinds of events that were asked for."""
    with closing(sqlite3.connect(path)) as file, file:
        for table in ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"):
            file.execute(f"CREATE TABLE IF NOT EXISTS {table} (name TEXT, value TEXT)")
        file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV (name, value) VALUES ('NvDriverVersion', ?)", (driver,))
        rows = [("CAPTURE_EVENT_TYPE", event) for event in events]
        file.executemany("INSERT INTO META_DATA_CAPTURE (name, value) VALUES (?, ?)", rows)
    return path


def test_other_conditions_are_said_below_the_headline(trace: MakeTrace) -> None:
    """Another driver and other profiler options stand in the short answer and in the document; equal ones do not."""
    paths = [trace(*run("train", 0, [(GEMM, 9)]), name=name) for name in ("a.sqlite", "b.sqlite", "c.sqlite")]
    one = recorded(paths[0], "525.60.13", ("Cuda",))
    other = recorded(paths[1], "580.95.05", ("Cuda", "OSRuntime"))
    found = answer(one, other)
    driver, events = ["525.60.13", "580.95.05"], ["Cuda", "Cuda, OSRuntime"]
    options = {"driver": driver, "profiler option traced events": events}
    assert gap_document(found)["conditions"] == options
    text = " ".join(comparison_text(found).split())
    assert "recorded under different conditions: driver 525.60.13 against 580.95.05; profiler option" in text
    same = answer(one, recorded(paths[2], "525.60.13", ("Cuda",)))
    assert gap_document(same)["conditions"] == {}
    assert "other conditions" not in comparison_text(same)
