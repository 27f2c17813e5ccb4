"""Changes as they are written: names with times and factors, and times of kernels from a table of another run."""

from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.trace.report import open_report, read_tables
from nsysprof.waits.changes import AbstainError, read_factor, read_time
from nsysprof.waits.swap import time_of_row, times_by_name
from tests.conftest import MakeTrace
from tests.kit.trace import launch_kernel


@pytest.mark.parametrize("second", [10, 20, 21])
def test_a_name_whose_times_differ_by_more_than_twice_is_refused(trace: MakeTrace, tmp_path: Path, second: int) -> None:
    """The same name stands for different work then; of others the median is taken."""
    table = tmp_path / "kernels.csv"
    table.write_text(f"kernel,median_ns\nk,10\nk,{second}\nother,5\n")
    with open_report(trace(launch_kernel("k", (0, 1), (2, 9), id=1))) as report:
        read = read_tables(report)
        if second <= 20:
            assert list(times_by_name(read, table).values()) == [(10 + second) // 2]
        else:
            with pytest.raises(AbstainError, match="k takes 10 ns to 21 ns in"):
                times_by_name(read, table)


def test_times_of_another_report_are_without_the_tenths_at_both_ends(trace: MakeTrace) -> None:
    """Of ten times the shortest and the longest go; the median of the others counts."""
    lengths = (20, 34, 21, 33, 22, 32, 23, 31, 24, 30)
    times = [(100 * at, 100 * at + length) for at, length in enumerate(lengths, 1)]
    other = trace(*(launch_kernel("k", (at - 9, at), (at, end), id=at) for at, end in times), name="other.sqlite")
    with open_report(trace(launch_kernel("k", (0, 1), (2, 9), id=1))) as report:
        assert list(times_by_name(read_tables(report), other).values()) == [27]


@pytest.mark.parametrize(
    ("table", "row", "said"),
    [
        ("kernel,median_ns\nk,10.6\nl,20\nm,", "k", 11),
        ("kernel,median_ns,graph_median_ns\nk,10,7\nl,20,", "k", 7),
        ("kernel,median_ns,graph_median_ns\nk,10,7\nl,20,", "l", 20),
        ("configuration,backend,median_ns\nbig,k,10\nsmall,k,20", "small/k", 20),
        ("configuration,backend,median_ns\nbig,k,10\nsmall,k,", "k", 10),
        (
            "configuration,backend,median_ns\nbig,k,10\nsmall,k,20",
            "k",
            "2 rows named 'k', but needs exactly one; names in the",
        ),
        ("kernel,median_ns\nk,10\nm,", "m", "0 rows named 'm', but needs exactly one; names in the file: 'k'"),
        ("kernel,mean_ns\nk,10", "k", "no column median_ns"),
    ],
)
def test_a_row_of_results_has_one_time(tmp_path: Path, table: str, row: str, said: int | str) -> None:
    """That of graph replays where there is one; what was not timed has none."""
    path = tmp_path / "results.csv"
    path.write_text(table)
    if isinstance(said, int):
        assert time_of_row(path, row) == said
    else:
        with pytest.raises(NsysprofError, match=said):
            time_of_row(path, row)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        *(
            ("k=500us", 500_000),
            ("a=b=2 ms", 2_000_000),
            ("k=0.5s", 500_000_000),
            ("k=7ns", 7),
            ("k=3600s", 3_600 * 10**9),
        ),
        *((text, None) for text in ("500us", "=500us", "k=", "k=5", "k=-5us", "k=5 hours", "k=3601s", "")),
    ],
)
def test_a_time_has_a_name_and_a_unit(text: str, ns: int | None) -> None:
    """The name is all before the last equals sign; more than an hour is no time of a kernel."""
    if ns is None:
        with pytest.raises(NsysprofError, match="--set ") as refused:
            read_time(text, "set", "KERNEL=40us")
        assert "--set 'KERNEL=40us'" in str(refused.value.hint)
    else:
        assert read_time(text, "set", "KERNEL=40us") == (text.rpartition("=")[0], ns)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        *(("k=0.5", 0.5), ("*gemm*=0", 0.0), ("k=999.9", 999.9), ("a=b=1", 1.0)),
        *((text, None) for text in ("0.5", "=0.5", "k=", "k=half", "k=-1", "k=1000", "k=nan")),
    ],
)
def test_a_factor_is_from_0_to_1000(text: str, factor: float | None) -> None:
    """Of a kernel that is named."""
    if factor is None:
        with pytest.raises(NsysprofError, match="--scale "):
            read_factor(text)
    else:
        assert read_factor(text) == (text.rpartition("=")[0], factor)
