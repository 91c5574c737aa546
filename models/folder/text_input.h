/* Converts texts to inputs of a model, with its tokenizer.
 *
 * All rows of a pass have the same number of tokens. The model's file sets the number, else the
 * tokenizer, within the limits below. If padding does not change vectors, short texts get short
 * rows. */
#pragma once

#include "engine/graph/graph.h"
#include "models/text/tokenizer.h"

#define TEXT_INPUTS_MAX 3
/* The most tokens per row, unless the model's file fixes the number. */
#define TEXT_BESIDE_MAX 256 /* of a text beside a photo, as in Grounding DINO */
#define TEXT_LENGTH_MAX 512 /* of a text alone, unless the tokenizer's padding fixes the number */

/* Zeroed: the model takes no texts. Immutable after load; free with text_input_done(). */
struct text_input {
    struct tokenizer *tokenizer;                 /* owned; NULL: the model takes no texts */
    size_t length;                               /* tokens per row */
    bool allows_short_rows;                      /* short texts may have short rows */
    size_t input_count;                          /* inputs that take tokens */
    enum text_input_kind kinds[TEXT_INPUTS_MAX]; /* kind of each input, in the graph's order */
    size_t at[TEXT_INPUTS_MAX];                  /* indexes of these inputs in the graph */
    bool are_32[TEXT_INPUTS_MAX];                /* dtype of each input: int32, else int64 */
};

/* Returns which input for tokens has this name; TEXT_NONE: none. */
enum text_input_kind text_input_named(const char *name);

/* Returns the kind of an input with the shape, dtype and name of an input for tokens. */
enum text_input_kind text_input_kind_of(const struct value *input);

/* Finds the inputs of a graph that takes only tokens (with `beside`: tokens and a photo), and sets
 * their length. The tokenizer is in `folders`, which end with NULL. Without such inputs or a
 * tokenizer *ret is zeroed. Errors are those of tokenizer_open(). */
enum status text_input_read(struct graph *graph, bool beside, const char *const *folders,
                            struct text_input *ret, struct error *err) MUST_USE;

/* Updates text->at after the graph's other inputs have changed. */
void text_input_place(const struct graph *graph, struct text_input *text);
void text_input_done(struct text_input *text);

/* Returns the row length for texts of at most `tokens` tokens: text->length or, with
 * allows_short_rows, the smallest of 16, 32, 64 … below text->length that fits the tokens and is at
 * least a sixteenth of text->length. */
size_t text_input_row_length(const struct text_input *text, size_t tokens);
/* Sets the row length in `text` and in the graph's inputs. Call it before the graph is compiled. */
void text_input_set_length(const struct graph *graph, struct text_input *text, size_t length);

/* A text of a request. */
struct text_item {
    const char *text; /* UTF-8, `size` bytes; NULL: the text is given as `ids` */
    size_t size;
    const int64_t *ids; /* tokens, with the special tokens */
    size_t id_count;
};

/* Texts as rows of a model's inputs. Zeroed: no texts. */
struct text_rows {
    void *inputs[TEXT_INPUTS_MAX]; /* count rows of `length` int32 or int64 each; owned */
    size_t tokens, longest;        /* without padding: tokens of all texts, of the longest text */
};

/* Makes the rows of `count` texts. With `truncate` a text that is too long is truncated.
 * STATUS_INVALID: a text is empty, not UTF-8 or too long, or an id is not in the vocabulary; if
 * there are several texts, the error says which one. STATUS_TOO_LARGE; STATUS_NO_MEMORY. Free *ret
 * with text_rows_done(), also after a failure. Any thread. */
enum status text_rows_make(const struct text_input *text, const struct text_item *items,
                           size_t count, bool truncate, struct text_rows *ret,
                           struct error *err) MUST_USE;
/* Shortens `count` rows to `length` tokens, at least rows->longest, by removing padding. */
void text_rows_shorten(const struct text_input *text, size_t count, size_t length,
                       struct text_rows *rows);
void text_rows_done(struct text_rows *rows);
