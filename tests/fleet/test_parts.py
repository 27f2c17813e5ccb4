"""What a worker says of a report: times per iteration that add up, collectives, identity, and what it keeps on disk."""

import asyncio
import errno
import io
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest

from nsysprof.errors import NsysprofError
from nsysprof.fleet import range_iterations, rank_part
from nsysprof.fleet.answer import fleet_answer
from nsysprof.fleet.examine import ReportFailure, ReportTask, answer_file, examine_report, keep_answer, remove_kept
from nsysprof.fleet.identity import FILE_NAME, RECORD, identify_ranks, rank_pattern
from nsysprof.fleet.inputs import ReportFile, find_reports, names_in, natural_key, record_path
from nsysprof.fleet.range_iterations import Choice
from nsysprof.fleet.stragglers import iteration_rows
from nsysprof.formats.rank_answer import PARTS, WHOLE, RankPart, ReportAnswer, read_answer
from nsysprof.formats.run_record import rank_in_record
from tests.conftest import MakeTrace
from tests.kit.trace import EventRecord, Items, Launch, Range, StreamWait, launch_kernel, launch_memcpy

ROOT = Path(__file__).parents[2]
TWO = ROOT / "analysis" / "two-ranks"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def step(number: int, *, begin: int, compute: int, waits: int, events: bool = False) -> list[Items]:
    """A step: a kernel, an all-reduce on another stream that begins 10 ns before its end, and an optimizer.

    The all-reduce is launched by a thread of NCCL's own, outside of the step's ranges. With ``events`` the optimizer's
    stream is told to wait for it.
    """
    first = begin + 20
    last = first + compute
    id = 10 * number + 1
    order: list[Items] = [
        EventRecord(9, begin + 15, id + 3, thread=2, sync=number + 1),
        StreamWait(7, begin + 20, id + 4, sync=number + 1),
    ]
    return [
        *(order if events else ()),
        Range(f"step{number}", begin, begin + 900),
        Range("forward", begin + 1, begin + 10),
        launch_kernel("gemm_kernel", (begin + 2, begin + 5), (first, last), id=id),
        Range("ncclAllReduce", begin + 11, begin + 15, thread=2, domain=1),
        launch_kernel(
            ALL_REDUCE, (begin + 12, begin + 14), (last - 10, last - 10 + waits), id=id + 1, thread=2, stream=9
        ),
        launch_kernel("adam_kernel", (begin + 40, begin + 41), (last - 10 + waits, last + 20 + waits), id=id + 2),
    ]


def steps(count: int, compute: int = 200, waits: int = 60, *, events: bool = False) -> list[Items]:
    return [
        item for at in range(count) for item in step(at, begin=1000 * at, compute=compute, waits=waits, events=events)
    ]


def examined(path: Path, choice: Choice | None = None) -> ReportAnswer:
    answer = examine_report(ReportTask(ReportFile(str(path), "stamp"), choice or Choice()))
    assert isinstance(answer, ReportAnswer), answer
    return answer


def column(part: RankPart, path: str, name: str) -> list[int]:
    return [int(part.columns[name][row]) for row in iteration_rows(part, path)]


def test_the_parts_of_an_iteration_are_those_of_its_gpu(trace: MakeTrace) -> None:
    """NCCL's kernels belong to NCCL's own ranges, but their time counts in the step by its window on the GPU."""
    [part] = examined(trace(*steps(3))).parts
    assert part.iteration_path == "step*"
    assert column(part, "step*", "span") == [280, 280, 280]
    assert column(part, "step*", "busy") == [230, 230, 230]  # what the step owns
    assert column(part, "step*", "compute") == [230, 230, 230]
    assert column(part, "step*", "communication") == [60, 60, 60]
    assert column(part, "step*", "exposed") == [50, 50, 50]
    assert [part.labels[code] for code in part.label[iteration_rows(part, "step*")]] == ["step0", "step1", "step2"]
    assert column(part, "step*/forward", "compute") == [200, 200, 200]


