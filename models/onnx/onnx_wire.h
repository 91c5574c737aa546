/* Private to models/onnx/: the wire format, looked at before protobuf-c sees it. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Nested messages and groups, as protobuf's own C++ parser limits them. */
#define WIRE_MAX_DEPTH 100

/* What stands in place of TensorProto.raw_data after wire_slim(): where the bytes are. */
struct wire_reference {
    uint64_t offset, size; /* in the data given to wire_slim() */
};

/* Reads `data` as a message of type `descriptor`, without recursion, and writes a slimmed copy that
 * protobuf-c can unpack: fields the descriptor does not name are dropped, groups too, and
 * TensorProto.raw_data is replaced by a struct wire_reference.
 *
 * Refused as STATUS_MODEL, with the byte where it happens: lengths past the end, field number 0,
 * wire types 6 and 7, varints over 10 bytes, groups that do not close, nesting deeper than
 * WIRE_MAX_DEPTH, a known field of the wrong wire type, packed lists cut through an element,
 * strings that hold a NUL byte (they would alias shorter names) or are no UTF-8, a singular message
 * twice. STATUS_NO_MEMORY when the copy exceeds `limit` bytes. *ret is malloc'ed. Thread-safe. */
enum status wire_slim(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                      size_t size, size_t limit, uint8_t **ret, size_t *ret_size,
                      struct error *err) MUST_USE;

/* A sentence part for bytes that are no ONNX model but something known ("a git-lfs pointer …");
 * NULL when nothing is recognised. */
const char *wire_recognise(const uint8_t *data, size_t size);

/* The same for bytes that wire_slim() refused: also looks for what a model could begin with by
 * chance (images, plain text). */
const char *wire_guess(const uint8_t *data, size_t size);
