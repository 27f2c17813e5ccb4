// tiled_o6_backward: the gradients of tiled_o6, in three kernels. Nothing is added up in memory, so that results are the same
// in every run; the price is that scores and the gradients of weights are computed twice, 7 products in place of 5.
//
// - `rows` makes of each query row what the others need of it: the logarithm of its sum of exponentials, to the base 2, and
//   delta, the sum of output times gradient of the output.
// - `keys` has 64 rows of K and V for each warpgroup and goes through the tiles of Q and dO: dV += P' dO, dK += dS' Q, with
//   P = 2^(scores - logarithm) and dS = P * (dO V' - delta). Scores are computed transposed, K Q': so the accumulator of one
//   product is as it stands the left operand of the next, in registers, and never goes to shared memory.
// - `queries` has 64 rows of Q and dO for each warpgroup and goes through the tiles of K and V: dQ += dS K.
//
// The last two are one function. Two tiles that a warpgroup holds are in its registers where there is room for them, two that
// pass come by TMA through a ring. A warpgroup starts products of the next tile before it has used those of this one: with
// HEAD_DIM 64 the next scores run beside the gradients of these, and what these add beside the next exponentials. The two
// warpgroups of a block share the ring. Blocks stay and take their next tile from a counter in memory, eight heads at a time,
// their heavy tiles first.
//
// fp16 holds no weight below 6e-8 and few digits below 6e-5, where those of long sequences are. So weights are made 256 times as
// large, and the gradients with which they are multiplied 256 times as small.
//
// Predicts: forward and backward, fp16 causal, B4 H16 S4096: D64 in 1,200 us, D128 in 2,050, of which 258 and 393 are the forward
// pass. A first build, without the next scores beside anything, came to 1,100 and 1,901 (`keys` 462 and 903, `queries` 354 and
// 569, `rows` 21 and 37), cudnn to 1,295 and 1,923, flash to 2,079 and 3,792. Of the present one 970 and 1,830 are predicted.
// Measured on an NVIDIA H200 (`graph replays, warm L2, beside cudnn and flash in one run`): 1,063 us and 1,783, of which `keys`
// 447 and 783, `queries` 343 and 566; cudnn 1,258 and 1,922, flash 2,068 and 3,746. B2 H16 S8192 D128 bf16 3,498 (cudnn 3,447).
// The sums of D64 are of a build with three warpgroups in `queries`, which took 345 there and brought nothing.
// What missed: D64 is 3 % faster than the first build where 11 % were predicted, so the latency of a warpgroup's own steps seems
// not to be what it waits for. No thread that computes spills.
//
// compute-sanitizer: memcheck finds nothing; racecheck reports the copy of what `rows` made as a race with the reads of it, which it
// is not: see `barrier_arrive`.
//
// Macros: HALF (1: fp16, 0: bf16), HEAD_DIM (64 or 128), COLUMNS (64, the rows of a tile that passes), WARPS (12: 4 that copy,
// 4 for each warpgroup that computes), ROWS (64 for each of these), STAGES (places of the ring).

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
constexpr int CONSUMERS = 2;                      // warpgroups that compute; one more copies
constexpr int TILE = COLUMNS;                     // rows, of queries or keys
constexpr int SWIZZLED = 128;                     // bytes of a row of shared memory for TMA: 64 columns of a tile
constexpr int HEADS = 8;                          // whose tiles are dealt in turn, from heavy to light
constexpr int TILE_BYTES = TILE * HEAD_DIM * 2;
constexpr int PLACE_BYTES = 2 * TILE_BYTES;       // of the ring: Q and dO, or K and V
constexpr int ROWS_BYTES = 2 * TILE * 4;          // of a tile of queries: logarithms, then deltas
constexpr int COMPUTING_REGISTERS = 240, COPYING_REGISTERS = 24;
constexpr float FINER = HALF ? 256.f : 1.f;       // weights are made as many times as large, as fp16 ends at 6e-8
#define NEVER __int_as_float(0xff800000)          // minus infinity: the score of what is masked

