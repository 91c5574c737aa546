#include "server/http/coding.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "server/http/negotiate.h"

#define WINDOW_ZLIB 15
#define WINDOW_GZIP (15 + 16)
#define WINDOW_RAW  (-15)
#define LEVEL       4 /* twice as fast as 6, and hardly larger */
#define PIECE       ((size_t)32 * 1024)

struct inflater {
    enum coding coding;
    size_t max_ratio, bytes_in, bytes_out;
    z_stream stream;
    bool is_open;        /* the stream's window is known */
    bool has_ended;      /* a member has ended, and nothing has come since */
    unsigned char first; /* of a deflate stream, until the second byte tells which kind it is */
    bool has_first;
    unsigned char piece[PIECE];
};

static const char *const names[] = {[CODING_GZIP] = "gzip", [CODING_DEFLATE] = "deflate"};

bool coding_parse(const char *content_encoding, enum coding *ret)
{
    const char *text = content_encoding ? content_encoding : "";
    text += strspn(text, " \t");
    size_t length = strcspn(text, " \t");
    bool alone = text[length + strspn(text + length, " \t")] == '\0';
    *ret = CODING_NONE;
    if (!alone)
        return false;
    if (length == 0 || (length == 8 && !strncasecmp(text, "identity", 8)))
        return true;
    if ((length == 4 && !strncasecmp(text, "gzip", 4)) ||
        (length == 6 && !strncasecmp(text, "x-gzip", 6)))
        *ret = CODING_GZIP;
    else if (length == 7 && !strncasecmp(text, "deflate", 7))
        *ret = CODING_DEFLATE;
    return *ret != CODING_NONE;
}

const char *coding_name(enum coding coding)
{
    return names[coding];
}

enum coding coding_choose(const char *accept_encoding)
{
    if (!accept_encoding)
        return CODING_NONE;
    double gzip = negotiate_token(accept_encoding, "gzip"),
           deflate = negotiate_token(accept_encoding, "deflate"),
           none = negotiate_token(accept_encoding, "identity");
    if (gzip > 0 && gzip >= deflate && gzip >= none)
        return CODING_GZIP;
    return deflate > 0 && deflate >= none ? CODING_DEFLATE : CODING_NONE;
}

/* ---- in ---- */

enum status inflater_create(enum coding coding, size_t max_ratio, struct inflater **ret,
                            struct error *err)
{
    struct inflater *inflater = calloc(1, sizeof *inflater);
    if (!inflater)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a compressed body");
    inflater->coding = coding;
    inflater->max_ratio = max_ratio;
    *ret = inflater;
    return STATUS_OK;
}

void inflater_free(struct inflater *inflater)
{
    if (!inflater)
        return;
    if (inflater->is_open)
        inflateEnd(&inflater->stream);
    free(inflater);
}

static enum status open_stream(struct inflater *inflater, int window, struct error *err)
{
    if (inflateInit2(&inflater->stream, window) != Z_OK)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for a compressed body");
    inflater->is_open = true;
    return STATUS_OK;
}

/* zlib's header is a multiple of 31 and names method 8 (RFC 1950, section 2.2). */
static bool is_zlib_header(unsigned first, unsigned second)
{
    return (first & 15) == Z_DEFLATED && (first << 8 | second) % 31 == 0;
}

static enum status broken(const struct inflater *inflater, const char *why, struct error *err)
{
    return error_set(err, STATUS_INVALID,
                     "the body is not what its Content-Encoding: %s says (%s); compress it again, "
                     "or send it as it is",
                     names[inflater->coding], why);
}

static enum status run(struct inflater *inflater, const unsigned char *bytes, size_t size,
                       struct upload *upload, struct error *err)
{
    z_stream *stream = &inflater->stream;
    stream->next_in = (unsigned char *)(uintptr_t)bytes; /* zlib only reads it */
    stream->avail_in = (unsigned)size;
    int outcome;
    do {
        if (inflater->has_ended && stream->avail_in > 0) {
            /* gzip's members may follow each other; behind a deflate stream there is nothing. */
            if (inflater->coding != CODING_GZIP || inflateReset(stream) != Z_OK)
                return broken(inflater, "bytes behind its end", err);
            inflater->has_ended = false;
        }
        stream->next_out = inflater->piece;
        stream->avail_out = PIECE;
        outcome = inflate(stream, Z_NO_FLUSH);
        if (outcome == Z_MEM_ERROR)
            return error_set(err, STATUS_NO_MEMORY, "out of memory for a compressed body");
        if (outcome != Z_OK && outcome != Z_STREAM_END && outcome != Z_BUF_ERROR)
            return broken(inflater, stream->msg ? stream->msg : "unknown form", err);
        size_t made = PIECE - stream->avail_out;
        inflater->bytes_out += made;
        if (inflater->bytes_out > INFLATE_FREE &&
            inflater->bytes_out / inflater->max_ratio > inflater->bytes_in)
            return error_set(err, STATUS_TOO_LARGE,
                             "the body becomes more than %zu times as large when it is inflated; "
                             "send it as it is, or raise the limit (--max-inflate-ratio)",
                             inflater->max_ratio);
        if (made > 0)
            TRY(upload_append(upload, inflater->piece, made, err));
        inflater->has_ended = outcome == Z_STREAM_END;
    } while (stream->avail_out == 0 || (stream->avail_in > 0 && outcome != Z_BUF_ERROR));
    return STATUS_OK;
}

enum status inflater_feed(struct inflater *inflater, const void *bytes, size_t size,
                          struct upload *upload, struct error *err)
{
    const unsigned char *from = bytes;
    if (size > UINT_MAX)
        return error_set(err, STATUS_TOO_LARGE, "more than 4 GiB at once");
    if (size == 0)
        return STATUS_OK;
    inflater->bytes_in += size;
    if (!inflater->is_open && inflater->coding == CODING_GZIP)
        TRY(open_stream(inflater, WINDOW_GZIP, err));
    if (inflater->is_open)
        return run(inflater, from, size, upload, err);
    if (!inflater->has_first) {
        inflater->first = *from++;
        inflater->has_first = true;
        size--;
    }
    if (size == 0)
        return STATUS_OK;
    bool wrapped = is_zlib_header(inflater->first, *from);
    TRY(open_stream(inflater, wrapped ? WINDOW_ZLIB : WINDOW_RAW, err));
    TRY(run(inflater, &inflater->first, 1, upload, err));
    return run(inflater, from, size, upload, err);
}

enum status inflater_end(const struct inflater *inflater, struct error *err)
{
    if (inflater->has_ended || inflater->bytes_in == 0)
        return STATUS_OK;
    return broken(inflater, "it ends in the middle", err);
}

/* ---- out ---- */

char *coding_compress(enum coding coding, const char *text, size_t size, size_t *ret_size)
{
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (unsigned)size};
    if (coding == CODING_NONE || size > UINT_MAX / 2 ||
        deflateInit2(&stream, LEVEL, Z_DEFLATED, coding == CODING_GZIP ? WINDOW_GZIP : WINDOW_ZLIB,
                     8, Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    unsigned char *out = malloc(size);
    stream.next_out = out;
    stream.avail_out = (unsigned)size;
    /* Not done: it would be as long as before. */
    bool done = out && deflate(&stream, Z_FINISH) == Z_STREAM_END;
    deflateEnd(&stream);
    if (!done) {
        free(out);
        return NULL;
    }
    *ret_size = size - stream.avail_out;
    return (char *)out;
}
