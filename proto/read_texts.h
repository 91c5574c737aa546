/* The texts that a pipeline read in a picture, for APIs that list them without the boxes around.
 * See answers.h for the rules of this library. */
#pragma once

#include "proto/answers.h"

struct read_text {
    char text[1024];
    float score, box[4]; /* of the reader; corners in pixels of the photo */
    float found;         /* score of the box */
    const struct answer_prediction
        *around; /* the box around it, of a stage before, such as a car; NULL: none */
};

struct read_texts {
    struct read_text *items;
    size_t count, capacity;
};

/* Collects the texts of a picture. Those of plates are only capital letters and digits, best first.
 * The caller frees ret->items. False: out of memory, and some are missing. */
bool read_texts_of(const struct answer_image *image, bool is_plate, struct read_texts *ret);
