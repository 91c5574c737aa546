/* Private to models/text/: a tokenizer's stages, and how each is read from tokenizer.json.
 *
 * To encode a text: rewrite it by steps (cleaners); split it at added tokens; rewrite each part by
 * steps (normalizers); split at normalised added tokens; split further by steps (pre-tokenizers);
 * turn each part into ids by the model; add special tokens by the template. */
#pragma once

#include "models/text/json_fields.h"
#include "models/text/parts.h"
#include "models/text/regex.h"
#include "models/text/tokenizer.h"
#include "models/text/trie.h"

/* ---- Vocabulary (vocabulary.c) ---- */

#define TOKEN_IDS_MAX   ((size_t)1 << 22)
#define TOKEN_BYTES_MAX 8192
#define TOKEN_NONE      (-1)
#define TOKEN_MISSING   (-2) /* a file names a token that the vocabulary lacks */

struct vocabulary {
    /* Maps tokens to ids. A token that no text produces, such as sentencepiece's control and byte
     * pieces, has -2 - id here, because searches of texts skip negative numbers. */
    struct trie trie;
    size_t count;    /* the largest id + 1 */
    size_t distinct; /* number of different tokens */
};

/* Adds a token or replaces its id. `is_hidden`: no text produces it; it does not replace a token
 * that texts produce. STATUS_MODEL, STATUS_NO_MEMORY. */
enum status vocabulary_add(struct vocabulary *vocabulary, const char *token, size_t size, size_t id,
                           bool is_hidden, struct error *err) MUST_USE;
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token);
/* Reads {"token": id, …}. */
enum status vocabulary_read(struct vocabulary *vocabulary, const struct cJSON *json,
                            struct error *err) MUST_USE;
/* Finds the ids of <0x00> … <0xFF>; TOKEN_NONE for a missing id. */
void vocabulary_bytes(const struct vocabulary *vocabulary, int32_t ret[static 256]);

/* ---- Ids ---- */

struct id_list {
    int32_t *ids;
    size_t count, room;
    enum status failed;
    void *scratch; /* memory for one call of tokenize(), of `scratch_room` elements */
    size_t scratch_room;
};
void ids_add(struct id_list *list, int32_t id);

/* ---- Models ---- */

/* tokenize() appends the ids of a non-empty part. It records a failure in `to`. STATUS_INVALID: the
 * vocabulary lacks a character, and has no token for unknown characters. */
struct token_model {
    const char *kind;
    struct vocabulary vocabulary;
    size_t size; /* size of the vocabulary: the first id of added tokens */
    void (*tokenize)(const struct token_model *model, const char *text, size_t size,
                     struct id_list *to);
    int32_t unknown; /* TOKEN_NONE: BPE drops unknown characters, other models refuse them */
    bool fuses_unknown, ignores_merges, has_byte_fallback;
    int32_t bytes[256];    /* has_byte_fallback: ids of <0x00> … <0xFF> */
    char *prefix, *suffix; /* of a word's later tokens (##); of its last token (</w>); not NULL */
    size_t word_max;       /* WordPiece: most characters of a word */
    double *scores;        /* Unigram: the score of each id */
    double unknown_score;
    bool sums_floats; /* adds scores in single precision, as sentencepiece does */
    struct merge {
        uint32_t left, right; /* both 0xFFFFFFFF: the slot is free */
        uint32_t rank;
        int32_t to;
    } * merges; /* BPE: a hash table of 1 << merge_bits */
    unsigned merge_bits;
    size_t merge_count;
};

void token_model_done(struct token_model *model);

/* True if the model falls back to tokens of bytes, and each byte of the text has a token. */
bool model_has_bytes(const struct token_model *model, const char *text, size_t size);

enum status bpe_read(const struct cJSON *json, struct token_model *model,
                     struct error *err) MUST_USE;
/* Adds the merge of two tokens. STATUS_MODEL: the vocabulary lacks one of them or the merged token.
 * STATUS_NO_MEMORY. */
enum status bpe_add_merge(struct token_model *model, const char *left, size_t left_size,
                          const char *right, size_t right_size, size_t rank,
                          struct error *err) MUST_USE;
void bpe_tokenize(const struct token_model *model, const char *text, size_t size,
                  struct id_list *to);
void wordpiece_tokenize(const struct token_model *model, const char *text, size_t size,
                        struct id_list *to);
enum status unigram_read(const struct cJSON *json, struct token_model *model,
                         struct error *err) MUST_USE;
void unigram_tokenize(const struct token_model *model, const char *text, size_t size,
                      struct id_list *to);

/* ---- Steps: normalizers (normalize.c) and pre-tokenizers (pre_tokenize.c) ---- */

struct text_step;

/* Appends the result for one part; records a failure in `to`. `at_start`: see text_part. */
typedef void step_fn(const struct text_step *step, const char *text, size_t size, bool at_start,
                     struct text_parts *to);

struct text_step {
    step_fn *run;
    bool (*matches)(uint32_t character); /* true for characters to drop or to split at */
    struct text_regex *regex;
    char *content;      /* to insert, malloc'ed */
    uint32_t character; /* to split at, or to replace */
    enum split_behavior behavior;
    bool flags[2]; /* their meaning depends on the kind */
    size_t length; /* Precompiled: units of the double array in `content`; texts follow them */
    size_t content_size;
    const struct added_tokens *added; /* to split at */
    const struct trie *trie;          /* finds these tokens: added->raw or added->normalized */
};

