// tiled_o6: o5 for full GPUs, for wide scores, for bf16 and for larger heads; after FlashAttention 3 where HEAD_DIM is 128.
//
// Against o5:
// - HEAD_DIM 128: a warpgroup starts the scores of the next keys, then the values of these, and makes weights of the former
//   while the latter are multiplied. Two warpgroups take turns at the tensor cores, so that one's products run beside the
//   other's exponentials. All of that lives in 232 registers: 64 for the output, 64 for scores, twice 32 for weights.
// - HEAD_DIM 64: where there are tiles enough, four warpgroups have 64 rows each (256 a tile), share no keys and hand over
//   nothing. With a causal mask the last rows have most to do; so they change places from tile to tile. Where tiles are
//   few, a launch is of a build with half or a quarter of the rows, in which warpgroups share keys as in o5.
// - Tiles are dealt head by head, a heavy one with a light one. o5 deals the heaviest of all heads first: its rounds read
//   keys and values of all heads, which for B4 H16 S4096 D128 are 128 MiB, twice what L2 holds. Only what is left for the
//   last rounds is dealt from heavy to light. The copying threads alone know of it; with the queries they leave a note.
// - The maximum is looked for where it was needed lately. As in o5, weights are 2^(score - shift) with the shift of an
//   earlier tile, and their sum says whether they are too large. A warp that found one too large looks for the highest
//   score first for its next tiles (one instruction a score), in place of making weights twice, and remembers that from
//   one task to the next. bf16 holds weights up to 2^127, so there it hardly ever comes to that.
// - The logarithm of each row's sum of exponentials, for a backward pass, where it is asked for.
//
// Predicts: B4 H16 S4096 D128 causal in 420 us (o5 482, FlashAttention 4 442, cudnn 491; the whole table is in
// analysis/tiled-attention/o5-o6), B16 H16 S1024 D128 without a mask in 230, B8 H16 D64 causal in 24 at S = 512 and in 170
// at 2048; for B1 H8 no change but where scores are wide.
// Measured on an NVIDIA H200 (`nsysprof bench --preset best-kernels`, without launches): 395 us (o5 493, FlashAttention 4
// 454, cudnn 506), 210 (cudnn 234), 22.7 and 148 (cudnn 26.3 and 189), and in bf16 B2 H16 S8192 D128 718
// (FlashAttention 4 810, cudnn 921). B1 H8 D64 12.2 at S = 1024 and 39.9 at 4096 (o5 12.6 and 40.2), there 47.8 with
// scores of sigma 30 (FlashAttention 4 52.6, o5 56.1). Nothing is spilled. What missed: scores of sigma 30 cost 9 %
// at D128, where 5 were predicted. A first build, that chose the height of tiles itself, took 2 us longer to its first
// copy; its counters: tensor cores 88 % busy at the first of these, o5 72 %; 225 MB read from memory in place of 1,141.
// Since then one change, for inputs that are infinite, of what a warp counts as the first tile: all cases right.
//
// Macros: HALF (1: fp16, 0: bf16), HEAD_DIM (64 or 128), ROWS (of a tile: 64 for each warpgroup that computes, or half or a
// quarter of that), COLUMNS (keys of a tile, 64 or 128), WARPS (4 for TMA and 4 for each warpgroup that computes), STAGES
// (places of the ring).

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

struct Problem {
    int queries, keys, heads, causal, diagonal;
    float scale;  // of the scores, times log2(e)
    float* lse;   // where the logarithm of the sum of a row's exponentials goes, if anywhere
};

constexpr int WARPGROUP = 128;
constexpr int WARPGROUP_ROWS = 64;
constexpr int CONSUMERS = WARPS / 4 - 1;
constexpr int GROUPS = ROWS / WARPGROUP_ROWS;   // of rows of a tile; warpgroups beyond share the keys of the same rows
constexpr int SHARES = CONSUMERS / GROUPS;
constexpr bool OVERLAP = HEAD_DIM == 128;       // a warpgroup multiplies while it makes weights; else they only take turns
constexpr bool TURNS = OVERLAP;                 // at the tensor cores
constexpr int SWIZZLED = 128;                   // bytes of a row of shared memory for TMA: 64 columns of a tile
constexpr int QUERY_BYTES = WARPGROUP_ROWS * HEAD_DIM * 2;
constexpr int TILE_BYTES = COLUMNS * HEAD_DIM * 2;
constexpr int PLACE_BYTES = OVERLAP ? TILE_BYTES : 2 * TILE_BYTES;  // a place of the ring has a tile, or keys and values
constexpr int PART_FLOATS = HEAD_DIM / 2 + 4;  // of a thread: its accumulator, two shifts, two sums
constexpr int PART_BYTES = PART_FLOATS * WARPGROUP * 4;
constexpr float LARGEST = HALF ? 32768.f : 1e18f;  // sum of a thread's weights of a tile: fp16 goes up to 65504
constexpr float SLACK = HALF ? 10.f : 50.f;        // powers of two by which a weight may be above 1
constexpr int PATIENCE = 16;                       // tiles for which a warp stays wary
constexpr float LOWEST = -1e30f;                   // the shift of a row that has seen nothing
#define NEVER __int_as_float(0xff800000)           // minus infinity: the score of what is masked

