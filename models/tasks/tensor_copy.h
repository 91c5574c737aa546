/* Copies raw tensors of requests: a row into a batch, the rows of results out of a run. Pure; any
 * thread. */
#pragma once

#include "engine/runtime/session.h"

/* An input or output of raw-tensor requests: one row of it, in the file's own layout and dtype. */
struct served_tensor {
    const char *name;
    enum dtype dtype;
    /* With has_rows the first dimension is 1 and stands for the batch. Of an output: SHAPE_NONE
     * when it depends on data. */
    struct shape shape;
    size_t count, bytes; /* of a row; 0 if the shape is unknown */
};

/* Writes a row of `input` to `dst` as the session reads it. With `as` (DTYPE_NONE: not an
 * image, copied unchanged) it is transposed from [C, H, W] to [H, W, C], unless `channels_last`,
 * and converted to this dtype. `src` is a row as `input` says, at any alignment. */
void tensor_copy_in(const struct served_tensor *input, enum dtype as, bool channels_last,
                    const void *src, void *dst);

/* What a run of `batch` rows gave for row `row`: copies, or views of what the run made in `whole`
 * (session_options.run_memory; NULL: none), which tensor_keep() keeps. *ret is an array of
 * output_count tensors, NULL where `wanted` (NULL: all are) says no; tensor_copies_free frees it. A
 * run of one row gives each tensor whole. STATUS_SHAPE when an output does not divide into rows,
 * STATUS_NO_MEMORY. */
enum status tensor_copy_out(const struct tensor *const *outputs, size_t output_count,
                            const bool *wanted, int batch, int row, struct memory_budget *whole,
                            struct tensor ***ret, struct error *err) MUST_USE;

void tensor_copies_free(struct tensor **rows, size_t count); /* NULL is fine */
