"""Reading what ncu prints; `ncu_ranges.csv` is real: kernels in ranges of every kind and name, numbered by grid."""

from pathlib import Path

import pytest

from nsysprof.counters.ncu_csv import NcuRow, read_ncu_csv
from nsysprof.errors import NsysprofError
from tests.kit.fake_ncu import pushed

REAL = (Path(__file__).parents[1] / "kit" / "ncu_ranges.csv").read_text(encoding="utf-8")
COLUMNS = {"duration_ns": {"gpu__time_duration.sum": 1}, "dram_read_bytes": {"dram__bytes_read.sum": 1}}
HEAD = '"ID","Process ID","thread Domain:Push/Pop_Range:X","Id:Domain:Start/Stop_Range:X","Kernel Name","Grid Size"'


def table(*cells: str, metrics: str = "", units: str = "", head: str = HEAD) -> str:
    """A table with one row for each text of cells."""
    lines = [head + metrics, '"","","","","",""' + units, *cells]
    return "\n".join(lines) + "\n"


def one(ranges: str, started: str = "") -> NcuRow:
    """A kernel in these ranges."""
    (row,) = read_ncu_csv(table(f'"0","7","{ranges}","{started}","k","(1, 1, 1)"'), {})
    return row


def test_the_real_ranges_are_those_of_the_report() -> None:
    """Slashes, quotes, colons, newlines, domains, payloads, threads, graphs, processes, as in nsys's report.

    One differs: ncu lists what is pushed in other domains last, so ``dom: x`` is not between the two around it.
    """
    rows = read_ncu_csv(REAL, COLUMNS)
    assert all(row.clear for row in rows)
    found = {int(row.grid.split("x")[0]): row.path for row in rows}
    assert found == {
        99: "", 1: r"RUN::a\/b", 2: r'RUN::a\/b/it"er, 0', 3: "RUN::d/in ner/dom: x", 4: "RUN::d/d2", 5: "only",
        6: "SE::one", 7: "RUN::in-se", 8: "RUN::se", 9: "RUN::se3", 10: "", 11: "own", 12: "RUN::t", 13: "RUN::p",
        14: "RUN::pf", 15: "RUN::ascii", 16: "RUN::é→ü", 17: "xRUN::b", 18: f"RUN::{'long' * 40}",
        19: r"RUN::back\\/c", 20: 'RUN::q"  "<default domain>:z:none:none:RGB:0xff:REGISTERED:z',
        21: "RUN::line\nbreak\ttab", 22: "RUN::comma,[x]@y*+$", 23: "RUN::same/RUN::same", 24: "RUN::graph/launch",
        25: "RUN::graph/launch", 26: "lower", 27: "", 70: "RUN::child/iter0",
    }  # fmt: skip


def test_the_real_names_and_numbers_are_whole() -> None:
    """Names in full, grids and blocks without blanks, numbers without commas, two processes."""
    rows = read_ncu_csv(REAL, COLUMNS)
    assert len(rows) == 30
    assert {row.kernel for row in rows} == {"void tk<float, (int)3>(T1 *, int)"}
    assert (rows[0].grid, rows[0].block) == ("99x1x1", "128x1x1")
    assert rows[0].values == {"duration_ns": 2592, "dram_read_bytes": 7168}
    assert [row.pid for row in rows[-3:]] == [1000, 2000, 2000]


def test_what_stands_before_the_table_is_passed_over() -> None:
    """ncu's own lines, and windows' ends of lines."""
    noisy = "==WARNING== Note: Running\n==PROF== Connected to process 1 (/usr/bin/python3)\n" + REAL
    assert read_ncu_csv(noisy, COLUMNS) == read_ncu_csv(REAL, COLUMNS)
    windows = read_ncu_csv(REAL.replace("\n", "\r\n"), COLUMNS)
    assert [row.path for row in windows] == [row.path for row in read_ncu_csv(REAL, COLUMNS)]


def test_several_threads_with_ranges_are_not_clear() -> None:
    """ncu does not say which of them launched; one thread is clear, whatever is started meanwhile."""
    both = one(f"{pushed('RUN::t', thread=7)}{pushed('own', thread=9)}")
    assert (both.ranges, both.clear) == ((), False)
    alone = one(pushed("RUN::t", "iter0"), ' ""3:<default domain>:S:none:none:RGB:0xff:REGISTERED:S"" ')
    assert (alone.path, alone.clear) == ("RUN::t/iter0", True)


