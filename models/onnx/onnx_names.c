/* Finds the names of a file's inputs and outputs. It skips everything else by its length, so it is
 * fast for a file of any size. */
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mapping.h"
#include "models/onnx/onnx.h"

/* Fields of ModelProto, GraphProto and ValueInfoProto (onnx.proto). */
enum { FIELD_GRAPH = 7, FIELD_INPUT = 11, FIELD_OUTPUT = 12, FIELD_NAME = 1 };

struct wire_span {
    const uint8_t *at, *end;
};

static bool span_number(struct wire_span *span, uint64_t *ret)
{
    *ret = 0;
    for (unsigned shift = 0; shift < 64 && span->at < span->end; shift += 7) {
        const uint8_t byte = *span->at++;
        *ret |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

/* Finds the next field of type BYTES. Returns false if there is none, or the rest is damaged. */
static bool span_next(struct wire_span *span, uint64_t *ret_field, struct wire_span *ret)
{
    enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };
    uint64_t key, size;
    while (span_number(span, &key)) {
        const uint64_t type = key & 7;
        size = type == FIXED_64 ? 8 : 4;
        if ((type != VARINT && type != FIXED_64 && type != BYTES && type != FIXED_32) ||
            ((type == VARINT || type == BYTES) && !span_number(span, &size)))
            return false;
        if (type == VARINT)
            continue;
        if (size > (uint64_t)(span->end - span->at))
            return false;
        *ret = (struct wire_span){span->at, span->at + size};
        span->at += size;
        *ret_field = key >> 3;
        if (type == BYTES)
            return true;
    }
    return false;
}

static bool span_find(struct wire_span span, uint64_t wanted, struct wire_span *ret)
{
    uint64_t field;
    while (span_next(&span, &field, ret))
        if (field == wanted)
            return true;
    return false;
}

static void visit_graph(struct wire_span graph, onnx_name_visitor visit, void *context)
{
    uint64_t field;
    struct wire_span tensor, name;
    while (span_next(&graph, &field, &tensor))
        if ((field == FIELD_INPUT || field == FIELD_OUTPUT) && span_find(tensor, FIELD_NAME, &name))
            visit(context, field == FIELD_OUTPUT, (const char *)name.at,
                  (size_t)(name.end - name.at));
}

void onnx_visit_names(const char *path, onnx_name_visitor visit, void *context)
{
    int fd;
    size_t size;
    struct mapping *mapping = NULL;
    if (file_open(path, &fd, &size, NULL) != STATUS_OK)
        return;
    if (size && mapping_create(fd, 0, size, &mapping, NULL) == STATUS_OK) {
        const uint8_t *data = mapping_data(mapping);
        struct wire_span graph;
        if (span_find((struct wire_span){data, data + size}, FIELD_GRAPH, &graph))
            visit_graph(graph, visit, context);
        mapping_free(mapping);
    }
    close(fd);
}
