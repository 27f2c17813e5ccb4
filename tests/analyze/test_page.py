"""The HTML page: its numbers are those of the JSON document, and nothing that a report says becomes markup."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.analyze import page_rows
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.files import write_json
from nsysprof.analyze.page import analysis_page
from nsysprof.analyze.page_rows import report_timeline
from nsysprof.charts.chart import plans_of
from nsysprof.charts.drawing import picture
from nsysprof.compare.comparison import compare
from nsysprof.compare.files import gap_document
from nsysprof.compare.page import comparison_page
from nsysprof.core.intervals import merge
from nsysprof.kernels.classify import FAMILIES
from nsysprof.page.packing import COARSEST, STEP, PageRow, pack, varints
from tests.conftest import MakeTrace
from tests.kit.calls import math_and_flash
from tests.kit.gpu_samples import gpu_samples
from tests.kit.html_page import Element, parse, unpack
from tests.kit.random_reports import random_report
from tests.kit.reports import RUN, attributed, broken_down
from tests.kit.trace import Items, Kernel, Range, allocate, launch_kernel

HOSTILE = (
    *("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "\"' onmouseover=alert(1) x='"),
    *("<!--<script>", "{{ 7 * 7 }}{% raw %}", "]]>&lt;b&gt;\u2028\x00\x1b[31m"),
)


@pytest.fixture(scope="module")
def run_sqlite() -> Breakdown:
    return broken_down(RUN)


@pytest.fixture(scope="module")
def page(run_sqlite: Breakdown) -> Element:
    return parse(analysis_page(run_sqlite))


def document(breakdown: Breakdown, folder: Path) -> dict[str, Any]:
    write_json(breakdown, folder / "analysis.json")
    return json.loads((folder / "analysis.json").read_text())


def rows(table: Element) -> list[Element]:
    return list(table.one("tbody").all("tr"))


def test_totals_and_ledger_are_those_of_the_document(page: Element, run_sqlite: Breakdown, tmp_path: Path) -> None:
    """Every figure at the top, and every row of the ledger, equals analysis.json."""
    read = document(run_sqlite, tmp_path)
    tiles = [each for each in page.all("strong") if "data-key" in each.attributes]
    assert len(tiles) == 6
    for tile in tiles:
        assert int(tile.attributes["data-v"]) == read["totals"][tile.attributes["data-key"]]
    *outcomes, total = rows(page.one("table", id="t-ledger"))
    for row, known in zip(outcomes, read["ledger"], strict=True):
        assert [row.one("th").text, *map(float, row.values)] == [
            known["fate"], known["ops"], known["sum_ns"], known["share"]
        ]  # fmt: skip
    assert list(map(float, total.values)) == [read["totals"]["ops"], read["totals"]["sum_ns"], 1]


def test_every_range_adds_up_to_the_rows_of_the_document(page: Element, run_sqlite: Breakdown, tmp_path: Path) -> None:
    """Each row of the tree is the sum of the paths that were merged into it, and none is missing."""
    wanted: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    names = ("instances", "launches", "kernels", "cpu_ns", "span_ns", "busy_ns", "sum_ns")
    for row in document(run_sqlite, tmp_path)["ranges"]:
        known = wanted[row["merged_path"]]
        known[:] = [value + row[name] for value, name in zip(known, names, strict=True)]
    found = {
        row.attributes["data-path"]: list(map(int, row.values[:7])) for row in rows(page.one("table", id="t-ranges"))
    }
    assert found == dict(wanted)


def test_every_op_row_adds_up_to_the_rows_of_the_document(page: Element, run_sqlite: Breakdown, tmp_path: Path) -> None:
    """Counts and times of a kernel in a range are those of analysis.json; the full name stands in the list of names."""
    read = document(run_sqlite, tmp_path)
    merged = {row["path"]: row["merged_path"] for row in read["ranges"]}
    wanted: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in read["kernels"]:
        known = wanted[merged.get(row["path"], "—"), row["kernel"]]
        known[:] = [known[0] + row["count"], known[1] + row["sum_ns"]]
    names = [each.text for each in page.one("ol", id="op-names").all("li")]
    found = {}
    for each in rows(page.one("table", id="t-ops")):
        path = list(each.all("td"))[2].text
        found[path, names[int(each.attributes["data-n"])]] = list(map(int, each.values[:2]))
    assert found == dict(wanted)


def test_op_rows_show_the_cause_where_it_says_more(trace: MakeTrace) -> None:
    """The finer word stands beside the family, and nothing where it is the family."""
    names = {"vector_fft": "FFT", "implicit_convolve_sgemm": "convolution", "ampere_sgemm_128x64_tn": ""}
    items = [
        launch_kernel(name, (10 * id, 10 * id + 5), (10 * id, 10 * id + 5), id=id) for id, name in enumerate(names, 1)
    ]
    page = parse(analysis_page(broken_down(trace(*items))))
    found = rows(page.one("table", id="t-ops"))
    assert {row.one("th").text: list(row.all("td"))[1].text for row in found} == names


def test_families_add_up_to_all_ops(page: Element, run_sqlite: Breakdown) -> None:
    """The table of families holds every op and every nanosecond."""
    values = [list(map(int, row.values)) for row in rows(page.one("table", id="t-families"))]
    assert [sum(column) for column in zip(*values, strict=True)] == [
        run_sqlite.totals["ops"],
        run_sqlite.totals["sum_ns"],
    ]


def test_the_ledgers_of_a_comparison_are_those_of_its_document(trace: MakeTrace) -> None:
    """Every pair's causes have the nanoseconds of gap.json, base, new and change."""
    comparison = compare(attributed(math_and_flash(trace)), base="RUN::math::*", new="RUN::flash::*")
    read = parse(comparison_page(comparison))
    pairs = gap_document(comparison)["pairs"]
    ledgers = [each for each in read.all("div") if "data-ledger" in each.attributes]
    assert len(ledgers) == len(pairs)
    known = {
        tuple(value for gap in pair["gaps"] for value in (gap["base_ns"], gap["new_ns"], gap["delta_ns"]))
        for pair in pairs
    }
    assert {tuple(map(int, each.values)) for each in ledgers} == known


