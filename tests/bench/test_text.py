"""What a benchmark prints and reports: the tables, the sentences, and how they treat what is missing."""

import re
from pathlib import Path
from typing import Any

import pytest

from nsysprof.bench.charts import BENCH_CHARTS
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import BenchResults
from nsysprof.bench.text import bench_summary
from nsysprof.bench.titles import (
    latency_title,
    memory_title,
    roofline_title,
    speedup_title,
    throughput_title,
    violin_title,
)
from nsysprof.bench.words import plus_minus, tflops_text
from tests.kit.bench_samples import made_up, merged, point_of, results_of
from tests.kit.figures import texts

ALL = ("math", "naive", "flash", "efficient", "cudnn", "auto")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """The preset math-vs-flash."""
    return results_of(tmp_path_factory.mktemp("two"), made_up())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> BenchResults:
    """Six backends over S and over batches."""
    data = merged(
        made_up(ALL, (128, 512, 1024, 2048), samples=40, name="many"), made_up(ALL, (512,), batch=16, samples=40)
    )
    return results_of(tmp_path_factory.mktemp("many"), data)


SUMMARY = """\
math-vs-flash · attention forward (B1 H8 D64 fp16 causal) · NVIDIA H200 · 100 samples each · within this run
  cold L2 cache, CUDA events; ±: 95 % interval of the median within this run

shape  backend  latency      ±    graph  TFLOP/s  of peak  vs math  detectable      peak  matrices  error
-----  -------  -------  -----  -------  -------  -------  -------  ----------  --------  --------  -----
S1024  math      194 µs  0.2 %   194 µs     5.53    0.5 %                        100 MiB      6.25  2e-04
       flash    9.76 µs  0.2 %  7.75 µs      110     10 %    19.9x       2.0 %  4.03 MiB      0.25  2e-04
S2048  math      758 µs  0.2 %   758 µs     5.67    0.5 %                        392 MiB      6.13  2e-04
       flash    17.0 µs  0.4 %  16.0 µs      253     24 %    44.6x       2.0 %  8.06 MiB      0.13  2e-04
S4096  math     3.01 ms  0.3 %  3.02 ms     5.71    0.5 %                       1.52 GiB      6.06  2e-04
       flash    49.9 µs  0.3 %  49.0 µs      344     32 %    60.3x       2.0 %  16.1 MiB      0.06  2e-04

shape  fastest  beats                      without launches
-----  -------  -------------------------  ----------------
S1024  flash    math by 19.9x (19.8–20.0)  flash
S2048  flash    math by 44.6x (44.4–44.8)  flash
S4096  flash    math by 60.3x (60.0–60.5)  flash

flash beats math at every S (19.9x at S=1024, 60.3x at S=4096)
temporary memory grows as S²: math S^2.00
temporary memory grows as S: flash S^1.00
launch overhead: 21 % of a call of flash at S1024; flash is 19.9x as fast as math including launches, 25.0x
  excluding them, at S1024
limits: 3 shapes compute-bound by 1.18x to 4.70x; first: arithmetic of flash at S4096 (33 % of peak, 32.9 µs
  above the lower bound)
A/A: compared with themselves, 0 of 6 differ; 1 in 20 expected by chance
(1.01x): no clear change; 1.3x ?: too few samples; detectable: smallest difference found with 80 % power. of
  peak: peak = SMs × sampled clock × FLOPs/clock/SM. matrices: peak memory in score matrices of the dtype.
  error: relative error against float64.
"""


def test_the_summary_is_whole(two: BenchResults) -> None:
    """Word for word."""
    assert bench_summary(two) == SUMMARY


def test_summaries_fit_a_terminal(two: BenchResults, many: BenchResults, mixed: BenchResults) -> None:
    """110 columns, warnings and sentences included."""
    for results in (two, many, mixed):
        assert max(map(len, bench_summary(results).splitlines())) <= 110


def test_no_clear_change_is_in_brackets_and_few_samples_are_questioned(tmp_path: Path) -> None:
    """A ratio is never shown as a difference that it is not."""
    data = made_up(("math", "flash"), (2048,), samples=30)
    math = point_of(data, "math", 2048)
    point_of(data, "flash", 2048)["latency_ns"] = [value * 1.005 for value in math["latency_ns"]]
    assert "(1.00x)" in bench_summary(results_of(tmp_path, data))
    few = results_of(tmp_path / "few", made_up(samples=4))
    assert "x ?" in bench_summary(few)
    assert "too few samples to tell" in bench_report(few)