// The warpgroup with the copying threads gives up its registers for the others.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 112;

// Shared memory, from an address that is a multiple of 1024: queries, the ring, parts of results, barriers, and for each
// warpgroup which rows it has.
constexpr int RING_AT = GROUPS * QUERY_BYTES;
constexpr int PARTS_AT = RING_AT + STAGES * PLACE_BYTES;
constexpr int QUERIES_FULL = PARTS_AT + (CONSUMERS - GROUPS) * PART_BYTES;
constexpr int QUERIES_EMPTY = QUERIES_FULL + 8 * GROUPS;
constexpr int PLACE_FULL = QUERIES_EMPTY + 8 * GROUPS;
constexpr int PLACE_EMPTY = PLACE_FULL + 8 * STAGES;
constexpr int PART_FULL = PLACE_EMPTY + 8 * STAGES;
constexpr int PART_EMPTY = PART_FULL + 8 * (CONSUMERS - GROUPS);
constexpr int TASKS_AT = PART_EMPTY + 8 * (CONSUMERS - GROUPS);
static_assert(CONSUMERS == (OVERLAP ? 2 : 4) && GROUPS * SHARES == CONSUMERS && TASKS_AT % 16 == 0, "warpgroups");
static_assert(!OVERLAP || SHARES == 1, "warpgroups that take turns share nothing");
static_assert(HEAD_DIM % 64 == 0 && COLUMNS == (OVERLAP ? 128 : 64), "tiles");

// ---- barriers and copies ----

__device__ __forceinline__ void barrier_init(u32 barrier, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the barrier's first, third, ... phase (parity 0) or of its second, fourth, ... (parity 1, which
// a new barrier has behind it).
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity)
{
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
}

// One arrival for the whole warp, after all of its threads came here.
__device__ __forceinline__ void barrier_arrive(u32 barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival for each thread: for what threads wrote themselves, as compute-sanitizer's racecheck takes the one above to
// speak for the arriving thread only.
__device__ __forceinline__ void barrier_arrive_each(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Copies a box of the map. Rows past the end of a head arrive as zeros and count as bytes all the same.
__device__ __forceinline__ void copy_tile(u32 to, const TensorMap& map, int row, int head, u32 barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %2, %4}], [%5];" ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(head), "r"(barrier)
        : "memory");
}

// Turns at the tensor cores: a warpgroup waits for its own named barrier, at which the other one arrives.
__device__ __forceinline__ void await_turn(int consumer)
{
    if (TURNS) asm volatile("bar.sync %0, %1;" ::"r"(1 + consumer), "n"(2 * WARPGROUP) : "memory");
}

__device__ __forceinline__ void pass_turn(int consumer)
{
    if (TURNS) asm volatile("bar.arrive %0, %1;" ::"r"(2 - consumer), "n"(2 * WARPGROUP) : "memory");
}

// ---- tensor cores ----

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all but the last `LEFT` pieces of work are done.
template <int LEFT>
__device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Keeps the compiler from using an accumulator before the wait above this.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Describes an operand in shared memory, swizzled: 8 rows are 1024 bytes. Where the columns are the wide dimension of
// the product (V), `chunk` bytes are between one 64 of them and the next.
__device__ __forceinline__ u64 operand(u32 address, int chunk)
{
    return u64(address >> 4) | u64(chunk >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

#if HALF
#define TYPES "f32.f16.f16 {"
#else
#define TYPES "f32.bf16.bf16 {"
#endif
#define EIGHT(d, i)                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define R32(d, i) EIGHT(d, i), EIGHT(d, i + 8), EIGHT(d, i + 16), EIGHT(d, i + 24)
#define R64(d) R32(d, 0), R32(d, 32)
#define NAMES_32                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
    "%27,%28,%29,%30,%31"
#define NAMES_64                                                                                             \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
             "%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d (64 x 64) = a * b' if `first`, else d += a * b': both in shared memory, 16 columns of each.
__device__ __forceinline__ void product(float (&d)[32], u64 a, u64 b, bool first)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;}"
                 : R32(d, 0) : "l"(a), "l"(b), "r"(int(first)));
}

