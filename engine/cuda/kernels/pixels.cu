/* Converts bytes of photos to numbers: the first kernel of a run. */
#include "engine/cuda/kernels/device.cuh"

/* `table` is copied to shared memory, because each number is read at a random place. */
template <typename T, int CHANNELS>
__global__ void pixels_kernel(const unsigned char *x, const unsigned char *are_bytes,
                              const float *table, T *y, size_t rows, size_t row, size_t pitch,
                              int is_reversed)
{
    __shared__ float values[CHANNELS * 256];
    for (unsigned i = threadIdx.x; i < CHANNELS * 256; i += blockDim.x)
        values[i] = table[i];
    __syncthreads();
    for (size_t r = blockIdx.y; r < rows; r += gridDim.y) {
        const unsigned char *bytes = x + r * pitch;
        const float *floats = (const float *)bytes;
        T *to = y + r * row;
        const bool has_bytes = are_bytes[r] != 0;
        FOR_EACH(e, row) {
            if (has_bytes) {
                const unsigned c = (unsigned)(e % CHANNELS);
                const size_t from = is_reversed ? e + (CHANNELS - 1) - 2 * c : e;
                to[e] = from_float<T>(values[c * 256 + bytes[from]]);
            } else {
                to[e] = from_float<T>(floats[e]);
            }
        }
    }
}

template <typename T, int CHANNELS>
static void run_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                       const float *table, T *y, const struct cuda_pixels *p)
{
    /* Each thread converts several pixels, so that filling the table takes little of the time. */
    const unsigned wide = blocks_for((p->row + 7) / 8);
    const dim3 grid(wide, (unsigned)(p->rows < (size_t)GRID_MOST ? p->rows : (size_t)GRID_MOST));
    LAUNCH_BLOCK((pixels_kernel<T, CHANNELS>), grid, THREADS, stream, (const unsigned char *)x,
                 are_bytes, table, y, p->rows, p->row, p->pitch, p->is_reversed);
}

void cuda_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                 const float *table, int dtype, void *y, const struct cuda_pixels *p)
{
    if (p->channels == 1)
        WITH_TYPE(dtype, (run_pixels<T, 1>(stream, x, are_bytes, table, (T *)y, p)));
    else
        WITH_TYPE(dtype, (run_pixels<T, 3>(stream, x, are_bytes, table, (T *)y, p)));
}
