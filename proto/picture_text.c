/* Decodes images that were sent as text. */
#include "proto/picture_text.h"

#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "proto/base64.h"

static bool text_begins(const char *text, size_t size, const char *with)
{
    return size >= strlen(with) && strncasecmp(text, with, strlen(with)) == 0;
}

enum status picture_text_decode(char *text, size_t size, uint8_t **ret, size_t *ret_size,
                                struct error *err)
{
    static const char *const schemes[] = {"http://", "https://", "ftp://", "file://"};
    static const char mark[] = ";base64";
    for (size_t i = 0; i < COUNT_OF(schemes); i++)
        if (text_begins(text, size, schemes[i]))
            return error_set(err, STATUS_INVALID,
                             "lensd does not fetch images from URLs (%s…); send the image itself "
                             "as base64 or as a data: URI",
                             schemes[i]);
    if (text_begins(text, size, "data:")) {
        const char *comma = memchr(text, ',', size);
        const size_t head = comma ? (size_t)(comma - text) : 0;
        if (head < sizeof mark ||
            strncasecmp(comma - (sizeof mark - 1), mark, sizeof mark - 1) != 0)
            return error_set(err, STATUS_INVALID,
                             "the data: URI is not base64; write data:image/jpeg;base64,…");
        text += head + 1;
        size -= head + 1;
    }
    TRY(base64_decode(text, size, (uint8_t *)text, ret_size, err));
    *ret = (uint8_t *)text;
    return STATUS_OK;
}