def test_what_was_not_measured_stays_in_the_table(mixed: BenchResults) -> None:
    """Out of memory in its row, and with PyTorch's reason in the report."""
    summary = bench_summary(mixed)
    assert "naive    out of memory" in summary
    assert "| S32768 fp32 | naive | out of memory | Tried to allocate more than there is. |" in bench_report(mixed)


def test_a_refused_share_is_not_shown(tmp_path: Path) -> None:
    """Neither in the table nor in the report nor in the chart, nor are its TFLOP/s; the warning names it."""
    data = made_up(("math", "flash"), (4096,), samples=20)
    point = point_of(data, "flash", 4096)
    point["latency_ns"] = [value / 12 for value in point["latency_ns"]]
    results = results_of(tmp_path, data)
    summary = bench_summary(results)
    (row,) = [line for line in summary.splitlines() if line.lstrip().startswith("flash  ")]
    assert "refused" in row
    assert "386 % of the peak is impossible; the likely error is in the timer" in " ".join(summary.split())
    assert "| refused |" in bench_report(results)
    impossible = tflops_text(results.results["tflops"].max())
    throughput = next(chart for chart in BENCH_CHARTS if chart.file == "throughput.png")
    drawn = " ".join(" ".join(texts(throughput.figure(results))).split())
    for shown in (summary, bench_report(results), drawn):
        assert impossible not in shown.replace("386 %", "")
    assert "Left out: 1 of 2 points, because they exceed the peak" in drawn
    assert throughput_title(results).startswith("math reaches ")
    for each in data["points"]:
        each["latency_ns"] = [20.0] * 20
    none = results_of(tmp_path / "none", data)
    assert throughput_title(none) == "No throughput is shown: all values exceed the peak, so they must be wrong"
    assert throughput.figure(none)


def test_a_refused_share_without_launches_is_no_headline(tmp_path: Path) -> None:
    """The share with launches, which is none of that, stays in the table; no point of it is in the roofline."""
    data = made_up(("math", "flash"), (2048, 4096), samples=20)
    point = point_of(data, "flash", 4096)
    point["graph_latency_ns"] = [value / 12 for value in point["graph_latency_ns"]]
    results = results_of(tmp_path, data)
    assert "refused" not in bench_summary(results)
    assert "| refused |" not in bench_report(results)
    assert any("FLOP/s of the graph: " in line for line in results.warnings)
    assert roofline_title(results).startswith("flash reaches 25 % of the FLOP/s at S=2048")
    roofline = next(chart for chart in BENCH_CHARTS if chart.file == "roofline.png")
    drawn = " ".join(" ".join(texts(roofline.figure(results))).split())
    assert "Left out: 1 of 4 points, because they exceed the peak" in drawn
    for each in data["points"]:
        each["graph_latency_ns"] = [20.0] * 20
    every = results_of(tmp_path / "every", data)
    assert roofline_title(every) == "No roofline is shown: all values exceed the peak, so they must be wrong"
    assert roofline.figure(every)


def test_few_samples_are_never_reported_as_a_finding(tmp_path: Path) -> None:
    """Neither an interval nor equality, with others or with themselves, is read from three samples."""
    results = results_of(tmp_path, made_up(("math", "flash", "auto"), samples=3))
    summary = bench_summary(results)
    assert "flash and math: too few samples to tell at S=4096" in " ".join(summary.split())
    assert "too few samples to tell at all 3 shapes" in summary
    for wrong in ("no clear difference", "A/A", " beats ", "0.1 %"):
        assert wrong not in summary
    assert "±" not in bench_report(results).split("## How it was measured")[0]
    assert violin_title(results).endswith("(median coefficient of variation)")


