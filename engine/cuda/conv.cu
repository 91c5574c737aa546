/* Convolutions over [N, H, W, C] images, without an im2col buffer: an implicit matrix product
 *
 *     y[p, m] = sum over k of x[p, k] * weights[m, k]
 *
 * where p is an output position, m an output channel, and k = (row, column, channel) of the window.
 * bfloat16 and float16 run on tensor cores, float32 on the ordinary ones (no TF32). Grouped
 * convolutions with few channels a group, depthwise ones first, have a thread an output. */
#include "engine/cuda/device.cuh"

/* Position p of the output as image, row and column. */
struct position {
    int n, h, w; /* h, w: where its window begins in x, may be negative */
};

__device__ static inline position position_of(const cuda_conv &c, size_t p)
{
    position at;
    at.w = (int)(p % (size_t)c.ow) * c.stride_w - c.pad_w;
    p /= (size_t)c.ow;
    at.h = (int)(p % (size_t)c.oh) * c.stride_h - c.pad_h;
    at.n = (int)(p / (size_t)c.oh);
    return at;
}

/* The address of x at window place k of a position, or NULL in the padding. cg: channels of a
 * group, first: the group's first channel. */
template <typename T>
__device__ static inline const T *window_at(const T *x, const cuda_conv &c, const position &at,
                                            int k, int cg, int first)
{
    int channel = k % cg, tap = k / cg;
    int h = at.h + tap / c.kw * c.dilation_h, w = at.w + tap % c.kw * c.dilation_w;
    if (h < 0 || h >= c.h || w < 0 || w >= c.w)
        return nullptr;
    return x + (((size_t)at.n * c.h + h) * c.w + w) * c.c + first + channel;
}

template <typename Y>
__device__ static inline void finish(Y *y, size_t at, int column, float value,
                                     const cuda_epilogue &e)
{
    if (e.bias)
        value += e.bias[column];
    if (e.residual)
        value += to_float(((const Y *)e.residual)[at]);
    y[at] = from_float<Y>(activate(value, e.activation, e.alpha, e.beta));
}

/* ---- ordinary cores: tiles of 64 positions by 64 channels, 16 deep ---- */

enum { SIMT_TILE = 64, SIMT_DEPTH = 16, SIMT_THREADS = 256, SIMT_EACH = 4 };

