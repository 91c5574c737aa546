/* Convolutions over [N, H, W, C] images of float16, bfloat16, or float32 as TF32, on tensor cores;
 * conv_tiles.cuh describes the method. Sums are float32. They pass through shared memory once, so
 * that bias, residual, activation and y are handled 16 bytes at a time. With too few tiles for the
 * processors (small batches), k is divided among `splits` blocks; split_sum_kernel adds up their
 * float32 sums. */
#include "engine/cuda/kernels/conv_tiles.cuh"

namespace
{
/* ---- candidates ---- */

struct tile_traits {
    int positions, channels, depth, shared;
    double pace; /* estimated share of a multiprocessor's peak rate; the share is lower if more
                    bytes are read per product */
};

#define TILE_TRAITS(number, p, c, d, wp, wc, s, b)                                                 \
    {p, c, d, tile##number::SHARED, wp * wc >= 64 * 64 ? 1.0 : wp * wc >= 64 * 32 ? 0.8 : 0.55},
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
    splits = divide_up(steps, each);
    const size_t sums = splits > 1 ? (size_t)splits * (size_t)positions * (size_t)c->m : 0;
    return {{tile, splits, sums * sizeof(float)}, rounds * block + summing};
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
} // namespace

int cuda_conv_candidates(int dtype, const struct cuda_conv *conv, size_t shared_limit,
                         int processors, struct cuda_conv_candidate *ret, int max)
{
    estimate found[TILE_COUNT * 3];
    int count = 0;
    if (conv->c > INT32_MAX / 2 || conv->row > INT32_MAX / 2)
        return 0;
    if (dtype == DTYPE_I8 && conv->c / conv->groups % 4)
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
    for (int i = 1; i < count; i++) /* sorts by estimated time */
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

void cuda_conv_tensor(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      const struct cuda_conv *c, const struct cuda_epilogue *e,
                      const struct cuda_conv_candidate *candidate, void *workspace)
{
    const struct cuda_conv halves = in_halves(dtype, c);
#define START_TENSOR(T)                                                                            \
    start_tile(candidate->tile, halves,                                                            \
               conv_launch<T, float, cuda_epilogue>{stream, x, weights, nullptr, y, halves, *e,    \
                                                    candidate->splits, workspace})
    if (dtype == DTYPE_BF16)
        START_TENSOR(__nv_bfloat16);
    else if (dtype == DTYPE_F16)
        START_TENSOR(__half);
    else
        START_TENSOR(tf32_half);
#undef START_TENSOR
}