// The same for 64 x 128.
__device__ __forceinline__ void product(float (&d)[64], u64 a, u64 b, bool first)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16." TYPES NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;}"
                 : R64(d) : "l"(a), "l"(b), "r"(int(first)));
}

// d (64 x 64) += a * b: 16 columns of a in registers, 16 rows of b in shared memory.
__device__ __forceinline__ void product(float (&d)[32], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;}"
                 : R32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same for 64 x 128.
__device__ __forceinline__ void product(float (&d)[64], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16." TYPES NAMES_64 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1;}"
                 : R64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Starts s = q * k'.
__device__ __forceinline__ void start_scores(float (&s)[COLUMNS / 2], u32 queries, u32 keys)
{
    const u64 q = operand(queries, 0), k = operand(keys, 0);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        const int chunk = i / 4 * SWIZZLED, inside = i % 4 * 32;
        product(s, q + (chunk * WARPGROUP_ROWS + inside) / 16, k + (chunk * COLUMNS + inside) / 16, i == 0);
    }
    wgmma_commit();
}

// Starts o += p * v.
__device__ __forceinline__ void start_values(float (&o)[HEAD_DIM / 2], const u32 (&p)[COLUMNS / 4], u32 values)
{
    const u64 v = operand(values, COLUMNS * SWIZZLED);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) product(o, p + 4 * i, v + i * 16 * SWIZZLED / 16);
    wgmma_commit();
}

// ---- softmax ----

// Of the two rows of a thread, r and r + 8 of its warp's 16: element i of an accumulator stands in row i / 2 % 2 of
// them, in column i / 4 * 8 + i % 2 from the thread's first. The four threads of a row have the same shift; each has
// the sum of its own columns. `wary` is the same in a warp, which votes by it.
struct Rows {
    float shift[2], sum[2];
    int wary;  // how many tiles more to look for the maximum first
};

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 pack(float low, float high)
{
    u32 both;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

__device__ __forceinline__ void mask(float (&s)[COLUMNS / 2], int column, const int (&seen)[2])
{
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++)
        if (column + i / 4 * 8 + i % 2 >= seen[i / 2 % 2]) s[i] = NEVER;
}

__device__ __forceinline__ void rescale(float (&o)[HEAD_DIM / 2], const float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= factor[i / 2 % 2];
}

// The highest of a thread's scores in its two rows.
__device__ __forceinline__ void highest(float (&top)[2], const float (&s)[COLUMNS / 2])
{
    float two[2][2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        two[r][0] = s[2 * r], two[r][1] = s[2 * r + 1];
#pragma unroll
        for (int i = 2 * r + 4; i < COLUMNS / 2; i += 4) {
            two[r][0] = fmaxf(two[r][0], s[i]);
            two[r][1] = fmaxf(two[r][1], s[i + 1]);
        }
        top[r] = fmaxf(two[r][0], two[r][1]);
    }
}

// Raises the shifts to the highest score so far. `decay` becomes what was added up with the old ones is worth now.
__device__ __forceinline__ void raise(Rows& rows, float (&decay)[2], const float (&top)[2], float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float both = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        both = fmaxf(both, __shfl_xor_sync(~0u, both, 2));
        const float shift = fmaxf(rows.shift[r], both * scale);
        decay[r] = exp2_fast(rows.shift[r] - shift);
        rows.shift[r] = shift;
        rows.sum[r] *= decay[r];
    }
}

// Looks for the maximum first, and raises the shifts where a weight would be above 2^SLACK; says whether it did.
__device__ __forceinline__ bool raise_if_behind(Rows& rows, float (&decay)[2], const float (&s)[COLUMNS / 2], float scale)
{
    float top[2];
    highest(top, s);
    const bool behind = top[0] * scale - rows.shift[0] > SLACK || top[1] * scale - rows.shift[1] > SLACK;
    if (!__any_sync(~0u, behind)) return false;
    raise(rows, decay, top, scale);
    return true;
}