def test_idle_time_has_its_reason(trace: MakeTrace) -> None:
    """What passed until a late op was launched is the host's, what passes from then on, or in the queue, is not."""
    late: list[Items] = [
        Range("step0", 0, 900),
        launch_kernel("gemm_kernel", (1, 5), (20, 40), id=1),
        launch_kernel("queued", (6, 9), (50, 60), id=2),
        launch_kernel("late", (80, 90), (95, 100), id=3),
        launch_memcpy((91, 92), (110, 130), id=4),
        Range("step1", 1000, 1900),
        launch_kernel("gemm_kernel", (1001, 1005), (1020, 1040), id=5),
    ]
    [part] = examined(trace(*late)).parts
    assert column(part, "step*", "idle_queue") == [25, 0]
    assert column(part, "step*", "idle_host") == [30, 0]
    assert column(part, "step*", "copies") == [20, 0]


def test_exposed_communication_blocks_where_the_next_compute_was_told_to_wait(trace: MakeTrace) -> None:
    """Of the 60 ns of each all-reduce 50 are exposed; they block only with the event. No other part changes."""
    parts = {
        events: examined(trace(*steps(3, events=events), name=f"{events}.sqlite")).parts[0] for events in (False, True)
    }
    for events, part in parts.items():
        assert column(part, "step*", "exposed") == [50, 50, 50]
        assert column(part, "step*", "blocking") == ([50, 50, 50] if events else [0, 0, 0])
        assert part.lacks == ()
    assert parts[True].blocking_of.tolist() == [0, 1, 2]
    assert (parts[True].blocking_end - parts[True].blocking_start).tolist() == [50, 50, 50]
    assert all(column(parts[False], "step*", name) == column(parts[True], "step*", name) for name in PARTS)


def test_what_blocks_is_not_known_without_a_record_of_events(trace: MakeTrace) -> None:
    """The program waited for an event, and the report does not say for which."""
    call = Launch(30, 31, 999, api="cudaStreamWaitEvent_v3020")
    [part] = examined(trace(*steps(3), call)).parts
    assert [text.split(" (")[0] for text in part.lacks] == ["waits for events", "records of events"]
    assert len(part.blocking_of) == 0


@pytest.mark.parametrize("name", ["rank_0", "rank_1"])
def test_the_parts_add_up_on_a_real_report(name: str) -> None:
    """To the nanosecond, per iteration, per path and over the whole report."""
    [part] = examined(TWO / f"{name}.sqlite").parts
    added = sum(part.columns[each] for each in PARTS)
    assert np.array_equal(added, part.columns["span"])
    assert len(iteration_rows(part, "step*")) == 24
    assert len(part.collective) == 219
    for each in ("cpu", "span", "compute", "exposed"):
        total = part.columns[each][part.paths.index("step*")]
        assert total == sum(column(part, "step*", each))


def test_each_process_of_a_report_is_a_part() -> None:
    """Two programs in one report are two ranks."""
    answer = examined(ROOT / "traces" / "two-processes.sqlite")
    assert [part.iteration_path for part in answer.parts] == ["RUN::math::S1024/iter*", "RUN::flash::S2048/iter*"]
    ranks = identify_ranks([answer]).ranks
    assert [(each.rank, each.part.pid) for each in ranks] == [(0, answer.parts[0].pid), (1, answer.parts[1].pid)]


def test_iterations_without_numbers_are_counted(trace: MakeTrace) -> None:
    """A range that repeats under one name has its instances as iterations, and what lies in it goes with them."""
    items = [Range("train", 1000 * at, 1000 * at + 900) for at in range(4)]
    kernels = [
        launch_kernel("gemm_kernel", (begin + 1, begin + 2), (begin + 10, begin + 20 + at), id=at + 1)
        for at, begin in enumerate(range(0, 4000, 1000))
    ]
    [part] = examined(trace(*items, *kernels)).parts
    assert part.iteration_path == "train"
    assert column(part, "train", "compute") == [10, 11, 12, 13]
    assert part.labels[int(part.label[iteration_rows(part, "train")[2]])] == "#2"
    [part] = examined(trace(*items, *kernels), Choice(skip=1)).parts
    assert column(part, "train", "compute") == [11, 12, 13]


def repeated(name: str, count: int, busy: int, *, begin: int = 0, every: int = 1000) -> list[Items]:
    """Ranges of one name with a kernel in each."""
    return [
        item
        for start in range(begin, begin + every * count, every)
        for item in (
            Range(name, start, start + every - 50),
            launch_kernel("gemm_kernel", (start + 1, start + 2), (start + 10, start + 10 + busy), id=start + 1),
        )
    ]


