/* One image's part of an output tensor, as floats. */
#pragma once

#include "engine/tensor/tensor.h"

/* Memory for numbers converted to float32; grows when needed. Zeroed: empty. */
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

/* Finds row `row` of an output of a run with `batch` images. *ret points into the tensor (float32)
 * or into `buffer` (converted), and is valid while both are unchanged. If `has_rows` is false, the
 * row is the whole tensor, and the batch must be 1. STATUS_INVALID if the first dimension is not
 * the batch, or if the dtype is neither floating point, a 32 or 64 bit integer nor bool;
 * STATUS_NO_MEMORY. */
enum status task_rows_of(const struct tensor *output, bool has_rows, int batch, int row,
                         struct task_buffer *buffer, struct task_rows *ret,
                         struct error *err) MUST_USE;

/* Returns STATUS_INVALID with a sentence that names the shape of `output` and the expected one. */
enum status task_rows_wrong(const struct task_rows *output, const char *expected,
                            struct error *err) MUST_USE;
