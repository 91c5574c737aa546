/* Reads a line of text from probabilities of characters, as PP-OCR does (CTC). Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* Zeroed: empty. Free with text_done(). */
struct text_reading {
    uint32_t *characters; /* indexes of the model's characters; the index after the last: a space */
    size_t count;
    float score;  /* mean probability of the characters; 0 if there are none */
    bool is_read; /* the image has a line, which may be empty */
};

void text_done(struct text_reading *line);

/* Decodes the line of one image from [positions, 1 + characters] probabilities or scores. Takes the
 * best class of each position, drops repetitions, and then drops class 0, the blank
 * (post_process_text_recognition of Hugging Face's PP-OCR, rapidocr's CTCLabelDecode). *ret must be
 * zeroed; the caller frees it, also after an error. STATUS_INVALID if the row has another shape;
 * STATUS_NUMERIC if a best probability is not finite; STATUS_NO_MEMORY. */
enum status text_decode(const struct task_rows *row, struct text_reading *ret,
                        struct error *err) MUST_USE;

/* Returns the separator between the texts of two consecutive boxes in reading order: " " if they
 * are side by side (they share half of the smaller height), "\n" if the second is below, and "\n\n"
 * if the gap between them is higher than the first box. Static. */
const char *text_separator(const struct detection *before, const struct detection *after);
