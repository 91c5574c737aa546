/* Convolutions over [N, H, W, C] images of 8-bit integers on tensor cores; conv_tiles.cuh has
 * the method. Its two-byte numbers are pairs of neighbouring channels here. Weights are signed; x
 * is signed or unsigned. The padding holds the zero point of x. So the zero point adds the same
 * value to every sum of a channel, and the bias can include this value.
 *
 * Sums are int32. They pass through shared memory once, so that threads write eight at a time. If k
 * is divided among blocks, cuda_int8_finish adds up their sums. */
#include "engine/cuda/kernels/conv_tiles.cuh"
#include "engine/cuda/kernels/int8.cuh"

namespace
{
/* Stores eight neighbouring sums of position p, from channel m of the group on. */
__device__ static inline void store_eight(const int *from, void *y, const cuda_conv &c,
                                          const cuda_int8_epilogue &e, const conv_split<int> &g,
                                          size_t p, int m)
{
    const int mg = c.m / c.groups, column = (int)blockIdx.y * mg + m, count = mg - m;
    const size_t at = p * (size_t)c.m + (size_t)column;
    const bool whole = mg % 8 == 0;
    int v[8];
    load_words(v, from, true, 8);
    if (!g.sums)
        return finish_sums(v, y, at, column, whole, count, e);
    const size_t outputs = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
    int *to = g.sums + blockIdx.z * outputs + at;
    UNROLLED(i, 8)
        if (i < count)
            to[i] = v[i];
}

/* `c` counts the channels of x, and the numbers in a row of weights, in pairs. */
template <typename T, typename Tile, int VEC>
__global__ void __launch_bounds__(Tile::THREADS_, Tile::BLOCKS)
    conv_int8_kernel(const T *x, const T *weights, void *y, cuda_conv c, cuda_int8_epilogue e,
                     conv_split<int> g, const T *padding)
{
    SHARED_MEMORY(memory);
    const int p0 = (int)blockIdx.x / g.tiles_across * Tile::POSITIONS;
    const int m0 = (int)blockIdx.x % g.tiles_across * Tile::CHANNELS;
    const int first = (int)blockIdx.z * g.each;
    const int steps = g.steps - first < g.each ? g.steps - first : g.each;
    sums_of<Tile, int> sums = {};
    multiply_tile<T, Tile, VEC, int>((T *)memory, x, weights, c, p0, m0, first, steps, padding,
                                     sums);
    store_tile<Tile>((int *)memory, sums, c, p0, m0, [&](const int *from, size_t p, int m) {
        store_eight(from, y, c, e, g, p, m);
    });
}

template <int COUNT>
__global__ void finish_kernel(const int *sums, int splits, size_t count, int columns, void *y,
                              cuda_int8_epilogue e)
{
    FOR_EACH(i, count / COUNT) {
        int total[COUNT], more[COUNT];
        load_words(total, sums + i * COUNT, true, COUNT);
        for (int s = 1; s < splits; s++) {
            load_words(more, sums + (size_t)s * count + i * COUNT, true, COUNT);
            UNROLLED(k, COUNT)
                total[k] = wrapped(total[k], more[k]);
        }
        finish_sums(total, y, i * COUNT, (int)(i * COUNT % (size_t)columns), true, COUNT, e);
    }
}

/* Returns the convolution with channels counted in pairs. */
struct cuda_conv in_pairs(const struct cuda_conv *conv)
{
    struct cuda_conv c = *conv;
    c.c /= 2;
    c.row /= 2;
    return c;
}

template <typename T> struct int8_launch {
    cudaStream_t stream;
    const void *x, *weights, *padding;
    void *y;
    const struct cuda_conv &c;
    const struct cuda_int8_epilogue &e;
    int splits;
    void *workspace;

    template <typename Tile, int VEC> void start() const
    {
        const conv_split<int> g = split_of<Tile, int>(c, splits, workspace);
        if (Tile::BLOCKS > 1)
            prefer_shared(conv_int8_kernel<T, Tile, VEC>);
        LAUNCH_SHARED((conv_int8_kernel<T, Tile, VEC>), grid_of<Tile>(c, g), Tile::THREADS_,
                      Tile::SHARED, stream, (const T *)x, (const T *)weights, y, c, e, g,
                      (const T *)padding);
        if (g.sums)
            cuda_int8_finish(stream, g.sums, g.splits, y, (size_t)c.n * (size_t)c.oh * (size_t)c.ow,
                             (size_t)c.m, &e);
    }
};
} // namespace

int cuda_int8_conv_candidates(const struct cuda_conv *conv, size_t shared_limit, int processors,
                              struct cuda_conv_candidate *ret, int max)
{
    if (conv->c / conv->groups % 4)
        return 0;
    const struct cuda_conv pairs = in_pairs(conv);
    return cuda_conv_candidates(T_I8, &pairs, shared_limit, processors, ret, max);
}

void cuda_int8_conv_tensor(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_int8_conv *conv,
                           const struct cuda_int8_epilogue *epilogue,
                           const struct cuda_conv_candidate *candidate, void *workspace)
{
    const struct cuda_conv pairs = in_pairs(&conv->conv);
    const int splits = candidate->splits;
    if (conv->x_type == T_I8)
        start_tile(candidate->tile, pairs,
                   int8_launch<s8_pair>{stream, x, weights, conv->padding, y, pairs, *epilogue,
                                        splits, workspace});
    else
        start_tile(candidate->tile, pairs,
                   int8_launch<u8_pair>{stream, x, weights, conv->padding, y, pairs, *epilogue,
                                        splits, workspace});
}

void cuda_int8_finish(cudaStream_t stream, const int32_t *sums, int splits, void *y, size_t rows,
                      size_t columns, const struct cuda_int8_epilogue *epilogue)
{
    const size_t count = rows * columns;
    WITH_EACH(columns % 8 == 0, LAUNCH(finish_kernel<EACH>, blocks_for(count / EACH), THREADS,
                                       stream, sums, splits, count, (int)columns, y, *epilogue));
}