def test_what_repeats_and_holds_the_time_is_the_iteration(trace: MakeTrace) -> None:
    """Not the longest of what repeats, however little that is; also below a range around all."""
    whole = Range("main", 0, 20_000)
    small = repeated("aten::to", 6, 5, begin=11_000)
    [part] = examined(trace(whole, *repeated("train", 10, 400), *small)).parts
    assert part.iteration_path == "main/train"
    assert not part.warnings
    rest = launch_kernel("gemm_kernel", (1, 2), (10, 900), id=1)
    [part] = examined(trace(rest, *small, *repeated("load", 3, 90, begin=1000))).parts
    assert (part.iteration_path, part.warnings) == (WHOLE, ())


def test_ranges_that_mostly_do_nothing_are_no_iterations(trace: MakeTrace) -> None:
    """Their median would be nothing: `aten::to` mostly finds that there is nothing to do."""
    idle = [Range("aten::to", begin, begin + 10) for begin in range(50_000, 60_000, 1000)]
    [part] = examined(trace(*repeated("aten::to", 4, 400), *idle)).parts
    assert part.iteration_path == WHOLE


def test_numbered_iterations_that_hold_little_are_warned_of(trace: MakeTrace) -> None:
    """They are iterations only if somebody names them, as most of the time is elsewhere."""
    most = launch_kernel("gemm_kernel", (4001, 4002), (5000, 9000), id=9001)
    chosen = [ranked(f"{at}", at, examined(trace(*steps(3), most), Choice(per="step*"))) for at in range(2)]
    found = fleet_answer(chosen, options={"per": "step*"})
    assert found.iteration_path == "step*"
    assert (
        "the findings cover only 17 % of GPU busy time: the rest is outside the iterations of 'step*'" in found.warnings
    )


def test_a_counter_that_begins_anew_makes_other_iterations(trace: MakeTrace) -> None:
    """The second epoch's step0 is not the first one's; what runs twice within a step still adds up."""
    items: list[Items] = []
    for at in range(6):
        begin = 1000 * at
        items.append(Range(f"step{at % 3}", begin, begin + 900))
        for half in range(2):
            first = begin + 100 * half + 10
            items += [
                Range("forward", first, first + 50),
                launch_kernel(
                    "gemm_kernel", (first + 1, first + 2), (first + 5, first + 15 + at), id=2 * at + half + 1
                ),
            ]
    [part] = examined(trace(*items)).parts
    for path in ("step*", "step*/forward"):
        rows = iteration_rows(part, path)
        assert [part.labels[code] for code in part.label[rows]] == [
            *("step0", "step1", "step2", "step0 #2", "step1 #2", "step2 #2")
        ]
    assert column(part, "step*", "compute") == [20, 22, 24, 26, 28, 30]
    assert column(part, "step*/forward", "compute") == [20, 22, 24, 26, 28, 30]
    assert column(part, "step*/forward", "instances") == [2] * 6


def test_threads_share_the_iteration_that_they_name(trace: MakeTrace) -> None:
    """The same step on two threads is one iteration: only what one thread says again is another."""
    items = [
        item
        for at in range(3)
        for thread in (1, 2)
        for item in (
            Range(f"step{at}", 1000 * at + thread, 1000 * at + 900, thread=thread),
            launch_kernel(
                "gemm_kernel",
                (1000 * at + 10 * thread, 1000 * at + 10 * thread + 1),
                (1000 * at + 100 * thread, 1000 * at + 100 * thread + 50),
                id=10 * at + thread,
                thread=thread,
            ),
        )
    ]
    [part] = examined(trace(*items)).parts
    assert column(part, "step*", "instances") == [2, 2, 2]


def test_ranges_of_two_kinds_may_share_a_name(trace: MakeTrace) -> None:
    """A push/pop and a start/end range are two paths with two names, and ranks that have both are compared."""
    windows = [Range(f"step{at}", 1000 * at, 1000 * at + 950, kind="start_end", range_id=at + 1) for at in range(3)]
    answer = examined(trace(*steps(3), *windows))
    assert {"step*", "step* (start/end)"} < set(answer.parts[0].paths)
    found = fleet_answer([ranked(f"{at}", at, answer) for at in range(2)])
    assert found.iteration_path == "step* (start/end)"


