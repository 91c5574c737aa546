/* Inflates gzip and deflate bodies within a bound, and compresses answers. */
#include "server/http/transport/coding.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>

#include "server/http/transport/negotiate.h"

#define WINDOW_ZLIB 15
#define WINDOW_GZIP (15 + 16)
#define WINDOW_RAW  (-15)
#define LEVEL       4                   /* twice as fast as level 6; output is hardly larger */
#define CHUNK       ((size_t)32 * 1024) /* bytes of input, and of output, for one inflate() */

struct inflation {
    enum coding coding;
    size_t max_ratio, bytes_in, bytes_out;
    z_stream stream;
    bool has_ended; /* the input so far ends with a complete gzip member */
};

const char *const coding_names[] = {[CODING_GZIP] = "gzip", [CODING_DEFLATE] = "deflate"};

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

static enum status coding_broken(enum coding coding, const char *why, struct error *err)
{
    return error_set(err, STATUS_INVALID,
                     "the body is not what its Content-Encoding: %s says (%s); compress it again, "
                     "or send it as it is",
                     coding_names[coding], why);
}

static enum status inflate_chunk(struct inflation *inflation, const unsigned char *bytes,
                                 size_t size, struct upload *upload, struct error *err)
{
    z_stream *stream = &inflation->stream;
    unsigned char chunk[CHUNK];
    stream->next_in = (unsigned char *)(uintptr_t)bytes; /* zlib only reads it */
    stream->avail_in = (unsigned)size;
    inflation->bytes_in += size;
    int outcome;
    do {
        if (inflation->has_ended && stream->avail_in > 0) {
            /* gzip members may follow each other; nothing may follow a deflate stream. */
            if (inflation->coding != CODING_GZIP || inflateReset(stream) != Z_OK)
                return coding_broken(inflation->coding, "bytes after its end", err);
            inflation->has_ended = false;
        }
        stream->next_out = chunk;
        stream->avail_out = CHUNK;
        outcome = inflate(stream, Z_NO_FLUSH);
        if (outcome == Z_MEM_ERROR)
            return error_no_memory(err, "for a compressed body");
        if (outcome != Z_OK && outcome != Z_STREAM_END && outcome != Z_BUF_ERROR)
            return coding_broken(inflation->coding, stream->msg ? stream->msg : "unknown form",
                                 err);
        size_t made = CHUNK - stream->avail_out;
        inflation->bytes_out += made;
        if (inflation->bytes_out > INFLATE_FREE &&
            inflation->bytes_out / inflation->max_ratio > inflation->bytes_in)
            return error_set(err, STATUS_TOO_LARGE,
                             "the body inflates to more than %zu times its size; "
                             "send it as it is, or raise the limit (--max-inflate-ratio)",
                             inflation->max_ratio);
        if (made > 0)
            TRY(upload_append(upload, chunk, made, err));
        inflation->has_ended = outcome == Z_STREAM_END;
    } while (stream->avail_out == 0 || (stream->avail_in > 0 && outcome != Z_BUF_ERROR));
    return STATUS_OK;
}

enum status coding_inflate(enum coding coding, const void *bytes, size_t size, size_t max_ratio,
                           struct upload *upload, struct error *err)
{
    const unsigned char *from = bytes;
    struct inflation inflation = {.coding = coding, .max_ratio = max_ratio};
    if (size == 0)
        return STATUS_OK;
    /* zlib's header is a multiple of 31 and names method 8 (RFC 1950, section 2.2). */
    const bool is_zlib =
        size < 2 || ((from[0] & 15) == Z_DEFLATED && (from[0] << 8 | from[1]) % 31 == 0);
    int window = coding == CODING_GZIP ? WINDOW_GZIP : is_zlib ? WINDOW_ZLIB : WINDOW_RAW;
    if (inflateInit2(&inflation.stream, window) != Z_OK)
        return error_no_memory(err, "for a compressed body");
    enum status status = STATUS_OK;
    for (size_t at = 0; status == STATUS_OK && at < size; at += CHUNK)
        status = inflate_chunk(&inflation, from + at, size - at < CHUNK ? size - at : CHUNK, upload,
                               err);
    inflateEnd(&inflation.stream);
    if (status == STATUS_OK && !inflation.has_ended)
        return coding_broken(coding, "it ends in the middle", err);
    return status;
}

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
    /* `out` is as long as `text`. If the result would be longer, deflate() does not end. */
    bool done = out && deflate(&stream, Z_FINISH) == Z_STREAM_END;
    deflateEnd(&stream);
    if (!done) {
        free(out);
        return NULL;
    }
    *ret_size = size - stream.avail_out;
    unsigned char *fitting = realloc(out, *ret_size);
    return (char *)(fitting ? fitting : out);
}
