"""The summary for people: its numbers are those of the frames, and nothing in a report can spoil the terminal."""

import re
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import chart_rows
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, idle_shares, top_rows
from nsysprof.analyze.ledger import slow_starts
from nsysprof.analyze.text import summary, verification, work_line
from nsysprof.attribution.verify import Verification
from nsysprof.core.text import one_line
from nsysprof.core.units import format_count, format_ns, format_share
from nsysprof.results.one_screen import LINES
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reference import gpus_of
from tests.kit.reports import BLOCK, RUN, TWO, broken_down
from tests.kit.trace import (
    CudaDevice,
    Diagnostic,
    Gpu,
    Items,
    Kernel,
    Launch,
    Range,
    Row,
    global_pid,
    launch_graph,
    launch_kernel,
    launch_memcpy,
)

LATE = 1_000_000  # the end of the session, so that no range seems to end with it
COLUMNS = [
    *("range", "instances", "launches", "kernels", "CPU", "span", "busy", "share", "span each"),
    *("busy each", "busy/span"),
]


def table(text: str, first: str) -> list[dict[str, str]]:
    """The rows of the table whose head begins with a word, cells by column; the names keep their indents."""
    lines = text.splitlines()
    at = next(place for place, line in enumerate(lines) if re.match(rf"{first}  ", line))
    spans = [found.span() for found in re.finditer(r"-+", lines[at + 1])]
    heads = [lines[at][a:b].strip() for a, b in spans]
    rows = []
    for line in lines[at + 2 :]:
        if not line or any(line[b : b + 2].strip() for _, b in spans):
            break  # prose below the table runs across its gaps
        rows.append({head: line[a:b].rstrip() for head, (a, b) in zip(heads, spans, strict=True)})
    return [{head: cell if head == heads[0] else cell.strip() for head, cell in row.items()} for row in rows]


def whole(answer: Breakdown, top: int | None = None, **options: Any) -> str:
    """The whole answer, so wide that nothing is left out or broken."""
    return summary(answer, top, full=True, **{"width": 500, **options})


def work(name: str, at: int, length: int, id: int, **where: Any) -> Items:
    """A kernel of some length, launched at a time."""
    return launch_kernel(name, (at, at + 1), (at + 2, at + 2 + length), id=id, **where)


