/* The format of a body:
 *
 *     --BOUNDARY CRLF
 *     Content-Disposition: form-data; name="image"; filename="a.jpg" CRLF
 *     Content-Type: image/jpeg CRLF
 *     CRLF
 *     bytes CRLF
 *     --BOUNDARY-- CRLF
 *
 * Easy to get wrong: the CRLF before a delimiter belongs to the delimiter, not to the bytes; text
 * before the first and after the last delimiter is ignored; the boundary may be quoted; blanks may
 * follow a delimiter; the bytes may contain anything but CRLF "--" BOUNDARY, even a longer word
 * that starts with the boundary (then the rest of that line is neither blank nor "--"). */
#include "server/http/transport/multipart.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/array.h"
#include "engine/base/size.h"

#define BOUNDARY_MAX 70 /* RFC 2046, section 5.1.1 */
#define HEADER_MAX   4096
#define HEADER_COUNT 16

bool multipart_is(const char *content_type)
{
    static const char type[] = "multipart/form-data";
    const size_t length = content_type ? strcspn(content_type, "; \t") : 0;
    return length == sizeof type - 1 && !strncasecmp(content_type, type, length);
}

/* Copies the value of parameter `key` in `; key=value; key="value"`, unescaped and cut to `size`.
 * Returns false if it is absent. `text` has `length` bytes and is not terminated. */
static bool parameter(const char *text, size_t length, const char *key, char *ret, size_t size)
{
    size_t i = 0;
    while (i < length) {
        while (i < length && text[i] != ';')
            i++;
        while (i < length && (text[i] == ';' || text[i] == ' ' || text[i] == '\t'))
            i++;
        size_t start = i;
        while (i < length && text[i] != '=' && text[i] != ';')
            i++;
        bool wanted = i - start == strlen(key) && !strncasecmp(text + start, key, i - start);
        if (i >= length || text[i] != '=')
            continue;
        bool quoted = ++i < length && text[i] == '"';
        i += quoted;
        size_t used = 0;
        while (i < length && (quoted ? text[i] != '"' : text[i] != ';' && text[i] != ' ')) {
            /* Only \" is an escape: old browsers send "C:\photos\a.jpg" as it is. */
            if (quoted && text[i] == '\\' && i + 1 < length && text[i + 1] == '"')
                i++;
            if (wanted && used + 1 < size)
                ret[used++] = text[i];
            i++;
        }
        if (wanted) {
            ret[used] = '\0';
            return true;
        }
        i += quoted && i < length;
    }
    return false;
}

/* A delimiter in the body. `start`: offset of its first byte, which is a CRLF's if there is one
 * before the delimiter. `end`: offset of the first byte after the delimiter's line. `last`: the
 * delimiter is the closing one, and `end` is the offset after its "--". */
struct delimiter {
    size_t start, end;
    bool last;
};

/* Parses what follows "--BOUNDARY" at `at`: "--" or blanks, then the end of the line. Returns false
 * if "--BOUNDARY" is only the beginning of a longer word. */
static bool delimiter_ends(const uint8_t *body, size_t size, size_t at, struct delimiter *ret)
{
    ret->last = size - at >= 2 && body[at] == '-' && body[at + 1] == '-';
    if (ret->last) {
        ret->end = at + 2;
        return true;
    }
    while (at < size && (body[at] == ' ' || body[at] == '\t'))
        at++;
    if (size - at < 2 || body[at] != '\r' || body[at + 1] != '\n')
        return false;
    ret->end = at + 2;
    return true;
}

/* Finds the next delimiter at or after `at`, in linear time for any body: only the first byte of
 * `mark`, CRLF "--BOUNDARY", is a CR, so neither candidates nor the blanks after them overlap. At
 * the start of the body a delimiter has no CRLF before it. */
static bool find_delimiter(const uint8_t *body, size_t size, size_t at, const char *mark,
                           size_t mark_size, struct delimiter *ret)
{
    ret->start = 0;
    if (at == 0 && size >= mark_size - 2 && !memcmp(body, mark + 2, mark_size - 2) &&
        delimiter_ends(body, size, mark_size - 2, ret))
        return true;
    while (at < size) {
        const uint8_t *hit = memchr(body + at, '\r', size - at);
        if (!hit || (size_t)(body + size - hit) < mark_size)
            return false;
        ret->start = (size_t)(hit - body);
        at = ret->start + 1;
        if (!memcmp(hit, mark, mark_size) &&
            delimiter_ends(body, size, ret->start + mark_size, ret))
            return true;
    }
    return false;
}

