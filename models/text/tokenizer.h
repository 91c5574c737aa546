/* Converts text to token ids like Hugging Face's library `tokenizers` (github.com/huggingface/
 * tokenizers; the format of tokenizer.json has no other specification).
 *
 * A tokenizer is read once from a model's folder and never changes: any number of threads may use
 * it at the same time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct tokenizer;

/* The most bytes of a text; a longer text is STATUS_TOO_LARGE. */
#define TOKENIZER_TEXT_MAX ((size_t)1 << 20)

/* Properties of a tokenizer that serving a model needs. */
struct tokenizer_facts {
    const char *kind;       /* "WordPiece", "BPE", "byte-level BPE", "Unigram"; static */
    size_t vocabulary_size; /* all ids are below this number */
    /* Maximum number of tokens per text, special tokens included, from the folder's files;
     * SIZE_MAX: no limit. */
    size_t max_length;
    int64_t pad_id, pad_type_id; /* 0 if no file names a padding token */
    bool has_pad;                /* a file names a padding token */
    bool pads_left;
    size_t added_count;     /* number of special tokens added to each text */
    size_t fixed_length;    /* tokenizer.json pads texts to this length; 0: to the longest text */
    size_t length_multiple; /* pad_to_multiple_of of tokenizer.json; at least 1 */
    bool truncates;         /* tokenizer.json truncates long texts */
};

/* Reads the tokenizer in `folders`, which end with NULL, each file from the first folder with it:
 * tokenizer.json, else vocab.json and merges.txt, else vocab.txt, else spiece.model,
 * tokenizer.model, sentencepiece.bpe.model or sentencepiece.model; with tokenizer_config.json,
 * special_tokens_map.json and config.json beside it. Refuses special files and links that leave a
 * folder. STATUS_NOT_FOUND: no folder has a tokenizer. STATUS_MODEL: a file is damaged or
 * contradicts itself; STATUS_UNSUPPORTED names a part that lensd does not support; STATUS_IO,
 * STATUS_NO_MEMORY. Every error names the file. Free *ret with tokenizer_free(). */
enum status tokenizer_open(const char *const *folders, struct tokenizer **ret,
                           struct error *err) MUST_USE;

/* Returns the name of the i-th possible vocabulary file, best first; NULL after the last. */
const char *tokenizer_file(size_t i);

void tokenizer_free(struct tokenizer *tokenizer); /* NULL is fine */

const struct tokenizer_facts *tokenizer_facts(const struct tokenizer *tokenizer);

/* Writes a line for people and returns it: "byte-level BPE, 49408 tokens, texts of up to 77". */
const char *tokenizer_describe(const struct tokenizer *tokenizer, char *buffer, size_t size);

/* Returns the id of a token as written in the vocabulary ("[SEP]", "</s>"); -1 if there is none. */
int64_t tokenizer_id(const struct tokenizer *tokenizer, const char *token);

/* Options for encoding one text. Zeroed: follow the files, and refuse a text that is too long. */
struct encode_options {
    size_t max_length; /* tokens, special ones included; 0: facts->max_length */
    bool truncate;     /* truncate texts that are too long, as facts->truncates does */
    bool omit_special; /* add no special tokens */
};

/* The tokens of one text, without padding. */
struct token_list {
    int64_t *ids, *types; /* `count` each, types of 0 or 1; one malloc'ed block */
    size_t count;         /* with special tokens, after truncation, without padding */
};

/* Encodes text[0 … size), UTF-8 that need not be terminated; empty text gives the special tokens.
 * STATUS_INVALID: not UTF-8, or more than max_length tokens (the error has their number), or
 * max_length has no room for the special tokens; STATUS_TOO_LARGE: more than TOKENIZER_TEXT_MAX
 * bytes, or normalization makes the text far longer; STATUS_NO_MEMORY. On success
 * the caller frees *ret with token_list_done(). */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size,
                             const struct encode_options *options, struct token_list *ret,
                             struct error *err) MUST_USE;
void token_list_done(struct token_list *list); /* zeroes are fine */

/* The numbers that an input takes for tokens: ids, mask values (1: token, 0: padding) or types. */
enum text_input_kind { TEXT_NONE, TEXT_IDS, TEXT_MASK, TEXT_TYPES };

/* Returns number `i` of a row of `length` numbers, at least list->count. The row is padded on the
 * left or right as the tokenizer's files say. */
int64_t tokenizer_cell(const struct tokenizer *tokenizer, const struct token_list *list,
                       size_t length, enum text_input_kind kind, size_t i);
