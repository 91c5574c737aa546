/* Numbers of any dtype, read and written one by one. The dtype is the same for a whole launch, so
 * that no warp diverges. */
#pragma once

#include "engine/cuda/kernels/device.cuh"
#include "engine/cuda/kernels/kernels_number.h"

template <typename C> __device__ static inline C load_any(const void *x, int dtype, int64_t i)
{
    switch (dtype) {
    case T_F32:
        return (C)((const float *)x)[i];
    case T_F16:
        return (C)to_float(((const __half *)x)[i]);
    case T_BF16:
        return (C)to_float(((const __nv_bfloat16 *)x)[i]);
    case T_F64:
        return (C)((const double *)x)[i];
    case T_BOOL:
        return (C)(((const uint8_t *)x)[i] != 0);
    case T_U8:
        return (C)((const uint8_t *)x)[i];
    case T_I8:
        return (C)((const int8_t *)x)[i];
    case T_U16:
        return (C)((const uint16_t *)x)[i];
    case T_I16:
        return (C)((const int16_t *)x)[i];
    case T_U32:
        return (C)((const uint32_t *)x)[i];
    case T_I32:
        return (C)((const int32_t *)x)[i];
    default:
        return (C)((const int64_t *)x)[i];
    }
}

/* A float truncated; NaN is 0, what does not fit ends at the nearer end. */
template <typename I, typename C>
__device__ static inline I saturating_cast(C x, double low, double high)
{
    const double wide = (double)x;
    if (wide != wide)
        return (I)0;
    /* The bounds themselves may not be numbers of I: 2^63 is none. */
    if (wide <= low)
        return (I)((I)-1 < (I)1 ? (uint64_t)1 << (8 * sizeof(I) - 1) : (uint64_t)0);
    if (wide >= high)
        return (I)((I)-1 < (I)1 ? ((uint64_t)1 << (8 * sizeof(I) - 1)) - 1 : ~(uint64_t)0);
    return (I)wide;
}

/* An integer as it wraps, a float as it saturates. */
template <typename I, typename C> __device__ static inline I whole(C x, double low, double high)
{
    if constexpr ((C)0.5 == (C)0)
        return (I)x;
    else
        return saturating_cast<I>(x, low, high);
}

template <typename C> __device__ static inline void store_any(void *y, int dtype, size_t i, C x)
{
    switch (dtype) {
    case T_F32:
        ((float *)y)[i] = (float)x;
        break;
    case T_F16:
        ((__half *)y)[i] = from_float<__half>((float)x);
        break;
    case T_BF16:
        ((__nv_bfloat16 *)y)[i] = from_float<__nv_bfloat16>((float)x);
        break;
    case T_F64:
        ((double *)y)[i] = (double)x;
        break;
    case T_BOOL:
        ((uint8_t *)y)[i] = x != 0;
        break;
    case T_U8:
        ((uint8_t *)y)[i] = whole<uint8_t>(x, 0.0, 255.0);
        break;
    case T_I8:
        ((int8_t *)y)[i] = whole<int8_t>(x, -128.0, 127.0);
        break;
    case T_U16:
        ((uint16_t *)y)[i] = whole<uint16_t>(x, 0.0, 65535.0);
        break;
    case T_I16:
        ((int16_t *)y)[i] = whole<int16_t>(x, -32768.0, 32767.0);
        break;
    case T_U32:
        ((uint32_t *)y)[i] = whole<uint32_t>(x, 0.0, 4294967295.0);
        break;
    case T_I32:
        ((int32_t *)y)[i] = whole<int32_t>(x, -2147483648.0, 2147483647.0);
        break;
    case T_U64:
        ((uint64_t *)y)[i] = whole<uint64_t>(x, 0.0, 18446744073709551616.0);
        break;
    default:
        ((int64_t *)y)[i] = whole<int64_t>(x, -9223372036854775808.0, 9223372036854775808.0);
    }
}

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
