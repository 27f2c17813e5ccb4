"""Files of hardware counters: what is read of them, and that nothing wrong goes on from there."""

import json
import math
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import METRICS, CounterRow, counters_beside, read_counters, write_counter_csv
from nsysprof.trace.details import grid_text
from tests.kit.counters import COLUMNS, Counted, write_counters

HEAD = ",".join(COLUMNS)
ROW = "a/iter0,0,1,gemm,32x32x8,128x1x1,9,1,2,3,0,4,5,6,,50.5,1,2,3"


def table(tmp_path: Path, text: str) -> Path:
    """A table of that text, without a record."""
    path = tmp_path / "run.counters.csv"
    path.write_bytes(text.encode())
    return path


def test_a_table_is_read(tmp_path: Path) -> None:
    """Ranges, kernels with commas, grids and figures; an empty cell was not measured."""
    kernel = 'void at::native::f<float, (int)2>("x")'
    rows = [
        Counted("a/iter0", kernel, 10, 20, "32x32x8", more={"tensor_flops": 7, "occupancy_percent": 12.5}),
        Counted("a/iter0", "g", 30, pid=2),
    ]
    found = read_counters(write_counters(tmp_path / "run.counters.csv", rows))
    assert (found.ranges, found.kernels, found.pid.tolist()) == (["a/iter0"], [kernel, "g"], [1, 2])
    assert [grid_text(grid) for grid in found.grid.tolist()] == ["32x32x8", "1"]
    assert found.values["dram_read_bytes"].tolist() == [10, 30]
    assert found.values["dram_write_bytes"].tolist()[0] == 20
    assert math.isnan(found.values["dram_write_bytes"][1])
    assert found.values["occupancy_percent"][0] == 12.5
    assert set(found.values) == set(METRICS)
    assert (found.gpus, found.libraries, found.doubts) == (("NVIDIA H200",), {"driver": "580"}, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 lacks the columns range, order, pid and 16 more"),
        ("a,b\n1,2\n", "line 1 lacks the columns range"),
        (f"{HEAD.replace('l2_bytes,', '')}\n", "line 1 lacks the column l2_bytes"),
        (f"{HEAD}\n", "holds no kernel"),
        (f"{HEAD}\n{ROW}\n{ROW},1\n", "line 3: 20 cells for 19 columns"),
        (f"{HEAD}\n{ROW.replace('gemm', '')}\n", "line 2: 'kernel' is missing"),
        (f"{HEAD}\n{ROW.replace('32x32x8', '32x32x8x1')}\n", "line 2: grid: is not a grid such as 32x32x8"),
        (f"{HEAD}\n{ROW.replace('50.5', '50.5 %')}\n", "line 2: occupancy_percent: expected float, got '50.5 %'"),
        (f"{HEAD}\n{ROW.replace(',9,1,', ',9,-1,')}\n", "line 2: dram_read_bytes: expected float >= 0.0, got '-1'"),
        (f"{HEAD}\n{ROW.replace(',9,1,', ',9,nan,')}\n", "line 2: dram_read_bytes: expected float >= 0.0, got 'nan'"),
        (f"{HEAD}\n{ROW.replace(',9,1,', ',9,1e999,')}\n", "line 2: dram_read_bytes: number out of range, got '1e999'"),
        (f"{HEAD}\n{ROW.replace('0,0,1', '0,x,1')}\n", "line 2: order: expected int, got 'x'"),
        (f"{HEAD}\n{ROW}\n{ROW}\n", "line 3: order 0 is not greater than the previous order"),
        (f'{HEAD}\n{ROW}\n"a/iter1', "line 3: invalid CSV"),
        (f"{HEAD}\n{ROW}\nx\0y\n", "line 3"),
    ],
)
def test_a_foreign_or_damaged_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """The line and the column are named."""
    with pytest.raises(NsysprofError, match=message):
        read_counters(table(tmp_path, text))


def test_a_table_that_cannot_be_read(tmp_path: Path) -> None:
    """Not there, a folder, or another encoding."""
    with pytest.raises(NsysprofError, match="cannot read the counters: No such file"):
        read_counters(tmp_path / "none.csv")
    with pytest.raises(NsysprofError, match="cannot read the counters: Is a directory"):
        read_counters(tmp_path)
    path = tmp_path / "x.csv"
    path.write_bytes(b"range,\xff\xfe")
    with pytest.raises(NsysprofError, match=r"byte 6 is not UTF-8"):
        read_counters(path)


def test_the_record_must_be_of_the_table(tmp_path: Path) -> None:
    """Another table, another schema or no JSON: refused. No record at all: said."""
    path = write_counters(tmp_path / "run.counters.csv", [Counted("a", "k", 1, 2)])
    record = path.with_suffix(".json")
    good = json.loads(record.read_text(encoding="utf-8"))
    path.write_text(f"{path.read_text(encoding='utf-8')}\n", encoding="utf-8")
    with pytest.raises(NsysprofError, match=r"run\.counters\.json does not belong to"):
        read_counters(path)
    for text, message in (
        ("{", "not JSON, so no record of counters"),
        ("[]", "not None"),
        (json.dumps({**good, "schema": "nsysprof-run/1"}), "not 'nsysprof-run/1'"),
    ):
        record.write_text(text, encoding="utf-8")
        with pytest.raises(NsysprofError, match=message):
            read_counters(path)
    record.unlink()
    path = table(tmp_path, f"{HEAD}\n{ROW}\n")
    found = read_counters(path)
    assert found.gpus == ()
    assert found.doubts == (
        f"{path} has no run record (run.counters.json), so the GPU and libraries are unknown "
        "and the table may be incomplete",
    )


def test_what_the_record_warns_of_is_passed_on(tmp_path: Path) -> None:
    """And how caches were treated, the GPU of the workload before those of the machine, and versions."""
    environment = {
        "gpus": [{"name": "NVIDIA T4"}],
        "workload": {"device": "NVIDIA H200", "torch": "2.11", "cudnn": 91900, "flash_attn": None},
    }
    path = write_counters(
        tmp_path / "x.csv",
        [Counted("a", "k")],
        environment=environment,
        warnings=["3 kernels have no FLOPs"],
        cache_control="all",
    )
    found = read_counters(path)
    assert found.doubts == (f"{path}: 3 kernels have no FLOPs",)
    assert (found.gpus, found.cold) == (("NVIDIA H200",), True)
    assert found.libraries == {"torch": "2.11", "cudnn": "91900"}


def test_counters_beside_a_report_have_its_name(tmp_path: Path) -> None:
    """`run.counters.csv` goes with `run.sqlite`."""
    assert counters_beside(tmp_path / "run.sqlite") is None
    path = write_counters(tmp_path / "run.counters.csv", [Counted("a", "k")])
    assert counters_beside(tmp_path / "run.sqlite") == path


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """The columns have the names that they always had, and figures come through."""
    assert COLUMNS[6:] == METRICS
    values = {name: None if name == "fp64_flops" else 2.0 + at for at, name in enumerate(METRICS)}
    path = tmp_path / "x.csv"
    write_counter_csv([CounterRow(r"a\/b/iter0", 0, 7, 'k<"x", 2>', "4x2x1", "32x1x1", values)], path)
    found = read_counters(path)
    assert (found.ranges, found.kernels, found.pid.tolist()) == ([r"a\/b/iter0"], ['k<"x", 2>'], [7])
    assert {name: column[0] for name, column in found.values.items() if name != "fp64_flops"} == {
        name: value for name, value in values.items() if value
    }
    assert math.isnan(found.values["fp64_flops"][0])
