// tiled_o0: attention in O(S) memory. Correct first; needs nothing newer than warp shuffles.
//
// A block has ROWS query rows, one warp each. Keys and values come through shared memory in tiles of COLUMNS = 32. A
// lane computes the score of one key; the warp keeps the largest score and the sum of the weights so far and fades the
// output when a larger score comes (online softmax); the lanes share the elements of the output row, which is stored
// once, at the end. The grid has the query rows of one head: a block goes through all heads.
//
// Predicts: memory of inputs and output only. For 32 scores of a row a warp makes 224 shared-memory loads for 128
// multiply-adds, so loads are the limit: 3.6 ms of them at S = 4096, with barriers and copying of tiles 5 to 6 ms.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o0 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 4.81 ms at S = 4096 (math 2.78 ms, flash 0.12 ms), 934 us at S = 1024; no temporary memory.
// Counters: the units for loads and stores 68 % busy, those for multiply-adds 16 %, and half of the GPU's places for
// blocks empty (0.65 waves): that is next.

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

extern "C" __global__ void __launch_bounds__(32 * WARPS)
tiled_o0(const T* q, const T* k, const T* v, T* out, int queries, int keys, float scale_log2e, int causal,
         int diagonal, int heads)
{
    static_assert(ROWS == WARPS && COLUMNS == 32, "a warp has a row, a lane a key");
    constexpr int PER_LANE = (HEAD_DIM + 31) / 32; // output elements of a lane
    constexpr int PITCH = HEAD_DIM + 1;            // lanes read one column of the keys: in 32 banks
    extern __shared__ float shared[];
    float* const key_tile = shared;
    float* const value_tile = key_tile + COLUMNS * PITCH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const query = value_tile + COLUMNS * HEAD_DIM + warp * HEAD_DIM;
    float* const weights = value_tile + (COLUMNS + ROWS) * HEAD_DIM + warp * COLUMNS;
    const int row = blockIdx.x * ROWS + warp;

    for (int head = 0; head < heads; ++head) {
        const T* const head_q = q + (size_t)head * queries * HEAD_DIM;
        const T* const head_k = k + (size_t)head * keys * HEAD_DIM;
        const T* const head_v = v + (size_t)head * keys * HEAD_DIM;
        for (int d = lane; d < HEAD_DIM; d += 32)
            query[d] = row < queries ? to_float(head_q[(size_t)row * HEAD_DIM + d]) * scale_log2e : 0.0f;

        float largest = LOWEST, sum = 0.0f, output[PER_LANE] = {};
        for (int first = 0; first < keys; first += COLUMNS) {
            __syncthreads(); // nobody reads the tile before any more
            for (int i = threadIdx.x; i < COLUMNS * HEAD_DIM; i += 32 * WARPS) {
                const int column = i / HEAD_DIM, d = i % HEAD_DIM;
                const size_t at = (size_t)(first + column) * HEAD_DIM + d;
                key_tile[column * PITCH + d] = first + column < keys ? to_float(head_k[at]) : 0.0f;
                value_tile[i] = first + column < keys ? to_float(head_v[at]) : 0.0f;
            }
            __syncthreads();

            float score = 0.0f;
            for (int d = 0; d < HEAD_DIM; ++d) score += query[d] * key_tile[lane * PITCH + d];
            const int key = first + lane;
            if (key >= keys || (causal && key > row + diagonal)) score = MINUS_INFINITY;

            const float larger = fmaxf(largest, warp_max(score));
            const float weight = exp2f(score - larger), fade = exp2f(largest - larger);
            largest = larger;
            sum = sum * fade + warp_sum(weight);
            weights[lane] = weight;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                output[i] *= fade;
                const int d = lane + 32 * i;
                if (d < HEAD_DIM)
                    for (int column = 0; column < COLUMNS; ++column)
                        output[i] += weights[column] * value_tile[column * HEAD_DIM + d];
            }
            __syncwarp();
        }

        const float scale = sum > 0.0f ? 1.0f / sum : 0.0f; // a row that sees no key gives zeros
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const int d = lane + 32 * i;
            if (row < queries && d < HEAD_DIM)
                out[((size_t)head * queries + row) * HEAD_DIM + d] = from_float(output[i] * scale);
        }
    }
}
