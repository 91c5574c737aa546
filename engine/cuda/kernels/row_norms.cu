/* Softmax, normalization, pools. A short row gets a warp, a long row a block. */
#include "engine/cuda/kernels/device.cuh"
#include "engine/cuda/kernels/kernels_reduce.h"

struct add_op {
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

struct max_op {
    __device__ float operator()(float a, float b) const
    {
        return greater_of(a, b);
    }
};

/* ---- short rows: one warp per row; the row stays in registers between the passes ---- */

enum { SHORT_ROW = WARP * 8 * 4 };

/* A lane's numbers of a row: groups of EACH (8 or 1) neighbours, WARP groups apart. */
template <typename T, int EACH> struct lane_numbers {
    static constexpr int PIECES = SHORT_ROW / WARP / EACH;
    float at[PIECES][EACH];

    /* Calls visit(group, index of its first number in the row) for each group. */
    template <typename Visit> __device__ inline void each_piece(Visit visit)
    {
        UNROLLED(p, PIECES)
            visit(at[p], (p * WARP + (int)threadIdx.x % WARP) * EACH);
    }

    /* Reduces use(number, whether it lies in the row) over the numbers of the row. */
    template <typename Join, typename Use>
    __device__ inline float fold(float start, Join join, Use use, int count)
    {
        each_piece([&](float(&piece)[EACH], int i) {
            UNROLLED(k, EACH)
                start = join(start, use(piece[k], i < count));
        });
        return warp_join(start, join);
    }

    /* Numbers after the row's end are `otherwise`. */
    __device__ inline void load(const T *row, int count, float otherwise)
    {
        each_piece([&](float(&piece)[EACH], int i) {
            if (i < count)
                return load_all(piece, row + i);
            UNROLLED(k, EACH)
                piece[k] = otherwise;
        });
    }
};

template <typename T, int EACH>
__global__ void softmax_short_kernel(const T *x, T *y, size_t rows, int count)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows)
        return; /* the whole warp returns, and no barrier follows */
    lane_numbers<T, EACH> v;
    v.load(x + row * (size_t)count, count, -INFINITY);
    const float greatest = v.fold(
        -INFINITY, max_op(), [](float x, bool) { return x; }, count);
    /* Elements after the row's end add nothing, even if the whole row is -inf (result: NaN). */
    const float sum = v.fold(
        0.0f, add_op(),
        [=](float &x, bool is_there) { return x = is_there ? exp_of(x - greatest) : 0.0f; }, count);
    v.each_piece([&](float(&piece)[EACH], int i) {
        UNROLLED(k, EACH)
            piece[k] /= sum;
        if (i < count)
            store_all(y + row * (size_t)count + i, piece);
    });
}

template <typename T, int EACH>
__global__ void norm_short_kernel(const T *x, const float *scale, const float *bias, T *y,
                                  size_t rows, int count, float epsilon, int is_rms)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (row >= rows)
        return;
    lane_numbers<T, EACH> v;
    v.load(x + row * (size_t)count, count, 0.0f);
    const auto itself = [](float x, bool) { return x; };
    const float mean = is_rms ? 0.0f : v.fold(0.0f, add_op(), itself, count) / (float)count;
    const auto square = [=](float x, bool is_there) {
        const float d = is_there ? x - mean : 0.0f;
        return d * d;
    };
    const float variance = v.fold(0.0f, add_op(), square, count) / (float)count;
    const float inverse = 1.0f / sqrtf(variance + epsilon);
    v.each_piece([&](float(&piece)[EACH], int i) {
        float factor[EACH], more[EACH] = {};
        if (i >= count)
            return;
        load_all(factor, scale + i);
        if (bias)
            load_all(more, bias + i);
        UNROLLED(k, EACH)
            piece[k] = (piece[k] - mean) * inverse * factor[k] + more[k];
        store_all(y + row * (size_t)count + i, piece);
    });
}

