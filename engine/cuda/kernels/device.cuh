/* Device code for the kernels: launches, reductions, strided access, number types, activations.
 *
 * The kernels are compiled twice: by nvcc for GPUs, and by the host's C++ compiler for the test
 * double (tests/fake_cuda). The test double defines LENSD_FAKE_CUDA, and its launches run blocks
 * and threads in loops. So macros replace <<<>>>: LAUNCH for kernels without barriers, LAUNCH_BLOCK
 * for kernels whose threads wait for each other, LAUNCH_SHARED for kernels with dynamic shared
 * memory.
 *
 * A grid has at most GRID_MOST blocks along y and z. Larger extents are folded into x, looped over,
 * or left to another kernel. */
#pragma once

#include <type_traits>

#include "engine/cuda/kernels/kernels.h"
#include "engine/graph/activation.h"

#ifdef LENSD_FAKE_CUDA
#include "fake_device.h"
#else
#define UNROLL    _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum { GRID_MOST = 65535 }; /* blocks along y or z */

#define START(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define START_BLOCK                             START

/* On every device a kernel needs permission for more than 48 KiB of dynamic shared memory. This
 * function permits the maximum, because another thread may launch the kernel with more. */
template <typename... P> static inline bool allow_shared(void (*kernel)(P...), size_t bytes)
{
    int device = 0, most = 0;
    struct cudaFuncAttributes attributes;
    const void *function = (const void *)kernel;
    return bytes <= 48 << 10 ||
           (cudaGetDevice(&device) == cudaSuccess &&
            cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
                cudaSuccess &&
            cudaFuncGetAttributes(&attributes, function) == cudaSuccess &&
            cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 most - (int)attributes.sharedSizeBytes) == cudaSuccess);
}

/* For kernels with several blocks per multiprocessor: requests the largest part of the L1 cache as
 * shared memory. The driver's default may have room for only one block. */
template <typename... P> static inline void prefer_shared(void (*kernel)(P...))
{
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
}

/* Dynamic shared memory, aligned to 128 bytes: SHARED_MEMORY(name) in the kernel. */
#define SHARED_MEMORY(name)                     extern __shared__ __align__(128) unsigned char name[]
#define START_SHARED(kernel, grid, block, shared, stream, ...)                                     \
    do {                                                                                           \
        if (allow_shared(kernel, shared))                                                          \
            kernel<<<grid, block, shared, stream>>>(__VA_ARGS__);                                  \
    } while (0)
#endif

/* An empty tensor needs no launch: CUDA rejects a grid without blocks. */
static inline bool has_blocks(dim3 grid)
{
    return grid.x && grid.y && grid.z;
}

#define LAUNCH_WITH(start, kernel, grid, ...)                                                      \
    do {                                                                                           \
        if (has_blocks(grid))                                                                      \
            start(kernel, grid, __VA_ARGS__);                                                      \
    } while (0)
#define LAUNCH(kernel, grid, ...)        LAUNCH_WITH(START, kernel, grid, __VA_ARGS__)
#define LAUNCH_BLOCK(kernel, grid, ...)  LAUNCH_WITH(START_BLOCK, kernel, grid, __VA_ARGS__)
#define LAUNCH_SHARED(kernel, grid, ...) LAUNCH_WITH(START_SHARED, kernel, grid, __VA_ARGS__)

enum { THREADS = 256, WARP = 32, WARPS = THREADS / WARP };

static inline unsigned blocks_of(size_t count, size_t threads)
{
    size_t blocks = (count + threads - 1) / threads;
    return (unsigned)(blocks > 65535u * 16u ? 65535u * 16u : blocks ? blocks : 1);
}

static inline unsigned blocks_for(size_t count)
{
    return blocks_of(count, THREADS);
}

#define FOR_EACH(i, count)                                                                         \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count);                    \
         i += (size_t)gridDim.x * blockDim.x)

/* A loop over 0 … count - 1 that the compiler unrolls. */
#define UNROLLED(i, count) UNROLL for (int i = 0; i < (count); i++)

/* ---- reductions over threads ----
 *
 * join(a, b) must equal join(b, a). The order is fixed, so equal values give equal results. */

template <typename V> __device__ static inline V lane_exchange(V value, int lane_mask)
{
    static_assert(sizeof(V) % sizeof(uint32_t) == 0, "whole words");
    uint32_t words[sizeof(V) / sizeof(uint32_t)];
    memcpy(words, &value, sizeof value);
    UNROLL
    for (uint32_t &word : words)
        word = __shfl_xor_sync(0xffffffffu, word, lane_mask);
    memcpy(&value, words, sizeof value);
    return value;
}

