/* Normalization of rows, and pools. */
#include "engine/cuda/kernels/int8.cuh"

enum { SHORT_ROW = 1024 }; /* numbers of a row that a warp handles; longer rows get a block */

/* GROUP threads, a warp or a block, handle a row; each reads EACH (8 or 1) neighbours at a time. */
template <typename T, int EACH, int GROUP>
__global__ void norm_kernel(const T *x, const float *scale, const float *bias, T *y, size_t rows,
                            size_t count, float epsilon, int is_rms)
{
    __shared__ float shared[WARPS];
    const size_t row = (size_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const size_t first = threadIdx.x % GROUP * EACH;
    if (row >= rows)
        return; /* a whole warp returns, and no barrier follows */
    x += row * count;
    y += row * count;
    const auto mean_of = [&](auto term) {
        const auto add = [](float a, float b) { return a + b; };
        float sum = 0, v[EACH];
        for (size_t i = first; i < count; i += GROUP * EACH) {
            load_all(v, x + i);
            UNROLLED(k, EACH)
                sum += term(v[k]);
        }
        return group_join<GROUP>(sum, shared, add) / (float)count;
    };
    const float mean = is_rms ? 0.0f : mean_of([](float v) { return v; });
    const float variance = mean_of([=](float v) { return (v - mean) * (v - mean); });
    const float inverse = 1.0f / sqrtf(variance + epsilon);
    for (size_t i = first; i < count; i += GROUP * EACH) {
        float v[EACH], factor[EACH], more[EACH] = {};
        load_all(v, x + i);
        load_all(factor, scale + i);
        if (bias)
            load_all(more, bias + i);
        UNROLLED(k, EACH)
            v[k] = (v[k] - mean) * inverse * factor[k] + more[k];
        store_all(y + i, v);
    }
}

template <typename T, int EACH>
static void norm_rows(cudaStream_t stream, const T *x, const float *scale, const float *bias, T *y,
                      size_t rows, size_t row, float epsilon, int is_rms)
{
    if (row > SHORT_ROW)
        LAUNCH_BLOCK((norm_kernel<T, EACH, THREADS>), (unsigned)rows, THREADS, stream, x, scale,
                     bias, y, rows, row, epsilon, is_rms);
    else
        LAUNCH_BLOCK((norm_kernel<T, EACH, WARP>), (unsigned)((rows + WARPS - 1) / WARPS), THREADS,
                     stream, x, scale, bias, y, rows, row, epsilon, is_rms);
}

void cuda_norm_rows(cudaStream_t stream, int dtype, const void *x, const float *scale,
                    const float *bias, void *y, size_t rows, size_t row, float epsilon, int is_rms)
{
    WITH_EACH(row % 8 == 0,
              WITH_TYPE(dtype, (norm_rows<T, EACH>(stream, (const T *)x, scale, bias, (T *)y, rows,
                                                   row, epsilon, is_rms))));
}

/* Pools the positions of x [n, positions, channels]: each lane has EACH (8 or 1) channels; the
 * warps of a block share the positions. Sums of 8-bit integers are exact. */
template <typename T, int EACH>
__global__ void pool_global_kernel(const T *x, T *y, size_t n, size_t positions, size_t channels,
                                   int is_max, cuda_scales scales)
{
    constexpr bool IS_STORED = sizeof(T) == 1;
    using sum = std::conditional_t<IS_STORED, int, float>;
    __shared__ sum partial[WARPS][WARP * EACH];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const size_t channel = ((size_t)blockIdx.x * WARP + (size_t)lane) * EACH;
    const float factor = divided(scales.from_scale, times(scales.to_scale, (float)positions));
    const double zeros = (double)positions * scales.from_zero;
    for (size_t image = blockIdx.y; image < n; image += gridDim.y) {
        float v[EACH];
        sum value[EACH];
        UNROLLED(k, EACH)
            value[k] = (sum)(is_max && !IS_STORED ? -INFINITY : 0.0f);
        for (size_t p = (size_t)warp; p < positions && channel < channels; p += WARPS) {
            load_all(v, x + (image * positions + p) * channels + channel);
            UNROLLED(k, EACH)
                value[k] = is_max ? greater_of(value[k], (sum)v[k]) : value[k] + (sum)v[k];
        }
        UNROLLED(k, EACH) /* a lane's numbers are WARP apart, which avoids bank conflicts */
            partial[warp][k * WARP + lane] = value[k];
        __syncthreads();
        if (warp == 0 && channel < channels) {
            UNROLLED(k, EACH) {
                double all = value[k];
                for (int w = 1; w < WARPS; w++) {
                    const double other = partial[w][k * WARP + lane];
                    all = is_max ? greater_of(all, other) : all + other;
                }
                if (IS_STORED)
                    v[k] = plus(rintf(times((float)(all - zeros), factor)), (float)scales.to_zero);
                else
                    v[k] = (float)all / (is_max ? 1.0f : (float)positions);
            }
            store_all(y + image * channels + channel, v);
        }
        __syncthreads();
    }
}

void cuda_pool_global(cudaStream_t stream, int dtype, const void *x, void *y, size_t n,
                      size_t positions, size_t channels, int is_max,
                      const struct cuda_scales *scales)
{
    const unsigned down = (unsigned)(n < (size_t)GRID_MOST ? n : (size_t)GRID_MOST);
    WITH_EACH(channels % 8 == 0,
              WITH_STORED_TYPE(
                  dtype, LAUNCH_BLOCK((pool_global_kernel<T, EACH>),
                                      dim3((unsigned)((channels / EACH + WARP - 1) / WARP), down),
                                      THREADS, stream, (const T *)x, (T *)y, n, positions, channels,
                                      is_max, *scales)));
}

/* A thread computes EACH (8 or 1) neighbouring channels of an output. It sums in memory order. */
template <typename T, int EACH>
__global__ void pool_kernel(const T *x, T *y, cuda_pool p, size_t count)
{
    const cuda_conv &c = p.window;
    constexpr bool IS_STORED = sizeof(T) == 1;
    FOR_EACH(i, count) {
        const output_item at(i, c.c / EACH, c.ow, c.oh);
        const int channel = at.item * EACH, n = at.n;
        const int left = at.ow * c.stride_w - c.pad_w, top = at.oh * c.stride_h - c.pad_h;
        float value[EACH], v[EACH];
        UNROLLED(k, EACH)
            value[k] = p.is_max ? -INFINITY : 0.0f;
        int taps = 0;
        for (int r = 0; r < c.kh; r++) {
            const int h = top + r * c.dilation_h;
            for (int s = 0; s < c.kw; s++) {
                const int w = left + s * c.dilation_w;
                bool inside = h >= 0 && h < c.h && w >= 0 && w < c.w;
                /* Positions beyond the padding (ceil_mode) never count. */
                bool padded = h >= -c.pad_h && h < c.h + p.pad_h_end && w >= -c.pad_w &&
                              w < c.w + p.pad_w_end;
                taps += inside || (p.count_include_pad && padded);
                if (!inside)
                    continue;
                const T *from = x + (((size_t)n * c.h + h) * c.w + w) * c.c + channel;
                load_all(v, from);
                UNROLLED(k, EACH) {
                    if (IS_STORED && !p.is_max)
                        v[k] = times(v[k] - (float)p.scales.from_zero, p.scales.from_scale);
                    value[k] = p.is_max ? greater_of(value[k], v[k]) : plus(value[k], v[k]);
                }
            }
        }
        UNROLLED(k, EACH) {
            value[k] = p.is_max ? value[k] : divided(value[k], (float)(taps ? taps : 1));
            if (IS_STORED && !p.is_max)
                value[k] = plus(divided(value[k], p.scales.to_scale), (float)p.scales.to_zero);
        }
        store_all(y + i * EACH, value);
    }
}

void cuda_pool2d(cudaStream_t stream, int dtype, const void *x, void *y,
                 const struct cuda_pool *pool)
{
    const cuda_conv &c = pool->window;
    const size_t count = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.c;
    WITH_EACH(
        c.c % 8 == 0,
        WITH_STORED_TYPE(dtype, LAUNCH((pool_kernel<T, EACH>), blocks_for(count / EACH), THREADS,
                                       stream, (const T *)x, (T *)y, *pool, count / EACH)));
}
