/* Copies raw tensors of requests into a batch, and rows of results from a run. */
#pragma once

#include "engine/runtime/session.h"

/* An input or output of raw-tensor requests: one row, in the file's own layout and dtype. */
struct served_tensor {
    const char *name;
    enum dtype dtype;
    /* With has_rows the first dimension is 1 and represents the batch. SHAPE_NONE for an output
     * whose shape depends on data. */
    struct shape shape;
    size_t count, bytes; /* per row; 0 if the shape is unknown */
};

/* Writes a row of `input` to `dst` in the session's format. An image is converted to float32 and,
 * unless `channels_last`, transposed from [C, H, W] to [H, W, C]. Other rows are copied. `src` is a
 * row as `input` describes, at any alignment. */
void tensor_copy_in(const struct served_tensor *input, bool is_image, bool channels_last,
                    const void *src, void *dst);

/* Takes row `row` of the results of a run of `batch` rows. A result is a copy, or a view of a
 * tensor that the run has charged to `whole` (session_options.run_memory; may be NULL) and that
 * tensor_keep() keeps. *ret is an array of output_count tensors, NULL for outputs that are not
 * wanted; without `wanted` all outputs are wanted. Free it with tensor_copies_free(). A run of one
 * row gives whole tensors. STATUS_SHAPE: an output does not divide into rows; STATUS_NO_MEMORY. */
enum status tensor_copy_out(const struct tensor *const *outputs, size_t output_count,
                            const bool *wanted, int batch, int row, struct memory_budget *whole,
                            struct tensor ***ret, struct error *err) MUST_USE;

void tensor_copies_free(struct tensor **rows, size_t count); /* NULL is fine */
