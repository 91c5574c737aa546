/* Files of tokenizers, and texts. The first byte names the file; RS (0x1E) ends it, and the texts
 * follow, each ended by RS. A file is refused with a sentence, or texts give ids of its vocabulary.
 */
#include <string.h>

#include "engine/base/size.h"
#include "models/text/tokenizer.h"
#include "tests/fuzz/scratch.h"

enum { SEPARATOR = 0x1E };

static const char *const names[] = {"tokenizer.json", "vocab.txt", "spiece.model", "vocab.json"};

static void check_ids(const struct tokenizer *tokenizer, const struct token_list *list)
{
    const size_t length = list->count + 3;
    for (size_t i = 0; i < length; i++) {
        const int64_t mask = tokenizer_cell(tokenizer, list, length, TEXT_MASK, i);
        HOLDS(tokenizer_cell(tokenizer, list, length, TEXT_IDS, i) >= 0);
        HOLDS(mask == 0 || mask == 1);
        (void)tokenizer_cell(tokenizer, list, length, TEXT_TYPES, i);
    }
}

static void try_text(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    for (int i = 0; i < 2; i++) {
        const struct encode_options options = {.max_length = i ? 3 : SIZE_MAX, .truncate = i};
        struct token_list list;
        struct error err = {0};
        if (tokenizer_encode(tokenizer, text, size, &options, &list, &err) != STATUS_OK) {
            HOLDS(err.message[0] && !list.ids);
            continue;
        }
        HOLDS(list.count <= options.max_length);
        check_ids(tokenizer, &list);
        token_list_done(&list);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const char *name = names[data[0] % COUNT_OF(names)], *folder = scratch_folder();
    const uint8_t *at = data + 1, *end = data + size;
    const uint8_t *stop = memchr(at, SEPARATOR, (size_t)(end - at));
    struct tokenizer *tokenizer;
    struct error err = {0};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        (void)unlink(scratch_write(names[i], "", 0));
    (void)scratch_write("merges.txt", "a b\nab c\n", 9);
    (void)scratch_write(name, at, (size_t)((stop ? stop : end) - at));
    if (tokenizer_open((const char *const[]){folder, NULL}, &tokenizer, &err) != STATUS_OK) {
        HOLDS(err.message[0]);
        return 0;
    }
    while (stop && stop < end) {
        at = stop + 1;
        stop = memchr(at, SEPARATOR, (size_t)(end - at));
        try_text(tokenizer, (const char *)at, (size_t)((stop ? stop : end) - at));
    }
    tokenizer_free(tokenizer);
    return 0;
}
