/* Epilogues and copies; most threads handle several elements. */
#include "engine/cuda/kernels/device.cuh"

template <typename T, int EACH>
__global__ void epilogue_kernel(T *y, size_t columns, size_t pitch, size_t count, cuda_epilogue e)
{
    FOR_EACH(i, count) {
        const size_t row = i * EACH / columns, column = i * EACH - row * columns;
        float v[EACH];
        load_all(v, y + row * pitch + column);
        finish_all<T>(y, row * pitch + column, (int)column, v, e);
    }
}

void cuda_apply_epilogue(cudaStream_t stream, void *y, size_t rows, size_t columns, size_t pitch,
                         const struct cuda_epilogue *epilogue)
{
    size_t count = rows * columns;
    WITH_EACH(columns % 8 == 0 && pitch % 8 == 0,
              WITH_TYPE(epilogue->y_dtype,
                        LAUNCH((epilogue_kernel<T, EACH>), blocks_for(count / EACH), THREADS,
                               stream, (T *)y, columns, pitch, count / EACH, *epilogue)));
}

template <typename T>
__global__ void copy_strided_kernel(const T *x, T *y, cuda_access_map map, size_t count)
{
    FOR_EACH(i, count) {
        int64_t at[1];
        map_at(map, i, at);
        y[i] = x[at[0]];
    }
}

enum { TILE = 32, TILE_ROWS = 8 };

/* Copies where x is contiguous along the last dimension but one. A block moves a tile of the last
 * two dimensions through shared memory, so that reads and writes are both coalesced. blockIdx.z
 * counts through the other dimensions. */
template <typename T> __global__ void transpose_kernel(const T *x, T *y, cuda_access_map map)
{
    __shared__ T tile[TILE][TILE + 1];
    const int last = map.rank - 1, lane = (int)threadIdx.x;
    const int64_t rows = map.dims[last], columns = map.dims[last - 1];
    const int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;
    x += map.offset + strided_at((size_t)blockIdx.z, last - 1, map.dims, map.steps[0]);
    y += (int64_t)blockIdx.z * rows * columns;
    for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS)
        if (row + k < rows && column + lane < columns)
            tile[k][lane] = x[(row + k) * map.steps[0][last] + column + lane];
    __syncthreads();
    for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS)
        if (row + lane < rows && column + k < columns)
            y[(column + k) * rows + row + lane] = tile[lane][k];
}

/* Tiles of few rows or columns would leave most threads idle. */
static bool is_for_tiles(const struct cuda_access_map *map)
{
    const int last = map->rank - 1;
    return last > 0 && map->steps[0][last - 1] == 1 && map->dims[last] >= TILE_ROWS &&
           map->dims[last - 1] >= TILE_ROWS && map->dims[last] <= (int64_t)GRID_MOST * TILE &&
           element_count(last - 1, map->dims) <= (size_t)GRID_MOST;
}

template <typename T>
static void copy_sized(cudaStream_t stream, const void *x, void *y,
                       const struct cuda_access_map *map)
{
    const size_t count = element_count(map->rank, map->dims);
    const int last = map->rank - 1;
    if (is_for_tiles(map))
        LAUNCH_BLOCK(transpose_kernel<T>,
                     dim3((unsigned)((map->dims[last - 1] + TILE - 1) / TILE),
                          (unsigned)((map->dims[last] + TILE - 1) / TILE),
                          (unsigned)element_count(last - 1, map->dims)),
                     dim3(TILE, TILE_ROWS), stream, (const T *)x, (T *)y, *map);
    else
        LAUNCH(copy_strided_kernel<T>, blocks_for(count), THREADS, stream, (const T *)x, (T *)y,
               *map, count);
}

/* Merges pairs of neighbours that are also neighbours in y into one element, repeatedly, up to 16
 * bytes. */
static int widen(int size, struct cuda_access_map *map)
{
    const int last = map->rank - 1;
    while (size < 16 && last >= 0 && map->steps[0][last] == 1 && map->dims[last] % 2 == 0 &&
           map->offset % 2 == 0) {
        for (int d = 0; d < last; d++)
            if (map->steps[0][d] % 2)
                return size;
        for (int d = 0; d < last; d++)
            map->steps[0][d] /= 2;
        map->dims[last] /= 2;
        map->offset /= 2;
        size *= 2;
    }
    return size;
}

