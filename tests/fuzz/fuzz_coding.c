/* Compressed bodies, and what clients say they like. The first byte says how the rest is fed: as
 * gzip or deflate, in pieces of which size; or as header text. However it comes, the outcome is the
 * same, bounded by the limit, and a refusal has a sentence; and what is compressed comes back as it
 * was. */
#include <stdlib.h>
#include <string.h>

#include "server/http/coding.h"
#include "server/http/negotiate.h"
#include "tests/fuzz/target.h"

#define LIMIT ((size_t)3 << 20)

struct outcome {
    enum status status;
    size_t size;
    uint8_t *data;
};

static struct outcome inflate_in_pieces(enum coding coding, const uint8_t *data, size_t size,
                                        size_t piece)
{
    struct upload_budget budget = {.limit = 2 * LIMIT};
    struct upload upload;
    struct inflater *inflater = NULL;
    struct error err = {0};
    upload_init(&upload, &budget, LIMIT, 0);
    HOLDS(inflater_create(coding, 100, &inflater, &err) == STATUS_OK);
    enum status status = STATUS_OK;
    for (size_t at = 0; at < size && status == STATUS_OK; at += piece)
        status = inflater_feed(inflater, data + at, size - at < piece ? size - at : piece, &upload,
                               &err);
    if (status == STATUS_OK)
        status = inflater_end(inflater, &err);
    HOLDS(status == STATUS_OK || err.message[0]);
    HOLDS(upload.size <= LIMIT);
    inflater_free(inflater);
    struct outcome outcome = {status, upload.size, upload.data};
    upload.data = NULL;
    upload_done(&upload);
    HOLDS(budget.used == 0);
    return outcome;
}

static void try_inflate(enum coding coding, const uint8_t *data, size_t size, size_t piece)
{
    struct outcome whole = inflate_in_pieces(coding, data, size, size ? size : 1);
    struct outcome parts = inflate_in_pieces(coding, data, size, piece);
    /* The ratio is judged as the bytes come: only a refusal may differ in its cause. */
    HOLDS((whole.status == STATUS_OK) == (parts.status == STATUS_OK) ||
          whole.status == STATUS_TOO_LARGE || parts.status == STATUS_TOO_LARGE);
    if (whole.status == STATUS_OK && parts.status == STATUS_OK)
        HOLDS(whole.size == parts.size &&
              (whole.size == 0 || !memcmp(whole.data, parts.data, whole.size)));
    free(whole.data);
    free(parts.data);
}

static void try_round_trip(enum coding coding, const uint8_t *data, size_t size)
{
    size_t packed_size = 0;
    char *packed = size ? coding_compress(coding, (const char *)data, size, &packed_size) : NULL;
    if (!packed)
        return;
    HOLDS(packed_size <= size);
    struct outcome outcome =
        inflate_in_pieces(coding, (const uint8_t *)packed, packed_size, packed_size);
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
    size_t piece = (size_t)(data[0] >> 3) + 1;
    if (data[0] & 2) {
        char *text = strndup((const char *)data + 1, size - 1);
        if (text)
            try_headers(text);
        free(text);
    } else if (data[0] & 4) {
        try_round_trip(coding, data + 1, size - 1);
    } else {
        try_inflate(coding, data + 1, size - 1, piece);
    }
    return 0;
}
