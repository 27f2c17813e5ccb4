"""`nsysprof fleet` on real Dask: local processes, a scheduler with workers of which one dies, interrupts."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from nsysprof.commands import fleet as fleet_command
from nsysprof.errors import NsysprofError
from nsysprof.fleet.cluster import ClusterChoice, examine_all
from nsysprof.fleet.examine import ReportTask, answer_file, examine_report, keep_answer, kept_in
from nsysprof.fleet.files import default_folder
from nsysprof.fleet.inputs import ReportFile, find_reports
from nsysprof.formats.rank_answer import ReportAnswer
from nsysprof.tools.interrupts import Interrupt
from tests.kit.command_line import Run

ROOT = Path(__file__).parents[2]
TWO = ROOT / "analysis" / "two-ranks"
LATE = ROOT / "docs" / "gallery" / "late-rank"
LIMIT = 240
# What workers take, which differs from run to run.
COST = ["seconds", "peak_bytes"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "OPENBLAS_NUM_THREADS": "1"}


def fleet(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `nsysprof fleet …`, every warning of Dask's an error."""
    return subprocess.run(
        [sys.executable, "-m", "nsysprof", "fleet", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=LIMIT,
        check=False,
    )


def started(*arguments: str | Path, folder: Path) -> subprocess.Popen[str]:
    """The same, still running, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "nsysprof", "fleet", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
        start_new_session=True,
    )


def until(met: Callable[[], object], what: str) -> None:
    limit = time.monotonic() + LIMIT
    while not met():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


# A scheduler and two workers, in a process of their own; its address is its first line.
CLUSTER = """
import sys
from distributed import LocalCluster

how = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": None}
with LocalCluster(n_workers=2, threads_per_worker=1, **how) as cluster:
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="session")
def scheduler() -> Iterator[str]:
    """The address of a Dask cluster, one for all tests for which it does not matter whose workers there are."""
    command = [sys.executable, "-c", CLUSTER]
    variables = {**environment(), "PYTHONWARNINGS": ""}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture
def run(run: Run) -> Run:
    """Runs `nsysprof fleet …` in this process, through `main()`, in the test's own folder."""
    return partial(run, "fleet")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder of 16 reports, the two real ones under other names."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(16):
        shutil.copy(TWO / f"rank_{rank % 2}.sqlite", folder / f"rank_{rank}.sqlite")
    return folder


