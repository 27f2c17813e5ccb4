// tiled_o5: o4 with Hopper's own instructions (sm_90a only), and with less to do for the softmax: it has no maximum in its
// inner loop, and pays for that where scores are wide. With queries ten times as large (scores of sigma 10), S = 4096
// takes it 55.1 us in place of 39.7, still ahead of FlashAttention 4 (58.6); at sigma 30 that is ahead, 52.9 against
// 55.8 (flash-attn-4 4.0.0b36, B1 H8 D64 fp16 causal, cold L2, measured on the same H200).
//
// Against o4:
// - Products are wgmma: a warpgroup (4 warps) computes 64 rows at once, asynchronously, with keys and values straight
//   from shared memory, and with the weights in the registers in which the first product left their scores.
// - One thread keeps a ring of K/V tiles full with TMA (128-byte swizzle; rows past the end of a head arrive as zeros)
//   and mbarriers, so that the warpgroups that compute neither make addresses nor wait for each other. Its warpgroup
//   gives up registers for them (setmaxnreg).
// - A block per multiprocessor stays for the whole launch. Causal tiles have up to 32 times the work of others, so they
//   are dealt from the heaviest to the lightest, to and fro: at S = 4096 each of 132 gets 32 times 128 x 128 scores.
//   For HEAD_DIM 64 two warpgroups share the keys of the same 64 rows: four of them, that is a warp more for each
//   scheduler to go on with, without larger tiles. Where tiles are few (S = 2048), they are halved and all four share.
// - No maximum in the inner loop. The weights are 2^(score - shift) with the shift of an earlier tile, which is right
//   for any shift as long as fp16 can hold them; their sum, which is needed anyway, says whether it can. Only where it
//   says no is the highest score looked for and what was added up until then scaled down. 5.5 instructions a score
//   become 3.5.
//
// Predicts: at S = 4096 17.2 GFLOP are 22 us of tensor cores (780 TFLOP/s), and 69 million powers of two are 17 us (16
// a cycle and multiprocessor). With 70 % of the larger and 4 us for the start and the end of the launch: 35 us.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o5 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 40.1 us at S = 4096, 12.5 at 1024, 19.6 at 2048, 139 at 8192 (cudnn 69.8, 16.3, 26.2, 201; flash 121,
// 20.7, 42.1, 348). With HEAD_DIM 128: 61.2 us at 4096 (cudnn 102). With a warm L2, in a trace, 36.2 us at S = 4096.
// Counters at S = 8192, before the last step: tensor cores 58 %, exponentials 60 %, issue slots 53 %. Products alone
// take 729 ns for 128 x 128 scores, the softmax alone about as much, together 1025: they overlap by less than they
// could. What missed its prediction: scores in two buffers with the maximum beside the exponentials (1270 ns), and two
// warpgroups that take turns at the exponentials (1 to 6 % instead of 20 %).
//
// Macros: HEAD_DIM (64 or 128), ROWS (128), COLUMNS (keys of a tile, 64 or 128), WARPS (4 for TMA and 4 for each
// warpgroup that computes), STAGES (of the ring, a K and a V tile each).

typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) TensorMap {
    u64 opaque[16];
};

struct Problem {
    int queries, keys, heads, causal, diagonal;
    float scale;  // of the scores, times log2(e)
};

constexpr int WARPGROUP = 128;
constexpr int WARPGROUP_ROWS = 64;
constexpr int CONSUMERS = WARPS / 4 - 1;
constexpr int GROUPS = ROWS / WARPGROUP_ROWS;  // of 64 rows; warpgroups with the same rows share the keys
constexpr bool CAN_SHARE = CONSUMERS > GROUPS;
constexpr int SWIZZLED = 128;                   // bytes of a row of shared memory for TMA: 64 columns of a tile
constexpr int QUERY_BYTES = WARPGROUP_ROWS * HEAD_DIM * 2;
constexpr int TILE_BYTES = COLUMNS * HEAD_DIM * 2;
constexpr int PART_FLOATS = HEAD_DIM / 2 + 4;  // of a thread: its accumulator, two shifts, two sums
constexpr int PART_BYTES = PART_FLOATS * WARPGROUP * 4;
constexpr float LARGEST = 16384.f;  // sum of a thread's weights of a tile: fp16 goes up to 65504
#define NEVER __int_as_float(0xff800000)  // minus infinity: the score of what is masked

