/* PROXY headers. A whole header is parsed with its size and does not depend on the bytes after it.
 * Each of its beginnings asks for more. */
#include <stdlib.h>
#include <string.h>

#include "server/http/transport/proxy_header.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct proxy_header header, again;
    /* An exact copy: a read past the end is seen. */
    uint8_t *copy = malloc(size + !size);
    HOLDS(copy);
    memcpy(copy, data, size);
    if (proxy_header_parse(copy, size, &header) == PROXY_HEADER_WHOLE) {
        HOLDS(header.size >= 15 && header.size <= size && header.size <= PROXY_HEADER_MAX);
        HOLDS(proxy_header_parse(copy, header.size, &again) == PROXY_HEADER_WHOLE);
        HOLDS(again.size == header.size && again.client_size == header.client_size);
        HOLDS(!memcmp(&again.client, &header.client, sizeof header.client));
        for (size_t cut = 0; cut < header.size; cut++)
            HOLDS(proxy_header_parse(copy, cut, &again) == PROXY_HEADER_MORE);
    }
    free(copy);
    return 0;
}
