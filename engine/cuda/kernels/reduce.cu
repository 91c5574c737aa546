/* Kernels along axes of a tensor: reductions, ArgMax, ArgMin, softmax, TopK. A line is the elements
 * along the axes. A block handles a line in TopK. Otherwise long contiguous lines, and long lines
 * of a reduction to few results, get a block; in softmax lines up to LONGEST_OF_WARP get a warp. */
#include "engine/cuda/kernels/any.cuh"

namespace
{
enum { LONG_LINE = 64, LONGEST_OF_WARP = 1024 };

/* A loop over the lines of a kernel. GROUP threads (1, a warp or a block) share a line; GROUP is
 * the kernel's template parameter. */
#define FOR_LINES(i, count)                                                                        \
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) / GROUP; i < (count);             \
         i += (size_t)gridDim.x * (THREADS / GROUP))

#define LAUNCH_LINES(group, kernel, lines, stream, ...)                                            \
    do {                                                                                           \
        if ((group) == 1) {                                                                        \
            constexpr int GROUP = 1;                                                               \
            LAUNCH(kernel, blocks_for(lines), THREADS, stream, __VA_ARGS__);                       \
        } else {                                                                                   \
            constexpr int GROUP = THREADS;                                                         \
            LAUNCH_BLOCK(kernel, blocks_of(lines, 1), THREADS, stream, __VA_ARGS__);               \
        }                                                                                          \
    } while (0)

/* One thread's part of a line: elements base + k * step for k = first, first + stride, … */
struct axis_line {
    size_t base, step, first, stride, extent;
};

template <int GROUP> __device__ inline axis_line line_of(const cuda_axis &axis, size_t i)
{
    return {i / axis.inner * axis.extent * axis.inner + i % axis.inner, axis.inner,
            threadIdx.x % GROUP, GROUP, axis.extent};
}

/* ---- reductions ---- */

template <typename C> __device__ inline C greatest_of()
{
    if constexpr (is_whole<C>)
        return INT64_MAX;
    else
        return INFINITY;
}

template <typename C> __device__ inline C start_of(enum op fold)
{
    switch (fold) {
        CASE(OP_REDUCE_MAX, is_whole<C> ? (C)INT64_MIN : -greatest_of<C>());
        CASE(OP_REDUCE_MIN, greatest_of<C>());
    default:
        return (C)0;
    }
}

template <typename C> __device__ inline C wrapping_product(C a, C b)
{
    if constexpr (is_whole<C>)
        return (C)((uint64_t)a * (uint64_t)b);
    else
        return a * b;
}

template <typename C> __device__ inline C fold_join(enum op fold, C a, C b)
{
    switch (fold) {
        CASE(OP_REDUCE_MAX, greater_of(a, b));
        CASE(OP_REDUCE_MIN, less_of(a, b));
    default:
        return wrapping_sum(a, b);
    }
}

template <typename C> __device__ inline C mapped(enum op fold, C x)
{
    switch (fold) {
        CASE(OP_REDUCE_L1, x < 0 ? wrapping_product(x, (C)-1) : x);
    case OP_REDUCE_L2:
    case OP_REDUCE_SUM_SQUARE:
        return wrapping_product(x, x);
    default:
        return x;
    }
}

template <typename C> __device__ inline C finished(enum op fold, C x, size_t each)
{
    switch (fold) {
        CASE(OP_REDUCE_MEAN, (C)((double)x / (double)each));
        CASE(OP_REDUCE_L2, (C)sqrt((double)x));
    default:
        return x;
    }
}

template <int GROUP, typename C> __device__ inline C fold_line(C value, enum op fold, C *shared)
{
    return group_join<GROUP>(value, shared, [=](C a, C b) { return fold_join(fold, a, b); });
}

template <typename C, int GROUP>
__global__ void fold_kernel(const void *x, void *y, cuda_reduce_axes r)
{
    __shared__ C shared[WARPS];
    FOR_LINES(o, r.count) {
        const int64_t base = strided_at(o, r.kept.rank, r.kept.dims, r.kept.steps[0]);
        C value = start_of<C>(r.fold);
        for (size_t i = threadIdx.x % GROUP; i < r.each; i += GROUP) {
            const int64_t at =
                base + strided_at(i, r.reduced.rank, r.reduced.dims, r.reduced.steps[0]);
            value = fold_join(r.fold, value, mapped(r.fold, load_any<C>(x, r.dtype, at)));
        }
        value = fold_line<GROUP>(value, r.fold, shared);
        if (threadIdx.x % GROUP == 0)
            store_any(y, r.dtype, o, finished(r.fold, value, r.each));
    }
}
} // namespace

