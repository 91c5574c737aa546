/* Extracts the vector of an image from a model's output. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

/* Zeroed: empty. Free with embedding_done(). */
struct embedding {
    float *values;
    size_t count;
};

void embedding_done(struct embedding *embedding);

/* Copies the vector of one image: the whole row of the output, or the first token (the class token)
 * of a row of tokens [T, D]. options->dimensions truncates it (STATUS_INVALID if the vector is
 * shorter). With `dimensions` or `normalize` it is scaled to length 1. On success the caller frees
 * *ret. STATUS_INVALID: the row has another shape; STATUS_NUMERIC: a number is NaN or infinite, or
 * a vector to be scaled is all zeros; STATUS_NO_MEMORY. */
enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err) MUST_USE;
