/* Words as labels (?labels=a dog,a cat): the model's other half encodes them, and a photo's vector
 * is compared with theirs. */
#pragma once

#include "server/http/api/texts.h"

#define REQUEST_LABELS_MAX   256
#define REQUEST_LABELS_BYTES 65536 /* of all of them */

/* Zeroed: the request has none. Free with request_labels_done. */
struct request_labels {
    char *list;                            /* the labels, terminated one by one; owned */
    const char *names[REQUEST_LABELS_MAX]; /* in `list` */
    size_t count;
    char prompt[ZERO_SHOT_PROMPT_MAX + 1]; /* "": the model's, or the default */
    struct zero_shot scores;               /* a vector for each label */
    struct request_words words;            /* of a detector: the labels as rows of its inputs */
    struct word_input input;               /* what that takes; form WORDS_NONE: a classifier */
    float *rows;                           /* owned: vectors for all places of the input */
    uint16_t *of_tokens;                   /* owned: words.words.of_tokens */
    void (*run)(struct exchange *exchange);

    /* For labels whose vectors are not cached. */
    struct request_texts texts;
    struct predict_request request;
    struct task_options options;
    char *prompts;                      /* owned: one text for each label */
    size_t missing[REQUEST_LABELS_MAX]; /* indices in `names` */
};

/* Reads `size` bytes, "a dog,a cat" (at most REQUEST_LABELS_MAX); a comma or a backslash that
 * belongs to a label has a backslash before it. STATUS_INVALID, STATUS_NO_MEMORY. */
enum status request_labels_read(struct request_labels *labels, const char *text, size_t size,
                                struct error *err) MUST_USE;
/* Reads the text of a label, with {} where it goes. STATUS_INVALID. */
enum status request_labels_set_prompt(struct request_labels *labels, const char *text,
                                      struct error *err) MUST_USE;

/* Makes the labels' vectors for the model that `request` names, then calls `run`, perhaps on
 * another thread, which submits the request, exchange->work; or answers with the error. The caller
 * must not touch the exchange afterwards. */
void request_labels_begin(struct exchange *x, struct request_labels *labels,
                          struct predict_request *request, void (*run)(struct exchange *exchange));

void request_labels_done(struct request_labels *labels);
