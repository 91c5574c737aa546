/* CUDA C++ for a host compiler: number types, the built-in variables, barriers and warp shuffles
 * (what tensor cores compute stands beside their instructions,
 * engine/cuda/kernels/tensor_core.cuh). A block's threads are fibers of one system thread, so that
 * __syncthreads() means what it says; a kernel started with START has no barrier, and its threads
 * run one after the other. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda_runtime_api.h"
#include "engine/base/float_bits.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static thread_local

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

/* Blocks along y, and along z: fewer than a GPU has, so that tests get beyond. */
enum { GRID_MOST = 1023 };

/* `shared`: bytes of dynamic shared memory, which hold NaN when a block starts. */
void fake_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, bool has_barriers,
                 std::function<void()> body);
void fake_run_kernel(dim3 grid, dim3 size, size_t shared, bool has_barriers,
                     const std::function<void()> &body);
extern thread_local unsigned char *fake_dynamic_shared;
void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
float __shfl_sync(unsigned mask, float value, int lane);
static inline uint32_t __shfl_xor_sync(unsigned mask, uint32_t value, int lane_mask)
{
    float bits;
    memcpy(&bits, &value, sizeof bits);
    bits = __shfl_xor_sync(mask, bits, lane_mask);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* In shared memory: a block is one system thread. */
static inline unsigned atomicAdd(unsigned *to, unsigned more)
{
    const unsigned was = *to;
    *to += more;
    return was;
}

/* Arguments are copied when the kernel is started, as the hardware's are. */
template <typename... P, typename... A>
void fake_start(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                bool has_barriers, A... arguments)
{
    fake_launch(grid, block, shared, stream, has_barriers, [=] { kernel(arguments...); });
}

#define FAKE_UNWRAP(...) __VA_ARGS__
#define START(kernel, grid, block, stream, ...)                                                    \
    fake_start(kernel, dim3(grid), dim3(block), 0, stream, false, __VA_ARGS__)
#define START_BLOCK(kernel, grid, block, stream, ...)                                              \
    fake_start(kernel, dim3(grid), dim3(block), 0, stream, true, __VA_ARGS__)
#define START_SHARED(kernel, grid, block, shared, stream, ...)                                     \
    fake_start(kernel, dim3(grid), dim3(block), shared, stream, true, __VA_ARGS__)
#define SHARED_MEMORY(name) unsigned char *name = fake_dynamic_shared
#define UNROLL
#define NO_UNROLL
template <typename... P> static inline void prefer_shared(void (*)(P...))
{
}

/* ---- arithmetic that must not become fma; without -mfma the compiler makes none ---- */

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

/* ---- half and bfloat16: storage with rounding to nearest even ---- */

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return bfloat16_to_float(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return {float_to_bfloat16(x)};
}
static inline float __half2float(__half x)
{
    return half_to_float(x.bits);
}
static inline __half __float2half(float x)
{
    return {float_to_half(x)};
}
