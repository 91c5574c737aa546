/* Checks the bytes of a model file, and makes the copy that protobuf-c unpacks.
 *
 * protobuf-c's unpacker recurses without a limit, does not support groups, copies unknown fields,
 * and cuts strings at a NUL. This parser reads the bytes first, with its own stack, and makes a
 * copy without these problems. The file may be mapped and change meanwhile, so the parser checks
 * the bytes that it has copied.
 *
 * The copy omits large data: raw_data of tensors becomes a reference into the original bytes, so
 * that loading a file needs memory for the file and the tensors, but not for a third copy. The
 * length of a nested message is a varint padded to 5 bytes, which is legal and can be filled in
 * later. */
#include "models/onnx/onnx_wire.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "proto/onnx.pb-c.h"

#define LENGTH_BYTES 5
#define RAW_DATA     9 /* TensorProto.raw_data */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_OPEN = 3, WIRE_CLOSE = 4, WIRE_32 = 5 };

struct wire_frame {
    const ProtobufCMessageDescriptor *descriptor; /* NULL: inside a dropped group */
    size_t end;     /* end of the message; for a group, of the enclosing message */
    size_t body;    /* where the message's body starts in the copy */
    uint32_t group; /* field number of the group */
    uint64_t seen;  /* bits of singular fields that occurred, by index */
};

struct wire_parser {
    const uint8_t *data;
    size_t size, at;
    uint8_t *out;
    size_t used, room, limit;
    struct wire_frame stack[WIRE_MAX_DEPTH + 1];
    size_t depth;
    struct error *err;
};

static enum status bad(const struct wire_parser *w, const char *what)
{
    return error_set(w->err, STATUS_MODEL, "malformed file: %s at byte %zu", what, w->at);
}

/* Reports `what` as data that continues after `end`, the end of its message or of the file. */
static enum status cut_off(const struct wire_parser *w, const char *what, size_t end)
{
    if (end != w->size)
        return error_set(w->err, STATUS_MODEL,
                         "malformed file: %s passes the end of its message at byte %zu", what,
                         w->at);
    return error_set(w->err, STATUS_MODEL,
                     "malformed file: %s passes the end of the file at byte %zu", what, w->at);
}

static enum status wire_reserve(struct wire_parser *w, size_t bytes)
{
    size_t wanted;
    if (!size_add(w->used, bytes, &wanted) || wanted > w->limit)
        return error_set(w->err, STATUS_NO_MEMORY,
                         "the file's structures exceed the memory limit of %zu bytes", w->limit);
    if (!array_reserve(&w->out, &w->room, wanted, 1))
        return error_set(w->err, STATUS_NO_MEMORY, "out of memory while reading a model: %zu bytes",
                         wanted);
    return STATUS_OK;
}

static enum status wire_emit(struct wire_parser *w, const void *bytes, size_t size)
{
    TRY(wire_reserve(w, size));
    if (size)
        memcpy(w->out + w->used, bytes, size);
    w->used += size;
    return STATUS_OK;
}

static enum status emit_varint(struct wire_parser *w, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[n++] = (uint8_t)(value | 0x80);
    bytes[n++] = (uint8_t)value;
    return wire_emit(w, bytes, n);
}

/* Writes `value` (below 2^35) as a varint of exactly LENGTH_BYTES. */
static void put_length(uint8_t *bytes, uint64_t value)
{
    for (int i = 0; i < LENGTH_BYTES - 1; i++, value >>= 7)
        bytes[i] = (uint8_t)((value & 0x7f) | 0x80);
    bytes[LENGTH_BYTES - 1] = (uint8_t)value;
}

/* Reads a varint that must end before `end`. */
static enum status read_varint(struct wire_parser *w, size_t end, uint64_t *ret)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 10; i++) {
        if (w->at >= end)
            return cut_off(w, "a number that", end);
        uint8_t byte = w->data[w->at++];
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *ret = value;
            return STATUS_OK;
        }
    }
    return bad(w, "a number of more than 10 bytes");
}

static enum status read_length(struct wire_parser *w, size_t end, size_t *ret)
{
    uint64_t length = 0;
    TRY(read_varint(w, end, &length));
    if (length > end - w->at)
        return cut_off(w, "a length that", end);
    *ret = (size_t)length;
    return STATUS_OK;
}

/* The wire type of a single element of this field. */
static int element_wire(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return WIRE_32;
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return WIRE_64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT;
    }
}

/* Skips one value of a wire type; the caller handles groups. */
static enum status skip(struct wire_parser *w, int wire, size_t end)
{
    uint64_t number = 0;
    size_t length = 0;
    switch (wire) {
    case WIRE_VARINT:
        return read_varint(w, end, &number);
    case WIRE_BYTES:
        TRY(read_length(w, end, &length));
        w->at += length;
        return STATUS_OK;
    default:
        length = wire == WIRE_64 ? 8 : 4;
        if (length > end - w->at)
            return cut_off(w, "a number that", end);
        w->at += length;
        return STATUS_OK;
    }
}

