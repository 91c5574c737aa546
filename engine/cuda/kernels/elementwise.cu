/* Epilogues and copies; most threads handle several elements. */
#include "engine/cuda/kernels/device.cuh"

template <typename T, int EACH>
__global__ void epilogue_kernel(T *y, size_t columns, size_t pitch, size_t count, cuda_epilogue e)
{
    FOR_EACH(i, count) {
        const size_t row = i * EACH / columns, column = i * EACH - row * columns;
        float v[EACH];
        load_all(v, y + row * pitch + column);
        finish_all(y, row * pitch + column, (int)column, v, e);
    }
}

void cuda_apply_epilogue(cudaStream_t stream, int dtype, void *y, size_t rows, size_t columns,
                         size_t pitch, const struct cuda_epilogue *epilogue)
{
    size_t count = rows * columns;
    WITH_EACH(columns % 8 == 0 && pitch % 8 == 0,
              WITH_TYPE(dtype, LAUNCH((epilogue_kernel<T, EACH>), blocks_for(count / EACH), THREADS,
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

/* Swaps the last two dimensions through a tile in shared memory, so that reads and writes are both
 * coalesced. blockIdx.z is the plane of [rows, columns]. */
template <typename T> __global__ void transpose_kernel(const T *x, T *y, int rows, int columns)
{
    __shared__ T tile[TILE][TILE + 1];
    size_t plane = (size_t)blockIdx.z * (size_t)rows * (size_t)columns;
    int column = (int)(blockIdx.x * TILE + threadIdx.x);
    for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS) {
        int row = (int)(blockIdx.y * TILE) + k;
        if (row < rows && column < columns)
            tile[k][threadIdx.x] = x[plane + (size_t)row * (size_t)columns + (size_t)column];
    }
    __syncthreads();
    int row = (int)(blockIdx.y * TILE + threadIdx.x);
    for (int k = (int)threadIdx.y; k < TILE; k += TILE_ROWS) {
        int to = (int)(blockIdx.x * TILE) + k;
        if (row < rows && to < columns)
            y[plane + (size_t)to * (size_t)rows + (size_t)row] = tile[threadIdx.x][k];
    }
}

/* Returns true if the map swaps two neighbouring dimensions of a dense tensor (NCHW <-> NHWC). */
static bool is_transpose(const struct cuda_access_map *map, int64_t *planes, int *rows,
                         int *columns)
{
    int r = map->rank;
    if (r < 2 || r > 3 || map->offset != 0)
        return false;
    /* y is [.., columns, rows], x is [.., rows, columns] */
    int64_t n = map->dims[r - 1], m = map->dims[r - 2], p = r == 3 ? map->dims[0] : 1;
    if (map->steps[0][r - 1] != m || map->steps[0][r - 2] != 1 || n > INT32_MAX || m > INT32_MAX ||
        p > GRID_MOST || (n + TILE - 1) / TILE > GRID_MOST || (r == 3 && map->steps[0][0] != n * m))
        return false;
    *planes = p;
    *rows = (int)n;
    *columns = (int)m;
    return true;
}

template <typename T>
static void copy_sized(cudaStream_t stream, const void *x, void *y,
                       const struct cuda_access_map *map)
{
    size_t count = element_count(map->rank, map->dims);
    int64_t planes;
    int rows, columns;
    if (is_transpose(map, &planes, &rows, &columns)) {
        dim3 grid((unsigned)((columns + TILE - 1) / TILE), (unsigned)((rows + TILE - 1) / TILE),
                  (unsigned)planes);
        dim3 block(TILE, TILE_ROWS);
        LAUNCH_BLOCK(transpose_kernel<T>, grid, block, stream, (const T *)x, (T *)y, rows, columns);
        return;
    }
    LAUNCH(copy_strided_kernel<T>, blocks_for(count), THREADS, stream, (const T *)x, (T *)y, *map,
           count);
}

/* Merges every two elements that stay neighbours into one element, repeatedly, up to 16 bytes. */
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
        copy_sized<words4>(stream, x, y, map);
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
        load_bytes(bytes, p.is_split ? inside : own);
        if (table) {
            UNROLLED(k, EACH)
                bytes[k] = table[bytes[k]];
        }
        store_bytes(p.is_split ? own : inside, bytes);
    }
}

template <int EACH>
static void copy_parts(cudaStream_t stream, void *whole, const struct cuda_parts *p, size_t widest)
{
    const dim3 grid(blocks_for(p->rows * widest / EACH), (unsigned)p->count);
    LAUNCH(parts_kernel<EACH>, grid, THREADS, stream, (unsigned char *)whole, *p);
}

/* Returns the OR of all sizes and addresses: a power of two divides all if it divides the OR. */
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
    if (all % 16 == 0)
        copy_parts<16>(stream, whole, p, widest);
    else if (all % 4 == 0)
        copy_parts<4>(stream, whole, p, widest);
    else if (all % 2 == 0)
        copy_parts<2>(stream, whole, p, widest);
    else
        copy_parts<1>(stream, whole, p, widest);
}

template <typename T, int EACH>
__global__ void scale_parts_kernel(const float *scale, const float *shift, T *y, cuda_parts p,
                                   int activation, float alpha, float beta)
{
    const unsigned which = blockIdx.y;
    const size_t across = p.parts[which].width / (EACH * sizeof(T));
    const size_t first = p.parts[which].offset / sizeof(T), pitch = p.pitch / sizeof(T);
    FOR_EACH(i, p.rows * across) {
        const size_t row = i / across, column = first + (i - row * across) * EACH;
        float v[EACH], factor[EACH], more[EACH];
        load_all(v, (const T *)p.parts[which].data + i * EACH);
        load_all(factor, scale + column);
        load_all(more, shift + column);
        UNROLLED(k, EACH)
            v[k] = v[k] * factor[k] + more[k];
        activate_all(v, activation, alpha, beta);
        store_all(y + row * pitch + column, v);
    }
}

void cuda_scale_parts(cudaStream_t stream, int dtype, const float *scale, const float *shift,
                      void *y, const struct cuda_parts *p, int activation, float alpha, float beta)
{
    size_t widest;
    const size_t all = parts_sizes(y, p, &widest), size = dtype == DTYPE_F32 ? 4 : 2;
    WITH_EACH(
        all % (8 * size) == 0,
        WITH_TYPE(dtype,
                  LAUNCH((scale_parts_kernel<T, EACH>),
                         dim3(blocks_for(p->rows * widest / size / EACH), (unsigned)p->count),
                         THREADS, stream, scale, shift, (T *)y, *p, activation, alpha, beta)));
}
