/* One block, one row (or one column of rows): softmax, LayerNormalization, reductions, pools. */
#include "engine/cuda/device.cuh"

enum { ROW_THREADS = 256, WARP = 32 };

struct add_op {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

struct max_op {
    __device__ float operator()(float a, float b) const
    {
        return a != a ? a : b != b ? b : a > b ? a : b;
    }
};

struct min_op {
    __device__ float operator()(float a, float b) const
    {
        return a != a ? a : b != b ? b : a < b ? a : b;
    }
};

/* The same result in every thread of a block of ROW_THREADS. */
template <typename Op> __device__ static float block_reduce(float value, Op op, float *shared)
{
    for (int distance = WARP / 2; distance; distance /= 2)
        value = op(value, __shfl_xor_sync(0xffffffffu, value, distance));
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = value;
    __syncthreads();
    value = shared[0];
    for (int w = 1; w < ROW_THREADS / WARP; w++)
        value = op(value, shared[w]);
    __syncthreads();
    return value;
}

template <typename T> __global__ void softmax_kernel(const T *x, T *y, size_t row)
{
    __shared__ float shared[ROW_THREADS / WARP];
    x += (size_t)blockIdx.x * row;
    y += (size_t)blockIdx.x * row;
    float greatest = -INFINITY;
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS)
        greatest = max_op()(greatest, to_float(x[i]));
    greatest = block_reduce(greatest, max_op(), shared);
    float sum = 0;
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS)
        sum += expf(to_float(x[i]) - greatest);
    sum = block_reduce(sum, add_op(), shared);
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS)
        y[i] = from_float<T>(expf(to_float(x[i]) - greatest) / sum);
}

void cuda_softmax(cudaStream_t stream, int dtype, const void *x, void *y, size_t rows, size_t row)
{
    WITH_TYPE(dtype, LAUNCH_BLOCK(softmax_kernel<T>, (unsigned)rows, ROW_THREADS, stream,
                                  (const T *)x, (T *)y, row));
}

template <typename T>
__global__ void layer_norm_kernel(const T *x, const float *scale, const float *bias, T *y,
                                  size_t row, float epsilon)
{
    __shared__ float shared[ROW_THREADS / WARP];
    x += (size_t)blockIdx.x * row;
    y += (size_t)blockIdx.x * row;
    float sum = 0;
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS)
        sum += to_float(x[i]);
    float mean = block_reduce(sum, add_op(), shared) / (float)row;
    float squares = 0;
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS) {
        float d = to_float(x[i]) - mean;
        squares += d * d;
    }
    float variance = block_reduce(squares, add_op(), shared) / (float)row;
    float inverse = 1.0f / sqrtf(variance + epsilon);
    for (size_t i = threadIdx.x; i < row; i += ROW_THREADS)
        y[i] =
            from_float<T>((to_float(x[i]) - mean) * inverse * scale[i] + (bias ? bias[i] : 0.0f));
}

void cuda_layer_norm(cudaStream_t stream, int dtype, const void *x, const float *scale,
                     const float *bias, void *y, size_t rows, size_t row, float epsilon)
{
    WITH_TYPE(dtype, LAUNCH_BLOCK(layer_norm_kernel<T>, (unsigned)rows, ROW_THREADS, stream,
                                  (const T *)x, scale, bias, (T *)y, row, epsilon));
}

/* inner == 1: a block a row. */
template <typename T, typename Op>
__global__ void reduce_row_kernel(const T *x, T *y, size_t reduced, Op op, float start, float scale)
{
    __shared__ float shared[ROW_THREADS / WARP];
    x += (size_t)blockIdx.x * reduced;
    float value = start;
    for (size_t r = threadIdx.x; r < reduced; r += ROW_THREADS)
        value = op(value, to_float(x[r]));
    value = block_reduce(value, op, shared);
    if (threadIdx.x == 0)
        y[blockIdx.x] = from_float<T>(value * scale);
}

