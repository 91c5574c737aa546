/* Private to models/onnx/: checks the wire format before protobuf-c reads it. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Limit for nested messages and groups, as in protobuf's own C++ parser. */
#define WIRE_MAX_DEPTH 100

/* wire_slim() replaces TensorProto.raw_data by this reference to its bytes. */
struct wire_reference {
    uint64_t offset, size; /* relative to the data passed to wire_slim() */
};

/* Reads `data` as a message of type `descriptor`, without recursion, and writes a smaller copy for
 * protobuf-c. The copy omits groups and fields that the descriptor does not name, and has a struct
 * wire_reference in place of TensorProto.raw_data.
 *
 * STATUS_MODEL, with the position of the byte, for: lengths past the end, field numbers out of
 * range, wire types 6 and 7, varints over 10 bytes, groups that do not close, nesting deeper than
 * WIRE_MAX_DEPTH, a known field with the wrong wire type, packed lists that end inside an element,
 * strings with a NUL byte (they would alias shorter names) or invalid UTF-8, a singular message
 * twice. STATUS_NO_MEMORY when the copy exceeds `limit` bytes. *ret is malloc'ed. Thread-safe. */
enum status wire_slim(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                      size_t size, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err) MUST_USE;

/* A phrase for error messages if the bytes are another known format ("a git-lfs pointer …"); NULL
 * if they are not recognised. */
const char *wire_recognise(const uint8_t *data, size_t size);

/* As wire_recognise(), for bytes that wire_slim() refused. Also recognises images, plain text and
 * other formats, whose first bytes an ONNX file could have by chance. */
const char *wire_guess(const uint8_t *data, size_t size);
