/* Convolutions over [N, H, W, C] images of 8-bit integers on tensor cores; conv_tiles.cuh has
 * the method. Its two-byte numbers are pairs of neighbouring channels here. Weights are signed; x
 * is signed or unsigned. The padding holds the zero point of x. So the zero point adds the same
 * value to every sum of a channel, and the bias can include this value.
 *
 * Sums are int32. They pass through shared memory once, so that threads write eight at a time. If k
 * is divided among blocks, split_sum_kernel adds up their sums. */
#include "engine/cuda/kernels/conv_tiles.cuh"
#include "engine/cuda/kernels/int8.cuh"

void cuda_int8_conv_tensor(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_conv *conv, const struct cuda_int8_epilogue *epilogue,
                           const struct cuda_conv_candidate *candidate, void *workspace)
{
    const struct cuda_conv pairs = in_halves(DTYPE_I8, conv);
#define START_INT8(T)                                                                              \
    start_tile(candidate->tile, pairs,                                                             \
               conv_launch<T, int, cuda_int8_epilogue>{stream, x, weights, epilogue->padding, y,   \
                                                       pairs, *epilogue, candidate->splits,        \
                                                       workspace})
    if (epilogue->x_type == DTYPE_I8)
        START_INT8(s8_pair);
    else
        START_INT8(u8_pair);
#undef START_INT8
}
