/* Padding, gathers and scatters. */
#include "engine/cuda/kernels/device.cuh"

namespace
{
template <typename T>
__global__ void pad_kernel(const T *x, T *y, cuda_pad pad, T fill, size_t count)
{
    FOR_EACH(i, count) {
        int64_t from = 0;
        bool is_inside = true;
        for_each_index(i, pad.rank, pad.out, [&](int d, size_t index) {
            const int64_t p = (int64_t)index - pad.begin[d];
            is_inside = is_inside && p >= 0 && p < pad.in[d];
            from += p * pad.steps[d];
        });
        y[i] = is_inside ? x[from] : fill;
    }
}

template <typename T>
void run_pad(cudaStream_t stream, const void *x, void *y, const struct cuda_pad *pad, size_t count)
{
    T fill;
    memcpy(&fill, &pad->fill, sizeof fill);
    LAUNCH(pad_kernel<T>, blocks_for(count), THREADS, stream, (const T *)x, (T *)y, *pad, fill,
           count);
}

__device__ inline int64_t index_at(const void *indices, int bytes, size_t i)
{
    return bytes == 8 ? ((const int64_t *)indices)[i] : (int64_t)((const int32_t *)indices)[i];
}

/* Counts a negative index from the end. Clamps only as a safeguard: bounds.c proves the range. */
__device__ inline int64_t brought_within(int64_t index, int64_t extent)
{
    if (index < 0)
        index += extent;
    return index < 0 ? 0 : index < extent ? index : extent - 1;
}

template <typename T>
__global__ void tuples_kernel(const T *from, const void *indices, T *to, cuda_tuples t,
                              int scatters, size_t count)
{
    FOR_EACH(i, count) {
        const size_t tuple = i / t.slice, first = tuple % t.listed * (size_t)t.depth;
        int64_t at[1];
        map_at(t.map, tuple, at);
        for (int k = 0; k < t.depth; k++)
            at[0] += brought_within(index_at(indices, t.index_bytes, first + k), t.extent[k]) *
                     t.step[k];
        const size_t place = (size_t)at[0] + i % t.slice;
        to[scatters ? place : i] = from[scatters ? i : place];
    }
}
} // namespace

void cuda_pad_any(cudaStream_t stream, int size, const void *x, void *y, const struct cuda_pad *pad)
{
    const size_t count = element_count(pad->rank, pad->out);
    WITH_SIZE(size, run_pad<T>(stream, x, y, pad, count));
}

void cuda_index_tuples(cudaStream_t stream, int size, int scatters, const void *from,
                       const void *indices, void *to, const struct cuda_tuples *t)
{
    const size_t count = element_count(t->map.rank, t->map.dims) * t->slice;
    WITH_SIZE(size, LAUNCH(tuples_kernel<T>, blocks_for(count), THREADS, stream, (const T *)from,
                           indices, (T *)to, *t, scatters, count));
}