@contextlib.contextmanager
def running(*command: str | Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone afterwards."""
    with (folder / "log").open("ab") as log:
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)], stdout=log, stderr=log, cwd=folder, env=variables
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_two_real_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capture of two GPUs, on two local processes: no warnings, no noise, all files, nothing left over."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    done = fleet(TWO, "-o", "out", "--workers", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(scratch.iterdir())
    assert done.stdout.startswith("2 ranks, 24 iterations of step*, 9.32 ms each (median); ")
    lines = done.stderr.splitlines()
    assert lines[1].startswith("Written to out/: fleet_heatmap.png, fleet_timeline.png, fleet.csv, ")
    assert lines[2].startswith("2 workers, ")
    assert len(lines) == 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("fleet.csv", "fleet.json", "fleet_heatmap.png", "fleet_timeline.png", "iterations.csv", "ranks.csv")
    ]
    document = json.loads((tmp_path / "out" / "fleet.json").read_text())
    for rank in document["ranks"]:
        parts = ("compute", "exposed", "copies", "idle_host", "idle_sync", "idle_queue")
        assert sum(rank[f"{part}_ns"] for part in parts) == rank["span_ns"]
    assert document["collectives"]["matched"] == 2 * 168


def test_two_processes_of_one_report(run: Run, scheduler: str, tmp_path: Path) -> None:
    """Each process with GPU work is a rank."""
    report = ROOT / "traces" / "two-processes.sqlite"
    done = run(report, "-o", "out", "--no-charts", "--scheduler", scheduler)
    assert done.code == 0, done.err
    ranks = pd.read_csv(tmp_path / "out" / "ranks.csv")
    assert ranks["rank"].tolist() == [0, 1]
    assert ranks["pid"].nunique() == 2


def test_the_default_folder_is_named_after_the_reports(run: Run, scheduler: str, tmp_path: Path) -> None:
    """So that two fleets of files do not meet in one; what stands under the name of before is replaced there."""
    for job in ("one", "other"):
        (tmp_path / job).mkdir()
        for rank in (0, 1):
            shutil.copy(TWO / f"rank_{rank}.sqlite", tmp_path / job)
    for asked, folder in {
        ("one/rank_0.sqlite", "one/rank_1.sqlite"): "one-rank.fleet",
        ("other/rank_*.sqlite",): "other-rank.fleet",
        ("other/rank_0.sqlite", "other/rank_1.sqlite", "-o", "reports.fleet"): "reports.fleet",
        ("other/rank_[01].sqlite",): "reports.fleet",
        ("one/rank_1.sqlite",): "rank_1.fleet",
    }.items():
        named = (str(tmp_path / each) if "/" in each else each for each in asked)  # workers are elsewhere
        done = run(*named, "--no-charts", "--scheduler", scheduler)
        assert f"Written to {folder}/: " in done.err


def test_a_worker_that_is_killed_changes_nothing(run: Run, scheduler: str, tmp_path: Path, many: Path) -> None:
    """A real scheduler and two real workers, one of which dies while reports are under way: the answer is the same."""
    arguments = (many, "--rank-from", r"rank_(\d+)", "--no-charts")
    plain = run(*arguments, "-o", "plain", "--scheduler", scheduler)
    assert plain.code == 0, plain.err
    place = tmp_path / "scheduler.json"
    master = ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    worker: tuple[str | Path, ...] = ("distributed.cli.dask_worker", "--scheduler-file", place, "--nthreads", "1")
    worker = (*worker, "--no-nanny", "--no-dashboard")
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(*master, "--scheduler-file", place, folder=tmp_path))
        until(place.exists, "the scheduler did not start")
        until(lambda: place.read_text().strip(), "the scheduler gave no address")
        address = json.loads(place.read_text())["address"]
        victim = stack.enter_context(running(*worker, "--name", "victim", folder=tmp_path))
        stack.enter_context(running(*worker, "--name", "other", folder=tmp_path))
        until(lambda: (tmp_path / "log").read_text().count("Registered to") == 2, "the workers did not start")
        process = started(*arguments, "-o", "out", "--scheduler", address, folder=tmp_path)
        until(lambda: len(list(kept_in(tmp_path / "out").glob("*.npz"))) > 1, "no answers came")
        victim.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out == plain.out
    for name in ("fleet.csv", "iterations.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    one, other = (pd.read_csv(tmp_path / folder / "ranks.csv").drop(columns=COST) for folder in ("out", "plain"))
    pd.testing.assert_frame_equal(one, other)


def test_an_interrupted_run_goes_on(run: Run, scheduler: str, tmp_path: Path, many: Path) -> None:
    """Ctrl-C keeps what is done and leaves no process; --resume takes it and does the rest."""
    arguments = (many, "-o", "out", "--workers", "2", "--no-charts")
    process = started(*arguments, folder=tmp_path)
    kept = kept_in(tmp_path / "out")
    until(lambda: len(list(kept.glob("*.npz"))) > 1, "no answers came")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, err
    assert out == ""
    kept_line, last_line = err.splitlines()  # nothing of the workers
    assert kept_line.endswith("reports are saved: run the command again with --resume")
    assert last_line == "nsysprof: interrupted"
    until(lambda: not left_of(process.pid), "processes are left")
    before = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    refused = run(*arguments)
    assert refused.code == 1
    assert "--resume to continue" in refused.err
    damaged = next(iter(before))
    (kept / damaged).write_bytes(b"PK")
    (many / "rank_16.sqlite").touch()  # the answers are kept where a report fails
    anywhere = (many, "-o", "out", "--no-charts", "--resume", "--scheduler", scheduler)
    done = run(*anywhere)
    assert done.code == 1
    assert "1 of 17 reports could not be read" in done.err
    after = {path.name: path.stat().st_mtime_ns for path in kept.glob("*.npz")}
    assert len(after) == 16
    assert {name for name in before if after[name] != before[name]} == {damaged}
    (many / "rank_16.sqlite").unlink()
    assert run(*anywhere, "--force").code == 0
    assert not kept.exists()


def test_nothing_is_resumed_that_was_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupt tells of --resume only if results stay: not where no folder can be made."""
    (tmp_path / "a.npz").touch()
    for kept, said in ((tmp_path, True), (None, False)):
        with pytest.raises(NsysprofError, match="interrupted"), fleet_command._interruptible(kept, 3):
            raise Interrupt(2)
        assert ("1 of 3 reports are saved: run the command again with --resume" in capsys.readouterr().err) == said


def test_an_interrupt_while_workers_start_is_no_noise(tmp_path: Path, many: Path) -> None:
    """It waits until Dask has started them, whose processes do not hear of it, and ends them."""
    process = started(many, "-o", "out", "--workers", "2", "--no-charts", folder=tmp_path)
    until(lambda: any("spawn_main" in line for line in left_of(process.pid)), "no workers came")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out, err) == (130, "", "nsysprof: interrupted\n")
    assert not (tmp_path / "out").exists()
    until(lambda: not left_of(process.pid), "processes are left")


