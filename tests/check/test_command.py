"""`nsysprof check` as a user meets it, on the shipped report: whole outputs, exit codes, drafts, baselines, pytest."""

import hashlib
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.analyze import files as analysis_files
from tests.conftest import MakeTrace
from tests.kit.command_line import Done, Run, known_failure, runner
from tests.kit.reports import broken_down
from tests.kit.trace import Items, Range, launch_kernel

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "traces" / "run.sqlite"

pytestmark = pytest.mark.skipif(not SHIPPED.exists(), reason="traces/run.sqlite is not there")

BUDGET = """\
[[range]]
path = "RUN::math::S4096/iter*"
max_kernels = 19
max_span = "2.9 ms"
forbid = ["softmax", "memcpy"]
math_unit = { family = "gemm", unit = "tensor core", min_share = "95 %" }

[[range]]
path = "RUN::flash::S*/iter*"
stat = "max"
max_kernels = 2
max_busy = "114 us"
backend = "flash"

[[range]]
path = "RUN::flex::*"
max_kernels = 1

[[range]]
path = "RUN::naive::*"
optional = true
max_kernels = 1
"""

TEXT = """\
run.sqlite breaks 5 of 16 limits of budget.toml

range                    limit                          allowed    found    calls  why
-----------------------  ---------------------------  ---------  -------  -------  ---------------------------
RUN::math::S4096/iter*   max_kernels, median                 19       20       40  all 20
RUN::math::S4096/iter*   forbid softmax                       0       40       40  cunn_SoftMaxForwar…g 4 x 40
RUN::math::S4096/iter*   math_unit gemm: tensor core     ≥ 95 %      0 %       40  FP32 FMA: sm80_xmm…fma x 40
RUN::flash::S4096/iter*  max_busy, max                   114 µs   115 µs       40  113 µs to 115 µs
RUN::flex::*             must exist                         ≥ 1        0        0  no range matches
RUN::flex::*: no range matches; there is RUN::flash::S4096, RUN::flash::S2048, RUN::flash::S1024

not tested:
  RUN::naive::*, must exist: no range matches; there is RUN::math::S4096, RUN::math::S2048, RUN::math::S1024

10 limits hold, on 4 ranges. Each limit applies to every call (instance of a range).
"""

MARKDOWN = """\
### ❌ run.sqlite breaks 5 of 16 limits of budget.toml

| range | limit | allowed | found | calls | why |
| --- | --- | ---: | ---: | ---: | --- |
| RUN::math::S4096/iter\\* | max\\_kernels, median | 19 | 20 | 40 | all 20 |
| RUN::math::S4096/iter\\* | forbid softmax | 0 | 40 | 40 | cunn\\_SoftMaxForwardReg SoftMaxForwardEpilogue float long 4 x 40 |
| RUN::math::S4096/iter\\* | math\\_unit gemm: tensor core | ≥ 95 % | 0 % | 40 | FP32 FMA: sm80\\_xmma\\_gemm\\_f32f32\\_f32f32\\_f32\\_tn\\_n\\_128x128x8\\_ffma x 40, sm80\\_xmma\\_gemm\\_f32f32\\_f32f32\\_f32\\_nn\\_n\\_128x64x8\\_ffma x 40 |
| RUN::flash::S4096/iter\\* | max\\_busy, max | 114 µs | 115 µs | 40 | 113 µs to 115 µs |
| RUN::flex::\\* | must exist | ≥ 1 | 0 | 0 | no range matches; there is RUN::flash::S4096, RUN::flash::S2048, RUN::flash::S1024 |

- not tested: RUN::naive::\\*, must exist: no range matches; there is RUN::math::S4096, RUN::math::S2048, RUN::math::S1024
- 10 limits hold, on 4 ranges. Each limit applies to every call (instance of a range).
"""  # noqa: E501


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `nsysprof check …` in this process, through `main()`, in the test's own folder."""
    called = runner(tmp_path, capsys, monkeypatch)
    return lambda *arguments, command="check": called(command, *arguments)


@pytest.fixture
def budget(tmp_path: Path) -> Path:
    """A budget that the shipped report breaks in several ways."""
    path = tmp_path / "budget.toml"
    path.write_text(BUDGET, encoding="utf-8")
    return path


