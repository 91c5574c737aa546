/* A model's output to the vector of an image. Pure; any thread. */
#pragma once

#include "models/tasks/rows.h"
#include "models/tasks/task.h"

/* Zeroed: none. Free with embedding_done. */
struct embedding {
    float *values;
    size_t count;
};

void embedding_done(struct embedding *embedding);

/* The vector of one image: its row of the output, all of it; of tokens [T, D] the first one, which
 * is the class token. With options->normalize it is scaled to length 1. On success the caller frees
 * *ret. STATUS_SHAPE when the row is no vector; STATUS_NUMERIC when a number is NaN or infinite, or
 * all are 0 where length 1 is asked for; STATUS_NO_MEMORY. */
enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err) MUST_USE;