/* Reduces the values of a warp; every lane gets the result. */
template <typename V, typename Join> __device__ static inline V warp_join(V value, Join join)
{
    UNROLL
    for (int lane_mask = WARP / 2; lane_mask; lane_mask /= 2)
        value = join(value, lane_exchange(value, lane_mask));
    return value;
}

/* Reduces the values of a block of BLOCK threads; every thread gets the result. `shared` has one
 * element per warp and can be reused immediately. */
template <int BLOCK = THREADS, typename V, typename Join>
__device__ static inline V block_join(V value, V *shared, Join join)
{
    value = warp_join(value, join);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = value;
    __syncthreads();
    value = shared[0];
    for (int w = 1; w < BLOCK / WARP; w++)
        value = join(value, shared[w]);
    __syncthreads();
    return value;
}

/* Reduces the values of GROUP threads: of one thread, a warp, or a block of THREADS. */
template <int GROUP, typename V, typename Join>
__device__ static inline V group_join(V value, V *shared, Join join)
{
    if constexpr (GROUP == THREADS)
        return block_join(value, shared, join);
    else if constexpr (GROUP == WARP)
        return warp_join(value, join);
    else
        return value;
}

/* Returns the maximum; NaN if either value is NaN. */
template <typename C> __device__ static inline C greater_of(C a, C b)
{
    return a != a ? a : b != b ? b : a > b ? a : b;
}
template <typename C> __device__ static inline C less_of(C a, C b)
{
    return a != a ? a : b != b ? b : a < b ? a : b;
}

/* ---- strided access ---- */

static inline size_t element_count(int rank, const int64_t *dims)
{
    size_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= (size_t)dims[d];
    return count;
}

/* Calls visit(d, index) for element i of a dense tensor, from the last dimension to the first. */
template <typename I, typename Dim, typename Visit>
__device__ static inline void for_each_index(I i, int rank, const Dim *dims, Visit visit)
{
    for (int d = rank - 1; d > 0; d--) {
        const I rest = i / (I)dims[d];
        visit(d, i - rest * (I)dims[d]);
        i = rest;
    }
    if (rank > 0)
        visit(0, i);
}

/* Returns the offset of element i from element 0. */
template <typename I, typename Dim>
__device__ static inline int64_t strided_at(I i, int rank, const Dim *dims, const Dim *steps)
{
    int64_t at = 0;
    for_each_index(i, rank, dims, [&](int d, I index) { at += (int64_t)index * steps[d]; });
    return at;
}

/* Sets at[o] to the offset of element i in operand o. */
template <int OPERANDS>
__device__ static inline void map_at(const cuda_access_map &map, size_t i, int64_t (&at)[OPERANDS])
{
    UNROLLED(o, OPERANDS)
        at[o] = o == 0 ? map.offset : 0;
    for_each_index(i, map.rank, map.dims, [&](int d, size_t index) {
        UNROLLED(o, OPERANDS)
            at[o] += (int64_t)index * map.steps[o][d];
    });
}

/* Changes a map of one or two operands so that it maps groups of `each` neighbours. Returns false
 * if a group is incomplete or not aligned. */
static inline bool map_in_groups(cuda_access_map *map, int each)
{
    const int last = map->rank - 1;
    if (last < 0 || map->dims[last] % each || map->steps[0][last] > 1 || map->steps[1][last] > 1)
        return false;
    for (int o = 0; o < 2; o++)
        for (int d = 0; d < last; d++)
            if (map->steps[o][d] % each && map->steps[o][last])
                return false;
    map->dims[last] /= each;
    map->steps[0][last] *= each;
    map->steps[1][last] *= each;
    return true;
}

/* Work item i of a kernel: an output position (n, oh, ow), and `item`, one of the position's
 * `across` groups of channels. */
struct output_item {
    int item, ow, oh, n;

    __device__ inline output_item(size_t i, int across, int width, int height)
    {
        item = (int)(i % (size_t)across);
        i /= (size_t)across;
        ow = (int)(i % (size_t)width);
        i /= (size_t)width;
        oh = (int)(i % (size_t)height);
        n = (int)(i / (size_t)height);
    }
};

/* ---- numbers ---- */

__device__ static inline float to_float(float x)
{
    return x;
}
__device__ static inline float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
__device__ static inline float to_float(__half x)
{
    return __half2float(x);
}
__device__ static inline float to_float(uint8_t x)
{
    return (float)x;
}
__device__ static inline float to_float(int8_t x)
{
    return (float)x;
}