template <typename T, typename Y>
__global__ void conv_simt_kernel(const T *x, const T *weights, Y *y, cuda_conv c, cuda_epilogue e)
{
    __shared__ float a_tile[SIMT_DEPTH][SIMT_TILE + 4], b_tile[SIMT_DEPTH][SIMT_TILE + 4];
    const size_t positions = (size_t)c.n * c.oh * c.ow;
    const int cg = c.c / c.groups, mg = c.m / c.groups, depth = c.kh * c.kw * cg;
    const int group = (int)blockIdx.z, m0 = (int)blockIdx.y * SIMT_TILE;
    const size_t p0 = (size_t)blockIdx.x * SIMT_TILE;
    const int thread = (int)threadIdx.x;
    /* A thread loads four places in depth of one row of either tile. */
    const int row = thread / (SIMT_DEPTH / SIMT_EACH);
    const int place = thread % (SIMT_DEPTH / SIMT_EACH) * SIMT_EACH;
    const bool has_position = p0 + (size_t)row < positions, has_channel = m0 + row < mg;
    const position at = position_of(c, has_position ? p0 + (size_t)row : 0);
    const T *w_row = weights + (size_t)(group * mg + (has_channel ? m0 + row : 0)) * depth;
    const int tx = thread % 16, ty = thread / 16;
    float sums[SIMT_EACH][SIMT_EACH] = {};
    for (int k0 = 0; k0 < depth; k0 += SIMT_DEPTH) {
        for (int j = 0; j < SIMT_EACH; j++) {
            int k = k0 + place + j;
            const T *from =
                has_position && k < depth ? window_at(x, c, at, k, cg, group * cg) : nullptr;
            a_tile[place + j][row] = from ? to_float(*from) : 0.0f;
            b_tile[place + j][row] = has_channel && k < depth ? to_float(w_row[k]) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < SIMT_DEPTH; k++) {
            float a[SIMT_EACH], b[SIMT_EACH];
            for (int j = 0; j < SIMT_EACH; j++) {
                a[j] = a_tile[k][ty * SIMT_EACH + j];
                b[j] = b_tile[k][tx * SIMT_EACH + j];
            }
            for (int i = 0; i < SIMT_EACH; i++)
                for (int j = 0; j < SIMT_EACH; j++)
                    sums[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < SIMT_EACH; i++) {
        size_t p = p0 + (size_t)(ty * SIMT_EACH + i);
        for (int j = 0; j < SIMT_EACH; j++) {
            int m = m0 + tx * SIMT_EACH + j;
            if (p < positions && m < mg)
                finish(y, p * c.m + group * mg + m, group * mg + m, sums[i][j], e);
        }
    }
}

/* ---- tensor cores: tiles of 64 by 64, 32 deep; four warps of 32 by 32 ---- */

enum { MMA_TILE = 64, MMA_DEPTH = 32, MMA_THREADS = 128, MMA_PAD = 8, MMA_PIECE = 8 };

/* Eight neighbouring numbers, moved as one. */
struct alignas(16) piece {
    uint32_t words[4];
};

/* Loads places k0 … k0 + 7 of one row into a tile. `whole`: channels of a group come in eights, so
 * that a piece never crosses a window place, and is aligned. */
template <typename T, bool whole>
__device__ static inline void load_image(T *tile, const T *x, const cuda_conv &c,
                                         const position &at, bool has, int k0, int depth, int cg,
                                         int first)
{
    if constexpr (whole) {
        const T *from = has && k0 < depth ? window_at(x, c, at, k0, cg, first) : nullptr;
        *(piece *)tile = from ? *(const piece *)from : piece{};
    } else {
        for (int j = 0; j < MMA_PIECE; j++) {
            const T *from =
                has && k0 + j < depth ? window_at(x, c, at, k0 + j, cg, first) : nullptr;
            tile[j] = from ? *from : from_float<T>(0.0f);
        }
    }
}

template <typename T, bool whole>
__device__ static inline void load_weights(T *tile, const T *row, bool has, int k0, int depth)
{
    if constexpr (whole) {
        *(piece *)tile = has && k0 < depth ? *(const piece *)(row + k0) : piece{};
    } else {
        for (int j = 0; j < MMA_PIECE; j++)
            tile[j] = has && k0 + j < depth ? row[k0 + j] : from_float<T>(0.0f);
    }
}

template <typename T, typename Y, bool whole>
__global__ void conv_mma_kernel(const T *x, const T *weights, Y *y, cuda_conv c, cuda_epilogue e)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800 /* bfloat16 fragments; never started below */
    using namespace nvcuda;
    alignas(16) __shared__ T a_tile[MMA_TILE][MMA_DEPTH + MMA_PAD];
    alignas(16) __shared__ T b_tile[MMA_TILE][MMA_DEPTH + MMA_PAD];
    alignas(16) __shared__ float sums[MMA_TILE][MMA_TILE + 4];
    const size_t positions = (size_t)c.n * c.oh * c.ow;
    const int cg = c.c / c.groups, mg = c.m / c.groups, depth = c.kh * c.kw * cg;
    const int group = (int)blockIdx.z, m0 = (int)blockIdx.y * MMA_TILE;
    const size_t p0 = (size_t)blockIdx.x * MMA_TILE;
    const int thread = (int)threadIdx.x, warp = thread / 32;
    /* Two threads a row, two pieces of eight each. */
    const int row = thread / 2, place = thread % 2 * 2 * MMA_PIECE;
    const bool has_position = p0 + (size_t)row < positions, has_channel = m0 + row < mg;
    const position at = position_of(c, has_position ? p0 + (size_t)row : 0);
    const T *w_row = weights + (size_t)(group * mg + (has_channel ? m0 + row : 0)) * depth;
    const int a0 = warp / 2 * 32, b0 = warp % 2 * 32;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            wmma::fill_fragment(total[i][j], 0.0f);
    for (int k0 = 0; k0 < depth; k0 += MMA_DEPTH) {
        for (int j = 0; j < 2; j++) {
            int at_k = place + j * MMA_PIECE;
            load_image<T, whole>(&a_tile[row][at_k], x, c, at, has_position, k0 + at_k, depth, cg,
                                 group * cg);
            load_weights<T, whole>(&b_tile[row][at_k], w_row, has_channel, k0 + at_k, depth);
        }
        __syncthreads();
        for (int k = 0; k < MMA_DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> b[2];
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(a[i], &a_tile[a0 + i * 16][k], MMA_DEPTH + MMA_PAD);
                wmma::load_matrix_sync(b[i], &b_tile[b0 + i * 16][k], MMA_DEPTH + MMA_PAD);
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    wmma::mma_sync(total[i][j], a[i], b[j], total[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            wmma::store_matrix_sync(&sums[a0 + i * 16][b0 + j * 16], total[i][j], MMA_TILE + 4,
                                    wmma::mem_row_major);
    __syncthreads();
    for (int i = thread; i < MMA_TILE * MMA_TILE; i += MMA_THREADS) {
        size_t p = p0 + (size_t)(i / MMA_TILE);
        int m = m0 + i % MMA_TILE;
        if (p < positions && m < mg)
            finish(y, p * c.m + group * mg + m, group * mg + m, sums[i / MMA_TILE][i % MMA_TILE],
                   e);
    }
#endif
}

template <typename T, typename Y>
static void conv_mma(cudaStream_t stream, const void *x, const void *weights, void *y,
                     const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    size_t positions = (size_t)c->n * (size_t)c->oh * (size_t)c->ow;
    int mg = c->m / c->groups;
    dim3 grid((unsigned)((positions + MMA_TILE - 1) / MMA_TILE),
              (unsigned)((mg + MMA_TILE - 1) / MMA_TILE), (unsigned)c->groups);
    if (c->c / c->groups % MMA_PIECE == 0)
        LAUNCH_BLOCK((conv_mma_kernel<T, Y, true>), grid, MMA_THREADS, stream, (const T *)x,
                     (const T *)weights, (Y *)y, *c, *e);
    else
        LAUNCH_BLOCK((conv_mma_kernel<T, Y, false>), grid, MMA_THREADS, stream, (const T *)x,
                     (const T *)weights, (Y *)y, *c, *e);
}

template <typename T, typename Y>
static void conv_simt(cudaStream_t stream, const void *x, const void *weights, void *y,
                      const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    size_t positions = (size_t)c->n * (size_t)c->oh * (size_t)c->ow;
    int mg = c->m / c->groups;
    dim3 grid((unsigned)((positions + SIMT_TILE - 1) / SIMT_TILE),
              (unsigned)((mg + SIMT_TILE - 1) / SIMT_TILE), (unsigned)c->groups);
    LAUNCH_BLOCK((conv_simt_kernel<T, Y>), grid, SIMT_THREADS, stream, (const T *)x,
                 (const T *)weights, (Y *)y, *c, *e);
}

void cuda_conv_gemm(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                    int y_dtype, const struct cuda_conv *conv, const struct cuda_epilogue *epilogue)
{
    if (dtype == T_F32)
        conv_simt<float, float>(stream, x, weights, y, conv, epilogue);
    else if (!conv->tensor_cores && y_dtype == T_F32)
        WITH_TYPE(dtype, (conv_simt<T, float>(stream, x, weights, y, conv, epilogue)));
    else if (!conv->tensor_cores)
        WITH_TYPE(dtype, (conv_simt<T, T>(stream, x, weights, y, conv, epilogue)));
    else if (dtype == T_BF16 && y_dtype == T_F32)
        conv_mma<__nv_bfloat16, float>(stream, x, weights, y, conv, epilogue);
    else if (dtype == T_BF16)
        conv_mma<__nv_bfloat16, __nv_bfloat16>(stream, x, weights, y, conv, epilogue);
    else if (y_dtype == T_F32)
        conv_mma<__half, float>(stream, x, weights, y, conv, epilogue);
    else
        conv_mma<__half, __half>(stream, x, weights, y, conv, epilogue);
}

/* ---- a thread an output: depthwise and small groups ---- */

template <typename T, typename Y>
__global__ void conv_direct_kernel(const T *x, const T *weights, Y *y, cuda_conv c, cuda_epilogue e,
                                   size_t count)
{
    const int cg = c.c / c.groups, mg = c.m / c.groups;
    FOR_EACH(i, count)
    {
        int m = (int)(i % (size_t)c.m), first = m / mg * cg;
        position at = position_of(c, i / (size_t)c.m);
        const T *w = weights + (size_t)m * c.kh * c.kw * cg;
        float sum = 0;
        for (int r = 0; r < c.kh; r++) {
            int h = at.h + r * c.dilation_h;
            if (h < 0 || h >= c.h)
                continue;
            for (int s = 0; s < c.kw; s++) {
                int column = at.w + s * c.dilation_w;
                if (column < 0 || column >= c.w)
                    continue;
                const T *from = x + (((size_t)at.n * c.h + h) * c.w + column) * c.c + first;
                const T *tap = w + (r * c.kw + s) * cg;
                for (int k = 0; k < cg; k++)
                    sum += to_float(from[k]) * to_float(tap[k]);
            }
        }
        finish(y, i, m, sum, e);
    }
}

template <typename T, typename Y>
static void conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                        const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    size_t count = (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m;
    LAUNCH((conv_direct_kernel<T, Y>), blocks_for(count), THREADS, stream, (const T *)x,
           (const T *)weights, (Y *)y, *c, *e, count);
}

void cuda_conv_direct(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      int y_dtype, const struct cuda_conv *conv,
                      const struct cuda_epilogue *epilogue)
{
    if (y_dtype == T_F32)
        WITH_TYPE(dtype, (conv_direct<T, float>(stream, x, weights, y, conv, epilogue)));
    else
        WITH_TYPE(dtype, (conv_direct<T, T>(stream, x, weights, y, conv, epilogue)));
}
