/* Functions that the kernels on 8-bit integers share: conversion of a sum to a stored number. */
#pragma once

#include "engine/cuda/kernels/device.cuh"

/* These functions round each product and sum, as the CPU does; nvcc would fuse a product and a sum
 * to an fma. */
__device__ static inline float times(float a, float b)
{
    return __fmul_rn(a, b);
}
__device__ static inline float plus(float a, float b)
{
    return __fadd_rn(a, b);
}
__device__ static inline float divided(float a, float b)
{
    return __fdiv_rn(a, b);
}

__device__ static inline int lowest_of(int type)
{
    return type == DTYPE_I8 ? -128 : 0;
}

__device__ static inline int byte_of(unsigned char byte, bool is_signed)
{
    return is_signed ? (int)(signed char)byte : (int)byte;
}

__device__ static inline int requantized(float real, int zero, int lowest)
{
    return clamped_byte(plus(rintf(real), (float)zero), lowest);
}

/* Returns the QLinearAdd of two 8-bit numbers. */
__device__ static inline int added(int own, float own_ratio, int other, float other_ratio,
                                   float fixed, int lowest)
{
    const float second = plus(fixed, times((float)other, other_ratio));
    return clamped_byte(rintf(plus(second, times((float)own, own_ratio))), lowest);
}

/* Stores the 8-bit results of COUNT neighbouring sums from element `at` and channel `column` on. */
template <int COUNT>
__device__ static inline void finish_stored(const int (&v)[COUNT], void *y, size_t at, int column,
                                            int count, const cuda_int8_epilogue &e)
{
    const int lowest = lowest_of(e.y_type);
    float scales[COUNT];
    unsigned char bytes[COUNT], other[COUNT];
    load_same(scales, (const float *)e.scales + column, count);
    if (e.residual)
        load_same(other, (const unsigned char *)e.residual + at, count);
    UNROLLED(i, COUNT) {
        int stored = requantized(times((float)v[i], scales[i]), e.zero, lowest);
        if (e.residual)
            stored = added(stored, e.own_ratio, byte_of(other[i], e.y_type == DTYPE_I8),
                           e.residual_ratio, e.fixed, lowest);
        bytes[i] = (unsigned char)stored;
    }
    if (e.table) {
        UNROLLED(i, COUNT)
            bytes[i] = ((const unsigned char *)e.table)[bytes[i]];
    }
    store_same((unsigned char *)y + at, bytes, count);
}

/* Applies the epilogue to COUNT neighbouring sums, like finish_all() of floats. */
template <typename T, int COUNT>
__device__ static inline void finish_all(void *y, size_t at, int column, int (&v)[COUNT],
                                         const cuda_int8_epilogue &e, int count = COUNT)
{
    int more[COUNT];
    if (e.bias) {
        load_same(more, (const int *)e.bias + column, count);
        UNROLLED(i, COUNT)
            v[i] = wrapping_sum(v[i], more[i]);
    }
    if (e.x_zero) {
        const unsigned zero =
            (unsigned)byte_of(*(const unsigned char *)e.x_zero, e.x_type == DTYPE_I8);
        load_same(more, (const int *)e.weight_sums + column, count);
        UNROLLED(i, COUNT)
            v[i] = (int)((unsigned)v[i] - zero * (unsigned)more[i]);
    }
    if (e.y_type == DTYPE_U8 || e.y_type == DTYPE_I8)
        return finish_stored(v, y, at, column, count, e);
    UNROLLED(i, COUNT) {
        if (i < count && e.y_type == DTYPE_I32)
            ((int *)y)[at + i] = v[i];
        else if (i < count)
            ((float *)y)[at + i] = times((float)v[i], ((const float *)e.scales)[column + i]);
    }
}