// Shared memory, from an address that is a multiple of 1024: two tiles for each warpgroup to hold, the ring, what `rows` made
// of the queries in the ring, barriers, and which tile it is.
constexpr int RING_AT = CONSUMERS * 2 * TILE_BYTES;
constexpr int ROWS_AT = RING_AT + STAGES * PLACE_BYTES;
constexpr int HELD_FULL = ROWS_AT + STAGES * ROWS_BYTES;
constexpr int HELD_EMPTY = HELD_FULL + 8;
constexpr int PLACE_FULL = HELD_EMPTY + 8;
constexpr int PLACE_EMPTY = PLACE_FULL + 8 * STAGES;
constexpr int TASK_AT = PLACE_EMPTY + 8 * STAGES;
static_assert(HEAD_DIM % 64 == 0 && TILE == 64 && ROWS == CONSUMERS * TILE && TASK_AT % 16 == 0, "tiles");
static_assert(WARPS == 4 * (CONSUMERS + 1), "warpgroups");

// ---- barriers and copies, as in tiled_o6 ----

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

// One arrival for the whole warp, after all of its threads came here. Racecheck counts it for the arriving thread only, and
// reports the next copy of logarithms and deltas into the place as a race with the reads of the others. There is none:
// __syncwarp orders their reads before the arrival, that releases and the wait of the copying thread acquires, and then that
// thread executes `proxy_fence`. The reads are over: the weights and gradients made of them are operands of products that
// were waited for. With an arrival of each thread racecheck reports nothing, for 3 to 5 % more time with D128 in fp16.
__device__ __forceinline__ void barrier_arrive(u32 barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival for each thread: for what threads read themselves.
__device__ __forceinline__ void barrier_arrive_each(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Orders what threads read through the generic proxy, before an arrival that this thread waited for, before what it copies
// next, through the async one.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies a box of the map. Rows past the end of a head arrive as zeros and count as bytes all the same.
__device__ __forceinline__ void copy_tile(u32 to, const TensorMap& map, int row, int head, u32 barrier)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %2, %4}], [%5];" ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(head), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// ---- tensor cores, as in tiled_o6 ----

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
// the product, `chunk` bytes are between one 64 of them and the next.
__device__ __forceinline__ u64 operand(u32 address, int chunk)
{
    return u64(address >> 4) | u64(chunk >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

#if HALF
#define TYPES "f32.f16.f16 {"
#else
#define TYPES "f32.bf16.bf16 {"
#endif
#define EIGHT(d, i, how)                                                                                     \
    how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]), how(d[i + 6]), \
        how(d[i + 7])
#define R32(d, i, how) EIGHT(d, i, how), EIGHT(d, i + 8, how), EIGHT(d, i + 16, how), EIGHT(d, i + 24, how)
#define R64(d, how) R32(d, 0, how), R32(d, 32, how)
#define NAMES_32                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
    "%27,%28,%29,%30,%31"
#define NAMES_64                                                                                             \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
             "%55,%56,%57,%58,%59,%60,%61,%62,%63"

// d (64 x 64) = a * b', with ADD d += a * b': both in shared memory, 16 columns of each. Where nothing is added the compiler
// is not to think that d is read: it would wait for all products before.
template <bool ADD>
__device__ __forceinline__ void product(float (&d)[32], u64 a, u64 b)
{
    if (ADD)
        asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;}"
                     : R32(d, 0, "+f") : "l"(a), "l"(b));
    else
        asm volatile("{.reg .pred add; setp.ne.s32 add, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;}"
                     : R32(d, 0, "=f") : "l"(a), "l"(b));
}