// The warpgroup with the copying thread gives up its registers for the others.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 112;

// Shared memory, from an address that is a multiple of 1024: queries, the ring, parts of results, barriers.
constexpr int RING_AT = GROUPS * QUERY_BYTES;
constexpr int PARTS_AT = RING_AT + STAGES * 2 * TILE_BYTES;
constexpr int QUERIES_FULL = PARTS_AT + (CAN_SHARE ? CONSUMERS - 1 : 0) * PART_BYTES;
constexpr int QUERIES_EMPTY = QUERIES_FULL + 8;
constexpr int STAGE_FULL = QUERIES_EMPTY + 8;
constexpr int STAGE_EMPTY = STAGE_FULL + 8 * STAGES;
constexpr int PART_FULL = STAGE_EMPTY + 8 * STAGES;
constexpr int PART_EMPTY = PART_FULL + 8 * CONSUMERS;
static_assert(WARPS % 4 == 0 && GROUPS == 2 && (CONSUMERS == 2 || CONSUMERS == 4), "warpgroups");
static_assert(HEAD_DIM % 64 == 0 && (COLUMNS == 64 || COLUMNS == 128), "tiles");

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

// ---- tensor cores ----

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

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

#define EIGHT(d, i)                                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define THIRTY_TWO(d, i) EIGHT(d, i), EIGHT(d, i + 8), EIGHT(d, i + 16), EIGHT(d, i + 24)
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
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;}"
                 : THIRTY_TWO(d, 0) : "l"(a), "l"(b), "r"(int(first)));
}

// The same for 64 x 128.
__device__ __forceinline__ void product(float (&d)[64], u64 a, u64 b, bool first)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;}"
                 : THIRTY_TWO(d, 0), THIRTY_TWO(d, 32) : "l"(a), "l"(b), "r"(int(first)));
}

