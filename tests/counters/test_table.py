"""The table of two runs, and its file."""

import csv
import io
from pathlib import Path

from nsysprof.core.text import path_part
from nsysprof.counters.count import counter_rows, in_ranges, without_secrets
from nsysprof.counters.ncu_csv import NcuRow
from nsysprof.formats.counters import METRICS, write_counter_csv
from nsysprof.scrub.secrets import Secret, Secrets


def kernel(name: str, *ranges: str, pid: int = 1, clear: bool = True, **values: float | None) -> NcuRow:
    """A row as ncu has it."""
    return NcuRow(pid, ranges, clear, name, "1x1x1", "32x1x1", values)


def test_the_order_counts_within_a_path_and_process() -> None:
    """From 0, in the order of the launches."""
    rows, lost = counter_rows(
        [kernel("a", "r", "i"), kernel("b", "r"), kernel("c", "r", "i"), kernel("d", "r", "i", pid=2), kernel("e")], []
    )
    assert [(row.path, row.pid, row.order) for row in rows] == [
        ("r/i", 1, 0), ("r", 1, 0), ("r/i", 1, 1), ("r/i", 2, 0), ("", 1, 0),
    ]  # fmt: skip
    assert lost == 0
    assert rows[0].values == dict.fromkeys(METRICS)


def test_the_second_run_is_laid_beside_the_first() -> None:
    """By process, range, kernel and how many of the same came before, though pids and the order of launches differ."""
    first = [kernel("a", "r", duration_ns=1), kernel("a", "r", duration_ns=2), kernel("b", "q", duration_ns=3)]
    second = [
        kernel("b", "q", pid=9, fp32_flops=30),
        kernel("a", "r", pid=9, fp32_flops=10),
        kernel("a", "r", pid=9, fp32_flops=20),
    ]
    rows, lost = counter_rows(first, second)
    assert [(row.values["duration_ns"], row.values["fp32_flops"]) for row in rows] == [(1, 10), (2, 20), (3, 30)]
    assert lost == 0


def test_what_the_second_run_has_not_is_told() -> None:
    """Another kernel in its place, as an autotuner may choose, lends no numbers."""
    rows, lost = counter_rows([kernel("a", "r"), kernel("b", "r")], [kernel("a", "r", fp32_flops=1), kernel("c", "r")])
    assert [row.values["fp32_flops"] for row in rows] == [1, None]
    assert lost == 1


def test_a_glob_matches_paths_and_names_and_all_inside() -> None:
    """What is outside goes, though ncu's own filter let it through; what is not clear stays."""
    rows = [
        kernel("a", "RUN::m", "iter0"),
        kernel("b", "xRUN::m"),
        kernel("c", "out", "RUN::m", "deep"),
        kernel("d"),
        kernel("e", clear=False),
        kernel("f", "a/b", "c"),
    ]

    def left(select: str | None) -> str:
        return "".join(row.kernel for row in in_ranges(rows, select))

    assert left(None) == "abcdef"
    assert left("RUN::*") == "ace"
    assert left("RUN::m/iter*") == "ae"
    assert left("deep") == "ce"
    assert left(r"a\/b/c") == "ef"
    assert left("a/b") == "ef"


def test_the_file_has_whole_counts_and_empty_cells(tmp_path: Path) -> None:
    """Quotes, commas and newlines of names come back; percentages keep their digits."""
    rows, _ = counter_rows(
        [kernel('k<a, "b">', "r\nx", duration_ns=12345678901, dram_read_bytes=0.0, dram_percent=12.345678)], []
    )
    write_counter_csv(rows, tmp_path / "t.csv")
    (row,) = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_bytes().decode("utf-8"), newline=""))
    assert list(row) == ["range", "order", "pid", "kernel", "grid", "block", *METRICS]
    assert (row["range"], row["kernel"], row["grid"], row["block"]) == ("r\nx", 'k<a, "b">', "1x1x1", "32x1x1")
    assert (row["duration_ns"], row["dram_read_bytes"], row["dram_percent"]) == ("12345678901", "0", "12.3457")
    assert row["fp32_flops"] == ""


def test_names_lose_what_is_surely_secret() -> None:
    """And nothing that is also a word."""
    secrets = Secrets()
    secrets.add([Secret(b"/home/alice/run7", "home"), Secret(b"gpu", "host", sure=False)])
    rows, _ = counter_rows([kernel("gpu_k", "load /home/alice/run7/x.pt")], [])
    (row,) = without_secrets(rows, secrets)
    assert (row.path, row.kernel) == (
        r"load \/home\/alice\/run7\/x.pt".replace(r"\/home\/alice\/run7", "[home]"),
        "gpu_k",
    )


def test_a_part_of_a_path_is_written_so_that_it_can_be_told_apart() -> None:
    """A slash, and a backslash where it could be taken for the mark of one."""
    assert [path_part(name) for name in ("a", "a/b", "a\\", "a\\/b", "a\\b")] == [
        *("a", "a\\/b", "a\\\\", "a\\\\\\/b", "a\\b")
    ]