// The same with a in registers.
template <bool ADD>
__device__ __forceinline__ void product(float (&d)[32], const u32* a, u64 b)
{
    if (ADD)
        asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 0;}"
                     : R32(d, 0, "+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("{.reg .pred add; setp.ne.s32 add, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 0;}"
                     : R32(d, 0, "=f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d (64 x 64) += a * b: 16 columns of a in registers, 16 rows of b in shared memory.
__device__ __forceinline__ void product(float (&d)[32], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16." TYPES NAMES_32 "}, {%32,%33,%34,%35}, %36, add, 1, 1, 1;}"
                 : R32(d, 0, "+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// The same for 64 x 128.
__device__ __forceinline__ void product(float (&d)[64], const u32* a, u64 b)
{
    asm volatile("{.reg .pred add; setp.eq.s32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16." TYPES NAMES_64 "}, {%64,%65,%66,%67}, %68, add, 1, 1, 1;}"
                 : R64(d, "+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// A tile that a warpgroup holds: its rows as left operands, in registers or in shared memory.
template <bool IN_REGISTERS>
struct Held {
    u32 address;

    __device__ __forceinline__ void load(u32 from) { address = from; }

    // Starts s = this * tile'.
    __device__ __forceinline__ void start(float (&s)[TILE / 2], u32 tile) const
    {
        const u64 a = operand(address, 0), b = operand(tile, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++) {
            const int at = (i / 4 * SWIZZLED * TILE + i % 4 * 32) / 16;
            if (i)
                product<true>(s, a + at, b + at);
            else
                product<false>(s, a, b);
        }
        wgmma_commit();
    }
};

template <>
struct Held<true> {
    u32 words[HEAD_DIM / 4];

    // Word 4 i + j has two columns from 16 i + j / 2 * 8 + lane % 4 * 2 on, of row lane / 4 + j % 2 * 8 of the warp's. Where
    // it lies TMA has swizzled: of a row's 16-byte pieces the number is exclusive-or with the row.
    __device__ __forceinline__ void load(u32 from)
    {
        const u32 row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4, start = from + row * SWIZZLED;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 4; i++) {
            const u32 piece = (i / 4 % 4 * 2 + i / 2 % 2) ^ (row % 8);
            const u32 at = start + i / 16 * SWIZZLED * TILE + i % 2 * 8 * SWIZZLED + piece * 16 + threadIdx.x % 4 * 4;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(words[i]) : "r"(at) : "memory");
        }
    }

    __device__ __forceinline__ void start(float (&s)[TILE / 2], u32 tile) const
    {
        const u64 b = operand(tile, 0);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 16; i++)
            if (i)
                product<true>(s, words + 4 * i, b + (i / 4 * SWIZZLED * TILE + i % 4 * 32) / 16);
            else
                product<false>(s, words, b);
        wgmma_commit();
    }
};

// Starts d += p * tile.
__device__ __forceinline__ void start_sum(float (&d)[HEAD_DIM / 2], const u32 (&p)[TILE / 4], u32 tile)
{
    const u64 b = operand(tile, TILE * SWIZZLED);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < TILE / 16; i++) product(d, p + 4 * i, b + i * 16 * SWIZZLED / 16);
    wgmma_commit();
}

// ---- numbers ----

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

__device__ __forceinline__ void unpack(float (&two)[2], u32 both)
{
#if HALF
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(two[0]), "=f"(two[1]) : "r"(both));
#else
    two[0] = __uint_as_float(both << 16);
    two[1] = __uint_as_float(both & 0xffff0000);
#endif
}

// Where the number of a tile's query stands: what a thread of `keys` needs of 16 columns comes together, 8 i + 2 j and the next
// one and 8 further on the same for j = lane % 4.
__device__ __forceinline__ int place_of(int query)
{
    return query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2;
}

// ---- which work ----

// 64 rows for each warpgroup, from `row` on; tiles `begin` to `end` pass by.
struct Task {
    int row, head, begin, end;  // no head where there is no more to do
};

__device__ __forceinline__ int tiles_of(int rows) { return (rows + TILE - 1) / TILE; }

// The tiles of queries that see a key from `row` on, or those of keys that the queries before `row + rows` see.
template <bool KEYS>
__device__ __forceinline__ void tiles_passing(int& begin, int& end, const Problem& problem, int row, int rows)
{
    begin = 0;
    end = tiles_of(KEYS ? problem.queries : problem.keys);
    if (row >= (KEYS ? problem.keys : problem.queries)) end = 0;
    if (!problem.causal) return;
    if (KEYS)
        begin = min(end, max(0, row - problem.diagonal) / TILE);
    else
        end = min(end, tiles_of(max(0, min(row + rows, problem.queries) + problem.diagonal)));
}

