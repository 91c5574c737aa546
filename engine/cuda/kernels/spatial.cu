/* Operators on images: Resize, GroupNormalization, ConvTranspose, GridSample. */
#include "engine/cuda/kernels/device.cuh"

namespace
{
/* ---- resize ---- */

/* A thread computes EACH (8 or 1) neighbouring channels of an output pixel. */
template <typename T, int EACH>
__global__ void resize_image_kernel(const T *x, T *y, const int32_t *index, const float *weight,
                                    cuda_resize r, size_t count)
{
    FOR_EACH(i, count) {
        const output_item at(i, (int)(r.out[3] / EACH), (int)r.out[2], (int)r.out[1]);
        const int64_t row = (int64_t)at.oh * r.taps[0];
        const int64_t column = r.out[1] * r.taps[0] + (int64_t)at.ow * r.taps[1];
        const T *image =
            x + (size_t)at.n * (size_t)(r.in[1] * r.in[2] * r.in[3]) + (size_t)at.item * EACH;
        float sum[EACH] = {};
        for (int a = 0; a < r.taps[0]; a++) {
            const float outer = weight[row + a];
            if (outer == 0.0f)
                continue;
            const T *line = image + (int64_t)index[row + a] * r.in[2] * r.in[3];
            for (int b = 0; b < r.taps[1]; b++) {
                const float factor = outer * weight[column + b];
                if (factor == 0.0f)
                    continue;
                const T *from = line + (int64_t)index[column + b] * r.in[3];
                float v[EACH];
                load_all(v, from);
                UNROLLED(k, EACH)
                    sum[k] += factor * v[k];
            }
        }
        store_all(y + i * EACH, sum);
    }
}

} // namespace

void cuda_resize_image(cudaStream_t stream, int dtype, const void *x, void *y, const int32_t *index,
                       const float *weight, const struct cuda_resize *resize)
{
    const size_t count = element_count(4, resize->out);
    WITH_EACH(resize->out[3] % 8 == 0,
              WITH_TYPE(dtype, LAUNCH((resize_image_kernel<T, EACH>), blocks_for(count / EACH),
                                      THREADS, stream, (const T *)x, (T *)y, index, weight, *resize,
                                      count / EACH)));
}

/* ---- GroupNormalization ----
 * The kernels sum each channel over groups of pixels, and compute means from the sums. They do the
 * same for squared differences, and compute from both a factor and a shift per channel. The last
 * pass applies factor and shift. The order is fixed, so that the same image gives the same answer
 * to the last bit. */