def test_a_step_without_ops_keeps_its_place(trace: MakeTrace) -> None:
    """It is not the one that --skip leaves out, nor the first of the table."""
    items = [*steps(2), Range("step2", 2000, 2900), *step(3, begin=3000, compute=200, waits=60)]
    for skip in (0, 1):
        [part] = examined(trace(*items), Choice(skip=skip)).parts
        labels = [part.labels[code] for code in part.label[iteration_rows(part, "step*")]]
        assert labels == [f"step{at}" for at in range(skip, 4)]


def test_a_report_without_ranges_is_one_iteration(trace: MakeTrace) -> None:
    """Then all of it is compared."""
    [part] = examined(trace(launch_kernel("gemm_kernel", (1, 2), (10, 20), id=1))).parts
    assert part.iteration_path == WHOLE
    assert column(part, WHOLE, "compute") == [10]


def test_what_is_kept_of_a_report_is_bounded(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many paths, iterations or collectives are left out, and a warning says so."""
    report = trace(*steps(8))
    monkeypatch.setattr(range_iterations, "MAX_PATHS", 2)
    monkeypatch.setattr(rank_part, "MAX_COLLECTIVES", 5)
    [part] = examined(report).parts
    assert len(part.paths) == 3
    assert len(part.collective) == 5
    assert [text.split(":")[0] for text in part.warnings] == [
        "there are 3 range paths",
        "waiting times are computed only for the first 5 of 8 collectives",
    ]
    monkeypatch.setattr(range_iterations, "MAX_ROWS", 6)
    [part] = examined(report).parts
    assert "8 iterations exceed the limit of 6" in part.warnings[1]
    assert len(pickle.dumps(part)) < 100_000


def test_a_report_that_cannot_be_read_is_a_failure_with_its_reason(tmp_path: Path, trace: MakeTrace) -> None:
    """Not an exception: the others go on. A report without GPU work has nothing to compare either."""
    (tmp_path / "empty.sqlite").touch()
    found = examine_report(ReportTask(ReportFile(str(tmp_path / "empty.sqlite"), "")))
    assert isinstance(found, ReportFailure)
    assert "is empty" in found.reason
    found = examine_report(ReportTask(ReportFile(str(trace(Range("step0", 0, 10))), "")))
    assert isinstance(found, ReportFailure)
    assert "no GPU work" in found.reason


def test_a_url_is_fetched_with_its_record(trace: MakeTrace) -> None:
    """The copy is gone afterwards, and the record beside the report says the rank."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/job/rank_5.sqlite", trace(*steps(2)).read_bytes())
    memory.pipe("/job/rank_5.json", json.dumps({"schema": "nsysprof-run/1", "job": {"rank": 5}}).encode())
    [file], notes = find_reports(["memory://job"])
    assert not notes
    answer = examine_report(ReportTask(file))
    assert isinstance(answer, ReportAnswer)
    assert answer.record_rank == 5
    assert file.name == "memory:///job/rank_5.sqlite"


def test_of_two_recorders_under_one_name_the_report_of_nsys_is_read(tmp_path: Path) -> None:
    """What is left out is named; alone it counts."""
    for name in ("run.sqlite", "run.json.gz", "run.json", "other.json.gz"):
        (tmp_path / name).write_text("x")
    for asked in (str(tmp_path), f"{tmp_path}/*"):
        found, notes = find_reports([asked])
        assert [Path(each.name).name for each in found] == ["other.json.gz", "run.sqlite"]
        assert notes == [
            f"{tmp_path}/run.json.gz is left out: {tmp_path}/run.sqlite has the same name and is from another profiler"
        ]
    assert find_reports([f"{tmp_path}/run.json.gz"])[1] == []


