/* The table of reference kernels: the families together, looked up by operator. */
#include "engine/reference/kernel.h"

#include <pthread.h>

#include "engine/base/size.h"

static const struct kernel_family *const families[] = {
    &kernels_elementwise, &kernels_shape,       &kernels_index,     &kernels_reduce,
    &kernels_linear,      &kernels_convolution, &kernels_norm,      &kernels_resample,
    &kernels_quantize,    &kernels_control,     &kernels_attention, &kernels_transformer,
};

static kernel_fn by_op[OP_COUNT];
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void build_index(void)
{
    for (size_t f = 0; f < COUNT_OF(families); f++)
        for (size_t i = 0; i < families[f]->count; i++)
            by_op[families[f]->kernels[i].op] = families[f]->kernels[i].run;
}

kernel_fn kernel_find(enum op op)
{
    pthread_once(&index_once, build_index);
    return op > OP_NONE && op < OP_COUNT ? by_op[op] : NULL;
}
