/* Convolutions of 8-bit integers over [N, H, W, C] images on ordinary cores: depthwise ones, groups
 * of few channels, and weights that exceed 8 bits after their zero point is subtracted. The padding
 * holds x's zero point, as on tensor cores. */
#include "engine/cuda/kernels/int8.cuh"

namespace
{
__device__ static inline int multiplied(int sum, int x, int weight)
{
    return wrapped(sum, x * weight);
}

template <int COUNT> __device__ static inline void load_taps(int (&to)[COUNT], const int16_t *from)
{
    if constexpr (COUNT == 8) {
        const words4 words = *(const words4 *)from;
        int16_t taps[8];
        memcpy(taps, &words, sizeof words);
        UNROLLED(i, 8)
            to[i] = taps[i];
    } else {
        UNROLLED(i, COUNT)
            to[i] = from[i];
    }
}

template <int COUNT>
__device__ static inline void load_pixel(int (&to)[COUNT], const unsigned char *from, bool has,
                                         int padding, bool is_signed)
{
    unsigned char bytes[COUNT];
    if (has)
        load_bytes(bytes, from);
    UNROLLED(i, COUNT)
        to[i] = has ? byte_of(bytes[i], is_signed) : padding;
}

/* A thread computes EACH neighbouring channels of one output. */
template <int EACH>
__global__ void int8_depthwise_kernel(const unsigned char *x, const int16_t *weights, void *y,
                                      cuda_int8_conv conv, cuda_int8_epilogue e, size_t count)
{
    const cuda_conv &c = conv.conv;
    const bool is_signed = conv.x_type == DTYPE_I8;
    const int padding = byte_of(conv.padding[0], is_signed);
    FOR_EACH(i, count) {
        const output_item at(i, c.c / EACH, c.ow, c.oh);
        const int channel = at.item * EACH, ow = at.ow, oh = at.oh;
        int sums[EACH] = {};
        for (int tap = 0; tap < c.kh * c.kw; tap++) {
            const int h = oh * c.stride_h - c.pad_h + tap / c.kw * c.dilation_h;
            const int w = ow * c.stride_w - c.pad_w + tap % c.kw * c.dilation_w;
            const bool has = h >= 0 && h < c.h && w >= 0 && w < c.w;
            const size_t from =
                has ? (((size_t)at.n * c.h + (size_t)h) * c.w + (size_t)w) * (size_t)c.c : 0;
            int v[EACH], taps[EACH];
            load_pixel(v, x + from + channel, has, padding, is_signed);
            load_taps(taps, weights + (size_t)tap * (size_t)c.c + (size_t)channel);
            UNROLLED(k, EACH)
                sums[k] = multiplied(sums[k], v[k], taps[k]);
        }
        finish_sums(sums, y, i * EACH, channel, true, EACH, e);
    }
}

/* One output per thread. */
__global__ void int8_direct_kernel(const unsigned char *x, const int16_t *weights, void *y,
                                   cuda_int8_conv conv, cuda_int8_epilogue e, size_t count)
{
    const cuda_conv &c = conv.conv;
    const bool is_signed = conv.x_type == DTYPE_I8;
    const int padding = byte_of(conv.padding[0], is_signed);
    const int cg = c.c / c.groups, mg = c.m / c.groups;
    FOR_EACH(i, count) {
        const output_item at(i, c.m, c.ow, c.oh);
        const int m = at.item, ow = at.ow, oh = at.oh;
        const int16_t *taps = weights + (size_t)m * (size_t)c.row;
        int sum[1] = {};
        for (int tap = 0; tap < c.kh * c.kw; tap++, taps += cg) {
            const int h = oh * c.stride_h - c.pad_h + tap / c.kw * c.dilation_h;
            const int w = ow * c.stride_w - c.pad_w + tap % c.kw * c.dilation_w;
            const bool has = h >= 0 && h < c.h && w >= 0 && w < c.w;
            const size_t from =
                has ? (((size_t)at.n * c.h + (size_t)h) * c.w + (size_t)w) * (size_t)c.c : 0;
            const unsigned char *pixel = x + from + m / mg * cg;
            for (int k = 0; k < cg; k++)
                sum[0] = multiplied(sum[0], has ? byte_of(pixel[k], is_signed) : padding, taps[k]);
        }
        finish_sums(sum, y, i, m, true, 1, e);
    }
}
} // namespace

void cuda_int8_conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_int8_conv *conv,
                           const struct cuda_int8_epilogue *epilogue)
{
    const cuda_conv &c = conv->conv;
    const size_t count = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
    LAUNCH(int8_direct_kernel, blocks_for(count), THREADS, stream, (const unsigned char *)x,
           (const int16_t *)weights, y, *conv, *epilogue, count);
}

void cuda_int8_conv_depthwise(cudaStream_t stream, const void *x, const void *weights, void *y,
                              const struct cuda_int8_conv *conv, const struct cuda_int8_epilogue *e)
{
    const cuda_conv &c = conv->conv;
    const size_t outputs = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.c;
    WITH_EACH(c.c % 8 == 0, LAUNCH(int8_depthwise_kernel<EACH>, blocks_for(outputs / EACH), THREADS,
                                   stream, (const unsigned char *)x, (const int16_t *)weights, y,
                                   *conv, *e, outputs / EACH));
}
