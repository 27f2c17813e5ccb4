// tiled_o1: o0 with work for the whole GPU, and no work for nothing.
//
// Against o0: the heads are in the grid, the blocks with most keys first. Causal blocks stop at the last tile that any
// of their rows sees. Tiles are twice as wide and serve twice as many rows: a lane has two keys, so that softmax, barriers
// and loads are paid for 64 keys, not 32.
//
// Predicts: half of the tiles are masked, so 2x, and a full GPU a little more: 2.5 ms at S = 4096 where 5 to 6 were
// predicted for o0. Loads stay the limit.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o1 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 1.68 ms at S = 4096, 2.9x; 124 us at S = 1024, 7.6x, where o0 fills a quarter of the GPU. Counters:
// 42 % of o0's instructions; shared memory 84 % busy, and waiting for its queue is the first reason to stall: fewer and
// wider accesses are next.

#if HALF
typedef unsigned short T; // the bits of a float16, so that no header is needed
__device__ float to_float(T bits) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits)); return x; }
__device__ T from_float(float x) { T bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); return bits; }
#else
typedef float T;
__device__ float to_float(T x) { return x; }
__device__ T from_float(float x) { return x; }
#endif

#define ALL_LANES 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)
#define LOWEST -3e38f // not infinite: the difference of two of them is a number

__device__ float warp_max(float x)
{
    for (int step = 16; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

__device__ float warp_sum(float x)
{
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
tiled_o1(const T* q, const T* k, const T* v, T* out, int queries, int keys, float scale_log2e, int causal, int diagonal)
{
    static_assert(ROWS == WARPS && COLUMNS % 32 == 0, "a warp has a row, a lane some keys");
    constexpr int PER_LANE = (HEAD_DIM + 31) / 32; // output elements of a lane
    constexpr int KEYS = COLUMNS / 32;             // keys of a lane
    constexpr int PITCH = HEAD_DIM + 1;            // lanes read one column of the keys: in 32 banks
    extern __shared__ float shared[];
    float* const key_tile = shared;
    float* const value_tile = key_tile + COLUMNS * PITCH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const query = value_tile + COLUMNS * HEAD_DIM + warp * HEAD_DIM;
    float* const weights = value_tile + (COLUMNS + ROWS) * HEAD_DIM + warp * COLUMNS;

    const int head = blockIdx.x, block = gridDim.y - 1 - blockIdx.y; // causal: the last rows see most
    const int row = block * ROWS + warp;
    q += (size_t)head * queries * HEAD_DIM;
    k += (size_t)head * keys * HEAD_DIM;
    v += (size_t)head * keys * HEAD_DIM;
    const int seen = causal ? min(keys, block * ROWS + ROWS + diagonal) : keys; // by any row of the block

    for (int d = lane; d < HEAD_DIM; d += 32)
        query[d] = row < queries ? to_float(q[(size_t)row * HEAD_DIM + d]) * scale_log2e : 0.0f;

    float largest = LOWEST, sum = 0.0f, output[PER_LANE] = {};
    for (int first = 0; first < seen; first += COLUMNS) {
        __syncthreads(); // nobody reads the tile before any more
        for (int i = threadIdx.x; i < COLUMNS * HEAD_DIM; i += 32 * WARPS) {
            const int column = i / HEAD_DIM, d = i % HEAD_DIM;
            const size_t at = (size_t)(first + column) * HEAD_DIM + d;
            key_tile[column * PITCH + d] = first + column < keys ? to_float(k[at]) : 0.0f;
            value_tile[i] = first + column < keys ? to_float(v[at]) : 0.0f;
        }
        __syncthreads();

        float score[KEYS] = {}, larger = largest;
#pragma unroll 8
        for (int d = 0; d < HEAD_DIM; ++d) {
            const float element = query[d];
#pragma unroll
            for (int i = 0; i < KEYS; ++i) score[i] += element * key_tile[(lane + 32 * i) * PITCH + d];
        }
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const int key = first + lane + 32 * i;
            if (key >= keys || (causal && key > row + diagonal)) score[i] = MINUS_INFINITY;
            larger = fmaxf(larger, score[i]);
        }
        larger = warp_max(larger);
        const float fade = exp2f(largest - larger);
        largest = larger;
        float added = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            const float weight = exp2f(score[i] - larger);
            weights[lane + 32 * i] = weight;
            added += weight;
        }
        sum = sum * fade + added; // of this lane: the lanes are added up at the end
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) output[i] *= fade;
#pragma unroll 8
        for (int column = 0; column < COLUMNS; ++column) {
            const float weight = weights[column];
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                const int d = lane + 32 * i;
                if (d < HEAD_DIM) output[i] += weight * value_tile[column * HEAD_DIM + d];
            }
        }
        __syncwarp();
    }

    sum = warp_sum(sum);
    const float scale = sum > 0.0f ? 1.0f / sum : 0.0f; // a row that sees no key gives zeros
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int d = lane + 32 * i;
        if (row < queries && d < HEAD_DIM)
            out[((size_t)head * queries + row) * HEAD_DIM + d] = from_float(output[i] * scale);
    }
}