// The weights 2^(score - shift), packed: the layout of the accumulator, two columns in a word, is the one that the next
// product wants on its left. `total` becomes what they add up to.
__device__ __forceinline__ void weigh(u32 (&p)[COLUMNS / 4], const float (&s)[COLUMNS / 2], const float (&shift)[2],
                                      float (&total)[2], float scale)
{
    float sum[2][2] = {{0.f, 0.f}, {0.f, 0.f}};
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; i++) {
        const int r = i % 2;
        const float low = exp2_fast(fmaf(s[2 * i], scale, -shift[r]));
        const float high = exp2_fast(fmaf(s[2 * i + 1], scale, -shift[r]));
        sum[r][0] += low;
        sum[r][1] += high;
        p[i] = pack(low, high);
    }
    total[0] = sum[0][0] + sum[0][1];
    total[1] = sum[1][0] + sum[1][1];
}

// Turns the scores of a tile into weights, without looking for the maximum unless it is wary. Says whether it raised the
// shifts; then what was added up so far is to be multiplied by `decay`. In the first tile of a task every shift is raised,
// which is no reason to be wary.
__device__ __forceinline__ bool softmax(u32 (&p)[COLUMNS / 4], const float (&s)[COLUMNS / 2], Rows& rows,
                                        float (&decay)[2], float scale, bool first)
{
    float total[2];
    bool raised = false;
    if (rows.wary > 0) {
        rows.wary--;
        raised = raise_if_behind(rows, decay, s, scale);
        if (raised && !first) rows.wary = PATIENCE;
    }
    weigh(p, s, rows.shift, total, scale);
    if (!__all_sync(~0u, total[0] <= LARGEST && total[1] <= LARGEST)) {
        float top[2];
        highest(top, s);
        raise(rows, decay, top, scale);
        weigh(p, s, rows.shift, total, scale);
        rows.wary = PATIENCE;
        raised = true;
    }
    rows.sum[0] += total[0];
    rows.sum[1] += total[1];
    return raised;
}

// ---- which work ----

// What a warpgroup, or several that share the keys, is to do: 64 rows from `row` on. The ring has `count` K/V tiles for it
// and for those beside it; its own rows may see fewer.
struct Task {
    int row, head, count;  // no head where there is no more to do
};

__device__ __forceinline__ u32 task_at(u32 shared, int slot) { return shared + TASKS_AT + 16 * slot; }

__device__ __forceinline__ void write_task(u32 to, int row, int head, int count)
{
    asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(to), "r"(row), "r"(head) : "memory");
    asm volatile("st.shared.s32 [%0 + 8], %1;" ::"r"(to), "r"(count) : "memory");
}

__device__ __forceinline__ Task read_task(u32 from)
{
    Task task;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(task.row), "=r"(task.head) : "r"(from) : "memory");
    asm volatile("ld.shared.s32 %0, [%1 + 8];" : "=r"(task.count) : "r"(from) : "memory");
    return task;
}

__device__ __forceinline__ int tiles_seen(const Problem& problem, int first_row, int rows)
{
    const int end = min(first_row + rows, problem.queries);
    const int seen = problem.causal ? min(problem.keys, end + problem.diagonal) : problem.keys;
    return first_row < problem.queries && seen > 0 ? (seen + COLUMNS - 1) / COLUMNS : 0;
}

// Deals the tiles to the blocks. Without a mask all are equal and come head by head. With one, a heavy and a light tile
// of the same head make a pair, and all pairs are equal: so these come head by head as well, and few heads at a time are
// in the L2 cache. What is left for the last rounds is dealt from the heaviest to the lightest, to and fro.
struct Dealer {
    int step;                    // how many tiles this block has had
    int blocks;                  // tiles of a head
    int rounds;                  // of pairs, all blocks
    int first_head, first_pair;  // of the rest

    __device__ __forceinline__ Dealer(const Problem& problem)
    {
        step = 0;
        blocks = (problem.queries + ROWS - 1) / ROWS;
        const int pairs = (blocks + 1) / 2;
        rounds = first_head = first_pair = 0;
        if (pairs * problem.heads >= 2 * gridDim.x) {
            rounds = pairs * problem.heads / gridDim.x - 1;
            first_head = rounds * gridDim.x / pairs;
            first_pair = rounds * gridDim.x % pairs;
        }
    }

