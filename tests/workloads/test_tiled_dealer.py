"""How `tiled_o6` deals tiles to blocks: its own code, compiled for the CPU."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "workloads" / "kernels" / "tiled_o6.cu"
COMPILER = shutil.which("c++") or shutil.which("g++")
BEFORE = """
#include <algorithm>
#include <cstdio>
#define __device__
#define __forceinline__ inline
using std::max; using std::min;
struct { unsigned x; } gridDim, blockIdx;
constexpr int COLUMNS = 64;
int ROWS;
"""
# A line for each tile, in the order of each block: block, head, first row, K/V tiles.
AFTER = """
int main()
{
    Problem problem = {};
    while (scanf("%d %d %d %d %u", &problem.queries, &problem.heads, &ROWS, &problem.causal, &gridDim.x) == 5) {
        problem.keys = problem.queries;
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
            Dealer dealer(problem);
            Task task = {};
            while (dealer.next(problem, task))
                printf("%u %d %d %d\\n", blockIdx.x, task.head, task.row, task.count);
        }
        puts("end");
    }
}
"""
PROBLEMS = [
    (queries, heads, rows, causal, grid)
    for queries in (1, 64, 300, 1000, 1024, 4096)
    for heads in (1, 3, 8, 64, 131)
    for rows in (64, 128, 256)
    for causal in (0, 1)
    for grid in (1, 7, 132)
]


def part(source: str, first: str, last: str) -> str:
    """From the line that starts with the one text to before the one that starts with the other."""
    begin = source.index(f"\n{first}") + 1
    return source[begin : source.index(f"\n{last}", begin) + 1]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[int, ...]]]:
    """What every block gets, for each of the problems."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    source = SOURCE.read_text(encoding="utf-8")
    parts = [
        part(source, "struct Problem {", "constexpr int WARPGROUP"),
        part(source, "struct Task {", "__device__"),
        part(source, "__device__ __forceinline__ int tiles_seen", "// A place of the ring."),
    ]
    folder = tmp_path_factory.mktemp("dealer")
    (folder / "dealer.cpp").write_text(BEFORE + "".join(parts) + AFTER, encoding="utf-8")
    subprocess.run([COMPILER, "-O1", "-o", folder / "dealer", folder / "dealer.cpp"], check=True)
    asked = "\n".join(" ".join(map(str, problem)) for problem in PROBLEMS)
    done = subprocess.run([folder / "dealer"], input=asked, capture_output=True, text=True, check=True)
    answers = done.stdout.split("end\n")[:-1]
    return [[tuple(map(int, line.split())) for line in answer.splitlines()] for answer in answers]


def test_every_tile_is_dealt_once(dealt: list[list[tuple[int, ...]]]) -> None:
    """Whatever the numbers of heads, tiles and blocks."""
    assert len(dealt) == len(PROBLEMS)
    for (queries, heads, rows, *_), tiles in zip(PROBLEMS, dealt, strict=True):
        want = [(head, row) for head in range(heads) for row in range(0, queries, rows)]
        assert sorted(tile[1:3] for tile in tiles) == want


def test_full_gpus_are_loaded_evenly(dealt: list[list[tuple[int, ...]]]) -> None:
    """No block has 4 % more to do than the mean, where a block has pairs of tiles to take."""
    for queries, heads, rows in ((4096, 64, 128), (4096, 64, 256), (4096, 131, 128)):
        load = dict.fromkeys(range(132), 0)
        for block, _, _, count in dealt[PROBLEMS.index((queries, heads, rows, 1, 132))]:
            load[block] += count
        assert max(load.values()) < 1.04 * sum(load.values()) / 132


def test_few_heads_are_read_at_a_time(dealt: list[list[tuple[int, ...]]]) -> None:
    """The first pairs of all blocks are of as few heads as possible: 132 of them of 9, with 16 pairs a head."""
    tiles = dealt[PROBLEMS.index((4096, 64, 128, 1, 132))]
    first = {block: head for block, head, *_ in reversed(tiles)}
    assert set(first.values()) == set(range(9))