def test_titles_claim_no_more_than_their_table(tmp_path: Path) -> None:
    """Where the table puts a speed-up in brackets or questions it, no title calls it one."""
    data = made_up(("math", "flash"), (2048, 4096), samples=30)
    for seq in (2048, 4096):
        math = point_of(data, "math", seq)["latency_ns"]
        # spread so widely, in no order, that 30 samples do not tell their median from another
        point_of(data, "flash", seq)["latency_ns"] = [
            value * (1.5 - 1.2 * abs((at * 7 % 30) / 15 - 1)) for at, value in enumerate(math)
        ]
    unclear = results_of(tmp_path / "unclear", data)
    assert set(unclear.comparisons["verdict"][unclear.comparisons["kind"] == "eager"]) == {"no clear change"}
    assert "no clear difference from math at S=4096" in latency_title(unclear) or latency_title(unclear).startswith(
        "math or flash is fastest"
    )
    assert "no clear difference from math" in speedup_title(unclear)
    for title in (latency_title(unclear), speedup_title(unclear)):
        assert "x as fast as math" not in title
    few = results_of(tmp_path / "few", made_up(("math", "flash"), samples=4))
    assert latency_title(few).startswith("flash or math is fastest")
    assert "x as fast as math at S=4096, with too few samples for a verdict" in latency_title(few)
    assert "x as fast as math at S=4096, with too few samples for a verdict" in speedup_title(few)
    assert "flash or math" in bench_summary(few)


def test_an_end_of_a_sweep_without_a_clear_difference_is_none(tmp_path: Path) -> None:
    """flash beats math at the largest S; at the smallest they are alike, whatever the ratio of their medians."""
    data = made_up(("math", "flash"), (1024, 4096), samples=30)
    math = point_of(data, "math", 1024)["latency_ns"]
    point_of(data, "flash", 1024)["latency_ns"] = [value * 1.004 for value in math]
    title = speedup_title(results_of(tmp_path, data))
    assert title.startswith("flash over math: no clear difference at S=1024, ")
    assert title.endswith("x at S=4096")


def test_titles_name_the_sweep_among_several(tmp_path: Path) -> None:
    """S=4096 alone would be one of two shapes."""
    names = ("math", "flash")
    several = results_of(tmp_path, merged(*(made_up(names, samples=20, batch=batch) for batch in (1, 2))))
    for title in (latency_title, speedup_title):
        assert title(several).endswith(" D64 causal]"), title(several)
        assert "[" not in title(results_of(tmp_path / "one", made_up(names, samples=20)))


def test_an_interval_wider_than_the_median_shows_no_digits() -> None:
    """Three runs that disagree reach anywhere: how far, by the digit, is no information."""
    row = {"n": 100, "interval": "runs", "median_ns": 100.0, "low_ns": 40.0, "high_ns": 241.0}
    assert plus_minus(row) == "± >100 %"
    assert plus_minus({**row, "high_ns": 240.0}) == "± 100 %"
    assert plus_minus({**row, "high_ns": 140.0}) == "± 50 %"


def test_few_samples_show_how_far_they_reach(tmp_path: Path) -> None:
    """From the least to the most below ten, and no half of an interval; from ten on the interval."""
    for samples, few in ((8, True), (10, False)):
        results = results_of(tmp_path / str(samples), made_up(("math", "flash"), (2048,), samples=samples))
        summary = bench_summary(results)
        assert ("or (minimum–maximum) of fewer than 10" in " ".join(summary.split())) == few
        assert ("–" in summary.split("fastest")[0].split("shape", 1)[1]) == few


def test_a_graph_that_drifts_is_warned_of(tmp_path: Path) -> None:
    """As a call that does."""
    data = made_up(("math", "flash"), (2048,), samples=60)
    point = point_of(data, "flash", 2048)
    point["graph_latency_ns"] = [value * (1 + at / 60) for at, value in enumerate(point["graph_latency_ns"])]
    assert any("flash at" in line and ", graph drifts: " in line for line in results_of(tmp_path, data).warnings)


@pytest.mark.parametrize(("axis", "values"), [("batch", (8, 16, 32)), ("heads", (4, 8)), ("head_dim", (32, 64))])
def test_titles_name_the_size_that_varies(tmp_path: Path, axis: str, values: tuple[int, ...]) -> None:
    """Over batches, heads or their size, S stands still and says nothing."""
    sizes: list[dict[str, Any]] = [{axis: value} for value in values]
    data = merged(*(made_up(("math", "flash"), (512,), samples=20, **size) for size in sizes))
    results = results_of(tmp_path, data)
    short = {"batch": "B", "heads": "H", "head_dim": "D"}[axis]
    for title in (latency_title, memory_title, throughput_title, speedup_title, roofline_title):
        assert "S=" not in title(results)
        assert f" {short}=" in title(results), title


