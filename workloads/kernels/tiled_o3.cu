// tiled_o3: o2 as two register-blocked matrix products, with the next tile on its way meanwhile.
//
// Against o2: a thread has a patch of the scores (4 rows x 8 keys at ROWS = COLUMNS = 64) and of the output (4 rows x
// HEAD_DIM / 8 elements) in registers, so that an element that was loaded from shared memory is used 4 or 8 times, not
// once. All operands lie in shared memory in float32 with the summed index first (queries and keys transposed when they
// are put there), so that a step of the sum takes three 16-byte loads for 32 multiply-adds. The weights have to change
// hands for the second product, through shared memory, within a warp only. Keys and values come as they are with
// cp.async (sm_80) into a buffer of their own while the tile before is computed on, and are converted once for all rows.
//
// Predicts: 83 % of the instructions multiply (o2: 41 %), and conversions are paid once for 64 rows. At the FMA peak
// (66.9 TFLOP/s) S = 4096 takes 260 us; at 60 % of it 430 us.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o3 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 448 us at S = 4096, 1.9x (math 6.2x slower); 74 us at S = 1024 (math 230 us). Counters: issue slots
// 75 %, 79 % of the instructions multiply, at 63 % of what the GPU can do. What is left is a better unit: tensor cores
// multiply fifteen times as fast. Three blocks a multiprocessor instead of two (weights in place of the keys) were
// slower, 526 us: the last, light blocks no longer level out the first, heavy ones.

#if HALF
typedef unsigned short T; // the bits of a float16, so that no header is needed
#else
typedef float T;
#endif

#define ALL_LANES 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)
#define LOWEST -3e38f // not infinite: the difference of two of them is a number

constexpr int THREADS = 32 * WARPS;
constexpr int VECTOR = 16 / sizeof(T);            // elements of a 16-byte access to the inputs
constexpr int ROW_VECTORS = HEAD_DIM / VECTOR;
constexpr int RAW_PITCH = ROW_VECTORS + 1;        // one more, so that a column of them is in different banks
constexpr int OWN_ROWS = ROWS / (4 * WARPS);      // a warp has 4 x 8 threads
constexpr int OWN_COLUMNS = COLUMNS / 8;
constexpr int OWN_DIMS = HEAD_DIM / 8;
static_assert(OWN_ROWS % 4 == 0 && OWN_COLUMNS % 4 == 0 && OWN_DIMS % 4 == 0 && ROWS % 32 == 0, "of four floats");
static_assert(THREADS % COLUMNS == 0 && THREADS % ROWS == 0 && ROW_VECTORS % (THREADS / COLUMNS) == 0 &&
                  COLUMNS * ROW_VECTORS % THREADS == 0, "all threads convert as much");

// The elements of a 16-byte access as float32.
__device__ void unpack(uint4 bits, float* x)
{
#if HALF
    const unsigned pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(x[2 * i]), "=f"(x[2 * i + 1]) : "r"(pairs[i]));
#else
    x[0] = __uint_as_float(bits.x), x[1] = __uint_as_float(bits.y);
    x[2] = __uint_as_float(bits.z), x[3] = __uint_as_float(bits.w);
#endif
}

