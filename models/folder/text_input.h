/* How texts become the inputs of a model: its tokenizer, and which inputs get the tokens.
 *
 * Every row has the same number of tokens, so texts of any length share a forward pass. The model's
 * file sets the number, else the tokenizer, else TEXT_LENGTH_MAX. */
#pragma once

#include "engine/graph/graph.h"
#include "models/text/tokenizer.h"

#define TEXT_INPUTS_MAX 3
#define TEXT_BESIDE_MAX                                                                            \
    256 /* tokens beside a photo, if the file has no limit: Grounding DINO's                       \
         */
#define TEXT_LENGTH_MAX                                                                            \
    512 /* tokens of a row where neither the file nor the tokenizer limit it                       \
         */

enum text_input_kind { TEXT_IDS, TEXT_MASK, TEXT_TYPES };

/* Zeroed: the model takes no texts. Immutable after load; free with text_input_done. */
struct text_input {
    struct tokenizer *tokenizer;                 /* owned; NULL: the model takes no texts */
    size_t length;                               /* tokens of a row */
    size_t input_count;                          /* inputs that get tokens */
    enum text_input_kind kinds[TEXT_INPUTS_MAX]; /* of these inputs, in the graph's order */
    size_t at[TEXT_INPUTS_MAX];                  /* their places among the graph's inputs */
    bool are_32[TEXT_INPUTS_MAX];                /* int32, else int64 */
};

/* True if an input of tokens may have this name (not terminated); then *ret is its kind. */
bool text_input_is_name(const char *name, size_t size, enum text_input_kind *ret);

/* True if an input has a type and a name for tokens; then *ret is its kind. */
bool text_input_kind_of(const struct value *input, enum text_input_kind *ret);

/* Finds the inputs of a graph that takes nothing but tokens (with `beside`: and a photo), and sets
 * their length, with the tokenizer in folders[0 … count). Without inputs or tokenizer *ret is
 * zeroed. Errors are those of tokenizer_open(). */
enum status text_input_read(struct graph *graph, bool beside, const char *const folders[],
                            size_t count, struct text_input *ret, struct error *err) MUST_USE;

/* Sets text->at anew, after the graph's other inputs have changed. */
void text_input_place(const struct graph *graph, struct text_input *text);
void text_input_done(struct text_input *text);

/* A text of a request. */
struct text_item {
    const char *text; /* UTF-8, `size` bytes; NULL: `ids` */
    size_t size;
    const int64_t *ids; /* tokens, with the special ones */
    size_t id_count;
};

/* Texts as rows of a model's inputs. Zeroed: none. */
struct text_rows {
    void *inputs[TEXT_INPUTS_MAX]; /* count rows of `length` int32 or int64 each; owned */
    size_t tokens;                 /* without padding */
};

/* Makes the rows of `count` texts. With `truncate` a text that is too long is cut. STATUS_INVALID:
 * a text is empty, not UTF-8 or too long, or an id is not in the vocabulary (the sentence says
 * which text, if there are several); STATUS_TOO_LARGE; STATUS_NO_MEMORY. Free *ret with
 * text_rows_done(); it is zeroes after a failure. Any thread. */
enum status text_rows_make(const struct text_input *text, const struct text_item *items,
                           size_t count, bool truncate, struct text_rows *ret,
                           struct error *err) MUST_USE;
void text_rows_done(struct text_rows *rows);
