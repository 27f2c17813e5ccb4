// tiled_o2: o1 with few, wide memory accesses, and with queries and scores in registers.
//
// Against o1: everything moves 16 bytes at a time, from global to shared memory and from there to registers, in the type
// of the inputs: a shared load brings 8 float16 elements to a lane where it brought one. A row of queries, and its row of
// the output, are spread over HEAD_DIM / 16 lanes, 16 elements each. These lanes add up their parts of a score with
// shuffles, after which each has the score: queries and scores need no shared memory. Softmax goes over 16 keys at once.
//
// Predicts: 366 million shared-memory accesses become a third. But a lane converts every float16 element that it
// multiplies: 0.62 ms at S = 4096 if conversions are as fast as multiply-adds, 0.88 ms if they are half as fast.
// Measured on an NVIDIA H200 (`nsysprof bench --backend tiled_o2 --seq 1024 --seq 4096`, B1 H8 D64 fp16 causal, CUDA
// graph, cold L2): 870 us at S = 4096, 1.9x; 123 us at S = 1024, no faster than o1: 128 blocks on 132 multiprocessors.
// Counters: 156 million accesses, shared memory no longer waited for; conversions keep their unit 64 % busy: the same
// keys are converted again for every row. That is next.

#if HALF
typedef unsigned short T; // the bits of a float16, so that no header is needed
#else
typedef float T;
#endif

#define ALL_LANES 0xffffffffu
#define MINUS_INFINITY __int_as_float(0xff800000)
#define LOWEST -3e38f // not infinite: the difference of two of them is a number

constexpr int VECTOR = 16 / sizeof(T);        // elements of a 16-byte access
constexpr int ELEMENTS = 16;                  // of a row in a lane
constexpr int LANES = HEAD_DIM / ELEMENTS;    // of a row
constexpr int PARTS = ELEMENTS / VECTOR;      // accesses for the elements of a lane
constexpr int ROW_VECTORS = HEAD_DIM / VECTOR;
constexpr int AT_ONCE = 16;                   // keys whose scores are in registers

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

__device__ uint4 pack(const float* x)
{
#if HALF
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("{ .reg .f16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
            : "=r"(pairs[i]) : "f"(x[2 * i]), "f"(x[2 * i + 1]));
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
#else
    return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
tiled_o2(const T* q, const T* k, const T* v, T* out, int queries, int keys, float scale_log2e, int causal, int diagonal)
{
    static_assert(ROWS * LANES == 32 * WARPS && COLUMNS % AT_ONCE == 0 &&
                      COLUMNS * ROW_VECTORS % (32 * WARPS) == 0, "every thread has as much to do");
    extern __shared__ uint4 shared[]; // rows of ROW_VECTORS
    uint4* const key_tile = shared;
    uint4* const value_tile = key_tile + COLUMNS * ROW_VECTORS;
    const int part = threadIdx.x % LANES; // has the vectors part, part + LANES, …: those of a row lie side by side

    const int head = blockIdx.x, block = gridDim.y - 1 - blockIdx.y; // causal: the last rows see most
    const int row = block * ROWS + threadIdx.x / LANES;
    const uint4* const q_row = (const uint4*)q + ((size_t)head * queries + row) * ROW_VECTORS;
    const uint4* const head_k = (const uint4*)k + (size_t)head * keys * ROW_VECTORS;
    const uint4* const head_v = (const uint4*)v + (size_t)head * keys * ROW_VECTORS;
    const int seen = causal ? min(keys, block * ROWS + ROWS + diagonal) : keys; // by any row of the block
    const int everyone = causal ? min(keys, block * ROWS + 1 + diagonal) : keys; // by all of them
    const int last = causal ? min(keys - 1, row + diagonal) : keys - 1;          // key that this row sees

    float query[ELEMENTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        unpack(row < queries ? q_row[part + i * LANES] : make_uint4(0, 0, 0, 0), query + i * VECTOR);
#pragma unroll
    for (int d = 0; d < ELEMENTS; ++d) query[d] *= scale_log2e;

    float largest = LOWEST, sum = 0.0f, output[ELEMENTS] = {};
    for (int first = 0; first < seen; first += COLUMNS) {
        __syncthreads(); // nobody reads the tile before any more
#pragma unroll
        for (int n = 0; n < COLUMNS * ROW_VECTORS; n += 32 * WARPS) {
            const int i = n + threadIdx.x;
            const bool inside = first + i / ROW_VECTORS < keys;
            const size_t at = (size_t)first * ROW_VECTORS + i;
            key_tile[i] = inside ? head_k[at] : make_uint4(0, 0, 0, 0);
            value_tile[i] = inside ? head_v[at] : make_uint4(0, 0, 0, 0);
        }
        __syncthreads();

        for (int begin = 0; begin < COLUMNS && first + begin < seen; begin += AT_ONCE) {
            float score[AT_ONCE], larger = largest;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                score[j] = 0.0f;
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    float key[VECTOR];
                    unpack(key_tile[(begin + j) * ROW_VECTORS + part + i * LANES], key);
#pragma unroll
                    for (int d = 0; d < VECTOR; ++d) score[j] += query[i * VECTOR + d] * key[d];
                }
#pragma unroll
                for (int step = 1; step < LANES; step *= 2) score[j] += __shfl_xor_sync(ALL_LANES, score[j], step);
            }
            if (first + begin + AT_ONCE > everyone) { // the same for the whole block
#pragma unroll
                for (int j = 0; j < AT_ONCE; ++j)
                    if (first + begin + j > last) score[j] = MINUS_INFINITY;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) larger = fmaxf(larger, score[j]);
            const float fade = exp2f(largest - larger);
            largest = larger;
            sum *= fade;
#pragma unroll
            for (int d = 0; d < ELEMENTS; ++d) output[d] *= fade;
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                const float weight = exp2f(score[j] - larger);
                sum += weight;
#pragma unroll
                for (int i = 0; i < PARTS; ++i) {
                    float value[VECTOR];
                    unpack(value_tile[(begin + j) * ROW_VECTORS + part + i * LANES], value);
#pragma unroll
                    for (int d = 0; d < VECTOR; ++d) output[i * VECTOR + d] += weight * value[d];
                }
            }
        }
    }

    const float scale = sum > 0.0f ? 1.0f / sum : 0.0f; // a row that sees no key gives zeros
#pragma unroll
    for (int d = 0; d < ELEMENTS; ++d) output[d] *= scale;
    uint4* const out_row = (uint4*)out + ((size_t)head * queries + row) * ROW_VECTORS;
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        if (row < queries) out_row[part + i * LANES] = pack(output + i * VECTOR);
}
