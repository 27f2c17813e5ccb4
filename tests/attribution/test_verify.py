"""`--verify`: the comparison with nsys's own projection, on faked rows and, where nsys is installed, on real ones."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsysprof import cli
from nsysprof.analyze.text import verification
from nsysprof.attribution import verify
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import Nsys, stats
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.trace import Item, Items, Launch, Range, launch_graph, launch_kernel

TRACES = Path(__file__).parents[2] / "traces"
LATE = 1_000_000
Row = dict[str, str]
Fake = Callable[..., None]


@pytest.fixture
def nsys_says(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts an nsys in place that answers with the rows given."""

    def put(*rows: Row) -> None:
        fake = Nsys(Path("/fake/nsys"), (2024, 2, 3), "2024.2.3-fake")
        monkeypatch.setattr(verify, "find_nsys", lambda explicit=None: fake)

        def answer(nsys: Nsys, sqlite: Path, report_name: str) -> list[Row]:
            assert (nsys, report_name) == (fake, "nvtx_gpu_proj_trace")
            assert sqlite.is_file()
            return [dict(row) for row in rows]

        monkeypatch.setattr(verify, "stats", answer)

    return put


def row(name: str, start: int, first_op: int, span: int, launches: int, style: str = "PushPop") -> Row:
    """A row as `nsys stats --report nvtx_gpu_proj_trace` prints it, of process 1 and thread 1."""
    return {
        "Name": name,
        "Projected Start (ns)": str(first_op),
        "Projected Duration (ns)": str(span),
        "Orig Start (ns)": str(start),
        "Orig Duration (ns)": "100",
        "Style": style,
        "PID": "1",
        "TID": "1",
        "NumGPUOps": str(launches),
        "Lvl": "0",
        "NumChild": "0",
        "RangeId": "1",
        "ParentId": "",
        "RangeStack": ":1",
    }


def two_ranges() -> list[Items]:
    """`a` launches at 10 and 20, `b` at 210; a window is around `b`."""
    return [
        Range("a", 0, 100),
        launch_kernel("k", (10, 12), (30, 50), id=1),
        launch_kernel("k", (20, 22), (60, 70), id=2),
        Range("b", 200, 300),
        Range("w", 190, 310, kind="start_end"),
        launch_kernel("k", (210, 212), (230, 250), id=3),
    ]


EQUAL = [row("a", 0, 30, 40, 2), row("b", 200, 230, 20, 1), row("w", 190, 230, 20, 1, "StartEnd")]


def verified(path: Path) -> verify.Verification:
    """The result for a report."""
    with open_report(path) as report:
        return verify.verify(read_tables(report))


def test_equal_answers(nsys_says: Fake, trace: MakeTrace) -> None:
    """Ranges with the same first op, span and launches are equal, push/pop and start/end."""
    nsys_says(*EQUAL)
    result = verified(trace(*two_ranges(), duration=LATE))
    assert result == verify.Verification("2024.2.3-fake", 3, 3, {}, ())


def test_a_row_without_a_style_is_no_range(nsys_says: Fake, trace: MakeTrace) -> None:
    """nsys 2025 adds a row for work outside every range, with most cells empty: it is no range to compare."""
    nsys_says(*EQUAL, {**dict.fromkeys(EQUAL[0], ""), "Name": "[No NVTX]", "Projected Start (ns)": "1"})
    assert verified(trace(*two_ranges(), duration=LATE)).equal == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row("a", 0, 31, 40, 2), "nsys first op at 31 ns, span 40 ns, 2 launches"),
        (row("a", 0, 30, 41, 2), "nsys first op at 30 ns, span 41 ns, 2 launches"),
        (row("a", 0, 30, 40, 3), "nsys first op at 30 ns, span 40 ns, 3 launches"),
        (None, "nsys nothing"),
    ],
)
def test_a_difference_is_a_sentence(wrong: Row | None, said: str, nsys_says: Fake, trace: MakeTrace) -> None:
    """Whatever of a range differs, the range is named, with where it is and what both say."""
    nsys_says(*([wrong] if wrong else []), *EQUAL[1:])
    result = verified(trace(*two_ranges(), duration=LATE))
    assert (result.compared, result.equal, result.explained) == (3, 2, {})
    assert result.differences == (
        "a (push/pop range in process 1, thread 1, at 0 ns):"
        f" nsysprof first op at 30 ns, span 40 ns, 2 launches; {said}",
    )


