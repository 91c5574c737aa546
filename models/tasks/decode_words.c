/* Decodes detectors that find objects named by words. Boxes are shares of the input's sides.
 *
 * Sources: Hugging Face's post_process_object_detection() of OWL-ViT and OWLv2 (a query's best word
 * after a sigmoid) and post_process_grounded_object_detection() of Grounding DINO (a query's best
 * token after a sigmoid). */
#include <math.h>

#include "models/tasks/decoders.h"

/* Returns the word of a column of logits, or words->count if the column has none. */
static size_t word_of(const struct task_words *words, size_t column)
{
    if (!words->of_tokens)
        return column;
    return column < words->token_count ? words->of_tokens[column] : words->count;
}

enum status decode_words(const struct task_rows *outputs, struct candidates *candidates,
                         struct error *err)
{
    const struct task_rows *logits = &outputs[0], *boxes = &outputs[1];
    const struct task_words *words = candidates->options->words;
    if (!words)
        return error_set(err, STATUS_INVALID, "the request names no words to look for");
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [queries, 4]", err);
    if (logits->shape.rank != 2 || logits->shape.dims[0] != boxes->shape.dims[0])
        return task_rows_wrong(logits, "logits, [queries, words]", err);
    const size_t columns = (size_t)logits->shape.dims[1];
    for (size_t i = 0; i < (size_t)boxes->shape.dims[0]; i++) {
        const float *row = logits->data + i * columns;
        float best = -INFINITY, best_of_words = -INFINITY;
        size_t index = words->count;
        for (size_t c = 0; c < columns; c++) {
            const size_t word = word_of(words, c);
            if (words->of_tokens && row[c] > best)
                best = row[c]; /* also of tokens between the words */
            if (word >= words->count || !(row[c] > best_of_words))
                continue;
            best_of_words = row[c];
            index = word;
        }
        if (index < words->count)
            candidates_add(candidates, decode_shares(boxes->data + 4 * i, candidates->geometry),
                           1 / (1 + expf(-(words->of_tokens ? best : best_of_words))), index, i);
    }
    return STATUS_OK;
}
