/* Private to depthwise.cu and int8.cu: maps threads of a depthwise kernel to outputs. */
#pragma once

#include "engine/cuda/kernels/device.cuh"

/* Item i of a kernel: eight neighbouring channels of WIDE neighbouring outputs of a row. Its
 * windows, STRIDE apart, start at (top, left) of image n; both may be negative. */
template <int STRIDE, int WIDE> struct depthwise_item {
    int channel, first, oh, n, left, top;

    __device__ inline depthwise_item(const cuda_conv &c, size_t i)
    {
        const output_item at(i, c.c / 8, (c.ow + WIDE - 1) / WIDE, c.oh);
        channel = at.item * 8;
        first = at.ow * WIDE;
        oh = at.oh;
        n = at.n;
        left = first * STRIDE - c.pad_w;
        top = oh * STRIDE - c.pad_h;
    }

    /* Returns the offset in y of the item's output o. */
    __device__ inline size_t output(const cuda_conv &c, int o) const
    {
        return (((size_t)n * c.oh + oh) * c.ow + first + o) * c.c + channel;
    }
};
