// tiled_o4: tensor cores, on any GPU that has them from sm_80 on.
//
// Against o3: both products are mma.sync (16 x 8 x 16, fp16 in, float32 sums), so all operands stay fp16. Queries, keys and
// values come with cp.async into rows whose 16-byte chunks are exchanged (a swizzle), so that ldmatrix reads 8 rows at once
// without bank conflicts; the scores that the first product leaves in registers become the operand of the second without
// going through shared memory. The sum of the weights comes out of the second product as well, as a column of ones beside
// the values. A block has two teams of warps with the same queries: each takes every other tile of keys with a softmax of
// its own, and at the end one adds up both, so that one team multiplies while the other is at its exponentials. A row's
// level (the score whose weight is 1) is raised only where a weight could leave fp16's range, so few tiles rescale the
// output. Blocks start from heavy to light (causal: the last rows see most), a few heads at once; few blocks are halved.
//
// Predicts: 17.2 GFLOP at S = 4096 are 22 us at the 780 TFLOP/s that a large product reaches with wgmma; no figure for
// mma.sync was written down beforehand, the aim was 174 us, 1.5 times flash.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o4 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 57.9 us at S = 4096, 14.2 at 1024, 25.1 at 2048, 203 at 8192 (flash 121, 20.7, 42.1, 348; cudnn 69.8,
// 16.3, 26.2, 201). With a warm L2, in a trace, 53.4 us at S = 4096.
// HEAD_DIM 128 spills 8 bytes. Before, blocks stayed for the whole launch and were dealt heavy and light ones to and fro,
// which lined up badly with the sections of 16 heads: 366 us for B8 H16 at S = 2048, of which the fullest multiprocessor
// had 468 units of work. For blocks that start in order it is 300, by counting: 235 us were predicted and 247 measured.

#define ALL_LANES 0xffffffffu

typedef unsigned short T; // the bits of a float16, so that no header is needed
typedef unsigned int u32;

constexpr int THREADS = 32 * WARPS;
constexpr int TEAMS = 2;                      // each takes every other tile of keys, with state of its own
constexpr int TEAM_THREADS = THREADS / TEAMS;
constexpr int STRIPS = WARPS / TEAMS;         // a strip of the block's rows belongs to one warp of each team
constexpr int TALLEST = ROWS / STRIPS / 16;   // its height in matrix fragments, TALL; with few blocks it is half of that
constexpr int PITCH = HEAD_DIM * 2;           // bytes of a row, of 16-byte chunks
constexpr int CHUNKS = PITCH / 16;
constexpr int TILE = COLUMNS * PITCH;         // bytes of a tile of keys or of values
constexpr int VALUES_AT = 2 * TILE;           // a team has two tiles of keys, behind them two of values
constexpr int HEADS_AT_ONCE = 16;             // whose keys and values the L2 cache should hold
constexpr u32 ONES = 0x3c003c00;              // two of them, as float16
constexpr float SLACK = 8;                    // powers of two by which a weight may be above 1
constexpr float LOWEST = -1e30f;              // a level below every score
constexpr float HIDDEN = -1e38f;              // a score so far below it that its weight is 0 even where no other was seen
static_assert(TALLEST == 2 && STRIPS * TALLEST * 16 == ROWS && COLUMNS % 16 == 0, "fragments are 16 x 16");
static_assert(HEAD_DIM % 64 == 0, "a row of a tile covers all banks");
static_assert(ROWS / 16 * (HEAD_DIM / 8 + 1) * 512 <= TEAMS * 4 * TILE, "what a team hands over fits where tiles were");

// The lane's part of the accumulators of COLUMNS / 8 fragments of 16 x 8: of each, two neighbours in row lane / 4 and
// two in row lane / 4 + 8. So it has a share of 2 rows per 16, as have the three other lanes of its four.
template <int TALL> using Scores = float[TALL][COLUMNS / 8][4];

// What a warp keeps of its strip over all tiles.
template <int TALL> struct Strip {
    static constexpr bool KEEPS_QUERIES = TALL * HEAD_DIM <= 128; // else there are no registers for them
    u32 queries[TALL][KEEPS_QUERIES ? HEAD_DIM / 16 : 1][4];
    float output[TALL][HEAD_DIM / 8 + 1][4]; // with a column of V more, of ones, which adds up the weights
    float level[TALL][2];                    // the score, in powers of two, whose weight is 1
};

