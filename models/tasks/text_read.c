/* Decodes CTC greedily, and separates lines of text. */
#include "models/tasks/text_read.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "models/tasks/decoders.h"

void text_done(struct text_reading *line)
{
    free(line->characters);
    *line = (struct text_reading){0};
}

/* Returns the probability of class `best`. A model that ends before its softmax, or with
 * log-softmax, has scores outside 0 … 1. A softmax converts both to probabilities. */
static double text_probability(const float *scores, size_t classes, size_t best)
{
    double exponents = 0;
    bool are_probabilities = scores[best] <= 1;
    for (size_t c = 0; c < classes; c++) {
        are_probabilities = are_probabilities && scores[c] >= 0;
        exponents += exp((double)scores[c] - (double)scores[best]);
    }
    return are_probabilities ? (double)scores[best] : 1 / exponents;
}

enum status text_decode(const struct task_rows *row, struct text_reading *ret, struct error *err)
{
    const size_t classes = row->shape.rank == 2 ? (size_t)row->shape.dims[1] : 0;
    if (classes < 2 || row->count == 0)
        return task_rows_wrong(
            row, "a probability for each position and character, [positions, 1 + characters]", err);
    const size_t positions = row->count / classes;
    double sum = 0;
    size_t last = 0;
    ret->characters = alloc_array(positions, sizeof *ret->characters);
    TRY(check_memory(ret->characters, "for the text in an image", err));
    for (size_t i = 0; i < positions; i++) {
        const float *scores = row->data + i * classes;
        const size_t best = decode_greatest(scores, classes);
        if (!isfinite(scores[best]))
            return error_set(err, STATUS_NUMERIC,
                             "the model's probabilities are not finite at position %zu of the text "
                             "in this image",
                             i);
        if (best != last && best > 0) {
            sum += text_probability(scores, classes, best);
            ret->characters[ret->count++] = (uint32_t)(best - 1);
        }
        last = best;
    }
    ret->score = ret->count ? (float)(sum / (double)ret->count) : 0;
    ret->is_read = true;
    return STATUS_OK;
}

const char *text_separator(const struct detection *before, const struct detection *after)
{
    const float first = before->y2 - before->y1, second = after->y2 - after->y1;
    if (fminf(before->y2, after->y2) - fmaxf(before->y1, after->y1) >= fminf(first, second) / 2)
        return " ";
    return after->y1 - before->y2 > first ? "\n\n" : "\n";
}
