/* Conversions from and to 8-bit integers. */
#include "engine/cuda/kernels/int8.cuh"

namespace
{
/* One of X and Y is a type of 8-bit integers. scale_at, zero_at: results of DynamicQuantizeLinear,
 * to be used instead of `scale` and `zero`; or NULL. */
template <typename X, typename Y, int EACH>
__global__ void requantize_kernel(const X *x, Y *y, size_t count, float scale, int zero,
                                  const float *scale_at, const unsigned char *zero_at)
{
    if (scale_at) {
        scale = *scale_at;
        zero = *zero_at;
    }
    FOR_EACH(i, count) {
        float v[EACH];
        load_all(v, x + i * EACH);
        UNROLLED(k, EACH)
            v[k] = sizeof(Y) == 1 ? plus(rintf(divided(v[k], scale)), (float)zero)
                                  : times(v[k] - (float)zero, scale);
        store_all(y + i * EACH, v);
    }
}

template <typename X, typename Y>
void requantize(cudaStream_t stream, const void *x, void *y, size_t count, float scale, int zero,
                const float *scale_at, const unsigned char *zero_at)
{
    WITH_EACH(count % 8 == 0,
              LAUNCH((requantize_kernel<X, Y, EACH>), blocks_for(count / EACH), THREADS, stream,
                     (const X *)x, (Y *)y, count / EACH, scale, zero, scale_at, zero_at));
}

/* ---- DynamicQuantizeLinear ---- */

enum { RANGES = CUDA_INT8_RANGES };

struct value_range {
    float low, high;
};

__device__ static inline value_range wider(const value_range &a, const value_range &b)
{
    return {b.low < a.low ? b.low : a.low, b.high > a.high ? b.high : a.high};
}

/* Each block stores the minimum and maximum of its part of x and of 0. */
__global__ void range_kernel(const float *x, size_t count, value_range *ranges)
{
    __shared__ value_range shared[WARPS];
    value_range range = {0, 0};
    FOR_EACH(i, count) {
        range = wider(range, {x[i], x[i]});
    }
    range = block_join(range, shared,
                       [](const value_range &a, const value_range &b) { return wider(a, b); });
    if (threadIdx.x == 0)
        ranges[blockIdx.x] = range;
}

/* Computes the scale and zero point of the whole range. */
__global__ void scale_kernel(const value_range *ranges, int count, float *scale,
                             unsigned char *zero)
{
    value_range range = {0, 0};
    for (int i = 0; i < count; i++)
        range = wider(range, ranges[i]);
    const float low = range.low, high = range.high;
    const float step = high == low ? 1.0f : divided(plus(high, -low), 255.0f);
    *scale = step;
    *zero = (unsigned char)requantized(divided(-low, step), 0, 0);
}
} // namespace

void cuda_int8_convert(cudaStream_t stream, int x_type, const void *x, int y_type, void *y,
                       size_t count, float scale, int zero)
{
    const bool quantizes = y_type == DTYPE_I8 || y_type == DTYPE_U8;
    WITH_TYPE(quantizes ? x_type : y_type,
              (y_type == DTYPE_I8 ? requantize<T, int8_t>
               : quantizes        ? requantize<T, uint8_t>
               : x_type == DTYPE_I8
                   ? requantize<int8_t, T>
                   : requantize<uint8_t, T>)(stream, x, y, count, scale, zero, nullptr, nullptr));
}

void cuda_int8_dynamic(cudaStream_t stream, const float *x, size_t count, void *ranges,
                       unsigned char *y, float *scale, unsigned char *zero)
{
    unsigned blocks = blocks_for((count + 15) / 16);
    blocks = blocks > RANGES ? (unsigned)RANGES : blocks;
    LAUNCH_BLOCK(range_kernel, blocks, THREADS, stream, x, count, (value_range *)ranges);
    LAUNCH(scale_kernel, 1, 1, stream, (const value_range *)ranges, (int)blocks, scale, zero);
    requantize<float, uint8_t>(stream, x, y, count, 0, 0, scale, zero);
}
