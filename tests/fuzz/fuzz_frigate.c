/* Headers of Frigate's ZeroMQ detector. What is read has a name that ends, or four sizes of 1 or
 * more whose bytes fit; what is refused has a sentence. */
#include <string.h>

#include "proto/frigate.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct frigate_header header;
    struct error err = {0};
    if (frigate_header_parse((const char *)data, size, &header, &err) != STATUS_OK) {
        HOLDS(err.message[0] && err.status == STATUS_INVALID);
        return 0;
    }
    if (header.kind != FRIGATE_TENSOR) {
        HOLDS(header.model[0] && memchr(header.model, 0, sizeof header.model));
        return 0;
    }
    size_t bytes = dtype_size(header.dtype);
    HOLDS(bytes > 0 && header.shape.rank == 4 && !header.model[0]);
    for (int i = 0; i < 4; i++) {
        HOLDS(header.shape.dims[i] >= 1);
        HOLDS(!__builtin_mul_overflow(bytes, (size_t)header.shape.dims[i], &bytes));
    }
    HOLDS(bytes == header.bytes);
    return 0;
}