def test_mixed_dtypes_are_taken_apart(mixed: BenchResults) -> None:
    """Total = by the dtype × by the algorithm."""
    report = bench_report(mixed)
    assert "## What mixed dtypes hide" in report
    row = next(line for line in report.splitlines() if line.startswith("| S16384 | naive fp32 → flash fp16"))
    total, precision, algorithm = (float(cell.split("x")[0]) for cell in row.split("|")[3:6])
    assert total == pytest.approx(precision * algorithm, rel=0.01)
    assert "mixed dtypes: flash fp16 is" in bench_summary(mixed)


def test_a_dtype_that_does_little_is_no_finding(tmp_path: Path) -> None:
    """Where the base is about as fast in both, all is of the algorithm, as the comparisons say."""
    dtypes = {"fp32": ("naive",), "fp16": ("naive", "flash")}
    for factor, said in ((1.05, False), (1.5, True)):
        data = made_up(dtypes=dtypes, seqs=(1024,), workload="transformer_block", samples=20)
        slow, fast = (each for each in data["points"] if each["backend"] == "naive")
        for field in ("latency_ns", "graph_latency_ns"):
            slow[field] = [factor * value for value in fast[field]]
        assert ("mixed dtypes: flash" in bench_summary(results_of(tmp_path, data))) == said


SECTIONS = [
    "Findings", "Charts", "B1 H8 D64 causal", "S512 H8 D64 causal", "Which backend at which shape",
    "What limits each shape", "PyTorch's own choice", "From shape to shape", "How calls are spread",
    "Do the outputs agree", "Growth with S", "Comparisons",
    "How it was measured", "Environment", "How to repeat it",
]  # fmt: skip


def test_the_report_has_its_sections(many: BenchResults) -> None:
    """In order, with the warnings between them where there are some."""
    report = bench_report(many, BENCH_CHARTS[:1])
    found = [line[3:] for line in report.splitlines() if line.startswith("## ")]
    assert [name for name in found if name != "Warnings"] == SECTIONS
    assert "![latency](latency.png)" in report
    assert "| torch | 2.11.0+cu130 |" in report
    assert "```sh\nnsysprof bench --preset many\n```" in report


def test_the_report_has_speedup_and_memory_columns(two: BenchResults) -> None:
    """Speed-up with its interval, and how much less memory than the baseline."""
    lines = bench_report(two).splitlines()
    (head,) = [line for line in lines if line.startswith("| S | backend")]
    (row,) = [line for line in lines if line.startswith("| S4096 | flash | 49")]
    cells = dict(
        zip((cell.strip() for cell in head.split("|")), (cell.strip() for cell in row.split("|")), strict=True)
    )
    assert head == (
        "| S | backend | latency | speed-up over math | detectable | graph | speed-up, graph | TFLOP/s | of peak |"
        " GB/s |"
        " of bandwidth | peak memory | of it temporary | score matrices | memory reduction |"
    )
    assert cells["speed-up over math"] == "60.3x (60.0–60.5)"
    assert cells["memory reduction"] == "96.3x"
    assert cells["score matrices"] == "0.06"
    assert cells["of peak"] == "32 %"


def test_every_table_of_the_report_is_rectangular(many: BenchResults, mixed: BenchResults) -> None:
    """As many cells in each row as in the head, whatever is missing."""
    for results in (many, mixed):
        widths: set[int] = set()
        for line in [*bench_report(results).splitlines(), ""]:
            if line.startswith("|"):
                widths.add(line.count("|") - line.count("\\|"))
            else:
                assert len(widths) <= 1
                widths.clear()


def test_auto_that_is_slower_is_reported(many: BenchResults) -> None:
    """Where, how much at worst, and which backend would be better; and what it is without launches."""
    summary = " ".join(bench_summary(many).split())
    line = summary.split("auto vs. the best other backend: ")[1]
    assert line.startswith("no clear difference at ")
    assert "slower at" in line
    assert "where flash is 1.2" in line.split("at worst")[1]
    assert "; excluding launches no clear difference at" in line


def test_auto_counts_where_its_pick_has_no_name_of_its_own(mixed: BenchResults) -> None:
    """Here cudnn runs as auto alone: it beats the baseline, and the sentence says what it was."""
    assert "auto (cudnn) beats naive at every S" in bench_summary(mixed)


