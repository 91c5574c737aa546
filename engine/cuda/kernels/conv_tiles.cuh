/* Private to conv_tensor.cu and conv_int8.cu: convolution of [N, H, W, C] images as an implicit
 * matrix product on tensor cores, without an im2col buffer
 *
 *     y[p, m] = sum over k of x[p, k] * weights[m, k]
 *
 * where p is an output position, m an output channel, and k = (row, column, channel) of the window.
 *
 * A block computes a tile of positions by channels. It loops over k in steps of Tile::DEPTH.
 * Asynchronous copies (copy_async) fill a ring of STAGES tiles of x and of the weights in shared
 * memory; the copies also write padding and numbers beyond an edge. Each warp multiplies its part
 * of the tile with mma from that ring. One barrier per step ensures that the step's data has
 * arrived for all threads, and that no thread still reads the stage that is filled next.
 *
 * A number here is two bytes: a float16, a bfloat16, two neighbouring 8-bit integers, or half a
 * float32. All have the same layout in shared memory and in a warp's fragments. Channels and rows
 * of weights are counted in these numbers. */
#pragma once

#include "engine/cuda/kernels/tensor_core.cuh"

namespace
{
inline int divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

/* Returns the convolution with channels counted in numbers of two bytes. */
inline struct cuda_conv in_halves(int dtype, const struct cuda_conv *conv)
{
    struct cuda_conv c = *conv;
    if (dtype == DTYPE_F32) {
        c.c *= 2;
        c.row *= 2;
    } else if (dtype == DTYPE_I8) {
        c.c /= 2;
        c.row /= 2;
    }
    return c;
}

/* True if the padding contains the zero point of 8-bit integers instead of zeros. */
template <typename T> constexpr bool padding_is_stored = false;
template <> constexpr bool padding_is_stored<s8_pair> = true;
template <> constexpr bool padding_is_stored<u8_pair> = true;

/* The type of y's elements if y has the dtype of x, which has numbers T. */
template <typename T> using result_of = std::conditional_t<std::is_same_v<T, tf32_half>, float, T>;

template <int POSITIONS_, int CHANNELS_, int DEPTH_, int WARP_POSITIONS_, int WARP_CHANNELS_,
          int STAGES_, int BLOCKS_>
struct conv_tile {
    static constexpr int POSITIONS = POSITIONS_, CHANNELS = CHANNELS_, DEPTH = DEPTH_;
    static constexpr int WARP_POSITIONS = WARP_POSITIONS_, WARP_CHANNELS = WARP_CHANNELS_;
    static constexpr int STAGES = STAGES_, BLOCKS = BLOCKS_; /* BLOCKS: blocks per multiprocessor */
    static constexpr int ACROSS = CHANNELS / WARP_CHANNELS;
    static constexpr int WARPS = POSITIONS / WARP_POSITIONS * ACROSS;
    static constexpr int THREADS_ = 32 * WARPS;
    static constexpr int STAGE = (POSITIONS + CHANNELS) * DEPTH; /* numbers */
    static constexpr int PITCH = WARP_CHANNELS + 8;              /* row length in store_tile() */
    static constexpr int SHARED = 2 * STAGE * STAGES;            /* bytes */
    /* A warp has sums of DOWN groups of 16 positions. The stages' memory has room for SLABS of
     * them. */
    static constexpr int SLAB = WARPS * 16 * PITCH * 4, DOWN = WARP_POSITIONS / 16;
    static constexpr int SLABS = DOWN * SLAB <= SHARED       ? DOWN
                                 : DOWN / 2 * SLAB <= SHARED ? DOWN / 2
                                                             : 1;
    static_assert(SLAB * SLABS <= SHARED && DOWN % SLABS == 0, "whole rows");
    static_assert(WARP_POSITIONS % 16 == 0 && WARP_CHANNELS % 16 == 0, "whole fragments");
};

/* Tiles by index: positions, channels, depth; a warp's positions, channels; stages, blocks. Tiles
 * from SMALL_TILES on also exist for images whose channel count is not a multiple of eight. */
#define TILES(X)                                                                                   \
    X(0, 256, 128, 32, 64, 64, 3, 1)                                                               \
    X(1, 128, 256, 32, 64, 64, 3, 1)                                                               \
    X(2, 128, 128, 32, 64, 64, 4, 2)                                                               \
    X(3, 128, 128, 64, 64, 32, 3, 1)                                                               \
    X(4, 128, 64, 64, 64, 32, 3, 2)                                                                \
    X(5, 64, 128, 64, 32, 64, 3, 2)                                                                \
    X(6, 64, 64, 64, 32, 32, 4, 3)                                                                 \
    X(7, 128, 64, 32, 64, 32, 4, 3)                                                                \
    X(8, 128, 32, 32, 32, 32, 4, 4)                                                                \
    X(9, 64, 64, 32, 32, 32, 4, 4)
enum { TILE_COUNT = 10, SMALL_TILES = 7 };

#define TILE_TYPE(number, p, c, d, wp, wc, s, b)                                                   \
    using tile##number = conv_tile<p, c, d, wp, wc, s, b>;
TILES(TILE_TYPE)
#undef TILE_TYPE

/* How a convolution is divided among blocks. */
template <typename S> struct conv_split {
    int tiles_across; /* tiles of channels per group */
    int steps, each;  /* steps of Tile::DEPTH: of all blocks of a tile, and of each */
    int splits;       /* number of blocks that share a tile; every block has steps */
    S *sums;          /* [splits, positions, m] instead of y; NULL: write y */
};

template <typename Tile, typename S>
conv_split<S> split_of(const struct cuda_conv &c, int splits, void *workspace)
{
    conv_split<S> g;
    g.tiles_across = divide_up(c.m / c.groups, Tile::CHANNELS);
    g.steps = divide_up(c.kh * c.kw * (c.c / c.groups), Tile::DEPTH);
    g.each = divide_up(g.steps, splits);
    g.splits = divide_up(g.steps, g.each);
    g.sums = g.splits > 1 ? (S *)workspace : nullptr;
    return g;
}

/* Calls launch.start<Tile, VEC>() for tile `number`; VEC: number of channels of x per read. */
template <typename Launch> void start_tile(int number, const struct cuda_conv &c, Launch launch)
{
    const int cg = c.c / c.groups;
#define TILE_CASE(number, ...)                                                                     \
    case number:                                                                                   \
        if (cg % 8 == 0) {                                                                         \
            launch.template start<tile##number, 8>();                                              \
        } else if constexpr (number >= SMALL_TILES) {                                              \
            if (cg % 4 == 0)                                                                       \
                launch.template start<tile##number, 4>();                                          \
            else                                                                                   \
                launch.template start<tile##number, 2>();                                          \
        }                                                                                          \
        break;
    switch (number) {
        TILES(TILE_CASE)
    }
#undef TILE_CASE
}

/* The part of a tile of x that a thread copies: VEC neighbouring channels in each of ROWS rows. */
template <typename T, typename Tile, int VEC> struct image_copies {
    static constexpr int PIECES = Tile::DEPTH / VEC, STEP = Tile::THREADS_ / PIECES;
    static constexpr int ROWS = Tile::POSITIONS / STEP;
    static_assert(STEP % 8 == 0 && Tile::POSITIONS % STEP == 0, "rows keep their swizzling");

    const T *base;    /* the group's channels in the first image that the tile reads */
    int offset[ROWS]; /* offset of a window's first position from `base`, in numbers; may be
                         negative */
    int corner[ROWS]; /* row and column of a window's first position, 16 bits each, signed */
    int place;        /* where the first row's piece begins in the tile */
    int r, s, channel;
    const T *outside; /* a piece of padding, if padding is not zero */

    __device__ inline void start(const T *x, const cuda_conv &c, int positions, int first,
                                 int group, int k, const T *padding = nullptr)
    {
        const int thread = (int)threadIdx.x, column = thread % PIECES, row = thread / PIECES;
        const int cg = c.c / c.groups, area = c.oh * c.ow, image = first / area;
        base = x + (size_t)image * (size_t)c.h * (size_t)c.w * (size_t)c.c + group * cg;
        place = swizzled<Tile::DEPTH>(row, column * VEC / 8) + column * VEC % 8;
        UNROLLED(i, ROWS) {
            int p = first + row + i * STEP;
            int n = p / area, at = p - n * area, oh = at / c.ow, ow = at - oh * c.ow;
            int h = oh * c.stride_h - c.pad_h, w = ow * c.stride_w - c.pad_w;
            bool has = p < positions;
            offset[i] = has ? (((n - image) * c.h + h) * c.w + w) * c.c : 0;
            /* Beyond the last position: a row that is outside the image for every tap. */
            corner[i] = (int)((uint32_t)(has ? h : -32768) << 16 | (uint32_t)(uint16_t)w);
        }
        k += column * VEC;
        int tap = k / cg;
        channel = k - tap * cg;
        r = tap / c.kw;
        s = tap - r * c.kw;
        if constexpr (padding_is_stored<T>)
            outside = padding;
    }

    /* Starts the copies of one step and advances to the next. */
    __device__ inline void copy(T *to, const cuda_conv &c)
    {
        const int down = r * c.dilation_h, right = s * c.dilation_w;
        const int delta = (down * c.w + right) * c.c + channel;
        UNROLLED(i, ROWS) {
            int h = (corner[i] >> 16) + down, w = (int)(int16_t)(corner[i] & 0xffff) + right;
            bool has = r < c.kh && (unsigned)h < (unsigned)c.h && (unsigned)w < (unsigned)c.w;
            if constexpr (padding_is_stored<T>)
                copy_async<VEC * 2>(to + place + i * STEP * Tile::DEPTH,
                                    has ? base + (offset[i] + delta) : outside, true);
            else
                copy_async<VEC * 2>(to + place + i * STEP * Tile::DEPTH,
                                    base + (has ? offset[i] + delta : 0), has);
        }
        const int cg = c.c / c.groups;
        channel += Tile::DEPTH;
        while (channel >= cg) {
            channel -= cg;
            if (++s == c.kw) {
                s = 0;
                r++;
            }
        }
    }
};

/* The part of a tile of weights that a thread copies; c.row is a multiple of eight. */
template <typename T, typename Tile> struct weight_copies {
    static constexpr int PIECES = Tile::DEPTH / 8, STEP = Tile::THREADS_ / PIECES;
    static constexpr int ROWS = Tile::CHANNELS / STEP;
    static_assert(STEP % 8 == 0 && Tile::CHANNELS % STEP == 0, "rows keep their swizzling");

    const T *base; /* the group's weights */
    int row, k, place;

    __device__ inline void start(const T *weights, const cuda_conv &c, int first, int group,
                                 int first_k)
    {
        const int thread = (int)threadIdx.x, column = thread % PIECES;
        const int mg = c.m / c.groups;
        row = first + thread / PIECES;
        k = first_k + column * 8;
        place = swizzled<Tile::DEPTH>(thread / PIECES, column);
        base = weights + (size_t)group * (size_t)mg * (size_t)c.row;
    }

    __device__ inline void copy(T *to, const cuda_conv &c)
    {
        const int mg = c.m / c.groups;
        UNROLLED(i, ROWS) {
            bool has = row + i * STEP < mg && k < c.row;
            copy_async<16>(to + place + i * STEP * Tile::DEPTH,
                           base + (has ? (size_t)(row + i * STEP) * (size_t)c.row + (size_t)k : 0),
                           has);
        }
        k += Tile::DEPTH;
    }
};

template <typename Tile, typename S> struct sums_of {
    static constexpr int DOWN = Tile::WARP_POSITIONS / 16, ACROSS = Tile::WARP_CHANNELS / 8;
    S at[DOWN][ACROSS][4];
};

/* One step: sums += x * weights of the warp's part. */
template <typename T, typename Tile, typename S>
__device__ static inline void multiply_step(const T *x, const T *weights, int warp,
                                            sums_of<Tile, S> &sums)
{
    const int lane = (int)threadIdx.x % 32;
    const int x_row = warp / Tile::ACROSS * Tile::WARP_POSITIONS + lane % 16;
    const int w_row = warp % Tile::ACROSS * Tile::WARP_CHANNELS + (lane & 7) + (lane >> 4 << 3);
    UNROLLED(k, Tile::DEPTH / 16) {
        uint32_t a[sums.DOWN][4], b[sums.ACROSS / 2][4];
        UNROLLED(i, sums.DOWN) {
            load_matrices(a[i], x + swizzled<Tile::DEPTH>(x_row + i * 16, k * 2 + (lane >> 4)));
            round_operands<T>(a[i]);
        }
        UNROLLED(j, sums.ACROSS / 2) {
            load_matrices(b[j],
                          weights + swizzled<Tile::DEPTH>(w_row + j * 16, k * 2 + (lane >> 3 & 1)));
            round_operands<T>(b[j]);
        }
        UNROLLED(i, sums.DOWN)
            UNROLLED(j, sums.ACROSS)
                multiply_add<T>(sums.at[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

/* Runs all steps of a block from `first` on, and returns the sums of this warp. */
template <typename T, typename Tile, int VEC, typename S>
__device__ static inline void multiply_tile(T *ring, const T *x, const T *weights,
                                            const cuda_conv &c, int p0, int m0, int first,
                                            int steps, const T *padding, sums_of<Tile, S> &sums)
{
    const int positions = c.n * c.oh * c.ow, group = (int)blockIdx.y;
    const int warp = (int)threadIdx.x / 32;
    image_copies<T, Tile, VEC> images;
    weight_copies<T, Tile> filters;
    images.start(x, c, positions, p0, group, first * Tile::DEPTH, padding);
    filters.start(weights, c, m0, group, first * Tile::DEPTH);
    UNROLLED(step, Tile::STAGES - 1) {
        if (step < steps) {
            T *slot = ring + step * Tile::STAGE;
            images.copy(slot, c);
            filters.copy(slot + Tile::POSITIONS * Tile::DEPTH, c);
        }
        copies_commit(); /* every step has a group, maybe an empty one: groups count steps */
    }
    int reads = 0, fills = Tile::STAGES - 1;
    for (int step = 0; step < steps; step++) {
        copies_wait<Tile::STAGES - 2>();
        __syncthreads();
        if (step + Tile::STAGES - 1 < steps) {
            T *slot = ring + fills * Tile::STAGE;
            images.copy(slot, c);
            filters.copy(slot + Tile::POSITIONS * Tile::DEPTH, c);
        }
        copies_commit();
        const T *slot = ring + reads * Tile::STAGE;
        multiply_step<T, Tile, S>(slot, slot + Tile::POSITIONS * Tile::DEPTH, warp, sums);
        reads = reads + 1 == Tile::STAGES ? 0 : reads + 1;
        fills = fills + 1 == Tile::STAGES ? 0 : fills + 1;
    }
    copies_wait<0>();
    __syncthreads();
}

/* Each warp writes SLABS groups of 16 positions at a time to its own shared memory, reads back
 * eight numbers at a time, and calls store(sums, position, channel of the group). A row is 8
 * numbers longer, so that the four rows that half a warp writes are in different banks. */
template <typename Tile, typename S, typename Store>
__device__ static inline void store_tile(S *shared, const sums_of<Tile, S> &sums,
                                         const cuda_conv &c, int p0, int m0, Store store)
{
    constexpr int EIGHTS = Tile::WARP_CHANNELS / 8, ROWS = 16 * Tile::SLABS;
    const int positions = c.n * c.oh * c.ow, mg = c.m / c.groups;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    S *own = shared + warp * ROWS * Tile::PITCH;
    p0 += warp / Tile::ACROSS * Tile::WARP_POSITIONS;
    m0 += warp % Tile::ACROSS * Tile::WARP_CHANNELS;
    UNROLL
    for (int first = 0; first < sums.DOWN; first += Tile::SLABS) {
        UNROLLED(i, Tile::SLABS) {
            UNROLLED(j, sums.ACROSS) {
                S *at = own + (i * 16 + lane / 4) * Tile::PITCH + j * 8 + lane % 4 * 2;
                at[0] = sums.at[first + i][j][0];
                at[1] = sums.at[first + i][j][1];
                at[8 * Tile::PITCH] = sums.at[first + i][j][2];
                at[8 * Tile::PITCH + 1] = sums.at[first + i][j][3];
            }
        }
        __syncwarp();
        NO_UNROLL
        for (int piece = lane; piece < ROWS * EIGHTS; piece += 32) {
            int row = piece / EIGHTS, column = piece % EIGHTS * 8;
            int p = p0 + first * 16 + row, m = m0 + column;
            if (p < positions && m < mg)
                store(own + row * Tile::PITCH + column, (size_t)p, m);
        }
        __syncwarp();
    }
}

/* finish_all() makes results from sums of type S. If several blocks share a tile's k (splits), each
 * stores its sums instead. */
template <typename T, typename Tile, int VEC, typename S, typename Epilogue>
__global__ void __launch_bounds__(Tile::THREADS_, Tile::BLOCKS)
    conv_tile_kernel(const T *x, const T *weights, void *y, cuda_conv c, Epilogue e,
                     conv_split<S> g, const T *padding)
{
    SHARED_MEMORY(memory);
    const int p0 = (int)blockIdx.x / g.tiles_across * Tile::POSITIONS;
    const int m0 = (int)blockIdx.x % g.tiles_across * Tile::CHANNELS;
    const int first = (int)blockIdx.z * g.each, mg = c.m / c.groups;
    const int steps = g.steps - first < g.each ? g.steps - first : g.each;
    sums_of<Tile, S> sums = {};
    multiply_tile<T, Tile, VEC, S>((T *)memory, x, weights, c, p0, m0, first, steps, padding, sums);
    store_tile<Tile>((S *)memory, sums, c, p0, m0, [&](const S *from, size_t p, int m) {
        const int column = (int)blockIdx.y * mg + m;
        const int count = mg % 8 ? mg - m : 8; /* never 8 if mg is no multiple of 8 */
        S v[8];
        load_same(v, from);
        if (!g.sums)
            return finish_all<result_of<T>>(y, output_at(c, p, column), column, v, e, count);
        const size_t outputs = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
        store_same(g.sums + blockIdx.z * outputs + p * (size_t)c.m + (size_t)column, v, count);
    });
}

/* Adds up the sums of all splits, and makes results from the totals. */
template <typename T, int EACH, typename S, typename Epilogue>
__global__ void split_sum_kernel(const S *sums, int splits, size_t count, cuda_conv c, void *y,
                                 Epilogue e)
{
    FOR_EACH(i, count / EACH) {
        S total[EACH], more[EACH];
        load_same(total, sums + i * EACH);
        for (int s = 1; s < splits; s++) {
            load_same(more, sums + (size_t)s * count + i * EACH);
            UNROLLED(k, EACH)
                total[k] = wrapping_sum(total[k], more[k]);
        }
        const size_t p = i * EACH / (size_t)c.m;
        const int column = (int)(i * EACH - p * (size_t)c.m);
        finish_all<result_of<T>>(y, output_at(c, p, column), column, total, e);
    }
}

/* A convolution for start_tile(); `c` counts channels in numbers of two bytes. */
template <typename T, typename S, typename Epilogue> struct conv_launch {
    cudaStream_t stream;
    const void *x, *weights, *padding;
    void *y;
    const struct cuda_conv &c;
    Epilogue e;
    int splits;
    void *workspace;

    template <typename Tile, int VEC> void start() const
    {
        const conv_split<S> g = split_of<Tile, S>(c, splits, workspace);
        const size_t count = (size_t)c.n * (size_t)c.oh * (size_t)c.ow * (size_t)c.m;
        /* x counts tiles (channels first, so that neighbours share positions). */
        const int tiles = divide_up(c.n * c.oh * c.ow, Tile::POSITIONS) * g.tiles_across;
        const dim3 grid((unsigned)tiles, (unsigned)c.groups, (unsigned)g.splits);
        if (Tile::BLOCKS > 1)
            prefer_shared(conv_tile_kernel<T, Tile, VEC, S, Epilogue>);
        LAUNCH_SHARED((conv_tile_kernel<T, Tile, VEC, S, Epilogue>), grid, Tile::THREADS_,
                      Tile::SHARED, stream, (const T *)x, (const T *)weights, y, c, e, g,
                      (const T *)padding);
        if (g.sums)
            WITH_EACH(c.m % 8 == 0,
                      LAUNCH((split_sum_kernel<T, EACH, S, Epilogue>), blocks_for(count / EACH),
                             THREADS, stream, (const S *)g.sums, g.splits, count, c, y, e));
    }
};
} // namespace