// Stores four elements of the output.
__device__ void store(T* to, const float* x)
{
#if HALF
    uint2 bits;
    asm("{ .reg .f16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(bits.x) : "f"(x[0]), "f"(x[1]));
    asm("{ .reg .f16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
        : "=r"(bits.y) : "f"(x[2]), "f"(x[3]));
    *(uint2*)to = bits;
#else
    *(float4*)to = make_float4(x[0], x[1], x[2], x[3]);
#endif
}

// Starts to copy rows first, first + 1, … of keys or values; zeros where there are none.
__device__ void fetch(uint4* to, const uint4* rows, int first, int count)
{
#pragma unroll
    for (int n = 0; n < COLUMNS * ROW_VECTORS; n += THREADS) {
        const int i = n + threadIdx.x, column = i / ROW_VECTORS, vector = i % ROW_VECTORS;
        const bool inside = first + column < count;
        const uint4* const from = rows + (inside ? (size_t)(first + column) * ROW_VECTORS + vector : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
            "r"((unsigned)__cvta_generic_to_shared(to + column * RAW_PITCH + vector)), "l"(from), "r"(inside ? 16 : 0));
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ void load4(float* to, const float* from)
{
    const float4 x = *(const float4*)from;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// The weights of four rows lie together; where, depends on the key, so that eight threads store to all banks.
__device__ float* weight_place(float* weights, int column, int four_rows)
{
    return weights + column * ROWS + 4 * (four_rows ^ ((column / 4 % 4) * 2));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tiled_o3(const T* q, const T* k, const T* v, T* out, int queries, int keys, float scale_log2e, int causal, int diagonal)
{
    extern __shared__ uint4 shared[];
    uint4* const coming_k = shared;                             // [COLUMNS][RAW_PITCH]
    uint4* const coming_v = coming_k + COLUMNS * RAW_PITCH;
    float* const query_tile = (float*)(coming_v + COLUMNS * RAW_PITCH); // [HEAD_DIM][ROWS]
    float* const key_tile = query_tile + HEAD_DIM * ROWS;       // [HEAD_DIM][COLUMNS]
    float* const value_tile = key_tile + HEAD_DIM * COLUMNS;    // [COLUMNS][HEAD_DIM]
    float* const weights = value_tile + HEAD_DIM * COLUMNS;     // [COLUMNS][ROWS], see weight_place

    // The threads of a warp: which of its 4 x 8. Neighbours share a key, every other one a row, as 16-byte loads like it.
    const int lane = threadIdx.x % 32, across = lane / 2 % 8;
    const int own_row = (threadIdx.x / 32 * 4 + lane % 2 + lane / 16 * 2) * OWN_ROWS;
    const int head = blockIdx.x, block = gridDim.y - 1 - blockIdx.y; // causal: the last rows see most
    const uint4* const head_q = (const uint4*)q + (size_t)head * queries * ROW_VECTORS;
    const uint4* const head_k = (const uint4*)k + (size_t)head * keys * ROW_VECTORS;
    const uint4* const head_v = (const uint4*)v + (size_t)head * keys * ROW_VECTORS;
    const int seen = causal ? min(keys, block * ROWS + ROWS + diagonal) : keys;  // by any row of the block
    const int everyone = causal ? min(keys, block * ROWS + 1 + diagonal) : keys; // by all of them

    if (seen > 0) {
        fetch(coming_k, head_k, 0, keys);
        fetch(coming_v, head_v, 0, keys);
    }
    for (int vector = threadIdx.x / ROWS; vector < ROW_VECTORS; vector += THREADS / ROWS) {
        const int i = threadIdx.x % ROWS, row = block * ROWS + i;
        float x[VECTOR];
        unpack(row < queries ? head_q[(size_t)row * ROW_VECTORS + vector] : make_uint4(0, 0, 0, 0), x);
#pragma unroll
        for (int d = 0; d < VECTOR; ++d) query_tile[(vector * VECTOR + d) * ROWS + i] = x[d] * scale_log2e;
    }

    float largest[OWN_ROWS], sum[OWN_ROWS] = {}, output[OWN_ROWS][OWN_DIMS] = {};
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) largest[r] = LOWEST;

    for (int first = 0; first < seen; first += COLUMNS) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads(); // the tile has come for all, and nobody reads the one before any more
#pragma unroll
        for (int n = 0; n < ROW_VECTORS; n += THREADS / COLUMNS) {
            const int column = threadIdx.x % COLUMNS, vector = n + threadIdx.x / COLUMNS;
            float x[VECTOR];
            unpack(coming_k[column * RAW_PITCH + vector], x);
#pragma unroll
            for (int d = 0; d < VECTOR; ++d) key_tile[(vector * VECTOR + d) * COLUMNS + column] = x[d];
        }
#pragma unroll
        for (int n = 0; n < COLUMNS * ROW_VECTORS; n += THREADS) {
            const int i = n + threadIdx.x;
            float x[VECTOR];
            unpack(coming_v[i / ROW_VECTORS * RAW_PITCH + i % ROW_VECTORS], x);
#pragma unroll
            for (int d = 0; d < VECTOR; d += 4)
                *(float4*)(value_tile + i * VECTOR + d) = make_float4(x[d], x[d + 1], x[d + 2], x[d + 3]);
        }
        __syncthreads();
        if (first + COLUMNS < seen) {
            fetch(coming_k, head_k, first + COLUMNS, keys);
            fetch(coming_v, head_v, first + COLUMNS, keys);
        }

        float score[OWN_ROWS][OWN_COLUMNS] = {};
#pragma unroll 8
        for (int d = 0; d < HEAD_DIM; ++d) {
            float a[OWN_ROWS], b[OWN_COLUMNS];
#pragma unroll
            for (int r = 0; r < OWN_ROWS; r += 4) load4(a + r, query_tile + d * ROWS + own_row + r);
#pragma unroll
            for (int c = 0; c < OWN_COLUMNS; c += 4) load4(b + c, key_tile + d * COLUMNS + 8 * c + 4 * across);
#pragma unroll
            for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
                for (int c = 0; c < OWN_COLUMNS; ++c) score[r][c] += a[r] * b[c];
        }

        if (first + COLUMNS > everyone) { // the same for the whole block
#pragma unroll
            for (int r = 0; r < OWN_ROWS; ++r) {
                const int row = block * ROWS + own_row + r;
                const int last = causal ? min(keys - 1, row + diagonal) : keys - 1; // key that the row sees
#pragma unroll
                for (int c = 0; c < OWN_COLUMNS; ++c)
                    if (first + c / 4 * 32 + 4 * across + c % 4 > last) score[r][c] = MINUS_INFINITY;
            }
        }
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r) {
            float larger = largest[r];
#pragma unroll
            for (int c = 0; c < OWN_COLUMNS; ++c) larger = fmaxf(larger, score[r][c]);
#pragma unroll
            for (int step = 2; step < 16; step *= 2) larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, step));
            const float fade = exp2f(largest[r] - larger);
            largest[r] = larger;
            sum[r] *= fade; // of this thread: the threads of a row are added up at the end
#pragma unroll
            for (int c = 0; c < OWN_COLUMNS; ++c) sum[r] += score[r][c] = exp2f(score[r][c] - larger);
#pragma unroll
            for (int d = 0; d < OWN_DIMS; ++d) output[r][d] *= fade;
        }
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; ++c)
#pragma unroll
            for (int r = 0; r < OWN_ROWS; r += 4)
                *(float4*)weight_place(weights, c / 4 * 32 + 4 * across + c % 4, (own_row + r) / 4) =
                    make_float4(score[r][c], score[r + 1][c], score[r + 2][c], score[r + 3][c]);
        __syncwarp(); // a warp reads the weights of its own rows only

#pragma unroll 8
        for (int column = 0; column < COLUMNS; ++column) {
            float a[OWN_ROWS], b[OWN_DIMS];
#pragma unroll
            for (int r = 0; r < OWN_ROWS; r += 4) load4(a + r, weight_place(weights, column, (own_row + r) / 4));
#pragma unroll
            for (int d = 0; d < OWN_DIMS; d += 4) load4(b + d, value_tile + column * HEAD_DIM + 8 * d + 4 * across);
#pragma unroll
            for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
                for (int d = 0; d < OWN_DIMS; ++d) output[r][d] += a[r] * b[d];
        }
        __syncwarp();
    }

#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
#pragma unroll
        for (int step = 2; step < 16; step *= 2) sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], step);
        const float scale = sum[r] > 0.0f ? 1.0f / sum[r] : 0.0f; // a row that sees no key gives zeros
        const int row = block * ROWS + own_row + r;
#pragma unroll
        for (int d = 0; d < OWN_DIMS; ++d) output[r][d] *= scale;
#pragma unroll
        for (int d = 0; d < OWN_DIMS; d += 4)
            if (row < queries) store(out + ((size_t)head * queries + row) * HEAD_DIM + 8 * d + 4 * across, output[r] + d);
    }
}
