"""What is printed of a count."""

import re
from typing import Any

from nsysprof.counters.text import compare_command, counters_summary
from nsysprof.formats.counters import METRICS, CounterRow

RECORD: dict[str, Any] = {
    "runs": [{"name": "traffic", "passes": [1]}, {"name": "work", "passes": [14]}],
    "cache_control": "none",
    "workload": None,
}
FAMILIES = {"gemm": "gemm", "mm": "gemm", "soft": "softmax"}


def row(path: str, kernel: str, **values: float | None) -> CounterRow:
    """A launch of 1 µs with 1 KiB read at half of the bandwidth, unless told otherwise."""
    counted = {"duration_ns": 1000.0, "dram_read_bytes": 1024.0, "dram_write_bytes": 0.0, "dram_percent": 50.0}
    flops = {"tensor_flops": 0.0, "fp32_flops": 100.0, "fp16_flops": 0.0, "fp64_flops": 0.0}
    return CounterRow(path, 0, 1, kernel, "", "", {**dict.fromkeys(METRICS), **counted, **flops, **values})


def printed(*rows: CounterRow, **record: Any) -> list[str]:
    """The lines below the heads of the table, cells parted by `|`."""
    lines = counters_summary(rows, {**RECORD, **record}, FAMILIES).splitlines()
    return [re.sub(r" {2,}", "|", line) for line in lines[lines.index("") + 3 :]]


def test_a_count_is_a_line_per_range_and_family() -> None:
    """Per call: `iter*` are calls of one range. Shares of bandwidth are weighted by time."""
    text = counters_summary(
        [
            row("RUN::m/iter0", "gemm", duration_ns=3000.0, dram_percent=10.0),
            row("RUN::m/iter0", "soft", fp32_flops=0.0),
            row("RUN::m/iter1", "gemm", duration_ns=3000.0, dram_percent=10.0),
            row("RUN::m/iter1", "soft", fp32_flops=0.0),
            row("RUN::f/iter0", "mm", tensor_flops=300.0, dram_read_bytes=0.0, dram_percent=0.0),
        ],
        RECORD,
        FAMILIES,
    )
    assert text == (
        "counted 5 kernels\n"
        "\n"
        "range           kernels     time      DRAM    of peak    FLOPs    tensor cores\n"
        "------------  ---------  -------  --------  ---------  -------  --------------\n"
        "RUN::m/iter*          2  4.00 µs  2.00 KiB       20 %      100             0 %\n"
        "· gemm                1  3.00 µs  1.00 KiB       10 %      100             0 %\n"
        "· softmax             1  1.00 µs  1.00 KiB       50 %        0               -\n"
        "RUN::f/iter*          1  1.00 µs       0 B        0 %      400            75 %\n"
        "Values are per range, or per call if calls are numbered (iter0, iter1 ...). DRAM: bytes read and "
        "written, and\n"
        "% of the memory bandwidth. Bytes are from a run without replay, so L2 still holds data of earlier kernels.\n"
        "Times are from ncu, which serializes kernels; `nsysprof compare` uses the times of the report. FLOPs "
        "are from\na second run that replays each kernel (passes: 14)."
        "\n"
    )


def test_what_was_not_counted_is_a_dash() -> None:
    """Without FLOPs the instructions say whether tensor cores were used."""
    none = dict.fromkeys(("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops"))
    assert printed(row("r", "gemm", tensor_instructions=5.0, **none))[0] == "r|1|1.00 µs|1.00 KiB|50 %|-|used"
    assert printed(row("r", "gemm", tensor_instructions=0.0, **none))[0].endswith("|-|not used")
    gone = row("r", "gemm", dram_read_bytes=None, dram_percent=None, duration_ns=None, **none)
    assert printed(gone)[0] == "r|1|-|-|-|-|-"


def test_how_the_caches_were_is_told() -> None:
    """Flushed, emptied by replays, or as they were."""
    assert "flushed before every kernel" in " ".join(printed(row("r", "gemm"), cache_control="all")[1:])
    replayed = {"runs": [{"name": "traffic", "passes": [3]}]}
    assert "replay empties L2" in " ".join(printed(row("r", "gemm"), **replayed)[1:])


def test_many_ranges_and_families_are_cut_short() -> None:
    """Forty ranges, four families each; a kernel in no range has a line too."""
    lines = printed(*(row(f"r{'x' * n}", "gemm") for n in range(45)))
    assert lines[40] == "and 5 more ranges: see the table of counters"
    families = {f"k{n}": f"family{n}" for n in range(7)}
    text = counters_summary([row("", name) for name in families], RECORD, families)
    assert "(no range)" in text
    assert "· 3 more" in text


def test_the_next_command_compares_the_first_two_kinds_of_ranges() -> None:
    """All shapes of two backends, else two ranges as compare has them, else what is to be filled in."""
    runs = [row(f"RUN::{name}::S{n}/iter0", "gemm") for name in ("math", "it's") for n in (1, 2)]
    assert compare_command(runs, "t.sqlite", "t.counters.csv") == (
        "nsysprof compare t.sqlite --base 'RUN::math::*' --new 'RUN::it'\"'\"'s::*' --counters t.counters.csv"
    )
    two = [row(r"a\/b/i", "gemm"), row("c", "gemm")]
    assert r"--base 'a\/b' --new c " in compare_command(two, "t", "c")
    layers = [row("layer[0]", "gemm"), row("step0", "gemm"), row("step1", "gemm")]
    assert "--base 'layer[[]0]' --new 'step[*]' " in compare_command(layers, "t", "c")
    assert "--base GLOB --new GLOB" in compare_command([row("", "gemm")], "t", "c")
