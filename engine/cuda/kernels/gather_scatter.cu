/* One thread, some elements that are picked: padding, gathers, scatters. */
#include "engine/cuda/kernels/device.cuh"
#include "engine/cuda/kernels/kernels_gather_scatter.h"

namespace
{
/* Where position p, outside of m elements, comes from. */
__device__ inline int64_t brought_back(int64_t p, int64_t m, int mode)
{
    if (mode == CUDA_PAD_EDGE)
        return p < 0 ? 0 : m - 1;
    const int64_t period = mode == CUDA_PAD_WRAP ? m : m > 1 ? 2 * (m - 1) : 1;
    p %= period;
    if (p < 0)
        p += period;
    return p < m ? p : period - p;
}

template <typename T>
__global__ void pad_kernel(const T *x, T *y, cuda_pad pad, T fill, size_t count)
{
    FOR_EACH(i, count)
    {
        int64_t from = 0;
        bool is_inside = true;
        for_each_index(i, pad.rank, pad.out, [&](int d, size_t index) {
            int64_t p = (int64_t)index - pad.before[d];
            if (p < 0 || p >= pad.kept[d]) {
                if (pad.mode == CUDA_PAD_CONSTANT)
                    is_inside = false;
                else
                    p = brought_back(p, pad.kept[d], (int)pad.mode);
            }
            from += (pad.first[d] + p) * pad.steps[d];
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

/* Indices are known to be in range (bounds.c). One that is not all the same is clamped, so that it
 * stays inside its own tensor. */
__device__ inline int64_t brought_within(int64_t index, int64_t extent)
{
    if (index < 0)
        index += extent;
    return index < 0 ? 0 : index < extent ? index : extent - 1;
}

__device__ inline size_t slice_of(const void *indices, const cuda_tuples &t, size_t tuple)
{
    int64_t at = (int64_t)(tuple / t.per_batch) * t.batch_step;
    for (int k = 0; k < t.depth; k++) {
        const int64_t index =
            index_at(indices, t.index_bytes, tuple % t.listed * (size_t)t.depth + k);
        at += brought_within(index, t.extent[k]) * t.step[k];
    }
    return (size_t)at;
}

template <typename T, bool SCATTERS>
__global__ void tuples_kernel(const T *from, const void *indices, T *to, cuda_tuples t,
                              size_t count)
{
    FOR_EACH(i, count)
    {
        const size_t at = slice_of(indices, t, i / t.slice) + i % t.slice;
        if constexpr (SCATTERS)
            to[at] = from[i];
        else
            to[i] = from[at];
    }
}

template <typename T, bool SCATTERS>
__global__ void along_kernel(const T *from, const void *indices, int index_bytes, T *to,
                             cuda_access_map map, int64_t extent, int64_t axis_step, size_t count)
{
    FOR_EACH(i, count)
    {
        const int64_t index = index_at(indices, index_bytes, i);
        int64_t at[1];
        map_at(map, i, at);
        at[0] += brought_within(index, extent) * axis_step;
        if constexpr (SCATTERS)
            to[at[0]] = from[i];
        else
            to[i] = from[at[0]];
    }
}

template <bool SCATTERS>
void run_tuples(cudaStream_t stream, int size, const void *from, const void *indices, void *to,
                const struct cuda_tuples *t)
{
    const size_t count = t->count * t->slice;
    WITH_SIZE(size, LAUNCH((tuples_kernel<T, SCATTERS>), blocks_for(count), THREADS, stream,
                           (const T *)from, indices, (T *)to, *t, count));
}

template <bool SCATTERS>
void run_along(cudaStream_t stream, int size, const void *from, const void *indices,
               int index_bytes, void *to, const struct cuda_access_map *map, int64_t extent,
               int64_t axis_step)
{
    const size_t count = element_count(map->rank, map->dims);
    WITH_SIZE(size, LAUNCH((along_kernel<T, SCATTERS>), blocks_for(count), THREADS, stream,
                           (const T *)from, indices, index_bytes, (T *)to, *map, extent, axis_step,
                           count));
}
} // namespace

void cuda_pad_any(cudaStream_t stream, int size, const void *x, void *y, const struct cuda_pad *pad)
{
    const size_t count = element_count(pad->rank, pad->out);
    WITH_SIZE(size, run_pad<T>(stream, x, y, pad, count));
}

void cuda_gather_tuples(cudaStream_t stream, int size, const void *x, const void *indices, void *y,
                        const struct cuda_tuples *tuples)
{
    run_tuples<false>(stream, size, x, indices, y, tuples);
}

void cuda_scatter_tuples(cudaStream_t stream, int size, const void *updates, const void *indices,
                         void *y, const struct cuda_tuples *tuples)
{
    run_tuples<true>(stream, size, updates, indices, y, tuples);
}

void cuda_gather_along(cudaStream_t stream, int size, const void *x, const void *indices,
                       int index_bytes, void *y, const struct cuda_access_map *map, int64_t extent,
                       int64_t axis_step)
{
    run_along<false>(stream, size, x, indices, index_bytes, y, map, extent, axis_step);
}

void cuda_scatter_along(cudaStream_t stream, int size, const void *updates, const void *indices,
                        int index_bytes, void *y, const struct cuda_access_map *map, int64_t extent,
                        int64_t axis_step)
{
    run_along<true>(stream, size, updates, indices, index_bytes, y, map, extent, axis_step);
}
