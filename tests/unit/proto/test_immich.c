/* Answers to several of Immich's tasks become one object. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dialects.h"

Test(immich, joins_answers_whatever_a_photo_says)
{
    const char *first =
        "{\"ocr\":{\"text\":[\"imageHeight\",\"a\"]},\"imageHeight\":4,\"imageWidth\":5}\n";
    const char *second = "{\"clip\":\"[1]\",\"imageHeight\":4,\"imageWidth\":5}\n";
    const char *wanted = "{\"ocr\":{\"text\":[\"imageHeight\",\"a\"]},\"clip\":\"[1]\","
                         "\"imageHeight\":4,\"imageWidth\":5}\n";
    char *joined = immich_join(strdup(first), strdup(second));
    cr_assert(joined);
    cr_expect_str_eq(joined, wanted);
    free(joined);
    cr_expect_null(immich_join(strdup(first), NULL));
}
