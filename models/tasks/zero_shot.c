/* Copies the vector of an image, and compares it with those of texts, as CLIP and SigLIP do. */
#include "models/tasks/zero_shot.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

void embedding_done(struct embedding *embedding)
{
    free(embedding->values);
    *embedding = (struct embedding){NULL, 0};
}

/* Length of the vector in the row; 0 if the row is neither a vector nor a list of tokens. */
static size_t vector_size(const struct task_rows *row)
{
    int wide = 0;
    for (int i = 0; i < row->shape.rank; i++)
        wide += row->shape.dims[i] != 1;
    if (wide <= 1)
        return row->count;
    return row->shape.rank == 2 && row->count ? (size_t)row->shape.dims[1] : 0;
}

enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err)
{
    const size_t whole = vector_size(row);
    const size_t count = options->dimensions ? (size_t)options->dimensions : whole;
    double sum = 0;
    if (count > whole && whole)
        return error_set(err, STATUS_INVALID,
                         "dimensions is %zu, but the model's vectors have %zu numbers", count,
                         whole);
    if (whole == 0)
        return error_set(err, STATUS_INVALID,
                         "an output has the shape %s for an image, which is neither a vector nor a "
                         "list of tokens",
                         SHAPE_STRING(&row->shape));
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(row->data[i]))
            return error_set(err, STATUS_NUMERIC,
                             "number %zu of the model's vector is not finite for this image", i);
        sum += (double)row->data[i] * (double)row->data[i];
    }
    const bool is_scaled = options->normalize > 0 || options->dimensions;
    if (is_scaled && sum <= 0)
        return error_set(err, STATUS_NUMERIC,
                         "the model's vector is all zeros for this image: it has no direction");
    float *values = alloc_array(count, sizeof *values);
    TRY(check_memory(values, "for the vector of an image", err));
    const double scale = is_scaled ? 1 / sqrt(sum) : 1;
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((double)row->data[i] * scale);
    *ret = (struct embedding){values, count};
    return STATUS_OK;
}

void zero_shot_done(struct zero_shot *texts)
{
    FREE_ALL(texts->vectors, texts->prompt);
    *texts = (struct zero_shot){0};
}

static void apply_softmax(float *scores, size_t count)
{
    float greatest = scores[0];
    double sum = 0;
    for (size_t i = 1; i < count; i++)
        greatest = fmaxf(greatest, scores[i]);
    for (size_t i = 0; i < count; i++)
        sum += exp((double)(scores[i] - greatest));
    for (size_t i = 0; i < count; i++)
        scores[i] = (float)(exp((double)(scores[i] - greatest)) / sum);
}

enum status zero_shot_scores(const struct zero_shot *texts, const struct embedding *photo,
                             float **ret, struct error *err)
{
    if (photo->count != texts->size)
        return error_set(err, STATUS_MODEL,
                         "the model's vector has %zu numbers, and the vectors of the texts have "
                         "%zu",
                         photo->count, texts->size);
    double norm = 0;
    for (size_t k = 0; k < photo->count; k++)
        norm += (double)photo->values[k] * (double)photo->values[k];
    norm = sqrt(norm);
    if (!(norm > 0))
        return error_set(err, STATUS_NUMERIC,
                         "the model's vector is all zeros for this image: it has no direction");
    float *scores = alloc_array(texts->count, sizeof *scores);
    TRY(check_memory(scores, "for the scores of an image", err));
    for (size_t i = 0; i < texts->count; i++) {
        double sum = 0;
        for (size_t k = 0; k < texts->size; k++)
            sum += (double)texts->vectors[i * texts->size + k] * (double)photo->values[k];
        const double score = (double)texts->scale * sum / norm + (double)texts->bias;
        scores[i] = (float)(texts->is_sigmoid ? 1 / (1 + exp(-score)) : score);
    }
    if (!texts->is_sigmoid)
        apply_softmax(scores, texts->count);
    *ret = scores;
    return STATUS_OK;
}
