/* What the kernels share: number types, activations, and how a kernel is started.
 *
 * The kernels are compiled twice: by nvcc for GPUs, and by the host's C++ compiler for the test
 * double (tests/fake_cuda), where LENSD_FAKE_CUDA is defined and a launch runs blocks and threads
 * in loops. Hence LAUNCH instead of <<<>>>: LAUNCH for kernels without barriers, LAUNCH_BLOCK for
 * kernels whose threads wait for each other. */
#pragma once

#include "engine/cuda/kernels.h"

#ifdef LENSD_FAKE_CUDA
#include "fake_device.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

#define LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#define LAUNCH_BLOCK(kernel, grid, block, stream, ...)                                             \
    kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

/* ONNX's numbers, as engine/tensor.h has them. */
enum { T_F32 = 1, T_F16 = 10, T_BF16 = 16 };

enum { THREADS = 256 };

static inline unsigned blocks_for(size_t count)
{
    size_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks > 65535u * 16u ? 65535u * 16u : blocks ? blocks : 1);
}

#define FOR_EACH(i, count)                                                                         \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count);                    \
         i += (size_t)gridDim.x * blockDim.x)

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

/* enum activation of engine/graph.h, in its order. */
enum {
    A_NONE,
    A_RELU,
    A_LEAKY_RELU,
    A_CLIP,
    A_SIGMOID,
    A_HARD_SIGMOID,
    A_HARD_SWISH,
    A_SILU,
    A_GELU,
    A_GELU_TANH,
    A_TANH,
    A_ELU,
};

__device__ static inline float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* NaN stays NaN: comparisons are written so that they pass it on. */
__device__ static inline float activate(float x, int activation, float alpha, float beta)
{
    switch (activation) {
    case A_RELU:
        return x < 0.0f ? 0.0f : x;
    case A_LEAKY_RELU:
        return x < 0.0f ? alpha * x : x;
    case A_CLIP:
        return x < alpha ? alpha : x > beta ? beta : x;
    case A_SIGMOID:
        return sigmoid(x);
    case A_HARD_SIGMOID: {
        float y = alpha * x + beta;
        return y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y;
    }
    case A_HARD_SWISH: {
        float y = x * (1.0f / 6.0f) + 0.5f;
        return x * (y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y);
    }
    case A_SILU:
        return x * sigmoid(alpha * x);
    case A_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case A_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case A_TANH:
        return tanhf(x);
    case A_ELU:
        return x < 0.0f ? alpha * expm1f(x) : x;
    default:
        return x;
    }
}

/* Runs `call` with T as the C++ type of a dtype. */
#define WITH_TYPE(dtype, call)                                                                     \
    do {                                                                                           \
        if ((dtype) == T_F32) {                                                                    \
            using T = float;                                                                       \
            call;                                                                                  \
        } else if ((dtype) == T_BF16) {                                                            \
            using T = __nv_bfloat16;                                                               \
            call;                                                                                  \
        } else {                                                                                   \
            using T = __half;                                                                      \
            call;                                                                                  \
        }                                                                                          \
    } while (0)