def test_a_backend_that_differs_from_itself_is_named(tmp_path: Path) -> None:
    """By how much; and no smaller difference to others counts."""
    data = made_up(("flash", "cudnn"), (2048,), samples=60, slower={"cudnn": 1.05})
    flash = point_of(data, "flash", 2048)
    flash["aa_latency_ns"] = [value * 1.2 for value in flash["latency_ns"]]
    summary = " ".join(bench_summary(results_of(tmp_path, data)).split())
    assert "1 of 2 differ (flash at B1 H8 S2048 D64 fp16 causal, by 20 %)" in summary
    assert "cudnn or flash" in summary or "flash or cudnn" in summary


def test_graphs_that_are_slower_than_the_call_are_reported(tmp_path: Path) -> None:
    """A replay is no faster by nature."""
    data = made_up(("math", "flash"), (2048,), samples=50)
    math = point_of(data, "math", 2048)
    math["graph_latency_ns"] = [value * 1.06 for value in math["latency_ns"]]
    summary = " ".join(bench_summary(results_of(tmp_path, data)).split())
    assert "CUDA graphs: replay is slower than the eager call at 1 of 2 points (worst: math at" in summary
    assert "6.0 % longer" in summary


def test_the_fastest_without_launches_is_that_of_graphs(tmp_path: Path) -> None:
    """Beside the fastest call, in what is printed and in the report; it may be another backend."""
    data = made_up(("math", "flash"), (2048,), samples=30)
    flash = point_of(data, "flash", 2048)
    flash["graph_latency_ns"] = [value * 100 for value in flash["graph_latency_ns"]]
    results = results_of(tmp_path, data)
    assert re.search(r"causal +flash +math by 4\d\.\dx +math\n", bench_summary(results))
    assert re.search(r"causal \| flash \| math, 4\d\.\dx \| math \| flash \|\n", bench_report(results))


def test_the_reason_of_pytorch_is_cut_to_what_it_says(tmp_path: Path) -> None:
    """How much was asked for and how much there was, without the advice."""
    data = made_up(("math", "flash"), (2048,), samples=10)
    reason = (
        "CUDA out of memory. Tried to allocate 256.00 GiB. GPU 0 has a total capacity of 139.80 GiB of "
        "which 134.05 GiB"
        " is free. Including non-PyTorch memory, this process has 5.74 GiB memory in use. Of the allocated memory"
    )
    point_of(data, "math", 2048).update(status="out of memory", reason=reason, latency_ns=[], throttled=[])
    report = bench_report(results_of(tmp_path, data))
    assert "| tried to allocate 256.00 GiB when 134.05 GiB of 139.80 GiB were free |" in report


def test_memory_that_follows_no_single_power_is_reported_in_sizes(tmp_path: Path) -> None:
    """flash at the shortest length needs a buffer that it needs nowhere else."""
    data = made_up(("math", "flash"), (1024, 2048, 4096, 8192), samples=10)
    point_of(data, "flash", 1024)["memory"]["temporary_bytes"] = 4_292_632
    summary = " ".join(bench_summary(results_of(tmp_path, data)).split())
    assert (
        "temporary memory follows no single power of S: flash (4.09 MiB at S=1024, 64.0 KiB at S=2048 "
        "and 256 KiB at"
        " S=8192, S^1.0 in the last step)" in summary
    )


def test_correlated_samples_are_one_warning(many: BenchResults) -> None:
    """However many points have them, as long as their intervals allow for it."""
    lines = [line for line in many.warnings if "accounted for" in line]
    assert len(lines) == 1
    assert re.match(r"samples are autocorrelated at \d+ of 30 points", lines[0])


def test_names_cannot_command_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in names and reasons are written out."""
    data = made_up(("math", "flash"), (1024,), samples=10)
    data["name"] = "x\x1b[31mred"
    point = point_of(data, "flash", 1024)
    point.update(status="unsupported", reason="bell\x07|pipe", latency_ns=[], throttled=[])
    results = results_of(tmp_path, data)
    for text in (bench_summary(results), bench_report(results)):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "bell\\x07\\|pipe" in bench_report(results)


def test_nothing_measured_still_makes_a_report(tmp_path: Path) -> None:
    """All statuses, no numbers, no traceback."""
    results = results_of(tmp_path, made_up(dtypes={"fp32": ("flash", "cudnn")}, samples=5))
    assert "unsupported" in bench_summary(results)
    assert "## Not measured" in bench_report(results)
