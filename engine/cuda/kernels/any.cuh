/* Functions on elements of any dtype. All threads of a launch have the same dtypes, so no warp
 * diverges. */
#pragma once

#include "engine/cuda/kernels/device.cuh"

/* Lists dtypes and their C++ types, without BOOL and I64. */
#define NUMBERS(X)                                                                                 \
    X(DTYPE_F32, float)                                                                            \
    X(DTYPE_F16, __half)                                                                           \
    X(DTYPE_BF16, __nv_bfloat16)                                                                   \
    X(DTYPE_F64, double)                                                                           \
    X(DTYPE_U8, uint8_t)                                                                           \
    X(DTYPE_I8, int8_t)                                                                            \
    X(DTYPE_U16, uint16_t)                                                                         \
    X(DTYPE_I16, int16_t)                                                                          \
    X(DTYPE_U32, uint32_t)                                                                         \
    X(DTYPE_I32, int32_t)                                                                          \
    X(DTYPE_U64, uint64_t)

template <typename T> constexpr bool is_narrow = false;
template <> constexpr bool is_narrow<__half> = true;
template <> constexpr bool is_narrow<__nv_bfloat16> = true;

template <typename C, typename T> __device__ static inline C number_from(T x)
{
    if constexpr (is_narrow<T>)
        return (C)to_float(x);
    else
        return (C)x;
}

template <typename C> __device__ static inline C load_any(const void *x, int dtype, int64_t i)
{
#define LOAD_CASE(dtype, type)                                                                     \
    case dtype:                                                                                    \
        return number_from<C>(((const type *)x)[i]);
    switch (dtype) {
        NUMBERS(LOAD_CASE)
    case DTYPE_BOOL:
        return (C)(((const uint8_t *)x)[i] != 0);
    default:
        return (C)((const int64_t *)x)[i];
    }
#undef LOAD_CASE
}

/* Truncates a float and saturates; NaN becomes 0. */
template <typename I> __device__ static inline I clamped_cast(double x)
{
    constexpr bool is_signed = (I)-1 < (I)1;
    constexpr int bits = 8 * (int)sizeof(I) - is_signed;
    constexpr uint64_t least = is_signed ? (uint64_t)1 << bits : 0;
    const double high = (double)((uint64_t)1 << (bits - 1)) * 2;
    if (x != x)
        return (I)0;
    if (x <= (is_signed ? -high : 0.0))
        return (I)least;
    /* 2^bits and more become the largest I. */
    return x >= high ? (I)((uint64_t) ~(uint64_t)0 >> (64 - bits)) : (I)x;
}

/* Converts a number: integers wrap, floats saturate. */
template <typename T, typename C> __device__ static inline T number_to(C x)
{
    if constexpr (is_narrow<T>)
        return from_float<T>((float)x);
    else if constexpr ((T)0.5 == (T)0 && (C)0.5 != (C)0)
        return clamped_cast<T>((double)x);
    else
        return (T)x;
}

template <typename C> __device__ static inline void store_any(void *y, int dtype, size_t i, C x)
{
#define STORE_CASE(dtype, type)                                                                    \
    case dtype:                                                                                    \
        ((type *)y)[i] = number_to<type>(x);                                                       \
        break;
    switch (dtype) {
        NUMBERS(STORE_CASE)
    case DTYPE_BOOL:
        ((uint8_t *)y)[i] = x != 0;
        break;
    default:
        ((int64_t *)y)[i] = number_to<int64_t>(x);
    }
#undef STORE_CASE
}
#undef NUMBERS

/* Runs `call` with C as the C++ type of a domain. */
#define WITH_DOMAIN(domain, call)                                                                  \
    do {                                                                                           \
        if ((domain) == CUDA_IN_FLOAT) {                                                           \
            using C = float;                                                                       \
            call;                                                                                  \
        } else if ((domain) == CUDA_IN_DOUBLE) {                                                   \
            using C = double;                                                                      \
            call;                                                                                  \
        } else {                                                                                   \
            using C = int64_t;                                                                     \
            call;                                                                                  \
        }                                                                                          \
    } while (0)