#define STEPS_MAX 32

struct step_list {
    struct text_step steps[STEPS_MAX];
    size_t count;
};

/* A kind of step: its name in the file, the step, perhaps a second step, and the members to read.
 * read() gets the last of these steps, and may add further steps; it may be NULL. */
struct step_kind {
    const char *type;
    struct text_step step, then; /* then.run is NULL: there is no second step */
    const char *flag_keys[2], *content_key;
    bool has_pattern, has_behavior;
    enum status (*read)(const struct cJSON *json, struct step_list *list, struct text_step *step,
                        struct error *err);
};

/* Adds a step to the list, which must have room. */
struct text_step *step_add(struct step_list *list, struct text_step step);
/* Reads a step or a Sequence of steps; null adds none. `what` names a step ("normalizer"),
 * `list_key` is the member of a Sequence that lists its steps. `depth` is the number of sequences
 * around `json`: 0 for callers. */
enum status steps_read(const struct cJSON *json, const char *what, const char *list_key,
                       const struct step_kind *kinds, size_t kind_count, size_t depth,
                       struct step_list *list, struct error *err) MUST_USE;
void steps_done(struct step_list *list);
/* Runs a step, or each step of a list, on each part that is text. *parts gets the result; *spare is
 * scratch memory. */
void step_run(const struct text_step *step, struct text_parts *parts, struct text_parts *spare);
void steps_run(const struct step_list *list, struct text_parts *parts, struct text_parts *spare);
/* Adds Immich's "canonicalize": removes ASCII punctuation, makes lower case. */
void normalizers_canonicalize(struct step_list *list);
enum status normalizers_read(const struct cJSON *json, struct step_list *list,
                             struct error *err) MUST_USE;
enum status pre_tokenizers_read(const struct cJSON *json, struct step_list *list,
                                struct error *err) MUST_USE;
/* Makes the step replace text by a table of sentencepiece; copies its `size` bytes. */
enum status charsmap_set(struct text_step *step, const uint8_t *bytes, size_t size,
                         struct error *err) MUST_USE;
/* Returns the replacement for the table's longest or shortest key at the start of a text, and the
 * lengths of the key and of the replacement in bytes; NULL if there is none. */
const char *charsmap_find(const struct text_step *step, const char *text, size_t size,
                          bool is_longest, size_t *ret_key, size_t *ret_length);
/* Writes each byte as its character in byte-level vocabularies. */
step_fn step_bytes;

/* ---- Added tokens (added_tokens.c) ---- */

struct added_token {
    char *content;
    int32_t id;
    bool is_single_word, strips_left, strips_right;
    bool is_normalized; /* search normalised texts for the normalised token */
    bool is_literal;    /* search normalised texts for the token itself */
};

struct added_tokens {
    struct added_token *list;
    size_t count, room, new_count;         /* new_count: ids added to the model's own */
    struct trie raw, normalized, contents; /* map to indexes in `list` */
};

/* Splits a text at added tokens. */
step_fn step_added;

/* ---- The tokenizer, made of the parts above ---- */

struct tokenizer {
    struct tokenizer_facts facts;
    struct added_tokens added;
    struct step_list cleaners, normalizers, pre_tokenizers;
    struct token_model model;
    struct template_piece {
        int32_t id; /* TOKEN_NONE: the text */
        int32_t type;
    } pieces[64]; /* the template */
    size_t piece_count;
    bool truncates_left;
    int32_t bos, eos; /* sentencepiece: tokens that the tokenizer's class may add */
};

/* Reads the members of tokenizer.json (tokenizer_json.c). */
enum status tokenizer_read_json(const struct cJSON *json, struct tokenizer *ret,
                                struct error *err) MUST_USE;
/* Reads the post-processor (template.c); null adds no tokens. */
enum status template_read(const struct cJSON *json, struct tokenizer *ret,
                          struct error *err) MUST_USE;
/* Makes the template that adds one token before and one after the text; TOKEN_NONE: none. */
enum status template_set(struct tokenizer *ret, int32_t bos, int32_t eos,
                         struct error *err) MUST_USE;

enum status added_tokens_read(const struct cJSON *json, struct tokenizer *ret,
                              struct error *err) MUST_USE;
/* Adds a token with the flags of `token`. Its id is that of the same token in the vocabulary or
 * among added tokens, else the next free id. */
enum status added_tokens_add(struct tokenizer *tokenizer, const char *content,
                             struct added_token token, struct error *err) MUST_USE;
void added_tokens_done(struct added_tokens *added);

/* Reads a sentencepiece model (sentencepiece.c). */
enum status sentencepiece_read(char *bytes, size_t size, struct tokenizer *ret,
                               struct error *err) MUST_USE;

/* forms.json, which embed.py makes part of the binary. */
extern const unsigned char tokenizer_forms[];
extern const size_t tokenizer_forms_size;

/* Reads the files that the folders have (tokenizer_files.c). */
enum status tokenizer_read_files(const char *const *folders, struct tokenizer *ret,
                                 struct error *err) MUST_USE;
