/* Compares a photo's vector with those of texts, as CLIP and SigLIP do. */
#include "models/tasks/zero_shot.h"

#include <math.h>

#include "engine/base/size.h"

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
