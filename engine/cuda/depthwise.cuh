/* Private to depthwise.cu and int8.cu: how depthwise kernels of windows without dilation walk. */
#pragma once

#include "engine/cuda/device.cuh"

/* Item i of a kernel that makes eight neighbouring channels of WIDE neighbouring outputs of a row;
 * its windows, STRIDE apart, begin at (top, left) of image n, which may be negative. */
template <int STRIDE, int WIDE> struct depthwise_item {
    int channel, first, oh, n, left, top;

    __device__ inline depthwise_item(const cuda_conv &c, size_t i)
    {
        const int eights = c.c / 8, groups = (c.ow + WIDE - 1) / WIDE;
        channel = (int)(i % (size_t)eights) * 8;
        size_t rest = i / (size_t)eights;
        first = (int)(rest % (size_t)groups) * WIDE;
        rest /= (size_t)groups;
        oh = (int)(rest % (size_t)c.oh);
        n = (int)(rest / (size_t)c.oh);
        left = first * STRIDE - c.pad_w;
        top = oh * STRIDE - c.pad_h;
    }

    /* Where its output o is in y. */
    __device__ inline size_t output(const cuda_conv &c, int o) const
    {
        return (((size_t)n * c.oh + oh) * c.ow + first + o) * c.c + channel;
    }
};