// The keys that a row sees are the first of them.
struct View {
    int keys, diagonal;

    __device__ int seen(int row) const { return max(0, min(keys, row + diagonal + 1)); }
};

// The thread's number, read anew at every call: what is computed from it for a short phase is computed again for the
// next block, where it would otherwise be kept in registers through the main loop, and these spilled.
__device__ __forceinline__ int thread_now()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// ---- copies ----

// Where a chunk of a row lies in a tile. All rows begin in the same bank, so the same chunk of 8 rows, which is what
// ldmatrix reads at once, would be in 4 banks; exchanging chunks by the last 3 bits of the row spreads it over all 32.
__device__ __forceinline__ u32 place(int row, int chunk)
{
    return row * PITCH + ((chunk ^ (row & 7)) << 4);
}

// From the place of a fragment of 16 columns to that of the k-th to its right.
__device__ __forceinline__ u32 right(u32 place, int k)
{
    return (place ^ ((k & 3) << 5)) + (k >> 2) * 128;
}

// Starts to copy COUNT rows of a matrix, from row first on, to a tile; zeros where there are none.
template <int COUNT, int COPIERS>
__device__ __forceinline__ void fetch(u32 tile, const T* matrix, int first, int rows, int thread)
{
    constexpr int STEP = COPIERS / CHUNKS;
    static_assert(STEP % 8 == 0 && COUNT % STEP == 0, "a thread keeps to one chunk, and to one way of exchanging it");
    const int row = first + thread / CHUNKS;
    const T* const from = matrix + (first * HEAD_DIM + thread * 8);
    tile += place(thread / CHUNKS, thread % CHUNKS);
#pragma unroll
    for (int i = 0; i < COUNT; i += STEP)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
            "r"(tile + i * PITCH), "l"(from + i * HEAD_DIM), "r"(row + i < rows ? 16 : 0) : "memory");
}

__device__ __forceinline__ void end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int GROUPS>
__device__ __forceinline__ void wait_but_for()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

__device__ __forceinline__ void team_barrier(int team)
{
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(TEAM_THREADS) : "memory");
}

// ---- tensor cores ----

// Four fragments of 8 x 8. Lane l says where row l % 8 of fragment l / 8 is.
__device__ __forceinline__ void load(u32 (&to)[4], u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void load_transposed(u32 (&to)[4], u32 from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}

// c += a b, of 16 x 16 and 16 x 8.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pack(float low, float high)
{
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <int TALL>
__device__ __forceinline__ void load_queries(Strip<TALL>& strip, u32 rows, int k, int lane)
{
#pragma unroll
    for (int t = 0; t < TALL; ++t)
        load(strip.queries[t][strip.KEEPS_QUERIES ? k : 0], rows + t * 16 * PITCH + right(place(lane % 16, lane / 16), k));
}

// scores = Q Kᵀ for a tile.
template <int TALL>
__device__ __forceinline__ void score(Scores<TALL>& scores, Strip<TALL>& strip, u32 rows, u32 keys, int lane)
{
    constexpr int ALL = COLUMNS / 16, SPAN = Strip<TALL>::KEEPS_QUERIES ? 4 / TALL : ALL; // at once: enough for 8 sums on their way
    // Rows of K are columns of Kᵀ: fragments 0 and 1 are the two halves of 8 keys, 2 and 3 those of the next 8.
    const u32 mine = place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
#pragma unroll
    for (int first = 0; first < ALL; first += SPAN)
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; ++k) {
            if (!strip.KEEPS_QUERIES) load_queries(strip, rows, k, lane);
#pragma unroll
            for (int n = first; n < min(first + SPAN, ALL); ++n) {
                u32 b[4];
                load(b, keys + n * 16 * PITCH + right(mine, k));
#pragma unroll
                for (int t = 0; t < TALL; ++t) {
                    multiply(scores[t][2 * n], strip.queries[t][strip.KEEPS_QUERIES ? k : 0], b[0], b[1]);
                    multiply(scores[t][2 * n + 1], strip.queries[t][strip.KEEPS_QUERIES ? k : 0], b[2], b[3]);
                }
            }
        }
}

// output += weights V for a tile. The accumulators of two neighbouring fragments of scores are, as weights in float16,
// the left operand; 16 keys at a time, so that the exponentials of the next 16 are computed while these are multiplied.
template <int TALL>
__device__ __forceinline__ void gather(Strip<TALL>& strip, const Scores<TALL>& scores, u32 values, int lane, float scale_log2e)
{
    const u32 mine = place(lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < COLUMNS / 16; ++k) {
        u32 a[TALL][4];
#pragma unroll
        for (int t = 0; t < TALL; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float level = strip.level[t][i % 2];
                const float(&four)[4] = scores[t][2 * k + i / 2];
                a[t][i] = pack(exp2f(four[i % 2 * 2] * scale_log2e - level), exp2f(four[i % 2 * 2 + 1] * scale_log2e - level));
            }
#pragma unroll
        for (int t = 0; t < TALL; ++t) multiply(strip.output[t][HEAD_DIM / 8], a[t], ONES, ONES);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 16; ++n) {
            u32 b[4];
            load_transposed(b, values + k * 16 * PITCH + right(mine, n));
#pragma unroll
            for (int t = 0; t < TALL; ++t) {
                multiply(strip.output[t][2 * n], a[t], b[0], b[1]);
                multiply(strip.output[t][2 * n + 1], a[t], b[2], b[3]);
            }
        }
    }
}