void cuda_fold_axes(cudaStream_t stream, const void *x, void *y, const struct cuda_reduce_axes *r)
{
    const bool is_dense = r->reduced.rank == 0 || r->reduced.steps[0][r->reduced.rank - 1] == 1;
    const bool is_wide = r->each > LONG_LINE && (is_dense || r->count < 8192);
    WITH_DOMAIN(r->domain, LAUNCH_LINES(is_wide ? THREADS : 1, (fold_kernel<C, GROUP>), r->count,
                                        stream, x, y, *r));
}

/* ---- ArgMax, ArgMin ---- */

namespace
{
/* Returns true if candidate b, at a later place, is better than a. */
template <typename C> __device__ inline bool is_better(C a, C b, int is_least, int is_last)
{
    if (a != a || b != b)
        return b != b && (a == a || is_last);
    if (a == b)
        return is_last;
    return is_least ? b < a : b > a;
}

template <typename C> struct extreme {
    C value;
    int64_t index; /* -1: none */
};

/* The index decides between equal values, because a thread may handle every THREADS-th element. */
template <typename C, int GROUP>
__global__ void extreme_kernel(const void *x, int64_t *y, cuda_axis axis, int is_least, int is_last,
                               size_t count)
{
    __shared__ extreme<C> shared[WARPS];
    const auto winner = [=](const extreme<C> &a, const extreme<C> &b) {
        if (a.index < 0 || b.index < 0)
            return a.index < 0 ? b : a;
        const extreme<C> &first = a.index < b.index ? a : b, &later = a.index < b.index ? b : a;
        return is_better(first.value, later.value, is_least, is_last) ? later : first;
    };
    FOR_LINES(i, count) {
        const axis_line l = line_of<GROUP>(axis, i);
        extreme<C> best = {0, -1};
        for (size_t k = l.first; k < l.extent; k += l.stride)
            best = winner(best,
                          {load_any<C>(x, axis.dtype, (int64_t)(l.base + k * l.step)), (int64_t)k});
        best = group_join<GROUP>(best, shared, winner);
        if (threadIdx.x % GROUP == 0)
            y[i] = best.index;
    }
}
} // namespace

void cuda_find_extreme(cudaStream_t stream, const void *x, int64_t *y, const struct cuda_axis *axis,
                       int is_least, int is_last)
{
    const size_t count = axis->outer * axis->inner;
    const bool is_wide = axis->inner == 1 && axis->extent > LONG_LINE;
    WITH_DOMAIN(axis->domain, LAUNCH_LINES(is_wide ? THREADS : 1, (extreme_kernel<C, GROUP>), count,
                                           stream, x, y, *axis, is_least, is_last, count));
}

/* ---- softmax along any axis ---- */

namespace
{
template <typename T, int GROUP>
__global__ void softmax_kernel(const T *x, T *y, cuda_axis axis, int is_log, size_t count)
{
    __shared__ float shared[WARPS];
    FOR_LINES(i, count) {
        const axis_line l = line_of<GROUP>(axis, i);
        float greatest = -INFINITY, sum = 0.0f;
        for (size_t k = l.first; k < l.extent; k += l.stride)
            greatest = greater_of(greatest, to_float(x[l.base + k * l.step]));
        greatest = fold_line<GROUP>(greatest, OP_REDUCE_MAX, shared);
        for (size_t k = l.first; k < l.extent; k += l.stride)
            sum += exp_of(to_float(x[l.base + k * l.step]) - greatest);
        sum = fold_line<GROUP>(sum, OP_REDUCE_SUM, shared);
        const float shift = is_log ? greatest + logf(sum) : 0.0f;
        for (size_t k = l.first; k < l.extent; k += l.stride) {
            const size_t at = l.base + k * l.step;
            const float v = to_float(x[at]);
            y[at] = from_float<T>(is_log ? v - shift : exp_of(v - greatest) / sum);
        }
    }
}
} // namespace

void cuda_softmax_axis(cudaStream_t stream, const void *x, void *y, const struct cuda_axis *axis,
                       int is_log)
{
    const size_t count = axis->outer * axis->inner;
    const bool is_wide = axis->inner == 1 && axis->extent > LONG_LINE;
    if (is_wide && axis->extent <= LONGEST_OF_WARP)
        WITH_TYPE(axis->dtype,
                  LAUNCH_BLOCK((softmax_kernel<T, WARP>), blocks_of(count, WARPS), THREADS, stream,
                               (const T *)x, (T *)y, *axis, is_log, count));
    else
        WITH_TYPE(axis->dtype,
                  LAUNCH_LINES(is_wide ? THREADS : 1, (softmax_kernel<T, GROUP>), count, stream,
                               (const T *)x, (T *)y, *axis, is_log, count));
}

/* ---- TopK ----
 *
 * Elements become 64-bit keys in the same order. A block finds the k-th greatest key of its line
 * digit by digit, from counts of each digit's values. Every thread then writes the chosen keys of
 * its part of the line, after the keys of earlier threads. Finally, the place of a chosen key in
 * the result is the number of chosen keys that come before it. */