def test_a_range_that_nsys_alone_knows(nsys_says: Fake, trace: MakeTrace) -> None:
    """A row of nsys's for which there is no range at all is a difference too."""
    nsys_says(*EQUAL, row("ghost", 777, 30, 40, 2))
    result = verified(trace(*two_ranges(), duration=LATE))
    assert result.differences == (
        "unknown to nsysprof (push/pop range in process 1, thread 1, at 777 ns):"
        " nsysprof nothing; nsys first op at 30 ns, span 40 ns, 2 launches",
    )


def test_large_times_are_compared_exactly(nsys_says: Fake, trace: MakeTrace) -> None:
    """A difference of one ns at 2^60 is a difference."""
    at = 2**60
    path = trace(
        Range("a", at, at + 100), launch_kernel("k", (at + 1, at + 2), (at + 10, at + 30), id=1), duration=at + 200
    )
    nsys_says(row("a", at, at + 10, 20, 1))
    assert verified(path).equal == 1
    nsys_says(row("a", at, at + 11, 20, 1))
    assert len(verified(path).differences) == 1


def test_known_differences_are_explained(nsys_says: Fake, trace: MakeTrace) -> None:
    """Ranges that end on another thread and unclosed ranges may differ; each is counted under its reason."""
    path = trace(
        Range("moved", 0, 100, kind="start_end", end_thread=2),
        launch_kernel("k", (10, 12), (30, 50), id=1),
        Range("open", 200, None, kind="start_end"),
        Range("forgotten", 210, LATE),
        launch_kernel("k", (220, 222), (230, 250), id=2),
        duration=LATE,
    )
    nsys_says(row("open", 200, 230, 10, 1, "StartEnd"))
    result = verified(path)
    assert result.differences == ()
    assert result.explained == {
        "nsys leaves out start/end ranges if the report names the thread that ended them": 1,
        "the program never closed this range, so nsys ends the range at the last NVTX event": 2,
    }
    assert (result.compared, result.equal) == (3, 0)
    assert (
        "\n  1 differ for known reasons (nsys leaves out start/end ranges if the report names the thread that ended"
        " them)\n" in verification(result)
    )


def test_ranges_that_are_folded_are_explained(nsys_says: Fake, trace: MakeTrace) -> None:
    """Of a name that is pushed again and again and never popped, nsys shows each range; here the first counts."""
    pushes = [Range("leak", at, LATE) for at in range(20)]
    path = trace(*pushes, launch_kernel("k", (30, 32), (40, 50), id=1), duration=LATE)
    nsys_says(*[row("leak", at, 40, 10, 1) for at in range(20)])
    result = verified(path)
    assert result.differences == ()
    assert (result.compared, result.equal) == (20, 1)
    assert result.explained == {
        "the program never popped this range, so its time counts as part of the outer range of the same name": 19
    }


def test_equal_ranges_are_compared_as_a_group(nsys_says: Fake, trace: MakeTrace) -> None:
    """Ranges that begin alike on one thread may come in any order."""
    path = trace(
        Range("outer", 0, 100), Range("inner", 0, 25), launch_kernel("k", (10, 12), (30, 50), id=1),
        launch_kernel("k", (40, 42), (60, 70), id=2), duration=LATE,
    )  # fmt: skip
    nsys_says(row("inner", 0, 30, 20, 1), row("outer", 0, 30, 40, 2))
    assert verified(path).equal == 2
    nsys_says(row("inner", 0, 30, 20, 1), row("outer", 0, 30, 20, 1))
    assert len(verified(path).differences) == 1


