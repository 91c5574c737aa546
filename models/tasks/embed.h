/* Takes the vector of an image from a model's output. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

/* Zeroed: none. Free with embedding_done. */
struct embedding {
    float *values;
    size_t count;
};

void embedding_done(struct embedding *embedding);

/* Copies the vector of one image: the whole row of the output, or the first token (the class token)
 * of a row of tokens [T, D]. With options->normalize it is scaled to length 1, with
 * options->dimensions cut first (STATUS_INVALID if it is shorter). On success the
 * caller frees *ret. STATUS_INVALID if the row is neither; STATUS_NUMERIC if a number is NaN or
 * infinite, or if a vector of zeros is to be scaled; STATUS_NO_MEMORY. */
enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err) MUST_USE;
