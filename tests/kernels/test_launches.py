"""Launches: what is known of blocks, waves and occupancy, and why nothing is."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.kernels.launches import REASONS, Launches, launch_columns, launches, main_launch
from nsysprof.trace.about import Gpu
from nsysprof.trace.details import no_op_details, packed
from tests.conftest import MakeTrace
from tests.kit.kineto import annotation, launch, write_trace
from tests.kit.program import Program
from tests.kit.reports import broken_down

H200 = Gpu(0, "NVIDIA H200", sm_count=132, compute_capability=(9, 0))


def made(
    *grids: tuple[int, int, int], threads: int = 256, registers: int = 32, gpus: tuple[Gpu, ...] = (H200,)
) -> Launches:
    """The launches of kernels with these grids."""
    details = no_op_details(len(grids))
    details.grid[:] = [packed(*grid) for grid in grids]
    details.block[:] = packed(threads, 1, 1)
    details.registers[:] = registers
    details.static_shared[:] = details.dynamic_shared[:] = 0
    return launches(details, gpus)


def test_equal_launches_are_one_row() -> None:
    """Blocks per SM, waves and the empty part of the last one are those of the distinct launch."""
    found = made((264, 1, 1), (1584, 1, 1), (264, 1, 1))
    assert found.of[0] == found.of[2] != found.of[1]
    assert len(found) == 2
    row = found.of[:2]
    assert found.held.blocks[row].tolist() == [8, 8]
    assert found.waves[row].tolist() == [0.25, 1.5]
    assert found.tail[row].tolist() == [0.75, 0.5]


@pytest.mark.parametrize(
    ("grid", "threads", "registers", "gpus", "reason"),
    [
        ((0, 1, 1), 256, 32, (H200,), "grid not recorded or not possible"),
        ((1 << 31, 1, 1), 256, 32, (H200,), "grid not recorded or not possible"),
        ((-1, 1, 1), 256, 32, (H200,), "grid not recorded or not possible"),
        (((1 << 32) + 264, 1, 1), 256, 32, (H200,), "grid not recorded or not possible"),
        ((264, (1 << 16) + 1, 1), 256, 32, (H200,), "grid not recorded or not possible"),
        ((264, 1, -1), 256, 32, (H200,), "grid not recorded or not possible"),
        ((264, 1, 1), 0, 32, (H200,), "grid not recorded or not possible"),
        ((264, 1, 1), 2048, 32, (H200,), "block not possible"),
        ((264, 1, 1), 256, 4096, (H200,), "block not possible"),
        ((264, 1, 1), 256, -1, (H200,), "block not possible"),
        ((264, 1, 1), 256, 32, (), "limits of the GPU are unknown"),
        ((264, 1, 1), 256, 32, (Gpu(0, "X", 10, compute_capability=(3, 0)),), "limits of the GPU are unknown"),
        ((264, 1, 1), 256, 32, (H200, Gpu(1, "A", 108, compute_capability=(8, 0))), "GPUs of several kinds"),
    ],
)
def test_what_cannot_be_has_a_reason(
    grid: tuple[int, int, int], threads: int, registers: int, gpus: tuple[Gpu, ...], reason: str
) -> None:
    """Grids of 0, 2^31 or less than nothing, blocks that no GPU runs, and GPUs without limits give no number."""
    found = made(grid, threads=threads, registers=registers, gpus=gpus)
    assert REASONS[found.reason[0]] == reason
    columns = launch_columns(found, np.array([0, -1]))
    assert columns["geometry_unknown"].tolist() == [reason, ""]
    assert (np.array([columns[name] for name in ("waves", "tail_idle", "occupancy")]) == -1).all()


@pytest.mark.parametrize("kinds", [3, 1 << 23])
def test_the_launch_with_most_time_stands_for_a_group(kinds: int) -> None:
    """Sums decide, not counts; whatever the number of kinds, and a group without ops has none."""
    group, kind = np.array([0, 0, 0, 2, 2]), np.array([1, 1, 2, 0, 2])
    found = main_launch(group, kind, np.array([2, 2, 5, 1, 1]), 3, kinds)
    assert found.tolist()[:2] == [2, -1]


def test_kernels_csv_says_how_kernels_are_launched(tmp_path: Path) -> None:
    """The launch with most time of each kernel; PyTorch records shared memory as a sum, and copies have none."""
    events = [annotation("step", 0, 100), *launch("gemm", (10, 15), (20, 30), id=1)]
    events[2]["args"] |= {"grid": [264, 2, 1], "registers per thread": 40, "shared memory": 1024}
    path = write_trace(tmp_path / "t.json", events)
    table: pd.DataFrame = broken_down(path).kernels
    row = table.iloc[0]
    assert (row["grid"], row["block"], row["registers"], row["shared_bytes"]) == ("264x2", "128", 40, 1024)
    assert (row["blocks_per_sm"], row["occupancy"], row["occupancy_limit"]) == (12, 0.75, "registers")
    assert row["waves"] == pytest.approx(528 / 12 / 132, abs=1e-4)
    assert (row["dynamic_shared_bytes"], row["geometry_unknown"]) == (-1, "")


def test_a_row_shows_the_launch_that_took_most_of_its_time(trace: MakeTrace) -> None:
    """One launch of 100 ns and three of 1 ns, in another shape, of one kernel."""
    program = Program()
    with program.range("work"):
        for ns, blocks in [(1, 7), (100, 3), (1, 7), (1, 7)]:
            program.launch("add", ns, blocks=blocks)
        program.launch("mul", 1)
    table: pd.DataFrame = broken_down(trace(*program.items)).kernels
    assert table.set_index("kernel")["grid"].to_dict() == {"add": "3", "mul": "264"}
