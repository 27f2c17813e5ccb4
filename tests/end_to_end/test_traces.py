"""The folder `traces`: its reports are what its README and their records say, hold nothing private, and analyze."""

import hashlib
import json
import re
import shlex
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nsysprof.analyze.analyze import break_down
from nsysprof.capture.text import difference_lines
from nsysprof.formats.run_record import record_beside
from nsysprof.kernels.backends import judge_backends
from nsysprof.summaries.every import FILES as SUMMARY_FILES
from nsysprof.trace.report import open_report
from tests.kit.command_line import Run
from tests.kit.reports import BLOCK, TRACES, TWO, attributed, broken_down

README = (TRACES / "README.md").read_text(encoding="utf-8")
NAMES = ("run", "block", "two-processes")
every = pytest.mark.parametrize("name", NAMES)
UNRECORDED = {
    "collectives.csv",
    "backward.csv",
    "memory.csv",
    "gpu_metrics.csv",
    "unified.csv",
    "unified_kernels.csv",
}  # of which these reports hold nothing
FILES = ["analysis.json", "instances.csv", "kernels.csv", "ranges.csv", *(set(SUMMARY_FILES) - UNRECORDED)]
CHARTS = ["kernel_breakdown.png", "kernel_counts.png", "timeline.png"]
DESTROYED = "NVTX function nvtxDomainDestroy was called with wrong domain ID argument."
# What a run of `nsysprof analyze` says of each: warnings, the line of totals, the ledger.
SAID = {
    "run": (
        [f"nsys warning: {DESTROYED}"],
        "7,655 kernels, 701 memory operations: sum 475 ms; the GPU is busy for 22 % of the 2.13 s from the first",
        ["own thread 8,356 475 ms 100 %", "total 8,356 475 ms 100 %"],
    ),
    "block": (
        [
            f"nsys warning: {DESTROYED}",
            "GPU ops of worker threads, attributed to the only range open on another thread: 1,965"
            " (39 % of GPU op time); see --threads",
        ],
        "3,737 kernels, 207 memory operations: sum 50.2 ms; the GPU is busy for 1.4 % of the 3.49 s from the first",
        ["own thread 1,979 30.9 ms 61 %", "followed 1,965 19.3 ms 39 %", "total 3,944 50.2 ms 100 %"],
    ),
    "two-processes": (
        [f"nsys warning: {DESTROYED} (2 times)"],
        "417 kernels, 31 memory operations: sum 13.0 ms; the GPU is busy for 3.5 % of the 367 ms from the first",
        ["own thread 448 13.0 ms 100 %", "total 448 13.0 ms 100 %"],
    ),
}
# `nsys stats --report nvtx_gpu_proj_sum --format csv` (2025.3.1, on the machine of the capture): by name of a range
# "Range Instances", which has those with GPU work, "Total Range Time (ns)", "Total Proj Time (ns)", "Total GPU Ops".
NSYS_BLOCK = {
    "CHECK::math::S1024": (1, 3_041_034_503, 2_912_429_651, 141),
    "attention": (127, 277_956_146, 253_878_161, 1_018),
    "REFERENCE::S1024": (1, 129_080_496, 126_617_095, 24),
    "CHECK::cudnn::S1024": (1, 99_569_977, 99_229_060, 100),
    "forward": (123, 43_797_240, 39_350_447, 1_517),
    "WARMUP::math::S1024": (1, 36_577_581, 36_194_320, 546),
    "RUN::math::S1024": (1, 34_072_760, 33_926_317, 520),
    "WARMUP::cudnn::S1024": (1, 23_000_320, 22_697_406, 147),
    "RUN::cudnn::S1024": (1, 22_741_594, 22_619_390, 140),
    "WARMUP::flash::S1024": (1, 22_041_997, 21_758_396, 147),
    "RUN::flash::S1024": (1, 20_093_431, 19_938_811, 140),
    "CHECK::flash::S1024": (1, 14_815_785, 14_510_644, 98),
    "iter0": (3, 3_911_260, 3_579_205, 40),
    "iter13": (3, 3_133_582, 2_849_508, 40),
    "iter15": (3, 4_546_104, 4_184_741, 40),
    "memory": (3, 3_436_178, 3_183_332, 40),
    "optimizer": (123, 16_464_187, 1_435_652, 123),
}
NSYS_TWO = {
    "CHECK::math::S1024": (1, 547_754_572, 323_199_229, 55),
    "CHECK::flash::S2048": (1, 487_271_403, 232_533_386, 57),
    "REFERENCE::S2048": (1, 143_838_503, 137_733_136, 36),
    "REFERENCE::S1024": (1, 93_417_332, 88_679_826, 15),
    "RUN::math::S1024": (1, 2_700_430, 2_654_308, 200),
    "WARMUP::math::S1024": (1, 2_514_607, 2_297_347, 120),
    "WARMUP::flash::S2048": (1, 856_778, 451_329, 6),
    "RUN::flash::S2048": (1, 476_575, 428_033, 10),
    "iter0": (2, 348_139, 382_497, 21),
    "iter9": (2, 293_342, 288_512, 21),
    "memory": (2, 282_065, 358_176, 21),
}
OPS = " UNION ALL ".join(
    f"SELECT start, end, globalPid, correlationId, {int(table == 'KERNEL')} AS kernel FROM CUPTI_ACTIVITY_KIND_{table}"
    for table in ("KERNEL", "MEMCPY", "MEMSET")
)
# Ranges with their names; the calls that launched something, with what they launched, joined within their process.
COMMON = f"""
    WITH ops AS ({OPS}),
    named AS (SELECT n.start, n.end, n.globalTid, coalesce(n.text, s.value) AS name
              FROM NVTX_EVENTS AS n LEFT JOIN StringIds AS s ON s.id = n.textId WHERE n.eventType = 59),
    launched AS (SELECT r.start, r.end, r.globalTid, ops.start AS op_start, ops.end AS op_end, ops.kernel
                 FROM ops JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
                 ON r.correlationId = ops.correlationId AND r.globalTid & -16777216 = ops.globalPid)
"""


