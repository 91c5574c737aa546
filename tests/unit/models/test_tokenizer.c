/* models/text: ids equal to those of `tokenizers` and sentencepiece, whose answers are in
 * tests/data/ tokenizers (tests/text/parity.py writes them); what is refused, and by which words.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/text/tokenizer.h"
#include "tests/text/row_length.h"
#include "tests/unit/models/mutations.h"

#define FIXTURES LENSD_SOURCE_ROOT "/tests/data/tokenizers/"

static struct tokenizer *open_folder(const char *folder)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    cr_assert_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err), STATUS_OK,
                 "%s: %s", folder, err.message);
    return tokenizer;
}

/* ---- The fixtures ---- */

static size_t unescape(char *text)
{
    static const char letters[] = "ntr\\", meant[] = "\n\t\r\\";
    char *to = text;
    for (const char *from = text; *from; from++)
        *to++ = *from == '\\' ? meant[strchr(letters, *++from) - letters] : *from;
    return (size_t)(to - text);
}

static void check_line(const char *name, const struct tokenizer *tokenizer, char *line)
{
    static const struct encode_options options = {0};
    char *text = strchr(line, '\t') + 1, *number = line;
    const size_t size = unescape(text);
    struct token_list list;
    struct error err = {0};
    cr_assert_eq(tokenizer_encode(tokenizer, text, size, &options, &list, &err), STATUS_OK,
                 "%s: %s", name, err.message);
    const size_t length = row_length(tokenizer_facts(tokenizer), list.count);
    size_t real = 0;
    for (size_t i = 0; i < length; i++) {
        const int64_t id = tokenizer_cell(tokenizer, &list, length, TEXT_IDS, i);
        const int64_t type = tokenizer_cell(tokenizer, &list, length, TEXT_TYPES, i);
        cr_expect_eq(id, strtoll(number, &number, 10), "%s: id %zu of \"%s\"", name, i, text);
        cr_expect(type == 0 || type == 1);
        real += (size_t)tokenizer_cell(tokenizer, &list, length, TEXT_MASK, i);
    }
    cr_expect_eq(*number, '\t', "%s: \"%s\" has more ids", name, text);
    cr_expect_eq(real, list.count);
    token_list_done(&list);
}

static void check_fixture(const char *name)
{
    char folder[500];
    uint8_t *text;
    size_t size, count = 0;
    snprintf(folder, sizeof folder, FIXTURES "%s", name);
    struct tokenizer *tokenizer = open_folder(folder);
    cr_assert_eq(file_read_beneath(folder, "expected.txt", 1 << 20, &text, &size, NULL), STATUS_OK);
    char *rest = (char *)text;
    for (char *line; (line = strsep(&rest, "\n")) && *line; count++)
        check_line(name, tokenizer, line);
    cr_expect_gt(count, 20);
    free(text);
    tokenizer_free(tokenizer);
}