def test_findings_and_warnings_are_all_there(run_sqlite: Breakdown, page: Element) -> None:
    """The page says what the text says: headline, where a step's time goes, and every warning."""
    assert "the GPU is busy for" in page.one("p", class_="headline").text
    _, *rows = page.one("section", id="summary").all("tr")
    shown = [row.one("th").text for row in rows]
    assert shown == [each.path for each in run_sqlite.diagnosis.times[:3]]
    told = [each.text for each in page.one("section", id="warnings").all("li")]
    for warning in run_sqlite.warnings:
        assert any(warning[:40] in line for line in told)


def test_the_environment_tells_what_the_run_record_says(page: Element) -> None:
    """Beside the facts of the report stands the fingerprint of the record that lies beside it."""
    record = json.loads(RUN.with_suffix(".json").read_text())
    text = page.one("section", id="environment").text
    for fact in (record["environment_hash"], record["environment"]["workload"]["torch"], "NVIDIA H200"):
        assert fact in text


def hostile(trace: MakeTrace) -> Path:
    items: list[Items] = []
    for number, name in enumerate(HOSTILE):
        at = 1000 * number
        items += [
            Range(name, at, at + 900),
            *launch_kernel(f"kernel{name}", (at + 10, at + 20), (at + 30, at + 200), id=number + 1),
        ]
    return trace(*items)


def test_a_name_stays_a_text(trace: MakeTrace) -> None:
    """Names that are markup, attributes, comments or templates add no element and no attribute to the page."""
    plain, odd = analysis_page(broken_down(math_and_flash(trace))), analysis_page(broken_down(hostile(trace)))
    read = parse(odd)
    for name in ("script", "img", "style"):
        assert len(list(read.all(name))) == len(list(parse(plain).all(name)))
    known = {"data-n", "data-row", "data-v", "data-id", "data-parent", "data-path", "data-start", "data-end"}
    for each in read.one("main").every():
        assert not [name for name in each.attributes if name.startswith("on")]
        extra = {name for name in each.attributes if name.startswith("data-")} - known
        assert extra <= {"data-key", "data-timeline", "data-for", "data-search", "data-expand", "data-collapse",
                         "data-count", "data-reset", "data-sort"}  # fmt: skip
    paths = [row.attributes["data-path"] for row in rows(read.one("table", id="t-ranges"))]
    assert paths[0] == "<script>alert(1)<\\/script>"
    assert "{{ 7 * 7 }}{% raw %}" in paths
    assert "\x00" not in odd
    assert "\x1b" not in odd