    // The block's next tile; false where there is none.
    __device__ __forceinline__ bool next(const Problem& problem, Task& task)
    {
        const int grid = gridDim.x, whole = problem.heads - 1 - first_head;  // heads of which all is left for the rest
        const bool paired = problem.causal && step < 2 * rounds, rest = problem.causal && !paired;
        int index = (paired ? step / 2 : step) * grid + blockIdx.x, by = paired ? (blocks + 1) / 2 : blocks;
        bool first = false;
        if (rest) {
            const int round = step - 2 * rounds;
            index = round * grid + (round % 2 ? grid - 1 - blockIdx.x : blockIdx.x);
            // Of the first head only the tiles between `first_pair` and its partner are left.
            const int outer = first_pair * whole, inner = (blocks - 2 * first_pair) * (whole + 1);
            first = index >= outer && index < outer + inner;
            if (first) index -= outer;
            else if (index >= outer) index -= inner;
            if (!first && index >= 2 * outer) return false;
            by = whole + first;
        }
        const int quotient = index / by;
        int rank = index - quotient * by;  // 0 for the heaviest
        task.head = quotient;
        if (rest) {
            task.head = first_head + !first + rank;
            rank = quotient;
            if (first) rank += first_pair;
            else if (rank >= first_pair) rank += blocks - 2 * first_pair;
        } else if (step % 2 && paired) {
            rank = blocks - 1 - rank;
        } else if (paired && rank == blocks - 1 - rank) {
            step++;  // the middle one has no partner
        }
        if (task.head >= problem.heads) return false;
        step++;
        task.row = (blocks - 1 - rank) * ROWS;
        task.count = tiles_seen(problem, task.row, ROWS);
        return true;
    }
};

// A place of the ring. `parity` changes with each time around.
struct Place {
    u32 index, parity;
};

__device__ __forceinline__ Place place_of(u32 position) { return {position % STAGES, position / STAGES % 2}; }

// To the one `by` further on, at most STAGES.
__device__ __forceinline__ void advance(Place& place, u32 by)
{
    place.index += by;
    if (place.index >= STAGES) {
        place.index -= STAGES;
        place.parity ^= 1;
    }
}

__device__ __forceinline__ u32 tile_at(u32 shared, Place place) { return shared + RING_AT + place.index * PLACE_BYTES; }
__device__ __forceinline__ u32 full_at(u32 shared, Place place) { return shared + PLACE_FULL + 8 * place.index; }
__device__ __forceinline__ u32 empty_at(u32 shared, Place place) { return shared + PLACE_EMPTY + 8 * place.index; }

// ---- the copying threads ----

__device__ __forceinline__ void fill(u32 shared, Place& place, const TensorMap& map, int row, int head)
{
    barrier_wait(empty_at(shared, place), place.parity ^ 1);
    barrier_expect(full_at(shared, place), TILE_BYTES);
    copy_tile(tile_at(shared, place), map, row, head, full_at(shared, place));
    advance(place, 1);
}

// Keys and values, in the order in which they are used.
__device__ __forceinline__ void produce(const TensorMap& k, const TensorMap& v, const Problem& problem,
                                        Dealer dealer, Task task, bool more, u32 shared)
{
    Place place = {0, 0};
    for (; more; more = dealer.next(problem, task)) {
#pragma unroll 1
        for (int i = 0; i < task.count; i++) {
            if (OVERLAP) {
                fill(shared, place, k, i * COLUMNS, task.head);
                if (i) fill(shared, place, v, (i - 1) * COLUMNS, task.head);
            } else {
                barrier_wait(empty_at(shared, place), place.parity ^ 1);
                barrier_expect(full_at(shared, place), 2 * TILE_BYTES);
                copy_tile(tile_at(shared, place), k, i * COLUMNS, task.head, full_at(shared, place));
                copy_tile(tile_at(shared, place) + TILE_BYTES, v, i * COLUMNS, task.head, full_at(shared, place));
                advance(place, 1);
            }
        }
        if (OVERLAP && task.count) fill(shared, place, v, (task.count - 1) * COLUMNS, task.head);
    }
}

