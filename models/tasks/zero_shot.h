/* Decodes vectors, and scores a photo's vector against those of texts. Pure; any thread. */
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
 * of a row of tokens [T, D]. options->dimensions truncates the vector (STATUS_INVALID if it is
 * shorter). With `dimensions` or `normalize` the vector is scaled to length 1. On success the
 * caller frees *ret. STATUS_INVALID: the row has another shape; STATUS_NUMERIC: a number is NaN or
 * infinite, or a vector to be scaled is all zeros; STATUS_NO_MEMORY. */
enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err) MUST_USE;

#define ZERO_SHOT_PROMPT_MAX 500 /* bytes */

/* The texts' vectors. Zeroed: none. Immutable after load; free with zero_shot_done. */
struct zero_shot {
    float *vectors; /* [count, size], each of length 1 */
    size_t count, size;
    float scale, bias; /* score = scale * cosine + bias */
    bool is_sigmoid; /* probabilities are sigmoids (SigLIP), else a softmax of all scores (CLIP) */
    char *prompt;    /* a text in which the label replaces "{}"; NULL: not set */
    bool has_scale;  /* the scale comes from the model, not a default */
};

void zero_shot_done(struct zero_shot *texts);

/* Computes the probability of each text for a photo's vector: the softmax of all scores, or the
 * sigmoid of the text's score. The caller frees *ret, texts->count floats. STATUS_MODEL: the sizes
 * of the vectors differ; STATUS_NUMERIC: the photo's vector is all zeros; STATUS_NO_MEMORY. */
enum status zero_shot_scores(const struct zero_shot *texts, const struct embedding *photo,
                             float **ret, struct error *err) MUST_USE;
