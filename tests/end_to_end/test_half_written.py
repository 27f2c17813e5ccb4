"""A full disk, a signal at any time, a place that takes no files, two runs at once: results are whole, or not there."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.command_line import Done, Run

resource = pytest.importorskip("resource")

TRACES = Path(__file__).parents[2] / "traces"
RUN, BLOCK, TORCH = TRACES / "run.sqlite", TRACES / "block.sqlite", TRACES / "cpu.pt.trace.json.gz"
# Each command with what it writes, and how many bytes of it fit onto the disk: fewer than its longest file has.
WRITES = {
    "analyze": (("analyze", RUN, "--no-charts", "--html", "-o", "out"), 60_000),
    "analyze a trace": (("analyze", TORCH, "--no-charts", "-o", "out"), 2_000),
    "check": (("check", "--init", RUN, "-o", "out"), 100),
    "compare": (("compare", BLOCK, BLOCK, "--no-charts", "-o", "out"), 3_000),
    "export": (("export", RUN, "--to", "perfetto", "-o", "out"), 10_000),
    "forecast": (("forecast", BLOCK, "--delay", "*=5us", "--as-profiled", "--no-charts", "-o", "out"), 200),
    "history": (("history", RUN, BLOCK, "--no-charts", "--cache", os.devnull, "-o", "out"), 500),
    "hotspots": (("hotspots", RUN, "--no-charts", "-o", "out"), 1_000),
    "scrub": (("scrub", RUN, "-o", "out"), 100_000),
    "steps": (("steps", RUN, "--no-charts", "-o", "out"), 1_000),
    "why": (("why", BLOCK, "--no-charts", "-o", "out"), 1_000),
}


def said(done: Done) -> str:
    """What a run says that failed as it should: a line, perhaps a hint; the answer may have been printed before."""
    assert done.code == 1, done
    assert done.err.startswith("nsysprof: ")
    assert len(done.err.splitlines()) <= 2, done.err
    return done.err


@contextmanager
def small_disk(most: int) -> Iterator[None]:
    """Let files of this process have so many bytes at most."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_leaves_nothing(name: str, tmp_path: Path, run: Run) -> None:
    """One line says what could not be written, and there is neither a part of it nor a folder for it."""
    arguments, most = WRITES[name]
    with small_disk(most):
        done = run(*arguments)
    assert re.search("out.*(File too large|full|disk I/O)", said(done))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["analyze", "check", "export", "scrub", "why"])
def test_a_place_that_takes_no_files_is_named(name: str, tmp_path: Path, run: Run) -> None:
    """Such as a disc, or /proc, where not even the superuser writes."""
    arguments = [str(one).replace("out", "/proc/nsysprof-out") for one in WRITES[name][0][:-1]]
    done = run(*arguments, "/proc/nsysprof-out")
    assert "/proc" in said(done)
    assert list(tmp_path.iterdir()) == []


def whole(out: Path) -> bool:
    """Whether the results are all there: a document and its tables in a folder, each to its end, or one file."""
    if not out.is_dir():
        return out.stat().st_size > 100
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("*.json")]
    ends = {path.read_bytes()[-1:] for path in out.glob("*.csv")}
    return any("schema" in document for document in documents) and ends <= {b"\n"}  # a forecast has no tables


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("seed", range(int(os.environ.get("NSYSPROF_SIGNALS", "4"))))
def test_a_signal_at_any_time_leaves_all_or_nothing(tmp_path: Path, seed: int) -> None:
    """No hidden folder, no file without its end, no traceback; NSYSPROF_SIGNALS=200 tries as many times by hand."""
    rng = random.Random(seed)
    arguments, _ = WRITES[rng.choice(list(WRITES)) if seed else "analyze"]
    command = [sys.executable, "-m", "nsysprof", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(rng.uniform(0.3, 2.5))
    number = rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    if "init_import_site" not in err:  # Python itself was starting yet
        assert process.returncode in (0, 3, 128 + number, -number)  # 3: done, and history found a change
    assert [path.name for path in tmp_path.iterdir()] in ([], ["out"])
    if process.returncode >= 0:
        assert "Traceback" not in err
    assert whole(tmp_path / "out") if (tmp_path / "out").exists() else process.returncode


def test_two_runs_into_one_folder_do_not_mix(tmp_path: Path, run: Run) -> None:
    """Whoever ends last has it, or is refused; the files are those of one report."""
    for report in (RUN, BLOCK):
        assert run("analyze", report, "--no-charts", "-o", report.stem).code == 0
    command = [sys.executable, "-m", "nsysprof", "analyze", "--no-charts", "-o"]
    both = [
        subprocess.Popen([*command, "out", report], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for report in (RUN, BLOCK)
    ]
    errors = [each.communicate(timeout=60)[1].decode() for each in both]
    assert 0 in [each.returncode for each in both], errors
    assert not [text for text in errors if "Traceback" in text]
    tables = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.csv")}
    alone = [{path.name: path.read_bytes() for path in (tmp_path / one.stem).glob("*.csv")} for one in (RUN, BLOCK)]
    assert tables in alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["block", "out", "run"]
