/* One tokenizer, many threads: each gets the ids that a thread alone gets. A plain program, so that
 * it also runs under ThreadSanitizer. */
#include <pthread.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/text/tokenizer.h"
#include "tests/unit/tap.h"

enum { THREADS = 4, ROUNDS = 50 };

static const char *const texts[] = {"A photo of a small dog", "naïve café \xEF\xBC\xA1 e\xCC\x81",
                                    "\xE6\xBC\xA2\xE5\xAD\x97 12 345", " <mask> [SEP] newtoken  ",
                                    "x\xF0\x9F\x98\x80y"};

struct job {
    const struct tokenizer *tokenizer;
    struct token_list wanted[COUNT_OF(texts)];
};

static void encode(const struct tokenizer *tokenizer, const char *text, struct token_list *ret)
{
    const struct encode_options options = {0};
    CHECK(tokenizer_encode(tokenizer, text, strlen(text), &options, ret, NULL) == STATUS_OK);
}

static void *encode_all(void *context)
{
    const struct job *job = context;
    for (size_t i = 0; i < ROUNDS * COUNT_OF(texts); i++) {
        const struct token_list *wanted = &job->wanted[i % COUNT_OF(texts)];
        struct token_list list;
        encode(job->tokenizer, texts[i % COUNT_OF(texts)], &list);
        CHECK(list.count == wanted->count &&
              !memcmp(list.ids, wanted->ids, list.count * sizeof *list.ids));
        token_list_done(&list);
    }
    return NULL;
}

static void test_threads_share_a_tokenizer(void)
{
    static const char *const names[] = {"bert", "clip", "first", "unigram", "bpe_bytes_model"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char folder[500];
        struct tokenizer *tokenizer;
        struct job job;
        pthread_t threads[THREADS];
        snprintf(folder, sizeof folder, LENSD_SOURCE_ROOT "/tests/data/tokenizers/%s", names[i]);
        CHECK(tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, NULL) == STATUS_OK);
        job.tokenizer = tokenizer;
        for (size_t t = 0; t < COUNT_OF(texts); t++)
            encode(tokenizer, texts[t], &job.wanted[t]);
        for (size_t t = 0; t < THREADS; t++)
            CHECK(!pthread_create(&threads[t], NULL, encode_all, &job));
        for (size_t t = 0; t < THREADS; t++)
            CHECK(!pthread_join(threads[t], NULL));
        for (size_t t = 0; t < COUNT_OF(texts); t++)
            token_list_done(&job.wanted[t]);
        tokenizer_free(tokenizer);
    }
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"threads share a tokenizer", test_threads_share_a_tokenizer}};
    return tap_run(tests, COUNT_OF(tests), NULL);
}
