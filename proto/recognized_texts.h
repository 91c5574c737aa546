/* The texts that a pipeline read in a photo, for APIs that list texts without the boxes around
 * them. See answers.h for the rules of this library. */
#pragma once

#include "proto/answers.h"

struct recognized_text {
    char text[1024];
    float score, box[4]; /* 0 … 1; left, top, right, bottom in pixels of the photo */
    float found;         /* score of the box, 0 … 1 */
    const struct answer_prediction *around; /* an earlier stage's box, such as a car; or NULL */
};

struct recognized_texts {
    struct recognized_text *items;
    size_t count, capacity;
};

/* Collects the texts of a photo without control bytes. Of plates only digits and letters, as
 * capitals, are kept; plates are sorted, best first. The caller frees ret->items, even after a
 * failure. Returns false when out of memory; some texts are then missing. */
bool collect_recognized_texts(const struct answer_image *image, bool is_plate,
                              struct recognized_texts *ret);
