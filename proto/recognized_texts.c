/* Collects the texts of a pipeline's crops. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/array.h"
#include "proto/dialects.h"

/* Copies a text without control bytes, or only a plate's letters (as capitals) and digits. */
static void clean_text(const char *text, bool is_plate, char *ret, size_t room)
{
    size_t used = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at && used + 1 < room; at++)
        if (is_plate ? *at < 0x80 && isalnum(*at) : *at >= ' ')
            ret[used++] = (char)(is_plate ? toupper(*at) : *at);
    ret[used] = '\0';
}

/* Adds the texts of a picture's crops; the picture begins at (x, y) of the photo. Recurses into
 * crops that have boxes (a car with a plate), as deep as pipelines have stages. */
static bool collect_texts(const struct answer_image *image, bool is_plate,
                          const struct answer_prediction *around, float x, float y,
                          struct recognized_texts *ret)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        const struct answer_image *crop = found->crop;
        struct recognized_text read = {
            .score = crop ? crop->text_score : 0,
            .found = found->probability,
            .around = around,
            .box = {found->box[0] + x, found->box[1] + y, found->box[2] + x, found->box[3] + y}};
        if (!crop || crop->error)
            continue;
        if (crop->kind == ANSWER_BOXES) {
            if (!collect_texts(crop, is_plate, found, floorf(read.box[0]), floorf(read.box[1]),
                               ret))
                return false;
            continue;
        }
        clean_text(crop->text ? crop->text : "", is_plate, read.text, sizeof read.text);
        if (!read.text[0])
            continue;
        if (!array_reserve(&ret->items, &ret->capacity, ret->count + 1, sizeof *ret->items))
            return false;
        ret->items[ret->count++] = read;
    }
    return true;
}

static int by_score(const void *a, const void *b)
{
    const struct recognized_text *left = a, *right = b;
    return (left->score < right->score) - (left->score > right->score);
}

bool collect_recognized_texts(const struct answer_image *image, bool is_plate,
                              struct recognized_texts *ret)
{
    *ret = (struct recognized_texts){NULL};
    const bool is_whole = collect_texts(image, is_plate, NULL, 0, 0, ret);
    if (is_plate && ret->count)
        qsort(ret->items, ret->count, sizeof *ret->items, by_score);
    return is_whole;
}
