"""Text on a terminal: its colours, and tables that are as wide as it is."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from nsysprof.commands.screen import show
from tests.kit.command_line import Run

TEXT = """\
cause      kernels
-------  ---------
softmax          1
-------  ---------
total            1

   → start it earlier, in
     smaller buckets
   $ nsysprof why run.sqlite
"""


def test_a_head_is_bold_and_the_row_above_a_total_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ruler above a total makes no head of the row above it; a hint keeps its colour over all of its lines."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    show(TEXT)
    bold, green, cyan = "\x1b[1m", "\x1b[32m", "\x1b[36m"
    lines = capsys.readouterr().out.split("\n")
    assert [line.startswith(bold) for line in lines[:5]] == [True, False, False, False, False]
    hint = "\n".join(lines[6:8])
    assert hint.startswith(f"{green}   → start")
    assert hint.endswith("smaller buckets\x1b[0m")
    assert lines[8].startswith(cyan)


ROOT = Path(__file__).parents[2]
RUN, SAMPLES = ROOT / "traces" / "run.sqlite", ROOT / "analysis" / "math-vs-flash"
BUDGET = """\
[[range]]
path = "RUN::math::*/iter*"
max_kernels = 3
max_busy = "10 us"
[[range]]
path = "RUN::softmax::*"
max_busy = "1 us"
"""
# What fills a table of each command; those that are missing answer in a few words.
TABLES = {
    "analyze": f"analyze {RUN} --no-charts",
    "analyze, of the host": f"analyze {ROOT}/traces/cpu.pt.trace.json.gz --no-charts",
    "why": f"why {ROOT}/traces/two-processes.sqlite --no-charts",
    "why, verified": f"why {RUN} --verify --no-charts",
    "steps": f"steps {ROOT}/traces/two-processes.sqlite --no-charts",
    "ranges": f"ranges {RUN}",
    "compare": f"compare {RUN} --base RUN::math::* --new RUN::flash::* --all --no-charts",
    "history": f"history {ROOT}/traces --no-charts",
    "forecast": f"forecast {ROOT}/traces/block.sqlite --range RUN::math::S1024/iter* --scale *gemm*=0.5 --no-charts",
    "fleet": f"fleet {ROOT}/docs/gallery/late-rank --workers 1 --no-charts",
    "check": f"check {RUN} budget.toml",
    "bench report": f"bench report {SAMPLES} -o out --no-charts",
    "bench diff": f"bench diff {SAMPLES} {SAMPLES}",
}
RULER = re.compile(r"-+(?:  -+)+$")


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_as_wide_as_the_terminal(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """At 80, 120 and 160 columns no line is longer, and no row is broken; a wider one shows no fewer columns."""
    if table == "fleet":
        pytest.importorskip("distributed")
    (tmp_path / "budget.toml").write_text(BUDGET, encoding="utf-8")
    call, rulers = run, []
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for width in (80, 120, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        done = call(*shlex.split(TABLES[table]), *(["--force"] * ("--no-charts" in TABLES[table])))
        assert done.code == (3 if table == "check" else 0), done.err
        lines = done.out.splitlines()
        long = [line for line in lines if len(line) > width]
        # a command to copy stays on its line, and so does the name of a kernel
        assert [line for line in long if " " in line.strip() and not line.startswith("   $ nsysprof ")] == []
        found = [line for line in lines if RULER.match(line)]
        rulers.append([len(line.split()) for line in found])
        for at, line in enumerate(lines):
            if RULER.match(line) and lines[at + 1 : at + 2]:
                assert len(lines[at + 1]) <= len(line)
    assert sum(rulers[0]) <= sum(rulers[1]) <= sum(rulers[2])
    assert rulers[2] != []
