/* Labels in a request (?labels=a dog,a cat). The model's half for texts turns them into vectors. A
 * classifier compares a photo's vector with theirs; a detector takes the vectors as an input, or
 * takes the labels as tokens. */
#pragma once

#include "server/http/api/submission.h"

#define REQUEST_LABELS_MAX   256
#define REQUEST_LABELS_BYTES 65536 /* of all labels */

/* A zeroed struct means that the request has no labels. Free with request_labels_done(). */
struct request_labels {
    char *list;                            /* the labels, terminated one by one; owned */
    const char *names[REQUEST_LABELS_MAX]; /* point into `list` */
    size_t count;
    char prompt[ZERO_SHOT_PROMPT_MAX + 1]; /* if "", the model's prompt applies, or the default */
    struct zero_shot scores;               /* one vector per label */
    struct request_words words;            /* for a detector: the labels as rows of its inputs */
    struct word_input input; /* of a detector, for labels; its `form` is WORDS_NONE if the model is
                                a classifier */
    float *rows;             /* owned: vectors for all rows of `input` */
    exchange_fn *run;        /* the argument of request_labels_begin() */
    uint16_t *of_tokens;     /* owned: the label's index for each token; words.words borrows it */

    /* The texts of labels whose vectors are not cached. */
    struct request_texts texts;
    struct predict_request request;
    struct task_options options;
    char *prompts;                      /* owned: one text per label */
    size_t missing[REQUEST_LABELS_MAX]; /* for each of `texts`, its index in `names` */
};

/* Reads `size` bytes such as "a dog,a cat" (at most REQUEST_LABELS_MAX labels). A backslash escapes
 * a comma or a backslash in a label. STATUS_INVALID, STATUS_NO_MEMORY. */
enum status request_labels_read(struct request_labels *labels, const char *text, size_t size,
                                struct error *err) MUST_USE;
/* Sets the prompt, a text with {} in place of the label. STATUS_INVALID. */
enum status request_labels_set_prompt(struct request_labels *labels, const char *text,
                                      struct error *err) MUST_USE;

/* Encodes the labels of exchange->work, a struct predict_work, for the model of its request. Then
 * calls `run`, perhaps on another thread, to submit the photos. On failure it answers with the
 * error. The caller must not touch the exchange afterwards. */
void request_labels_begin(struct exchange *x, exchange_fn *run);

void request_labels_done(struct request_labels *labels);
