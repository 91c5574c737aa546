/* Convolutions of 8-bit integers over [N, H, W, C] images on ordinary cores: depthwise ones, groups
 * of few channels, and weights that exceed 8 bits after their zero point is subtracted. The padding
 * holds x's zero point, as on tensor cores. */
#include "engine/cuda/kernels/int8.cuh"

namespace
{
template <int COUNT>
__device__ static inline void load_pixel(int (&to)[COUNT], const unsigned char *from, bool has,
                                         int padding, bool is_signed)
{
    unsigned char bytes[COUNT];
    if (has)
        load_same(bytes, from);
    UNROLLED(i, COUNT)
        to[i] = has ? byte_of(bytes[i], is_signed) : padding;
}

/* A thread computes EACH outputs; if EACH is 8, they are neighbouring channels of a depthwise
 * convolution. channel_step: numbers between the weights of two output channels; tap_step: numbers
 * between the weights of two positions of the window. */
template <int EACH>
__global__ void int8_direct_kernel(const unsigned char *x, const int16_t *weights, void *y,
                                   cuda_conv c, cuda_int8_epilogue e, int channel_step,
                                   int tap_step, size_t count)
{
    const bool is_signed = e.x_type == DTYPE_I8;
    const int padding = byte_of(*(const unsigned char *)e.padding, is_signed);
    const int cg = c.c / c.groups, mg = c.m / c.groups;
    FOR_EACH(i, count) {
        const output_item at(i, c.m / EACH, c.ow, c.oh);
        const int m = at.item * EACH;
        const int16_t *taps = weights + (size_t)m * (size_t)channel_step;
        int sums[EACH] = {};
        for (int tap = 0; tap < c.kh * c.kw; tap++, taps += tap_step) {
            const int h = at.oh * c.stride_h - c.pad_h + tap / c.kw * c.dilation_h;
            const int w = at.ow * c.stride_w - c.pad_w + tap % c.kw * c.dilation_w;
            const bool has = h >= 0 && h < c.h && w >= 0 && w < c.w;
            const size_t from =
                has ? (((size_t)at.n * c.h + (size_t)h) * c.w + (size_t)w) * (size_t)c.c : 0;
            for (int k = 0; k < cg; k++) {
                int v[EACH];
                int16_t t[EACH];
                load_pixel(v, x + from + m / mg * cg + k, has, padding, is_signed);
                load_same(t, taps + k);
                UNROLLED(j, EACH)
                    sums[j] = wrapping_sum(sums[j], v[j] * t[j]);
            }
        }
        finish_sums(sums, y, i * EACH, m, true, EACH, e);
    }
}
} // namespace

void cuda_int8_conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_conv *conv, const struct cuda_int8_epilogue *epilogue)
{
    const cuda_conv &c = *conv;
    const bool is_depthwise = c.groups == c.c && c.m == c.c;
    const size_t count = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
    WITH_EACH(is_depthwise && c.c % 8 == 0,
              LAUNCH(int8_direct_kernel<EACH>, blocks_for(count / EACH), THREADS, stream,
                     (const unsigned char *)x, (const int16_t *)weights, y, c, *epilogue,
                     is_depthwise ? 1 : c.row, is_depthwise ? c.c : c.c / c.groups, count / EACH));
}