Test(tokenizer, ids_are_those_of_the_libraries)
{
    static const char *const names[] = {
        "bert",         "cased",  "clip",    "roberta",         "gemma",
        "first",        "prefix", "unigram", "bpe_bytes_model", "unigram_bytes_model",
        "unigram_model"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        check_fixture(names[i]);
}

/* ---- Folders that are made here ---- */

struct file {
    const char *name, *text;
};

static char folder[] = "/tmp/lensd-tokenizer-XXXXXX";

static void make_folder(void)
{
    memcpy(folder + sizeof folder - 7, "XXXXXX", 7);
    cr_assert(mkdtemp(folder));
}

static void remove_folder(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

static void write_file(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(text, file) >= 0 && !fclose(file));
}

TestSuite(tokenizer_folder, .init = make_folder, .fini = remove_folder);

/* A tokenizer.json whose model has the words a, b and ##b, and the members that follow. */
#define WORDS                                                                                      \
    "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"b\":2,\"##b\":3,"          \
    "\"[P]\":4}}"

static enum status open_json(const char *json, struct tokenizer **ret, struct error *err)
{
    write_file("tokenizer.json", json);
    return tokenizer_open((const char *const[]){folder, NULL}, ret, err);
}

Test(tokenizer_folder, what_is_not_there_is_refused_by_name)
{
    static const struct {
        const char *json;
        enum status status;
        const char *words;
    } cases[] = {
        {"", STATUS_MODEL, "tokenizer.json"},
        {"[]", STATUS_MODEL, "\"model\" is not an object"},
        {"{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", STATUS_UNSUPPORTED,
         "the model \"WordLevel\""},
        {"{\"normalizer\":{\"type\":\"Upper\"}," WORDS "}", STATUS_UNSUPPORTED,
         "the normalizer \"Upper\""},
        {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
         "\"Upper\"}]}," WORDS "}",
         STATUS_UNSUPPORTED, "the normalizer \"Upper\""},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," WORDS "}", STATUS_UNSUPPORTED,
         "the pre-tokenizer \"UnicodeScripts\""},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&[b]]\"},\"behavior\":"
         "\"Removed\",\"invert\":false}," WORDS "}",
         STATUS_UNSUPPORTED, "[a&&[b]]"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":"
         "\"Removed\",\"invert\":false}," WORDS "}",
         STATUS_UNSUPPORTED, "(a"},
        {"{\"post_processor\":{\"type\":\"Other\"}," WORDS "}", STATUS_UNSUPPORTED,
         "the post-processor \"Other\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
         STATUS_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}",
         STATUS_MODEL, "\"ab\""},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4000000000},\"merges\":[]}}", STATUS_MODEL,
         "\"a\""},
        {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", STATUS_MODEL,
         "unk_id"},
        {"{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}," WORDS "}",
         STATUS_MODEL, "precompiled_charsmap"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tokenizer *tokenizer = NULL;
        struct error err = {0};
        cr_expect_eq(open_json(cases[i].json, &tokenizer, &err), cases[i].status, "%s: %s",
                     cases[i].json, err.message);
        cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].json, err.message);
    }
}

struct changed {
    const char *file;
    size_t refused;
};

static void check_changed(void *context, const char *text)
{
    struct changed *changed = context;
    struct tokenizer *tokenizer = NULL;
    struct token_list list;
    struct error err = {0};
    const struct encode_options options = {.max_length = SIZE_MAX};
    write_file(changed->file, text);
    const enum status status =
        tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err);
    if (status != STATUS_OK) {
        cr_expect(status == STATUS_MODEL || status == STATUS_UNSUPPORTED, "%s: %.900s", err.message,
                  text);
        cr_expect(!strncmp(err.message, changed->file, strlen(changed->file)), "%s: %.900s",
                  err.message, text);
        changed->refused++;
        return;
    }
    if (tokenizer_encode(tokenizer, "ab [MASK]\n1\u00e9", 13, &options, &list, &err) == STATUS_OK)
        token_list_done(&list);
    else
        cr_expect(*err.message, "%.900s", text);
    tokenizer_free(tokenizer);
}

static void copy_fixture(const char *name, const char *file)
{
    char command[700];
    snprintf(command, sizeof command, "cp " FIXTURES "%s/%s %s", name, file, folder);
    cr_assert_eq(system(command), 0);
}

Test(tokenizer_folder, members_of_other_types_are_refused_or_used)
{
    static const char *const names[] = {"bert",    "cased", "clip",   "first",
                                        "roberta", "gemma", "prefix", "unigram"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[500];
        uint8_t *text;
        size_t size;
        struct changed changed = {.file = "tokenizer.json"};
        snprintf(path, sizeof path, FIXTURES "%s", names[i]);
        cr_assert_eq(file_read_beneath(path, "tokenizer.json", 1 << 20, &text, &size, NULL),
                     STATUS_OK);
        mutate_document((const char *)text, check_changed, &changed);
        cr_expect_gt(changed.refused, 20, "%s", names[i]);
        free(text);
    }
}

