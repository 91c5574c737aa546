/* The first and the last kernel of a run: bytes of photos to numbers, scores to the best classes.
 */
#include "engine/cuda/device.cuh"

/* The table is read three times a pixel, at random: from shared memory. */
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
        FOR_EACH(e, row)
        {
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

void cuda_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                 const float *table, int dtype, void *y, const struct cuda_pixels *p)
{
    /* Some numbers a thread, so that filling the table is little beside them. */
    const unsigned wide = blocks_for((p->row + 7) / 8);
    const dim3 grid(wide, (unsigned)(p->rows < (size_t)GRID_MOST ? p->rows : (size_t)GRID_MOST));
    if (p->channels == 1)
        WITH_TYPE(dtype, LAUNCH_BLOCK((pixels_kernel<T, 1>), grid, THREADS, stream,
                                      (const unsigned char *)x, are_bytes, table, (T *)y, p->rows,
                                      p->row, p->pitch, p->is_reversed));
    else
        WITH_TYPE(dtype, LAUNCH_BLOCK((pixels_kernel<T, 3>), grid, THREADS, stream,
                                      (const unsigned char *)x, are_bytes, table, (T *)y, p->rows,
                                      p->row, p->pitch, p->is_reversed));
}

/* struct session_best of engine/session.h. */
struct best_score {
    float score;
    unsigned index;
};
struct best_row {
    double sum;
    long long flaw;
    float greatest;
    unsigned count;
    best_score scores[1];
};

enum { NOBODY = 0xffffffffu };

/* Does a come before b? */
__device__ static inline bool comes_first(float a, unsigned a_index, float b, unsigned b_index)
{
    if (a_index == (unsigned)NOBODY || b_index == (unsigned)NOBODY)
        return b_index == (unsigned)NOBODY && a_index != (unsigned)NOBODY;
    return a > b || (a == b && a_index < b_index);
}

/* A block a row. The next best is the first of those that come after the last one: `best` walks
 * over a row that lies in the cache, each with a tournament of the threads' candidates. */
template <typename T>
__global__ void best_kernel(const T *x, unsigned row, int best, unsigned char *y, size_t step)
{
    __shared__ float scores[THREADS];
    __shared__ unsigned indices[THREADS];
    __shared__ double sums[THREADS];
    const T *in = x + (size_t)blockIdx.x * row;
    best_row *out = (best_row *)(y + blockIdx.x * step);
    const unsigned self = threadIdx.x;
    /* The first score that is no number, and the greatest. */
    unsigned flaw = (unsigned)NOBODY;
    for (unsigned i = self; i < row; i += THREADS) {
        float score = to_float(in[i]);
        if (!(score - score == 0.0f) && i < flaw)
            flaw = i;
    }
    indices[self] = flaw;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (self < half && indices[self + half] < indices[self])
            indices[self] = indices[self + half];
        __syncthreads();
    }
    flaw = indices[0];
    __syncthreads();
    float last = 0.0f, greatest = 0.0f;
    unsigned last_index = (unsigned)NOBODY;
    for (int rank = 0; rank < best; rank++) {
        float score = 0.0f;
        unsigned index = (unsigned)NOBODY;
        for (unsigned i = self; i < row; i += THREADS) {
            float candidate = to_float(in[i]);
            bool is_left = rank == 0 || comes_first(last, last_index, candidate, i);
            if (is_left && comes_first(candidate, i, score, index)) {
                score = candidate;
                index = i;
            }
        }
        scores[self] = score;
        indices[self] = index;
        __syncthreads();
        for (unsigned half = THREADS / 2; half > 0; half /= 2) {
            if (self < half && comes_first(scores[self + half], indices[self + half], scores[self],
                                           indices[self])) {
                scores[self] = scores[self + half];
                indices[self] = indices[self + half];
            }
            __syncthreads();
        }
        last = scores[0];
        last_index = indices[0];
        if (rank == 0)
            greatest = last;
        if (self == 0) {
            out->scores[rank].score = last;
            out->scores[rank].index = last_index;
        }
        __syncthreads();
    }
    double sum = 0.0;
    for (unsigned i = self; i < row; i += THREADS)
        sum += (double)expf(to_float(in[i]) - greatest);
    sums[self] = sum;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (self < half)
            sums[self] += sums[self + half];
        __syncthreads();
    }
    if (self == 0) {
        out->sum = sums[0];
        out->flaw = flaw == (unsigned)NOBODY ? -1 : (long long)flaw;
        out->greatest = greatest;
        out->count = (unsigned)best;
    }
}

void cuda_best(cudaStream_t stream, int dtype, const void *x, size_t rows, size_t row, int best,
               void *y, size_t step)
{
    WITH_TYPE(dtype, LAUNCH_BLOCK(best_kernel<T>, (unsigned)rows, THREADS, stream, (const T *)x,
                                  (unsigned)row, best, (unsigned char *)y, step));
}
