/* CUDA C++ for a host compiler: number types, the built-in variables, barriers, warp shuffles, and
 * the matrix fragments of nvcuda::wmma. A block's threads are fibers of one system thread, so that
 * __syncthreads() means what it says; a kernel started with LAUNCH has no barrier, and its threads
 * run one after the other. */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __shared__ static thread_local

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

void fake_launch(dim3 grid, dim3 block, cudaStream_t stream, bool has_barriers,
                 std::function<void()> body);
void __syncthreads();
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);

/* Arguments are copied when the kernel is started, as the hardware's are. */
template <typename... P, typename... A>
void fake_start(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream, bool has_barriers,
                A... arguments)
{
    fake_launch(grid, block, stream, has_barriers, [=] { kernel(arguments...); });
}

#define FAKE_UNWRAP(...) __VA_ARGS__
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    fake_start(kernel, dim3(grid), dim3(block), stream, false, __VA_ARGS__)
#define LAUNCH_BLOCK(kernel, grid, block, stream, ...)                                             \
    fake_start(kernel, dim3(grid), dim3(block), stream, true, __VA_ARGS__)

/* ---- half and bfloat16: storage with rounding to nearest even ---- */

extern "C" {
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);
}

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

/* ---- nvcuda::wmma: the first lane of a warp holds whole fragments and computes for all ---- */

namespace nvcuda
{
namespace wmma
{
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

static inline float fake_number(float x)
{
    return x;
}
static inline float fake_number(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static inline float fake_number(__half x)
{
    return __half2float(x);
}

static inline bool fake_first_lane()
{
    return threadIdx.x % 32 == 0;
}

template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    float at[16][16];
};

template <typename F> void fill_fragment(F &f, float value)
{
    for (auto &row : f.at)
        for (float &x : row)
            x = value;
}

template <typename T>
void load_matrix_sync(fragment<matrix_a, 16, 16, 16, T, row_major> &f, const T *p, unsigned ld)
{
    for (int i = 0; fake_first_lane() && i < 16; i++)
        for (int k = 0; k < 16; k++)
            f.at[i][k] = fake_number(p[i * (int)ld + k]);
}

template <typename T>
void load_matrix_sync(fragment<matrix_b, 16, 16, 16, T, col_major> &f, const T *p, unsigned ld)
{
    for (int k = 0; fake_first_lane() && k < 16; k++)
        for (int j = 0; j < 16; j++)
            f.at[k][j] = fake_number(p[j * (int)ld + k]);
}

template <typename A, typename B, typename C>
void mma_sync(C &d, const A &a, const B &b, const C &c)
{
    for (int i = 0; fake_first_lane() && i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum = c.at[i][j];
            for (int k = 0; k < 16; k++)
                sum += a.at[i][k] * b.at[k][j];
            d.at[i][j] = sum;
        }
}

template <typename F> void store_matrix_sync(float *p, const F &f, unsigned ld, layout_t layout)
{
    for (int i = 0; fake_first_lane() && i < 16; i++)
        for (int j = 0; j < 16; j++)
            p[layout == mem_row_major ? i * (int)ld + j : j * (int)ld + i] = f.at[i][j];
}
} // namespace wmma
} // namespace nvcuda