void cuda_copy_strided(cudaStream_t stream, int size, const void *x, void *y,
                       const struct cuda_access_map *narrow)
{
    struct cuda_access_map wide = *narrow;
    const struct cuda_access_map *map = &wide;
    size = widen(size, &wide);
    if (size == 16)
        copy_sized<bytes_of<16>>(stream, x, y, map);
    else
        WITH_SIZE(size, copy_sized<T>(stream, x, y, map));
}

/* ---- Concat and Split ---- */

/* blockIdx.y is the index of the part. EACH must divide all sizes in bytes and all addresses. */
template <int EACH> __global__ void parts_kernel(unsigned char *whole, cuda_parts p)
{
    const unsigned which = blockIdx.y;
    const size_t across = p.parts[which].width / EACH;
    const unsigned char *table = (const unsigned char *)p.parts[which].table;
    FOR_EACH(i, p.rows * across) {
        const size_t row = i / across, column = (i - row * across) * EACH;
        unsigned char *own = (unsigned char *)p.parts[which].data + i * EACH;
        unsigned char *inside = whole + row * p.pitch + p.parts[which].offset + column;
        unsigned char bytes[EACH];
        load_same(bytes, p.is_split ? inside : own);
        if (table) {
            UNROLLED(k, EACH)
                bytes[k] = table[bytes[k]];
        }
        store_same(p.is_split ? own : inside, bytes);
    }
}

/* Returns the OR of all sizes and addresses. A power of two that divides the OR divides them all.
 */
static size_t parts_sizes(const void *whole, const struct cuda_parts *p, size_t *ret_widest)
{
    size_t all = p->pitch | (size_t)whole, widest = 0;
    for (int i = 0; i < p->count; i++) {
        all |= p->parts[i].width | p->parts[i].offset | (size_t)p->parts[i].data;
        widest = p->parts[i].width > widest ? p->parts[i].width : widest;
    }
    *ret_widest = widest;
    return all;
}

void cuda_copy_parts(cudaStream_t stream, void *whole, const struct cuda_parts *p)
{
    size_t widest;
    const size_t all = parts_sizes(whole, p, &widest);
    const size_t each = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
    const auto kernel = each == 16  ? parts_kernel<16>
                        : each == 4 ? parts_kernel<4>
                        : each == 2 ? parts_kernel<2>
                                    : parts_kernel<1>;
    const dim3 grid(blocks_for(p->rows * widest / each), (unsigned)p->count);
    LAUNCH(kernel, grid, THREADS, stream, (unsigned char *)whole, *p);
}

template <typename T, int EACH>
__global__ void scale_parts_kernel(const float *scale, T *y, cuda_parts p, cuda_epilogue e)
{
    const unsigned which = blockIdx.y;
    const size_t across = p.parts[which].width / (EACH * sizeof(T));
    const size_t first = p.parts[which].offset / sizeof(T), pitch = p.pitch / sizeof(T);
    FOR_EACH(i, p.rows * across) {
        const size_t row = i / across, column = first + (i - row * across) * EACH;
        float v[EACH], factor[EACH], more[EACH];
        load_all(v, (const T *)p.parts[which].data + i * EACH);
        load_all(factor, scale + column);
        load_all(more, e.bias + column);
        UNROLLED(k, EACH)
            v[k] = v[k] * factor[k] + more[k];
        activate_all(v, e.activation, e.alpha, e.beta);
        store_all(y + row * pitch + column, v);
    }
}

void cuda_scale_parts(cudaStream_t stream, const float *scale, void *y, const struct cuda_parts *p,
                      const struct cuda_epilogue *epilogue)
{
    size_t widest;
    const size_t all = parts_sizes(y, p, &widest), size = epilogue->y_dtype == DTYPE_F32 ? 4 : 2;
    WITH_EACH(all % (8 * size) == 0,
              WITH_TYPE(epilogue->y_dtype,
                        LAUNCH((scale_parts_kernel<T, EACH>),
                               dim3(blocks_for(p->rows * widest / size / EACH), (unsigned)p->count),
                               THREADS, stream, scale, (T *)y, *p, *epilogue)));
}
