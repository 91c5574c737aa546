/* Convolutions over [N, H, W, C] images, without an im2col buffer: an implicit matrix product
 *
 *     y[p, m] = sum over k of x[p, k] * weights[m, k]
 *
 * where p is an output position, m an output channel, and k = (row, column, channel) of the window.
 * These kernels use no tensor cores. They run float32 without TF32, and convolutions that
 * conv_tensor.cu refuses, except depthwise convolutions (depthwise.cu). For groups of few channels
 * a thread computes an output. */
#include "engine/cuda/kernels/device.cuh"

/* The window of an output position: its image n in x, and its first row and column, which may be
 * negative. */
struct position {
    int n, h, w;
};

__device__ static inline position position_of(const cuda_conv &c, size_t p)
{
    const output_item item(p, 1, c.ow, c.oh);
    return {item.n, item.oh * c.stride_h - c.pad_h, item.ow * c.stride_w - c.pad_w};
}

/* Returns the address of element k of a position's window in x; NULL in the padding. cg: channels
 * of a group; first: the group's first channel. */
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
    /* Each thread loads four elements along k of one row of each tile. */
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
                finish(y, output_at(c, p, group * mg + m), group * mg + m, sums[i][j], e);
        }
    }
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

void cuda_conv_simt(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                    int y_dtype, const struct cuda_conv *conv, const struct cuda_epilogue *epilogue)
{
    const int mg = conv->m / conv->groups;
    if (conv->groups > GRID_MOST || (mg + SIMT_TILE - 1) / SIMT_TILE > GRID_MOST)
        return cuda_conv_direct(stream, dtype, x, weights, y, y_dtype, conv, epilogue);
    WITH_TYPES(dtype, y_dtype, (conv_simt<T, Y>(stream, x, weights, y, conv, epilogue)));
}

/* ---- one thread per output: groups of few channels, uncommon depthwise convolutions ---- */

/* A thread reads EACH neighbouring channels at once. With IS_DEPTHWISE it computes EACH outputs,
 * one from each channel. Otherwise it computes one output, and EACH divides the channels of a
 * group. */
template <typename T, typename Y, int EACH, bool IS_DEPTHWISE>
__global__ void conv_direct_kernel(const T *x, const T *weights, Y *y, cuda_conv c, cuda_epilogue e,
                                   size_t count)
{
    constexpr int OUTPUTS = IS_DEPTHWISE ? EACH : 1;
    const int cg = c.c / c.groups, mg = c.m / c.groups, tap_step = IS_DEPTHWISE ? c.c : cg;
    FOR_EACH(i, count) {
        const size_t p = i * OUTPUTS / (size_t)c.m;
        const int m = (int)(i * OUTPUTS - p * (size_t)c.m), first = m / mg * cg;
        const position at = position_of(c, p);
        const T *w = weights + (IS_DEPTHWISE ? (size_t)m : (size_t)m * c.kh * c.kw * cg);
        float sums[OUTPUTS] = {};
        for (int r = 0; r < c.kh; r++) {
            const int h = at.h + r * c.dilation_h;
            for (int s = 0; s < c.kw && h >= 0 && h < c.h; s++) {
                const int column = at.w + s * c.dilation_w;
                if (column < 0 || column >= c.w)
                    continue;
                const T *from = x + (((size_t)at.n * c.h + h) * c.w + column) * c.c + first;
                const T *tap = w + (size_t)(r * c.kw + s) * tap_step;
                for (int k = 0; k < cg; k += EACH / OUTPUTS) {
                    float v[EACH], t[EACH];
                    load_all(v, from + k);
                    load_all(t, tap + k);
                    UNROLLED(j, EACH)
                        sums[IS_DEPTHWISE ? j : 0] += v[j] * t[j];
                }
            }
        }
        finish_all(y, output_at(c, p, m), m, sums, e);
    }
}

template <typename T, typename Y, int EACH, bool IS_DEPTHWISE>
static void conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                        const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    const size_t outputs = (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m;
    const size_t count = outputs / (IS_DEPTHWISE ? EACH : 1);
    LAUNCH((conv_direct_kernel<T, Y, EACH, IS_DEPTHWISE>), blocks_for(count), THREADS, stream,
           (const T *)x, (const T *)weights, (Y *)y, *c, *e, count);
}

void cuda_conv_direct(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      int y_dtype, const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    const int cg = c->c / c->groups;
    const bool is_depthwise = c->groups == c->c && c->m == c->c;
    if (is_depthwise && c->c % 8 == 0)
        WITH_TYPES(dtype, y_dtype, (conv_direct<T, Y, 8, true>(stream, x, weights, y, c, e)));
    else if (is_depthwise)
        WITH_TYPES(dtype, y_dtype, (conv_direct<T, Y, 1, true>(stream, x, weights, y, c, e)));
    else if (cg % 4 == 0)
        WITH_TYPES(dtype, y_dtype, (conv_direct<T, Y, 4, false>(stream, x, weights, y, c, e)));
    else if (cg % 2 == 0)
        WITH_TYPES(dtype, y_dtype, (conv_direct<T, Y, 2, false>(stream, x, weights, y, c, e)));
    else
        WITH_TYPES(dtype, y_dtype, (conv_direct<T, Y, 1, false>(stream, x, weights, y, c, e)));
}