template <bool KEYS>
__device__ __forceinline__ Task task_of(const Problem& problem, u32 index)
{
    const int blocks = ((KEYS ? problem.keys : problem.queries) + ROWS - 1) / ROWS;
    const int chunk = index / (blocks * HEADS), first = chunk * HEADS, heads = min(HEADS, problem.heads - first);
    const int inside = index - first * blocks, rank = heads > 0 ? inside / heads : blocks;
    // With a causal mask the first keys have most to do, and the last queries.
    Task task = {(KEYS ? rank : blocks - 1 - rank) * ROWS, rank < blocks ? first + inside % heads : -1, 0, 0};
    tiles_passing<KEYS>(task.begin, task.end, problem, task.row, ROWS);
    return task;
}

__device__ __forceinline__ void write_task(u32 to, const Task& task)
{
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(task.row), "r"(task.head), "r"(task.begin),
                 "r"(task.end)
                 : "memory");
}

__device__ __forceinline__ Task read_task(u32 from)
{
    Task task;
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(task.row), "=r"(task.head), "=r"(task.begin), "=r"(task.end) : "r"(from) : "memory");
    return task;
}

// A place of the ring. `parity` changes with each time around.
struct Place {
    u32 index, parity;
};

__device__ __forceinline__ void advance(Place& place)
{
    if (++place.index == STAGES) {
        place.index = 0;
        place.parity ^= 1;
    }
}

__device__ __forceinline__ u32 tile_at(u32 shared, Place place) { return shared + RING_AT + place.index * PLACE_BYTES; }
__device__ __forceinline__ u32 rows_at(u32 shared, Place place) { return shared + ROWS_AT + place.index * ROWS_BYTES; }
__device__ __forceinline__ u32 full_at(u32 shared, Place place) { return shared + PLACE_FULL + 8 * place.index; }
__device__ __forceinline__ u32 empty_at(u32 shared, Place place) { return shared + PLACE_EMPTY + 8 * place.index; }

// ---- the copying thread ----

// `held` and `passing` are each queries and gradients, or keys and values.
template <bool KEYS>
__device__ __forceinline__ void produce(const TensorMap (&held)[2], const TensorMap (&passing)[2], const float* rows,
                                        u32* counter, const Problem& problem, u32 shared)
{
    Place place = {0, 0};
    for (int round = 0;; round++) {
        const Task task = task_of<KEYS>(problem, atomicAdd(counter, 1));
        const bool more = task.head >= 0;
        // Of the ring all places but one are filled before: the last one is free only after what is held is, too.
        const int before = more ? min(task.end, task.begin + STAGES - 1) : task.begin;
        for (int i = task.begin;; i++) {
            if (i == before) {
                barrier_wait(shared + HELD_EMPTY, (round + 1) % 2);
                proxy_fence();
                write_task(shared + TASK_AT, task);
                if (!more) {
                    barrier_arrive_each(shared + HELD_FULL);
                    return;
                }
                barrier_expect(shared + HELD_FULL, CONSUMERS * 2 * TILE_BYTES);
#pragma unroll 1
                for (int j = 0; j < CONSUMERS; j++) {
                    const u32 to = shared + j * 2 * TILE_BYTES;
                    copy_tile(to, held[0], task.row + j * TILE, task.head, shared + HELD_FULL);
                    copy_tile(to + TILE_BYTES, held[1], task.row + j * TILE, task.head, shared + HELD_FULL);
                }
            }
            if (i >= task.end) break;
            const u32 full = full_at(shared, place), to = tile_at(shared, place);
            barrier_wait(empty_at(shared, place), place.parity ^ 1);
            proxy_fence();
            barrier_expect(full, PLACE_BYTES + (KEYS ? ROWS_BYTES : 0));
            copy_tile(to, passing[0], i * TILE, task.head, full);
            copy_tile(to + TILE_BYTES, passing[1], i * TILE, task.head, full);
            if (KEYS) {
                const size_t tile = size_t(task.head) * tiles_of(problem.queries) + i;
                copy_bytes(rows_at(shared, place), rows + tile * 2 * TILE, ROWS_BYTES, full);
            }
            advance(place);
        }
    }
}

