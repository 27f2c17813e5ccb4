"""The page of a fleet: its numbers are those of the answer, and nothing that reports say becomes markup."""

from dataclasses import replace
from pathlib import Path

import pytest

from nsysprof.charts.chart import pictures_of
from nsysprof.fleet.answer import Fleet, fleet_answer
from nsysprof.fleet.charts import FLEET_CHARTS
from nsysprof.fleet.examine import ReportFailure
from nsysprof.fleet.page import MAX_ITERATION_ROWS, MAX_RANK_COLUMNS, fleet_page
from nsysprof.formats.rank_answer import WHOLE, ReportAnswer
from tests.analyze.test_page import HOSTILE
from tests.conftest import MakeTrace
from tests.fleet.test_parts import examined, ranked, step, steps
from tests.kit.html_page import Element, parse
from tests.kit.trace import launch_kernel

TWO = Path(__file__).parents[2] / "analysis" / "two-ranks"
SLOW, COUNT = 1, 12


@pytest.fixture
def answers(trace: MakeTrace) -> list[ReportAnswer]:
    """Three ranks of 12 steps: rank 1 computes for 300 ns, the others for 200 ns and wait 100 ns for it."""
    found = []
    for rank in range(3):
        slow = rank == SLOW
        items = steps(COUNT, compute=300 if slow else 200, waits=50 if slow else 150)
        found.append(ranked(f"job/rank_{rank}.sqlite", rank, examined(trace(*items))))
    return found


@pytest.fixture(scope="module")
def two() -> Fleet:
    """The fleet of the study."""
    return fleet_answer([ranked(f"rank_{at}", at, examined(TWO / f"rank_{at}.sqlite")) for at in range(2)])


def body(page: Element, table: str) -> list[Element]:
    return list(page.one("table", id=f"t-{table}").one("tbody").all("tr"))


def test_the_tables_hold_the_numbers_of_the_answer(two: Fleet) -> None:
    """Ranks, iterations and ranges against ranks, each with the exact number behind the text."""
    page = parse(fleet_page(two))
    rows = [[float(value) for value in row.values] for row in body(page, "ranks")]
    ranks = two.ranks
    assert [row[0] for row in rows] == ranks["rank"].tolist()
    assert [row[1] for row in rows] == ranks["span_median_ns"].tolist()
    assert [row[2] for row in rows] == ranks["own_median_ns"].tolist()
    assert [row[4] for row in rows] == ranks["times_slowest"].tolist()
    assert [row[10] for row in rows] == ranks["caused_ns"].tolist()
    waits = ranks["waiting_ns"] / ranks["collective_ns"]
    assert [row[9] for row in rows] == pytest.approx(waits.tolist(), rel=1e-5)
    mine = two.iterations[two.iterations["path"] == "step*"]
    found = body(page, "iterations")
    assert [next(row.all("th")).text for row in found] == mine["iteration"].tolist()
    for at, name in ((1, "own_median_ns"), (2, "own_iqr_ns"), (3, "own_min_ns"), (4, "own_max_ns")):
        assert [float(row.values[at]) for row in found] == mine[name].tolist()
    backward = next(row for row in body(page, "ranges") if row.attributes["data-path"] == "step*/backward")
    known = two.paths[two.paths["path"] == "step*/backward"]["relative"].tolist()
    assert [float(value) for value in backward.values[-2:]] == pytest.approx(known, rel=1e-5)


def test_all_findings_are_on_the_page(answers: list[ReportAnswer]) -> None:
    """Findings, warnings, unreadable reports with reason and hint, and how the ranks were numbered."""
    failure = ReportFailure("job/rank_3.sqlite", "job/rank_3.sqlite: empty file", "ls job")
    fleet = replace(fleet_answer([*answers, failure]), warnings=("clocks differ",))
    page = parse(fleet_page(fleet))
    summary = page.one("section", id="summary")
    shown = [summary.one("p", class_="headline").text, *(each.text for each in summary.all("li"))]
    assert shown == list(fleet.findings)
    assert [each.text for each in page.one("section", id="warnings").all("li")] == ["clocks differ"]
    unreadable = page.one("section", id="unreadable")
    assert unreadable.one("h2").text == "1 unreadable report"
    assert unreadable.one("li").text == "job/rank_3.sqlite: empty file (ls job)"
    assert "the run record beside each report" in page.one("section", id="environment").text
    assert [each.text for each in page.one("table", id="t-ranks").all("strong")] == [f"{SLOW} !"]
    assert "job/rank_2.sqlite" in body(page, "identity")[2].text