namespace
{
enum { LONGEST_SUM = 512 }; /* most pixels per float32 sum of images up to 256 * 512 pixels */

size_t pieces_of(const struct cuda_groups *g)
{
    size_t pieces = (g->pixels + LONGEST_SUM - 1) / LONGEST_SUM;
    return pieces < 1 ? 1 : pieces > 256 ? 256 : pieces;
}

/* partial[n, p, c] = the sum of x, or of (x - mean)^2, over group p of the pixels. Each lane has
 * one channel; the pixels are divided among the warps of a block. */
template <typename T>
__global__ void groups_sums_kernel(const T *x, const float *mean, float *partial, cuda_groups g,
                                   size_t pieces, size_t blocks)
{
    __shared__ float sums[WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const size_t across = (g.channels + WARP - 1) / WARP;
    for (size_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const size_t channel = block % across * WARP + (size_t)lane, rest = block / across;
        const size_t piece = rest % pieces, image = rest / pieces;
        const size_t first = g.pixels * piece / pieces, last = g.pixels * (piece + 1) / pieces;
        float sum = 0.0f;
        if (channel < g.channels) {
            const float middle = mean ? mean[image * g.channels + channel] : 0.0f;
            const T *from = x + image * g.pixels * g.channels + channel;
            for (size_t p = first + (size_t)warp; p < last; p += WARPS) {
                const float v = to_float(from[p * g.channels]) - middle;
                sum += mean ? v * v : v;
            }
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && channel < g.channels) {
            for (int w = 1; w < WARPS; w++)
                sum += sums[w][lane];
            partial[(image * pieces + piece) * g.channels + channel] = sum;
        }
        __syncthreads();
    }
}

/* One block per group. Without `scale`, to[n, c] is the mean. With `scale`, y = x * to + shift. */
__global__ void groups_join_kernel(const float *partial, const float *mean, const float *scale,
                                   const float *bias, float *to, float *shift, cuda_groups g,
                                   size_t pieces, size_t blocks)
{
    __shared__ float sums[WARPS];
    const size_t groups = g.channels / g.per, parts = pieces * g.per;
    for (size_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const size_t group = block % groups, image = block / groups;
        float sum = 0.0f;
        for (size_t i = threadIdx.x; i < parts; i += THREADS)
            sum += partial[(image * pieces + i / g.per) * g.channels + group * g.per + i % g.per];
        sum = block_join(sum, sums, [](float a, float b) { return a + b; });
        const float value = sum / ((float)g.per * (float)g.pixels);
        for (size_t i = threadIdx.x; i < g.per; i += THREADS) {
            const size_t channel = group * g.per + i, at = image * g.channels + channel;
            if (scale) {
                to[at] = scale[channel] / sqrtf(value + g.epsilon);
                shift[at] = bias[channel] - mean[at] * to[at];
            } else {
                to[at] = value;
            }
        }
    }
}

template <typename T, int EACH>
__global__ void groups_write_kernel(const T *x, const float *factor, const float *shift, T *y,
                                    cuda_groups g, size_t count)
{
    const size_t across = g.channels / EACH, image = g.pixels * across;
    FOR_EACH(i, count) {
        const size_t at = i / image * g.channels + i % across * EACH;
        float v[EACH], a[EACH], b[EACH];
        load_all(v, x + i * EACH);
        load_all(a, factor + at);
        load_all(b, shift + at);
        UNROLLED(k, EACH)
            v[k] = v[k] * a[k] + b[k];
        store_all(y + i * EACH, v);
    }
}

/* partial: [images, pieces, channels]; means, factors and shifts, each [images, channels],
 * follow. */
template <typename T>
void run_groups(cudaStream_t stream, const T *x, const float *scale, const float *bias, T *y,
                const struct cuda_groups *g, float *partial)
{
    const size_t pieces = pieces_of(g), channels = g->images * g->channels;
    const size_t blocks = g->images * pieces * ((g->channels + WARP - 1) / WARP);
    const size_t groups = channels / g->per, count = g->pixels * channels;
    float *mean = partial + channels * pieces, *factor = mean + channels,
          *shift = factor + channels;
    const float *none = nullptr;
    LAUNCH_BLOCK(groups_sums_kernel<T>, blocks_of(blocks, 1), THREADS, stream, x, none, partial, *g,
                 pieces, blocks);
    LAUNCH_BLOCK(groups_join_kernel, blocks_of(groups, 1), THREADS, stream, partial, none, none,
                 none, mean, (float *)nullptr, *g, pieces, groups);
    LAUNCH_BLOCK(groups_sums_kernel<T>, blocks_of(blocks, 1), THREADS, stream, x, mean, partial, *g,
                 pieces, blocks);
    LAUNCH_BLOCK(groups_join_kernel, blocks_of(groups, 1), THREADS, stream, partial, mean, scale,
                 bias, factor, shift, *g, pieces, groups);
    WITH_EACH(g->channels % 8 == 0, LAUNCH((groups_write_kernel<T, EACH>), blocks_for(count / EACH),
                                           THREADS, stream, x, factor, shift, y, *g, count / EACH));
}
} // namespace

size_t cuda_groups_workspace(const struct cuda_groups *groups)
{
    return groups->images * groups->channels * (pieces_of(groups) + 3) * sizeof(float);
}

void cuda_normalise_groups(cudaStream_t stream, int dtype, const void *x, const float *scale,
                           const float *bias, void *y, const struct cuda_groups *groups,
                           void *workspace)
{
    WITH_TYPE(dtype,
              run_groups(stream, (const T *)x, scale, bias, (T *)y, groups, (float *)workspace));
}

/* ---- ConvTranspose: a thread computes EACH (8 or 1) neighbouring channels of an output ---- */

namespace
{
/* Returns the input position that reaches output position `at` through a tap; -1 if none does. */
__device__ static inline int transposed_from(int at, int tap, int dilation, int stride, int pad,
                                             int extent)
{
    const int64_t reach = (int64_t)at + pad - (int64_t)tap * dilation;
    return reach < 0 || reach % stride || reach / stride >= extent ? -1 : (int)(reach / stride);
}

template <typename T, int EACH>
__global__ void transposed_kernel(const T *x, const T *weights, void *y, cuda_conv c,
                                  cuda_epilogue e, size_t count)
{
    const int cg = c.c / c.groups, mg = c.m / c.groups;
    FOR_EACH(i, count) {
        const output_item at(i, c.m / EACH, c.ow, c.oh);
        const int m = at.item * EACH, group = m / mg, ow = at.ow, oh = at.oh, n = at.n;
        float sums[EACH] = {};
        for (int r = 0; r < c.kh; r++) {
            const int h = transposed_from(oh, r, c.dilation_h, c.stride_h, c.pad_h, c.h);
            for (int s = 0; s < c.kw && h >= 0; s++) {
                const int w = transposed_from(ow, s, c.dilation_w, c.stride_w, c.pad_w, c.w);
                if (w < 0)
                    continue;
                const T *from = x + (((size_t)n * c.h + h) * c.w + w) * c.c + group * cg;
                const T *tap = weights + ((size_t)(r * c.kw + s) * c.c + group * cg) * mg + m % mg;
                for (int k = 0; k < cg; k++) {
                    const float v = to_float(from[k]);
                    float t[EACH];
                    load_all(t, tap + (size_t)k * mg);
                    UNROLLED(j, EACH)
                        sums[j] += v * t[j];
                }
            }
        }
        finish_all<T>(y, i * EACH, m, sums, e);
    }
}
} // namespace

void cuda_conv_transposed(cudaStream_t stream, int dtype, const void *x, const void *weights,
                          void *y, const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    const size_t count = (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m;
    WITH_EACH(c->m / c->groups % 8 == 0,
              WITH_TYPE(dtype,
                        LAUNCH((transposed_kernel<T, EACH>), blocks_for(count / EACH), THREADS,
                               stream, (const T *)x, (const T *)weights, y, *c, *e, count / EACH)));
}

/* ---- GridSample ---- */

namespace
{
/* Returns where a normalised coordinate lies on an axis, rounded as by the reference kernel. */
__device__ static inline float pixel_at(const cuda_grid_sample &s, float normalised, int64_t extent)
{
    const double x = (double)normalised + 1, n = (double)extent;
    return (float)(s.align_corners ? x / 2 * (n - 1) : (x * n - 1) / 2);
}

/* Pixels outside of the image are 0. */
template <typename T>
__global__ void grid_sample_kernel(const T *x, const T *grid, T *y, cuda_grid_sample s,
                                   size_t count)
{
    const size_t positions = (size_t)(s.oh * s.ow);
    FOR_EACH(i, count) {
        const size_t p = i % positions, plane = i / positions, n = plane / (size_t)s.c;
        const T *at = grid + (n * positions + p) * 2;
        const T *image = x + plane * (size_t)(s.h * s.w);
        const float row = pixel_at(s, to_float(at[1]), s.h);
        const float column = pixel_at(s, to_float(at[0]), s.w);
        const bool is_near = row > -1 && row < (float)s.h && column > -1 && column < (float)s.w;
        float sum = 0.0f;
        for (int tap = 0; tap < 4 && is_near; tap++) {
            const int64_t h = (int64_t)floorf(row) + tap / 2, w = (int64_t)floorf(column) + tap % 2;
            if (h >= 0 && h < s.h && w >= 0 && w < s.w)
                sum += (1 - fabsf(row - (float)h)) * (1 - fabsf(column - (float)w)) *
                       to_float(image[h * s.w + w]);
        }
        y[i] = from_float<T>(sum);
    }
}
} // namespace

void cuda_sample_grid(cudaStream_t stream, int dtype, const void *x, const void *grid, void *y,
                      const struct cuda_grid_sample *sample)
{
    const size_t count = (size_t)(sample->n * sample->c * sample->oh * sample->ow);
    WITH_TYPE(dtype, LAUNCH(grid_sample_kernel<T>, blocks_for(count), THREADS, stream, (const T *)x,
                            (const T *)grid, (T *)y, *sample, count));
}