def joined(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


def files(folder: Path) -> list[str]:
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def digest(path: Path) -> str:
    """A hash of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def doctored(folder: Path, *changes: str) -> Path:
    """A copy of the shipped report with some rows changed."""
    path = folder / "doctored.sqlite"
    shutil.copy(SHIPPED, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as connection:
        for change in changes:
            assert connection.execute(change).rowcount > 0, change
        connection.commit()
    return path


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
NAMED = "demangledName IN (SELECT id FROM StringIds WHERE value LIKE '%{}%')"
# Ranges of one backend whose kernels take half as long again: the kernels stand in a queue, so their order stays.
LONGER = f"UPDATE {KERNELS} SET end = end + (end - start) / 2 WHERE {NAMED}"
SLOWER = LONGER.format("fmha_cutlassF")


def test_the_whole_output(run: Run, budget: Path) -> None:
    """What broke, what could not be tested and what holds, to the letter; nothing is written."""
    done = run(SHIPPED, budget.name)
    command = f"   $ nsysprof analyze {SHIPPED} --range 'RUN::math::S4096/iter*'\n"
    assert done == Done(3, TEXT + command, "")
    assert files(budget.parent) == ["budget.toml"]


def test_the_whole_markdown(run: Run, budget: Path) -> None:
    """The same as a table for a pull request, to the letter."""
    assert run(SHIPPED, budget.name, "--md") == Done(3, MARKDOWN, "")


def test_the_whole_document(run: Run, budget: Path) -> None:
    """The same as JSON: every limit with its range, in the order of the budget, and no warning lost."""
    done = run(SHIPPED, budget.name, "--json")
    document = json.loads(done.out)
    assert done.code == 3
    assert list(document) == ["schema", "report", "budget", "baseline", "ok", "limits", "warnings", "rows"]
    assert (document["schema"], document["ok"], document["baseline"]) == ("nsysprof-check/1", False, None)
    assert document["limits"] == {"broken": 5, "not_tested": 1, "held": 10}
    assert document["rows"][0] == {
        "range": "RUN::math::S4096/iter*",
        "rule": "max_kernels",
        "stat": "median",
        "bound": "max",
        "allowed": 19,
        "found": 20,
        "unit": "count",
        "ok": False,
        "instances": 40,
        "evidence": "all 20",
        "glob": "RUN::math::S4096/iter*",
    }
    assert [row["ok"] for row in document["rows"]].count(None) == 1
    assert len(document["rows"]) == 16
    span = document["rows"][1]
    assert (span["allowed"], span["unit"], span["ok"]) == (2_900_000, "ns", True)
    merged = broken_down(SHIPPED).merged
    [median] = merged["span_median_ns"][merged["merged_path"] == span["range"]]
    assert span["found"] == median


def test_all_holds(run: Run, budget: Path) -> None:
    """A budget that is kept ends with exit code 0 and a line that says how much was asked."""
    budget.write_text('[[range]]\npath = "RUN::flash::S1024"\nmax_kernels = 80\n', encoding="utf-8")
    assert run(SHIPPED, budget.name) == Done(
        0,
        "run.sqlite meets budget.toml: 1 limit\n\n"
        "1 limit holds, on 1 range. Each limit applies to every call (instance of a range).\n"
        f"   $ nsysprof analyze {SHIPPED}\n",
        "",
    )
    assert run(SHIPPED, budget.name, "--md").out.startswith("### ✅ run.sqlite meets budget.toml: 1 limit\n")


@pytest.mark.parametrize(
    ("kernel", "backends"), [("fmha_cutlassF", ("efficient",)), ("cudnn_generated", ("cudnn", "auto"))]
)
def test_a_draft_holds_and_breaks(kernel: str, backends: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    """A report keeps to its own draft; where kernels take longer, the limits on their ranges break, and no others."""
    drafted = run("--init", SHIPPED)
    assert drafted == Done(
        0, f"   $ nsysprof check {SHIPPED} budget.toml\n", "Written to budget.toml: limits on 18 ranges\n"
    )
    assert files(tmp_path) == ["budget.toml"]
    kept = run(SHIPPED, "budget.toml")
    assert (kept.code, kept.err) == (0, "")
    assert kept.out.startswith("run.sqlite meets budget.toml: 116 limits\n\n116 limits hold, on 18 ranges.")
    broken = run(doctored(tmp_path, LONGER.format(kernel)), "budget.toml", "--json")
    assert broken.code == 3
    rows = [row for row in json.loads(broken.out)["rows"] if not row["ok"]]
    assert {row["rule"] for row in rows} == {"max_busy"}  # nothing else ends later
    assert {row["range"] for row in rows} == {
        f"RUN::{backend}::S{size}/iter*" for backend in backends for size in (1024, 2048, 4096)
    }


def test_a_draft_of_several_reports_is_kept_by_all(run: Run, tmp_path: Path) -> None:
    """Counts and times are the largest of all of them, and the file says of how many; nothing is looser otherwise."""
    slower = doctored(tmp_path, LONGER.format("fmha_cutlassF"))
    assert run("--init", SHIPPED, "-o", "one.toml").code == 0
    assert run("--init", SHIPPED, "--baseline", slower, "-o", "all.toml").code == 0
    assert run(slower, "one.toml").code == 3
    for report in (slower, SHIPPED):
        assert run(report, "all.toml").code == 0
    one, both = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one.toml", "all.toml"))
    assert "# Drafted from 2 reports of NVIDIA H200: counts" in both
    tables = zip(one.split("\n\n")[1:], both.split("\n\n")[1:], strict=True)
    changed = [table for table, other in tables if table != other]
    assert len(changed) == 3
    assert all("RUN::efficient::" in table for table in changed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--skip", "3"), "warm-up instances left out: 54 (--skip 3)"),
        (("--instance", "0-19"), "only these instances of each range: instances 0-19 (--instance)"),
        (("--no-merge",), "max_step, median: step times need at least three calls"),
        (("--instance", "40"), "no range has instance 40 (instances are counted from 0)"),
    ],
)
def test_which_instances_are_checked(options: tuple[str, ...], said: str, run: Run) -> None:
    """All but warm-up, some only, or each by itself, whatever the budget says."""
    run("--init", SHIPPED)
    done = run(SHIPPED, "budget.toml", *options)
    assert said in done.out + done.err
    assert done.code == (1 if "40" in options else 0)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--instance", "9-3"), "'9-3' is not an instance number or a span of instance numbers"),
        (("--instance", "1", "--skip", "1"), "give either --skip or --instance, not both"),
        (("--init", "--skip", "1"), "--init takes only a report"),
    ],
)
def test_instances_that_mean_nothing_are_refused(options: tuple[str, ...], hint: str, run: Run) -> None:
    """Before anything is read."""
    done = run(SHIPPED, *(() if "--init" in options else ("budget.toml",)), *options)
    assert done.code in (1, 2)
    assert hint in " ".join(done.err.split())


def test_a_draft_sees_what_else_changes(run: Run, tmp_path: Path) -> None:
    """Another backend and more kernels than before break what the draft says of them."""
    run("--init", SHIPPED)
    swap = (
        f"UPDATE {KERNELS} SET demangledName = (SELECT id FROM StringIds WHERE value LIKE 'fmha_cutlassF%' LIMIT 1)"
        f" WHERE {NAMED.format('flash_fwd_kernel')}"
    )
    done = run(doctored(tmp_path, swap), "budget.toml", "--json")
    rows = [row for row in json.loads(done.out)["rows"] if not row["ok"]]
    assert done.code == 3
    assert {(row["rule"], row["allowed"]) for row in rows} == {("backend", "flash")}
    assert {row["range"].split("::")[1] for row in rows} == {"flash"}


def test_a_draft_is_stable_and_never_lost(run: Run, tmp_path: Path) -> None:
    """The same report gives the same bytes; what is there is replaced only with --force."""
    for name in ("a.toml", "b.toml"):
        assert run("--init", SHIPPED, "-o", name).code == 0
    assert digest(tmp_path / "a.toml") == digest(tmp_path / "b.toml")
    text = (tmp_path / "a.toml").read_text(encoding="utf-8")
    paths = re.findall(r'^path = "(.*)"$', text, re.M)
    assert paths == sorted(paths)
    assert str(SHIPPED.parent) not in text
    (tmp_path / "a.toml").write_text("mine", encoding="utf-8")
    message = known_failure(run("--init", SHIPPED, "-o", "a.toml"))
    assert "a.toml: exists already, not overwritten" in message
    assert (tmp_path / "a.toml").read_text(encoding="utf-8") == "mine"
    assert run("--init", SHIPPED, "-o", "a.toml", "--force").code == 0
    assert digest(tmp_path / "a.toml") == digest(tmp_path / "b.toml")
    assert files(tmp_path) == ["a.toml", "b.toml"]


def test_the_next_command_has_the_rules_of_the_draft(run: Run, tmp_path: Path) -> None:
    """A backend that only those rules tell would break the draft without them."""
    (tmp_path / "my rules.toml").write_text(
        '[[rule]]\nname = "mine"\nmatch = "flash_fwd_kernel"\nfamily = "attention"\nattention_backend = "cudnn"\n',
        encoding="utf-8",
    )
    done = run("--init", SHIPPED, "--rules", "my rules.toml")
    words = shlex.split(done.out)[1:]
    assert words == ["nsysprof", "check", str(SHIPPED), "budget.toml", "--rules", "my rules.toml"]
    assert run(*words[2:]).code == 0
    assert run(SHIPPED, "budget.toml").code == 3
    done = run("--init", SHIPPED, "-o", "b.toml", "--nsys", tmp_path)
    assert shlex.split(done.out)[5:] == ["--nsys", str(tmp_path)]


def test_a_draft_never_replaces_the_report(run: Run, tmp_path: Path) -> None:
    """Not even with --force; nor is a folder made that is not there."""
    report = doctored(tmp_path, SLOWER)
    before = digest(report)
    known_failure(run("--init", report, "-o", report.name, "--force"))
    assert digest(report) == before
    assert "nowhere" in known_failure(run("--init", report, "-o", "nowhere/budget.toml"))
    assert files(tmp_path) == [report.name]


GROWTH = '[[range]]\npath = "RUN::*/iter*"\nmax_growth = { busy = "10 %", span = "10 %" }\n'


def test_growth_against_an_earlier_report(run: Run, budget: Path) -> None:
    """The ranges whose kernels take half as long again break, those that stayed hold; being faster is no fault."""
    budget.write_text(GROWTH, encoding="utf-8")
    slower = doctored(budget.parent, SLOWER)
    done = run(slower, budget.name, "--baseline", SHIPPED, "--json")
    rows = [row for row in json.loads(done.out)["rows"] if row["ok"] is False]
    assert done.code == 3
    assert {row["range"] for row in rows} == {f"RUN::efficient::S{size}/iter*" for size in (1024, 2048, 4096)}
    assert all(0.4 < row["found"] < 0.6 and "slower" in row["evidence"] for row in rows)
    back = run(SHIPPED, budget.name, "--baseline", slower)
    assert back.code == 0
    assert f"baseline: {slower}" in joined(back.out)


@pytest.mark.parametrize("small", [1_000_000, 0], ids=["plain", "compressed"])
def test_growth_against_an_earlier_analysis(
    small: int, run: Run, budget: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of an analysis serves as well as the report it is of, with and without `instances.csv`."""
    monkeypatch.setattr(analysis_files, "TABLES", small)
    monkeypatch.setattr(analysis_files, "MAX_PART", 5)
    budget.write_text(GROWTH, encoding="utf-8")
    folder = budget.parent / "run.analysis"
    assert run(SHIPPED, "--no-charts", "--instances", command="analyze").code == 0
    slower = doctored(budget.parent, SLOWER)

    def rows(base: Path) -> list[dict[str, object]]:
        done = run(slower, budget.name, "--baseline", base, "--json")
        assert done.code == 3
        return [dict(row) for row in json.loads(done.out)["rows"]]

    wanted = rows(SHIPPED)
    assert rows(folder) == wanted
    assert rows(folder / "analysis.json") == wanted
    (folder / f"instances.csv{'' if small else '.gz'}").unlink()
    assert rows(folder) == wanted  # `iter0`, `iter1`, … are ranges of a single instance each


def test_growth_against_an_analysis_with_long_tables(run: Run, budget: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges that `analysis.json` leaves out are read from `ranges.csv`, which must be of the same analysis."""
    budget.write_text(GROWTH, encoding="utf-8")
    folder = budget.parent / "run.analysis"
    slower = doctored(budget.parent, SLOWER)
    wanted = run(slower, budget.name, "--baseline", SHIPPED, "--json").out
    monkeypatch.setattr(analysis_files, "MAX_ROWS", 5)
    assert run(SHIPPED, "--no-charts", command="analyze").code == 0
    for name in (None, "instances.csv"):
        if name:
            (folder / name).unlink()
        done = run(slower, budget.name, "--baseline", folder, "--json")
        assert (done.code, json.loads(done.out)["rows"]) == (3, json.loads(wanted)["rows"])
    table = (folder / "ranges.csv").read_text(encoding="utf-8").splitlines()
    (folder / "ranges.csv").write_text("\n".join(table[:-1]) + "\n", encoding="utf-8")
    message = known_failure(run(slower, budget.name, "--baseline", folder))
    assert "ranges.csv and analysis.json in the same folder are from different analyses" in message
    (folder / "ranges.csv").unlink()
    message = known_failure(run(slower, budget.name, "--baseline", folder))
    assert "ranges.csv, which analysis.json refers to, cannot be read" in message


def test_an_analysis_of_medians_alone(run: Run, trace: MakeTrace, budget: Path) -> None:
    """Where single calls are not told, nothing can be tested, and it says what would help."""
    items: list[Items] = []
    for number in range(30):
        at = 1_000 * number
        items += [
            Range("step", at, at + 900),
            launch_kernel("gemm", (at + 1, at + 2), (at + 10, at + 50 + number % 3), id=number + 1),
        ]
    report = trace(*items, duration=100_000)
    budget.write_text('[[range]]\npath = "step"\nmax_growth = { span = "5 %" }\n', encoding="utf-8")
    assert run(report, "--no-charts", command="analyze").code == 0
    folder = budget.parent / "report.analysis"
    kept = run(report, budget.name, "--baseline", folder)
    assert (kept.code, "1 limit holds" in kept.out) == (0, True)
    table = (folder / "instances.csv").read_text(encoding="utf-8").splitlines()
    (folder / "instances.csv").write_text("\n".join(table[:-1]) + "\n", encoding="utf-8")
    done = run(report, budget.name, "--baseline", folder)
    assert done.code == 0
    assert "but 1 of " in done.out
    assert "step, max_growth span, median: the baseline has no per-call times: give the report itself" in joined(
        done.out
    )
    assert "instances.csv is not used, because analysis.json in the same folder" in joined(done.out)
    (folder / "instances.csv").write_bytes(b"\xff\xfe,\n1")
    assert "instances.csv is not used: " in joined(run(report, budget.name, "--baseline", folder).out)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "No such file"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "(analysis of nsysprof), not None"),
        (b'{"schema": "nsysprof-doctor/1"}', "(analysis of nsysprof), not "),
        (b'{"schema": "nsysprof-analysis/1"}', "'report' is missing"),
        (b'{"schema": "nsysprof-analysis/1", "report": {"gpus": []}, "ranges": []}', "was written with threads = None"),
        (b"OPTIONS", "'report' is missing"),
        (b'OPTIONS, "report": {"gpus": []}, "ranges": [{"merged_path": "a"}]', "ranges[0]: 'kind' is missing"),
        (b'OPTIONS, "report": {"gpus": [7]}, "ranges": []', "report.gpus[0]: expected object, got int"),
        (b'OPTIONS, "report": {"gpus": []}, "ranges": [1, 2]', "ranges[0]: expected object, got int"),
    ],
)
def test_a_hostile_baseline(run: Run, budget: Path, content: bytes | None, word: str) -> None:
    """What is no analysis is refused in one line, whatever it holds."""
    budget.write_text(GROWTH, encoding="utf-8")
    head = (
        b'{"schema": "nsysprof-analysis/1", "options":'
        b' {"threads": "follow", "by": null, "skip": 0, "merge": ["iter*", "step*"]}'
    )
    if content is not None:
        if content.startswith(b"OPTIONS"):
            content = content.replace(b"OPTIONS", head) + b"}"
        budget.with_name("analysis.json").write_bytes(content)
    message = known_failure(run(SHIPPED, budget.name, "--baseline", "analysis.json"))
    assert word in message
    assert "analysis.json" in message


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--skip", "1"], "skip = 1"), (["--threads", "strict"], "threads"), (["--no-merge"], "merge")],
)
def test_an_analysis_that_counts_otherwise(run: Run, budget: Path, options: list[str], word: str) -> None:
    """Calls that were chosen or merged in another way do not compare: the error says what to do."""
    budget.write_text(GROWTH, encoding="utf-8")
    assert run(SHIPPED, "--no-charts", *options, command="analyze").code == 0
    message = known_failure(run(SHIPPED, budget.name, "--baseline", "run.analysis"))
    assert f"was written with {word}" in message
    assert "give the report itself, or: nsysprof analyze REPORT" in message


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "REPORT"),
        (["REPORT"], "a budget is missing"),
        (["REPORT", "budget.toml", "--json", "--md"], "--json or --md"),
        (["REPORT", "budget.toml", "-o", "x"], "-o and --force need --init"),
        (["REPORT", "budget.toml", "--force"], "-o and --force need --init"),
        (["--init", "REPORT", "budget.toml"], "--init takes"),
        (["--init", "REPORT", "--json"], "--init takes"),
        (["REPORT", "budget.toml", "more"], "more"),
        (["--baseline"], "--baseline"),
    ],
)
def test_wrong_usage(run: Run, budget: Path, arguments: list[str], word: str) -> None:
    """A usage error names what is wrong: exit code 2, nothing on stdout, nothing written."""
    done = run(*[SHIPPED if argument == "REPORT" else argument for argument in arguments])
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert "Traceback" not in done.err
    assert files(budget.parent) == ["budget.toml"]


@pytest.mark.parametrize(
    ("text", "arguments", "word"),
    [
        (b'[[range]]\npath = "a\\u001b[2J"\nmax_spam = 1', ("missing.sqlite", "budget.toml"), "unknown key 'max_spam'"),
        (BUDGET.encode(), ("budget.toml", SHIPPED), "hint: nsysprof check REPORT budget.toml"),  # in the wrong order
        (BUDGET.encode(), ("missing.sqlite", "budget.toml"), "missing.sqlite: no such file"),
    ],
)
def test_a_hostile_budget(run: Run, budget: Path, text: bytes, arguments: tuple[str | Path, ...], word: str) -> None:
    """One line says what is wrong with the budget, before the report is even read, or with the report."""
    budget.write_bytes(text)
    message = known_failure(run(*arguments))
    assert word in message
    assert "\x1b" not in message


def test_a_thousand_rules(run: Run, budget: Path) -> None:
    """A budget of a thousand tables, each about eighteen ranges, is checked in seconds."""
    text = "".join(
        f'[[range]]\npath = "RUN::*::S[1-9{chr(0x4E00 + number)}]*/iter*"\nmax_kernels = {number}\n'
        f'forbid_kernels = "k{number}x"\nmax_span = "1 s"\n'
        for number in range(1000)
    )
    budget.write_text(text, encoding="utf-8")
    begin = time.process_time()
    done = run(SHIPPED, budget.name)
    assert time.process_time() - begin < 20
    # three ranges have 20 kernels per call, three 15, one has 2, and the others 1: so many limits are less
    broken = 3 * 20 + 3 * 15 + 2 + 11
    assert done.out.startswith(f"run.sqlite breaks {broken} of 54,000 limits of budget.toml\n")


def test_an_expression_that_never_ends_is_ended(
    run: Run, trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back and forth in the name of a kernel; the line says what to write in its place."""
    monkeypatch.setattr("nsysprof.core.expressions._PATIENCE_S", 0.1)
    report = trace(Range("step", 0, 9), launch_kernel("a" * 200 + "!", (1, 2), (3, 4), id=1))
    (tmp_path / "b.toml").write_text('[[range]]\npath = "*"\nforbid_kernels = ["(a+)+$"]\n', encoding="utf-8")
    done = run(report, "b.toml")
    assert done.code == 1
    assert done.err.startswith("nsysprof: the expressions for kernels take more than 0.1 s of CPU time\n  hint: avoid")


def test_from_pytest(tmp_path: Path, budget: Path) -> None:
    """A test that asserts a budget fails with the table that the command prints."""
    test = tmp_path / "test_budget.py"
    test.write_text(
        "import nsysprof\n\n\ndef test_keeps_to_its_budget():\n"
        f"    nsysprof.check({str(SHIPPED)!r}, 'budget.toml').assert_ok()\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    printed = "\n".join(line.removeprefix("E").removeprefix("           ") for line in done.stdout.splitlines())
    for line in TEXT.splitlines():
        assert line.strip() in printed
    assert "1 failed" in done.stdout