static void multipart_read_header(const char *line, size_t length, struct multipart_part *part)
{
    static const char wanted[] = "content-disposition:";
    if (length < sizeof wanted - 1 || strncasecmp(line, wanted, sizeof wanted - 1) != 0)
        return;
    parameter(line, length, "name", part->name, sizeof part->name);
    part->has_filename = parameter(line, length, "filename", part->filename, sizeof part->filename);
}

/* Reads the headers of the part at *at; moves *at past the empty line after them. */
static enum status read_headers(const uint8_t *body, size_t end, size_t *at,
                                struct multipart_part *part, struct error *err)
{
    size_t start = *at;
    for (int lines = 0;; lines++) {
        const uint8_t *line = body + *at;
        const uint8_t *stop = memmem(line, end - *at, "\r\n", 2);
        size_t length = stop ? (size_t)(stop - line) : 0;
        if (!stop || lines > HEADER_COUNT || *at + length - start > HEADER_MAX)
            return error_set(err, STATUS_INVALID,
                             "multipart: the headers of a part exceed %d lines or %d bytes",
                             HEADER_COUNT, HEADER_MAX);
        *at += length + 2;
        if (length == 0)
            return STATUS_OK;
        multipart_read_header((const char *)line, length, part);
    }
}

static enum status add_part(struct multipart *multipart, size_t *capacity, size_t max_parts,
                            const struct multipart_part *part, struct error *err)
{
    if (multipart->count == max_parts)
        return error_set(err, STATUS_TOO_LARGE,
                         "more than %zu parts in one multipart request (--max-images)", max_parts);
    TRY(check_memory(array_reserve(&multipart->parts, capacity, multipart->count + 1, sizeof *part),
                     "for the parts of a request", err));
    multipart->parts[multipart->count++] = *part;
    return STATUS_OK;
}

static enum status multipart_split(const uint8_t *body, size_t size, const char *mark,
                                   size_t max_parts, struct multipart *multipart, struct error *err)
{
    size_t mark_size = strlen(mark), capacity = 0;
    struct delimiter delimiter;
    if (!find_delimiter(body, size, 0, mark, mark_size, &delimiter))
        return error_set(err, STATUS_INVALID,
                         "multipart: the boundary of the Content-Type is not in the body");
    while (!delimiter.last) {
        struct multipart_part part = {.name = ""};
        size_t at = delimiter.end;
        /* Search from the line end of the previous delimiter: if a part has neither headers nor
         * bytes, its next delimiter is right there. */
        if (!find_delimiter(body, size, delimiter.end - 2, mark, mark_size, &delimiter))
            return error_set(
                err, STATUS_INVALID,
                "multipart: the last part has no end (--boundary--): the body is cut off");
        size_t end = delimiter.start + 2 < at ? at : delimiter.start + 2;
        TRY(read_headers(body, end, &at, &part, err));
        part.data = body + at;
        part.size = delimiter.start > at ? delimiter.start - at : 0;
        TRY(add_part(multipart, &capacity, max_parts, &part, err));
    }
    if (multipart->count == 0)
        return error_set(
            err, STATUS_INVALID,
            "multipart: the body has no part; send an image: curl -F image=@photo.jpg");
    return STATUS_OK;
}

enum status multipart_parse(const char *content_type, const uint8_t *body, size_t size,
                            size_t max_parts, struct multipart *ret, struct error *err)
{
    char boundary[256], mark[BOUNDARY_MAX + 5] = "\r\n--";
    if (!parameter(content_type, strlen(content_type), "boundary", boundary, sizeof boundary) ||
        !boundary[0] || strlen(boundary) > BOUNDARY_MAX)
        return error_set(err, STATUS_INVALID,
                         "multipart: the Content-Type has no boundary of 1 to %d characters; let "
                         "the HTTP client write this header",
                         BOUNDARY_MAX);
    memcpy(mark + 4, boundary, strlen(boundary) + 1);
    struct multipart multipart = {NULL, 0};
    enum status status = multipart_split(body, size, mark, max_parts, &multipart, err);
    if (status != STATUS_OK) {
        multipart_done(&multipart);
        return status;
    }
    *ret = multipart;
    return STATUS_OK;
}

void multipart_done(struct multipart *multipart)
{
    free(multipart->parts);
    multipart->parts = NULL;
    multipart->count = 0;
}