// ---- softmax ----

// Takes out the scores of the keys that a row does not see.
template <int TALL>
__device__ __forceinline__ void hide(Scores<TALL>& scores, const View& view, int row, int key, int lane)
{
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int seen = view.seen(row + 16 * t + 8 * h + lane / 4) - key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (n * 8 + i >= seen) scores[t][n][2 * h + i] = HIDDEN;
        }
}

// Weights may be above 1, as float16 has room for that. So the level follows the highest score only where it has fallen
// far behind, and what was added up so far is brought down to it only then: hardly ever after the first tile.
template <int TALL>
__device__ __forceinline__ void raise_level(Strip<TALL>& strip, const Scores<TALL>& scores, float scale_log2e)
{
    float highest[TALL][2];
    bool behind = false;
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            highest[t][h] = fmaxf(scores[t][0][2 * h], scores[t][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < COLUMNS / 8; ++n)
                highest[t][h] = fmaxf(highest[t][h], fmaxf(scores[t][n][2 * h], scores[t][n][2 * h + 1]));
            behind |= highest[t][h] * scale_log2e - strip.level[t][h] > SLACK;
        }
    if (!__any_sync(ALL_LANES, behind)) return;
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float level = fmaxf(strip.level[t][h], highest[t][h] * scale_log2e);
            level = fmaxf(level, __shfl_xor_sync(ALL_LANES, level, 1));
            level = fmaxf(level, __shfl_xor_sync(ALL_LANES, level, 2));
            const float fade = exp2f(strip.level[t][h] - level);
            strip.level[t][h] = level;
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8 + 1; ++n) {
                strip.output[t][n][2 * h] *= fade;
                strip.output[t][n][2 * h + 1] *= fade;
            }
        }
}

// ---- the end of a block ----

// Adds what the second team found to what the first has. Both hold the same rows in the same lanes.
template <int TALL>
__device__ __forceinline__ void merge(Strip<TALL>& strip, float4* scratch, int team)
{
    constexpr int PARTS = HEAD_DIM / 8 + 1;
    const int thread = thread_now();
    scratch += thread % TEAM_THREADS / 32 * TALL * PARTS * 32 + thread % 32;
    __syncthreads(); // both teams are done with the tiles, over which the scratch lies
    if (team > 0) {
#pragma unroll
        for (int t = 0; t < TALL; ++t) {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; ++n) {
                const float(&x)[4] = strip.output[t][n];
                scratch[(t * PARTS + n) * 32] = make_float4(x[0], x[1], x[2], x[3]);
            }
            const float(&sum)[4] = strip.output[t][HEAD_DIM / 8];
            scratch[(t * PARTS + HEAD_DIM / 8) * 32] = make_float4(sum[0], sum[2], strip.level[t][0], strip.level[t][1]);
        }
    }
    __syncthreads();
    if (team > 0) return;
