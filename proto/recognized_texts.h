/* The texts that a pipeline read in a picture, for APIs that list them without the boxes around.
 * See answers.h for the rules of this library. */
#pragma once

#include "proto/answers.h"

struct recognized_text {
    char text[1024];
    float score, box[4]; /* the reader's, 0 … 1; left, top, right, bottom in pixels of the photo */
    float found;         /* score of the box, 0 … 1 */
    const struct answer_prediction
        *around; /* the box around it, of a stage before, such as a car; NULL: none */
};

struct recognized_texts {
    struct recognized_text *items;
    size_t count, capacity;
};

/* Collects the texts of a picture; without control bytes, and of a plate only letters, as capitals,
 * and digits. Those of plates are sorted, best first. The caller frees ret->items, also after a
 * failure. False: out of memory, and some are missing. */
bool collect_recognized_texts(const struct answer_image *image, bool is_plate,
                              struct recognized_texts *ret);
