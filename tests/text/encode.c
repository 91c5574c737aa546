/* Encodes texts with the tokenizer of a folder, for tests that compare.
 *
 *   encode FOLDER < TEXTS > IDS
 *
 * A text is its size in four bytes, little-endian, and its bytes. The answer is the number of ids
 * and the ids, padded as the file says, four bytes each; for a text that is refused, 0xFFFFFFFF and
 * the status. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/text/row_length.h"

static void put(uint32_t number)
{
    fwrite(&number, sizeof number, 1, stdout);
}

static void answer(const struct tokenizer *tokenizer, const char *text, size_t size)
{
    static const struct encode_options options = {0};
    struct token_list list;
    struct error err = {0};
    const enum status status = tokenizer_encode(tokenizer, text, size, &options, &list, &err);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", err.message);
        put(UINT32_MAX);
        put((uint32_t)status);
        return;
    }
    const size_t length = row_length(tokenizer_facts(tokenizer), list.count);
    put((uint32_t)length);
    for (size_t i = 0; i < length; i++)
        put((uint32_t)tokenizer_cell(tokenizer, &list, length, TEXT_IDS, i));
    token_list_done(&list);
}

int main(int argc, char **argv)
{
    struct tokenizer *tokenizer;
    struct error err = {0};
    char line[200];
    uint32_t size;
    if (argc != 2)
        return 2;
    if (tokenizer_open((const char *const[]){argv[1], NULL}, &tokenizer, &err) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
        return 1;
    }
    fprintf(stderr, "%s\n", tokenizer_describe(tokenizer, line, sizeof line));
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *text = malloc(size + 1);
        if (!text || fread(text, 1, size, stdin) != size)
            return 1;
        answer(tokenizer, text, size);
        free(text);
    }
    tokenizer_free(tokenizer);
    return 0;
}