def test_a_folder_a_glob_and_a_list_name_reports_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In natural order, exports before what they were made from, and the same file under two names once."""
    for name in (
        *("rank_10.sqlite", "rank_2.sqlite", "rank_2.nsys-rep", "rank_3.nsys-rep", "rank_4.json.gz"),
        *("rank_4.json", "notes.txt", ".hidden.sqlite"),
    ):
        (tmp_path / name).write_text("x")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "rank_11.sqlite").write_text("x")
    (tmp_path / "list").write_text("# ranks\nrank_2.sqlite\n\nrank_10.sqlite\n")
    found, notes = find_reports([str(tmp_path)])
    assert [Path(each.name).name for each in found] == [
        *("rank_11.sqlite", "rank_2.sqlite", "rank_3.nsys-rep", "rank_4.json.gz", "rank_10.sqlite")
    ]
    assert not notes
    monkeypatch.chdir(tmp_path)
    found, notes = find_reports(["rank_*.sqlite", *names_in(tmp_path / "list"), f"file://{tmp_path}/rank_2.sqlite"])
    assert [Path(each.name).name for each in found] == ["rank_2.sqlite", "rank_10.sqlite"]
    assert len(notes) == 3
    assert "counted once" in notes[0]
    assert sorted(["r10", "r9"], key=natural_key) == ["r9", "r10"]
    for names in ([str(tmp_path / "*.none")], [str(tmp_path / "deep2*")]):
        with pytest.raises(NsysprofError, match="matches no file"):
            find_reports(names)


def test_each_report_counts_once(tmp_path: Path) -> None:
    """In a folder, by a glob and behind a URL: by its export where it has one, a folder of Parquet files as one."""
    fsspec = pytest.importorskip("fsspec")
    names = ["r_0.sqlite", "r_0.nsys-rep", "r_0.json", "r_1_pqtdir/StringIds.parquet", "r_1.nsys-rep"]
    names += ["r_1_pqtdir/NVTX_EVENTS.parquet", "r_2.qdrep", "r_2.log", ".kept/r_3.sqlite"]
    memory = fsspec.filesystem("memory")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
        memory.pipe(f"/once/{name}", b"x")
    for asked in (f"{tmp_path}", f"{tmp_path}/r_*", f"file://{tmp_path}", "memory://once", "memory://once/r_*"):
        found, notes = find_reports([asked])
        assert [each.name.rpartition("/")[2] for each in found] == ["r_0.sqlite", "r_1_pqtdir", "r_2.qdrep"]
        assert not notes
    (tmp_path / "one.db").write_text("x")
    assert [Path(each.name).name for each in find_reports([f"{tmp_path}/*.db"])[0]] == ["one.db"]


def test_links_that_lead_around_lose_no_report(tmp_path: Path) -> None:
    """One to itself is a report that cannot be read, one to a folder around it is not walked again."""
    (tmp_path / "rank_0.sqlite").touch()
    (tmp_path / "rank_1.sqlite").symlink_to("rank_1.sqlite")
    (tmp_path / "again").symlink_to(".")
    names = [str(tmp_path / f"rank_{at}.sqlite") for at in range(2)]
    for asked in ([str(tmp_path)], [f"{tmp_path}/*.sqlite"], [f"{tmp_path}/**/*.sqlite"], names):
        found, notes = find_reports(asked)
        assert ([each.name for each in found], notes) == (names, [])
    task = ReportTask(found[1])
    assert answer_file(tmp_path, task) != answer_file(tmp_path, ReportTask(found[0]))
    failed = examine_report(task)
    assert isinstance(failed, ReportFailure)
    assert "Too many levels of symbolic links" in failed.reason


def test_two_stars_stand_for_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep, none included, but hidden ones."""
    for folder in ("", "a", "a/b[1]", ".hidden", "a/.hidden"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "one.sqlite").touch()
    monkeypatch.chdir(tmp_path)
    inside = ["a/b[1]/one.sqlite", "a/one.sqlite"]
    for asked, names in {
        "**/*.sqlite": [*inside, "one.sqlite"],
        "a/**/one.*": inside,
        "**/b*/**/*.sqlite": inside[:1],
        f"{tmp_path}/a/**/*.sqlite": [f"{tmp_path}/{name}" for name in inside],
    }.items():
        assert [each.name for each in find_reports([asked])[0]] == names


def test_names_that_nothing_can_be_made_of_are_refused(tmp_path: Path) -> None:
    """One line that says which and why, whatever a file system or an archive raises."""
    pytest.importorskip("fsspec")
    (tmp_path / "bad.zip").write_bytes(b"junk")
    with pytest.raises(NsysprofError, match=r"bad\.zip: cannot be opened: BadZipFile: File is not a zip"):
        find_reports([f"zip://*.sqlite::{tmp_path}/bad.zip"])
    with pytest.raises(NsysprofError, match="cannot be listed: File name too long"):
        find_reports(["x" * 300 + ".sqlite"])
    (tmp_path / "list").write_bytes(b"a.sqlite\0b.sqlite\0")
    with pytest.raises(NsysprofError, match="list contains NUL bytes"):
        names_in(tmp_path / "list")