def test_graphs_traced_whole_are_left_out_on_both_sides(nsys_says: Fake, trace: MakeTrace) -> None:
    """nsys's projection does not know of them: a range with nothing else has no GPU work there."""
    nsys_says()
    result = verified(trace(Range("a", 0, 100), launch_graph((10, 12), (30, 50), id=1), duration=LATE))
    assert result == verify.Verification("2024.2.3-fake", 0, 0, {}, ())
    assert "Nothing to verify" in verification(result)


@pytest.mark.parametrize(("wrong", "code"), [(False, 0), (True, 3)])
def test_the_exit_code(
    wrong: bool, code: int, nsys_says: Fake, trace: MakeTrace, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`analyze --verify` exits with 3 when a range differs without a known reason, after all results."""
    path = trace(*two_ranges(), duration=LATE)
    nsys_says(*EQUAL[1:], *([] if wrong else EQUAL[:1]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nsysprof", "analyze", path.name, "--no-charts", "--verify"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert (stop.value.code or 0) == code
    out = capsys.readouterr().out
    assert f"\nVerified with nsys 2024.2.3-fake: {3 - wrong} of 3 ranges" in out
    assert ("  differs: a (push/pop range" in out) == wrong
    assert (tmp_path / "report.analysis" / "analysis.json").is_file()


def test_strict_is_what_is_verified(nsys_says: Fake, trace: MakeTrace) -> None:
    """Followed work is none of nsys's: the strict projection is compared, whatever the answer was made with."""
    path = trace(Range("backward", 0, 100), launch_kernel("k", (10, 11), (20, 30), id=1, thread=2), duration=LATE)
    nsys_says()
    assert verified(path).compared == 0


def test_only_sqlite_can_be_verified(trace: MakeTrace) -> None:
    """A parquet export is a known failure that says how to get an SQLite one."""
    with open_report(trace(*two_ranges())) as report:
        read = read_tables(report)
        report.reader.format = "parquet"
        with pytest.raises(NsysprofError, match="only SQLite reports can be verified") as caught:
            verify.verify(read)
    assert "nsys export --type sqlite" in str(caught.value.hint)


@pytest.mark.nsys
@pytest.mark.parametrize(("name", "ranges"), [("run", 795), ("block", 446), ("two-processes", 30)])
def test_the_shipped_reports_equal_nsys(name: str, ranges: int, real_nsys: Nsys) -> None:
    """All ranges with GPU work of each shipped report have nsys's span, first op and launch count."""
    if real_nsys.version < (2023,):
        pytest.skip("the projection of this nsys takes minutes")
    result = verified(TRACES / f"{name}.sqlite")
    assert (result.nsys, result.compared, result.equal) == (real_nsys.version_text, ranges, ranges)
    assert (result.explained, result.differences) == ({}, ())


@pytest.mark.nsys
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random_reports_equal_nsys(first: int, real_nsys: Nsys, trace: MakeTrace) -> None:
    """Nested, crossing, unclosed and moved ranges, colliding ids, calls that straddle: no unexplained difference."""
    compared = 0
    for seed in range(first, first + 8):
        result = verified(trace(*_each_call_once(random_report(seed)), name=f"{seed}.sqlite"))
        assert result.differences == ()
        assert result.equal + sum(result.explained.values()) == result.compared
        compared += result.equal
    assert compared > 10


@pytest.mark.nsys
def test_a_planted_difference_is_found(real_nsys: Nsys, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were our answer another one, the real nsys's would show it."""
    path, other = trace(*two_ranges(), duration=LATE), trace(*two_ranges()[:-1], duration=LATE)
    monkeypatch.setattr(verify, "stats", lambda nsys, _, name: stats(nsys, other, name))
    result = verified(path)
    assert real_nsys.version
    assert (result.compared, result.equal, len(result.differences)) == (3, 1, 2)


def _each_call_once(items: list[Item]) -> list[Item]:
    """Without calls that are recorded twice at unrelated times, which nsys joins with each other's ranges."""
    calls: set[tuple[int, int | None]] = set()
    out = []
    for item in items:
        if isinstance(item, Launch):
            if (item.process, item.id) in calls:
                continue
            calls.add((item.process, item.id))
        out.append(item)
    return out