Test(tokenizer_folder, configurations_of_other_types_are_refused_or_used)
{
    static const struct {
        const char *file, *text;
        size_t refused; /* at least */
    } cases[] = {
        {"tokenizer_config.json",
         "{\"model_max_length\":9,\"padding_side\":\"left\",\"truncation_side\":\"left\","
         "\"tokenizer_class\":\"T5TokenizerFast\",\"add_bos_token\":true,\"add_eos_token\":true,"
         "\"pad_token\":{\"content\":\"</s>\"}}",
         20},
        {"config.json",
         "{\"max_position_embeddings\":9,\"pad_token_id\":1,\"text_config\":{\"context_length\":8}"
         "}",
         5},
        {"special_tokens_map.json", "{\"pad_token\":{\"content\":\"</s>\"}}", 0},
    };
    copy_fixture("unigram_model", "spiece.model");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct changed changed = {.file = cases[i].file};
        mutate_document(cases[i].text, check_changed, &changed);
        cr_expect_geq(changed.refused, cases[i].refused, "%s: %zu", cases[i].file, changed.refused);
        write_file(cases[i].file, "{}");
    }
}

/* What classes add to sentencepiece's ids. */
Test(tokenizer_folder, classes_of_sentencepiece)
{
    static const struct {
        const char *config;
        bool bos, eos;
    } cases[] = {{"{}", false, false},
                 {"{\"tokenizer_class\":\"T5TokenizerFast\"}", false, true},
                 {"{\"tokenizer_class\":\"LlamaTokenizer\",\"add_eos_token\":true}", true, true},
                 {"{\"tokenizer_class\":\"GemmaTokenizer\"}", true, false}};
    struct tokenizer *tokenizer = NULL;
    struct token_list list;
    struct error err = {0};
    const struct encode_options options = {0};
    copy_fixture("unigram_model", "spiece.model");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        write_file("tokenizer_config.json", cases[i].config);
        tokenizer = open_folder(folder);
        cr_assert_eq(tokenizer_encode(tokenizer, "a", 1, &options, &list, &err), STATUS_OK, "%s",
                     err.message);
        const bool bos = list.ids[0] == tokenizer_id(tokenizer, "<s>");
        const bool eos = list.ids[list.count - 1] == tokenizer_id(tokenizer, "</s>");
        cr_expect(bos == cases[i].bos && eos == cases[i].eos, "%s", cases[i].config);
        token_list_done(&list);
        tokenizer_free(tokenizer);
    }
    write_file("tokenizer_config.json", "{\"tokenizer_class\":\"XLMRobertaTokenizer\"}");
    cr_expect_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err),
                 STATUS_UNSUPPORTED);
    cr_expect(strstr(err.message, "the tokenizer class XLMRobertaTokenizer"), "%s", err.message);
}

/* As in sentencepiece, a control piece does not hide an ordinary piece with the same text. */
Test(tokenizer_folder, control_piece_with_the_text_of_another)
{
    static const char piece[] = "\x0A\x05\x0A\x01"
                                "a\x18\x03"; /* "a", of the type CONTROL */
    char path[300];
    struct token_list lists[2];
    struct error err = {0};
    const struct encode_options options = {0};
    copy_fixture("unigram_model", "spiece.model");
    snprintf(path, sizeof path, "%s/spiece.model", folder);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct tokenizer *tokenizer = open_folder(folder);
        cr_assert_eq(tokenizer_encode(tokenizer, "aa", 2, &options, &lists[i], &err), STATUS_OK,
                     "%s", err.message);
        tokenizer_free(tokenizer);
        FILE *file = fopen(path, "ab");
        cr_assert(file && fwrite(piece, 1, sizeof piece - 1, file) == sizeof piece - 1);
        cr_assert_eq(fclose(file), 0);
    }
    cr_assert_eq(lists[0].count, lists[1].count);
    for (size_t i = 0; i < lists[0].count; i++)
        cr_expect_eq(lists[0].ids[i], lists[1].ids[i]);
    token_list_done(&lists[0]);
    token_list_done(&lists[1]);
}

