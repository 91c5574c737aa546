/* One image's part of an output tensor, as floats. */
#pragma once

#include "engine/tensor/tensor.h"

/* Memory for numbers that are not float32; grows when needed. Zeroed memory is an empty one. */
struct task_buffer {
    float *data;
    size_t capacity;
};

void task_buffer_done(struct task_buffer *buffer);

struct task_rows {
    const float *data; /* contiguous, row-major */
    struct shape shape;
    size_t count; /* product of the shape */
};

/* Row `row` of an output of a run with `batch` images, in the tensor itself (float32) or converted
 * into `buffer`: valid as long as both. Without `has_rows` the whole tensor, of a run with one
 * image. STATUS_SHAPE when the first dimension is not the batch, or the numbers are neither
 * floating point nor 32 or 64 bit integers; STATUS_NO_MEMORY. */
enum status task_rows_of(const struct tensor *output, bool has_rows, int batch, int row,
                         struct task_buffer *buffer, struct task_rows *ret,
                         struct error *err) MUST_USE;

/* STATUS_SHAPE, with the shape of `output` and the one that was expected. */
enum status task_rows_wrong(const struct task_rows *output, const char *expected,
                            struct error *err) MUST_USE;