@pytest.mark.parametrize("path", [RUN, BLOCK, TWO])
def test_one_screen_begins_with_the_verdict(path: Path) -> None:
    """At most 40 lines of 100 columns: verdict, bottlenecks with one command, tables, and what is left out."""
    answer = broken_down(path)
    lines = summary(answer, width=100).splitlines()
    assert sum(max(-(-len(line) // 100), 1) for line in lines) <= LINES - 2
    share = format_share(1 - answer.diagnosis.idle_share)
    assert lines[0].startswith(f"{path}: the GPU computes for {share} of the step time"[:90])
    first = lines.index("Top bottlenecks:")
    [command] = [line for line in lines if line.startswith("   $ nsysprof ")]
    tables = [lines.index(line) for line in lines if re.match("where a step|range  |GPU op  ", line)]
    assert first < lines.index(command) < min(tables)
    assert tables == sorted(tables)
    assert len(tables) == 3
    assert [line[:3] for line in lines if re.match(r"\d\. ", line)] == ["1. ", "2. ", "3. "][: len(answer.findings)]
    assert re.fullmatch(r"(\d+ more .*)?\d+ notes?: --full", lines[-1])


def test_a_screen_counts_what_it_leaves_out(trace: MakeTrace) -> None:
    """Ranges, GPU ops and notes that are not shown; a range that only holds another one stands in its path."""
    items: list[Items] = [Range("outer", 0, 100_000)]
    for number in range(12):
        at = 1 + number * 1000
        items += [Range(f"r{number:02}", at, at + 900 + number), Range("inner", at, at + 800)]
        items += [work(f"kernel_{'abcdefghijkl'[number]}", at + 1, 30 + number, number + 1)]
    text = summary(broken_down(trace(*items, duration=LATE)), width=100)
    ranges = [row["range"] for row in table(text, "range")]
    assert ranges[:3] == ["outer", "  r11/inner", "  r10/inner"]
    kernels = [row["GPU op"] for row in table(text, "GPU op")]
    assert kernels[:2] == ["kernel_l", "kernel_k"]
    inside = sum("/inner" in name for name in ranges)
    assert f"\n{25 - len(ranges) - inside} more ranges and {12 - len(kernels)} more GPU ops: --full\n" in text
    every = whole(broken_down(trace(*items, duration=LATE)))
    assert "--full" not in every
    assert len(table(every, "range")) == 25


def test_only_warnings_that_change_the_answer_are_on_a_screen(trace: MakeTrace) -> None:
    """Dropped events stand below the verdict; a thread that was followed is a note."""
    lost = Diagnostic("Not all NVTX events might have been collected.", 2)
    followed = [Range("a", 0, 100), work("k", 10, 5, 1, thread=2)]
    calm = summary(broken_down(trace(*followed, duration=LATE)))
    assert "\nwarning: " not in calm
    assert calm.endswith("\n1 note: --full\n")
    text = summary(broken_down(trace(lost, *followed, duration=LATE)))
    assert "\nwarning: nsys may have dropped events" in text[: text.index("\n\n")]


@pytest.mark.parametrize("seed", [None, 0, 2, 5, 7, 11, 19])
@pytest.mark.parametrize("by", [None, "process", "device"])
def test_every_number_of_the_ranges_is_that_of_the_frame(seed: int | None, by: str | None, trace: MakeTrace) -> None:
    """Row by row and column by column the printed tree is the merged frame, formatted; the mark is that of idleness."""
    answer = broken_down(RUN if seed is None else trace(*random_report(seed)), by=by)
    rows = table(whole(answer, 500), by or "range")
    numbers = top_rows(answer, 500)
    shown = answer.merged.iloc[numbers]
    assert len(rows) == len(shown) > 0
    assert list(rows[0]) == ([by, *COLUMNS] if by else COLUMNS)
    idle = idle_shares(answer, numbers.tolist())
    for row, (_, frame), share in zip(rows, shown.iterrows(), idle.tolist(), strict=True):
        assert row["instances"] == format_count(frame.instances)
        assert row["launches"] == format_count(frame.launches)
        assert row["kernels"] == format_count(frame.kernels)
        assert row["CPU"] == format_ns(frame.cpu_ns)
        assert row["span"] == format_ns(frame.span_ns)
        assert row["busy"] == format_ns(frame.busy_ns)
        assert row["share"] == format_share(frame.sum_ns / answer.work_ns)
        many = frame.instances > 1
        for each, (median, iqr, low, high) in (
            (f"{name} each", [frame[f"{name}_{what}_ns"] for what in ("median", "iqr", "min", "max")])
            for name in ("span", "busy")
        ):
            spread = f"{format_ns(median)} ± {format_share(iqr / 2 / median)}" if median else ""
            if median and frame.instances < 10:
                reach = "all" if low == high else f"{format_ns(low)}–{format_ns(high)}"
                spread = f"{format_ns(median)} ({reach})"
            assert row[each] == (spread if many else "")
        busy, span = (frame.busy_median_ns, frame.span_median_ns) if many else (frame.busy_ns, frame.span_ns)
        mark = " *" if share > LAUNCH_BOUND_IDLE and frame.launches > frame.instances else ""
        assert row["busy/span"] == (format_share(busy / span) + mark if span else "")
        if by:
            assert row[by] == str(frame[by])
        assert one_line(frame["name"], 12)[:8] in row["range"]


def counted(totals: dict[str, int]) -> str:
    """How many ops of each kind there are, in words; graphs and migrations only where there are some."""
    counts = (
        ("kernels", "kernel", ""),
        ("memops", "memory operation", ""),
        ("graph_traces", "CUDA graph", " recorded as a whole"),
        ("migrations", "migration", " beside them"),
    )
    return ", ".join(
        f"{format_count(totals[of])} {noun}{'' if totals[of] == 1 else 's'}{rest}"
        for of, noun, rest in counts
        if totals[of] or not rest
    )


@pytest.mark.parametrize("seed", [None, 1, 3, 4, 8])
def test_the_ledger_is_printed_as_it_is(seed: int | None, trace: MakeTrace) -> None:
    """Outcomes with ops have a row with their ops, sum and share; the total closes the table and is told before it.

    Without annotated ranges there is a ledger only where something is lost.
    """
    path = RUN if seed is None else trace(*random_report(seed))
    answer = broken_down(path)
    text = whole(answer)
    ledger = answer.ledger[answer.ledger["ops"] > 0]
    expected = [
        {
            "launched from": row["fate"],
            "GPU ops": format_count(row["ops"]),
            "sum": format_ns(row["sum_ns"]),
            "share": format_share(row["share"]),
        }
        for row in ledger.to_dict("records")
    ]
    totals = answer.totals
    sums = {"GPU ops": format_count(totals["ops"]), "sum": format_ns(totals["sum_ns"]), "share": "100 %"}
    lost = {"start/end window", "ambiguous", "no launch row"} & set(ledger["fate"])
    if answer.ranges["kind"].isin(["push_pop", "start_end"]).any() or lost:
        assert table(text, "launched from") == [*expected, {"launched from": "total", **sums}]
    else:
        assert "launched from" not in text
    gpus = gpus_of(path)
    busy = format_share(totals["busy_ns"] / (gpus * totals["span_ns"]))
    who = "the GPU is" if gpus == 1 else f"{gpus} GPUs are"
    recording = totals["recording_ns"]
    rest = f" and {format_share(totals['busy_ns'] / (gpus * recording))} of the {format_ns(recording)} of recording"
    assert work_line(answer) == (
        f"{counted(totals)}: sum {format_ns(answer.work_ns)}; {who} busy for {busy} of the"
        f" {format_ns(totals['span_ns'])} from the first GPU op to the last" + rest * (recording > totals["span_ns"])
    )
    assert f"\n{work_line(answer)}\n" in text


@pytest.mark.parametrize("by", [None, "process"])
def test_kernels_are_those_of_the_frame(by: str | None) -> None:
    """Whichever range owns them, the longest first, a row per part where the answer is split."""
    answer = broken_down(TWO, by=by)
    frame = answer.columns("whole_kernels").frame().sort_values("sum_ns", ascending=False, kind="stable")
    printed = table(whole(answer, 500), "GPU op")
    assert len(printed) == len(frame)
    for line, row in zip(printed, frame.to_dict("records"), strict=True):
        assert (line["count"], line["sum"]) == (format_count(row["count"]), format_ns(row["sum_ns"]))
        assert line["of GPU time"] == format_share(row["sum_ns"] / answer.work_ns)
        assert line["family"].startswith(row["family"][:8])
        assert by is None or line[by] == str(row[by])


def test_the_launch_bound_mark(trace: MakeTrace) -> None:
    """A range in whose span nothing runs for more than half the time is marked, and the mark explained."""
    path = trace(
        Range("waits", 0, 100),
        work("k", 1, 10, 1),
        work("k", 50, 10, 2),
        Range("works", 200, 300),
        work("k", 201, 50, 3),
        work("k", 252, 40, 4),
        Range("half", 400, 500),
        work("k", 401, 10, 5),
        work("k", 421, 10, 6),
        Range("once", 600, 700),
        work("k", 601, 5, 7),
        Range("filled", 800, 900),
        work("k", 801, 10, 8),
        work("k", 850, 10, 9),
        Range("fills", 800, 900, thread=2),
        work("k", 805, 45, 10, thread=2),
        Range("one call", 1000, 1100),  # a graph: its gaps wait for no launch
        Launch(1001, 1002, 11),
        Kernel("k", 1010, 1015, 11, graph_node=1),
        Kernel("k", 1090, 1095, 11, graph_node=2),
        duration=LATE,
    )
    text = whole(broken_down(path))
    marks = {row["range"]: row["busy/span"] for row in table(text, "range")}
    assert marks == {
        "waits": "34 % *",
        "works": "99 %",
        "half": "67 %",
        "once": "100 %",
        "filled": "34 %",
        "fills": "100 %",
        "one call": "12 %",
    }
    legend = (
        "* launch-bound: the GPU is idle for more than 50 % of the span, and no other range uses the GPU meanwhile."
    )
    assert text.count(legend) == 1
    calm = whole(broken_down(path, select="works"))
    assert "*" not in calm


@pytest.mark.parametrize(
    ("times", "span", "busy"), [(1, "60 ns (40 ns–940 ns)", "40 ns (all)"), (2, "60 ns ± 17 %", "40 ns ± 0 %")]
)
def test_each_is_the_median_with_its_spread(trace: MakeTrace, times: int, span: str, busy: str) -> None:
    """What repeats shows medians with half the IQR in percent, of fewer than ten the least and the most, and their
    ratio; once, or without work, shows neither.
    """
    items: list[Items] = [Range("once", 19_000, 19_900), work("k", 19_001, 30, 90), work("k", 19_061, 30, 91)]
    for number, gap in enumerate((0, 10, 20, 30, 900) * times):  # the last one is far out: a sum would follow it
        at = number * 1000
        items += [Range(f"step {number}", at, at + 990), work("k", at + 1, 20, 2 * number + 1)]
        items += [work("k", at + 21 + gap, 20, 2 * number + 2)]
    for number in range(5):
        items += [Range(f"iter {number}", 20_000 + number * 100, 20_000 + number * 100 + 90)]
    items += [work("k", 20_001, 7, 99)]
    rows = {row["range"]: row for row in table(whole(broken_down(trace(*items, duration=LATE))), "range")}
    shown = {name: [row["span each"], row["busy each"], row["busy/span"]] for name, row in rows.items()}
    assert shown == {"step*": [span, busy, "67 %"], "once": ["", "", "67 %"], "iter*": ["", "", ""]}
    assert rows["step*"]["busy"] == ("200 ns", "400 ns")[times - 1]


def test_the_legend_of_the_ranges(trace: MakeTrace) -> None:
    """The note under the table says what the columns add up, and nothing else where nothing else needs a word."""
    text = whole(broken_down(trace(Range("a", 0, 100), work("k", 1, 10, 1), duration=LATE)))
    lines = text.splitlines()
    at = lines.index(next(line for line in lines if line.startswith("a ")))
    assert lines[at + 1].startswith("All columns include inner ranges. CPU (host time), span")
    assert lines[at + 1].endswith("Each: median ± half the IQR over instances.")


def test_a_single_gap_of_exactly_half_is_no_mark(trace: MakeTrace) -> None:
    """The mark needs more than half of the span idle: half is not more."""
    path = trace(Range("a", 0, 100), work("k", 8, 10, 1), work("k", 28, 10, 2), work("k", 38, 0, 3), duration=LATE)
    rows = table(whole(broken_down(path)), "range")
    assert rows[0]["busy/span"] == "67 %"
    path = trace(Range("a", 0, 100), work("k", 8, 10, 1), work("k", 38, 10, 2), duration=LATE)
    rows = table(whole(broken_down(path)), "range")
    assert rows[0]["busy/span"] == "50 %"


def test_top_limits_the_rows_and_says_what_is_left(trace: MakeTrace) -> None:
    """`top` ranges are printed, and how many more there are, with the option that prints them."""
    items: list[Items] = []
    for number in range(30):
        items += [Range(f"r{number:02}", number * 100, number * 100 + 90)]
        items += [work("k", number * 100 + 1, 30 + number, number + 1)]
    answer = broken_down(trace(*items, duration=LATE))
    text = whole(answer, 3)
    assert [row["range"] for row in table(text, "range")] == ["r27", "r28", "r29"]
    assert "\n27 more ranges: --top N, or the files\n" in text
    assert "\n1 more range: --top N, or the files\n" in whole(answer, 29)
    assert "more range" not in whole(answer, 30)


def test_a_thousand_levels_are_readable(trace: MakeTrace) -> None:
    """1,009 ranges in each other take a few lines, none wide, each with the path from the one above."""
    nested = [Range(f"level {depth}", depth, 9000 - depth) for depth in range(1009)]
    answer = broken_down(trace(*nested, work("k", 2000, 5, 1), work("k", 2020, 5, 2), duration=LATE))
    text = whole(answer)
    rows = [row["range"] for row in table(text, "range")]
    assert rows[:2] == ["level 0", "  level 1"]
    assert len(rows) == 4
    assert "\n1,005 more ranges: --top N, or the files\n" in text
    assert max(map(len, text.splitlines())) <= 500
    screen = table(summary(answer, width=100), "range")
    assert [row["range"].count("level") for row in screen] == [2, 4]


def test_steps_that_were_never_popped_are_readable(trace: MakeTrace) -> None:
    """Where each level adds its own work, as many levels are shown as were asked for."""
    items: list[Items] = []
    for depth in range(200):
        items += [Range(f"step of {depth}", depth * 10, LATE), work("k", depth * 10 + 1, 5, depth + 1)]
    text = whole(broken_down(trace(*items, duration=LATE)), 20)
    rows = [row["range"] for row in table(text, "range")]
    assert len(rows) == 20
    assert rows[0] == "step of 0 (never closed)"
    assert rows[12:14] == [" " * 24 + f"step of {depth} (never closed)" for depth in (12, 13)]
    assert "180 more ranges" in text
    assert "note: the program never closed 200 of 200 ranges, which are assumed to end with the recording\n" in text


def test_windows_and_unclosed_ranges_are_told_apart(trace: MakeTrace) -> None:
    """A start/end range, whose numbers overlap those of others, and unclosed instances say so beside the name."""
    path = trace(
        Range("w", 0, 500, kind="start_end"),
        Range("w", 10, 400),
        work("k", 20, 5, 1),
        Range("iter0", 600, 700),
        work("k", 601, 5, 2),
        Range("iter1", 800, LATE),
        work("k", 801, 5, 3),
        duration=LATE,
    )
    names = [row["range"] for row in table(whole(broken_down(path)), "range")]
    assert sorted(names) == ["iter* (1 never closed)", "w", "w (start/end)"]


def test_warnings_and_messages_of_nsys_are_notes(trace: MakeTrace) -> None:
    """What nsys recorded and what nsysprof doubts, each on a line, counted; one screen counts those that matter."""
    of_shells = "No CUDA events collected. Does the process use CUDA?"  # the report as a whole has some
    path = trace(
        Diagnostic("CUDA profiling failed.", 3),
        Diagnostic("CUDA profiling failed.", 3),
        Diagnostic(of_shells),
        Range("a", 0, 100),
        work("k", 10, 5, 1),
        Kernel("orphan", 50, 55, 99),
        duration=LATE,
    )
    answer = broken_down(path)
    text = whole(answer)
    assert answer.warnings
    told = ["nsys error: CUDA profiling failed. (2 times)", *answer.warnings]
    for note in (*told, f"nsys warning: {of_shells}"):
        assert f"\nnote: {note}\n" in text
    assert summary(answer).endswith(f"{len(told)} notes: --full\n")


@pytest.mark.parametrize(
    ("call", "result", "said", "crash"),
    [
        (
            "cudaLaunchKernel_v7000",
            0,
            "failed calls (cudaFree) and no GPU activity: the program may have crashed",
            "cudaFree",
        ),
        ("cudaLaunchKernel_v7000", 0, "has 1,234 launch calls but no GPU activity: nsys got no data", ""),
        ("cuGraphLaunch", 0, "has 1,234 launch calls but no GPU activity", ""),
        ("cudaMemcpyAsync", 0, "has 1,234 copy or memset calls but no GPU activity", ""),
        ("cudaLaunchKernel_v7000", 100, "no GPU work: all 1,234 launch, copy and memset calls failed", ""),
        ("cudaMalloc", 0, "CUDA was traced, but the program launched nothing", ""),
        ("cudaLaunchHostFunc", 0, "CUDA was traced, but the program launched nothing", ""),
        (None, 0, "nothing ran on a GPU, CUDA was not traced (--trace=cuda), or nsys got no data", ""),
    ],
)
def test_why_there_is_no_gpu_work(trace: MakeTrace, call: str | None, result: int, said: str, crash: str) -> None:
    """Launches that were recorded say that something ran, whatever nsys got of it."""
    calls = [Launch(10 * n, 10 * n + 5, n + 1, api=call, returned=result) for n in range(1234)] if call else []
    if crash:
        calls.append(Launch(20_000, 20_005, 2000, api=crash, returned=700))
    answer = broken_down(trace(Range("a", 0, 100_000), *calls, duration=LATE))
    assert [said in text for text in answer.warnings] == [True]
    assert said in " ".join(summary(answer).split())


def test_the_last_line_of_stderr_says_why_nothing_ran(trace: MakeTrace) -> None:
    """A program without GPU work often failed; nsys keeps what it printed, and paths in it are nobody's business."""
    printed = [
        "",
        "/tmp/1_stdout.log",
        "done\n",
        "/tmp/1_stderr.log",
        "hm\nCUDA error: no device at /home/me/src/a.cu:7\n\n",
    ]
    streams = [Row("ProcessStreams", {"globalPid": global_pid(1), "filenameId": n, "contentId": n + 1}) for n in (1, 3)]
    text = " ".join(summary(broken_down(trace(*streams, strings=printed))).split())
    assert "No GPU work to diagnose: a program's stderr ends with: CUDA error: no device. $" in text
    ran = summary(broken_down(trace(*streams, work("k", 1, 5, 1), strings=printed)))
    assert "stderr ends" not in ran


def test_a_slow_start_is_a_note(trace: MakeTrace) -> None:
    """Where the first of what repeats takes most of the time, a note says so and what to do; `skip` does it."""
    items: list[Items] = []
    for number in range(6):
        at = number * 10_000
        items += [Range(f"step {number}", at, at + 9000), work("k", at + 1, 10 if number else 4000, number + 1)]
    path = trace(*items, duration=LATE)
    answer = broken_down(path)
    [slow] = slow_starts(answer.columns("merged"), answer.instances_of, answer.by)
    assert slow == "the first of 6 instances of step* spans 4.00 µs (median 10 ns; --skip 1 excludes the first)"
    assert f"\nnote: {slow}\n" in whole(answer)
    skipped = [line for line in whole(broken_down(path, skip=1)).splitlines() if line.startswith("note: ")]
    assert skipped == ["note: warm-up instances left out: 1 (--skip 1)"]


def test_the_report_introduces_itself(trace: MakeTrace) -> None:
    """File, nsys, length, GPUs (equal ones counted), and the command; a screen names the GPUs."""
    path = trace(
        Gpu(0),
        Gpu(1),
        CudaDevice(0, 0),
        CudaDevice(1, 1),
        work("k", 1, 5, 1, device=0),
        work("k", 1, 5, 2, device=1),
        duration=1_500_000_000,
        capture={"PROCESS_0:COMMAND": "python3", "PROCESS_0:ARGUMENT_0": "train.py"},
    )
    lines = whole(broken_down(path)).splitlines()
    at = lines.index(f"{path}: report exported by nsys 2025.3.2.0, 1.50 s of recording")
    assert lines[at + 1] == "GPU: 2 x NVIDIA H200 (132 SMs, 140 GiB, 4.81 TB/s)"
    assert lines[at + 2] == "command: python3 train.py"
    assert "2 × NVIDIA H200" in " ".join(summary(broken_down(path)).split())
    assert "report of nsys, version not recorded" in whole(broken_down(trace(style="2019")))


def test_copies_and_graphs_are_counted(trace: MakeTrace) -> None:
    """The line of totals names memory operations, and CUDA graphs where there are some; one is no plural."""
    path = trace(work("k", 1, 5, 1), launch_memcpy((10, 11), (12, 13), id=2), launch_graph((20, 21), (22, 30), id=3))
    assert (
        "1 kernel, 1 memory operation, 1 CUDA graph recorded as a whole: sum 14 ns; the GPU is busy for 52 % of the "
        "27 ns"
        " from the first GPU op to the last and 47 % of the 30 ns of recording\n"
        "1 CUDA graph recorded as one operation: capture with --cuda-graph-trace=node to see their kernels and ranges\n"
    ) in whole(broken_down(path))


def test_busy_is_a_share_of_all_gpus(trace: MakeTrace) -> None:
    """Busy is a share of the span of every GPU that ran something: one all the time and one half of it are 75 %."""
    path = trace(
        launch_kernel("k", (1, 2), (10, 50), id=1, device=0),
        launch_kernel("k", (3, 4), (10, 20), id=2, device=1),
        launch_kernel("k", (5, 6), (15, 30), id=3, device=1, stream=8),
    )
    assert work_line(broken_down(path)) == (
        "3 kernels, 0 memory operations: sum 65 ns; 2 GPUs are busy for 75 % of the 40 ns"
        " from the first GPU op to the last and 60 % of the 50 ns of recording"
    )
    moment = work_line(broken_down(trace(launch_kernel("k", (1, 2), (10, 10), id=1))))
    assert "; the GPU is busy for - of the 0 ns from the first GPU op to the last and 0 % of the" in moment


def test_busy_is_a_share_of_the_ranges_chosen(trace: MakeTrace) -> None:
    """With `--range` also of the time of these ranges, each from its first GPU op to its last, nested ones once; what
    others run meanwhile keeps the GPU busy, too. Where nsys recorded for no known time, that share is left out.
    """
    path = trace(
        Range("step", 0, 20),
        Range("inner", 2, 10),
        launch_kernel("k", (3, 4), (100, 110), id=1),
        launch_kernel("k", (12, 13), (130, 140), id=2),
        Range("other", 30, 40),
        launch_kernel("k", (31, 32), (110, 115), id=3, stream=8),
        launch_kernel("k", (33, 34), (160, 200), id=4),
        without_tables=["ANALYSIS_DETAILS"],
    )
    totals = broken_down(path, select="step").totals
    assert (totals["chosen_busy_ns"], totals["chosen_span_ns"], totals["recording_ns"]) == (25, 40, 0)
    text = work_line(broken_down(path, select="step"))
    assert (
        "busy for 65 % of the 100 ns from the first GPU op to the last and 62 % of the 40 ns in the chosen ranges"
        in text
    )
    assert "chosen_span_ns" not in broken_down(path).totals


def test_busy_beyond_the_span_is_explained(trace: MakeTrace) -> None:
    """A range that keeps two GPUs busy shows 200 % and a line that says why."""
    path = trace(
        Range("both", 0, 100),
        launch_kernel("k", (1, 2), (10, 50), id=1, device=0),
        launch_kernel("k", (3, 4), (10, 50), id=2, device=1),
        duration=LATE,
    )
    text = whole(broken_down(path))
    assert table(text, "range")[0]["busy/span"] == "200 %"
    assert "busy is summed over GPUs, so busy/span can exceed 100 %" in text
    assert "exceeds 100 %" not in whole(broken_down(RUN))


@pytest.mark.parametrize("by", [None, "process", "device"])
def test_reports_with_nothing_in_them(by: str | None, trace: MakeTrace) -> None:
    """Without ranges, without GPU work, or with neither the text is short, has no empty table and says what lacks."""
    neither = summary(broken_down(trace(), by=by))
    assert "the report has no GPU work" in neither
    assert neither.splitlines()[0].endswith(": no GPU work")
    assert "   $ nsysprof doctor\n" in neither
    no_ranges = summary(broken_down(trace(work("k", 1, 5, 1)), by=by))
    assert "instances" not in no_ranges
    [kernel] = table(no_ranges, "GPU op")
    assert (kernel["sum"], kernel.get(by or "", "1")[-1]) == ("5 ns", "0" if by == "device" else "1")
    no_work = summary(broken_down(trace(Range("a", 0, 10), duration=LATE), by=by))
    assert "   $ nsysprof steps " in no_work
    assert "\nGPU op" not in no_work
    for text in (neither, no_ranges, no_work):
        assert "\n\n\n" not in text
        assert "nan" not in text.lower()


def test_nothing_that_a_terminal_obeys_comes_through(trace: MakeTrace) -> None:
    """Escape sequences, bells, NULs, line ends and direction marks, wherever in a report, are written out."""
    bad = "a\x1b[31m\x07\x00\x9b2J\u202e\u2066\x7f\u200b\rb\nc\td\u2028e"
    path = trace(
        Range(bad, 0, 100, text_id=True),
        work(f"kernel_{bad}", 10, 5, 1),
        Gpu(0, bad),
        Diagnostic(bad, 3),
        capture={"PROCESS_0:COMMAND": bad},
        metadata={"EXPORT_PRODUCT_VERSION": bad},
        duration=LATE,
        name="re\x1b[31mport.sqlite",
    )
    text = whole(broken_down(path, select="a*")) + summary(broken_down(path))
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    assert text.splitlines() == text[:-1].split("\n")
    assert r"a\x1b[31m\x07\x00\x9b2J" in text
    assert r"re\x1b[31mport.sqlite: report exported by" in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("", "(no name)"),
        ("   ", "(no name)"),
        ("  lead", "lead"),
        ("a\n\tb", "a b"),
        ("{'k': 1} " * 120, "{'k': 1} {'k': 1} {'k': 1} {'k':…k': 1} {'k': 1}"),
        ("x" * 1000, "x" * 32 + "…" + "x" * 15),
        ("%s [bold] {0}", "%s [bold] {0}"),
    ],
)
def test_names_in_the_tree(name: str, shown: str, trace: MakeTrace) -> None:
    """Names stand on one line, at most 48 characters wide, without blanks that would look like an indent."""
    rows = table(summary(broken_down(trace(Range(name, 0, 99), work("k", 1, 5, 1), duration=LATE))), "range")
    assert [row["range"] for row in rows] == [shown]


def test_deep_long_names_keep_their_width(trace: MakeTrace) -> None:
    """Indent, name and note keep to the column, save that twelve characters of a name are always left."""
    items: list[Items] = [
        item
        for depth in range(30)
        for item in (Range(f"{'long ' * 30}{depth}", depth * 10, LATE), work("k", depth * 10 + 1, 5, depth + 1))
    ]
    rows = table(whole(broken_down(trace(*items, duration=LATE)), 30), "range")
    assert len(rows) == 30
    assert {len(row["range"]) for row in rows[:9]} == {48}
    assert max(len(row["range"]) for row in rows) == 24 + 12 + len(" (never closed)")


def test_a_verification_in_words() -> None:
    """Equal ranges are counted, explained ones by their reason, others listed up to twenty."""
    some = Verification("2024.2.3", 30, 3, {"unclosed: so": 2}, tuple(f"r{n}: this\nor that" for n in range(25)))
    lines = verification(some).splitlines()
    assert lines[0] == (
        "Verified with nsys 2024.2.3: 3 of 30 ranges with GPU work match in GPU time span, first GPU op and "
        "number of launches"
    )
    assert lines[1] == "  2 differ for known reasons (unclosed: so)"
    assert lines[2:22] == [f"  differs: r{n}: this or that" for n in range(20)]
    assert lines[22:] == ["  and 5 more"]
    assert verification(Verification("1", 0, 0, {}, ())).startswith("Nothing to verify: ")
    assert "\x1b" not in verification(Verification("1", 1, 0, {}, ("\x1b[31m",)))


def test_without_ranges_all_gpu_ops_have_statistics(trace: MakeTrace) -> None:
    """As many rows as asked for, each with count, sum, share, median and extremes; no ledger of one row."""
    lengths = {"gemm_kernel": [30, 10, 50], "vectorized_elementwise_kernel": [7, 9], "softmax_kernel": [4]}
    items = [
        work(name, at * 1000 + number * 100, length, 10 * at + number + 1)
        for at, (name, each) in enumerate(lengths.items())
        for number, length in enumerate(each)
    ]
    text = whole(broken_down(trace(*items)), 2)
    assert "launched from" not in text
    first, second = table(text, "GPU op")
    assert list(first.values()) == [*("gemm", "gemm", "3", "90 ns", "82 %", "30 ns", "10 ns", "50 ns", "1 ns", "1 ns")]
    assert [second[head] for head in ("count", "median", "min", "max")] == ["2", "8 ns", "7 ns", "9 ns"]
    assert "\n1 more GPU op: --top N, or the files\n" in text
    assert len(table(whole(broken_down(trace(*items)), 3), "GPU op")) == 3


def test_families_and_causes_add_up_where_kernels_share_them(trace: MakeTrace) -> None:
    """Kernels of one family are one row of a table of their own; where each kernel has its own there is none."""
    items = [work("a_gemm", 0, 30, 1), work("b_gemm", 100, 20, 2), work("softmax_kernel", 200, 5, 3)]
    rows = table(whole(broken_down(trace(*items))), "family")
    assert [(row["family"], row["count"], row["sum"]) for row in rows] == [
        ("gemm", "2", "50 ns"),
        ("softmax", "1", "5 ns"),
    ]
    assert "\nfamily" not in whole(broken_down(trace(*items[:1], items[2])))


def test_ranges_without_gpu_work_show_cpu_time(trace: MakeTrace) -> None:
    """The longest first, with and without inner ranges, its median, spread and extremes; no column of GPU time."""
    items = [Range("short", 0, 100)]
    for number, length in enumerate([1_000, 3_000, 2_000]):
        at = 1_000 + number * 10_000
        items += [Range("long", at, at + length), Range("inner", at + 100, at + 100 + length // 2)]
    answer = broken_down(trace(*items, duration=LATE))
    text = whole(answer)
    rows = table(text, "range")
    assert [row["range"] for row in rows] == ["long", "  inner", "short"]
    assert list(rows[0].values())[1:] == [
        *("3", "6.00 µs", "98 %", "3.00 µs", "2.00 µs (1.00 µs–3.00 µs)", "1.00 µs", "3.00 µs")
    ]
    assert answer.ranges["exclusive_cpu_ns"].tolist() == [100, 3_000, 3_000]
    assert "busy" not in text
    [first, *_] = table(summary(answer, width=100), "range")
    assert (first["range"], first["CPU time"], first["of CPU time"]) == ("long", "6.00 µs", "98 %")


def test_cpu_time_of_a_range_is_what_inner_ranges_leave(trace: MakeTrace) -> None:
    """Exclusive CPU time takes off direct children alone, and of one that runs over only what lies inside."""
    answer = broken_down(trace(Range("a", 0, 100), Range("b", 10, 60), Range("c", 20, 30), duration=LATE))
    assert answer.ranges.set_index("path")["exclusive_cpu_ns"].to_dict() == {"a": 50, "a/b": 40, "a/b/c": 10}


def test_text_is_as_wide_as_asked(trace: MakeTrace) -> None:
    """Sentences are broken, columns left out and names shortened, but for what is to be copied."""
    answer = broken_down(trace(work("k" * 90, 1, 5, 1)))
    for full in (False, True):
        folded = summary(answer, full=full, width=60).splitlines()
        assert [line for line in folded if len(line) > 60 and not re.search(r"report|nsysprof why|k…k", line)] == []
        assert not any("k" * 60 in line for line in folded)


def test_found_iterations_come_behind_the_kernels(trace: MakeTrace) -> None:
    """Where nobody annotated, kernels are the answer, in text and in charts, and iterations that were found follow."""
    items = [
        work(name, 10_000 * number + 1_000 * at, 300, 3 * number + at + 1)
        for number in range(12)
        for at, name in enumerate(("gemm", "softmax_kernel", "relu_kernel"))
    ]
    answer = broken_down(trace(*items))
    text = summary(answer)
    assert [row["instances"] for row in table(text, "range")] == ["12"]
    assert text.index("\nGPU op  ") < text.rindex("\niteration*")
    assert [row["count"] for row in table(text, "GPU op")] == ["12"] * 3
    assert "launched from" not in text
    rows = chart_rows(answer, 20)
    assert rows is not None
    assert (rows.of, [chart.caption for chart in analysis_charts(breakdown=answer)][1]) == (
        "kernels",
        "Time of each kernel",
    )