Test(tokenizer_folder, none)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    cr_expect_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err),
                 STATUS_NOT_FOUND);
    write_file("vocab.json", "{\"a\":0}");
    cr_expect_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err),
                 STATUS_MODEL);
    cr_expect(strstr(err.message, "merges.txt"), "%s", err.message);
}

Test(tokenizer_folder, configurations_say_length_and_padding)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    char line[100];
    write_file("tokenizer_config.json",
               "{\"model_max_length\":1000000000000000019884624838656,\"pad_token\":{\"content\":"
               "\"[P]\"},\"padding_side\":\"left\"}");
    write_file("config.json", "{\"text_config\":{\"max_position_embeddings\":4}}");
    cr_assert_eq(open_json("{" WORDS "}", &tokenizer, &err), STATUS_OK, "%s", err.message);
    const struct tokenizer_facts *facts = tokenizer_facts(tokenizer);
    cr_expect_eq(facts->max_length, 4);
    cr_expect(facts->has_pad && facts->pad_id == 4 && facts->pads_left);
    cr_expect_str_eq(tokenizer_describe(tokenizer, line, sizeof line),
                     "WordPiece, 5 tokens, texts of up to 4");
    struct token_list list;
    const struct encode_options asked = {0}, truncated = {.max_length = 2, .truncate = true};
    cr_expect_eq(tokenizer_encode(tokenizer, "abbbb", 5, &asked, &list, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "5 tokens, but the model takes 4"), "%s", err.message);
    cr_assert_eq(tokenizer_encode(tokenizer, "abb", 3, &truncated, &list, &err), STATUS_OK);
    cr_expect(list.count == 2);
    static const int64_t ids[] = {4, 1, 3};
    for (size_t i = 0; i < 3; i++) {
        cr_expect_eq(tokenizer_cell(tokenizer, &list, 3, TEXT_IDS, i), ids[i]);
        cr_expect_eq(tokenizer_cell(tokenizer, &list, 3, TEXT_MASK, i), i > 0);
    }
    token_list_done(&list);
    tokenizer_free(tokenizer);
}

Test(tokenizer_folder, vocabulary_alone_is_bert)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    struct token_list list;
    const struct encode_options options = {0};
    write_file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\ncaf\n##e\n!\n");
    cr_assert_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err), STATUS_OK,
                 "%s", err.message);
    static const int64_t wanted[] = {2, 4, 5, 6, 3, 1, 3};
    const char text[] = "Café! [SEP] x";
    cr_assert_eq(tokenizer_encode(tokenizer, text, strlen(text), &options, &list, &err), STATUS_OK);
    cr_assert_eq(list.count, COUNT_OF(wanted));
    cr_expect_arr_eq(list.ids, wanted, sizeof wanted);
    cr_expect_eq(tokenizer_id(tokenizer, "[SEP]"), 3);
    cr_expect_eq(tokenizer_id(tokenizer, "f"), -1);
    token_list_done(&list);
    tokenizer_free(tokenizer);
}

Test(tokenizer_folder, vocabulary_alone_may_be_cased)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    struct token_list list;
    const struct encode_options options = {.omit_special = true};
    write_file("vocab.txt", "[UNK]\nA\na\n");
    write_file("tokenizer_config.json", "{\"do_lower_case\":false}");
    cr_assert_eq(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err), STATUS_OK,
                 "%s", err.message);
    cr_assert_eq(tokenizer_encode(tokenizer, "A a", 3, &options, &list, &err), STATUS_OK);
    cr_expect(list.count == 2 && list.ids[0] == 1 && list.ids[1] == 2);
    token_list_done(&list);
    tokenizer_free(tokenizer);
}

