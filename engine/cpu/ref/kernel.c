#include "engine/cpu/kernel.h"

#include <pthread.h>
#include <stdlib.h>

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

enum status kernel_output(const struct kernel_args *args, size_t i, enum dtype dtype,
                          const struct shape *shape, struct error *err)
{
    struct tensor *tensor;
    TRY(tensor_create(args->budget, dtype, shape, &tensor, err));
    tensor_unref(*args->out[i]); /* in case one was allocated already */
    *args->out[i] = tensor;
    return STATUS_OK;
}

void *kernel_scratch(const struct kernel_args *args, size_t count, size_t size, struct error *err)
{
    size_t bytes;
    const struct budget *budget = args->budget;
    bool fits = size_mul(count, size, &bytes);
    if (fits && budget && budget->limit) {
        size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
        fits = used <= budget->limit && bytes <= budget->limit - used;
    }
    void *memory = fits ? malloc(bytes ? bytes : 1) : NULL;
    if (!memory)
        error_set(err, STATUS_NO_MEMORY,
                  "no memory for %zu elements of %zu bytes that the computation needs besides its "
                  "output",
                  count, size);
    return memory;
}
