"""Times `tiled_o6` with shorter ways to its first copy, beside itself, `tiled_o5`, cuDNN and FlashAttention 4.

    python analysis/prepared/prologue.py [--rounds N] [--output FILE]

At B1 H8 D64 a launch of `tiled_o6` takes 2 us longer than one of `tiled_o5`, whatever the length. Its disassembly (CUDA
13.0, fp16, D64) has before the first copy a division in a function of its own, at the other end of the code and so one
more read of cold memory; four loops that move the quotient to where barriers are made; and four divisions in each
thread that copies, of which two give 0 where blocks have a tile each and one is by 64, 128 or 256.

brief: barriers are counted by a shift, tiles by another, and nothing is divided that is 0. Loops and function are gone.
maps: as brief; the copy engine's descriptors are fetched at the very start.
early: as maps; the first tile is dealt while another warp makes the barriers, in code that both copying threads share.
"""

from __future__ import annotations

import sys
from pathlib import Path

BRIEF = [
    ("WARPGROUP * CONSUMERS / groups)", "WARPGROUP * CONSUMERS >> groups / 2)"),
    (
        """        blocks = (problem.queries + rows - 1) / rows;
        const int pairs = (blocks + 1) / 2;
        rounds = max(0, int(pairs * problem.heads / gridDim.x) - 1);
        first_head = rounds * gridDim.x / pairs;
        first_pair = rounds * gridDim.x % pairs;
""",
        """        blocks = (problem.queries + rows - 1) >> (6 + rows / 128);  // of 64, 128 or 256
        const int pairs = (blocks + 1) / 2;
        rounds = first_head = first_pair = 0;
        if (pairs * problem.heads >= 2 * gridDim.x) {
            rounds = pairs * problem.heads / gridDim.x - 1;
            first_head = rounds * gridDim.x / pairs;
            first_pair = rounds * gridDim.x % pairs;
        }
""",
    ),
]
MAPS = [
    (
        "    const int groups = groups_of(problem);\n    if (threadIdx.x == 0) {",
        """    if (threadIdx.x == CONSUMERS * WARPGROUP) prefetch(k), prefetch(v);
    if (threadIdx.x == CONSUMERS * WARPGROUP + 32) prefetch(q);
    const int groups = groups_of(problem);
    if (threadIdx.x == 0) {""",
    ),
    (
        "// Turns at the tensor cores: a",
        """__device__ __forceinline__ void prefetch(const TensorMap& map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Turns at the tensor cores: a""",
    ),
]
EARLY = [
    (
        """const TensorMap& v, const Problem& problem, int groups,
                                        u32 shared)
{
    Place place = {0, 0};
    Task task;
    Dealer dealer(problem, groups * WARPGROUP_ROWS);
    while (dealer.next(problem, task)) {
""",
        """const TensorMap& v, const Problem& problem,
                                        Dealer dealer, Task task, bool more, u32 shared)
{
    Place place = {0, 0};
    for (; more; more = dealer.next(problem, task)) {
""",
    ),
    (
        """const Problem& problem, int groups, u32 shared)
{
    Task task = {0, 0, 0};
    Dealer dealer(problem, groups * WARPGROUP_ROWS);
    for (int round = 0;; round++) {
        const bool more = dealer.next(problem, task);
""",
        """const Problem& problem, int groups,
                                                Dealer dealer, Task task, bool more, u32 shared)
{
    for (int round = 0;; round++) {
        if (round) more = dealer.next(problem, task);
""",
    ),
    ("    __syncthreads();\n    const int warpgroup", "    const int warpgroup"),
    (
        "    if (warpgroup == CONSUMERS) {\n",
        """    if (warpgroup == CONSUMERS) {
        Task task = {0, 0, 0};
        Dealer dealer(problem, groups * WARPGROUP_ROWS);
        const bool more = dealer.next(problem, task);
        asm volatile("bar.sync 0, %0;" ::"n"(WARPS * 32) : "memory");
""",
    ),
    (
        '    } else {\n        asm volatile("setmaxnreg.inc',
        """    } else {
        asm volatile("bar.sync 0, %0;" ::"n"(WARPS * 32) : "memory");
        asm volatile("setmaxnreg.inc""",
    ),
    ("produce(k, v, problem, groups, shared);", "produce(k, v, problem, dealer, task, more, shared);"),
    (
        "produce_queries(q, problem, groups, shared);",
        "produce_queries(q, problem, groups, dealer, task, more, shared);",
    ),
]
VARIANTS = {"brief": BRIEF, "maps": BRIEF + MAPS, "early": BRIEF + MAPS + EARLY}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tiled-attention" / "o5-o6"))
    import measure

    measure.main(VARIANTS)