static enum status wire_push(struct wire_parser *w, struct wire_frame frame)
{
    if (w->depth > WIRE_MAX_DEPTH)
        return bad(w, "messages nested deeper than 100 levels");
    w->stack[w->depth++] = frame;
    return STATUS_OK;
}

/* True if the bytes are complete varints of at most 10 bytes each. */
static bool varints_are_whole(const uint8_t *bytes, size_t size)
{
    size_t length = 0;
    for (size_t i = 0; i < size && length < 10; i++)
        length = bytes[i] & 0x80 ? length + 1 : 0;
    return length == 0;
}

/* Copies a packed list of complete elements, a text, or bytes. */
static enum status copy_field(struct wire_parser *w, uint64_t tag,
                              const ProtobufCFieldDescriptor *field, size_t end)
{
    const int wire = element_wire(field->type);
    size_t length = 0;
    TRY(read_length(w, end, &length));
    const uint8_t *bytes = w->data + w->at;
    const struct wire_reference reference = {w->at, length};
    w->at += length;
    TRY(emit_varint(w, tag));
    if (w->stack[w->depth - 1].descriptor == &onnx__tensor_proto__descriptor &&
        field->id == RAW_DATA) {
        TRY(emit_varint(w, sizeof reference));
        return wire_emit(w, &reference, sizeof reference);
    }
    TRY(emit_varint(w, length));
    TRY(wire_emit(w, bytes, length));
    const uint8_t *copy = w->out + w->used - length;
    if (wire == WIRE_VARINT ? !varints_are_whole(copy, length)
                            : wire != WIRE_BYTES && length % (wire == WIRE_64 ? 8 : 4))
        return bad(w, "a packed list cut through an element");
    if (field->type != PROTOBUF_C_TYPE_STRING)
        return STATUS_OK;
    if (memchr(copy, 0, length))
        return bad(w, "a name that holds a NUL byte");
    return utf8_valid((const char *)copy, length) ? STATUS_OK : bad(w, "a name that is not UTF-8");
}

static enum status open_message(struct wire_parser *w, uint64_t tag,
                                const ProtobufCFieldDescriptor *field, size_t end)
{
    struct wire_frame *frame = &w->stack[w->depth - 1];
    size_t index = (size_t)(field - frame->descriptor->fields), length = 0;
    if (field->label != PROTOBUF_C_LABEL_REPEATED) {
        if (frame->seen >> index & 1)
            return bad(w, "a field that may occur once occurs twice");
        frame->seen |= UINT64_C(1) << index;
    }
    TRY(read_length(w, end, &length));
    TRY(emit_varint(w, tag));
    TRY(wire_reserve(w, LENGTH_BYTES));
    w->used += LENGTH_BYTES;
    return wire_push(w, (struct wire_frame){.descriptor = field->descriptor,
                                            .end = w->at + length,
                                            .body = w->used});
}

static enum status known_field(struct wire_parser *w, uint64_t tag,
                               const ProtobufCFieldDescriptor *field, size_t end)
{
    int wire = (int)(tag & 7), element = element_wire(field->type);
    const bool is_packed = wire == WIRE_BYTES && field->label == PROTOBUF_C_LABEL_REPEATED;
    if (wire != element && !is_packed)
        return error_set(w->err, STATUS_MODEL,
                         "malformed file: field '%s' has wire type %d, expected %d, at byte %zu",
                         field->name, wire, element, w->at);
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return open_message(w, tag, field, end);
    if (wire == WIRE_BYTES)
        return copy_field(w, tag, field, end);
    TRY(emit_varint(w, tag));
    if (wire == WIRE_VARINT) {
        uint64_t number = 0;
        TRY(read_varint(w, end, &number));
        return emit_varint(w, number);
    }
    const uint8_t *from = w->data + w->at;
    TRY(skip(w, wire, end));
    return wire_emit(w, from, (size_t)(w->data + w->at - from));
}

static enum status one_field(struct wire_parser *w)
{
    struct wire_frame *frame = &w->stack[w->depth - 1];
    uint64_t tag = 0;
    TRY(read_varint(w, frame->end, &tag));
    uint64_t number = tag >> 3;
    int wire = (int)(tag & 7);
    if (number == 0 || number >= (1u << 29))
        return bad(w, "a field number out of range");
    if (wire > WIRE_32)
        return bad(w, "an unknown wire type");
    if (wire == WIRE_CLOSE) {
        if (frame->descriptor || frame->group != number)
            return bad(w, "the end of a group that was not opened");
        w->depth--;
        return STATUS_OK;
    }
    const ProtobufCFieldDescriptor *field =
        frame->descriptor
            ? protobuf_c_message_descriptor_get_field(frame->descriptor, (unsigned)number)
            : NULL;
    if (wire == WIRE_OPEN) {
        if (field)
            return bad(w, "a group in place of a field");
        return wire_push(w, (struct wire_frame){.end = frame->end, .group = (uint32_t)number});
    }
    return field ? known_field(w, tag, field, frame->end) : skip(w, wire, frame->end);
}

