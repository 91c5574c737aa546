/* Compressed bodies, and what clients say they like. The first byte says what the rest is: gzip or
 * deflate, or header text. The outcome is bounded by the limit, and a refusal has a sentence; what
 * is compressed comes back as it was. */
#include <stdlib.h>
#include <string.h>

#include "server/http/transport/coding.h"
#include "server/http/transport/negotiate.h"
#include "tests/fuzz/target.h"

#define LIMIT ((size_t)3 << 20)

struct outcome {
    enum status status;
    size_t size;
    uint8_t *data;
};

static struct outcome inflate_all(enum coding coding, const uint8_t *data, size_t size)
{
    struct http_budget budget = {.limit = 2 * LIMIT};
    struct upload upload;
    struct error err = {0};
    upload_init(&upload, &budget, LIMIT, 0);
    enum status status = coding_inflate(coding, data, size, 100, &upload, &err);
    HOLDS(status == STATUS_OK || err.message[0]);
    HOLDS(upload.size <= LIMIT);
    struct outcome outcome = {status, upload.size, upload.data};
    upload.data = NULL;
    upload_done(&upload);
    HOLDS(budget.used == 0);
    return outcome;
}

static void try_round_trip(enum coding coding, const uint8_t *data, size_t size)
{
    size_t packed_size = 0;
    char *packed = size ? coding_compress(coding, (const char *)data, size, &packed_size) : NULL;
    if (!packed)
        return;
    HOLDS(packed_size <= size);
    struct outcome outcome = inflate_all(coding, (const uint8_t *)packed, packed_size);
    HOLDS(outcome.status != STATUS_OK ||
          (outcome.size == size && !memcmp(outcome.data, data, size)));
    free(outcome.data);
    free(packed);
}

static void try_headers(const char *text)
{
    static const char *const offers[] = {"application/json", "text/plain"};
    enum coding coding;
    double q = negotiate_token(text, "gzip");
    HOLDS(q >= 0 && q <= 1);
    int type = negotiate_type(text, offers, 2);
    HOLDS(type >= -1 && type < 2);
    (void)negotiate_etag(text, "W/\"0123456789abcdef\"");
    (void)coding_choose(text);
    HOLDS(!coding_parse(text, &coding) || coding <= CODING_DEFLATE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > (1u << 20))
        return 0;
    enum coding coding = data[0] & 1 ? CODING_GZIP : CODING_DEFLATE;
    if (data[0] & 2) {
        char *text = strndup((const char *)data + 1, size - 1);
        if (text)
            try_headers(text);
        free(text);
    } else if (data[0] & 4) {
        try_round_trip(coding, data + 1, size - 1);
    } else {
        free(inflate_all(coding, data + 1, size - 1).data);
    }
    return 0;
}
