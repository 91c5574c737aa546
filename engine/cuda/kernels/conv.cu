/* Convolutions over [N, H, W, C] images, without an im2col buffer: an implicit matrix product
 *
 *     y[p, m] = sum over k of x[p, k] * weights[m, k]
 *
 * where p is an output position, m an output channel, and k = (row, column, channel) of the window.
 * These kernels use no tensor cores. They run float32 without TF32, and convolutions that
 * conv_tensor.cu refuses, except depthwise convolutions (depthwise.cu). For groups of few channels,
 * and for 8-bit integers, a thread computes an output. */
#include "engine/cuda/kernels/int8.cuh"

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

template <typename T>
__global__ void conv_simt_kernel(const T *x, const T *weights, void *y, cuda_conv c,
                                 cuda_epilogue e)
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
            float v[1] = {sums[i][j]};
            if (p < positions && m < mg)
                finish_all<T>(y, output_at(c, p, group * mg + m), group * mg + m, v, e);
        }
    }
}

template <typename T>
static void conv_simt(cudaStream_t stream, const void *x, const void *weights, void *y,
                      const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    size_t positions = (size_t)c->n * (size_t)c->oh * (size_t)c->ow;
    int mg = c->m / c->groups;
    dim3 grid((unsigned)((positions + SIMT_TILE - 1) / SIMT_TILE),
              (unsigned)((mg + SIMT_TILE - 1) / SIMT_TILE), (unsigned)c->groups);
    LAUNCH_BLOCK(conv_simt_kernel<T>, grid, SIMT_THREADS, stream, (const T *)x, (const T *)weights,
                 y, *c, *e);
}

void cuda_conv_simt(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                    const struct cuda_conv *conv, const struct cuda_epilogue *epilogue)
{
    const int mg = conv->m / conv->groups;
    if (conv->groups > GRID_MOST || (mg + SIMT_TILE - 1) / SIMT_TILE > GRID_MOST)
        return cuda_conv_direct(stream, dtype, x, weights, y, conv, epilogue);
    WITH_TYPE(dtype, (conv_simt<T>(stream, x, weights, y, conv, epilogue)));
}

/* ---- one thread per output: groups of few channels, uncommon depthwise convolutions ---- */

/* A thread reads EACH neighbouring channels at once. With IS_DEPTHWISE it computes EACH outputs,
 * one from each channel. Otherwise it computes one output, and EACH divides the channels of a
 * group. Sums are S: float, or int of 8-bit integers, which are also read from the padding. */
template <typename S, int EACH, bool IS_DEPTHWISE, typename T, typename W, typename Epilogue>
__global__ void conv_direct_kernel(const T *x, const W *weights, void *y, cuda_conv c, Epilogue e,
                                   const T *padding, size_t count)
{
    constexpr int OUTPUTS = IS_DEPTHWISE ? EACH : 1;
    const int cg = c.c / c.groups, mg = c.m / c.groups, tap_step = IS_DEPTHWISE ? c.c : cg;
    FOR_EACH(i, count) {
        const size_t p = i * OUTPUTS / (size_t)c.m;
        const int m = (int)(i * OUTPUTS - p * (size_t)c.m), first = m / mg * cg;
        const position at = position_of(c, p);
        const W *w = weights + (size_t)m * (size_t)(IS_DEPTHWISE ? 1 : c.row);
        S sums[OUTPUTS] = {};
        for (int r = 0; r < c.kh; r++) {
            const int h = at.h + r * c.dilation_h;
            const bool has_row = h >= 0 && h < c.h;
            for (int s = 0; s < c.kw && (has_row || is_whole<S>); s++) {
                const int column = at.w + s * c.dilation_w;
                const bool has = has_row && column >= 0 && column < c.w;
                if (!has && !is_whole<S>)
                    continue;
                const T *from =
                    has ? x + (((size_t)at.n * c.h + h) * c.w + column) * c.c + first : padding;
                const W *tap = w + (size_t)(r * c.kw + s) * tap_step;
                for (int k = 0; k < cg; k += EACH / OUTPUTS) {
                    S v[EACH], t[EACH];
                    load_all(v, from + (has || !is_whole<S> ? k : 0));
                    load_all(t, tap + k);
                    UNROLLED(j, EACH)
                        sums[IS_DEPTHWISE ? j : 0] =
                            wrapping_sum(sums[IS_DEPTHWISE ? j : 0], v[j] * t[j]);
                }
            }
        }
        finish_all<T>(y, output_at(c, p, m), m, sums, e);
    }
}

template <typename S, typename T, typename W, typename Epilogue>
static void conv_direct(cudaStream_t stream, const T *x, const W *weights, void *y,
                        const struct cuda_conv *c, const Epilogue *e, const void *padding)
{
    const size_t outputs = (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m;
    const int cg = c->c / c->groups;
    const bool is_depthwise = c->groups == c->c && c->m == c->c, in_eights = c->c % 8 == 0;
    const size_t count = is_depthwise && in_eights ? outputs / 8 : outputs;
    const auto kernel = is_depthwise && in_eights ? conv_direct_kernel<S, 8, true, T, W, Epilogue>
                        : is_depthwise            ? conv_direct_kernel<S, 1, true, T, W, Epilogue>
                        : cg % 4 == 0             ? conv_direct_kernel<S, 4, false, T, W, Epilogue>
                        : cg % 2 == 0             ? conv_direct_kernel<S, 2, false, T, W, Epilogue>
                                                  : conv_direct_kernel<S, 1, false, T, W, Epilogue>;
    LAUNCH(kernel, blocks_for(count), THREADS, stream, x, weights, y, *c, *e, (const T *)padding,
           count);
}

void cuda_conv_direct(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      const struct cuda_conv *c, const struct cuda_epilogue *e)
{
    WITH_TYPE(dtype,
              conv_direct<float>(stream, (const T *)x, (const T *)weights, y, c, e, nullptr));
}

void cuda_int8_conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_conv *c, const struct cuda_int8_epilogue *e)
{
    const int16_t *const w = (const int16_t *)weights;
    if (e->x_type == DTYPE_I8)
        conv_direct<int>(stream, (const int8_t *)x, w, y, c, e, e->padding);
    else
        conv_direct<int>(stream, (const uint8_t *)x, w, y, c, e, e->padding);
}
