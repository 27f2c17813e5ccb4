"""`--html` on the command line: a page beside the other files, named at the end, and never a stale one."""

import json
import re
from pathlib import Path
from shutil import copyfile

import pytest

from nsysprof.formats.run_record import RUN_SCHEMA
from nsysprof.page.environment import report_facts
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.calls import math_and_flash
from tests.kit.command_line import Run
from tests.kit.html_page import parse
from tests.kit.kineto import annotation, write_trace
from tests.kit.reports import BLOCK

COMMANDS = {
    "analyze": ["analyze", "{report}"],
    "compare": ["compare", "{report}", "--base", "RUN::math::S8", "--new", "RUN::flash::S8"],
    "why": ["why", "{report}"],
}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, trace: MakeTrace) -> list[str]:
    """Either command on a tiny report, without charts."""
    report = str(math_and_flash(trace))
    return [each.format(report=report) for each in COMMANDS[request.param]] + ["--no-charts"]


def test_the_page_is_one_of_the_files(command: list[str], run: Run, tmp_path: Path) -> None:
    """With --html there is a page, with --no-charts without pictures, and the last line names it."""
    done = run(*command, "--html", "-o", str(tmp_path / "out"))
    assert done.code == 0
    assert "report.html" in done.err.splitlines()[-1]
    page = parse((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert not list(page.all("img"))
    assert len(list(page.all("figure", class_="timeline"))) == 1


@pytest.mark.parametrize(
    ("command", "section"), [("steps", "paths"), ("forecast --scale *gemm*=0.5", "parts"), ("why", "rows")]
)
def test_answers_share_their_page(command: str, section: str, run: Run, tmp_path: Path) -> None:
    """Summary, tables and environment; no head of a table is empty, and only `why` carries the timeline's code."""
    typed = [*command.split(), BLOCK, "--no-charts", "--html", "-o", "out"]
    assert run(*typed, *(["--range", "RUN::math::S1024/iter*"] * ("forecast" in command))).code == 0
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page, name = parse(text), command.split(maxsplit=1)[0]
    assert f"{name}.json" in page.one("footer").text
    for part in ("summary", section, "environment"):
        assert page.one("section", id=part).text.strip()
    assert len(list(next(iter(page.one("section", id=section).all("table"))).all("tr"))) > 1
    assert [head for head in page.all("th") if not head.text.strip()] == []
    assert ("uPlot" in text) == (name == "why")


def test_an_earlier_page_does_not_stay(command: list[str], run: Run, tmp_path: Path) -> None:
    """Without --html there is no page, and that of an earlier run of the same report goes, which is said."""
    out = tmp_path / "out"
    run(*command, "--html", "-o", str(out))
    done = run(*command, "-o", str(out))
    assert done.code == 0
    assert "removed files of an earlier" in done.err
    assert "report.html" in done.err.splitlines()[-1]
    assert not (out / "report.html").exists()


def test_commands_in_one_folder_leave_each_others_pages(run: Run, tmp_path: Path, trace: MakeTrace) -> None:
    """The page of another command is like anybody's file: it goes for --html with --force only."""
    report, out, page = str(math_and_flash(trace)), str(tmp_path / "out"), tmp_path / "out" / "report.html"
    analyze, compare = (
        [*(each.format(report=report) for each in COMMANDS[name]), "--no-charts", "-o", out]
        for name in ("analyze", "compare")
    )
    for first, second in ((analyze, compare), (compare, analyze)):
        for command in (analyze, compare):
            assert run(*command).code == 0
        assert run(*first, "--html", "--force").code == 0
        text = page.read_text()
        done = run(*second)
        assert (done.code, "removed" in done.err) == (0, False)
        refused = run(*second, "--html")
        assert refused.code == 1
        assert "out holds report.html, not written by " in refused.err
        assert page.read_text() == text
        assert run(*second, "--html", "--force").code == 0
        assert page.read_text() != text
        assert run(*second, "--html").code == 0
        assert "removed files of an earlier" in run(*second).err
        assert not page.exists()


def test_the_page_shows_the_record_that_was_used(run: Run, tmp_path: Path) -> None:
    """Of `--record`, of either report its own, and not that of a file that lies beside the report."""
    source = Path(__file__).parents[2] / "traces" / "run.sqlite"
    record = json.loads(source.with_suffix(".json").read_text())
    for name in ("beside", "base", "new"):
        text = json.dumps({**record, "environment_hash": f"hash-{name}"})
        (tmp_path / f"{name}.json").write_text(text)
    copyfile(source, tmp_path / "beside.sqlite")
    command = ["compare", "beside.sqlite", "--base", "RUN::math::*4096", "--new", "RUN::flash::*4096"]
    both = ["compare", "beside.sqlite", "beside.sqlite", "--range", "RUN::math::*4096"]
    for arguments, shown in (
        (command, ["beside"]),
        ([*command, "--record", "base.json"], ["base"]),
        ([*both, "--record", "base.json", "--record", "new.json"], ["base", "new"]),
        ([*both, "--record", "base.json"], ["base", "beside"]),
    ):
        assert run(*arguments, "--html", "--no-charts", "--force", "-o", "out").code == 0
        page = parse((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
        text = page.one("section", id="environment").text
        assert re.findall("hash-([a-z]+)", text) == shown


def test_facts_that_a_machine_without_a_gpu_lacks_are_not_listed(tmp_path: Path) -> None:
    """A trace of torch.profiler has the record of its name, of which empty parts are left out."""
    path = write_trace(tmp_path / "run.json.gz", [annotation("step", 0, 90)], deviceProperties=[])
    empty = {"gpu_state": {"before": [], "after": []}, "environment": {"gpus": [], "cpu": "EPYC"}}
    (tmp_path / "run.json").write_text(json.dumps({"schema": RUN_SCHEMA, "name": "run", **empty}))
    with open_report(path) as report:
        groups = dict(report_facts(report, "follow"))
    assert list(groups) == ["Report", "Run record", "Environment"]
    assert groups["Environment"] == [("cpu", "EPYC")]