/* Converts a rounded number to the range of a byte from `lowest` on; NaN becomes `lowest`. */
__device__ static inline int clamped_byte(float x, int lowest)
{
    const float low = (float)lowest, high = low + 255.0f;
    x = x > low ? x : low;
    return (int)(x < high ? x : high);
}

template <typename T> __device__ static inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x)
{
    return x;
}
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16(x);
}
template <> __device__ inline __half from_float<__half>(float x)
{
    return __float2half(x);
}
template <> __device__ inline uint8_t from_float<uint8_t>(float x)
{
    return (uint8_t)clamped_byte(rintf(x), 0);
}
template <> __device__ inline int8_t from_float<int8_t>(float x)
{
    return (int8_t)clamped_byte(rintf(x), -128);
}

/* One case of a switch that serves as a table. */
#define CASE(label, value)                                                                         \
    case label:                                                                                    \
        return value

constexpr float LOG2_E = 1.4426950408889634f;

/* Returns exp(x) for softmax. exp2f is about one instruction on a GPU, expf takes several. */
__device__ static inline float exp_of(float x)
{
    return exp2f(x * LOG2_E);
}

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Returns activation(x). NaN stays NaN, because comparisons with it are false. */
__device__ static inline float activate(float x, int activation, float alpha, float beta)
{
    switch (activation) {
        CASE(ACTIVATION_RELU, x < 0.0f ? 0.0f : x);
        CASE(ACTIVATION_LEAKY_RELU, x < 0.0f ? alpha * x : x);
        CASE(ACTIVATION_CLIP, x < alpha ? alpha : x > beta ? beta : x);
        CASE(ACTIVATION_SIGMOID, sigmoid(x));
    case ACTIVATION_HARD_SIGMOID: {
        float y = alpha * x + beta;
        return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
    }
    case ACTIVATION_HARD_SWISH: {
        float y = x * (1.0f / 6.0f) + 0.5f;
        return x * (y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y);
    }
        CASE(ACTIVATION_SILU, x * sigmoid(alpha * x));
        CASE(ACTIVATION_GELU, 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)));
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        CASE(ACTIVATION_TANH, tanhf(x));
        CASE(ACTIVATION_ELU, x < 0.0f ? alpha * expm1f(x) : x);
    default:
        return x;
    }
}

/* Applies activate() to COUNT numbers, with one branch for all of them. */
template <int COUNT>
__device__ static inline void activate_all(float (&v)[COUNT], int activation, float alpha,
                                           float beta)
{
    const auto each = [&](int which) {
        UNROLLED(i, COUNT)
            v[i] = activate(v[i], which, alpha, beta);
    };
    switch (activation) {
    case ACTIVATION_NONE:
        return;
    case ACTIVATION_RELU:
        return each(ACTIVATION_RELU);
    case ACTIVATION_CLIP:
        return each(ACTIVATION_CLIP);
    case ACTIVATION_HARD_SWISH:
        return each(ACTIVATION_HARD_SWISH);
    case ACTIVATION_SILU:
        return each(ACTIVATION_SILU);
    case ACTIVATION_GELU:
        return each(ACTIVATION_GELU);
    default:
        return each(activation);
    }
}

template <typename C> constexpr bool is_whole = (C)0.5 == (C)0;

/* ---- vector access ----
 *
 * These functions load and store COUNT neighbours at once; their address is a multiple of their
 * total size, or of 16 bytes if that is less. With another `count` they access the first `count`
 * neighbours, but at most COUNT, one by one at any address; further loaded numbers are 0. COUNT is
 * a power of two. */

/* COUNT bytes, a power of two up to 16, aligned. */
template <int COUNT> struct alignas(COUNT) bytes_of {
    using word = std::conditional_t<COUNT % 4 == 0, uint32_t, unsigned char>;
    word at[COUNT / sizeof(word)];
};

template <typename T, int COUNT>
__device__ static inline void load_same(T (&to)[COUNT], const void *from, int count = COUNT)
{
    constexpr int BYTES = COUNT * (int)sizeof(T), PIECE = BYTES < 16 ? BYTES : 16;
    if (count == COUNT) {
        bytes_of<PIECE> pieces[BYTES / PIECE];
        UNROLLED(i, BYTES / PIECE)
            pieces[i] = ((const bytes_of<PIECE> *)from)[i];
        memcpy(to, pieces, BYTES);
        return;
    }
    UNROLLED(i, COUNT)
        to[i] = i < count ? ((const T *)from)[i] : T{};
}

