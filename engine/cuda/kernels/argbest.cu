/* The first kernel of a run converts bytes of photos to numbers, the last finds the best
 * classes. */
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

/* These structs have the layout of struct session_best (engine/backend/run.h). */
struct best_score {
    float score;
    unsigned index;
};
struct best_row {
    double sum;
    long long first_nonfinite;
    float greatest;
    unsigned count;
    best_score scores[1];
};

enum : unsigned { NO_INDEX = 0xffffffffu };

/* True if a comes before b. */
__device__ static inline bool comes_first(const best_score &a, const best_score &b)
{
    if (a.index == NO_INDEX || b.index == NO_INDEX)
        return b.index == NO_INDEX && a.index != NO_INDEX;
    return a.score > b.score || (a.score == b.score && a.index < b.index);
}

/* One block per image. Each round finds the next best score: every thread reads its share of the
 * scores again (from the cache), and the block reduces the candidates of its threads. */
template <typename T>
__global__ void best_kernel(const T *x, unsigned row, int best, unsigned char *y, size_t step)
{
    __shared__ unsigned firsts[WARPS];
    __shared__ best_score scores[WARPS];
    __shared__ double sums[WARPS];
    const T *in = x + (size_t)blockIdx.x * row;
    best_row *out = (best_row *)(y + blockIdx.x * step);
    const unsigned self = threadIdx.x;
    unsigned first_nonfinite = NO_INDEX;
    for (unsigned i = self; i < row; i += THREADS) {
        float score = to_float(in[i]);
        if (!(score - score == 0.0f) && i < first_nonfinite)
            first_nonfinite = i;
    }
    first_nonfinite =
        block_join(first_nonfinite, firsts, [](unsigned a, unsigned b) { return a < b ? a : b; });
    best_score last = {0.0f, NO_INDEX};
    float greatest = 0.0f;
    for (int rank = 0; rank < best; rank++) {
        best_score own = {0.0f, NO_INDEX};
        for (unsigned i = self; i < row; i += THREADS) {
            const best_score candidate = {to_float(in[i]), i};
            bool is_left = rank == 0 || comes_first(last, candidate);
            if (is_left && comes_first(candidate, own))
                own = candidate;
        }
        last = block_join(own, scores, [](const best_score &a, const best_score &b) {
            return comes_first(b, a) ? b : a;
        });
        if (rank == 0)
            greatest = last.score;
        if (self == 0)
            out->scores[rank] = last;
    }
    double sum = 0.0;
    for (unsigned i = self; i < row; i += THREADS)
        sum += (double)exp_of(to_float(in[i]) - greatest);
    sum = block_join(sum, sums, [](double a, double b) { return a + b; });
    if (self == 0) {
        out->sum = sum;
        out->first_nonfinite = first_nonfinite == NO_INDEX ? -1 : (long long)first_nonfinite;
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
