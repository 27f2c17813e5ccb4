"""The process that draws the charts: it draws what would be drawn here, and nobody notices when it cannot."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.charts import analysis_charts
from nsysprof.charts import chart as module
from nsysprof.charts.chart import Chart, Painter, plans_of, save_charts, start_painter
from nsysprof.charts.drawing import picture
from nsysprof.charts.marks import Heading, Message, Plan
from nsysprof.errors import NsysprofError
from tests.kit.reports import RUN, broken_down

ROOT = Path(__file__).parents[2]
WORDS = Message(Heading("A title", "about it"), ["one sentence"])


@pytest.fixture(scope="module")
def run() -> Breakdown:
    """The breakdown of the shipped report."""
    return broken_down(RUN)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second core, also where there is none."""
    monkeypatch.setattr(module, "_cores", lambda: 2)


@pytest.fixture
def not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing in this process gives a mark instead of a picture."""
    drawn: Callable[[Plan], bytes] = lambda plan: b"drawn here"  # noqa: E731
    monkeypatch.setattr(module, "_picture", lambda: drawn)


def process_of(painter: Painter) -> subprocess.Popen[bytes]:
    """The process of a painter that has one."""
    assert painter._process is not None
    return painter._process


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running `code`."""
    script = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.usefixtures("two_cores", "not_here")
def test_pictures_are_those_that_would_be_drawn_here(run: Breakdown) -> None:
    """Byte by byte: the process makes the three charts of a real report as this one does."""
    plans = plans_of(analysis_charts(), run)
    with start_painter() as painter:
        painter.paint(plans)
        assert painter.pictures() == [picture(plan) for plan in plans]


def test_neither_process_imports_what_the_other_one_does() -> None:
    """Plans are made without matplotlib, and drawn without pandas and what builds on it."""
    here = loaded_after(
        "import nsysprof\nfrom nsysprof.analyze.charts import analysis_charts\n"
        "from nsysprof.charts.chart import plans_of\n"
        f"with nsysprof.open_report({str(RUN)!r}) as report:\n"
        "    plans_of(analysis_charts(), nsysprof.break_down(nsysprof.attribute(report)))"
    )
    there = loaded_after("import nsysprof.charts.chart, nsysprof.charts.drawing")
    assert "nsysprof.analyze.breakdown" in here
    assert "pandas" not in here
    assert "matplotlib" not in here
    assert "matplotlib.figure" in there
    assert there.isdisjoint(
        {"pandas", "nsysprof.analyze.breakdown", "nsysprof.kernels.classify", "nsysprof.trace.trace"}
    )


def test_the_painter_is_started_without_numpy() -> None:
    """What `analyze` imports before it starts the process takes no time."""
    assert loaded_after("import nsysprof.charts.chart").isdisjoint({"numpy", "pandas", "matplotlib"})


@pytest.mark.usefixtures("two_cores")
def test_a_process_that_dies_is_replaced(run: Breakdown) -> None:
    """Killed before or after the plans were sent, the pictures are the same."""
    plans = plans_of(analysis_charts(), run)[:1]
    for sent in (False, True):
        with start_painter() as painter:
            if sent:
                painter.paint(plans)
            process_of(painter).kill()
            process_of(painter).wait()
            if not sent:
                painter.paint(plans)
            assert painter.pictures() == [picture(plans[0])]


@pytest.mark.usefixtures("two_cores", "not_here")
def test_a_chart_that_fails_there_is_drawn_here() -> None:
    """The others still come from the process."""
    broken = Message(None, [])  # type: ignore[arg-type]
    with start_painter() as painter:
        painter.paint([WORDS, broken, WORDS])
        first, second, third = painter.pictures()
    if sys.platform == "linux":
        assert first == third == picture(WORDS)
    assert second == b"drawn here"


@pytest.mark.usefixtures("not_here")
def test_without_a_second_core_there_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one core two processes would only take turns."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0}, raising=False)
    with start_painter() as painter:
        assert painter._process is None
        painter.paint([WORDS])
        assert painter.pictures() == [b"drawn here"]


@pytest.mark.usefixtures("two_cores", "not_here")
def test_a_python_that_cannot_be_started_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No such file, a file that is no Python, or an interpreter inside another program: charts are drawn here."""
    impostor = tmp_path / "impostor"
    impostor.write_text("#!/bin/sh\nexit 3\n")
    impostor.chmod(0o755)
    for executable in ("", str(tmp_path / "none"), str(impostor)):
        monkeypatch.setattr(sys, "executable", executable)
        with start_painter() as painter:
            painter.paint([WORDS])
            assert painter.pictures() == [b"drawn here"]


@pytest.mark.usefixtures("two_cores", "not_here")
def test_the_current_folder_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files that happen to be called like modules are not imported."""
    for name in ("random", "numpy", "nsysprof", "pickle"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(4)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    with start_painter() as painter:
        painter.paint([WORDS])
        assert painter.pictures()[0].startswith(b"\x89PNG")


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("sent", [False, True])
def test_closing_ends_the_process_whatever_it_does(run: Breakdown, sent: bool) -> None:
    """While it imports, or draws: it is gone when the `with` is left, and a second close does no harm."""
    with contextlib.suppress(KeyboardInterrupt), start_painter() as painter:
        process = process_of(painter)
        if sent:
            painter.paint(plans_of(analysis_charts(), run))
        raise KeyboardInterrupt
    assert process.returncode is not None
    painter.close()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_ctrl_c_leaves_no_process_behind() -> None:
    """An interrupt while the process imports or draws ends both."""
    script = (
        "import sys, time\nfrom nsysprof.charts import chart\nchart._cores = lambda: 2\n"
        "with chart.start_painter() as one:\n"
        "    print(one._process.pid, flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGINT)
        assert parent.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_picture_is_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    """Where the second file cannot be replaced, nothing unfinished stays, and what was there is as it was."""
    charts = [Chart[None](f"{name}.png", name, lambda _: WORDS) for name in "abc"]
    (tmp_path / "b.png").mkdir()
    (tmp_path / "c.png").write_bytes(b"old")
    with pytest.raises(NsysprofError, match="cannot write charts into"):
        save_charts(charts, None, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png", "c.png"]
    assert (tmp_path / "a.png").read_bytes() == picture(WORDS)
    assert (tmp_path / "c.png").read_bytes() == b"old"