def test_what_is_there_already_needs_no_workers(run: Run, tmp_path: Path) -> None:
    """With --resume only what remains is counted; a folder of the user's in the place of the answers stays."""
    job, kept = tmp_path / "job", kept_in(tmp_path / "out")
    job.mkdir()
    kept.mkdir(parents=True)
    (kept / "notes.txt").touch()
    for rank in (0, 1):
        shutil.copy(TWO / f"rank_{rank}.sqlite", job)
    for file in find_reports([str(job)])[0]:
        answer = examine_report(ReportTask(file))
        assert isinstance(answer, ReportAnswer)
        keep_answer(answer, answer_file(kept, ReportTask(file)))
    (job / "rank_2.sqlite").write_text("junk")
    arguments = (job, "-o", "out", "--no-charts", "--workers", "3", "--resume")
    done = run(*arguments)
    assert done.code == 1
    assert done.err.splitlines()[2].startswith("1 worker, ")
    (job / "rank_2.sqlite").unlink()
    done = run(*arguments, "--force")
    assert done.code == 0
    assert len(done.err.splitlines()) == 2  # nothing of workers: there were none
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]


def test_two_fleets_share_a_scheduler(scheduler: str) -> None:
    """Each gets its own answers, though both number their reports from 0."""

    def one(name: str) -> list[str]:
        tasks = [ReportTask(ReportFile(f"{name}-{at}", "")) for at in range(20)]
        return [found.report for found in examine_all(tasks, ClusterChoice(scheduler=scheduler))]

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(one, ("one", "other")))
    assert found == [[f"{name}-{at}" for at in range(20)] for name in ("one", "other")]


PORTS = '''
import contextlib, faulthandler, os, socket, ssl, subprocess, sys, tempfile
import distributed, psutil
from nsysprof.commands import fleet as fleet_command
from nsysprof.errors import NsysprofError
from nsysprof.fleet.cluster import ClusterChoice, examine_all
from nsysprof.fleet.examine import ReportTask
from nsysprof.fleet.inputs import ReportFile

def answered(address, hello):
    with contextlib.suppress(TimeoutError, ConnectionError), socket.create_connection(address, 5) as line:
        line.sendall(hello)
        return line.recv(100)
    return b""

def answered_on_tls(address):
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, 5) as line, stranger.wrap_socket(line) as safe:
            safe.sendall(bytes(8))
            return safe.recv(100)
    except OSError:
        return b""

CLIENT = """
import sys, distributed
how = {"security": distributed.security.Security.temporary()} if sys.argv[2:] else {}
distributed.Client(sys.argv[1], timeout="3s", set_as_default=False, **how)
"""

def refused(tries):
    running = [subprocess.Popen([sys.executable, "-c", CLIENT, *try_], stderr=subprocess.DEVNULL) for try_ in tries]
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        strangers.append(process.poll() != 0)
        process.kill()

def visit(step, done):
    if not done or found:
        return
    secured = distributed.default_client().scheduler.address
    refused([(secured,), (secured.replace("tls:", "tcp:"),), (secured, "another run")])
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        for line in process.net_connections():
            if line.status == psutil.CONN_LISTEN:
                page = answered(line.laddr, b"GET /info/main/workers.html HTTP/1.0\\r\\n\\r\\n")[:12]
                web = page.startswith(b"HTTP")
                found.append((line.laddr[0], page if web else page[:2], b"" if web else answered_on_tls(line.laddr)))
    for folder in (path for path in sys.path if path.startswith(tempfile.gettempdir())):
        while os.path.realpath(folder) != os.path.realpath(tempfile.gettempdir()):
            modes.append(os.stat(folder).st_mode & 0o777)
            if os.getuid() == 0 and modes[-1] == 0o700:
                look = subprocess.run(["sh", "-c", 'ls "$0" || echo > "$0/x"', folder], user=65534, capture_output=True)
                strangers.append(look.returncode != 0)
            folder = os.path.dirname(folder)

if __name__ == "__main__":
    faulthandler.dump_traceback_later(200, exit=True)
    found, modes, strangers = [], [], []
    examine_all([ReportTask(ReportFile(f"no-{at}", "")) for at in range(2)], ClusterChoice(2), progress=visit)
    assert len(found) >= 6, found
    assert {address for address, *_ in found} == {"127.0.0.1"}, found
    # a page that is not there, or an alert of TLS; and nothing for one without the certificate
    assert {page for _, page, _ in found} <= {b"HTTP/1.0 404", b"HTTP/1.1 404", b"\\x15\\x03", b""}, found
    assert {answer for *_, answer in found} == {b""}, found
    assert 0o700 in modes, modes
    assert len(strangers) >= 3 and all(strangers), strangers
'''


