"""Times of kernels taken from a table of another run."""

from pathlib import Path

import pytest

from nsysprof.trace.report import open_report, read_tables
from nsysprof.waits.changes import AbstainError
from nsysprof.waits.swap import times_by_name
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