template <typename T, int COUNT>
__device__ static inline void store_same(void *to, const T (&from)[COUNT], int count = COUNT)
{
    constexpr int BYTES = COUNT * (int)sizeof(T), PIECE = BYTES < 16 ? BYTES : 16;
    if (count == COUNT) {
        bytes_of<PIECE> pieces[BYTES / PIECE];
        memcpy(pieces, from, BYTES);
        UNROLLED(i, BYTES / PIECE)
            ((bytes_of<PIECE> *)to)[i] = pieces[i];
        return;
    }
    UNROLLED(i, COUNT)
        if (i < count)
            ((T *)to)[i] = from[i];
}

/* Load and store numbers of any type as float32; load integers also as int. */
template <typename N, typename T, int COUNT>
__device__ static inline void load_all(N (&to)[COUNT], const T *from, int count = COUNT)
{
    T narrow[COUNT];
    load_same(narrow, from, count);
    UNROLLED(i, COUNT) {
        if constexpr (is_whole<N>)
            to[i] = narrow[i];
        else
            to[i] = to_float(narrow[i]);
    }
}

template <typename T, int COUNT>
__device__ static inline void store_all(T *to, const float (&from)[COUNT], int count = COUNT)
{
    T narrow[COUNT];
    UNROLLED(i, COUNT)
        narrow[i] = from_float<T>(from[i]);
    store_same(to, narrow, count);
}

/* v += the numbers at `from`; NULL adds nothing. */
template <typename T, int EACH>
__device__ static inline void add_all(float (&v)[EACH], const T *from, int count = EACH)
{
    float more[EACH];
    if (!from)
        return;
    load_all(more, from, count);
    UNROLLED(i, EACH)
        v[i] += more[i];
}

/* y[at + i] = activation(v[i] + bias[column + i] + residual[at + i]); T: the operands' type. */
template <typename T, int EACH>
__device__ static inline void finish_all(void *y, size_t at, int column, float (&v)[EACH],
                                         const cuda_epilogue &e, int count = EACH)
{
    const bool is_float = e.y_dtype == DTYPE_F32;
    add_all(v, e.bias ? e.bias + column : nullptr, count);
    if (is_float)
        add_all(v, e.residual ? (const float *)e.residual + at : nullptr, count);
    else
        add_all(v, e.residual ? (const T *)e.residual + at : nullptr, count);
    activate_all(v, e.activation, e.alpha, e.beta);
    if (is_float)
        store_all((float *)y + at, v, count);
    else
        store_all((T *)y + at, v, count);
}

/* Returns the offset in y of channel m of an output position. */
__device__ static inline size_t output_at(const cuda_conv &c, size_t position, int m)
{
    return position * (size_t)(c.y_row ? c.y_row : c.m) + (size_t)m;
}

/* Adds numbers, integers as unsigned, so that they wrap. */
template <typename C> __device__ static inline C wrapping_sum(C a, C b)
{
    if constexpr (is_whole<C>)
        return (C)((uint64_t)a + (uint64_t)b);
    else
        return a + b;
}

/* Runs `call` with EACH = 8 or 1. */
#define WITH_EACH(in_eights, call)                                                                 \
    do {                                                                                           \
        if (in_eights) {                                                                           \
            constexpr int EACH = 8;                                                                \
            call;                                                                                  \
        } else {                                                                                   \
            constexpr int EACH = 1;                                                                \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Runs `call` with T as an unsigned type of `size` bytes: 1, 2, 4 or 8. */
#define WITH_SIZE(size, call)                                                                      \
    do {                                                                                           \
        if ((size) == 1) {                                                                         \
            using T = uint8_t;                                                                     \
            call;                                                                                  \
        } else if ((size) == 2) {                                                                  \
            using T = uint16_t;                                                                    \
            call;                                                                                  \
        } else if ((size) == 4) {                                                                  \
            using T = uint32_t;                                                                    \
            call;                                                                                  \
        } else {                                                                                   \
            using T = uint64_t;                                                                    \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

/* Runs the arguments with T as the C++ type of a dtype. */
#define WITH_TYPE(dtype, ...)                                                                      \
    do {                                                                                           \
        if ((dtype) == DTYPE_F32) {                                                                \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_BF16) {                                                        \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* Like WITH_TYPE(), but also for 8-bit integers. */
#define WITH_STORED_TYPE(dtype, ...)                                                               \
    do {                                                                                           \
        if ((dtype) == DTYPE_U8) {                                                                 \
            using T = uint8_t;                                                                     \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_I8) {                                                          \
            using T = int8_t;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            WITH_TYPE(dtype, __VA_ARGS__);                                                         \
        }                                                                                          \
    } while (0)