def ranked(report: str, record: int | None, answer: ReportAnswer) -> ReportAnswer:
    return ReportAnswer(**{**answer.__dict__, "report": report, "record_rank": record})


def test_ranks_are_numbered_by_the_best_source(trace: MakeTrace) -> None:
    """What the user says, then records, then order; two of the same rank are refused, both named."""
    answer = examined(trace(*steps(2)))
    both = [ranked("a/rank_7.sqlite", 1, answer), ranked("b/rank_3.sqlite", 0, answer)]
    found = identify_ranks(both)
    assert [(each.rank, each.answer.report) for each in found.ranks] == [(0, "b/rank_3.sqlite"), (1, "a/rank_7.sqlite")]
    assert found.source == RECORD
    found = identify_ranks(both, rank_pattern(r"rank_(\d+)"))
    assert [each.rank for each in found.ranks] == [3, 7]
    assert found.source == FILE_NAME
    found = identify_ranks([both[0], ranked("c", None, answer)])
    assert [each.rank for each in found.ranks] == [0, 1]
    assert "for only 1 of 2 reports, not for c" in found.warnings[0]
    with pytest.raises(NsysprofError, match=r"a/rank_7\.sqlite and d are both rank 1"):
        identify_ranks([both[0], ranked("d", 1, answer)])
    with pytest.raises(NsysprofError, match="finds no number"):
        identify_ranks([ranked("none", 1, answer)], rank_pattern(r"rank_(\d+)"))
    with pytest.raises(NsysprofError, match="no group"):
        rank_pattern("rank")
    with pytest.raises(NsysprofError, match="not a regular expression"):
        rank_pattern("(")


def test_a_report_that_cannot_be_read_keeps_its_place(trace: MakeTrace) -> None:
    """By order the third of three reports is rank 2, also where the second is broken; not where one has two ranks."""
    answer = examined(trace(*steps(2)))
    broken = ReportFailure("b", "b: empty file")
    found = identify_ranks([ranked("a", None, answer), broken, ranked("c", None, answer)])
    assert [each.rank for each in found.ranks] == [0, 2]
    two = ReportAnswer(**{**answer.__dict__, "parts": answer.parts * 2})
    assert [each.rank for each in identify_ranks([broken, two]).ranks] == [0, 1]


def test_a_folder_of_parquet_files_has_a_record_too(tmp_path: Path) -> None:
    """The one of the report that it was exported from."""
    (tmp_path / "run.1.json").write_text('{"schema": "nsysprof-run/1", "job": {"rank": 3}}', encoding="utf-8")
    assert rank_in_record(record_path(tmp_path / "run.1_pqtdir")) == 3
    assert rank_in_record(record_path(tmp_path / "run.1.sqlite")) == 3
    assert rank_in_record(record_path(tmp_path / "run.1")) is None


def test_a_number_too_long_for_a_rank_is_refused(trace: MakeTrace) -> None:
    """Such as the date and time in a name; one in a record is as none."""
    report = trace(*steps(2))
    name = "job_202611201559141234567.sqlite"
    with pytest.raises(NsysprofError, match="finds 202611201559141234567, which is not a rank,"):
        identify_ranks([ranked(name, None, examined(report))], rank_pattern(r"job_(\d+)"))
    report.with_suffix(".json").write_text(
        f'{{"schema": "nsysprof-run/1", "job": {{"rank": {10**21}}}}}', encoding="utf-8"
    )
    assert examined(report).record_rank is None


def test_the_environment_in_a_report_names_its_rank(trace: MakeTrace) -> None:
    """As nsys records it, unless it was scrubbed; and the machine."""
    report = trace(*steps(2), capture={"PROCESS_0:ENVIRONMENT_VARIABLE": 'RANK="4"'})
    answer = examined(report)
    assert answer.environment_rank == 4
    assert answer.record_rank is None
    report.with_suffix(".json").write_text('{"schema": "nsysprof-run/1", "job": {"rank": true}}')
    assert examined(report).record_rank is None