// ---- the computing warpgroups ----

// Stores a thread's part of 64 rows, times `factor`. The four threads of a row first trade words, so that each has 16 bytes
// in a piece.
__device__ __forceinline__ void store(const float (&d)[HEAD_DIM / 2], float factor, unsigned short* out, int head, int rows,
                                      int row)
{
    const int lane = threadIdx.x % 4;
    const size_t first = size_t(head) * rows;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            u32 word[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int at = (4 * i + j) * 4 + 2 * r;
                word[j] = pack(d[at] * factor, d[at + 1] * factor);
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
            if (row + 8 * r < rows)
                *reinterpret_cast<uint4*>(out + (first + row + 8 * r) * HEAD_DIM + 32 * i + 8 * lane) =
                    make_uint4(word[0], word[1], word[2], word[3]);
        }
}

// Of 64 numbers of a tile's queries those of a thread's 16 columns, which are 4 and 4 in a piece, see `place_of`.
__device__ __forceinline__ void read_columns(float (&to)[16], u32 from)
{
#pragma unroll
    for (int i = 0; i < 16; i += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3]) : "r"(from + 16 * i) : "memory");
}

// A warpgroup. Element i of an accumulator stands in row i / 2 % 2 * 8 of the thread's two, in column i / 4 * 8 + i % 2 from
// its first: with KEYS, rows are keys and columns queries, else the reverse.
template <bool KEYS>
__device__ __forceinline__ void consume(unsigned short* out, unsigned short* out_values, const float* rows,
                                        const Problem& problem, u32 shared, int consumer)
{
    constexpr bool IN_REGISTERS = !KEYS || HEAD_DIM == 64;
    constexpr bool EAGER = HEAD_DIM == 64;  // scores of the next tile are started before gradients of this one's are made
    constexpr bool PACKED = KEYS;           // weights wait for their gradients in two bytes each
    const int inside = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const u32 own = __shfl_sync(~0u, shared + consumer * 2 * TILE_BYTES, 0);
    Place place = {0, 0};
    for (int round = 0;; round++) {
        barrier_wait(shared + HELD_FULL, round % 2);
        const Task task = read_task(shared + TASK_AT);
        if (task.head < 0) break;
        const int row = __shfl_sync(~0u, task.row + consumer * TILE, 0), thread_row = row + inside;
        int begin, end;
        tiles_passing<KEYS>(begin, end, problem, row, TILE);
        Held<IN_REGISTERS> held[2];
        held[0].load(own);
        held[1].load(own + TILE_BYTES);
        if (IN_REGISTERS) barrier_arrive_each(shared + HELD_EMPTY);
        float sum[HEAD_DIM / 2], sum_values[HEAD_DIM / 2];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) sum[i] = sum_values[i] = 0.f;
        settle(sum);
        settle(sum_values);
        float logarithm[2], delta[2];  // of the thread's queries, where these are rows
        if (!KEYS)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int query = thread_row + 8 * r;
                const bool is = query < problem.queries;
                const float* from = rows + (size_t(task.head) * tiles_of(problem.queries) + query / TILE) * 2 * TILE;
                logarithm[r] = is ? from[place_of(query % TILE)] : -NEVER;
                delta[r] = is ? from[TILE + place_of(query % TILE)] : 0.f;
            }
        // Of the thread's rows: the first query that sees the key, or the first key that the query does not see. Keys past the
        // end are masked where they are columns; where they are rows, these rows are not stored.
        const int seen = problem.causal ? thread_row + problem.diagonal + 1 : problem.keys;
        const int edge[2] = {KEYS ? thread_row - problem.diagonal : min(problem.keys, seen),
                             KEYS ? thread_row + 8 - problem.diagonal
                                  : min(problem.keys, problem.causal ? seen + 8 : seen)};
        auto masked = [&](int at) {
            if (KEYS) return problem.causal && at * TILE < row + TILE - 1 - problem.diagonal;
            return (at + 1) * TILE > (problem.causal ? min(problem.keys, row + problem.diagonal + 1) : problem.keys);
        };
        auto skip = [&]() {  // what passes by for the other warpgroup only
            barrier_wait(full_at(shared, place), place.parity);
            barrier_arrive(empty_at(shared, place));
            advance(place);
        };
        for (int i = task.begin; i < min(begin, task.end); i++) skip();
        if (begin < end) {
            float s[TILE / 2], d[TILE / 2], w[TILE / 2];
            float shift[16], less[16];  // of the tile's columns, where these are queries
            u32 p[TILE / 4], ds[TILE / 4];
            u32 before = 0;  // the barrier of the place before, whose last product may not be done
            Place next = place;
            auto await = [&]() { barrier_wait(full_at(shared, next), next.parity); };
            // One tile. Its scores are there, the gradients of its weights are started. Starts those of the next one.
            auto step = [&](int at, bool last) {
                const u32 tile = tile_at(shared, place), columns = rows_at(shared, place) + 8 * column;
#pragma unroll
                for (int i = 0; i < TILE / 2; i++)
                    w[i] = exp2_fast(fmaf(s[i], problem.scale, -(KEYS ? shift[i / 4 * 2 + i % 2] : logarithm[i / 2 % 2])));
                if (KEYS && !EAGER) read_columns(less, columns + 4 * TILE);
                if (masked(at)) {
#pragma unroll
                    for (int i = 0; i < TILE / 2; i++) {
                        const int x = at * TILE + column + i / 4 * 8 + i % 2, r = i / 2 % 2;
                        if (KEYS ? x < edge[r] : x >= edge[r]) w[i] = 0.f;
                    }
                }
                if (KEYS)
#pragma unroll
                    for (int i = 0; i < TILE / 4; i++) p[i] = pack(w[2 * i], w[2 * i + 1]);
                if (KEYS && !EAGER) start_sum(sum_values, p, tile + TILE_BYTES);
                wgmma_wait<0>();
                settle(d);
                if (EAGER) {
                    if (KEYS) start_sum(sum_values, p, tile + TILE_BYTES);
                    if (!last) held[0].start(s, tile_at(shared, next));
                    if (at > begin) barrier_arrive(before);
                    if (KEYS) read_columns(less, columns + 4 * TILE);
                }
                if (!IN_REGISTERS && last) barrier_arrive_each(shared + HELD_EMPTY);
#pragma unroll
                for (int i = 0; i < TILE / 4; i++) {
                    float two[2] = {w[2 * i], w[2 * i + 1]};
                    if (PACKED) unpack(two, p[i]);
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        two[j] *= fmaf(d[2 * i + j], 1.f / FINER, -(KEYS ? less[i / 2 * 2 + j] : delta[i % 2]));
                    ds[i] = pack(two[0], two[1]);
                }
                start_sum(sum, ds, tile);
                before = empty_at(shared, place);
                place = next;
                if (last) return;
                if (!EAGER) held[0].start(s, tile_at(shared, place));
                held[1].start(d, tile_at(shared, place) + TILE_BYTES);
                if (KEYS) read_columns(shift, rows_at(shared, place) + 8 * column);
                advance(next);
                if (at + 2 < end) await();
                wgmma_wait<EAGER ? 2 : 1>();
                settle(s);
                if (!EAGER) barrier_arrive(before);
            };
            await();
            held[0].start(s, tile_at(shared, place));
            held[1].start(d, tile_at(shared, place) + TILE_BYTES);
            if (KEYS) read_columns(shift, rows_at(shared, place) + 8 * column);
            advance(next);
            if (begin + 1 < end) await();
            wgmma_wait<1>();
            settle(s);
#pragma unroll 1
            for (int at = begin; at + 1 < end; at++) step(at, false);
            step(end - 1, true);
            wgmma_wait<0>();
            settle(sum);
            settle(sum_values);
            barrier_arrive(before);
        } else if (!IN_REGISTERS) {
            barrier_arrive_each(shared + HELD_EMPTY);
        }
        for (int i = max(end, task.begin); i < task.end; i++) skip();
        store(sum, problem.scale * 0.69314718f, out, task.head, KEYS ? problem.keys : problem.queries, thread_row);
        if (KEYS) store(sum_values, 1.f / FINER, out_values, task.head, problem.keys, thread_row);
    }
}