/* inner > 1: a thread an output; neighbours read neighbours. */
template <typename T, typename Op>
__global__ void reduce_column_kernel(const T *x, T *y, size_t reduced, size_t inner, size_t count,
                                     Op op, float start, float scale)
{
    FOR_EACH(i, count)
    {
        const T *from = x + i / inner * reduced * inner + i % inner;
        float value = start;
        for (size_t r = 0; r < reduced; r++)
            value = op(value, to_float(from[r * inner]));
        y[i] = from_float<T>(value * scale);
    }
}

template <typename T, typename Op>
static void reduce_with(cudaStream_t stream, Op op, float start, float scale, const void *x,
                        void *y, size_t outer, size_t reduced, size_t inner)
{
    if (inner == 1)
        LAUNCH_BLOCK((reduce_row_kernel<T, Op>), (unsigned)outer, ROW_THREADS, stream, (const T *)x,
                     (T *)y, reduced, op, start, scale);
    else
        LAUNCH((reduce_column_kernel<T, Op>), blocks_for(outer * inner), THREADS, stream,
               (const T *)x, (T *)y, reduced, inner, outer * inner, op, start, scale);
}

void cuda_reduce(cudaStream_t stream, int dtype, enum cuda_reduction op, const void *x, void *y,
                 size_t outer, size_t reduced, size_t inner)
{
    float scale = op == CUDA_REDUCE_MEAN ? 1.0f / (float)reduced : 1.0f;
    if (op == CUDA_REDUCE_MAX)
        WITH_TYPE(dtype, (reduce_with<T>(stream, max_op(), -INFINITY, scale, x, y, outer, reduced,
                                         inner)));
    else if (op == CUDA_REDUCE_MIN)
        WITH_TYPE(dtype,
                  (reduce_with<T>(stream, min_op(), INFINITY, scale, x, y, outer, reduced, inner)));
    else
        WITH_TYPE(dtype,
                  (reduce_with<T>(stream, add_op(), 0.0f, scale, x, y, outer, reduced, inner)));
}

/* [n, positions, channels]: a thread a channel. */
void cuda_pool_global(cudaStream_t stream, int dtype, const void *x, void *y, size_t n,
                      size_t positions, size_t channels, int is_max)
{
    cuda_reduce(stream, dtype, is_max ? CUDA_REDUCE_MAX : CUDA_REDUCE_MEAN, x, y, n, positions,
                channels);
}

template <typename T> __global__ void pool_kernel(const T *x, T *y, cuda_pool p, size_t count)
{
    FOR_EACH(i, count)
    {
        int c = (int)(i % (size_t)p.c);
        size_t at = i / (size_t)p.c;
        int ow = (int)(at % (size_t)p.ow);
        at /= (size_t)p.ow;
        int oh = (int)(at % (size_t)p.oh);
        int n = (int)(at / (size_t)p.oh);
        float value = p.is_max ? -INFINITY : 0.0f;
        int taps = 0;
        for (int r = 0; r < p.kh; r++) {
            int h = oh * p.stride_h - p.pad_h + r * p.dilation_h;
            for (int s = 0; s < p.kw; s++) {
                int w = ow * p.stride_w - p.pad_w + s * p.dilation_w;
                bool inside = h >= 0 && h < p.h && w >= 0 && w < p.w;
                /* What lies beyond the padding (ceil_mode) never counts. */
                bool padded = h >= -p.pad_h && h < p.h + p.pad_h_end && w >= -p.pad_w &&
                              w < p.w + p.pad_w_end;
                taps += inside || (p.count_include_pad && padded);
                if (!inside)
                    continue;
                float v = to_float(x[(((size_t)n * p.h + h) * p.w + w) * p.c + c]);
                value = p.is_max ? max_op()(value, v) : value + v;
            }
        }
        y[i] = from_float<T>(p.is_max ? value : value / (float)(taps ? taps : 1));
    }
}

void cuda_pool2d(cudaStream_t stream, int dtype, const void *x, void *y,
                 const struct cuda_pool *pool)
{
    size_t count = (size_t)pool->n * (size_t)pool->oh * (size_t)pool->ow * (size_t)pool->c;
    WITH_TYPE(dtype, LAUNCH(pool_kernel<T>, blocks_for(count), THREADS, stream, (const T *)x,
                            (T *)y, *pool, count));
}
