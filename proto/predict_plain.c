/* Answers of /predict that are not JSON: lines of text, or numbers. */
#include <stdio.h>
#include <string.h>

#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "proto/answers.h"

/* Writes a text. '?' replaces control characters except `kept`, and all but ASCII if the text is
 * not UTF-8. */
static void put_text(FILE *out, const char *text, char kept)
{
    bool valid = utf8_valid(text, strlen(text));
    for (const char *c = text; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        const bool is_control = (byte < 0x20 && *c != kept) || byte == 0x7F;
        fputc(is_control || (byte >= 0x80 && !valid) ? '?' : *c, out);
    }
}

static void put_lines(FILE *out, const struct answer_image *image, int depth)
{
    if (image->error)
        fprintf(out, "%*serror %s: %s\n", 2 * depth, "", image->code, image->error);
    if (image->text && image->kind == ANSWER_BOXES) {
        put_text(out, image->text, '\n');
        fputc('\n', out);
        return;
    }
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        fprintf(out, "%*s%.6f ", 2 * depth, "", (double)prediction->probability);
        for (int k = 0; image->kind == ANSWER_BOXES && k < 4; k++)
            fprintf(out, "%.2f ", (double)prediction->box[k]);
        if (prediction->track_id)
            fprintf(out, "#%u ", prediction->track_id);
        if (prediction->label)
            put_text(out, prediction->label, '\0'); /* one line */
        else
            fprintf(out, "%zu", prediction->index);
        fputc('\n', out);
        if (prediction->crop)
            put_lines(out, prediction->crop, depth + 1);
    }
    if (image->text) {
        fprintf(out, "%*s%.6f ", 2 * depth, "", (double)image->text_score);
        put_text(out, image->text, '\0');
        fputc('\n', out);
    }
    if (image->depth)
        fprintf(out, "%*s%.9g %.9g\n", 2 * depth, "", (double)image->depth_least,
                (double)image->depth_greatest);
    for (size_t i = 0; i < image->embedding_count; i++)
        fprintf(out, "%*s%.9g%c", i ? 0 : 2 * depth, "", (double)image->embedding[i],
                i + 1 < image->embedding_count ? ' ' : '\n');
}

/* Little-endian, like all supported machines. */
static void put_number(FILE *out, uint32_t value)
{
    fwrite(&value, sizeof value, 1, out);
}

static void put_numbers(FILE *out, const struct answer_image *image)
{
    if (image->error) {
        put_number(out, UINT32_MAX);
        return;
    }
    const size_t bytes = image->text ? strlen(image->text) : 0;
    put_number(out, (uint32_t)(image->prediction_count + image->embedding_count + bytes));
    if (image->text) {
        fwrite(&image->text_score, sizeof image->text_score, 1, out);
        fwrite(image->text, 1, bytes, out);
    }
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        put_number(out, (uint32_t)prediction->index);
        fwrite(&prediction->probability, sizeof prediction->probability, 1, out);
        if (image->kind == ANSWER_BOXES)
            fwrite(prediction->box, sizeof prediction->box, 1, out);
        if (prediction->track_id)
            put_number(out, prediction->track_id);
    }
    if (image->embedding)
        fwrite(image->embedding, sizeof *image->embedding, image->embedding_count, out);
}

char *predict_answer_lines(const struct predict_answer *answer)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; out && i < answer->image_count; i++) {
        if (i > 0)
            fputc('\n', out);
        put_lines(out, &answer->images[i], 0);
    }
    return text_close(out, &text);
}

char *predict_answer_numbers(const struct predict_answer *answer, size_t *ret_size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_size);
    for (size_t i = 0; out && i < answer->image_count; i++)
        put_numbers(out, &answer->images[i]);
    return text_close(out, &text);
}