namespace
{
enum { DIGITS = 256, DIGIT_BITS = 8 };

struct chosen {
    uint64_t key;
    int64_t index;
};

__device__ inline uint64_t key_of(const void *x, int dtype, enum cuda_domain domain, int64_t at,
                                  int is_least)
{
    uint64_t key;
    if (domain == CUDA_IN_WHOLE) {
        key = (uint64_t)load_any<int64_t>(x, dtype, at) ^ (uint64_t)1 << 63;
    } else {
        const double value = load_any<double>(x, dtype, at) + 0.0; /* -0 becomes 0 */
        memcpy(&key, &value, sizeof key);
        key = value != value ? ~(uint64_t)0 : key >> 63 ? ~key : key | (uint64_t)1 << 63;
    }
    return is_least ? ~key : key;
}

__global__ void top_k_kernel(const void *x, unsigned char *values, int64_t *indices, cuda_axis axis,
                             size_t k, int is_least, chosen *workspace, size_t lines)
{
    __shared__ unsigned counts[DIGITS];
    __shared__ size_t greater[THREADS], equal[THREADS];
    __shared__ uint64_t found;    /* the k-th key, as far as its digits are known */
    __shared__ size_t still_open; /* number of chosen keys that begin with found's digits */
    const unsigned self = threadIdx.x;
    const size_t part = (axis.extent + THREADS - 1) / THREADS;
    const size_t first = self * part < axis.extent ? self * part : axis.extent;
    const size_t last = first + part < axis.extent ? first + part : axis.extent;
    chosen *mine = workspace + blockIdx.x * k;
    for (size_t l = blockIdx.x; l < lines; l += gridDim.x) {
        const int64_t base = (int64_t)(l / axis.inner * axis.extent * axis.inner + l % axis.inner);
        if (self == 0) {
            found = 0;
            still_open = k;
        }
        for (int shift = 64 - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
            counts[self] = 0;
            __syncthreads();
            for (size_t i = self; i < axis.extent; i += THREADS) {
                const uint64_t key =
                    key_of(x, axis.dtype, axis.domain, base + (int64_t)(i * axis.inner), is_least);
                if (shift == 64 - DIGIT_BITS ||
                    key >> (shift + DIGIT_BITS) == found >> (shift + DIGIT_BITS))
                    atomicAdd(&counts[key >> shift & (DIGITS - 1)], 1u);
            }
            __syncthreads();
            if (self == 0) {
                int digit = DIGITS - 1;
                while (digit > 0 && counts[digit] < still_open)
                    still_open -= counts[digit--];
                found |= (uint64_t)digit << shift;
            }
            __syncthreads();
        }
        size_t above = 0, same = 0;
        for (size_t i = first; i < last; i++) {
            const uint64_t key =
                key_of(x, axis.dtype, axis.domain, base + (int64_t)(i * axis.inner), is_least);
            above += key > found;
            same += key == found;
        }
        greater[self] = above;
        equal[self] = same;
        __syncthreads();
        size_t to = 0, before = 0; /* sums over all preceding threads */
        for (unsigned t = 0; t < self; t++) {
            to += greater[t];
            before += equal[t];
        }
        to += before < still_open ? before : still_open;
        for (size_t i = first; i < last; i++) {
            const uint64_t key =
                key_of(x, axis.dtype, axis.domain, base + (int64_t)(i * axis.inner), is_least);
            if (key > found || (key == found && before < still_open))
                mine[to++] = {key, (int64_t)i};
            before += key == found;
        }
        __syncthreads();
        for (size_t i = self; i < k; i += THREADS) {
            size_t place = 0;
            for (size_t j = 0; j < k; j++)
                place += mine[j].key > mine[i].key || (mine[j].key == mine[i].key && j < i);
            const size_t at = (l / axis.inner * k + place) * axis.inner + l % axis.inner;
            if (indices)
                indices[at] = mine[i].index;
            const int64_t from = (base + mine[i].index * (int64_t)axis.inner) * axis.size;
            for (int b = 0; values && b < axis.size; b++)
                values[at * (size_t)axis.size + b] = ((const unsigned char *)x)[from + b];
        }
        __syncthreads();
    }
}

unsigned top_k_blocks(const struct cuda_axis *axis)
{
    const size_t lines = axis->outer * axis->inner;
    return (unsigned)(lines < 1024 ? lines : 1024);
}
} // namespace

size_t cuda_top_k_workspace(const struct cuda_axis *axis, size_t k)
{
    return top_k_blocks(axis) * k * sizeof(chosen);
}

void cuda_top_k(cudaStream_t stream, const void *x, void *values, int64_t *indices,
                const struct cuda_axis *axis, size_t k, int is_least, void *workspace)
{
    LAUNCH_BLOCK(top_k_kernel, top_k_blocks(axis), THREADS, stream, x, (unsigned char *)values,
                 indices, *axis, k, is_least, (chosen *)workspace, axis->outer * axis->inner);
}