def test_of_started_ranges_the_last_counts() -> None:
    """It is the innermost, in whatever order and domain they are listed."""
    texts = [f'""{at}:{name}:none:none:RGB:0xff:REGISTERED:{name[2:]}""' for at, name in ((12, "d:b"), (3, "e:a"))]
    assert one("", f" {'  '.join(texts)} ").path == "b"


@pytest.mark.parametrize("name", [
    'ends"', '"starts', "a:b::c", ":none:none:none:none:none:", '","', 'x"  "y', "5  z", "é", "a\nb",
    "RGB:0xff:REGISTERED:x",
])  # fmt: skip
def test_any_name_is_read_back(name: str) -> None:
    """Alone and between others."""
    assert one(pushed(name)).ranges == (name,)
    assert one(pushed("first", name, "last")).ranges == ("first", name, "last")


def test_a_name_that_was_not_registered_stands_there_once() -> None:
    """As PyTorch's `range_push` makes them; so does one with colons."""
    text = '7  ""<default domain>:aten::mm, sizes:none:none:none:none:none:none"" '
    assert one(text).ranges == ("aten::mm, sizes",)
    assert one(text.replace("<default domain>", "nccl")).ranges == ("aten::mm, sizes",)


def test_ranges_that_cannot_be_read_are_not_clear() -> None:
    """A kernel is kept, and nothing is made up."""
    for text in ("garbage", '7  ""no colons"" ', '7  ""a'):
        row = one(text)
        assert (row.ranges, row.clear) == ((), False)
    assert one("", ' ""x:y"" ').clear is False


def test_without_ranges_there_are_no_columns_for_them() -> None:
    """As ncu prints it where the program has none."""
    text = (
        '"ID","Process ID","Process Name","Kernel Name","Grid Size"\n"","","","",""\n'
        '"0","7","p","f(int, ""x"")","(2, 3, 4)"\n'
    )
    (row,) = read_ncu_csv(text, {})
    assert (row.path, row.clear, row.kernel, row.grid) == ("", True, 'f(int, "x")', "2x3x4")


@pytest.mark.parametrize(("text", "number"), [
    ("1,234,567", 1234567.0), ("12.5", 12.5), ("n/a", None), ("nan", None), ("", None), ("inf", None),
    ("(!) n/a", None),
])  # fmt: skip
def test_what_is_no_number_is_none(text: str, number: float | None) -> None:
    """And so is a sum with such a part."""
    made = table(f'"0","7","","","k","(1, 1, 1)","{text}","1"', metrics=',"a.sum","b.sum"', units=',"byte",""')
    (row,) = read_ncu_csv(made, {"a": {"a.sum": 1}, "both": {"a.sum": 2, "b.sum": 3}, "gone": {"c.sum": 1}})
    assert row.values["a"] == number
    assert row.values["both"] == (None if number is None else 2 * number + 3)
    assert row.values["gone"] is None


def test_units_are_those_of_the_second_line() -> None:
    """ncu is asked for base units; one that scales all the same is understood."""
    made = table('"0","7","","","k","(1, 1, 1)","2.5","3"', metrics=',"t.sum","b.sum"', units=',"usecond","Kbyte"')
    (row,) = read_ncu_csv(made, {"t": {"t.sum": 1}, "b": {"b.sum": 1}})
    assert row.values == {"t": 2500, "b": 3000}


def test_a_difference_is_never_negative() -> None:
    """Two counters of one kernel may be off by one."""
    made = table('"0","7","","","k","(1, 1, 1)","2","3"', metrics=',"a.sum","b.sum"', units=',"",""')
    (row,) = read_ncu_csv(made, {"d": {"a.sum": 1, "b.sum": -1}})
    assert row.values == {"d": 0}


@pytest.mark.parametrize("text", ["", "==ERROR== no report\n", '"ID","Process ID"\n"",""\n', REAL[: len(REAL) - 30]])
def test_what_is_no_table_is_an_error(text: str) -> None:
    """Nothing, ncu's complaint, columns without kernels, and a table that breaks off."""
    with pytest.raises(NsysprofError, match=r"no table|no column|cut off"):
        read_ncu_csv(text, COLUMNS)