// d (64 x 64) += a * b: 16 columns of a in registers, 16 rows of b in shared memory.
__device__ __forceinline__ void product(float (&d)[32], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, {%32,%33,%34,%35}, %36,"
                 " add, 1, 1, 1;}"
                 : THIRTY_TWO(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same for 64 x 128.
__device__ __forceinline__ void product(float (&d)[64], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_64 "}, {%64,%65,%66,%67}, %68,"
                 " add, 1, 1, 1;}"
                 : THIRTY_TWO(d, 0), THIRTY_TWO(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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
// the sum of its own columns.
struct Rows {
    float shift[2], sum[2];
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
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// A row that has seen nothing yet is not shifted: infinity minus infinity is no number.
__device__ __forceinline__ float finite(float shift) { return shift == NEVER ? 0.f : shift; }

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

// Raises the shifts to the highest score so far. `decay` becomes what was added up with the old ones is worth now.
__device__ __forceinline__ void raise(Rows& rows, float (&decay)[2], const float (&s)[COLUMNS / 2], float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = NEVER;
#pragma unroll
        for (int i = 2 * r; i < COLUMNS / 2; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float shift = fmaxf(rows.shift[r], top * scale);
        decay[r] = exp2_fast(rows.shift[r] - finite(shift));
        rows.shift[r] = shift;
    }
}

// Turns the scores of a tile into weights. The shift of a row that has seen nothing makes them infinite or no numbers,
// so that the first scores of a row always raise it.
__device__ __forceinline__ void softmax(u32 (&p)[COLUMNS / 4], const float (&s)[COLUMNS / 2], float (&o)[HEAD_DIM / 2],
                                        Rows& rows, float scale)
{
    float total[2];
    weigh(p, s, rows.shift, total, scale);
    if (!__all_sync(~0u, total[0] <= LARGEST && total[1] <= LARGEST)) {
        float decay[2];
        raise(rows, decay, s, scale);
        rescale(o, decay);
        rows.sum[0] *= decay[0];
        rows.sum[1] *= decay[1];
        const float shift[2] = {finite(rows.shift[0]), finite(rows.shift[1])};
        weigh(p, s, shift, total, scale);
    }
    rows.sum[0] += total[0];
    rows.sum[1] += total[1];
}

// ---- which work ----

struct Tile {
    int row, head, count;  // first query; how many K/V tiles its rows can see
};

// How many groups of 64 rows a tile has. It is halved where whole ones would leave blocks idle: without a mask, if half
// of the blocks got none; with one, if the heaviest tile, `blocks` long, were more than its block's share of all of
// them, heads * blocks * (blocks + 1) / 2.
__device__ __forceinline__ int groups_of(const Problem& problem)
{
    const int blocks = (problem.queries + ROWS - 1) / ROWS;
    const bool halve = problem.causal ? 2 * gridDim.x > (blocks + 1) * problem.heads
                                      : gridDim.x >= 2 * blocks * problem.heads;
    return CAN_SHARE && halve ? GROUPS / 2 : GROUPS;
}

__device__ __forceinline__ int tiles_seen(const Problem& problem, int first_row, int rows)
{
    const int end = min(first_row + rows, problem.queries);
    const int seen = problem.causal ? min(problem.keys, end + problem.diagonal) : problem.keys;
    return first_row < problem.queries && seen > 0 ? (seen + COLUMNS - 1) / COLUMNS : 0;
}

// The tile of this block in a round. The tiles are dealt from the heaviest to the lightest, to and fro.
__device__ __forceinline__ bool tile_of(const Problem& problem, int rows, int round, Tile& tile)
{
    const int index = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const int blocks = (problem.queries + rows - 1) / rows;
    if (index >= blocks * problem.heads) return false;
    const int rank = index / problem.heads;
    tile.head = index - rank * problem.heads;
    tile.row = (problem.causal ? blocks - 1 - rank : rank) * rows;
    tile.count = tiles_seen(problem, tile.row, rows);
    return true;
}

// A place of the ring: a K tile and the V tile that goes with it. `parity` changes with each time around.
struct Stage {
    u32 index, parity;
};

__device__ __forceinline__ Stage stage_of(u32 position) { return {position % STAGES, position / STAGES % 2}; }

// To the one `by` further on, at most STAGES.
__device__ __forceinline__ void advance(Stage& stage, u32 by)
{
    stage.index += by;
    if (stage.index >= STAGES) {
        stage.index -= STAGES;
        stage.parity ^= 1;
    }
}

__device__ __forceinline__ u32 keys_at(u32 shared, Stage stage)
{
    return shared + RING_AT + stage.index * 2 * TILE_BYTES;
}

__device__ __forceinline__ u32 values_at(u32 shared, Stage stage) { return keys_at(shared, stage) + TILE_BYTES; }
__device__ __forceinline__ u32 full_at(u32 shared, Stage stage) { return shared + STAGE_FULL + 8 * stage.index; }
__device__ __forceinline__ u32 empty_at(u32 shared, Stage stage) { return shared + STAGE_EMPTY + 8 * stage.index; }

// ---- the copying thread ----

__device__ __forceinline__ void produce(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                        const Problem& problem, int groups, u32 shared)
{
    Stage stage = {0, 0};
    Tile tile;
    for (int round = 0; tile_of(problem, groups * WARPGROUP_ROWS, round, tile); round++) {
        const int filled = min(groups, (problem.queries - tile.row + WARPGROUP_ROWS - 1) / WARPGROUP_ROWS);
        barrier_wait(shared + QUERIES_EMPTY, (round + 1) % 2);
        barrier_expect(shared + QUERIES_FULL, filled * QUERY_BYTES);
        for (int group = 0; group < filled; group++)
            copy_tile(shared + group * QUERY_BYTES, q, tile.row + group * WARPGROUP_ROWS, tile.head,
                      shared + QUERIES_FULL);
        for (int i = 0; i < tile.count; i++, advance(stage, 1)) {
            barrier_wait(empty_at(shared, stage), stage.parity ^ 1);
            barrier_expect(full_at(shared, stage), 2 * TILE_BYTES);
            copy_tile(keys_at(shared, stage), k, i * COLUMNS, tile.head, full_at(shared, stage));
            copy_tile(values_at(shared, stage), v, i * COLUMNS, tile.head, full_at(shared, stage));
        }
    }
}

// ---- the computing warpgroups ----

// One warpgroup's share of a tile: the K/V tiles `share`, `share` + SHARES, ... below `count`, whose first one is at
// `position` of the ring. `row` is the first of this thread's two.
template <int SHARES>
__device__ __forceinline__ void attend(float (&o)[HEAD_DIM / 2], Rows& rows, const Problem& problem, u32 shared,
                                       u32 queries, u32 position, int row, int share, int count)
{
    if (share >= count) return;
    const int last = problem.causal ? row + problem.diagonal + 1 : problem.keys;
    const int seen[2] = {min(problem.keys, last), min(problem.keys, problem.causal ? last + 8 : last)};
    const int column = threadIdx.x % 4 * 2;
    float s[COLUMNS / 2];
    u32 p[COLUMNS / 4];
    Stage stage = stage_of(position + share);
    barrier_wait(full_at(shared, stage), stage.parity);
    start_scores(s, queries, keys_at(shared, stage));
    wgmma_wait();
    settle(s);
    for (int at = share;; at += SHARES) {
        if ((at + 1) * COLUMNS > seen[0]) mask(s, at * COLUMNS + column, seen);
        softmax(p, s, o, rows, problem.scale);
        if (at + SHARES >= count) break;
        // The products with these values and with the next keys go to the tensor cores as one piece of work; meanwhile
        // the other warpgroups are at their weights.
        const u32 values = values_at(shared, stage), empty = empty_at(shared, stage);
        advance(stage, SHARES);
        barrier_wait(full_at(shared, stage), stage.parity);
        start_values(o, p, values);
        start_scores(s, queries, keys_at(shared, stage));
        wgmma_wait();
        settle(s);
        settle(o);
        barrier_arrive(empty);
    }
    start_values(o, p, values_at(shared, stage));
    wgmma_wait();
    settle(o);
    barrier_arrive(empty_at(shared, stage));
}

// Leaves the part of this warpgroup for the one that stores the rows.
__device__ __forceinline__ void hand_over(const float (&o)[HEAD_DIM / 2], const Rows& rows, u32 shared, float* parts,
                                          int consumer, int round)
{
    float* part = parts + (consumer - 1) * PART_FLOATS * WARPGROUP + threadIdx.x % WARPGROUP;
    barrier_wait(shared + PART_EMPTY + 8 * consumer, (round + 1) % 2);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) part[i * WARPGROUP] = o[i];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        part[(HEAD_DIM / 2 + r) * WARPGROUP] = rows.shift[r];
        part[(HEAD_DIM / 2 + 2 + r) * WARPGROUP] = rows.sum[r];
    }
    barrier_arrive_each(shared + PART_FULL + 8 * consumer);
}

// Adds the part that another warpgroup handed over.
__device__ __forceinline__ void take_over(float (&o)[HEAD_DIM / 2], Rows& rows, u32 shared, const float* parts,
                                          int consumer, int round)
{
    const float* part = parts + (consumer - 1) * PART_FLOATS * WARPGROUP + threadIdx.x % WARPGROUP;
    float own[2], theirs[2];
    barrier_wait(shared + PART_FULL + 8 * consumer, round % 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float shift = part[(HEAD_DIM / 2 + r) * WARPGROUP], sum = part[(HEAD_DIM / 2 + 2 + r) * WARPGROUP];
        const float top = fmaxf(shift, rows.shift[r]);
        own[r] = exp2_fast(rows.shift[r] - finite(top));
        theirs[r] = exp2_fast(shift - finite(top));
        rows.shift[r] = top;
        rows.sum[r] = rows.sum[r] * own[r] + sum * theirs[r];
    }
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = o[i] * own[i / 2 % 2] + part[i * WARPGROUP] * theirs[i / 2 % 2];
    barrier_arrive_each(shared + PART_EMPTY + 8 * consumer);
}

// Divides by the sums and stores. The four threads of a row first trade words, so that each has 16 bytes in a piece.
__device__ __forceinline__ void store(const float (&o)[HEAD_DIM / 2], const Rows& rows, unsigned short* out,
                                      int queries, int row)
{
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float factor = sum > 0.f ? 1.f / sum : 0.f;
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
            if (row + 8 * r < queries)
                *reinterpret_cast<uint4*>(out + size_t(row + 8 * r) * HEAD_DIM + 32 * i + 8 * lane) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// A warpgroup that computes. Those with the same rows share the keys of a tile; the first of them stores the rows.
template <int TILE_GROUPS>
__device__ __forceinline__ void consume(unsigned short* out, const Problem& problem, u32 shared, float* parts,
                                        int consumer)
{
    constexpr int SHARES = CONSUMERS / TILE_GROUPS;
    const int group = consumer % TILE_GROUPS, share = consumer / TILE_GROUPS;
    const int inside = group * WARPGROUP_ROWS + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4;
    u32 position = 0;
    Tile tile;
    for (int round = 0; tile_of(problem, TILE_GROUPS * WARPGROUP_ROWS, round, tile); round++) {
        const int count = tiles_seen(problem, tile.row + group * WARPGROUP_ROWS, WARPGROUP_ROWS);
        float o[HEAD_DIM / 2];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) o[i] = 0.f;
        Rows rows = {{NEVER, NEVER}, {0.f, 0.f}};
        barrier_wait(shared + QUERIES_FULL, round % 2);
        attend<SHARES>(o, rows, problem, shared, shared + group * QUERY_BYTES, position, tile.row + inside, share,
                       count);
        barrier_arrive(shared + QUERIES_EMPTY);
        for (int i = share; i < tile.count; i += SHARES)
            if (i >= count) {  // only the rows of the other group see it
                const Stage stage = stage_of(position + i);
                barrier_wait(full_at(shared, stage), stage.parity);
                barrier_arrive(empty_at(shared, stage));
            }
        position += tile.count;
        if (SHARES > 1 && share) {
            hand_over(o, rows, shared, parts, consumer, round);
        } else {
            for (int other = consumer + TILE_GROUPS; other < CONSUMERS; other += TILE_GROUPS)
                take_over(o, rows, shared, parts, other, round);
            store(o, rows, out + size_t(tile.head) * problem.queries * HEAD_DIM, problem.queries, tile.row + inside);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
    tiled_o5(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
             const __grid_constant__ TensorMap v, unsigned short* out, int queries, int keys, float scale_log2e,
             int causal, int diagonal, int heads)
{
    extern __shared__ unsigned char memory[];
    const u32 start = u32(__cvta_generic_to_shared(memory)), shared = (start + 1023) / 1024 * 1024;
    const Problem problem = {queries, keys, heads, causal, diagonal, scale_log2e};
    const int groups = groups_of(problem);
    if (threadIdx.x == 0) {
        barrier_init(shared + QUERIES_FULL, 1);
        barrier_init(shared + QUERIES_EMPTY, 4 * CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared + STAGE_FULL + 8 * i, 1);
            barrier_init(shared + STAGE_EMPTY + 8 * i, 4 * groups);
        }
        for (int i = 0; i < CONSUMERS; i++) {
            barrier_init(shared + PART_FULL + 8 * i, WARPGROUP);
            barrier_init(shared + PART_EMPTY + 8 * i, WARPGROUP);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // so ptxas knows: one for the warp
    if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == CONSUMERS * WARPGROUP) produce(q, k, v, problem, groups, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        float* parts = reinterpret_cast<float*>(memory + (shared - start) + PARTS_AT);
        if (groups == GROUPS)
            consume<GROUPS>(out, problem, shared, parts, warpgroup);
        else
            consume<GROUPS / 2>(out, problem, shared, parts, warpgroup);
    }
}