@lru_cache
def record(name: str) -> dict[str, Any]:
    return dict(json.loads((TRACES / f"{name}.json").read_text(encoding="utf-8")))


def ask(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def by_name(instances: pd.DataFrame, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """What `NSYS_BLOCK` holds, from our instances."""
    worked = instances[instances["launches"] > 0]
    last = worked["path"].str.rsplit("/", n=1).str[-1]
    found = {}
    for name in names:
        mine = worked[last == name]
        sums = (mine["end_ns"] - mine["start_ns"]).sum(), mine["span_ns"].sum(), mine["launches"].sum()
        found[name] = (len(mine), *map(int, sums))
    return found


@every
def test_checksums_are_those_of_the_files(name: str) -> None:
    """The README's list and the record beside it have the checksum of each report, and its size is a small one."""
    content = (TRACES / f"{name}.sqlite").read_bytes()
    found = hashlib.sha256(content).hexdigest()
    assert re.findall(rf"^(\S+)  {name}\.sqlite$", README, re.M) == [found]
    expected = {"size_bytes": len(content), "sha256": found, "scrubbed": True}
    assert record(name)["report"]["sqlite"] == expected
    assert len(content) < 6_000_000


def test_every_report_is_described() -> None:
    """Each report has its record beside it, which is found there, and its section in the README."""
    for name in NAMES:
        assert record_beside(TRACES / f"{name}.sqlite") == TRACES / f"{name}.json"
    assert re.findall(r"^## (\S+)$", README, re.M) == [f"{name}.sqlite" for name in NAMES]


@every
def test_nothing_private_is_in_the_files(name: str) -> None:
    """No folder of a user or of the work, no address, no variable of an environment, in report and record."""
    private = (
        rb"(?<![\w\]])/(home|root|Users|tmp|mnt|srv|media|work\w*)\b",
        rb"(?<![\d.])\d{1,3}(\.\d{1,3}){3}(?![\d.])",
        rb"\b(PATH|HOME|USER|LOGNAME|PWD|HOSTNAME|SHELL|LANG|LD_\w+|SSH_\w+|\w*(TOKEN|SECRET|PASSWORD|KEY))=",
        rb"[\w.]+@[\w.]+\.\w+",
    )
    for ending in (".sqlite", ".json"):
        content = (TRACES / f"{name}{ending}").read_bytes()
        found = [match[0] for pattern in private for match in re.finditer(pattern, content)]
        assert found == [], ending
    kept = "META_DATA_CAPTURE WHERE name IN ('PROCESS_0:USER_NAME', 'PROCESS_0:WORKING_DIR')"
    kept = f"SELECT name FROM {kept} OR name LIKE '%ENVIRONMENT%' OR name LIKE '%ARGUMENT%'"
    assert ask(TRACES / f"{name}.sqlite", kept) == []
    processes = ask(TRACES / f"{name}.sqlite", "SELECT name, count(*) FROM PROCESSES GROUP BY name")
    assert processes == [("python3", 2 if name == "two-processes" else 1)]


def tables_of(name: str) -> list[dict[str, str]]:
    """The rows of the README's table of measured ranges of a report, by head."""
    section = README[README.index(f"\n## {name}.sqlite") :].split("\n## ")[1]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


@every
def test_the_tables_of_ranges_are_true(name: str) -> None:
    """What ran, what the program measured of itself and what the rows say, of every measured range."""
    kept, path = record(name), TRACES / f"{name}.sqlite"
    merged = broken_down(path).merged
    ran = {row["range"]: row["observed"] for row in kept["backends"]}
    told = tables_of(name)
    assert sorted(row["range"].strip("`") for row in told) == sorted(ran)
    for row in told:
        title = row["range"].strip("`")
        [mine] = merged[merged["name"] == title].to_dict("records")
        heads = {"CPU time, ns": "cpu_ns", "span, ns": "span_ns", "busy, ns": "busy_ns"}
        heads |= {"kernels": "kernels", "launches": "launches"}
        expected = {"range": f"`{title}`", "ran": ran[title]}
        expected |= {head: f"{mine[column]:,}" for head, column in heads.items()}
        if kept["overhead"]:
            [cost] = [cost for cost in kept["overhead"]["ranges"] if cost["range"] == title]
            [run] = [run for run in kept["workload"]["runs"] if run["range"] == title]
            assert cost["profiled_median_ns"] == pytest.approx(np.median(run["latency_ns"]), abs=1)
            expected["µs without nsys"] = f"{cost['plain_median_ns'] / 1e3:,.1f}"
            expected["µs under nsys"] = f"{cost['profiled_median_ns'] / 1e3:,.1f}"
            expected["temporary, MiB"] = f"{run['memory']['temporary_bytes'] / 2**20:,.1f}"
        assert row == expected


@every
def test_the_table_of_reports_is_true(name: str) -> None:
    """Kernels, copies and sets, host calls and ranges, as SQL counts them."""
    counts = "SELECT (SELECT count(*) FROM ops WHERE kernel), (SELECT count(*) FROM ops WHERE NOT kernel),"
    counts += " (SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME), (SELECT count(*) FROM named)"
    [found] = ask(TRACES / f"{name}.sqlite", COMMON + counts)
    cells = " | ".join(f"{count:,}" for count in found)
    assert f"| `{name}.sqlite` | {cells} |" in README


@every
def test_the_commands_are_those_that_were_run(name: str) -> None:
    """The command of the README is the one that `make.sh` runs and the one of the record, but for the folder."""
    section = README[README.index(f"\n## {name}.sqlite") :]
    shown = section.split("```")[1].removeprefix("sh\n").strip()
    script = re.sub(r'"\$out/([\w-]+)"', r"\1", (TRACES / "make.sh").read_text(encoding="utf-8"))
    assert f"\n{shown}\n" in script
    assert shlex.split(shown.replace("\\\n", "")) == shlex.split(record(name)["command"].replace(" traces/made/", " "))


def test_the_machine_is_that_of_the_records() -> None:
    """Versions, GPU and date of the README are in each record."""
    head = README[: README.index("\n## ")]
    for name in NAMES:
        kept = record(name)
        there = kept["environment"]
        [gpu] = there["gpus"]
        assert kept["started"].startswith("2026-11-20T12:0")
        words = ["2026-11-20, 12:00 UTC", gpu["name"], there["driver"], f"CUDA {there['driver_cuda']}"]
        words += [f"{there['cpu_count']} cores", f"Python {there['python']}", there["nsys"]]
        words.append(there["os"].removesuffix(" LTS"))
        if there["workload"]:
            workload = there["workload"]
            major, minor = divmod(workload["cudnn"], 10_000)
            words += [f"PyTorch {workload['torch']}", f"nvtx {workload['nvtx']}"]
            words.append(f"cuDNN {major}.{minor // 100}.{minor % 100}")
        with open_report(TRACES / f"{name}.sqlite") as report:
            words += [str(report.about.nsys_version), f"schema {report.about.schema_version}"]
        assert [word for word in words if word not in head] == []


@every
def test_analyze_from_end_to_end(name: str, tmp_path: Path, run: Run) -> None:
    """The command ends well, says what is expected and no more, and leaves tables that add up and pictures."""
    done = run("analyze", TRACES / f"{name}.sqlite", "--full")
    assert done.code == 0
    folder = tmp_path / f"{name}.analysis"
    written = ", ".join(sorted(path.name.removesuffix(".gz") for path in folder.iterdir()))
    assert written == ", ".join(sorted([*FILES, *CHARTS]))
    assert re.fullmatch(rf"\nWritten to {name}\.analysis/: [^\n]*\n", done.err)
    warnings, totals, ledger = SAID[name]
    printed = done.out.split("\n\n")
    unwrapped = re.sub(r"\n {2,}", " ", done.out)
    assert re.findall(r"^note: (.*)$", unwrapped, re.M) == warnings
    assert f"\n{totals}" in unwrapped
    [rows] = [block.splitlines()[2:] for block in printed if block.startswith("launched from")]
    assert [" ".join(line.split()) for line in rows] == ledger
    document = json.loads((folder / "analysis.json").read_text(encoding="utf-8"))
    kernels, ranges = (pd.read_csv(*folder.glob(f"{table}.csv*")) for table in ("kernels", "ranges"))
    of_rows = ask(TRACES / f"{name}.sqlite", f"SELECT count(*), sum(end - start) FROM ({OPS})")[0]
    assert (int(kernels["count"].sum()), int(kernels["sum_ns"].sum())) == of_rows
    owned = [row["sum_ns"] for row in document["ledger"] if row["fate"] in ("own thread", "followed")]
    assert int(ranges["exclusive_sum_ns"].sum()) == sum(owned)
    for chart in CHARTS:
        with Image.open(folder / chart) as image:
            pixels = np.asarray(image.convert("RGB"))
        assert pixels.shape[1] == 1920
        assert pixels.shape[0] >= 400
        assert 0.02 < (pixels < 250).any(axis=2).mean() < 0.6
        assert len(np.unique(pixels @ np.array([65_536, 256, 1]))) > 20  # colours


@every
def test_the_verdict_on_backends_is_the_recorded_one(name: str) -> None:
    """What the kernels say now is what the capture recorded: each ran what was asked for, `auto` cuDNN."""
    verdict = judge_backends(attributed(TRACES / f"{name}.sqlite"))
    assert (difference_lines(verdict), verdict.warnings) == ([], ())

    def judged(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        columns = ("range", "requested", "observed", "agrees", "instances", "kernels", "evidence")
        return sorted(tuple(row[column] for column in columns) for row in rows)

    assert judged(verdict.records()) == judged(record(name)["backends"])
    ran = {row["requested"]: row["observed"] for row in verdict.records()}
    assert {asked: backend for asked, backend in ran.items() if asked != backend} == (
        {"math_reduced": "math", "auto": "cudnn"} if name == "run" else {}
    )


@every
def test_every_kernel_has_a_family(name: str) -> None:
    """No kernel of forward, backward, optimizer, checks or reference is one that the rules do not know."""
    kernels = broken_down(TRACES / f"{name}.sqlite").kernels
    assert kernels[kernels["family"] == "other"]["kernel"].tolist() == []


def test_backward_is_launched_by_another_thread() -> None:
    """By SQL: all that was launched while a `backward` was open came from a thread that has no range of its own."""
    inside = f"""{COMMON} SELECT named.name, sum(launched.globalTid = named.globalTid),
        sum(launched.globalTid <> named.globalTid), count(DISTINCT launched.globalTid), sum(kernel)
        FROM named JOIN launched ON launched.start >= named.start AND launched.end <= named.end
        WHERE named.name IN ('forward', 'backward', 'optimizer') GROUP BY named.name"""
    assert ask(BLOCK, inside) == [
        ("backward", 0, 1_886, 1, 1_845),
        ("forward", 1_517, 0, 1, 1_476),
        ("optimizer", 123, 0, 1, 123),
    ]
    threads = f"""{COMMON} SELECT value, count(*), sum(op_end - op_start),
        launched.globalTid IN (SELECT globalTid FROM NVTX_EVENTS)
        FROM launched JOIN ThreadNames AS t ON t.globalTid = launched.globalTid JOIN StringIds ON id = nameId
        GROUP BY launched.globalTid ORDER BY value"""
    helper, main = ask(BLOCK, threads)
    ledger = {row["fate"]: (row["ops"], row["sum_ns"]) for row in broken_down(BLOCK).ledger.to_dict("records")}
    assert (main[0], main[3], helper[0], helper[3]) == ("python3", 1, "pt_autograd_0", 0)
    assert (ledger["own thread"], ledger["followed"]) == (main[1:3], helper[1:3])
    assert (main[1], helper[1]) == (1_979, 1_965)


def test_backward_owns_what_the_other_thread_launched() -> None:
    """Followed work belongs to the range that waits for it, and comes on top of what strict rules give."""
    inside = f"""{COMMON} SELECT count(*), sum(kernel), sum(op_end - op_start) FROM named JOIN launched
        ON launched.start >= named.start AND launched.end <= named.end AND name = 'backward'"""
    [(launches, kernels, ns)] = ask(BLOCK, inside)
    found, strict = (
        frame[frame["path"].str.endswith("/backward")]
        for frame in (broken_down(BLOCK).ranges, broken_down(BLOCK, "strict").ranges)
    )
    for column, expected in (("launches", launches), ("kernels", kernels), ("sum_ns", ns)):
        assert int(found[column].sum()) == expected
        assert int(strict[column].sum()) == 0
    assert found["followed_sum_ns"].tolist() == found["sum_ns"].tolist()
    assert (strict["instances"].sum(), found["instances"].sum()) == (123, 123)


def test_strict_is_what_nsys_projects() -> None:
    """Where helper threads do not follow, instances, CPU time, span and launches are nsys's, name by name."""
    assert by_name(broken_down(BLOCK, "strict").instances, NSYS_BLOCK) == NSYS_BLOCK
    outside = broken_down(BLOCK, "strict").ledger.set_index("fate")["ops"]
    assert outside[outside > 0].to_dict() == {"own thread": 1_979, "outside every range": 1_965}


def test_correlation_ids_of_the_processes_collide() -> None:
    """By SQL: joined on the correlation id alone, ops would find calls of the other process, which ran meanwhile."""
    alone = """SELECT sum(r.globalTid & -16777216 = ops.globalPid), sum(r.globalTid & -16777216 <> ops.globalPid),
        count(DISTINCT CASE WHEN r.globalTid & -16777216 <> ops.globalPid THEN ops.start END)
        FROM ops JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r USING (correlationId)"""
    assert ask(TWO, f"WITH ops AS ({OPS}) {alone}") == [(448, 51, 51)]
    both = """SELECT count(*) FROM (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY correlationId
        HAVING count(DISTINCT globalTid & -16777216) = 2)"""
    assert ask(TWO, both) == [(915,)]
    times = ask(TWO, "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY globalPid")
    assert max(start for start, _ in times) < min(end for _, end in times)


def test_ranges_get_the_work_of_their_own_process() -> None:
    """Each outermost range's ops, kernels and time are those that SQL finds in its own process."""
    inside = f"""{COMMON} SELECT name, named.globalTid >> 24 & 16777215, count(*), sum(kernel), sum(op_end - op_start)
        FROM named JOIN launched ON launched.globalTid = named.globalTid
        AND launched.start >= named.start AND launched.end <= named.end WHERE name LIKE '%::%' GROUP BY name"""
    expected = {name: values for name, *values in ask(TWO, inside)}
    merged = break_down(attributed(TWO), by="process").merged
    merged = merged[merged["name"].isin(list(expected))]
    columns = merged.assign(ops=merged["kernels"] + merged["memops"])
    rows = columns[["name", "process", "ops", "kernels", "sum_ns"]].to_numpy().tolist()
    assert {name: values for name, *values in rows} == expected
    assert len(rows) == len(expected) == 8
    processes = {name.split("::")[1]: values[0] for name, values in expected.items() if "REF" not in name}
    assert processes == {"math": 835, "flash": 836}


def test_both_processes_are_as_nsys_projects_them() -> None:
    """Instances, CPU time, span and launches by name of a range are nsys's."""
    assert by_name(broken_down(TWO).instances, NSYS_TWO) == NSYS_TWO
    kernels = broken_down(TWO).kernels
    flash = kernels[kernels["kernel"].str.contains("flash_fwd")]
    assert set(flash["path"].str.split("::").str[1]) == {"flash"}
