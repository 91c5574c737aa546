/* Attention, y = softmax(scale * q k^T + biases) v, without the matrix of scores in memory.
 *
 * On tensor cores a block computes 64 rows of one matrix, and each warp 16 of them. The block loops
 * over tiles of 64 keys and keeps a tile's scores in registers. It also keeps each row's maximum
 * and sum so far, and rescales the sum when the maximum grows (online softmax: Milakov and
 * Gimelshein, 2018; FlashAttention-2). While the block computes on one tile of k and v, the next
 * tile is copied into a second buffer. Attention that does not fit tensor cores uses one block per
 * row. */
#include "engine/cuda/kernels/tensor_core.cuh"

namespace
{
enum { TILE = 64, BLOCK = 128 };

/* Returns the offset of step i of a group, in elements. */
__device__ static inline int64_t group_at(const cuda_group &group, int i)
{
    return strided_at(i, group.count, group.extent, group.stride);
}

__device__ static inline int64_t matrix_at(const cuda_matrices &m, int batch)
{
    return m.offset + group_at(m.batch, batch);
}

/* ---- tensor cores ---- */

/* Starts the copies of TILE rows from `first` on; numbers beyond `rows` and `columns` are zero. A
 * row in shared memory is padded by eight numbers, so that eight rows are in different banks. */
template <typename T, int DEPTH>
__device__ static inline void copy_rows(T *to, const T *from, const cuda_group &group, int first,
                                        int rows, int columns)
{
    constexpr int PIECES = DEPTH / 8, PITCH = DEPTH + 8;
    for (int i = (int)threadIdx.x; i < TILE * PIECES; i += BLOCK) {
        const int row = i / PIECES, column = i % PIECES * 8;
        const bool has = first + row < rows && column < columns;
        copy_async<16>(to + row * PITCH + column,
                       from + (has ? group_at(group, first + row) + column : 0), has);
    }
}

template <typename T> __device__ static inline uint32_t pack_pair(T low, T high)
{
    uint16_t bits[2];
    memcpy(&bits[0], &low, 2);
    memcpy(&bits[1], &high, 2);
    return bits[0] | (uint32_t)bits[1] << 16;
}

template <typename T>
__device__ static inline float bias_at(const cuda_attention &a, const cuda_attention_data &data,
                                       int b, int64_t at)
{
    return a.bias_is_float[b] ? ((const float *)data.bias[b])[at]
                              : to_float(((const T *)data.bias[b])[at]);
}

/* Scores of a lane: rows g, g + 8, columns 2t, 2t + 1 of each eight columns (tensor_core.cuh). */
struct tile_scores {
    float at[TILE / 8][4];
};

/* s = (scale * s + biases) * LOG2_E, because the weights are computed as powers of 2. Keys beyond
 * the last get -inf. `bias_rows`: where the biases of the lane's two rows start. */
template <typename T>
__device__ static inline void
finish_scores(tile_scores &s, const cuda_attention &a, const cuda_attention_data &data,
              const int64_t (&bias_rows)[CUDA_ATTENTION_BIASES][2], int first)
{
    const int t = (int)threadIdx.x % 4;
    UNROLLED(j, TILE / 8) {
        UNROLLED(i, 4) {
            const int key = first + j * 8 + t * 2 + i % 2;
            float x = s.at[j][i] * (a.scale * LOG2_E);
            UNROLLED(b, CUDA_ATTENTION_BIASES)
                if (b < a.bias_count && key < a.keys)
                    x += LOG2_E *
                         bias_at<T>(a, data, b,
                                    bias_rows[b][i / 2] + (int64_t)key * a.bias[b].column_step);
            s.at[j][i] = key < a.keys ? x : -INFINITY;
        }
    }
}

/* Returns the maximum over the four lanes that share a row. */
__device__ static inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ static inline float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* What a lane knows of its two rows during the loop over keys. */
template <int DEPTH> struct row_state {
    float greatest[2], sum[2];
    float y[DEPTH / 8][4];
};

/* Turns the tile's scores into weights relative to the maximum so far. */
template <int DEPTH>
__device__ static inline void accumulate_tile(tile_scores &s, row_state<DEPTH> &state)
{
    UNROLLED(r, 2) {
        float greatest = state.greatest[r], sum = 0;
        UNROLLED(j, TILE / 8)
            greatest = fmaxf(greatest, fmaxf(s.at[j][r * 2], s.at[j][r * 2 + 1]));
        greatest = quad_max(greatest);
        /* If all scores are -inf, the maximum counts as 0. */
        const float base = greatest == -INFINITY ? 0.0f : greatest;
        const float shrink = exp2f(state.greatest[r] - base);
        UNROLLED(j, TILE / 8) {
            UNROLL
            for (int i = r * 2; i < r * 2 + 2; i++) {
                s.at[j][i] = exp2f(s.at[j][i] - base);
                sum += s.at[j][i];
            }
        }
        state.sum[r] = state.sum[r] * shrink + sum; /* sum of this lane's columns */
        state.greatest[r] = greatest;
        UNROLLED(d, DEPTH / 8) {
            state.y[d][r * 2] *= shrink;
            state.y[d][r * 2 + 1] *= shrink;
        }
    }
}

/* s = q k^T of the warp's 16 rows and a tile of keys. */
template <typename T, int DEPTH>
__device__ static inline void score_tile(const uint32_t (&q)[DEPTH / 16][4], const T *keys,
                                         tile_scores &s)
{
    constexpr int PITCH = DEPTH + 8;
    const int lane = (int)threadIdx.x % WARP;
    const T *own = keys + ((lane & 7) + (lane >> 4 << 3)) * PITCH + (lane >> 3 & 1) * 8;
    UNROLLED(j, TILE / 16) {
        UNROLLED(i, 4)
            s.at[j * 2][i] = s.at[j * 2 + 1][i] = 0.0f;
        UNROLLED(k, DEPTH / 16) {
            uint32_t b[4];
            load_matrices(b, own + j * 16 * PITCH + k * 16);
            multiply_add<T>(s.at[j * 2], q[k], b[0], b[1]);
            multiply_add<T>(s.at[j * 2 + 1], q[k], b[2], b[3]);
        }
    }
}

/* y += weights * v of a tile. */
template <typename T, int DEPTH>
__device__ static inline void add_values(const tile_scores &s, const T *values,
                                         row_state<DEPTH> &state)
{
    constexpr int PITCH = DEPTH + 8;
    const int lane = (int)threadIdx.x % WARP;
    const T *own = values + (lane & 15) * PITCH + (lane >> 4) * 8;
    UNROLLED(k, TILE / 16) {
        uint32_t a[4];
        UNROLLED(i, 4)
            a[i] = pack_pair(from_float<T>(s.at[k * 2 + i / 2][i % 2 * 2]),
                             from_float<T>(s.at[k * 2 + i / 2][i % 2 * 2 + 1]));
        UNROLLED(d, DEPTH / 16) {
            uint32_t b[4];
            load_matrices_transposed(b, own + k * 16 * PITCH + d * 16);
            multiply_add<T>(state.y[d * 2], a, b[0], b[1]);
            multiply_add<T>(state.y[d * 2 + 1], a, b[2], b[3]);
        }
    }
}

template <typename T, int DEPTH>
__device__ static inline void store_rows(const row_state<DEPTH> &state, const cuda_attention &a,
                                         T *y, int first)
{
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    UNROLLED(r, 2) {
        const int row = first + g + r * 8;
        const float sum = quad_sum(state.sum[r]); /* all lanes must call quad_sum() */
        const bool is_undefined = sum != sum || state.greatest[r] == -INFINITY;
        const float factor = is_undefined ? NAN : 1.0f / sum;
        if (row >= a.rows)
            continue;
        T *to = y + group_at(a.y.rows, row);
        UNROLLED(d, DEPTH / 8) {
            const int column = d * 8 + t * 2;
            if (column >= a.width)
                continue;
            float low = state.y[d][r * 2] * factor, high = state.y[d][r * 2 + 1] * factor;
            if (is_undefined && a.nan_is_zero)
                low = high = 0.0f;
            *(uint32_t *)(to + column) = pack_pair(from_float<T>(low), from_float<T>(high));
        }
    }
}

/* blockIdx.x is the index of the matrix times `tiles`, plus the index of its tile of rows. */
template <typename T, int DEPTH>
__global__ void __launch_bounds__(BLOCK)
    attention_kernel(cuda_attention_data data, cuda_attention a, int tiles)
{
    constexpr int PITCH = DEPTH + 8, SIDE = TILE * PITCH;
    SHARED_MEMORY(memory);
    T *queries = (T *)memory, *slots = queries + SIDE; /* a slot: keys, values */
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int batch = (int)blockIdx.x / tiles, first = (int)blockIdx.x % tiles * TILE;
    const T *k = (const T *)data.k + matrix_at(a.k, batch);
    const T *v = (const T *)data.v + matrix_at(a.v, batch);
    copy_rows<T, DEPTH>(queries, (const T *)data.q + matrix_at(a.q, batch), a.q.rows, first, a.rows,
                        a.depth);
    copy_rows<T, DEPTH>(slots, k, a.k.rows, 0, a.keys, a.depth);
    copy_rows<T, DEPTH>(slots + SIDE, v, a.v.rows, 0, a.keys, a.width);
    copies_commit();
    int64_t bias_rows[CUDA_ATTENTION_BIASES][2] = {};
    UNROLLED(b, CUDA_ATTENTION_BIASES)
        UNROLLED(r, 2) {
            const int row = first + warp * 16 + lane / 4 + r * 8;
            if (b < a.bias_count)
                bias_rows[b][r] = matrix_at(a.bias[b], batch) +
                                  group_at(a.bias[b].rows, row < a.rows ? row : a.rows - 1);
        }
    row_state<DEPTH> state = {};
    state.greatest[0] = state.greatest[1] = -INFINITY;
    uint32_t q[DEPTH / 16][4];
    for (int key = 0, slot = 0; key < a.keys; key += TILE, slot ^= 1) {
        copies_wait<0>();
        __syncthreads(); /* all threads see this slot, and have read the other slot */
        if (key == 0) {
            UNROLLED(i, DEPTH / 16)
                load_matrices(q[i],
                              queries + (warp * 16 + lane % 16) * PITCH + i * 16 + lane / 16 * 8);
        }
        if (key + TILE < a.keys) {
            T *next = slots + (slot ^ 1) * 2 * SIDE;
            copy_rows<T, DEPTH>(next, k, a.k.rows, key + TILE, a.keys, a.depth);
            copy_rows<T, DEPTH>(next + SIDE, v, a.v.rows, key + TILE, a.keys, a.width);
        }
        copies_commit();
        const T *own = slots + slot * 2 * SIDE;
        tile_scores s;
        score_tile<T, DEPTH>(q, own, s);
        finish_scores<T>(s, a, data, bias_rows, key);
        accumulate_tile(s, state);
        add_values<T, DEPTH>(s, own + SIDE, state);
    }
    copies_wait<0>();
    store_rows<T, DEPTH>(state, a, (T *)data.y + matrix_at(a.y, batch), first + warp * 16);
}

template <typename T, int DEPTH>
void attention_launch(cudaStream_t stream, const struct cuda_attention_data *data,
                      const struct cuda_attention *a)
{
    const int tiles = (a->rows + TILE - 1) / TILE;
    constexpr int SHARED = 5 * TILE * (DEPTH + 8) * 2;
    prefer_shared(attention_kernel<T, DEPTH>);
    LAUNCH_SHARED((attention_kernel<T, DEPTH>), (unsigned)(tiles * a->batch), BLOCK, SHARED, stream,
                  *data, *a, tiles);
}

int padded_depth(const struct cuda_attention *a)
{
    static const int depths[] = {32, 64, 80, 96, 128};
    const int wanted = a->depth > a->width ? a->depth : a->width;
    for (int depth : depths)
        if (wanted <= depth)
            return depth;
    return 0;
}

template <typename T>
void attention_tensor(cudaStream_t stream, const struct cuda_attention_data *data,
                      const struct cuda_attention *a)
{
    const int depth = padded_depth(a);
    const auto launch = depth == 32   ? attention_launch<T, 32>
                        : depth == 64 ? attention_launch<T, 64>
                        : depth == 80 ? attention_launch<T, 80>
                        : depth == 96 ? attention_launch<T, 96>
                                      : attention_launch<T, 128>;
    launch(stream, data, a);
}

/* ---- one block per row ---- */

template <typename T>
__global__ void attention_row_kernel(cuda_attention_data data, cuda_attention a)
{
    SHARED_MEMORY(memory);
    float *scores = (float *)memory, *partial = scores + a.keys;
    const int batch = (int)blockIdx.x / a.rows, row = (int)blockIdx.x % a.rows;
    const T *q = (const T *)data.q + matrix_at(a.q, batch) + group_at(a.q.rows, row);
    const T *k = (const T *)data.k + matrix_at(a.k, batch);
    const T *v = (const T *)data.v + matrix_at(a.v, batch);
    T *y = (T *)data.y + matrix_at(a.y, batch) + group_at(a.y.rows, row);
    float greatest = -INFINITY, sum = 0;
    for (int key = (int)threadIdx.x; key < a.keys; key += BLOCK) {
        const T *at = k + group_at(a.k.rows, key);
        float x = 0;
        for (int d = 0; d < a.depth; d++)
            x += to_float(q[(int64_t)d * a.q.column_step]) *
                 to_float(at[(int64_t)d * a.k.column_step]);
        x *= a.scale;
        for (int b = 0; b < a.bias_count; b++)
            x += bias_at<T>(a, data, b,
                            matrix_at(a.bias[b], batch) + group_at(a.bias[b].rows, row) +
                                (int64_t)key * a.bias[b].column_step);
        scores[key] = x;
        greatest = fmaxf(greatest, x);
    }
    greatest = block_join<BLOCK>(greatest, partial, [](float a, float b) { return fmaxf(a, b); });
    for (int key = (int)threadIdx.x; key < a.keys; key += BLOCK) {
        scores[key] = exp_of(scores[key] - greatest); /* NaN if all scores are -inf */
        sum += scores[key];
    }
    /* The barriers in block_join() also make all scores visible to all threads. */
    sum = block_join<BLOCK>(sum, partial, [](float a, float b) { return a + b; });
    for (int d = (int)threadIdx.x; d < a.width; d += BLOCK) {
        float x = 0;
        for (int key = 0; key < a.keys; key++)
            x += scores[key] * to_float(v[group_at(a.v.rows, key) + (int64_t)d * a.v.column_step]);
        y[(int64_t)d * a.y.column_step] =
            from_float<T>(a.nan_is_zero && sum != sum ? 0.0f : x / sum);
    }
}

bool in_eights(const struct cuda_group *group)
{
    for (int p = 0; p < group->count; p++)
        if (group->stride[p] % 8)
            return false;
    return true;
}

bool is_in_pieces(const struct cuda_matrices *m)
{
    return m->column_step == 1 && m->offset % 8 == 0 && in_eights(&m->batch) && in_eights(&m->rows);
}
} // namespace

