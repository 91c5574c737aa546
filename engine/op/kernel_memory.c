/* Calls and stops reference kernels; makes their scratch memory and outputs of unknown shape. */
#include <stdalign.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"
#include "engine/op/kernel.h"

enum status kernel_output(const struct kernel_args *args, size_t i, enum dtype dtype,
                          const struct shape *shape, struct error *err)
{
    struct tensor *tensor;
    TRY(tensor_create(args->budget, dtype, shape, &tensor, err));
    tensor_unref(args->out[i]); /* the output may already be allocated */
    args->out[i] = tensor;
    return STATUS_OK;
}

struct scratch_block {
    struct scratch_block *next;
    size_t size;           /* bytes charged */
    struct tensor *result; /* the output to which `bytes` are converted; NULL: none */
    enum dtype dtype;
    alignas(max_align_t) char bytes[];
};

/* True if all outputs are empty. Loops over their outer dimensions could be endless: [2^40, 0]. */
static bool is_empty(const struct kernel_args *args)
{
    bool is_empty = args->node->output_count > 0;
    for (size_t i = 0; i < args->node->output_count; i++)
        is_empty = is_empty && (args->out[i] ? !args->out[i]->bytes : !args->node->outputs[i]);
    return is_empty;
}

enum status kernel_goes_on(const struct kernel_args *args, size_t elements, struct error *err)
{
    *args->unasked += elements;
    if (*args->unasked < KERNEL_ASKS)
        return STATUS_OK;
    *args->unasked = 0;
    return args->stop && args->stop(args->stop_context)
               ? error_set(err, STATUS_CANCELLED, "the run was cancelled")
               : STATUS_OK;
}

enum status kernel_call(kernel_fn kernel, const struct kernel_args *args, struct error *err)
{
    struct scratch_block *blocks = NULL;
    size_t unasked = 0;
    struct kernel_args own = *args;
    if (is_empty(args))
        return STATUS_OK;
    own.scratch = &blocks;
    own.unasked = &unasked;
    enum status status = kernel(&own, err);
    while (blocks) {
        struct scratch_block *block = blocks;
        blocks = block->next;
        if (block->result && status == STATUS_OK)
            convert_row(block->bytes, block->dtype, block->result->data, block->result->dtype,
                        shape_count(&block->result->shape));
        memory_uncharge(args->budget, block->size);
        free(block);
    }
    return status;
}

void *kernel_scratch(const struct kernel_args *args, size_t count, size_t size, struct error *err)
{
    return kernel_scratch_grow(args, NULL, count, size, err);
}

void *kernel_result_scratch(const struct kernel_args *args, size_t i, enum dtype dtype,
                            struct error *err)
{
    struct tensor *result = kernel_result(args, i);
    void *memory = kernel_scratch(args, shape_count(&result->shape), dtype_size(dtype), err);
    if (memory) {
        (*args->scratch)->result = result;
        (*args->scratch)->dtype = dtype;
    }
    return memory;
}

void *kernel_scratch_grow(const struct kernel_args *args, void *memory, size_t count, size_t size,
                          struct error *err)
{
    size_t bytes, whole = 0, more = 0;
    const bool fits =
        size_mul(count, size, &bytes) && size_add(bytes, sizeof(struct scratch_block), &whole);
    struct scratch_block **link = args->scratch; /* the pointer to the block of `memory` */
    while (memory && (*link)->bytes != memory)
        link = &(*link)->next;
    if (fits) {
        more = whole - (memory ? (*link)->size : 0);
        if (memory_charge(args->budget, more, err) != STATUS_OK)
            return NULL;
    }
    struct scratch_block *block = fits ? realloc(memory ? *link : NULL, whole) : NULL;
    if (!block) {
        memory_uncharge(args->budget, more);
        (void)error_set(err, STATUS_NO_MEMORY,
                        "no memory for %zu elements of %zu bytes that the computation needs "
                        "besides its output",
                        count, size);
        (void)error_advise(err, "use a smaller input, or a machine with more memory");
        return NULL;
    }
    if (!memory)
        *block = (struct scratch_block){.next = *link};
    block->size = whole;
    *link = block;
    return block->bytes;
}