def test_hostile_names_stay_text(answers: list[ReportAnswer]) -> None:
    """Reports, hosts, processes, ranges, iterations, reasons and warnings that are markup add no element."""
    fleet = fleet_answer(answers)
    plain = parse(fleet_page(replace(fleet, failures=(ReportFailure("a", "b", "c"),) * 6, warnings=("w",) * 6)))
    ranks, iterations = fleet.ranks.copy(), fleet.iterations.copy()
    for at, name in enumerate(("report", "host", "process", "gpu_name", "nsys_version")):
        ranks[name] = [HOSTILE[(at + row) % len(HOSTILE)] for row in range(len(ranks))]
    iterations["iteration"] = [HOSTILE[row % len(HOSTILE)] for row in range(len(iterations))]
    named = {"step*": "step*", "step*/forward": f"step*/{HOSTILE[0]}{HOSTILE[2]}"}
    paths, spread = fleet.paths.replace({"path": named}), fleet.spread.replace({"path": named})
    odd = fleet_page(
        replace(
            fleet,
            ranks=ranks,
            iterations=iterations,
            paths=paths,
            spread=spread,
            findings=HOSTILE,
            warnings=HOSTILE,
            failures=tuple(ReportFailure(name, name, name) for name in HOSTILE),
            options={HOSTILE[0]: [HOSTILE[1]], "per": HOSTILE[2]},
        )
    )
    read = parse(odd)
    for name in ("script", "img", "style", "b"):
        assert len(list(read.all(name))) == len(list(plain.all(name))), name
    known = {"data-path", "data-v", "data-for", "data-search", "data-count", "data-sort"}
    for each in read.one("main").every():
        assert not [name for name in each.attributes if name.startswith("on")]
        assert {name for name in each.attributes if name.startswith("data-")} <= known
        assert each.attributes.get("style", "background:#").startswith("background:#")
    assert "<script>alert(1)</script>" in body(read, "identity")[0].text
    assert "{{ 7 * 7 }}{% raw %}" in read.text
    assert "\x00" not in odd
    assert "\x1b" not in odd


def test_the_page_of_the_study_is_small_with_both_charts(two: Fleet, tmp_path: Path) -> None:
    """Far below a megabyte, and every address in it is a part of itself."""
    pictures = list(pictures_of(FLEET_CHARTS, two).values())
    text = fleet_page(two, pictures)
    assert len(text.encode()) < 500_000
    page = parse(text)
    assert len(list(page.all("img"))) == len(FLEET_CHARTS)
    for each in page.every():
        for name in ("src", "href"):
            assert each.attributes.get(name, "#").startswith(("#", "data:"))


def test_many_ranks_and_iterations_are_bounded(trace: MakeTrace) -> None:
    """All 200 ranks have a row; ranges have the slowest only, iterations the uneven ones, and notes say so."""
    count = MAX_ITERATION_ROWS + 20
    fast, slow = (examined(trace(*steps(count, compute=compute))) for compute in (200, 300))
    fleet = fleet_answer([ranked(f"job/node/rank_{at}.sqlite", at, slow if at == 150 else fast) for at in range(200)])
    text = fleet_page(fleet)
    page = parse(text)
    assert len(text.encode()) < 1_000_000
    assert len(body(page, "ranks")) == len(body(page, "identity")) == 200
    heads = [each.text for each in page.one("table", id="t-ranges").one("thead").all("th")]
    columns = [head for head in heads if head.startswith("rank ")]
    assert len(columns) == MAX_RANK_COLUMNS
    assert "rank 150" in columns
    assert f"The {MAX_RANK_COLUMNS} slowest of 200 ranks" in page.one("section", id="ranges").text
    assert len(body(page, "iterations")) == MAX_ITERATION_ROWS
    assert (
        f"The {MAX_ITERATION_ROWS} of {count} iterations with the largest" in page.one("section", id="iterations").text
    )


def test_whole_reports_and_a_single_rank_have_a_page(trace: MakeTrace) -> None:
    """Without iterations there is no table of them, and with one rank nothing is compared with others."""
    idle = [item for at in range(2) for item in step(at, begin=1000 * at, compute=200, waits=60)]
    alone = fleet_answer([ranked("a", 0, examined(trace(*idle)))])
    assert "t-ranges" not in fleet_page(alone).split("<script>")[0]
    plain = [examined(trace(launch_kernel("k", (0, 5), (10, 50 + 9 * at), id=1))) for at in range(2)]
    whole = fleet_answer([ranked(f"{at}", at, each) for at, each in enumerate(plain)])
    assert whole.iteration_path == WHOLE
    page = parse(fleet_page(whole))
    assert not list(page.all("table", id="t-iterations"))
    assert len(body(page, "ranks")) == 2