#pragma unroll
    for (int t = 0; t < TALL; ++t) {
        const float4 other = scratch[(t * PARTS + HEAD_DIM / 8) * 32];
        const float sums[2] = {other.x, other.y}, levels[2] = {other.z, other.w};
        float ours[2], theirs[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float level = fmaxf(strip.level[t][h], levels[h]);
            ours[h] = exp2f(strip.level[t][h] - level);
            theirs[h] = exp2f(levels[h] - level);
            float& sum = strip.output[t][HEAD_DIM / 8][2 * h];
            sum = sum * ours[h] + sums[h] * theirs[h];
        }
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; ++n) {
            const float4 x = scratch[(t * PARTS + n) * 32];
            float(&sum)[4] = strip.output[t][n];
            sum[0] = sum[0] * ours[0] + x.x * theirs[0];
            sum[1] = sum[1] * ours[0] + x.y * theirs[0];
            sum[2] = sum[2] * ours[1] + x.z * theirs[1];
            sum[3] = sum[3] * ours[1] + x.w * theirs[1];
        }
    }
}

// Divides by the sums of the weights and writes the strip of a block that has `rows` rows, through where its queries
// were, for the sake of 16-byte stores.
template <int TALL>
__device__ __forceinline__ void finish(const Strip<TALL>& strip, unsigned char* tile, T* output, int rows)
{
    const int thread = thread_now(), lane = thread % 32, first = thread % TEAM_THREADS / 32 * TALL * 16;
    tile += first * PITCH;
    output += first * HEAD_DIM;
    rows -= first;
#pragma unroll
    for (int t = 0; t < TALL; ++t)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = strip.output[t][HEAD_DIM / 8][2 * h];
            const float scale = sum > 0 ? __fdividef(1, sum) : 0; // a row that sees no key gives zeros
#pragma unroll
            for (int n = 0; n < CHUNKS; ++n)
                *(u32*)(tile + place(16 * t + 8 * h + lane / 4, n) + lane % 4 * 4) =
                    pack(strip.output[t][n][2 * h] * scale, strip.output[t][n][2 * h + 1] * scale);
        }
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < TALL * 16 * CHUNKS; i += 32) {
        const int row = (i + lane) / CHUNKS, chunk = (i + lane) % CHUNKS;
        if (row < rows) *(uint4*)(output + row * HEAD_DIM + chunk * 8) = *(const uint4*)(tile + place(row, chunk));
    }
}

// ---- the kernel ----