Test(tokenizer_folder, unknown_characters)
{
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    struct token_list list;
    const struct encode_options options = {0};
    cr_assert_eq(open_json("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],"
                           "\"unk_token\":\"?\"}}",
                           &tokenizer, &err),
                 STATUS_OK, "%s", err.message);
    cr_expect_eq(tokenizer_encode(tokenizer, "ab", 2, &options, &list, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "vocabulary"), "%s", err.message);
    tokenizer_free(tokenizer);
}

/* ---- Hostile texts ---- */

Test(tokenizer, refuses_what_is_not_utf8_or_too_long)
{
    struct tokenizer *tokenizer = open_folder(FIXTURES "bert");
    struct token_list list;
    struct error err = {0};
    const struct encode_options options = {0};
    cr_expect_eq(tokenizer_encode(tokenizer, "a\xC3", 2, &options, &list, &err), STATUS_INVALID);
    cr_expect(strstr(err.message, "UTF-8"), "%s", err.message);
    cr_expect_null(list.ids);
    char *large = calloc(1, TOKENIZER_TEXT_MAX + 1);
    cr_assert(large);
    cr_expect_eq(tokenizer_encode(tokenizer, large, TOKENIZER_TEXT_MAX + 1, &options, &list, &err),
                 STATUS_TOO_LARGE);
    tokenizer_free(tokenizer);
    /* U+FDFA becomes 18 characters. */
    tokenizer = open_folder(FIXTURES "prefix");
    for (size_t i = 0; i < TOKENIZER_TEXT_MAX; i++)
        large[i] = "\xEF\xB7\xBA"[i % 3];
    cr_expect_eq(
        tokenizer_encode(tokenizer, large, TOKENIZER_TEXT_MAX / 3 * 3, &options, &list, &err),
        STATUS_TOO_LARGE);
    cr_expect(strstr(err.message, "shorten it"), "%s", err.message);
    free(large);
    tokenizer_free(tokenizer);
}

/* The least CPU time of a few runs over `size` bytes of one text, repeated. */
static double least_time(const struct tokenizer *tokenizer, const char *unit, size_t size)
{
    const struct encode_options options = {.max_length = SIZE_MAX};
    const size_t length = strlen(unit);
    double least = 1e9;
    char *text = malloc(size + length);
    cr_assert(text);
    for (size_t i = 0; i < size; i += length)
        memcpy(text + i, unit, length);
    size -= size % length;
    for (int run = 0; run < 5; run++) {
        struct timespec from, to;
        struct token_list list;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        cr_assert_eq(tokenizer_encode(tokenizer, text, size, &options, &list, NULL), STATUS_OK);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        token_list_done(&list);
        const double took =
            (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        least = took < least ? took : least;
    }
    free(text);
    return least;
}

/* Eight times the text takes eight times as long; 64 times would be quadratic. */
Test(tokenizer, time_grows_with_the_text)
{
    static const char *const names[] = {"bert",  "clip",    "roberta",        "gemma",
                                        "first", "unigram", "bpe_bytes_model"};
    static const char *const units[] = {"a", " ", "\xCC\x81\xCC\xA3", "<", "\xF0\x9F\x98\x80"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[500];
        snprintf(path, sizeof path, FIXTURES "%s", names[i]);
        struct tokenizer *tokenizer = open_folder(path);
        for (size_t u = 0; u < COUNT_OF(units); u++) {
            double small, large;
            int rounds = 20; /* a busy machine slows one of them for a while; the square always */
            do {
                small = least_time(tokenizer, units[u], 8 << 10);
                large = least_time(tokenizer, units[u], 64 << 10);
            } while (large >= 28 * small + 1e-4 && --rounds);
            cr_expect_gt(rounds, 0, "%s, \"%s\": 64 kB take %g times as long as 8 kB", names[i],
                         units[u], large / small);
        }
        tokenizer_free(tokenizer);
    }
}