// Queries, and with them which ones they are, so that the warpgroups that compute need not know how tiles are dealt. By a
// thread of its own, which does not wait for keys and values.
__device__ __forceinline__ void produce_queries(const TensorMap& q, const Problem& problem,
                                                Dealer dealer, Task task, bool more, u32 shared)
{
    for (int round = 0;; round++) {
        if (round) more = dealer.next(problem, task);
#pragma unroll 1
        for (int slot = 0; slot < GROUPS; slot++) {
            // With a causal mask the last rows have most to do: so a warpgroup has the last in one round, the first in
            // the next.
            const int group = !OVERLAP && round % 2 ? GROUPS - 1 - slot : slot;
            const int row = task.row + group * WARPGROUP_ROWS;
            const u32 full = shared + QUERIES_FULL + 8 * slot;
            barrier_wait(shared + QUERIES_EMPTY + 8 * slot, (round + 1) % 2);
            write_task(task_at(shared, slot), row, more ? task.head : -1, task.count);
            if (more) {
                barrier_expect(full, QUERY_BYTES);
                copy_tile(shared + slot * QUERY_BYTES, q, row, task.head, full);
            } else {
                barrier_arrive_each(full);
            }
        }
        if (!more) break;
    }
}

// ---- the computing warpgroups ----

// How many keys a thread's two rows see.
__device__ __forceinline__ void keys_seen(int (&seen)[2], const Problem& problem, int row)
{
    const int last = problem.causal ? row + problem.diagonal + 1 : problem.keys;
    seen[0] = min(problem.keys, last);
    seen[1] = min(problem.keys, problem.causal ? last + 8 : last);
}

// One warpgroup's share of a tile: the K/V tiles `share`, `share` + SHARES, ... below `count`, whose first one is at
// `position` of the ring. `row` is the first of this thread's two.
__device__ __forceinline__ void attend(float (&o)[HEAD_DIM / 2], Rows& rows, const Problem& problem, u32 shared,
                                       u32 queries, u32 position, int row, int share, int count)
{
    if (share >= count) return;
    int seen[2];
    keys_seen(seen, problem, row);
    const int column = threadIdx.x % 4 * 2;
    float s[COLUMNS / 2], decay[2];
    u32 p[COLUMNS / 4];
    Place place = place_of(position + share);
    barrier_wait(full_at(shared, place), place.parity);
    start_scores(s, queries, tile_at(shared, place));
    wgmma_wait<0>();
    settle(s);
    for (int at = share;; at += SHARES) {
        if ((at + 1) * COLUMNS > seen[0]) mask(s, at * COLUMNS + column, seen);
        if (softmax(p, s, rows, decay, problem.scale, at == share)) rescale(o, decay);
        if (at + SHARES >= count) break;
        // The products with these values and with the next keys go to the tensor cores as one piece of work; meanwhile
        // the other warpgroups are at their weights.
        const u32 values = tile_at(shared, place) + TILE_BYTES, empty = empty_at(shared, place);
        advance(place, SHARES);
        barrier_wait(full_at(shared, place), place.parity);
        start_values(o, p, values);
        start_scores(s, queries, tile_at(shared, place));
        wgmma_wait<0>();
        settle(s);
        settle(o);
        barrier_arrive(empty);
    }
    start_values(o, p, tile_at(shared, place) + TILE_BYTES);
    wgmma_wait<0>();
    settle(o);
    barrier_arrive(empty_at(shared, place));
}