// Computes one of so many blocks of each head.
template <int TALL>
__device__ __forceinline__ void attend(const T* q, const T* k, const T* v, T* out, int queries, int keys,
    float scale_log2e, int causal, int diagonal, int heads, int head_blocks)
{
    constexpr int STRIP = TALL * 16, BLOCK = STRIPS * STRIP;
    extern __shared__ __align__(128) unsigned char shared[]; // rows of queries, later of the output; the teams' tiles
    const int team = threadIdx.x / TEAM_THREADS, own = threadIdx.x / 32 % STRIPS;
    const u32 query_tile = (u32)__cvta_generic_to_shared(shared), own_queries = query_tile + own * STRIP * PITCH;
    const u32 tiles_at = query_tile + ROWS * PITCH + team * 4 * TILE;
    const View view = {keys, causal ? diagonal : keys};

    // Heavy ones first, so that at the end light ones fill what is left of the time.
    const int section = blockIdx.x / (head_blocks * HEADS_AT_ONCE), in_section = blockIdx.x % (head_blocks * HEADS_AT_ONCE);
    const int together = min(HEADS_AT_ONCE, heads - section * HEADS_AT_ONCE);
    const int head = section * HEADS_AT_ONCE + in_section % together;
    const int first_row = (head_blocks - 1 - in_section / together) * BLOCK, strip_row = first_row + own * STRIP;
    if (first_row >= queries) return;
    const T* const head_k = k + (size_t)head * keys * HEAD_DIM;
    const T* const head_v = v + (size_t)head * keys * HEAD_DIM;

    // A team's tiles are team, team + TEAMS, ...: those that the block sees, of them those that the strip sees. Every row
    // of the strip sees the keys before clear.
    const int clear = view.seen(strip_row);
    const int seen_by_strip = view.seen(min(queries, strip_row + STRIP) - 1);
    const int seen_by_block = view.seen(min(queries, first_row + BLOCK) - 1);
    const int tiles = (seen_by_block + COLUMNS - 1) / COLUMNS; // of both teams
    const int mine = ((seen_by_strip + COLUMNS - 1) / COLUMNS - team + TEAMS - 1) / TEAMS;

    const int thread = thread_now(), lane = thread % 32;
    auto fetch_tile = [&](int tile, const T* matrix, u32 at) {
        if ((tile * TEAMS + team) * COLUMNS < seen_by_block) {
            fetch<COLUMNS, TEAM_THREADS>(
                at + tile % 2 * TILE, matrix, (tile * TEAMS + team) * COLUMNS, keys, thread % TEAM_THREADS);
        }
    };
    fetch<BLOCK, THREADS>(query_tile, q + (size_t)head * queries * HEAD_DIM, first_row, queries, thread);
    fetch_tile(0, head_k, tiles_at);
    end_group();
    fetch_tile(1, head_k, tiles_at);
    fetch_tile(0, head_v, tiles_at + VALUES_AT);
    end_group();
    wait_but_for<1>();
    __syncthreads();

    Strip<TALL> strip;
#pragma unroll
    for (int i = 0; strip.KEEPS_QUERIES && i < HEAD_DIM / 16; ++i) load_queries(strip, own_queries, i, lane);
#pragma unroll
    for (int t = 0; t < TALL; ++t) {
        strip.level[t][0] = strip.level[t][1] = LOWEST;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8 + 1; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) strip.output[t][n][i] = 0;
    }

    Scores<TALL> scores;
    if (mine > 0) score(scores, strip, own_queries, tiles_at, lane);
    // A team may have a tile less than the other, but passes as many barriers: else compute-sanitizer's racecheck takes
    // what the two do before and after a barrier of the whole block for concurrent.
#pragma unroll 1
    for (int tile = 0; tile * TEAMS < tiles; ++tile) {
        const int key = (tile * TEAMS + team) * COLUMNS;
        if (tile < mine) {
            if (key + COLUMNS > clear) hide(scores, view, strip_row, key, lane);
            raise_level(strip, scores, scale_log2e);
        }
        wait_but_for<0>();
        team_barrier(team); // the team has this tile's values and the next one's keys, and is done with those before
        fetch_tile(tile + 2, head_k, tiles_at);
        fetch_tile(tile + 1, head_v, tiles_at + VALUES_AT);
        end_group();
        const u32 values = tiles_at + VALUES_AT + tile % 2 * TILE;
        if (tile + 1 < mine) { // one stretch without branches, in which the compiler mixes both
            gather(strip, scores, values, lane, scale_log2e);
            score(scores, strip, own_queries, tiles_at + (tile + 1) % 2 * TILE, lane);
        } else if (tile < mine) {
            gather(strip, scores, values, lane, scale_log2e);
        }
    }

    merge(strip, (float4*)(shared + ROWS * PITCH), team);
    if (team == 0)
        finish(strip, shared, out + ((size_t)head * queries + first_row) * HEAD_DIM, queries - first_row);
}

// A function of its own, so that registers are allotted to it for itself.
__device__ __noinline__ void attend_in_half_blocks(const T* q, const T* k, const T* v, T* out, int queries, int keys,
    float scale_log2e, int causal, int diagonal, int heads, int head_blocks)
{
    attend<TALLEST / 2>(q, k, v, out, queries, keys, scale_log2e, causal, diagonal, heads, head_blocks);
}

// The grid is all blocks of all heads, or where these are too few for the multiprocessors, twice as many: halves of
// blocks, which are slower, as every key is read for half as many rows.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tiled_o4(const T* q, const T* k, const T* v, T* out, int queries, int keys, float scale_log2e, int causal, int diagonal,
    int heads)
{
    const int head_blocks = (queries + ROWS - 1) / ROWS;
    if (gridDim.x == head_blocks * heads)
        attend<TALLEST>(q, k, v, out, queries, keys, scale_log2e, causal, diagonal, heads, head_blocks);
    else
        attend_in_half_blocks(q, k, v, out, queries, keys, scale_log2e, causal, diagonal, heads, 2 * head_blocks);
}