template <bool KEYS>
__device__ __forceinline__ void run(const TensorMap (&held)[2], const TensorMap (&passing)[2], unsigned short* out,
                                    unsigned short* out_values, const float* rows, u32* counter, const Problem& problem)
{
    extern __shared__ unsigned char memory[];
    const u32 shared = (u32(__cvta_generic_to_shared(memory)) + 1023) / 1024 * 1024;
    if (threadIdx.x == 0) {
        barrier_init(shared + HELD_FULL, 1);
        barrier_init(shared + HELD_EMPTY, WARPGROUP * CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared + PLACE_FULL + 8 * i, 1);
            barrier_init(shared + PLACE_EMPTY + 8 * i, 4 * CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // so ptxas knows: one for the warp
    if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPYING_REGISTERS));
        if (threadIdx.x == CONSUMERS * WARPGROUP) produce<KEYS>(held, passing, rows, counter, problem, shared);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTING_REGISTERS));
        consume<KEYS>(out, out_values, rows, problem, shared, warpgroup);
    }
}

struct Maps {
    TensorMap two[2];
};

extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
    tiled_o6_backward_keys(const __grid_constant__ Maps queries_and_gradients, const __grid_constant__ Maps keys_and_values,
                           unsigned short* grad_keys, unsigned short* grad_values, const float* rows, u32* counters,
                           const Problem problem)
{
    run<true>(keys_and_values.two, queries_and_gradients.two, grad_keys, grad_values, rows, counters, problem);
}

