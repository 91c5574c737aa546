/* What reference kernels ask of memory: outputs whose shape they alone know, and scratch. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/reference/kernel.h"

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
    const struct memory_budget *budget = args->budget;
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