def test_no_other_user_is_served_by_local_workers(tmp_path: Path) -> None:
    """Ports are of this machine alone, and refuse clients without a certificate, or with that of another run; what the
    workers import from is closed to other users.
    """
    done = subprocess.run(
        [sys.executable, "-c", PORTS], capture_output=True, text=True, cwd=tmp_path, check=False,
        timeout=LIMIT, env={**environment(), "PYTHONWARNINGS": "", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def left_of(session: int) -> list[str]:
    """The processes of a session that still run."""
    found = subprocess.run(
        ["ps", "-wwo", "pid=,stat=,args=", "-s", str(session)], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if "Z" not in line.split()[1]]


def test_strict_stops_at_the_first_failure(run: Run, scheduler: str, tmp_path: Path) -> None:
    """With the reason of that report, and nothing written."""
    arguments = (TWO / "rank_0.sqlite", "nothing.sqlite", "--strict", "-o", "out")
    done = run(*arguments, "--scheduler", scheduler)
    assert done.code == 1
    assert done.err.splitlines()[0] == "nsysprof: nothing.sqlite: no such file"
    assert not (tmp_path / "out" / "fleet.json").exists()


@pytest.mark.parametrize("missing", ["distributed", "cryptography"])
def test_without_dask_the_hint_is_the_command_to_install_it(
    missing: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and a hint."""
    monkeypatch.setitem(sys.modules, missing, None)
    done = run(TWO)
    assert done.code == 1
    assert done.err == (
        "nsysprof: analyzing many reports needs dask[distributed] and cryptography\n"
        "  hint: pip install 'nsysprof[fleet]'\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scheduler", "tcp://127.0.0.1:9", "--workers", "2", "a.sqlite"], "--workers starts a local cluster"),
        ([], "name the reports"),
    ],
)
def test_usage(arguments: list[str], says: str, run: Run) -> None:
    """What contradicts itself is refused as usage."""
    done = run(*arguments)
    assert done.code == 2
    assert says in done.err


def test_a_folder_without_rights_still_gets_the_answer_printed(run: Run, tmp_path: Path) -> None:
    """On stdout, with one line on what was not written; a folder that was asked for is a failure."""
    (tmp_path / "late-rank.fleet").write_text("in the way")
    done = run(LATE, "--workers", "1", "--no-charts")
    assert done.code == 0, done.err
    assert done.out.startswith("4 ranks")
    assert "Not written: cannot write into late-rank.fleet" in done.err
    assert run(LATE, "-o", "late-rank.fleet").code == 1


def test_results_have_the_name_that_the_user_gave(tmp_path: Path) -> None:
    """And not the name of the file or folder that a symbolic link leads to."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "048.sqlite").touch()
    (tmp_path / "33.sqlite").symlink_to(tmp_path / "real" / "048.sqlite")
    (tmp_path / "job").symlink_to(tmp_path / "real")
    for given in ("33.sqlite", "job", "job/../33.sqlite"):
        path = str(tmp_path / given)
        assert default_folder([path], [path]).name == f"{Path(given).stem}.fleet"
