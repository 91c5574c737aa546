/* Rows of raw-tensor requests: into a batch, and out of a run. Pure; any thread. */
#pragma once

#include "server/schedule/pipeline.h"

/* Writes row `row` of input `i` of a raw-tensor request to `dst`, as the session reads it: the
 * image input transposed to [H, W, C] and converted to served->image_numbers, others as they are.
 * `src` is a row as served->inputs[i] says, at any alignment. */
void rows_write(const struct served *served, size_t i, const void *src, void *dst);

/* Copies what a run of `batch` rows gave for row `row`: *ret is an array of output_count tensors,
 * NULL where `wanted` (NULL: all are) says no; rows_free frees it. A run of one row gives each
 * tensor whole. STATUS_SHAPE when an output does not divide into rows, STATUS_NO_MEMORY. */
enum status rows_copy(const struct tensor *const *outputs, size_t output_count, const bool *wanted,
                      int batch, int row, struct tensor ***ret, struct error *err) MUST_USE;

void rows_free(struct tensor **rows, size_t count); /* NULL is fine */