def test_an_answer_survives_the_disk(trace: MakeTrace, tmp_path: Path) -> None:
    """What comes back is what was kept; a damaged file is as none, and another file, option or version is another."""
    task = ReportTask(ReportFile(str(trace(*steps(3))), "1"))
    answer = examine_report(task)
    assert isinstance(answer, ReportAnswer)
    path = answer_file(tmp_path, task)
    assert read_answer(path) is None
    keep_answer(answer, path)
    found = read_answer(path)
    assert found is not None
    assert found.report == answer.report
    assert found.parts[0].paths == answer.parts[0].paths
    assert found.parts[0].timeline_ns == answer.parts[0].timeline_ns
    for name, values in answer.parts[0].columns.items():
        assert np.array_equal(found.parts[0].columns[name], values)
    assert answer_file(tmp_path, ReportTask(task.file, Choice(skip=1))) != path
    assert answer_file(tmp_path, ReportTask(ReportFile(task.file.name, "2"))) != path
    data, bomb = path.read_bytes(), io.BytesIO()
    with np.load(path) as kept:  # compressed, it could be of any size
        np.savez_compressed(bomb, **kept)
    for damaged in (
        bomb.getvalue(),
        data[: len(data) // 2],
        b"",
        b"PK\x03\x04 nothing",
        data.replace(b"iteration_path", b"iteration_pAth"),
    ):
        path.write_bytes(damaged)
        assert read_answer(path) is None


def test_only_answers_are_forgotten(tmp_path: Path) -> None:
    """Whole ones and unfinished ones; what a user has put beside them stays, and so does the folder then."""
    (tmp_path / ".nsysprof-x").mkdir()
    for name in ("a.npz", ".nsysprof-x/b.npz", "notes.txt"):
        (tmp_path / name).touch()
    remove_kept(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "notes.txt").unlink()
    remove_kept(tmp_path)
    assert not tmp_path.exists()


def test_a_full_disk_is_reported_with_the_folder(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where answers are kept, and nothing half-written stays there."""

    def full(file: IO[bytes], **arrays: object) -> None:
        file.write(b"PK")
        raise OSError(errno.ENOSPC, "No space left on device")

    answer = examined(trace(*steps(2)))
    monkeypatch.setattr(np, "savez", full)
    folder = tmp_path / "kept"
    folder.mkdir()
    with pytest.raises(NsysprofError, match=r"cannot save .* in .*kept: No space left on device"):
        keep_answer(answer, folder / "a.npz")
    assert not list(folder.iterdir())


def test_rules_that_never_end_are_ended_in_a_worker(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask reads a report in a thread, which no signal can stop: its rules are tried where Dask serves."""
    monkeypatch.setattr("nsysprof.core.expressions._PATIENCE_S", 0.1)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "mine"\nmatch = "(a+)+$"\nfamily = "norm"\n', encoding="utf-8")
    report = trace(launch_kernel("a" * 200 + "!", (1, 2), (3, 4), id=1))

    async def served() -> object:
        worker = SimpleNamespace(loop=SimpleNamespace(asyncio_loop=asyncio.get_running_loop()))
        monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(get_worker=lambda: worker))
        return await asyncio.to_thread(examine_report, ReportTask(ReportFile(str(report), ""), rules=str(rules)))

    failed = asyncio.run(served())
    assert isinstance(failed, ReportFailure)
    assert failed.reason == "the kernel rules take more than 0.1 s of CPU time"


def test_workers_share_what_a_control_group_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is less than the machine has left."""
    pytest.importorskip("psutil")
    from nsysprof.fleet import cluster

    monkeypatch.setattr(cluster, "group_limits", lambda: iter([1 << 50, 1_000_000]))
    choice = cluster.complete_choice(cluster.ClusterChoice(2), 5)
    assert (choice.workers, choice.memory_bytes) == (2, 400_000)


def test_reports_of_other_jobs_are_no_ranks(trace: MakeTrace) -> None:
    """With other steps, or no collective in common, recordings in one folder are refused unless ``--per`` asks."""
    other = trace(*repeated("batch", 6, 400), name="other.sqlite")
    parts = [examined(trace(*steps(4), name=f"{at}.sqlite")) for at in range(2)]
    unlike = [*(replace(each, report=f"{at}") for at, each in enumerate(parts)), examined(other)]
    assert fleet_answer(unlike[:2]).iteration_path == "step*"
    with pytest.raises(NsysprofError, match="not ranks of one job") as stop:
        fleet_answer(unlike[1:])
    assert "nsysprof compare" in str(stop.value.hint)
