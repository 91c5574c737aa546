/* Converts bytes of photos to numbers: the first kernel of a run. */
#include "engine/cuda/kernels/device.cuh"

/* `table` is copied to shared memory, because threads read numbers at random places of it. */
template <int CHANNELS>
__global__ void pixels_kernel(const unsigned char *x, const unsigned char *are_bytes,
                              const float *table, float *y, size_t rows, size_t row,
                              int is_reversed)
{
    __shared__ float values[CHANNELS * 256];
    for (unsigned i = threadIdx.x; i < CHANNELS * 256; i += blockDim.x)
        values[i] = table[i];
    __syncthreads();
    for (size_t r = blockIdx.y; r < rows; r += gridDim.y) {
        const float *floats = (const float *)x + r * row;
        const unsigned char *bytes = (const unsigned char *)floats;
        float *to = y + r * row;
        const bool has_bytes = are_bytes[r] != 0;
        FOR_EACH(e, row) {
            if (has_bytes) {
                const unsigned c = (unsigned)(e % CHANNELS);
                const size_t from = is_reversed ? e + (CHANNELS - 1) - 2 * c : e;
                to[e] = values[c * 256 + bytes[from]];
            } else {
                to[e] = floats[e];
            }
        }
    }
}

template <int CHANNELS>
static void run_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                       const float *table, float *y, const struct cuda_pixels *p)
{
    /* Each thread converts several pixels, so that filling the table takes little of the time. */
    const unsigned wide = blocks_for((p->row + 7) / 8);
    const dim3 grid(wide, (unsigned)(p->rows < (size_t)GRID_MOST ? p->rows : (size_t)GRID_MOST));
    LAUNCH_BLOCK(pixels_kernel<CHANNELS>, grid, THREADS, stream, (const unsigned char *)x,
                 are_bytes, table, y, p->rows, p->row, p->is_reversed);
}

void cuda_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                 const float *table, float *y, const struct cuda_pixels *p)
{
    if (p->channels == 1)
        run_pixels<1>(stream, x, are_bytes, table, y, p);
    else
        run_pixels<3>(stream, x, are_bytes, table, y, p);
}
