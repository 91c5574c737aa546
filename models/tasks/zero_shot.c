/* Compares a photo's vector with those of texts, as CLIP and SigLIP do. */
#include "models/tasks/zero_shot.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

void zero_shot_done(struct zero_shot *texts)
{
    free(texts->vectors);
    free(texts->prompt);
    *texts = (struct zero_shot){0};
}

enum status zero_shot_scores(const struct zero_shot *texts, const struct embedding *photo,
                             float **ret, struct error *err)
{
    if (photo->count != texts->size)
        return error_set(err, STATUS_MODEL,
                         "the model's vector has %zu numbers, and the vectors in zero_shot.json "
                         "have %zu",
                         photo->count, texts->size);
    float *scores = alloc_array(texts->count, sizeof *scores);
    if (!scores)
        return error_no_memory(err, "for the scores of an image");
    for (size_t i = 0; i < texts->count; i++) {
        double sum = 0;
        for (size_t k = 0; k < texts->size; k++)
            sum += (double)texts->vectors[i * texts->size + k] * (double)photo->values[k];
        const double score = (double)texts->scale * sum + (double)texts->bias;
        scores[i] = (float)(texts->is_sigmoid ? 1 / (1 + exp(-score)) : score);
    }
    *ret = scores;
    return STATUS_OK;
}
