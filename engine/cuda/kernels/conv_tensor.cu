/* Convolutions over [N, H, W, C] images of float16, bfloat16, or float32 as TF32, on tensor cores;
 * conv_tiles.cuh describes them. Sums are float32. They pass through shared memory once, so that
 * bias, residual, activation and y are handled 16 bytes at a time. With too few tiles for the
 * processors (small batches), k is divided among `splits` blocks; split_sum_kernel adds up their
 * float32 sums. */
#include "engine/cuda/kernels/conv_tiles.cuh"

namespace
{
/* The C++ type of y's elements if y has x's dtype. */
template <typename T> struct result_of {
    using type = T;
};
template <> struct result_of<tf32_half> {
    using type = float;
};

/* v += the next eight (at a row's end: `count`) elements of float32 or T. NULL adds nothing. */
template <typename T>
__device__ static inline void add_some(float (&v)[8], const void *from, bool is_float, bool whole,
                                       int count)
{
    if (!from)
        return;
    if (whole && is_float)
        return add_all(v, (const float *)from);
    if (whole)
        return add_all(v, (const T *)from);
    UNROLLED(i, 8)
        if (i < count)
            v[i] += is_float ? ((const float *)from)[i] : to_float(((const T *)from)[i]);
}

template <typename T>
__device__ static inline void store_some(void *to, const float (&from)[8], bool is_float,
                                         bool whole, int count)
{
    if (whole && is_float)
        return store_all((float *)to, from);
    if (whole)
        return store_all((T *)to, from);
    UNROLLED(i, 8) {
        if (i < count && is_float)
            ((float *)to)[i] = from[i];
        else if (i < count)
            ((T *)to)[i] = from_float<T>(from[i]);
    }
}

/* Stores eight neighbouring sums of position p, from channel m of the group on. */
template <typename Y>
__device__ static inline void store_eight(const float *from, void *y, const cuda_conv &c,
                                          const cuda_epilogue &e, const conv_split<float> &g,
                                          bool y_is_float, size_t p, int m)
{
    const int mg = c.m / c.groups, column = (int)blockIdx.y * mg + m, count = mg - m;
    const bool whole = mg % 8 == 0;
    float v[8];
    load_all(v, from);
    if (g.sums) {
        const size_t outputs = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
        return store_some<Y>(g.sums + blockIdx.z * outputs + p * (size_t)c.m + (size_t)column, v,
                             true, whole, count);
    }
    const size_t bytes = output_at(c, p, column) * (y_is_float ? 4 : 2);
    add_some<Y>(v, e.bias ? e.bias + column : nullptr, true, whole, count);
    add_some<Y>(v, e.residual ? (const char *)e.residual + bytes : nullptr, y_is_float, whole,
                count);
    activate_all(v, e.activation, e.alpha, e.beta);
    store_some<Y>((char *)y + bytes, v, y_is_float, whole, count);
}

template <typename T, typename Tile, int VEC>
__global__ void __launch_bounds__(Tile::THREADS_, Tile::BLOCKS)
    conv_tensor_kernel(const T *x, const T *weights, void *y, cuda_conv c, cuda_epilogue e,
                       conv_split<float> g, bool y_is_float)
{
    SHARED_MEMORY(memory);
    const int p0 = (int)blockIdx.x / g.tiles_across * Tile::POSITIONS;
    const int m0 = (int)blockIdx.x % g.tiles_across * Tile::CHANNELS;
    const int first = (int)blockIdx.z * g.each;
    const int steps = g.steps - first < g.each ? g.steps - first : g.each;
    sums_of<Tile, float> sums = {};
    multiply_tile<T, Tile, VEC, float>((T *)memory, x, weights, c, p0, m0, first, steps, nullptr,
                                       sums);
    store_tile<Tile>((float *)memory, sums, c, p0, m0, [&](const float *from, size_t p, int m) {
        store_eight<typename result_of<T>::type>(from, y, c, e, g, y_is_float, p, m);
    });
}

/* y = epilogue(the sum over all splits). */
template <typename Y, int EACH>
__global__ void split_sum_kernel(const float *sums, int splits, size_t count, cuda_conv c, Y *y,
                                 cuda_epilogue e)
{
    FOR_EACH(i, count / EACH) {
        float total[EACH];
        load_all(total, sums + i * EACH);
        for (int s = 1; s < splits; s++)
            add_all(total, sums + (size_t)s * count + i * EACH);
        const size_t position = i * EACH / (size_t)c.m;
        const int m = (int)(i * EACH - position * (size_t)c.m);
        finish_all(y, output_at(c, position, m), m, total, e);
    }
}

template <typename Y>
void sum_splits(cudaStream_t stream, const float *sums, int splits, const struct cuda_conv *c,
                void *y, const struct cuda_epilogue *e)
{
    const size_t count = (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m;
    WITH_EACH(c->m % 8 == 0, LAUNCH((split_sum_kernel<Y, EACH>), blocks_for(count / EACH), THREADS,
                                    stream, sums, splits, count, *c, (Y *)y, *e));
}

/* ---- candidates ---- */

struct tile_traits {
    int positions, channels, depth, shared, threads;
    double pace; /* estimated share of a multiprocessor's peak rate; depends on bytes read per
                    product */
};

#define TILE_TRAITS(number, p, c, d, wp, wc, s, b)                                                 \
    {p,                                                                                            \
     c,                                                                                            \
     d,                                                                                            \
     tile##number::SHARED,                                                                         \
     tile##number::THREADS_,                                                                       \
     wp * wc >= 64 * 64   ? 1.0                                                                    \
     : wp * wc >= 64 * 32 ? 0.8                                                                    \
                          : 0.55},
const tile_traits traits[TILE_COUNT] = {TILES(TILE_TRAITS)};
#undef TILE_TRAITS

int vector_of(const struct cuda_conv *c)
{
    int cg = c->c / c->groups;
    return cg % 8 == 0 ? 8 : cg % 4 == 0 ? 4 : cg % 2 == 0 ? 2 : 0;
}

int conv_steps_of(const struct cuda_conv *c, const tile_traits &t)
{
    return divide_up(c->kh * c->kw * (c->c / c->groups), t.depth);
}

struct estimate {
    struct cuda_conv_candidate candidate;
    double time;
};

estimate estimate_of(const struct cuda_conv *c, int tile, int splits, int processors)
{
    const tile_traits &t = traits[tile];
    const int positions = c->n * c->oh * c->ow, steps = conv_steps_of(c, t);
    const int each = divide_up(steps, splits);
    const double blocks = (double)divide_up(positions, t.positions) *
                          (double)divide_up(c->m / c->groups, t.channels) * c->groups *
                          (double)divide_up(steps, each);
    const double rounds = (double)(int64_t)((blocks + processors - 1) / processors);
    const double block = (double)t.positions * t.channels * ((double)each * t.depth + 64) / t.pace;
    const double summing = each < steps ? 3e6 + (double)positions * c->m * splits / 8.0 : 0;
    return {{tile, divide_up(steps, each)}, rounds * block + summing};
}

/* True if offsets within a tile's images fit an int, and an image's rows and columns 16 bits. */
bool fits_kernel(const struct cuda_conv *c)
{
    if (c->n < 1 || c->oh < 1 || c->ow < 1 || c->m < c->groups || c->c < c->groups)
        return false;
    const int64_t most = 256; /* positions of a tile */
    const int64_t images = most / ((int64_t)c->oh * c->ow) + 2;
    const int64_t reach_h = (int64_t)c->kh * c->dilation_h + c->pad_h + c->h;
    const int64_t reach_w = (int64_t)c->kw * c->dilation_w + c->pad_w + c->w;
    return reach_h + (int64_t)c->stride_h < 16384 && reach_w + (int64_t)c->stride_w < 16384 &&
           (int64_t)c->oh * c->stride_h < 16384 && (int64_t)c->ow * c->stride_w < 16384 &&
           images * reach_h * reach_w * c->c < INT32_MAX &&
           (int64_t)c->n * c->oh * c->ow <= INT32_MAX - most &&
           (int64_t)c->kh * c->kw * (c->c / c->groups) < INT32_MAX - 64 && c->groups <= GRID_MOST;
}

template <typename T> struct tensor_launch {
    cudaStream_t stream;
    const void *x, *weights;
    void *y;
    bool y_is_float;
    const struct cuda_conv &c;
    const struct cuda_epilogue &e;
    int splits;
    void *workspace;

    template <typename Tile, int VEC> void start() const
    {
        const conv_split<float> g = split_of<Tile, float>(c, splits, workspace);
        if (Tile::BLOCKS > 1)
            prefer_shared(conv_tensor_kernel<T, Tile, VEC>);
        LAUNCH_SHARED((conv_tensor_kernel<T, Tile, VEC>), grid_of<Tile>(c, g), Tile::THREADS_,
                      Tile::SHARED, stream, (const T *)x, (const T *)weights, y, c, e, g,
                      y_is_float);
        if (g.sums && y_is_float)
            sum_splits<float>(stream, g.sums, g.splits, &c, y, &e);
        else if (g.sums)
            sum_splits<typename result_of<T>::type>(stream, g.sums, g.splits, &c, y, &e);
    }
};

/* Returns the convolution with channels counted in numbers of two bytes. */
struct cuda_conv in_halves(int dtype, const struct cuda_conv *conv)
{
    struct cuda_conv c = *conv;
    if (dtype == T_F32) {
        c.c *= 2;
        c.row *= 2;
    }
    return c;
}
} // namespace

int cuda_conv_candidates(int dtype, const struct cuda_conv *conv, size_t shared_limit,
                         int processors, struct cuda_conv_candidate *ret, int max)
{
    estimate found[TILE_COUNT * 3];
    int count = 0;
    if (conv->c > INT32_MAX / 2 || conv->row > INT32_MAX / 2)
        return 0;
    const struct cuda_conv halves = in_halves(dtype, conv), *const c = &halves;
    if (!fits_kernel(c) || !vector_of(c))
        return 0;
    for (int t = vector_of(c) == 8 ? 0 : SMALL_TILES; t < TILE_COUNT; t++) {
        const int mg = c->m / c->groups, steps = conv_steps_of(c, traits[t]);
        if ((size_t)traits[t].shared > shared_limit ||
            (traits[t].channels >= 2 * mg && traits[t].channels > 32))
            continue;
        const int blocks = divide_up(c->n * c->oh * c->ow, traits[t].positions) *
                           divide_up(mg, traits[t].channels) * c->groups;
        found[count++] = estimate_of(c, t, 1, processors);
        /* Chooses splits so that every processor gets one or two blocks with several steps each. */
        for (int rounds = 1; rounds <= 2 && blocks < processors; rounds++) {
            int splits = rounds * processors / blocks;
            if (splits > steps / 4)
                splits = steps / 4;
            if (splits > 32)
                splits = 32;
            if (splits > 1)
                found[count++] = estimate_of(c, t, splits, processors);
        }
    }
    for (int i = 1; i < count; i++) /* sort: the shortest estimated time first */
        for (int k = i; k > 0 && found[k].time < found[k - 1].time; k--) {
            estimate other = found[k];
            found[k] = found[k - 1];
            found[k - 1] = other;
        }
    int taken = 0;
    for (int i = 0; i < count && taken < max; i++) {
        bool again = false;
        for (int k = 0; k < taken; k++)
            again = again || (ret[k].tile == found[i].candidate.tile &&
                              ret[k].splits == found[i].candidate.splits);
        if (!again)
            ret[taken++] = found[i].candidate;
    }
    return taken;
}

size_t cuda_conv_workspace(const struct cuda_conv *c, const struct cuda_conv_candidate *candidate)
{
    if (candidate->splits <= 1)
        return 0;
    return (size_t)candidate->splits * (size_t)c->n * (size_t)c->oh * (size_t)c->ow * (size_t)c->m *
           sizeof(float);
}

void cuda_conv_tensor(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      int y_dtype, const struct cuda_conv *c, const struct cuda_epilogue *e,
                      const struct cuda_conv_candidate *candidate, void *workspace)
{
    const bool y_is_float = y_dtype == T_F32;
    const int splits = candidate->splits;
    const struct cuda_conv halves = in_halves(dtype, c);
#define START_TENSOR(T)                                                                            \
    start_tile(candidate->tile, halves,                                                            \
               tensor_launch<T>{stream, x, weights, y, y_is_float, halves, *e, splits, workspace})
    if (dtype == T_BF16)
        START_TENSOR(__nv_bfloat16);
    else if (dtype == T_F16)
        START_TENSOR(__half);
    else
        START_TENSOR(tf32_half);
#undef START_TENSOR
}
