/* Reads sentencepiece's models: pieces become a vocabulary, the rules become a normalizer, and the
 * scores of BPE's pieces become ranks of merges. */
#include <math.h>
#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/characters.h"
#include "models/text/pipeline.h"
#include "proto/sentencepiece.pb-c.h"

typedef Sentencepiece__ModelProto__SentencePiece piece_t;
#define PIECE(type) SENTENCEPIECE__MODEL_PROTO__SENTENCE_PIECE__TYPE__##type

/* Limit for the memory that unpacking a file takes. */
#define UNPACKED_MAX ((size_t)256 << 20)

struct piece_unpacking {
    size_t left;
    bool no_memory; /* the system has no memory; the file may be fine */
};

static void *limited_alloc(void *context, size_t size)
{
    struct piece_unpacking *unpacking = context;
    if (size > unpacking->left)
        return NULL;
    unpacking->left -= size;
    void *memory = malloc(size);
    unpacking->no_memory |= !memory;
    return memory;
}

static void limited_free(void *context, void *memory)
{
    (void)context;
    free(memory);
}

/* ---- The normalizer ---- */

static const char blank_mark[] = "\xE2\x96\x81"; /* U+2581 */

/* Rewrites a part by sentencepiece's rules: blanks, and the longest key in the table at each place.
 * step->flags: add_dummy_prefix, remove_extra_whitespaces. */
static void run_rules(const struct text_step *step, const char *text, size_t size, bool at_start,
                      struct text_parts *to)
{
    bool was_blank = step->flags[1];
    const size_t start = to->size;
    if (step->flags[0])
        text_parts_add(to, blank_mark, 3);
    for (size_t i = 0, key, length; i < size; i += key) {
        const char *made = charsmap_find(step, text + i, size - i, true, &key, &length);
        if (!made) {
            made = text + i;
            key = 0;
            character_next(text + i, size - i, &key);
            length = key;
        }
        for (size_t m = 0; m < length; m++) {
            const bool is_blank = made[m] == ' ';
            if (!is_blank || !was_blank)
                text_parts_add(to, is_blank ? blank_mark : made + m, is_blank ? 3 : 1);
            was_blank = is_blank && step->flags[1];
        }
    }
    while (step->flags[1] && to->size >= start + 3 &&
           !memcmp(to->text + to->size - 3, blank_mark, 3))
        to->size -= 3;
    text_parts_end(to, -1, at_start);
}

static enum status read_rules(const Sentencepiece__NormalizerSpec *spec, struct tokenizer *ret,
                              struct error *err)
{
    struct text_step *step = step_add(&ret->normalizers, (struct text_step){run_rules});
    if (spec && !spec->escape_whitespaces)
        return error_set(err, STATUS_UNSUPPORTED,
                         "lensd does not support escape_whitespaces: false");
    if (spec && spec->precompiled_charsmap.len)
        TRY(charsmap_set(step, spec->precompiled_charsmap.data, spec->precompiled_charsmap.len,
                         err));
    step->run = run_rules;
    step->flags[0] = !spec || spec->add_dummy_prefix;
    step->flags[1] = !spec || spec->remove_extra_whitespaces;
    return STATUS_OK;
}

/* ---- The vocabulary ---- */

static enum status read_piece(const piece_t *piece, size_t id, struct tokenizer *ret,
                              struct error *err)
{
    struct token_model *model = &ret->model;
    const char *text = piece->piece ? piece->piece : "";
    if (!*text || !isfinite(piece->score))
        return error_set(err, STATUS_MODEL, "piece %zu is empty, or its score is not a number", id);
    const bool is_unused = piece->type == PIECE(UNUSED);
    if (is_unused && !model->scores)
        return error_set(err, STATUS_UNSUPPORTED, "lensd does not support unused pieces in BPE");
    if (piece->type == PIECE(UNKNOWN))
        model->unknown = (int32_t)id;
    if (model->scores) {
        model->scores[id] = piece->score;
        if (piece->type == PIECE(NORMAL))
            model->unknown_score = fmin(model->unknown_score, piece->score);
    }
    TRY(vocabulary_add(&model->vocabulary, text, strlen(text), id,
                       piece->type != PIECE(NORMAL) && piece->type != PIECE(USER_DEFINED), err));
    return piece->type != PIECE(USER_DEFINED)
               ? STATUS_OK
               : added_tokens_add(ret, text, (struct added_token){.is_literal = true}, err);
}