def test_a_page_asks_for_nothing(trace: MakeTrace) -> None:
    """Every address in a page is a part of itself, and its policy forbids the rest and all scripts but its own."""
    read = parse(analysis_page(broken_down(math_and_flash(trace)), pictures(trace)))
    for each in read.every():
        for name in ("src", "href", "action", "poster", "srcset"):
            address = each.attributes.get(name, "#")
            assert address.startswith(("#", "data:")), address
        assert "url(" not in each.attributes.get("style", "")
    policy = read.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def pictures(trace: MakeTrace) -> list[bytes]:
    return [picture(plan) for plan in plans_of(analysis_charts(), broken_down(math_and_flash(trace)))]


def test_vendored_code_names_its_version_and_licence() -> None:
    """uPlot is shipped as it was published, with its licence, and the page names its version."""
    parts = Path(__file__).parents[2] / "nsysprof" / "page" / "parts"
    version = re.search(r"\(v([\d.]+)\)", (parts / "uPlot.iife.min.js").read_text()[:300])
    assert version
    assert f"uPlot {version[1]}" in (parts / "base.html").read_text()
    assert "MIT" in (parts / "uPlot.LICENSE").read_text()


def test_the_page_of_the_shipped_report_is_below_a_megabyte(run_sqlite: Breakdown) -> None:
    """With all charts in it."""
    text = analysis_page(run_sqlite, [picture(plan) for plan in plans_of(analysis_charts(), run_sqlite)])
    assert len(text.encode()) < 1_000_000


def test_numbers_of_any_size_are_packed() -> None:
    """Varints hold 0 to 2^63 - 1 in as few bytes as each needs."""
    assert varints(np.array([0, 127, 128, 300], np.int64)) == bytes([0, 127, 128, 1, 172, 2])
    assert len(varints(np.array([2**63 - 1], np.int64))) == 9
    assert varints(np.empty(0, np.int64)) == b""


def test_what_is_packed_is_read_back() -> None:
    """Times, columns and facts come out as they went in; of marks that are not kept only their number."""
    start = np.array([5, 5, 900, 10**12], np.int64)
    end = start + np.array([0, 7, 100, 10**10], np.int64)
    kept = np.array([True, False, True, True])
    packed = pack(
        [
            PageRow("g", "all", "ranges", start, end, columns=(np.arange(4),)),
            PageRow("g", "some", "calls", start, end, kept=kept),
        ],
        10**13,
        {"origin": -3, "names": ["</script>"]},
    )
    assert "<" not in packed
    read = unpack(packed)
    assert (read["origin"], read["names"], read["length"]) == (-3, ["</script>"], 10**13)
    every, some = read["rows"]
    assert every["start"].tolist() == start.tolist()
    assert every["end"].tolist() == end.tolist()
    assert every["data"] == [[0, 1, 2, 3]]
    assert (some["of"], some["start"].tolist()) == (4, start[kept].tolist())