/* Ends the innermost message, whose length is now known. */
static enum status close_message(struct wire_parser *w)
{
    const struct wire_frame *frame = &w->stack[w->depth - 1];
    if (!frame->descriptor)
        return bad(w, "a group that does not end");
    if (w->depth > 1) {
        size_t length = w->used - frame->body;
        if (length > INT_MAX)
            return bad(w, "a message of more than 2 GiB");
        put_length(w->out + frame->body - LENGTH_BYTES, length);
    }
    w->depth--;
    return STATUS_OK;
}

enum status wire_slim(const ProtobufCMessageDescriptor *descriptor, const uint8_t *data,
                      size_t size, size_t limit, uint8_t **ret, size_t *ret_size, struct error *err)
{
    struct wire_parser w = {.data = data, .size = size, .limit = limit, .err = err};
    enum status status = wire_push(&w, (struct wire_frame){.descriptor = descriptor, .end = size});
    IF_OK(status, wire_reserve(&w, 1));
    while (status == STATUS_OK && w.depth)
        status = w.at < w.stack[w.depth - 1].end ? one_field(&w) : close_message(&w);
    if (status != STATUS_OK) {
        free(w.out);
        return status;
    }
    *ret = w.out;
    *ret_size = w.used;
    return STATUS_OK;
}

static bool starts_with(const uint8_t *data, size_t size, const char *text)
{
    size_t length = strlen(text);
    return size >= length && !strncasecmp((const char *)data, text, length);
}

static bool starts_with_bytes(const uint8_t *data, size_t size, const void *bytes, size_t length)
{
    return size >= length && !memcmp(data, bytes, length);
}

#define NOT_ONNX    "not an ONNX file: it looks like "
#define EXPORT      "; export the model to ONNX first"
#define TEXT_WINDOW ((size_t)256)

const char *wire_recognise(const uint8_t *data, size_t size)
{
    if (size == 0)
        return "the file is empty; copy it again, or export the model again";
    if (starts_with(data, size, "version https://git-lfs"))
        return "the file is a git-lfs pointer, not the model: run `git lfs pull` in its repository";
    if (starts_with(data, size, "<!doctype") || starts_with(data, size, "<html") ||
        starts_with(data, size, "<?xml"))
        return NOT_ONNX "a web page; the download went wrong: download it again";
    if (starts_with_bytes(data, size, "PK\3\4", 4))
        return NOT_ONNX "a zip archive (a PyTorch checkpoint?)" EXPORT " (torch.onnx.export)";
    if (starts_with_bytes(data, size, "\x89HDF", 4))
        return NOT_ONNX "HDF5 (a Keras checkpoint?); convert it with tf2onnx first";
    if (size >= 8 && !memcmp(data + 4, "TFL3", 4))
        return NOT_ONNX "a TensorFlow Lite model; convert it with tf2onnx first";
    if (size >= 8 && !memcmp(data + 4, "ORTM", 4))
        return NOT_ONNX
            "ONNX Runtime's own format (.ort); use the .onnx file that it was made from";
    if (size >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5)
        return NOT_ONNX "a Python pickle (a PyTorch checkpoint?)" EXPORT " (torch.onnx.export)";
    if (starts_with_bytes(data, size, "\x1f\x8b", 2))
        return NOT_ONNX "gzip data; unpack it first";
    return NULL;
}

/* True if the first bytes are UTF-8 text. Models rarely begin without a control character. */
static bool looks_like_text(const uint8_t *data, size_t size)
{
    size_t length = size < TEXT_WINDOW ? size : TEXT_WINDOW;
    for (size_t i = 0; i < length; i++)
        if (data[i] == 0x7f || (data[i] < ' ' && !(data[i] >= '\t' && data[i] <= '\r')))
            return false;
    /* These first bytes may end within a character of up to 4 bytes. */
    for (size_t less = 0; less < 4 && less < length; less++)
        if (utf8_valid((const char *)data, length - less))
            return true;
        else if (length == size)
            return false;
    return false;
}

const char *wire_guess(const uint8_t *data, size_t size)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *text;
    } starts[] = {{"\xff\xd8", 2, NOT_ONNX "a JPEG image" EXPORT},
                  {"\x89PNG", 4, NOT_ONNX "a PNG image" EXPORT},
                  {"GIF8", 4, NOT_ONNX "a GIF image" EXPORT},
                  {"RIFF", 4, NOT_ONNX "a WebP image or another RIFF file" EXPORT},
                  {"%PDF", 4, NOT_ONNX "a PDF document" EXPORT}};
    const char *known = wire_recognise(data, size);
    if (known)
        return known;
    for (size_t i = 0; i < COUNT_OF(starts); i++)
        if (starts_with_bytes(data, size, starts[i].bytes, starts[i].size))
            return starts[i].text;
    /* safetensors: 8 bytes of length, then JSON */
    if (size > 10 && !memcmp(data + 8, "{\"", 2))
        return NOT_ONNX "safetensors weights" EXPORT;
    return looks_like_text(data, size) ? NOT_ONNX "plain text" EXPORT : NULL;
}