/* Returns a rank that falls as the score rises; equal scores have equal ranks. */
static size_t rank_of(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return score < 0 ? bits : 0x7FFFFFFF - (bits & 0x7FFFFFFF);
}

/* Adds the merges that make this piece. BPE merges any two pieces whose texts together are a piece,
 * the piece with the best score first. */
static enum status read_merges(const piece_t *piece, struct token_model *model, struct error *err)
{
    const struct trie *trie = &model->vocabulary.trie;
    const size_t size = strlen(piece->piece);
    if (piece->type != PIECE(NORMAL))
        return STATUS_OK;
    for (size_t cut = 1; cut < size; cut++)
        if (trie_find(trie, piece->piece, cut) >= 0 &&
            trie_find(trie, piece->piece + cut, size - cut) >= 0)
            TRY(bpe_add_merge(model, piece->piece, cut, piece->piece + cut, size - cut,
                              rank_of(piece->score), err));
    return STATUS_OK;
}

static enum status read_model(const Sentencepiece__ModelProto *proto, struct tokenizer *ret,
                              struct error *err)
{
    static const Sentencepiece__TrainerSpec defaults = SENTENCEPIECE__TRAINER_SPEC__INIT;
    const Sentencepiece__TrainerSpec *spec = proto->trainer_spec ? proto->trainer_spec : &defaults;
    const bool is_bpe = spec->model_type == SENTENCEPIECE__TRAINER_SPEC__MODEL_TYPE__BPE;
    struct token_model *model = &ret->model;
    if ((!is_bpe && spec->model_type != SENTENCEPIECE__TRAINER_SPEC__MODEL_TYPE__UNIGRAM) ||
        spec->treat_whitespace_as_suffix)
        return error_set(err, STATUS_UNSUPPORTED,
                         "lensd supports sentencepiece's models Unigram and BPE, "
                         "with blanks in front of words");
    *model = (struct token_model){.kind = is_bpe ? "BPE" : "Unigram",
                                  .tokenize = is_bpe ? bpe_tokenize : unigram_tokenize,
                                  .unknown = TOKEN_NONE,
                                  .prefix = strdup(""),
                                  .suffix = strdup(""),
                                  .fuses_unknown = true,
                                  .has_byte_fallback = spec->byte_fallback,
                                  .sums_floats = true,
                                  .size = proto->n_pieces};
    if (!is_bpe)
        model->scores = alloc_array(proto->n_pieces, sizeof *model->scores);
    TRY(check_memory(model->prefix && model->suffix && (is_bpe || model->scores), "for a tokenizer",
                     err));
    TRY(read_rules(proto->normalizer_spec, ret, err));
    for (size_t i = 0; i < proto->n_pieces; i++)
        TRY(read_piece(proto->pieces[i], i, ret, err));
    for (size_t i = 0; is_bpe && i < proto->n_pieces; i++)
        TRY(read_merges(proto->pieces[i], model, err));
    model->unknown_score = (float)(model->unknown_score - 10);
    vocabulary_bytes(&model->vocabulary, model->bytes);
    ret->bos = spec->bos_id;
    ret->eos = spec->eos_id;
    return STATUS_OK;
}

enum status sentencepiece_read(char *bytes, size_t size, struct tokenizer *ret, struct error *err)
{
    struct piece_unpacking unpacking = {.left = UNPACKED_MAX};
    ProtobufCAllocator allocator = {limited_alloc, limited_free, &unpacking};
    Sentencepiece__ModelProto *proto =
        sentencepiece__model_proto__unpack(&allocator, size, (const uint8_t *)bytes);
    if (!proto)
        return unpacking.no_memory
                   ? error_no_memory(err, "for a tokenizer")
                   : error_set(err, STATUS_MODEL,
                               "the file is damaged, or is not a model of sentencepiece");
    const enum status status = read_model(proto, ret, err);
    sentencepiece__model_proto__free_unpacked(proto, &allocator);
    return status;
}
