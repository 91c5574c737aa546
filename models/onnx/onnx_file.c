/* Reads a model file and converts its bytes to protobuf-c's messages. */
#include "models/onnx/onnx_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/cpu.h"
#include "engine/base/file.h"
#include "engine/base/size.h"
#include "models/onnx/access.h"
#include "models/onnx/onnx_wire.h"

#define DEFAULT_LIMIT ((size_t)16 << 30)

enum status onnx_charge(struct onnx_file *file, size_t bytes, struct error *err)
{
    if (file->used > file->limit || bytes > file->limit - file->used)
        return error_set(
            err, STATUS_NO_MEMORY,
            "%zu bytes more would exceed the load's memory limit of %zu bytes (%zu in use)", bytes,
            file->limit, file->used);
    file->used += bytes;
    return STATUS_OK;
}

static size_t default_limit(void)
{
    uint64_t total, available;
    cpu_memory(&total, &available);
    return available && available < DEFAULT_LIMIT ? (size_t)available : DEFAULT_LIMIT;
}

/* Maps the file if it is not larger than default_limit(). Otherwise file->mapping stays NULL. */
static enum status onnx_map_file(const char *path, struct onnx_file *file, struct error *err)
{
    TRY(file_open(path, &file->fd, &file->size, err));
    if (file->size && file->size <= default_limit() &&
        mapping_create(file->fd, 0, file->size, &file->mapping, NULL) == STATUS_OK) {
        file->data = mapping_data(file->mapping);
    } else {
        close(file->fd);
        file->fd = -1;
    }
    return STATUS_OK;
}

static enum status onnx_read_file(const char *path, struct onnx_file *file, struct error *err)
{
    uint8_t *data;
    size_t size;
    struct error cause;
    enum status status = onnx_map_file(path, file, &cause);
    if (status == STATUS_OK && file->mapping)
        return STATUS_OK;
    IF_OK(status, file_read(path, file->limit, &data, &size, &cause));
    if (status == STATUS_INVALID)
        return error_set(err, STATUS_IO,
                         "it is not a regular file; name an .onnx file or a model's folder");
    if (status == STATUS_NOT_FOUND || status == STATUS_IO)
        return error_set(err, STATUS_IO, "cannot open it: %s%s", cause.message,
                         access_advice(path, errno));
    if (status == STATUS_NO_MEMORY)
        return error_set(err, status, "%s", cause.message);
    /* After STATUS_TOO_LARGE `size` is above the limit, and onnx_charge() reports the error. */
    TRY(onnx_charge(file, size, err));
    file->data = file->owned = data;
    file->size = size;
    return STATUS_OK;
}

static struct onnx_file new_file(size_t memory_limit)
{
    return (struct onnx_file){.fd = -1,
                              .folder = -1,
                              .external_fd = -1,
                              .limit = memory_limit ? memory_limit : default_limit()};
}

void onnx_file_borrow(struct onnx_file *file, const void *data, size_t size, size_t memory_limit)
{
    *file = new_file(memory_limit);
    file->data = data;
    file->size = size;
}

enum status onnx_file_open(struct onnx_file *file, const char *path, size_t memory_limit,
                           struct error *err)
{
    char folder[PATH_MAX];
    *file = new_file(memory_limit);
    TRY(onnx_read_file(path, file, err));
    const char *known = wire_recognise(file->data, file->size);
    if (known)
        return error_set(err, STATUS_MODEL, "%s", known);
    path_folder(path, folder);
    file->folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return STATUS_OK;
}

void onnx_file_close(struct onnx_file *file)
{
    if (file->folder >= 0)
        close(file->folder);
    if (file->external_fd >= 0)
        close(file->external_fd);
    if (file->fd >= 0)
        close(file->fd);
    mapping_free(file->mapping);
    FREE_ALL(file->external_name, file->owned);
}

enum status onnx_file_check(const struct onnx_file *file, enum status status, struct error *err)
{
    if (file->mapping && !mapping_is_whole(file->mapping))
        return error_set(err, STATUS_IO, MAPPING_CHANGED);
    return status;
}

struct onnx_unpacking {
    struct arena *arena;
    bool is_short;
};

static void *arena_take(void *context, size_t size)
{
    struct onnx_unpacking *unpacking = context;
    void *memory = arena_alloc(unpacking->arena, 1, size);
    unpacking->is_short |= !memory;
    return memory;
}

static void arena_keep(void *context, void *pointer)
{
    (void)context;
    (void)pointer; /* freed with the arena */
}

enum status onnx_unpack(struct onnx_file *file, const ProtobufCMessageDescriptor *descriptor,
                        struct onnx_messages *ret, struct error *err)
{
    uint8_t *slim = NULL;
    size_t size = 0;
    if (file->used >= file->limit)
        return error_set(err, STATUS_NO_MEMORY, "the file alone exceeds the memory limit");
    if (wire_slim(descriptor, file->data, file->size, file->limit - file->used, &slim, &size,
                  err) != STATUS_OK) {
        const char *guess =
            err->status == STATUS_MODEL && descriptor == &onnx__model_proto__descriptor
                ? wire_guess(file->data, file->size)
                : NULL;
        if (guess)
            return error_set(err, STATUS_MODEL, "%s", guess);
        return err->status == STATUS_MODEL
                   ? error_advise(err, "the file is damaged or incomplete: copy it again, or "
                                       "export the model again")
                   : err->status;
    }
    /* The budget limits the messages, but is not charged for them, because they are freed before
     * the graph is used. */
    struct onnx_unpacking unpacking = {.arena = arena_create(file->limit - file->used)};
    ProtobufCAllocator allocator = {
        .alloc = arena_take, .free = arena_keep, .allocator_data = &unpacking};
    ProtobufCMessage *root =
        unpacking.arena ? protobuf_c_message_unpack(descriptor, &allocator, size, slim) : NULL;
    free(slim);
    if (!root) {
        arena_free(unpacking.arena);
        return unpacking.is_short || !unpacking.arena
                   ? error_set(err, STATUS_NO_MEMORY,
                               "no memory for its structures, or they exceed the memory limit")
                   : error_set(err, STATUS_MODEL, "the file is malformed");
    }
    *ret = (struct onnx_messages){unpacking.arena, root};
    return STATUS_OK;
}