int cuda_attention_takes(const struct cuda_attention *a, int on_tensor_cores, size_t shared_limit)
{
    if (!on_tensor_cores)
        return (size_t)(a->keys + BLOCK / WARP) * sizeof(float) <= shared_limit &&
               (int64_t)a->batch * a->rows <= INT32_MAX;
    return a->depth % 8 == 0 && a->width % 8 == 0 && padded_depth(a) != 0 &&
           5 * TILE * ((size_t)padded_depth(a) + 8) * 2 <= shared_limit && is_in_pieces(&a->q) &&
           is_in_pieces(&a->k) && is_in_pieces(&a->v) && is_in_pieces(&a->y) &&
           (int64_t)a->batch * ((a->rows + TILE - 1) / TILE) <= INT32_MAX;
}

void cuda_attend(cudaStream_t stream, int dtype, int on_tensor_cores,
                 const struct cuda_attention_data *data, const struct cuda_attention *a)
{
    const int shared = (a->keys + BLOCK / WARP) * (int)sizeof(float);
    if (!on_tensor_cores)
        WITH_TYPE(dtype, LAUNCH_SHARED(attention_row_kernel<T>, (unsigned)(a->batch * a->rows),
                                       BLOCK, shared, stream, *data, *a));
    else if (dtype == DTYPE_BF16)
        attention_tensor<__nv_bfloat16>(stream, data, a);
    else
        attention_tensor<__half>(stream, data, a);
}