static unsigned short_blocks(size_t rows)
{
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

/* ---- any rows ---- */

void cuda_softmax(cudaStream_t stream, int dtype, const void *x, void *y, size_t rows, size_t row)
{
    const struct cuda_axis axis = {rows, row, 1, dtype, CUDA_IN_FLOAT};
    if (row > SHORT_ROW)
        return cuda_softmax_axis(stream, x, y, &axis, 0);
    WITH_EACH(row % 8 == 0, WITH_TYPE(dtype, LAUNCH_BLOCK((softmax_short_kernel<T, EACH>),
                                                          short_blocks(rows), THREADS, stream,
                                                          (const T *)x, (T *)y, rows, (int)row)));
}

template <typename T>
__global__ void norm_row_kernel(const T *x, const float *scale, const float *bias, T *y, size_t row,
                                float epsilon, int is_rms)
{
    __shared__ float shared[WARPS];
    x += (size_t)blockIdx.x * row;
    y += (size_t)blockIdx.x * row;
    float sum = 0;
    for (size_t i = threadIdx.x; i < row; i += THREADS)
        sum += to_float(x[i]);
    float mean = is_rms ? 0.0f : block_join(sum, shared, add_op()) / (float)row;
    float squares = 0;
    for (size_t i = threadIdx.x; i < row; i += THREADS) {
        float d = to_float(x[i]) - mean;
        squares += d * d;
    }
    float variance = block_join(squares, shared, add_op()) / (float)row;
    float inverse = 1.0f / sqrtf(variance + epsilon);
    for (size_t i = threadIdx.x; i < row; i += THREADS)
        y[i] =
            from_float<T>((to_float(x[i]) - mean) * inverse * scale[i] + (bias ? bias[i] : 0.0f));
}

void cuda_norm_rows(cudaStream_t stream, int dtype, const void *x, const float *scale,
                    const float *bias, void *y, size_t rows, size_t row, float epsilon, int is_rms)
{
    if (row > SHORT_ROW)
        WITH_TYPE(dtype, LAUNCH_BLOCK(norm_row_kernel<T>, (unsigned)rows, THREADS, stream,
                                      (const T *)x, scale, bias, (T *)y, row, epsilon, is_rms));
    else
        WITH_EACH(row % 8 == 0,
                  WITH_TYPE(dtype, LAUNCH_BLOCK((norm_short_kernel<T, EACH>), short_blocks(rows),
                                                THREADS, stream, (const T *)x, scale, bias, (T *)y,
                                                rows, (int)row, epsilon, is_rms)));
}

/* Pools the positions of x [n, positions, channels]: each lane has EACH (8 or 1) channels; the
 * warps of a block share the positions. */
template <typename T, int EACH>
__global__ void pool_global_kernel(const T *x, T *y, size_t n, size_t positions, size_t channels,
                                   int is_max)
{
    __shared__ float partial[WARPS][WARP * EACH];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const size_t channel = ((size_t)blockIdx.x * WARP + (size_t)lane) * EACH;
    for (size_t image = blockIdx.y; image < n; image += gridDim.y) {
        float value[EACH], v[EACH];
        UNROLLED(k, EACH)
            value[k] = is_max ? -INFINITY : 0.0f;
        for (size_t p = (size_t)warp; p < positions && channel < channels; p += WARPS) {
            load_all(v, x + (image * positions + p) * channels + channel);
            UNROLLED(k, EACH)
                value[k] = is_max ? greater_of(value[k], v[k]) : value[k] + v[k];
        }
        UNROLLED(k, EACH) /* a lane's numbers are WARP apart: no bank conflicts */
            partial[warp][k * WARP + lane] = value[k];
        __syncthreads();
        if (warp == 0 && channel < channels) {
            UNROLLED(k, EACH) {
                for (int w = 1; w < WARPS; w++) {
                    const float other = partial[w][k * WARP + lane];
                    value[k] = is_max ? greater_of(value[k], other) : value[k] + other;
                }
                value[k] /= is_max ? 1.0f : (float)positions;
            }
            store_all(y + image * channels + channel, value);
        }
        __syncthreads();
    }
}

void cuda_pool_global(cudaStream_t stream, int dtype, const void *x, void *y, size_t n,
                      size_t positions, size_t channels, int is_max)
{
    const unsigned down = (unsigned)(n < (size_t)GRID_MOST ? n : (size_t)GRID_MOST);
    WITH_EACH(
        channels % 8 == 0,
        WITH_TYPE(dtype,
                  LAUNCH_BLOCK((pool_global_kernel<T, EACH>),
                               dim3((unsigned)((channels / EACH + WARP - 1) / WARP), down), THREADS,
                               stream, (const T *)x, (T *)y, n, positions, channels, is_max)));
}

/* A thread computes EACH (8 or 1) neighbouring channels of an output. */
template <typename T, int EACH>
__global__ void pool_kernel(const T *x, T *y, cuda_pool p, size_t count)
{
    FOR_EACH(i, count) {
        const output_item at(i, p.c / EACH, p.ow, p.oh);
        const int c = at.item * EACH, n = at.n;
        const int left = at.ow * p.stride_w - p.pad_w, top = at.oh * p.stride_h - p.pad_h;
        float value[EACH], v[EACH];
        UNROLLED(k, EACH)
            value[k] = p.is_max ? -INFINITY : 0.0f;
        int taps = 0;
        for (int r = 0; r < p.kh; r++) {
            const int h = top + r * p.dilation_h;
            for (int s = 0; s < p.kw; s++) {
                const int w = left + s * p.dilation_w;
                bool inside = h >= 0 && h < p.h && w >= 0 && w < p.w;
                /* Positions beyond the padding (ceil_mode) never count. */
                bool padded = h >= -p.pad_h && h < p.h + p.pad_h_end && w >= -p.pad_w &&
                              w < p.w + p.pad_w_end;
                taps += inside || (p.count_include_pad && padded);
                if (!inside)
                    continue;
                const T *from = x + (((size_t)n * p.h + h) * p.w + w) * p.c + c;
                load_all(v, from);
                UNROLLED(k, EACH)
                    value[k] = p.is_max ? greater_of(value[k], v[k]) : value[k] + v[k];
            }
        }
        UNROLLED(k, EACH)
            value[k] = p.is_max ? value[k] : value[k] / (float)(taps ? taps : 1);
        store_all(y + i * EACH, value);
    }
}

void cuda_pool2d(cudaStream_t stream, int dtype, const void *x, void *y,
                 const struct cuda_pool *pool)
{
    size_t count = (size_t)pool->n * (size_t)pool->oh * (size_t)pool->ow * (size_t)pool->c;
    WITH_EACH(pool->c % 8 == 0,
              WITH_TYPE(dtype, LAUNCH((pool_kernel<T, EACH>), blocks_for(count / EACH), THREADS,
                                      stream, (const T *)x, (T *)y, *pool, count / EACH)));
}