// The same by a warpgroup that overlaps its own work: the scores of the next keys are started before the values of
// these, and turned into weights while the values are multiplied. Keys and values have a place of the ring each, in the
// order in which they are used: K0, K1, V0, K2, V1, ...
__device__ __forceinline__ void attend_overlapped(float (&o)[HEAD_DIM / 2], Rows& rows, const Problem& problem,
                                                  u32 shared, u32 queries, u32 queries_empty, Place& place, int row,
                                                  int count, int consumer)
{
    if (count == 0) {
        barrier_arrive_each(queries_empty);
        return;
    }
    int seen[2];
    keys_seen(seen, problem, row);
    const int column = threadIdx.x % 4 * 2;
    float s[COLUMNS / 2], decay[2];
    u32 p[COLUMNS / 4], next[COLUMNS / 4];
    barrier_wait(full_at(shared, place), place.parity);
    start_scores(s, queries, tile_at(shared, place));
    wgmma_wait<0>();
    settle(s);
    barrier_arrive(empty_at(shared, place));
    advance(place, 1);
    if (count == 1) barrier_arrive_each(queries_empty);
    if (COLUMNS > seen[0]) mask(s, column, seen);
    softmax(p, s, rows, decay, problem.scale, true);
    // `now` are the weights of the keys before, which are multiplied with their values; `then` become those of tile `at`.
    // The tensor cores read `now` meanwhile, and a second try at `then` needs the scores: so both have registers.
    auto step = [&](int at, u32(&now)[COLUMNS / 4], u32(&then)[COLUMNS / 4]) {
        const Place keys = place;
        advance(place, 1);
        const Place values = place;
        advance(place, 1);
        barrier_wait(full_at(shared, keys), keys.parity);
        await_turn(consumer);
        start_scores(s, queries, tile_at(shared, keys));
        barrier_wait(full_at(shared, values), values.parity);
        start_values(o, now, tile_at(shared, values));
        pass_turn(consumer);
        wgmma_wait<1>();
        settle(s);
        barrier_arrive(empty_at(shared, keys));
        if (at + 1 == count) barrier_arrive_each(queries_empty);
        if ((at + 1) * COLUMNS > seen[0]) mask(s, at * COLUMNS + column, seen);
        const bool raised = softmax(then, s, rows, decay, problem.scale, false);
        wgmma_wait<0>();
        settle(o);
        barrier_arrive(empty_at(shared, values));
        if (raised) rescale(o, decay);
    };
    auto finish = [&](u32(&now)[COLUMNS / 4]) {
        barrier_wait(full_at(shared, place), place.parity);
        start_values(o, now, tile_at(shared, place));
        wgmma_wait<0>();
        settle(o);
        barrier_arrive(empty_at(shared, place));
        advance(place, 1);
    };
    int at = 1;
    for (; at + 1 < count; at += 2) {
        step(at, p, next);
        step(at + 1, next, p);
    }
    if (at < count) {
        step(at, p, next);
        finish(next);
    } else {
        finish(p);
    }
}

// Leaves the part of this warpgroup for the one that stores the rows.
__device__ __forceinline__ void hand_over(const float (&o)[HEAD_DIM / 2], const Rows& rows, u32 shared, float* parts,
                                          int index, int round)
{
    float* part = parts + index * PART_FLOATS * WARPGROUP + threadIdx.x % WARPGROUP;
    barrier_wait(shared + PART_EMPTY + 8 * index, (round + 1) % 2);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) part[i * WARPGROUP] = o[i];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        part[(HEAD_DIM / 2 + r) * WARPGROUP] = rows.shift[r];
        part[(HEAD_DIM / 2 + 2 + r) * WARPGROUP] = rows.sum[r];
    }
    barrier_arrive_each(shared + PART_FULL + 8 * index);
}

