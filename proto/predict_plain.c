/* Answers of /predict that are not JSON: lines of text, or numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "proto/answers.h"

/* Writes a label as one line, whatever it contains. */
static void put_label(FILE *out, const char *label)
{
    bool valid = utf8_valid(label, strlen(label));
    for (const unsigned char *c = (const unsigned char *)label; *c; c++)
        fputc(*c < 0x20 || *c == 0x7F || (*c >= 0x80 && !valid) ? '?' : *c, out);
}

static void put_lines(FILE *out, const struct answer_image *image)
{
    if (image->error)
        fprintf(out, "error %s: %s\n", image->code, image->error);
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        fprintf(out, "%.6f ", (double)prediction->probability);
        for (int k = 0; image->kind == ANSWER_BOXES && k < 4; k++)
            fprintf(out, "%.2f ", (double)prediction->box[k]);
        if (prediction->label)
            put_label(out, prediction->label);
        else
            fprintf(out, "%zu", prediction->index);
        fputc('\n', out);
    }
    if (image->text) {
        fprintf(out, "%.6f ", (double)image->text_score);
        put_label(out, image->text);
        fputc('\n', out);
    }
    if (image->depth)
        fprintf(out, "%.9g %.9g\n", (double)image->depth_least, (double)image->depth_greatest);
    for (size_t i = 0; i < image->embedding_count; i++)
        fprintf(out, "%.9g%c", (double)image->embedding[i],
                i + 1 < image->embedding_count ? ' ' : '\n');
}

static void put_number(FILE *out, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)value, (unsigned char)(value >> 8),
                                    (unsigned char)(value >> 16), (unsigned char)(value >> 24)};
    fwrite(bytes, 1, sizeof bytes, out);
}

static void put_float(FILE *out, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_number(out, bits);
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
        put_float(out, image->text_score);
        fwrite(image->text, 1, bytes, out);
    }
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *prediction = &image->predictions[i];
        put_number(out, (uint32_t)prediction->index);
        put_float(out, prediction->probability);
        for (int k = 0; image->kind == ANSWER_BOXES && k < 4; k++)
            put_float(out, prediction->box[k]);
    }
    for (size_t i = 0; i < image->embedding_count; i++)
        put_float(out, image->embedding[i]);
}

static char *finish_plain(FILE *out, char **text)
{
    bool failed = ferror(out);
    if (fclose(out) == 0 && !failed)
        return *text;
    free(*text);
    return NULL;
}

char *predict_answer_lines(const struct predict_answer *answer, size_t *ret_size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_size);
    for (size_t i = 0; out && i < answer->image_count; i++) {
        if (i > 0)
            fputc('\n', out);
        put_lines(out, &answer->images[i]);
    }
    return out ? finish_plain(out, &text) : NULL;
}

char *predict_answer_numbers(const struct predict_answer *answer, size_t *ret_size)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_size);
    for (size_t i = 0; out && i < answer->image_count; i++)
        put_numbers(out, &answer->images[i]);
    return out ? finish_plain(out, &text) : NULL;
}
