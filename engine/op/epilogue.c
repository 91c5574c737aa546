/* The epilogue that passes fuse into a convolution, a matrix product or a sum. */
#include "engine/op/convert.h"
#include "engine/op/elementwise.h"
#include "engine/op/nn.h"

void epilogue_apply(const struct epilogue *epilogue, enum arithmetic arithmetic, void *values,
                    const void *residual, size_t count)
{
    float *single = values;
    const bool is_wide = arithmetic == ARITHMETIC_F64;
    if (epilogue->activation == ACTIVATION_NONE && !residual)
        return;
    for (size_t done = 0; done < count; done += BLOCK) {
        double block[BLOCK];
        const size_t n = count - done < BLOCK ? count - done : BLOCK;
        for (size_t i = 0; i < n; i++)
            block[i] = is_wide    ? ((double *)values)[done + i]
                       : residual ? (double)(single[done + i] + ((const float *)residual)[done + i])
                                  : (double)single[done + i];
        for (size_t i = 0; is_wide && residual && i < n; i++)
            block[i] += ((const double *)residual)[done + i];
        activation_apply(epilogue, block, n);
        for (size_t i = 0; i < n; i++)
            if (is_wide)
                ((double *)values)[done + i] = block[i];
            else
                single[done + i] = (float)block[i];
    }
}

size_t epilogue_residual(const struct kernel_args *args)
{
    const struct node *node = args->node;
    return node->epilogue.residual && node->input_count ? node->input_count - 1 : SIZE_MAX;
}