// Adds the part that another warpgroup handed over.
__device__ __forceinline__ void take_over(float (&o)[HEAD_DIM / 2], Rows& rows, u32 shared, const float* parts,
                                          int index, int round)
{
    const float* part = parts + index * PART_FLOATS * WARPGROUP + threadIdx.x % WARPGROUP;
    float own[2], theirs[2];
    barrier_wait(shared + PART_FULL + 8 * index, round % 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float shift = part[(HEAD_DIM / 2 + r) * WARPGROUP], sum = part[(HEAD_DIM / 2 + 2 + r) * WARPGROUP];
        const float top = fmaxf(shift, rows.shift[r]);
        own[r] = exp2_fast(rows.shift[r] - top);
        theirs[r] = exp2_fast(shift - top);
        rows.shift[r] = top;
        rows.sum[r] = rows.sum[r] * own[r] + sum * theirs[r];
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = o[i] * own[i / 2 % 2] + part[i * WARPGROUP] * theirs[i / 2 % 2];
    barrier_arrive_each(shared + PART_EMPTY + 8 * index);
}

// Divides by the sums and stores. The four threads of a row first trade words, so that each has 16 bytes in a piece.
__device__ __forceinline__ void store(const float (&o)[HEAD_DIM / 2], const Rows& rows, unsigned short* out,
                                      const Problem& problem, int head, int row)
{
    const int lane = threadIdx.x % 4;
    const size_t first = size_t(head) * problem.queries;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float factor = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
        const bool inside = row + 8 * r < problem.queries;
        if (problem.lse && inside && lane == 0)
            problem.lse[first + row + 8 * r] = sum > 0.f ? 0.69314718f * (rows.shift[r] + log2f(sum)) : NEVER;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            u32 word[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = (4 * i + j) * 4 + 2 * r;
                word[j] = pack(o[at] * factor, o[at + 1] * factor);
            }
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (!(j & bit)) {
                        const u32 other = __shfl_xor_sync(~0u, lane & bit ? word[j] : word[j + bit], bit);
                        if (lane & bit)
                            word[j] = other;
                        else
                            word[j + bit] = other;
                    }
            if (inside)
                *reinterpret_cast<uint4*>(out + (first + row + 8 * r) * HEAD_DIM + 32 * i + 8 * lane) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// A warpgroup that computes. Those with the same rows share the keys of a tile; the first of them stores the rows.
__device__ __forceinline__ void consume(unsigned short* out, const Problem& problem, u32 shared, float* parts,
                                        int consumer)
{
    const int slot = consumer % GROUPS, share = consumer / GROUPS;
    const int inside = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    const u32 queries = __shfl_sync(~0u, shared + slot * QUERY_BYTES, 0);
    const u32 queries_empty = shared + QUERIES_EMPTY + 8 * slot;
    u32 position = 0;
    Place place = {0, 0};
    int wary = 1;  // the first shifts of a task are always those of highest scores
    if (TURNS && consumer == 1) pass_turn(consumer);
    for (int round = 0;; round++) {
        barrier_wait(shared + QUERIES_FULL + 8 * slot, round % 2);
        const Task task = read_task(task_at(shared, slot));
        if (task.head < 0) break;
        const int row = __shfl_sync(~0u, task.row, 0), total = __shfl_sync(~0u, task.count, 0);
        float o[HEAD_DIM / 2];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;
        Rows rows = {{LOWEST, LOWEST}, {0.f, 0.f}, max(1, wary)};
        if (OVERLAP) {
            attend_overlapped(o, rows, problem, shared, queries, queries_empty, place, row + inside, total, consumer);
        } else {
            const int count = tiles_seen(problem, row, WARPGROUP_ROWS);
            attend(o, rows, problem, shared, queries, position, row + inside, share, count);
            barrier_arrive_each(queries_empty);
            for (int i = share; i < total; i += SHARES)
                if (i >= count) {  // only the rows of other groups see it
                    const Place unseen = place_of(position + i);
                    barrier_wait(full_at(shared, unseen), unseen.parity);
                    barrier_arrive(empty_at(shared, unseen));
                }
            position += total;
        }
        wary = rows.wary;
        if (SHARES > 1 && share) {
            hand_over(o, rows, shared, parts, consumer - GROUPS, round);
        } else {
            for (int part = slot; part < CONSUMERS - GROUPS; part += GROUPS)
                take_over(o, rows, shared, parts, part, round);
            store(o, rows, out, problem, task.head, row + inside);
        }
    }
    if (TURNS && consumer == 0) await_turn(consumer);  // so that no arrival is left
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    tiled_o6(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
             const __grid_constant__ TensorMap v, unsigned short* out, int queries, int keys, float scale_log2e,
             int causal, int diagonal, int heads, float* lse)
{
    extern __shared__ unsigned char memory[];
    const u32 start = u32(__cvta_generic_to_shared(memory)), shared = (start + 1023) / 1024 * 1024;
    const Problem problem = {queries, keys, heads, causal, diagonal, scale_log2e, lse};
    if (threadIdx.x == 0) {
        for (int i = 0; i < GROUPS; i++) {
            barrier_init(shared + QUERIES_FULL + 8 * i, 1);
            barrier_init(shared + QUERIES_EMPTY + 8 * i, WARPGROUP * SHARES);
        }
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared + PLACE_FULL + 8 * i, 1);
            barrier_init(shared + PLACE_EMPTY + 8 * i, 4 * GROUPS);
        }
        for (int i = 0; i < CONSUMERS - GROUPS; i++) {
            barrier_init(shared + PART_FULL + 8 * i, WARPGROUP);
            barrier_init(shared + PART_EMPTY + 8 * i, WARPGROUP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // All threads meet here, those that copy with their first tile in hand.
    const auto meet = [] { asm volatile("bar.sync 0, %0;" ::"n"(WARPS * 32) : "memory"); };
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // so ptxas knows: one for the warp
    float* parts = reinterpret_cast<float*>(memory + (shared - start) + PARTS_AT);
    if (warpgroup == CONSUMERS) {
        Task task = {0, 0, 0};
        Dealer dealer(problem);
        const bool more = dealer.next(problem, task);
        meet();
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == CONSUMERS * WARPGROUP) produce(k, v, problem, dealer, task, more, shared);
        if (threadIdx.x == CONSUMERS * WARPGROUP + 32) produce_queries(q, problem, dealer, task, more, shared);
    } else {
        meet();
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume(out, problem, shared, parts, warpgroup);
    }
}