extern "C" __global__ void __launch_bounds__((CONSUMERS + 1) * WARPGROUP, 1)
    tiled_o6_backward_queries(const __grid_constant__ Maps queries_and_gradients, const __grid_constant__ Maps keys_and_values,
                              unsigned short* grad_queries, const float* rows, u32* counters, const Problem problem)
{
    run<false>(queries_and_gradients.two, keys_and_values.two, grad_queries, nullptr, rows, counters + 1, problem);
}

// Of each tile of queries 64 logarithms, then 64 deltas, with rows added to the end of a head that weigh nothing; also sets
// the counters of the other kernels to 0. HEAD_DIM / 8 threads for a row.
extern "C" __global__ void __launch_bounds__(256)
    tiled_o6_backward_rows(const uint4* out, const uint4* grad_out, const float* log_sum_exp, float* rows, u32* counters,
                           int queries, int heads)
{
    constexpr int THREADS = HEAD_DIM / 8;
    const size_t index = size_t(blockIdx.x) * 256 + threadIdx.x;
    if (index < 2) counters[index] = 0;
    const int tiles = tiles_of(queries);
    const size_t row = index / THREADS, head = row / (size_t(tiles) * TILE);
    const int query = int(row - head * tiles * TILE);
    const bool is = int(head) < heads && query < queries;
    float sum = 0.f;
    if (is) {
        const size_t at = (head * queries + query) * THREADS + index % THREADS;
        const uint4 a = out[at], b = grad_out[at];
        const u32 left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[2], y[2];
            unpack(x, left[i]);
            unpack(y, right[i]);
            sum += x[0] * y[0] + x[1] * y[1];
        }
    }
#pragma unroll
    for (int by = THREADS / 2; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (int(head) < heads && index % THREADS == 0) {
        float* to = rows + row / TILE * 2 * TILE + place_of(row % TILE);
        const float log = is ? log_sum_exp[head * queries + query] : NEVER;
        to[0] = log == NEVER ? -NEVER : log * 1.44269504f - log2f(FINER);  // what sees nothing has weights of 0
        to[TILE] = sum / FINER;
    }
}