def test_levels_say_how_busy_each_column_is() -> None:
    """Each level has the busy part of every column, rounded up, and the family with the most time in it."""
    rng = np.random.default_rng(3)
    count, length = 20_000, 10_000_000
    start = np.sort(rng.integers(0, length - 2_000, count))
    end = start + rng.integers(0, 2_000, count)
    family = rng.integers(0, len(FAMILIES), count).astype(np.uint8)
    [row] = unpack(pack([PageRow("g", "s", "ops", start, end, family=family)], length, {}))["rows"]
    assert row["levels"] == [COARSEST * STEP, COARSEST]
    for busy, longest in row["detail"]:
        columns = len(busy)
        for column in rng.integers(0, columns, 20).tolist():
            low, high = -(-column * length // columns), -(-(column + 1) * length // columns)
            first, last = np.clip(start, low, high), np.clip(end, low, high)
            covered = int(np.subtract(*merge(first, last)[::-1]).sum())
            assert busy[column] == np.ceil(covered / (high - low) * 255)
            per_family = np.bincount(family, last - first, len(FAMILIES))
            assert longest[column] == (per_family.argmax() if covered else 255)


def test_the_timeline_holds_every_op_with_its_range(run_sqlite: Breakdown) -> None:
    """All ops of the shipped report are there, at their time, with the range that owns each."""
    packed, finding, notes = report_timeline(run_sqlite)
    read = unpack(packed)
    trace = run_sqlite.attribution.trace
    assert notes == []
    assert finding.startswith("The GPU is busy for 22 %")
    ops = [row for row in read["rows"] if row["kind"] == "ops"]
    assert sum(row["marks"] for row in ops) == len(trace.ops)
    start = np.sort(np.concatenate([row["start"] for row in ops])) + read["origin"]
    assert (start == np.sort(trace.ops.start)).all()
    owner = np.concatenate([row["data"][1] for row in ops])
    assert (np.sort(owner) == np.sort(run_sqlite.paths.of[run_sqlite.attribution.op_owner] + 1)).all()
    host = [row for row in read["rows"] if row["label"].endswith("NVTX")]
    assert sum(row["marks"] for row in host) == len(trace.ranges)


def test_ranges_that_were_asked_for_are_drawn_however_short(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many ranges the longest of those that count are chosen, not of all."""
    monkeypatch.setattr(page_rows, "MAX_RANGES", 3)
    long = [Range(f"long{n}", 1000 * n, 1000 * n + 900) for n in range(5)]
    short = [Range("short", 10_000 + 100 * n, 10_010 + 100 * n + n) for n in range(5)]
    packed, _, notes = report_timeline(broken_down(trace(*long, *short), select="short"))
    [row] = [row for row in unpack(packed)["rows"] if row["kind"] == "ranges"]
    assert (row["end"] - row["start"]).tolist() == [12, 13, 14]
    assert notes == ["only the longest 3 of 5 ranges are drawn individually"]


def test_an_op_says_how_long_before_it_was_launched(trace: MakeTrace) -> None:
    """One more than that; nothing where its launch began later by the clocks, or is not recorded."""
    items: list[Items] = [
        Range("step", 0, 1000),
        *launch_kernel("k", (100, 110), (150, 160), id=1),
        *launch_kernel("k", (200, 210), (200, 220), id=2),
        *launch_kernel("k", (300, 310), (299, 320), id=3),
        Kernel("k", 400, 410, None),
    ]
    packed, *_ = report_timeline(broken_down(trace(*items)))
    [row] = [row for row in unpack(packed)["rows"] if row["kind"] == "ops"]
    assert row["data"][2] == [51, 1, 0, 0]


def test_without_scripts_pictures_are_promised_only_where_there_are_some(trace: MakeTrace) -> None:
    """With --no-charts there is nothing that shows the same."""
    breakdown = broken_down(math_and_flash(trace))
    for drawn in ([], pictures(trace)):
        said = parse(analysis_page(breakdown, drawn)).one("noscript").text
        assert ("the charts show the same" in said) == bool(drawn)


@pytest.mark.parametrize("seed", range(12))
def test_any_report_makes_a_page(seed: int, trace: MakeTrace) -> None:
    """Of reports by chance a page is made whose timeline holds all ops within its window, lanes in order."""
    breakdown = broken_down(trace(*random_report(seed)))
    parse(analysis_page(breakdown))
    packed, _, notes = report_timeline(breakdown)
    if not packed:
        return
    read = unpack(packed)
    ops = sum(row["of"] for row in read["rows"] if row["kind"] == "ops")
    assert ops == len(breakdown.attribution.trace.ops) or any("more stream" in note for note in notes)
    for row in read["rows"]:
        assert (row["end"] <= read["length"]).all()
        if row["kind"] == "ranges":
            assert (row["start"][1:] >= row["end"][:-1]).all()


def test_a_report_without_gpu_work_makes_a_page(trace: MakeTrace) -> None:
    """Also a report with nothing but ranges, and one that says nothing of any range."""
    ranges = parse(analysis_page(broken_down(trace(Range("step", 0, 100)))))
    assert len(rows(ranges.one("table", id="t-ranges"))) == 1
    none = parse(analysis_page(broken_down(trace(*launch_kernel("gemm", (1, 2), (3, 9), id=1)))))
    assert not list(none.all("table", id="t-ranges"))
    assert len(rows(none.one("table", id="t-ops"))) == 1


def test_rows_split_by_device_say_which(trace: MakeTrace) -> None:
    """With `by` the tree has a column for it."""
    read = parse(analysis_page(broken_down(math_and_flash(trace), by="device")))
    heads = [each.text for each in read.one("table", id="t-ranges").one("thead").all("th")]
    assert heads[:2] == ["range", "device"]


@pytest.mark.parametrize("most", [20_000, 3])
def test_memory_is_a_row_of_steps(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """From each change to the next; in columns, each with the most in it, where there are too many."""
    monkeypatch.setattr(page_rows, "MAX_STEPS", most)
    path = trace(
        launch_kernel("k", (0, 1), (0, 10), id=1),
        allocate(9, 0xA, 64, id=2),
        allocate(19, 0xB, 8, id=3),
        allocate(21, 0xB, 0, id=4, free=True),
        allocate(49, 0xA, 0, id=5, free=True),
        launch_kernel("k", (60, 61), (62, 90), id=6),
    )
    packed, _, _ = report_timeline(broken_down(path))
    [row] = [row for row in unpack(packed)["rows"] if row["kind"] == "memory"]
    steps = list(zip(row["start"], row["end"], row["data"][0], strict=True))
    assert row["label"] == "GPU 0 · memory"
    if most > 4:
        assert steps == [(10, 20, 64), (20, 22, 72), (22, 50, 64), (50, 90, 0)]
    else:
        assert steps == [(0, 30, 72), (30, 60, 64), (60, 90, 0)]


@pytest.mark.parametrize("most", [20_000, 8])
def test_sampled_metrics_are_rows(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """SMs and DRAM, reads and writes together, in percent; in columns, each the mean of its samples, if too many."""
    monkeypatch.setattr(page_rows, "MAX_STEPS", most)
    values = {"sm_active": [0, 20, 40, 60, 101, 80, 80, 80, 80, 80], "dram_read": [30] * 10, "dram_write": [5] * 10}
    path = trace(launch_kernel("k", (0, 1), (0, 1_000_000), id=1), gpu_samples(values))
    packed, _, _ = report_timeline(broken_down(path))
    rows = [row for row in unpack(packed)["rows"] if row["kind"] == "metric"]
    assert [row["label"] for row in rows] == ["GPU 0 · SM active", "GPU 0 · DRAM"]
    assert set(rows[1]["data"][0]) == {35}
    if most > 10:
        assert list(rows[0]["data"][0]) == [0, 20, 40, 60, 80, 80, 80, 80, 80]
        assert rows[0]["start"][4] == 500_000  # nothing is drawn where a value is out of range
    else:
        assert list(rows[0]["start"]) == [0, 500_000]
        assert list(rows[0]["data"][0]) == [30, 80]


def test_pages_of_reports_without_gpu_work_show_cpu_time(trace: MakeTrace) -> None:
    """Ranges have columns of CPU time, the longest first; sections and tiles of GPU work are left out."""
    path = trace(Range("short", 0, 100), Range("long", 200, 900), Range("inner", 300, 500), duration=1_000_000)
    page = analysis_page(broken_down(path))
    for gone in ("t-ledger", "t-families", "busy/span", "sum of GPU ops", "its GPU ops below"):
        assert gone not in page
    assert re.findall(r'data-path="([^"]*)"', page) == ["long", "long/inner", "short"]
    assert re.findall(r'<th scope="col" class="n" data-sort="number">([^<]*)</th>', page) == [
        *("instances", "CPU", "share", "itself", "each", "min", "max")
    ]
    assert "No range has GPU work." in page
