/* Reads a line of text from the probabilities of characters, as PP-OCR does (CTC). Pure; any
 * thread. */
#pragma once

#include "models/tasks/detect.h"

/* Zeroed: none. Free with text_done. */
struct text_reading {
    uint32_t *characters; /* their numbers in the model's list, from 0; the number after the last
                             one is a space */
    size_t count;
    float score;  /* mean probability of the characters; 0 if there are none */
    bool is_read; /* the image has a line, which may be empty */
};

void text_done(struct text_reading *line);

/* Decodes the line of one image, [positions, 1 + characters], probabilities or scores: the best
 * class of each position, without repetitions of the one before and without class 0, the blank
 * (post_process_text_recognition of Hugging Face's PP-OCR, rapidocr's CTCLabelDecode). On success
 * the caller frees *ret. STATUS_INVALID if the row has another shape; STATUS_NUMERIC if a best
 * probability is not finite; STATUS_NO_MEMORY. */
enum status text_decode(const struct task_rows *row, struct text_reading *ret,
                        struct error *err) MUST_USE;

/* What separates the texts of two boxes of a page that follow each other in reading order: " " if
 * they stand side by side (they share half of the smaller height), "\n" if the second is below, and
 * "\n\n" if the gap between them is higher than the first one. Static. */
const char *text_separator(const struct detection *before, const struct detection *after);
