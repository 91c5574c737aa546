/* Depthwise convolutions over [N, H, W, C] images. Each channel of y depends on one channel of x,
 * so there is no matrix product, and little arithmetic for each byte. A thread computes eight
 * neighbouring channels (16 bytes of 16-bit numbers) of several neighbouring outputs of a row.
 * Their windows overlap, so each number is loaded once for all of them. conv.cu has the kernel for
 * uncommon windows. */
#include "engine/cuda/kernels/device.cuh"

namespace
{
/* KERNEL x KERNEL windows, STRIDE apart in both directions, without dilation. A thread computes
 * eight neighbouring channels of WIDE neighbouring outputs of a row; their first window starts at
 * (top, left), both of which may be negative. */
template <typename T, int KERNEL, int STRIDE, int WIDE>
__global__ void depthwise_kernel(const T *x, const T *weights, void *y, cuda_conv c,
                                 cuda_epilogue e, size_t count)
{
    constexpr int COLUMNS = (WIDE - 1) * STRIDE + KERNEL;
    FOR_EACH(i, count) {
        const output_item at(i, c.c / 8, (c.ow + WIDE - 1) / WIDE, c.oh);
        const int channel = at.item * 8, first = at.ow * WIDE;
        const int left = first * STRIDE - c.pad_w, top = at.oh * STRIDE - c.pad_h;
        float sums[WIDE][8] = {};
        UNROLLED(r, KERNEL) {
            if (top + r < 0 || top + r >= c.h)
                continue;
            float taps[KERNEL][8];
            UNROLLED(s, KERNEL)
                load_all(taps[s], weights + (r * KERNEL + s) * c.c + channel);
            const T *row = x + ((size_t)at.n * c.h + top + r) * c.w * c.c + channel;
            UNROLLED(column, COLUMNS) {
                if (left + column < 0 || left + column >= c.w)
                    continue;
                float v[8];
                load_all(v, row + (size_t)(left + column) * c.c);
                UNROLLED(o, WIDE) {
                    const int s = column - o * STRIDE;
                    if (s < 0 || s >= KERNEL)
                        continue;
                    UNROLLED(k, 8)
                        sums[o][k] += v[k] * taps[s][k];
                }
            }
        }
        UNROLLED(o, WIDE)
            if (first + o < c.ow)
                finish_all<T>(y, (((size_t)at.n * c.oh + at.oh) * c.ow + first + o) * c.c + channel,
                              channel, sums[o], e);
    }
}

template <typename T, int KERNEL, int STRIDE>
void depthwise_launch(cudaStream_t stream, const T *x, const T *weights, void *y,
                      const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    constexpr int WIDE = 4;
    const size_t rows = (size_t)c->n * (size_t)c->oh * (size_t)(c->c / 8);
    const size_t wide = rows * (size_t)((c->ow + WIDE - 1) / WIDE), single = rows * (size_t)c->ow;
    if (wide >= 1 << 17) /* fewer threads of WIDE outputs cannot fill a large device */
        LAUNCH((depthwise_kernel<T, KERNEL, STRIDE, WIDE>), blocks_for(wide), THREADS, stream, x,
               weights, y, *c, *e, wide);
    else
        LAUNCH((depthwise_kernel<T, KERNEL, STRIDE, 1>), blocks_of(single, 128), 128, stream, x,
               weights, y, *c, *e, single);
}

template <typename T>
void run_depthwise(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                   const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    const bool is_even = c->kh == c->kw && c->stride_h == c->stride_w && c->dilation_h == 1 &&
                         c->dilation_w == 1 && c->c % 8 == 0 && c->stride_h <= 2;
    const int form = is_even ? c->kh * 10 + c->stride_h : 0;
    const auto run = form == 31   ? depthwise_launch<T, 3, 1>
                     : form == 32 ? depthwise_launch<T, 3, 2>
                     : form == 51 ? depthwise_launch<T, 5, 1>
                     : form == 52 ? depthwise_launch<T, 5, 2>
                     : form == 71 ? depthwise_launch<T, 7, 1>
                                  : nullptr;
    if (run) /* the windows of common networks */
        run(stream, (const T *)x, (const T *)weights, y, c, e);
    else
        cuda_conv_direct(stream, dtype, x, weights, y, c, e);
}
} // namespace

void cuda_conv_depthwise(cudaStream_t stream, int dtype, const void *x, const void *weights,
                         void *y, const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    WITH_TYPE(dtype, run_depthwise<T>(stream, dtype, x, weights, y, c, e));
}
